//! Tools that the tests share: random data, a slow product, and an epilogue that counts.
#![allow(dead_code, reason = "each test file uses its own part")]

use inrush_base::{DType, Isa, Result};
use inrush_cpu::{GemmShape, Lhs, Operands, Output, Packed, Plan, Pool, RhsView};
use std::ffi::c_void;

/// A small generator; the same numbers on every machine.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        // Whoever draws tests in poisoned memory.
        inrush_cpu::poison::enable();
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }
    /// In -1..1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit() as f32).collect()
    }
}

/// Adds each result to `out[batch][m][n]` and one to `count` there, with `syms = [m, n]`; results that are stored twice,
/// or not at all, show in the counts.
pub unsafe extern "C" fn counting(
    args: *const *mut u8,
    syms: *const i64,
    acc: *const c_void,
    ld: i64,
    batch: i64,
    m0: i64,
    m1: i64,
    n0: i64,
    n1: i64,
) {
    unsafe {
        let (out, count) = ((*args).cast::<f32>(), (*args.add(1)).cast::<i32>());
        let (m, n) = (*syms, *syms.add(1));
        let acc = acc.cast::<f32>();
        for i in m0..m1 {
            for j in n0..n1 {
                let at = ((batch * m + i) * n + j) as usize;
                *out.add(at) += *acc.add(((i - m0) * ld + (j - n0)) as usize);
                *count.add(at) += 1;
            }
        }
    }
}

pub fn close(got: &[f32], want: &[f64], depth: usize, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    assert_eq!(inrush_cpu::poison::noted(), None, "{what}");
    let tolerance = 2e-6 * (depth as f64).sqrt().max(1.0) * 3.0;
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            (*g as f64 - w).abs() <= tolerance,
            "{what}: result {i} is {g}, not {w}"
        );
    }
}

/// Plans and computes a product on the pool's threads, with the right operand packed or at `view`; returns the algorithm.
pub unsafe fn multiply(
    pool: &Pool,
    (shape, acc, isa): (GemmShape, DType, Isa),
    lhs: &Lhs,
    view: &RhsView,
    packed: Option<&Packed>,
    out: &Output,
) -> Result<&'static str> {
    let rhs = packed.is_none().then_some(view);
    let plan = Plan::product(shape, acc, isa, pool.threads(), lhs, rhs)?;
    let operands = Operands {
        a: lhs.ptr,
        b: view.ptr,
        packed,
    };
    unsafe { plan.run(pool, &operands, out)? };
    Ok(plan.algorithm())
}
