//! A prepared call allocates its outputs, and a few short lists whose sizes do not depend on the tensors'.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use inrush_base::DType;
use inrush_cli::args::TargetArgs;
use inrush_cli::run::random_inputs;
use inrush_cli::session;
use inrush_runtime::cache::Cache;
use inrush_runtime::{Model, Tensor, Value};
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Blocks and bytes that any thread has asked for.
static BLOCKS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Blocks of tensors among them.
static ALIGNED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

fn count(bytes: usize) {
    BLOCKS.fetch_add(1, Relaxed);
    BYTES.fetch_add(bytes, Relaxed);
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller says.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as the caller says.
        unsafe { System.realloc(block, layout, size) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

unsafe extern "C" {
    fn memalign(align: usize, size: usize) -> *mut c_void;
}

/// Counts blocks of tensors too: these are aligned, and come from the C library, past the global allocator. A definition in
/// the program takes the place of the library's.
///
/// # Safety
/// `out` can be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    const NO_MEMORY: c_int = 12;
    count(size);
    ALIGNED.fetch_add(1, Relaxed);
    // SAFETY: any power of two is a valid alignment.
    let block = unsafe { memalign(align, size) };
    if block.is_null() {
        return NO_MEMORY;
    }
    // SAFETY: as the caller says.
    unsafe { *out = block };
    0
}

/// Set in the process that measures. Poisoned memory, which tests run in, allocates more: it is off there.
const MEASURE: &str = "INRUSH_MEASURE_ALLOCATIONS";

#[test]
fn a_prepared_call_allocates_its_outputs_only() {
    if std::env::var_os(MEASURE).is_some() {
        return measure();
    }
    let said = alone("a_prepared_call_allocates_its_outputs_only");
    assert!(said.contains("measured 4 batches"), "{said}");
}

#[test]
fn turns_of_loops_allocate_no_tensors() {
    if std::env::var_os(MEASURE).is_some() {
        return measure_turns();
    }
    let said = alone("turns_of_loops_allocate_no_tensors");
    assert!(said.contains("measured 2 loops"), "{said}");
}

/// Runs a test of this file in a process of its own. Returns what it prints.
fn alone(test: &str) -> String {
    let me = std::env::current_exe().expect("the test's path");
    let out = Command::new(me)
        .args(["--exact", test, "--nocapture"])
        .env(MEASURE, "1")
        .env_remove("INRUSH_POISON")
        .output()
        .expect("the test runs itself");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}{wrong}");
    said
}

/// Calls of few and of many turns allocate as many tensors, and each turn as many short lists.
fn measure_turns() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inrush-torch/tests/data");
    let cache = tempfile::tempdir().expect("a folder");
    let cache = Cache::at(cache.path().to_path_buf());
    let target = TargetArgs {
        target: "native".into(),
        threads: Some(1),
    };
    for name in ["loops.pt2", "scans.pt2"] {
        let session = session::open(&folder.join(name), &target, &cache, true).expect("a model");
        let inputs = |turns: i64| {
            let floats = |sizes: &[i64]| {
                let count: i64 = sizes.iter().product();
                let data: Vec<u8> = (0..count)
                    .flat_map(|k| ((k % 7) as f32 - 3.0).to_le_bytes())
                    .collect();
                let t = Tensor::from_bytes(DType::F32, sizes.to_vec(), &data);
                Value::Tensor(t.expect("a tensor"))
            };
            match name {
                "loops.pt2" => {
                    let n = Tensor::from_bytes(DType::I64, Vec::new(), &turns.to_le_bytes());
                    vec![floats(&[7]), Value::Tensor(n.expect("a number"))]
                }
                _ => vec![floats(&[turns, 4])],
            }
        };
        let measured = |turns: i64| {
            let given = inputs(turns);
            (0..5)
                .map(|_| {
                    let before = (ALIGNED.load(Relaxed), BYTES.load(Relaxed));
                    session.model.run(&given).expect("a call");
                    let tensors = ALIGNED.load(Relaxed) - before.0;
                    (tensors, BYTES.load(Relaxed) - before.1)
                })
                .min()
                .expect("calls")
        };
        let (few, many) = (measured(20), measured(220));
        println!("{name}: {few:?} in 20 turns, {many:?} in 220");
        assert!(few.0 > 0, "{name}: tensors are not counted");
        assert!(many.0 <= few.0 + 2, "{name}: turns allocate tensors");
        let lists = (many.1.saturating_sub(few.1)) / 200;
        assert!(lists <= 8192, "{name}: {lists} bytes of lists a turn");
    }
    println!("measured 2 loops");
}

