//! Products of several groups of few columns, as programs hand them over: each group a batch, right operands in place.

mod common;

use common::{Rng, counting, multiply};
use half::bf16;
use inrush_base::{DType, Isa};
use inrush_cpu::*;

/// Three lines of pixels with two taps each, groups of `k` channels to `n`.
#[derive(Clone, Copy, Debug)]
struct Case {
    groups: usize,
    k: usize,
    n: usize,
    line: usize,
}

const LINES: usize = 3;
const TAPS: usize = 2;

impl Case {
    fn pixels(&self) -> usize {
        LINES * (self.line + 1)
    }

    fn m(&self) -> usize {
        LINES * self.line
    }

    /// `out[group][m][n]` in double precision.
    fn slow(&self, a: &[f64], b: &[f64]) -> Vec<f64> {
        let &Case { groups, k, n, line } = self;
        let mut out = Vec::new();
        for g in 0..groups {
            for m in 0..self.m() {
                let pixel = m / line * (line + 1) + m % line;
                for j in 0..n {
                    let mut sum = 0.0;
                    for t in 0..TAPS {
                        for i in 0..k {
                            let x = a[((pixel + t) * groups + g) * k + i];
                            sum += x * b[((g * n + j) * k + i) * TAPS + t];
                        }
                    }
                    out.push(sum);
                }
            }
        }
        out
    }

    /// Weights are `[groups * n][k][taps]`, as convolutions have them.
    fn run(
        &self,
        a: *const u8,
        b: *const u8,
        dtype: DType,
        isa: Isa,
        threads: usize,
        out: &Output,
    ) {
        let &Case { groups, k, n, line } = self;
        let pixel = (groups * k) as isize;
        let lhs = Lhs {
            ptr: a,
            dtype,
            matrices: Affine::linear(groups, k as isize),
            rows: Affine::new(&[(LINES, (line + 1) as isize * pixel), (line, pixel)]).unwrap(),
            taps: &[0, pixel],
            k_step: 1,
        };
        let view = RhsView {
            ptr: b,
            dtype,
            matrices: Affine::linear(groups, (n * k * TAPS) as isize),
            k: Affine::new(&[(TAPS, 1), (k, TAPS as isize)]).unwrap(),
            cols: Affine::linear(n, (k * TAPS) as isize),
        };
        let shape = GemmShape {
            batch: groups,
            groups: 1,
            m: self.m(),
            n,
            taps: TAPS,
            k,
        };
        let pool = Pool::new(Some(threads)).unwrap();
        for packed in [false, true] {
            let how = (shape, dtype, isa);
            // SAFETY: sizes and strides as allocated by the tests.
            unsafe {
                let b = packed
                    .then(|| PackedB::pack(&pool, isa, dtype, &view).unwrap())
                    .map(Packed::Rhs);
                multiply(&pool, how, &lhs, &view, b.as_ref(), out).unwrap();
            }
        }
    }

    /// A result in the order `[m][group][n]`.
    fn channels_last(&self, ptr: *mut u8, dtype: DType) -> Output {
        let &Case { groups, n, .. } = self;
        Output::Store(StoreView {
            ptr,
            dtype,
            batch: Affine::linear(groups, n as isize),
            rows: Affine::linear(self.m(), (groups * n) as isize),
            cols: Affine::linear(n, 1),
        })
    }
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (groups, k, n) in [
        (4, 4, 4),
        (8, 2, 4),
        (32, 4, 4),
        (8, 8, 8),
        (16, 3, 2),
        (24, 1, 2),
        (4, 5, 4),
        (6, 4, 4),
    ] {
        for line in [1, 5, 16, 100] {
            all.push(Case { groups, k, n, line });
        }
    }
    all
}

