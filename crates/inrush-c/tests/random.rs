//! Random groups of bodies: compiled code and interpreter must agree.
//!
//! Values are kept exact as long as possible (short fractions, no fused products), so that a comparison or a rounding never
//! depends on the last bit; what passed through a math function or a sum is only compared within a tolerance.

mod common;
use common::*;
use inrush_base::{Caps, DType, Isa};
use inrush_interp::Value;
use std::fmt::Write;

#[derive(Clone)]
struct Val {
    id: usize,
    dtype: DType,
    exact: bool,
    /// Depends on a reduction axis.
    point: bool,
}

#[derive(Clone)]
struct Temp {
    buf: usize,
    dtype: DType,
    /// Index text per dimension: shared axes, then own ones.
    dims: Vec<usize>,
    exact: bool,
}

struct Gen {
    r: Random,
    text: String,
    next: usize,
    vals: Vec<Val>,
}

const MEMORY: &[DType] = &[
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::U8,
    DType::I8,
    DType::I16,
    DType::Bool,
];

impl Gen {
    fn put(&mut self, dtype: DType, exact: bool, point: bool, def: String) -> usize {
        let id = self.next;
        self.next += 1;
        _ = writeln!(self.text, "  v{id}: {dtype} = {def}");
        self.vals.push(Val {
            id,
            dtype,
            exact,
            point,
        });
        self.vals.len() - 1
    }

    fn pick(&mut self, f: impl Fn(&Val) -> bool) -> Option<Val> {
        let fit: Vec<&Val> = self.vals.iter().filter(|v| f(v)).collect();
        if fit.is_empty() {
            return None;
        }
        // Late values are likelier: chains grow.
        let n = fit.len() as u64;
        let a = self.r.below(n).max(self.r.below(n)) as usize;
        Some(fit[a].clone())
    }

    fn convert(&mut self, v: &Val, to: DType) -> Val {
        if v.dtype == to {
            return v.clone();
        }
        let at = self.put(
            to.compute(),
            v.exact,
            v.point,
            format!("cast v{} to {to}", v.id),
        );
        self.vals[at].clone()
    }

    /// One random operation.
    fn op(&mut self) {
        let Some(a) = self.pick(|_| true) else { return };
        let Some(b) = self.pick(|_| true) else { return };
        let b = if b.dtype != a.dtype {
            // Integers from inexact floats would differ.
            if !b.exact && !a.dtype.is_float() {
                return;
            }
            self.convert(&b, a.dtype)
        } else {
            b
        };
        let (exact, point) = (a.exact && b.exact, a.point || b.point);
        let (x, y) = (a.id, b.id);
        let names: &[&str] = match a.dtype {
            DType::Bool => &["and", "or", "xor", "not", "eq", "lt", "ge"],
            d if d.is_float() => &[
                "add",
                "sub",
                "mul",
                "maximum",
                "minimum",
                "neg",
                "abs",
                "lt",
                "ge",
                "eq",
                "floor",
                "ceil",
                "round",
                "trunc",
                "sign",
                "tanh",
                "exp",
                "sqrt",
                "reciprocal",
                "copysign",
                "isnan",
                "sin",
                "erf",
                "remainder",
                "clamp",
                "atan2",
            ],
            _ => &[
                "add",
                "sub",
                "mul",
                "maximum",
                "minimum",
                "neg",
                "abs",
                "lt",
                "ne",
                "floordiv",
                "truncdiv",
                "remainder",
                "fmod",
                "and",
                "or",
                "xor",
                "not",
                "shl",
                "shr",
                "sign",
            ],
        };
        let name = names[self.r.below(names.len() as u64) as usize];
        let d = a.dtype;
        match name {
            "lt" | "ge" | "eq" | "ne" | "isnan" => {
                if exact {
                    let args = if name == "isnan" {
                        format!("v{x}")
                    } else {
                        format!("v{x}, v{y}")
                    };
                    let c = self.put(DType::Bool, true, point, format!("{name} {args}"));
                    let c = self.vals[c].clone();
                    if let Some(p) = self.pick(|v| v.dtype == d) {
                        self.put(
                            d,
                            exact && p.exact,
                            c.point || p.point,
                            format!("where v{}, v{x}, v{}", c.id, p.id),
                        );
                    }
                }
            }
            "floor" | "ceil" | "round" | "trunc" | "sign" if exact => {
                self.put(d, true, a.point, format!("{name} v{x}"));
            }
            "floor" | "ceil" | "round" | "trunc" | "sign" | "remainder" | "copysign"
                if d.is_float() && !exact => {}
            "tanh" | "sin" | "erf" => {
                // Large arguments make periodic functions sensitive: bound them first.
                let t = self.put(d, false, a.point, format!("tanh v{x}"));
                let t = self.vals[t].id;
                self.put(d, false, a.point, format!("{name} v{t}"));
            }
            "exp" => {
                let t = self.put(d, false, a.point, format!("tanh v{x}"));
                let t = self.vals[t].id;
                self.put(d, false, a.point, format!("exp v{t}"));
            }
            "sqrt" | "reciprocal" => {
                let abs = self.put(d, a.exact, a.point, format!("abs v{x}"));
                let one = self.put(d, true, false, "const 1.0".into());
                let (abs, one) = (self.vals[abs].id, self.vals[one].id);
                let s = self.put(d, a.exact, a.point, format!("add v{abs}, v{one}"));
                let s = self.vals[s].id;
                self.put(d, false, a.point, format!("{name} v{s}"));
            }
            "clamp" => {
                let c = self.put(d, true, false, "const 0.75".into());
                let c = self.vals[c].id;
                let m = self.put(d, a.exact, a.point, format!("minimum v{x}, v{c}"));
                let m = self.vals[m].id;
                self.put(d, a.exact, a.point, format!("maximum v{c}, v{m}"));
            }
            "atan2" => {
                self.put(d, false, point, format!("atan2 v{x}, v{y}"));
            }
            "mul" if d.is_float() => {
                // Bounded operands keep magnitudes near one.
                let c = self.put(d, true, false, "const 0.5".into());
                let c = self.vals[c].id;
                let m = self.put(d, exact, point, format!("minimum v{y}, v{c}"));
                let m = self.vals[m].id;
                self.put(d, false, point, format!("mul v{x}, v{m}"));
            }
            "neg" | "abs" | "not" => {
                if name != "abs" || !d.is_unsigned() {
                    self.put(d, a.exact, a.point, format!("{name} v{x}"));
                }
            }
            _ => {
                let sums = matches!(name, "add" | "sub") && d.is_float() && d != DType::F64;
                self.put(d, exact && !sums, point, format!("{name} v{x}, v{y}"));
            }
        }
    }
}

