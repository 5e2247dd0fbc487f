//! Calls of `aten.convolution` as data.

use inrush_graph::{Arg, Graph, Node, ValueId};

pub(crate) const CONVOLUTION: &str = "aten.convolution.default";

/// A convolution whose numbers are constants, one of each for every spatial dimension.
pub(crate) struct Convolution {
    pub(crate) input: ValueId,
    pub(crate) filters: ValueId,
    pub(crate) bias: Option<ValueId>,
    pub(crate) stride: Vec<i64>,
    pub(crate) padding: Vec<i64>,
    pub(crate) dilation: Vec<i64>,
    pub(crate) transposed: bool,
    pub(crate) groups: i64,
}

impl Convolution {
    /// Reads a call; `None` for other operators and for numbers that are symbolic.
    pub(crate) fn of(graph: &Graph, node: &Node) -> Option<Convolution> {
        if node.op != CONVOLUTION {
            return None;
        }
        let [
            Arg::Value(input),
            Arg::Value(filters),
            bias,
            stride,
            padding,
            dilation,
            Arg::Bool(transposed),
            _,
            Arg::Int(groups),
        ] = node.args.as_slice()
        else {
            return None;
        };
        let bias = match bias {
            Arg::Value(v) => Some(*v),
            Arg::None => None,
            _ => return None,
        };
        let spatial = graph.tensor(*filters).ok()?.rank().checked_sub(2)?;
        let numbers = |a: &Arg| {
            let Arg::Ints(all) = a else { return None };
            let all: Option<Vec<i64>> = all.iter().map(|e| graph.exprs.as_int(*e)).collect();
            match all?.as_slice() {
                [one] => Some(vec![*one; spatial]),
                all if all.len() == spatial => Some(all.to_vec()),
                _ => None,
            }
        };
        Some(Convolution {
            input: *input,
            filters: *filters,
            bias,
            stride: numbers(stride)?,
            padding: numbers(padding)?,
            dilation: numbers(dilation)?,
            transposed: *transposed,
            groups: graph.exprs.as_int(*groups)?,
        })
    }
}
