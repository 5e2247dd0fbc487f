//! Measures exported models: compile time, load time, latency, memory and errors, and PyTorch's.
//!
//! For each archive:
//!
//! 1. *Cold compile*: opened several times, each with an empty cache; medians of wall and processor
//!    time.
//! 2. *Correctness*: runs at every batch size for which inputs are stored, against stored outputs
//!    of eager.
//! 3. *Latency*: inrush, AOTInductor and eager take turns of equal length. A ratio is formed in
//!    each turn and the median of the ratios counts, since neighbouring turns see the same load of
//!    the machine.
//!
//! Verdicts compare the worst model with targets.

use crate::Args;
use crate::clock::{mark, median};
use crate::peer::Peer;
use crate::table::{Table, number};
use inrush_base::{Error, Result};
use inrush_cli::args::TargetArgs;
use inrush_cli::session::Session;
use inrush_cli::{compare, io, run, session};
use inrush_runtime::cache::Cache;
use inrush_runtime::{Model, Value};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Largest accepted error, as norm of the difference over norm of the expected output.
const ERROR: f64 = 1e-4;
/// Seconds from archive to runnable, and of them outside the C compiler.
const COLD: (f64, f64) = (1.5, 0.3);
/// Times the speed of AOTInductor: the geometric mean, and the least of any model.
const SPEED: (f64, f64) = (1.3, 1.0 / 1.1);
/// Turns that inrush and its peers take.
const ROUNDS: usize = 5;

/// The outcome for a folder of archives.
pub struct Zoo {
    /// Every archive compiled, ran and was right.
    pub good: bool,
    pub report: serde_json::Value,
}

/// The measurements of one archive.
#[derive(Default)]
struct Row {
    name: String,
    /// Seconds with an empty cache: import to C source, the C compiler, and from there to a model that runs.
    graph: f64,
    build: f64,
    load: f64,
    /// Processor seconds of all that: this process, and the C compiler.
    busy: (f64, f64),
    /// Milliseconds.
    run: Option<f64>,
    aoti: Option<f64>,
    eager: Option<f64>,
    /// Medians over the turns of peer's time / inrush's.
    aoti_ratio: Option<f64>,
    eager_ratio: Option<f64>,
    /// Memory of a call by the plan, weights aside.
    bytes: usize,
    /// Peak memory of eager at the same inputs.
    eager_bytes: Option<f64>,
    /// Seconds that AOTInductor took to compile: wall, and processor.
    aoti_compile: Option<(f64, f64)>,
    kernels: usize,
    contractions: usize,
    /// Checked runs (`-`, or a batch size) with their errors.
    errors: Vec<(String, f64)>,
}

impl Row {
    /// Seconds from archive to a model that runs.
    fn cold(&self) -> f64 {
        self.graph + self.build + self.load
    }
}

/// Measures all archives of a folder. One that fails is reported, and the others go on.
pub fn zoo(dir: &Path, a: &Args) -> Result<Zoo> {
    let archives = archives(dir, a.only.as_deref())?;
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for path in &archives {
        let name = stem(path);
        eprintln!("measuring {name}");
        match one(path, &name, a) {
            Ok(row) => rows.push(row),
            Err(e) => {
                eprintln!("bench: {name}: {e}");
                failed.push((name, e.to_string()));
            }
        }
    }
    print(&rows, &failed);
    let wrong = |r: &Row| r.errors.iter().any(|(_, e)| e.is_nan() || *e > ERROR);
    Ok(Zoo {
        good: failed.is_empty() && !rows.iter().any(wrong),
        report: report(&rows, &failed),
    })
}

/// Returns a file's name without its folder and ending.
fn stem(path: &Path) -> String {
    let name = path.file_stem();
    name.map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

/// The folder's archives by name.
fn archives(dir: &Path, only: Option<&str>) -> Result<Vec<PathBuf>> {
    let fail = |e: std::io::Error| Error::input(e.to_string()).in_file(dir.display().to_string());
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let wanted = only.is_none_or(|o| stem(&path).contains(o));
        if wanted && path.extension().is_some_and(|e| e == "pt2") {
            out.push(path);
        }
    }
    out.sort();
    if out.is_empty() {
        Err(Error::input("no .pt2 archives here").in_file(dir.display().to_string()))
    } else {
        Ok(out)
    }
}

