//! Rates of this machine and of the engine on it: multiplication peak, copy bandwidth, dispatch, and the matrix products
//! and convolutions of common networks at batch 1, next to the crate `gemm`.
//!
//! `cargo run --release -p inrush-cpu --example rates [THREADS] [FILTER]`; `ISA` names a lower level, `ALGORITHM` a way of
//! convolutions (direct, winograd2, winograd4).

use std::hint::black_box;
use std::time::{Duration, Instant};

use gemm::Parallelism;
use inrush_base::{DType, Isa};
use inrush_cpu::*;

/// Seconds: of processor time where one thread does the work, so that a busy machine does not blur them, else of the wall.
fn now(threads: usize) -> f64 {
    #[cfg(target_os = "linux")]
    if threads == 1 {
        #[repr(C)]
        struct Timespec(i64, i64);
        unsafe extern "C" {
            fn clock_gettime(clock: i32, t: *mut Timespec) -> i32;
        }
        const THREAD_CPU_TIME: i32 = 3;
        let mut t = Timespec(0, 0);
        unsafe { clock_gettime(THREAD_CPU_TIME, &mut t) };
        return t.0 as f64 + t.1 as f64 * 1e-9;
    }
    let _ = threads;
    static BEGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Least seconds of one call over about `budget`, at least five calls.
fn best(threads: usize, budget: Duration, mut f: impl FnMut()) -> f64 {
    let (begin, mut least, mut calls) = (Instant::now(), f64::INFINITY, 0);
    while calls < 5 || begin.elapsed() < budget {
        let t = now(threads);
        f();
        least = least.min(now(threads) - t);
        calls += 1;
    }
    least
}

const BUDGET: Duration = Duration::from_millis(120);

/// Numbers that begin on a cache line, as an executor's arena does.
struct Floats {
    data: Vec<f32>,
    skip: usize,
}

impl std::ops::Deref for Floats {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.data[self.skip..]
    }
}

impl std::ops::DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.data[self.skip..]
    }
}

fn floats(n: usize) -> Floats {
    let mut x = 1u32;
    let mut data = Vec::with_capacity(n + 16);
    let skip = (data.as_ptr() as usize).wrapping_neg() % 64 / 4;
    data.extend((0..n + skip).map(|_| {
        x = x.wrapping_mul(1664525).wrapping_add(1013904223);
        (x >> 9) as f32 / (1 << 23) as f32 - 0.5
    }));
    Floats { data, skip }
}

/// GFLOP/s of one thread that does nothing but fused multiply-adds in registers, or where that is not written for the
/// machine, a product in the first cache.
fn peak(pool: &Pool, isa: Isa) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx2 {
        const TIMES: usize = 20_000;
        let flops = (2 * 12 * TIMES * if isa == Isa::Avx512 { 16 } else { 8 }) as f64;
        let s = best(1, BUDGET, || {
            // SAFETY: the level has the features.
            let sum = unsafe {
                if isa == Isa::Avx512 {
                    multiply_512(TIMES, black_box(1.0))
                } else {
                    multiply_256(TIMES, black_box(1.0))
                }
            };
            black_box(sum);
        });
        return flops / s / 1e9;
    }
    let (m, k, n) = (48, 256, 48);
    2.0 * (m * k * n) as f64 / product(pool, isa, (1, m, k, n), true, 1) / 1e9
}

#[cfg(target_arch = "x86_64")]
macro_rules! multiply {
    ($name:ident, $features:literal, $splat:ident, $fma:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $name(times: usize, x: f32) -> f32 {
            use std::arch::x86_64::*;
            let (a, b) = ($splat(x), $splat(0.5));
            let mut sums = [a; 12];
            for _ in 0..times {
                for sum in &mut sums {
                    *sum = $fma(*sum, b, a);
                }
            }
            // SAFETY: the first element of each vector.
            sums.map(|v| unsafe { (&raw const v).cast::<f32>().read() })
                .iter()
                .sum()
        }
    };
}
#[cfg(target_arch = "x86_64")]
multiply!(multiply_256, "avx2,fma", _mm256_set1_ps, _mm256_fmadd_ps);
#[cfg(target_arch = "x86_64")]
multiply!(multiply_512, "avx512f", _mm512_set1_ps, _mm512_fmadd_ps);

