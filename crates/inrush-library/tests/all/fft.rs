//! Fourier transforms against the definition.

use crate::support::{Rng, Tensor, call, close, flag, int, refused, tolerance};
use inrush_base::{DType, Scalar};
use std::f64::consts::TAU;

/// Values with their sizes.
struct Signal {
    sizes: Vec<i64>,
    re: Vec<f64>,
    im: Vec<f64>,
}

/// Transforms along one dimension, by the definition.
fn along(s: &Signal, dim: usize, sign: f64) -> Signal {
    let n = s.sizes[dim] as usize;
    let inner: usize = s.sizes[dim + 1..].iter().product::<i64>() as usize;
    let outer: usize = s.sizes[..dim].iter().product::<i64>() as usize;
    let mut out = Signal {
        sizes: s.sizes.clone(),
        re: s.re.clone(),
        im: s.im.clone(),
    };
    for o in 0..outer {
        for j in 0..inner {
            for k in 0..n {
                let (mut re, mut im) = (0.0, 0.0);
                for i in 0..n {
                    let at = (o * n + i) * inner + j;
                    let (sin, cos) = (sign * TAU * ((i * k) % n) as f64 / n as f64).sin_cos();
                    re += s.re[at] * cos - s.im[at] * sin;
                    im += s.re[at] * sin + s.im[at] * cos;
                }
                let to = (o * n + k) * inner + j;
                (out.re[to], out.im[to]) = (re, im);
            }
        }
    }
    out
}

fn factor(sizes: &[i64], dims: &[i64], norm: i64) -> f64 {
    let n: f64 = dims.iter().map(|&d| sizes[d as usize] as f64).product();
    [1.0, n.powf(-0.5), 1.0 / n][norm as usize]
}

fn naive(mut s: Signal, dims: &[i64], forward: bool, factor: f64) -> Signal {
    for &d in dims {
        s = along(&s, d as usize, if forward { -1.0 } else { 1.0 });
    }
    s.re.iter_mut().chain(&mut s.im).for_each(|v| *v *= factor);
    s
}

/// Keeps the first `n` elements along a dimension.
fn narrow(values: &[f64], sizes: &[i64], dim: usize, n: usize) -> Vec<f64> {
    let inner: usize = sizes[dim + 1..].iter().product::<i64>() as usize;
    let keeps = |at: &usize| at / inner % (sizes[dim] as usize) < n;
    (0..values.len())
        .filter(keeps)
        .map(|at| values[at])
        .collect()
}

const SHAPES: &[(&[i64], &[i64])] = &[
    (&[1], &[0]),
    (&[2], &[0]),
    (&[3], &[0]),
    (&[16], &[0]),
    (&[97], &[0]),
    (&[5, 12], &[1]),
    (&[5, 12], &[0]),
    (&[7, 9], &[0, 1]),
    (&[4, 6, 5], &[2, 0, 1]),
    (&[3, 20, 33], &[1]),
    (&[2, 64, 3, 1], &[1, 3]),
    (&[2, 1, 11], &[-1 + 3, 1]),
    (&[40, 40, 19], &[0]),
];

fn params(head: &[Scalar], dims: &[i64]) -> Vec<Scalar> {
    head.iter()
        .copied()
        .chain(dims.iter().map(|&d| int(d)))
        .collect()
}

#[test]
fn complex_transforms_follow_the_definition() {
    let mut rng = Rng::new(1);
    for dtype in [DType::F32, DType::F64] {
        for &(sizes, dims) in SHAPES {
            for (norm, forward) in [(0, true), (1, false), (2, true), (2, false)] {
                let re = Tensor::draw(dtype, sizes, &mut rng);
                let im = Tensor::draw(dtype, sizes, &mut rng);
                let signal = Signal {
                    sizes: sizes.to_vec(),
                    re: re.values(),
                    im: im.values(),
                };
                let want = naive(signal, dims, forward, factor(sizes, dims, norm));
                let out = [(dtype, sizes), (dtype, sizes)];
                let params = params(&[int(norm), flag(forward)], dims);
                let got = call("fft.c2c", &[&re, &im], &out, &params).unwrap();
                let what = format!("{dtype} {sizes:?} {dims:?} {norm} {forward}");
                close(&what, &got[0].values(), &want.re, tolerance(dtype, 16.0));
                close(&what, &got[1].values(), &want.im, tolerance(dtype, 16.0));
            }
        }
    }
}

