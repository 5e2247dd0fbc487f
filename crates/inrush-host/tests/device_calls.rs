//! Calls on a device over the fake driver: memory of the device in and out, streams, threads, weights, captured calls, state.
//!
//! The driver keeps work in its streams until something waits for them, so that a missing wait shows in the results.

mod driver;
mod programs;

use driver::{ALL, Machine, binary, floats, gpu, is_amd, is_intel, log, tensor, with_driver};
use inrush_base::{DType, Error, ErrorKind, Scalar};
use inrush_host::gpu::cublas;
use inrush_host::native::{Argument, DeviceTensor, Model, NewWeight, Options, Output};
use inrush_host::program::{Device, HostProgram, Out, StepKind};
use inrush_runtime::{InputKind, MemoryWeights, Names, OutputSpec, Value, WeightView};
use programs::{chain, lowered, program, segment, two_products};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A machine whose work waits in its streams.
fn late() -> Machine {
    Machine {
        kinds: ALL,
        is_late: true,
        ..Machine::default()
    }
}

/// Likewise, with a library for products, which one kind of device has.
fn with_products() -> Machine {
    Machine {
        kinds: &["cuda"],
        ..late()
    }
}

fn graphs() -> Options {
    Options {
        capture: true,
        ..Options::default()
    }
}

/// The options of calls that the device can run: captured ones too, where its driver captures.
fn modes() -> Vec<Options> {
    match is_intel() {
        true => vec![Options::default()],
        false => vec![Options::default(), graphs()],
    }
}

fn model(folder: &Path, program: HostProgram, weights: &MemoryWeights, o: Options) -> Model {
    let blas =
        (!program.constants.is_empty()).then(|| cublas::find(&[folder.to_path_buf()]).unwrap());
    let binaries = vec![binary(folder)];
    Model::new(lowered(program), binaries, weights, gpu(), blas, o).unwrap()
}

/// A model that multiplies by 4.
fn quadruple(folder: &Path, o: Options) -> Model {
    let (steps, last) = chain(1);
    model(
        folder,
        program(gpu(), steps, 3, last, 1),
        &MemoryWeights::default(),
        o,
    )
}

