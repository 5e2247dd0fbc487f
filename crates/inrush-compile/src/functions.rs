//! Kernels of a plan: tiled, emitted, each distinct function once.
//!
//! Models repeat layers, so most steps equal an earlier one up to their buffers. Three levels of
//! deduplication follow each other, each cheaper than the work that it saves:
//!
//! ```text
//! steps --fingerprint--> distinct kernels --tile, emit--> functions --digest--> distinct functions
//! ```
//!
//! Both stages run in parallel over *parts*: runs of the distinct kernels of equal weight, one a
//! thread. Expressions are interned in an arena that threads cannot share, so each part but the
//! first works in a fork of the plan's arena. Sizes that the program needs are imported back
//! ([`Numbers`]); kernels keep their fork, and are printed, verified and emitted in it. Parts are
//! joined in order, so the output does not depend on the number of threads.

use crate::same;
use inrush_base::{Caps, Error, Lookup, Result, shares, side_by_side};
use inrush_c::Function;
use inrush_expr::{Expr, Exprs, Import};
use inrush_kernel::{Kernel, units_meet};
use inrush_loops::{BufId, Tables};
use inrush_sched::{Form, Plan, Step};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Statements for which a thread of their own pays: either stage takes about 0.1 ms for them.
const LEAST: usize = 256;

/// The distinct kernels of a plan, and which of them each step runs.
pub struct Kernels {
    /// In the order of the first step that runs each. Expressions are of the part's arena.
    pub distinct: Vec<Kernel>,
    /// By distinct kernel.
    pub numbers: Vec<Numbers>,
    /// By load step of the plan.
    pub load_steps: Vec<Instance>,
    /// By step of the plan.
    pub steps: Vec<Instance>,
    /// In order; together they cover `distinct`. The first uses the plan's arena.
    parts: Vec<Part>,
}

/// A run of the distinct kernels that one thread made.
struct Part {
    kernels: Range<usize>,
    /// The arena that their expressions refer to, where it is not the plan's.
    fork: Option<Mutex<Exprs>>,
}

/// The arguments of a kernel's launches, in the plan's arena.
pub struct Numbers {
    /// Integers that the kernel takes, in the order of its parameters.
    pub sizes: SmallVec<[Expr; 4]>,
    /// Units of a launch.
    pub units: Expr,
    /// Bytes touched plus weighted operations of one unit.
    pub cost_per_unit: Expr,
    /// Bytes of scratch that each thread must bring.
    pub scratch_bytes: Option<Expr>,
    /// Units of the grid may write to one place.
    pub serial: bool,
}

/// Stands for the kernel of a step that has none.
pub const NO_KERNEL: u32 = u32::MAX;

/// A kernel as one step runs it.
pub struct Instance {
    /// Position among the distinct kernels; [`NO_KERNEL`] for a library call.
    pub kernel: u32,
    /// The step's arguments, in the order of [`Kernel::arguments`].
    pub buffers: Vec<BufId>,
}

/// The distinct functions.
pub struct Functions {
    pub functions: Vec<Function>,
    /// For each distinct kernel its function: kernels of different steps may still give equal text.
    pub of_kernel: Vec<u32>,
}

/// The work of the first thread in parallel with either stage, in statements that take as long: steps and buffers of the
/// whole plan are looked at, however few of its kernels are distinct.
fn aside(plan: &Plan) -> usize {
    2 * plan.steps.len() + plan.loops.buffers.len() / 8
}

/// Tiles one step.
pub fn tile_step(tables: Tables, step: &Step, caps: &Caps) -> Result<Kernel> {
    match step {
        Step::Kernel(g) => inrush_kernel::tile(tables, &g.axes, &g.bodies, &g.locals, caps),
        Step::Contraction(c) => inrush_kernel::tile_epilogue(tables, c, caps),
        Step::Library(_) => Err(Error::internal("a library call has no kernel")),
        Step::Attention(_) => Err(Error::unsupported("the attention of a GPU on a CPU")),
    }
}

