//! Matrix products for a Python process, so that PyTorch's can be timed in turns with them in the same run on the same threads.

use inrush_base::DType;
use inrush_cpu::*;
use std::ffi::c_int;

/// A pool of `threads` threads of its own, or for zero the process's OpenMP runtime; null where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn beside_pool(threads: c_int) -> *mut Pool {
    let pool = match threads {
        0 => OpenMp::of_process().map(Pool::openmp),
        n => Pool::new(usize::try_from(n).ok()).ok(),
    };
    pool.map_or(std::ptr::null_mut(), |p| Box::into_raw(Box::new(p)))
}

/// # Safety
/// `pool` comes from [`beside_pool`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beside_threads(pool: *const Pool) -> c_int {
    unsafe { (*pool).threads() as c_int }
}

/// # Safety
/// `pool` comes from [`beside_pool`] and is used by no product any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beside_free_pool(pool: *mut Pool) {
    drop(unsafe { Box::from_raw(pool) });
}

pub struct Product {
    pool: *const Pool,
    plan: Plan,
    a: *const u8,
    b: *const u8,
    packed: Option<Packed>,
    out: StoreView,
}

/// Sizes and strides (in elements) as eleven numbers: batch, m, k, n; of `a` batch, m, k; of `b` batch, k, n. The result
/// is dense. `flags`: 1 packs `b` now, 2 says that operands and result are bfloat16.
///
/// # Safety
/// Pointers stay valid for what the sizes say while the product is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beside_product(
    pool: *const Pool,
    sizes: *const i64,
    a: *const u8,
    b: *const u8,
    c: *mut u8,
    flags: c_int,
) -> *mut Product {
    let s: [i64; 10] = std::array::from_fn(|i| unsafe { *sizes.add(i) });
    let [batch, m, k, n] = [s[0], s[1], s[2], s[3]].map(|x| x as usize);
    let dtype = if flags & 2 == 0 {
        DType::F32
    } else {
        DType::BF16
    };
    let view = RhsView {
        ptr: b,
        dtype,
        matrices: Affine::linear(batch, s[7] as isize),
        k: Affine::linear(k, s[8] as isize),
        cols: Affine::linear(n, s[9] as isize),
    };
    let threads = unsafe { (*pool).threads() };
    let packs = flags & 1 != 0;
    let shape = GemmShape::new(batch, m, k, n);
    let lhs = Lhs {
        ptr: a,
        dtype,
        matrices: Affine::linear(batch, s[4] as isize),
        rows: Affine::linear(m, s[5] as isize),
        taps: &[0],
        k_step: s[6] as isize,
    };
    let rhs = (!packs).then_some(&view);
    let Ok(plan) = Plan::product(shape, DType::F32, detect(), threads, &lhs, rhs) else {
        return std::ptr::null_mut();
    };
    let packed = packs
        .then(|| unsafe { PackedB::pack(&*pool, detect(), DType::F32, &view).ok() })
        .flatten()
        .map(Packed::Rhs);
    let out = StoreView {
        ptr: c,
        dtype,
        batch: Affine::linear(batch, (m * n) as isize),
        rows: Affine::linear(m, n as isize),
        cols: Affine::linear(n, 1),
    };
    Box::into_raw(Box::new(Product {
        pool,
        plan,
        a,
        b,
        packed,
        out,
    }))
}

/// Computes it; 0 for success.
///
/// # Safety
/// `p` comes from [`beside_product`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beside_run(p: *const Product) -> c_int {
    let p = unsafe { &*p };
    let operands = Operands {
        a: p.a,
        b: p.b,
        packed: p.packed.as_ref(),
    };
    let done = unsafe { p.plan.run(&*p.pool, &operands, &Output::Store(p.out)) };
    c_int::from(done.is_err())
}

/// # Safety
/// `p` comes from [`beside_product`] and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beside_free(p: *mut Product) {
    drop(unsafe { Box::from_raw(p) });
}
