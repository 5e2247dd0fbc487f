//! Stages tile and emit for GPUs: the distinct kernels of a plan as Triton source.
//!
//! Stage tile has three passes:
//!
//! 1. Each distinct step becomes a block program with the tile that the rules choose. With a tuner
//!    the neighbours of that tile are measured.
//! 2. Independent steps are fused horizontally: one launch runs the programs of all.
//! 3. Flat parts of one launch get the largest of their tiles, since parts of one tile size can
//!    share their code.
//!
//! ```text
//! steps            s0  s1  s2  s3        s1 and s2 are independent
//! block programs   b0  b1  b1  b2        s1 and s2 differ in their buffers
//! launches         [s0] [s1, s2] [s3]
//! ```
//!
//! Stage emit writes a launch of one step as a kernel of its own, and a longer one as a kernel that
//! branches on the program's number.

use crate::functions::Instance;
use crate::same;
use crate::tune::{self, Candidate, TunedBuffer, Tuner};
use inrush_base::{Caps, Error, Result};
use inrush_kernel::block::{
    self, Block, Context, Piece, Pointers, Tile, block_attention, block_contraction, block_with,
    fuse_horizontally,
};
use inrush_loops::{BufId, Loops};
use inrush_program::GpuKernel;
use inrush_sched::{Form, Plan, Step};
use inrush_triton::TritonKernel;
use rustc_hash::{FxHashMap, FxHasher};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::{Hash, Hasher};

/// The distinct block programs of a plan, which of them each step runs, and which steps share a launch.
pub struct Blocks {
    /// In the order of their making. Those that a larger tile replaced are no longer run.
    pub distinct: Vec<Block>,
    pub load_steps: Vec<Instance>,
    pub steps: Vec<Instance>,
    /// Positions among the steps; lists in the order of the launches.
    pub launches: Vec<Vec<usize>>,
}

impl Blocks {
    /// All launches in order, those at load first; a load step has one of its own.
    pub fn pieces(&self) -> Vec<Vec<Piece<'_>>> {
        let load = self.load_steps.iter().map(|i| vec![self.piece(i)]);
        let steps =
            (self.launches.iter()).map(|l| l.iter().map(|s| self.piece(&self.steps[*s])).collect());
        load.chain(steps).collect()
    }

    fn piece<'b>(&'b self, i: &'b Instance) -> Piece<'b> {
        Piece {
            block: &self.distinct[i.kernel as usize],
            buffers: &i.buffers,
        }
    }

    /// The block programs that launches run, by their numbers in the text.
    fn used(&self) -> Vec<u32> {
        let mut out = Vec::new();
        for i in self.load_steps.iter().chain(&self.steps) {
            if !out.contains(&i.kernel) {
                out.push(i.kernel);
            }
        }
        out
    }

    /// Prints the distinct block programs under their numbers, and as comments what each launch runs.
    pub fn print(&self, plan: &Plan) -> String {
        let used = self.used();
        let exprs = &plan.loops.exprs;
        let mut out = block::text::print_all(exprs, []);
        for (number, k) in used.iter().enumerate() {
            if used.len() > 1 {
                out.push_str(&format!(";; block {number}\n"));
            }
            out.push_str(&block::text::print(exprs, &self.distinct[*k as usize]));
        }
        let part = |i: &Instance| {
            let number = used.iter().position(|k| *k == i.kernel).unwrap_or(0);
            format!("block {number} with {}", list(&i.buffers))
        };
        for i in &self.load_steps {
            out.push_str(&format!(";; at load: {}\n", part(i)));
        }
        for launch in &self.launches {
            let parts: Vec<String> = launch.iter().map(|s| part(&self.steps[*s])).collect();
            out.push_str(&format!(";; launch: {}\n", parts.join("; ")));
        }
        out
    }

    /// Checks every block program and every launch.
    pub fn verify(&self, plan: &Plan) -> Result<()> {
        let (tables, storages) = (plan.loops.tables(), plan.storages());
        for b in &self.distinct {
            block::verify(tables.exprs, b, Some(tables), &storages)?;
        }
        let regions = plan.regions();
        let overlap = |a: BufId, b: BufId| regions.overlap(a, b);
        (self.pieces().iter()).try_for_each(|l| block::verify_launch(l, &overlap))
    }
}

/// The distinct kernels, with their arguments in the terms of the plan.
pub struct GpuKernels {
    pub kernels: Vec<GpuKernel>,
    /// By kernel: arguments and number of programs, as expressions of the plan.
    pub emitted: Vec<TritonKernel>,
    pub load_steps: Vec<Launched>,
    /// In the order of the launches.
    pub steps: Vec<Launched>,
}

