//! Random programs: the plan, run on a machine with real arenas and shuffled points, computes what the loops compute.

mod machine;

use inrush_base::{Caps, DType, Isa, Scalar};
use inrush_expr::Expr;
use inrush_interp::{LoopsOptions, Tensor, Value};
use inrush_loops::*;
use inrush_sched::{Options, schedule};
use smallvec::smallvec;
use std::collections::BTreeMap;

struct Rng(u64);
impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// Builds programs operator by operator, as lowering does: one body per operator over a buffer of its own.
struct Gen {
    l: Loops,
    r: Rng,
    /// Tensors: a buffer seen through coordinates over its own indices.
    tensors: Vec<View>,
}

#[derive(Clone)]
struct View {
    buf: BufId,
    sizes: Vec<Expr>,
    coords: Coords,
}

impl Gen {
    fn new(seed: u64, dynamic: bool) -> Gen {
        let l = Loops {
            name: format!("random{seed}"),
            ..Loops::default()
        };
        let mut g = Gen {
            l,
            r: Rng(seed.wrapping_mul(0x9E3779B97F4A7C15) | 1),
            tensors: Vec::new(),
        };
        let batch = if dynamic {
            let s = g.l.exprs.size_sym("s0", 0, 64);
            g.l.exprs.set_hint(s, 3);
            g.l.exprs.sym_expr(s)
        } else {
            g.l.exprs.int(3)
        };
        let int = |g: &Gen, v| g.l.exprs.int(v);
        for k in 0..2 {
            let shapes = [
                vec![batch, int(&g, 4), int(&g, 6)],
                vec![batch, int(&g, 24)],
                vec![batch, int(&g, 6), int(&g, 4)],
            ];
            let sizes = shapes[g.r.below(3)].clone();
            g.buffer(sizes, BufferKind::Input { index: k });
        }
        g.l.num_inputs = 2;
        let wsizes = [
            vec![int(&g, 6)],
            vec![int(&g, 4), int(&g, 6)],
            vec![int(&g, 6), int(&g, 6)],
        ];
        for (k, sizes) in wsizes.into_iter().enumerate() {
            let name = format!("w{k}");
            g.buffer(sizes, BufferKind::Weight { name });
        }
        g
    }

    fn buffer(&mut self, sizes: Vec<Expr>, kind: BufferKind) -> View {
        let b = BufId::from_index(self.l.buffers.len());
        let strides = self.l.exprs.contiguous_strides(&sizes);
        let layout = Layout {
            strides,
            offset: self.l.exprs.int(0),
        };
        let temp = kind == BufferKind::Temp;
        self.l.buffers.push(Buffer {
            name: format!("t{}", b.0),
            dtype: DType::F32,
            sizes: sizes.clone(),
            layout: (!temp).then_some(layout),
            kind,
        });
        let coords = self.indices(&sizes);
        let v = View {
            buf: b,
            sizes,
            coords,
        };
        self.tensors.push(v.clone());
        v
    }

    fn indices(&self, sizes: &[Expr]) -> Coords {
        sizes
            .iter()
            .enumerate()
            .map(|(d, s)| self.l.exprs.index(d as u32, *s))
            .collect()
    }

    fn axes(&self, sizes: &[Expr]) -> Vec<Axis> {
        sizes
            .iter()
            .enumerate()
            .map(|(d, size)| Axis {
                sym: self.l.exprs.index_sym(d as u32, *size),
                size: *size,
            })
            .collect()
    }

    /// The view with its own indices replaced.
    fn at(&self, v: &View, at: &[Expr]) -> Coords {
        let map = v
            .sizes
            .iter()
            .enumerate()
            .map(|(d, s)| (self.l.exprs.index_sym(d as u32, *s), at[d]))
            .collect();
        self.l.exprs.subst_all(&v.coords, &map).into()
    }

    fn pick(&mut self) -> View {
        // Later tensors more often, so that chains form.
        let n = self.tensors.len();
        let k = if self.r.chance(60) {
            n - 1 - self.r.below(n.min(3))
        } else {
            self.r.below(n)
        };
        self.tensors[k].clone()
    }