/// `p * p` for `p = 4 x * w` of square matrices of two rows.
fn products(folder: &Path, w: [f32; 4], o: Options) -> Model {
    let mut weights = MemoryWeights::default();
    weights.insert("w0", DType::F32, vec![2, 2], bytes(&w));
    model(folder, two_products(gpu()), &weights, o)
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A weight of the host's.
fn view<'a>(sizes: &'a [i64], data: &'a [u8]) -> NewWeight<'a> {
    NewWeight::Host(WeightView {
        dtype: DType::F32,
        sizes,
        strides: &[2, 1],
        bytes: data,
    })
}

/// A tensor of the caller's on the device, which holds the values.
fn on_device(values: &[f32]) -> DeviceTensor {
    let driver = driver::driver();
    driver.make_current(0).unwrap();
    let mut memory = driver.allocate(4 * values.len()).unwrap();
    memory.write(&bytes(values)).unwrap();
    let at = memory.address();
    let sizes = vec![values.len() as i64];
    // SAFETY: the memory is the tensor's.
    unsafe { DeviceTensor::foreign(DType::F32, (sizes, vec![1]), (at, gpu()), Arc::new(memory)) }
        .unwrap()
}

fn read(t: &DeviceTensor) -> Vec<f32> {
    floats(&Value::Tensor(t.download().unwrap()))
}

fn first(outputs: Vec<Output>) -> DeviceTensor {
    match outputs.into_iter().next() {
        Some(Output::Device(t)) => t,
        _ => panic!("no tensor of the device"),
    }
}

#[test]
fn tensors_of_the_device_go_in_and_out_without_copies() {
    let name = "tensors_of_the_device_go_in_and_out_without_copies";
    with_driver(name, late(), |folder| {
        let model = quadruple(folder, Options::default());
        let outputs = &model.signature().outputs;
        assert!(matches!(outputs[0], OutputSpec::Tensor { .. }));
        assert_eq!(outputs[1], OutputSpec::Scalar(Scalar::Bool(true)));
        let x = on_device(&[1.0, 2.0, -3.0]);
        log(folder);
        for _ in 0..4 {
            let out = first(model.call(&[Argument::Device(x.clone())], None).unwrap());
            assert_eq!(read(&out), [4.0, 8.0, -12.0]);
            assert_eq!(out.stream(), None, "what the call wrote is there");
        }
        let got = log(folder);
        assert!(!got.iter().any(|l| l.starts_with("to device")), "{got:?}");
        // Into memory of the caller: kernels write there, or it is copied where it is an input as well.
        let out = on_device(&[0.0; 3]);
        let into = [Argument::Device(out.clone()), Argument::Value(Value::None)];
        // SAFETY: the memory is this test's.
        unsafe { model.call_into(&[Argument::Device(x.clone())], &into, None) }.unwrap();
        assert_eq!(read(&out), [4.0, 8.0, -12.0]);
        let into = [Argument::Device(x.clone()), Argument::Value(Value::None)];
        // SAFETY: likewise.
        unsafe { model.call_into(&[Argument::Device(x.clone())], &into, None) }.unwrap();
        assert_eq!(read(&x), [4.0, 8.0, -12.0]);
        // Outputs outlive the model.
        let out = first(model.call(&[Argument::Device(x)], None).unwrap());
        drop(model);
        assert_eq!(read(&out), [16.0, 32.0, -48.0]);
    });
}

#[test]
fn work_goes_to_the_stream_of_the_caller_in_its_order() {
    let name = "work_goes_to_the_stream_of_the_caller_in_its_order";
    with_driver(name, late(), |folder| {
        let driver = driver::driver();
        for options in modes() {
            let model = quadruple(folder, options);
            driver.make_current(0).unwrap();
            let (a, b) = (driver.own_stream().unwrap(), driver.own_stream().unwrap());
            let x = on_device(&[0.0; 2]);
            for k in 1..8 {
                let given = on_device(&[k as f32, 1.0]);
                // SAFETY: both have eight bytes, and live until the end.
                unsafe { driver.copy(x.address(), given.address(), 8, a.stream()) }.unwrap();
                log(folder);
                let input = [Argument::Device(x.clone())];
                let y = first(model.call(&input, Some(a.stream())).unwrap());
                assert_eq!(log(folder), [""; 0], "nothing ran yet");
                assert_eq!(y.stream(), Some(a.stream()));
                // A call on another stream comes after the work that writes its input.
                let z = first(
                    model
                        .call(&[Argument::Device(y.clone())], Some(b.stream()))
                        .unwrap(),
                );
                drop(y);
                assert_eq!(read(&z), [16.0 * k as f32, 16.0]);
            }
            // A tensor of the host has the call wait.
            let y = first(
                model
                    .call(&[Argument::Value(tensor(&[5.0]))], Some(a.stream()))
                    .unwrap(),
            );
            assert_ne!(log(folder), [""; 0]);
            assert_eq!(read(&y), [20.0]);
        }
    });
}

#[test]
fn mistakes_with_memory_of_devices_are_told() {
    let name = "mistakes_with_memory_of_devices_are_told";
    with_driver(name, with_products(), |folder| {
        let model = products(folder, [1.0; 4], Options::default());
        let square = |strides: Vec<i64>, device| {
            let memory = on_device(&[1.0; 4]);
            let at = memory.address();
            // SAFETY: the memory is the tensor's.
            let t = unsafe {
                DeviceTensor::foreign(
                    DType::F32,
                    (vec![4], strides),
                    (
                        at,
                        Device {
                            index: device,
                            ..gpu()
                        },
                    ),
                    Arc::new(memory),
                )
            };
            t.unwrap()
        };
        let fails = |t: DeviceTensor, word: &str| {
            let error = model.call(&[Argument::Device(t)], None).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Input);
            let text = error.to_string();
            assert!(text.contains("input `x`") && text.contains(word), "{text}");
        };
        fails(square(vec![1], 1), "`cuda:1`");
        // Another vendor's memory has the same index.
        let amd = inrush_host::native::device::parse("rocm").unwrap();
        // SAFETY: nothing reads it.
        let t = unsafe {
            DeviceTensor::foreign(DType::F32, (vec![4], vec![1]), (512, amd), Arc::new(()))
        };
        fails(t.unwrap(), "`rocm:0`");
        fails(square(vec![2], 0), "strides");
        // SAFETY: nothing uses the memory.
        let wrong = unsafe {
            DeviceTensor::foreign(DType::F32, (vec![2], vec![-1]), (512, gpu()), Arc::new(()))
        };
        assert!(wrong.is_err());
        // SAFETY: likewise.
        let wrong = unsafe {
            DeviceTensor::foreign(DType::F32, (vec![2], vec![1]), (2, gpu()), Arc::new(()))
        };
        assert!(wrong.is_err());
        let x = Argument::Value(tensor(&[1.0; 4]));
        for (into, word) in [
            (square(vec![1], 0), "sizes"),
            (square(vec![1], 0).read_only(), "read-only"),
        ] {
            let into = [Argument::Device(into), Argument::Value(Value::None)];
            // SAFETY: the memory is this test's.
            let error = unsafe { model.call_into(std::slice::from_ref(&x), &into, None) };
            let text = error.unwrap_err().to_string();
            assert!(text.contains("output 0") && text.contains(word), "{text}");
        }
    });
}

