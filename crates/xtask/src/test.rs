//! All tests, with what they need set up first.
//!
//! ```text
//! tidy, docs -> Python environment -> operator cases -> GPU kernels -> cargo test
//!            -> wheels: torch.compile, packages, drawn programs, public models -> drawn graphs
//! ```
//!
//! Fast checks come first, and random tests last: their failures are no reason to miss what the
//! others say. Each commit has seeds of its own, so that a failure repeats. A tool that cannot be had (clang, an emulator, public models) is
//! skipped with a line that says so.

use crate::{cargo, docs, fuzz, root, run, tidy, wrapper};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// How long each fuzz target runs with the tests.
const FUZZ_SECONDS: u32 = 20;
/// How many things are drawn, so that a commit is checked alike on every machine, and the seconds after which a slow machine stops.
/// Strategies that none took are looked for after that.
struct Draws {
    count: &'static str,
    seconds: u32,
}

/// Graphs on every level of this processor.
const GRAPHS: Draws = Draws {
    count: "300",
    seconds: 240,
};
/// Graphs whose block programs are interpreted.
const BLOCKS: Draws = Draws {
    count: "300",
    seconds: 120,
};
/// Graphs whose kernels run in the emulator, several a second once clang has built its C library, which takes it 20 s the first
/// time.
const NEON: Draws = Draws {
    count: "100",
    seconds: 120,
};
/// Programs of PyTorch, in one process and in several.
const PROGRAMS: Draws = Draws {
    count: "96",
    seconds: 180,
};

/// Public models that are compiled with the tests, others for each commit.
const SURVEYED: &str = "8";

/// Tidy, docs, then every test of the workspace in release mode; the operator cases are written by PyTorch first. At the end
/// graphs are drawn, and `with_fuzz` the fuzz targets run, each for a bounded time. Without `every_case` some of the programs
/// for GPUs run, and some cases of Python tests with many.
pub(crate) fn test(no_python: bool, every_case: bool, with_fuzz: bool) -> Result<(), String> {
    let seed = SEED.get_or_init(commit_seed);
    step(&format!("formatting, lints, layers (INRUSH_SEED={seed})"));
    tidy::tidy()?;
    docs::docs(true)?;
    // Whatever runs compiled code runs it in poisoned memory.
    let mut env: Vec<(&str, String)> =
        vec![("INRUSH_POISON", "1".into()), ("INRUSH_VERIFY", "1".into())];
    if !no_python {
        step("Python environment (a minute or two the first time)");
        let python = python("setup_env.py")?;
        step("operator cases");
        let cases = root().join("target").join("op_cases");
        run(Command::new(&python)
            .arg(root().join("python").join("gen_op_cases.py"))
            .arg(&cases))?;
        gpu_kernels(&python, every_case)?;
        if let Some((clang, unicorn)) = clang() {
            env.push(("INRUSH_CLANG", clang));
            env.push(("INRUSH_UNICORN", unicorn));
        }
        env.push(("INRUSH_OP_CASES", cases.display().to_string()));
        env.push(("INRUSH_PYTHON", python));
    }
    step("tests");
    let interpreter = (env.iter().find(|e| e.0 == "INRUSH_PYTHON")).map(|(_, p)| p.clone());
    let built = [&env[..], &wrapper::env()].concat();
    let built: Vec<(&str, &str)> = built.iter().map(|(k, v)| (*k, v.as_str())).collect();
    cargo(&["test", "--release", "--workspace"], &built)?;
    let env: Vec<(&str, &str)> = env.iter().map(|(k, v)| (*k, v.as_str())).collect();
    if let Some(python) = interpreter {
        torch_compile(&python, every_case)?;
    }
    step("drawn graphs");
    draw_graphs(&GRAPHS, &["--reach", "yes"], &[])?;
    step("drawn graphs as block programs, interpreted");
    draw_graphs(&BLOCKS, &["--level", "h100", "--reach", "yes"], &[])?;
    if env
        .iter()
        .any(|(k, v)| *k == "INRUSH_UNICORN" && !v.is_empty())
    {
        step("drawn graphs for NEON, in the emulator");
        draw_graphs(&NEON, &["--level", "neon"], &env)?;
    }
    if with_fuzz {
        step("fuzz targets");
        fuzz::fuzz(FUZZ_SECONDS, None, &[])?;
    }
    Ok(())
}

