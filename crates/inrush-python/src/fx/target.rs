//! Functions that FX nodes call. They are few and live as long as the process, so that each is
//! looked at once.
//!
//! The name of a target decides what happens to its node. Operators have the dispatcher's name
//! (`aten.add.Tensor`). Python's functions on sizes get the prefix `sym.`, under which the compiler
//! knows them. All other functions keep their module's name and can only be called.

use super::key;
use super::types::Names;
use inrush_aten::props::reads_metadata;
use pyo3::intern;
use pyo3::prelude::*;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A called function.
#[derive(Clone)]
pub struct Target {
    /// `aten.add.Tensor`, `sym.floordiv`, `higher_order.cond`.
    pub name: Arc<str>,
    /// How the importer treats a node with this target.
    pub role: Role,
}

/// The treatment of a called function.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// An overload of a dispatcher operator.
    Operator,
    /// Arithmetic on sizes, or an operator that reads a size: nothing to run when the result is a known integer.
    Size,
    /// `operator.getitem`.
    Item,
    /// A higher-order operator or any other Python function.
    Other,
}

/// Targets by identity; the object is kept, so that its address is not taken by another.
static KNOWN: Mutex<Option<FxHashMap<usize, (Target, Py<PyAny>)>>> = Mutex::new(None);

impl Target {
    /// Returns the description of a target, memoized by identity.
    pub fn of(names: &Names, target: &Bound<'_, PyAny>) -> PyResult<Target> {
        // The lock is never held while Python runs.
        let known = |k: usize| {
            let map = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
            map.as_ref()?.get(&k).map(|(t, _)| t.clone())
        };
        if let Some(t) = known(key(target)) {
            return Ok(t);
        }
        let new = Self::inspect(names, target)?;
        let mut map = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        (map.get_or_insert_default()).insert(key(target), (new.clone(), target.clone().unbind()));
        Ok(new)
    }

    /// Finds name and role from the Python object.
    fn inspect(names: &Names, target: &Bound<'_, PyAny>) -> PyResult<Target> {
        let py = target.py();
        let make = |name: &str, role| Target {
            name: name.into(),
            role,
        };
        if target.is_instance(names.overload.bind(py))? {
            let name = target.str()?;
            let name = name.to_str()?;
            let role = match reads_metadata(name) {
                true => Role::Size,
                false => Role::Operator,
            };
            return Ok(make(name, role));
        }
        let text = |attribute| -> PyResult<String> {
            let v = target.getattr_opt(attribute)?;
            Ok(v.and_then(|v| v.extract().ok()).unwrap_or_default())
        };
        if target.is_instance(names.higher_order.bind(py))? {
            let name = text(intern!(py, "_name"))?;
            return Ok(make(&format!("higher_order.{name}"), Role::Other));
        }
        let module = text(intern!(py, "__module__"))?;
        let name = text(intern!(py, "__name__"))?;
        if module == "_operator" && name == "getitem" {
            return Ok(make("sym.getitem", Role::Item));
        }
        let size = match module.as_str() {
            "_operator" | "math" | "builtins" => Some(&*name),
            "torch" => name.strip_prefix("_sym_").or(name.strip_prefix("sym_")),
            _ => None,
        };
        Ok(match size {
            Some(name) => make(&format!("sym.{}", name.trim_matches('_')), Role::Size),
            None => make(&format!("{module}.{name}"), Role::Other),
        })
    }
}