#[test]
fn sizes_outside_of_their_range_are_refused() {
    let name = "sizes_outside_of_their_range_are_refused";
    with_driver(name, late(), |folder| {
        let (mut steps, last) = chain(1);
        if let StepKind::Segment(s) = &mut steps[0].kind {
            (s.program.symbols[0].lower, s.program.symbols[0].upper) = (2, 3);
        }
        let program = program(gpu(), steps, 3, last, 1);
        let model = model(
            folder,
            program,
            &MemoryWeights::default(),
            Options::default(),
        );
        for n in [1, 2, 3, 4] {
            match model.run(&[tensor(&vec![1.0; n])]) {
                Ok(out) => assert_eq!(floats(&out[0]), vec![4.0; n], "{n}"),
                Err(error) => {
                    let text = error.to_string();
                    let want = format!("input `x`: `n` is {n}, outside 2..=3");
                    assert!(!(2..=3).contains(&n) && text.contains(&want), "{text}");
                }
            }
        }
    });
}

/// The square of `4 x w` for `x` of ones.
fn expected(w: [f32; 4]) -> Vec<f32> {
    let x = [4.0f32; 4];
    let mul = |a: &[f32], b: &[f32]| -> Vec<f32> {
        let at = |i: usize, j: usize| a[2 * i] * b[j] + a[2 * i + 1] * b[2 + j];
        vec![at(0, 0), at(0, 1), at(1, 0), at(1, 1)]
    };
    let p = mul(&x, &w);
    mul(&p, &p)
}

#[test]
fn weights_are_checked_updated_and_swapped() {
    let name = "weights_are_checked_updated_and_swapped";
    with_driver(name, with_products(), |folder| {
        for options in modes() {
            let (one, two, three) = ([1.0; 4], [2.0, 0.0, 0.0, 1.0], [0.5, 1.0, 3.0, 1.0]);
            let model = products(folder, one, options);
            let run = || floats(&model.run(&[tensor(&[1.0; 4])]).unwrap()[0]);
            let names: Vec<String> = model.weights().into_iter().map(|w| w.name).collect();
            assert_eq!(names, ["w0"]);
            for _ in 0..4 {
                assert_eq!(run(), expected(one));
            }
            let (b, c) = (bytes(&two), bytes(&three));
            let refused = |name: &str, w: NewWeight<'_>, word: &str| {
                let error = model.update_weights(&[(name, w)], Names::Some).unwrap_err();
                assert!(error.to_string().contains(word), "{error}");
            };
            refused("v", view(&[2, 2], &b), "no weight `v`");
            refused("w0", view(&[4, 1], &b), "of sizes [2, 2]");
            refused("w0", view(&[2, 2], &b[..8]), "too few bytes");
            let other = on_device(&two);
            refused("w0", NewWeight::Device(&other), "of sizes [2, 2]");
            let error = model.swap_weights().unwrap_err();
            assert!(error.to_string().contains("no new weights"), "{error}");

            model
                .update_weights(&[("w0", view(&[2, 2], &b))], Names::All)
                .unwrap();
            assert_eq!(run(), expected(one), "an update changes no call");
            model.swap_weights().unwrap();
            // Two places alternate; a third set waits while the second is active.
            for round in 0..6 {
                assert_eq!(run(), expected(if round % 2 == 0 { two } else { three }));
                let next = if round % 2 == 0 { &c } else { &b };
                model
                    .update_weights(&[("w0", view(&[2, 2], &b))], Names::Some)
                    .unwrap();
                model
                    .update_weights(&[("w0", view(&[2, 2], next))], Names::Some)
                    .unwrap();
                model.swap_weights().unwrap();
            }
            let stored = model.weight("w0").unwrap().unwrap();
            assert_eq!(floats(&Value::Tensor(stored)), two);
            assert!(model.weight("v").unwrap().is_none());
            model
                .update_weights(&[("w0", view(&[2, 2], &c))], Names::Some)
                .unwrap();
            model.discard_update();
            assert!(model.swap_weights().is_err());
        }
    });
}

