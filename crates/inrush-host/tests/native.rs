//! The host without Python, over a driver that is a small C library: what is launched, with which arguments, and what comes out.

mod programs;

use inrush_base::{Caps, DType, ErrorKind};
use inrush_host::gpu::cublas;
use inrush_host::native::{Lowered, Model, Object, Process, device, lower};
use inrush_host::program::{Device, HostProgram, Step};
use inrush_program::GpuTarget;
use inrush_runtime::triton::Binary;
use inrush_runtime::{MemoryWeights, Tensor, Value};
use programs::{product, program, segment};
use std::path::{Path, PathBuf};
use std::process::Command;

const GPU: Device = Device { kind: 1, index: 0 };
/// Set in processes that have the driver.
const INSIDE: &str = "INRUSH_FAKE_DRIVER";

/// Runs a test in a process that finds the driver of `fake_driver.c`, where `body` gets a folder and the log of the driver.
fn with_driver(name: &str, memory: Option<u64>, body: fn(&Path)) {
    if let Some(folder) = std::env::var_os(INSIDE) {
        return body(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libcuda.so.1");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_driver.c");
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .status();
    assert!(done.unwrap().success());
    // One file: both names are the same library to the loader.
    std::os::unix::fs::symlink(&library, folder.path().join("libcublas.so.12")).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", name, "--nocapture"])
        .env("LD_LIBRARY_PATH", folder.path())
        .env("FAKE_LOG", folder.path().join("log"))
        .env(INSIDE, folder.path());
    if let Some(bytes) = memory {
        child.env("FAKE_MEMORY", bytes.to_string());
    }
    let out = child.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}\n{error}");
    assert!(text.contains("1 passed"), "{text}");
}

/// The driver's log since the last look.
fn log(folder: &Path) -> Vec<String> {
    let path = folder.join("log");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    std::fs::write(&path, "").unwrap();
    text.lines().map(str::to_string).collect()
}

/// Machine code as far as the driver looks: the head of an ELF file.
fn binary(folder: &Path) -> Binary {
    let path: PathBuf = folder.join("twice.cubin");
    let mut code = b"\x7fELF".to_vec();
    code.resize(128, 0);
    std::fs::write(&path, code).unwrap();
    Binary {
        path,
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

fn model(folder: &Path, program: HostProgram, weights: &MemoryWeights, products: bool) -> Model {
    let (caps, target) = device::caps(GPU).unwrap();
    assert_eq!(
        (caps.threads, target.arch.as_str(), target.warp),
        (132, "90", 32)
    );
    let blas = products.then(|| cublas::find(&[folder.to_path_buf()]).unwrap());
    let objects = (program.constants.iter())
        .map(|c| Object::Weight(format!("w{}", c.1)))
        .collect();
    let lowered = Lowered {
        objects,
        inputs: vec!["x".into()],
        program,
    };
    lowered.program.check(lowered.objects.len()).unwrap();
    let process = Process::new(blas).unwrap();
    Model::new(lowered, vec![binary(folder)], weights, process).unwrap()
}

fn tensor(values: &[f32]) -> Value {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let sizes = vec![values.len() as i64];
    Value::Tensor(Tensor::from_bytes(DType::F32, sizes, &bytes).unwrap())
}

fn floats(value: &Value) -> Vec<f32> {
    let Value::Tensor(t) = value else {
        panic!("no tensor");
    };
    let bytes = t.to_bytes();
    let each = bytes.chunks_exact(4);
    each.map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

/// A chain of segments, each of which multiplies by 4: slots 0, 2, 3 and so on; the first one gives a flag in slot 1.
fn chain(count: usize) -> (Vec<Step>, usize) {
    let from = |k| if k == 0 { 0 } else { k + 1 };
    let steps = (0..count)
        .map(|k| segment(from(k), k + 2, (k == 0).then_some(1)))
        .collect();
    (steps, count + 1)
}

#[test]
fn launches_carry_their_arguments_and_become_one() {
    with_driver(
        "launches_carry_their_arguments_and_become_one",
        None,
        |folder| {
            let (steps, last) = chain(2);
            let model = model(
                folder,
                program(GPU, steps, 4, last, 1),
                &MemoryWeights::default(),
                false,
            );
            assert_eq!(log(folder), [""; 0]);
            let want = |how: &str, n: usize| {
                let launch =
                    format!("{how}launch twice grid=1,1,1 threads=128 shared=65536 args=40 n={n}");
                let mut lines = vec![format!("to device {}", 4 * n)];
                lines.extend(std::iter::repeat_n(launch, 4));
                lines.push(format!("to host {}", 4 * n));
                lines
            };
            for round in 0..5 {
                let out = model.run(&[tensor(&[1.0, 2.0, -3.0])]).unwrap();
                assert_eq!(floats(&out[0]), [16.0, 32.0, -48.0]);
                assert!(matches!(out[1], Value::Scalar(_)));
                let got = log(folder);
                match round {
                    0 | 1 => assert_eq!(got, want("", 3)),
                    // The driver gets all launches as one from now on.
                    2 => {
                        assert_eq!(got[1], "instantiate");
                        assert_eq!(got[2..], want("graph ", 3)[1..]);
                    }
                    _ => assert_eq!(got, want("graph ", 3)),
                }
            }
            // Another size takes the batch over: its launches are set.
            let out = model.run(&[tensor(&[1.0; 200])]).unwrap();
            assert_eq!(floats(&out[0]), [16.0; 200]);
            let got = log(folder);
            assert_eq!(got[1..5], ["set"; 4]);
            assert_eq!(got[5..], want("graph ", 200)[1..]);
        },
    );
}

#[test]
fn products_go_to_the_library_and_are_recorded_with_launches() {
    let name = "products_go_to_the_library_and_are_recorded_with_launches";
    with_driver(name, None, |folder| {
        // x * 4, times the weight in slot 3, the product times itself.
        let steps = vec![
            segment(0, 1, Some(2)),
            product(1, 3, 4, None),
            product(4, 4, 5, None),
        ];
        let mut program = program(GPU, steps, 6, 5, 2);
        program.constants = vec![(3, 0)];
        let mut weights = MemoryWeights::default();
        let w: Vec<u8> = [0f32, 1.0, 1.0, 0.0]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        weights.insert("w0", DType::F32, vec![2, 2], w);
        let model = model(folder, program, &weights, true);
        assert_eq!(log(folder), ["to device 16"]);
        for round in 0..5 {
            let out = model.run(&[tensor(&[1.0, 2.0, 3.0, 4.0])]).unwrap();
            // [[1, 2], [3, 4]] * 4 with columns exchanged: [[8, 4], [16, 12]], squared.
            assert_eq!(floats(&out[0]), [128.0, 80.0, 320.0, 208.0]);
            let got = log(folder);
            let gemm = "gemm m=2 n=2 k=2 trans=00 ld=2,2,2";
            assert_eq!(
                got.iter().filter(|l| l.ends_with(gemm)).count(),
                2,
                "{got:?}"
            );
            let recorded = got.iter().any(|l| l.starts_with("graph "));
            assert_eq!(recorded, round >= 2, "{round}: {got:?}");
            assert_eq!(got.contains(&"begin capture".to_string()), round == 2);
        }
    });
}

#[test]
fn mistakes_of_callers_and_lack_of_memory_are_told() {
    let name = "mistakes_of_callers_and_lack_of_memory_are_told";
    with_driver(name, Some(4096), |folder| {
        let (steps, last) = chain(1);
        let model = model(
            folder,
            program(GPU, steps, 3, last, 1),
            &MemoryWeights::default(),
            false,
        );
        let error = model.run(&[]).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Input);
        let error = model.run(&[Value::Int(3)]).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Input);
        let doubles = Tensor::from_bytes(DType::F64, vec![2], &[0; 16]).unwrap();
        let error = model.run(&[Value::Tensor(doubles)]).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Input);
        assert!(error.to_string().contains("f64"), "{error}");
        let error = model.run(&[tensor(&[1.0; 2000])]).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(error.to_string().contains("too little memory"), "{error}");
        // It goes on afterwards.
        let out = model.run(&[tensor(&[1.0, 2.0])]).unwrap();
        assert_eq!(floats(&out[0]), [4.0, 8.0]);
    });
}

