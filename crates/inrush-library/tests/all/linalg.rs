//! Linear algebra: factors are multiplied again, solutions put into their equations.

use crate::matrices::M;
use crate::support::{Rng, Slot, Tensor, call, close, flag, refused, tolerance};
use inrush_base::{DType, ErrorKind, Scalar};

const DTYPES: [DType; 2] = [DType::F32, DType::F64];
const BATCHES: &[&[i64]] = &[&[], &[3], &[2, 2], &[0]];
const SQUARE: &[usize] = &[0, 1, 2, 3, 7, 17, 40];
const SHAPES: &[(usize, usize)] = &[
    (0, 3),
    (3, 0),
    (1, 1),
    (1, 5),
    (6, 1),
    (3, 8),
    (16, 16),
    (20, 37),
    (70, 33),
    (64, 64),
];

fn sizes(batch: &[i64], each: &[usize]) -> Vec<i64> {
    batch
        .iter()
        .copied()
        .chain(each.iter().map(|&n| n as i64))
        .collect()
}

/// Splits a tensor into its matrices.
fn matrices(t: &Tensor) -> Vec<M> {
    let rank = t.sizes.len();
    let (m, n) = (t.sizes[rank - 2] as usize, t.sizes[rank - 1] as usize);
    let many = t.sizes[..rank - 2].iter().product::<i64>() as usize;
    let v = t.values();
    (0..many)
        .map(|i| M::new(m, n, &v[i * m * n..(i + 1) * m * n]))
        .collect()
}

fn same(what: &str, got: &M, want: &M, tolerance: f64) {
    assert_eq!((got.rows, got.cols), (want.rows, want.cols), "{what}");
    close(what, &got.v, &want.v, tolerance);
}

/// Checks that columns are of norm 1 and at right angles.
fn orthogonal(what: &str, q: &M, tolerance: f64) {
    same(what, &q.t().mul(q), &M::identity(q.cols), tolerance);
}

/// Calls `f` with dtype, tensor of drawn matrices and tolerance, for every dtype, batch and shape.
fn drawn(seed: u64, shapes: &[(usize, usize)], f: impl Fn(DType, &[i64], &Tensor, f64)) {
    let mut rng = Rng::new(seed);
    for dtype in DTYPES {
        for batch in BATCHES {
            for &(m, n) in shapes {
                // Large ones once: the formulas of tests take their time.
                if m * n > 400 && !batch.is_empty() {
                    continue;
                }
                let a = Tensor::draw(dtype, &sizes(batch, &[m, n]), &mut rng);
                f(
                    dtype,
                    batch,
                    &a,
                    tolerance(dtype, 20.0 * (m.max(n).max(4)) as f64),
                );
            }
        }
    }
}

fn square() -> Vec<(usize, usize)> {
    SQUARE.iter().map(|&n| (n, n)).collect()
}

#[test]
fn lu_factors_multiply_to_the_matrix_with_largest_pivots() {
    drawn(20, SHAPES, |dtype, batch, a, tol| {
        let (m, n) = (
            a.sizes[batch.len()] as usize,
            a.sizes[batch.len() + 1] as usize,
        );
        let k = m.min(n);
        let (pivots, info) = (sizes(batch, &[k]), sizes(batch, &[]));
        let out = [
            (dtype, &a.sizes[..]),
            (DType::I32, &pivots[..]),
            (DType::I32, &info[..]),
        ];
        let lu = call("linalg.lu_factor", &[a], &out, &[]).unwrap();
        let (p, l, u) = (
            sizes(batch, &[m, m]),
            sizes(batch, &[m, k]),
            sizes(batch, &[k, n]),
        );
        let out = [(dtype, &p[..]), (dtype, &l[..]), (dtype, &u[..])];
        let plu = call("linalg.lu_unpack", &[&lu[0], &lu[1]], &out, &[]).unwrap();
        assert!(lu[2].values().iter().all(|&i| i == 0.0));
        let (p, l, u) = (matrices(&plu[0]), matrices(&plu[1]), matrices(&plu[2]));
        for (i, a) in matrices(a).iter().enumerate() {
            let what = format!("{dtype} {batch:?} {m} {n}");
            same(&what, &p[i].mul(&l[i]).mul(&u[i]), a, tol);
            assert!(l[i].v.iter().all(|v| v.abs() <= 1.0), "{what}: pivots");
        }
    });
}

