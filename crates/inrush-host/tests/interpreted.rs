//! The executor over a host without PyTorch: memory of this process, kernels that are Rust functions.

mod programs;

use inrush_base::{DType, Error};
use inrush_host::gpu::cublas::Blas;
use inrush_host::gpu::driver::{DevicePtr, Stream};
use inrush_host::gpu::plan::{Op, Plain};
use inrush_host::gpu::{Engine, Frame, Stop};
use inrush_host::host::{Host, Results};
use inrush_host::program::{CPU, Call, Device, Gpu, HostProgram, LibraryOp, Out, Step};
use inrush_host::shape::{Shape, dtype_code};
use inrush_program::evaluate_known;
use programs::{product, segment};
use std::sync::Mutex;

/// Memory of this process, and a log of what the executor asked for.
#[derive(Default)]
struct Local {
    log: Mutex<Vec<String>>,
}

/// A tensor: its memory, or an address in others' memory.
struct Tensor {
    address: u64,
    _memory: Option<Vec<u64>>,
}

/// A value of the host.
#[derive(Clone, PartialEq, Debug)]
enum Value {
    Floats(Vec<f32>),
    Plain(String),
}

#[derive(Default)]
struct LocalCall {
    slots: Vec<Option<Value>>,
    symbols: Vec<Option<i64>>,
    sizes: Vec<Option<i64>>,
    released: Vec<usize>,
}

type Function = fn(&[u8]);

fn floats(at: u64, count: usize) -> &'static mut [f32] {
    // SAFETY: tests pass addresses of as many floats that live through the launch.
    unsafe { std::slice::from_raw_parts_mut(at as *mut f32, count) }
}

fn word(arguments: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*arguments[at..].first_chunk().unwrap())
}

impl Host for Local {
    type Tensor = Tensor;
    type Call<'c> = LocalCall;
    type Interpreter = Vec<Function>;
    type Error = String;

    fn stream(&self) -> Stream {
        Stream(0)
    }

    fn allocate(&self, shape: &Shape) -> Option<(Tensor, DevicePtr)> {
        let bytes = shape.bytes().ok()?;
        self.log.lock().unwrap().push(format!("allocate {bytes}"));
        if bytes > 1 << 30 {
            return None;
        }
        let memory = vec![0u64; (bytes as usize).div_ceil(8) + 2];
        let address = (memory.as_ptr() as u64).next_multiple_of(16);
        let tensor = Tensor {
            address,
            _memory: Some(memory),
        };
        Some((tensor, address))
    }

    fn over(&self, at: DevicePtr, _shape: &Shape) -> Option<Tensor> {
        self.log.lock().unwrap().push("over".into());
        Some(Tensor {
            address: at,
            _memory: None,
        })
    }

    fn address(&self, tensor: &Tensor) -> Option<DevicePtr> {
        Some(tensor.address)
    }

    fn conform(&self, result: Tensor, _shape: &Shape) -> Result<Tensor, Stop<String>> {
        Ok(result)
    }

    /// A product of 2 x 2 matrices.
    fn library(
        &self,
        op: &LibraryOp,
        inputs: &[Option<&Tensor>],
        out: Option<&Tensor>,
        _results: &mut Results<Tensor>,
    ) -> bool {
        let ([Some(a), Some(b)], Some(out), LibraryOp::Mm) = (inputs, out, op) else {
            return false;
        };
        let (a, b, out) = (
            floats(a.address, 4),
            floats(b.address, 4),
            floats(out.address, 4),
        );
        for i in 0..4 {
            out[i] = a[i / 2 * 2] * b[i % 2] + a[i / 2 * 2 + 1] * b[2 + i % 2];
        }
        true
    }

    fn interpret(
        &self,
        code: &Vec<Function>,
        kernel: usize,
        grid: [u32; 3],
        arguments: &[u8],
    ) -> Result<(), String> {
        self.log
            .lock()
            .unwrap()
            .push(format!("launch {kernel} {grid:?}"));
        code[kernel](arguments);
        Ok(())
    }

    fn blas(&self, _call: &mut LocalCall) -> Result<Option<(&'static Blas, usize)>, String> {
        panic!("cuBLAS on a CPU");
    }

    fn interpreter(&self, _call: &mut LocalCall, gpu: &Gpu) -> Result<Vec<Function>, String> {
        let twice: Function = |arguments| {
            let (from, to) = (word(arguments, 0), word(arguments, 8));
            let count = i32::from_le_bytes(*arguments[16..].first_chunk().unwrap()) as usize;
            for (to, from) in floats(to, count).iter_mut().zip(floats(from, count)) {
                *to = 2.0 * *from;
            }
        };
        Ok(vec![twice; gpu.kernels.len()])
    }

    fn known(call: &LocalCall) -> (&[Option<i64>], &[Option<i64>]) {
        (&call.symbols, &call.sizes)
    }

    fn bind_symbols(&self, _call: &mut LocalCall, _after: usize) -> Result<(), String> {
        Err("no symbols become known".into())
    }

    fn native<R: Send>(_call: &mut LocalCall, f: impl FnOnce() -> R + Send) -> R {
        f()
    }

    fn step(
        &self,
        call: &mut LocalCall,
        frame: &mut Frame<'_, Self>,
        op: &Op,
    ) -> Result<(), String> {
        match op {
            Op::CheckInput(c) => match &mut call.slots[c.slot] {
                Some(Value::Floats(f)) => {
                    let sizes: i64 = c.shape.sizes.iter().product();
                    assert_eq!((sizes, c.shape.dtype), (f.len() as i64, 6));
                    frame.bases[c.slot] = f.as_ptr() as u64;
                    Ok(())
                }
                _ => Err("no tensor".into()),
            },
            Op::Set { slot, value } => {
                call.slots[*slot] = Some(Value::Plain(match value {
                    Plain::Int(i) => i.to_string(),
                    Plain::Scalar(s) => format!("{s:?}"),
                    Plain::None => "none".into(),
                }));
                Ok(())
            }
            _ => Err("no interpreter".into()),
        }
    }

