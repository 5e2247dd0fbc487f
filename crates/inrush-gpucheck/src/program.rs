//! One program: its kernels, its storages, its steps.
//!
//! For each program that is scheduled for the GPU this writes:
//!
//! ```text
//! kernels/NAME.py    a Python module for each distinct kernel
//! data/..            storages before the call, expected outputs of the loop interpreter
//! index.json         arguments of kernels, grids of launches, names of the files
//! ```
//!
//! A program can be written in several forms: with joined launches, with other tiles than the rules
//! chose, with other kinds of pointers. Each form is an entry of its own with a suffix in its name.

use crate::run::Run;
use inrush_base::{Caps, Error, Result};
use inrush_interp::{LoopsOptions, Tensor, Value};
use inrush_kernel::block::{
    Block, Context, Piece, Pointers, Tile, TileOf, block_attention, block_contraction, block_with,
    fuse_horizontally,
};
use inrush_loops::{BufId, Loops};
use inrush_sched::{Plan, Step};
use inrush_triton::{TritonKernel, emit_concurrent};
use safetensors::tensor::TensorView;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Inputs of a program.
pub struct Given {
    /// The user's inputs by position.
    pub inputs: Vec<Value>,
    /// Weights by fully qualified name.
    pub weights: BTreeMap<String, Tensor>,
    /// Values of symbolic sizes by name.
    pub symbols: BTreeMap<String, i64>,
}

/// Kernels in order, with the tiles that were chosen.
type Steps = Vec<(Option<(TileOf, Tile)>, TritonKernel)>;

/// Writes programs into a folder.
pub struct Writer {
    folder: PathBuf,
    caps: Caps,
    /// Distinct kernels by id, over all programs.
    kernels: BTreeMap<String, Json>,
    /// Entries of the index, in order.
    programs: Vec<Json>,
    /// Programs without inputs are written once for each tile near the chosen one, too: as many steps away.
    pub variants: usize,
    /// Programs are written once more with launches joined where that may be.
    pub together: bool,
    /// How strided tiles are addressed; unless plainly, only programs are written whose kernels differ by it.
    pub pointers: Pointers,
}

/// Turns an error of the file system into one of the machine.
fn io(e: std::io::Error) -> Error {
    Error::machine(e.to_string())
}

impl Writer {
    /// Makes the folders. Files of an earlier run are overwritten, not removed.
    pub fn new(folder: &Path, caps: &Caps) -> Result<Writer> {
        std::fs::create_dir_all(folder.join("kernels")).map_err(io)?;
        std::fs::create_dir_all(folder.join("data")).map_err(io)?;
        Ok(Writer {
            folder: folder.into(),
            caps: caps.clone(),
            kernels: BTreeMap::new(),
            programs: Vec::new(),
            variants: 0,
            together: false,
            pointers: Pointers::Plain,
        })
    }

