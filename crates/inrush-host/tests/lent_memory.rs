//! Calls in memory of a tensor library of the process, over the fake driver: who owns outputs, layouts that are copied, the
//! active set of weights and weights in memory of the caller.

mod driver;
mod programs;

use driver::{ALL, Machine, binary, floats, gpu, is_intel, log, tensor, with_driver};
use inrush_base::{DType, Error, Result};
use inrush_host::gpu::cublas;
use inrush_host::gpu::driver as api;
use inrush_host::native::{
    Argument, DeviceTensor, Model, NewWeight, Options, Output, Owner, Stream, TensorLibrary,
};
use inrush_host::program::{HostProgram, StepKind};
use inrush_host::shape::Shape;
use inrush_program::Reads;
use inrush_runtime::{MemoryWeights, Names, Set, Value, WeightView};
use programs::{chain, lowered, program, two_products};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A library that takes memory of the driver and counts.
#[derive(Debug, Default)]
struct Library {
    live: Arc<AtomicUsize>,
    copies: AtomicUsize,
}

/// A tensor of the library. Its memory is never freed: work of its stream may still use it, and the fake driver frees at once.
struct Mine {
    memory: ManuallyDrop<api::Memory>,
    live: Arc<AtomicUsize>,
}

impl Drop for Mine {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TensorLibrary for Library {
    fn allocate(&self, shape: &Shape, _stream: Stream) -> Option<(Owner, u64)> {
        let memory = inrush_host::devices::driver(gpu())
            .ok()?
            .allocate(shape.bytes().ok()? as usize);
        let memory = memory.ok()?;
        let address = memory.address();
        self.live.fetch_add(1, Ordering::Relaxed);
        let live = self.live.clone();
        let memory = ManuallyDrop::new(memory);
        Some((Arc::new(Mine { memory, live }), address))
    }

