//! From the JSON of an exported program to a [`Graph`].
//!
//! Order of steps, and why:
//!
//! 1. Inputs, with symbols declared as sizes (`Meeting`): types of inputs name all symbols that a
//!    call can bind.
//! 2. Guards over these inputs.
//! 3. Nodes, in the archive's order. New symbols come from data now. Arithmetic on sizes is
//!    dropped where its result is described as an expression; assertions about sizes become
//!    guards; graphs of simple higher-order operators are inlined.
//! 4. The check for unknown operators, after all nodes, so that one error lists them all.
//! 5. Outputs and mutations.
//! 6. Ranges of derived expressions, last, as they need all symbols.
//!
//! Dtypes, sizes and strides are the archive's: no operator's shape function runs here.

mod args;
mod control;
mod guards;
mod nodes;
mod signature;
mod symbols;
mod unknown;

use crate::arith::Relations;
use crate::json::Pairs;
use crate::schema::{self, ExportedProgram};
use crate::weights::Weights;
use crate::{Bind, Options, Signature};
use inrush_base::schema::Operator;
use inrush_base::{Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Graph, LineId, TensorType, Type, ValueId};
use rustc_hash::FxHashMap;
use symbols::{Meeting, Symbols};
use unknown::UnknownOps;

/// A graph, with the parts of the archive that a graph does not hold.
pub struct Converted {
    pub graph: Graph,
    /// Notes for the user about parts of the archive that were ignored.
    pub notes: Vec<String>,
}

/// Converts a whole program. `signature` gives the nesting and names of the user's inputs.
pub fn convert<'a>(
    program: &'a ExportedProgram<'a>,
    name: &str,
    signature: &Signature,
    weights: &Weights,
    options: &Options,
) -> Result<Converted> {
    let module = &program.graph_module;
    let mut importer = Importer {
        graph: Graph {
            name: name.to_string(),
            ..Graph::default()
        },
        symbols: Symbols::new(&program.range_constraints)?,
        bind: options.bind,
        operators: options.operators,
        traces: FxHashMap::default(),
        lines: FxHashMap::default(),
        unknown: UnknownOps::default(),
        notes: Vec::new(),
    };
    let mut scope = Scope::new(&module.graph, String::new())?;
    importer.inputs(&mut scope, &module.signature, weights)?;
    importer.symbols.meeting = Meeting::Body;
    importer.guards(&program.guards_code, signature);
    importer.nodes(&mut scope)?;
    importer.unknown.check()?;
    importer.outputs(&scope, &module.signature)?;
    importer.derived_ranges();
    Ok(Converted {
        graph: importer.graph,
        notes: importer.notes,
    })
}

/// The binding of a name of the archive.
/// Integers that are expressions are no values of the graph: uses of such a name substitute the
/// expression.
#[derive(Clone, Debug)]
enum Bound {
    Value(ValueId),
    Int(Expr),
    Float(f64),
    Bool(bool),
    /// A condition on sizes that is known when a call begins.
    /// It can become a guard; as an argument of an operator it is refused.
    Relations(Relations),
    /// An output that the operator does not produce.
    /// An optional tensor that is absent, or a `None` that was passed to an inlined graph.
    Nothing,
}

/// The names of one graph: the top one, or that of a higher-order operator.
/// `tensors`, `ints`, `bools`, `floats` are the archive's descriptions by name; `names` grows as
/// nodes are converted, so a use before a definition is an error.
struct Scope<'a> {
    graph: &'a schema::Graph<'a>,
    tensors: FxHashMap<&'a str, &'a schema::TensorMeta<'a>>,
    ints: FxHashMap<&'a str, &'a schema::SymInt<'a>>,
    bools: FxHashMap<&'a str, &'a schema::SymBool<'a>>,
    floats: FxHashMap<&'a str, &'a schema::SymFloat<'a>>,
    names: FxHashMap<&'a str, Bound>,
    /// Prefix of the names of values, which are unique over all graphs.
    prefix: String,
}

