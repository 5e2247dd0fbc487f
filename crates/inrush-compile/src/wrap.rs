//! Stage wrap: from a plan and its kernels to the program that an executor runs.
//!
//! The stage translates; it decides nothing but the order of launches that run concurrently
//! (`together.rs`). Expressions become lines of the size arithmetic, buffers get places, and steps
//! get the numbers of their kernels:
//!
//! ```text
//! plan                                    program
//! buffer t0: f32[s0, 64] at arena 256     b3 t0: f32 z7 bytes written = arena 256
//! kernel over i0 < s0, i1 < 64            launch k0 [b0, b3] sizes [s0] units s0 cost 512 ..
//! contraction over m, n and k             contract f32 b0 at 0, b1 at 0 .. m [s0: 64] n [8: 1] ..
//! ```
//!
//! Launches of one kernel have their sizes in common, and contractions of one form their levels;
//! these are computed once for each kernel, since a model may have thousands of steps.

use crate::functions::{Functions, Instance, Kernels};
use crate::gpu::{GpuKernels, Launched};
use crate::signature::{Signature, SignatureInput};
use crate::sizes::Sizes;
use crate::together::together;
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Sym};
use inrush_graph::{Guard, Reads as GraphReads, Relation as GraphRelation, Type};
use inrush_kernel::Kernel;
use inrush_loops::{
    Access, Axis, BufId, BufferKind, Contraction, Layout, LibraryCall, Loops, Output as LoopOutput,
    Stmt, StoreMode,
};
use inrush_program as program;
use inrush_program::{BatchLevel, Buffer, BufferId, Dt, KLevel, Level, Place, Program, SizeId};
use inrush_sched::{Plan, Step};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// A program in the making.
struct Wrap<'a> {
    loops: &'a Loops,
    sizes: Sizes<'a>,
    /// The line of the number 0, once a buffer without memory needs it.
    zero: Option<SizeId>,
    /// By kernel: what its launches have in common.
    launches: Vec<Option<Common>>,
    /// By kernel of the epilogue: contractions that are alike but for the buffers.
    contractions: FxHashMap<u32, Vec<(&'a Contraction, program::Contract)>>,
}

/// The common part of the launches of one kernel.
#[derive(Clone)]
struct Common {
    sizes: Vec<SizeId>,
    /// Units of a launch.
    units: SizeId,
    /// Bytes touched plus weighted operations of one unit, by which units are shared among threads.
    unit_cost: SizeId,
    scratch_bytes: SizeId,
    /// Units may write to one place, so one thread runs them all.
    serial: bool,
}

/// Contractions that are memoized for each kernel; the list is searched linearly.
const REMEMBERED: usize = 8;

