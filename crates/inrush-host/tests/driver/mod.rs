//! Tests in a process whose driver is the small C library `fake.c`.

use inrush_base::DType;
use inrush_program::BinaryInfo;
use inrush_runtime::triton::{Binary, MachineCode};
use inrush_runtime::{Tensor, Value};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set in processes that have the driver.
const INSIDE: &str = "INRUSH_FAKE_DRIVER";

/// The machine that a test sees.
pub struct Machine {
    /// Largest block of memory that the device has.
    pub memory: Option<u64>,
    /// The compute capability, 90 for 9.0.
    pub capability: u32,
    pub has_cublas: bool,
    /// Work waits in its stream until something waits for the stream.
    pub is_late: bool,
    /// A function that fails, and the number of calls that succeed before (`cuMemAlloc_v2:3`).
    pub fails: Option<&'static str>,
}

impl Default for Machine {
    fn default() -> Self {
        Machine {
            memory: None,
            capability: 90,
            has_cublas: true,
            is_late: false,
            fails: None,
        }
    }
}

/// Runs a test in a process that finds the driver, where `body` gets a folder and the log of the driver.
pub fn with_driver(name: &str, machine: Machine, body: fn(&Path)) {
    if let Some(folder) = std::env::var_os(INSIDE) {
        return body(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libcuda.so.1");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inrush-host/tests/driver/fake.c");
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-pthread", "-o"])
        .args([&library, &source])
        .status();
    assert!(done.unwrap().success());
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
        .env(INSIDE, folder.path());
    if machine.is_late {
        child.env("FAKE_LATE", "1");
    }
    if let Some(text) = machine.fails {
        child.env("FAKE_FAIL", text);
    }
    if let Some(bytes) = machine.memory {
        child.env("FAKE_MEMORY", bytes.to_string());
    }
    let out = child.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}\n{error}");
    assert!(text.contains("1 passed"), "{text}");
}

/// Returns the driver's log since the last look.
pub fn log(folder: &Path) -> Vec<String> {
    let path = folder.join("log");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    std::fs::write(&path, "").unwrap();
    text.lines().map(str::to_string).collect()
}

/// Returns machine code as far as the driver looks: the head of an ELF file.
pub fn code() -> Vec<u8> {
    let mut code = b"\x7fELF".to_vec();
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

pub fn tensor(values: &[f32]) -> Value {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let sizes = vec![values.len() as i64];
    Value::Tensor(Tensor::from_bytes(DType::F32, sizes, &bytes).unwrap())
}

pub fn floats(value: &Value) -> Vec<f32> {
    let Value::Tensor(t) = value else {
        panic!("no tensor");
    };
    let bytes = t.to_bytes();
    let each = bytes.chunks_exact(4);
    each.map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}
