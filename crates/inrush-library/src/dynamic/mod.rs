//! Functions whose data decide the sizes of their results. They find the sizes, have the results allocated, and fill them.

pub(crate) mod counts;
pub(crate) mod unique;

use crate::check::{Params, refuse_dtype};
use crate::{DynamicCall, DynamicFunction};
use half::{bf16, f16};
use inrush_base::{DType, Error, Result, Scalar};

/// Finds coordinates.
pub(crate) const NONZERO: DynamicFunction = DynamicFunction {
    name: "nonzero",
    doc: "in x; out coordinates (i64) of the elements that are not zero, [count, rank] with strides [1, count]; no params. In the order \
          of the elements. NaN is not zero.",
    run: nonzero,
};

/// Finds coordinates, as many as are asked for.
pub(crate) const NONZERO_STATIC: DynamicFunction = DynamicFunction {
    name: "nonzero_static",
    doc: "in x; out coordinates (i64) of the elements that are not zero, [size, rank], row-major; params [size, fill_value]. The first \
          ones, and fill_value where there are fewer.",
    run: nonzero_static,
};

/// Reads a number.
pub(crate) const ITEM: DynamicFunction = DynamicFunction {
    name: "item",
    doc: "in x of one element; out that element as a number; no params.",
    run: item,
};

fn item(call: &mut DynamicCall<'_, '_>) -> Result<()> {
    let x = call.one_input()?;
    call.no_params()?;
    let one = |bytes: &[u8]| -> Option<i64> {
        Some(match x.dtype {
            DType::Bool => i64::from(*bytes.first()? != 0),
            DType::U8 => i64::from(*bytes.first()?),
            DType::I8 => i64::from(i8::from_ne_bytes(bytes.try_into().ok()?)),
            DType::U16 => i64::from(u16::from_ne_bytes(bytes.try_into().ok()?)),
            DType::I16 => i64::from(i16::from_ne_bytes(bytes.try_into().ok()?)),
            DType::U32 => i64::from(u32::from_ne_bytes(bytes.try_into().ok()?)),
            DType::I32 => i64::from(i32::from_ne_bytes(bytes.try_into().ok()?)),
            DType::U64 => i64::try_from(u64::from_ne_bytes(bytes.try_into().ok()?)).ok()?,
            DType::I64 => i64::from_ne_bytes(bytes.try_into().ok()?),
            _ => return None,
        })
    };
    if x.bytes.len() != x.dtype.size() {
        let message = format!("a tensor of sizes {:?} is no single number", x.sizes);
        return Err(Error::input(message));
    }
    let float = match x.dtype {
        DType::F16 => x.elements_as::<f16>()?.first().map(|v| v.to_f64()),
        DType::BF16 => x.elements_as::<bf16>()?.first().map(|v| v.to_f64()),
        DType::F32 => x.elements::<f32>()?.first().map(|v| f64::from(*v)),
        DType::F64 => x.elements::<f64>()?.first().copied(),
        _ => None,
    };
    if let Some(value) = float {
        call.results.number(Scalar::Float(value));
        return Ok(());
    }
    let value = one(x.bytes).ok_or_else(|| refuse_dtype(x.dtype))?;
    call.results.number(match x.dtype {
        DType::Bool => Scalar::Bool(value != 0),
        _ => Scalar::Int(value),
    });
    Ok(())
}

/// Tests elements.
trait Zero: bytemuck::Pod {
    fn is_zero(&self) -> bool;
}

macro_rules! zero {
    ($($t:ty),*) => { $(impl Zero for $t {
        fn is_zero(&self) -> bool {
            *self == Self::default()
        }
    })* };
}
zero!(u8, u16, u32, u64, f32, f64, f16, bf16);

/// Elements that one pass over the data counts at a time: their number stays in a small list.
const BLOCK: usize = 1 << 14;

fn nonzero(call: &mut DynamicCall<'_, '_>) -> Result<()> {
    call.no_params()?;
    dispatch(call, None)
}

fn nonzero_static(call: &mut DynamicCall<'_, '_>) -> Result<()> {
    let mut params = Params::new(call.params);
    let size = params.int("size")?;
    let fill = params.int("fill_value")?;
    params.end()?;
    let rows = usize::try_from(size).map_err(|_| Error::input(format!("size {size}")))?;
    dispatch(call, Some((rows, fill)))
}

