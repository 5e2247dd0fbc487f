//! A package on a GPU from C, and from Python where `INRUSH_PYTHON` names one with NumPy, over the driver of `inrush-host`'s tests.
#![cfg(target_os = "linux")]

#[path = "../../inrush-host/tests/driver/mod.rs"]
#[allow(dead_code, unreachable_pub)]
mod driver;
#[path = "../../inrush-host/tests/programs/mod.rs"]
#[allow(dead_code, unreachable_pub)]
mod programs;

use driver::{ALL, Machine, code, gpu, info, is_amd, is_intel, with_driver};
use inrush_host::native::{Lowered, Wanted};
use inrush_package::{KernelParts, TargetParts};
use programs::{chain, program};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the model of the test's device.
fn model() -> &'static str {
    match (is_amd(), is_intel()) {
        (true, _) => "mi300x",
        (_, true) => "max1550",
        _ => "h100",
    }
}

/// Writes a package for the test's device that multiplies by 4.
fn package(folder: &Path) -> PathBuf {
    let (steps, last) = chain(1);
    let lowered = Lowered {
        objects: Vec::new(),
        inputs: vec!["x".into()],
        program: program(gpu(), steps, 3, last, 1),
        complex: Default::default(),
        guards: Vec::new(),
        bounds: Vec::new(),
        expected: Default::default(),
    };
    let Ok(Wanted::Gpu(w)) = Wanted::parse(model()) else {
        panic!("no target");
    };
    let target = TargetParts::Gpu {
        gpu: w.gpu,
        lowered: &lowered,
        kernels: vec![KernelParts {
            info: info(),
            code: code(),
            ptx: None,
        }],
    };
    let path = folder.join("four.inrush");
    inrush_package::write(&path, &[target], &|_| None).expect("a package");
    path
}

/// Returns the newest library of this name among those of the test's own dependencies, and in the folder above.
fn library(name: &str) -> Option<PathBuf> {
    let me = std::env::current_exe().expect("the test's path");
    let found = me.ancestors().skip(1).take(2).filter_map(|f| {
        let path = f.join(name);
        let made = path.metadata().ok()?.modified().ok()?;
        Some((made, path))
    });
    found.max().map(|(_, path)| path)
}

#[test]
fn a_program_in_c_runs_on_a_gpu() {
    with_driver(
        "a_program_in_c_runs_on_a_gpu",
        Machine::default(),
        |folder| {
            let root = Path::new(env!("CARGO_MANIFEST_DIR"));
            let library = library("libinrush.so").expect("libinrush.so");
            let at = library.parent().expect("a folder");
            let to = folder.join("gpu");
            let built = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
                .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"])
                .arg(root.join("include"))
                .arg(root.join("tests/gpu.c"))
                .arg("-o")
                .arg(&to)
                .arg("-L")
                .arg(at)
                .args(["-linrush", "-lpthread"])
                .arg(format!("-Wl,-rpath,{}", at.display()))
                .status();
            assert!(built.expect("a compiler").success());
            let out = Command::new(&to)
                .arg(package(folder))
                .output()
                .expect("a run");
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(out.status.success(), "{text}");
            let wanted = [
                "3 open on a device that is not there",
                "1 open on an unknown device",
                "3 open on the CPU",
                "0 open",
                "1 an output on another device: output 0",
                "1 an input on another device: input `x`",
                "0 open",
                "1 an output on another device: output 0",
                "1 an input on another device: input `x`",
                "end",
            ];
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), wanted.len(), "{text}");
            for (line, want) in lines.iter().zip(wanted) {
                assert!(line.starts_with(want), "`{line}` is not `{want}`");
            }
        },
    );
}

/// The begin of the checks in Python.
const BEGIN: &str = r#"
import ctypes, sys, threading
import numpy as np
import inrush_runtime

package, kind, name = sys.argv[1:]
on = f"{kind}:0"

