//! Sorts and first elements against sorts by comparison.

use crate::support::{Rng, Tensor, call, flag, int, refused};
use inrush_base::DType;
use std::cmp::Ordering;

const DTYPES: &[DType] = &[
    DType::Bool,
    DType::U8,
    DType::I8,
    DType::U16,
    DType::I16,
    DType::U32,
    DType::I32,
    DType::U64,
    DType::I64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

/// Draws values with many equal ones, zeros of both signs, NaN and infinities where the dtype has them.
fn draw(dtype: DType, sizes: &[i64], rng: &mut Rng) -> Tensor {
    let n = sizes.iter().product::<i64>() as usize;
    let values: Vec<f64> = (0..n)
        .map(|_| match (rng.below(12), dtype.is_float()) {
            (0, true) => f64::NAN,
            (1, true) => -f64::NAN,
            (2, true) => -0.0,
            (3, true) => 0.0,
            (4, true) => f64::INFINITY,
            (5, true) => f64::NEG_INFINITY,
            (6, false) => dtype.int_range().unwrap().0 as f64,
            (0..8, _) => rng.below(4) as f64,
            (_, _) if dtype.is_unsigned() || dtype == DType::Bool => rng.below(300) as f64,
            _ => (rng.value() * 100.0).round() / if dtype.is_float() { 8.0 } else { 1.0 },
        })
        .collect();
    Tensor::new(dtype, sizes, &values)
}

/// PyTorch's order: NaN is the greatest, all NaNs are equal.
fn order(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b)
        .unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Checks results against lines that are sorted by comparison, of which the first `k` are kept.
fn check(what: &str, x: &Tensor, dim: usize, k: usize, descending: bool, got: &[Tensor]) {
    let n = x.sizes.get(dim).map_or(1, |&n| n as usize);
    let after = x.sizes.get(dim + 1..).unwrap_or(&[]);
    let inner = after.iter().product::<i64>() as usize;
    let (values, size) = (x.values(), x.dtype.size());
    let indices = got[1].values();
    let lines = values.len().checked_div(n).unwrap_or(0);
    for line in 0..lines {
        let start = line / inner * n * inner + line % inner;
        let mut want: Vec<usize> = (0..n).collect();
        want.sort_by(|&a, &b| {
            let o = order(values[start + a * inner], values[start + b * inner]);
            if descending { o.reverse() } else { o }
        });
        for (i, &at) in want[..k].iter().enumerate() {
            let to = line / inner * k * inner + line % inner + i * inner;
            assert_eq!(indices[to], at as f64, "{what}: line {line}, element {i}");
            // Bits are those of the element, also of NaN and zero.
            let from = start + at * inner;
            assert_eq!(
                got[0].bytes()[to * size..(to + 1) * size],
                x.bytes()[from * size..(from + 1) * size],
                "{what}"
            );
        }
    }
}

const SHAPES: &[(&[i64], i64)] = &[
    (&[], 0),
    (&[], -1),
    (&[0], 0),
    (&[1], 0),
    (&[7], -1),
    (&[511], 0),
    (&[2000], 0),
    (&[3, 0, 2], 0),
    (&[3, 0, 2], 1),
    (&[5, 64], 1),
    (&[64, 5], 0),
    (&[2, 600, 3], 1),
    (&[40, 17], -1),
];

#[test]
fn sorts_are_stable_and_put_nan_last() {
    let mut rng = Rng::new(10);
    for &dtype in DTYPES {
        for &(sizes, dim) in SHAPES {
            for descending in [false, true] {
                let x = draw(dtype, sizes, &mut rng);
                let out = [(dtype, sizes), (DType::I64, sizes)];
                let got = call("sort.stable", &[&x], &out, &[int(dim), flag(descending)]).unwrap();
                let at = if dim < 0 {
                    (dim + sizes.len().max(1) as i64) as usize
                } else {
                    dim as usize
                };
                let n = sizes.get(at).map_or(1, |&n| n as usize);
                check(
                    &format!("{dtype} {sizes:?} {dim}"),
                    &x,
                    at,
                    n,
                    descending,
                    &got,
                );
            }
        }
    }
}

#[test]
fn first_elements_are_those_of_the_sort() {
    let mut rng = Rng::new(11);
    for &dtype in DTYPES {
        for &(sizes, dim) in SHAPES {
            let at = if dim < 0 {
                (dim + sizes.len().max(1) as i64) as usize
            } else {
                dim as usize
            };
            let n = sizes.get(at).copied().unwrap_or(1);
            for k in [0, 1, 2, 5, 100, n - 1, n] {
                if k < 0 || k > n || (sizes.is_empty() && k != 1) {
                    continue;
                }
                for largest in [false, true] {
                    let x = draw(dtype, sizes, &mut rng);
                    let mut cut = sizes.to_vec();
                    if !cut.is_empty() {
                        cut[at] = k;
                    }
                    let out = [(dtype, &cut[..]), (DType::I64, &cut[..])];
                    let params = [int(dim), flag(largest), flag(k % 2 == 0)];
                    let got = call("topk", &[&x], &out, &params).unwrap();
                    let what = format!("{dtype} {sizes:?} {dim} {k}");
                    check(&what, &x, at, k as usize, largest, &got);
                }
            }
        }
    }
}

#[test]
fn malformed_calls_are_refused() {
    let x = Tensor::draw(DType::F32, &[4, 6], &mut Rng::new(12));
    let v: (DType, &[i64]) = (DType::F32, &[4, 6]);
    let i: (DType, &[i64]) = (DType::I64, &[4, 6]);
    let good = [int(1), flag(false)];
    call("sort.stable", &[&x], &[v, i], &good).unwrap();
    refused("sort.stable", &[], &[v, i], &good);
    refused("sort.stable", &[&x, &x], &[v, i], &good);
    refused("sort.stable", &[&x], &[v], &good);
    refused("sort.stable", &[&x], &[v, v], &good);
    refused("sort.stable", &[&x], &[i, i], &good);
    refused("sort.stable", &[&x], &[(DType::I32, &[4, 6]), i], &good);
    refused("sort.stable", &[&x], &[v, (DType::I64, &[4, 5])], &good);
    refused("sort.stable", &[&x], &[v, i], &[]);
    refused("sort.stable", &[&x], &[v, i], &[int(1)]);
    refused("sort.stable", &[&x], &[v, i], &[int(2), flag(true)]);
    refused(
        "sort.stable",
        &[&x],
        &[v, i],
        &[int(1), flag(true), flag(true)],
    );
    let narrow = Tensor::unwritten(DType::F8E5M2, &[4]);
    refused(
        "sort.stable",
        &[&narrow],
        &[(DType::F8E5M2, &[4]), (DType::I64, &[4])],
        &[int(0), flag(false)],
    );
    let good = [int(1), flag(true), flag(true)];
    let cut: [(DType, &[i64]); 2] = [(DType::F32, &[4, 2]), (DType::I64, &[4, 2])];
    call("topk", &[&x], &cut, &good).unwrap();
    refused(
        "topk",
        &[&x],
        &[(DType::F32, &[4, 7]), (DType::I64, &[4, 7])],
        &good,
    );
    refused(
        "topk",
        &[&x],
        &[(DType::F32, &[3, 2]), (DType::I64, &[3, 2])],
        &good,
    );
    refused(
        "topk",
        &[&x],
        &[(DType::F32, &[4, 2]), (DType::I64, &[4, 3])],
        &good,
    );
    refused(
        "topk",
        &[&x],
        &[(DType::F32, &[4]), (DType::I64, &[4])],
        &good,
    );
    refused("topk", &[&x], &cut, &good[..2]);
}
