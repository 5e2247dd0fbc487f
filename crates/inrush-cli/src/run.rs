//! `inrush run`.
//!
//! Opens the model, binds inputs, makes one call whose outputs are checked and written, then
//! measures repeated calls. Inputs are those of `--inputs`, else the archive's samples (unless
//! `--size` asks for other sizes), else seeded random data: the same on each run and machine.

use crate::args::RunArgs;
use crate::out::say;
use crate::{compare, io, session};
use inrush_base::{DType, Error, Result};
use inrush_program::parts::operator_calls;
use inrush_program::{InputType, Program, Step, SymbolSource};
use inrush_runtime::cache::Cache;
use inrush_runtime::{Model, Tensor, Value};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs a model.
///
/// # Errors
/// As the steps above. Outputs that differ from the expected ones are no error but exit code 1.
pub fn run(a: &RunArgs) -> Result<ExitCode> {
    if a.device != "cpu" {
        return crate::device::run(a);
    }
    if a.capture {
        return Err(crate::args::captured_on_cpu());
    }
    let cache = Cache::open_default();
    let given = a.inputs.as_deref().map(io::read).transpose()?;
    let expect = a.expect.as_deref().map(io::read).transpose()?;
    let s = session::open(&a.model, &a.target, &cache, a.json)?;
    let (inputs, source) = match given {
        Some(tensors) => (
            bind_inputs(
                &s.model,
                tensors,
                a.inputs.as_deref().unwrap_or(Path::new("")),
            )?,
            "given",
        ),
        None => match &s.samples {
            Some(v) if a.size.is_empty() => (v.clone(), "the archive's sample inputs"),
            _ => (
                random_inputs(&s.model, &symbol_values(&s, &a.size)?)?,
                "seeded random inputs",
            ),
        },
    };
    s.model.set_seed(a.seed);
    let outputs = user_outputs(&s.model, s.model.run(&inputs)?);
    // Peak memory of a call at these inputs, by the memory plan.
    let peak = s.model.stats(&inputs)?.bytes;
    let report = Check::new(&outputs, expect.as_ref()).map_err(|e| match &a.expect {
        Some(path) => e.in_file(path.display().to_string()),
        None => e,
    })?;
    write_outputs(a, &outputs)?;
    let latency = measure(&s.model, &inputs, Duration::from_secs_f64(a.seconds))?;
    let counts = Counts::of(&s.model);
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    if a.json {
        let stages: serde_json::Map<String, serde_json::Value> = s
            .times
            .stages
            .iter()
            .map(|(n, d)| (n.to_string(), ms(*d).into()))
            .collect();
        let line = serde_json::json!({
            "model": a.model.display().to_string(),
            "target": s.caps.to_string(),
            "threads": s.caps.threads,
            "compile_ms": ms(s.times.compile()),
            "build_ms": ms(s.times.build()),
            "cached": s.cached,
            "stages_ms": stages,
            "load_ms": ms(s.times.load),
            "run_ms": ms(latency.median),
            "kernels": counts.kernels,
            "contractions": counts.contractions,
            "extern_calls": 0,
            "peak_bytes": peak,
            "max_rel_err": report.max_rel_err,
            "accuracy": report.accuracy.map(|(r, n)| r as f64 / n as f64),
            "remote_cache": crate::doctor::tier_json(),
        });
        say!("{line}")?;
    } else {
        say!(
            "{}  on {}, {} threads",
            a.model.display(),
            s.caps,
            s.caps.threads
        )?;
        match s.cached {
            Some(cached) => {
                let build = s.times.build();
                say!(
                    "  compile  {:.1} ms (graph {:.1}, C compiler {:.1}{})",
                    ms(s.times.compile()),
                    ms(s.times.compile() - build),
                    ms(build),
                    if cached { ", from the cache" } else { "" }
                )?;
            }
            None => say!("  compile  none: a compiled package")?,
        }
        say!("  load     {:.1} ms", ms(s.times.load))?;
        say!(
            "  run      {:.3} ms (median of {}, best {:.3}) on {source}",
            ms(latency.median),
            latency.count,
            ms(latency.best)
        )?;
        say!(
            "  kernels  {} fused, {} matrix products or convolutions, {} calls of custom operators",
            counts.kernels,
            counts.contractions,
            operator_calls(s.model.program()).len()
        )?;
        say!(
            "  memory   {:.2} MB a call, weights aside",
            peak as f64 / 1e6
        )?;
        report.print(a.tolerance)?;
    }
    Ok(report.exit_code(a))
}