#[test]
fn real_transforms_follow_the_definition_and_return() {
    let mut rng = Rng::new(2);
    for dtype in [DType::F32, DType::F64] {
        for &(sizes, dims) in SHAPES {
            for (norm, onesided) in [(0, true), (1, true), (2, false)] {
                let x = Tensor::draw(dtype, sizes, &mut rng);
                let values = x.values();
                let zero = vec![0.0; values.len()];
                let signal = Signal {
                    sizes: sizes.to_vec(),
                    re: values,
                    im: zero,
                };
                let want = naive(signal, dims, true, factor(sizes, dims, norm));
                let last = dims[dims.len() - 1] as usize;
                let n = sizes[last] as usize;
                let mut halved = sizes.to_vec();
                if onesided {
                    halved[last] = n as i64 / 2 + 1;
                }
                let out = [(dtype, &halved[..]), (dtype, &halved[..])];
                let head = [int(norm), flag(onesided)];
                let got = call("fft.r2c", &[&x], &out, &params(&head, dims)).unwrap();
                let what = format!("{dtype} {sizes:?} {dims:?} {norm} {onesided}");
                let kept = halved[last] as usize;
                let tol = tolerance(dtype, 16.0);
                close(
                    &what,
                    &got[0].values(),
                    &narrow(&want.re, sizes, last, kept),
                    tol,
                );
                close(
                    &what,
                    &got[1].values(),
                    &narrow(&want.im, sizes, last, kept),
                    tol,
                );
                if onesided {
                    // The inverse with the other factor gives the signal.
                    let head = [int(2 - norm)];
                    let back = call(
                        "fft.c2r",
                        &[&got[0], &got[1]],
                        &[(dtype, sizes)],
                        &params(&head, dims),
                    );
                    close(&what, &back.unwrap()[0].values(), &x.values(), tol);
                }
            }
        }
    }
}

#[test]
fn inverse_leaves_out_imaginary_parts_that_no_real_signal_has() {
    let re = Tensor::new(DType::F64, &[3], &[1.0, 2.0, 3.0]);
    let im = Tensor::new(DType::F64, &[3], &[5.0, 0.5, 7.0]);
    let got = call(
        "fft.c2r",
        &[&re, &im],
        &[(DType::F64, &[4])],
        &[int(0), int(0)],
    )
    .unwrap();
    // 1 + 3 (-1)^k + 2 Re((2 + i/2) i^k)
    close("c2r", &got[0].values(), &[8.0, -3.0, 0.0, -1.0], 1e-15);
}

#[test]
fn tensors_without_elements_have_transforms() {
    for dtype in [DType::F32, DType::F64] {
        let x = Tensor::unwritten(dtype, &[0, 4]);
        let out: (DType, &[i64]) = (dtype, &[0, 4]);
        call(
            "fft.c2c",
            &[&x, &x],
            &[out, out],
            &[int(0), flag(true), int(1)],
        )
        .unwrap();
        call(
            "fft.c2c",
            &[&x, &x],
            &[out, out],
            &[int(2), flag(true), int(0), int(1)],
        )
        .unwrap();
        let half: (DType, &[i64]) = (dtype, &[0, 3]);
        call(
            "fft.r2c",
            &[&x],
            &[half, half],
            &[int(0), flag(true), int(1)],
        )
        .unwrap();
        let x = Tensor::unwritten(dtype, &[0, 3]);
        call("fft.c2r", &[&x, &x], &[out], &[int(0), int(1)]).unwrap();
    }
}

