//! The command line on the digits model, and on everything that a user may get wrong.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn repo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_path_buf()
}

fn digits(end: &str) -> String {
    repo()
        .join("examples/digits")
        .join(format!("digits.{end}"))
        .display()
        .to_string()
}

/// Runs the command with a cache of its own and the given environment.
fn inrush(cache: &Path, env: &[(&str, &str)], args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_inrush"))
        .args(args)
        .env("INRUSH_CACHE_DIR", cache)
        .envs(env.iter().copied())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The command fails with `code`, says all of `words` on stderr, and does not panic.
fn fails(out: &Output, code: i32, words: &[&str]) {
    let err = text(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{err}");
    assert!(!err.contains("panicked"), "{err}");
    for w in words {
        assert!(err.contains(w), "`{w}` is not in: {err}");
    }
}

fn json(out: &Output) -> serde_json::Value {
    assert!(out.status.success(), "{}", text(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn digits_compile_run_and_agree_with_pytorch() {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "run",
        &digits("pt2"),
        "--inputs",
        &digits("inputs.safetensors"),
        "--expect",
        &digits("expect.safetensors"),
    ];
    let with = |extra: &[&str]| {
        let all: Vec<&str> = args
            .iter()
            .copied()
            .chain(["--seconds", "0", "--json"])
            .chain(extra.iter().copied())
            .collect();
        json(&inrush(dir.path(), &[], &all))
    };
    let first = with(&[]);
    assert!(first["accuracy"].as_f64().unwrap() > 0.98, "{first}");
    assert!(first["max_rel_err"].as_f64().unwrap() < 1e-4, "{first}");
    assert_eq!(first["cached"], false);
    assert_eq!(
        with(&[])["cached"],
        true,
        "the second run finds the kernels"
    );
    for threads in ["1", "3"] {
        assert!(
            with(&["--threads", threads])["max_rel_err"]
                .as_f64()
                .unwrap()
                < 1e-4
        );
    }
    // Plain C runs anywhere.
    assert!(
        with(&["--target", "scalar"])["max_rel_err"]
            .as_f64()
            .unwrap()
            < 1e-4
    );
}

#[test]
fn a_package_runs_without_a_compiler() {
    let dir = tempfile::tempdir().unwrap();
    let package = dir.path().join("digits.inrush").display().to_string();
    let made = inrush(
        dir.path(),
        &[],
        &["compile", &digits("pt2"), "-o", &package, "--json"],
    );
    assert!(json(&made)["bytes"].as_u64().unwrap() > 100_000);
    let again = dir.path().join("again.inrush").display().to_string();
    json(&inrush(
        dir.path(),
        &[],
        &["compile", &digits("pt2"), "-o", &again, "--json"],
    ));
    assert_eq!(
        std::fs::read(&package).unwrap(),
        std::fs::read(&again).unwrap(),
        "the same model gives the same bytes"
    );
    let no_compiler = [("CC", "/nonexistent/cc"), ("PATH", "/nonexistent")];
    let nowhere = dir.path().join("no cache");
    let out = inrush(
        &nowhere,
        &no_compiler,
        &[
            "run",
            &package,
            "--inputs",
            &digits("inputs.safetensors"),
            "--expect",
            &digits("expect.safetensors"),
            "--seconds",
            "0",
            "--json",
        ],
    );
    assert!(json(&out)["accuracy"].as_f64().unwrap() > 0.98);
    assert!(!nowhere.exists(), "a package needs no cache");

    // Damage anywhere is an error, never a panic or a wrong answer from damaged structure.
    let whole = std::fs::read(&package).unwrap();
    let broken = dir.path().join("broken.inrush");
    for cut in [0, 1, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&broken, &whole[..cut]).unwrap();
        fails(
            &inrush(
                dir.path(),
                &[],
                &["run", &broken.display().to_string(), "--seconds", "0"],
            ),
            2,
            &["broken.inrush"],
        );
    }
    // A manifest that asks for another machine.
    let other = text(&whole[..whole.len().min(4096)]).contains("x86_64");
    if other {
        let at = whole.windows(6).position(|w| w == b"x86_64").unwrap();
        let mut foreign = whole.clone();
        foreign[at..at + 6].copy_from_slice(b"mips64");
        std::fs::write(&broken, &foreign).unwrap();
        let out = inrush(
            dir.path(),
            &[],
            &["run", &broken.display().to_string(), "--seconds", "0"],
        );
        assert!(
            matches!(out.status.code(), Some(2 | 3)),
            "{}",
            text(&out.stderr)
        );
    }
}

#[test]
fn every_stage_prints() {
    let dir = tempfile::tempdir().unwrap();
    for stage in [
        "summary",
        "import",
        "normalize",
        "rewrite",
        "decompose",
        "lower",
        "fuse",
        "tile",
        "emit",
        "wrap",
        "refusals",
    ] {
        let out = inrush(
            dir.path(),
            &[],
            &["inspect", &digits("pt2"), "--stage", stage],
        );
        assert!(out.status.success(), "{stage}: {}", text(&out.stderr));
        assert!(out.stdout.len() > 20, "{stage}");
    }
    fails(
        &inrush(
            dir.path(),
            &[],
            &["inspect", &digits("pt2"), "--stage", "nonsense"],
        ),
        2,
        &["nonsense", "lower"],
    );
}

#[test]
fn a_report_explains_an_archive_and_a_package() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("report.html").display().to_string();
    let out = inrush(dir.path(), &[], &["explain", &digits("pt2"), "-o", &page]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let html = std::fs::read_to_string(&page).unwrap();
    for part in [
        "<svg",
        "<rect",
        "<code>build</code>",
        "<code>fuse</code>",
        "aten.conv2d",
        // The Python line that called an operator.
        "examples/digits/",
        "is_contraction",
        "A contraction reads its operands from memory.",
        "program digits",
    ] {
        assert!(html.contains(part), "no `{part}`");
    }
    assert!(!html.contains("http"), "the page loads nothing");
    assert_eq!(
        html.matches("<table>").count(),
        html.matches("</table>").count()
    );
    assert_eq!(
        html.matches("<details>").count(),
        html.matches("</details>").count()
    );

    let package = dir.path().join("digits.inrush").display().to_string();
    json(&inrush(
        dir.path(),
        &[],
        &["compile", &digits("pt2"), "-o", &package, "--json"],
    ));
    let out = inrush(dir.path(), &[], &["explain", &package, "-o", &page]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("<svg") && html.contains("A compiled package"));
    let shown = inrush(dir.path(), &[], &["inspect", &package, "--stage", "wrap"]);
    let program = inrush_program::text::parse(&text(&shown.stdout)).unwrap();
    assert!(program.steps.len() > 3, "the package's program reads back");

    let nowhere = dir.path().join("missing/report.html").display().to_string();
    fails(
        &inrush(
            dir.path(),
            &[],
            &["explain", &digits("pt2"), "-o", &nowhere],
        ),
        3,
        &["missing/report.html"],
    );
    fails(
        &inrush(
            dir.path(),
            &[],
            &["explain", "/nonexistent.pt2", "-o", &page],
        ),
        2,
        &["no such file"],
    );
}

#[test]
fn compiling_is_deterministic() {
    let dir = tempfile::tempdir().unwrap();
    let show = |stage: &str| {
        inrush(
            dir.path(),
            &[],
            &["inspect", &digits("pt2"), "--stage", stage],
        )
        .stdout
    };
    for stage in ["fuse", "emit", "wrap"] {
        assert_eq!(show(stage), show(stage), "{stage}");
    }
}

/// Tests of Python run such files: `python/tests/test_source.py`.
#[test]
fn programs_are_printed_as_source_deterministically() {
    let dir = tempfile::tempdir().unwrap();
    let model = digits("pt2");
    for (target, kernel) in [("cpu", "r'''"), ("h100", "@triton.jit")] {
        let print = |name: &str| {
            let path = dir.path().join(name);
            let args = ["--emit", "python", "--target", target, "-o"];
            let args = [&["compile", &model], &args[..], &[path.to_str().unwrap()]].concat();
            let out = inrush(dir.path(), &[], &args);
            assert!(out.status.success(), "{}", text(&out.stderr));
            std::fs::read_to_string(path).unwrap()
        };
        let source = print("a.py");
        assert_eq!(source, print("b.py"), "{target}");
        for part in [
            kernel,
            "def call(*inputs):",
            "within(\"s77\", s77, 1, 4096)",
            "aten.exp.default",
        ] {
            assert!(source.contains(part), "{target}: no `{part}`");
        }
        // Triton kernels tell the user's lines.
        assert_eq!(source.contains("train.py:74"), target == "h100");
    }
}

#[test]
fn what_is_not_printed_as_source_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.py");
    let output = path.to_str().unwrap();
    let emit = |model: &str, more: &[&str]| {
        let args = ["compile", model, "--emit", "python", "-o", output];
        inrush(dir.path(), &[], &[&args[..], more].concat())
    };
    fails(
        &emit(&digits("pt2"), &["--target", "cpu,h100"]),
        2,
        &["one target"],
    );
    fails(
        &emit(&digits("pt2"), &["--format", "aoti"]),
        2,
        &["--format"],
    );
    let package = dir.path().join("digits.inrush");
    let package = package.to_str().unwrap();
    let built = inrush(dir.path(), &[], &["compile", &digits("pt2"), "-o", package]);
    assert!(built.status.success(), "{built:?}");
    fails(
        &emit(package, &[]),
        2,
        &["digits.inrush", "pass the archive"],
    );
    assert!(!path.exists());
}

#[test]
fn the_machine_is_at_fault() {
    let dir = tempfile::tempdir().unwrap();
    let run = ["run", &digits("pt2"), "--seconds", "0"];
    fails(
        &inrush(dir.path(), &[("CC", "/nonexistent/cc")], &run),
        3,
        &["/nonexistent/cc", "CC"],
    );
    fails(
        &inrush(dir.path(), &[("CC", ""), ("PATH", "/nonexistent")], &run),
        3,
        &["no C compiler", "install"],
    );
    fails(
        &inrush(dir.path(), &[("CC", "false")], &run),
        3,
        &["C compiler", "failed"],
    );
    // A file where the cache directory should be.
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let temporary = tempfile::tempdir().unwrap();
    let elsewhere = [("TMPDIR", temporary.path().to_str().unwrap())];
    let ran = inrush(&file, &elsewhere, &run);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert!(text(&ran.stderr).contains("INRUSH_CACHE_DIR"));
    // Nothing can be written at all.
    let nowhere = [("TMPDIR", file.to_str().unwrap())];
    fails(
        &inrush(&file, &nowhere, &run),
        3,
        &["cache", "INRUSH_CACHE_DIR"],
    );
    let doctor = inrush(&file, &[("CC", "/nonexistent/cc")], &["doctor"]);
    assert_eq!(doctor.status.code(), Some(3));
    assert!(text(&doctor.stdout).contains("FAIL"));
    // Drivers of GPUs and Triton are looked for, and optional.
    let doctor = inrush(
        dir.path(),
        &[("INRUSH_PYTHON", "/nonexistent/python")],
        &["doctor"],
    );
    assert!(doctor.status.success());
    let (shown, kinds) = (text(&doctor.stdout), inrush_devices::ALL.map(|d| d.name));
    for words in kinds.into_iter().chain(["Triton", "INRUSH_PYTHON"]) {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

#[test]
fn the_input_is_at_fault() {
    let dir = tempfile::tempdir().unwrap();
    let go = |args: &[&str]| inrush(dir.path(), &[], args);
    fails(
        &go(&["run", "/nonexistent.pt2"]),
        2,
        &["/nonexistent.pt2", "no such file"],
    );
    fails(&go(&["run"]), 2, &["MODEL"]);
    fails(
        &go(&["run", &digits("pt2"), "--target", "vax"]),
        2,
        &["vax", "avx2"],
    );
    fails(
        &go(&["run", &digits("pt2"), "--threads", "0"]),
        2,
        &["--threads"],
    );
    fails(&go(&["run", &digits("pt2"), "--size", "q=3"]), 2, &["`q`"]);
    for size in ["s77=-3", "s77=0", "s77=99999999999"] {
        fails(
            &go(&["run", &digits("pt2"), "--size", size]),
            2,
            &[size, "1..=4096"],
        );
    }
    fails(
        &go(&["run", &digits("pt2"), "--inputs", &digits("pt2")]),
        2,
        &["safetensors"],
    );
    fails(
        &go(&[
            "run",
            &digits("pt2"),
            "--inputs",
            &digits("expect.safetensors"),
            "--seconds",
            "0",
        ]),
        2,
        &["input"],
    );

    let archive = std::fs::read(digits("pt2")).unwrap();
    let broken = dir.path().join("broken.pt2");
    for cut in [0, 3, 1000, archive.len() / 3, archive.len() - 10] {
        std::fs::write(&broken, &archive[..cut]).unwrap();
        fails(
            &go(&["run", &broken.display().to_string()]),
            2,
            &["broken.pt2"],
        );
    }
    fails(&go(&["run", &dir.path().display().to_string()]), 2, &[]);
}

#[test]
fn a_wrong_expectation_fails_with_one() {
    let dir = tempfile::tempdir().unwrap();
    let out = inrush(
        dir.path(),
        &[],
        &[
            "run",
            &digits("pt2"),
            "--inputs",
            &digits("inputs.safetensors"),
            "--expect",
            &digits("expect.safetensors"),
            "--tolerance",
            "0",
            "--seconds",
            "0",
        ],
    );
    fails(&out, 1, &["differ"]);
    let y = dir.path().join("y.safetensors").display().to_string();
    let write = [
        "run",
        &digits("pt2"),
        "--inputs",
        &digits("inputs.safetensors"),
        "--output",
        &y,
        "--seconds",
        "0",
    ];
    assert!(inrush(dir.path(), &[], &write).status.success());
    let same = [
        "run",
        &digits("pt2"),
        "--inputs",
        &digits("inputs.safetensors"),
        "--expect",
        &y,
        "--tolerance",
        "0",
        "--seconds",
        "0",
    ];
    assert!(
        inrush(dir.path(), &[], &same).status.success(),
        "a second run gives the same bits"
    );
}

#[test]
fn completion_and_help() {
    let dir = tempfile::tempdir().unwrap();
    assert!(text(&inrush(dir.path(), &[], &["completion", "bash"]).stdout).contains("complete"));
    let help = text(&inrush(dir.path(), &[], &["--help"]).stdout);
    for c in ["run", "compile", "bench", "explain", "inspect", "doctor"] {
        assert!(help.contains(c), "{c}");
    }
}

/// Every command that prints JSON prints one line of it, with the keys that scripts look for.
#[test]
fn json_of_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let html = dir.path().join("r.html").display().to_string();
    let package = dir.path().join("p.inrush").display().to_string();
    let model = digits("pt2");
    let commands: [(&[&str], &[&str]); 7] = [
        (
            &["run", &model, "--seconds", "0"],
            &["run_ms", "peak_bytes"],
        ),
        (&["compile", &model, "-o", &package], &["package", "bytes"]),
        (
            &["bench", &model, "--seconds", "0"],
            &["run_ms", "graph_ms"],
        ),
        (&["explain", &model, "-o", &html], &["report"]),
        (&["inspect", &model, "--stage", "wrap"], &["stage", "text"]),
        (&["doctor"], &["cache", "build"]),
        (&["cache"], &["dir", "objects", "bytes", "kinds"]),
    ];
    for (args, keys) in commands {
        let all: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        let out = inrush(dir.path(), &[], &all);
        let line = json(&out);
        assert_eq!(text(&out.stdout).lines().count(), 1, "{args:?}");
        for key in keys {
            assert!(!line[key].is_null(), "{args:?}: no `{key}` in {line}");
        }
    }
}

/// A reader that closes standard output is no error; a full disk that standard output goes to is
/// the machine's fault.
#[cfg(target_os = "linux")]
#[test]
fn standard_output_may_be_closed_or_full() {
    use std::process::Stdio;
    let dir = tempfile::tempdir().unwrap();
    let html = dir.path().join("r.html").display().to_string();
    let model = digits("pt2");
    let commands: [&[&str]; 7] = [
        &["run", &model, "--seconds", "0"],
        &["run", &model, "--seconds", "0", "--json"],
        &["bench", &model, "--seconds", "0"],
        &["explain", &model, "-o", &html],
        &["inspect", &model, "--stage", "emit"],
        &["cache"],
        &["completion", "bash"],
    ];
    for args in commands {
        let with = |stdout: Stdio| {
            Command::new(env!("CARGO_BIN_EXE_inrush"))
                .args(args)
                .env("INRUSH_CACHE_DIR", dir.path())
                .stdout(stdout)
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let mut closed = with(Stdio::piped());
        drop(closed.stdout.take());
        let closed = closed.wait_with_output().unwrap();
        assert!(closed.status.success(), "{args:?}: {closed:?}");
        assert!(closed.stderr.is_empty(), "{args:?}: {closed:?}");
        let full = std::fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let full = with(full.into()).wait_with_output().unwrap();
        fails(&full, 3, &["standard output"]);
    }
}

#[test]
fn numbers_that_mean_nothing_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for wrong in [
        ["--seconds", "nan"],
        ["--seconds", "-1"],
        ["--seconds", "1e9"],
        ["--tolerance", "nan"],
        ["--tolerance", "-1"],
    ] {
        let option = format!("{}={}", wrong[0], wrong[1]);
        let out = inrush(dir.path(), &[], &["run", &digits("pt2"), &option]);
        fails(&out, 2, &[wrong[0]]);
    }
}