#[test]
fn each_answer_under_swaps_is_of_one_set() {
    let name = "each_answer_under_swaps_is_of_one_set";
    with_driver(name, with_products(), |folder| {
        for options in modes() {
            let (one, two) = ([1.0; 4], [2.0, 0.0, 0.0, 1.0]);
            let model = products(folder, one, options);
            let (a, b) = (bytes(&one), bytes(&two));
            let (stop, seen) = (AtomicBool::new(false), [0, 1].map(|_| AtomicUsize::new(0)));
            std::thread::scope(|s| {
                for _ in 0..4 {
                    s.spawn(|| {
                        while !stop.load(Ordering::Relaxed) {
                            let got = floats(&model.run(&[tensor(&[1.0; 4])]).unwrap()[0]);
                            let which = [one, two].map(|w| got == expected(w));
                            assert!(which[0] || which[1], "{got:?}");
                            seen[usize::from(which[1])].fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
                let start = Instant::now();
                let few = || seen.iter().any(|n| n.load(Ordering::Relaxed) < 20);
                let mut swaps = 0;
                while swaps < 300 || (few() && start.elapsed() < Duration::from_secs(60)) {
                    let next = if swaps % 2 == 0 { &b } else { &a };
                    let new = [("w0", view(&[2, 2], next))];
                    model.update_weights(&new, Names::Some).unwrap();
                    model.swap_weights().unwrap();
                    swaps += 1;
                }
                stop.store(true, Ordering::Relaxed);
            });
            let seen = seen.map(AtomicUsize::into_inner);
            assert!(seen.iter().all(|n| *n >= 20), "{seen:?}");
        }
    });
}

#[test]
fn captured_calls_replay_and_failures_are_told() {
    let name = "captured_calls_replay_and_failures_are_told";
    with_driver(name, with_products(), |folder| {
        let model = products(folder, [0.0, 1.0, 1.0, 0.0], graphs());
        for round in 0..5 {
            let x = [1.0 + round as f32, 2.0, 3.0, 4.0];
            let plain = {
                let other = products(folder, [0.0, 1.0, 1.0, 0.0], Options::default());
                floats(&other.run(&[tensor(&x)]).unwrap()[0])
            };
            log(folder);
            assert_eq!(floats(&model.run(&[tensor(&x)]).unwrap()[0]), plain);
            let got = log(folder);
            let captured = got.iter().any(|l| l.starts_with("graph launch twice"));
            assert_eq!(captured, round >= 1, "{round}: {got:?}");
            assert_eq!(
                got.contains(&"begin capture".to_string()),
                round == 1,
                "{got:?}"
            );
        }
        // Other sizes are captured by themselves, and the first ones stay.
        let model = quadruple(folder, graphs());
        for (round, n) in [3usize, 3, 5, 5, 3, 5].into_iter().enumerate() {
            log(folder);
            let out = model.run(&[tensor(&vec![1.0; n])]).unwrap();
            assert_eq!(floats(&out[0]), vec![4.0; n]);
            let begun = log(folder).contains(&"begin capture".to_string());
            assert_eq!(begun, round == 1 || round == 3, "{round}");
        }
    });
}

#[test]
fn a_driver_that_fails_leaves_errors_not_wrong_results() {
    let name = "a_driver_that_fails_leaves_errors_not_wrong_results";
    let machine = Machine {
        fails: Some("cuMemcpyDtoDAsync_v2:6".into()),
        kinds: &["cuda", "rocm"],
        ..late()
    };
    with_driver(name, machine, |folder| {
        let model = quadruple(folder, graphs());
        let x = on_device(&[1.0, 2.0]);
        let (mut right, mut wrong) = (0, 0);
        for _ in 0..12 {
            match model.call(&[Argument::Device(x.clone())], None) {
                Ok(out) => {
                    assert_eq!(read(&first(out)), [4.0, 8.0]);
                    right += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Machine, "{error}");
                    wrong += 1;
                }
            }
        }
        assert!(right >= 3 && wrong >= 3, "{right} {wrong}");
    });
}

/// Functions that loading, calls, updates and captures use. HIP has none of those for contexts.
const FUNCTIONS: &[&str] = &[
    "cuInit",
    "cuDeviceGet",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceGetAttribute",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphCreate",
    "cuGraphAddKernelNode",
    "cuGraphExecKernelNodeSetParams",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuEventCreate",
    "cuEventRecord",
];
/// Likewise of Level Zero.
const LEVEL_ZERO: &[&str] = &[
    "zeInit",
    "zeDriverGet",
    "zeDeviceGet",
    "zeContextCreate",
    "zeModuleCreate",
    "zeModuleDestroy",
    "zeKernelCreate",
    "zeKernelDestroy",
    "zeKernelGetProperties",
    "zeKernelSetGroupSize",
    "zeKernelSetArgumentValue",
    "zeCommandListCreateImmediate",
    "zeCommandListDestroy",
    "zeCommandListHostSynchronize",
    "zeCommandListAppendLaunchKernel",
    "zeCommandListAppendMemoryCopy",
    "zeCommandListAppendSignalEvent",
    "zeCommandListAppendWaitOnEvents",
    "zeMemAllocDevice",
    "zeMemFree",
    "zeEventPoolCreate",
    "zeEventPoolDestroy",
    "zeEventCreate",
    "zeEventDestroy",
];
/// Those of them that are called at the end of a process only.
const AT_THE_END: &[&str] = &["zeModuleDestroy", "zeKernelDestroy"];
/// Numbers of calls that succeed before the first that fails.
const BEFORE: [usize; 2] = [0, 3];

#[test]
fn every_function_of_a_driver_may_fail() {
    let name = "every_function_of_a_driver_may_fail";
    fail_one_by_one(name, FUNCTIONS, &["cuda", "rocm"]);
}

#[test]
fn every_function_of_level_zero_may_fail() {
    let name = "every_function_of_level_zero_may_fail";
    fail_one_by_one(name, LEVEL_ZERO, &["xpu"]);
}

/// Runs a test once for each function that fails, at once and after some calls.
fn fail_one_by_one(name: &str, functions: &[&str], kinds: &'static [&'static str]) {
    // Inside of a process, the machine is not looked at.
    let machines = functions
        .iter()
        .flat_map(|f| BEFORE.map(|n| format!("{f}:{n}")));
    let machines: Vec<String> = match driver::is_inside() {
        true => vec![String::new()],
        false => machines.collect(),
    };
    for fails in machines {
        let machine = Machine {
            fails: Some(fails),
            kinds,
            ..late()
        };
        with_driver(name, machine, |folder| {
            for options in modes() {
                // What fails says so, and what does not is right.
                if let Err(error) = rounds(folder, options) {
                    assert_ne!(error.kind(), ErrorKind::Internal, "{error}");
                    assert!(!error.message().is_empty());
                }
            }
            let fails = std::env::var("FAKE_FAIL").unwrap();
            let found = log(folder).iter().any(|l| l.starts_with("fails "));
            let late = AT_THE_END.iter().any(|f| fails.starts_with(f));
            assert!(
                found || late || is_amd() || !fails.ends_with(":0"),
                "{fails} is not called"
            );
        });
    }
}

#[test]
fn what_level_zero_cannot_do_is_refused_by_name() {
    let name = "what_level_zero_cannot_do_is_refused_by_name";
    let machine = Machine {
        kinds: &["xpu"],
        ..late()
    };
    with_driver(name, machine, |folder| {
        let (steps, last) = chain(1);
        let lowered = lowered(program(gpu(), steps, 3, last, 1));
        let none = MemoryWeights::default();
        let captured = Model::new(lowered, vec![binary(folder)], &none, gpu(), None, graphs());
        let error = captured.err().expect("no captures");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.contains("Level Zero 1.9 captures no calls"), "{text}");
        // A stream that is none of this driver's, such as a queue of SYCL.
        let model = quadruple(folder, Options::default());
        let x = Argument::Device(on_device(&[1.0]));
        let foreign = inrush_host::native::Stream(512);
        let error = model
            .call(std::slice::from_ref(&x), Some(foreign))
            .err()
            .unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains("command lists of this driver"),
            "{error}"
        );
        // Models go on afterwards, and events that nothing waits for any more are destroyed in good time.
        for _ in 0..1200 {
            let own = driver::driver().own_stream().unwrap();
            let once = first(
                model
                    .call(std::slice::from_ref(&x), Some(own.stream()))
                    .unwrap(),
            );
            let out = first(model.call(&[Argument::Device(once)], None).unwrap());
            assert_eq!(read(&out), [16.0]);
        }
    });
}