impl<'a> Scope<'a> {
    fn new(graph: &'a schema::Graph<'a>, prefix: String) -> Result<Scope<'a>> {
        Ok(Scope {
            graph,
            tensors: table(&graph.tensor_values)?,
            ints: table(&graph.sym_int_values)?,
            bools: table(&graph.sym_bool_values)?,
            floats: table(&graph.sym_float_values)?,
            names: FxHashMap::default(),
            prefix,
        })
    }

    /// Binds a name; the graph is in single-assignment form.
    fn define(&mut self, name: &'a str, bound: Bound) -> Result<()> {
        match self.names.insert(name, bound) {
            None => Ok(()),
            Some(_) => Err(Error::input(format!("`{name}` is defined twice"))),
        }
    }

    /// Returns the archive's description of a tensor.
    fn meta(&self, name: &str) -> Result<&'a schema::TensorMeta<'a>> {
        (self.tensors.get(name).copied()).ok_or_else(|| {
            Error::input(format!("the archive does not describe the tensor `{name}`"))
        })
    }
}

/// Returns the descriptions by name; one that occurs twice is an error.
fn table<'a, T>(pairs: &'a Pairs<'a, T>) -> Result<FxHashMap<&'a str, &'a T>> {
    let mut out = FxHashMap::with_capacity_and_hasher(pairs.0.len(), Default::default());
    for (name, v) in &pairs.0 {
        if out.insert(&**name, v).is_some() {
            return Err(Error::input(format!("`{name}` is described twice")));
        }
    }
    Ok(out)
}

/// The graph while it is built.
struct Importer<'a, 'b> {
    graph: Graph,
    symbols: Symbols<'a>,
    bind: Bind<'b>,
    /// Operators of the user's.
    operators: &'b [Operator],
    /// Lines by the stack traces that end there, as those are written.
    traces: FxHashMap<&'a str, Option<LineId>>,
    lines: FxHashMap<String, LineId>,
    /// Operators without a row, collected for one error.
    unknown: UnknownOps,
    notes: Vec<String>,
}

/// Dimensions that are accepted.
const MOST_DIMENSIONS: usize = 64;

impl<'a> Importer<'a, '_> {
    /// Returns a tensor's type; declares symbols that its sizes and strides name first.
    fn tensor_type(&mut self, meta: &'a schema::TensorMeta<'a>) -> Result<TensorType> {
        if meta.layout != schema::STRIDED {
            return Err(Error::unsupported(format!(
                "a tensor of layout {}",
                crate::codes::layout(meta.layout)?
            )));
        }
        let dtype = crate::codes::dtype(meta.dtype)?;
        if meta.sizes.len() != meta.strides.len() || meta.sizes.len() > MOST_DIMENSIONS {
            return Err(Error::input(format!(
                "{} sizes and {} strides",
                meta.sizes.len(),
                meta.strides.len()
            )));
        }
        let x = &self.graph.exprs;
        let mut sizes = Vec::with_capacity(meta.sizes.len());
        let mut bytes = Some(dtype.size() as i64);
        for s in &meta.sizes {
            let e = self.symbols.int(x, s)?;
            let range = x.range(e);
            // Certainly negative. A range that only reaches below zero is accepted.
            if range.hi < 0 {
                return Err(Error::input(format!("the size {} is negative", x.show(e))));
            }
            // The smallest tensor of this type must be addressable.
            bytes = bytes.and_then(|b| b.checked_mul(range.lo.max(1)));
            sizes.push(e);
        }
        if bytes.is_none() {
            return Err(Error::input(format!(
                "a tensor of sizes {} is too large",
                x.show_list(&sizes)
            )));
        }
        let strides = (meta.strides.iter())
            .map(|s| self.symbols.int(x, s))
            .collect::<Result<_>>()?;
        Ok(TensorType {
            dtype,
            sizes,
            strides,
        })
    }

    /// Returns a new value called `name` in `scope`.
    fn define_value(&mut self, scope: &mut Scope<'a>, name: &'a str, ty: Type) -> Result<ValueId> {
        let v = self.graph.add_value(&format!("{}{name}", scope.prefix), ty);
        scope.define(name, Bound::Value(v))?;
        Ok(v)
    }

    /// Returns a new tensor value with the type that the archive describes.
    fn define_tensor(&mut self, scope: &mut Scope<'a>, name: &'a str) -> Result<ValueId> {
        let ty = scope.meta(name).and_then(|m| self.tensor_type(m));
        let ty = ty.map_err(|e| e.context(format!("tensor `{name}`")))?;
        self.define_value(scope, name, Type::Tensor(ty))
    }
}
