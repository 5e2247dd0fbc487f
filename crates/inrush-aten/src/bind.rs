//! Binds the arguments of a call to the parameters of its schema: names to positions, defaults, coercions.
//!
//! Importers deliver arguments as Python wrote them: some by position, some by name, defaults
//! left out. From here on a call has exactly one argument for each parameter of its schema,
//! so that rows never ask for a default.
//!
//! ```text
//! add(x, y)            =>  aten.add.Tensor(x, y, 1)
//! sum(x, dim=0)        =>  aten.sum.dim_IntList(x, [0], false, none)
//! ```
//!
//! The same rules serve decompositions, which leave out trailing defaults (`complete`).

use crate::schema::{Default_, Kind, Param, Schema};
use crate::{Op, lookup};
use inrush_base::{DType, Error, Result};
use inrush_expr::Exprs;
use inrush_graph::{Arg, MemoryFormat};

/// An argument as an archive gives it.
#[derive(Clone, Debug)]
pub struct NamedArg {
    /// Parameter name; empty for a positional argument without one.
    pub name: String,
    pub arg: Arg,
    /// Written as `name=value`. Such an argument must name a parameter; a positional one need
    /// not.
    pub keyword: bool,
}

/// The row that says what `op` is called with: its own, or for an in-place operator that of the functional one.
pub fn signature(op: &str) -> Option<&'static Op> {
    lookup(op).or_else(|| lookup(&functional_name(op)?))
}

/// `aten.add_.Tensor` -> `aten.add.Tensor`; `None` when the name is not that of an in-place operator.
pub fn functional_name(op: &str) -> Option<String> {
    let mut parts = op.splitn(3, '.');
    let (ns, base, overload) = (parts.next()?, parts.next()?, parts.next()?);
    // Python's augmented assignments: `__iand__` is `__and__` in place.
    if let Some(inner) = base.strip_prefix("__i").filter(|b| b.ends_with("__")) {
        return Some(format!("{ns}.__{inner}.{overload}"));
    }
    // Two underscores at the end are Python's protocol methods (`__and__`), which write
    // nothing.
    let base = base.strip_suffix('_').filter(|b| !b.ends_with('_'))?;
    Some(match base {
        // `zero_` and `zero` differ in the names of their overloads.
        "zero" => format!("{ns}.zero.default"),
        _ => format!("{ns}.{base}.{overload}"),
    })
}

/// Arguments in schema order with defaults filled in. `None` when no row describes `op`: callers collect such operators.
pub fn bind(exprs: &Exprs, op: &str, given: &[NamedArg]) -> Option<Result<Vec<Arg>>> {
    let op_row = signature(op)?;
    Some(bind_schema(exprs, op_row.schema(), given).map_err(|e| e.in_op(op)))
}

/// Sorts arguments into the parameters' slots, then coerces them and fills in defaults.
/// Linear in the arguments, times a search by name for each.
///
/// # Errors
/// For an argument that no parameter takes, one that is given twice or missing, and one of a wrong kind.
pub fn bind_schema(exprs: &Exprs, schema: &Schema, given: &[NamedArg]) -> Result<Vec<Arg>> {
    let mut slots: Vec<Option<Arg>> = vec![None; schema.params.len()];
    let mut next = 0;
    for g in given {
        // The name decides where it is known; overloads that differ in a name are met by position.
        let by_name = schema.position(&g.name);
        let at = match by_name {
            Some(p) => p,
            None if g.keyword => {
                return Err(Error::unsupported(format!("unknown argument `{}`", g.name)));
            }
            None => next,
        };
        let slot = slots
            .get_mut(at)
            .ok_or_else(|| Error::input("more arguments than parameters"))?;
        if slot.is_some() {
            return Err(Error::input(format!(
                "argument `{}` given twice",
                schema.params[at].name
            )));
        }
        *slot = Some(g.arg.clone());
        if !g.keyword {
            next = at + 1;
        }
    }
    slots
        .into_iter()
        .zip(&schema.params)
        .map(|(slot, p)| match slot {
            Some(arg) => coerce(exprs, p, arg),
            None => default(exprs, p),
        })
        .collect()
}

/// Fills in the defaults of trailing arguments and coerces those that are there.
///
/// # Errors
///
/// If there are more arguments than parameters, a parameter without a default is left out, or
/// an argument is of a wrong kind.
pub fn complete(exprs: &Exprs, schema: &Schema, mut args: Vec<Arg>) -> Result<Vec<Arg>> {
    if args.len() > schema.params.len() {
        return Err(Error::input("more arguments than parameters"));
    }
    for (arg, p) in args.iter_mut().zip(&schema.params) {
        *arg = coerce(exprs, p, std::mem::replace(arg, Arg::None))?;
    }
    args.reserve_exact(schema.params.len() - args.len());
    for p in &schema.params[args.len()..] {
        args.push(default(exprs, p)?);
    }
    Ok(args)
}

