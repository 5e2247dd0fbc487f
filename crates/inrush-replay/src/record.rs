//! Compiles the programs below some folders and writes what each stage prints.
//!
//! A file's first line is a digest of this binary and of the program. A file that has the right one already is kept, so that
//! a commit that is compared again costs nothing.

use crate::io;
use crate::targets::{self, Target};
use inrush_base::{Error, Result};
use inrush_compile::{Observer, Options};
use inrush_filetest::{Program, STAGES, Setup};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Stages whose text is recorded.
const RECORDED: [&str; 4] = ["fuse", "tile", "emit", "wrap"];

/// Levels of text files below the graph, which have no program to wrap.
const LEVELS: [&str; 4] = ["graph", "loops", "plan", "kernels"];

/// A program or an archive of the corpus.
struct Item {
    /// The folder's name and the path below it: the path of the recorded file.
    name: String,
    path: PathBuf,
}

/// Compiles what is below `folders`, as far as its name contains `only`, into `out`.
pub(crate) fn record(out: &Path, folders: &[(String, PathBuf)], only: &str) -> Result<()> {
    let targets = targets::all()?;
    let items = items(folders, only)?;
    let exe = std::env::current_exe().map_err(|e| Error::machine(e.to_string()))?;
    let binary = blake3::hash(&std::fs::read(&exe).map_err(|e| io(&exe, e))?);
    // Panics are recorded with their program.
    std::panic::set_hook(Box::new(|_| {}));
    let (next, reused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failed = Mutex::new(None);
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            match keep(out, item, binary.as_bytes(), &targets) {
                Ok(true) => _ = reused.fetch_add(1, Ordering::Relaxed),
                Ok(false) => {}
                Err(e) => *failed.lock().unwrap_or_else(|e| e.into_inner()) = Some(e),
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|s| (0..threads).for_each(|_| _ = s.spawn(work)));
    if let Some(e) = failed.into_inner().unwrap_or_else(|e| e.into_inner()) {
        return Err(e);
    }
    let index: String = items.iter().map(|i| format!("{}\n", i.name)).collect();
    let path = out.join("index");
    std::fs::write(&path, index).map_err(|e| io(&path, e))?;
    let reused = reused.into_inner();
    println!("{} programs compiled, {reused} kept", items.len() - reused);
    Ok(())
}

/// The items below the folders, by name.
fn items(folders: &[(String, PathBuf)], only: &str) -> Result<Vec<Item>> {
    let mut out = Vec::new();
    for (name, dir) in folders {
        walk(name, dir, &mut out)?;
    }
    out.retain(|i| i.name.contains(only));
    out.sort_by(|a, b| a.name.cmp(&b.name));
    match out.windows(2).find(|w| w[0].name == w[1].name) {
        Some(w) => Err(Error::input(format!(
            "two programs are called {}",
            w[0].name
        ))),
        None => Ok(out),
    }
}

fn walk(name: &str, dir: &Path, out: &mut Vec<Item>) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(|e| io(dir, e))? {
        let path = entry.map_err(|e| io(dir, e))?.path();
        let last = path.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{name}/{last}");
        let level = path.extension().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            walk(&name, &path, out)?;
        } else if level == "pt2" || LEVELS.contains(&level.as_ref()) {
            out.push(Item { name, path });
        }
    }
    Ok(())
}

/// Writes an item's record, or returns true if the file is up to date.
fn keep(out: &Path, item: &Item, binary: &[u8], targets: &[Target]) -> Result<bool> {
    let stamp = stamp(item, binary)?;
    let path = out.join(&item.name);
    if let Ok(old) = std::fs::read_to_string(&path)
        && old.lines().next() == Some(&stamp)
    {
        return Ok(true);
    }
    let mut text = stamp + "\n";
    for t in targets {
        let compiled = catch_unwind(AssertUnwindSafe(|| compile(item, t)));
        match compiled {
            Ok(sections) => text.push_str(&sections),
            Err(p) => {
                let said = (p.downcast_ref::<String>().cloned())
                    .or_else(|| p.downcast_ref::<&str>().map(|s| s.to_string()));
                let said = said.unwrap_or_default();
                _ = writeln!(text, "=== {} error\na panic: {said}", t.name);
            }
        }
    }
    let folder = path.parent().unwrap_or(out);
    std::fs::create_dir_all(folder).map_err(|e| io(folder, e))?;
    std::fs::write(&path, text).map_err(|e| io(&path, e))?;
    Ok(false)
}

