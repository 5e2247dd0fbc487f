//! `inrush compile --target`: packages for CPUs and GPUs. Kernels are built by Triton where `INRUSH_PYTHON` names a Python that
//! has it; no GPU is needed.
#![cfg(target_os = "linux")]

use inrush_host::program::Out;
use inrush_package::{Package, PtxTarget};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn digits(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits");
    folder.join(file).display().to_string()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the command with a Python of this path.
fn inrush(cache: &Path, python: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_inrush"))
        .args(args)
        .env("INRUSH_CACHE_DIR", cache)
        .env("INRUSH_PYTHON", python)
        .output()
        .unwrap()
}

/// The command fails with `code`, and says all of `words`.
fn fails(out: &Output, code: i32, words: &[&str]) {
    let err = text(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{err}");
    for w in words {
        assert!(err.contains(w), "`{w}` is not in: {err}");
    }
}

#[test]
fn targets_that_cannot_be_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let (nowhere, model) = (Path::new("/nonexistent/python"), digits("digits.pt2"));
    let package = dir.path().join("m.inrush").display().to_string();
    let compile = |target: &str| {
        let args = ["compile", &model, "-o", &package, "--target", target];
        inrush(dir.path(), nowhere, &args)
    };
    fails(&compile("cpu,z80"), 2, &["`z80`", "cpu:LEVEL", "h100"]);
    fails(&compile("cpu,native"), 2, &["twice"]);
    fails(&compile("b580"), 3, &["triton", "INRUSH_PYTHON"]);
    let missing = compile("cpu,h100");
    fails(
        &missing,
        3,
        &["triton", "INRUSH_PYTHON", "/nonexistent/python"],
    );
    assert!(!Path::new(&package).exists());
    let levels = compile("cpu:scalar,cpu");
    assert!(levels.status.success(), "{}", text(&levels.stderr));
    let args = ["inspect", &package];
    let shown = text(&inrush(dir.path(), nowhere, &args).stdout);
    assert!(shown.contains("target cpu:scalar"), "{shown}");
    fails(
        &inrush(dir.path(), nowhere, &["run", &package, "--device", "xpu:0"]),
        2,
        &["no target for `xpu:0`", "cpu:scalar"],
    );
    fails(
        &inrush(
            dir.path(),
            nowhere,
            &["run", &package, "--device", "rocm:0"],
        ),
        2,
        &["no target for `rocm:0`", "cpu:scalar"],
    );
}

#[test]
fn one_package_serves_cpus_and_gpus() {
    let Some(python) = std::env::var_os("INRUSH_PYTHON").map(PathBuf::from) else {
        eprintln!("INRUSH_PYTHON is not set: no Triton to build with");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (model, nowhere) = (digits("digits.pt2"), Path::new("/nonexistent/python"));
    let path = dir.path().join("m.inrush");
    let package = path.display().to_string();
    let targets = "cpu,h100,a100,mi300x";
    let args = [
        "compile", &model, "-o", &package, "--target", targets, "--json",
    ];
    let out = inrush(dir.path(), &python, &args);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let line: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(line["targets"].as_array().unwrap().len(), 4, "{line}");

    let opened = Package::open(&path).unwrap();
    let ptx: Vec<Option<PtxTarget>> = opened.gpus().map(|g| g.ptx).collect();
    let of = |capability, specific| {
        Some(PtxTarget {
            capability,
            specific,
        })
    };
    assert_eq!(ptx, [of(90, true), of(80, false), None]);
    for gpu in opened.gpus() {
        assert!(!gpu.kernels.is_empty());
        for k in &gpu.kernels {
            assert_eq!(opened.code(&k.code)[..4], *b"\x7fELF", "{}", gpu.gpu);
        }
    }
    let products: Vec<usize> = opened.gpus().map(|g| g.products()).collect();
    assert!(products[0] > 0 && products[2] == 0, "{products:?}");

    // Everything from here on is without Python.
    let (inputs, expect) = (
        digits("digits.inputs.safetensors"),
        digits("digits.expect.safetensors"),
    );
    let run = ["run", &package, "--inputs", &inputs, "--expect", &expect];
    let out = inrush(dir.path(), nowhere, &run);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let shown = text(&inrush(dir.path(), nowhere, &["inspect", &package]).stdout);
    for word in [
        "target cuda:h100 (90)",
        "9.0 alone",
        "8.0 and later",
        "target rocm:mi300x (gfx942)",
        "no PTX",
    ] {
        assert!(shown.contains(word), "`{word}` is not in: {shown}");
    }
    let alone = dir.path().join("alone.inrush").display().to_string();
    let args = [
        "compile",
        &model,
        "-o",
        &alone,
        "--target",
        "h100",
        "--no-libraries",
    ];
    let out = inrush(dir.path(), &python, &args);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(
        Package::open(Path::new(&alone))
            .unwrap()
            .gpus()
            .next()
            .unwrap()
            .products(),
        0
    );
    fails(
        &inrush(dir.path(), nowhere, &["run", &alone]),
        3,
        &["cuda:h100"],
    );
    let report = dir.path().join("r.html").display().to_string();
    let out = inrush(dir.path(), nowhere, &["explain", &alone, "-o", &report]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let page = std::fs::read_to_string(&report).unwrap();
    for word in [
        "cuda:h100 (90)",
        "launches, 0 products",
        "<code>",
        "segment(",
    ] {
        assert!(page.contains(word), "`{word}` is not in: {page}");
    }
    let graphs = ["run", &alone, "--cuda-graphs"];
    fails(&inrush(dir.path(), nowhere, &graphs), 2, &["--device"]);
}

#[test]
fn models_that_write_their_buffers_are_packaged() {
    let Some(python) = std::env::var_os("INRUSH_PYTHON").map(PathBuf::from) else {
        eprintln!("INRUSH_PYTHON is not set: no Triton to build with");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inrush-torch/tests/data");
    let package = dir.path().join("m.inrush").display().to_string();
    let compile = |name: &str, targets: &str| {
        let model = data.join(name).display().to_string();
        let args = ["compile", &model, "-o", &package, "--target", targets];
        inrush(dir.path(), &python, &args)
    };
    let out = compile("writes.pt2", "cpu,h100");
    assert!(out.status.success(), "{}", text(&out.stderr));
    let opened = Package::open(Path::new(&package)).unwrap();
    let program = &opened.gpus().next().unwrap().lowered.program;
    let writes = |o: &Out| matches!(o, Out::Mutation { .. });
    assert!(program.outputs.iter().any(writes));
}
