//! All tests, with what they need set up first.

use crate::{cargo, docs, fuzz, root, run, tidy};
use std::process::{Command, Stdio};

/// How long each fuzz target runs with the tests.
const FUZZ_SECONDS: u32 = 20;

/// Tidy, docs, then every test of the workspace in release mode; the operator cases are written by PyTorch first. At the end
/// the fuzz targets, for a bounded time.
pub fn test(no_python: bool, no_fuzz: bool) -> Result<(), String> {
    step("formatting, lints, layers");
    tidy::tidy()?;
    docs::docs(true)?;
    let mut env: Vec<(&str, String)> = Vec::new();
    if !no_python {
        step("Python environment (a minute or two the first time)");
        let python = python("setup_env.py")?;
        step("operator cases");
        let cases = root().join("target").join("op_cases");
        run(Command::new(&python)
            .arg(root().join("python").join("gen_op_cases.py"))
            .arg(&cases))?;
        env.push(("INRUSH_OP_CASES", cases.display().to_string()));
        env.push(("INRUSH_PYTHON", python));
    }
    step("tests");
    let env: Vec<(&str, &str)> = env.iter().map(|(k, v)| (*k, v.as_str())).collect();
    cargo(&["test", "--release", "--workspace"], &env)?;
    if !no_fuzz {
        step("fuzz targets");
        fuzz::fuzz(FUZZ_SECONDS, None)?;
    }
    Ok(())
}

fn step(what: &str) {
    eprintln!("==> {what}");
}

/// Runs the set-up script with the machine's Python; gives the interpreter of the environment, its last line.
fn python(script: &str) -> Result<String, String> {
    let out = Command::new("python3")
        .arg(root().join("python").join(script))
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("python3 (3.10 or later) is needed for the operator cases: {e}; --no-python leaves them out"))?;
    if !out.status.success() {
        return Err(format!("python/{script} failed ({})", out.status));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines()
        .last()
        .map(str::to_string)
        .ok_or_else(|| format!("python/{script} named no interpreter"))
}
