//! A graph in the making: inputs with layouts, calls whose types fit, pointwise neighbours.
//!
//! Calls are typed as they are made: `bind` puts arguments in schema order, and `result_types`
//! infers types. A call that does not fit gives `None`, which families pass on by `?`, and the
//! whole draw starts again with another seed. So families need no knowledge of operators'
//! conditions.
//!
//! Sizes are numbers here. Graphs with symbolic sizes have tests of their own.

use crate::random::Random;
use inrush_aten::decompose::result_types;
use inrush_aten::{NamedArg, bind};
use inrush_base::DType;
use inrush_graph::{
    Arg, Graph, Input, InputKind, Node, Output, OutputKind, OutputValue, TensorType, Type, ValueId,
};

/// Elements that a value may have.
/// Keeps the interpreters' time for a graph short.
const LARGEST: i64 = 70_000;

/// Sizes: primes, powers of two and their neighbours, what vectors and tiles are cut by.
const SIZES: [i64; 26] = [
    1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 19, 23, 24, 31, 32, 33, 37, 48, 64,
];

pub(super) struct Make {
    pub g: Graph,
    pub r: Random,
    /// Of the try that is under way; `tries` counts them.
    seed: u64,
    tries: u64,
    /// Values are whole numbers, so that sums are exact.
    pub whole: bool,
    /// All weights are parameters, as in models.
    /// Otherwise a third of the weights are inputs, which are not packed at load.
    pub parameters: bool,
    /// Ranges of inputs, as settings.
    /// `NAME=LO..HI`, for indices and for arguments of limited functions.
    pub ranges: Vec<String>,
    /// The values that outputs are chosen from, besides the last one.
    pub kept: Vec<ValueId>,
    /// An input that the call writes, and what it writes.
    written: Vec<(usize, ValueId)>,
    /// User inputs so far.
    users: usize,
}

impl Make {
    pub fn new(seed: u64) -> Make {
        let mut r = Random::new(seed.wrapping_mul(2_654_435_761).wrapping_add(77));
        // The first numbers of neighbouring seeds are alike.
        for _ in 0..20 {
            r.below(2);
        }
        let whole = r.odds(1, 4);
        Make {
            g: Graph::default(),
            r,
            seed,
            tries: 0,
            whole,
            parameters: false,
            ranges: Vec::new(),
            kept: Vec::new(),
            written: Vec::new(),
            users: 0,
        }
    }

    /// Starts anew: what was drawn does not fit together.
    pub fn again(&mut self) {
        let tries = self.tries + 1;
        *self = Make::new(
            self.seed
                .wrapping_add(tries.wrapping_mul(0x5851_F42D_4C95_7F2D)),
        );
        self.tries = tries;
    }

    /// A size; none in few.
    pub fn size(&mut self) -> i64 {
        if self.r.odds(1, 150) {
            0
        } else {
            self.r.of(&SIZES)
        }
    }

    /// A size of at most `n`.
    pub fn up_to(&mut self, n: i64) -> i64 {
        loop {
            let s = self.size();
            if s <= n {
                return s;
            }
        }
    }

    /// Returns the sizes of a tensor as numbers.
    pub fn sizes(&self, v: ValueId) -> Vec<i64> {
        let t = self.g.tensor(v).expect("only tensors are kept");
        let number = |e: &inrush_expr::Expr| self.g.exprs.as_int(*e).expect("sizes are numbers");
        t.sizes.iter().map(number).collect()
    }

    /// Returns the dtype of a tensor.
    pub fn dtype(&self, v: ValueId) -> DType {
        self.g.tensor(v).expect("only tensors are kept").dtype
    }

    /// A dtype of floats.
    pub fn float(&mut self) -> DType {
        match self.r.below(8) {
            0 | 1 => DType::BF16,
            2 => DType::F16,
            3 => DType::F64,
            _ => DType::F32,
        }
    }

    pub fn int(&self, v: i64) -> Arg {
        Arg::Int(self.g.exprs.int(v))
    }

    pub fn ints(&self, v: &[i64]) -> Arg {
        Arg::Ints(v.iter().map(|v| self.g.exprs.int(*v)).collect())
    }

    /// An input of some layout.
    pub fn input(&mut self, dtype: DType, sizes: &[i64]) -> ValueId {
        let strides = self.layout(sizes);
        self.input_with(dtype, sizes, &strides)
    }