    fn load(&self, stmts: &mut Vec<Stmt>, v: &View, at: &[Expr], mask: Option<StmtId>) -> StmtId {
        stmts.push(Stmt::Load {
            buf: v.buf,
            coords: self.at(v, at),
            mask,
            fill: Scalar::Float(0.5),
        });
        StmtId::from_index(stmts.len() - 1)
    }

    fn op(stmts: &mut Vec<Stmt>, op: ScalarOp, args: &[StmtId]) -> StmtId {
        stmts.push(Stmt::Op {
            op,
            args: args.into(),
            dtype: DType::F32,
        });
        StmtId::from_index(stmts.len() - 1)
    }

    fn body(
        &mut self,
        axes: Vec<Axis>,
        outer: usize,
        mut stmts: Vec<Stmt>,
        v: StmtId,
        sizes: Vec<Expr>,
        at: Coords,
    ) {
        let out = self.buffer(sizes, BufferKind::Temp);
        stmts.push(Stmt::Store {
            buf: out.buf,
            coords: at,
            value: v,
            mode: StoreMode::Set,
            mask: None,
        });
        self.l.nodes.push(Node::Body(Body {
            axes,
            outer,
            stmts,
            origins: Default::default(),
        }));
    }

    fn unary(&mut self) {
        let x = self.pick();
        let ops = [
            ScalarOp::Exp,
            ScalarOp::Neg,
            ScalarOp::Tanh,
            ScalarOp::Abs,
            ScalarOp::Sin,
        ];
        let at = self.indices(&x.sizes);
        let mut s = Vec::new();
        let a = self.load(&mut s, &x, &at, None);
        let op = ops[self.r.below(ops.len())];
        let v = Self::op(&mut s, op, &[a]);
        let axes = self.axes(&x.sizes);
        self.body(axes, x.sizes.len(), s, v, x.sizes.clone(), at);
    }

    /// `x op y` with `y` broadcast, when a tensor fits.
    fn binary(&mut self) {
        let x = self.pick();
        let one = self.l.exprs.int(1);
        for _ in 0..8 {
            let y = self.pick();
            let lead = match x.sizes.len().checked_sub(y.sizes.len()) {
                Some(l) => l,
                None => continue,
            };
            if !y
                .sizes
                .iter()
                .zip(&x.sizes[lead..])
                .all(|(a, b)| a == b || *a == one)
            {
                continue;
            }
            let at = self.indices(&x.sizes);
            let zero = self.l.exprs.int(0);
            let from: Vec<Expr> = y
                .sizes
                .iter()
                .zip(&at[lead..])
                .map(|(n, e)| if *n == one { zero } else { *e })
                .collect();
            let mut s = Vec::new();
            let a = self.load(&mut s, &x, &at, None);
            let b = self.load(&mut s, &y, &from, None);
            let ops = [
                ScalarOp::Add,
                ScalarOp::Sub,
                ScalarOp::Mul,
                ScalarOp::Maximum,
            ];
            let op = ops[self.r.below(ops.len())];
            let v = Self::op(&mut s, op, &[a, b]);
            let axes = self.axes(&x.sizes);
            return self.body(axes, x.sizes.len(), s, v, x.sizes.clone(), at);
        }
    }

