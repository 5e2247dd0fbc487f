//! Executes programs in parts: compiled programs, and between them functions that decide the sizes of what follows.
//!
//! A model of a program in parts holds a model for each segment. They share the machine code, the source of the weights and the
//! pool. What calls write, such as a cache, is the outer model's: segments get it as an input.
//!
//! ```text
//! call   read symbols of the inputs, check them, copy inputs of other strides
//!        for each step: run it into slots; read the symbols that it made known; check guards whose sides are known now
//!        write new contents of inputs and weights; hand over outputs
//! ```

mod call;
mod write;

use crate::model::{Bound, Model};
use crate::weights::WeightSource;
use inrush_base::{Error, Result};
use inrush_cpu::Pool;
use inrush_library::DynamicFunction;
use inrush_program::Program;
use inrush_program::parts::{Sequence, StepKind};
use std::path::Path;
use std::sync::Arc;

/// The segments of a program in parts, with their weights bound. By step; `None` for steps that are no segments.
#[derive(Clone)]
pub(crate) struct BoundParts {
    segments: Vec<Option<Bound>>,
}

/// The steps of a program in parts, ready to run. By step.
pub(crate) struct LoadedParts {
    steps: Vec<Ready>,
}

/// A step's code, ready to run.
enum Ready {
    Segment(Box<Model>),
    Dynamic(&'static DynamicFunction),
    Plain,
}

impl BoundParts {
    /// Binds the weights of all segments of a program; `None` for one that is not in parts.
    pub fn of(
        program: &Program,
        weights: &Arc<dyn WeightSource>,
        pool: &Arc<Pool>,
    ) -> Result<Option<BoundParts>> {
        let Some(parts) = &program.parts else {
            return Ok(None);
        };
        let segments = (parts.steps.iter())
            .map(|s| match &s.kind {
                StepKind::Segment(s) => {
                    let program = Arc::new(s.program.clone());
                    Bound::on(program, weights.clone(), pool.clone()).map(Some)
                }
                _ => Ok(None),
            })
            .collect::<Result<_>>()?;
        Ok(Some(BoundParts { segments }))
    }

    /// Loads the code of all segments.
    pub fn load(self, parts: &Sequence, object: &Path) -> Result<LoadedParts> {
        self.ready(parts, |_, bound| bound.load(object))
    }

    /// Gives the segments the code of other models of the same program.
    pub fn with_code_of(self, parts: &Sequence, other: &LoadedParts) -> Result<LoadedParts> {
        self.ready(parts, |at, bound| match &other.steps[at] {
            Ready::Segment(m) => bound.with_code(m.code.clone()),
            _ => Err(Error::internal("a segment has no code")),
        })
    }

    fn ready(
        self,
        parts: &Sequence,
        load: impl Fn(usize, Bound) -> Result<Model>,
    ) -> Result<LoadedParts> {
        let steps = (parts.steps.iter().zip(self.segments).enumerate())
            .map(|(at, (step, bound))| {
                Ok(match (&step.kind, bound) {
                    (_, Some(bound)) => Ready::Segment(Box::new(load(at, bound)?)),
                    (StepKind::Dynamic(d), None) => Ready::Dynamic(function(&d.function)?),
                    (_, None) => Ready::Plain,
                })
            })
            .collect::<Result<_>>()?;
        Ok(LoadedParts { steps })
    }
}

impl LoadedParts {
    /// Returns the same steps on another pool.
    pub fn on_pool(&self, pool: &Arc<Pool>) -> LoadedParts {
        let moved = |s: &Ready| match s {
            Ready::Segment(m) => Ready::Segment(Box::new(m.share().on_pool(pool.clone()))),
            Ready::Dynamic(f) => Ready::Dynamic(f),
            Ready::Plain => Ready::Plain,
        };
        LoadedParts {
            steps: self.steps.iter().map(moved).collect(),
        }
    }
}

fn function(name: &str) -> Result<&'static DynamicFunction> {
    inrush_library::find_dynamic(name).ok_or_else(|| {
        Error::unsupported(format!(
            "the library function `{name}`, which the program calls and this version of the runtime lacks"
        ))
    })
}
