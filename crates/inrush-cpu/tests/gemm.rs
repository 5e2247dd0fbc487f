//! Products against a slow loop in double precision: sizes with every kind of remainder, strides, taps, batches, groups,
//! dtypes, thread counts and instruction set levels.

mod common;

use common::{Rng, close, counting, multiply};
use half::{bf16, f16};
use inrush_base::{DType, ErrorKind, Isa};
use inrush_cpu::*;

fn bytes<T>(v: &[T]) -> *const u8 {
    v.as_ptr().cast()
}

/// A case in which both operands have arbitrary positive strides; `rhs` as `[matrix][k][n]`.
#[derive(Clone, Debug)]
struct Case {
    shape: GemmShape,
    /// The left operand has `k` slower than `m`.
    transposed_lhs: bool,
    transposed_rhs: bool,
    packed: bool,
    epilogue: bool,
    threads: usize,
    isa: Isa,
}

fn run(case: &Case, rng: &mut Rng) {
    let s = case.shape;
    let depth = s.taps * s.k;
    let matrices = s.batch * s.groups;
    let pool = Pool::new(Some(case.threads)).unwrap();
    // Left: rows of `taps` pieces with a gap after each.
    let gap = 3;
    let piece = s.k + gap;
    let row = s.taps * piece;
    let a = rng.floats(matrices * s.m.max(1) * row.max(1) + 8);
    let (row_step, k_step) = if case.transposed_lhs {
        (1, s.m as isize)
    } else {
        (row as isize, 1)
    };
    let tap_step = if case.transposed_lhs {
        (s.k * s.m) as isize
    } else {
        piece as isize
    };
    let taps: Vec<isize> = (0..s.taps).rev().map(|t| t as isize * tap_step).collect();
    let lhs = Lhs {
        ptr: bytes(&a),
        dtype: DType::F32,
        matrices: Affine::linear(matrices, (s.m * row) as isize),
        rows: Affine::linear(s.m, row_step),
        taps: &taps,
        k_step,
    };
    let rhs_matrices = if case.packed { s.groups } else { matrices };
    let b = rng.floats(rhs_matrices * depth * s.n + 8);
    let (bk, bn) = if case.transposed_rhs {
        (1, depth as isize)
    } else {
        (s.n as isize, 1)
    };
    let view = RhsView {
        ptr: bytes(&b),
        dtype: DType::F32,
        matrices: Affine::linear(rhs_matrices, (depth * s.n) as isize),
        k: Affine::linear(depth, bk),
        cols: Affine::linear(s.n, bn),
    };
    let packed = case
        .packed
        .then(|| unsafe { PackedB::pack(&pool, case.isa, DType::F32, &view).unwrap() })
        .map(Packed::Rhs);
    let n = s.groups * s.n;
    let mut out = vec![0f32; s.batch * s.m * n];
    let mut count = vec![0i32; out.len()];
    let args = [
        out.as_mut_ptr().cast::<u8>(),
        count.as_mut_ptr().cast::<u8>(),
    ];
    let syms = [s.m as i64, n as i64];
    let output = if case.epilogue {
        Output::Epilogue(Epilogue {
            f: counting,
            args: args.as_ptr(),
            syms: syms.as_ptr(),
        })
    } else {
        Output::Store(StoreView {
            ptr: out.as_mut_ptr().cast(),
            dtype: DType::F32,
            batch: Affine::linear(s.batch, (s.m * n) as isize),
            rows: Affine::linear(s.m, n as isize),
            cols: Affine::linear(n, 1),
        })
    };
    let how = (s, DType::F32, case.isa);
    unsafe { multiply(&pool, how, &lhs, &view, packed.as_ref(), &output).unwrap() };
    let mut want = vec![0f64; out.len()];
    for batch in 0..s.batch {
        for group in 0..s.groups {
            let matrix = batch * s.groups + group;
            let rm = if case.packed { group } else { matrix };
            for i in 0..s.m {
                for j in 0..s.n {
                    let mut sum = 0.0;
                    for (t, tap) in taps.iter().enumerate() {
                        for k in 0..s.k {
                            let at = lhs.matrices.offset(matrix)
                                + i as isize * row_step
                                + tap
                                + k as isize * k_step;
                            let bt = (rm * depth * s.n) as isize
                                + (t * s.k + k) as isize * bk
                                + j as isize * bn;
                            sum += a[at as usize] as f64 * b[bt as usize] as f64;
                        }
                    }
                    want[(batch * s.m + i) * n + group * s.n + j] = sum;
                }
            }
        }
    }
    let what = format!("{case:?}");
    close(&out, &want, depth, &what);
    assert!(
        !case.epilogue || count.iter().all(|&c| c == 1),
        "{what}: a result was not given exactly once"
    );
}

