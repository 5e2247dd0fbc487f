//! The driver of a process, and what it made: kernels, memory, events. Arguments of launches.
//!
//! Contexts are the host process's: everything here works in the context that is current on the calling thread, as PyTorch
//! leaves it. [`Driver::make_current`] makes the shared context of a device current where there is no host process.

use crate::{Api, Code, Context, DevicePtr, Handle, Launch, Loaded, Stream, TensorMap};
use inrush_base::{Error, Properties, Result};
use std::ffi::CString;
use std::sync::Arc;

/// The driver of a kind of device in this process.
#[derive(Clone)]
pub struct Driver(Arc<dyn Api>);

impl Driver {
    /// Makes a driver of what implements it.
    pub fn new(api: Arc<dyn Api>) -> Driver {
        Driver(api)
    }

    pub(crate) fn api(&self) -> &dyn Api {
        &*self.0
    }

    /// Returns the name of the driver with its version, for readers.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn version(&self) -> Result<String> {
        self.0.version()
    }

    /// Returns the number of devices.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn devices(&self) -> Result<i32> {
        self.0.devices()
    }

    /// Returns the properties of the current device.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn properties(&self) -> Result<Properties> {
        self.0.properties()
    }

    /// Returns the context of a device that all users in the process share. It stays until the process ends.
    ///
    /// # Errors
    /// Those of the driver, with the number of the device.
    pub fn primary_context(&self, device: i32) -> Result<Context> {
        let context = self.0.context(device);
        context.map_err(|e| e.context(format!("device {device}")))
    }

    /// Makes a context current on the calling thread.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn set_current(&self, context: Context) -> Result<()> {
        self.0.set_current(Some(context))
    }

    /// Makes the shared context of a device current: for programs that host no other user of the driver.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn make_current(&self, device: i32) -> Result<()> {
        self.set_current(self.primary_context(device)?)
    }

    /// Makes the shared context of a device current where the calling thread has none yet: PyTorch sets it at its own first
    /// use of the runtime only.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn ensure_current(&self, device: i32) -> Result<()> {
        match self.0.current()? {
            Some(_) => Ok(()),
            None => self.make_current(device),
        }
    }

    /// Loads machine code and finds a kernel in it.
    ///
    /// # Errors
    /// A machine error for damaged code, and for more shared memory than the device has; those of the driver.
    pub fn load(&self, code: &[u8], symbol: &str, threads: u32, shared: u32) -> Result<Kernel> {
        self.load_code(Code::Binary(code), symbol, threads, shared)
    }

    /// Has the driver finish PTX for the current device, and finds a kernel in it.
    ///
    /// # Errors
    /// Those of the driver: an old one does not know the PTX of newer releases.
    pub fn load_ptx(&self, ptx: &[u8], symbol: &str, threads: u32, shared: u32) -> Result<Kernel> {
        let damaged = |_| Error::input(format!("the PTX of `{symbol}` is damaged"));
        let text = CString::new(ptx).map_err(damaged)?;
        self.load_code(Code::Text(&text), symbol, threads, shared)
    }

    fn load_code(&self, code: Code<'_>, symbol: &str, threads: u32, shared: u32) -> Result<Kernel> {
        let name = CString::new(symbol).map_err(|_| Error::internal("a name with a zero"))?;
        Ok(Kernel {
            loaded: self.0.load(code, &name, shared)?,
            driver: self.clone(),
            threads,
            shared,
            places: Box::default(),
            programmatic: false,
        })
    }

    /// Returns true if launches must say where each argument is: see [`Kernel::with_places`].
    pub fn takes_each(&self) -> bool {
        self.0.takes_each()
    }

    /// Returns true if kernels can access memory of a device at an address, whoever allocated it.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn can_access(&self, at: DevicePtr) -> Result<bool> {
        self.0.can_access(at)
    }

    /// Returns true if work on a stream can be captured, and issued again as one.
    pub fn can_capture(&self) -> bool {
        self.0.can_capture()
    }

    /// Returns true if events measure the time of work.
    pub fn can_time(&self) -> bool {
        self.0.can_time()
    }

    /// Makes an event that takes time stamps.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn event(&self) -> Result<Event> {
        Ok(Event {
            handle: self.0.event(true)?,
            driver: self.clone(),
        })
    }

    /// Waits until all work on the stream is done.
    ///
    /// # Errors
    /// Those of the driver, and of work that failed.
    pub fn synchronize(&self, stream: Stream) -> Result<()> {
        self.0.synchronize(stream)
    }

    /// Returns true if the stream is being captured.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn is_capturing(&self, stream: Stream) -> Result<bool> {
        self.0.is_capturing(stream)
    }

    /// Copies bytes on the device.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Safety
    /// Both addresses are of as many bytes on the device until the work is done; the stream belongs to the current context.
    pub unsafe fn copy(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
        stream: Stream,
    ) -> Result<()> {
        // SAFETY: by the caller's contract.
        unsafe { self.0.copy(to, from, bytes, stream) }
    }

    /// Copies bytes to the device. They are there when this returns, for all streams.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Safety
    /// So many bytes at the address are the caller's, and no work that was issued uses them.
    pub unsafe fn write(&self, to: DevicePtr, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: by the caller's contract.
        unsafe { self.0.write(to, data) }?;
        // Small copies from pageable memory may return before the device has the bytes.
        self.synchronize(Stream(0))
    }

    /// Copies bytes from the device, which work that was issued does not write any more.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Safety
    /// So many bytes at the address are the caller's.
    pub unsafe fn read(&self, from: DevicePtr, data: &mut [u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: by the caller's contract.
        unsafe { self.0.read(from, data) }
    }

    /// Makes bytes zero, in the order of the stream's work.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Safety
    /// So many bytes at the address are the caller's until the work is done.
    pub unsafe fn clear(&self, at: DevicePtr, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: by the caller's contract.
        unsafe { self.0.clear(at, bytes, Some(stream)) }
    }

    /// Allocates memory of the device.
    ///
    /// # Errors
    /// Too little memory, and those of the driver.
    pub fn allocate(&self, bytes: usize) -> Result<Memory> {
        Ok(Memory {
            at: self.0.allocate(bytes)?,
            driver: self.clone(),
            bytes,
        })
    }

    /// Returns the map of a tensor at an address.
    ///
    /// # Errors
    /// An unsupported error for devices without tensor maps; where the driver refuses this one.
    pub fn tensor_map(&self, tensor: &crate::Tensor, address: DevicePtr) -> Result<TensorMap> {
        self.0.tensor_map(tensor, address)
    }
}