    /// An input whose integers are within `range`.
    pub fn index(&mut self, sizes: &[i64], range: (i64, i64)) -> ValueId {
        let dtype = self.r.of(&[DType::I64, DType::I64, DType::I32]);
        let v = self.input(dtype, sizes);
        let name = self.g.value(v).name.clone();
        self.ranges.push(format!("{name}={}..{}", range.0, range.1));
        v
    }

    /// An input whose numbers are within `range`.
    pub fn within(&mut self, dtype: DType, sizes: &[i64], lo: f64, hi: f64) -> ValueId {
        let v = self.input(dtype, sizes);
        let name = self.g.value(v).name.clone();
        self.ranges.push(format!("{name}={lo}..{hi}"));
        v
    }

    /// Adds an input of the user with these strides.
    pub fn input_with(&mut self, dtype: DType, sizes: &[i64], strides: &[i64]) -> ValueId {
        let index = self.users;
        self.users += 1;
        let kind = InputKind::User { index };
        self.add_input(dtype, sizes, strides, kind, format!("in{index}"))
    }

    /// A weight, contiguous or seen through a transposition, or an input.
    pub fn weight(&mut self, dtype: DType, sizes: &[i64]) -> ValueId {
        if !self.parameters && self.r.odds(1, 3) {
            return self.input(dtype, sizes);
        }
        let name = format!("w{}", self.g.inputs.len());
        let kind = InputKind::Parameter { name: name.clone() };
        let rank = sizes.len();
        // `permute` of such a weight would be refused as too large a result.
        let large = sizes.iter().product::<i64>() > LARGEST;
        let plain = self.r.odds(if self.parameters { 2 } else { 3 }, 4);
        if rank < 2 || large || plain {
            return self.add_input(dtype, sizes, &contiguous(sizes), kind, name);
        }
        let mut dims: Vec<i64> = (0..rank as i64).collect();
        dims.swap(0, 1);
        let mut stored = sizes.to_vec();
        stored.swap(0, 1);
        let w = self.add_input(dtype, &stored, &contiguous(&stored), kind, name);
        let dims = self.ints(&dims);
        let seen = self.one("aten.permute.default", vec![Arg::Value(w), dims]);
        seen.expect("a permutation fits")
    }

    /// Adds an input of any kind.
    fn add_input(
        &mut self,
        dtype: DType,
        sizes: &[i64],
        strides: &[i64],
        kind: InputKind,
        name: String,
    ) -> ValueId {
        let exprs = |list: &[i64]| list.iter().map(|v| self.g.exprs.int(*v)).collect();
        let ty = TensorType {
            dtype,
            sizes: exprs(sizes),
            strides: exprs(strides),
        };
        let value = self.g.add_value(&name, Type::Tensor(ty));
        self.g.inputs.push(Input::new(value, kind));
        value
    }

    /// Strides by chance: contiguous, channels last, another order, gaps, expanded, overlapping.
    fn layout(&mut self, sizes: &[i64]) -> Vec<i64> {
        let rank = sizes.len();
        let mut order: Vec<usize> = (0..rank).collect();
        let mut gaps = false;
        match self.r.below(12) {
            0..4 => {}
            // Channels last: the second dimension becomes the fastest.
            4..8 if rank >= 3 => {
                let c = order.remove(1);
                order.push(c);
                gaps = self.r.odds(1, 5);
            }
            4..10 => {
                for k in (1..rank).rev() {
                    let other = self.r.below(k + 1);
                    order.swap(k, other);
                }
                gaps = self.r.odds(1, 3);
            }
            _ => gaps = true,
        }
        let mut strides = vec![0; rank];
        let mut step = if gaps && self.r.odds(1, 3) { 2 } else { 1 };
        for d in order.into_iter().rev() {
            strides[d] = step;
            let gap = if gaps && self.r.odds(1, 2) {
                self.r.int(1, 3)
            } else {
                0
            };
            step *= sizes[d].max(1) + gap;
        }
        if rank > 0 && self.r.odds(1, 12) {
            let d = self.r.below(rank);
            // Stride 0 expands a dimension; 1 makes elements overlap.
            strides[d] = self.r.of(&[0, 0, 1]);
        }
        strides
    }