#[test]
fn groups_are_batches() {
    let mut rng = Rng(51);
    for c in cases() {
        let a = rng.floats(c.pixels() * c.groups * c.k);
        let b = rng.floats(c.groups * c.n * c.k * TAPS);
        let wide = |x: &[f32]| x.iter().map(|x| *x as f64).collect::<Vec<_>>();
        let want = c.slow(&wide(&a), &wide(&b));
        for isa in available() {
            for threads in [1, 3] {
                let mut out = vec![0f32; want.len()];
                let mut count = vec![0i32; out.len()];
                let args = [
                    out.as_mut_ptr().cast::<u8>(),
                    count.as_mut_ptr().cast::<u8>(),
                ];
                let syms = [c.m() as i64, c.n as i64];
                let output = Output::Epilogue(Epilogue {
                    f: counting,
                    args: args.as_ptr(),
                    syms: syms.as_ptr(),
                });
                c.run(
                    a.as_ptr().cast(),
                    b.as_ptr().cast(),
                    DType::F32,
                    isa,
                    threads,
                    &output,
                );
                // Once for each kind of right operand.
                assert!(count.iter().all(|x| *x == 2), "{c:?}");
                let halves: Vec<f32> = out.iter().map(|x| x / 2.0).collect();
                common::close(&halves, &want, c.k * TAPS, &format!("{c:?} {isa:?}"));
            }
        }
    }
}

#[test]
fn doubles_and_conversions_are_stored_in_place() {
    let mut rng = Rng(52);
    for c in cases() {
        let a: Vec<f64> = (0..c.pixels() * c.groups * c.k)
            .map(|_| rng.unit())
            .collect();
        let b: Vec<f64> = (0..c.groups * c.n * c.k * TAPS)
            .map(|_| rng.unit())
            .collect();
        let want = c.slow(&a, &b);
        let at = |g: usize, m: usize, j: usize| want[(g * c.m() + m) * c.n + j];
        for isa in available() {
            let mut out = vec![f64::NAN; want.len()];
            let store = c.channels_last(out.as_mut_ptr().cast(), DType::F64);
            c.run(
                a.as_ptr().cast(),
                b.as_ptr().cast(),
                DType::F64,
                isa,
                2,
                &store,
            );
            let narrow = |x: &[f64]| x.iter().map(|x| *x as f32).collect::<Vec<_>>();
            let (a, b) = (narrow(&a), narrow(&b));
            let mut half = vec![bf16::NAN; want.len()];
            let store = c.channels_last(half.as_mut_ptr().cast(), DType::BF16);
            c.run(
                a.as_ptr().cast(),
                b.as_ptr().cast(),
                DType::F32,
                isa,
                2,
                &store,
            );
            for i in 0..out.len() {
                let want = at(i / c.n % c.groups, i / (c.n * c.groups), i % c.n);
                assert!(
                    (out[i] - want).abs() < 1e-14,
                    "{c:?} {isa:?}: {} for {want}",
                    out[i]
                );
                let apart = (half[i].to_f64() - want).abs();
                assert!(
                    apart < 0.01 * want.abs() + 1e-5,
                    "{c:?} {isa:?}: {} for {want}",
                    half[i]
                );
            }
        }
    }
}

/// An infinity in one group leaves the others as they are, and results are the same for any number of threads.
#[test]
fn groups_are_apart() {
    let c = Case {
        groups: 16,
        k: 4,
        n: 4,
        line: 21,
    };
    let mut rng = Rng(53);
    let mut a = rng.floats(c.pixels() * c.groups * c.k);
    let b = rng.floats(c.groups * c.n * c.k * TAPS);
    let of_five = |i: usize| i / c.k % c.groups == 5;
    (0..a.len())
        .filter(|i| of_five(*i))
        .for_each(|i| a[i] = f32::INFINITY);
    for isa in available() {
        let mut first: Option<Vec<u32>> = None;
        for threads in [1, 2, 4] {
            let mut out = vec![0f32; c.m() * c.groups * c.n];
            let store = c.channels_last(out.as_mut_ptr().cast(), DType::F32);
            c.run(
                a.as_ptr().cast(),
                b.as_ptr().cast(),
                DType::F32,
                isa,
                threads,
                &store,
            );
            for (i, x) in out.iter().enumerate() {
                assert_eq!(
                    x.is_finite(),
                    i / c.n % c.groups != 5,
                    "{isa:?}: {i} is {x}"
                );
            }
            let bits: Vec<u32> = out.iter().map(|x| x.to_bits()).collect();
            assert_eq!(first.get_or_insert_with(|| bits.clone()), &bits);
        }
    }
}
