//! Runs a plan the way a careless machine would: real byte arenas at the planned offsets, outer points of each kernel in a
//! shuffled order, every byte undefined until it is written.

use inrush_base::{DType, Scalar};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_interp::{Tensor, Value};
use inrush_loops::{
    Axis, Body, BufId, BufferKind, Contraction, Coords, Level, Loops, Output, Stmt, eval,
};
use inrush_sched::{Group, Place, Plan, Step};
use std::collections::BTreeMap;

type Env = BTreeMap<Sym, i64>;

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Space {
    Input(usize),
    Weight(u32),
    Output(usize),
    Arena,
    Load,
    Local(u32),
}

pub(crate) struct Machine<'a> {
    plan: &'a Plan,
    syms: Env,
    memory: BTreeMap<Space, Vec<Option<u8>>>,
    seed: u64,
}

pub(crate) fn run(
    plan: &Plan,
    inputs: &[Value],
    weights: &BTreeMap<String, Tensor>,
    sizes: &BTreeMap<String, i64>,
    seed: u64,
) -> Vec<Value> {
    let ex = &plan.loops.exprs;
    let syms = sizes
        .iter()
        .filter_map(|(n, v)| Some((ex.sym_by_name(n)?, *v)))
        .collect();
    let mut m = Machine {
        plan,
        syms,
        memory: BTreeMap::new(),
        seed,
    };
    m.fill(inputs, weights);
    for step in plan.load_steps.iter().chain(&plan.steps) {
        m.step(step);
    }
    plan.loops.outputs.iter().map(|o| m.output(o)).collect()
}

/// All points of `sizes`, row-major.
fn points(sizes: &[i64]) -> Vec<Vec<i64>> {
    let mut out = vec![vec![]];
    for n in sizes {
        out = out
            .iter()
            .flat_map(|p| {
                (0..*n).map(move |i| {
                    let mut q = p.clone();
                    q.push(i);
                    q
                })
            })
            .collect();
    }
    out
}

/// Sums are kept wide, as in the reference: their order is not what is tested here.
fn wide(d: DType) -> DType {
    if d == DType::F32 { DType::F64 } else { d }
}