/// Identifies the binary and the item: a text by its content, an archive, which may be large, by path, size and time.
fn stamp(item: &Item, binary: &[u8]) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(binary);
    if item.name.ends_with(".pt2") {
        let about = std::fs::metadata(&item.path).map_err(|e| io(&item.path, e))?;
        let time = about.modified().map_err(|e| io(&item.path, e))?;
        let text = format!("{} {} {time:?}", item.path.display(), about.len());
        hasher.update(text.as_bytes());
    } else {
        hasher.update(&std::fs::read(&item.path).map_err(|e| io(&item.path, e))?);
    }
    Ok(format!("stamp {}", hasher.finalize().to_hex()))
}

/// Collects the text of the recorded stages.
struct Texts<'a> {
    target: &'a str,
    out: String,
}

impl Texts<'_> {
    fn push(&mut self, stage: &str, text: &str) {
        _ = writeln!(self.out, "=== {} {stage}\n{}", self.target, text.trim_end());
    }
}

impl Observer for Texts<'_> {
    fn end(&mut self, stage: &'static str, text: &dyn Fn() -> String) {
        if RECORDED.contains(&stage) {
            self.push(stage, &text());
        }
    }
}

/// Returns the text of the stages for an item on a target, up to the first error.
fn compile(item: &Item, target: &Target) -> String {
    let mut texts = Texts {
        target: target.name,
        out: String::new(),
    };
    if let Err(e) = stages(item, target, &mut texts) {
        texts.push("error", &e.to_string());
    }
    texts.out
}

fn stages(item: &Item, target: &Target, texts: &mut Texts) -> Result<()> {
    let level = item.name.rsplit('.').next().unwrap_or_default();
    let graph = if level == "pt2" {
        inrush_torch::open(&item.path)?.graph
    } else {
        let text = std::fs::read_to_string(&item.path).map_err(|e| io(&item.path, e))?;
        match Program::parse(level, &text)? {
            Program::Graph(g) => g,
            below => return below_graph(&below, target, texts),
        }
    };
    let options = Options {
        pieces: 1,
        pointers: target.pointers,
        ..Options::default()
    };
    let compiled = inrush_compile::compile(graph, &target.caps, &options, texts)?;
    texts.push("refusals", &compiled.refusals.lines().join("\n"));
    Ok(())
}

/// The stages of a program that a file test gives below the graph. GPUs have none there.
fn below_graph(program: &Program, target: &Target, texts: &mut Texts) -> Result<()> {
    if target.caps.gpu.is_some() {
        return Ok(());
    }
    let setup = Setup::of(target.caps.clone());
    for stage in STAGES.iter().filter(|s| RECORDED.contains(&s.name)) {
        let below = match stage.name {
            "fuse" => matches!(program, Program::Kernels(..)),
            "wrap" => true,
            _ => false,
        };
        if !below {
            texts.push(stage.name, &(stage.show)(program, &setup)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPH: &str = "graph g\n%0 x: f32[8] = input 0\n\
                         %1 y: f32[8] = aten.relu.default(%0)\noutput 0: %1\n";

    #[test]
    fn a_record_is_kept_until_its_program_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (corpus, out) = (dir.path().join("corpus"), dir.path().join("out"));
        std::fs::create_dir_all(&corpus).unwrap();
        let file = corpus.join("relu.graph");
        std::fs::write(&file, GRAPH).unwrap();
        let item = &items(&[("c".into(), corpus)], "").unwrap()[0];
        let targets = targets::all().unwrap();
        assert!(!keep(&out, item, b"one", &targets).unwrap());
        assert!(keep(&out, item, b"one", &targets).unwrap());
        assert!(!keep(&out, item, b"two", &targets).unwrap());
        let text = std::fs::read_to_string(out.join("c/relu.graph")).unwrap();
        for t in &targets {
            for stage in RECORDED {
                let head = format!("=== {} {stage}\n", t.name);
                assert_eq!(text.matches(&head).count(), 1, "{head}{text}");
            }
        }
        std::fs::write(&file, GRAPH.replace("relu", "neg")).unwrap();
        assert!(!keep(&out, item, b"two", &targets).unwrap());
        let other = std::fs::read_to_string(out.join("c/relu.graph")).unwrap();
        assert_ne!(text, other);
    }

    #[test]
    fn what_fails_is_recorded() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("bad.graph"), "graph g(").unwrap();
        let item = &items(&[("c".into(), dir.path().into())], "").unwrap()[0];
        let text = compile(item, &targets::all().unwrap()[0]);
        assert!(text.starts_with("=== scalar error\n"), "{text}");
    }
}