def refuses(cases):
    "Calls whose errors have these words."
    for call, word in cases:
        try:
            call()
        except inrush_runtime.Error as error:
            assert word in str(error), (word, str(error))
        else:
            raise SystemExit(f"no error about {word}")

def in_threads(call, factor):
    "Calls from several threads, each of which gets its own results."
    wrong = []
    def calls(n):
        for k in range(50):
            got = call(np.array([n, k], np.float32)).numpy().tolist()
            if got != [factor * n, factor * k]:
                wrong.append(got)
    threads = [threading.Thread(target=calls, args=(n,)) for n in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong, wrong[:3]
"#;

/// The checks in Python, over the fake driver, whose memory of the device is memory of the process.
const IN_PYTHON: &str = r#"
for graphs in (False, True):
    model = inrush_runtime.load(package, device=on, cuda_graphs=graphs, concurrent=2)
    assert model.device == on and model.threads == 2
    assert "n" in repr(model.signature), model.signature
    for k in range(5):
        y, flag = model(np.array([1, 2, k], np.float32))
        assert flag is True
        assert isinstance(y, inrush_runtime.DeviceTensor), y
        assert (y.dtype, y.shape, y.strides, y.nbytes, y.device) == ("float32", (3,), (1,), 12, on)
        assert y.__dlpack_device__() == ({"cuda": 2, "rocm": 10}[kind], 0)
        assert y.numpy().tolist() == [4, 8, 4 * k] and len(y.tobytes()) == 12
        # A tensor of the device goes in again, on the default stream and on another.
        z, _ = model(y, stream=1)
        assert z.numpy().tolist() == [16, 32, 16 * k]
        class Stream:
            cuda_stream = 0
        class Protocol:
            def __cuda_stream__(self):
                return 0, 0
        for stream in (Stream(), Protocol(), 0):
            assert model(y, stream=stream)[0].numpy().tolist() == [16, 32, 16 * k]

    class Exporter:
        """A producer that writes down which stream waits for it."""
        asked = []
        def __dlpack_device__(self):
            return y.__dlpack_device__()
        def __dlpack__(self, *, stream=None, max_version=None):
            self.asked.append(stream)
            return y.__dlpack__(stream=stream, max_version=max_version)
    for stream, wanted in ((None, lambda s: s > 2), (0, lambda s: s == (kind == "cuda"))):
        assert model(Exporter(), stream=stream)[0].numpy().tolist() == [16, 32, 64]
        assert wanted(Exporter.asked.pop()), stream
    # In the format before 1.0, into memory of the caller: of the host and of the device.
    assert "dltensor" in repr(y.__dlpack__(stream=-1)) and "versioned" in repr(y.__dlpack__(stream=2, max_version=(1, 1)))
    out = np.zeros(3, np.float32)
    try:
        model(y, out=[out, None])
        raise SystemExit("a number that `out` cannot take is accepted")
    except inrush_runtime.InputError as error:
        assert "number" in str(error), error
    refuses((
        (lambda: model(y, stream="s"), "stream"),
        (lambda: model(y, stream=True), "stream"),
        (lambda: model(np.zeros(3)), "f64"),
        (lambda: model([1.0]), "array"),
        (lambda: model.set_seed(1), "random"),
        (lambda: model.swap_weights(), "no new weights"),
        (lambda: model.update_weights({"w": out}), "no weight"),
        (lambda: inrush_runtime.load(package, device=f"{kind}:9"), "device 9"),
        (lambda: inrush_runtime.load(package, device="tpu"), "unknown device"),
        (lambda: inrush_runtime.load(package), f"{kind}:{name}"),
        (lambda: inrush_runtime.load(package, cuda_graphs=True), "GPUs"),
    ))
    in_threads(lambda x: model(x)[0], 4)
    del model
    assert z.numpy().tolist() == [16, 32, 64], "an output outlives its model"
assert "torch" not in sys.modules
print("whole")
"#;

/// Likewise for a kind whose driver captures nothing, and whose streams are not those of other libraries.
const WITHOUT_STREAMS: &str = r#"
model = inrush_runtime.load(package, device=on, concurrent=2)
y, flag = model(np.array([1, 2, 3], np.float32))
assert flag is True and isinstance(y, inrush_runtime.DeviceTensor) and y.device == on
assert y.numpy().tolist() == [4, 8, 12] and y.__dlpack_device__() == (14, 0)
# A tensor of the device goes in again.
z, _ = model(y)
assert z.numpy().tolist() == [16, 32, 48]

class Queue:
    sycl_queue = 512

class Exporter:
    "A producer, which is asked for no stream."
    asked = []
    def __dlpack_device__(self):
        return y.__dlpack_device__()
    def __dlpack__(self, **options):
        self.asked.append(options)
        return y.__dlpack__(**options)

assert model(Exporter())[0].numpy().tolist() == [16, 32, 48]
assert Exporter.asked and all("stream" not in options for options in Exporter.asked), Exporter.asked
# A consumer names its queue, which is not looked at: the work is done.
for stream in (None, -1, 512, Queue()):
    assert "versioned" in repr(y.__dlpack__(stream=stream, max_version=(1, 1)))

class Elsewhere(Exporter):
    "Memory that the driver's context does not know."
    memory = (ctypes.c_float * 3)()
    def __dlpack__(self, **options):
        given = np.frombuffer(self.memory, np.float32)
        capsule = given.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # The device's type comes after the address.
        ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(ctypes.c_int32))[2] = 14
        return capsule