/// Rates of the machine, and the cost of a call besides its work.
fn machine(pool: &Pool, isa: Isa) {
    let threads = pool.threads();
    println!("multiply  {:7.1} GFLOP/s a thread", peak(pool, isa));
    println!(
        "copy      {:7.1} GB/s, reads and writes counted",
        bandwidth(pool)
    );
    // Each thread has a part, so that the time from call to return is that of all of them.
    let work = || {
        (0..2000).for_each(|i| {
            black_box(i);
        })
    };
    let alone = best(threads, BUDGET, work);
    let s = best(threads, BUDGET, || {
        pool.parallel_for(threads, 1, &|r| r.for_each(|_| work()))
            .unwrap()
    });
    println!(
        "dispatch  {:7.2} us beside {:.2} us of work",
        (s - alone) * 1e6,
        alone * 1e6
    );
    let shape = GemmShape::new(1, 128, 768, 50257);
    let lhs = Lhs {
        ptr: std::ptr::null(),
        dtype: DType::F32,
        matrices: Affine::ONE,
        rows: Affine::linear(128, 768),
        taps: &[0],
        k_step: 1,
    };
    let s = best(threads, BUDGET, || {
        black_box(Plan::product(shape, DType::F32, isa, threads, &lhs, None)).unwrap();
    });
    println!("plan      {:7.2} us, a product", s * 1e6);
    let shape = ConvShape::new_2d(1, 64, 64, [58, 58], [3, 3], 1);
    let s = best(threads, BUDGET, || {
        let algorithm = Conv::choose(&shape, DType::F32, isa, threads);
        black_box(Conv::plan(
            shape,
            DType::F32,
            DType::F32,
            isa,
            threads,
            algorithm,
        ))
        .unwrap();
    });
    println!("plan      {:7.2} us, a convolution", s * 1e6);
    let (k, n) = (1024, 4096);
    let b = floats(k * n);
    for (what, k_step, n_step) in [("[k, n]", n, 1), ("[n, k]", 1, k)] {
        let view = RhsView {
            ptr: b.as_ptr().cast(),
            dtype: DType::F32,
            matrices: Affine::ONE,
            k: Affine::linear(k, k_step as isize),
            cols: Affine::linear(n, n_step as isize),
        };
        let s = best(threads, BUDGET, || {
            black_box(unsafe { PackedB::pack(pool, isa, DType::F32, &view).unwrap() });
        });
        println!(
            "pack      {:7.1} GB/s read, weights {what}",
            (4 * k * n) as f64 / s / 1e9
        );
    }
}

/// Seconds of a product; weights `[n, k]`, packed or in place. `sets` of weights are used in turn, so that they
/// come from memory where together they exceed the caches.
fn product(
    pool: &Pool,
    isa: Isa,
    (batch, m, k, n): (usize, usize, usize, usize),
    packed: bool,
    sets: usize,
) -> f64 {
    let (a, mut c) = (floats(batch * m * k), floats(batch * m * n));
    let matrices = if packed { 1 } else { batch };
    let b: Vec<Floats> = (0..sets).map(|_| floats(matrices * k * n)).collect();
    let views: Vec<RhsView> = b
        .iter()
        .map(|b| RhsView {
            ptr: b.as_ptr().cast(),
            dtype: DType::F32,
            matrices: Affine::linear(matrices, (k * n) as isize),
            k: Affine::linear(k, 1),
            cols: Affine::linear(n, k as isize),
        })
        .collect();
    let packs: Vec<Packed> = if packed {
        views
            .iter()
            .map(|v| Packed::Rhs(unsafe { PackedB::pack(pool, isa, DType::F32, v).unwrap() }))
            .collect()
    } else {
        Vec::new()
    };
    let lhs = Lhs {
        ptr: a.as_ptr().cast(),
        dtype: DType::F32,
        matrices: Affine::linear(batch, (m * k) as isize),
        rows: Affine::linear(m, k as isize),
        taps: &[0],
        k_step: 1,
    };
    let out = Output::Store(StoreView {
        ptr: c.as_mut_ptr().cast(),
        dtype: DType::F32,
        batch: Affine::linear(batch, (m * n) as isize),
        rows: Affine::linear(m, n as isize),
        cols: Affine::linear(n, 1),
    });
    let shape = GemmShape::new(batch, m, k, n);
    let rhs = (!packed).then_some(&views[0]);
    let plan = Plan::product(shape, DType::F32, isa, pool.threads(), &lhs, rhs).unwrap();
    let mut turn = 0;
    best(pool.threads(), BUDGET, || {
        let operands = Operands {
            a: lhs.ptr,
            b: views[turn % sets].ptr,
            packed: packs.get(turn % sets),
        };
        turn += 1;
        unsafe { plan.run(pool, &operands, &out).unwrap() }
    })
}