/// Loads a model and calls it on tensors of the host and of the device, of two sizes.
fn rounds(folder: &Path, o: Options) -> Result<(), Error> {
    let (steps, last) = chain(2);
    let lowered = lowered(program(gpu(), steps, 4, last, 1));
    let (none, binaries) = (MemoryWeights::default(), vec![binary(folder)]);
    let model = Model::new(lowered, binaries, &none, gpu(), None, o)?;
    let mut failure = None;
    for round in 0..8 {
        let x: &[f32] = if round < 5 { &[1.0, 2.0] } else { &[3.0; 5] };
        let want: Vec<f32> = x.iter().map(|v| 16.0 * v).collect();
        let given = Argument::Value(tensor(x));
        let called = model.call(&[given], None).and_then(|out| {
            let Some(Output::Device(t)) = out.into_iter().next() else {
                panic!("no tensor of the device");
            };
            // Its input is on the device, and its work on another stream.
            let driver = driver::driver();
            driver.make_current(0)?;
            let own = driver.own_stream()?;
            let again = model.call(&[Argument::Device(t.clone())], Some(own.stream()))?;
            let Some(Output::Device(again)) = again.into_iter().next() else {
                panic!("no tensor of the device");
            };
            // Work of a third stream comes after that of the second.
            let other = driver.own_stream()?;
            let thrice = model.call(&[Argument::Device(again.clone())], Some(other.stream()))?;
            let Some(Output::Device(thrice)) = thrice.into_iter().next() else {
                panic!("no tensor of the device");
            };
            Ok((t.download()?, again.download()?, thrice.download()?))
        });
        match called {
            Ok((once, twice, thrice)) => {
                assert_eq!(floats(&Value::Tensor(once)), want);
                let want: Vec<f32> = want.iter().map(|v| 16.0 * v).collect();
                assert_eq!(floats(&Value::Tensor(twice)), want);
                let want: Vec<f32> = want.iter().map(|v| 16.0 * v).collect();
                assert_eq!(floats(&Value::Tensor(thrice)), want);
            }
            Err(e) => failure = Some(e),
        }
    }
    failure.map_or(Ok(()), Err)
}

