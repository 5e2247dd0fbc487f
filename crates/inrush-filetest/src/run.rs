//! The `run` block: every way to evaluate the program gives the same on random inputs.
//!
//! Settings after the fence: `s0=3` (a symbol's value), `x=0..5` (range of an integer input), `ordinary` (no NaN or infinity
//! among the inputs), `seed=7`, `interpreted` (nothing is compiled), `rewritten` (the graph
//! after stage rewrite for an H100 takes part; with `libraries=products` only products are a library's), `lowered` (the interpreter of graphs, which does not know
//! every operator, takes no part), `brief` (one interpreter and one level compiled), `level=avx2` and `threads=3` (for what is
//! compiled), `offset=5` (elements before the first of each input), `whole` (floats are small whole numbers, sums are exact),
//! `x=0.5..2` (range of floats), `h100` (the block programs of this GPU are interpreted instead of compiled code). Inputs have the strides of their types. The block's text says who took part, so that none is
//! left out silently.
//!
//! Participants, first the reference that the others are compared with:
//!
//! ```text
//! graph       interpreter of graphs, from the operators' definitions
//! loops       interpreter of loops, after lowering
//! rewritten   the same, of the graph that stage rewrite gives
//! fused       the same, of the plan: fusion, splits, layouts
//! compiled    machine code of the best level; `scalar` of plain C
//! blocks      interpreter of block programs (GPUs)
//! ```
//!
//! The first participant that disagrees tells the stage at fault. Each comparison runs twice,
//! with plain inputs and with special values among them, unless the test is about sums of such
//! (`ordinary`).
//!
//! If the reference refuses (an index out of range), all must refuse for the same reason.

use crate::Block;
use crate::blocks::Tiled;
use crate::compiled::{self, Compiled};
use crate::random::{Fill, Random};
use crate::stages::{Program, Setup};
use inrush_base::{Caps, DType, Error, Isa, Result, Scalar};
use inrush_compile::Libraries;
use inrush_graph::{Graph, InputKind, Type};
use inrush_interp::{LoopsOptions, Tensor, Value};
use inrush_loops::{BufId, BufferKind, Loops};
use std::collections::BTreeMap;

/// The settings of the block.
pub(crate) struct Settings {
    pub(crate) symbols: BTreeMap<String, i64>,
    /// By name of the input.
    ranges: BTreeMap<String, (f64, f64)>,
    /// False with `ordinary`: only the round with plain inputs takes place.
    special: bool,
    interpreted: bool,
    rewritten: bool,
    /// Libraries that compute calls of the rewritten graph.
    libraries: Libraries,
    lowered: bool,
    brief: bool,
    whole: bool,
    /// Of the compiled participant; the best of this processor if absent or not available.
    level: Option<Isa>,
    threads: usize,
    offset: usize,
    pub(crate) seed: u64,
}

impl Settings {
    /// Returns the values that an input of this name is filled with.
    fn fill(&self, name: &str, special: bool) -> Fill {
        Fill {
            range: self.ranges.get(name).copied(),
            special,
            whole: self.whole,
        }
    }
}

/// Inputs by position and weights by name.
#[derive(Default)]
pub(crate) struct Inputs {
    pub(crate) user: Vec<Value>,
    pub(crate) weights: BTreeMap<String, Tensor>,
    /// Elements before the first of each of the user's tensors.
    offset: usize,
}

/// Name and evaluation.
type Participant<'a> = (
    &'static str,
    Box<dyn Fn(&Inputs) -> Result<Vec<Value>> + 'a>,
);

