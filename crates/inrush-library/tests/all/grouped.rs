//! Products of groups against sums of single products.

use crate::matrices::M;
use crate::support::{Rng, Tensor, call, close, flag, refused, tolerance};
use inrush_base::DType;

fn offs(ends: &[usize]) -> Tensor {
    let values: Vec<f64> = ends.iter().map(|&e| e as f64).collect();
    Tensor::new(DType::I32, &[ends.len() as i64], &values)
}

/// Returns rows and columns of a matrix.
fn part(m: &M, rows: (usize, usize), cols: (usize, usize)) -> M {
    let mut v = Vec::new();
    for r in rows.0..rows.1 {
        v.extend_from_slice(&m.v[r * m.cols + cols.0..r * m.cols + cols.1]);
    }
    M::new(rows.1 - rows.0, cols.1 - cols.0, &v)
}

#[test]
fn groups_of_all_four_forms_are_multiplied() {
    let mut rng = Rng::new(50);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (m, k, n, ends) in [
            (8, 16, 8, vec![3, 3, 8]),
            (37, 24, 40, vec![0, 10, 20]),
            (1, 1, 1, vec![1]),
            (64, 33, 17, vec![8, 9, 16, 17]),
            (5, 0, 4, vec![0, 0]),
            (0, 4, 3, vec![0]),
            (6, 5, 7, vec![]),
        ] {
            let g = ends.len();
            let tol = tolerance(dtype, 4.0 + k as f64 / 4.0);
            let spans: Vec<(usize, usize)> = std::iter::once(0)
                .chain(ends.clone())
                .zip(ends.clone())
                .collect();
            let sizes = |s: &[usize]| s.iter().map(|&n| n as i64).collect::<Vec<i64>>();
            let mut tensor = |s: &[usize]| Tensor::draw(dtype, &sizes(s), &mut rng);
            let mat = |t: &Tensor, i: usize, r: usize, c: usize| {
                M::new(r, c, &t.values()[i * r * c..(i + 1) * r * c])
            };
            let what = format!("{dtype} {m} {k} {n} {ends:?}");
            // Rows. The ends of groups are those of a dimension of at least their size.
            let rows = m.max(ends.last().copied().unwrap_or(0));
            let (x, w) = (tensor(&[rows, k]), tensor(&[g, k, n]));
            let y = sizes(&[rows, n]);
            let got = call("grouped_mm", &[&x, &w, &offs(&ends)], &[(dtype, &y)], &[]).unwrap();
            let mut want = vec![0.0; rows * n];
            for (i, &(s, e)) in spans.iter().enumerate() {
                let product = part(&mat(&x, 0, rows, k), (s, e), (0, k)).mul(&mat(&w, i, k, n));
                want[s * n..e * n].copy_from_slice(&product.v);
            }
            close(&format!("rows {what}"), &got[0].values(), &want, tol);
            // Columns.
            let cols = n.max(ends.last().copied().unwrap_or(0));
            let (x, w) = (tensor(&[g, m, k]), tensor(&[k, cols]));
            let y = sizes(&[m, cols]);
            let got = call("grouped_mm", &[&x, &w, &offs(&ends)], &[(dtype, &y)], &[]).unwrap();
            let mut want = vec![0.0; m * cols];
            for (i, &(s, e)) in spans.iter().enumerate() {
                let product = mat(&x, i, m, k).mul(&part(&mat(&w, 0, k, cols), (0, k), (s, e)));
                for r in 0..m {
                    want[r * cols + s..r * cols + e]
                        .copy_from_slice(&product.v[r * (e - s)..(r + 1) * (e - s)]);
                }
            }
            close(&format!("columns {what}"), &got[0].values(), &want, tol);
            // Sums.
            let sum = k.max(ends.last().copied().unwrap_or(0));
            let (x, w) = (tensor(&[m, sum]), tensor(&[sum, n]));
            let y = sizes(&[g, m, n]);
            let got = call("grouped_mm", &[&x, &w, &offs(&ends)], &[(dtype, &y)], &[]).unwrap();
            let mut want = Vec::new();
            for &(s, e) in &spans {
                let left = part(&mat(&x, 0, m, sum), (0, m), (s, e));
                want.extend(left.mul(&part(&mat(&w, 0, sum, n), (s, e), (0, n))).v);
            }
            close(&format!("sums {what}"), &got[0].values(), &want, tol);
            // Batches.
            let (x, w) = (tensor(&[g, m, k]), tensor(&[g, k, n]));
            let got = call("grouped_mm", &[&x, &w], &[(dtype, &y)], &[]).unwrap();
            let want: Vec<f64> = (0..g)
                .flat_map(|i| mat(&x, i, m, k).mul(&mat(&w, i, k, n)).v)
                .collect();
            close(&format!("batches {what}"), &got[0].values(), &want, tol);
        }
    }
}

#[test]
fn malformed_calls_are_refused() {
    let mut rng = Rng::new(51);
    let x = Tensor::draw(DType::F32, &[6, 4], &mut rng);
    let w = Tensor::draw(DType::F32, &[2, 4, 3], &mut rng);
    let y: (DType, &[i64]) = (DType::F32, &[6, 3]);
    call("grouped_mm", &[&x, &w, &offs(&[2, 6])], &[y], &[]).unwrap();
    for ends in [vec![2, 7], vec![4, 2], vec![2], vec![1, 2, 3]] {
        refused("grouped_mm", &[&x, &w, &offs(&ends)], &[y], &[]);
    }
    // Groups that no memory bounds: nothing is computed.
    let none = Tensor::unwritten(DType::F32, &[1 << 50, 0, 0]);
    call(
        "grouped_mm",
        &[&none, &none],
        &[(DType::F32, &[1 << 50, 0, 0])],
        &[],
    )
    .unwrap();
    let negative = Tensor::new(DType::I32, &[2], &[-1.0, 6.0]);
    refused("grouped_mm", &[&x, &w, &negative], &[y], &[]);
    let long = Tensor::new(DType::I64, &[2], &[2.0, 6.0]);
    refused("grouped_mm", &[&x, &w, &long], &[y], &[]);
    refused("grouped_mm", &[&x, &w], &[y], &[]);
    refused("grouped_mm", &[&x], &[y], &[]);
    refused("grouped_mm", &[&x, &w, &offs(&[2, 6])], &[], &[]);
    refused("grouped_mm", &[&x, &w, &offs(&[2, 6])], &[y], &[flag(true)]);
    refused(
        "grouped_mm",
        &[&x, &w, &offs(&[2, 6])],
        &[(DType::F32, &[3, 6])],
        &[],
    );
    refused(
        "grouped_mm",
        &[&x, &w, &offs(&[2, 6])],
        &[(DType::BF16, &[6, 3])],
        &[],
    );
    let other = Tensor::draw(DType::F32, &[2, 5, 3], &mut rng);
    refused("grouped_mm", &[&x, &other, &offs(&[2, 6])], &[y], &[]);
    let wide = Tensor::draw(DType::F64, &[6, 4], &mut rng);
    refused("grouped_mm", &[&wide, &wide, &offs(&[2])], &[y], &[]);
    refused("grouped_mm", &[&w, &w, &offs(&[2, 6])], &[y], &[]);
}
