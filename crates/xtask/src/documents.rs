//! Checks of the documents: length, paths that exist, tests that exist, links that lead somewhere.
//!
//! A code span is taken for a path if it ends like a source file, or if it has a slash and begins with a crate or a top-level
//! folder. It may leave out leading folders: `index/sort.rs` stands for any file whose path ends so. `path::name` also
//! demands a function `name` in that file, and `test_name` a Python test of that name.

use crate::root;
use std::collections::BTreeSet;
use std::path::Path;

/// Most words of ARCHITECTURE.md: it is read in one sitting, and details have pages of their own.
const ARCHITECTURE_WORDS: usize = 1500;

/// Documents that are generated, or tell of the past, when other files were there.
const UNCHECKED: &[&str] = &[
    "CHANGELOG.md",
    "coverage.md",
    "coverage-gpu.md",
    "operators.md",
];

/// Headings of README.md whose first block of code is run by `.ci/run`.
const RUN: &[&str] = &["## Quick start", "## Tests"];

/// Endings of files that documents name.
const ENDINGS: &[&str] = &[".rs", ".py", ".md", ".toml", ".txt"];

/// Checks all documents. Gives one line for each mistake.
pub(crate) fn check() -> Result<Vec<String>, String> {
    let files = Files::read(&root())?;
    let mut wrong = Vec::new();
    for path in documents(&files) {
        let text = read(&path)?;
        if path == "ARCHITECTURE.md" {
            let words = text.split_whitespace().count();
            if words > ARCHITECTURE_WORDS {
                wrong.push(format!(
                    "{path}: {words} words, at most {ARCHITECTURE_WORDS}"
                ));
            }
        }
        if path == "README.md" {
            let lacks = RUN.iter().filter(|h| !has_command(&text, h));
            wrong
                .extend(lacks.map(|h| {
                    format!("{path}: no block of code under `{h}`, which `.ci/run` runs")
                }));
        }
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        wrong.extend(
            mistakes(&text, folder, &files).map(|(line, what)| format!("{path}:{line}: {what}")),
        );
    }
    Ok(wrong)
}

/// Returns true if a block of code follows the heading, ahead of the next one.
fn has_command(text: &str, heading: &str) -> bool {
    let mut section = text.lines().skip_while(|l| *l != heading).skip(1);
    section
        .find(|l| l.starts_with("```") || l.starts_with("## "))
        .is_some_and(|l| l.starts_with("```"))
}

/// Paths of the documents that are checked.
fn documents(files: &Files) -> Vec<String> {
    let is_one = |p: &&String| {
        let (folder, name) = p.rsplit_once('/').unwrap_or(("", p));
        matches!(folder, "" | "docs") && name.ends_with(".md") && !UNCHECKED.contains(&name)
    };
    files.paths.iter().filter(is_one).cloned().collect()
}

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(root().join(path)).map_err(|e| format!("{path}: {e}"))
}

/// The files, folders and tests that a document may name.
struct Files {
    /// Files by their paths from the root.
    paths: BTreeSet<String>,
    folders: BTreeSet<String>,
    /// Python tests by name.
    tests: BTreeSet<String>,
}

impl Files {
    /// Lists the files below a folder, without what builds leave there.
    fn read(root: &Path) -> Result<Files, String> {
        let mut files = Files {
            paths: BTreeSet::new(),
            folders: BTreeSet::new(),
            tests: BTreeSet::new(),
        };
        files.walk(root, "")?;
        // Python tests are named by documents without their files.
        let tests = files
            .paths
            .iter()
            .filter(|p| p.starts_with("python/tests/"));
        for path in tests {
            if let Ok(text) = std::fs::read_to_string(root.join(path)) {
                let named = text
                    .lines()
                    .filter_map(|l| l.trim_start().strip_prefix("def "));
                files
                    .tests
                    .extend(named.filter_map(|l| l.split('(').next()).map(String::from));
            }
        }
        Ok(files)
    }

    /// Adds the files and folders below `folder`, by paths from the root.
    fn walk(&mut self, root: &Path, folder: &str) -> Result<(), String> {
        let entries = std::fs::read_dir(root.join(folder)).map_err(|e| format!("{folder}: {e}"))?;
        for entry in entries {
            let entry = entry.map_err(|e| format!("{folder}: {e}"))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // Builds leave many files there, none of which a document may name.
            if name == "target" || name == "__pycache__" || name.starts_with('.') {
                continue;
            }
            let path = match folder {
                "" => name,
                _ => format!("{folder}/{name}"),
            };
            let kind = entry.file_type().map_err(|e| format!("{path}: {e}"))?;
            if kind.is_dir() {
                self.walk(root, &path)?;
                self.folders.insert(path);
            } else {
                self.paths.insert(path);
            }
        }
        Ok(())
    }

    /// Finds the files or folders whose paths end in `name`.
    fn ending<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a String> {
        let ends = move |p: &&String| {
            (p.strip_suffix(name)).is_some_and(|front| front.is_empty() || front.ends_with('/'))
        };
        self.paths.iter().chain(&self.folders).filter(ends)
    }