/// A loaded kernel.
pub struct Kernel {
    pub(crate) driver: Driver,
    loaded: Loaded,
    threads: u32,
    shared: u32,
    /// Where each argument begins, and its bytes, where the driver is told them one by one.
    places: Box<[(u32, u32)]>,
    /// It waits for the kernel before it.
    programmatic: bool,
}

// SAFETY: handles of a driver may be used from any thread with the same context.
unsafe impl Send for Kernel {}
// SAFETY: likewise.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Makes launches pass each argument by itself, given the offsets where these begin and their bytes. Tensor maps
    /// must be aligned to 64 bytes in the device's argument memory, whose start differs between
    /// machines and is known to the driver only.
    pub fn with_places(self, places: Vec<(u32, u32)>) -> Kernel {
        let mut kernel = self;
        kernel.places = places.into();
        kernel
    }

    /// Gives programs `warps` warps of as many threads as the kernel was built for, where that differs from kernel to kernel.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn with_warps(self, warps: u32) -> Result<Kernel> {
        let mut kernel = self;
        // SAFETY: the kernel is loaded.
        if let Some(lanes) = unsafe { kernel.driver.0.lanes(kernel.loaded.function) }? {
            kernel.threads = warps.saturating_mul(lanes);
        }
        Ok(kernel)
    }

    /// Lets launches begin before the kernel before them has ended, if the driver can.
    ///
    /// # Safety
    /// Every thread of the kernel waits for the kernels before it (`griddepcontrol.wait`) before it accesses memory.
    pub unsafe fn programmatic(self) -> Kernel {
        let mut kernel = self;
        kernel.programmatic = kernel.driver.0.can_overlap();
        kernel
    }

    /// Returns a launch of the kernel.
    pub(crate) fn of<'a>(&'a self, grid: [u32; 3], arguments: &'a mut [u8]) -> Launch<'a> {
        Launch {
            function: self.loaded.function,
            grid,
            threads: self.threads,
            shared: self.shared,
            arguments,
            places: &self.places,
            overlaps: self.programmatic,
        }
    }

    /// Returns the registers of a thread, and bytes that it spills.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn resources(&self) -> Result<(i32, i32)> {
        // SAFETY: the kernel is loaded.
        unsafe { self.driver.0.resources(self.loaded.function) }
    }

    /// Starts a grid of programs on a stream.
    ///
    /// # Errors
    /// Those of the driver, and of work before that failed.
    ///
    /// # Safety
    /// The arguments are those of the kernel, in order; addresses among them are valid on the device until the work is done,
    /// and the stream belongs to the current context.
    pub unsafe fn launch(
        &self,
        grid: [u32; 3],
        arguments: &mut [u8],
        stream: Stream,
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        // SAFETY: by the caller's contract.
        unsafe { (self.driver.0).launch(&mut self.of(grid, arguments), stream) }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: nothing else has the module.
        unsafe { self.driver.0.unload(self.loaded) };
    }
}