/// A model with a buffer that each call multiplies by 4, and that is the output as it was.
fn stateful(folder: &Path, o: Options) -> Model {
    let (steps, last) = chain(1);
    let mut p = program(gpu(), steps, 4, last, 1);
    // The state has two elements: its sizes are a constant.
    let gpu = p.gpu.as_mut().unwrap();
    let two = inrush_program::SizeId(5);
    gpu.layouts[3] = gpu.layouts[0].clone().map(|mut l| {
        l.sizes = vec![two];
        l
    });
    p.constants = vec![(3, 0)];
    p.outputs = vec![
        Out::Slot(3),
        Out::Mutation {
            value: last,
            into: 3,
        },
    ];
    let mut weights = MemoryWeights::default();
    weights.insert("w0", DType::F32, vec![2], bytes(&[7.0, 9.0]));
    model(folder, p, &weights, o)
}

#[test]
fn buffers_that_calls_write_stay_on_the_device() {
    let name = "buffers_that_calls_write_stay_on_the_device";
    with_driver(name, late(), |folder| {
        for options in modes() {
            let model = stateful(folder, options.clone());
            assert!(model.writes_state());
            let signature = model.signature();
            assert!(matches!(signature.inputs[0].kind, InputKind::Tensor { .. }));
            assert!(matches!(signature.outputs[0], OutputSpec::Tensor { .. }));
            assert_eq!(signature.outputs[1], OutputSpec::Mutation);
            let mut before = vec![7.0, 9.0];
            for k in 0..6 {
                let x = [k as f32, 1.0];
                // The output is what the buffer was; its new contents are four times the input.
                let out = model.run(&[tensor(&x)]).unwrap();
                assert_eq!(floats(&out[0]), before, "{k}");
                assert!(matches!(out[1], Value::None));
                before = vec![4.0 * k as f32, 4.0];
            }
            let stored = model.weight("w0").unwrap().unwrap();
            assert_eq!(floats(&Value::Tensor(stored)), before);
            // Calls of several threads run one at a time, on whatever stream.
            std::thread::scope(|s| {
                for _ in 0..4 {
                    s.spawn(|| {
                        for _ in 0..20 {
                            let out = model.run(&[tensor(&[2.0, 3.0])]).unwrap();
                            let got = floats(&out[0]);
                            assert!(got == [8.0, 12.0] || got == [20.0, 4.0], "{got:?}");
                        }
                    });
                }
            });
            assert_eq!(
                floats(&model.run(&[tensor(&[0.0, 0.0])]).unwrap()[0]),
                [8.0, 12.0]
            );
            assert!(!model.set_seed(3).unwrap(), "it draws no random numbers");
        }
    });
}

