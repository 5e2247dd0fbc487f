//! Products of groups of rows, columns or sums of two matrices, whose ends are data.

use crate::check::{count, refuse_dtype, size};
use crate::product::{Product, Shape, Strides};
use crate::{Call, Function, Input};
use inrush_base::{DType, Error, Result};

/// Multiplies groups.
pub(crate) const GROUPED_MM: Function = Function {
    name: "grouped_mm",
    doc: "in x, w, offs [G] (i32, the end of each group, ascending); out y. x [M, K], w [G, K, N]: groups of rows of x, y [M, N]. \
          x [G, M, K], w [K, N]: groups of columns of w, y [M, N]. x [M, K], w [K, N]: groups of the sum, y [G, M, N]. x [G, M, K], w \
          [G, K, N], without offs: y [G, M, N]. Rows or columns of no group are zero. bf16, f16, f32; sums in f32.",
    run: grouped_mm,
};

/// One product: where its operands and its result start, in elements, and its sizes.
struct Group {
    x: usize,
    w: usize,
    y: usize,
    m: usize,
    k: usize,
    n: usize,
}

fn grouped_mm(call: &mut Call<'_, '_>) -> Result<()> {
    let offs = match call.inputs.len() {
        2 => None,
        3 => Some(call.inputs[2]),
        n => return Err(Error::input(format!("{n} inputs, not 2 or 3"))),
    };
    call.check_tensors()?;
    let (x, w) = (call.inputs[0], call.inputs[1]);
    let [y] = &mut *call.outputs else {
        return Err(Error::input(format!(
            "{} outputs, not 1",
            call.outputs.len()
        )));
    };
    if !call.params.is_empty() {
        return Err(Error::input("grouped_mm has no parameters"));
    }
    if !matches!(x.dtype, DType::BF16 | DType::F16 | DType::F32) {
        return Err(refuse_dtype(x.dtype));
    }
    w.check_dtype(x.dtype)?;
    if y.dtype != x.dtype {
        return Err(Error::input(format!(
            "output of {}, not {}",
            y.dtype, x.dtype
        )));
    }
    let (sizes, groups, row) = groups(&x, &w, offs.as_ref())?;
    count(&sizes)?;
    y.check_sizes(&sizes)?;
    y.bytes.fill(0);
    let width = x.dtype.size();
    let k_of = size(x.sizes, x.sizes.len() - 1);
    let n_of = size(w.sizes, w.sizes.len() - 1);
    for g in groups {
        if g.m == 0 || g.n == 0 || g.k == 0 {
            continue;
        }
        let shape = Shape {
            m: g.m,
            k: g.k,
            n: g.n,
            dtype: x.dtype,
            acc: DType::F32,
            out: y.dtype,
            a: Strides(k_of, 1),
            b: Strides(n_of, 1),
            c: row,
        };
        let product = Product::new(call.pool, shape)?;
        let y = &mut y.bytes[g.y * width..];
        product.run(
            call.pool,
            &x.bytes[g.x * width..],
            &w.bytes[g.w * width..],
            y,
        )?;
    }
    Ok(())
}

/// Reads ends of groups: ascending, at most `n`.
fn ends(offs: Option<&Input<'_>>, groups: Option<usize>, n: usize) -> Result<Vec<usize>> {
    let offs = offs.ok_or_else(|| Error::input("ends of groups are missing"))?;
    let values = offs.elements::<i32>()?;
    if offs.sizes.len() != 1 || groups.is_some_and(|g| g != values.len()) {
        return Err(Error::input(format!(
            "ends of groups of sizes {:?}",
            offs.sizes
        )));
    }
    let mut last = 0;
    let mut out = Vec::with_capacity(values.len());
    for &v in values {
        let end = usize::try_from(v).ok().filter(|e| (last..=n).contains(e));
        last =
            end.ok_or_else(|| Error::input(format!("a group ends at {v}, not in {last}..={n}")))?;
        out.push(last);
    }
    Ok(out)
}

/// Returns the sizes of the result, the products, and the row stride of the result.
fn groups(
    x: &Input<'_>,
    w: &Input<'_>,
    offs: Option<&Input<'_>>,
) -> Result<(Vec<i64>, Vec<Group>, usize)> {
    let mismatch = || {
        Error::input(format!(
            "grouped products of {:?} and {:?}",
            x.sizes, w.sizes
        ))
    };
    let spans = |ends: Vec<usize>| {
        let starts = std::iter::once(0).chain(ends.clone());
        starts.zip(ends).enumerate().collect::<Vec<_>>()
    };
    match (x.sizes, w.sizes) {
        (&[m, k], &[many, k2, n]) if k == k2 => {
            let (ku, nu) = (size(x.sizes, 1), size(w.sizes, 2));
            let ends = ends(offs, Some(size(&[many], 0)), size(&[m], 0))?;
            let of = |(g, (start, end)): (usize, (usize, usize))| Group {
                x: start * ku,
                w: g * ku * nu,
                y: start * nu,
                m: end - start,
                k: ku,
                n: nu,
            };
            Ok((vec![m, n], spans(ends).into_iter().map(of).collect(), nu))
        }
        (&[many, m, k], &[k2, n]) if k == k2 => {
            let (mu, ku, nu) = (size(x.sizes, 1), size(x.sizes, 2), size(w.sizes, 1));
            let ends = ends(offs, Some(size(&[many], 0)), nu)?;
            let of = |(g, (start, end)): (usize, (usize, usize))| Group {
                x: g * mu * ku,
                w: start,
                y: start,
                m: mu,
                k: ku,
                n: end - start,
            };
            Ok((vec![m, n], spans(ends).into_iter().map(of).collect(), nu))
        }
        (&[m, k], &[k2, n]) if k == k2 => {
            let (mu, ku, nu) = (size(x.sizes, 0), size(x.sizes, 1), size(w.sizes, 1));
            let ends = ends(offs, None, ku)?;
            let many = i64::try_from(ends.len()).unwrap_or(i64::MAX);
            // The result's places are computed once its sizes are known to be those of a tensor.
            count(&[many, m, n])?;
            let of = |(g, (start, end)): (usize, (usize, usize))| Group {
                x: start,
                w: start * nu,
                y: g * mu * nu,
                m: mu,
                k: end - start,
                n: nu,
            };
            Ok((
                vec![many, m, n],
                spans(ends).into_iter().map(of).collect(),
                nu,
            ))
        }
        (&[many, m, k], &[many2, k2, n]) if (many, k) == (many2, k2) && offs.is_none() => {
            let (mu, ku, nu) = (size(x.sizes, 1), size(x.sizes, 2), size(w.sizes, 2));
            // Without results there can be more groups than memory holds.
            let groups = if count(&[many, m, n])? == 0 {
                0
            } else {
                size(x.sizes, 0)
            };
            let of = |g: usize| Group {
                x: g * mu * ku,
                w: g * ku * nu,
                y: g * mu * nu,
                m: mu,
                k: ku,
                n: nu,
            };
            Ok((vec![many, m, n], (0..groups).map(of).collect(), nu))
        }
        _ => Err(mismatch()),
    }
}