#[test]
fn random_products() {
    let mut rng = Rng(7);
    let levels = available();
    let sizes = [
        0, 1, 2, 3, 5, 6, 7, 8, 13, 16, 17, 24, 31, 33, 48, 49, 65, 97,
    ];
    for round in 0..400 {
        let mut pick = |of: &[usize]| of[rng.below(of.len())];
        let shape = GemmShape {
            batch: pick(&[1, 1, 1, 2, 3]),
            groups: pick(&[1, 1, 1, 2, 5]),
            m: pick(&sizes),
            n: pick(&sizes),
            taps: pick(&[1, 1, 1, 0, 2, 3, 9]),
            k: pick(&sizes),
        };
        let case = Case {
            shape,
            transposed_lhs: rng.below(4) == 0,
            transposed_rhs: rng.below(2) == 0,
            packed: rng.below(2) == 0,
            epilogue: rng.below(2) == 0,
            threads: 1 + rng.below(4),
            isa: levels[round % levels.len()],
        };
        run(&case, &mut rng);
    }
}

/// Sizes beyond one block, where sums are carried from stretch to stretch.
#[test]
fn large_products() {
    let mut rng = Rng(8);
    for isa in available() {
        for (m, k, n, taps) in [
            (301, 700, 130, 1),
            (7, 2100, 333, 1),
            (260, 90, 50, 9),
            (1, 1500, 600, 1),
            (64, 400, 97, 3),
            (1500, 350, 300, 1),
            (64, 1100, 192, 1),
            (200, 333, 161, 2),
        ] {
            for packed in [false, true] {
                let shape = GemmShape {
                    taps,
                    ..GemmShape::new(1, m, k, n)
                };
                let case = Case {
                    shape,
                    transposed_lhs: !packed && taps == 1,
                    transposed_rhs: packed,
                    packed,
                    epilogue: packed,
                    threads: 3,
                    isa,
                };
                run(&case, &mut rng);
            }
        }
    }
}

/// Every tile height and width of every level.
#[test]
fn every_tile() {
    let mut rng = Rng(9);
    for isa in available() {
        for m in 1..=14 {
            for n in [3, 8, 16, 24, 32, 40, 48, 64] {
                let case = Case {
                    shape: GemmShape::new(1, m, 9, n),
                    transposed_lhs: false,
                    transposed_rhs: false,
                    packed: true,
                    epilogue: true,
                    threads: 1,
                    isa,
                };
                run(&case, &mut rng);
            }
        }
    }
}

/// Computes from the packed operand, and from the operand in place.
fn product<A: Copy, B: Copy, C: Copy + Default>(
    dtypes: [DType; 4],
    (m, k, n): (usize, usize, usize),
    a: &[A],
    b: &[B],
    isa: Isa,
) -> inrush_base::Result<[Vec<C>; 2]> {
    let pool = Pool::new(Some(2))?;
    let mut c = vec![C::default(); m * n];
    let lhs = Lhs {
        ptr: bytes(a),
        dtype: dtypes[0],
        matrices: Affine::ONE,
        rows: Affine::linear(m, k as isize),
        taps: &[0],
        k_step: 1,
    };
    let view = RhsView {
        ptr: bytes(b),
        dtype: dtypes[1],
        matrices: Affine::ONE,
        k: Affine::linear(k, n as isize),
        cols: Affine::linear(n, 1),
    };
    let out = Output::Store(StoreView {
        ptr: c.as_mut_ptr().cast(),
        dtype: dtypes[3],
        batch: Affine::ONE,
        rows: Affine::linear(m, n as isize),
        cols: Affine::linear(n, 1),
    });
    let shape = GemmShape::new(1, m, k, n);
    let how = (shape, dtypes[2], isa);
    let packed = Packed::Rhs(unsafe { PackedB::pack(&pool, isa, dtypes[2], &view)? });
    unsafe { multiply(&pool, how, &lhs, &view, Some(&packed), &out)? };
    let once = c.clone();
    unsafe { multiply(&pool, how, &lhs, &view, None, &out)? };
    Ok([once, c])
}