/// Measures one archive.
fn one(path: &Path, name: &str, a: &Args) -> Result<Row> {
    let mut row = Row {
        name: name.to_string(),
        ..Row::default()
    };
    let target = TargetArgs {
        target: "native".into(),
        threads: Some(a.threads()),
    };
    let s = compile(path, &target, a.compiles.max(1), &mut row)?;
    let counts = run::Counts::of(&s.model);
    (row.kernels, row.contractions) = (counts.kernels, counts.contractions);

    for batch in batches(path)? {
        row.errors.push(check(&s.model, path, batch)?);
    }
    let file = path.with_extension("inputs.safetensors");
    if file.exists() {
        row.errors.push(check(&s.model, path, None)?);
        let inputs = run::bind_inputs(&s.model, io::read(&file)?, &file)?;
        row.bytes = s.model.stats(&inputs)?.bytes;
        latency(path, &s.model, &inputs, a, &mut row)?;
    }
    if row.errors.is_empty() {
        Err(Error::input("no NAME.inputs.safetensors beside it"))
    } else {
        Ok(row)
    }
}

/// Opens the archive some times with an empty cache each; gives the last.
fn compile(path: &Path, target: &TargetArgs, times: usize, row: &mut Row) -> Result<Session> {
    let [mut graph, mut build, mut load] = [const { Vec::new() }; 3];
    let [mut own, mut children] = [const { Vec::new() }; 2];
    let mut last = None;
    for _ in 0..times.max(1) {
        // Two models at once would be two sets of weights.
        drop(last.take());
        let folder =
            tempfile::tempdir().map_err(|e| Error::machine(format!("no temporary folder: {e}")))?;
        let start = mark();
        let s = session::open(path, target, &Cache::at(folder.path().into()), true)?;
        let span = start.span();
        graph.push((s.times.compile() - s.times.build()).as_secs_f64());
        build.push(s.times.build().as_secs_f64());
        load.push(s.times.load.as_secs_f64());
        own.push(span.process.unwrap_or_default().as_secs_f64());
        children.push(span.children.unwrap_or_default().as_secs_f64());
        last = Some(s);
    }
    (row.graph, row.build, row.load) = (median(&mut graph), median(&mut build), median(&mut load));
    row.busy = (median(&mut own), median(&mut children));
    last.ok_or_else(|| Error::internal("nothing was compiled"))
}

/// Returns the batch sizes of the files `NAME.bN.inputs.safetensors` next to the archive,
/// ascending.
fn batches(path: &Path) -> Result<Vec<Option<u64>>> {
    let name = stem(path);
    let dir = path.parent().unwrap_or(Path::new("."));
    let entries =
        std::fs::read_dir(dir).map_err(|e| Error::input(format!("{}: {e}", dir.display())))?;
    let mut out: Vec<u64> = entries
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .filter_map(|f| {
            let rest = f.strip_prefix(&name)?.strip_prefix(".b")?;
            rest.strip_suffix(".inputs.safetensors")?.parse().ok()
        })
        .collect();
    out.sort();
    Ok(out.into_iter().map(Some).collect())
}

/// Runs on the inputs next to the archive (of a batch size) and compares with the expected outputs.
fn check(model: &Model, path: &Path, batch: Option<u64>) -> Result<(String, f64)> {
    let label = batch.map_or("-".into(), |b| b.to_string());
    let infix = batch.map_or(String::new(), |b| format!("b{b}."));
    let file = path.with_extension(format!("{infix}inputs.safetensors"));
    let inputs = run::bind_inputs(model, io::read(&file)?, &file)?;
    let outputs = run::user_outputs(model, model.run(&inputs)?);
    let file = path.with_extension(format!("{infix}expect.safetensors"));
    let expect = io::read(&file)?;
    let mut worst = 0f64;
    for (at, out) in outputs.iter().enumerate() {
        let Value::Tensor(got) = out else { continue };
        let want = expect.get(&at.to_string()).ok_or_else(|| {
            Error::input(format!("no output {at}")).in_file(file.display().to_string())
        })?;
        let e = compare::relative_error(got, want)
            .map_err(|e| e.context(format!("batch {label}, output {at}")))?;
        worst = if e.is_nan() { e } else { worst.max(e) };
    }
    if outputs.iter().any(|o| matches!(o, Value::Tensor(_))) {
        Ok((label, worst))
    } else {
        Err(Error::input("the model has no tensor outputs to check"))
    }
}