    /// Returns the device that kernels are written for.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Schedules `loops` for the GPU and writes its kernels; with inputs also what running them must give.
    pub fn program(&mut self, name: &str, loops: &Loops, given: Option<&Given>) -> Result<()> {
        let plan =
            inrush_sched::schedule(loops.clone(), &self.caps, &inrush_sched::Options::default())
                .map_err(|e| e.in_stage("fuse"))?;
        let storage = plan.storages();
        if self.pointers != Pointers::Plain {
            return self.addressed(name, loops, &plan, &storage, given);
        }
        let (steps, refused) = self.kernels(&plan, &storage, false, &|_, _, t| t)?;
        let launches = steps.len();
        self.entry(name, loops, &plan, &storage, &steps, refused, given)?;
        if self.together && launches > 1 {
            let (joined, refused) = self.kernels(&plan, &storage, true, &|_, _, t| t)?;
            if joined.len() < launches {
                let name = format!("{name}, together");
                self.entry(&name, loops, &plan, &storage, &joined, refused, given)?;
            }
        }
        if self.variants == 0 {
            return Ok(());
        }
        // Short kernels are not worth it.
        let ex = &plan.loops.exprs;
        // Elements that a launch covers.
        let work = |(tile, k): &(Option<(TileOf, Tile)>, TritonKernel)| {
            tile.map_or(0, |(_, t)| ex.hint(k.programs) * t.x * t.y * t.r)
        };
        let most = steps.iter().map(work).max().unwrap_or(0);
        // One kernel is varied at a time: all combinations would be too many.
        for (k, step) in steps.iter().enumerate() {
            let Some((of, tile)) = step.0.filter(|_| 8 * work(step) >= most) else {
                continue;
            };
            // All tiles that are at most so many steps away from the chosen one.
            let mut near = vec![tile];
            for _ in 0..self.variants {
                let next: Vec<Tile> = near.iter().flat_map(|t| t.neighbours(of)).collect();
                for t in next {
                    if !near.contains(&t) {
                        near.push(t);
                    }
                }
            }
            for other in near.into_iter().skip(1) {
                let change = |step: usize, _: TileOf, t: Tile| if step == k { other } else { t };
                let (made, refused) = self.kernels(&plan, &storage, false, &change)?;
                if refused.is_empty() {
                    let name = format!("{name}@{k}:{other}");
                    self.entry(&name, loops, &plan, &storage, &made, refused, given)?;
                }
            }
        }
        Ok(())
    }

    /// The program with the pointers that were asked for, if any of its kernels has them.
    fn addressed(
        &mut self,
        name: &str,
        loops: &Loops,
        plan: &Plan,
        storage: &[BufId],
        given: Option<&Given>,
    ) -> Result<()> {
        let pointers = self.pointers;
        let change = |_: usize, of: TileOf, t: Tile| match of {
            TileOf::Loops => Tile { pointers, ..t },
            TileOf::Product | TileOf::Attention => t,
        };
        // Taken back if no kernel has such pointers: it would only repeat what is there.
        let known = self.kernels.clone();
        let (steps, refused) = self.kernels(plan, storage, false, &change)?;
        let makes = |(_, k): &(Option<(TileOf, Tile)>, TritonKernel)| {
            k.source.contains("make_block_ptr(")
                || k.source.contains("make_tensor_descriptor(")
                || k.arguments.iter().any(|a| a.ty.starts_with("tensordesc"))
        };
        if !steps.iter().any(makes) {
            self.kernels = known;
            return Ok(());
        }
        let name = format!("{name}, {}", pointers.name());
        self.entry(&name, loops, plan, storage, &steps, refused, given)
    }

    /// The kernels of a plan with their tiles, and what is refused.
    fn kernels(
        &mut self,
        plan: &Plan,
        storage: &[BufId],
        join: bool,
        choose: &dyn Fn(usize, TileOf, Tile) -> Tile,
    ) -> Result<(Steps, Vec<String>)> {
        let caps = self.caps.clone();
        let context = Context {
            caps: &caps,
            storage,
        };
        let mut steps = Vec::new();
        let mut refused = Vec::new();
        let mut blocks: Vec<Block> = Vec::new();
        for (k, step) in plan.load_steps.iter().chain(&plan.steps).enumerate() {
            let one = |t: Tile| choose(k, TileOf::Loops, t);
            let product = |t: Tile| choose(k, TileOf::Product, t);
            let attention = |t: Tile| choose(k, TileOf::Attention, t);
            let made: Result<Block> = match step {
                Step::Kernel(g) => block_with(
                    plan.loops.tables(),
                    &g.axes,
                    &g.bodies,
                    &g.locals,
                    &context,
                    &one,
                ),
                Step::Contraction(c) => {
                    block_contraction(plan.loops.tables(), c, &context, self.pointers, &product)
                }
                Step::Attention(a) => block_attention(plan.loops.tables(), a, &context, &attention),
                Step::Library(_) => Err(Error::unsupported("a library function on a GPU")),
            };
            match made.map_err(|e| e.in_stage("tile")) {
                Ok(b) => blocks.push(b),
                Err(e) => refused.push(e.to_string()),
            }
        }
        let buffers: Vec<Vec<BufId>> = (blocks.iter())
            .map(|b| b.buffers.iter().map(|k| k.buf).collect())
            .collect();
        let pieces: Vec<Piece> = (blocks.iter().zip(&buffers))
            .map(|(block, buffers)| Piece { block, buffers })
            .collect();
        // Without joining, each step is a launch of its own.
        let launches = if join {
            let regions = plan.regions();
            let overlap = |a: BufId, b: BufId| regions.overlap(a, b);
            let units = caps.gpu.as_ref().map_or(1, |g| g.multiprocessors as i64);
            fuse_horizontally(plan.loops.tables(), &pieces, &overlap, units)
        } else {
            (0..pieces.len()).map(|k| vec![k]).collect()
        };
        for group in launches {
            let made = match group.as_slice() {
                [k] => inrush_triton::emit(&plan.loops, &blocks[*k], &caps, &|_| true),
                group => {
                    let group: Vec<Piece> = group.iter().map(|k| pieces[*k]).collect();
                    emit_concurrent(&plan.loops, &group, &caps, &|_| true)
                }
            };
            match made.map_err(|e| e.in_stage("emit")) {
                Ok(k) => {
                    self.kernel(&k)?;
                    let first = &blocks[group[0]];
                    steps.push((first.chosen.map(|t| (first.tile_of(), t)), k));
                }
                Err(e) => refused.push(e.to_string()),
            }
        }
        Ok((steps, refused))
    }

