//! The host without Python, over a driver that is a small C library: what is launched, with which arguments, and what comes out.

mod driver;
mod programs;

use driver::{ALL, Machine, binary, floats, gpu, is_amd, is_intel, log, tensor, with_driver};
use inrush_base::{DType, ErrorKind};
use inrush_host::gpu::cublas;
use inrush_host::native::{Model, Options, device};
use inrush_host::program::HostProgram;
use inrush_runtime::{MemoryWeights, Tensor, Value};
use programs::{chain, lowered, program, two_products};
use std::path::Path;

/// The machine of a test that is the same for all kinds.
fn any() -> Machine {
    Machine {
        kinds: ALL,
        ..Machine::default()
    }
}

fn model(folder: &Path, program: HostProgram, weights: &MemoryWeights, products: bool) -> Model {
    let (caps, target) = device::caps(gpu()).unwrap();
    let expected = match (is_amd(), is_intel()) {
        (true, _) => (304, "gfx942", 64),
        (_, true) => (64, "pvc", 32),
        _ => (132, "90", 32),
    };
    let found = (caps.threads, target.arch.as_str(), target.warp);
    assert_eq!(found, expected);
    let blas = products.then(|| cublas::find(&[folder.to_path_buf()]).unwrap());
    let lowered = lowered(program);
    let binaries = vec![binary(folder)];
    Model::new(lowered, binaries, weights, gpu(), blas, Options::default()).unwrap()
}

#[test]
fn launches_carry_their_arguments_and_become_one() {
    with_driver(
        "launches_carry_their_arguments_and_become_one",
        any(),
        |folder| {
            let (steps, last) = chain(2);
            let model = model(
                folder,
                program(gpu(), steps, 4, last, 1),
                &MemoryWeights::default(),
                false,
            );
            assert_eq!(log(folder), [""; 0]);
            let threads = if is_amd() { 256 } else { 128 };
            let want = |how: &str, n: usize| {
                let launch = format!(
                    "{how}launch twice grid=1,1,1 threads={threads} shared=65536 args=40 n={n}"
                );
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
                    _ if is_intel() => assert_eq!(got, want("", 3)),
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
            if is_intel() {
                assert_eq!(got, want("", 200));
                return;
            }
            assert_eq!(got[1..5], ["set"; 4]);
            assert_eq!(got[5..], want("graph ", 200)[1..]);
        },
    );
}

#[test]
fn kernels_that_wait_overlap_in_streams_and_in_batches() {
    let name = "kernels_that_wait_overlap_in_streams_and_in_batches";
    with_driver(name, Machine::default(), |folder| {
        let (steps, last) = chain(2);
        let mut program = program(gpu(), steps, 4, last, 1);
        for kernel in &mut program.gpu.as_mut().unwrap().kernels {
            kernel.programmatic = true;
        }
        let model = model(folder, program, &MemoryWeights::default(), false);
        log(folder);
        for round in 0..4 {
            let out = model.run(&[tensor(&[1.0, 2.0, -3.0])]).unwrap();
            assert_eq!(floats(&out[0]), [16.0, 32.0, -48.0]);
            let got = log(folder);
            let launches: Vec<&String> = got.iter().filter(|l| l.contains("launch ")).collect();
            assert_eq!(launches.len(), 4, "{got:?}");
            for (k, launch) in launches.iter().enumerate() {
                let batched = launch.starts_with("graph ");
                assert_eq!(batched, round >= 2, "{got:?}");
                // The first kernel of a batch has none before it there.
                assert_eq!(launch.ends_with(" overlaps"), !batched || k > 0, "{got:?}");
            }
        }
    });
}

#[test]
fn products_go_to_the_library_and_are_recorded_with_launches() {
    let name = "products_go_to_the_library_and_are_recorded_with_launches";
    with_driver(name, Machine::default(), |folder| {
        // x * 4, times the weight in slot 3, the product times itself.
        let program = two_products(gpu());
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
    let machine = Machine {
        memory: Some(4096),
        ..any()
    };
    with_driver(name, machine, |folder| {
        let (steps, last) = chain(1);
        let model = model(
            folder,
            program(gpu(), steps, 3, last, 1),
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
fn programs_have_the_threads_that_their_kernels_were_built_for() {
    let name = "programs_have_the_threads_that_their_kernels_were_built_for";
    let machine = Machine {
        kinds: &["xpu"],
        lanes: Some(16),
        ..Machine::default()
    };
    with_driver(name, machine, |folder| {
        let (steps, last) = chain(1);
        let program = program(gpu(), steps, 3, last, 1);
        let model = model(folder, program, &MemoryWeights::default(), false);
        log(folder);
        let out = model.run(&[tensor(&[1.0, 2.0])]).unwrap();
        assert_eq!(floats(&out[0]), [4.0, 8.0]);
        // Four warps of 16 threads.
        let got = log(folder);
        let launches = got.iter().filter(|l| l.contains(" threads=64 ")).count();
        assert_eq!(launches, 2, "{got:?}");
    });
}

#[test]
fn devices_are_named_by_kind_and_index() {
    assert_eq!(device::parse("cuda").unwrap(), gpu());
    assert_eq!(device::parse("cuda:3").unwrap().index, 3);
    assert_eq!(device::parse("xpu:1").unwrap().index, 1);
    for wrong in ["", "cuda:x", "cuda:-1", "rocm:-1", "xpu:", "vpu:0", "cpu"] {
        let error = device::parse(wrong).unwrap_err();
        assert!(error.to_string().contains("cuda"), "{error}");
    }
}