/// Draws graphs in two processes.
fn draw_graphs(draws: &Draws, more: &[&str], env: &[(&str, &str)]) -> Result<(), String> {
    let args = [&["--jobs", "2", "--count", draws.count], more].concat();
    let args: Vec<String> = args.into_iter().map(String::from).collect();
    fuzz::graphs(draws.seconds, &args, env)
}

/// Runs PyTorch's operator samples against a fresh wheel and writes `docs/coverage.md`.
pub(crate) fn coverage(args: &[String]) -> Result<(), String> {
    let python = python("setup_env.py")?;
    install(&python)?;
    step("operator samples");
    run(Command::new(&python)
        .arg(root().join("python").join("op_db"))
        .arg("--table")
        .arg(root().join("docs").join("coverage.md"))
        .args(args))
}

/// Compiles public models with a fresh wheel and compares them with eager.
pub(crate) fn survey(args: &[String]) -> Result<(), String> {
    install(&python("setup_env.py")?)?;
    let python = python_with("setup_env.py", &["--survey"])?;
    step("public models");
    run(Command::new(python)
        .arg(root().join("python").join("survey"))
        .args(args))
}

/// Compiles a few public models with the wheel that is installed.
fn survey_some() -> Result<(), String> {
    step("packages of public models (50 MB the first time)");
    let python = match python_with("setup_env.py", &["--survey"]) {
        Ok(python) => python,
        Err(why) => {
            eprintln!(
                "skipped: public models are not compiled, their packages are not there: {why}"
            );
            return Ok(());
        }
    };
    step("public models");
    run(Command::new(python)
        .arg(root().join("python").join("survey"))
        .args(["--some", SURVEYED, "--workers", &workers(4)]))
}

/// As many processes as there are processors, up to a limit.
fn workers(most: usize) -> String {
    let found = std::thread::available_parallelism().map_or(1, |n| n.get());
    found.min(most).to_string()
}

/// Runs the tests of `torch.compile` against a fresh wheel.
fn torch_compile(python: &str, every_case: bool) -> Result<(), String> {
    install(python)?;
    step("torch.compile");
    run(Command::new(python)
        .envs(every_case.then_some(("INRUSH_EVERY_CASE", "1")))
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .args([
            "-n",
            &workers(4),
            "--dist",
            "worksteal",
            "--durations",
            "15",
        ])
        .arg(root().join("python").join("tests")))?;
    step("programs drawn by chance");
    run(Command::new(python)
        .arg(root().join("python").join("drawn"))
        .args(["--fresh", "--pairs", "12"])
        .args(["--count", PROGRAMS.count])
        .args(["--seconds", &PROGRAMS.seconds.to_string()])
        .args(["--workers", &workers(8)]))?;
    survey_some()
}