    fn reduce(&mut self) {
        let x = self.pick();
        if x.sizes.is_empty() {
            return;
        }
        // Empty extremes are refused by the importer: sums for sizes that may be zero.
        let d = if self.r.chance(70) {
            x.sizes.len() - 1
        } else {
            self.r.below(x.sizes.len())
        };
        let keep = self.r.chance(50);
        let may_be_empty = self.l.exprs.range(x.sizes[d]).lo < 1;
        let op = match self.r.below(4) {
            0 if !may_be_empty => ReduceOp::Max,
            1 if !may_be_empty => ReduceOp::Min,
            2 => ReduceOp::Prod,
            _ => ReduceOp::Sum,
        };
        let at = self.indices(&x.sizes);
        let mut s = Vec::new();
        let mut a = self.load(&mut s, &x, &at, None);
        if op == ReduceOp::Prod {
            a = Self::op(&mut s, ScalarOp::Sin, &[a]);
        }
        s.push(Stmt::Reduce {
            op,
            value: a,
            dtype: DType::F32,
        });
        let v = StmtId::from_index(s.len() - 1);
        let mut axes = self.axes(&x.sizes);
        let reduced = axes.remove(d);
        let outer = axes.len();
        axes.push(reduced);
        let (mut sizes, mut to) = (x.sizes.clone(), at.to_vec());
        if keep {
            (sizes[d], to[d]) = (self.l.exprs.int(1), self.l.exprs.int(0));
        } else {
            sizes.remove(d);
            to.remove(d);
        }
        self.body(axes, outer, s, v, sizes, to.into());
    }

    fn scan(&mut self) {
        let x = self.pick();
        if x.sizes.is_empty() {
            return;
        }
        let at = self.indices(&x.sizes);
        let mut s = Vec::new();
        let value = self.load(&mut s, &x, &at, None);
        s.push(Stmt::Scan {
            op: ReduceOp::Sum,
            value,
            dtype: DType::F32,
        });
        let axes = self.axes(&x.sizes);
        self.body(axes, x.sizes.len() - 1, s, StmtId(1), x.sizes.clone(), at);
    }

    /// Views: transposition, flattening, splitting, flipping, broadcasting.
    fn view(&mut self) {
        let x = self.pick();
        let ex = &self.l.exprs;
        let n = x.sizes.len();
        let v = match self.r.below(5) {
            0 if n >= 2 => {
                let (a, b) = (n - 1, self.r.below(n - 1));
                let mut sizes = x.sizes.clone();
                sizes.swap(a, b);
                let mut from: Vec<Expr> = self.indices(&sizes).to_vec();
                from.swap(a, b);
                View {
                    buf: x.buf,
                    coords: self.at(&x, &from),
                    sizes,
                }
            }
            1 if n >= 2 => {
                // Merge two neighbours.
                let d = self.r.below(n - 1);
                let size = ex.mul(x.sizes[d], x.sizes[d + 1]);
                let mut sizes = x.sizes.clone();
                sizes.splice(d..d + 2, [size]);
                if ex.range(x.sizes[d + 1]).lo < 1 {
                    return;
                }
                let mut from: Vec<Expr> = self.indices(&sizes).to_vec();
                let e = from[d];
                from.splice(
                    d..d + 1,
                    [ex.floordiv(e, x.sizes[d + 1]), ex.modulo(e, x.sizes[d + 1])],
                );
                View {
                    buf: x.buf,
                    coords: self.at(&x, &from),
                    sizes,
                }
            }
            2 => {
                // Split one that two divides.
                let two = ex.int(2);
                let Some(d) = (0..n).find(|d| ex.as_int(x.sizes[*d]).is_some_and(|v| v % 2 == 0))
                else {
                    return;
                };
                let half = ex.floordiv(x.sizes[d], two);
                let mut sizes = x.sizes.clone();
                sizes.splice(d..d + 1, [half, two]);
                let mut from: Vec<Expr> = self.indices(&sizes).to_vec();
                let e = ex.add(ex.mul(from[d], two), from[d + 1]);
                from.splice(d..d + 2, [e]);
                if sizes.len() > 4 {
                    return;
                }
                View {
                    buf: x.buf,
                    coords: self.at(&x, &from),
                    sizes,
                }
            }
            3 if n >= 1 => {
                let d = n - 1;
                let mut from: Vec<Expr> = self.indices(&x.sizes).to_vec();
                from[d] = ex.sub(ex.sub(x.sizes[d], ex.int(1)), from[d]);
                View {
                    buf: x.buf,
                    coords: self.at(&x, &from),
                    sizes: x.sizes.clone(),
                }
            }
            _ if n >= 1 => {
                // First half of the last dimension.
                let d = n - 1;
                let Some(v) = ex.as_int(x.sizes[d]) else {
                    return;
                };
                let mut sizes = x.sizes.clone();
                sizes[d] = ex.int((v / 2).max(1));
                let from = self.indices(&sizes);
                View {
                    buf: x.buf,
                    coords: self.at(&x, &from),
                    sizes,
                }
            }
            _ => return,
        };
        self.tensors.push(v);
    }