#[test]
fn devices_are_named_by_kind_and_index() {
    assert_eq!(device::parse("cuda").unwrap(), GPU);
    assert_eq!(device::parse("cuda:3").unwrap().index, 3);
    for wrong in ["", "cuda:x", "cuda:-1", "rocm:0", "cpu"] {
        let error = device::parse(wrong).unwrap_err();
        assert!(error.to_string().contains("cuda"), "{error}");
    }
}

/// The host program of a graph's text, compiled for a preset.
fn lowered(text: &str, libraries: inrush_compile::Libraries) -> inrush_base::Result<Lowered> {
    let caps: Caps = inrush_devices::model("h100").unwrap();
    let graph = inrush_graph::text::parse(text).unwrap();
    let options = inrush_compile::Options {
        libraries,
        strict: true,
        ..Default::default()
    };
    let request = inrush_compile::Request::default();
    let sequence =
        inrush_compile::compile_sequence(graph, &request, &caps, &options, &mut ()).unwrap();
    let target = GpuTarget {
        backend: "cuda".into(),
        arch: "90".into(),
        warp: 32,
    };
    lower(sequence, &caps, GPU, target)
}

const LAYER: &str = "graph g\n\
    %0 w: f32[16, 8] = parameter w\n\
    %1 b: f32[16] = parameter b\n\
    %2 x: f32[4, 3, 8] = input 0\n\
    %3 h: f32[4, 3, 16] = aten.linear.default(%2, %0, %1)\n\
    %4 y: f32[4, 3, 16] = aten.relu.default(%3)\n\
    output 0: %4\n";

#[test]
fn layers_are_products_of_a_library_or_compiled_whole() {
    use inrush_compile::Libraries;
    use inrush_host::program::StepKind;
    let library = |s: &Step| matches!(s.kind, StepKind::Library(_));
    let with = lowered(LAYER, Libraries::Products).unwrap();
    assert_eq!(with.program.steps.iter().filter(|s| library(s)).count(), 1);
    assert_eq!(with.inputs, ["x"]);
    let weights = [Object::Weight("w".into()), Object::Weight("b".into())];
    assert_eq!(with.objects, weights);
    let without = lowered(LAYER, Libraries::None).unwrap();
    assert!(!without.program.steps.iter().any(library));
    assert_eq!(without.program.steps.len(), 1);
}

#[test]
fn operators_that_only_pytorch_has_are_listed() {
    let text = "graph g\n\
        %0 x: f32[4, 4] = input 0\n\
        %1 y: f32[4, 4] = foreign.one.default(%0)\n\
        %2 z: f32[4, 4] = foreign.two.default(%1)\n\
        output 0: %2\n";
    let error = lowered(text, inrush_compile::Libraries::None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(
        text.contains("`foreign.one.default`") && text.contains("`foreign.two.default`"),
        "{text}"
    );
}
