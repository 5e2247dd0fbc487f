//! Facts about operators are properties of their rows: no other source lists operators by name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Folders whose sources make graphs or test operators.
const MAKES_GRAPHS: &[&str] = &[
    "inrush-bench",
    "inrush-filetest",
    "inrush-gpucheck",
    "inrush-opcases",
];

/// Sources that name operators, and why that is no fact about the operator.
const NAMES_OPERATORS: &[(&str, &str)] = &[
    (
        "inrush-passes/src",
        "a rewrite names the operators that it matches and makes",
    ),
    (
        "inrush-host/src/native/lower.rs",
        "which operators this host's library has is a fact of the host",
    ),
    (
        "inrush-python/src/host/aten_library.rs",
        "the binding of a library's functions, argument by argument",
    ),
    (
        "inrush-interp/src/graph",
        "definitions of its own, which rows are tested against",
    ),
    (
        "inrush-torch/src/convert/control.rs",
        "the importer makes calls of predicates on sizes",
    ),
];

/// Files with lists of words that are operators' names too.
const OTHER_WORDS: &[(&str, &str)] = &[("inrush-c/src/libm.rs", "functions of the C library")];

/// The length from which on names in a row are a list.
const LIST: usize = 3;

#[test]
fn operators_are_not_listed_outside_their_rows() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let names: BTreeSet<&str> = inrush_aten::rows()
        .filter_map(|r| r.name.split('.').nth(1))
        .collect();
    for (path, _) in NAMES_OPERATORS.iter().chain(OTHER_WORDS) {
        assert!(
            crates.join(path).exists(),
            "{path} is excepted but not there"
        );
    }
    let mut found = Vec::new();
    for (path, text) in sources(&crates) {
        if NAMES_OPERATORS.iter().any(|(p, _)| path.starts_with(p)) {
            continue;
        }
        let code = code(&text);
        // The name space alone names no operator.
        let named = |s: &str| s.strip_prefix("aten.").is_some_and(|n| !n.is_empty());
        for (line, _) in strings(&code).filter(|(_, s)| named(s)) {
            found.push(format!("{path}:{line}: an operator's name"));
        }
        if !OTHER_WORDS.iter().any(|(p, _)| path == *p) {
            found
                .extend(lists(&code, &names).map(|line| format!("{path}:{line}: a list of names")));
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn lists_and_names_are_found() {
    let names = BTreeSet::from(["sort", "topk", "msort"]);
    let code = "let a = [\"sort\", \"topk\"];\nmatches!(x, \"sort\" | \"topk\"\n| \"msort\");\n";
    assert_eq!(lists(code, &names).collect::<Vec<_>>(), [2]);
    let names: Vec<_> = strings("f(\"aten.add.Tensor\", \"x\")").collect();
    assert_eq!(names, [(1, "aten.add.Tensor"), (1, "x")]);
}

/// Reads the Rust sources of all crates but this one, with their paths below `crates`.
fn sources(crates: &Path) -> Vec<(String, String)> {
    let mut paths = Vec::new();
    let entries = std::fs::read_dir(crates).expect("the folder of the crates");
    for entry in entries {
        let folder = entry.expect("an entry").path();
        let name = folder.file_name().and_then(|n| n.to_str()).unwrap_or("");
        if name != "inrush-aten" && !MAKES_GRAPHS.contains(&name) {
            walk(&folder.join("src"), &mut paths);
        }
    }
    paths.sort();
    assert!(paths.len() > 200, "the sources are here");
    let read = |p: PathBuf| {
        let text = std::fs::read_to_string(&p).expect("a source");
        let name = p.strip_prefix(crates).expect("a path below").display();
        (name.to_string(), text)
    };
    let tests =
        |p: &PathBuf| p.ends_with("tests.rs") || p.components().any(|c| c.as_os_str() == "tests");
    paths.into_iter().filter(|p| !tests(p)).map(read).collect()
}

fn walk(folder: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            walk(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// Returns a file's code ahead of its tests, without comments on lines of their own.
fn code(text: &str) -> String {
    let lines = text.lines().take_while(|l| l.trim() != "#[cfg(test)]");
    let lines = lines.map(|l| {
        if l.trim_start().starts_with("//") {
            ""
        } else {
            l
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the string literals of a source, with their lines. Escapes are rare enough to be ignored.
fn strings(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut line = 1;
    code.split('"').enumerate().filter_map(move |(k, part)| {
        let at = line;
        line += part.matches('\n').count();
        (k % 2 == 1).then_some((at, part))
    })
}

/// Returns the lines on which [`LIST`] or more operators' names follow each other, with nothing but
/// commas or bars between them.
fn lists(code: &str, names: &BTreeSet<&str>) -> impl Iterator<Item = usize> {
    let mut out = Vec::new();
    let (mut count, mut line, mut begins) = (0, 1, 1);
    for (k, part) in code.split('"').enumerate() {
        let joins = part
            .chars()
            .all(|c| c.is_whitespace() || c == ',' || c == '|');
        let goes_on = if k % 2 == 1 {
            names.contains(part)
        } else {
            joins
        };
        if !goes_on {
            count = 0;
        } else if k % 2 == 1 {
            if count == 0 {
                begins = line;
            }
            count += 1;
            if count == LIST {
                out.push(begins);
            }
        }
        line += part.matches('\n').count();
    }
    out.into_iter()
}