    /// A call by position; `None` where its types do not fit or it would be large.
    pub fn call(&mut self, op: &str, args: Vec<Arg>) -> Option<Vec<ValueId>> {
        let named: Vec<NamedArg> = args.into_iter().map(positional).collect();
        self.call_named(op, named)
    }

    /// Makes a call with keyword arguments; `None` as for `call`.
    pub fn call_named(&mut self, op: &str, args: Vec<NamedArg>) -> Option<Vec<ValueId>> {
        let args = bind(&self.g.exprs, op, &args)?.ok()?;
        let types = result_types(&mut self.g, op, &args).ok()?;
        let mut all = 0;
        for t in &types {
            if let Type::Tensor(t) = t {
                let n = self.g.exprs.as_int(t.numel(&self.g.exprs))?;
                all += n;
                let negative = |s: &inrush_expr::Expr| self.g.exprs.as_int(*s) < Some(0);
                // A window that does not fit may give a negative size.
                if t.rank() > 6 || t.sizes.iter().any(negative) {
                    return None;
                }
            }
        }
        if all > LARGEST {
            return None;
        }
        let named = |g: &mut Graph, t| {
            let name = format!("v{}", g.values.len());
            g.add_value(&name, t)
        };
        let outs: Vec<ValueId> = types.into_iter().map(|t| named(&mut self.g, t)).collect();
        self.g.nodes.push(Node {
            op: op.into(),
            args,
            outs: outs.clone(),
            line: None,
            made_for: None,
        });
        Some(outs)
    }

    /// A call of one result.
    pub fn one(&mut self, op: &str, args: Vec<Arg>) -> Option<ValueId> {
        self.call(op, args)?.first().copied()
    }

    /// Readers of a fresh input go through a pointwise operator in some graphs, which may change its dtype.
    pub fn source(&mut self, dtype: DType, sizes: &[i64]) -> ValueId {
        let x = self.input(dtype, sizes);
        if self.r.odds(1, 3) {
            self.pointwise(x).unwrap_or(x)
        } else {
            x
        }
    }

    /// A second operand: as [`Self::source`], of a given dtype in the end.
    pub fn operand(&mut self, dtype: DType, sizes: &[i64]) -> ValueId {
        let x = self.source(dtype, sizes);
        if self.dtype(x) == dtype {
            x
        } else {
            self.input(dtype, sizes)
        }
    }

    /// Images: channels last in half of the graphs, as models have them.
    pub fn image(&mut self, dtype: DType, sizes: &[i64]) -> ValueId {
        if sizes.len() < 3 || self.r.odds(1, 2) {
            return self.source(dtype, sizes);
        }
        let x = self.channels_last(dtype, sizes);
        if self.r.odds(1, 3) {
            self.pointwise(x).unwrap_or(x)
        } else {
            x
        }
    }

    /// An input of images in channels-last layout, dense.
    pub fn channels_last(&mut self, dtype: DType, sizes: &[i64]) -> ValueId {
        let mut strides = vec![0; sizes.len()];
        let mut step = sizes[1].max(1);
        strides[1] = 1;
        for d in (2..sizes.len()).rev().chain([0]) {
            strides[d] = step;
            step *= sizes[d].max(1);
        }
        self.input_with(dtype, sizes, &strides)
    }

    /// A pointwise operator on `v`, its other operand an input that broadcasts, or a conversion.
    pub fn pointwise(&mut self, v: ValueId) -> Option<ValueId> {
        let dtype = self.dtype(v);
        let x = Arg::Value(v);
        if !dtype.is_float() {
            return match dtype {
                DType::Bool => self.one("aten.logical_not.default", vec![x]),
                _ => self.one("aten.add.Tensor", vec![x.clone(), x]),
            };
        }
        // Operators that keep small whole numbers whole, so that sums stay exact in any order.
        if self.whole {
            return match self.r.below(4) {
                0 => self.one("aten.relu.default", vec![x]),
                1 => self.one("aten.neg.default", vec![x]),
                2 => self.one("aten.mul.Tensor", vec![x, Arg::Float(2.0)]),
                _ => self.with_other(v, "aten.add.Tensor"),
            };
        }
        match self.r.below(12) {
            0 => self.one("aten.relu.default", vec![x]),
            1 => self.one("aten.sigmoid.default", vec![x]),
            2 => self.one("aten.gelu.default", vec![x]),
            3 => self.one("aten.silu.default", vec![x]),
            4 => self.one("aten.tanh.default", vec![x]),
            5 => self.one("aten.hardswish.default", vec![x]),
            6 => self.one("aten.mul.Tensor", vec![x, Arg::Float(0.5)]),
            7 => self.with_other(v, "aten.mul.Tensor"),
            8 => self.with_other(v, "aten.sub.Tensor"),
            9 => {
                let to = self.float();
                let dtype = NamedArg {
                    name: "dtype".into(),
                    arg: Arg::DType(to),
                    keyword: true,
                };
                let made = self.call_named("aten._to_copy.default", vec![positional(x), dtype])?;
                made.first().copied()
            }
            _ => self.with_other(v, "aten.add.Tensor"),
        }
    }

