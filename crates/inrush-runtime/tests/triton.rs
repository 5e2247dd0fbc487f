//! The pool of Triton workers: builds, refusals, workers that die or hang.
//!
//! `INRUSH_PYTHON` names a Python with Triton; without it only what needs none is tested.

#![cfg(unix)]

use inrush_program::{GpuKernel, GpuTarget};
use inrush_runtime::triton::{MachineCode, Pool, Setup};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn source(body: &str) -> GpuKernel {
    GpuKernel {
        symbol: "k".into(),
        text: format!(
            "import triton\nimport triton.language as tl\n\n@triton.jit\ndef k(p, n, XBLOCK: tl.constexpr):\n    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)\n    {body}\n"
        ),
        function: "k".into(),
        signature: vec![("p".into(), "*fp32".into()), ("n".into(), "i32".into())],
        constants: vec![("XBLOCK".into(), 128)],
        divisible: vec![0],
        warps: 4,
        stages: 1,
        debug: false,
        programmatic: false,
    }
}

fn target() -> GpuTarget {
    GpuTarget {
        backend: "cuda".into(),
        arch: "90".into(),
        warp: 32,
    }
}

fn setup(python: &Path, script: PathBuf, folder: &Path, patience: Duration) -> Setup {
    Setup {
        python: python.into(),
        script,
        folder: folder.into(),
        version: "test".into(),
        workers: 1,
        patience,
        ptx: false,
        shared: false,
    }
}

fn pool(python: &Path, script: PathBuf, folder: &Path, patience: Duration) -> Pool {
    Pool::new(setup(python, script, folder, patience))
}

#[test]
fn kernels_are_built_once_and_refusals_show_the_source() {
    let Some(python) = std::env::var_os("INRUSH_PYTHON").map(PathBuf::from) else {
        eprintln!("INRUSH_PYTHON is not set: no Triton to build with");
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/inrush/triton/worker.py");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pool = pool(
        &python,
        script.clone(),
        folder.path(),
        Duration::from_secs(300),
    );
    let good = source("tl.store(p + x, tl.load(p + x, x < n) + 1.0, x < n)");
    let first = pool.build(&good, &target()).expect("a build");
    let MachineCode::File(path) = &first.code else {
        panic!("a build in memory");
    };
    assert_eq!((first.info.warps, first.info.ctas), (4, 1));
    assert_eq!(first.ptx, None);
    let written = std::fs::metadata(path).and_then(|m| m.modified());
    let again = pool.build(&good, &target()).expect("the same build");
    assert_eq!(first, again);
    let after = std::fs::metadata(path).and_then(|m| m.modified());
    assert_eq!(written.ok(), after.ok());
    // A damaged binary is built anew.
    std::fs::write(path, b"damaged").expect("written");
    let repaired = pool.build(&good, &target()).expect("a second build");
    assert!(repaired.code.bytes().expect("read").len() > 100);
    // A pool that keeps PTX builds what has none anew, and finds it the next time.
    let keeping = Pool::new(Setup {
        ptx: true,
        ..setup(&python, script, folder.path(), Duration::from_secs(300))
    });
    for cached in [false, true] {
        let (built, all) = keeping.build_all(&[&good], &target());
        assert_eq!(all, cached);
        let built = built.into_iter().next().expect("one").expect("a build");
        let ptx = std::fs::read_to_string(built.ptx.expect("PTX")).expect("read");
        assert!(
            ptx.contains(".target sm_90a") && ptx.contains(".entry k("),
            "{ptx}"
        );
        assert_eq!(built.info, first.info);
    }
    let bad = source("tl.store(p + x, no_such_name, x < n)");
    let e = pool
        .build(&bad, &target())
        .expect_err("a refusal")
        .to_string();
    assert!(e.contains("no_such_name") && e.contains("def k("), "{e}");
}

