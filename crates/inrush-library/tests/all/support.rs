//! Tensors, calls and drawn numbers for tests.

use inrush_base::{DType, Error, ErrorKind, Result, Scalar};
use inrush_cpu::Pool;
use inrush_library::{Call, Input, Output, find};
use std::sync::LazyLock;

/// Threads of all tests: more than one, so that work is shared.
pub(crate) static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(Some(3)).unwrap());

/// A tensor of its own memory.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub dtype: DType,
    pub sizes: Vec<i64>,
    /// Words, so that bytes are aligned.
    words: Vec<u64>,
    bytes: usize,
}

impl Tensor {
    /// Makes a tensor of bytes that no function should leave.
    pub(crate) fn unwritten(dtype: DType, sizes: &[i64]) -> Tensor {
        let bytes = sizes.iter().product::<i64>() as usize * dtype.size();
        Tensor {
            dtype,
            sizes: sizes.to_vec(),
            words: vec![0xfff7_a5a5_fff7_a5a5; bytes.div_ceil(8)],
            bytes,
        }
    }

    /// Makes a tensor of these values, rounded to the dtype.
    pub(crate) fn new(dtype: DType, sizes: &[i64], values: &[f64]) -> Tensor {
        let mut out = Tensor::unwritten(dtype, sizes);
        assert_eq!(out.bytes, values.len() * dtype.size(), "{sizes:?}");
        for (i, &v) in values.iter().enumerate() {
            out.set(i, v);
        }
        out
    }

    /// Makes a tensor of drawn normal-like values.
    pub(crate) fn draw(dtype: DType, sizes: &[i64], rng: &mut Rng) -> Tensor {
        let n = sizes.iter().product::<i64>() as usize;
        let values: Vec<f64> = (0..n).map(|_| rng.value()).collect();
        Tensor::new(dtype, sizes, &values)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }

    fn set(&mut self, i: usize, v: f64) {
        let size = self.dtype.size();
        let dtype = self.dtype;
        let to = &mut self.bytes_mut()[i * size..(i + 1) * size];
        match dtype {
            DType::Bool => to[0] = u8::from(v != 0.0),
            DType::U8 => to[0] = v as u8,
            DType::I8 => to[0] = (v as i8).to_ne_bytes()[0],
            DType::I16 => to.copy_from_slice(&(v as i16).to_ne_bytes()),
            DType::U16 => to.copy_from_slice(&(v as u16).to_ne_bytes()),
            DType::I32 => to.copy_from_slice(&(v as i32).to_ne_bytes()),
            DType::U32 => to.copy_from_slice(&(v as u32).to_ne_bytes()),
            DType::I64 => to.copy_from_slice(&(v as i64).to_ne_bytes()),
            DType::U64 => to.copy_from_slice(&(v as u64).to_ne_bytes()),
            DType::F16 => to.copy_from_slice(&half::f16::from_f64(v).to_ne_bytes()),
            DType::BF16 => to.copy_from_slice(&half::bf16::from_f64(v).to_ne_bytes()),
            DType::F32 => to.copy_from_slice(&(v as f32).to_ne_bytes()),
            DType::F64 => to.copy_from_slice(&v.to_ne_bytes()),
            other => panic!("{other}"),
        }
    }

    /// Returns the values as `f64`.
    pub(crate) fn values(&self) -> Vec<f64> {
        let one = |b: &[u8]| match self.dtype {
            DType::Bool | DType::U8 => f64::from(b[0]),
            DType::I8 => f64::from(i8::from_ne_bytes([b[0]])),
            DType::I16 => f64::from(i16::from_ne_bytes(b.try_into().unwrap())),
            DType::U16 => f64::from(u16::from_ne_bytes(b.try_into().unwrap())),
            DType::I32 => f64::from(i32::from_ne_bytes(b.try_into().unwrap())),
            DType::U32 => f64::from(u32::from_ne_bytes(b.try_into().unwrap())),
            DType::I64 => i64::from_ne_bytes(b.try_into().unwrap()) as f64,
            DType::U64 => u64::from_ne_bytes(b.try_into().unwrap()) as f64,
            DType::F16 => half::f16::from_ne_bytes(b.try_into().unwrap()).to_f64(),
            DType::BF16 => half::bf16::from_ne_bytes(b.try_into().unwrap()).to_f64(),
            DType::F32 => f64::from(f32::from_ne_bytes(b.try_into().unwrap())),
            DType::F64 => f64::from_ne_bytes(b.try_into().unwrap()),
            other => panic!("{other}"),
        };
        self.bytes().chunks(self.dtype.size()).map(one).collect()
    }
}

/// Dtype and sizes of an output.
pub(crate) type Slot<'a> = (DType, &'a [i64]);

/// Calls a function; `outputs` are dtypes and sizes.
pub(crate) fn call(
    name: &str,
    inputs: &[&Tensor],
    outputs: &[(DType, &[i64])],
    params: &[Scalar],
) -> Result<Vec<Tensor>> {
    let function = find(name).unwrap_or_else(|| panic!("no function `{name}`"));
    let mut results: Vec<Tensor> = outputs
        .iter()
        .map(|(dtype, sizes)| Tensor::unwritten(*dtype, sizes))
        .collect();
    let inputs: Vec<Input> = inputs
        .iter()
        .map(|t| Input {
            dtype: t.dtype,
            sizes: &t.sizes,
            bytes: t.bytes(),
        })
        .collect();
    let mut written: Vec<Output> = results
        .iter_mut()
        .map(|t| {
            let sizes: &[i64] = &t.sizes;
            let bytes = &mut bytemuck::cast_slice_mut(&mut t.words)[..t.bytes];
            Output {
                dtype: t.dtype,
                sizes,
                bytes,
            }
        })
        .collect();
    let mut call = Call {
        inputs: &inputs,
        outputs: &mut written,
        params,
        pool: &POOL,
    };
    (function.run)(&mut call)?;
    Ok(results)
}

/// Asserts that a call is refused as the caller's mistake.
pub(crate) fn refused(
    name: &str,
    inputs: &[&Tensor],
    outputs: &[(DType, &[i64])],
    params: &[Scalar],
) {
    let result: Result<Vec<Tensor>, Error> = call(name, inputs, outputs, params);
    match result {
        Ok(_) => panic!("{name} took {inputs:?} {outputs:?} {params:?}"),
        Err(e) => assert_eq!(e.kind(), ErrorKind::Input, "{name}: {e}"),
    }
}

pub(crate) fn int(v: i64) -> Scalar {
    Scalar::Int(v)
}

pub(crate) fn flag(v: bool) -> Scalar {
    Scalar::Bool(v)
}

/// Asserts that values agree within `tolerance` of the largest expected one.
pub(crate) fn close(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let largest = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let good = (g - w).abs() <= tolerance * largest || (g.is_nan() && w.is_nan());
        assert!(good, "{what}: element {i} is {g}, not {w}");
    }
}

/// Relative rounding error that a test of this dtype accepts, times `scale`.
pub(crate) fn tolerance(dtype: DType, scale: f64) -> f64 {
    scale
        * match dtype {
            DType::F64 => f64::EPSILON,
            DType::F32 => f64::from(f32::EPSILON),
            DType::F16 => 1.0 / 1024.0,
            _ => 1.0 / 128.0,
        }
}

/// A small generator of drawn numbers (xorshift).
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 33) % n
    }

    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws a value of mean 0 and variance 1.
    pub(crate) fn value(&mut self) -> f64 {
        ((0..4).map(|_| self.unit()).sum::<f64>() - 2.0) * 3f64.sqrt()
    }
}