/// Returns the default of a parameter in the form that its kind wants: `int[2] stride=1`
/// gives a list of two.
fn default(exprs: &Exprs, p: &Param) -> Result<Arg> {
    let Some(d) = &p.default else {
        return Err(Error::input(format!("argument `{}` is missing", p.name)));
    };
    let arg = match d {
        Default_::None => return Ok(Arg::None),
        Default_::Int(i) => Arg::Int(exprs.int(*i)),
        Default_::Float(f) => Arg::Float(*f),
        Default_::Bool(b) => Arg::Bool(*b),
        Default_::Str(s) => Arg::Str(s.clone()),
        Default_::Ints(v) => Arg::Ints(v.iter().map(|i| exprs.int(*i)).collect()),
        Default_::Floats(v) => Arg::Floats(v.clone()),
        Default_::Bools(v) => Arg::Bools(v.clone()),
        Default_::Contiguous => Arg::MemoryFormat(MemoryFormat::Contiguous),
    };
    coerce(exprs, p, arg)
}

/// Makes `arg` what the parameter takes: an integer where a float is wanted becomes one, a lone integer a list.
fn coerce(exprs: &Exprs, p: &Param, arg: Arg) -> Result<Arg> {
    let constant = |a: &Arg| match a {
        Arg::Int(e) => exprs.as_int(*e),
        _ => None,
    };
    let ok = match (p.kind, &arg) {
        // PyTorch passes an undefined tensor as none even where the schema has no `?`.
        (_, Arg::None) => p.optional || p.kind == Kind::Tensor || p.default == Some(Default_::None),
        (Kind::Other, _) => true,
        // A value may stand for a number that the graph computes.
        (_, Arg::Value(_)) => !matches!(p.kind, Kind::Str | Kind::DType | Kind::MemoryFormat),
        // Scalars are accepted where tensors are: export keeps Python's numbers.
        (
            Kind::Tensor | Kind::Scalar,
            Arg::Int(_) | Arg::Float(_) | Arg::Bool(_) | Arg::Complex(..),
        ) => true,
        (Kind::Tensors, Arg::Values(_)) => true,
        // An empty list has no elements that could tell what it is a list of.
        (Kind::Tensors, Arg::Ints(v)) if v.is_empty() => return Ok(Arg::Values(Vec::new())),
        (Kind::Scalars, Arg::Ints(_) | Arg::Floats(_)) => true,
        (Kind::Int, Arg::Int(_)) => true,
        (Kind::Int, Arg::Bool(b)) => return Ok(Arg::Int(exprs.int(*b as i64))),
        (Kind::Ints(_), Arg::Ints(_)) => true,
        // `kernel_size=3` of `int[2]` stands for 3 along each dimension.
        (Kind::Ints(n), Arg::Int(e)) => return Ok(Arg::Ints(vec![*e; n.unwrap_or(1)])),
        (Kind::Ints(_), Arg::Values(v)) if v.is_empty() => return Ok(Arg::Ints(Vec::new())),
        (Kind::Float, Arg::Float(_)) => true,
        // A symbolic integer has no value yet, so it cannot become a float constant.
        (Kind::Float, Arg::Int(_)) => match constant(&arg) {
            Some(i) => return Ok(Arg::Float(i as f64)),
            None => false,
        },
        (Kind::Float, Arg::Bool(b)) => return Ok(Arg::Float(*b as u8 as f64)),
        (Kind::Floats, Arg::Floats(_)) => true,
        (Kind::Floats, Arg::Ints(v)) => {
            let floats: Option<Vec<f64>> = v
                .iter()
                .map(|e| exprs.as_int(*e).map(|i| i as f64))
                .collect();
            match floats {
                Some(f) => return Ok(Arg::Floats(f)),
                None => false,
            }
        }
        (Kind::Floats, Arg::Float(f)) => return Ok(Arg::Floats(vec![*f])),
        (Kind::Bool, Arg::Bool(_)) => true,
        (Kind::Bool, Arg::Int(_)) => match constant(&arg) {
            Some(i) => return Ok(Arg::Bool(i != 0)),
            None => false,
        },
        (Kind::Bools, Arg::Bools(_)) => true,
        (Kind::Str, Arg::Str(_)) => true,
        (Kind::DType, Arg::DType(_)) => true,
        // Defaults of operators that users define name a dtype by PyTorch's number.
        (Kind::DType, Arg::Int(_)) => {
            let code = constant(&arg).and_then(|c| i32::try_from(c).ok());
            match code.and_then(DType::of_torch_code) {
                Some(d) => return Ok(Arg::DType(d)),
                None => false,
            }
        }
        (Kind::MemoryFormat, Arg::MemoryFormat(_)) => true,
        _ => false,
    };
    if ok {
        Ok(arg)
    } else {
        Err(Error::input(format!(
            "argument `{}` takes {:?}, not {arg:?}",
            p.name, p.kind
        )))
    }
}

#[cfg(test)]
mod tests {
    use crate::schema::Schema;

    #[test]
    fn every_row_has_a_good_schema() {
        for row in crate::rows() {
            Schema::parse(row.schema).unwrap_or_else(|e| panic!("{}: {e}", row.name));
        }
    }
}