/// A launch, and the steps that it does.
pub struct Launched {
    /// The kernel, and the buffers that it takes.
    pub instance: Instance,
    /// Positions among the plan's steps; several for a joined launch.
    pub steps: Vec<usize>,
}

/// Tiles steps; those that differ in nothing but their buffers once.
struct Tiler<'a, 't> {
    plan: &'a Plan,
    pointers: Pointers,
    tuner: Option<&'t mut dyn Tuner>,
    context: Context<'a>,
    distinct: Vec<Block>,
    /// By form and demanded tile: the block, and for each of its buffers the place among the buffers of the form.
    known: FxHashMap<(Vec<u64>, Option<Tile>), Known>,
}

type Known = (u32, Vec<usize>);

impl Tiler<'_, '_> {
    /// Tiles a step, unless one of its form is known. `tile` overrides the rules' choice and
    /// tuning.
    fn step(&mut self, step: &Step, tile: Option<Tile>) -> Result<Instance> {
        let plan = self.plan;
        let loops = &plan.loops;
        let storage = self.context.storage;
        let mut form = Form::default();
        same::form(loops, step, &mut form);
        // Storages that the memory plan puts in the place of others, beyond aliases: a block
        // program that reads and writes one place orders its accesses, so steps that share
        // otherwise differ.
        for b in &form.buffers {
            let s = storage[b.index()];
            let at = form.buffers.iter().position(|x| storage[x.index()] == s);
            form.words.push(at.unwrap_or(usize::MAX) as u64);
        }
        let key = (form.words, tile);
        if let Some((kernel, places)) = self.known.get(&key) {
            return Ok(Instance {
                kernel: *kernel,
                buffers: places.iter().map(|p| form.buffers[*p]).collect(),
            });
        }
        let mut made = self.block(step, tile)?;
        // The tuner is taken out meanwhile: making candidates borrows this.
        if let (None, Some(rule), Some(tuner)) = (tile, made.chosen, self.tuner.take()) {
            let caps = self.context.caps;
            let mut make = |t: Tile| candidate(loops, &self.block(step, Some(t)).ok()?, caps, t);
            let best = tune::descend(tuner, rule, &mut make);
            if best != rule {
                made = self.block(step, Some(best))?;
            }
            self.tuner = Some(tuner);
        }
        let buffers: Vec<BufId> = made.buffers.iter().map(|b| b.buf).collect();
        let places: Option<Vec<usize>> = (buffers.iter())
            .map(|b| form.buffers.iter().position(|x| x == b))
            .collect();
        let kernel = self.distinct.len() as u32;
        self.distinct.push(made);
        if let Some(places) = places {
            self.known.insert(key, (kernel, places));
        }
        Ok(Instance { kernel, buffers })
    }

    /// Builds the block program of a step.
    fn block(&self, step: &Step, tile: Option<Tile>) -> Result<Block> {
        let loops = &self.plan.loops;
        let pointers = self.pointers;
        let maps = (self.context.caps.gpu.as_ref()).is_some_and(|g| g.tensor_maps);
        let choose = |rule: Tile| {
            let mut chosen = tile.unwrap_or(Tile { pointers, ..rule });
            // A device without tensor maps builds descriptors in the kernel instead.
            if chosen.pointers == Pointers::Map && !maps {
                chosen.pointers = Pointers::Descriptor;
            }
            chosen
        };
        let tuned = |rule: Tile| tile.unwrap_or(rule);
        match step {
            Step::Kernel(g) => {
                let (axes, bodies, locals) = (&g.axes, &g.bodies, &g.locals);
                block_with(loops.tables(), axes, bodies, locals, &self.context, &choose)
            }
            Step::Contraction(c) => {
                block_contraction(loops.tables(), c, &self.context, pointers, &tuned)
            }
            Step::Attention(a) => block_attention(loops.tables(), a, &self.context, &tuned),
            Step::Library(c) => Err(Error::unsupported(format!(
                "the library function `{}`, which runs on CPUs only",
                c.function
            ))),
        }
    }

    fn pieces<'b>(&'b self, steps: &'b [Instance]) -> Vec<Piece<'b>> {
        (steps.iter())
            .map(|i| Piece {
                block: &self.distinct[i.kernel as usize],
                buffers: &i.buffers,
            })
            .collect()
    }
}