#[test]
fn values_that_are_not_finite_spread_over_their_line_only() {
    let values = [1.0, f64::NAN, 2.0, 3.0, f64::INFINITY, 1.0, 4.0, 5.0, 6.0];
    let x = Tensor::new(DType::F32, &[3, 3], &values);
    let out: (DType, &[i64]) = (DType::F32, &[3, 2]);
    let got = call("fft.r2c", &[&x], &[out, out], &[int(0), flag(true), int(1)]).unwrap();
    let re = got[0].values();
    assert!(re[..4].iter().all(|v| !v.is_finite()), "{re:?}");
    close("last line", &re[4..], &[15.0, -1.5], 1e-6);
}

#[test]
fn malformed_calls_are_refused() {
    let x = Tensor::draw(DType::F32, &[4, 6], &mut Rng::new(3));
    let wide = Tensor::draw(DType::F64, &[4, 6], &mut Rng::new(3));
    let ints = Tensor::new(DType::I32, &[2], &[1.0, 2.0]);
    let short = Tensor::draw(DType::F32, &[4, 5], &mut Rng::new(3));
    let out: (DType, &[i64]) = (DType::F32, &[4, 6]);
    let good = [int(0), flag(true), int(1)];
    call("fft.c2c", &[&x, &x], &[out, out], &good).unwrap();
    refused("fft.c2c", &[], &[out, out], &good);
    refused("fft.c2c", &[&x], &[out, out], &good);
    refused("fft.c2c", &[&x, &x], &[out], &good);
    refused("fft.c2c", &[&x, &x, &x], &[out, out], &good);
    refused("fft.c2c", &[&x, &wide], &[out, out], &good);
    refused("fft.c2c", &[&x, &short], &[out, out], &good);
    refused("fft.c2c", &[&ints, &ints], &[out, out], &good);
    refused("fft.c2c", &[&x, &x], &[out, (DType::F64, &[4, 6])], &good);
    refused("fft.c2c", &[&x, &x], &[out, (DType::F32, &[6, 4])], &good);
    for params in [
        vec![],
        vec![int(0)],
        vec![int(3), flag(true), int(1)],
        vec![int(-1), flag(true), int(1)],
        vec![int(0), int(2), int(1)],
        vec![int(0), flag(true), int(2)],
        vec![int(0), flag(true), int(-3)],
        vec![int(0), flag(true), int(1), int(1)],
        vec![int(0), flag(true), int(1), int(-1)],
        vec![int(0), flag(true), int(0), int(1), int(0)],
        vec![int(0), flag(true), Scalar::Float(1.0)],
        vec![int(0), flag(true), int(i64::MIN)],
    ] {
        refused("fft.c2c", &[&x, &x], &[out, out], &params);
    }
    let half: (DType, &[i64]) = (DType::F32, &[4, 4]);
    call("fft.r2c", &[&x], &[half, half], &good).unwrap();
    refused("fft.r2c", &[&x], &[out, out], &good);
    refused(
        "fft.r2c",
        &[&x],
        &[half, half],
        &[int(0), flag(false), int(1)],
    );
    refused("fft.r2c", &[&x], &[half, half], &[int(0), flag(true)]);
    let empty = Tensor::unwritten(DType::F32, &[2, 0]);
    let one: (DType, &[i64]) = (DType::F32, &[2, 1]);
    refused("fft.r2c", &[&empty], &[one, one], &good);
    refused(
        "fft.c2r",
        &[&x, &x],
        &[(DType::F32, &[4, 9])],
        &[int(0), int(1)],
    );
    refused(
        "fft.c2r",
        &[&x, &x],
        &[(DType::F32, &[3, 10])],
        &[int(0), int(1)],
    );
    refused(
        "fft.c2r",
        &[&x, &x],
        &[(DType::F32, &[4])],
        &[int(0), int(1)],
    );
    refused("fft.c2r", &[&empty, &empty], &[one], &[int(0), int(1)]);
}