/// Finds coordinates; `given` is the number of rows that are wanted, and what fills those without an element.
fn dispatch(call: &mut DynamicCall<'_, '_>, given: Option<(usize, i64)>) -> Result<()> {
    match call.one_input()?.dtype {
        // Integers of either sign are zero together.
        DType::Bool | DType::U8 | DType::I8 => coordinates::<u8>(call, given),
        DType::U16 | DType::I16 => coordinates::<u16>(call, given),
        DType::U32 | DType::I32 => coordinates::<u32>(call, given),
        DType::U64 | DType::I64 => coordinates::<u64>(call, given),
        DType::F16 => coordinates::<f16>(call, given),
        DType::BF16 => coordinates::<bf16>(call, given),
        DType::F32 => coordinates::<f32>(call, given),
        DType::F64 => coordinates::<f64>(call, given),
        other => Err(refuse_dtype(other)),
    }
}

/// Counts the elements, then writes their coordinates, one dimension after the other in memory, or row by row where their number is
/// given.
fn coordinates<T: Zero>(call: &mut DynamicCall<'_, '_>, given: Option<(usize, i64)>) -> Result<()> {
    let x = call.one_input()?;
    let elements: &[T] = x.elements_as()?;
    let found: Vec<usize> = (elements.chunks(BLOCK))
        .map(|c| c.iter().filter(|e| !e.is_zero()).count())
        .collect();
    let rank = x.sizes.len();
    let rows = given.map_or_else(|| found.iter().sum(), |(rows, _)| rows);
    let sizes = [signed(rows)?, signed(rank)?];
    // Elements from one row to the next, and from one dimension to the next.
    let (down, right) = match given {
        None => (1, rows),
        Some(_) => (rank, 1),
    };
    let strides = [signed(down)?.max(1), signed(right)?];
    let out = (call.results).tensor(DType::I64, &sizes, &strides)?;
    let out: &mut [i64] = as_elements(out)?;
    if let Some((_, fill)) = given {
        out.fill(fill);
    }
    if rows == 0 || rank == 0 {
        return Ok(());
    }
    let mut at = 0;
    let mut coordinate = vec![0i64; rank];
    for (chunk, found) in elements.chunks(BLOCK).zip(&found) {
        if *found == 0 {
            advance(&mut coordinate, x.sizes, chunk.len());
            continue;
        }
        for e in chunk {
            if !e.is_zero() {
                if at == rows {
                    return Ok(());
                }
                for (d, c) in coordinate.iter().enumerate() {
                    out[d * right + at * down] = *c;
                }
                at += 1;
            }
            advance(&mut coordinate, x.sizes, 1);
        }
    }
    Ok(())
}

/// Moves coordinates on by a number of elements.
fn advance(at: &mut [i64], sizes: &[i64], by: usize) {
    let mut carry = by as i64;
    for (c, n) in at.iter_mut().zip(sizes).rev() {
        if carry == 0 {
            return;
        }
        let next = *c + carry;
        if next < *n {
            *c = next;
            return;
        }
        (*c, carry) = (next % *n, next / *n);
    }
}

fn signed(n: usize) -> Result<i64> {
    i64::try_from(n).map_err(|_| Error::input("a tensor has too many elements"))
}