/// Arguments of a launch, packed as the kernel reads them: each at a multiple of its size.
#[derive(Clone, Default, Debug)]
pub struct Arguments {
    bytes: Vec<u8>,
}

impl Arguments {
    /// None yet, with room for these many bytes.
    pub fn with_capacity(bytes: usize) -> Arguments {
        Arguments {
            bytes: Vec::with_capacity(bytes),
        }
    }

    fn push(&mut self, value: &[u8]) -> usize {
        while !self.bytes.len().is_multiple_of(value.len()) {
            self.bytes.push(0);
        }
        self.bytes.extend_from_slice(value);
        self.bytes.len() - value.len()
    }

    /// Adds an address; gives its place, for [`Arguments::set_pointer`].
    pub fn pointer(&mut self, p: DevicePtr) -> usize {
        self.push(&p.to_le_bytes())
    }
    /// Adds a number of 32 bits; gives its place.
    pub fn i32(&mut self, v: i32) -> usize {
        self.push(&v.to_le_bytes())
    }
    /// Adds a number of 64 bits; gives its place.
    pub fn i64(&mut self, v: i64) -> usize {
        self.push(&v.to_le_bytes())
    }
    /// Adds a float; gives its place.
    pub fn f32(&mut self, v: f32) -> usize {
        self.push(&v.to_le_bytes())
    }
    /// Adds a truth value of one byte; gives its place.
    pub fn bool(&mut self, v: bool) -> usize {
        self.push(&[u8::from(v)])
    }
    /// Adds room for a tensor map; gives its place.
    pub fn map(&mut self) -> usize {
        const ALIGNMENT: usize = align_of::<TensorMap>();
        let at = self.bytes.len().next_multiple_of(ALIGNMENT);
        self.bytes.resize(at + TensorMap::BYTES, 0);
        at
    }
    /// Adds what every Triton kernel takes last: its scratch space and the profiler's.
    /// Gives the scratch space's place.
    pub fn finish(&mut self, scratch: DevicePtr) -> usize {
        let at = self.pointer(scratch);
        self.pointer(0);
        at
    }
    /// As the kernel reads them; an address at a place that [`Arguments::pointer`] gave is eight of them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A point in a stream's work, with a time stamp.
pub struct Event {
    driver: Driver,
    handle: Handle,
}

impl Event {
    /// Has the event stand for all work that was issued on the stream so far.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn record(&self, stream: Stream) -> Result<()> {
        // SAFETY: the event exists.
        unsafe { self.driver.0.record_event(self.handle, stream) }
    }

    /// Returns the milliseconds since `start`, once both are done.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn since(&self, start: &Event) -> Result<f32> {
        // SAFETY: both events exist, and take time stamps.
        unsafe { self.driver.0.elapsed(start.handle, self.handle) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nothing else has the event.
        unsafe { self.driver.0.destroy_event(self.handle) };
    }
}

/// Memory of the device.
pub struct Memory {
    driver: Driver,
    at: DevicePtr,
    bytes: usize,
}

impl Memory {
    /// Returns the address of the first byte.
    pub fn address(&self) -> DevicePtr {
        self.at
    }

    /// Copies bytes of the host to the beginning.
    ///
    /// # Errors
    /// An internal error for more bytes than there are; those of the driver.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        if data.len() > self.bytes {
            return Err(Error::internal("more data than memory"));
        }
        // SAFETY: both sides hold as many bytes.
        unsafe { self.driver.0.write(self.at, data) }
    }

    /// Makes all bytes zero.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn clear(&mut self) -> Result<()> {
        // SAFETY: the memory is this long.
        unsafe { self.driver.0.clear(self.at, self.bytes, None) }
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies all bytes to the host.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn read(&self) -> Result<Vec<u8>> {
        let mut out = vec![0u8; self.bytes];
        // SAFETY: both sides hold as many bytes.
        unsafe { self.driver.0.read(self.at, &mut out) }?;
        Ok(out)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing else has the address.
        unsafe { self.driver.0.free(self.at) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_lie_at_multiples_of_their_sizes() {
        let mut a = Arguments::default();
        assert_eq!(a.pointer(1), 0);
        assert_eq!(a.i32(2), 8);
        assert_eq!(a.i64(3), 16);
        assert_eq!(a.i32(4), 24);
        a.finish(0);
        assert_eq!(a.bytes.len(), 48);
        assert_eq!(a.bytes()[8], 2);
        assert_eq!((a.map(), a.i32(5)), (64, 192));
    }
}
