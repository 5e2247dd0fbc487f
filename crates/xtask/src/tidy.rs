//! Checks besides tests: documents, words, commit subjects, formatting, lints, and the sentences
//! "does not know" of the layers.
//!
//! A layer that starts to know another one would still compile and pass its tests. So each sentence
//! is a pair of crates here, and the first may not depend on the second, directly or through
//! others.

use crate::{cargo, documents, history, root, sources};
use std::process::Command;

/// A crate and one that must not be among what it is built from.
const DOES_NOT_KNOW: &[(&str, &str)] = &[
    ("inrush-base", "inrush-expr"),
    ("inrush-expr", "inrush-loops"),
    ("inrush-graph", "inrush-aten"),
    ("inrush-graph", "inrush-loops"),
    ("inrush-loops", "inrush-graph"),
    ("inrush-aten", "inrush-sched"),
    ("inrush-aten", "inrush-kernel"),
    ("inrush-passes", "inrush-sched"),
    ("inrush-passes", "inrush-kernel"),
    ("inrush-passes", "inrush-program"),
    ("inrush-sched", "inrush-graph"),
    ("inrush-sched", "inrush-kernel"),
    ("inrush-kernel", "inrush-c"),
    ("inrush-kernel", "inrush-sched"),
    ("inrush-c", "inrush-sched"),
    ("inrush-program", "inrush-kernel"),
    ("inrush-program", "inrush-loops"),
    ("inrush-package", "inrush-loops"),
    ("inrush-package", "inrush-graph"),
    ("inrush-compile", "inrush-runtime"),
    ("inrush-compile", "inrush-cpu"),
    ("inrush-compile", "inrush-torch"),
    ("inrush-runtime", "inrush-expr"),
    ("inrush-runtime", "inrush-loops"),
    ("inrush-runtime", "inrush-graph"),
    ("inrush-runtime", "inrush-compile"),
    ("inrush-capi", "inrush-expr"),
    ("inrush-capi", "inrush-compile"),
    ("inrush-container", "inrush-expr"),
    ("inrush-container", "inrush-graph"),
    ("inrush-container", "inrush-compile"),
    ("inrush-runtime-python", "inrush-expr"),
    ("inrush-runtime-python", "inrush-graph"),
    ("inrush-runtime-python", "inrush-compile"),
    ("inrush-runtime-python", "inrush-torch"),
    ("inrush-host", "pyo3"),
    ("inrush-host", "inrush-python"),
    ("inrush-host", "inrush-torch"),
    ("inrush-host", "inrush-compile"),
    ("inrush-host", "inrush-graph"),
    ("inrush-host", "inrush-expr"),
    ("inrush-package", "inrush-devices"),
    ("inrush-cpu", "inrush-loops"),
    ("inrush-cpu", "inrush-compile"),
    ("inrush-library", "inrush-loops"),
    ("inrush-library", "inrush-compile"),
    ("inrush-library", "inrush-program"),
    ("inrush-triton", "inrush-sched"),
    ("inrush-triton", "inrush-c"),
    ("inrush-cuda", "inrush-loops"),
    ("inrush-cuda", "inrush-rocm"),
    ("inrush-cuda", "inrush-xpu"),
    ("inrush-rocm", "inrush-cuda"),
    ("inrush-xpu", "inrush-cuda"),
    ("inrush-devices", "inrush-compile"),
    ("inrush-devices", "inrush-loops"),
    ("inrush-interp", "inrush-sched"),
    ("inrush-interp", "inrush-c"),
    ("inrush-interp", "inrush-triton"),
];

/// Runs all checks, the fast ones first.
pub(crate) fn tidy() -> Result<(), String> {
    let wrong = [documents::check()?, sources::check()?, history::check()?].concat();
    if !wrong.is_empty() {
        return Err(wrong.join("\n"));
    }
    // Mistakes in texts were reported together; from here on the first failure ends the run.
    cargo(&["fmt", "--all", "--check"], &[])?;
    cargo(
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ],
        &[],
    )?;
    // Asked of cargo itself, so that a dependency through a third crate counts.
    let mut broken = Vec::new();
    for (package, other) in DOES_NOT_KNOW {
        if depends(package, other)? {
            broken.push(format!("{package} knows {other}"));
        }
    }
    if broken.is_empty() {
        Ok(())
    } else {
        Err(broken.join("\n"))
    }
}

/// Returns true if `package`, as it is built into others (without dependencies of its tests), depends on
/// `other`. A package that does not exist depends on nothing.
fn depends(package: &str, other: &str) -> Result<bool, String> {
    let out = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--package",
            package,
            "--edges",
            "normal,build",
            "--prefix",
            "none",
        ])
        .current_dir(root())
        .output()
        .map_err(|e| format!("cargo tree: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    Ok((text.lines()).any(|l| l.split_whitespace().next() == Some(other)))
}
