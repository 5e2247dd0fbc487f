//! libtorch's stable C functions (`shim.h`), looked up in the running process, and tensors of the runtime in the memory of its tensors.

use inrush_base::{DType, Error, Result};
use inrush_runtime::tensor::{contiguous_strides, extent, row_major_copy};
use inrush_runtime::{OpenMp, Pool, Storage, Tensor, View};
use libloading::os::unix::Library;
use std::any::Any;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

/// `AtenTensorHandle`: the address of an `at::Tensor`.
pub(crate) type Handle = *mut c_void;

pub(crate) type Rc = i32;
type Get<T> = unsafe extern "C" fn(Handle, *mut T) -> Rc;
type EmptyStrided =
    unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> Rc;
type Reinterpret =
    unsafe extern "C" fn(Handle, i64, *const i64, *const i64, i64, *mut Handle) -> Rc;
type Number = unsafe extern "C" fn() -> i32;
type Flag = unsafe extern "C" fn(Handle) -> bool;

/// The most dimensions that a tensor may have.
const MAX_RANK: i64 = 64;

/// Functions of the libtorch that the process has loaded, and its numbers of dtypes.
pub(crate) struct Torch {
    delete: unsafe extern "C" fn(Handle) -> Rc,
    new_handle: unsafe extern "C" fn(Handle, *mut Handle) -> Rc,
    empty_strided: EmptyStrided,
    reinterpret: Reinterpret,
    data_ptr: Get<*mut c_void>,
    dim: Get<i64>,
    sizes: Get<*mut i64>,
    strides: Get<*mut i64>,
    dtype: Get<i32>,
    layout: Get<i32>,
    device_type: Get<i32>,
    device_index: Get<i32>,
    storage_offset: Get<i64>,
    storage_size: Get<i64>,
    /// `at::native::is_neg` and `is_conj`, which no stable function replaces. A release without them is trusted.
    lazy: [Option<Flag>; 2],
    threads: Option<unsafe extern "C" fn(*mut u32) -> Rc>,
    cpu: i32,
    strided: i32,
    dtypes: Vec<(DType, i32)>,
    /// Stays open, so that the functions stay where they are.
    _library: Library,
}

/// A tensor of PyTorch that this library owns.
pub(crate) struct Owned(Handle);

// SAFETY: PyTorch's tensors may be used and deleted by any thread; a handle is deleted once.
unsafe impl Send for Owned {}
// SAFETY: as above; shared access reads the handle only.
unsafe impl Sync for Owned {}

impl Owned {
    /// Takes a handle over; null is a tensor that is not there.
    pub(crate) fn new(handle: Handle) -> Owned {
        Owned(handle)
    }

    pub(crate) fn handle(&self) -> Handle {
        self.0
    }

    /// Hands the tensor to a new owner.
    pub(crate) fn release(mut self) -> Handle {
        std::mem::replace(&mut self.0, std::ptr::null_mut())
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if !self.0.is_null()
            && let Ok(torch) = Torch::of_process()
        {
            // SAFETY: an owned handle, deleted once.
            unsafe { (torch.delete)(self.0) };
        }
    }
}