#[test]
fn workers_that_die_or_hang_say_how_they_ended() {
    let Some(python) = std::env::var_os("INRUSH_PYTHON").map(PathBuf::from) else {
        eprintln!("INRUSH_PYTHON is not set: no Triton to build with");
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/inrush/triton/worker.py");
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (does, patience, said) in [
        ("import os; os._exit(7)", 120, "exit status 7"),
        ("import time; time.sleep(600)", 20, "signal 9"),
    ] {
        let patience = Duration::from_secs(patience);
        let pool = pool(&python, script.clone(), folder.path(), patience);
        let mut bad = source("pass");
        bad.text = format!("{does}\n{}", bad.text);
        let e = pool.build(&bad, &target()).expect_err("lost twice");
        assert!(
            e.to_string().contains("twice") && e.to_string().contains(said),
            "{e}"
        );
        // The others are built all the same.
        let good = source("tl.store(p + x, tl.load(p + x, x < n) * 3.0, x < n)");
        assert!(pool.build(&good, &target()).is_ok());
    }
}

/// A server in Python whose workers behave as `then` says.
fn fake(folder: &Path, then: &str) -> PathBuf {
    let script = folder.join("worker.py");
    let text = r#"
import json, os, socket, sys, time
mark = MARK
def channel(path):
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    r, w = s.makefile("r"), s.makefile("w")
    return (json.loads(line) for line in r), lambda x: print(json.dumps(x), file=w, flush=True)
requests, answer = channel(sys.argv[1])
answer({"ready": "fake"})
for asked in requests:
    if "end" in asked:
        try:
            os.kill(asked["end"], 9)
        except ProcessLookupError:
            pass
        answer({"status": os.waitstatus_to_exitcode(os.waitpid(asked["end"], 0)[1])})
    elif pid := os.fork():
        answer({"pid": pid})
    else:
        requests, say = channel(asked["fork"])
        for q in requests:
            pass
THEN
        os._exit(0)
"#;
    let then: String = then.lines().map(|l| format!("        {l}\n")).collect();
    let mark = format!("{:?}", folder.join("mark").display().to_string());
    let text = text.replace("MARK", &mark).replace("THEN\n", &then);
    std::fs::write(&script, text).expect("written");
    script
}

const ANSWER: &str = "    say({'id': q['id'], 'binary': q['source'], 'metadata': {'name': 'k', 'num_warps': 4, 'num_ctas': 1, 'shared': 0}})";

#[test]
fn a_lost_worker_is_replaced_once() {
    let python = Path::new("python3");
    for way in ["os._exit(7)", "time.sleep(60)"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let then = format!(
            "    if not os.path.exists(mark):\n        open(mark, 'w').close()\n        {way}\n{ANSWER}"
        );
        let script = fake(folder.path(), &then);
        let pool = pool(python, script, folder.path(), Duration::from_secs(4));
        let built = pool
            .build(&source("pass"), &target())
            .expect("a second try");
        assert_eq!(built.info.symbol, "k");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = fake(folder.path(), "    os._exit(7)");
    let pool = pool(python, script, folder.path(), Duration::from_secs(20));
    let e = pool
        .build(&source("pass"), &target())
        .expect_err("lost twice");
    assert!(e.to_string().contains("twice"), "{e}");
}

#[test]
fn a_lost_server_is_replaced() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let then = format!(
        "    if not os.path.exists(mark):\n        open(mark, 'w').close()\n        os._exit(7)\n{ANSWER}"
    );
    let script = fake(folder.path(), &then);
    // It dies when it is to fork the second worker.
    let text = std::fs::read_to_string(&script).expect("read");
    let dies = "    elif os.path.exists(mark) and not os.path.exists(mark + '2'):\n        open(mark + '2', 'w').close()\n        os._exit(3)\n    elif pid :=";
    std::fs::write(&script, text.replace("    elif pid :=", dies)).expect("written");
    let pool = pool(
        Path::new("python3"),
        script,
        folder.path(),
        Duration::from_secs(20),
    );
    let built = pool.build(&source("pass"), &target());
    assert_eq!(built.expect("another server").info.symbol, "k");
    assert!(folder.path().join("mark2").exists());
}

#[test]
fn missing_metadata_is_an_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let then = "    say({'id': q['id'], 'binary': q['source'], 'metadata': {'name': 'k', 'num_warps': 4, 'num_ctas': 1}})";
    let script = fake(folder.path(), then);
    let pool = pool(
        Path::new("python3"),
        script,
        folder.path(),
        Duration::from_secs(20),
    );
    let e = pool
        .build(&source("pass"), &target())
        .expect_err("no size of shared memory");
    assert!(e.to_string().contains("shared"), "{e}");
}
