//! The table of scalar operations: one row each.
//!
//! Operands of an operation have one compute dtype (the *operand dtype*) unless the row says
//! otherwise; lowering inserts casts. A language spells each core operation, and has one naming
//! rule for math functions.

use inrush_base::DType;

macro_rules! scalar_ops {
    ($($(#[$doc:meta])* $name:ident $text:literal $arity:literal $result:ident $class:ident;)*) => {
        /// A scalar operation.
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum ScalarOp { $($(#[$doc])* $name,)* }

        const ROWS: &[Row] = &[$(Row { op: ScalarOp::$name, text: $text, arity: $arity, result: ResultRule::$result, class: OpClass::$class },)*];
    };
}

/// The rule for the dtype of the result.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ResultRule {
    /// That of the operands.
    Same,
    /// `bool`.
    Bool,
    /// That of the second operand: `where(cond, a, b)`.
    Second,
}

/// The cost of an operation, and how languages spell it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum OpClass {
    /// One or a few instructions that every language spells.
    Core,
    /// Tens of instructions. Of floats a function of the C math library of this text name.
    Math,
}

struct Row {
    op: ScalarOp,
    text: &'static str,
    arity: usize,
    result: ResultRule,
    class: OpClass,
}

/// Most terms of series and continued fractions, if these do not converge earlier.
pub const MOST_STEPS: u32 = 2000;

scalar_ops! {
    // Arithmetic. Integers wrap.
    Add "add" 2 Same Core;
    Sub "sub" 2 Same Core;
    Mul "mul" 2 Same Core;
    /// Floats only: true division.
    Div "div" 2 Same Core;
    /// `a * b + c`; may be fused (floats).
    Fma "fma" 3 Same Core;
    Neg "neg" 1 Same Core;
    Abs "abs" 1 Same Core;
    /// Integers: quotient toward minus infinity. A zero divisor gives 0 for a masked lane and is otherwise an error of the
    /// input (ATen raises; kernels give 0).
    FloorDiv "floordiv" 2 Same Core;
    /// Integers: quotient toward zero.
    TruncDiv "truncdiv" 2 Same Core;
    /// Remainder with the sign of the divisor (Python's `%`); floats and integers.
    Remainder "remainder" 2 Same Core;
    /// Remainder with the sign of the dividend (C's `fmod`); floats and integers.
    Fmod "fmod" 2 Same Math;
    /// Extremes in which NaN wins.
    Maximum "maximum" 2 Same Core;
    Minimum "minimum" 2 Same Core;
    /// 1 / x.
    Reciprocal "reciprocal" 1 Same Core;
    Sqrt "sqrt" 1 Same Core;
    Rsqrt "rsqrt" 1 Same Core;
    /// -1, 0 or 1: `(x > 0) - (x < 0)`, so NaN gives 0.
    Sign "sign" 1 Same Core;
    Copysign "copysign" 2 Same Core;
    // Rounding (floats). `Round` is to nearest, ties to even.
    Floor "floor" 1 Same Core;
    Ceil "ceil" 1 Same Core;
    Trunc "trunc" 1 Same Core;
    Round "round" 1 Same Core;
    // Comparison.
    Eq "eq" 2 Bool Core;
    Ne "ne" 2 Bool Core;
    Lt "lt" 2 Bool Core;
    Le "le" 2 Bool Core;
    Gt "gt" 2 Bool Core;
    Ge "ge" 2 Bool Core;
    IsNan "isnan" 1 Bool Core;
    IsInf "isinf" 1 Bool Core;
    Signbit "signbit" 1 Bool Core;
    // Bits (integers; bool for the first four is logical).
    And "and" 2 Same Core;
    Or "or" 2 Same Core;
    Xor "xor" 2 Same Core;
    /// Bitwise complement; of a bool its negation.
    Not "not" 1 Same Core;
    /// Shift counts outside `0..bits` give 0 (left) or the sign (right).
    Shl "shl" 2 Same Core;
    /// Arithmetic for signed dtypes.
    Shr "shr" 2 Same Core;
    /// `where(cond, a, b)`: the first operand is bool, the others share the result's dtype.
    Where "where" 3 Second Core;
    // Math functions of floats.
    Exp "exp" 1 Same Math;
    Exp2 "exp2" 1 Same Math;
    Expm1 "expm1" 1 Same Math;
    Log "log" 1 Same Math;
    Log2 "log2" 1 Same Math;
    Log10 "log10" 1 Same Math;
    Log1p "log1p" 1 Same Math;
    Sin "sin" 1 Same Math;
    Cos "cos" 1 Same Math;
    Tan "tan" 1 Same Math;
    Asin "asin" 1 Same Math;
    Acos "acos" 1 Same Math;
    Atan "atan" 1 Same Math;
    Atan2 "atan2" 2 Same Math;
    Sinh "sinh" 1 Same Math;
    Cosh "cosh" 1 Same Math;
    Tanh "tanh" 1 Same Math;
    Asinh "asinh" 1 Same Math;
    Acosh "acosh" 1 Same Math;
    Atanh "atanh" 1 Same Math;
    Erf "erf" 1 Same Math;
    Erfc "erfc" 1 Same Math;
    Lgamma "lgamma" 1 Same Math;
    Pow "pow" 2 Same Math;
    Hypot "hypot" 2 Same Math;
    /// `log(exp(a) + exp(b))` without overflow; equal infinities stay what they are.
    Logaddexp "logaddexp" 2 Same Math;
    Nextafter "nextafter" 2 Same Math;
    /// Greatest common divisor of integers, by Euclid's algorithm. The dtype's least integer has no
    /// absolute value and may be the result.
    Gcd "gcd" 2 Same Math;
    /// Degree `n` of a family of polynomials from degrees 0, which is 1, and 1, which is `first`: `(n, first, a, s, c, r, q)` with
    /// `p[k+1] = ((a + k s) p[k] - (c + k r) p[k-1]) / (1 + k q)`, until that is NaN. 0 for degrees below 0.
    Recurrence "recurrence" 7 Same Math;
    /// Kummer's series without its first term, `(b, c, x, close)`: the sum from `n = 1` of `(b)_n x^n / ((c)_n n!)`, until a
    /// term is no more than `close` of it, but at most [`MOST_STEPS`] of them.
    Kummer "kummer" 4 Same Math;
    /// Legendre's continued fraction for the upper incomplete gamma function, `(a, x, close)`: `Gamma(a, x) exp(x) / x^a` by
    /// Lentz's steps, until one changes no more than `close` of it, but at most [`MOST_STEPS`] of them.
    GammaFraction "gamma_fraction" 3 Same Math;
    /// Random bits, `i32` only: word `e % 4` of Philox 4x32-10 with key `(a, b)` and counter `(c, d, e / 4, 0)`, `e` without a sign.
    Philox "philox" 5 Same Math;
}

impl ScalarOp {
    fn row(self) -> &'static Row {
        let row = &ROWS[self as usize];
        debug_assert!(row.op == self);
        row
    }
    /// Returns every operation, in table order.
    pub fn all() -> impl Iterator<Item = ScalarOp> {
        ROWS.iter().map(|r| r.op)
    }
    /// Returns the name in text forms. For [`OpClass::Math`] it is also the C library's name of the
    /// `double` function.
    pub fn text(self) -> &'static str {
        self.row().text
    }
    pub fn parse(text: &str) -> Option<ScalarOp> {
        ROWS.iter().find(|r| r.text == text).map(|r| r.op)
    }
    pub fn arity(self) -> usize {
        self.row().arity
    }
    pub fn class(self) -> OpClass {
        self.row().class
    }
    /// Returns the dtype of the result for operands of dtype `operand` (for [`ScalarOp::Where`]: of
    /// the second operand).
    pub fn result(self, operand: DType) -> DType {
        match self.row().result {
            ResultRule::Bool => DType::Bool,
            ResultRule::Same | ResultRule::Second => operand,
        }
    }
}