/// Builds the wheels and installs them into the environment: `inrush`, with the library for packages of format `aoti`, and
/// `inrush-runtime`, whose crates are among those of the first.
fn install(python: &str) -> Result<(), String> {
    step("wheels");
    let wheels = root().join("target").join("wheels");
    // Only what is built now is installed below.
    if wheels.exists() {
        std::fs::remove_dir_all(&wheels).map_err(|e| format!("{}: {e}", wheels.display()))?;
    }
    let container = ["build", "--release", "--package", "inrush-container"];
    cargo(&container, &[])?;
    let name = format!(
        "{}inrush_container{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    let built = root().join("target").join("release").join(&name);
    let shipped = root().join("python").join("inrush").join(&name);
    std::fs::copy(&built, shipped).map_err(|e| format!("{}: {e}", built.display()))?;
    let projects = [root(), root().join("python").join("inrush-runtime")];
    for project in &projects {
        // The same folder and profile as above, so that most crates are not built again.
        run(Command::new(python)
            .args(["-m", "maturin", "build", "--release", "--out"])
            .arg(&wheels)
            .env("CARGO_TARGET_DIR", root().join("target"))
            .current_dir(project))?;
    }
    let made: Vec<_> = std::fs::read_dir(&wheels)
        .map_err(|e| format!("{}: {e}", wheels.display()))?
        .filter_map(|f| f.ok().map(|f| f.path()))
        .filter(|f| f.extension().is_some_and(|e| e == "whl"))
        .collect();
    if made.len() != projects.len() {
        return Err(format!("maturin made {} wheels", made.len()));
    }
    run(Command::new(python)
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ])
        .args(["--no-deps", "--force-reinstall"])
        .args(made))
}

/// A clang with all targets and the library of an emulator, from an environment of their own: tests build C for vectors that
/// this machine may not have, and run that for NEON.
fn clang() -> Option<(String, String)> {
    step("clang and an emulator (120 MB the first time)");
    let zig = "import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), 'zig'))";
    let unicorn = "import os, unicorn; print(os.path.join(os.path.dirname(unicorn.__file__), 'lib', 'libunicorn.so.2'))";
    let found = python_with("setup_env.py", &["--clang"]).and_then(|python| {
        let at = |code| output(Command::new(&python).args(["-c", code]));
        Ok((at(zig)?, at(unicorn)?))
    });
    match found {
        // A test splits the words of this.
        Ok((path, library)) if !path.contains(char::is_whitespace) => {
            let there = std::path::Path::new(&library).exists();
            if !there {
                eprintln!("skipped: kernels for NEON do not run, there is no `{library}`");
            }
            Some((
                format!("{path} cc"),
                if there { library } else { String::new() },
            ))
        }
        other => {
            let why = other.err().unwrap_or_else(|| "its path has spaces".into());
            eprintln!(
                "skipped: C for NEON and by clang is neither built nor run, there is no clang: {why}"
            );
            None
        }
    }
}

/// Kernels that one run builds for each GPU.
const GPU_BUILDS: &str = "40";

/// Of so many programs for GPUs one runs, which ones the seed decides.
const GPU_SHARE: &str = "2";

/// Graphs that are drawn for GPUs; the interpreter takes half a second for one.
const GPU_DRAWN: &str = "16";