/// How many steps of each kind a call makes.
pub struct Counts {
    /// Launches of fused kernels.
    pub kernels: usize,
    /// Matrix products and convolutions.
    pub contractions: usize,
}

impl Counts {
    pub fn of(model: &Model) -> Counts {
        let mut counts = Counts {
            kernels: 0,
            contractions: 0,
        };
        counts.add(model.program());
        counts
    }

    /// Adds the steps of a program and of those that it calls, each body of control flow once.
    fn add(&mut self, program: &Program) {
        let contractions = (program.steps.iter())
            .filter(|s| matches!(s, Step::Contract(_)))
            .count();
        self.kernels += program.steps.len() - contractions;
        self.contractions += contractions;
        for step in program.parts.iter().flat_map(|p| &p.steps) {
            step.kind.programs().into_iter().for_each(|p| self.add(p));
        }
    }
}

/// Outputs that belong to the user: mutations have none.
pub fn user_outputs(model: &Model, outputs: Vec<Value>) -> Vec<Value> {
    let keep = |o: &inrush_program::Output| !matches!(o, inrush_program::Output::Mutation);
    model
        .program()
        .outputs
        .iter()
        .zip(outputs)
        .filter(|(o, _)| keep(o))
        .map(|(_, v)| v)
        .collect()
}

/// Binds tensors of a file to inputs: by name, else by position. `path` is for messages.
///
/// # Errors
/// An input without a tensor, and a tensor without an input: most often a misspelled key.
pub fn bind_inputs(
    model: &Model,
    mut tensors: BTreeMap<String, Tensor>,
    path: &Path,
) -> Result<Vec<Value>> {
    let program = model.program();
    let mut out = Vec::with_capacity(program.inputs.len());
    for (i, spec) in program.inputs.iter().enumerate() {
        let found = tensors
            .remove(&spec.name)
            .or_else(|| tensors.remove(&i.to_string()));
        out.push(match (&spec.ty, found) {
            (InputType::Tensor { .. }, Some(t)) => Value::Tensor(t),
            (InputType::Int { .. }, Some(t)) if t.numel() == 1 && t.dtype == DType::I64 => {
                Value::Int(compare::to_f64(&t)?[0] as i64)
            }
            (InputType::Constant { value }, _) => Value::Scalar((*value).into()),
            (InputType::Ignored, _) => Value::None,
            (_, Some(_)) => {
                return Err(Error::input(format!(
                    "input `{}` must be an int64 scalar",
                    spec.name
                )));
            }
            (_, None) => {
                let names: Vec<String> = program
                    .inputs
                    .iter()
                    .enumerate()
                    .map(|(k, s)| format!("\"{k}\" or \"{}\"", s.name))
                    .collect();
                return Err(Error::input(format!(
                    "no tensor for input `{}`; the model wants the keys {}",
                    spec.name,
                    names.join(", ")
                ))
                .in_file(path.display().to_string()));
            }
        });
    }
    if let Some(extra) = tensors.keys().next() {
        return Err(
            Error::input(format!("the tensor `{extra}` belongs to no input"))
                .in_file(path.display().to_string()),
        );
    }
    Ok(out)
}

