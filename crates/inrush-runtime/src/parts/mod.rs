//! Executes programs in parts: compiled programs, and between them functions that decide the sizes of what follows, and control flow.
//!
//! A model of a program in parts holds a model for each segment and each body of control flow. They share the machine code, the
//! source of the weights and the pool. What calls write, such as a cache, is the outer model's: segments and bodies get it as an input.
//!
//! ```text
//! call   read symbols of the inputs, check them, copy inputs of other strides
//!        for each step: run it into slots; read the symbols that it made known; check guards whose sides are known now
//!        write new contents of inputs and weights; hand over outputs
//! ```

mod call;
mod control;
mod custom;
mod dynamic;
pub mod flow;
mod write;

pub(crate) use dynamic::{input, row_major};
pub use dynamic::{library_results, run_dynamic};

use crate::model::{Bound, Model};
use crate::operators::{OperatorDevice, Registered, check_operators, find_operator};
use crate::tensor::Value;
use crate::weights::WeightSource;
use inrush_base::{Error, Result};
use inrush_cpu::Pool;
use inrush_library::DynamicFunction;
use inrush_program::host::Segment;
use inrush_program::parts::{Sequence, StepKind};
use inrush_program::{InputType, Program, Size};
use std::path::Path;
use std::sync::Arc;

/// The programs that the steps of a program in parts call, with their weights bound. By step, in the order of
/// [`StepKind::programs`].
#[derive(Clone)]
pub(crate) struct BoundParts {
    programs: Vec<Vec<Bound>>,
}

/// The steps of a program in parts, ready to run. By step.
pub(crate) struct LoadedParts {
    steps: Vec<Ready>,
}

/// A step's code, ready to run.
enum Ready {
    Segment(Box<Model>),
    Bodies(Vec<Model>),
    Dynamic(&'static DynamicFunction),
    Custom(Registered),
    Plain,
}

impl Ready {
    /// Returns the models that the step runs.
    fn models(&self) -> &[Model] {
        match self {
            Ready::Segment(m) => std::slice::from_ref(m),
            Ready::Bodies(all) => all,
            Ready::Dynamic(_) | Ready::Custom(_) | Ready::Plain => &[],
        }
    }
}

impl BoundParts {
    /// Binds the weights of all programs that a program calls; `None` for one that is not in parts.
    pub fn of(
        program: &Program,
        weights: &Arc<dyn WeightSource>,
        pool: &Arc<Pool>,
    ) -> Result<Option<BoundParts>> {
        let Some(parts) = &program.parts else {
            return Ok(None);
        };
        check_operators(program)?;
        let bind = |p: &Program| Bound::on(Arc::new(p.clone()), weights.clone(), pool.clone());
        let programs = (parts.steps.iter())
            .map(|s| s.kind.programs().into_iter().map(bind).collect())
            .collect::<Result<_>>()?;
        Ok(Some(BoundParts { programs }))
    }

    /// Loads the code of all programs.
    pub fn load(self, parts: &Sequence, object: &Path) -> Result<LoadedParts> {
        self.ready(parts, |_, bound| bound.load(object))
    }

    /// Gives the programs the code of other models of the same program.
    pub fn with_code_of(self, parts: &Sequence, other: &LoadedParts) -> Result<LoadedParts> {
        self.ready(parts, |(step, at), bound| {
            let model = other.steps[step].models().get(at);
            bound.with_code_of(model.ok_or_else(|| Error::internal("a program has no code"))?)
        })
    }

    /// Makes the steps ready. `load` makes the model of a program, given its step and its position among the step's.
    fn ready(
        self,
        parts: &Sequence,
        load: impl Fn((usize, usize), Bound) -> Result<Model>,
    ) -> Result<LoadedParts> {
        let mut steps = Vec::with_capacity(parts.steps.len());
        for (step, (s, bound)) in parts.steps.iter().zip(self.programs).enumerate() {
            let mut models = (bound.into_iter().enumerate())
                .map(|(at, bound)| load((step, at), bound))
                .collect::<Result<Vec<_>>>()?;
            steps.push(match &s.kind {
                StepKind::Segment(_) => match models.pop() {
                    Some(model) => Ready::Segment(Box::new(model)),
                    None => return Err(Error::internal("a segment has no program")),
                },
                StepKind::Dynamic(d) => Ready::Dynamic(function(&d.function)?),
                StepKind::Custom(c) => Ready::Custom(find_operator(c, OperatorDevice::CPU)?),
                StepKind::Cond(_) => Ready::Bodies(models),
                StepKind::While(_) | StepKind::Scan(_) => {
                    models.iter().for_each(keep_small_blocks);
                    Ready::Bodies(models)
                }
                StepKind::View(_) | StepKind::Write(_) => Ready::Plain,
            });
        }
        Ok(LoadedParts { steps })
    }
}

impl LoadedParts {
    /// Returns the same steps on another pool.
    pub fn on_pool(&self, pool: &Arc<Pool>) -> LoadedParts {
        let moved = |m: &Model| m.share().on_pool(pool.clone());
        let step = |s: &Ready| match s {
            Ready::Segment(m) => Ready::Segment(Box::new(moved(m))),
            Ready::Bodies(all) => Ready::Bodies(all.iter().map(moved).collect()),
            Ready::Dynamic(f) => Ready::Dynamic(f),
            Ready::Custom(f) => Ready::Custom(f.clone()),
            Ready::Plain => Ready::Plain,
        };
        LoadedParts {
            steps: self.steps.iter().map(step).collect(),
        }
    }
}

/// Keeps blocks of any size for later turns, those of what a body calls too.
fn keep_small_blocks(body: &Model) {
    body.recycler.keep_small();
    if let Some(parts) = &body.parts {
        let models = parts.steps.iter().flat_map(Ready::models);
        models.for_each(keep_small_blocks);
    }
}

/// Returns true for a function that allocates its results.
pub fn has_dynamic(name: &str) -> bool {
    inrush_library::find_dynamic(name).is_some()
}

/// Returns the integers that a segment takes after its tensors. `symbols` are those of the program around, as far as they are known.
///
/// # Errors
/// An internal error for an input that is no symbol, or one that is not known.
pub fn segment_integers(s: &Segment, symbols: &[Option<i64>]) -> Result<Vec<Value>> {
    let program = &s.program;
    let rest = program.inputs.iter().skip(s.inputs.len());
    rest.map(|i| {
        let InputType::Int { value } = i.ty else {
            return Err(Error::internal("a segment takes what is no integer"));
        };
        let Size::Sym(k) = program.sizes[value.0 as usize] else {
            return Err(Error::internal(
                "a segment takes an integer that is no symbol",
            ));
        };
        let outer = s.symbols.get(k as usize).copied();
        let known = outer.and_then(|k| symbols.get(k as usize).copied().flatten());
        known
            .map(Value::Int)
            .ok_or_else(|| Error::internal("a symbol is not known yet"))
    })
    .collect()
}

fn function(name: &str) -> Result<&'static DynamicFunction> {
    inrush_library::find_dynamic(name).ok_or_else(|| {
        Error::unsupported(format!(
            "the library function `{name}`, which the program calls and this version of the runtime lacks"
        ))
    })
}