/// The kernels of the file tests and of drawn graphs for GPUs, without a GPU: built by Triton, run in its interpreter.
fn gpu_kernels(python: &str, every_case: bool) -> Result<(), String> {
    let share = if every_case { "1" } else { GPU_SHARE };
    step("GPU kernels");
    let found = Command::new(python)
        .args(["-c", "import triton, safetensors"])
        .stderr(Stdio::null())
        .status();
    if !found.is_ok_and(|s| s.success()) {
        eprintln!("the Python environment has no triton: GPU kernels are neither built nor run");
        return Ok(());
    }
    let folder = root().join("target").join("gpu_kernels");
    _ = std::fs::remove_dir_all(&folder);
    let folder = folder.display().to_string();
    let tests = root().join("tests").display().to_string();
    let drawn = root().join("target").join("drawn_for_gpus");
    _ = std::fs::remove_dir_all(&drawn);
    let drawn = drawn.display().to_string();
    let command = [
        "--bin",
        "drawn-graphs",
        "--",
        "--count",
        GPU_DRAWN,
        "--write",
    ];
    let run_quietly = [
        "run",
        "--release",
        "--quiet",
        "--package",
        "inrush-filetest",
    ];
    cargo(&[&run_quietly[..], &command, &[&drawn]].concat(), &[])?;
    let products = root().join("target").join("drawn_products_for_gpus");
    _ = std::fs::remove_dir_all(&products);
    let products = products.display().to_string();
    let family = ["--family", "product of halves"];
    cargo(
        &[
            &run_quietly[..],
            &command[..3],
            &family,
            &command[3..],
            &[&products],
        ]
        .concat(),
        &[],
    )?;
    cargo(
        &[
            "run",
            "--release",
            "--quiet",
            "--package",
            "inrush-gpucheck",
            "--",
            &folder,
            "cuda:h100",
            "together",
            "tests",
            &tests,
            "pointers",
            "block",
            "tests",
            &tests,
            "pointers",
            "descriptor",
            "tests",
            &tests,
            "pointers",
            "map",
            "tests",
            &tests,
            "tests",
            &products,
            "pointers",
            "plain",
            "tests",
            &drawn,
        ],
        &[],
    )?;
    let check = |folder: &str, more: &[&str]| {
        let check = root().join("python").join("triton_check.py");
        run(Command::new(python).arg(check).arg(folder).args(more))
    };
    check(&folder, &["--build", "cuda:90", "--limit", GPU_BUILDS])?;
    check(&folder, &["--run", "--share", share, "--jobs", &workers(8)])?;
    // The text of a kernel depends on the vendor: products in float64 have no `tl.dot` on some.
    let second = format!("{folder}_amd");
    _ = std::fs::remove_dir_all(&second);
    let gpucheck = [
        "run",
        "--release",
        "--quiet",
        "--package",
        "inrush-gpucheck",
        "--",
    ];
    let sources = [&second, "rocm:mi300x", "tests", &tests, "tests", &drawn];
    cargo(&[&gpucheck[..], &sources].concat(), &[])?;
    check(&second, &["--build", "hip:gfx942", "--limit", GPU_BUILDS])?;
    let products = ["--run", "--filter", "gpu_tile", "--jobs", &workers(2)];
    check(&second, &products)
}

/// The seed of this run of the tests, once it has one.
static SEED: OnceLock<String> = OnceLock::new();

/// Returns the environment variable that tells tests where to begin to draw.
pub(crate) fn seed() -> Option<(&'static str, &'static str)> {
    SEED.get().map(|s| ("INRUSH_SEED", s.as_str()))
}

/// Returns `INRUSH_SEED`, else a number that the commit decides, else one from the clock.
fn commit_seed() -> String {
    if let Ok(given) = std::env::var("INRUSH_SEED") {
        return given;
    }
    let commit = output(Command::new("git").args(["rev-parse", "--short=8", "HEAD"]));
    let found = commit
        .ok()
        .and_then(|c| u32::from_str_radix(c.get(..8)?, 16).ok());
    let clock = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |d| d.as_secs())
    };
    found.map_or_else(|| clock().to_string(), |n| n.to_string())
}

/// Announces a step, with the minutes and seconds since the first.
fn step(what: &str) {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let passed = FIRST.get_or_init(Instant::now).elapsed().as_secs();
    eprintln!("==> {:02}:{:02} {what}", passed / 60, passed % 60);
}

/// Runs the set-up script with the machine's Python; gives the interpreter of the environment, its last line.
fn python(script: &str) -> Result<String, String> {
    python_with(script, &[])
}

/// As [`python`], with arguments for the script.
fn python_with(script: &str, args: &[&str]) -> Result<String, String> {
    let path = root().join("python").join(script);
    output(Command::new("python3").arg(path).args(args)).map_err(|e| {
        format!("python/{script}: {e}; --no-python leaves out what needs Python 3.10 or later")
    })
}

/// The last line of what a command prints.
fn output(command: &mut Command) -> Result<String, String> {
    let out = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| e.to_string())?;
    if !out.status.success() {
        return Err(format!("failed ({})", out.status));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines()
        .last()
        .map(|l| l.trim().to_string())
        .ok_or_else(|| "printed nothing".into())
}