/// The same by the crate `gemm`, weights `[n, k]`.
fn other(threads: usize, (batch, m, k, n): (usize, usize, usize, usize)) -> f64 {
    let (a, b, mut c) = (
        floats(batch * m * k),
        floats(batch * k * n),
        floats(batch * m * n),
    );
    let parallelism = if threads == 1 {
        Parallelism::None
    } else {
        Parallelism::Rayon(threads)
    };
    best(threads, BUDGET, || unsafe {
        for i in 0..batch {
            gemm::gemm(
                m,
                n,
                k,
                c.as_mut_ptr().add(i * m * n),
                1,
                n as isize,
                false,
                a.as_ptr().add(i * m * k),
                1,
                k as isize,
                b.as_ptr().add(i * n * k),
                k as isize,
                1,
                0.0,
                1.0,
                false,
                false,
                false,
                parallelism,
            )
        }
    })
}

fn convolution(pool: &Pool, isa: Isa, shape: ConvShape) -> f64 {
    let [_, ih, iw] = shape.input;
    let input = floats(shape.batch * ih * iw * shape.c_in);
    let ci = shape.c_in / shape.groups;
    let [_, kh, kw] = shape.kernel;
    let filters = floats(shape.c_out * ci * kh * kw);
    let algorithm = match std::env::var("ALGORITHM").as_deref() {
        Ok("direct") if shape.groups == 1 => ConvAlgorithm::Direct,
        Ok("winograd2") if shape.step == [1; 3] && shape.kernel[2] == 3 => {
            ConvAlgorithm::Winograd(2)
        }
        Ok("winograd4") if shape.step == [1; 3] && shape.kernel[2] == 3 => {
            ConvAlgorithm::Winograd(4)
        }
        _ => Conv::choose(&shape, DType::F32, isa, pool.threads()),
    };
    let conv = Conv::plan(
        shape,
        DType::F32,
        DType::F32,
        isa,
        pool.threads(),
        algorithm,
    )
    .unwrap();
    let strides = [ci * kh * kw, kh * kw, 0, kw, 1].map(|x| x as isize);
    let packed = unsafe {
        conv.pack(pool, filters.as_ptr().cast(), DType::F32, strides)
            .unwrap()
    };
    let [_, oh, ow] = shape.output();
    let m = shape.batch * oh * ow;
    let mut c = floats(m * shape.c_out);
    let out = Output::Store(StoreView {
        ptr: c.as_mut_ptr().cast(),
        dtype: DType::F32,
        batch: Affine::ONE,
        rows: Affine::linear(m, shape.c_out as isize),
        cols: Affine::linear(shape.c_out, 1),
    });
    best(pool.threads(), BUDGET, || unsafe {
        conv.run(pool, input.as_ptr().cast(), &packed, &out)
            .unwrap()
    })
}

fn bandwidth(pool: &Pool) -> f64 {
    let n = 64 << 20;
    let (src, mut dst) = (floats(n / 4), floats(n / 4));
    let to = dst.as_mut_ptr() as usize;
    let s = best(pool.threads(), BUDGET * 3, || {
        pool.parallel_for(256, 1, &|range| {
            let (a, b) = (range.start * (n / 4 / 256), range.end * (n / 4 / 256));
            unsafe {
                std::ptr::copy_nonoverlapping(src[a..b].as_ptr(), (to as *mut f32).add(a), b - a)
            }
        })
        .unwrap()
    });
    2.0 * n as f64 / s / 1e9
}

