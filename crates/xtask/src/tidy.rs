//! Checks besides tests: documents, words, commit subjects, formatting, lints, and the sentences
//! "does not know" of the layers.
//!
//! A layer that starts to know another one would still compile and pass its tests. So each sentence
//! is a pair of crates here, and the first may not depend on the second, directly or through
//! others.

use crate::{cargo, documents, history, root, sources};
use std::collections::{BTreeMap, BTreeSet};
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
    ("inrush-source", "inrush-loops"),
    ("inrush-source", "inrush-runtime"),
    ("inrush-source", "inrush-cuda"),
    ("inrush-package", "inrush-loops"),
    ("inrush-package", "inrush-graph"),
    ("inrush-compile", "inrush-runtime"),
    ("inrush-compile", "inrush-cpu"),
    ("inrush-compile", "inrush-torch"),
    ("inrush-runtime", "inrush-expr"),
    ("inrush-runtime", "inrush-loops"),
    ("inrush-runtime", "inrush-graph"),
    ("inrush-runtime", "inrush-compile"),
    ("inrush-remote", "inrush-graph"),
    ("inrush-remote", "inrush-compile"),
    ("inrush-capi", "inrush-remote"),
    ("inrush-container", "inrush-remote"),
    ("inrush-runtime-python", "inrush-remote"),
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
    ("inrush-driver", "inrush-loops"),
    ("inrush-driver", "inrush-cuda"),
    ("inrush-driver", "inrush-rocm"),
    ("inrush-cuda", "inrush-loops"),
    ("inrush-cuda", "inrush-rocm"),
    ("inrush-cuda", "inrush-xpu"),
    ("inrush-rocm", "inrush-loops"),
    ("inrush-rocm", "inrush-cuda"),
    ("inrush-xpu", "inrush-loops"),
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
            // The profile of the tests: both run the same build scripts and procedural macros.
            "--release",
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
    let mut broken = features_that_differ()?;
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

/// Packages that the tests and the wheels build by themselves, besides the whole workspace.
const BUILT_ALONE: &[&str] = &[
    "inrush-cli",
    "inrush-container",
    "inrush-filetest",
    "inrush-gpucheck",
    "inrush-python",
    "inrush-runtime-python",
    "xtask",
];

/// Crates that are built with other features on their own than with the whole workspace, by a sentence each. They, and what
/// depends on them, would be built twice.
fn features_that_differ() -> Result<Vec<String>, String> {
    let whole = features(&["--workspace"])?;
    let mut found = Vec::new();
    for package in BUILT_ALONE {
        for (name, alone) in features(&["--package", package])? {
            // Programs that open packages do without the compiler.
            if name.starts_with("inrush-host ") {
                continue;
            }
            let united = whole.get(&name).cloned().unwrap_or_default();
            if alone != united {
                found.push(format!(
                    "`{name}` has the features {alone:?} in a build of {package}, {united:?} in one of the workspace: see crates/inrush-features/Cargo.toml"
                ));
            }
        }
    }
    Ok(found)
}

/// The features of each crate, by name and version, in a build of what `selection` names.
fn features(selection: &[&str]) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let lines = tree(&[selection, &["--format", "{p}|{f}"]].concat())?;
    let mut out: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in lines.lines() {
        if let Some((crate_, features)) = line.split_once('|') {
            // Behind name and version: a folder, and a mark of what was listed before.
            let name: Vec<&str> = crate_.split_whitespace().take(2).collect();
            let features = features.trim_end_matches(" (*)").to_string();
            out.entry(name.join(" ")).or_default().insert(features);
        }
    }
    Ok(out)
}

/// Returns true if `package`, as it is built into others (without dependencies of its tests), depends on
/// `other`. A package that does not exist is an error.
fn depends(package: &str, other: &str) -> Result<bool, String> {
    let text = tree(&["--package", package])?;
    Ok((text.lines()).any(|l| l.split_whitespace().next() == Some(other)))
}

/// Returns what `cargo tree` prints of dependencies that are built in, one a line.
fn tree(args: &[&str]) -> Result<String, String> {
    let out = Command::new(env!("CARGO"))
        .args(["tree", "--edges", "normal,build", "--prefix", "none"])
        .args(args)
        .current_dir(root())
        .output()
        .map_err(|e| format!("cargo tree: {e}"))?;
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr);
        return Err(format!("cargo tree {}: {why}", args.join(" ")));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
