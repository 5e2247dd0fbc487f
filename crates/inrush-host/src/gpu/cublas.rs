//! Matrix products by cuBLAS itself: what PyTorch does around it costs the CPU more than the library.
//!
//! The handle is the host's for the stream, which brings its workspace and its settings along (whether products of float32
//! may round to TF32, for one).

use super::driver::{DevicePtr, Stream};
use crate::shape::Shape;
use libloading::os::unix::Library;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::OnceLock;

type Handle = *mut c_void;
type GemmEx = unsafe extern "C" fn(
    Handle,
    i32,
    i32,
    i32,
    i32,
    i32,
    *const c_void,
    *const c_void,
    i32,
    i32,
    *const c_void,
    i32,
    i32,
    *const c_void,
    *mut c_void,
    i32,
    i32,
    i32,
    i32,
) -> i32;
type GemmStridedBatchedEx = unsafe extern "C" fn(
    Handle,
    i32,
    i32,
    i32,
    i32,
    i32,
    *const c_void,
    *const c_void,
    i32,
    i32,
    i64,
    *const c_void,
    i32,
    i32,
    i64,
    *const c_void,
    *mut c_void,
    i32,
    i32,
    i64,
    i32,
    i32,
    i32,
) -> i32;

type Create = unsafe extern "C" fn(*mut Handle) -> i32;
type Destroy = unsafe extern "C" fn(Handle) -> i32;
type SetStream = unsafe extern "C" fn(Handle, *mut c_void) -> i32;
type SetWorkspace = unsafe extern "C" fn(Handle, *mut c_void, usize) -> i32;
type GetMode = unsafe extern "C" fn(Handle, *mut i32) -> i32;
type SetMode = unsafe extern "C" fn(Handle, i32) -> i32;

const COMPUTE_32F: i32 = 68;
/// `CUBLAS_GEMM_DEFAULT_TENSOR_OP`.
const DEFAULT: i32 = 99;

/// cuBLAS as the process has loaded it.
pub struct Blas {
    gemm: GemmEx,
    batched: GemmStridedBatchedEx,
    create: Create,
    destroy: Destroy,
    set_stream: SetStream,
    set_workspace: SetWorkspace,
    get_mode: GetMode,
    set_mode: SetMode,
    _library: Library,
}

// SAFETY: addresses of functions that may be called from any thread.
unsafe impl Send for Blas {}
// SAFETY: likewise.
unsafe impl Sync for Blas {}

/// Names of the library, the newest first.
const NAMES: [&str; 2] = ["libcublas.so.13", "libcublas.so.12"];
/// `CUBLAS_DEFAULT_MATH`: products of float32 keep their bits.
pub const DEFAULT_MATH: i32 = 0;

/// Returns the library if the process has loaded it.
pub fn loaded() -> Option<&'static Blas> {
    static BLAS: OnceLock<Option<Blas>> = OnceLock::new();
    let find = || {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: the library is loaded already (`NOLOAD`), so no initialiser runs.
        let open = |n: &&str| unsafe { Library::open(Some(*n), flags) }.ok();
        NAMES.iter().find_map(open).and_then(Blas::of)
    };
    BLAS.get_or_init(find).as_ref()
}

/// Returns the library, which is loaded if it can be found: in one of `folders`, or by the system.
pub fn find(folders: &[PathBuf]) -> Option<&'static Blas> {
    static BLAS: OnceLock<Option<Blas>> = OnceLock::new();
    let find = || {
        let paths = (folders.iter()).flat_map(|f| NAMES.iter().map(|n| f.join(n)));
        let paths = paths.chain(NAMES.iter().map(PathBuf::from));
        // SAFETY: NVIDIA's library, whose initialisers are made to run in any process.
        let open = |p: PathBuf| unsafe { Library::open(Some(p), libc::RTLD_LAZY) }.ok();
        paths.into_iter().find_map(open).and_then(Blas::of)
    };
    loaded().or_else(|| BLAS.get_or_init(find).as_ref())
}

/// `out = a @ b`, as cuBLAS counts: in columns, so that the operands are exchanged.
#[derive(Clone, PartialEq, Debug)]
pub struct Gemm {
    transposed: [i32; 2],
    sizes: [i32; 3],
    leading: [i32; 3],
    /// Products, and elements from one to the next in `b`, `a` and `out`.
    count: i32,
    steps: [i64; 3],
    kind: i32,
}