fn measure() {
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.pt2");
    let cache = tempfile::tempdir().expect("a folder");
    let cache = Cache::at(cache.path().to_path_buf());
    let target = TargetArgs {
        target: "native".into(),
        threads: Some(2),
    };
    let session = session::open(&digits, &target, &cache, true).expect("a model");
    let mut beyond = Vec::new();
    let mut seen = 0;
    for batch in [1, 7, 64, 450] {
        let inputs = random_inputs(&session.model, &[batch]).expect("inputs");
        let (blocks, bytes, outputs) = least_of_ten_calls(&session.model, &inputs);
        let own: usize = outputs.iter().map(size).sum();
        into_memory_of_the_caller(&session.model, &inputs, &outputs);
        // Where outputs were not counted, neither were other tensors.
        seen += usize::from(bytes >= own);
        println!("batch {batch}: {blocks} blocks, {bytes} bytes, outputs {own} bytes");
        beyond.push((blocks, bytes.saturating_sub(own)));
    }
    assert_eq!(seen, beyond.len(), "outputs are not counted");
    let most = beyond.iter().map(|b| b.1).max().unwrap_or_default();
    assert!(most <= 2048, "{most} bytes beyond the outputs");
    let blocks = beyond.iter().map(|b| b.0).max().unwrap_or_default();
    assert!(blocks <= 32, "{blocks} blocks");
    println!("measured {} batches", beyond.len());
}

/// Returns the blocks and bytes that a steady call allocates, and its outputs.
///
/// A thread allocates its scratch in the first call in which it takes a share of the work. On a busy machine that may be a late call,
/// so the least of ten counts: what every call allocates is in each of them.
fn least_of_ten_calls(model: &Model, inputs: &[Value]) -> (usize, usize, Vec<Value>) {
    let call = || {
        let before = (BLOCKS.load(Relaxed), BYTES.load(Relaxed));
        let outputs = model.run(inputs).expect("a call");
        let blocks = BLOCKS.load(Relaxed) - before.0;
        (blocks, BYTES.load(Relaxed) - before.1, outputs)
    };
    (0..10)
        .map(|_| call())
        .min_by_key(|c| (c.1, c.0))
        .expect("ten calls")
}

/// Calls into memory that was there before allocate nothing once every thread has its scratch.
fn into_memory_of_the_caller(model: &Model, inputs: &[Value], outputs: &[Value]) {
    let twenty_calls = || {
        let before = (BLOCKS.load(Relaxed), BYTES.load(Relaxed));
        for _ in 0..20 {
            // SAFETY: the outputs of an earlier call, which nothing else uses.
            unsafe { model.run_into(inputs, outputs) }.expect("a call");
        }
        (
            BLOCKS.load(Relaxed) - before.0,
            BYTES.load(Relaxed) - before.1,
        )
    };
    let seen: Vec<(usize, usize)> = (0..10).map(|_| twenty_calls()).collect();
    assert!(
        seen.ends_with(&[(0, 0)]),
        "blocks and bytes of calls into given memory: {seen:?}"
    );
}

/// Returns the bytes of a value.
fn size(v: &Value) -> usize {
    match v {
        Value::Tensor(t) => t.storage.len(),
        _ => 0,
    }
}