/// Values of the program's symbols: from `--size`, else what the archive's example had, else 2 (or the nearest in range).
fn symbol_values(s: &session::Session, given: &[String]) -> Result<Vec<i64>> {
    let program = s.model.program();
    let mut chosen: BTreeMap<&str, i64> = BTreeMap::new();
    for g in given {
        let (name, value) = g
            .split_once('=')
            .and_then(|(n, v)| v.parse::<i64>().ok().map(|v| (n, v)))
            .ok_or_else(|| Error::input(format!("--size wants NAME=N, got `{g}`")))?;
        let Some(symbol) = program.symbols.iter().find(|s| s.name == name) else {
            let names: Vec<&str> = program.symbols.iter().map(|s| s.name.as_str()).collect();
            return Err(Error::input(format!(
                "the model has no size `{name}` (it has: {})",
                names.join(", ")
            )));
        };
        if !(symbol.lower..=symbol.upper).contains(&value) {
            return Err(Error::input(format!(
                "--size {g} is outside the range {}..={} that the model was exported for",
                symbol.lower, symbol.upper
            )));
        }
        chosen.insert(name, value);
    }
    Ok(program
        .symbols
        .iter()
        .map(|sym| {
            let hint = s
                .hints
                .iter()
                .find(|(n, _)| *n == sym.name)
                .map(|(_, v)| *v);
            chosen
                .get(sym.name.as_str())
                .copied()
                .or(hint)
                .unwrap_or(2.clamp(sym.lower, sym.upper))
        })
        .collect())
}

/// Returns seeded inputs, see [`random_tensor`]. `symbols` are the values of the program's symbols.
pub fn random_inputs(model: &Model, symbols: &[i64]) -> Result<Vec<Value>> {
    let program = model.program();
    let mut sizes = Vec::new();
    inrush_program::evaluate(&program.sizes, symbols, &mut sizes)
        .map_err(|_| Error::input("these sizes overflow"))?;
    let mut next = xorshift();
    program
        .inputs
        .iter()
        .enumerate()
        .map(|(at, spec)| match &spec.ty {
            InputType::Constant { value } => Ok(Value::Scalar((*value).into())),
            InputType::Ignored => Ok(Value::None),
            InputType::Int { .. } => {
                let of = program
                    .symbols
                    .iter()
                    .position(|s| s.source == SymbolSource::Int { input: at as u32 });
                Ok(Value::Int(of.map_or(0, |k| symbols[k])))
            }
            InputType::Tensor {
                dtype, sizes: ids, ..
            } => {
                let dims: Vec<i64> = ids.iter().map(|i| sizes[i.0 as usize]).collect();
                random_tensor(&spec.name, dtype.0, dims, &mut next).map(Value::Tensor)
            }
        })
        .collect()
}

