//! Examples of rows: `(f32[2,3], [0,-1], keepdim=true)` is a call on tensors of those types.
//!
//! A tensor is `dtype[sizes]`. `{lo:hi}` after it bounds its random values, inclusively. Sizes are
//! integers or symbols. Other arguments are numbers, `true`, `none`, strings, lists, and dtypes as
//! `dtype=f64`.
//!
//! ```text
//! (f32[2,3], f32[3]{0.1:2}, alpha=2)      two inputs, one number by name
//! (f32[s0,4], [i64[2]{0:3}, none])        a symbolic size, a list of optional tensors
//! ([2,3], dtype=i64)                      no input
//! ```
//!
//! Each tensor becomes an input of the graph, in order of appearance; the call is the only
//! node. An example is what a row's tests compile, run and compare with PyTorch, so it should
//! reach the row's special cases and keep values away from ties and poles.

use crate::{Demands, NamedArg, bind, lookup, meta};
use inrush_base::text::{Scanner, Token};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_graph::{
    Arg, Graph, Input, InputKind, MemoryFormat, Node, Output, OutputKind, OutputValue, TensorType,
    Type, ValueId,
};

/// A graph of one call, and the range of values that each input may be filled with.
pub struct Example {
    pub graph: Graph,
    /// One entry for each input; `None` leaves the choice to the test.
    pub ranges: Vec<Option<(f64, f64)>>,
}

/// The example of the row called `op`. Results have the types that its meta rule gives; for a row that decomposes and has
/// none, those that its decomposition gives.
pub fn example(op: &str) -> Result<Example> {
    let entry = lookup(op).ok_or_else(|| Error::input(format!("no row describes `{op}`")))?;
    parse(op, entry.row.example).map_err(|e| e.in_op(op))
}

/// Reads a call of `op` written as in a row.
pub fn parse(op: &str, text: &str) -> Result<Example> {
    let mut r = Reader {
        s: Scanner::new(text),
        graph: Graph {
            name: "example".into(),
            ..Graph::default()
        },
        ranges: Vec::new(),
    };
    let given = r.call()?;
    let Reader {
        mut graph, ranges, ..
    } = r;
    let args = bind(&graph.exprs, op, &given)
        .ok_or_else(|| Error::input(format!("no row describes `{op}`")))??;
    let entry = lookup(op).ok_or_else(|| Error::input("an in-place operator has no example"))?;
    let bound = crate::Args {
        exprs: &graph.exprs,
        demands: &Demands::default(),
        op: entry,
        args: &args,
    };
    let types = match meta::infer(bound, &graph.values) {
        Some(types) => types?,
        None => crate::decompose::result_types(&mut graph, op, &args)?,
    };
    let outs: Vec<ValueId> = types
        .into_iter()
        .enumerate()
        .map(|(k, ty)| graph.add_value(&format!("out{k}"), ty))
        .collect();
    graph.outputs = outs
        .iter()
        .enumerate()
        .map(|(index, v)| Output {
            value: OutputValue::Value(*v),
            kind: OutputKind::User { index },
        })
        .collect();
    graph.nodes.push(Node {
        op: op.into(),
        args,
        outs,
        line: None,
        made_for: None,
    });
    Ok(Example { graph, ranges })
}

/// A recursive descent parser, which adds inputs to the graph while it reads.
struct Reader<'a> {
    s: Scanner<'a>,
    graph: Graph,
    ranges: Vec<Option<(f64, f64)>>,
}