/// A program of bodies over the same leading axes, its grouping and inputs.
fn program(seed: u64) -> (String, Grouping, Vec<Value>) {
    let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..4 {
        r.next();
    }
    let extents = [1i64, 2, 3, 5, 8, 13, 16, 40];
    let shared = 1 + r.below(3) as usize;
    let own = r.below(3) as usize;
    let dims: Vec<i64> = (0..shared + own)
        .map(|_| extents[r.below(extents.len() as u64) as usize])
        .collect();
    let dynamic = r.below(2) == 0;
    let first = [0, 1, 4, 19, 70][r.below(5) as usize];
    let size = |d: usize| {
        if d == 0 && dynamic {
            "s0".to_string()
        } else {
            dims[d].to_string()
        }
    };
    let actual = |d: usize| if d == 0 && dynamic { first } else { dims[d] };
    let mut header = String::from("loops t inputs ");
    let mut buffers = String::new();
    let mut inputs = Vec::new();
    // Inputs: a permuted subset of the axes each, or a table that is indexed.
    let mut sources: Vec<(usize, DType, Vec<usize>)> = Vec::new();
    let n_inputs = 1 + r.below(4) as usize;
    let mut next_buf = 0;
    for _ in 0..n_inputs {
        let dtype = MEMORY[r.below(MEMORY.len() as u64) as usize];
        let mut axes: Vec<usize> = (0..dims.len()).filter(|_| r.below(4) > 0).collect();
        // The dynamic size must be learned from some input.
        if sources.is_empty() && !axes.contains(&0) {
            axes.insert(0, 0);
        }
        if r.below(2) == 0 && axes.len() > 1 {
            let k = r.below(axes.len() as u64) as usize;
            axes.rotate_left(k);
        }
        let sizes: Vec<String> = axes.iter().map(|a| size(*a)).collect();
        _ = writeln!(
            buffers,
            "b{next_buf} x: {dtype}[{}] = input {next_buf}",
            sizes.join(", ")
        );
        let shape: Vec<i64> = axes.iter().map(|a| actual(*a)).collect();
        inputs.push(r.tensor(dtype, &shape));
        sources.push((next_buf, dtype, axes));
        next_buf += 1;
    }
    let mut table = None;
    if r.below(3) == 0 {
        _ = writeln!(buffers, "b{next_buf} t: f32[7, 9] = input {next_buf}");
        inputs.push(r.tensor(DType::F32, &[7, 9]));
        table = Some(next_buf);
        next_buf += 1;
    }
    _ = writeln!(header, "{next_buf}");
    if dynamic {
        header.push_str("size s0 in [0, inf]\n");
    }
    let mut bodies = String::new();
    let mut temps: Vec<Temp> = Vec::new();
    let mut locals = Vec::new();
    let mut outputs = Vec::new();
    for body in 0..1 + r.below(3) {
        let mut g = Gen {
            r: Random(r.next() | 1),
            text: String::new(),
            next: 0,
            vals: Vec::new(),
        };
        let reduces = own > 0 && g.r.below(2) == 0;
        let outer = if reduces {
            shared + g.r.below(own as u64) as usize
        } else {
            shared + own
        };
        let point = |axes: &[usize]| axes.iter().any(|a| *a >= outer);
        let index = |axes: &[usize]| {
            axes.iter()
                .map(|a| format!("i{a}"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        for (buf, dtype, axes) in sources.clone() {
            if g.r.below(4) > 0 || g.vals.is_empty() {
                let mut text = format!("load b{buf}[{}]", index(&axes));
                if g.r.below(5) == 0 && !axes.is_empty() {
                    // Behind a mask over one axis.
                    let a = axes[g.r.below(axes.len() as u64) as usize];
                    let p = point(&[a]);
                    let i = g.put(DType::I64, true, p, format!("index i{a}"));
                    let c = g.put(DType::I64, true, false, "const 2".into());
                    let (i, c) = (g.vals[i].id, g.vals[c].id);
                    let m = g.put(DType::Bool, true, p, format!("ge v{i}, v{c}"));
                    let fill = match dtype {
                        DType::Bool => "true",
                        d if d.is_float() => "0.25",
                        _ => "3",
                    };
                    text = format!("{text} if v{} else {fill}", g.vals[m].id);
                }
                g.put(dtype.compute(), true, point(&axes), text);
            }
        }
        for t in temps.clone() {
            let visible = t.dims.iter().all(|d| *d < shared + own);
            if visible && g.r.below(4) > 0 {
                let text = format!("load b{}[{}]", t.buf, index(&t.dims));
                g.put(t.dtype.compute(), t.exact, point(&t.dims), text);
            }
        }
        if g.r.below(3) == 0 {
            let a = g.r.below(dims.len() as u64) as usize;
            g.put(DType::I64, true, point(&[a]), format!("index 2*i{a} + 1"));
        }
        if let Some(t) = table {
            // A row by an index that is brought into range, a column by an axis.
            let a = g.r.below(dims.len() as u64) as usize;
            let v = g.pick(|v| v.dtype == DType::I64);
            let v = v.unwrap_or_else(|| {
                let at = g.put(DType::I64, true, point(&[a]), format!("index i{a}"));
                g.vals[at].clone()
            });
            let seven = g.put(DType::I64, true, false, "const 7".into());
            let seven = g.vals[seven].id;
            let m = g.put(
                DType::I64,
                true,
                v.point,
                format!("fmod v{}, v{seven}", v.id),
            );
            let m = g.vals[m].id;
            _ = writeln!(g.text, "  j0: 7 = indirect v{m} wrap check");
            g.next += 1;
            g.put(
                DType::F32,
                true,
                v.point || point(&[a]),
                format!("load b{t}[j0, i{a} % 9]"),
            );
        }
        for _ in 0..g.r.below(8) {
            g.op();
        }
        if reduces {
            for _ in 0..1 + g.r.below(2) {
                let Some(v) = g.pick(|v| v.point) else { break };
                let name = match v.dtype {
                    DType::Bool => ["any", "all"][g.r.below(2) as usize],
                    d if d.is_float() => {
                        ["sum", "max", "min", "argmax", "sum"][g.r.below(5) as usize]
                    }
                    _ => ["sum", "max", "min", "argmin", "xor_sum"][g.r.below(5) as usize],
                };
                let arg = name.starts_with("arg");
                if arg && !v.exact {
                    continue;
                }
                let d = if arg { DType::I64 } else { v.dtype };
                let exact = !(d.is_float() && (name == "sum" || !v.exact));
                g.put(d, exact, false, format!("reduce.{name} v{}", v.id));
            }
            g.vals.retain(|v| !v.point);
            for _ in 0..g.r.below(3) {
                g.op();
            }
        }
        for _ in 0..1 + g.r.below(2) {
            let Some(v) = g.pick(|v| !v.point) else { break };
            let mut dtype = v.dtype;
            if dtype == DType::F32 {
                dtype = [DType::F32, DType::F32, DType::F16, DType::BF16][g.r.below(4) as usize];
            }
            let at: Vec<usize> = (0..outer).collect();
            let mut order = at.clone();
            let local = g.r.below(2) == 0;
            if !local && g.r.below(3) == 0 {
                order.reverse();
            }
            // Strides of a layout in which `order` is row-major.
            let mut strides = vec![String::new(); outer];
            let mut step = String::from("1");
            for d in order.iter().rev() {
                strides[*d] = step.clone();
                step = format!("{step}*max({}, 1)", size(*d));
            }
            let sizes: Vec<String> = at.iter().map(|a| size(*a)).collect();
            _ = writeln!(
                buffers,
                "b{next_buf} y: {dtype}[{}] layout [{}] = temp",
                sizes.join(", "),
                strides.join(", ")
            );
            _ = writeln!(g.text, "  store b{next_buf}[{}] = v{}", index(&at), v.id);
            g.next += 1;
            if local {
                locals.push(next_buf);
            } else {
                outputs.push(next_buf);
            }
            temps.push(Temp {
                buf: next_buf,
                dtype,
                dims: at,
                exact: v.exact && dtype.compute() == dtype,
            });
            next_buf += 1;
        }
        let axes = |range: std::ops::Range<usize>| {
            range
                .map(|d| format!("i{d}: {}", size(d)))
                .collect::<Vec<_>>()
                .join(", ")
        };
        _ = write!(bodies, "body [{}]", axes(0..outer));
        if outer < dims.len() {
            _ = write!(bodies, " reduce [{}]", axes(outer..dims.len()));
        }
        _ = writeln!(bodies, " {{\n{}}}", g.text);
        let _ = body;
    }
    if outputs.is_empty() {
        outputs.extend(locals.pop());
    }
    let mut text = format!("{header}{buffers}{bodies}");
    for o in outputs {
        _ = writeln!(text, "output b{o}");
    }
    let grouping = Grouping::Together {
        axes: shared,
        locals,
    };
    (text, grouping, inputs)
}

fn agree(caps: &Caps, seeds: std::ops::Range<u64>) {
    let cases: Vec<_> = seeds.map(|s| (s, program(s))).collect();
    let mut programs = Vec::new();
    let mut kept = Vec::new();
    for (seed, (text, grouping, inputs)) in &cases {
        let p = inrush_loops::text::parse(text).unwrap_or_else(|e| panic!("{seed}: {e}\n{text}"));
        if let Err(e) = inrush_loops::verify::verify(&p) {
            panic!("{seed}: {e}");
        }
        // A minimum over nothing is no program.
        let Ok(want) = expected(&p, inputs) else {
            panic!("{seed}: {:?}\n{text}", expected(&p, inputs).err());
        };
        programs.push((p, grouping.clone()));
        kept.push((seed, text, inputs, want));
    }
    let compiled = Compiled::batch(programs, caps).unwrap();
    for (c, (seed, text, inputs, want)) in compiled.iter().zip(&kept) {
        let known = symbols(&c.loops, inputs);
        for step in [1, 1 << 40] {
            let got = c.run(inputs, &known, step).unwrap();
            for (at, (g, w)) in got.iter().zip(want).enumerate() {
                let (g, w) = (g.tensor().unwrap(), w.tensor().unwrap());
                let error = g.max_error(w).unwrap();
                let allowed = match g.dtype {
                    DType::F32 => 1e-5,
                    d => tolerance(d, caps),
                };
                if error > allowed {
                    std::fs::write("/tmp/kernel.c", &*c.source).unwrap();
                    panic!(
                        "seed {seed}, output {at} of {} is off by {error:e}\ngot  {:?}\nwant {:?}\n{text}\n{}",
                        g.dtype,
                        &g.scalars().unwrap()[..g.numel().min(20)],
                        &w.scalars().unwrap()[..w.numel().min(20)],
                        c.print()
                    );
                }
            }
        }
    }
}

#[test]
fn random_groups_agree_with_the_interpreter() {
    let caps = machine();
    for at in 0..3 {
        agree(&caps, at * 20..(at + 1) * 20);
    }
}

#[test]
fn random_groups_agree_without_vectors() {
    agree(&Caps::cpu(Isa::Scalar, 1), 1000..1015);
}

/// NEON code, where `cargo xtask test` found an emulator for it.
#[test]
fn random_groups_agree_on_neon() {
    match levels().iter().find(|c| c.isa == Isa::Neon) {
        Some(caps) => agree(caps, 2000..2020),
        None => println!("skipped: INRUSH_CLANG and INRUSH_UNICORN name no compiler and emulator"),
    }
}

#[test]
#[ignore = "prints programs"]
fn show() {
    for seed in [3, 8, 12] {
        let (text, grouping, _) = program(seed);
        let p = inrush_loops::text::parse(&text).unwrap();
        let c = Compiled::new(p, &grouping, &machine()).unwrap();
        println!("{text}\n{}\n{}", c.print(), c.source);
    }
}