    /// Padding by one in the last dimension.
    fn pad(&mut self) {
        let x = self.pick();
        let Some(d) = x.sizes.len().checked_sub(1) else {
            return;
        };
        let ex = &self.l.exprs;
        let mut sizes = x.sizes.clone();
        sizes[d] = ex.add(sizes[d], ex.int(2));
        let at = self.indices(&sizes);
        let mut from = at.to_vec();
        from[d] = ex.sub(from[d], ex.int(1));
        let mut s = Vec::new();
        let lo = from[d];
        s.push(Stmt::Index {
            expr: lo,
            dtype: DType::I64,
        });
        s.push(Stmt::Index {
            expr: ex.int(0),
            dtype: DType::I64,
        });
        s.push(Stmt::Index {
            expr: x.sizes[d],
            dtype: DType::I64,
        });
        for (op, y) in [(ScalarOp::Ge, 1u32), (ScalarOp::Lt, 2)] {
            s.push(Stmt::Op {
                op,
                args: smallvec![StmtId(0), StmtId(y)],
                dtype: DType::I64,
            });
        }
        s.push(Stmt::Op {
            op: ScalarOp::And,
            args: smallvec![StmtId(3), StmtId(4)],
            dtype: DType::Bool,
        });
        let v = self.load(&mut s, &x, &from, Some(StmtId(5)));
        let axes = self.axes(&sizes);
        self.body(axes, sizes.len(), s, v, sizes, at);
    }

    /// Two tensors of equal shape one after the other, as two bodies that write one buffer.
    fn cat(&mut self) {
        let x = self.pick();
        let Some(d) = x.sizes.len().checked_sub(1) else {
            return;
        };
        let mut sizes = x.sizes.clone();
        sizes[d] = self.l.exprs.add(sizes[d], sizes[d]);
        let out = self.buffer(sizes, BufferKind::Temp);
        for k in 0..2 {
            let y = if k == 0 || self.r.chance(50) {
                x.clone()
            } else {
                let like: Vec<View> = self
                    .tensors
                    .iter()
                    .filter(|t| t.sizes == x.sizes && t.buf != out.buf)
                    .cloned()
                    .collect();
                like[self.r.below(like.len())].clone()
            };
            let at = self.indices(&x.sizes);
            let mut to = at.clone();
            if k == 1 {
                to[d] = self.l.exprs.add(to[d], x.sizes[d]);
            }
            let mut s = Vec::new();
            let v = self.load(&mut s, &y, &at, None);
            s.push(Stmt::Store {
                buf: out.buf,
                coords: to,
                value: v,
                mode: StoreMode::Set,
                mask: None,
            });
            let axes = self.axes(&x.sizes);
            self.l.nodes.push(Node::Body(Body {
                outer: axes.len(),
                axes,
                stmts: s,
                origins: Default::default(),
            }));
        }
    }

    /// A copy, and something added to some of its elements: scatter.
    fn scatter(&mut self) {
        let x = self.pick();
        let at = self.indices(&x.sizes);
        let axes = self.axes(&x.sizes);
        let mut s = Vec::new();
        let v = self.load(&mut s, &x, &at, None);
        self.body(axes.clone(), axes.len(), s, v, x.sizes.clone(), at.clone());
        let out = self.tensors.last().expect("just made").clone();
        let y = self.tensors[self.r.below(self.tensors.len() - 1)].clone();
        if y.sizes != x.sizes {
            return;
        }
        let mut s = Vec::new();
        let v = self.load(&mut s, &y, &at, None);
        let mut to = at.clone();
        // Every element of a row lands in the row's first.
        if let Some(d) = to.len().checked_sub(1) {
            to[d] = self.l.exprs.int(0);
        }
        s.push(Stmt::Store {
            buf: out.buf,
            coords: to,
            value: v,
            mode: StoreMode::Add,
            mask: None,
        });
        self.l.nodes.push(Node::Body(Body {
            outer: axes.len(),
            axes,
            stmts: s,
            origins: Default::default(),
        }));
    }