#[test]
fn zero_pivots_have_the_code_of_the_first() {
    // The second column is twice the first; the last is zero.
    let v = [
        1.0, 2.0, 5.0, 0.0, 2.0, 4.0, 1.0, 0.0, 3.0, 6.0, 0.5, 0.0, 4.0, 8.0, 2.0, 0.0,
    ];
    for dtype in DTYPES {
        let a = Tensor::new(dtype, &[4, 4], &v);
        let out = [
            (dtype, &[4, 4][..]),
            (DType::I32, &[4][..]),
            (DType::I32, &[][..]),
        ];
        let got = call("linalg.lu_factor", &[&a], &out, &[]).unwrap();
        assert_eq!(got[2].values(), [2.0]);
        assert!(got[0].values().iter().all(|v| v.is_finite()));
        assert_eq!(got[1].values()[0], 4.0);
        let out = [(dtype, &[4, 4][..]), (DType::I32, &[][..])];
        assert_eq!(
            call("linalg.inv", &[&a], &out, &[]).unwrap()[1].values(),
            [2.0]
        );
        let det = call("linalg.det", &[&a], &[(dtype, &[])], &[]).unwrap();
        assert_eq!(det[0].values(), [0.0]);
        let s = call("linalg.slogdet", &[&a], &[(dtype, &[]), (dtype, &[])], &[]).unwrap();
        assert_eq!(
            (s[0].values()[0], s[1].values()[0]),
            (0.0, f64::NEG_INFINITY)
        );
    }
}

#[test]
fn determinants_agree_with_expansions() {
    fn expansion(a: &M) -> f64 {
        if a.rows == 0 {
            return 1.0;
        }
        let minor = |c: usize| {
            let v: Vec<f64> = (1..a.rows)
                .flat_map(|r| (0..a.cols).filter(move |&k| k != c).map(move |k| (r, k)))
                .map(|(r, k)| a.at(r, k))
                .collect();
            M::new(a.rows - 1, a.cols - 1, &v)
        };
        (0..a.cols)
            .map(|c| a.at(0, c) * expansion(&minor(c)) * if c % 2 == 0 { 1.0 } else { -1.0 })
            .sum()
    }
    let shapes: Vec<(usize, usize)> = (0..7).map(|n| (n, n)).collect();
    drawn(21, &shapes, |dtype, batch, a, tol| {
        let det = call("linalg.det", &[a], &[(dtype, batch)], &[]).unwrap()[0].values();
        let want: Vec<f64> = matrices(a).iter().map(expansion).collect();
        close(&format!("{dtype} {:?}", a.sizes), &det, &want, tol);
        let s = call(
            "linalg.slogdet",
            &[a],
            &[(dtype, batch), (dtype, batch)],
            &[],
        )
        .unwrap();
        let product: Vec<f64> = s[0]
            .values()
            .iter()
            .zip(s[1].values())
            .map(|(s, l)| s * l.exp())
            .collect();
        close("slogdet", &product, &want, tol);
    });
}

#[test]
fn cholesky_factors_multiply_to_the_matrix() {
    drawn(22, &square(), |dtype, batch, a, tol| {
        for upper in [false, true] {
            let n = a.sizes[batch.len()] as usize;
            // Positive: B B^T + n I. The triangle that is not read is NaN.
            let mut values = Vec::new();
            for b in matrices(a) {
                let s = b.mul(&b.t()).add(&M::identity(n), n as f64);
                values.extend(
                    s.map(|r, c, v| {
                        if r == c || (c > r) == upper {
                            v
                        } else {
                            f64::NAN
                        }
                    })
                    .v,
                );
            }
            let s = Tensor::new(dtype, &a.sizes, &values);
            let out = [(dtype, &a.sizes[..]), (DType::I32, batch)];
            let got = call("linalg.cholesky", &[&s], &out, &[flag(upper)]).unwrap();
            assert!(got[1].values().iter().all(|&i| i == 0.0));
            for (l, s) in matrices(&got[0]).iter().zip(matrices(&s)) {
                let l = if upper { l.t() } else { l.clone() };
                let what = format!("{dtype} {n} {upper}");
                assert!(
                    (0..n).all(|r| (r + 1..n).all(|c| l.at(r, c) == 0.0)),
                    "{what}"
                );
                let whole = s.map(|r, c, v| if v.is_nan() { s.at(c, r) } else { v });
                same(&what, &l.mul(&l.t()), &whole, tol);
            }
        }
    });
}