/// Returns a block as a kernel to be measured, with sizes at their hints; `None` where it cannot be
/// launched by itself.
fn candidate(loops: &Loops, block: &Block, caps: &Caps, tile: Tile) -> Option<Candidate> {
    let ex = &loops.exprs;
    let made = inrush_triton::emit(loops, block, caps, &|_| true).ok()?;
    let buffers = (made.arguments.iter())
        .filter_map(|a| a.buffer())
        .map(|(buf, written)| {
            let b = loops.buffer(buf);
            let layout = b.layout.as_ref()?;
            // The last element's offset. Extents are products of hints, so each step is checked for
            // overflow.
            let mut last = ex.hint(layout.offset);
            for (n, s) in b.sizes.iter().zip(&layout.strides) {
                let steps = ex.hint(*n).saturating_sub(1).max(0);
                last = steps.checked_mul(ex.hint(*s))?.checked_add(last)?;
            }
            let bytes = last.checked_add(1)?.checked_mul(b.dtype.size() as i64)?;
            Some(TunedBuffer {
                buf,
                bytes,
                dtype: b.dtype,
                written,
            })
        })
        .collect::<Option<Vec<_>>>()?;
    let numbers = made.arguments.iter().flat_map(|a| a.numbers());
    Some(Candidate {
        tile,
        of: block.tile_of(),
        by_values: (block.attention.as_ref()).is_some_and(|a| a.blocks.is_some()),
        programs: ex.hint(made.programs),
        kernel: kernel(&made),
        buffers,
        sizes: numbers.map(|e| ex.hint(*e)).collect(),
    })
}

/// Runs stage tile. With a tuner tiles are measured.
pub fn tile(
    plan: &Plan,
    caps: &Caps,
    pointers: Pointers,
    tuner: Option<&mut dyn Tuner>,
) -> Result<Blocks> {
    let storage = plan.storages();
    let context = Context {
        caps,
        storage: &storage,
    };
    let mut tiler = Tiler {
        plan,
        // What runs once is not worth scratch memory.
        pointers: Pointers::Plain,
        tuner,
        context,
        distinct: Vec::new(),
        known: FxHashMap::default(),
    };
    let load_steps = (plan.load_steps.iter())
        .map(|s| tiler.step(s, None))
        .collect::<Result<_>>()?;
    tiler.pointers = pointers;
    let mut steps = (plan.steps.iter())
        .map(|s| tiler.step(s, None))
        .collect::<Result<Vec<_>>>()?;
    let regions = plan.regions();
    let units = (caps.gpu.as_ref()).map_or(1, |g| g.multiprocessors as i64);
    let overlap = |a: BufId, b: BufId| regions.overlap(a, b);
    let launches = fuse_horizontally(plan.loops.tables(), &tiler.pieces(&steps), &overlap, units);
    for group in &launches {
        // Flat parts of one size of tile can share their code.
        let flat: Vec<(usize, Tile)> = (group.iter())
            .filter_map(|s| {
                let block = &tiler.distinct[steps[*s].kernel as usize];
                Some((*s, block.chosen.filter(|_| block.is_flat())?))
            })
            .collect();
        let Some(largest) = flat.iter().map(|f| f.1).max_by_key(|t| t.x) else {
            continue;
        };
        for (s, tile) in flat {
            if tile != largest {
                steps[s] = tiler.step(&plan.steps[s], Some(largest))?;
            }
        }
    }
    Ok(Blocks {
        distinct: tiler.distinct,
        load_steps,
        steps,
        launches,
    })
}

/// Runs stage emit. Instances pass on the buffers that the source takes.
pub fn emit(plan: &Plan, blocks: &Blocks, caps: &Caps) -> Result<GpuKernels> {
    let mut emitter = Emitter {
        plan,
        caps,
        distinct: &blocks.distinct,
        alone: FxHashMap::default(),
        symbols: FxHashMap::default(),
        kernels: Vec::new(),
        emitted: Vec::new(),
    };
    let load_steps = (blocks.load_steps.iter().enumerate())
        .map(|(k, i)| emitter.one(k, i))
        .collect::<Result<_>>()?;
    let steps = (blocks.launches.iter())
        .map(|group| match group.as_slice() {
            [k] => emitter.one(*k, &blocks.steps[*k]),
            group => emitter.several(group, &blocks.steps),
        })
        .collect::<Result<_>>()?;
    Ok(GpuKernels {
        kernels: emitter.kernels,
        emitted: emitter.emitted,
        load_steps,
        steps,
    })
}