    /// Notes a program.
    #[allow(clippy::too_many_arguments)]
    fn entry(
        &mut self,
        name: &str,
        loops: &Loops,
        plan: &Plan,
        storage: &[BufId],
        steps: &Steps,
        refused: Vec<String>,
        given: Option<&Given>,
    ) -> Result<()> {
        let mut entry = json!({
            "name": name,
            "kernels": steps.iter().map(|(_, k)| id(k)).collect::<Vec<_>>(),
            "refused": refused,
        });
        if refused.is_empty() {
            let run = self.run(name, loops, plan, storage, steps, given);
            match (run, given) {
                (Ok(run), _) => entry["run"] = run,
                (Err(e), Some(_)) => return Err(e),
                // Without inputs nothing says how large symbolic sizes are.
                (Err(_), None) => {}
            }
        }
        self.programs.push(entry);
        Ok(())
    }

    /// Notes a program that cannot be written.
    pub fn failed(&mut self, name: &str, error: &Error) {
        let entry = json!({"name": name, "kernels": [], "refused": [error.to_string()]});
        self.programs.push(entry);
    }

    /// Returns the programs that were refused so far, with the reasons.
    pub fn refusals(&self) -> Vec<(String, String)> {
        let text = |v: &Json| v.as_str().unwrap_or_default().to_string();
        let reasons = |p: &Json| p["refused"].as_array().cloned().unwrap_or_default();
        (self.programs.iter())
            .flat_map(|p| {
                let why = reasons(p);
                why.into_iter().map(|r| (text(&p["name"]), text(&r)))
            })
            .collect()
    }

    /// Writes the index. Returns the numbers of programs and of distinct kernels.
    pub fn finish(self) -> Result<(usize, usize)> {
        let gpu = self.caps.gpu.as_ref();
        let index = json!({
            "target": self.caps.to_string(),
            "arch": gpu.map(|g| g.arch.clone()),
            "warp": gpu.map(|g| g.warp),
            "kernels": self.kernels,
            "programs": self.programs,
        });
        let text =
            serde_json::to_string_pretty(&index).map_err(|e| Error::internal(e.to_string()))?;
        std::fs::write(self.folder.join("index.json"), text + "\n").map_err(io)?;
        Ok((self.programs.len(), self.kernels.len()))
    }

