//! Parts shared by the pointwise families: the table macro, and aliases of operators.
//!
//! A row of `pointwise!` reads
//!
//! ```text
//! "aten.add.Tensor" "(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
//!     ["self", "other"] Common add, "(f32[2,3], f32[3], alpha=2)";
//! ```
//!
//! The list names the operands, which promote together as [`crate::Promo`] says and reach the
//! function in this order; one that is `None` in the call is left out, and one with a leading `?`
//! is a condition. Other parameters (`alpha`) are asked for by the function itself.

use crate::Pw;
use inrush_base::Result;
use inrush_loops::{ScalarOp, StmtId};

/// Rows of one line each: name, schema, operands, promotion, function, example.
macro_rules! pointwise {
    ($($name:literal $schema:literal [$($operand:literal),*] $promo:ident $function:expr, $example:literal;)*) => {
        pub const ROWS: &[$crate::Row] = &[$($crate::Row {
            name: $name,
            schema: $schema,
            meta: $crate::Meta::Route,
            route: $crate::Route::Pointwise($crate::Pointwise {
                operands: &[$($operand),*],
                promo: $crate::Promo::$promo,
                function: $function,
            }),
            example: $example, props: &[],
    },)*];
    };
}
pub(in crate::ops) use pointwise;

/// Short forms for scalar functions. Values have the compute dtype (`f32` for halves), and no
/// intermediate is rounded to the tensor's dtype unless the function says so with `step` or `cast`.
impl Pw<'_, '_> {
    pub(in crate::ops) fn add(&mut self, a: StmtId, b: StmtId) -> StmtId {
        self.op2(ScalarOp::Add, a, b)
    }
    pub(in crate::ops) fn sub(&mut self, a: StmtId, b: StmtId) -> StmtId {
        self.op2(ScalarOp::Sub, a, b)
    }
    pub(in crate::ops) fn mul(&mut self, a: StmtId, b: StmtId) -> StmtId {
        self.op2(ScalarOp::Mul, a, b)
    }
    pub(in crate::ops) fn div(&mut self, a: StmtId, b: StmtId) -> StmtId {
        self.op2(ScalarOp::Div, a, b)
    }
    /// NaN wins, as in `torch.maximum`.
    pub(in crate::ops) fn max(&mut self, a: StmtId, b: StmtId) -> StmtId {
        self.op2(ScalarOp::Maximum, a, b)
    }
    /// NaN wins, as in `torch.minimum`.
    pub(in crate::ops) fn min(&mut self, a: StmtId, b: StmtId) -> StmtId {
        self.op2(ScalarOp::Minimum, a, b)
    }
    pub(in crate::ops) fn neg(&mut self, a: StmtId) -> StmtId {
        self.op1(ScalarOp::Neg, a)
    }
    /// `a op c` for a constant.
    /// In an integer dtype the constant is cut to an integer.
    pub(in crate::ops) fn opc(&mut self, op: ScalarOp, a: StmtId, c: f64) -> StmtId {
        let c = self.c(c);
        self.op2(op, a, c)
    }
    /// `c op a` for a constant.
    pub(in crate::ops) fn cop(&mut self, op: ScalarOp, c: f64, a: StmtId) -> StmtId {
        let c = self.c(c);
        self.op2(op, c, a)
    }
    /// Math functions applied one after the other, first to last.
    pub(in crate::ops) fn chain(&mut self, a: StmtId, ops: &[ScalarOp]) -> Result<StmtId> {
        Ok(ops.iter().fold(a, |v, op| self.op1(*op, v)))
    }
    /// The boolean constant.
    pub(in crate::ops) fn bool(&mut self, value: bool) -> StmtId {
        self.body
            .constant(inrush_base::Scalar::Bool(value), inrush_base::DType::Bool)
    }
    /// `1 / (1 + exp(-x))`.
    /// Far below zero `exp` is infinite and its reciprocal 0, so that no branch is needed.
    pub(in crate::ops) fn sigmoid(&mut self, x: StmtId) -> StmtId {
        let n = self.neg(x);
        let e = self.op1(ScalarOp::Exp, n);
        let d = self.opc(ScalarOp::Add, e, 1.0);
        self.op1(ScalarOp::Reciprocal, d)
    }
}

/// Operator names (without overload) that mean another.
/// `sgn` differs from `sign` for complex numbers only, which no row takes.
pub(in crate::ops) const ALIASES: &[(&str, &str)] = &[
    ("__and__", "bitwise_and"),
    ("__lshift__", "bitwise_left_shift"),
    ("__or__", "bitwise_or"),
    ("__rshift__", "bitwise_right_shift"),
    ("__xor__", "bitwise_xor"),
    ("absolute", "abs"),
    ("arccos", "acos"),
    ("arccosh", "acosh"),
    ("arcsin", "asin"),
    ("arcsinh", "asinh"),
    ("arctan", "atan"),
    ("arctan2", "atan2"),
    ("arctanh", "atanh"),
    ("clip", "clamp"),
    ("divide", "div"),
    ("fix", "trunc"),
    ("greater", "gt"),
    ("greater_equal", "ge"),
    ("less", "lt"),
    ("less_equal", "le"),
    ("multiply", "mul"),
    ("negative", "neg"),
    ("not_equal", "ne"),
    ("sgn", "sign"),
    ("special_digamma", "digamma"),
    ("special_erf", "erf"),
    ("special_erfc", "erfc"),
    ("special_erfinv", "erfinv"),
    ("special_exp2", "exp2"),
    ("special_expit", "sigmoid"),
    ("special_expm1", "expm1"),
    ("special_gammainc", "igamma"),
    ("special_gammaincc", "igammac"),
    ("special_gammaln", "lgamma"),
    ("special_i0", "i0"),
    ("special_log1p", "log1p"),
    ("special_logit", "logit"),
    ("special_multigammaln", "mvlgamma"),
    ("special_polygamma", "polygamma"),
    ("special_psi", "digamma"),
    ("special_round", "round"),
    ("special_xlogy", "xlogy"),
    ("subtract", "sub"),
    ("true_divide", "div"),
];