struct Emitter<'a> {
    plan: &'a Plan,
    caps: &'a Caps,
    distinct: &'a [Block],
    /// By block: the kernel, and which of the block's buffers it takes.
    alone: FxHashMap<u32, (u32, Vec<usize>)>,
    /// Kernels by symbol: launches of several parts may give equal text.
    symbols: FxHashMap<String, u32>,
    kernels: Vec<GpuKernel>,
    emitted: Vec<TritonKernel>,
}

impl Emitter<'_> {
    /// Emits a launch of one step; the kernel of a block is written once.
    fn one(&mut self, step: usize, i: &Instance) -> Result<Launched> {
        if !self.alone.contains_key(&i.kernel) {
            let b = &self.distinct[i.kernel as usize];
            // Executors hand over addresses that are multiples of 16.
            let k = inrush_triton::emit(&self.plan.loops, b, self.caps, &|_| true)?;
            let places = (k.arguments.iter())
                .filter_map(|a| a.buffer())
                .filter_map(|(buf, _)| b.buffers.iter().position(|x| x.buf == buf))
                .collect();
            let at = self.kernels.len() as u32;
            self.kernels.push(kernel(&k));
            self.emitted.push(k);
            self.alone.insert(i.kernel, (at, places));
        }
        let (kernel, places) = &self.alone[&i.kernel];
        Ok(Launched {
            instance: Instance {
                kernel: *kernel,
                buffers: places.iter().map(|p| i.buffers[*p]).collect(),
            },
            steps: vec![step],
        })
    }

    /// Emits a joined launch. Its kernel depends on all parts and on which buffers they share, so
    /// equal text is found only when it is written.
    fn several(&mut self, group: &[usize], steps: &[Instance]) -> Result<Launched> {
        let pieces: Vec<Piece> = (group.iter())
            .map(|s| Piece {
                block: &self.distinct[steps[*s].kernel as usize],
                buffers: &steps[*s].buffers,
            })
            .collect();
        let k = inrush_triton::emit_concurrent(&self.plan.loops, &pieces, self.caps, &|_| true)?;
        let buffers = (k.arguments.iter())
            .filter_map(|a| a.buffer().map(|b| b.0))
            .collect();
        let made = kernel(&k);
        let next = self.kernels.len() as u32;
        let at = *self.symbols.entry(made.symbol.clone()).or_insert(next);
        if at == next {
            self.kernels.push(made);
            self.emitted.push(k);
        }
        Ok(Launched {
            instance: Instance {
                kernel: at,
                buffers,
            },
            steps: group.to_vec(),
        })
    }
}

/// Everything that a build and a launch need. The symbol says all that the name, a digest of the text, does not.
fn kernel(k: &TritonKernel) -> GpuKernel {
    let divisible: Vec<usize> = (k.arguments.iter().enumerate())
        .filter(|(_, a)| a.divisible)
        .map(|(i, _)| i)
        .collect();
    let mut rest = FxHasher::default();
    (&k.constants, &divisible, k.warps, k.stages, k.asserts).hash(&mut rest);
    for a in &k.arguments {
        (&a.name, &a.ty).hash(&mut rest);
    }
    let symbol = format!("{}_{:016x}", k.name, rest.finish());
    GpuKernel {
        symbol,
        text: k.source.clone(),
        function: k.name.clone(),
        signature: (k.arguments.iter())
            .map(|a| (a.name.clone(), a.ty.clone()))
            .collect(),
        constants: (k.constants.iter())
            .map(|(n, v)| (n.to_string(), *v))
            .collect(),
        divisible,
        warps: k.warps,
        stages: k.stages,
        debug: k.asserts,
        programmatic: k.programmatic,
    }
}

/// Tuning for when there is memory to tune on: the kernels of a plan that have launches of their own, each with a step that it
/// came from.
#[derive(Clone, Debug)]
pub struct Retile {
    plan: Plan,
    caps: Caps,
    pointers: Pointers,
    steps: FxHashMap<String, usize>,
    /// By kernel of the plan: its symbol, and one of its steps.
    kernels: Vec<(String, usize)>,
}

impl Retile {
    pub(crate) fn of(plan: &Plan, caps: &Caps, pointers: Pointers, kernels: &GpuKernels) -> Retile {
        let lone = kernels.steps.iter().filter(|l| l.steps.len() == 1);
        let symbol = |l: &Launched| kernels.kernels[l.instance.kernel as usize].symbol.clone();
        Retile {
            plan: plan.clone(),
            caps: caps.clone(),
            pointers,
            steps: lone.clone().map(|l| (symbol(l), l.steps[0])).collect(),
            kernels: {
                let by_kernel = lone.map(|l| (l.instance.kernel, (symbol(l), l.steps[0])));
                by_kernel
                    .collect::<BTreeMap<_, _>>()
                    .into_values()
                    .collect()
            },
        }
    }

