//! The arguments of a caller: input types, and where each symbol of the graph is read from.
//!
//! A call binds each symbol from one place and then checks all inputs against the sizes that follow
//! from the symbols. So one occurrence that can be solved for the symbol is enough: an integer
//! input, or a size `factor * symbol + offset` with constants.

use inrush_base::{Error, Result};
use inrush_expr::{Sym, SymKind};
use inrush_graph::{Graph, InputKind, Reads, TensorType, Type};
use inrush_program::{Symbol, SymbolSource};

/// The user's side of a graph, in call order.
pub struct Signature {
    pub inputs: Vec<SignatureInput>,
    /// Symbols that inputs determine, and the same for the program.
    pub syms: Vec<Sym>,
    pub symbols: Vec<Symbol>,
}

/// An input that the user gives, in contrast to weights.
pub struct SignatureInput {
    pub name: String,
    pub ty: Type,
    /// How much of the input's memory kernels rely on.
    pub reads: Reads,
}

/// Reads the signature from the graph's inputs.
///
/// # Errors
/// When no input says what a symbol is.
pub fn signature(graph: &Graph) -> Result<Signature> {
    let mut inputs: Vec<(usize, SignatureInput)> = graph
        .inputs
        .iter()
        .filter_map(|i| match i.kind {
            InputKind::User { index } => {
                let v = graph.value(i.value);
                Some((
                    index,
                    SignatureInput {
                        name: v.name.clone(),
                        ty: v.ty.clone(),
                        reads: i.reads,
                    },
                ))
            }
            _ => None,
        })
        .collect();
    inputs.sort_by_key(|(index, _)| *index);
    if inputs
        .iter()
        .enumerate()
        .any(|(at, (index, _))| at != *index)
    {
        return Err(Error::internal(
            "user inputs are not numbered from zero without gaps",
        ));
    }
    let inputs: Vec<SignatureInput> = inputs.into_iter().map(|(_, i)| i).collect();
    let mut out = Signature {
        inputs,
        syms: Vec::new(),
        symbols: Vec::new(),
    };
    let mut wanted: Vec<Sym> = Vec::new();
    for i in &out.inputs {
        match &i.ty {
            Type::Tensor(t) => t
                .sizes
                .iter()
                .chain(&t.strides)
                .for_each(|e| graph.exprs.collect_syms(*e, &mut wanted)),
            Type::Int(e) => graph.exprs.collect_syms(*e, &mut wanted),
            _ => {}
        }
    }
    for sym in wanted {
        let info = graph.exprs.sym_info(sym);
        let Some(source) = source_of(graph, &out.inputs, sym) else {
            return Err(Error::unsupported(format!(
                "no input determines the size `{}` on its own",
                info.name
            )));
        };
        out.symbols.push(Symbol {
            name: info.name,
            lower: info.lower,
            upper: if info.kind == SymKind::Size {
                info.upper
            } else {
                i64::MAX
            },
            source,
        });
        out.syms.push(sym);
    }
    Ok(out)
}

/// Returns the first input size (or integer input) that is `factor * sym + offset`; a bare symbol
/// is preferred.
fn source_of(graph: &Graph, inputs: &[SignatureInput], sym: Sym) -> Option<SymbolSource> {
    let mut found = None;
    for (k, i) in inputs.iter().enumerate() {
        match &i.ty {
            Type::Int(e) if graph.exprs.as_sym(*e) == Some(sym) => {
                return Some(SymbolSource::Int { input: k as u32 });
            }
            Type::Tensor(TensorType { sizes, .. }) => {
                for (d, e) in sizes.iter().enumerate() {
                    let Some((coefs, rest)) = graph.exprs.affine(*e, &[sym]) else {
                        continue;
                    };
                    let (Some(factor), Some(offset)) =
                        (graph.exprs.as_int(coefs[0]), graph.exprs.as_int(rest))
                    else {
                        continue;
                    };
                    if factor == 0 {
                        continue;
                    }
                    let source = SymbolSource::Dim {
                        input: k as u32,
                        dim: d as u32,
                        factor,
                        offset,
                    };
                    if factor == 1 && offset == 0 {
                        return Some(source);
                    }
                    found.get_or_insert(source);
                }
            }
            _ => {}
        }
    }
    found
}
