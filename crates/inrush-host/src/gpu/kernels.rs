//! The kernels of an engine: built before, or being built while the program is loaded.
//!
//! A plan needs the numbers of the kernels that it launches, so that making it waits for their builds and for no others: kernels of
//! control flow that is not taken, and of later regions, may still be missing.

use super::build;
use super::choose::{self, Trial};
use super::driver::Kernel;
use crate::program::Gpu;
use inrush_base::{Error, Result};
use inrush_program::BinaryInfo;
use inrush_runtime::triton::Binary;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Builds kernels in the background.
pub trait Builds: Send + Sync {
    /// Returns a kernel by its position among those of the whole program. Waits for its build.
    ///
    /// # Errors
    /// Those of the build; they name the kernel.
    fn wait(&self, kernel: usize) -> Result<Binary>;

    /// Returns true for a kernel that is chosen among several at its first launch.
    fn is_chosen_later(&self, kernel: usize) -> bool;

    /// Returns the others that take the launches of a kernel, each with a name. Waits for their builds.
    fn candidates(&self, kernel: usize) -> Vec<(String, Result<Binary>)>;

    /// Keeps the choice: the kernel itself, or a candidate by position; says how it was made.
    fn keep(&self, kernel: usize, chosen: Option<usize>, choice: String);
}

/// A kernel that an engine is given.
pub enum Provided {
    /// It is built.
    Built(Binary),
    /// It is being built, and has this position there.
    Later(Arc<dyn Builds>, usize),
}

/// The kernels of one program.
pub struct Kernels {
    all: Vec<Slot>,
}

struct Slot {
    provided: Provided,
    /// The build that was waited for.
    built: OnceLock<Binary>,
    loaded: OnceLock<Arc<Kernel>>,
    /// Held by the call that chooses.
    choosing: Mutex<()>,
}

impl Slot {
    fn binary(&self) -> Result<&Binary> {
        match &self.provided {
            Provided::Built(binary) => Ok(binary),
            Provided::Later(builds, at) => match self.built.get() {
                Some(binary) => Ok(binary),
                None => {
                    let binary = builds.wait(*at)?;
                    Ok(self.built.get_or_init(|| binary))
                }
            },
        }
    }
}

impl Kernels {
    /// Takes the kernels of a program, in order; none where they are interpreted.
    pub fn new(all: Vec<Provided>) -> Kernels {
        let slot = |provided| Slot {
            provided,
            built: OnceLock::new(),
            loaded: OnceLock::new(),
            choosing: Mutex::default(),
        };
        Kernels {
            all: all.into_iter().map(slot).collect(),
        }
    }

    /// Returns the numbers of a kernel, for which this waits; `None` where kernels are interpreted.
    ///
    /// # Errors
    /// Those of the build.
    pub fn info(&self, kernel: usize) -> Result<Option<&BinaryInfo>> {
        let slot = self.all.get(kernel);
        slot.map(|s| s.binary().map(|b| &b.info)).transpose()
    }

    /// Loads the kernels that were built before into the current context.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn load_built(&self, gpu: &Gpu) -> Result<()> {
        for (k, slot) in self.all.iter().enumerate() {
            if let Provided::Built(_) = slot.provided {
                self.loaded(k, gpu)?;
            }
        }
        Ok(())
    }

    /// Returns a kernel in the current context. Waits for its build, and loads it, the first time.
    ///
    /// # Errors
    /// Those of the build and of the driver.
    pub fn loaded(&self, kernel: usize, gpu: &Gpu) -> Result<&Arc<Kernel>> {
        let missing = || Error::internal("a launch of a kernel that there is not");
        let slot = self.all.get(kernel).ok_or_else(missing)?;
        if let Some(loaded) = slot.loaded.get() {
            return Ok(loaded);
        }
        let source = gpu.kernels.get(kernel).ok_or_else(missing)?;
        let loaded = build::load(slot.binary()?, source, gpu)?;
        Ok(slot.loaded.get_or_init(|| loaded))
    }

    /// Returns a kernel that is loaded.
    pub fn ready(&self, kernel: usize) -> Option<&Arc<Kernel>> {
        self.all.get(kernel)?.loaded.get()
    }

    /// Returns true for a kernel whose first launch chooses it among several.
    pub fn is_chosen_later(&self, kernel: usize) -> bool {
        self.all
            .get(kernel)
            .is_some_and(|slot| match &slot.provided {
                Provided::Later(builds, at) => {
                    slot.loaded.get().is_none() && builds.is_chosen_later(*at)
                }
                Provided::Built(_) => false,
            })
    }

    /// Chooses a kernel on the memory of its first launch, which has its old contents afterwards, and loads it.
    ///
    /// # Errors
    /// Those of the kernel's own build, and of the driver where the memory cannot be restored. Others leave the rules' choice.
    pub fn choose(&self, kernel: usize, gpu: &Gpu, trial: &Trial<'_>) -> Result<&Arc<Kernel>> {
        let slot = &self.all[kernel];
        let Provided::Later(builds, at) = &slot.provided else {
            return self.loaded(kernel, gpu);
        };
        let _choosing = slot.choosing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = slot.loaded.get() {
            return Ok(loaded);
        }
        let (rule, source) = (slot.binary()?, &gpu.kernels[kernel]);
        let loaded = build::load(rule, source, gpu)?;
        let others = (builds.candidates(*at).into_iter())
            .map(|(name, made)| {
                let made = made.and_then(|b| match choose::takes_launch(&b.info, &rule.info) {
                    true => build::load(&b, source, gpu),
                    false => Err(Error::unsupported("it takes another launch")),
                });
                (name, made)
            })
            .collect();
        let (chosen, choice) = choose::fastest(&loaded, others, trial)?;
        builds.keep(*at, chosen.as_ref().map(|c| c.0), choice);
        Ok(slot.loaded.get_or_init(|| chosen.map_or(loaded, |c| c.1)))
    }

    /// Returns the kernels that are loaded.
    pub fn all_loaded(&self) -> Vec<Arc<Kernel>> {
        let loaded = self.all.iter().filter_map(|s| s.loaded.get());
        loaded.cloned().collect()
    }
}