impl Machine<'_> {
    fn loops(&self) -> &Loops {
        &self.plan.loops
    }
    fn ex(&self) -> &Exprs {
        &self.plan.loops.exprs
    }
    fn value(&self, e: Expr, env: &Env) -> i64 {
        let look = |s: Sym| env.get(&s).or_else(|| self.syms.get(&s)).copied();
        self.ex().eval(e, &look).unwrap()
    }
    fn size(&self, e: Expr) -> i64 {
        self.value(e, &Env::new())
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for k in (1..items.len()).rev() {
            self.seed = self
                .seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            items.swap(k, (self.seed >> 33) as usize % (k + 1));
        }
    }

    /// Space and byte position of an element.
    fn at(&self, buf: BufId, coords: &[i64]) -> (Space, usize) {
        let b = self.loops().buffer(buf);
        let layout = b.layout.as_ref().expect("laid out");
        for (c, s) in coords.iter().zip(&b.sizes) {
            let n = self.size(*s);
            assert!((0..n).contains(c), "{buf} at {coords:?}");
        }
        let element: i64 = coords
            .iter()
            .zip(&layout.strides)
            .map(|(c, s)| c * self.size(*s))
            .sum::<i64>()
            + self.size(layout.offset);
        let (space, base) = self.place(buf);
        (space, base as usize + element as usize * b.dtype.size())
    }

    fn place(&self, buf: BufId) -> (Space, i64) {
        match self.plan.memory.places[buf.index()] {
            Place::Input(k) => (Space::Input(k), 0),
            Place::Weight => (Space::Weight(buf.0), 0),
            Place::Output(k) => (Space::Output(k), 0),
            Place::Arena { offset, .. } => {
                let o = self.size(offset);
                assert_eq!(o % 64, 0);
                (Space::Arena, o)
            }
            Place::Load { offset, .. } => (Space::Load, self.size(offset)),
            Place::Local => (Space::Local(buf.0), 0),
            Place::Alias(of) => self.place(of),
            Place::Unused => panic!("{buf} has no place"),
        }
    }

    fn load(&mut self, buf: BufId, coords: &[i64]) -> Scalar {
        let (space, at) = self.at(buf, coords);
        let d = self.loops().buffer(buf).dtype;
        let bytes = self.memory.entry(space).or_default();
        let mut bits = 0u64;
        for k in 0..d.size() {
            let byte = bytes.get(at + k).copied().flatten();
            let byte =
                byte.unwrap_or_else(|| panic!("{buf}{coords:?} is read before it is written"));
            bits |= (byte as u64) << (8 * k);
        }
        eval::from_bits(bits, d).unwrap()
    }

    fn store(&mut self, buf: BufId, coords: &[i64], v: Scalar) {
        let (space, at) = self.at(buf, coords);
        let d = self.loops().buffer(buf).dtype;
        if let Place::Arena { offset, bytes, .. } = self.plan.memory.places[buf.index()] {
            let (o, n) = (self.size(offset) as usize, self.size(bytes) as usize);
            assert!(at + d.size() <= o + n, "{buf} leaves its bytes");
            let end = self.size(self.plan.memory.arena_bytes.unwrap()) as usize;
            assert!(at + d.size() <= end, "{buf} leaves the arena");
        }
        let bits = eval::to_bits(v, d).unwrap();
        let memory = self.memory.entry(space).or_default();
        if memory.len() < at + d.size() {
            memory.resize(at + d.size(), None);
        }
        for k in 0..d.size() {
            memory[at + k] = Some((bits >> (8 * k)) as u8);
        }
    }

    fn fill(&mut self, inputs: &[Value], weights: &BTreeMap<String, Tensor>) {
        for k in 0..self.loops().buffers.len() {
            let t = match &self.loops().buffers[k].kind {
                BufferKind::Input { index } => match &inputs[*index] {
                    Value::Tensor(t) => t.clone(),
                    _ => continue,
                },
                BufferKind::Weight { name } => weights[name].clone(),
                _ => continue,
            };
            if self.plan.memory.places[k] == Place::Unused {
                continue;
            }
            for (i, p) in points(&t.sizes).iter().enumerate() {
                let v = t.get(i).unwrap();
                self.store(BufId::from_index(k), p, v);
            }
        }
    }

    fn output(&mut self, o: &Output) -> Value {
        match o {
            Output::Tensor { buffer } | Output::Mutation { buffer, .. } => {
                let b = self.loops().buffer(*buffer).clone();
                let sizes: Vec<i64> = b.sizes.iter().map(|s| self.size(*s)).collect();
                let values: Vec<Scalar> = points(&sizes)
                    .iter()
                    .map(|p| self.load(*buffer, p))
                    .collect();
                Value::Tensor(Tensor::from_scalars(b.dtype, &sizes, &values).unwrap())
            }
            Output::Int(e) => Value::Scalar(Scalar::Int(self.size(*e))),
            Output::Scalar(s) => Value::Scalar(*s),
            Output::None => Value::None,
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Kernel(g) => self.kernel(g),
            Step::Contraction(c) => self.contraction(c),
            Step::Library(_) | Step::Attention(_) => unreachable!("random programs have none"),
        }
    }

    fn axis_points(&self, axes: &[Axis]) -> Vec<Vec<i64>> {
        let sizes: Vec<i64> = axes.iter().map(|a| self.size(a.size)).collect();
        points(&sizes)
    }

    fn kernel(&mut self, g: &Group) {
        let mut outer = self.axis_points(&g.axes);
        self.shuffle(&mut outer);
        for p in outer {
            for l in &g.locals {
                self.memory.remove(&Space::Local(l.0));
            }
            let env: Env = g.axes.iter().map(|a| a.sym).zip(p).collect();
            for b in &g.bodies {
                assert_eq!(b.axes[..g.axes.len()], g.axes[..]);
                let mut own = self.axis_points(&b.axes[g.axes.len()..b.outer]);
                self.shuffle(&mut own);
                for q in own {
                    let mut env = env.clone();
                    let axes = &b.axes[g.axes.len()..b.outer];
                    env.extend(axes.iter().map(|a| a.sym).zip(q));
                    self.body(b, env, None);
                }
            }
        }
    }

    fn contraction(&mut self, c: &Contraction) {
        let outer: Vec<Axis> = (c.batch.iter().chain(&c.m).chain(&c.n)).copied().collect();
        assert_eq!(outer, c.epilogue.axes);
        let mut all = self.axis_points(&outer);
        self.shuffle(&mut all);
        // The engine may have read its operands whole before the first result is written, or not: sums come first here,
        // the other order would show in the results.
        for p in all {
            let mut env: Env = outer.iter().map(|a| a.sym).zip(p).collect();
            let mut sum = Scalar::Float(0.0);
            for q in self.axis_points(&c.k) {
                env.extend(c.k.iter().map(|a| a.sym).zip(q));
                let mut get = |x: &inrush_loops::Access, env: &Env| {
                    let at: Vec<i64> = x.coords.iter().map(|e| self.value(*e, env)).collect();
                    self.load(x.buf, &at)
                };
                let (a, b) = (get(&c.a, &env), get(&c.b, &env));
                sum = Scalar::Float(sum.as_f64() + a.as_f64() * b.as_f64());
            }
            self.body(&c.epilogue, env, Some(sum.convert(c.dtype)));
        }
    }

    /// One outer point of a body.
    fn body(&mut self, b: &Body, mut env: Env, sum: Option<Scalar>) {
        let plan = self.plan;
        let dtypes = b.dtypes(&plan.loops);
        let levels = b.levels(&plan.loops.exprs);
        let n = b.stmts.len();
        let mut values = vec![Scalar::Int(0); n];
        // Late: depends on a reduction.
        let mut late = vec![false; n];
        let mut late_syms: Vec<Sym> = Vec::new();
        for (k, s) in b.stmts.iter().enumerate() {
            late[k] = matches!(s, Stmt::Reduce { .. })
                || s.operands().iter().any(|o| late[o.index()])
                || s.exprs().iter().any(|e| {
                    self.ex()
                        .free_syms(*e)
                        .iter()
                        .any(|s| late_syms.contains(s))
                });
            if late[k]
                && let Stmt::Indirect { sym, .. } = s
            {
                late_syms.push(*sym);
            }
        }
        if !b.is_reduction() {
            for k in 0..n {
                self.stmt(b, k, &dtypes, &mut values, &mut env, sum);
            }
            return;
        }
        for k in (0..n).filter(|k| levels[*k] == Level::Outer && !late[*k]) {
            self.stmt(b, k, &dtypes, &mut values, &mut env, sum);
        }
        let mut state: Vec<Option<(Scalar, i64)>> = vec![None; n];
        let inner = self.axis_points(b.reduction_axes());
        for (i, r) in inner.iter().enumerate() {
            env.extend(
                b.reduction_axes()
                    .iter()
                    .map(|a| a.sym)
                    .zip(r.iter().copied()),
            );
            for k in 0..n {
                match &b.stmts[k] {
                    Stmt::Scan { op, value, dtype } => {
                        if *r.last().unwrap() == 0 {
                            state[k] = None;
                        }
                        let v = values[value.index()];
                        let d = dtypes[value.index()];
                        let next = match state[k] {
                            None => v,
                            Some((old, _)) => {
                                eval::op(eval::combiner(*op).unwrap(), d, &[old, v]).unwrap()
                            }
                        };
                        state[k] = Some((next, 0));
                        values[k] = next.convert(*dtype);
                    }
                    _ if levels[k] == Level::Point => {
                        self.stmt(b, k, &dtypes, &mut values, &mut env, sum)
                    }
                    _ => {}
                }
            }
            for (k, state) in state.iter_mut().enumerate() {
                let Stmt::Reduce { op, value, .. } = &b.stmts[k] else {
                    continue;
                };
                let (v, d) = (values[value.index()], dtypes[value.index()]);
                *state = Some(match (*state, eval::combiner(*op)) {
                    (None, _) => (v, i as i64),
                    (Some((old, at)), Some(c)) => (eval::op(c, wide(d), &[old, v]).unwrap(), at),
                    (Some((old, at)), None) => {
                        if eval::beats(*op, d, v, old) {
                            (v, i as i64)
                        } else {
                            (old, at)
                        }
                    }
                });
            }
        }
        for k in (0..n).filter(|k| late[*k]) {
            if let Stmt::Reduce { op, dtype, .. } = &b.stmts[k] {
                values[k] = match state[k] {
                    Some((_, at)) if op.is_arg() => Scalar::Int(at),
                    Some((v, _)) => v.convert(*dtype),
                    None => eval::neutral(*op, *dtype),
                };
            } else {
                self.stmt(b, k, &dtypes, &mut values, &mut env, sum);
            }
        }
    }

    fn stmt(
        &mut self,
        b: &Body,
        k: usize,
        dtypes: &[DType],
        values: &mut [Scalar],
        env: &mut Env,
        sum: Option<Scalar>,
    ) {
        let at = |m: &Self, coords: &Coords, env: &Env| -> Vec<i64> {
            coords.iter().map(|e| m.value(*e, env)).collect()
        };
        values[k] = match &b.stmts[k] {
            Stmt::Const { value, .. } => *value,
            Stmt::Index { expr, dtype } => Scalar::Int(self.value(*expr, env)).convert(*dtype),
            Stmt::Load {
                buf,
                coords,
                mask,
                fill,
            } => match mask {
                Some(m) if !values[m.index()].as_bool() => *fill,
                _ => {
                    let c = at(self, coords, env);
                    self.load(*buf, &c)
                }
            },
            Stmt::Op { op, args, dtype } => {
                let args: Vec<Scalar> = args.iter().map(|a| values[a.index()]).collect();
                eval::op(*op, *dtype, &args).unwrap()
            }
            Stmt::Cast { arg, to } => eval::cast(values[arg.index()], dtypes[arg.index()], *to),
            Stmt::Bitcast { arg, from, to } => {
                eval::bitcast(values[arg.index()], *from, *to).unwrap()
            }
            Stmt::Indirect {
                value,
                sym,
                size,
                wrap,
                ..
            } => {
                let n = self.size(*size);
                let mut i = values[value.index()].as_i64();
                if *wrap && i < 0 {
                    i += n;
                }
                env.insert(*sym, i);
                return;
            }
            Stmt::Acc { .. } => sum.expect("in an epilogue"),
            Stmt::Store {
                buf,
                coords,
                value,
                mode,
                mask,
            } => {
                if mask.is_some_and(|m| !values[m.index()].as_bool()) {
                    return;
                }
                let c = at(self, coords, env);
                let mut v = values[value.index()];
                if let Some(op) = eval::store_op(*mode) {
                    let old = self.load(*buf, &c);
                    v = eval::op(op, dtypes[value.index()], &[old, v]).unwrap();
                }
                self.store(*buf, &c, v);
                return;
            }
            Stmt::Reduce { .. } | Stmt::Scan { .. } => return,
            Stmt::Sort { .. } => panic!("plans of GPUs sort, which do not run here"),
        };
    }
}