/// Evaluates in every way and compares. The text lists who took part.
pub fn agree(program: &Program, block: &Block, setup: &Setup) -> Result<String> {
    program.verify()?;
    let parts = program.parts()?;
    let program = parts.as_ref().unwrap_or(program);
    let settings = settings(block)?;
    if setup.caps.gpu.is_some() {
        return on_gpu(program, &settings, setup);
    }
    let mut who: Vec<Participant> = Vec::new();
    // One chain of `f32` loses more digits than any kernel's lanes do.
    let exact = LoopsOptions { wide_sums: true };
    if let Program::Graph(g) = program
        && !settings.lowered
    {
        // Values for symbols that no input's shape determines; the others are bound from the
        // inputs.
        let symbols = settings.symbols.clone();
        who.push((
            "graph",
            Box::new(move |i| inrush_interp::graph(g, &i.user, &i.weights, &symbols)),
        ));
    }
    let as_loops = |l: Loops, symbols: BTreeMap<String, i64>| {
        move |i: &Inputs| inrush_interp::loops(&l, &i.user, &i.weights, &symbols, exact)
    };
    // A reference is needed also where the interpreter of graphs takes no part.
    if !settings.brief || who.is_empty() {
        who.push((
            "loops",
            Box::new(as_loops(program.loops()?, settings.symbols.clone())),
        ));
    }
    if let Program::Graph(g) = program
        && settings.rewritten
    {
        let loops = rewritten(program, g, settings.libraries)?;
        who.push((
            "rewritten",
            Box::new(as_loops(loops, settings.symbols.clone())),
        ));
    }
    if !settings.brief {
        let plan = program.plan(&Caps::cpu(Isa::Avx2, 2))?;
        who.push((
            "fused",
            Box::new(as_loops(plan.to_loops(), settings.symbols.clone())),
        ));
    }
    if let Program::Graph(g) = program
        && !settings.interpreted
    {
        // A level that this processor lacks is the best that it has.
        let best = inrush_cpu::detect();
        let level = settings.level.filter(|l| crate::emulated::is_available(*l));
        let mut levels = vec![("compiled", level.unwrap_or(best))];
        if !settings.brief {
            levels.push(("scalar", Isa::Scalar));
        }
        for (name, isa) in levels {
            let model = Compiled::new(g, isa, settings.threads).map_err(|e| e.context(name))?;
            let run = move |i: &Inputs| model.run(&i.user, &i.weights, i.offset);
            who.push((name, Box::new(run)));
        }
    }

    compare_all(program, &settings, &who, &same_refusal)
}

/// Returns the loops of the graph as stage rewrite gives it for a GPU with these libraries.
///
/// # Errors
/// Where the types of its results, strides included, are not those of the graph.
fn rewritten(program: &Program, graph: &Graph, libraries: Libraries) -> Result<Loops> {
    let caps = inrush_devices::model("h100").ok_or_else(|| Error::internal("no preset `h100`"))?;
    let setup = Setup {
        libraries,
        ..Setup::of(caps)
    };
    let out = program.rewritten(&setup)?;
    let types = |g: &Graph| -> Vec<Option<Type>> {
        let ty = |v: inrush_graph::ValueId| g.value(v).ty.clone();
        (g.outputs.iter())
            .map(|o| match o.value {
                inrush_graph::OutputValue::Value(v) => Some(ty(v)),
                _ => None,
            })
            .collect()
    };
    // Shapes and strides are promised to the caller. A rewrite that changes strides would show
    // only in user code.
    if types(graph) != types(&out) {
        return Err(Error::internal("stage rewrite changes types of results"));
    }
    Program::Graph(out).loops()
}

