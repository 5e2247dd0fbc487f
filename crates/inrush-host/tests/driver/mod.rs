//! Tests in a process whose driver is the small C library `fake.c`.

use inrush_base::DType;
use inrush_host::gpu::driver::Driver;
use inrush_host::program::Device;
use inrush_program::BinaryInfo;
use inrush_runtime::triton::{Binary, MachineCode};
use inrush_runtime::{Tensor, Value};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set in processes that have the driver.
const INSIDE: &str = "INRUSH_FAKE_DRIVER";
/// Set there to the kind of the device.
const KIND: &str = "INRUSH_FAKE_KIND";

/// The kinds of devices that the library is a driver of, with the name of the library.
const KINDS: [(&str, &str); 3] = [
    ("cuda", "libcuda.so.1"),
    ("rocm", "libamdhip64.so.7"),
    ("xpu", "libze_loader.so.1"),
];

/// Every kind.
#[allow(dead_code)] // Not every test is of all.
pub const ALL: &[&str] = &["cuda", "rocm", "xpu"];

/// The machine that a test sees.
pub struct Machine {
    /// Largest block of memory that the device has.
    pub memory: Option<u64>,
    /// The compute capability, 90 for 9.0.
    pub capability: u32,
    pub has_cublas: bool,
    /// Work waits in its stream until something waits for the stream.
    pub is_late: bool,
    /// A function that fails, and the number of calls that succeed before (`cuMemAlloc_v2:3`). CUDA's names stand for HIP's too.
    pub fails: Option<String>,
    /// The kinds of devices that the test is of; it runs once for each.
    pub kinds: &'static [&'static str],
    /// The architecture of AMD's, with its features, or the number of Intel's product.
    pub arch: &'static str,
    /// Threads of a sub-group that kernels were built for, where the driver tells.
    pub lanes: Option<u32>,
}

impl Default for Machine {
    fn default() -> Self {
        Machine {
            memory: None,
            capability: 90,
            has_cublas: true,
            is_late: false,
            fails: None,
            kinds: &["cuda"],
            arch: "gfx942:sramecc+:xnack-",
            lanes: None,
        }
    }
}

/// Runs a test in a process that finds the driver, where `body` gets a folder and the log of the driver.
pub fn with_driver(name: &str, machine: Machine, body: fn(&Path)) {
    if let Some(folder) = std::env::var_os(INSIDE) {
        return body(Path::new(&folder));
    }
    for kind in machine.kinds {
        run(name, &machine, kind);
    }
}

/// Runs a test in a process of its own.
fn run(name: &str, machine: &Machine, kind: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (_, library) = KINDS.into_iter().find(|k| k.0 == kind).unwrap();
    let library = folder.path().join(library);
    std::fs::copy(compiled(), &library).unwrap();
    if machine.has_cublas {
        // One file: both names are the same library to the loader.
        std::os::unix::fs::symlink(&library, folder.path().join("libcublas.so.12")).unwrap();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", name, "--nocapture"])
        .env("LD_LIBRARY_PATH", folder.path())
        .env("FAKE_LOG", folder.path().join("log"))
        .env("FAKE_CAPABILITY", machine.capability.to_string())
        .env("FAKE_ARCH", machine.arch)
        .env(KIND, kind)
        .env("INRUSH_CACHE_DIR", folder.path().join("cache"))
        .env(INSIDE, folder.path());
    if machine.is_late {
        child.env("FAKE_LATE", "1");
    }
    if let Some(lanes) = machine.lanes {
        child.env("FAKE_LANES", lanes.to_string());
    }
    if let Some(text) = &machine.fails {
        child.env("FAKE_FAIL", text);
    }
    if let Some(bytes) = machine.memory {
        child.env("FAKE_MEMORY", bytes.to_string());
    }
    let out = child.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{kind}: {text}\n{error}");
    assert!(text.contains("1 passed"), "{text}");
}

/// Returns true in a process that has the driver.
#[allow(dead_code)] // Most tests need not know.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Returns the first device of the test's kind.
#[allow(dead_code)] // Some tests name theirs.
pub fn gpu() -> Device {
    let kind = std::env::var(KIND).unwrap_or_else(|_| "cuda".into());
    inrush_host::native::device::parse(&kind).unwrap()
}

/// Returns true if the test's device is AMD's.
#[allow(dead_code)] // Likewise.
pub fn is_amd() -> bool {
    std::env::var(KIND).is_ok_and(|kind| kind == "rocm")
}

/// Returns true if the test's device is Intel's, whose driver captures nothing and has no batches.
#[allow(dead_code)] // Likewise.
pub fn is_intel() -> bool {
    std::env::var(KIND).is_ok_and(|kind| kind == "xpu")
}

/// Returns the driver of the test's kind.
#[allow(dead_code)] // Likewise.
pub fn driver() -> Driver {
    inrush_host::devices::driver(gpu()).unwrap()
}

/// Compiles the library, once for each text of it.
fn compiled() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inrush-host/tests/driver");
    let source = folder.join("fake.c");
    let mut digest = std::hash::DefaultHasher::new();
    for file in ["fake.c", "zero.c"] {
        std::fs::read(folder.join(file)).unwrap().hash(&mut digest);
    }
    let kept =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-{:x}.so", digest.finish()));
    if !kept.exists() {
        // Tests of one process run at once.
        let made = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR"));
        let made = made.unwrap().into_temp_path();
        let done = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-pthread", "-o"])
            .args([made.as_ref(), source.as_path()])
            .status();
        assert!(done.unwrap().success());
        made.persist(&kept).unwrap();
    }
    kept
}

/// Returns the driver's log since the last look.
#[allow(dead_code)] // Some tests look at results alone.
pub fn log(folder: &Path) -> Vec<String> {
    let path = folder.join("log");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    std::fs::write(&path, "").unwrap();
    text.lines().map(str::to_string).collect()
}

/// Returns machine code as far as the driver looks: the head of an ELF file, or the first word of SPIR-V.
pub fn code() -> Vec<u8> {
    let head = if is_intel() {
        0x0723_0203u32.to_le_bytes()
    } else {
        *b"\x7fELF"
    };
    let mut code = head.to_vec();
    code.resize(128, 0);
    code
}

/// Returns the kernel that the driver knows, in a file.
#[allow(dead_code)] // Packages have kernels in memory.
pub fn binary(folder: &Path) -> Binary {
    let path: PathBuf = folder.join("twice.cubin");
    std::fs::write(&path, code()).unwrap();
    Binary {
        code: MachineCode::File(path),
        ptx: None,
        info: info(),
    }
}

/// Returns what launches know of it.
pub fn info() -> BinaryInfo {
    BinaryInfo {
        symbol: "twice".into(),
        warps: 4,
        ctas: 1,
        shared: 64 << 10,
        scratch: 0,
        scratch_align: 1,
        cooperative: false,
        maps: Vec::new(),
    }
}

#[allow(dead_code)] // Not every test has inputs.
pub fn tensor(values: &[f32]) -> Value {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let sizes = vec![values.len() as i64];
    Value::Tensor(Tensor::from_bytes(DType::F32, sizes, &bytes).unwrap())
}

#[allow(dead_code)] // Likewise.
pub fn floats(value: &Value) -> Vec<f32> {
    let Value::Tensor(t) = value else {
        panic!("no tensor");
    };
    let bytes = t.to_bytes();
    let each = bytes.chunks_exact(4);
    each.map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}
