//! Symbolic integers: sympy's objects are walked, each once, and become expressions.
//!
//! A SymInt holds a sympy expression over symbols of a ShapeEnv. [`Symbols::int`] translates it to
//! the compiler's expressions; ranges and hints come along from the ShapeEnv. An integer without a
//! translation (a rounded float, say) becomes a fresh unbacked symbol, `data0` and so on:
//!
//! ```text
//! s0 * 2 + 1             ->  2*s0 + 1
//! FloorDiv(s0, 8)        ->  s0 // 8
//! 4 * Trunc(s0 * 0.3)    ->  4 * data0       data0 is computed by a called node
//! ```
//!
//! Such a symbol stands for the integer subexpression at which translation fails, or else for the
//! whole, so that sums and products of it can still be compared. Equal sympy expressions share one
//! symbol. The first FX node whose result it is computes it ([`Symbols::known`]), and later ones
//! are read from it.

use super::{Sizes, key, what};
use crate::compile::special::{Near, part_of};
use crate::errors::raise;
use inrush_base::{Error, ErrorKind, Result};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_torch::sympy::{Sympy, Value};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyString, PyTuple};
use rustc_hash::FxHashMap;

/// Nesting of sympy expressions that is accepted; bounds the recursion.
const MAX_DEPTH: usize = 128;

/// Expressions of sympy's objects, in one import.
#[derive(Default)]
pub struct Symbols {
    /// Expressions by the identity of a SymInt's node.
    ints: FxHashMap<usize, Expr>,
    /// Those objects, kept so that an address means one object only.
    kept: Vec<Py<PyAny>>,
    /// Integers that expressions cannot represent (a rounded float, say) are symbols of their own: sympy's object to position in
    /// `made`.
    odd: Option<Py<PyDict>>,
    made: Vec<Made>,
    env: Option<Env>,
    /// Sizes are those of the call that is traced: a symbol with a hint is its hint.
    known: bool,
    /// Symbols that are a factor times a symbol of their own, by name.
    near: FxHashMap<String, Near>,
}

/// A symbol for an integer without a translation.
struct Made {
    /// An unbacked symbol of the graph.
    symbol: Expr,
    /// A node that computes it was met.
    defined: bool,
}

/// Ranges and hints of symbols, read from the ShapeEnv of the first SymInt.
struct Env {
    ranges: Py<PyDict>,
    hints: Py<PyDict>,
}

impl Symbols {
    /// Begins an import.
    pub fn new(sizes: Sizes<'_>) -> Symbols {
        Symbols {
            known: sizes == Sizes::Known,
            near: match sizes {
                Sizes::Near(near) => near.iter().map(|n| (n.name.clone(), n.clone())).collect(),
                Sizes::Symbolic | Sizes::Known => FxHashMap::default(),
            },
            ..Symbols::default()
        }
    }

    /// Returns the expression of a SymInt; `None` for one that is no plain integer (the ragged size of a nested tensor).
    pub fn int(&mut self, x: &Exprs, val: &Bound<'_, PyAny>) -> PyResult<Option<Expr>> {
        let py = val.py();
        let node = val.getattr(intern!(py, "node"))?;
        let Some(raw) = node.getattr_opt(intern!(py, "_expr"))? else {
            // Nested integers have a node without an expression.
            let constant = match node.getattr_opt(intern!(py, "maybe_as_int"))? {
                Some(f) => f.call0()?.extract::<Option<i64>>()?,
                None => None,
            };
            return Ok(constant.map(|v| x.int(v)));
        };
        if let Some(found) = self.ints.get(&key(&raw)) {
            return Ok(Some(*found));
        }
        if self.env.is_none() {
            let env = node.getattr(intern!(py, "shape_env"))?;
            let dict = |name| -> PyResult<Py<PyDict>> {
                Ok(env.getattr(name)?.cast_into::<PyDict>()?.unbind())
            };
            self.env = Some(Env {
                ranges: dict(intern!(py, "var_to_range"))?,
                hints: dict(intern!(py, "backed_var_to_val"))?,
            });
        }
        // The property applies what has been learnt since (`u0` equals `s3`).
        let expr = node.getattr(intern!(py, "expr"))?;
        let e = self.expression(x, &expr)?;
        self.ints.insert(key(&raw), e);
        self.kept.push(raw.unbind());
        Ok(Some(e))
    }