impl Kernels {
    /// Checks every distinct kernel, in the arena that it was made in.
    pub fn verify(&self, plan: &Plan) -> Result<()> {
        for part in &self.parts {
            let fork = part.fork.as_ref();
            let fork = fork.map(|f| f.lock().unwrap_or_else(PoisonError::into_inner));
            let exprs = fork.as_deref().unwrap_or(&plan.loops.exprs);
            let mut all = self.distinct[part.kernels.clone()].iter();
            all.try_for_each(|k| inrush_kernel::verify(exprs, k))?;
        }
        Ok(())
    }
}

/// Runs stage tile over all steps, in parallel with `other`. Steps that differ in nothing but their buffers are tiled once.
pub fn tile<A>(
    plan: &Plan,
    caps: &Caps,
    threads: usize,
    other: impl FnOnce() -> A,
) -> Result<(Kernels, A)> {
    let mut forms = Forms::default();
    let mut of = |s| forms.instance(plan, s);
    let load_steps: Vec<Instance> = plan.load_steps.iter().map(&mut of).collect();
    let steps: Vec<Instance> = plan.steps.iter().map(&mut of).collect();

    let weight = |s: &&Step| s.bodies().iter().map(|b| b.stmts.len()).sum();
    let mut weights: Vec<usize> = forms.steps.iter().map(weight).collect();
    if let Some(first) = weights.first_mut() {
        *first += aside(plan);
    }
    let runs = shares(&weights, threads, LEAST);
    let own = &plan.loops.exprs;
    let rest = runs[1..]
        .iter()
        .map(|r| (own.fork(), &forms.steps[r.clone()]));
    let (buffers, origins) = (&plan.loops.buffers, &plan.loops.origins);
    let tile = |exprs: &Exprs, steps: &[&Step]| -> Result<Vec<Kernel>> {
        let tables = Tables {
            exprs,
            buffers,
            origins,
        };
        let one = |s: &&Step| tile_step(tables, s, caps);
        steps.iter().map(one).collect()
    };
    let mut done = None;
    let made = side_by_side(
        || {
            done = Some(other());
            (tile(own, &forms.steps[runs[0].clone()]), None)
        },
        rest.collect(),
        |(fork, steps)| (tile(&fork, steps), Some(fork)),
    );
    let mut out = Kernels {
        distinct: Vec::with_capacity(forms.steps.len()),
        numbers: Vec::with_capacity(forms.steps.len()),
        load_steps,
        steps,
        parts: Vec::with_capacity(runs.len()),
    };
    for (kernels, (made, fork)) in runs.into_iter().zip(made) {
        let made = made?;
        let mut import = fork.as_ref().map(|f| Import::new(own, f));
        let mut here = |e| import.as_mut().map_or(e, |i| i.expr(e));
        out.numbers.extend(made.iter().map(|k| Numbers {
            sizes: k.sizes.iter().map(|p| here(p.value)).collect(),
            units: here(k.units),
            cost_per_unit: here(k.cost_per_unit),
            scratch_bytes: k.scratch_bytes.map(&mut here),
            // Its stores are in the words of the arena that it was made in.
            serial: units_meet(fork.as_ref().unwrap_or(own), k),
        }));
        out.distinct.extend(made);
        let fork = fork.map(Mutex::new);
        out.parts.push(Part { kernels, fork });
    }
    // From the buffers of a form to those that its kernel takes.
    let mut places: Vec<Vec<usize>> = Vec::with_capacity(out.distinct.len());
    for (k, form) in out.distinct.iter().zip(&forms.buffers) {
        let place = |b: BufId| form.iter().position(|x| *x == b);
        let all: Option<Vec<usize>> = k.arguments().map(|(_, b)| place(b.buf)).collect();
        places.push(all.ok_or_else(|| {
            Error::internal("a kernel takes a buffer that its step does not touch")
        })?);
    }
    let all = out.load_steps.iter_mut().chain(&mut out.steps);
    for i in all.filter(|i| i.kernel != NO_KERNEL) {
        let places = &places[i.kernel as usize];
        i.buffers = places.iter().map(|p| i.buffers[*p]).collect();
    }
    Ok((out, done.expect("this thread does it first")))
}

/// The distinct forms of steps.
#[derive(Default)]
struct Forms<'a> {
    /// Fingerprints by number of the form.
    words: Vec<Vec<u64>>,
    /// Positions in `words`.
    known: Lookup,
    /// The first step of each, and its buffers by order of appearance.
    steps: Vec<&'a Step>,
    buffers: Vec<Vec<BufId>>,
    /// Where a step is written down: most have the form of an earlier one, so that nothing is to be kept.
    form: Form,
}

