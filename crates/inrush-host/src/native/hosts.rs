//! The hosts of a model: each call has one to itself, with a stream and a handle of cuBLAS.

use super::memory::{Memory, Pool, TensorLibrary};
use super::process::Process;
use crate::gpu::cublas::Blas;
use crate::gpu::driver::{Context, Driver, Stream};
use inrush_base::Result;
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A bounded number of hosts. A call that finds all of them in use waits.
pub(super) struct Hosts {
    pub(super) driver: Driver,
    pub(super) context: Context,
    pub(super) blas: Option<&'static Blas>,
    pub(super) memory: Memory,
    most: usize,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Default)]
struct State {
    /// Hosts that no call uses, the one used last at the end.
    idle: Vec<Process>,
    made: usize,
}

/// A host that a call uses.
pub(super) struct Held<'a> {
    hosts: &'a Hosts,
    /// Taken when this is dropped.
    host: Option<Process>,
}

impl Hosts {
    /// Makes the list of at most `most` hosts, which allocate from `library` or else from the driver. The context is current.
    pub(super) fn new(
        (driver, context): (Driver, Context),
        blas: Option<&'static Blas>,
        library: Option<Arc<dyn TensorLibrary>>,
        most: usize,
    ) -> Hosts {
        Hosts {
            memory: match library {
                Some(library) => Memory::Library(library),
                None => Memory::Driver(Pool::new(driver.clone(), context)),
            },
            driver,
            context,
            blas,
            most: most.max(1),
            state: Mutex::default(),
            returned: Condvar::new(),
        }
    }

    /// Makes a host with memory of its own from the driver, which no call of another host gets.
    ///
    /// # Errors
    /// Those of the driver.
    pub(super) fn apart(&self) -> Result<Process> {
        let pool = Pool::new(self.driver.clone(), self.context);
        Process::new(self.driver.clone(), Memory::Driver(pool), self.blas)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a host for work on the stream, or on one of its own. Waits while all are in use. The context is current.
    ///
    /// # Errors
    /// Those of the driver.
    pub(super) fn take(&self, stream: Option<Stream>) -> Result<Held<'_>> {
        let mut state = self.lock();
        let host = loop {
            // One that worked on the stream last has its workspace there.
            let suits = |h: &Process| h.works_on(stream);
            if let Some(at) = state.idle.iter().rposition(suits) {
                break Some(state.idle.remove(at));
            }
            if state.made < self.most {
                state.made += 1;
                break None;
            }
            if let Some(host) = state.idle.pop() {
                break Some(host);
            }
            state = (self.returned.wait(state)).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        let made = match host {
            Some(host) => Ok(host),
            None => Process::new(self.driver.clone(), self.memory.clone(), self.blas),
        };
        let host = made.inspect_err(|_| {
            self.lock().made -= 1;
            self.returned.notify_one();
        })?;
        let mut held = Held {
            hosts: self,
            host: Some(host),
        };
        if let Some(host) = &mut held.host {
            host.work_on(stream)?;
        }
        Ok(held)
    }
}

impl Deref for Held<'_> {
    type Target = Process;

    fn deref(&self) -> &Process {
        match &self.host {
            Some(host) => host,
            None => unreachable!("a host is taken when it is dropped"),
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(host) = self.host.take() {
            self.hosts.lock().idle.push(host);
            self.hosts.returned.notify_one();
        }
    }
}
