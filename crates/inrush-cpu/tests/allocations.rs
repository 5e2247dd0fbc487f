//! A call of a plan allocates nothing: every algorithm runs twice under an allocator that counts, on one to three threads.
//!
//! Scratch comes from the system, past the allocator, and threads keep it; blocks of it are counted by the engine. Before its
//! calls are counted, a plan runs once on each thread, since any may take any unit.

use inrush_base::DType;
use inrush_cpu::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator, counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A plan that takes `name`, with operands for it.
struct Case {
    name: &'static str,
    plan: Plan,
    packed: Option<Packed>,
    a: Vec<f32>,
    b: Vec<f32>,
    /// Batches, rows and columns of the result.
    results: [usize; 3],
}

impl Case {
    /// Runs the plan; `out` takes the results.
    fn run(&self, pool: &Pool, out: &mut [f32]) {
        let [batch, m, n] = self.results;
        assert_eq!(out.len(), batch * m * n);
        let operands = Operands {
            a: self.a.as_ptr().cast(),
            b: self.b.as_ptr().cast(),
            packed: self.packed.as_ref(),
        };
        let out = Output::Store(StoreView {
            ptr: out.as_mut_ptr().cast(),
            dtype: DType::F32,
            batch: Affine::linear(batch, (m * n) as isize),
            rows: Affine::linear(m, n as isize),
            cols: Affine::linear(n, 1),
        });
        // SAFETY: operands and results have the plan's sizes.
        unsafe { self.plan.run(pool, &operands, &out) }.unwrap();
    }

    fn results(&self) -> Vec<f32> {
        vec![0f32; self.results.iter().product()]
    }

    /// Runs all of the plan on each thread, so that each has the scratch of the largest unit. No thread takes a second unit
    /// before all have one.
    fn warm(&self, pool: &Pool) {
        let threads = pool.threads();
        let outs: Vec<Mutex<Vec<f32>>> = (0..threads).map(|_| Mutex::new(self.results())).collect();
        let arrived = AtomicUsize::new(0);
        pool.parallel_for(threads, 1, &|range| {
            for unit in range {
                arrived.fetch_add(1, Ordering::SeqCst);
                while arrived.load(Ordering::SeqCst) < threads {
                    std::thread::yield_now();
                }
                self.run(pool, &mut outs[unit].lock().unwrap());
            }
        })
        .unwrap();
    }

    /// Runs the plan once more; returns allocations and blocks of scratch.
    fn count(&self, pool: &Pool) -> (usize, u64) {
        let mut out = self.results();
        let (before, blocks) = (COUNT.load(Ordering::Relaxed), Bytes::allocated());
        self.run(pool, &mut out);
        let after = COUNT.load(Ordering::Relaxed);
        (after - before, Bytes::allocated() - blocks)
    }
}

/// A matrix product `[batch, m, k] x [batch, k, n]` of dense operands.
fn dense(batch: usize, m: usize, k: usize, n: usize) -> Contraction {
    let matrices = |rows: usize, cols: usize| (rows * cols) as isize;
    Contraction {
        acc: DType::F32,
        a_dtype: DType::F32,
        b_dtype: DType::F32,
        batch: vec![(batch, matrices(m, k), matrices(k, n))],
        m: vec![(m, k as isize)],
        n: vec![(n, 1)],
        k: vec![(k, 1, n as isize)],
    }
}

fn contraction(
    name: &'static str,
    pool: &Pool,
    c: Contraction,
    packs: bool,
    (a, b): (usize, usize),
) -> Case {
    let isa = detect();
    let (a, b) = (vec![0.5f32; a], vec![0.25f32; b]);
    let packed = packs
        // SAFETY: `b` has the contraction's sizes.
        .then(|| unsafe { Packed::right(pool, isa, &c, b.as_ptr().cast(), true).unwrap() })
        .flatten();
    let plan = Plan::new(&c, packed.as_ref(), isa, pool.threads()).unwrap();
    let sizes = [
        c.batch.iter().map(|l| l.0).product(),
        c.m.iter().map(|l| l.0).product::<usize>(),
        c.n.iter().map(|l| l.0).product::<usize>(),
    ];
    let plan = plan.unwrap();
    assert_eq!(plan.algorithm(), name);
    Case {
        name,
        plan,
        packed,
        a,
        b,
        results: sizes,
    }
}

/// A convolution by its chosen algorithm, over an input of `dtype` or of floats.
fn convolution(name: &'static str, pool: &Pool, s: ConvShape, algorithm: ConvAlgorithm) -> Case {
    let isa = detect();
    let a = vec![0.5f32; s.batch * s.input.iter().product::<usize>() * s.c_in];
    let [_, kh, kw] = s.kernel;
    let ci = s.c_in / s.groups;
    let b = vec![0.25f32; s.c_out * ci * kh * kw];
    // An input of halves is half of `a`; it is converted before the call.
    let conv = Conv::plan(s, DType::BF16, DType::F32, isa, pool.threads(), algorithm).unwrap();
    let strides = [ci * kh * kw, kh * kw, 0, kw, 1].map(|x| x as isize);
    // SAFETY: `b` has the filters' sizes.
    let packed = unsafe {
        conv.pack(pool, b.as_ptr().cast(), DType::F32, strides)
            .unwrap()
    };
    let m = s.batch * s.output().iter().product::<usize>();
    let plan = conv.into_plan();
    assert_eq!(plan.algorithm(), name);
    Case {
        name,
        plan,
        packed: Some(packed),
        a,
        b,
        results: [1, m, s.c_out],
    }
}