refuses((
    (lambda: model(y, stream=Queue()), "queue of SYCL"),
    (lambda: model(y, stream=512), "command lists of this driver"),
    (lambda: model(Elsewhere()), "a context of another library"),
    (lambda: inrush_runtime.load(package, device=on, cuda_graphs=True), "captures no calls"),
    (lambda: inrush_runtime.load(package, device=f"{kind}:9"), "2 devices"),
    (lambda: inrush_runtime.load(package), f"{kind}:{name}"),
))
in_threads(lambda x: model(model(x)[0])[0], 16)
del model
assert z.numpy().tolist() == [16, 32, 48], "an output outlives its model"
assert "torch" not in sys.modules
print("whole")
"#;

#[test]
fn python_runs_on_a_gpu_without_pytorch() {
    with_driver(
        "python_runs_on_a_gpu_without_pytorch",
        Machine {
            kinds: ALL,
            ..Machine::default()
        },
        |folder| {
            let native = library("libinrush_runtime_native.so");
            let (Some(python), Some(native)) = (std::env::var_os("INRUSH_PYTHON"), native) else {
                eprintln!("INRUSH_PYTHON is not set, or inrush-runtime-python is not built");
                return;
            };
            let module = folder.join("inrush_runtime");
            std::fs::create_dir(&module).expect("a folder");
            let source = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../python/inrush-runtime/inrush_runtime/__init__.py");
            std::fs::copy(source, module.join("__init__.py")).expect("the module");
            std::fs::copy(native, module.join("_native.abi3.so")).expect("the library");
            let (script, kind) = match (is_amd(), is_intel()) {
                (true, _) => (IN_PYTHON, "rocm"),
                (_, true) => (WITHOUT_STREAMS, "xpu"),
                _ => (IN_PYTHON, "cuda"),
            };
            let out = Command::new(python)
                .args(["-c", &format!("{BEGIN}{script}")])
                .arg(package(folder))
                .args([kind, model()])
                .env("PYTHONPATH", folder)
                .output()
                .expect("a run");
            let text = String::from_utf8_lossy(&out.stdout);
            let error = String::from_utf8_lossy(&out.stderr);
            assert!(text.contains("whole"), "{text}{error}");
        },
    );
}