#[test]
fn every_dtype() {
    use DType::*;
    let (m, k, n) = (11, 37, 21);
    for isa in available() {
        let mut rng = Rng(10);
        let a: Vec<i64> = (0..m * k).map(|_| rng.below(7) as i64 - 3).collect();
        let b: Vec<i64> = (0..k * n).map(|_| rng.below(7) as i64 - 3).collect();
        let want: Vec<i64> = (0..m * n)
            .map(|i| (0..k).map(|x| a[i / n * k + x] * b[x * n + i % n]).sum())
            .collect();
        // Small integers are exact in every type.
        macro_rules! check {
            ($t:ty, $dtype:ident, $acc:ident, $of:expr, $to:expr) => {{
                let of: fn(i64) -> $t = $of;
                let to: fn($t) -> i64 = $to;
                let a: Vec<$t> = a.iter().map(|&x| of(x)).collect();
                let b: Vec<$t> = b.iter().map(|&x| of(x)).collect();
                let both: [Vec<$t>; 2] =
                    product([$dtype, $dtype, $acc, $dtype], (m, k, n), &a, &b, isa).unwrap();
                for c in both {
                    let got: Vec<i64> = c.iter().map(|&x| to(x)).collect();
                    assert_eq!(got, want, "{} {}", stringify!($dtype), isa.name());
                }
            }};
        }
        check!(f32, F32, F32, |x| x as f32, |x| x as i64);
        check!(f64, F64, F64, |x| x as f64, |x| x as i64);
        check!(f16, F16, F32, |x| f16::from_f64(x as f64), |x| x.to_f64()
            as i64);
        check!(
            bf16,
            BF16,
            F32,
            |x| bf16::from_f64(x as f64),
            |x| x.to_f64() as i64
        );
        check!(i64, I64, I64, |x| x, |x| x);
        check!(i32, I32, I32, |x| x as i32, |x| x as i64);
        check!(i16, I16, I32, |x| x as i16, |x| x as i64);
        // Bytes wrap, as ATen's do.
        let a8: Vec<u8> = a.iter().map(|&x| x as u8).collect();
        let b8: Vec<u8> = b.iter().map(|&x| x as u8).collect();
        let both: [Vec<u8>; 2] = product([U8, U8, I32, U8], (m, k, n), &a8, &b8, isa).unwrap();
        for c8 in both {
            assert_eq!(c8, want.iter().map(|&x| x as u8).collect::<Vec<_>>());
        }
    }
}

