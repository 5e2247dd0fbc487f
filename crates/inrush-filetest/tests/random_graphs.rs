//! Random graphs mean the same at every level, and read back from their text: views of views, broadcasts, reductions, joins and products in any order.
//!
//! `INRUSH_RANDOM_GRAPHS` sets how many are interpreted (a tenth of them are compiled too).

mod common;

use common::Random;
use inrush_aten::decompose::result_types;
use inrush_expr::Expr;
use inrush_filetest::Program;
use inrush_graph::{
    Arg, Graph, Input, InputKind, Node, Output, OutputKind, OutputValue, TensorType, Type, ValueId,
};

struct Make {
    g: Graph,
    r: Random,
    /// Tensors so far.
    tensors: Vec<ValueId>,
}

impl Make {
    fn new(seed: u64) -> Make {
        let mut m = Make {
            g: Graph {
                name: format!("random{seed}"),
                ..Graph::default()
            },
            r: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            tensors: Vec::new(),
        };
        for _ in 0..20 {
            m.r.below(2);
        }
        let s = m.g.exprs.sym_expr(m.g.exprs.size_sym("s0", 1, 64));
        let int = |g: &Graph, v| g.exprs.int(v);
        let shapes = [
            vec![s, int(&m.g, 6), int(&m.g, 4)],
            vec![int(&m.g, 6), int(&m.g, 4)],
            vec![s, int(&m.g, 1), int(&m.g, 4)],
        ];
        for (index, sizes) in shapes.into_iter().enumerate() {
            let ty = TensorType::contiguous(&m.g.exprs, inrush_base::DType::F32, sizes);
            let value = m.g.add_value(&format!("in{index}"), Type::Tensor(ty));
            m.g.inputs
                .push(Input::new(value, InputKind::User { index }));
            m.tensors.push(value);
        }
        m
    }

    fn any(&mut self) -> ValueId {
        // Recent ones more often, so that chains grow.
        let n = self.tensors.len();
        let recent = 4.min(n);
        let k = match self.r.below(3) {
            0 => self.r.below(n),
            _ => n - 1 - self.r.below(recent),
        };
        self.tensors[k]
    }

    fn sizes(&self, v: ValueId) -> Vec<Expr> {
        self.g
            .tensor(v)
            .expect("only tensors are kept")
            .sizes
            .clone()
    }

    fn int(&self, v: i64) -> Arg {
        Arg::Int(self.g.exprs.int(v))
    }

    fn ints(&self, v: &[i64]) -> Arg {
        Arg::Ints(v.iter().map(|v| self.g.exprs.int(*v)).collect())
    }

    /// Adds a call where its types allow it.
    fn call(&mut self, op: &str, args: Vec<Arg>) {
        let Ok(types) = result_types(&mut self.g, op, &args) else {
            return;
        };
        // Keep tensors small.
        for t in &types {
            if let Type::Tensor(t) = t
                && (t.rank() > 5 || self.g.exprs.hint(t.numel(&self.g.exprs)) > 40_000)
            {
                return;
            }
        }
        let outs: Vec<ValueId> = (types.into_iter())
            .map(|t| {
                let name = format!("v{}", self.g.values.len());
                self.g.add_value(&name, t)
            })
            .collect();
        self.tensors.extend(&outs);
        self.g.nodes.push(Node {
            op: op.into(),
            args,
            outs,
            line: None,
            made_for: None,
        });
    }