    unsafe fn copy(
        &self,
        (to, to_shape): (u64, &Shape),
        (from, from_shape): (u64, &Shape),
        stream: Stream,
    ) -> Result<()> {
        self.copies.fetch_add(1, Ordering::Relaxed);
        if to_shape.sizes.len() != 1 {
            return Err(Error::internal("tensors of one dimension are enough here"));
        }
        let driver = inrush_host::devices::driver(gpu())?;
        driver.synchronize(stream)?;
        for k in 0..to_shape.sizes[0] {
            let at = |base: u64, s: &Shape| base + (k * s.strides[0]) as u64 * s.element;
            let mut element = vec![0u8; to_shape.element as usize];
            // SAFETY: elements of both tensors, by the caller's promise.
            unsafe {
                driver.read(at(from, from_shape), &mut element)?;
                driver.write(at(to, to_shape), &element)?;
            }
        }
        Ok(())
    }
}

fn with_library(capture: bool) -> (Arc<Library>, Options) {
    let library = Arc::new(Library::default());
    let options = Options {
        capture,
        library: Some(library.clone()),
        ..Options::default()
    };
    (library, options)
}

fn late() -> Machine {
    Machine {
        kinds: ALL,
        is_late: true,
        ..Machine::default()
    }
}

/// Values of the option that captures: the driver of Intel's GPUs captures nothing.
fn modes() -> &'static [bool] {
    match is_intel() {
        true => &[false],
        false => &[false, true],
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn model(folder: &Path, program: HostProgram, weights: &MemoryWeights, o: Options) -> Model {
    let products = !program.constants.is_empty();
    let blas = products.then(|| cublas::find(&[folder.to_path_buf()]).unwrap());
    let lowered = lowered(program);
    Model::new(lowered, vec![binary(folder)], weights, gpu(), blas, o).unwrap()
}

/// A model that multiplies by 4.
fn quadruple(folder: &Path, o: Options, reads: Reads) -> Model {
    let (mut steps, last) = chain(1);
    if let StepKind::Segment(s) = &mut steps[0].kind {
        s.program.inputs[0].reads = reads;
    }
    let none = MemoryWeights::default();
    model(folder, program(gpu(), steps, 3, last, 1), &none, o)
}

/// A tensor of the caller's on the device, whose elements are `step` apart.
fn on_device(values: &[f32], step: usize) -> DeviceTensor {
    let driver = driver::driver();
    driver.make_current(0).unwrap();
    let mut spread = vec![-1.0f32; values.len() * step];
    for (k, v) in values.iter().enumerate() {
        spread[k * step] = *v;
    }
    let mut memory = driver.allocate(4 * spread.len()).unwrap();
    memory.write(&bytes(&spread)).unwrap();
    let at = memory.address();
    let layout = (vec![values.len() as i64], vec![step as i64]);
    // SAFETY: the memory is the tensor's.
    unsafe { DeviceTensor::foreign(DType::F32, layout, (at, gpu()), Arc::new(memory)) }.unwrap()
}

fn first(outputs: Vec<Output>) -> DeviceTensor {
    match outputs.into_iter().next() {
        Some(Output::Device(t)) => t,
        _ => panic!("no tensor of the device"),
    }
}

fn read(t: &DeviceTensor) -> Vec<f32> {
    floats(&Value::Tensor(t.download().unwrap()))
}

#[test]
fn outputs_are_tensors_of_the_library() {
    let name = "outputs_are_tensors_of_the_library";
    with_driver(name, late(), |folder| {
        for &capture in modes() {
            let (library, options) = with_library(capture);
            let model = quadruple(folder, options, Reads::Elements);
            driver::driver().make_current(0).unwrap();
            let stream = driver::driver().own_stream().unwrap();
            let x = Argument::Device(on_device(&[1.0, 2.0, -3.0], 1));
            let before = library.live.load(Ordering::Relaxed);
            for round in 0..5 {
                log(folder);
                let outputs = model.call(std::slice::from_ref(&x), Some(stream.stream()));
                let ran = |l: &String| l.contains("launch") || l.starts_with("to ");
                assert!(!log(folder).iter().any(ran), "a call waits for nothing");
                let out = first(outputs.unwrap());
                let (own, from) = out.owner::<Mine>().expect("an output of the library");
                assert_eq!(
                    (from, own.memory.address()),
                    (Some(out.address()), out.address())
                );
                assert!(out.owner::<String>().is_none());
                assert_eq!(read(&out), [4.0, 8.0, -12.0], "{round}");
                drop(out);
                let now = library.live.load(Ordering::Relaxed);
                assert_eq!(now, before, "round {round}: all memory of a call goes back");
            }
            drop(model);
            assert_eq!(library.live.load(Ordering::Relaxed), 0, "of weights too");
        }
    });
}

#[test]
fn the_library_copies_inputs_of_other_strides() {
    let name = "the_library_copies_inputs_of_other_strides";
    with_driver(name, late(), |folder| {
        for &capture in modes() {
            let (library, options) = with_library(capture);
            let model = quadruple(folder, options, Reads::Elements);
            let x = on_device(&[1.0, 2.0, -3.0], 3);
            for _ in 0..4 {
                let out = first(model.call(&[Argument::Device(x.clone())], None).unwrap());
                assert_eq!(read(&out), [4.0, 8.0, -12.0]);
            }
            assert_eq!(library.copies.load(Ordering::Relaxed), 4);
        }
        let refused = |model: Model, word: &str| {
            let x = Argument::Device(on_device(&[1.0, 2.0], 2));
            let error = model.call(&[x], None).err().unwrap().to_string();
            assert!(error.contains("strides") && error.contains(word), "{error}");
        };
        let (_, options) = with_library(false);
        refused(
            quadruple(folder, options, Reads::Memory),
            "counts positions",
        );
        let plain = Options::default();
        refused(
            quadruple(folder, plain, Reads::Elements),
            "memory of the host",
        );
    });
}

/// The square of `4 x w` for `x` of ones.
fn expected(w: &[f32]) -> Vec<f32> {
    let mul = |a: &[f32], b: &[f32]| -> Vec<f32> {
        let at = |i: usize, j: usize| a[2 * i] * b[j] + a[2 * i + 1] * b[2 + j];
        vec![at(0, 0), at(0, 1), at(1, 0), at(1, 1)]
    };
    let p = mul(&[4.0; 4], w);
    mul(&p, &p)
}

fn host(data: &[u8]) -> NewWeight<'_> {
    NewWeight::Host(WeightView {
        dtype: DType::F32,
        sizes: &[2, 2],
        strides: &[2, 1],
        bytes: data,
    })
}

/// A square matrix on the device.
fn square(values: &[f32; 4], strides: [i64; 2]) -> DeviceTensor {
    let flat = on_device(values, 1);
    let layout = (vec![2, 2], strides.to_vec());
    let at = (flat.address(), gpu());
    // SAFETY: the memory is that of the list, which is kept.
    unsafe { DeviceTensor::foreign(DType::F32, layout, at, Arc::new(flat)) }.unwrap()
}

#[test]
fn the_active_set_is_replaced_and_weights_are_shared() {
    let name = "the_active_set_is_replaced_and_weights_are_shared";
    with_driver(
        name,
        Machine {
            kinds: &["cuda"],
            ..late()
        },
        |folder| {
            for (capture, lent) in [(false, false), (true, false), (false, true), (true, true)] {
                let (library, mut options) = with_library(capture);
                if !lent {
                    options.library = None;
                }
                let (one, two, three) = ([1.0; 4], [2.0, 0.0, 0.0, 1.0], [0.5, 1.0, 3.0, 1.0]);
                let mut weights = MemoryWeights::default();
                weights.insert("w0", DType::F32, vec![2, 2], bytes(&one));
                let model = model(folder, two_products(gpu()), &weights, options);
                let run = || floats(&model.run(&[tensor(&[1.0; 4])]).unwrap()[0]);
                let update = |set, w: NewWeight<'_>| model.update(set, &[("w0", w)], Names::All);
                let (b, c) = (bytes(&two), bytes(&three));
                assert!(model.recompute(Set::Inactive).is_err());
                update(Set::Inactive, host(&b)).unwrap();
                for _ in 0..3 {
                    assert_eq!(run(), expected(&one));
                }
                update(Set::Active, host(&c)).unwrap();
                for _ in 0..3 {
                    assert_eq!(run(), expected(&three), "at once, without a swap");
                }
                model.recompute(Set::Inactive).unwrap();
                model.swap_weights().unwrap();
                assert_eq!(run(), expected(&two), "the inactive set was left alone");

                let (shared, other) = (square(&two, [2, 1]), square(&three, [2, 1]));
                update(Set::Active, NewWeight::Shared(&shared)).unwrap();
                for _ in 0..3 {
                    assert_eq!(run(), expected(&two));
                }
                let driver = driver::driver();
                driver.make_current(0).unwrap();
                // SAFETY: the memory is this test's, and no work reads it.
                unsafe { driver.write(shared.address(), &bytes(&one)) }.unwrap();
                model.recompute(Set::Active).unwrap();
                assert_eq!(run(), expected(&one), "the caller wrote it");
                update(Set::Active, NewWeight::Shared(&other)).unwrap();
                for _ in 0..3 {
                    assert_eq!(run(), expected(&three), "in other memory");
                }
                update(Set::Active, NewWeight::Device(&shared)).unwrap();
                // SAFETY: as above.
                unsafe { driver.write(shared.address(), &bytes(&two)) }.unwrap();
                for _ in 0..3 {
                    assert_eq!(run(), expected(&one), "a copy");
                }
                let turned = square(&one, [1, 2]);
                let error = update(Set::Active, NewWeight::Shared(&turned)).unwrap_err();
                assert!(error.to_string().contains("strides"), "{error}");
                assert_eq!(run(), expected(&one));
                drop(model);
                assert_eq!(library.live.load(Ordering::Relaxed), 0);
            }
        },
    );
}