    /// Returns by symbol the kernels of neighbouring tiles that take the launches of the rules' choice: the same arguments, and as
    /// many programs. Equal text may come from several steps, whose launches all must fit.
    pub fn alternatives(&self) -> BTreeMap<String, Vec<GpuKernel>> {
        let mut all: BTreeMap<String, Vec<GpuKernel>> = BTreeMap::new();
        for (symbol, step) in &self.kernels {
            let found = self.alternatives_of(*step);
            match all.entry(symbol.clone()) {
                Entry::Vacant(e) => _ = e.insert(found),
                Entry::Occupied(mut e) => e.get_mut().retain(|k| found.contains(k)),
            }
        }
        all
    }

    fn alternatives_of(&self, step: usize) -> Vec<GpuKernel> {
        let (plan, step) = (&self.plan, &self.plan.steps[step]);
        let storage = plan.storages();
        let tiler = self.tiler(&storage);
        let emit = |t: Option<Tile>| {
            let block = tiler.block(step, t).ok()?;
            let made = inrush_triton::emit(&plan.loops, &block, &self.caps, &|_| true).ok()?;
            Some((block.chosen, block.tile_of(), made))
        };
        let Some((Some(rule), of, chosen)) = emit(None) else {
            return Vec::new();
        };
        let mut found = vec![kernel(&chosen)];
        for tile in rule.neighbours(of) {
            let same = (tile.x, tile.y, tile.pointers) == (rule.x, rule.y, rule.pointers);
            let Some((_, _, made)) = same.then(|| emit(Some(tile))).flatten() else {
                continue;
            };
            let fits = made.arguments == chosen.arguments && made.programs == chosen.programs;
            let made = kernel(&made);
            if fits && !found.contains(&made) {
                found.push(made);
            }
        }
        found.remove(0);
        found
    }

    /// Returns what makes the blocks of tiles.
    fn tiler<'a>(&'a self, storage: &'a [BufId]) -> Tiler<'a, 'a> {
        Tiler {
            plan: &self.plan,
            pointers: self.pointers,
            tuner: None,
            context: Context {
                caps: &self.caps,
                storage,
            },
            distinct: Vec::new(),
            known: FxHashMap::default(),
        }
    }

    /// Tunes the kernel of a symbol; false where it is none of this plan's.
    pub fn tune(&self, symbol: &str, tuner: &mut dyn Tuner) -> bool {
        let Some(step) = self.steps.get(symbol) else {
            return false;
        };
        let (plan, step) = (&self.plan, &self.plan.steps[*step]);
        let storage = plan.storages();
        let tiler = self.tiler(&storage);
        let rule = tiler.block(step, None).ok().and_then(|b| b.chosen);
        if let Some(rule) = rule {
            let mut make = |t: Tile| {
                let block = tiler.block(step, Some(t)).ok()?;
                candidate(&plan.loops, &block, &self.caps, t)
            };
            tune::descend(tuner, rule, &mut make);
        }
        true
    }
}

/// Prints the kernels' sources under their numbers and constants, and as comments what each launch runs.
pub fn show(plan: &Plan, kernels: &GpuKernels) -> String {
    let ex = &plan.loops.exprs;
    let many = |n: u32, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let mut out = String::new();
    for (number, (k, made)) in kernels.kernels.iter().zip(&kernels.emitted).enumerate() {
        let constants: String = (k.constants.iter())
            .map(|(name, value)| format!("{name}={value}, "))
            .collect();
        let (warps, stages) = (many(k.warps, "warp"), many(k.stages, "stage"));
        let programs = ex.show(made.programs);
        out.push_str(&format!(
            "# kernel {number}: {constants}{warps}, {stages}, programs {programs}\n"
        ));
        out.push_str(k.text.trim_start_matches('\n').trim_end());
        out.push_str("\n\n\n");
    }
    let launches = (kernels.load_steps.iter().map(|l| ("at load", l)))
        .chain(kernels.steps.iter().map(|l| ("launch", l)));
    for (when, l) in launches {
        let (kernel, buffers) = (l.instance.kernel, list(&l.instance.buffers));
        out.push_str(&format!("# {when}: kernel {kernel} with {buffers}\n"));
    }
    out
}

/// `b0, b1`.
fn list(buffers: &[BufId]) -> String {
    let names: Vec<String> = buffers.iter().map(|b| b.to_string()).collect();
    names.join(", ")
}