/// Returns the bytes of a result as its elements.
fn as_elements<T: bytemuck::Pod>(bytes: &mut [u8]) -> Result<&mut [T]> {
    if bytes.is_empty() {
        return Ok(&mut []);
    }
    bytemuck::try_cast_slice_mut(bytes).map_err(|e| Error::internal(format!("a result: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::count;
    use crate::{Input, Results, find_dynamic};
    use inrush_cpu::Pool;

    /// Results of a call in a list.
    #[derive(Default)]
    struct Made(Vec<Tensor>);

    /// Dtype, sizes, strides, and elements in words.
    type Tensor = (DType, Vec<i64>, Vec<i64>, Vec<u64>);

    impl Results for Made {
        fn tensor(&mut self, dtype: DType, sizes: &[i64], strides: &[i64]) -> Result<&mut [u8]> {
            let bytes = count(sizes)? * dtype.size();
            let words = vec![u64::MAX; bytes.div_ceil(8)];
            (self.0).push((dtype, sizes.to_vec(), strides.to_vec(), words));
            let words = &mut self.0.last_mut().expect("just pushed").3;
            Ok(&mut bytemuck::cast_slice_mut(words)[..bytes])
        }

        fn number(&mut self, _value: Scalar) {}
    }

    fn run(x: Input<'_>) -> Result<Made> {
        call("nonzero", x, &[])
    }

    fn call(name: &str, x: Input<'_>, params: &[Option<Scalar>]) -> Result<Made> {
        let mut made = Made::default();
        let pool = Pool::new(Some(1)).expect("a pool");
        let function = find_dynamic(name).expect("in the table");
        (function.run)(&mut DynamicCall {
            inputs: &[Some(x)],
            params,
            pool: &pool,
            results: &mut made,
        })?;
        Ok(made)
    }

    #[test]
    fn coordinates_are_in_order_and_by_columns() {
        let x = [0f32, 1.0, -0.0, f32::NAN, 0.0, 3.0];
        let made = run(Input {
            dtype: DType::F32,
            sizes: &[2, 3],
            bytes: bytemuck::cast_slice(&x),
        })
        .expect("a result");
        let (dtype, sizes, strides, words) = &made.0[0];
        assert_eq!(
            (*dtype, sizes.as_slice(), strides.as_slice()),
            (DType::I64, &[3, 2][..], &[1, 3][..])
        );
        assert_eq!(words.as_slice(), [0, 1, 1, 1, 0, 2]);
    }

    #[test]
    fn blocks_without_elements_are_skipped() {
        let mut x = vec![0u8; 3 * BLOCK + 7];
        let wanted = [5, BLOCK - 1, 2 * BLOCK, 3 * BLOCK + 6];
        wanted.iter().for_each(|at| x[*at] = 2);
        let n = x.len() as i64;
        let made = run(Input {
            dtype: DType::U8,
            sizes: &[n, 1],
            bytes: &x,
        })
        .expect("a result");
        let rows: Vec<usize> = made.0[0].3[..4].iter().map(|c| *c as usize).collect();
        assert_eq!(rows, wanted);
        assert!(made.0[0].3[4..].iter().all(|c| *c == 0));
    }

    #[test]
    fn scalars_and_empty_tensors_have_results_without_elements() {
        let one = run(Input {
            dtype: DType::Bool,
            sizes: &[],
            bytes: &[1],
        })
        .expect("a result");
        assert_eq!(one.0[0].1, [1, 0]);
        let none = run(Input {
            dtype: DType::I64,
            sizes: &[0, 4],
            bytes: &[],
        })
        .expect("a result");
        assert_eq!(none.0[0].1, [0, 2]);
    }

    fn list(x: &[i64]) -> Input<'_> {
        // A list of up to four elements has its sizes here.
        static SIZES: [[i64; 1]; 6] = [[0], [1], [2], [3], [4], [5]];
        Input {
            dtype: DType::I64,
            sizes: &SIZES[x.len()],
            bytes: bytemuck::cast_slice(x),
        }
    }

    #[test]
    fn different_elements_are_found_with_their_places() {
        let flags = [Some(Scalar::Bool(true)); 3];
        let made = call("unique", list(&[7, 3, 7, 5]), &flags).expect("results");
        let words: Vec<&[u64]> = made.0.iter().map(|t| t.3.as_slice()).collect();
        assert_eq!(words, [&[3, 5, 7][..], &[2, 0, 2, 1], &[1, 1, 2]]);
        let flags = [Some(Scalar::Bool(true)), Some(Scalar::Bool(true)), None];
        let made = call("unique_consecutive", list(&[7, 7, 3, 7, 7]), &flags).expect("results");
        let words: Vec<&[u64]> = made.0.iter().map(|t| t.3.as_slice()).collect();
        assert_eq!(words, [&[7, 3, 7][..], &[0, 0, 1, 2, 2], &[2, 1, 2]]);
        let made = call("unique", list(&[]), &[Some(Scalar::Bool(false)); 3]).expect("results");
        assert!(made.0.iter().all(|t| t.1 == [0]));
    }

    #[test]
    fn counts_and_repeats_refuse_what_is_negative() {
        let made = call("bincount", list(&[1, 3, 1]), &[Some(Scalar::Int(0))]).expect("a result");
        assert_eq!(made.0[0].3, [0, 2, 0, 1]);
        assert!(call("bincount", list(&[-1]), &[Some(Scalar::Int(0))]).is_err());
        assert!(call("bincount", list(&[i64::MAX]), &[Some(Scalar::Int(0))]).is_err());
        let made = call("repeat_interleave", list(&[2, 0, 1]), &[None]).expect("a result");
        assert_eq!(made.0[0].3, [0, 0, 2]);
        assert!(call("repeat_interleave", list(&[2, -1]), &[None]).is_err());
        assert!(call("repeat_interleave", list(&[i64::MAX, 2]), &[None]).is_err());
        assert!(call("repeat_interleave", list(&[2]), &[Some(Scalar::Int(3))]).is_err());
    }

    #[test]
    fn damaged_tensors_are_refused() {
        assert!(
            run(Input {
                dtype: DType::F32,
                sizes: &[3],
                bytes: &[0; 4]
            })
            .is_err()
        );
        assert!(
            run(Input {
                dtype: DType::F32,
                sizes: &[-1],
                bytes: &[]
            })
            .is_err()
        );
        assert!(
            run(Input {
                dtype: DType::C64,
                sizes: &[1],
                bytes: &[0; 8]
            })
            .is_err()
        );
    }
}
