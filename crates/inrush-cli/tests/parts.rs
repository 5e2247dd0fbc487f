//! Programs in parts from the command line: what `inspect` and `explain` show of them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns an archive of `inrush-torch`'s tests.
fn archive(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inrush-torch/tests/data");
    folder.join(name)
}

fn inrush(cache: &Path, args: &[&str]) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_inrush"));
    (c.args(args).env("INRUSH_CACHE_DIR", cache))
        .output()
        .expect("inrush runs")
}

/// Returns what a command prints.
fn shown(cache: &Path, args: &[&str]) -> String {
    let out = inrush(cache, args);
    let wrong = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {wrong}");
    String::from_utf8(out.stdout).expect("text")
}

/// Compiles an archive. Returns the paths of both.
fn packed(folder: &Path, name: &str) -> [String; 2] {
    let model = archive(&format!("{name}.pt2")).display().to_string();
    let package = folder.join(format!("{name}.inrush")).display().to_string();
    shown(
        folder,
        &["compile", &model, "-o", &package, "--target", "avx2"],
    );
    [model, package]
}

#[test]
fn the_text_of_programs_in_parts_reads_back() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["branch", "data", "loops", "scans"] {
        let [model, package] = packed(folder.path(), name);
        let text = shown(folder.path(), &["inspect", &package, "--stage", "wrap"]);
        let program = inrush_program::text::parse(&text).expect("the program's text");
        assert!(program.parts.is_some(), "{name}");
        program.verify().expect("the same program");
        assert_eq!(program.print().trim(), text.trim(), "{name}");
        // The archive compiles to the same.
        let args = ["inspect", &model, "--stage", "wrap", "--target", "avx2"];
        assert_eq!(shown(folder.path(), &args), text, "{name}");
        for stage in ["normalize", "fuse", "tile", "emit", "refusals"] {
            let text = shown(folder.path(), &["inspect", &model, "--stage", stage]);
            assert!(stage == "refusals" || text.len() > 20, "{name} {stage}");
        }
    }
}

#[test]
fn the_summary_lists_parts_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let [_, loops] = packed(folder.path(), "loops");
    let summary = shown(folder.path(), &["inspect", &loops, "--stage", "summary"]);
    let lines: Vec<&str> = summary.lines().collect();
    // In order, bodies below their loop or choice.
    let mut rest = lines.iter();
    for wanted in [
        "while, node `",
        "  condition: 1 kernel",
        "  body:",
        "    cond, node `",
        "      then:",
        "        nonzero, node `",
        "        cond, node `",
        "          then: ",
        "          otherwise: 1 kernel",
        "      otherwise: 1 kernel",
    ] {
        assert!(
            rest.any(|l| l.starts_with(wanted)),
            "no `{wanted}` in order in\n{summary}"
        );
    }
    let [_, scans] = packed(folder.path(), "scans");
    let summary = shown(folder.path(), &["inspect", &scans, "--stage", "summary"]);
    for wanted in [
        "nonzero, node `nonzero` (aten.nonzero.default) at generate.py:",
        "at = torch.nonzero(x.sum(1) > 0)",
        "unique, node `",
        "scan, node `",
    ] {
        assert!(summary.contains(wanted), "no `{wanted}` in\n{summary}");
    }
}

#[test]
fn a_report_shows_parts() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("report.html").display().to_string();
    let [model, package] = packed(folder.path(), "loops");
    for (given, compiled) in [(model, true), (package, false)] {
        shown(folder.path(), &["explain", &given, "-o", &page]);
        let html = std::fs::read_to_string(&page).expect("a page");
        for wanted in [
            "<h2>Parts</h2>",
            "<b>while</b>",
            "<b>nonzero</b>",
            "margin-left:8rem",
            "memory and steps",
            "in all of them",
        ] {
            assert!(html.contains(wanted), "no `{wanted}`");
        }
        // Lines of fused operators are known where the archive was compiled.
        assert_eq!(html.contains("<code>fuse</code>"), compiled);
        assert_eq!(
            html.contains("<code>aten.max</code>") || html.contains("<code>aten.max."),
            compiled
        );
        for tag in ["div", "table", "details"] {
            let count = |t: &str| html.matches(t).count();
            assert_eq!(
                count(&format!("<{tag}")),
                count(&format!("</{tag}>")),
                "{tag}"
            );
        }
    }
}
