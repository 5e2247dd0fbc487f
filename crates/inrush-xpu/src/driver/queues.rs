//! Queues of SYCL that a host process has for streams: work is appended to the command list of each.
//!
//! The oneAPI runtime exports the member functions that its header's `get_native` calls, and an in-order queue of its second adapter for
//! Level Zero appends all of its work, copies included, to one immediate command list with the flag `IN_ORDER`. Level Zero runs such
//! a list in the order of the appends, whoever appends. Work of this driver is therefore in order with the queue's.
//!
//! All else is refused with the reason:
//! - The first adapter has further lists, for copies, and orders them by events of its own, which do not know of other work. The Unified
//!   Runtime tells the adapter's version (`adapters`).
//! - Batched queues of the second adapter hold work back, which would run after work that is appended later. Immediate queues write 1 to
//!   the description of the handle (from the runtime 2025.3 on), batched ones leave it as it was.
//! - A queue that is recorded into a graph runs nothing.
//!
//! Where the loader cannot tell the flags of a list, barriers before and after each piece of work order it.
//!
//! What the runtime itself knows of a queue's last event does not include work of others. The host issues work of its own afterwards
//! ([`Api::take_issued`](inrush_driver::Api::take_issued)). Lists take work from one thread at a time, and the runtime's lock is not
//! known here: threads of a host process that issue work at once must use different queues.

use super::adapters::Adapters;
use super::names::{Lists, flags_of};
use super::{IN_ORDER, Zero, check, lock, make, none};
use inrush_base::{Error, Result};
use inrush_driver::{Handle, Stream, Symbols};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// `sycl::backend::ext_oneapi_level_zero`.
const LEVEL_ZERO: u8 = 2;
/// The adapter that appends all work of a queue to one list.
const SECOND: u32 = 2;
/// Descriptions of a handle: of an immediate command list, and what no adapter writes.
const IMMEDIATE: i32 = 1;
const UNTOUCHED: i32 = i32::MIN;
/// Has the second adapter hold work back.
const FORCE_BATCHED: &str = "UR_L0_V2_FORCE_BATCHED";
/// Advice where the first adapter is in use.
const SELECT_SECOND: &str = "set SYCL_UR_USE_LEVEL_ZERO_V2=1 before the process starts";

/// A member function of `sycl::queue` that returns a truth value or an enumerator, of which the low byte counts.
type Ask = unsafe extern "C-unwind" fn(*const c_void) -> u8;
/// `getNative`.
type Native = unsafe extern "C-unwind" fn(*const c_void, *mut i32) -> usize;

/// A queue that was adopted.
pub(super) struct Adopted {
    /// Address of the `sycl::queue`.
    pub(super) queue: usize,
    /// The command list that it has now.
    pub(super) list: usize,
    /// The list may run work in another order than that of the appends.
    pub(super) needs_barriers: bool,
    /// Work was appended that the host has not been told of.
    pub(super) is_issued: bool,
    /// Work was appended that has not been waited for.
    pub(super) is_pending: bool,
}

/// Member functions of `sycl::queue`. One that throws ends the process: Rust does not catch exceptions of C++.
pub(super) struct Sycl {
    /// `get_backend() const`.
    backend: Ask,
    /// `is_in_order() const`.
    is_in_order: Ask,
    /// `ext_oneapi_get_state() const`: 1 while work is recorded.
    state: Ask,
    /// `has_property<no_immediate_command_list>() const`, which newer runtimes do not export.
    is_batched: Option<Ask>,
    /// `getNative(int32_t &) const`.
    native: Native,
    adapters: Adapters,
    /// Set once the adapter in use is known to be the second one.
    is_second: OnceLock<()>,
    /// All queues hold work back.
    all_batched: bool,
}

/// Returns the address of a function of the host process.
///
/// # Errors
/// An unsupported error that names the function and the library that should have it.
pub(super) fn find(symbols: Symbols<'_>, name: &CStr, library: &str) -> Result<*const c_void> {
    symbols(name).ok_or_else(|| {
        Error::unsupported(format!(
            "the SYCL runtime of this process exports no `{}`, which oneAPI's `{library}` of 2025 has",
            name.to_string_lossy()
        ))
    })
}

