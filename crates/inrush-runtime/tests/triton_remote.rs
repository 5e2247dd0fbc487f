//! Builds of Triton kernels through the second tier of the cache. One test, since the environment of the process names the tier.

use inrush_program::{GpuKernel, GpuTarget};
use inrush_runtime::remote::Remote;
use inrush_runtime::triton::{MachineCode, Pool, Setup};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A worker without Triton: it writes some bytes, and counts what it is asked for.
const WORKER: &str = r#"
import json, os, socket, sys
def channel(path):
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    r, w = s.makefile("r"), s.makefile("w")
    return (json.loads(line) for line in r), lambda x: print(json.dumps(x), file=w, flush=True)
requests, answer = channel(sys.argv[1])
answer({"ready": "fake"})
for asked in requests:
    if pid := os.fork():
        answer({"pid": pid})
        continue
    requests, say = channel(asked["fork"])
    for q in requests:
        with open(os.path.join(os.path.dirname(__file__), "calls"), "a") as calls:
            calls.write("x")
        os.makedirs(q["out"], exist_ok=True)
        made = {}
        for field, end in (("binary", "cubin"), ("ptx", "ptx")):
            if field == "ptx" and not q["ptx"]:
                continue
            made[field] = os.path.join(q["out"], f"{q['id']}-{end}.{end}")
            with open(made[field], "w") as file:
                file.write(end + q["id"])
        say({"id": q["id"], **made, "metadata": {"name": "k", "num_warps": 4, "num_ctas": 1, "shared": 0}})
    os._exit(0)
"#;

fn source(text: &str) -> GpuKernel {
    GpuKernel {
        text: text.into(),
        function: "kernel_0".into(),
        symbol: String::new(),
        signature: vec![("p".into(), "*fp32".into())],
        constants: Vec::new(),
        divisible: Vec::new(),
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

/// Builds two kernels on a machine with a folder of its own. Returns their code, and true if nothing was built.
fn build(root: &Path, machine: &str, ptx: bool) -> (Vec<String>, bool) {
    let pool = Pool::new(Setup {
        python: "python3".into(),
        script: root.join("worker.py"),
        folder: root.join(machine).join("triton"),
        version: "fake".into(),
        workers: 2,
        patience: Duration::from_secs(20),
        ptx,
        shared: true,
    });
    let (one, two) = (
        source("def kernel_0(): pass"),
        source("def kernel_0(): other"),
    );
    let (built, cached) = pool.build_all(&[&one, &two, &one], &target());
    let code = built.into_iter().map(|b| {
        let b = b.expect("built");
        assert_eq!(b.ptx.is_some(), ptx);
        let MachineCode::File(path) = &b.code else {
            panic!("a build in memory");
        };
        assert!(path.starts_with(root.join(machine)), "{}", path.display());
        String::from_utf8(b.code.bytes().expect("read").into_owned()).expect("text")
    });
    let code = code.collect();
    Remote::finish_last(Duration::from_secs(20));
    (code, cached)
}

/// Returns the files of the tier.
fn stored(shared: &Path) -> Vec<PathBuf> {
    let list = |dir: &Path| -> Vec<PathBuf> {
        let found = fs::read_dir(dir).into_iter().flatten().flatten();
        found.map(|e| e.path()).collect()
    };
    list(&shared.join("triton"))
        .iter()
        .flat_map(|d| list(d))
        .collect()
}

#[test]
fn kernels_that_another_machine_built_are_not_built_again() {
    let root = tempfile::tempdir().expect("a folder");
    let (root, shared) = (root.path(), root.path().join("shared"));
    fs::create_dir(&shared).expect("a folder");
    fs::write(root.join("worker.py"), WORKER).expect("written");
    // SAFETY: this is the only test of its process, and no thread that reads the environment has been started.
    unsafe {
        std::env::set_var(
            "INRUSH_REMOTE_CACHE",
            format!("file://{}", shared.display()),
        );
        std::env::set_var("INRUSH_CACHE_DIR", root.join("cache"));
    }
    let calls = || fs::read(root.join("calls")).map_or(0, |c| c.len());
    let remote = Remote::current().expect("a tier");

    let (code, cached) = build(root, "one", true);
    assert!(!cached);
    assert_eq!((calls(), remote.counts().stored), (2, 2));
    assert!(code[0].starts_with("cubin") && code[0] == code[2] && code[0] != code[1]);
    // With and without PTX.
    for (machine, ptx) in [("other", false), ("third", true)] {
        assert_eq!(build(root, machine, ptx), (code.clone(), true), "{machine}");
    }
    assert_eq!((calls(), remote.counts().hits), (2, 4));

    // Contents that are not those of the notes, in an entry whose digest is right: a careless or malicious writer.
    for path in stored(&shared) {
        let key = path.file_name().and_then(|n| n.to_str()).expect("a name");
        let mut parts = remote.get("triton", key).expect("an entry");
        for (file, bytes) in &mut parts {
            if file.ends_with(".cubin") {
                bytes.reverse();
            }
        }
        let files = parts.into_iter();
        let files = files.map(|(n, b)| (n, inrush_runtime::remote::Source::Memory(b)));
        remote.put("triton", key, files.collect());
    }
    remote.finish(Duration::from_secs(20));
    assert_eq!(build(root, "careful", false), (code.clone(), false));
    assert_eq!(calls(), 4);
    assert_eq!(remote.counts().refused, 2);
    // They have been replaced, by builds without PTX.
    assert_eq!(build(root, "last", false), (code.clone(), true));
    assert_eq!(calls(), 4);
    // Who wants PTX builds them again; nothing is damaged.
    assert_eq!(build(root, "complete", true), (code, false));
    assert_eq!((calls(), remote.counts().refused), (6, 2));
}