impl Torch {
    /// Returns the functions of the process's libtorch, which the first call looks up.
    ///
    /// # Errors
    /// A machine error that names a function which is missing.
    pub(crate) fn of_process() -> Result<&'static Torch> {
        static TORCH: OnceLock<std::result::Result<Torch, String>> = OnceLock::new();
        let found = TORCH.get_or_init(|| Torch::find().map_err(|e| e.to_string()));
        found.as_ref().map_err(|e| Error::machine(e.clone()))
    }

    fn find() -> Result<Torch> {
        let library = library()?;
        let cpu: Number = get(&library, "aoti_torch_device_type_cpu")?;
        let strided: Number = get(&library, "aoti_torch_layout_strided")?;
        // A release that lacks a dtype has no tensors of it.
        let number = |d: DType| {
            let f: Number = get(&library, &format!("aoti_torch_dtype_{}", d.torch_name())).ok()?;
            // SAFETY: returns a constant.
            Some((d, unsafe { f() }))
        };
        Ok(Torch {
            delete: get(&library, "aoti_torch_delete_tensor_object")?,
            new_handle: get(&library, "aoti_torch_new_tensor_handle")?,
            empty_strided: get(&library, "aoti_torch_empty_strided")?,
            reinterpret: get(&library, "aoti_torch__reinterpret_tensor")?,
            data_ptr: get(&library, "aoti_torch_get_data_ptr")?,
            dim: get(&library, "aoti_torch_get_dim")?,
            sizes: get(&library, "aoti_torch_get_sizes")?,
            strides: get(&library, "aoti_torch_get_strides")?,
            dtype: get(&library, "aoti_torch_get_dtype")?,
            layout: get(&library, "aoti_torch_get_layout")?,
            device_type: get(&library, "aoti_torch_get_device_type")?,
            device_index: get(&library, "aoti_torch_get_device_index")?,
            storage_offset: get(&library, "aoti_torch_get_storage_offset")?,
            storage_size: get(&library, "aoti_torch_get_storage_size")?,
            lazy: [
                get(&library, "_ZN2at6native6is_negERKNS_6TensorE").ok(),
                get(&library, "_ZN2at6native7is_conjERKNS_6TensorE").ok(),
            ],
            threads: get(&library, "torch_get_num_threads").ok(),
            // SAFETY: both return a constant.
            cpu: unsafe { cpu() },
            // SAFETY: as above.
            strided: unsafe { strided() },
            dtypes: DType::all().filter_map(number).collect(),
            _library: library,
        })
    }

    /// Returns PyTorch's number of a dtype.
    ///
    /// # Errors
    /// An unsupported error for a dtype that this release does not have.
    pub(crate) fn number(&self, dtype: DType) -> Result<i32> {
        let row = self.dtypes.iter().find(|(d, _)| *d == dtype);
        row.map(|r| r.1).ok_or_else(|| {
            let name = dtype.torch_name();
            Error::unsupported(format!("this release of PyTorch has no dtype `{name}`"))
        })
    }

    /// Returns a pool of PyTorch's own threads while they do not stall: an OpenMP runtime's if the process has one, else as many as PyTorch uses.
    pub(crate) fn pool(&self) -> Result<Arc<Pool>> {
        let pool = match OpenMp::of_process() {
            Some(runtime) => Pool::openmp(runtime),
            None => Pool::new(self.threads())?,
        };
        Ok(Arc::new(pool))
    }

    fn threads(&self) -> Option<usize> {
        let mut n = 0;
        // SAFETY: the result is a local.
        let rc = unsafe { (self.threads?)(&raw mut n) };
        (rc == 0 && n > 0).then_some(n as usize)
    }

    /// Returns a fresh tensor and the address of its first element.
    pub(crate) fn empty(
        &self,
        dtype: DType,
        sizes: &[i64],
        strides: &[i64],
    ) -> Result<(Owned, *mut u8)> {
        let made = self.empty_on((self.cpu, 0), self.number(dtype)?, sizes, strides);
        made.ok_or_else(|| {
            Error::out_of_memory(format!(
                "PyTorch does not give a {} tensor of sizes {sizes:?}",
                dtype.torch_name()
            ))
        })
    }

    /// Returns a fresh tensor on a device, which is given by PyTorch's number of its kind and its index, and the address of its first
    /// element; `None` for too little memory.
    pub(crate) fn empty_on(
        &self,
        device: (i32, i32),
        dtype: i32,
        sizes: &[i64],
        strides: &[i64],
    ) -> Option<(Owned, *mut u8)> {
        let mut h = std::ptr::null_mut();
        // SAFETY: both lists have the rank's length; the result is a local.
        let rc = unsafe {
            (self.empty_strided)(
                sizes.len() as i64,
                sizes.as_ptr(),
                strides.as_ptr(),
                dtype,
                device.0,
                device.1,
                &raw mut h,
            )
        };
        if rc != 0 || h.is_null() {
            return None;
        }
        let made = Owned(h);
        // SAFETY: a live tensor.
        let address: *mut c_void = unsafe { self.ask(self.data_ptr, h) }.ok()?;
        Some((made, address.cast()))
    }

    /// Returns a view of a tensor's storage.
    ///
    /// # Safety
    /// `base` is a live tensor whose storage holds the view.
    pub(crate) unsafe fn view(&self, base: Handle, view: &View, from: i64) -> Result<Owned> {
        let mut h = std::ptr::null_mut();
        // SAFETY: the caller's promise; both lists have the rank's length.
        let rc = unsafe {
            (self.reinterpret)(
                base,
                view.sizes.len() as i64,
                view.sizes.as_ptr(),
                view.strides.as_ptr(),
                view.offset + from,
                &raw mut h,
            )
        };
        checked(rc, "give a view of a tensor")?;
        Ok(Owned(h))
    }

    /// Returns the offset of a tensor in its storage, in elements.
    ///
    /// # Safety
    /// `h` is a live tensor.
    pub(crate) unsafe fn offset(&self, h: Handle) -> Result<i64> {
        // SAFETY: the caller's promise.
        unsafe { self.ask(self.storage_offset, h) }
    }

    /// Returns another handle of a tensor, which keeps it alive.
    ///
    /// # Safety
    /// `h` is a live tensor.
    pub(crate) unsafe fn keep(&self, h: Handle) -> Result<Owned> {
        let mut kept = std::ptr::null_mut();
        // SAFETY: the caller's promise.
        let rc = unsafe { (self.new_handle)(h, &raw mut kept) };
        checked(rc, "keep a tensor")?;
        Ok(Owned(kept))
    }

    /// Returns a tensor of the runtime in the memory of a tensor of PyTorch, which `owner` keeps.
    ///
    /// # Errors
    /// An input error for a tensor that is not a dense one of the CPU, an unsupported error for its dtype.
    ///
    /// # Safety
    /// `h` is null or a live tensor, whose storage lives as long as `owner`.
    pub(crate) unsafe fn tensor(
        &self,
        h: Handle,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Tensor> {
        if h.is_null() {
            return Err(Error::input("there is no tensor"));
        }
        // SAFETY: a live tensor.
        if unsafe { self.ask(self.device_type, h) }? != self.cpu {
            return Err(Error::input(
                "a dense tensor of the CPU is needed, this one is on another device or of another layout",
            ));
        }
        // SAFETY: as above.
        let (dtype, sizes, strides) = unsafe { self.dense(h) }?;
        // SAFETY: as above.
        let (data, offset, bytes): (*mut c_void, i64, i64) = unsafe {
            (
                self.ask(self.data_ptr, h)?,
                self.ask(self.storage_offset, h)?,
                self.ask(self.storage_size, h)?,
            )
        };
        if sizes.contains(&0) {
            return Tensor::zeros(dtype, sizes.clone(), contiguous_strides(&sizes));
        }
        let (offset, bytes) = (usize::try_from(offset), usize::try_from(bytes));
        let (Ok(offset), Ok(bytes), false) = (offset, bytes, data.is_null()) else {
            return Err(Error::input("the tensor has no memory"));
        };
        let size = dtype.size();
        let end = extent(&sizes, &strides)
            .and_then(|n| n.checked_add(offset)?.checked_mul(size))
            .filter(|n| *n <= bytes);
        if end.is_none() {
            return Err(Error::input(format!(
                "a tensor of sizes {sizes:?} and strides {strides:?} is outside of its storage of {bytes} bytes"
            )));
        }
        let data = data.cast::<u8>();
        if !(data as usize).is_multiple_of(size) {
            // Not aligned to the size of its elements.
            // SAFETY: the elements were compared with the storage, which `owner` keeps until then.
            return unsafe { row_major_copy(data, dtype, sizes, &strides) };
        }
        // SAFETY: the storage's bytes, which `owner` keeps.
        let storage = unsafe { Storage::foreign(data.sub(offset * size), bytes, owner) };
        Ok(Tensor {
            dtype,
            sizes,
            strides,
            offset,
            storage: Arc::new(storage),
        })
    }

    /// Returns the device of a tensor: PyTorch's number of its kind, and its index.
    ///
    /// # Safety
    /// `h` is a live tensor.
    pub(crate) unsafe fn device(&self, h: Handle) -> Result<(i32, i32)> {
        // SAFETY: the caller's promise.
        unsafe {
            Ok((
                self.ask(self.device_type, h)?,
                self.ask(self.device_index, h)?,
            ))
        }
    }

    /// Returns PyTorch's number of the CPU.
    pub(crate) fn cpu(&self) -> i32 {
        self.cpu
    }

    /// Returns the address of a tensor's first element.
    ///
    /// # Safety
    /// `h` is a live tensor.
    pub(crate) unsafe fn address(&self, h: Handle) -> Result<*mut c_void> {
        // SAFETY: the caller's promise.
        unsafe { self.ask(self.data_ptr, h) }
    }

    /// Returns dtype, sizes and strides of a dense tensor whose memory holds its values.
    ///
    /// # Errors
    /// An input error for a tensor that is not one, an unsupported error for its dtype.
    ///
    /// # Safety
    /// `h` is a live tensor.
    pub(crate) unsafe fn dense(&self, h: Handle) -> Result<(DType, Vec<i64>, Vec<i64>)> {
        // SAFETY: the caller's promise.
        let (layout, number) = unsafe { (self.ask(self.layout, h)?, self.ask(self.dtype, h)?) };
        if layout != self.strided {
            return Err(Error::input(
                "a dense tensor of the CPU is needed, this one is on another device or of another layout",
            ));
        }
        // SAFETY: as above; the functions read a flag.
        if self.lazy.iter().flatten().any(|f| unsafe { f(h) }) {
            return Err(Error::input(
                "the tensor is negated or conjugated when it is read: pass `x.resolve_neg().resolve_conj()`",
            ));
        }
        let dtype = self.dtypes.iter().find(|(_, n)| *n == number);
        let dtype = dtype.map(|r| r.0).ok_or_else(|| {
            Error::unsupported(format!(
                "a tensor whose dtype has PyTorch's number {number}"
            ))
        })?;
        // SAFETY: as above.
        let (sizes, strides) = unsafe { self.shape(h) }?;
        Ok((dtype, sizes, strides))
    }

    /// Returns sizes and strides of a tensor.
    ///
    /// # Safety
    /// `h` is a live tensor.
    unsafe fn shape(&self, h: Handle) -> Result<(Vec<i64>, Vec<i64>)> {
        // SAFETY: the caller's promise.
        let rank = unsafe { self.ask(self.dim, h) }?;
        if !(0..=MAX_RANK).contains(&rank) {
            return Err(Error::input(format!("a tensor of {rank} dimensions")));
        }
        let list = |get: Get<*mut i64>| {
            // SAFETY: the caller's promise.
            let p: *mut i64 = unsafe { self.ask(get, h) }?;
            Ok(match rank {
                0 => Vec::new(),
                // SAFETY: PyTorch lends lists of the tensor's rank.
                _ => unsafe { std::slice::from_raw_parts(p, rank as usize) }.to_vec(),
            })
        };
        Ok((list(self.sizes)?, list(self.strides)?))
    }

    /// Asks for a property of a tensor.
    ///
    /// # Safety
    /// `h` is a live tensor.
    unsafe fn ask<T: Blank>(&self, get: Get<T>, h: Handle) -> Result<T> {
        let mut value = T::blank();
        // SAFETY: the caller's promise; the result is a local.
        checked(unsafe { get(h, &raw mut value) }, "describe a tensor")?;
        Ok(value)
    }
}