impl Sycl {
    fn find(symbols: Symbols<'_>) -> Result<Sycl> {
        let find = |name: &CStr| find(symbols, name, "libsycl");
        let batched = c"_ZNK4sycl3_V15queue12has_propertyINS0_3ext5intel8property5queue25no_immediate_command_listEEEbv";
        // SAFETY: the types are those of the runtime's header for these symbols, by the C++ ABI of Linux: the object's address comes
        // first, a reference is an address.
        unsafe {
            let ask =
                |name: &CStr| find(name).map(|f| std::mem::transmute::<*const c_void, Ask>(f));
            Ok(Sycl {
                backend: ask(c"_ZNK4sycl3_V15queue11get_backendEv")?,
                is_in_order: ask(c"_ZNK4sycl3_V15queue11is_in_orderEv")?,
                state: ask(c"_ZNK4sycl3_V15queue20ext_oneapi_get_stateEv")?,
                is_batched: ask(batched).ok(),
                native: std::mem::transmute::<*const c_void, Native>(find(
                    c"_ZNK4sycl3_V15queue9getNativeERi",
                )?),
                adapters: Adapters::find(symbols)?,
                is_second: OnceLock::new(),
                all_batched: std::env::var_os(FORCE_BATCHED)
                    .is_some_and(|v| !v.is_empty() && v != "0"),
            })
        }
    }

    /// Returns the immediate command list of a queue to which all of its work is appended.
    ///
    /// # Safety
    /// The address is that of a queue.
    unsafe fn list(&self, queue: *const c_void) -> Result<Handle> {
        // SAFETY: by the caller's promise, here and below.
        if unsafe { (self.backend)(queue) } != LEVEL_ZERO {
            return none("a queue of SYCL for another driver (see ONEAPI_DEVICE_SELECTOR)");
        }
        // SAFETY: likewise.
        if unsafe { (self.is_in_order)(queue) } == 0 {
            return none("a queue of SYCL whose work runs in any order");
        }
        // SAFETY: likewise.
        if unsafe { (self.state)(queue) } != 0 {
            return none(
                "a queue of SYCL that is captured: work of this driver cannot be part of a graph of SYCL",
            );
        }
        // SAFETY: likewise.
        if self.all_batched || self.is_batched.is_some_and(|f| unsafe { f(queue) } != 0) {
            return none(&format!(
                "a queue of SYCL that holds work back ({FORCE_BATCHED}, or the property `no_immediate_command_list`)"
            ));
        }
        self.check_adapter()?;
        let mut description = UNTOUCHED;
        // SAFETY: likewise; the description is a local.
        let native = unsafe { (self.native)(queue, &mut description) };
        match description {
            IMMEDIATE if native != 0 => Ok(native as Handle),
            UNTOUCHED => none(&format!(
                "a queue of SYCL that does not tell whether it is an immediate command list: batched queues do not, for which {FORCE_BATCHED} \
                 or a property of the queue is the reason, nor do runtimes before oneAPI 2025.3"
            )),
            _ => none(
                "a queue of SYCL that is no immediate command list: unset UR_L0_USE_IMMEDIATE_COMMANDLISTS and \
                 SYCL_PI_LEVEL_ZERO_USE_IMMEDIATE_COMMANDLISTS",
            ),
        }
    }

    /// Refuses all adapters for Level Zero but the second one. What is taken is not asked for again: the adapter stays.
    fn check_adapter(&self) -> Result<()> {
        if self.is_second.get().is_some() {
            return Ok(());
        }
        match self.adapters.version()? {
            SECOND => {
                _ = self.is_second.set(());
                Ok(())
            }
            0 | 1 => none(&format!(
                "a queue of SYCL of the runtime's first adapter, which orders copies on lists of their own by events that other \
                 work has no part in: {SELECT_SECOND}"
            )),
            later => none(&format!(
                "a queue of SYCL of an adapter of version {later}, whose order is not known"
            )),
        }
    }
}