/// Few and many rows, both layouts of either operand, every remainder: halves are widened wherever they are read.
#[test]
fn halves_where_they_lie() {
    let mut rng = Rng(21);
    let pool = Pool::new(Some(2)).unwrap();
    for isa in available() {
        for dtype in [DType::BF16, DType::F16] {
            for m in [1, 2, 3, 4, 7, 12, 16, 40] {
                for (k, n) in [(1, 1), (7, 5), (33, 16), (100, 37), (64, 130)] {
                    for layouts in 0..4 {
                        let half = |v: f32| match dtype {
                            DType::BF16 => bf16::from_f32(v).to_bits(),
                            _ => f16::from_f32(v).to_bits(),
                        };
                        let full = |v: u16| match dtype {
                            DType::BF16 => bf16::from_bits(v).to_f64(),
                            _ => f16::from_bits(v).to_f64(),
                        };
                        let a: Vec<u16> = rng.floats(m * k).into_iter().map(half).collect();
                        let b: Vec<u16> = rng.floats(k * n).into_iter().map(half).collect();
                        let strides = |flip: bool, rows: usize, cols: usize| {
                            if flip {
                                (1, rows as isize)
                            } else {
                                (cols as isize, 1)
                            }
                        };
                        let (am, ak) = strides(layouts & 1 != 0, m, k);
                        let (bk, bn) = strides(layouts & 2 != 0, k, n);
                        let lhs = Lhs {
                            ptr: bytes(&a),
                            dtype,
                            matrices: Affine::ONE,
                            rows: Affine::linear(m, am),
                            taps: &[0],
                            k_step: ak,
                        };
                        let view = RhsView {
                            ptr: bytes(&b),
                            dtype,
                            matrices: Affine::ONE,
                            k: Affine::linear(k, bk),
                            cols: Affine::linear(n, bn),
                        };
                        let mut c = vec![f32::NAN; m * n];
                        let out = Output::Store(StoreView {
                            ptr: c.as_mut_ptr().cast(),
                            dtype: DType::F32,
                            batch: Affine::ONE,
                            rows: Affine::linear(m, n as isize),
                            cols: Affine::linear(n, 1),
                        });
                        let shape = GemmShape::new(1, m, k, n);
                        let how = (shape, DType::F32, isa);
                        unsafe { multiply(&pool, how, &lhs, &view, None, &out).unwrap() };
                        let want: Vec<f64> = (0..m * n)
                            .map(|i| {
                                let (i, j) = ((i / n) as isize, (i % n) as isize);
                                let at = |x: isize| {
                                    full(a[(i * am + x * ak) as usize])
                                        * full(b[(x * bk + j * bn) as usize])
                                };
                                (0..k as isize).map(at).sum()
                            })
                            .collect();
                        close(&c, &want, k, &format!("{dtype} {m} {k} {n} {layouts}"));
                    }
                }
            }
        }
    }
}

#[test]
fn doubles_keep_their_precision() {
    let (m, k, n) = (13, 500, 29);
    let mut rng = Rng(11);
    let a: Vec<f64> = (0..m * k).map(|_| rng.unit()).collect();
    let b: Vec<f64> = (0..k * n).map(|_| rng.unit()).collect();
    for isa in available() {
        let both: [Vec<f64>; 2] = product([DType::F64; 4], (m, k, n), &a, &b, isa).unwrap();
        for (i, got) in both.iter().flat_map(|c| c.iter().enumerate()) {
            let want: f64 = (0..k).map(|x| a[i / n * k + x] * b[x * n + i % n]).sum();
            assert!((got - want).abs() < 1e-13 * k as f64, "{got} {want}");
        }
    }
}