    /// Adds a binary operator whose other operand is a new input that broadcasts, or a value that
    /// is kept.
    fn with_other(&mut self, v: ValueId, op: &str) -> Option<ValueId> {
        let (mut sizes, dtype) = (self.sizes(v), self.dtype(v));
        // A residual, a bias of channels, of the last dimension, or a row or column.
        match self.r.below(4) {
            0 if sizes.len() > 2 => {
                for (d, s) in sizes.iter_mut().enumerate() {
                    *s = if d == 1 { *s } else { 1 };
                }
                sizes.remove(0);
            }
            1 if !sizes.is_empty() => sizes = vec![sizes[sizes.len() - 1]],
            2 => {
                for s in &mut sizes {
                    if self.r.odds(1, 2) {
                        *s = 1;
                    }
                }
            }
            _ => {}
        }
        let other = match self.kept.iter().copied().find(|k| self.sizes(*k) == sizes) {
            Some(k) if self.dtype(k) == dtype && self.r.odds(1, 2) => k,
            _ => self.input(dtype, &sizes),
        };
        // On the left in some graphs: it matters to `sub`, and decides which operand's layout the
        // result follows.
        let args = if self.r.odds(1, 5) {
            vec![Arg::Value(other), Arg::Value(v)]
        } else {
            vec![Arg::Value(v), Arg::Value(other)]
        };
        self.one(op, args)
    }

    /// Has the call write `v` into an input made for it.
    pub fn write(&mut self, v: ValueId) {
        let (dtype, sizes) = (self.dtype(v), self.sizes(v));
        let strides = loop {
            let strides = self.layout(&sizes);
            // An input whose elements overlap cannot be written to.
            if apart(&sizes, &strides) {
                break strides;
            }
        };
        let into = self.input_with(dtype, &sizes, &strides);
        let at = self.g.inputs.iter().position(|i| i.value == into);
        self.written.push((at.expect("just made"), v));
    }

    /// Outputs: the last value and some of those in between.
    pub fn finish(&mut self, name: &str) -> Graph {
        let mut g = std::mem::take(&mut self.g);
        g.name = name.into();
        // Parameters come first.
        let old: Vec<ValueId> = g.inputs.iter().map(|i| i.value).collect();
        g.inputs
            .sort_by_key(|i| matches!(i.kind, InputKind::User { .. }));
        for (input, v) in &self.written {
            let input = g.inputs.iter().position(|i| i.value == old[*input]);
            g.outputs.push(Output {
                value: OutputValue::Value(*v),
                kind: OutputKind::Mutation {
                    input: input.expect("it is still there"),
                },
            });
        }
        for (index, v) in self.kept.iter().enumerate() {
            g.outputs.push(Output {
                value: OutputValue::Value(*v),
                kind: OutputKind::User { index },
            });
        }
        g
    }
}

/// Returns a positional argument.
pub(super) fn positional(arg: Arg) -> NamedArg {
    NamedArg {
        name: String::new(),
        arg,
        keyword: false,
    }
}

fn contiguous(sizes: &[i64]) -> Vec<i64> {
    inrush_runtime::tensor::contiguous_strides(sizes)
}

/// Returns true if no two elements have one place, told from the strides in order.
pub(super) fn apart(sizes: &[i64], strides: &[i64]) -> bool {
    let mut dims: Vec<(i64, i64)> = (strides.iter().copied().zip(sizes.iter().copied()))
        .filter(|d| d.1 > 1)
        .collect();
    dims.sort_unstable();
    let mut reach = 0;
    dims.iter().all(|(stride, size)| {
        // Each stride must be larger than the reach of all faster dimensions together.
        let fits = *stride > reach;
        reach += stride * (size - 1);
        fits
    })
}
