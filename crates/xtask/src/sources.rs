//! Checks of the sources that no lint makes: words of comments, and what a pure crate must not
//! touch.
//!
//! Both are searches for words in lines. They are coarse (a string could hold such a word), and it
//! is easy to see why they fire. Code after `#[cfg(test)]` may read files and clocks.

use crate::root;
use std::path::{Path, PathBuf};

/// Crates whose comments are checked. A crate is added once it is clean.
const PLAIN: &[&str] = &[
    "inrush-alloc",
    "inrush-aten",
    "inrush-base",
    "inrush-bench",
    "inrush-c",
    "inrush-capi",
    "inrush-cli",
    "inrush-compile",
    "inrush-container",
    "inrush-cpu",
    "inrush-cuda",
    "inrush-devices",
    "inrush-driver",
    "inrush-emulator",
    "inrush-expr",
    "inrush-filetest",
    "inrush-gpucheck",
    "inrush-graph",
    "inrush-host",
    "inrush-interp",
    "inrush-kernel",
    "inrush-library",
    "inrush-loops",
    "inrush-opcases",
    "inrush-package",
    "inrush-passes",
    "inrush-program",
    "inrush-python",
    "inrush-remote",
    "inrush-replay",
    "inrush-rocm",
    "inrush-runtime",
    "inrush-runtime-python",
    "inrush-sched",
    "inrush-source",
    "inrush-torch",
    "inrush-triton",
    "inrush-xpu",
    "xtask",
];

/// Words that documentation comments do not use, with what to write instead.
const IDIOMS: &[(&str, &str)] = &[
    ("behind", "after, or the name of the relation"),
    (
        "beside",
        "next to, in parallel, besides, or a standard term",
    ),
    ("lie", "be, be stored, start"),
    ("lies", "is, is stored, starts"),
    ("nobody", "nothing, no caller, no reader"),
    ("settled", "decided, known, or a standard term"),
];

/// Words with which no documentation comment begins: a function does something, a type is something.
const OPENINGS: &[(&str, &str)] = &[
    (
        "Whether",
        "Returns true if (of a function), True if (of a field)",
    ),
    ("What", "a verb or a noun"),
];

/// Exceptions: a file in which a word is right.
const ALLOWED: &[(&str, &str)] = &[("xtask/src/sources.rs", "nobody")];

/// Crates that compile: what they give depends on their arguments only.
const PURE: &[&str] = &[
    "inrush-expr",
    "inrush-graph",
    "inrush-loops",
    "inrush-aten",
    "inrush-passes",
    "inrush-sched",
    "inrush-kernel",
    "inrush-c",
    "inrush-triton",
    "inrush-program",
    "inrush-source",
    "inrush-compile",
];

/// Ways to the outside.
const OUTSIDE: &[&str] = &[
    "std::env::",
    "std::fs",
    "std::net",
    "std::process",
    "Instant::now",
    "SystemTime",
];

/// Words that name a kind of device. Decisions read capabilities; names come from the list of devices.
const DEVICES: &[&str] = &["cuda", "rocm", "xpu"];

/// Sources that may name a kind of device, by the start of their path, with the reason.
const NAMES_DEVICES: &[(&str, &str)] = &[
    ("inrush-cuda/", "the device's crate"),
    ("inrush-rocm/", "the device's crate"),
    ("inrush-xpu/", "the device's crate"),
    ("inrush-devices/", "the list of devices"),
    (
        "inrush-python/src/host/device_graphs.rs",
        "PyTorch's captures of calls, which one kind of device has",
    ),
    (
        "inrush-python/src/host/torch.rs",
        "PyTorch's function for a handle of cuBLAS",
    ),
    (
        "inrush-python/src/host/engine.rs",
        "an option of the user's, by its name",
    ),
    (
        "inrush-python/src/callable.rs",
        "an option of the user's, by its name",
    ),
    (
        "inrush-triton/src/programmatic_launch.rs",
        "the module of Triton that has the instruction",
    ),
    ("inrush-cli/src/args.rs", "an example in the help"),
    (
        "inrush-host/src/native/dlpack.rs",
        "DLPack's names of memory of GPUs",
    ),
    (
        "inrush-runtime-python/src/device.rs",
        "protocols of Python for streams",
    ),
    (
        "inrush-runtime-python/src/model.rs",
        "an option of the user's, by its name",
    ),
    (
        "inrush-runtime/src/dlpack.rs",
        "DLPack's name of pinned memory of the CPU",
    ),
    (
        "inrush-container/src/",
        "the interface of PyTorch's loader: functions and fields of one kind of device",
    ),
    (
        "inrush-package/src/aoti.rs",
        "PyTorch's name for a package's device",
    ),
    (
        "inrush-python/src/package/device.rs",
        "an option of the user's, by its name",
    ),
    ("xtask/", "crates by name, and targets of tests"),
];

/// Checks all sources. Gives one line for each mistake.
pub(crate) fn check() -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for package in PLAIN {
        for (path, text) in sources(package)? {
            wrong.extend(idioms(&path, &text));
        }
    }
    for package in PURE {
        for (path, text) in sources(&format!("{package}/src"))? {
            wrong.extend(reaches_outside(&path, &text));
        }
    }
    for (path, text) in sources("")? {
        if path.contains("/src/") {
            wrong.extend(names_devices(&path, &text));
        }
    }
    Ok(wrong)
}

