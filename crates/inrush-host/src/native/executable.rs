//! A program that is ready to run on a device, with those that its control flow calls.

use super::process::Process;
use super::weights::{WeightPlan, reads, written};
use crate::gpu::{Engine, Provided};
use crate::program::{Lowered, StepKind};
use inrush_base::{Error, Result};
use inrush_program::Reads;
use inrush_program::parts::Work;
use inrush_runtime::operators::Registered;
use inrush_runtime::{Model, Pool};
use std::sync::{Arc, Mutex, PoisonError};

/// A program with its kernels.
pub(super) struct Executable {
    pub(super) lowered: Lowered,
    pub(super) engine: Engine<Process>,
    pub(super) plan: WeightPlan,
    /// By slot: a call writes the argument or weight.
    pub(super) written: Vec<bool>,
    /// By slot: what steps assume about the memory of the argument.
    pub(super) reads: Vec<Reads>,
    /// By symbol: its name and inclusive bounds.
    pub(super) bounds: Vec<Option<(String, i64, i64)>>,
    /// By step.
    pub(super) works: Vec<Ready>,
}

/// The work of a step, ready to run.
pub(super) enum Ready {
    /// A step of kernels, or of the device's library.
    Device,
    /// A function that allocates its results.
    Dynamic,
    /// Functions of the library, on tensors of the host.
    Library(Box<Model>),
    /// An operator of the user's.
    Custom(Registered),
    /// Programs of control flow.
    Bodies(Vec<Executable>),
}

impl Executable {
    /// Makes a program ready, and loads the kernels that are built into the current context. `kernels` are those of
    /// [`Lowered::kernels`].
    ///
    /// # Errors
    /// Those of the driver; an unsupported error for a function that the library lacks.
    pub(super) fn new(
        lowered: Lowered,
        kernels: &mut dyn Iterator<Item = Provided>,
    ) -> Result<Self> {
        let count = lowered.program.gpu.as_ref().map_or(0, |g| g.kernels.len());
        let own: Vec<Provided> = kernels.take(count).collect();
        if own.len() != count {
            return Err(Error::internal("a program has fewer binaries than kernels"));
        }
        let engine = Engine::with(&lowered.program, own)?;
        engine.preload(&lowered.program)?;
        let mut works = Vec::with_capacity(lowered.program.steps.len());
        for step in &lowered.program.steps {
            works.push(match &step.kind {
                StepKind::Work(w) => Ready::of(w, &lowered, kernels)?,
                _ => Ready::Device,
            });
        }
        Ok(Executable {
            plan: WeightPlan::of(&lowered)?,
            written: written(&lowered.program),
            reads: reads(&lowered.program),
            bounds: super::signature::bounds(&lowered),
            lowered,
            engine,
            works,
        })
    }
}

impl Ready {
    fn of(
        work: &Work<Lowered>,
        program: &Lowered,
        kernels: &mut dyn Iterator<Item = Provided>,
    ) -> Result<Ready> {
        match work {
            Work::Dynamic(d) => match inrush_runtime::has_dynamic(&d.function) {
                true => Ok(Ready::Dynamic),
                false => Err(Error::unsupported(format!(
                    "the library function `{}`, which the program calls and this version of the runtime lacks",
                    d.function
                ))),
            },
            Work::Library { segment, .. } => {
                let model = Model::of_library(segment.program.clone(), pool()?)?;
                Ok(Ready::Library(Box::new(model)))
            }
            Work::Custom(c) => Ok(Ready::Custom(super::custom::find(c, program)?)),
            Work::Cond(_) | Work::While(_) | Work::Scan(_) => {
                let bodies = work.bodies().into_iter();
                let ready = bodies.map(|(_, b)| Executable::new(b.program.clone(), kernels));
                Ok(Ready::Bodies(ready.collect::<Result<_>>()?))
            }
        }
    }
}

/// Returns the threads of functions on the host, which all models share.
///
/// # Errors
/// A machine error where threads cannot be started.
pub(super) fn pool() -> Result<Arc<Pool>> {
    static POOL: Mutex<Option<Arc<Pool>>> = Mutex::new(None);
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    match &*pool {
        Some(pool) => Ok(pool.clone()),
        None => {
            let made = Arc::new(Pool::new(None)?);
            *pool = Some(made.clone());
            Ok(made)
        }
    }
}