    /// Returns true if a span begins with a top-level folder or a crate.
    fn begins_here(&self, span: &str) -> bool {
        let first = span.split('/').next().unwrap_or_default();
        self.folders.contains(first) || self.folders.contains(&format!("crates/{first}"))
    }
}

/// Finds the mistakes of a document in `folder`, with their lines.
fn mistakes(text: &str, folder: &str, files: &Files) -> impl Iterator<Item = (usize, String)> {
    let mut fenced = false;
    let mut out = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            // Blocks of code hold commands and output, which are no references.
            fenced = !fenced;
            continue;
        }
        if fenced {
            continue;
        }
        let spans = line.split('`').skip(1).step_by(2);
        out.extend(
            spans
                .filter_map(|s| missing(s, files))
                .map(|what| (at + 1, what)),
        );
        let targets = line.split("](").skip(1).filter_map(|l| l.split(')').next());
        let dead = targets.filter(|t| !leads_somewhere(t, folder, files));
        out.extend(dead.map(|t| (at + 1, format!("the link `{t}` leads nowhere"))));
    }
    out.into_iter()
}

/// Says what a code span names that is not there.
fn missing(span: &str, files: &Files) -> Option<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if span.starts_with("test_") && span.chars().all(word) {
        return (!files.tests.contains(span)).then(|| format!("there is no test `{span}`"));
    }
    // Paths of Rust items have `::` too, and are left to the compiler.
    let (path, function) = match span.split_once("::") {
        Some((path, function)) if path.ends_with(".rs") || path.ends_with(".py") => {
            (path, Some(function))
        }
        Some(_) => return None,
        None => (span, None),
    };
    let plain = |c: char| word(c) || "./-".contains(c);
    // Not a path of this repository: an option, an expression, a hidden or absolute file.
    if path.is_empty() || !path.chars().all(plain) || path.starts_with(['.', '/']) {
        return None;
    }
    let is_path =
        ENDINGS.iter().any(|e| path.ends_with(e)) || path.contains('/') && files.begins_here(path);
    if !is_path {
        return None;
    }
    let found: Vec<&String> = files.ending(path.trim_end_matches('/')).collect();
    if found.is_empty() {
        return Some(format!("there is no `{path}`"));
    }
    let function = function?;
    let holds = |p: &&String| {
        let text = std::fs::read_to_string(root().join(p)).unwrap_or_default();
        ["fn", "def"]
            .iter()
            .any(|k| text.contains(&format!("{k} {function}(")))
    };
    (!found.iter().any(holds)).then(|| format!("there is no `{function}` in `{path}`"))
}

/// Returns true if a link's target is outside of the repository, or a file or folder in it.
fn leads_somewhere(target: &str, folder: &str, files: &Files) -> bool {
    // Pages elsewhere are not fetched, and anchors within a page are not looked up.
    if target.contains("://") || target.starts_with('#') {
        return true;
    }
    let target = target.split('#').next().unwrap_or_default();
    let mut parts: Vec<&str> = folder.split('/').filter(|p| !p.is_empty()).collect();
    for part in target.split('/').filter(|p| !matches!(*p, "" | ".")) {
        match part {
            ".." => _ = parts.pop(),
            _ => parts.push(part),
        }
    }
    let path = parts.join("/");
    files.paths.contains(&path) || files.folders.contains(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Files {
        let set = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
        Files {
            paths: set(&["crates/xtask/src/documents.rs", "docs/gpu.md", "README.md"]),
            folders: set(&["crates", "docs", "crates/xtask", "crates/xtask/src"]),
            tests: set(&["test_sizes"]),
        }
    }

    #[test]
    fn what_is_not_there_is_found() {
        for good in [
            "xtask/src/documents.rs",
            "documents.rs",
            "xtask/src/",
            "documents.rs::missing",
            "test_sizes",
            "i0 // 64",
            "a/b",
            "inrush_base::Error",
            "--stage fuse",
        ] {
            assert_eq!(missing(good, &files()), None, "{good}");
        }
        for bad in [
            "xtask/src/gone.rs",
            "ocuments.rs",
            "xtask/gone",
            "documents.rs::gone",
            "test_gone",
        ] {
            assert!(missing(bad, &files()).is_some(), "{bad}");
        }
    }

    #[test]
    fn commands_are_looked_for_in_their_section() {
        let text = "# a\n\n## Tests\n\nwords\n\n## Other\n\n```sh\nls\n```\n";
        assert!(has_command(text, "## Other"));
        assert!(!has_command(text, "## Tests"));
        assert!(!has_command(text, "## Gone"));
    }

    #[test]
    fn mistakes_stand_on_their_lines() {
        let text = "`docs/gone.md`\n```\n`docs/gone.md`\n```\n[a](gpu.md), [b](../README.md), [c](gone.md#x)\n";
        let lines: Vec<usize> = mistakes(text, "docs", &files())
            .map(|(line, _)| line)
            .collect();
        assert_eq!(lines, [1, 5]);
    }
}