    fn step(&mut self) {
        let x = self.any();
        let sizes = self.sizes(x);
        let rank = sizes.len() as i64;
        let v = Arg::Value(x);
        let d = self.r.below(rank.max(1) as usize) as i64;
        let fixed = (sizes.get(d as usize)).and_then(|e| self.g.exprs.as_int(*e));
        match self.r.below(17) {
            0 => {
                let ops = ["tanh", "relu", "neg", "sigmoid", "abs", "sin", "floor"];
                let op = ops[self.r.below(ops.len())];
                self.call(&format!("aten.{op}.default"), vec![v]);
            }
            1 | 2 => {
                let y = Arg::Value(self.any());
                match self.r.below(4) {
                    0 => self.call("aten.add.Tensor", vec![v, y, self.int(1)]),
                    1 => self.call("aten.sub.Tensor", vec![v, y, self.int(2)]),
                    2 => self.call("aten.mul.Tensor", vec![v, y]),
                    _ => self.call("aten.maximum.default", vec![v, y]),
                }
            }
            3 => {
                let mut dims: Vec<i64> = (0..rank).collect();
                for k in (1..dims.len()).rev() {
                    dims.swap(k, self.r.below(k + 1));
                }
                self.call("aten.permute.default", vec![v, self.ints(&dims)]);
            }
            4 if rank > 1 => {
                // Two neighbours become one dimension.
                let k = self.r.below(rank as usize - 1);
                let mut new = sizes.clone();
                let joined = self.g.exprs.mul(new[k], new[k + 1]);
                new.splice(k..k + 2, [joined]);
                self.call("aten.reshape.default", vec![v, Arg::Ints(new)]);
            }
            5 => {
                // One dimension becomes two.
                let n = fixed.unwrap_or(0);
                let Some(k) = [2, 3].into_iter().find(|k| n > *k && n % k == 0) else {
                    return;
                };
                let mut new = sizes.clone();
                let parts = [self.g.exprs.int(n / k), self.g.exprs.int(k)];
                new.splice(d as usize..d as usize + 1, parts);
                self.call("aten.reshape.default", vec![v, Arg::Ints(new)]);
            }
            6 => {
                let Some(n) = fixed.filter(|n| *n > 2) else {
                    return;
                };
                let start = self.r.below(2) as i64;
                let step = 1 + self.r.below(2) as i64;
                let end = n - self.r.below(2) as i64;
                let args = [d, start, end, step].map(|i| self.int(i));
                self.call("aten.slice.Tensor", [vec![v], args.to_vec()].concat());
            }
            7 => self.call("aten.flip.default", vec![v, self.ints(&[d])]),
            8 | 9 => {
                let keep = Arg::Bool(self.r.below(2) == 0);
                let dims = self.ints(&[d]);
                match self.r.below(3) {
                    0 => self.call("aten.sum.dim_IntList", vec![v, dims, keep, Arg::None]),
                    1 => self.call("aten.mean.dim", vec![v, dims, keep, Arg::None]),
                    _ => self.call("aten.amax.default", vec![v, dims, keep]),
                }
            }
            10 => self.call("aten.softmax.int", vec![v, self.int(d), Arg::None]),
            11 => {
                let y = Arg::Values(vec![Some(x), Some(self.any())]);
                self.call("aten.cat.default", vec![y, self.int(d)]);
            }
            12 => {
                let pad = self.ints(&[(self.r.0 % 3) as i64, 1]);
                self.call(
                    "aten.constant_pad_nd.default",
                    vec![v, pad, Arg::Float(0.5)],
                );
            }
            13 => self.call("aten.cumsum.default", vec![v, self.int(d), Arg::None]),
            14 => {
                let n = sizes.last().copied();
                let Some(n) = n.filter(|n| self.g.exprs.as_int(*n).is_some()) else {
                    return;
                };
                let args = vec![
                    v,
                    Arg::Ints(vec![n]),
                    Arg::None,
                    Arg::None,
                    Arg::Float(1e-2),
                    Arg::Bool(true),
                ];
                self.call("aten.layer_norm.default", args);
            }
            15 => {
                // Only where sizes are known to fit: a guard would settle the rest.
                let y = self.any();
                let other = self.sizes(y);
                let inner = other.get(other.len().max(2) - 2);
                if sizes.last().is_some() && sizes.last() == inner {
                    self.call("aten.matmul.default", vec![v, Arg::Value(y)]);
                }
            }
            _ => self.call("aten.unsqueeze.default", vec![v, self.int(d)]),
        }
    }

    /// Outputs: the last tensor and a few others.
    fn finish(mut self) -> Graph {
        let mut outs = vec![*self.tensors.last().expect("inputs are tensors")];
        for _ in 0..2 {
            outs.push(self.any());
        }
        outs.dedup();
        for (index, v) in outs.into_iter().enumerate() {
            self.g.outputs.push(Output {
                value: OutputValue::Value(v),
                kind: OutputKind::User { index },
            });
        }
        self.g
    }
}

#[test]
fn random_graphs_agree_at_every_level() {
    let count = std::env::var("INRUSH_RANDOM_GRAPHS")
        .ok()
        .and_then(|s| s.parse().ok());
    let first: u64 = std::env::var("INRUSH_RANDOM_FIRST")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    let mut failures = Vec::new();
    for seed in first..first + count.unwrap_or(60) {
        let mut m = Make::new(seed);
        for _ in 0..4 + m.r.below(12) {
            m.step();
        }
        let g = m.finish();
        let size = format!("s0={}", 1 + seed % 5);
        let mut settings = vec!["ordinary", size.as_str()];
        if seed % 10 != 0 {
            settings.push("interpreted");
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let caps = inrush_base::Caps::cpu(inrush_base::Isa::Avx2, 2);
            inrush_filetest::round_trips(&Program::Graph(g.clone()), &caps)?;
            inrush_filetest::agree(&g, &settings)
        }));
        match result {
            Ok(Ok(text)) if text.ends_with("agree") => {}
            Ok(Ok(text)) => failures.push(format!("seed {seed}: {text}\n{g}")),
            Ok(Err(e)) => failures.push(format!("seed {seed}: {e}\n{g}")),
            Err(_) => failures.push(format!("seed {seed}: a panic\n{g}")),
        }
    }
    assert!(
        failures.is_empty(),
        "{} fail\n{}",
        failures.len(),
        failures.join("\n")
    );
}