impl<'a> Forms<'a> {
    /// Returns the number of a step's form, and the buffers of the step by order of appearance.
    fn instance(&mut self, plan: &Plan, step: &'a Step) -> Instance {
        if matches!(step, Step::Library(_)) {
            return Instance {
                kernel: NO_KERNEL,
                buffers: Vec::new(),
            };
        }
        same::form(&plan.loops, step, &mut self.form);
        let Form { words, buffers } = &self.form;
        let buffers = buffers.clone();
        let kernel = match self.known.find(words, |k| self.words[k] == *words) {
            Ok(kernel) => kernel,
            Err(place) => {
                let kernel = self.words.len();
                self.known.insert(place, kernel);
                self.words.push(words.clone());
                self.steps.push(step);
                self.buffers.push(buffers.clone());
                kernel
            }
        };
        Instance {
            kernel: kernel as u32,
            buffers,
        }
    }
}

/// The distinct kernels as text.
pub fn show(plan: &Plan, kernels: &Kernels, caps: &Caps) -> String {
    let exprs = &plan.loops.exprs;
    if kernels.parts.len() == 1 {
        return inrush_kernel::text::print_all(exprs, &kernels.distinct);
    }
    // Kernels of one arena are printed with one list of symbols.
    match tile(plan, caps, 1, || ()) {
        Ok((all, ())) => inrush_kernel::text::print_all(exprs, &all.distinct),
        Err(e) => e.to_string(),
    }
}

/// Runs stage emit in parallel with `other`: C source, equal functions once.
pub fn emit<A>(
    plan: &Plan,
    kernels: &Kernels,
    caps: &Caps,
    other: impl FnOnce() -> A,
) -> Result<(Functions, A)> {
    let emit = |exprs: &Exprs, part: &Part| -> Result<Vec<Function>> {
        let mut writer = inrush_c::Writer::new(caps);
        let all = kernels.distinct[part.kernels.clone()].iter();
        all.map(|k| writer.function(exprs, k)).collect()
    };
    let parts = &kernels.parts;
    let rest = parts[1..]
        .iter()
        .filter_map(|p| Some((p.fork.as_ref()?, p)));
    let mut done = None;
    let emitted = side_by_side(
        || {
            done = Some(other());
            emit(&plan.loops.exprs, &parts[0])
        },
        rest.collect(),
        |(fork, part)| emit(&fork.lock().unwrap_or_else(PoisonError::into_inner), part),
    );
    let mut functions: Vec<Function> = Vec::new();
    let mut by_name: FxHashMap<String, u32> = FxHashMap::default();
    let mut of_kernel = Vec::with_capacity(kernels.distinct.len());
    for part in emitted {
        for function in part? {
            let next = functions.len() as u32;
            let at = *by_name.entry(function.name.clone()).or_insert_with(|| {
                functions.push(function);
                next
            });
            of_kernel.push(at);
        }
    }
    let functions = Functions {
        functions,
        of_kernel,
    };
    Ok((functions, done.expect("this thread does it first")))
}

/// Spreads functions over translation units of similar length: longest first into the shortest
/// piece (Graham's rule, at most 4/3 of the best makespan). Within a piece functions keep their
/// order.
pub fn spread(functions: &[Function], pieces: usize) -> Vec<String> {
    let pieces = pieces.min(functions.len()).max(1);
    let mut order: Vec<usize> = (0..functions.len()).collect();
    // Ties go by position, here and below: equal inputs have to give equal bytes.
    order.sort_by_key(|i| (std::cmp::Reverse(functions[*i].text.len()), *i));
    let mut lengths = vec![0; pieces];
    let mut piece_of = vec![0; functions.len()];
    for i in order {
        let p = (0..pieces).min_by_key(|p| (lengths[*p], *p)).unwrap_or(0);
        lengths[p] += functions[i].text.len();
        piece_of[i] = p;
    }
    (0..pieces)
        .map(|p| {
            inrush_c::unit(
                functions
                    .iter()
                    .zip(&piece_of)
                    .filter(|(_, q)| **q == p)
                    .map(|(f, _)| f),
            )
        })
        .collect()
}