    /// Returns true if an expression represents a SymInt, so that no node has to compute it.
    pub fn expressible(val: &Bound<'_, PyAny>) -> PyResult<bool> {
        let mut own = Symbols::default();
        let e = own.int(&Exprs::new(), val)?;
        Ok(e.is_some() && own.made.is_empty())
    }

    /// As [`Symbols::int`] for the result of a node; `None` when the node is what computes it.
    pub fn known(&mut self, x: &Exprs, val: &Bound<'_, PyAny>) -> PyResult<Option<Expr>> {
        let e = self.int(x, val)?;
        let made = self.made.iter_mut().find(|m| Some(m.symbol) == e);
        Ok(match made {
            Some(m) if !m.defined => {
                m.defined = true;
                None
            }
            _ => e,
        })
    }

    /// Translates an expression, or makes a symbol of it as a whole.
    fn expression(&mut self, x: &Exprs, expr: &Bound<'_, PyAny>) -> PyResult<Expr> {
        let value = self.walk(x, expr, 0)?;
        match value.and_then(|v| Sympy { exprs: x }.int(v, "a size")) {
            Ok(e) => Ok(e),
            Err(e) => self.make(x, expr, e),
        }
    }

    /// Returns the symbol of an integer that expressions cannot represent for the reason `why`.
    fn make(&mut self, x: &Exprs, expr: &Bound<'_, PyAny>, why: Error) -> PyResult<Expr> {
        if why.kind() == ErrorKind::Internal {
            return Err(raise(why));
        }
        let py = expr.py();
        let odd = self.odd.get_or_insert_with(|| PyDict::new(py).unbind());
        if let Some(k) = odd.bind(py).get_item(expr)? {
            return Ok(self.made[k.extract::<usize>()?].symbol);
        }
        let at = self.made.len();
        let sym = x.unbacked_sym(&format!("data{at}"), i64::MIN, i64::MAX);
        let symbol = x.sym_expr(sym);
        odd.bind(py).set_item(expr, at)?;
        self.made.push(Made {
            symbol,
            defined: false,
        });
        Ok(symbol)
    }

    /// The outer error is Python's, the inner one says what cannot be expressed.
    fn walk(&mut self, x: &Exprs, e: &Bound<'_, PyAny>, depth: usize) -> PyResult<Result<Value>> {
        let py = e.py();
        if depth > MAX_DEPTH {
            return Ok(Err(Error::unsupported("a size nested this deeply")));
        }
        let class = e.get_type().name()?;
        let class = class.to_str()?;
        let number = |name| -> PyResult<Option<i64>> {
            let v = e.getattr(name)?;
            Ok(v.cast::<PyInt>().ok().and_then(|v| v.extract().ok()))
        };
        let beyond = || Error::unsupported("an integer beyond 64 bits");
        match class {
            "Symbol" => return self.symbol(x, e),
            "Integer" | "Zero" | "One" | "NegativeOne" => {
                let p = number(intern!(py, "p"))?.ok_or_else(beyond);
                return Ok(p.map(|p| Value::Ratio(x.int(p), 1)));
            }
            "Rational" | "Half" => {
                let (p, q) = (number(intern!(py, "p"))?, number(intern!(py, "q"))?);
                let both = p.zip(q).ok_or_else(beyond);
                return Ok(both.map(|(p, q)| Value::Ratio(x.int(p), q)));
            }
            "BooleanTrue" => return Ok(Ok(Value::Bool(Vec::new()))),
            "BooleanFalse" => return Ok(Ok(Value::OtherBool)),
            "Float" => {
                let v: f64 = e.call_method0(intern!(py, "__float__"))?.extract()?;
                return Ok(Ok(Sympy { exprs: x }.float(v)));
            }
            _ => {}
        }
        let args = e.getattr(intern!(py, "args"))?.cast_into::<PyTuple>()?;
        if args.is_empty() {
            return Ok(Err(Error::unsupported(format!("{} in a size", what(e)))));
        }
        let mut values = Vec::with_capacity(args.len());
        for a in args.iter_borrowed() {
            match self.walk(x, &a, depth + 1)? {
                Ok(v) => values.push(v),
                Err(e) => return Ok(Err(e)),
            }
        }
        let result = Sympy { exprs: x }.call(class, values);
        match result {
            // Made a symbol here, sums and products of it remain what they are.
            Err(why) if e.getattr(intern!(py, "is_integer"))?.is_truthy()? => {
                Ok(Ok(Value::Ratio(self.make(x, e, why)?, 1)))
            }
            result => Ok(result),
        }
    }