/// Latency, in turns with the peers where there are any.
fn latency(path: &Path, model: &Model, inputs: &[Value], a: &Args, row: &mut Row) -> Result<()> {
    let turn = a.seconds / ROUNDS as f64;
    let mut peer = match &a.peer {
        Some(python) => {
            let (peer, first) = Peer::start(python, path, a.keep.as_deref(), a.threads())?;
            let field = |name: &str| first[name].as_f64();
            row.aoti_compile = field("compile_s").zip(field("compile_cpu_s"));
            let eager = &first["eager"];
            row.eager_bytes = eager["rss_peak_bytes"]
                .as_f64()
                .or(eager["alloc_peak_bytes"].as_f64());
            Some(peer)
        }
        None => None,
    };
    let [mut own, mut aoti, mut eager] = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        let l = run::measure(model, inputs, Duration::from_secs_f64(turn))?;
        own.push(l.median.as_secs_f64() * 1e3);
        if let Some(p) = &mut peer {
            aoti.push(p.time("aoti", turn)?.0);
            eager.push(p.time("eager", turn)?.0);
        }
    }
    let against = |peer: &[f64]| {
        let mut ratios: Vec<f64> = peer.iter().zip(&own).map(|(p, o)| p / o).collect();
        (!ratios.is_empty()).then(|| median(&mut ratios))
    };
    (row.aoti_ratio, row.eager_ratio) = (against(&aoti), against(&eager));
    let middle = |mut v: Vec<f64>| (!v.is_empty()).then(|| median(&mut v));
    (row.run, row.aoti, row.eager) = (middle(own), middle(aoti), middle(eager));
    Ok(())
}

/// Prints tables of compile times, latencies and errors, failures, and the verdicts.
fn print(rows: &[Row], failed: &[(String, String)]) {
    let mut t = Table::new(&[
        "cold compile, s",
        "graph",
        "C compiler",
        "load after it",
        "together",
        "processor: own",
        "C compiler",
        "AOTInductor (processor)",
        "kernels",
        "products",
    ]);
    for r in rows {
        let mut cells = vec![r.name.clone()];
        let seconds = [r.graph, r.build, r.load, r.cold(), r.busy.0, r.busy.1];
        cells.extend(seconds.map(|s| format!("{s:.3}")));
        let peer = (r.aoti_compile).map_or("-".into(), |(w, c)| format!("{w:.1} ({c:.1})"));
        cells.extend([peer, r.kernels.to_string(), r.contractions.to_string()]);
        t.row(cells);
    }
    println!();
    t.print();

    let mut t = Table::new(&[
        "latency, ms",
        "inrush",
        "AOTInductor",
        "ratio",
        "eager",
        "ratio",
        "MB a call",
        "eager MB",
        "error",
    ]);
    for r in rows.iter().filter(|r| r.run.is_some()) {
        let error = r.errors.last().map(|e| e.1);
        t.row(vec![
            r.name.clone(),
            number(r.run, 3),
            number(r.aoti, 3),
            number(r.aoti_ratio, 2),
            number(r.eager, 3),
            number(r.eager_ratio, 2),
            format!("{:.2}", r.bytes as f64 / 1e6),
            number(r.eager_bytes.map(|b| b / 1e6), 2),
            error.map_or("-".into(), |e| format!("{e:.1e}")),
        ]);
    }
    println!();
    t.print();

    if rows.iter().any(|r| r.errors.len() > 1) {
        let mut t = Table::new(&["batch size: error"]);
        for r in rows {
            let mut cells = vec![r.name.clone()];
            cells.extend(r.errors.iter().map(|(b, e)| format!("{b}: {e:.1e}")));
            t.row(cells);
        }
        println!();
        t.print();
    }
    println!();
    for (name, e) in failed {
        println!("FAILED  {name}: {e}");
    }
    verdicts(rows);
}