/// A program whose kernels multiply the tensor of a slot by 4 in place, and give it.
fn in_place(slot: usize) -> HostProgram {
    let mut step = segment(slot, 2, None);
    if let StepKind::Segment(s) = &mut step.kind {
        s.outputs.clear();
        s.program.outputs.clear();
        s.program.buffers.truncate(2);
        s.program.buffers[0].written = true;
        if let inrush_program::Step::Launch(l) = &mut s.program.steps[1] {
            l.buffers = vec![1, 0];
        }
    }
    let mut p = program(gpu(), vec![step], 4, 0, 1);
    p.outputs = vec![Out::Slot(slot)];
    p
}

#[test]
fn kernels_write_buffers_and_arguments_in_place() {
    let name = "kernels_write_buffers_and_arguments_in_place";
    with_driver(name, late(), |folder| {
        for options in modes() {
            let mut p = in_place(3);
            let gpu = p.gpu.as_mut().unwrap();
            gpu.layouts[3] = gpu.layouts[0].clone().map(|mut l| {
                l.sizes = vec![inrush_program::SizeId(5)];
                l
            });
            p.constants = vec![(3, 0)];
            let mut weights = MemoryWeights::default();
            weights.insert("w0", DType::F32, vec![2], bytes(&[1.0, -1.0]));
            let state = model(folder, p, &weights, options.clone());
            assert!(state.writes_state() && state.weights()[0].written);
            let mut want = 1.0;
            for _ in 0..6 {
                want *= 4.0;
                let out = state.run(&[tensor(&[0.0, 0.0])]).unwrap();
                assert_eq!(floats(&out[0]), [want, -want]);
            }
            // A swap keeps what calls wrote, unless an update named it.
            let new = bytes(&[3.0, 5.0]);
            let value = NewWeight::Host(WeightView {
                dtype: DType::F32,
                sizes: &[2],
                strides: &[1],
                bytes: &new,
            });
            state.update_weights(&[], Names::Some).unwrap();
            state.run(&[tensor(&[0.0, 0.0])]).unwrap();
            state.swap_weights().unwrap();
            let out = state.run(&[tensor(&[0.0, 0.0])]).unwrap();
            assert_eq!(floats(&out[0]), [16.0 * want, -16.0 * want]);
            state.update_weights(&[("w0", value)], Names::All).unwrap();
            state.swap_weights().unwrap();
            let out = state.run(&[tensor(&[0.0, 0.0])]).unwrap();
            assert_eq!(floats(&out[0]), [12.0, 20.0]);

            let p = in_place(0);
            let argument = model(folder, p, &MemoryWeights::default(), options);
            assert!(argument.signature().inputs[0].written);
            for k in 1..5 {
                let x = on_device(&[k as f32, 2.0]);
                let out = first(argument.call(&[Argument::Device(x.clone())], None).unwrap());
                assert_eq!(read(&out), [4.0 * k as f32, 8.0]);
                assert_eq!(read(&x), [4.0 * k as f32, 8.0]);
                let host = tensor(&[k as f32, 3.0]);
                argument.run(std::slice::from_ref(&host)).unwrap();
                assert_eq!(floats(&host), [4.0 * k as f32, 12.0]);
            }
            let x = on_device(&[1.0]).read_only();
            let error = argument.call(&[Argument::Device(x)], None).err().unwrap();
            assert!(error.to_string().contains("read-only"), "{error}");
        }
    });
}