fn cases(pool: &Pool) -> Vec<Case> {
    let mut all = vec![
        contraction(
            "gemm",
            pool,
            dense(1, 130, 300, 200),
            true,
            (39_000, 60_000),
        ),
        contraction(
            "gemm",
            pool,
            dense(2, 130, 900, 200),
            false,
            (234_000, 360_000),
        ),
        contraction("gemv", pool, dense(3, 2, 300, 500), false, (1_800, 450_000)),
    ];
    // Columns of both operands, summed over many rows.
    let mut long = dense(1, 12, 9000, 20);
    long.m = vec![(12, 1)];
    long.k = vec![(9000, 12, 20)];
    all.push(contraction(
        "split-k",
        pool,
        long,
        false,
        (108_000, 180_000),
    ));
    // Sixteen channels of an image of 30 x 30, padded, under filters of 3 x 3, to 8 channels.
    let mut image = dense(1, 8, 144, 900);
    image.batch = Vec::new();
    image.m = vec![(8, 144)];
    image.n = vec![(30, 32), (30, 1)];
    image.k = vec![(16, 9, 1024), (3, 3, 32), (3, 1, 1)];
    all.push(contraction(
        "direct-nchw",
        pool,
        image,
        false,
        (1_152, 16_384),
    ));
    let mut depthwise = ConvShape::new_2d(2, 40, 40, [20, 20], [3, 3], 1);
    depthwise.groups = 40;
    let wide = ConvShape::new_2d(1, 32, 32, [20, 20], [3, 3], 1);
    all.push(convolution(
        "depthwise",
        pool,
        depthwise,
        ConvAlgorithm::Depthwise,
    ));
    all.push(convolution(
        "winograd",
        pool,
        wide,
        ConvAlgorithm::Winograd(4),
    ));
    all.push(convolution("gemm", pool, wide, ConvAlgorithm::Direct));
    all
}

/// Groups of four channels, by levels that can permute vectors.
fn grouped(pool: &Pool) -> Option<Case> {
    let (groups, k, n, m) = (32, 4, 4, 200);
    let lhs = Lhs {
        ptr: std::ptr::null(),
        dtype: DType::F32,
        matrices: Affine::linear(groups, k as isize),
        rows: Affine::linear(m, (groups * k) as isize),
        taps: &[0],
        k_step: 1,
    };
    let view = RhsView {
        ptr: std::ptr::null(),
        dtype: DType::F32,
        matrices: Affine::linear(groups, (k * n) as isize),
        k: Affine::linear(k, n as isize),
        cols: Affine::linear(n, 1),
    };
    let shape = GemmShape::new(groups, m, k, n);
    let plan = Plan::product(
        shape,
        DType::F32,
        detect(),
        pool.threads(),
        &lhs,
        Some(&view),
    );
    Some(Case {
        name: "grouped",
        plan: plan.unwrap(),
        packed: None,
        a: vec![0.5; m * groups * k],
        b: vec![0.25; groups * k * n],
        results: [groups, m, n],
    })
    .filter(|c| c.plan.algorithm() == "grouped")
}

/// Planning allocates, and so does the first scratch of a thread.
fn counters_count() {
    let fresh = std::thread::spawn(|| {
        let before = COUNT.load(Ordering::Relaxed);
        let pool = Pool::new(Some(1)).unwrap();
        let case = contraction("gemv", &pool, dense(1, 2, 30, 50), false, (60, 1_500));
        let planned = COUNT.load(Ordering::Relaxed) - before;
        (planned, case.count(&pool).1)
    });
    let (planned, blocks) = fresh.join().unwrap();
    assert!(planned > 0 && blocks > 0, "{planned} {blocks}");
}

/// One test alone, since the counter is the process's and the harness allocates between tests.
#[test]
fn a_second_call_allocates_nothing() {
    counters_count();
    for threads in 1..=3 {
        let pool = Pool::new(Some(threads)).unwrap();
        let mut all = cases(&pool);
        let grouped = grouped(&pool);
        let permutes = detect().name().starts_with("avx");
        assert_eq!(grouped.is_some(), permutes, "groups that share vectors");
        all.extend(grouped);
        for case in &all {
            let name = case.name;
            case.warm(&pool);
            case.count(&pool);
            for call in 2..20 {
                let (count, blocks) = case.count(&pool);
                assert_eq!(count, 0, "call {call} of {name} on {threads} threads");
                // Poisoned scratch is fresh for each call.
                if !inrush_cpu::poison::enabled() {
                    assert_eq!(
                        blocks, 0,
                        "scratch, call {call} of {name} on {threads} threads"
                    );
                }
            }
        }
    }
}