/// A value before PyTorch writes it.
trait Blank {
    fn blank() -> Self;
}

impl Blank for i64 {
    fn blank() -> i64 {
        0
    }
}

impl Blank for i32 {
    fn blank() -> i32 {
        0
    }
}

impl<T> Blank for *mut T {
    fn blank() -> *mut T {
        std::ptr::null_mut()
    }
}

pub(crate) fn checked(rc: Rc, what: &str) -> Result<()> {
    match rc {
        0 => Ok(()),
        _ => Err(Error::machine(format!("PyTorch refuses to {what}"))),
    }
}

/// Returns libtorch as the process has loaded it: by its name, or, where it is linked into the program, the program.
fn library() -> Result<Library> {
    let name = libloading::library_filename("torch_cpu");
    let library = of_process("torch_cpu");
    // SAFETY: only the address is taken.
    let known = unsafe { library.get::<Number>(b"aoti_torch_device_type_cpu") };
    if known.is_err() {
        return Err(Error::machine(format!(
            "this process has not loaded PyTorch (`{}`)",
            name.display()
        )));
    }
    drop(known);
    Ok(library)
}

/// Returns a library of libtorch as the process has loaded it: by its name, or, where it is linked into the program, the program.
pub(crate) fn of_process(name: &str) -> Library {
    let name = libloading::library_filename(name);
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: only a library that is loaded is found, so no initialiser runs.
    let found = unsafe { Library::open(Some(&name), flags) };
    found.unwrap_or_else(|_| Library::this())
}

/// Returns the address of a function, as the type of a pointer to it.
pub(crate) fn get<T: Copy>(library: &Library, name: &str) -> Result<T> {
    // SAFETY: the types of fields are those of PyTorch's `shim.h`.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    (found.map(|f| *f))
        .map_err(|_| Error::machine(format!("this PyTorch has no function `{name}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_pytorch_says_so() {
        let error = Torch::of_process()
            .err()
            .expect("no PyTorch in this process");
        assert!(
            error.to_string().contains("has not loaded PyTorch"),
            "{error}"
        );
        assert!(
            get::<Number>(&Library::this(), "aoti_torch_nothing")
                .unwrap_err()
                .to_string()
                .contains("`aoti_torch_nothing`")
        );
        // Nothing is deleted without its function.
        drop(Owned::new(std::ptr::null_mut()));
    }
}