/// The loop interpreter and, where it knows all operators, that of graphs against the interpreter of block programs. Every kernel
/// is emitted as well: what a printer refuses or loses shows in its source.
fn on_gpu(program: &Program, settings: &Settings, setup: &Setup) -> Result<String> {
    let mut who: Vec<Participant> = Vec::new();
    let symbols = &settings.symbols;
    let exact = LoopsOptions { wide_sums: true };
    if let Program::Graph(g) = program
        && !settings.lowered
    {
        who.push((
            "graph",
            Box::new(move |i| inrush_interp::graph(g, &i.user, &i.weights, symbols)),
        ));
    }
    if !settings.brief || who.is_empty() {
        let l = program.loops()?;
        who.push((
            "loops",
            Box::new(move |i| inrush_interp::loops(&l, &i.user, &i.weights, symbols, exact)),
        ));
    }
    let tiled = Tiled::new(program, setup)?;
    tiled.tally();
    tiled.emit(setup)?;
    who.push(("blocks", Box::new(move |i| tiled.run(i, symbols))));
    // Kernels of GPUs check indices only: other values that an operator does not take give something.
    let only_indices = |want: &Error, got: Option<&Error>| {
        if got.is_none() && !want.to_string().contains("out of range") {
            return Ok(());
        }
        same_refusal(want, got)
    };
    compare_all(program, settings, &who, &only_indices)
}

/// Judges a participant where the first one refuses: its own refusal, or `None` where it gives a result.
type Refusals<'a> = &'a dyn Fn(&Error, Option<&Error>) -> Result<()>;

/// Runs all on the same inputs, without and with special values, and compares them with the first.
fn compare_all(
    program: &Program,
    settings: &Settings,
    who: &[Participant],
    refuses: Refusals,
) -> Result<String> {
    let mut rounds = vec![false];
    if settings.special {
        rounds.push(true);
    }
    // Rounding of a value in between shows in all results that depend on it.
    let coarsest = coarsest(program);
    let mut refusal = None;
    for special in rounds {
        let mut random = Random::new(settings.seed);
        let inputs = inputs(program, settings, &mut random, special)?;
        let (first, want) = (who[0].0, who[0].1(&inputs));
        if let Err(e) = &want {
            refusal = Some(e.to_string());
        }
        for (name, run) in &who[1..] {
            match (&want, run(&inputs)) {
                (Err(want), Err(got)) => refuses(want, Some(&got)).map_err(|e| e.context(name))?,
                (Ok(want), Ok(got)) => {
                    let mut same = compare(want, &got, coarsest, FLOOR);
                    if same.is_err()
                        // Drawn graphs only: their random chains cancel in ways that written
                        // tests avoid. The interpreter runs again, so this is the last resort.
                        && settings.brief
                        && let Some(floor) = floor_within(program, &inputs, settings)
                    {
                        same = compare(want, &got, coarsest, floor);
                        if same.is_err()
                            && let Some(floor) = amplified(program, &inputs, settings, want, floor)
                        {
                            same = compare(want, &got, coarsest, floor);
                        }
                    }
                    let who = || format!("{name} differs from {first} (special: {special})");
                    same.map_err(|e| e.context(who()))?;
                }
                (Ok(_), Err(e)) => return Err(e.context(name)),
                (Err(want), Ok(_)) => refuses(want, None).map_err(|e| e.context(name))?,
            }
        }
    }
    if let Some(e) = refusal {
        let names: Vec<&str> = who.iter().map(|w| w.0).collect();
        return Ok(format!("{} refuse: {e}", names.join(", ")));
    }
    let names: Vec<&str> = who.iter().map(|w| w.0).collect();
    Ok(format!("{} agree", names.join(", ")))
}

/// Both refuse for the same reason: the last part of the message, without the value (compiled code does not keep it).
fn same_refusal(want: &Error, got: Option<&Error>) -> Result<()> {
    let Some(got) = got else {
        let message = format!("gives a result where others say: {want}");
        return Err(Error::internal(message));
    };
    let (want, got) = (want.to_string(), got.to_string());
    // Text in front is context (stages, nodes, places), which differs from level to level.
    let reason = |text: &str| {
        let last = text.rsplit(": ").next().unwrap_or_default();
        let at = last.find("out of range").unwrap_or(0);
        last[at..].to_string()
    };
    if reason(&want) == reason(&got) {
        return Ok(());
    }
    let message = format!("refuses with `{got}`, expected `{want}`");
    Err(Error::internal(message))
}