impl Reader<'_> {
    fn call(&mut self) -> Result<Vec<NamedArg>> {
        let mut out: Vec<NamedArg> = Vec::new();
        self.s.expect("(")?;
        while !self.s.eat(")")? {
            if !out.is_empty() {
                self.s.expect(",")?;
            }
            out.push(self.arg()?);
        }
        Ok(out)
    }

    fn arg(&mut self) -> Result<NamedArg> {
        if let Token::Ident(word) = self.s.peek()?.clone() {
            if let Some(dtype) = DType::parse(&word) {
                self.s.next_token()?;
                return Ok(positional(self.tensor_or_dtype(dtype)?));
            }
            // A word that is no literal is the name of an argument, if `=` follows, or a
            // symbol or format.
            if !matches!(word.as_str(), "true" | "false" | "none" | "inf" | "nan") {
                self.s.next_token()?;
                if self.s.eat("=")? {
                    let arg = self.value()?;
                    return Ok(NamedArg {
                        name: word,
                        arg,
                        keyword: true,
                    });
                }
                return Ok(positional(self.word(&word)?));
            }
        }
        Ok(positional(self.value()?))
    }

    fn value(&mut self) -> Result<Arg> {
        if self.s.eat("[")? {
            return self.list();
        }
        match self.s.peek()?.clone() {
            Token::Str(_) => Ok(Arg::Str(self.s.string()?)),
            Token::Ident(w) if w == "none" => {
                self.s.next_token()?;
                Ok(Arg::None)
            }
            Token::Ident(w) if !matches!(w.as_str(), "true" | "false" | "inf" | "nan") => {
                self.s.next_token()?;
                match DType::parse(&w) {
                    Some(d) => self.tensor_or_dtype(d),
                    None => self.word(&w),
                }
            }
            _ => Ok(match self.s.scalar()? {
                Scalar::Int(i) => Arg::Int(self.graph.exprs.int(i)),
                Scalar::Float(f) => Arg::Float(f),
                Scalar::Bool(b) => Arg::Bool(b),
            }),
        }
    }

    fn word(&mut self, word: &str) -> Result<Arg> {
        Ok(match word {
            "contiguous" => Arg::MemoryFormat(MemoryFormat::Contiguous),
            "channels_last" => Arg::MemoryFormat(MemoryFormat::ChannelsLast),
            "preserve" => Arg::MemoryFormat(MemoryFormat::Preserve),
            symbol => Arg::Int(self.symbol(symbol)),
        })
    }

    /// Returns the size symbol of this name, made at first use; sizes of tests stay small.
    fn symbol(&mut self, name: &str) -> Expr {
        let s = self.graph.exprs.size_sym(name, 1, 8192);
        self.graph.exprs.sym_expr(s)
    }

    /// The first element decides the kind of a list; an empty one counts as integers, which
    /// coercion turns into what the parameter wants.
    fn list(&mut self) -> Result<Arg> {
        let mut items = Vec::new();
        while !self.s.eat("]")? {
            if !items.is_empty() {
                self.s.expect(",")?;
            }
            items.push(self.value()?);
        }
        let bad = || Error::input("a list of mixed things");
        Ok(match items.first() {
            None => Arg::Ints(Vec::new()),
            Some(Arg::Value(_) | Arg::None) => Arg::Values(
                items
                    .into_iter()
                    .map(|a| match a {
                        Arg::Value(v) => Ok(Some(v)),
                        Arg::None => Ok(None),
                        _ => Err(bad()),
                    })
                    .collect::<Result<_>>()?,
            ),
            Some(Arg::Int(_)) => Arg::Ints(
                items
                    .into_iter()
                    .map(|a| match a {
                        Arg::Int(e) => Ok(e),
                        _ => Err(bad()),
                    })
                    .collect::<Result<_>>()?,
            ),
            Some(Arg::Bool(_)) => Arg::Bools(
                items
                    .into_iter()
                    .map(|a| match a {
                        Arg::Bool(b) => Ok(b),
                        _ => Err(bad()),
                    })
                    .collect::<Result<_>>()?,
            ),
            Some(Arg::Float(_)) => Arg::Floats(
                items
                    .into_iter()
                    .map(|a| match a {
                        Arg::Float(f) => Ok(f),
                        _ => Err(bad()),
                    })
                    .collect::<Result<_>>()?,
            ),
            Some(_) => return Err(bad()),
        })
    }

    /// A dtype followed by sizes is a tensor, alone it is an argument of its own.
    fn tensor_or_dtype(&mut self, dtype: DType) -> Result<Arg> {
        if !self.s.eat("[")? {
            return Ok(Arg::DType(dtype));
        }
        let mut sizes = Vec::new();
        while !self.s.eat("]")? {
            if !sizes.is_empty() {
                self.s.expect(",")?;
            }
            sizes.push(match self.s.next_token()? {
                Token::Int(i) => self.graph.exprs.int(i),
                Token::Ident(w) => self.symbol(&w),
                _ => return Err(self.s.error("expected a size")),
            });
        }
        let range = if self.s.eat("{")? {
            let lo = self.s.scalar()?.as_f64();
            self.s.expect(":")?;
            let hi = self.s.scalar()?.as_f64();
            self.s.expect("}")?;
            Some((lo, hi))
        } else {
            None
        };
        let index = self.graph.inputs.len();
        let ty = Type::Tensor(TensorType::contiguous(&self.graph.exprs, dtype, sizes));
        let value = self.graph.add_value(&format!("x{index}"), ty);
        self.graph
            .inputs
            .push(Input::new(value, InputKind::User { index }));
        self.ranges.push(range);
        Ok(Arg::Value(value))
    }
}

fn positional(arg: Arg) -> NamedArg {
    NamedArg {
        name: String::new(),
        arg,
        keyword: false,
    }
}

#[cfg(test)]
mod tests {
    /// Every row's example binds, decomposes and lowers.
    #[test]
    fn every_example_lowers() {
        let mut failures = Vec::new();
        // Asserts are calls on sizes, which an example cannot write; they become guards before anything is lowered.
        for row in crate::rows().filter(|r| !matches!(r.route, crate::Route::Assert)) {
            let result = super::example(row.name)
                .and_then(|e| crate::decompose(e.graph))
                .and_then(|g| crate::lower(g, crate::Processor::Cpu))
                .and_then(|loops| inrush_loops::verify::verify(&loops));
            if let Err(e) = result {
                failures.push(format!("{}: {e}", row.name));
            }
        }
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}