/// Prints which targets were reached.
fn verdicts(rows: &[Row]) {
    let worst = |f: &dyn Fn(&Row) -> Option<f64>| {
        let known = rows
            .iter()
            .filter_map(|r| f(r).map(|v| (v, r.name.as_str())));
        known.max_by(|a, b| a.0.total_cmp(&b.0))
    };
    let line = |what: &str, of: Option<(f64, &str)>, limit: f64| {
        if let Some((v, name)) = of {
            let verdict = if v <= limit { "reached" } else { "MISSED" };
            println!("{verdict:<8}{what}: {v:.3} at worst ({name}), target {limit:.1}");
        }
    };
    line("cold compile, s", worst(&|r| Some(r.cold())), COLD.0);
    line(
        "outside the C compiler, s",
        worst(&|r| Some(r.graph + r.load)),
        COLD.1,
    );
    let memory = |r: &Row| r.eager_bytes.map(|e| r.bytes as f64 / e);
    line("memory of a call / eager's", worst(&memory), 1.0);
    let errors = |r: &Row| r.errors.iter().map(|e| e.1).max_by(f64::total_cmp);
    if let Some((e, name)) = worst(&errors) {
        let verdict = if e <= ERROR { "reached" } else { "MISSED" };
        println!("{verdict:<8}error: {e:.1e} at worst ({name}), target {ERROR:.0e}");
    }
    if let Some((mean, least, name)) = speed(rows) {
        let verdict = if mean >= SPEED.0 { "reached" } else { "MISSED" };
        println!(
            "{verdict:<8}speed over AOTInductor's, geometric mean: {mean:.2}, target {:.1}",
            SPEED.0
        );
        let verdict = if least >= SPEED.1 {
            "reached"
        } else {
            "MISSED"
        };
        println!(
            "{verdict:<8}speed over AOTInductor's, least: {least:.2} ({name}), target {:.2}",
            SPEED.1
        );
    }
}

/// Geometric mean and least of the ratios to AOTInductor.
fn speed(rows: &[Row]) -> Option<(f64, f64, &str)> {
    let ratios: Vec<(f64, &str)> = rows
        .iter()
        .filter_map(|r| Some((r.aoti_ratio?, r.name.as_str())))
        .collect();
    let (least, name) = ratios.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let mean = ratios.iter().map(|r| r.0.ln()).sum::<f64>() / ratios.len() as f64;
    Some((mean.exp(), *least, name))
}

/// Returns the figures as JSON, by the names that scripts read.
fn report(rows: &[Row], failed: &[(String, String)]) -> serde_json::Value {
    let models: Vec<serde_json::Value> = rows
        .iter()
        .map(|r| {
            let errors: serde_json::Map<String, serde_json::Value> = r
                .errors
                .iter()
                .map(|(b, e)| (b.clone(), (*e).into()))
                .collect();
            json!({
                "model": r.name,
                "graph_s": r.graph, "build_s": r.build, "load_s": r.load,
                "own_cpu_s": r.busy.0, "build_cpu_s": r.busy.1,
                "run_ms": r.run, "aoti_ms": r.aoti, "eager_ms": r.eager,
                "aoti_ratio": r.aoti_ratio, "eager_ratio": r.eager_ratio,
                "aoti_compile_s": r.aoti_compile.map(|c| c.0),
                "aoti_compile_cpu_s": r.aoti_compile.map(|c| c.1),
                "peak_bytes": r.bytes, "eager_peak_bytes": r.eager_bytes,
                "kernels": r.kernels, "contractions": r.contractions,
                "errors": errors,
            })
        })
        .collect();
    let failed: serde_json::Map<String, serde_json::Value> = failed
        .iter()
        .map(|(n, e)| (n.clone(), e.clone().into()))
        .collect();
    json!({
        "models": models,
        "failed": failed,
        "geometric_mean": speed(rows).map(|s| s.0),
        "least": speed(rows).map(|s| s.1),
    })
}