    fn release(call: &mut LocalCall, slot: usize) {
        call.released.push(slot);
    }

    fn finish(&self, call: &mut LocalCall, frame: &mut Frame<'_, Self>) -> Result<(), String> {
        for o in &frame.program.outputs {
            let Out::Slot(s) = o else { continue };
            if frame.own[*s].is_some() {
                let Some(layout) = &frame.program.gpu.as_ref().unwrap().layouts[*s] else {
                    panic!("an output without a layout");
                };
                let count = (layout.sizes.iter()).map(|i| call.sizes[i.0 as usize].unwrap());
                let values = floats(frame.bases[*s], count.product::<i64>() as usize);
                call.slots[*s] = Some(Value::Floats(values.to_vec()));
            }
        }
        Ok(())
    }

    fn raise(
        &self,
        _call: &mut LocalCall,
        _frame: &mut Frame<'_, Self>,
        stop: Stop<String>,
    ) -> String {
        format!("{stop:?}")
    }

    fn error(e: Error) -> String {
        e.to_string()
    }
}

fn program(steps: Vec<Step>, slots: usize, output: usize, flag: usize) -> HostProgram {
    let cpu = Device {
        kind: CPU,
        index: 0,
    };
    programs::program(cpu, steps, slots, output, flag)
}

fn state(program: &HostProgram, x: Vec<f32>) -> LocalCall {
    let symbols = vec![Some(x.len() as i64)];
    let mut slots = vec![None; program.slots];
    slots[0] = Some(Value::Floats(x));
    LocalCall {
        sizes: evaluate_known(&program.sizes, &symbols),
        symbols,
        slots,
        released: Vec::new(),
    }
}

#[test]
fn a_segment_runs_over_one_arena_and_gives_its_outputs() {
    let program = program(vec![segment(0, 1, Some(2))], 3, 1, 2);
    program.check(0).unwrap();
    let engine = Engine::<Local>::new(&program, Vec::new()).unwrap();
    let host = Local::default();
    for n in [3usize, 5, 3] {
        let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let mut call = state(&program, x.clone());
        engine.run(&host, &program, &mut call).unwrap();
        let want: Vec<f32> = x.iter().map(|v| 4.0 * v).collect();
        assert_eq!(call.slots[1], Some(Value::Floats(want)));
        assert_eq!(call.slots[2], Some(Value::Plain("Bool(true)".into())));
    }
    // By call: the arena of one temporary, the output, two launches.
    let log = host.log.into_inner().unwrap();
    let launch = || "launch 0 [1, 1, 1]".to_string();
    let one = |bytes: u32| {
        [
            "allocate 512".into(),
            format!("allocate {bytes}"),
            launch(),
            launch(),
        ]
    };
    assert_eq!(log, [one(12), one(20), one(12)].concat());
}

#[test]
fn library_calls_take_tensors_over_memory_that_stay_while_addresses_do() {
    let call = Call {
        target: 0,
        args: Vec::new(),
        kwargs: Vec::new(),
        unpack: false,
        outs: vec![3],
    };
    let mm = product(1, 1, 3, Some(call));
    let program = program(vec![segment(0, 1, Some(2)), mm], 4, 3, 2);
    program.check(1).unwrap();
    let engine = Engine::<Local>::new(&program, Vec::new()).unwrap();
    let host = Local::default();
    let mut call = state(&program, vec![1.0, 2.0, 3.0, 4.0]);
    engine.run(&host, &program, &mut call).unwrap();
    let want = vec![7.0, 10.0, 15.0, 22.0]
        .into_iter()
        .map(|v: f32| 16.0 * v);
    assert_eq!(call.slots[3], Some(Value::Floats(want.collect())));
    let over = |log: &[String]| log.iter().filter(|l| *l == "over").count();
    assert_eq!(over(&host.log.lock().unwrap()), 3);
}

#[test]
fn what_a_host_refuses_is_its_error() {
    // More memory than the host gives.
    let program = program(vec![segment(0, 1, Some(2))], 3, 1, 2);
    let engine = Engine::<Local>::new(&program, Vec::new()).unwrap();
    let mut call = state(&program, Vec::new());
    let n = 1i64 << 30;
    call.symbols = vec![Some(n)];
    call.sizes = evaluate_known(&program.sizes, &call.symbols);
    let error = engine
        .run(&Local::default(), &program, &mut call)
        .unwrap_err();
    assert!(error.starts_with("Memory("), "{error}");
    // A size that is not known.
    call.symbols = vec![None];
    call.sizes = evaluate_known(&program.sizes, &call.symbols);
    let error = engine
        .run(&Local::default(), &program, &mut call)
        .unwrap_err();
    assert!(error.contains("not known yet"), "{error}");
}

#[test]
fn shapes_are_told_in_numbers_of_libraries() {
    assert_eq!(dtype_code(DType::F32), 6);
    let program = program(Vec::new(), 3, 1, 2);
    assert!(Engine::<Local>::new(&program, Vec::new()).is_ok());
    let cpu = HostProgram {
        gpu: None,
        ..program
    };
    assert!(Engine::<Local>::new(&cpu, Vec::new()).is_err());
}