#[test]
fn matrices_that_are_not_positive_have_the_code_of_the_minor() {
    for dtype in DTYPES {
        for (n, bad) in [(3, 2), (40, 1), (40, 16), (40, 17), (40, 40)] {
            for value in [0.0, -1.0, f64::NAN] {
                let mut m = M::identity(n);
                m.v[(bad - 1) * n + bad - 1] = value;
                let sizes = [n as i64, n as i64];
                let a = Tensor::new(dtype, &sizes, &m.v);
                let out = [(dtype, &sizes[..]), (DType::I32, &[][..])];
                let got = call("linalg.cholesky", &[&a], &out, &[flag(false)]).unwrap();
                assert_eq!(got[1].values(), [bad as f64], "{n} {bad} {value}");
            }
        }
    }
}

#[test]
fn inverses_and_solutions_fulfil_their_equations() {
    let mut rng = Rng::new(23);
    for dtype in DTYPES {
        for batch in BATCHES {
            for &n in SQUARE {
                // Well conditioned: drawn values with a larger diagonal.
                let a_sizes = sizes(batch, &[n, n]);
                let drawn = Tensor::draw(dtype, &a_sizes, &mut rng);
                let larger = |a: &M| a.map(|r, c, v| if r == c { v + n as f64 } else { v }).v;
                let values: Vec<f64> = matrices(&drawn).iter().flat_map(larger).collect();
                let a = Tensor::new(dtype, &a_sizes, &values);
                let tol = tolerance(dtype, 20.0 * n.max(4) as f64);
                let what = format!("{dtype} {batch:?} {n}");
                let out = [(dtype, &a_sizes[..]), (DType::I32, batch)];
                let got = call("linalg.inv", &[&a], &out, &[]).unwrap();
                for (a, i) in matrices(&a).iter().zip(matrices(&got[0])) {
                    same(&what, &a.mul(&i), &M::identity(n), tol);
                }
                for (k, left) in [(1, true), (5, true), (0, true), (4, false)] {
                    let b_sizes = sizes(batch, &if left { [n, k] } else { [k, n] });
                    let b = Tensor::draw(dtype, &b_sizes, &mut rng);
                    let out = [(dtype, &b_sizes[..]), (DType::I32, batch)];
                    let x = call("linalg.solve", &[&a, &b], &out, &[flag(left)]).unwrap();
                    let back = |a: &M, x: &M| if left { a.mul(x) } else { x.mul(a) };
                    for i in 0..matrices(&a).len() {
                        let (a, x, b) = (&matrices(&a)[i], &matrices(&x[0])[i], &matrices(&b)[i]);
                        same(&what, &back(a, x), b, tol);
                    }
                    for (upper, unit) in
                        [(false, false), (false, true), (true, false), (true, true)]
                    {
                        let params = [flag(upper), flag(left), flag(unit)];
                        let out = [(dtype, &b_sizes[..])];
                        // With a diagonal of ones, drawn values would grow: they are made small.
                        let small =
                            |a: &M| a.map(|r, c, v| if r == c { v } else { v / n as f64 }).v;
                        let values: Vec<f64> = matrices(&a).iter().flat_map(small).collect();
                        let a = Tensor::new(dtype, &a_sizes, &values);
                        let x = call("linalg.solve_triangular", &[&a, &b], &out, &params).unwrap();
                        let read = |r: usize, c: usize, v: f64| match () {
                            () if r == c => {
                                if unit {
                                    1.0
                                } else {
                                    v
                                }
                            }
                            () if (c > r) == upper => v,
                            () => 0.0,
                        };
                        for i in 0..matrices(&a).len() {
                            let a = matrices(&a)[i].map(read);
                            let (x, b) = (&matrices(&x[0])[i], &matrices(&b)[i]);
                            same(&format!("{what} {params:?}"), &back(&a, x), b, tol);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn qr_factors_multiply_to_the_matrix_with_signs_of_reflections() {
    drawn(24, SHAPES, |dtype, batch, a, tol| {
        let (m, n) = (
            a.sizes[batch.len()] as usize,
            a.sizes[batch.len() + 1] as usize,
        );
        for complete in [false, true] {
            let k = if complete { m } else { m.min(n) };
            let (q, r) = (sizes(batch, &[m, k]), sizes(batch, &[k, n]));
            let out = [(dtype, &q[..]), (dtype, &r[..])];
            let got = call("linalg.qr", &[a], &out, &[flag(complete)]).unwrap();
            let thin = sizes(batch, &[m.min(n), n]);
            let only = call("linalg.qr_r", &[a], &[(dtype, &thin)], &[]).unwrap();
            let only = matrices(&only[0]);
            let what = format!("{dtype} {batch:?} {m} {n} {complete}");
            for (i, a) in matrices(a).iter().enumerate() {
                let (q, r) = (&matrices(&got[0])[i], &matrices(&got[1])[i]);
                orthogonal(&what, q, tol);
                same(&what, &q.mul(r), a, tol);
                assert!(
                    (0..k).all(|i| (0..n.min(i)).all(|j| r.at(i, j) == 0.0)),
                    "{what}"
                );
                assert_eq!(only[i].v, r.v[..m.min(n) * n], "{what}");
                // The first reflection changes the sign of the first element.
                if m > 1 && n > 0 {
                    assert!(r.at(0, 0) * a.at(0, 0) <= 0.0, "{what}");
                }
                // The last column of a square matrix has nothing below: no reflection.
                if m == 1 && n > 0 {
                    assert_eq!(r.at(0, 0), a.at(0, 0), "{what}");
                }
            }
        }
    });
}

#[test]
fn singular_values_and_vectors_multiply_to_the_matrix() {
    drawn(25, SHAPES, |dtype, batch, a, tol| {
        let (m, n) = (
            a.sizes[batch.len()] as usize,
            a.sizes[batch.len() + 1] as usize,
        );
        let k = m.min(n);
        let s_sizes = sizes(batch, &[k]);
        let only = call("linalg.svdvals", &[a], &[(dtype, &s_sizes)], &[]).unwrap()[0].values();
        for full in [false, true] {
            let (left, right) = if full { (m, n) } else { (k, k) };
            let (u, vh) = (sizes(batch, &[m, left]), sizes(batch, &[right, n]));
            let out = [(dtype, &u[..]), (dtype, &s_sizes[..]), (dtype, &vh[..])];
            let got = call("linalg.svd", &[a], &out, &[flag(full)]).unwrap();
            let s = got[1].values();
            let what = format!("{dtype} {batch:?} {m} {n} {full}");
            close(&what, &s, &only, tol);
            for (i, a) in matrices(a).iter().enumerate() {
                let (u, vh) = (&matrices(&got[0])[i], &matrices(&got[2])[i]);
                orthogonal(&what, u, tol);
                orthogonal(&what, &vh.t(), tol);
                let s = &s[i * k..(i + 1) * k];
                assert!(
                    s.windows(2).all(|w| w[0] >= w[1]) && s.iter().all(|v| *v >= 0.0),
                    "{what}"
                );
                let mut middle = M::new(left, right, &vec![0.0; left * right]);
                (0..k).for_each(|j| middle.v[j * right + j] = s[j]);
                same(&what, &u.mul(&middle).mul(vh), a, tol);
            }
        }
    });
}

#[test]
fn extreme_scales_and_low_ranks_are_decomposed() {
    for dtype in DTYPES {
        let tiny = if dtype == DType::F64 { 1e-300 } else { 1e-36 };
        let huge = if dtype == DType::F64 { 1e300 } else { 1e36 };
        for scale in [tiny, huge, 0.0] {
            let ones = Tensor::new(dtype, &[4, 3], &[scale; 12]);
            let s = call("linalg.svdvals", &[&ones], &[(dtype, &[3])], &[]).unwrap()[0].values();
            let tol = tolerance(dtype, 64.0) * scale;
            assert!((s[0] - scale * 12f64.sqrt()).abs() <= tol, "{scale}: {s:?}");
            assert!(s[1].abs() <= tol && s[2].abs() <= tol, "{scale}: {s:?}");
            let ones = Tensor::new(dtype, &[3, 3], &[scale; 9]);
            let out = [(dtype, &[3][..]), (dtype, &[3, 3][..])];
            let got = call("linalg.eigh", &[&ones], &out, &[flag(false)]).unwrap();
            let w = got[0].values();
            assert!((w[2] - 3.0 * scale).abs() <= tol, "{scale}: {w:?}");
            orthogonal("eigh", &matrices(&got[1])[0], tolerance(dtype, 64.0));
        }
    }
}

#[test]
fn symmetric_eigenvectors_fulfil_their_equation() {
    let shapes: Vec<(usize, usize)> = square().into_iter().chain([(130, 130)]).collect();
    drawn(26, &shapes, |dtype, batch, a, tol| {
        let n = a.sizes[batch.len()] as usize;
        for upper in [false, true] {
            // What is not read is NaN.
            let hide = |a: &M| {
                a.map(|r, c, v| {
                    if r == c || (c > r) == upper {
                        v
                    } else {
                        f64::NAN
                    }
                })
            };
            let values: Vec<f64> = matrices(a).iter().flat_map(|a| hide(a).v).collect();
            let a = Tensor::new(dtype, &a.sizes, &values);
            let w_sizes = sizes(batch, &[n]);
            let out = [(dtype, &w_sizes[..]), (dtype, &a.sizes[..])];
            let got = call("linalg.eigh", &[&a], &out, &[flag(upper)]).unwrap();
            let only = call(
                "linalg.eigvalsh",
                &[&a],
                &[(dtype, &w_sizes)],
                &[flag(upper)],
            )
            .unwrap();
            let w = got[0].values();
            let what = format!("{dtype} {batch:?} {n} {upper}");
            close(&what, &w, &only[0].values(), tol);
            for (i, a) in matrices(&a).iter().enumerate() {
                let whole = a.map(|r, c, v| if v.is_nan() { a.at(c, r) } else { v });
                let (q, w) = (&matrices(&got[1])[i], &w[i * n..(i + 1) * n]);
                assert!(w.windows(2).all(|w| w[0] <= w[1]), "{what}");
                orthogonal(&what, q, tol);
                same(&what, &whole.mul(q), &q.map(|_, c, v| v * w[c]), tol);
            }
        }
    });
}

#[test]
fn eigenvectors_fulfil_their_equation() {
    let shapes: Vec<(usize, usize)> = square().into_iter().chain([(80, 80)]).collect();
    drawn(27, &shapes, |dtype, batch, a, tol| {
        let n = a.sizes[batch.len()] as usize;
        let w_sizes = sizes(batch, &[n]);
        let (w, v) = ((dtype, &w_sizes[..]), (dtype, &a.sizes[..]));
        let got = call("linalg.eig", &[a], &[w, w, v, v], &[]).unwrap();
        let only = call("linalg.eigvals", &[a], &[w, w], &[]).unwrap();
        let (re, im) = (got[0].values(), got[1].values());
        let what = format!("{dtype} {batch:?} {n}");
        for (i, a) in matrices(a).iter().enumerate() {
            let (x, y) = (&matrices(&got[2])[i], &matrices(&got[3])[i]);
            let (re, im) = (&re[i * n..(i + 1) * n], &im[i * n..(i + 1) * n]);
            let want_re = x.map(|r, c, v| v * re[c] - y.at(r, c) * im[c]);
            let want_im = x.map(|r, c, v| v * im[c] + y.at(r, c) * re[c]);
            same(&what, &a.mul(x), &want_re, tol);
            same(&what, &a.mul(y), &want_im, tol);
            for c in 0..n {
                let size = |r: usize| x.at(r, c).hypot(y.at(r, c));
                let norm: f64 = (0..n).map(|r| size(r).powi(2)).sum();
                assert!((norm - 1.0).abs() < tol, "{what}: {norm}");
                let largest = (0..n).max_by(|&a, &b| size(a).total_cmp(&size(b))).unwrap();
                assert!(
                    y.at(largest, c).abs() < tol,
                    "{what}: largest element is real"
                );
                // The eigenvalues alone are the same ones in some order.
                let near = |k: usize| {
                    let k = i * n + k;
                    (only[0].values()[k] - re[c]).hypot(only[1].values()[k] - im[c])
                };
                let least = (0..n).map(near).fold(f64::INFINITY, f64::min);
                assert!(least < tolerance(dtype, 1e4), "{what}: {least}");
            }
        }
    });
}

#[test]
fn elements_that_are_not_finite_are_errors_or_spread() {
    for bad in [f64::NAN, f64::INFINITY] {
        for dtype in DTYPES {
            let mut values = Tensor::draw(dtype, &[2, 5, 5], &mut Rng::new(28)).values();
            values[25] = bad;
            let a = Tensor::new(dtype, &[2, 5, 5], &values);
            let (m, v): (Slot, Slot) = ((dtype, &[2, 5, 5]), (dtype, &[2, 5]));
            let (i, codes): (Slot, Slot) = ((DType::I32, &[2]), (DType::I32, &[2, 5]));
            let fails = |name: &str, out: &[Slot], params: &[Scalar]| {
                let e = call(name, &[&a], out, params).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::InvalidValue, "{name}: {e}");
            };
            fails("linalg.svd", &[m, v, m], &[flag(true)]);
            fails("linalg.svdvals", &[v], &[]);
            fails("linalg.eigh", &[v, m], &[flag(false)]);
            fails("linalg.eigvalsh", &[v], &[flag(true)]);
            fails("linalg.eig", &[v, v, m, m], &[]);
            fails("linalg.eigvals", &[v, v], &[]);
            for (name, out, params) in [
                ("linalg.lu_factor", vec![m, codes, i], vec![]),
                ("linalg.inv", vec![m, i], vec![]),
                ("linalg.qr", vec![m, m], vec![flag(false)]),
                ("linalg.cholesky", vec![m, i], vec![flag(false)]),
                ("linalg.matrix_exp", vec![m], vec![]),
            ] {
                let got = call(name, &[&a], &out, &params).unwrap()[0].values();
                // The other matrix of the batch is as without.
                let finite = name == "linalg.cholesky" || got[..25].iter().all(|v| v.is_finite());
                assert!(finite, "{name}");
            }
            let out = [(dtype, &[2][..])];
            let det = call("linalg.det", &[&a], &out, &[]).unwrap()[0].values();
            assert!(det[0].is_finite() && !det[1].is_finite(), "{det:?}");
        }
    }
}

#[test]
fn least_squares_fulfil_the_normal_equations() {
    let mut rng = Rng::new(29);
    for dtype in DTYPES {
        for batch in BATCHES {
            for &(m, n) in SHAPES {
                for k in [1, 3] {
                    let a = Tensor::draw(dtype, &sizes(batch, &[m, n]), &mut rng);
                    let b = Tensor::draw(dtype, &sizes(batch, &[m, k]), &mut rng);
                    let out = sizes(batch, &[n, k]);
                    let x = call("linalg.lstsq", &[&a, &b], &[(dtype, &out)], &[]).unwrap();
                    for i in 0..matrices(&a).len() {
                        let (a, b, x) = (&matrices(&a)[i], &matrices(&b)[i], &matrices(&x[0])[i]);
                        let what = format!("{dtype} {m} {n} {k}");
                        let left = a.mul(x).add(b, -1.0);
                        // Of a matrix near a singular one, the solution is large and so are its errors.
                        let largest = x.v.iter().fold(1.0f64, |m, v| m.max(v.abs()));
                        let tol = tolerance(dtype, 100.0 * m.max(n).max(4) as f64 * largest);
                        same(
                            &what,
                            &a.t().mul(&left),
                            &M::new(n, k, &vec![0.0; n * k]),
                            tol,
                        );
                    }
                }
            }
        }
    }
    // One row: of all solutions of x + 2 y = 5 the shortest.
    let a = Tensor::new(DType::F64, &[2, 2], &[1.0, 2.0, 2.0, 4.0]);
    let b = Tensor::new(DType::F64, &[2, 1], &[5.0, 10.0]);
    let x = call("linalg.lstsq", &[&a, &b], &[(DType::F64, &[2, 1])], &[]).unwrap();
    close("shortest", &x[0].values(), &[1.0, 2.0], 1e-14);
}

#[test]
fn exponentials_agree_with_series() {
    let mut rng = Rng::new(30);
    for dtype in DTYPES {
        for n in [0, 1, 2, 5, 20] {
            for scale in [0.0, 0.001, 0.05, 0.3, 1.0, 5.0] {
                let v: Vec<f64> = (0..n * n).map(|_| scale * rng.value()).collect();
                let sizes = [n as i64, n as i64];
                let a = Tensor::new(dtype, &sizes, &v);
                let got = call("linalg.matrix_exp", &[&a], &[(dtype, &sizes)], &[]).unwrap();
                let a = M::new(n, n, &a.values());
                // A quotient of the series would cancel: the matrix is scaled here too.
                let small = a.map(|_, _, v| v / 1024.0);
                let mut want = M::identity(n);
                for i in (1..20).rev() {
                    want = M::identity(n).add(&small.mul(&want), 1.0 / f64::from(i));
                }
                (0..10).for_each(|_| want = want.mul(&want));
                let norm = a.v.iter().map(|v| v.abs()).sum::<f64>();
                let tol = tolerance(dtype, 40.0 * (1.0 + norm)) + 1e-12;
                same(
                    &format!("{dtype} {n} {scale}"),
                    &M::new(n, n, &got[0].values()),
                    &want,
                    tol,
                );
            }
        }
        // A norm near the end of the exponents ends, with infinities.
        let a = Tensor::new(
            dtype,
            &[1, 1],
            &[if dtype == DType::F64 { 1e308 } else { 3e38 }],
        );
        call("linalg.matrix_exp", &[&a], &[(dtype, &[1, 1])], &[]).unwrap();
    }
}

/// Name, outputs, parameters; true if matrices are to be square.
type Case<'a> = (&'a str, Vec<Slot<'a>>, Vec<Scalar>, bool);

#[test]
fn malformed_calls_are_refused() {
    let mut rng = Rng::new(31);
    let a = Tensor::draw(DType::F64, &[2, 4, 4], &mut rng);
    let flat = Tensor::draw(DType::F64, &[4], &mut rng);
    let wide = Tensor::draw(DType::F64, &[2, 4, 5], &mut rng);
    let ints = Tensor::new(DType::I32, &[2, 2], &[1.0; 4]);
    let m: Slot = (DType::F64, &[2, 4, 4]);
    let v: Slot = (DType::F64, &[2, 4]);
    let b: Slot = (DType::F64, &[2]);
    let i: Slot = (DType::I32, &[2]);
    let p: Slot = (DType::I32, &[2, 4]);
    let no = flag(false);
    let unary: Vec<Case> = vec![
        ("linalg.lu_factor", vec![m, p, i], vec![], false),
        ("linalg.cholesky", vec![m, i], vec![no], true),
        ("linalg.inv", vec![m, i], vec![], true),
        ("linalg.det", vec![b], vec![], true),
        ("linalg.slogdet", vec![b, b], vec![], true),
        ("linalg.qr", vec![m, m], vec![no], false),
        ("linalg.qr_r", vec![m], vec![], false),
        ("linalg.svd", vec![m, v, m], vec![no], false),
        ("linalg.svdvals", vec![v], vec![], false),
        ("linalg.eigh", vec![v, m], vec![no], true),
        ("linalg.eigvalsh", vec![v], vec![no], true),
        ("linalg.eig", vec![v, v, m, m], vec![], true),
        ("linalg.eigvals", vec![v, v], vec![], true),
        ("linalg.matrix_exp", vec![m], vec![], true),
    ];
    for (name, out, params, square) in unary {
        call(name, &[&cholesky_input(&a)], &out, &params).unwrap();
        refused(name, &[], &out, &params);
        refused(name, &[&a, &a], &out, &params);
        refused(name, &[&flat], &out, &params);
        refused(name, &[&ints], &out, &params);
        if square {
            refused(name, &[&wide], &out, &params);
        }
        refused(name, &[&a], &[], &params);
        let longer = [&params[..], &[no]].concat();
        refused(name, &[&a], &out, &longer);
        if !params.is_empty() {
            refused(name, &[&a], &out, &[]);
            refused(name, &[&a], &out, &[Scalar::Float(0.5)]);
        }
        for at in 0..out.len() {
            let mut wrong = out.clone();
            wrong[at].1 = &[3, 7];
            refused(name, &[&a], &wrong, &params);
            wrong = out.clone();
            wrong[at].0 = DType::I64;
            refused(name, &[&a], &wrong, &params);
        }
    }
    let rhs = Tensor::draw(DType::F64, &[2, 4, 3], &mut rng);
    let x: Slot = (DType::F64, &[2, 4, 3]);
    let yes = flag(true);
    call("linalg.solve", &[&a, &rhs], &[x, i], &[yes]).unwrap();
    refused("linalg.solve", &[&a, &rhs], &[x, i], &[no]);
    refused("linalg.solve", &[&a, &flat], &[x, i], &[yes]);
    refused("linalg.solve", &[&a], &[x, i], &[yes]);
    refused("linalg.solve", &[&a, &rhs], &[m, i], &[yes]);
    refused("linalg.solve_triangular", &[&a, &rhs], &[x], &[yes, no, no]);
    refused("linalg.solve_triangular", &[&a, &rhs], &[x], &[yes]);
    refused(
        "linalg.solve_triangular",
        &[&wide, &rhs],
        &[x],
        &[yes, yes, no],
    );
    refused("linalg.lstsq", &[&a, &flat], &[x], &[]);
    refused("linalg.lstsq", &[&wide, &rhs], &[x], &[]);
    refused("linalg.lstsq", &[&a, &rhs], &[m], &[]);
    // A batch that no memory bounds: nothing is computed.
    let none = Tensor::unwritten(DType::F64, &[1 << 50, 0, 0]);
    let m0: Slot = (DType::F64, &[1 << 50, 0, 0]);
    let v0: Slot = (DType::F64, &[1 << 50, 0]);
    call("linalg.qr", &[&none], &[m0, m0], &[yes]).unwrap();
    call("linalg.svd", &[&none], &[m0, v0, m0], &[yes]).unwrap();
    call("linalg.eigh", &[&none], &[v0, m0], &[yes]).unwrap();
    call("linalg.matrix_exp", &[&none], &[m0], &[]).unwrap();
    for bad in [0.0, 5.0, -1.0] {
        let pivots = Tensor::new(
            DType::I32,
            &[2, 4],
            &[1.0, 2.0, 3.0, 4.0, 1.0, bad, 3.0, 4.0],
        );
        refused("linalg.lu_unpack", &[&a, &pivots], &[m, m, m], &[]);
    }
    let pivots = Tensor::new(DType::I32, &[2, 3], &[1.0; 6]);
    refused("linalg.lu_unpack", &[&a, &pivots], &[m, m, m], &[]);
}

/// Makes matrices symmetric and positive, so that every function takes them.
fn cholesky_input(a: &Tensor) -> Tensor {
    let values: Vec<f64> = matrices(a).iter().flat_map(|a| a.mul(&a.t()).v).collect();
    Tensor::new(a.dtype, &a.sizes, &values)
}