/// The code that the steps run.
pub enum Code<'a> {
    C(&'a Kernels),
    Gpu(&'a GpuKernels),
}

/// Makes the program of a plan and its kernels. Those of a CPU get their functions by [`name`].
pub fn wrap(guards: &[Guard], signature: &Signature, plan: &Plan, code: &Code) -> Result<Program> {
    let loops = &plan.loops;
    let kernels = match code {
        Code::C(k) => k.distinct.len(),
        Code::Gpu(k) => k.emitted.len(),
    };
    let mut w = Wrap {
        loops,
        sizes: Sizes::new(&loops.exprs, &signature.syms),
        zero: None,
        launches: vec![None; kernels],
        contractions: FxHashMap::default(),
    };
    let mut out = Program {
        name: loops.name.clone(),
        symbols: signature.symbols.clone(),
        ..Program::default()
    };

    for i in &signature.inputs {
        out.inputs.push(input(&mut w.sizes, i)?);
    }
    for g in guards {
        out.guards.push(guard(&mut w.sizes, g)?);
    }
    w.buffers(plan, &mut out)?;
    out.arena_bytes = w.optional(plan.memory.arena_bytes)?;
    out.load_bytes = w.optional(plan.memory.load_bytes)?;
    w.steps(plan, code, &mut out)?;
    for o in &loops.outputs {
        out.outputs.push(w.output(o)?);
    }
    out.kernels = match code {
        Code::C(k) => k.distinct.iter().map(|k| w.kernel(k)).collect(),
        Code::Gpu(k) => k.kernels.iter().map(gpu_kernel).collect(),
    };
    out.sizes = w.sizes.finish();
    out.verify()
        .map_err(|e| Error::internal(e.message().to_string()))?;
    Ok(out)
}

/// Returns a kernel for a GPU. Its assertions stop it on the device.
fn gpu_kernel(k: &program::GpuKernel) -> program::Kernel {
    program::Kernel {
        symbol: k.symbol.clone(),
        title: title(&k.function),
        checks: Vec::new(),
    }
}

/// Returns an input of the program.
pub(crate) fn input(sizes: &mut Sizes, i: &SignatureInput) -> Result<program::Input> {
    let ty = match &i.ty {
        Type::Tensor(t) => program::InputType::Tensor {
            dtype: Dt(t.dtype),
            sizes: sizes.all(&t.sizes)?,
            strides: sizes.all(&t.strides)?,
        },
        Type::Int(e) => program::InputType::Int {
            value: sizes.of(*e)?,
        },
        Type::Constant(v) => program::InputType::Constant { value: (*v).into() },
        Type::None => program::InputType::Ignored,
        other => {
            return Err(Error::unsupported(format!(
                "input `{}` has a type that a program cannot take: {other:?}",
                i.name
            )));
        }
    };
    Ok(program::Input {
        name: i.name.clone(),
        ty,
        reads: match i.reads {
            GraphReads::Elements => program::Reads::Elements,
            GraphReads::Memory => program::Reads::Memory,
            GraphReads::Storage => program::Reads::Storage,
        },
    })
}

/// Returns a guard of the program.
pub(crate) fn guard(sizes: &mut Sizes, g: &Guard) -> Result<program::Guard> {
    Ok(program::Guard {
        relation: relation(g.relation),
        left: sizes.of(g.left)?,
        right: sizes.of(g.right)?,
        why: g.why.clone(),
    })
}

/// Returns a relation of a graph's guard as programs name it.
pub(crate) fn relation(r: GraphRelation) -> program::Relation {
    match r {
        GraphRelation::Eq => program::Relation::Eq,
        GraphRelation::Ne => program::Relation::Ne,
        GraphRelation::Le => program::Relation::Le,
        GraphRelation::Lt => program::Relation::Lt,
    }
}

impl<'a> Wrap<'a> {
    /// Adds the buffers with their places.
    fn buffers(&mut self, plan: &Plan, out: &mut Program) -> Result<()> {
        let loops = &plan.loops;
        // By storage: a step that writes an alias writes the storage.
        let mut written = vec![false; loops.buffers.len()];
        for b in plan.steps.iter().flat_map(|s| s.writes()) {
            written[loops.storage(b).index()] = true;
        }
        out.buffers.reserve_exact(loops.buffers.len());
        for (at, b) in loops.buffers.iter().enumerate() {
            if let Some(l) = b.layout.as_ref().filter(|_| written[at])
                && loops.exprs.overlaps(&b.sizes, &l.strides)
            {
                return Err(Error::unsupported(format!(
                    "`{}` is written, and elements of it share a place",
                    b.name
                )));
            }
            let place = self.place(plan, at)?;
            let bytes = self.bytes(b)?;
            out.buffers.push(Buffer {
                name: b.name.clone(),
                dtype: Dt(b.dtype),
                place,
                bytes,
                written: written[at],
            });
        }
        Ok(())
    }

    /// Adds the steps at load and those of a call.
    fn steps(&mut self, plan: &'a Plan, code: &Code, out: &mut Program) -> Result<()> {
        out.load_steps.reserve_exact(plan.load_steps.len());
        out.steps.reserve_exact(plan.steps.len());
        match code {
            Code::C(k) => {
                for (s, e) in plan.load_steps.iter().zip(&k.load_steps) {
                    out.load_steps.push(self.step(s, e, k)?);
                }
                for group in together(plan, k) {
                    for (n, at) in group.into_iter().enumerate() {
                        let mut step = self.step(&plan.steps[at], &k.steps[at], k)?;
                        if let program::Step::Launch(l) = &mut step {
                            l.beside = n > 0;
                        }
                        out.steps.push(step);
                    }
                }
            }
            Code::Gpu(k) => {
                for l in &k.load_steps {
                    out.load_steps
                        .push(self.gpu_launch(&plan.load_steps, l, k)?);
                }
                for l in &k.steps {
                    out.steps.push(self.gpu_launch(&plan.steps, l, k)?);
                }
            }
        }
        Ok(())
    }
}

/// Sets each kernel's symbol to the name of its emitted function.
pub fn name(program: &mut Program, functions: &Functions) {
    for (kernel, f) in program.kernels.iter_mut().zip(&functions.of_kernel) {
        kernel
            .symbol
            .clone_from(&functions.functions[*f as usize].name);
    }
}

impl<'a> Wrap<'a> {
    /// Returns the line of an expression, or of 0.
    fn optional(&mut self, e: Option<Expr>) -> Result<SizeId> {
        match e {
            Some(e) => self.sizes.of(e),
            None => Ok(self.sizes.int(0)),
        }
    }

    /// Returns the place of a buffer's memory.
    fn place(&mut self, plan: &Plan, at: usize) -> Result<Place> {
        use inrush_sched::Place as From;
        let b = &self.loops.buffers[at];
        Ok(match plan.memory.places[at] {
            // Nothing refers to these: any place without memory of its own does.
            From::Unused | From::Local => {
                let offset = *self.zero.get_or_insert_with(|| self.sizes.int(0));
                Place::Arena { offset }
            }
            From::Input(input) => Place::Input {
                input: input as u32,
            },
            From::Weight => {
                let BufferKind::Weight { name } = &b.kind else {
                    return Err(Error::internal(format!(
                        "buffer `{}` is placed as a weight",
                        b.name
                    )));
                };
                let exprs = &self.loops.exprs;
                let ints = |es: &[Expr]| {
                    es.iter()
                        .map(|e| exprs.as_int(*e))
                        .collect::<Option<Vec<i64>>>()
                };
                let layout = b.layout.as_ref().ok_or_else(|| no_layout(&b.name))?;
                let (Some(sizes), Some(strides)) = (ints(&b.sizes), ints(&layout.strides)) else {
                    return Err(Error::internal(format!(
                        "weight `{name}` has symbolic sizes"
                    )));
                };
                Place::Weight(program::Weight {
                    name: name.clone(),
                    sizes,
                    strides,
                })
            }
            From::Output(output) => Place::Output {
                output: output as u32,
            },
            From::Arena { offset, .. } => Place::Arena {
                offset: self.sizes.of(offset)?,
            },
            From::Load { offset, .. } => Place::Persistent {
                offset: self.sizes.of(offset)?,
            },
            // Kernels index an alias by its own layout, offset included, from the start of the storage.
            From::Alias(of) => {
                let zero = self.sizes.int(0);
                Place::Alias {
                    of: of.0,
                    offset: zero,
                }
            }
        })
    }

    /// Returns the bytes from the start of the storage to the end of the last element.
    fn bytes(&mut self, b: &inrush_loops::Buffer) -> Result<SizeId> {
        let ex = &self.loops.exprs;
        let Some(layout) = &b.layout else {
            return Ok(self.sizes.int(0));
        };
        if b.sizes.iter().any(|s| ex.is_int(*s, 0)) {
            return Ok(self.sizes.int(0));
        }
        // Most sizes are constants: plain integers spare the arena several expressions for each
        // buffer.
        if let Some(bytes) = self.known_bytes(b, layout) {
            return Ok(self.sizes.int(bytes));
        }
        let mut last = layout.offset;
        for (size, stride) in b.sizes.iter().zip(&layout.strides) {
            let steps = ex.max(ex.sub(*size, ex.int(1)), ex.int(0));
            last = ex.add(last, ex.mul(steps, *stride));
        }
        let count = ex.add(last, ex.int(1));
        // An empty tensor has no bytes; sizes that may be zero are few, and one element too many does no harm.
        self.sizes.of(ex.mul(count, ex.int(b.dtype.size() as i64)))
    }

    /// [`Wrap::bytes`] where all of it is known.
    fn known_bytes(&self, b: &inrush_loops::Buffer, layout: &Layout) -> Option<i64> {
        let ex = &self.loops.exprs;
        let mut last = ex.as_int(layout.offset)?;
        for (size, stride) in b.sizes.iter().zip(&layout.strides) {
            let steps = ex.as_int(*size)?.checked_sub(1)?.max(0);
            last = last.checked_add(steps.checked_mul(ex.as_int(*stride)?)?)?;
        }
        last.checked_add(1)?.checked_mul(b.dtype.size() as i64)
    }

    fn output(&mut self, o: &LoopOutput) -> Result<program::Output> {
        Ok(match o {
            LoopOutput::Tensor { buffer } => {
                let b = self.loops.buffer(*buffer);
                let layout = b.layout.as_ref().ok_or_else(|| no_layout(&b.name))?;
                program::Output::Tensor {
                    buffer: buffer.0,
                    dtype: Dt(b.dtype),
                    sizes: self.sizes.all(&b.sizes)?,
                    strides: self.sizes.all(&layout.strides)?,
                }
            }
            // The step that writes the input has done it.
            LoopOutput::Mutation { .. } => program::Output::Mutation,
            LoopOutput::Int(e) => program::Output::Int {
                value: self.sizes.of(*e)?,
            },
            LoopOutput::Scalar(s) => program::Output::Scalar { value: (*s).into() },
            LoopOutput::None => program::Output::None,
        })
    }

    /// Returns the distinct operators that steps were made for, in order, for profiles and
    /// messages.
    fn origins<'s>(&self, steps: impl Iterator<Item = &'s Step>) -> Vec<String> {
        let mut out: Vec<String> = Vec::new();
        for id in steps.flat_map(Step::bodies).flat_map(|b| &b.origins) {
            let op = &self.loops.origins[id.index()].op;
            if !out.contains(op) {
                out.push(op.clone());
            }
        }
        out
    }

    /// Returns a kernel with its checks. Messages name the operator and the Python line.
    fn kernel(&self, k: &Kernel) -> program::Kernel {
        let checks = k
            .checks
            .iter()
            .map(|c| {
                let message = match c.origin.map(|o| &self.loops.origins[o.index()]) {
                    Some(o) => {
                        let line = o
                            .line
                            .as_ref()
                            .map_or(String::new(), |l| format!("\n  at {l}"));
                        let name = inrush_graph::source_name(&o.name);
                        format!("node `{name}` ({}): {}{line}", o.op, c.message)
                    }
                    None => c.message.clone(),
                };
                program::Check {
                    kind: c.kind,
                    message,
                }
            })
            .collect();
        program::Kernel {
            symbol: String::new(),
            title: k.name.clone(),
            checks,
        }
    }

    /// Returns a step for a CPU.
    fn step(&mut self, s: &'a Step, e: &Instance, kernels: &Kernels) -> Result<program::Step> {
        let kernel = e.kernel;
        let buffers: Vec<BufferId> = e.buffers.iter().map(|b| b.0).collect();
        let origins = self.origins(std::iter::once(s));
        let c = match s {
            Step::Library(c) => return self.library(c, origins).map(program::Step::Library),
            Step::Kernel(_) => {
                let common = self.launch(kernel, kernels)?;
                return Ok(program::Step::Launch(program::Launch {
                    kernel,
                    buffers,
                    sizes: common.sizes,
                    units: common.units,
                    unit_cost: common.unit_cost,
                    scratch_bytes: common.scratch_bytes,
                    serial: common.serial,
                    beside: false,
                    origins,
                }));
            }
            Step::Contraction(c) => c,
            Step::Attention(_) => return Err(Error::internal("an attention on a CPU")),
        };
        let known = self.contractions.get(&kernel);
        let same = known.and_then(|known| known.iter().find(|(d, _)| self.same(c, d)));
        if let Some((_, made)) = same {
            return Ok(program::Step::Contract(program::Contract {
                a: c.a.buf.0,
                b: c.b.buf.0,
                buffers,
                origins,
                ..made.clone()
            }));
        }
        let sizes = self.sizes.all(&kernels.numbers[kernel as usize].sizes)?;
        let made = self.contraction(c, kernel, buffers, sizes, origins)?;
        let known = self.contractions.entry(kernel).or_default();
        if known.len() < REMEMBERED {
            let bare = program::Contract {
                buffers: Vec::new(),
                origins: Vec::new(),
                ..made.clone()
            };
            known.push((c, bare));
        }
        Ok(program::Step::Contract(made))
    }

    /// Returns a call of a library function, with the sizes of its buffers.
    fn library(&mut self, c: &LibraryCall, origins: Vec<String>) -> Result<program::LibraryCall> {
        let mut operands = |buffers: &[BufId]| -> Result<Vec<program::Operand>> {
            (buffers.iter())
                .map(|b| {
                    Ok(program::Operand {
                        buffer: b.0,
                        sizes: self.sizes.all(&self.loops.buffer(*b).sizes)?,
                    })
                })
                .collect()
        };
        Ok(program::LibraryCall {
            function: c.function.clone(),
            params: c.params.iter().map(|p| (*p).into()).collect(),
            inputs: operands(&c.inputs)?,
            outputs: operands(&c.outputs)?,
            origins,
        })
    }

    /// Returns the common part of launches of a kernel.
    fn launch(&mut self, kernel: u32, kernels: &Kernels) -> Result<Common> {
        if let Some(known) = &self.launches[kernel as usize] {
            return Ok(known.clone());
        }
        let k = &kernels.numbers[kernel as usize];
        let common = Common {
            sizes: self.sizes.all(&k.sizes)?,
            units: self.sizes.of(k.units)?,
            unit_cost: self.sizes.of(k.cost_per_unit)?,
            scratch_bytes: self.optional(k.scratch_bytes)?,
            serial: k.serial,
        };
        self.launches[kernel as usize] = Some(common.clone());
        Ok(common)
    }

    /// Returns true if two contractions differ in nothing but their buffers and epilogues.
    fn same(&self, c: &Contraction, d: &Contraction) -> bool {
        let layout = |b: BufId| &self.loops.buffer(b).layout;
        (&c.batch, &c.m, &c.n, &c.k, c.dtype) == (&d.batch, &d.m, &d.n, &d.k, d.dtype)
            && c.a.coords == d.a.coords
            && c.b.coords == d.b.coords
            && layout(c.a.buf) == layout(d.a.buf)
            && layout(c.b.buf) == layout(d.b.buf)
    }

    /// A launch on a GPU: a contraction is a kernel like others.
    fn gpu_launch(
        &mut self,
        steps: &[Step],
        l: &Launched,
        kernels: &GpuKernels,
    ) -> Result<program::Step> {
        let kernel = l.instance.kernel;
        let k = &kernels.emitted[kernel as usize];
        let numbers = k.arguments.iter().flat_map(|a| a.numbers());
        let values: Vec<Expr> = numbers.copied().collect();
        let none = self.sizes.int(0);
        Ok(program::Step::Launch(program::Launch {
            kernel,
            buffers: l.instance.buffers.iter().map(|b| b.0).collect(),
            sizes: self.sizes.all(&values)?,
            units: self.sizes.of(k.programs)?,
            unit_cost: none,
            scratch_bytes: none,
            serial: false,
            beside: false,
            origins: self.origins(l.steps.iter().map(|s| &steps[*s])),
        }))
    }

    /// Returns a contraction: for each level of batch, m, n and k its size, and the strides by
    /// which it moves through the operands. Accesses are affine, so strides are coefficients of the
    /// flat offset.
    fn contraction(
        &mut self,
        c: &Contraction,
        epilogue: u32,
        buffers: Vec<BufferId>,
        sizes: Vec<SizeId>,
        origins: Vec<String>,
    ) -> Result<program::Contract> {
        let syms = |groups: &[&[Axis]]| -> Vec<Sym> {
            groups
                .iter()
                .flat_map(|g| g.iter().map(|a| a.sym))
                .collect()
        };
        let (a_coefs, a_offset) = self.affine(&c.a, &syms(&[&c.batch, &c.m, &c.k]))?;
        let (b_coefs, b_offset) = self.affine(&c.b, &syms(&[&c.batch, &c.n, &c.k]))?;
        let (nb, nm, nn) = (c.batch.len(), c.m.len(), c.n.len());
        let mut batch = Vec::new();
        for (i, axis) in c.batch.iter().enumerate() {
            batch.push(BatchLevel {
                size: self.sizes.of(axis.size)?,
                a_stride: self.sizes.of(a_coefs[i])?,
                b_stride: self.sizes.of(b_coefs[i])?,
            });
        }
        let mut m = Vec::new();
        for (i, axis) in c.m.iter().enumerate() {
            m.push(Level {
                size: self.sizes.of(axis.size)?,
                stride: self.sizes.of(a_coefs[nb + i])?,
            });
        }
        let mut n = Vec::new();
        for (i, axis) in c.n.iter().enumerate() {
            n.push(Level {
                size: self.sizes.of(axis.size)?,
                stride: self.sizes.of(b_coefs[nb + i])?,
            });
        }
        let mut k = Vec::new();
        for (i, axis) in c.k.iter().enumerate() {
            k.push(KLevel {
                size: self.sizes.of(axis.size)?,
                a_stride: self.sizes.of(a_coefs[nb + nm + i])?,
                b_stride: self.sizes.of(b_coefs[nb + nn + i])?,
            });
        }
        let store = self.plain_store(c)?;
        Ok(program::Contract {
            a: c.a.buf.0,
            b: c.b.buf.0,
            a_offset: self.sizes.of(a_offset)?,
            b_offset: self.sizes.of(b_offset)?,
            batch,
            m,
            n,
            k,
            acc: Dt(c.dtype),
            epilogue,
            buffers,
            sizes,
            store,
            origins,
        })
    }

    /// Returns where sums are stored, if storing them is all that the epilogue does: engines then
    /// write tiles directly, without the epilogue's function. The buffer must have the dtype of the
    /// sum.
    fn plain_store(&mut self, c: &Contraction) -> Result<Option<program::Store>> {
        let [
            Stmt::Acc { .. },
            Stmt::Store {
                buf,
                coords,
                mode: StoreMode::Set,
                mask: None,
                ..
            },
        ] = c.epilogue.stmts.as_slice()
        else {
            return Ok(None);
        };
        let b = self.loops.buffer(*buf);
        let ex = &self.loops.exprs;
        let Some(layout) = b.layout.as_ref().filter(|_| b.dtype == c.dtype) else {
            return Ok(None);
        };
        let flat = ex.add(layout.offset, ex.dot(&layout.strides, coords));
        let syms: Vec<Sym> = c.epilogue.axes.iter().map(|a| a.sym).collect();
        let Some((strides, offset)) = ex.affine(flat, &syms) else {
            return Ok(None);
        };
        let offset = self.sizes.of(offset)?;
        let strides = self.sizes.all(&strides)?;
        let (batch, rest) = strides.split_at(c.batch.len());
        let (m, n) = rest.split_at(c.m.len());
        Ok(Some(program::Store {
            offset,
            batch: batch.to_vec(),
            m: m.to_vec(),
            n: n.to_vec(),
        }))
    }

    /// Returns strides of an access over the given axes, and its offset, in elements.
    fn affine(&self, access: &Access, syms: &[Sym]) -> Result<(SmallVec<[Expr; 6]>, Expr)> {
        let ex = &self.loops.exprs;
        let b = self.loops.buffer(access.buf);
        let layout = b.layout.as_ref().ok_or_else(|| no_layout(&b.name))?;
        let flat = ex.add(layout.offset, ex.dot(&layout.strides, &access.coords));
        ex.affine(flat, syms).ok_or_else(|| {
            Error::internal(format!(
                "a contraction reads `{}` at {}, which is not affine",
                b.name,
                ex.show(flat)
            ))
        })
    }
}

/// Returns a kernel's name without the digest, as reports show it.
fn title(function: &str) -> String {
    match function.rsplit_once('_') {
        Some((title, _)) => title.to_string(),
        None => function.to_string(),
    }
}

fn no_layout(name: &str) -> Error {
    Error::internal(format!("buffer `{name}` has no layout"))
}
