//! Operators that users define: their functions, registered by the host under the operators' names.
//!
//! ```text
//! register("mylib::scale(Tensor x, float by=2.0) -> Tensor", OperatorDevice::CPU, |call| ..)    once a process
//! Model::open(..)        finds the functions that the program calls, or says which are missing
//! a call                 arguments in the order of the schema; results are allocated ahead of the call where their sizes are known
//! ```
//!
//! A model keeps the functions that it found: registering another one later changes later models only. `c.rs` is the form of
//! functions in C.

mod c;
mod call;

pub use c::{CArg, COperator, load_operators, register_c};
pub use call::{
    Arg, OperatorCall, OperatorTensor, arguments, check_asked_for, declared_result, invoke,
};

use inrush_base::schema::Operator;
use inrush_base::{Device, Error, Result};
use inrush_program::Program;
use inrush_program::parts::{Custom, operator_calls};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock};

/// A kind of device that functions are for.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OperatorDevice(&'static str);

impl OperatorDevice {
    /// Tensors are in memory of the host.
    pub const CPU: OperatorDevice = OperatorDevice("cpu");

    /// Returns a kind of GPU. Tensors are in its memory, and a function issues its work on the stream of the call.
    pub fn gpu(kind: &'static Device) -> OperatorDevice {
        OperatorDevice(kind.name)
    }

    /// Returns the kind of this name: `cpu`, or one in the list of devices.
    ///
    /// # Errors
    /// An input error for another name.
    pub fn parse(name: &str) -> Result<OperatorDevice> {
        if name == Self::CPU.0 {
            return Ok(Self::CPU);
        }
        let gpus = inrush_devices::ALL;
        let found = gpus.into_iter().find(|d| d.name == name);
        found.map(Self::gpu).ok_or_else(|| {
            let names: Vec<String> = gpus.iter().map(|d| format!("`{}`", d.name)).collect();
            Error::input(format!(
                "functions of operators are for `cpu` or {}, not `{name}`",
                names.join(", ")
            ))
        })
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        self.0
    }
}

/// The function of an operator: reads the arguments of the call and fills its results.
pub type OperatorFunction = dyn Fn(&mut OperatorCall<'_>) -> Result<()> + Send + Sync;

/// A function with the declaration that it was registered with.
#[derive(Clone)]
pub struct Registered {
    pub operator: Arc<Operator>,
    pub(crate) run: Arc<OperatorFunction>,
}

type Table = BTreeMap<(String, OperatorDevice), Registered>;

/// All functions of the process.
static TABLE: RwLock<Table> = RwLock::new(Table::new());

/// Registers the function of an operator for a kind of device, in place of an earlier one. `declaration` is the operator's schema
/// with its name: `mylib::scale(Tensor x, float by=2.0) -> Tensor`.
///
/// # Errors
/// Those of [`Operator::parse`].
pub fn register_operator(
    declaration: &str,
    device: OperatorDevice,
    run: impl Fn(&mut OperatorCall<'_>) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    let operator = Arc::new(Operator::parse(declaration)?);
    let key = (operator.name.clone(), device);
    let run = Arc::new(run);
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let earlier = table.insert(key, Registered { operator, run });
    drop(table);
    // What an earlier function holds may register functions when it is dropped.
    drop(earlier);
    Ok(())
}

/// Returns true if an operator has a function for a kind of device. `name` is as graphs have it: `mylib.scale.default`.
pub fn is_registered(name: &str, device: OperatorDevice) -> bool {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.contains_key(&(name.to_string(), device))
}

/// Returns the operators that have functions, sorted by name, each once.
pub fn registered() -> Vec<Operator> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let mut all: Vec<Operator> = table.values().map(|r| (*r.operator).clone()).collect();
    all.dedup_by(|a, b| a.name == b.name);
    all
}

/// Finds the function of a call.
///
/// # Errors
/// An input error for an operator without a function, or with one of another schema.
pub fn find_operator(call: &Custom, device: OperatorDevice) -> Result<Registered> {
    let wanted = call.declaration()?;
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let Some(found) = table.get(&(wanted.name.clone(), device)) else {
        return Err(missing(&[call], device));
    };
    if !found.operator.schema.calls_alike(&wanted.schema) {
        return Err(Error::input(format!(
            "the package was compiled for the operator `{wanted}`, the registered one is `{}`",
            found.operator
        )));
    }
    Ok(found.clone())
}

/// Checks that a CPU program's operators have functions, those of its bodies too.
///
/// # Errors
/// An input error that lists all that are missing, with their Python lines; one for a function of another schema.
pub(crate) fn check_operators(program: &Program) -> Result<()> {
    check_calls(&operator_calls(program), OperatorDevice::CPU)
}

/// Checks that calls have functions.
///
/// # Errors
/// As [`find_operator`]; one error lists all that are missing.
pub fn check_calls(calls: &[&Custom], device: OperatorDevice) -> Result<()> {
    let mut absent = Vec::new();
    for c in calls {
        if is_registered(&c.declaration()?.name, device) {
            find_operator(c, device)?;
        } else {
            absent.push(*c);
        }
    }
    if absent.is_empty() {
        Ok(())
    } else {
        Err(missing(&absent, device))
    }
}

/// Returns the error for calls without functions.
fn missing(calls: &[&Custom], device: OperatorDevice) -> Error {
    let mut text = format!(
        "the package calls operators that the host did not register for `{}`:",
        device.name()
    );
    let mut seen = Vec::new();
    for c in calls {
        if seen.contains(&&c.operator) {
            continue;
        }
        seen.push(&c.operator);
        _ = write!(text, "\n  {}", c.operator);
        // The Python line follows the node.
        if let Some(line) = c.origin.lines().nth(1) {
            _ = write!(text, "\n  {line}");
        }
    }
    Error::input(text)
}