    /// Returns the expression of a sympy symbol; defines it at its first occurrence.
    fn symbol(&self, x: &Exprs, symbol: &Bound<'_, PyAny>) -> PyResult<Result<Value>> {
        let py = symbol.py();
        let name = symbol
            .getattr(intern!(py, "name"))?
            .cast_into::<PyString>()?;
        let name = name.to_str()?;
        // Symbols of floats are named `zf0`, `zuf0`.
        if name.starts_with('z') {
            return Ok(Ok(Value::Real(name.to_string())));
        }
        let near = self.near.get(name);
        let (name, factor) = match near {
            Some(n) => (&*part_of(name, n.factor), n.factor),
            None => (name, 1),
        };
        let times = |s: Sym| Value::Ratio(x.mul(x.int(factor), x.sym_expr(s)), 1);
        if let Some(s) = x.sym_by_name(name) {
            return Ok(Ok(times(s)));
        }
        let Some(env) = &self.env else {
            return Ok(Err(Error::internal("a symbol without an environment")));
        };
        let (lower, upper) = match env.ranges.bind(py).get_item(symbol)? {
            Some(range) => (
                bound(&range.getattr(intern!(py, "lower"))?, i64::MIN)?,
                bound(&range.getattr(intern!(py, "upper"))?, i64::MAX)?,
            ),
            None => (i64::MIN, i64::MAX),
        };
        let hint = env.hints.bind(py).get_item(symbol)?;
        let number = match &hint {
            Some(h) => bound(h, i64::MIN).ok().filter(|h| *h != i64::MIN),
            None => None,
        };
        if let (true, Some(n)) = (self.known, number) {
            return Ok(Ok(Value::Ratio(x.int(n), 1)));
        }
        let (lower, upper) = match near {
            Some(n) => n.within(lower, upper).part(),
            None => (lower, upper),
        };
        let sym = match &hint {
            Some(_) => x.size_sym(name, lower, upper),
            None => x.unbacked_sym(name, lower, upper),
        };
        if let Some(n) = number {
            x.set_hint(sym, n / factor);
        }
        Ok(Ok(times(sym)))
    }
}

/// Returns a bound of a range: a sympy integer, or an infinity. Integers next to the ends of 64 bits count as unbounded.
fn bound(v: &Bound<'_, PyAny>, infinite: i64) -> PyResult<i64> {
    let v: i64 = match v.getattr_opt(intern!(v.py(), "p"))? {
        Some(p) => p.extract().unwrap_or(infinite),
        None => v.extract().unwrap_or(infinite),
    };
    Ok(match v {
        v if v >= i64::MAX - 1 => i64::MAX,
        v if v <= i64::MIN + 2 => i64::MIN,
        v => v,
    })
}