    /// `x @ w` for a two-dimensional weight.
    fn product(&mut self) {
        let x = self.pick();
        let ex = &self.l.exprs;
        let Some(k) = x.sizes.last().and_then(|k| ex.as_int(*k)) else {
            return;
        };
        let w = match k {
            4 => self.tensors[3].clone(),
            6 => self.tensors[4].clone(),
            _ => return,
        };
        let rows = &x.sizes[..x.sizes.len() - 1];
        let mut all = rows.to_vec();
        all.extend([ex.int(6), ex.int(k)]);
        let axes = self.axes(&all);
        let m = axes[..rows.len()].to_vec();
        let n = axes[rows.len()];
        let k = axes[rows.len() + 1];
        let sym = |a: &Axis| ex.sym_expr(a.sym);
        let mut from: Vec<Expr> = m.iter().map(sym).collect();
        from.push(sym(&k));
        let a = Access {
            buf: x.buf,
            coords: self.at(&x, &from),
        };
        // Only affine operands.
        let syms: Vec<_> = axes.iter().map(|a| a.sym).collect();
        if !a.coords.iter().all(|c| ex.affine(*c, &syms).is_some()) {
            return;
        }
        let b = Access {
            buf: w.buf,
            coords: smallvec![sym(&k), sym(&n)],
        };
        let sizes: Vec<Expr> = rows.iter().copied().chain([n.size]).collect();
        let at: Coords = m.iter().chain([&n]).map(sym).collect();
        let outer: Vec<Axis> = m.iter().copied().chain([n]).collect();
        let out = self.buffer(sizes, BufferKind::Temp);
        self.l.nodes.push(Node::Contraction(Box::new(Contraction {
            batch: vec![],
            m,
            n: vec![n],
            k: vec![k],
            a,
            b,
            dtype: DType::F32,
            epilogue: Body {
                outer: outer.len(),
                axes: outer,
                stmts: vec![
                    Stmt::Acc {
                        dtype: DType::F32,
                        of: 0,
                    },
                    Stmt::Store {
                        buf: out.buf,
                        coords: at,
                        value: StmtId(0),
                        mode: StoreMode::Set,
                        mask: None,
                    },
                ],
                origins: Default::default(),
            },
        })));
    }

    /// Marks outputs: the last results, copied when they are views or not temporaries; sometimes a mutation.
    fn finish(mut self, nodes: usize) -> Loops {
        while self.l.nodes.len() < nodes {
            match self.r.below(20) {
                0..=4 => self.unary(),
                5..=9 => self.binary(),
                10..=12 => self.reduce(),
                13..=15 => self.view(),
                16 => self.pad(),
                17 => self.cat(),
                18 => match self.r.below(2) {
                    0 => self.scatter(),
                    _ => self.scan(),
                },
                _ => self.product(),
            }
        }
        if self.r.chance(30) {
            let x = self.tensors[0].clone();
            let like: Vec<View> = self
                .tensors
                .iter()
                .filter(|t| {
                    t.sizes == x.sizes
                        && self.l.buffer(t.buf).kind == BufferKind::Temp
                        && t.coords == self.indices(&t.sizes)
                        && self.l.buffer(t.buf).sizes == t.sizes
                })
                .cloned()
                .collect();
            if !like.is_empty() {
                let y = &like[self.r.below(like.len())];
                self.l.outputs.push(Output::Mutation {
                    input: x.buf,
                    buffer: y.buf,
                });
            }
        }
        for _ in 0..1 + self.r.below(2) {
            let x = self.pick();
            let at = self.indices(&x.sizes);
            let axes = self.axes(&x.sizes);
            let mut s = Vec::new();
            let v = self.load(&mut s, &x, &at, None);
            self.body(axes, x.sizes.len(), s, v, x.sizes.clone(), at);
            let out = BufId::from_index(self.l.buffers.len() - 1);
            let strides = self.l.exprs.contiguous_strides(&x.sizes);
            let offset = self.l.exprs.int(0);
            self.l.buffers[out.index()].layout = Some(Layout { strides, offset });
            self.l.outputs.push(Output::Tensor { buffer: out });
        }
        self.l
    }
}