    /// Writes a kernel's module, unless it is there.
    fn kernel(&mut self, k: &TritonKernel) -> Result<()> {
        if self.kernels.contains_key(&id(k)) {
            return Ok(());
        }
        if (self.caps.gpu.as_ref()).is_some_and(|g| k.warps * g.warp > g.max_threads) {
            return Err(Error::internal(format!(
                "{} has {} warps, more threads than a program",
                k.name, k.warps
            )));
        }
        let file = format!("kernels/{}.py", k.name);
        std::fs::write(self.folder.join(&file), &k.source).map_err(io)?;
        let arguments: Vec<Json> = (k.arguments.iter())
            .map(|a| json!({"name": a.name, "type": a.ty, "divisible": a.divisible}))
            .collect();
        let constants: BTreeMap<&str, i64> = k.constants.iter().copied().collect();
        self.kernels.insert(
            id(k),
            json!({
                "file": file,
                "function": k.name,
                "arguments": arguments,
                "constants": constants,
                "warps": k.warps,
                "stages": k.stages,
                "debug": k.asserts,
            }),
        );
        Ok(())
    }

    /// Writes the tensors of a run, and returns what running the program takes: storages, launches with arguments, outputs.
    /// Without inputs the entry says how to make random ones.
    fn run(
        &self,
        name: &str,
        loops: &Loops,
        plan: &Plan,
        storage: &[BufId],
        steps: &Steps,
        given: Option<&Given>,
    ) -> Result<Json> {
        // Expected values are summed in wide floats: the order of sums on a GPU is another.
        let exact = LoopsOptions { wide_sums: true };
        let expect = given
            .map(|g| inrush_interp::loops(loops, &g.inputs, &g.weights, &g.symbols, exact))
            .transpose()?;
        let run = Run::new(plan, storage, given)?;
        let mut storages = run.storages()?;
        let launches: Vec<Json> =
            (steps.iter().map(|(_, k)| run.launch(k))).collect::<Result<_>>()?;
        let outputs = run.outputs(expect.as_deref(), &mut storages.tensors)?;
        let mut entry = json!({
            "buffers": storages.bytes,
            "launches": launches,
            "outputs": outputs,
        });
        if given.is_none() {
            entry["random"] = Json::Array(storages.random);
            return Ok(entry);
        }
        let file = format!("data/{name}.safetensors");
        let views: Vec<(&str, TensorView)> = (storages.tensors.iter())
            .map(|(n, t)| Ok((n.as_str(), view(t)?)))
            .collect::<Result<_>>()?;
        safetensors::serialize_to_file(views, None, &self.folder.join(&file))
            .map_err(|e| Error::machine(e.to_string()))?;
        entry["data"] = file.into();
        Ok(entry)
    }
}

/// Returns the identity of a build: the code's name, the constants, the warps.
pub(crate) fn id(k: &TritonKernel) -> String {
    let mut out = k.name.clone();
    for (_, v) in &k.constants {
        out.push_str(&format!("_{v}"));
    }
    out.push_str(&format!("_w{}", k.warps));
    out
}

/// Returns a tensor as the file format takes it.
fn view(t: &Tensor) -> Result<TensorView<'_>> {
    use inrush_base::DType as D;
    use safetensors::Dtype as S;
    let dtype = match t.dtype {
        D::Bool => S::BOOL,
        D::U8 => S::U8,
        D::I8 => S::I8,
        D::U16 => S::U16,
        D::I16 => S::I16,
        D::U32 => S::U32,
        D::I32 => S::I32,
        D::U64 => S::U64,
        D::I64 => S::I64,
        D::F16 => S::F16,
        D::BF16 => S::BF16,
        D::F32 => S::F32,
        D::F64 => S::F64,
        D::F8E4M3FN => S::F8_E4M3,
        D::F8E5M2 => S::F8_E5M2,
        // The format has no name for these.
        D::F8E4M3FNUZ | D::F8E5M2FNUZ => S::U8,
        other => return Err(Error::unsupported(format!("a file with values of {other}"))),
    };
    let sizes = t.sizes.iter().map(|n| *n as usize).collect();
    TensorView::new(dtype, sizes, &t.data).map_err(|e| Error::internal(e.to_string()))
}