/// Interprets a small program on made-up inputs; what comes out is an error or a value, never a panic.
pub fn survive(program: &Program) -> Result<()> {
    // What windows and products go over shows in the loops.
    let l = match program {
        Program::Graph(_) | Program::Loops(_) => program.loops()?,
        Program::Plan(p) => p.to_loops(),
        _ => return Ok(()),
    };
    let s = settings(&Block::default())?;
    let mut random = Random::new(s.seed);
    if l.num_inputs > 1000 {
        return Err(Error::input("too many inputs for a test"));
    }
    for b in &l.buffers {
        small(&l.exprs, &b.sizes, &s)?;
    }
    for n in &l.nodes {
        let axes = &n.body().axes;
        let extents: Vec<_> = axes.iter().map(|a| a.size).collect();
        small(&l.exprs, &extents, &s)?;
        if let inrush_loops::Node::Contraction(c) = n {
            let extents: Vec<_> = c.k.iter().map(|a| a.size).collect();
            small(&l.exprs, &extents, &s)?;
        }
    }
    if let Program::Graph(g) = program {
        let values = g.values.iter().filter_map(|v| match &v.ty {
            Type::Tensor(t) => Some(&t.sizes),
            _ => None,
        });
        for list in values {
            small(&g.exprs, list, &s)?;
        }
        let i = of_graph(g, &s, &mut random, true)?;
        _ = inrush_interp::graph(g, &i.user, &i.weights, &s.symbols);
    }
    let i = of_loops(&l, &s, &mut random, true)?;
    let options = LoopsOptions::default();
    inrush_interp::loops(&l, &i.user, &i.weights, &s.symbols, options).map(|_| ())
}

/// An error unless the product of sizes is one that is interpreted in no time.
fn small(ex: &inrush_expr::Exprs, list: &[inrush_expr::Expr], s: &Settings) -> Result<()> {
    let sizes = sizes(ex, list, s)?;
    let points = sizes
        .iter()
        .fold(1i64, |p, s| p.saturating_mul((*s).max(0)));
    if points <= 2000 {
        Ok(())
    } else {
        Err(Error::input("too large to be interpreted in a test"))
    }
}

/// Reads the settings of a `run` block. An unknown word is an error; `name=number` is taken for a
/// symbol's value.
pub(crate) fn settings(block: &Block) -> Result<Settings> {
    let mut out = Settings {
        symbols: BTreeMap::new(),
        ranges: BTreeMap::new(),
        special: true,
        interpreted: false,
        rewritten: false,
        libraries: Libraries::All,
        lowered: false,
        brief: false,
        whole: false,
        level: None,
        threads: 2,
        offset: 0,
        seed: 1,
    };
    for word in &block.settings {
        let bad = || Error::input(format!("the setting `{word}` has no meaning"));
        let number = |s: &str| s.parse::<i64>().map_err(|_| bad());
        let float = |s: &str| s.parse::<f64>().map_err(|_| bad());
        match word.split_once('=') {
            None if word == "ordinary" => out.special = false,
            None if word == "interpreted" => out.interpreted = true,
            None if word == "rewritten" => out.rewritten = true,
            None if word == "lowered" => out.lowered = true,
            None if word == "brief" => out.brief = true,
            None if word == "whole" => out.whole = true,
            None if inrush_devices::model(word).is_some() => {}
            None => return Err(bad()),
            // Stages read it; it is for kernels of GPUs alone.
            Some(("pointers" | "tiles", _)) if crate::stages::caps(block).gpu.is_some() => {}
            Some(("libraries", "products")) => out.libraries = Libraries::Products,
            Some(("seed", v)) => out.seed = v.parse().map_err(|_| bad())?,
            Some(("level", v)) => out.level = Some(Isa::parse(v).ok_or_else(bad)?),
            Some(("threads", v)) => out.threads = number(v)?.clamp(1, 64) as usize,
            Some(("offset", v)) => out.offset = number(v)?.clamp(0, 64) as usize,
            Some((name, v)) => match v.split_once("..") {
                Some((lo, hi)) => {
                    out.ranges.insert(name.into(), (float(lo)?, float(hi)?));
                }
                None => {
                    out.symbols.insert(name.into(), number(v)?);
                }
            },
        }
    }
    Ok(out)
}