fn main() {
    let mut threads = None;
    let mut filter = String::new();
    for arg in std::env::args().skip(1) {
        match arg.parse::<usize>() {
            Ok(n) => threads = Some(n),
            Err(_) => filter = arg,
        }
    }
    let isa = std::env::var("ISA")
        .ok()
        .and_then(|s| Isa::parse(&s))
        .unwrap_or(detect());
    let pool = Pool::new(threads).unwrap();
    let threads = pool.threads();
    let wanted = |name: &str| filter.split(',').any(|f| name.contains(f));
    println!("{} threads, {}", threads, isa.name());
    if wanted("machine") {
        machine(&pool, isa);
    }

    println!("\nproducts: batch m k n                        GFLOP/s  share of gemm's   us");
    type Product = (&'static str, (usize, usize, usize, usize), bool);
    let products: &[Product] = &[
        ("square", (1, 1024, 1024, 1024), true),
        ("square_unpacked", (1, 1024, 1024, 1024), false),
        ("square_512", (1, 512, 512, 512), true),
        ("distilbert_ffn_in", (1, 128, 768, 3072), true),
        ("distilbert_ffn_out", (1, 128, 3072, 768), true),
        ("distilbert_proj", (1, 128, 768, 768), true),
        ("distilbert_scores", (12, 128, 64, 128), false),
        ("distilbert_values", (12, 128, 128, 64), false),
        ("gpt2_qkv", (1, 64, 768, 2304), true),
        ("gpt2_ffn_in", (1, 64, 768, 3072), true),
        ("gpt2_ffn_out", (1, 64, 3072, 768), true),
        ("gpt2_head", (1, 64, 768, 50257), true),
        ("vit_qkv", (1, 197, 192, 576), true),
        ("vit_proj", (1, 197, 192, 192), true),
        ("vit_ffn_in", (1, 197, 192, 768), true),
        ("vit_ffn_out", (1, 197, 768, 192), true),
        ("vit_scores", (3, 197, 64, 197), false),
        ("vit_values", (3, 197, 197, 64), false),
        ("vit_head", (1, 1, 192, 1000), true),
        ("llama_q", (1, 128, 512, 512), true),
        ("llama_kv", (1, 128, 512, 256), true),
        ("llama_ffn_in", (1, 128, 512, 1376), true),
        ("llama_ffn_out", (1, 128, 1376, 512), true),
        ("llama_head", (1, 128, 512, 8000), true),
        ("resnet_fc", (1, 1, 512, 1000), true),
        ("linear_1", (1, 1, 1024, 4096), true),
        ("linear_4", (1, 4, 1024, 4096), true),
        ("linear_16", (1, 16, 1024, 4096), true),
        ("vector_unpacked", (1, 1, 1024, 4096), false),
    ];
    // `ROWSxDEPTHxCOLUMNS` among the filters measures a product of these sizes.
    let given = filter.split(',').filter_map(|name| {
        let sizes: Vec<usize> = name.split('x').filter_map(|n| n.parse().ok()).collect();
        let &[m, k, n] = &sizes[..] else { return None };
        Some((name, (1, m, k, n), true))
    });
    let named = products.iter().copied().filter(|p| wanted(p.0));
    for (name, shape, packed) in named.chain(given) {
        let (batch, m, k, n) = shape;
        let flops = 2.0 * (batch * m * k * n) as f64;
        let s = product(&pool, isa, shape, packed, 1);
        let o = other(threads, shape);
        println!(
            "{name:20} {batch:3} {m:5} {k:5} {n:6}  {:9.1} {:12.2} {:12.1}",
            flops / s / 1e9,
            o / s,
            s * 1e6
        );
    }

    println!("\nconvolutions: channels in, out, kernel, step, output   GFLOP/s   us");
    let convolutions: &[(&str, usize, usize, usize, usize, usize, bool)] = &[
        ("resnet_stem", 3, 64, 7, 2, 112, false),
        ("resnet_1", 64, 64, 3, 1, 56, false),
        ("resnet_2a", 64, 128, 3, 2, 28, false),
        ("resnet_2down", 64, 128, 1, 2, 28, false),
        ("resnet_2", 128, 128, 3, 1, 28, false),
        ("resnet_3a", 128, 256, 3, 2, 14, false),
        ("resnet_3", 256, 256, 3, 1, 14, false),
        ("resnet_4a", 256, 512, 3, 2, 7, false),
        ("resnet_4", 512, 512, 3, 1, 7, false),
        ("vit_patch", 3, 192, 16, 16, 14, false),
        ("mobile_stem", 3, 16, 3, 2, 112, false),
        ("mobile_1x1_a", 16, 72, 1, 1, 56, false),
        ("mobile_1x1_b", 72, 24, 1, 1, 28, false),
        ("mobile_1x1_c", 24, 88, 1, 1, 28, false),
        ("mobile_1x1_d", 96, 40, 1, 1, 14, false),
        ("mobile_1x1_e", 40, 240, 1, 1, 14, false),
        ("mobile_1x1_f", 240, 40, 1, 1, 14, false),
        ("mobile_1x1_g", 96, 576, 1, 1, 7, false),
        ("mobile_1x1_h", 576, 96, 1, 1, 7, false),
        ("mobile_dw_a", 16, 16, 3, 2, 56, true),
        ("mobile_dw_b", 88, 88, 3, 1, 28, true),
        ("mobile_dw_c", 240, 240, 5, 1, 14, true),
        ("mobile_dw_d", 576, 576, 5, 1, 7, true),
    ];
    for &(name, ci, co, kernel, step, size, depthwise) in
        convolutions.iter().filter(|c| wanted(c.0))
    {
        let input = (size - 1) * step + kernel;
        let mut shape = ConvShape::new_2d(1, ci, co, [input, input], [kernel, kernel], step);
        if depthwise {
            shape.groups = ci;
        }
        let flops = 2.0 * (size * size * co * kernel * kernel * ci / shape.groups) as f64;
        let s = convolution(&pool, isa, shape);
        println!(
            "{name:16} {ci:4} {co:4} {kernel:3} {step:3} {size:4} {:18.1} {:10.1}",
            flops / s / 1e9,
            s * 1e6
        );
    }
}