/// Returns a generator of 64 random bits, the same on each run and machine.
pub(crate) fn xorshift() -> impl FnMut() -> u64 {
    // Xorshift64 (Marsaglia 2003): reproducible, without a dependency.
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Returns a tensor for the input `name`: floats uniform in -1..1, integers in 0..2 (safe as indices),
/// bools alternating at random.
pub(crate) fn random_tensor(
    name: &str,
    dtype: DType,
    dims: Vec<i64>,
    next: &mut dyn FnMut() -> u64,
) -> Result<Tensor> {
    let n = dims
        .iter()
        .try_fold(1i64, |a, d| a.checked_mul((*d).max(0)));
    let n = n
        // Sizes come from the model or from `--size`; the bound keeps a mistake from exhausting memory.
        .filter(|n| *n <= 1 << 32)
        .ok_or_else(|| Error::input("these inputs are too large"))?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(n as usize * dtype.size())
        .map_err(|_| Error::out_of_memory(format!("out of memory for input `{name}`")))?;
    for _ in 0..n {
        let r = next();
        // 24 bits, the precision of f32: the same value in either float type.
        let x = (r >> 40) as f64 / (1u64 << 23) as f64 - 1.0;
        match dtype {
            DType::F64 => bytes.extend(x.to_le_bytes()),
            DType::F32 => bytes.extend((x as f32).to_le_bytes()),
            DType::F16 => bytes.extend(half::f16::from_f64(x).to_le_bytes()),
            DType::BF16 => bytes.extend(half::bf16::from_f64(x).to_le_bytes()),
            d if d.is_int() || d == DType::Bool => {
                bytes.extend(&((r >> 60) & 1).to_le_bytes()[..d.size()]);
            }
            d => {
                return Err(Error::unsupported(format!(
                    "random {d} inputs; pass --inputs"
                )));
            }
        }
    }
    Tensor::from_bytes(dtype, dims, &bytes)
}

/// The result of a comparison with expected outputs.
pub(crate) struct Check {
    /// The largest error of any output; `None` if there was nothing to compare.
    pub(crate) max_rel_err: Option<f64>,
    /// Rows of output 0 whose label was right, and all rows.
    pub(crate) accuracy: Option<(usize, usize)>,
}

impl Check {
    /// Compares outputs with the tensors of a file.
    pub(crate) fn new(
        outputs: &[Value],
        expect: Option<&BTreeMap<String, Tensor>>,
    ) -> Result<Check> {
        let mut check = Check {
            max_rel_err: None,
            accuracy: None,
        };
        let Some(expect) = expect else {
            return Ok(check);
        };
        for (key, want) in expect {
            if key == "labels" {
                if let Some(Value::Tensor(scores)) = outputs.first() {
                    check.accuracy = Some(compare::correct(scores, want)?);
                }
                continue;
            }
            let at: usize = key.parse().map_err(|_| {
                Error::input(format!(
                    "expected output `{key}`: keys are positions, or `labels`"
                ))
            })?;
            let Some(Value::Tensor(got)) = outputs.get(at) else {
                return Err(Error::input(format!("the model has no tensor output {at}")));
            };
            let e = compare::relative_error(got, want)
                .map_err(|e| e.context(format!("output {at}")))?;
            check.max_rel_err = Some(check.max_rel_err.map_or(e, |m| m.max(e)));
        }
        Ok(check)
    }

    /// Returns true if an error is above the tolerance, or no number.
    fn failed(&self, tolerance: f64) -> bool {
        (self.max_rel_err).is_some_and(|e| e.is_nan() || e > tolerance)
    }

    /// Prints the lines of the report that say how outputs compare.
    pub(crate) fn print(&self, tolerance: f64) -> Result<()> {
        if let Some(e) = self.max_rel_err {
            let verdict = if self.failed(tolerance) {
                "FAILED"
            } else {
                "ok"
            };
            say!(
                "  error    {e:.2e} relative to the expected outputs (at most {tolerance:.0e}): {verdict}"
            )?;
        }
        if let Some((right, n)) = self.accuracy {
            say!(
                "  accuracy {:.2} % ({right} of {n})",
                100.0 * right as f64 / n.max(1) as f64
            )?;
        }
        Ok(())
    }

    /// Returns the exit code of a run. Says so where outputs differ.
    pub(crate) fn exit_code(&self, a: &RunArgs) -> ExitCode {
        if !self.failed(a.tolerance) {
            return ExitCode::SUCCESS;
        }
        eprintln!(
            "inrush: {}: the outputs differ from the expected ones",
            a.model.display()
        );
        ExitCode::from(1)
    }
}

/// Writes the tensors among `outputs` to the file that `--output` names, if it does. Keys are positions.
pub(crate) fn write_outputs(a: &RunArgs, outputs: &[Value]) -> Result<()> {
    let Some(path) = &a.output else {
        return Ok(());
    };
    let tensors: Vec<(String, Tensor)> = (outputs.iter().enumerate())
        .filter_map(|(i, v)| match v {
            Value::Tensor(t) => Some((i.to_string(), t.clone())),
            _ => None,
        })
        .collect();
    io::write(path, &tensors)
}

/// Times of repeated calls.
#[derive(Copy, Clone, Debug)]
pub struct Latency {
    /// Less sensitive to interruptions than the mean.
    pub median: Duration,
    pub best: Duration,
    pub count: usize,
}

/// Calls the model for `limit` (at least three times, after one warm-up).
pub fn measure(model: &Model, inputs: &[Value], limit: Duration) -> Result<Latency> {
    measure_calls(&mut || model.run(inputs), limit)
}

/// Makes calls for `limit` (at least three, after one warm-up).
pub fn measure_calls(
    call: &mut dyn FnMut() -> Result<Vec<Value>>,
    limit: Duration,
) -> Result<Latency> {
    call()?;
    let mut times = Vec::new();
    let end = Instant::now() + limit;
    while times.len() < 3 || Instant::now() < end {
        let start = Instant::now();
        let out = call()?;
        times.push(start.elapsed());
        drop(out);
        // Enough for a median; tiny models would fill memory with times.
        if times.len() >= 20_000 {
            break;
        }
    }
    times.sort();
    Ok(Latency {
        median: times[times.len() / 2],
        best: times[0],
        count: times.len(),
    })
}