fn tensor(l: &Loops, sizes: &[Expr], batch: i64, seed: u64) -> Tensor {
    let mut r = Rng(seed | 1);
    let sizes: Vec<i64> = sizes
        .iter()
        .map(|e| l.exprs.eval(*e, &|_| Some(batch)).unwrap())
        .collect();
    let n: i64 = sizes.iter().product();
    let v: Vec<Scalar> = (0..n)
        .map(|_| Scalar::Float(r.below(2000) as f64 / 1000.0 - 1.0).convert(DType::F32))
        .collect();
    Tensor::from_scalars(DType::F32, &sizes, &v).unwrap()
}

fn catch<T>(f: impl FnOnce() -> T) -> std::thread::Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f))
}

fn check(seed: u64, options: &Options) {
    let dynamic = seed.is_multiple_of(3);
    let mut r = Rng(seed | 1);
    let nodes = 2 + r.below(14);
    let loops = Gen::new(seed, dynamic).finish(nodes);
    verify::verify(&loops).unwrap();
    let mut weights = BTreeMap::new();
    for b in &loops.buffers {
        if let BufferKind::Weight { name } = &b.kind {
            weights.insert(
                name.clone(),
                tensor(&loops, &b.sizes, 1, 77 + name.len() as u64),
            );
        }
    }
    let caps = Caps::cpu(Isa::Avx2, 2);
    let plan = match catch(|| schedule(loops.clone(), &caps, options)) {
        Ok(p) => p.unwrap(),
        Err(_) => panic!("seed {seed}: scheduling panicked\n{}", loops.print()),
    };
    let text = || format!("seed {seed}\n{}\n--- plan\n{}", loops.print(), plan.print());
    inrush_sched::verify(&plan).unwrap_or_else(|e| panic!("{e}\n{}", text()));
    let batches: &[i64] = if dynamic { &[0, 1, 3, 5] } else { &[3] };
    for batch in batches {
        let inputs: Vec<Value> = (0..2)
            .map(|k| {
                let sizes = &loops.buffers[k].sizes;
                Value::Tensor(tensor(&loops, sizes, *batch, seed + k as u64))
            })
            .collect();
        let symbols = BTreeMap::from([("s0".to_string(), *batch)]);
        let options = LoopsOptions { wide_sums: true };
        let want = inrush_interp::loops(&loops, &inputs, &weights, &symbols, options).unwrap();
        let run = || machine::run(&plan, &inputs, &weights, &symbols, seed);
        let have =
            catch(run).unwrap_or_else(|_| panic!("batch {batch}: the machine stopped\n{}", text()));
        for (k, (h, w)) in have.iter().zip(&want).enumerate() {
            let (Value::Tensor(h), Value::Tensor(w)) = (h, w) else {
                continue;
            };
            // Differences of equal sums are noise, whose size says nothing.
            let apart = (0..w.numel())
                .map(|i| (h.get(i).unwrap().as_f64() - w.get(i).unwrap().as_f64()).abs())
                .fold(0.0, f64::max);
            let e = h.max_error(w).unwrap().min(apart);
            assert!(e < 1e-4, "output {k}, batch {batch}: error {e}\n{}", text());
        }
    }
}

#[test]
fn plans_compute_what_loops_compute() {
    let first: u64 = std::env::var("SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    let count: u64 = std::env::var("COUNT")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(200);
    for seed in first..first + count {
        check(seed, &Options::default());
    }
}

#[test]
fn without_fusion_too() {
    let options = Options {
        fuse: false,
        ..Options::default()
    };
    for seed in 1..100 {
        check(seed, &options);
    }
}