impl Lists {
    /// Has later work of a list wait for all work before.
    ///
    /// # Safety
    /// The list exists, and no other thread appends to it meanwhile.
    pub(super) unsafe fn barrier(&self, list: Handle) -> Result<()> {
        // SAFETY: by the caller's promise; there are no events.
        check("zeCommandListAppendBarrier", unsafe {
            (self.append_barrier)(list, null_mut(), 0, null_mut())
        })
    }
}

impl Zero {
    /// Returns the functions that adopted queues need.
    pub(super) fn lists(&self) -> Result<&Lists> {
        let found = self.lists.get_or_init(|| Lists::find(&self.library));
        found.as_ref().map_err(Clone::clone)
    }

    fn sycl(&self, symbols: Symbols<'_>) -> Result<&Sycl> {
        if self.sycl.get().is_none() {
            // Another thread may have found the same.
            _ = self.sycl.set(Sycl::find(symbols)?);
        }
        self.sycl
            .get()
            .ok_or_else(|| Error::internal("no functions of SYCL"))
    }

    /// Returns true if a list runs its work in the order of the appends; `None` where that is not told.
    ///
    /// # Safety
    /// The list is an immediate one.
    unsafe fn is_in_order(&self, list: Handle) -> Option<bool> {
        let flags_of = (*self.list_flags.get_or_init(|| flags_of(&self.library)))?;
        let mut flags = 0;
        // SAFETY: by the caller's promise.
        let status = unsafe { flags_of(list, &mut flags) };
        (status == 0).then_some(flags & IN_ORDER != 0)
    }

    /// Takes work for a queue of SYCL.
    ///
    /// # Errors
    /// An unsupported error where work would be in no order with the queue's.
    ///
    /// # Safety
    /// The stream is the address of a queue that stays until work that is appended for it is done.
    pub(super) unsafe fn adopt_queue(
        &self,
        device: i32,
        stream: Stream,
        symbols: Symbols<'_>,
    ) -> Result<()> {
        let number = usize::try_from(device).map_err(|_| Error::internal("a device below 0"))?;
        if stream.0 == 0 {
            return none("a stream that is no queue of SYCL");
        }
        let (sycl, lists) = (self.sycl(symbols)?, self.lists()?);
        // SAFETY: by the caller's promise.
        let list = unsafe { sycl.list(stream.0 as *const c_void) }?;
        let mut is_immediate = 0u8;
        // SAFETY: the queue's list exists.
        check("zeCommandListIsImmediate", unsafe {
            (lists.is_immediate)(list, &mut is_immediate)
        })?;
        if is_immediate == 0 {
            return none("a queue of SYCL that is no immediate command list");
        }
        // SAFETY: likewise.
        let context = make("zeCommandListGetContextHandle", |c| unsafe {
            (lists.context)(list, c)
        })?;
        // SAFETY: likewise.
        let device = make("zeCommandListGetDeviceHandle", |d| unsafe {
            (lists.device)(list, d)
        })?;
        // SAFETY: the list is immediate.
        let needs_barriers = unsafe { self.is_in_order(list) } != Some(true);
        self.share(context, number, device)?;
        let (queue, list) = (stream.0, list as usize);
        let mut state = lock(&self.state);
        match state.adopted.iter_mut().find(|a| a.queue == queue) {
            Some(a) => (a.list, a.needs_barriers) = (list, needs_barriers),
            None => state.adopted.push(Adopted {
                queue,
                list,
                needs_barriers,
                is_issued: false,
                is_pending: false,
            }),
        }
        Ok(())
    }

    /// Has modules and memory be made in the context of a queue, for its device.
    fn share(&self, context: Handle, number: usize, device: Handle) -> Result<()> {
        let mut shared = lock(&self.shared);
        match shared.context {
            Some(other) if other != context => {
                return none(
                    "a queue of SYCL in another context than the kernels and the memory that were made before",
                );
            }
            _ => shared.context = Some(context),
        }
        match shared.devices.insert(number, device) {
            Some(other) if other != device => {
                Err(Error::internal("a device that became another one"))
            }
            _ => Ok(()),
        }
    }
}