/// Rows and columns of several levels: heads that are views of one buffer, keys shared by groups of heads, a transposed
/// right operand.
#[test]
fn attention_scores_from_views() {
    let (batch, heads, kv, seq, dim) = (2, 4, 2, 37, 16);
    let mut rng = Rng(12);
    // [batch, seq, heads, dim] and [batch, seq, kv, dim].
    let q = rng.floats(batch * seq * heads * dim);
    let k = rng.floats(batch * seq * kv * dim);
    let mut scores = vec![0f32; batch * heads * seq * seq];
    let lhs = Lhs {
        ptr: bytes(&q),
        dtype: DType::F32,
        matrices: Affine::new(&[(batch, (seq * heads * dim) as isize), (heads, dim as isize)])
            .unwrap(),
        rows: Affine::linear(seq, (heads * dim) as isize),
        taps: &[0],
        k_step: 1,
    };
    let rhs = RhsView {
        ptr: bytes(&k),
        dtype: DType::F32,
        matrices: Affine::new(&[
            (batch, (seq * kv * dim) as isize),
            (kv, dim as isize),
            (heads / kv, 0),
        ])
        .unwrap(),
        k: Affine::linear(dim, 1),
        cols: Affine::linear(seq, (kv * dim) as isize),
    };
    let out = Output::Store(StoreView {
        ptr: scores.as_mut_ptr().cast(),
        dtype: DType::F32,
        batch: Affine::linear(batch * heads, (seq * seq) as isize),
        rows: Affine::linear(seq, seq as isize),
        cols: Affine::linear(seq, 1),
    });
    for isa in available() {
        for threads in [1, 2, 4] {
            scores.fill(f32::NAN);
            let pool = Pool::new(Some(threads)).unwrap();
            let shape = GemmShape::new(batch * heads, seq, dim, seq);
            let how = (shape, DType::F32, isa);
            unsafe { multiply(&pool, how, &lhs, &rhs, None, &out).unwrap() };
            let mut want = Vec::new();
            for b in 0..batch {
                for h in 0..heads {
                    for i in 0..seq {
                        for j in 0..seq {
                            let at = |d| q[((b * seq + i) * heads + h) * dim + d] as f64;
                            let bt =
                                |d| k[((b * seq + j) * kv + h / (heads / kv)) * dim + d] as f64;
                            want.push((0..dim).map(|d| at(d) * bt(d)).sum());
                        }
                    }
                }
            }
            close(&scores, &want, dim, "scores");
        }
    }
}

#[test]
fn operands_of_other_sizes_are_refused() {
    let pool = Pool::new(Some(1)).unwrap();
    let isa = Isa::Scalar;
    let b = vec![0f32; 64];
    let view = |k| RhsView {
        ptr: bytes(&b),
        dtype: DType::F32,
        matrices: Affine::ONE,
        k: Affine::linear(k, 8),
        cols: Affine::linear(8, 1),
    };
    let packed = Packed::Rhs(unsafe { PackedB::pack(&pool, isa, DType::F32, &view(7)).unwrap() });
    let how = (GemmShape::new(1, 2, 8, 8), DType::F32, isa);
    let lhs = Lhs {
        ptr: bytes(&b),
        dtype: DType::F32,
        matrices: Affine::ONE,
        rows: Affine::linear(2, 8),
        taps: &[0],
        k_step: 1,
    };
    let mut c = vec![0f32; 16];
    let out = Output::Store(StoreView {
        ptr: c.as_mut_ptr().cast(),
        dtype: DType::F32,
        batch: Affine::ONE,
        rows: Affine::linear(2, 8),
        cols: Affine::linear(8, 1),
    });
    let kind = |lhs: &Lhs, rhs: &RhsView, packed: Option<&Packed>| {
        let done = unsafe { multiply(&pool, how, lhs, rhs, packed, &out) };
        done.err().map(|e| e.kind())
    };
    let refused = Some(ErrorKind::Internal);
    assert_eq!(kind(&lhs, &view(8), Some(&packed)), refused);
    let taller = Lhs {
        rows: Affine::linear(3, 8),
        ..lhs
    };
    assert_eq!(kind(&taller, &view(8), None), refused);
    assert_eq!(kind(&lhs, &view(9), None), refused);
    assert_eq!(kind(&lhs, &view(8), None), None);
    // What was planned for a packed operand, or for one in place, is not given the other.
    let plan = |rhs| Plan::product(how.0, DType::F32, isa, 1, &lhs, rhs).unwrap();
    let right = Packed::Rhs(unsafe { PackedB::pack(&pool, isa, DType::F32, &view(8)).unwrap() });
    for (plan, packed) in [(plan(None), None), (plan(Some(&view(8))), Some(&right))] {
        let operands = Operands {
            a: lhs.ptr,
            b: bytes(&b),
            packed,
        };
        let done = unsafe { plan.run(&pool, &operands, &out) };
        if plan.algorithm() == "gemm" {
            assert_eq!(done.err().map(|e| e.kind()), refused);
        }
    }
    let unsupported = Plan::product(how.0, DType::Bool, isa, 1, &lhs, None);
    assert_eq!(unsupported.unwrap_err().kind(), ErrorKind::Unsupported);
}