/// Draws inputs and weights. One generator for all, so the order of inputs matters to the values.
pub(crate) fn inputs(
    program: &Program,
    s: &Settings,
    random: &mut Random,
    special: bool,
) -> Result<Inputs> {
    match program {
        Program::Graph(g) => of_graph(g, s, random, special),
        Program::Loops(l) => of_loops(l, s, random, special),
        _ => Err(Error::input("only graphs and loops are evaluated")),
    }
}

/// Values of sizes; a symbol that the settings leave out is 3, within its bounds.
fn sizes(ex: &inrush_expr::Exprs, list: &[inrush_expr::Expr], s: &Settings) -> Result<Vec<i64>> {
    let value = |y| {
        let info = ex.sym_info(y);
        // Small, and neither 0 nor 1, for which dimensions are special.
        let free = 3.min(info.upper).max(info.lower);
        Some(s.symbols.get(&info.name).copied().unwrap_or(free))
    };
    list.iter().map(|e| ex.eval(*e, &value)).collect()
}

/// Draws a graph's inputs in its order of inputs.
fn of_graph(g: &Graph, s: &Settings, random: &mut Random, special: bool) -> Result<Inputs> {
    let mut out = Inputs {
        offset: s.offset,
        ..Inputs::default()
    };
    for i in &g.inputs {
        let name = &g.value(i.value).name;
        let value = match &g.value(i.value).ty {
            Type::Tensor(t) => {
                let of = sizes(&g.exprs, &t.sizes, s)?;
                let strides = sizes(&g.exprs, &t.strides, s)?;
                let fill = s.fill(name, special);
                let drawn = random.tensor(t.dtype, &of, fill)?;
                // Elements that share memory have one value, for the interpreters as well.
                Value::Tensor(compiled::shared(drawn, &strides)?)
            }
            Type::Int(e) => Value::Scalar(Scalar::Int(sizes(&g.exprs, &[*e], s)?[0])),
            // Floats and booleans as inputs are constants of the export, or read by few
            // operators.
            _ => Value::Scalar(Scalar::Float(0.5)),
        };
        match (&i.kind, value) {
            (InputKind::User { index }, v) => {
                // A hostile graph may have any index, and the list is as long as the largest.
                if *index > g.inputs.len() {
                    return Err(Error::input("an input beyond the number of inputs"));
                }
                if out.user.len() <= *index {
                    out.user.resize(*index + 1, Value::None);
                }
                out.user[*index] = v;
            }
            (InputKind::Parameter { name }, Value::Tensor(t))
            | (InputKind::Buffer { name, .. }, Value::Tensor(t))
            | (InputKind::Constant { name }, Value::Tensor(t)) => {
                out.weights.insert(name.clone(), t);
            }
            _ => return Err(Error::input("a weight is no tensor")),
        }
    }
    Ok(out)
}

/// Draws the inputs of loops. Positions without a buffer are integers.
fn of_loops(l: &Loops, s: &Settings, random: &mut Random, special: bool) -> Result<Inputs> {
    let mut out = Inputs::default();
    out.user.resize(l.num_inputs, Value::Scalar(Scalar::Int(3)));
    for b in &l.buffers {
        let fill = s.fill(&b.name, special);
        let sizes = sizes(&l.exprs, &b.sizes, s)?;
        match &b.kind {
            BufferKind::Input { index } => {
                if *index >= out.user.len() {
                    return Err(Error::input("an input beyond the number of inputs"));
                }
                out.user[*index] = Value::Tensor(random.tensor(b.dtype, &sizes, fill)?);
            }
            BufferKind::Weight { name } => {
                let t = random.tensor(b.dtype, &sizes, fill)?;
                out.weights.insert(name.clone(), t);
            }
            _ => {}
        }
    }
    Ok(out)
}