/// Finds where the code of a file, ahead of its tests, names a kind of device.
fn names_devices(path: &str, text: &str) -> Vec<String> {
    if is_test_only(path)
        || NAMES_DEVICES
            .iter()
            .any(|(start, _)| path.starts_with(start))
    {
        return Vec::new();
    }
    let code = text.lines().take_while(|l| l.trim() != "#[cfg(test)]");
    let mut out = Vec::new();
    for (at, line) in code.enumerate() {
        let line = line.to_lowercase();
        if let Some(device) = DEVICES.iter().find(|d| line.contains(**d)) {
            out.push(format!(
                "{path}:{}: `{device}` outside of the devices' crates: ask `inrush-devices`",
                at + 1
            ));
        }
    }
    out
}

/// Reads the Rust files of a folder below `crates`, in order, with their paths from there.
fn sources(folder: &str) -> Result<Vec<(String, String)>, String> {
    let crates = root().join("crates");
    let mut paths = Vec::new();
    walk(&crates.join(folder), &mut paths)?;
    paths.sort();
    let read = |p: PathBuf| {
        let text = std::fs::read_to_string(&p).map_err(|e| format!("{}: {e}", p.display()))?;
        let name = p.strip_prefix(&crates).unwrap_or(&p);
        Ok((name.display().to_string(), text))
    };
    paths.into_iter().map(read).collect()
}

/// Collects the Rust files below a folder.
fn walk(folder: &Path, out: &mut Vec<PathBuf>) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            walk(&path, out)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
    Ok(())
}

/// Finds idioms in the documentation comments of a file.
fn idioms(path: &str, text: &str) -> Vec<String> {
    let mut out = Vec::new();
    // True within a block of comment lines: only its first line is an opening.
    let mut inside = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let comment = line
            .strip_prefix("///")
            .or_else(|| line.strip_prefix("//!"));
        let Some(comment) = comment else {
            inside = false;
            continue;
        };
        let plain = without_code(comment);
        let mut words = plain.split(|c: char| !c.is_alphanumeric() && c != '_');
        let first = words.clone().find(|w| !w.is_empty());
        if let Some((word, instead)) = OPENINGS.iter().find(|o| !inside && first == Some(o.0)) {
            out.push(format!(
                "{path}:{}: a comment begins with `{word}`: write {instead}",
                at + 1
            ));
        }
        inside = true;
        let found = |w: &str| IDIOMS.iter().find(|i| w.eq_ignore_ascii_case(i.0));
        if let Some((word, instead)) = words.find_map(found)
            && !ALLOWED.contains(&(path, word))
        {
            out.push(format!(
                "{path}:{}: `{word}` in a comment: write {instead}",
                at + 1
            ));
        }
    }
    out
}

/// A comment without its code spans.
fn without_code(comment: &str) -> String {
    comment.split('`').step_by(2).collect()
}

/// Finds where the code of a file, ahead of its tests, goes to files, clocks, processes or the environment.
fn reaches_outside(path: &str, text: &str) -> Vec<String> {
    if is_test_only(path) {
        return Vec::new();
    }
    let code = text.lines().take_while(|l| l.trim() != "#[cfg(test)]");
    let mut out = Vec::new();
    for (at, line) in code.enumerate() {
        if let Some(what) = OUTSIDE.iter().find(|o| line.contains(**o)) {
            out.push(format!(
                "{path}:{}: `{what}` in a crate that is pure",
                at + 1
            ));
        }
    }
    out
}

/// Returns true for files that are modules of tests: their parent declares them under `#[cfg(test)]`.
fn is_test_only(path: &str) -> bool {
    path.ends_with("/tests.rs") || path == "inrush-aten/src/flat.rs"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idioms_are_found_in_documentation_only() {
        let text = "//! Whether it lies.\n\
                    /// Returns `beside`.\n\
                    /// What follows is the second line.\n\
                    // beside\n\
                    /// Nobody's.\n\
                    fn behind() {}\n";
        let lines: Vec<String> = idioms("f.rs", text)
            .iter()
            .map(|l| l.split(": ").next().unwrap_or_default().to_string())
            .collect();
        assert_eq!(lines, ["f.rs:1", "f.rs:1", "f.rs:5"]);
    }

    #[test]
    fn devices_are_named_in_their_crates_only() {
        let text =
            "use inrush_cuda::DEVICE;\n#[cfg(test)]\nmod tests { const NAME: &str = \"cuda\"; }\n";
        assert_eq!(names_devices("inrush-host/src/a.rs", text).len(), 1);
        assert_eq!(names_devices("inrush-cuda/src/a.rs", text).len(), 0);
        for (path, reason) in NAMES_DEVICES {
            assert!(root().join("crates").join(path).exists(), "{path}");
            assert!(!reason.is_empty());
        }
    }

    #[test]
    fn clocks_are_found_ahead_of_the_tests() {
        let text = "let t = Instant::now();\n#[cfg(test)]\nmod tests { use std::fs; }\n";
        assert_eq!(reaches_outside("x/src/a.rs", text).len(), 1);
        assert_eq!(reaches_outside("x/src/tests.rs", text).len(), 0);
    }
}