impl Gemm {
    /// Returns the product of two matrices, or of batches of them; `None` for layouts that cuBLAS does not take.
    pub fn of(a: &Shape, b: &Shape, out: &Shape) -> Option<Gemm> {
        // PyTorch's numbers of float32, float16 and bfloat16, and the library's.
        let kind = match out.dtype {
            6 => 0,
            5 => 2,
            15 => 14,
            _ => return None,
        };
        if a.dtype != out.dtype || b.dtype != out.dtype {
            return None;
        }
        let rank = out.sizes.len();
        if !(2..=3).contains(&rank) || a.sizes.len() != rank || b.sizes.len() != rank {
            return None;
        }
        let (m, n, k) = (out.sizes[rank - 2], out.sizes[rank - 1], a.sizes[rank - 1]);
        if [m, n, k].contains(&0) || out.sizes.contains(&0) {
            return None;
        }
        let int = |v: i64| i32::try_from(v).ok();
        // Rows of `rows`, `columns` long: whether they are columns of the library's matrix, and what is between them.
        let layout = |s: &Shape, rows: i64, columns: i64| -> Option<(i32, i32)> {
            let (outer, inner) = (s.strides[rank - 2], s.strides[rank - 1]);
            if (inner == 1 || columns == 1) && (outer >= columns || rows == 1) {
                return Some((0, int(if rows == 1 { columns } else { outer })?));
            }
            if (outer == 1 || rows == 1) && (inner >= rows || columns == 1) {
                return Some((1, int(if columns == 1 { rows } else { inner })?));
            }
            None
        };
        let (ta, la) = layout(a, m, k)?;
        let (tb, lb) = layout(b, k, n)?;
        let (to, lo) = layout(out, m, n)?;
        if to != 0 {
            return None;
        }
        let step = |s: &Shape| if rank == 3 { s.strides[0] } else { 0 };
        Some(Gemm {
            transposed: [tb, ta],
            sizes: [int(n)?, int(m)?, int(k)?],
            leading: [lb, la, lo],
            count: if rank == 3 { int(out.sizes[0])? } else { 1 },
            steps: [step(b), step(a), step(out)],
            kind,
        })
    }
}

impl Blas {
    fn of(library: Library) -> Option<Blas> {
        // SAFETY: names and types are those of `cublas_api.h`.
        unsafe {
            Some(Blas {
                gemm: *library.get(b"cublasGemmEx").ok()?,
                batched: *library.get(b"cublasGemmStridedBatchedEx").ok()?,
                create: *library.get(b"cublasCreate_v2").ok()?,
                destroy: *library.get(b"cublasDestroy_v2").ok()?,
                set_stream: *library.get(b"cublasSetStream_v2").ok()?,
                set_workspace: *library.get(b"cublasSetWorkspace_v2").ok()?,
                get_mode: *library.get(b"cublasGetMathMode").ok()?,
                set_mode: *library.get(b"cublasSetMathMode").ok()?,
                _library: library,
            })
        }
    }

    /// Makes a handle for the current device; it lives until [`Blas::destroy`].
    pub fn create(&self) -> Option<usize> {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle.
        let status = unsafe { (self.create)(&mut handle) };
        (status == 0).then_some(handle as usize)
    }

    /// Frees a handle. The library waits for the handle's work first.
    ///
    /// # Safety
    /// The handle is from [`Blas::create`] and is not used any more.
    pub unsafe fn destroy(&self, handle: usize) {
        // SAFETY: by the caller's promise; a failure leaves a handle that takes memory until the process ends.
        _ = unsafe { (self.destroy)(handle as Handle) };
    }

    /// How products are computed: whether with TF32, for one.
    pub fn mode(&self, handle: usize) -> i32 {
        let mut mode = 0;
        // SAFETY: the handle is valid, the pointer to an int.
        match unsafe { (self.get_mode)(handle as Handle, &mut mode) } {
            0 => mode,
            _ => -1,
        }
    }

    /// Has a handle issue on a stream, with a workspace and computing as told; false where the library refuses.
    pub fn direct(
        &self,
        handle: usize,
        stream: Stream,
        workspace: (DevicePtr, u64),
        mode: i32,
    ) -> bool {
        let handle = handle as Handle;
        let memory = workspace.0 as *mut c_void;
        // A stream brings another workspace along: it comes first.
        // SAFETY: the handle and the stream are valid, the workspace is memory of so many bytes.
        unsafe {
            (self.set_stream)(handle, stream.0 as *mut c_void) == 0
                && (self.set_workspace)(handle, memory, workspace.1 as usize) == 0
                && (self.set_mode)(handle, mode) == 0
        }
    }

    /// Issues a product; false where the library refuses it.
    ///
    /// # Safety
    /// The handle is valid, and the addresses are of memory as the product was made for, until the work is done.
    pub unsafe fn run(
        &self,
        handle: usize,
        g: &Gemm,
        a: DevicePtr,
        b: DevicePtr,
        out: DevicePtr,
    ) -> bool {
        let (one, zero) = (1f32, 0f32);
        let (one, zero): (*const f32, *const f32) = (&one, &zero);
        let handle = handle as Handle;
        let (a, b, out) = (a as *const c_void, b as *const c_void, out as *mut c_void);
        let ([tb, ta], [n, m, k], [lb, la, lo]) = (g.transposed, g.sizes, g.leading);
        // SAFETY: by the caller's promise; both numbers are read before the call returns.
        let status = unsafe {
            match g.count {
                1 => (self.gemm)(
                    handle,
                    tb,
                    ta,
                    n,
                    m,
                    k,
                    one.cast(),
                    b,
                    g.kind,
                    lb,
                    a,
                    g.kind,
                    la,
                    zero.cast(),
                    out,
                    g.kind,
                    lo,
                    COMPUTE_32F,
                    DEFAULT,
                ),
                count => (self.batched)(
                    handle,
                    tb,
                    ta,
                    n,
                    m,
                    k,
                    one.cast(),
                    b,
                    g.kind,
                    lb,
                    g.steps[0],
                    a,
                    g.kind,
                    la,
                    g.steps[1],
                    zero.cast(),
                    out,
                    g.kind,
                    lo,
                    g.steps[2],
                    count,
                    COMPUTE_32F,
                    DEFAULT,
                ),
            }
        };
        status == 0
    }
}