/// Magnitude below which differences are absolute: where everything cancels, what is left is rounding.
const FLOOR: f64 = 0.1;

/// Differences that rounding explains, relative to the largest magnitude.
fn tolerance(d: DType) -> f64 {
    match d {
        DType::F64 => 1e-11,
        // Five or six roundings of halves (2^-8 and 2^-11 each), some hundred of `f32` (2^-24).
        DType::BF16 => 2e-2,
        DType::F16 => 3e-3,
        _ => 2e-5,
    }
}

/// Rounding steps of the largest value in between that a result of float32 may be off by.
const STEPS: f64 = 8.0;
/// The same where products are saved by minimal filtering, which loses up to a decimal digit.
const FILTERED: f64 = 64.0;

/// The magnitude below which differences are absolute where values in between are larger than results: a sum of many products is
/// rounded as it stands, whatever a function makes of it. `None` where they cannot be interpreted.
fn floor_within(program: &Program, inputs: &Inputs, settings: &Settings) -> Option<f64> {
    let Program::Graph(g) = program else {
        return None;
    };
    let run = if settings.lowered {
        loops_within(program, inputs, settings)
    } else {
        values_within(g, inputs, settings)
    };
    let mut most = 0f64;
    for t in run.ok()?.iter().filter_map(|v| v.tensor().ok()) {
        most = most.max(largest(t)?);
    }
    let filters = |n: &inrush_graph::Node| n.op.contains("conv");
    let steps = if g.nodes.iter().any(filters) {
        FILTERED
    } else {
        STEPS
    };
    let steps = steps * f64::from(f32::EPSILON) / tolerance(DType::F32);
    Some((most * steps).max(FLOOR))
}

/// Interprets a graph and returns all its values of float32.
fn values_within(g: &Graph, inputs: &Inputs, settings: &Settings) -> Result<Vec<Value>> {
    let mut all = g.clone();
    let float = |v: &&inrush_graph::ValueId| g.tensor(**v).is_ok_and(|t| t.dtype == DType::F32);
    let values = g.nodes.iter().flat_map(|n| n.outs.iter().filter(float));
    all.outputs = (values.enumerate())
        .map(|(index, v)| inrush_graph::Output {
            value: inrush_graph::OutputValue::Value(*v),
            kind: inrush_graph::OutputKind::User { index },
        })
        .collect();
    inrush_interp::graph(&all, &inputs.user, &inputs.weights, &settings.symbols)
}

/// The most by which a graph may amplify rounding of values in between and still count as right.
const AMPLIFIED: f64 = 64.0;

/// Returns `floor`, raised for a graph that amplifies rounding: a norm of rows of equal elements, whose variance is rounding alone, or
/// an exponential of large half-precision sums. The graph runs once more, each float in between changed by a rounding step up or down
/// by chance: results may differ by what that changes in them (for float32 and wider, [`STEPS`] times as much).
/// `None` where the graph cannot be interpreted.
fn amplified(
    program: &Program,
    inputs: &Inputs,
    settings: &Settings,
    want: &[Value],
    floor: f64,
) -> Option<f64> {
    let Program::Graph(g) = program else {
        return None;
    };
    let mut random = Random::new(settings.seed);
    let round = |value: &mut Value| {
        let Value::Tensor(t) = value else { return };
        let Some(step) = rounding_step(t.dtype) else {
            return;
        };
        for k in 0..t.numel() {
            let factor = 1.0 + step * random.int(-1, 1) as f64;
            let changed = t.get(k).map(|v| Scalar::Float(v.as_f64() * factor));
            // Only an element out of bounds is an error, and there is none.
            let _ = changed.and_then(|v| t.set(k, v.convert(t.dtype)));
        }
    };
    let symbols = &settings.symbols;
    let moved = inrush_interp::graph_with(g, &inputs.user, &inputs.weights, symbols, round);
    let coarsest = coarsest(program);
    let steps = if coarsest > tolerance(DType::F32) {
        1.0
    } else {
        STEPS
    };
    let mut most = 0f64;
    for pair in want.iter().zip(&moved.ok()?) {
        if let (Value::Tensor(a), Value::Tensor(b)) = pair {
            let change = b.error_above(a, 1.0).ok()? * largest(a)?.max(1.0);
            most = most.max(change / tolerance(a.dtype).max(coarsest));
        }
    }
    let raised = steps * most;
    (raised.is_finite()).then(|| raised.clamp(floor, floor * AMPLIFIED))
}

/// The distance of one to the next number of a float type; `None` for types whose values are not rounded.
fn rounding_step(dtype: DType) -> Option<f64> {
    Some(match dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => 1.0 / 1024.0,
        DType::BF16 => 1.0 / 128.0,
        _ => return None,
    })
}

/// The largest finite magnitude in a tensor.
fn largest(t: &Tensor) -> Option<f64> {
    let values = t.scalars().ok()?;
    let finite = values
        .iter()
        .map(|s| s.as_f64().abs())
        .filter(|v| v.is_finite());
    Some(finite.fold(0f64, f64::max))
}

/// Interprets a program's loops and returns all buffers of float32 that they write.
fn loops_within(program: &Program, inputs: &Inputs, settings: &Settings) -> Result<Vec<Value>> {
    let mut all = program.loops()?;
    let written =
        |b: &inrush_loops::Buffer| b.dtype == DType::F32 && matches!(b.kind, BufferKind::Temp);
    all.outputs = (0..all.buffers.len())
        .filter(|k| written(&all.buffers[*k]))
        .map(|k| inrush_loops::Output::Tensor {
            buffer: BufId::from_index(k),
        })
        .collect();
    let exact = LoopsOptions { wide_sums: true };
    inrush_interp::loops(
        &all,
        &inputs.user,
        &inputs.weights,
        &settings.symbols,
        exact,
    )
}

/// The widest tolerance of the floats that a graph's values have: a wide result may come from narrow ones.
fn coarsest(program: &Program) -> f64 {
    let Program::Graph(g) = program else {
        return 0.0;
    };
    let dtypes = g.values.iter().filter_map(|v| match &v.ty {
        Type::Tensor(t) if t.dtype.is_float() => Some(tolerance(t.dtype)),
        _ => None,
    });
    dtypes.fold(0.0, f64::max)
}

/// Compares outputs with the reference. Errors are relative to the largest magnitude of an
/// output, and NaN and infinities must stand at the same elements. Scalars must be equal.
fn compare(want: &[Value], got: &[Value], coarsest: f64, floor: f64) -> Result<()> {
    if want.len() != got.len() {
        let (a, b) = (want.len(), got.len());
        return Err(Error::internal(format!("{b} outputs instead of {a}")));
    }
    for (k, pair) in want.iter().zip(got).enumerate() {
        match pair {
            (Value::Tensor(a), Value::Tensor(b)) => {
                let error = b.error_above(a, floor)?;
                if error > tolerance(a.dtype).max(coarsest) {
                    return Err(Error::internal(format!(
                        "output {k} by {error:.3e}\n  want {}\n  got  {}",
                        show(a)?,
                        show(b)?
                    )));
                }
            }
            (a, b) if a == b => {}
            (a, b) => {
                return Err(Error::internal(format!(
                    "output {k}: {b:?} instead of {a:?}"
                )));
            }
        }
    }
    Ok(())
}

/// The first elements of a tensor.
fn show(t: &Tensor) -> Result<String> {
    let some: Vec<String> = (0..t.numel().min(16))
        .map(|k| Ok(t.get(k)?.to_string()))
        .collect::<Result<_>>()?;
    Ok(format!("{}{:?} {}", t.dtype, t.sizes, some.join(" ")))
}
