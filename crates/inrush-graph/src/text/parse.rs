//! Text to graph. References are checked here; rules are the verifier's.
//!
//! Recursive descent with one token of lookahead. Where that is not enough (a list of tensors or of
//! integers, a float or an expression) the scanner is cloned and one branch is tried. Text may come
//! from a fuzzer, so nothing is indexed before it is checked.

use super::{FORMATS, READS, RELATIONS};
use crate::*;
use inrush_base::Result;
use inrush_base::schema::Operator;
use inrush_base::text::{Scanner, Token};

/// Reads a graph as [`Graph::print`] writes it. The result is well-formed but not verified.
pub fn parse(text: &str) -> Result<Graph> {
    let mut p = Parser {
        s: Scanner::new(text),
        g: Graph::default(),
        depth: 0,
    };
    p.graph()?;
    Ok(p.g)
}

/// Bodies within bodies that are read.
const MOST_NESTED: usize = 64;

struct Parser<'a> {
    s: Scanner<'a>,
    g: Graph,
    /// Bodies around the line that is read.
    depth: usize,
}

impl Parser<'_> {
    fn graph(&mut self) -> Result<()> {
        self.s.skip_newlines()?;
        self.s.expect_word("graph")?;
        self.g.name = self.s.name()?;
        self.s.end_of_line()?;
        loop {
            self.s.skip_newlines()?;
            if self.s.at_end()? {
                return match self.depth {
                    0 => Ok(()),
                    _ => Err(self.s.error("expected `end`")),
                };
            }
            if self.depth > 0 && self.s.eat_word("end")? {
                return Ok(());
            }
            if !self.g.exprs.parse_decl(&mut self.s)? {
                self.line()?;
                self.s.end_of_line()?;
            }
        }
    }

    /// Reads a line that begins with a word or defines values.
    fn line(&mut self) -> Result<()> {
        if *self.s.peek()? == Token::Punct("%") {
            return self.definition();
        }
        let word = self.s.ident()?;
        match word.as_str() {
            "foreign_inputs" => self.g.foreign_inputs = true,
            "in_tree" => self.g.in_tree = Some(self.s.string()?),
            "out_tree" => self.g.out_tree = Some(self.s.string()?),
            "operator" => {
                let op = Operator::parse(&self.s.string()?)?;
                self.g.operators.push(op);
            }
            "body" => self.body()?,
            "guard" => self.guard()?,
            "call" => {
                let op = self.s.name()?;
                self.call(op, Vec::new())?;
            }
            "output" => {
                let index = self.count()?;
                self.output(OutputKind::User { index })?;
            }
            "mutate" => {
                let input = self.count()?;
                self.output(OutputKind::Mutation { input })?;
            }
            // Lines are declared in order, so that a reference is a position.
            w if w == format!("line{}", self.g.lines.len()) => {
                self.s.expect(":")?;
                let line = self.s.string()?;
                self.g.lines.push(line);
            }
            _ => return Err(self.s.error(format!("`{word}` does not start a line"))),
        }
        Ok(())
    }

    /// Reads a graph within the graph, up to `end`.
    fn body(&mut self) -> Result<()> {
        if self.depth == MOST_NESTED {
            return Err(self.s.error("too many bodies within bodies"));
        }
        let around = std::mem::take(&mut self.g);
        self.depth += 1;
        self.graph()?;
        self.depth -= 1;
        let body = std::mem::replace(&mut self.g, around);
        self.g.bodies.push(body);
        Ok(())
    }

    fn count(&mut self) -> Result<usize> {
        let v = self.s.int()?;
        usize::try_from(v).map_err(|_| self.s.error("expected a count"))
    }

    fn expr(&mut self) -> Result<Expr> {
        expr(&self.g.exprs, &mut self.s)
    }

    fn exprs(&mut self) -> Result<Vec<Expr>> {
        let exprs = &self.g.exprs;
        self.s.list(|s| expr(exprs, s))
    }

    /// Reads `%3` of a value that is defined.
    fn value(&mut self) -> Result<ValueId> {
        self.s.expect("%")?;
        let k = self.s.int()?;
        match usize::try_from(k) {
            Ok(k) if k < self.g.values.len() => Ok(ValueId::from_index(k)),
            _ => Err(self.s.error(format!("`%{k}` is not defined"))),
        }
    }

    /// Reads `%0 a: type, %1 b: type = ...`.
    fn definition(&mut self) -> Result<()> {
        let mut new = Vec::new();
        loop {
            self.s.expect("%")?;
            // Values are numbered by appearance, so that a position is all that a reference needs.
            let want = self.g.values.len() + new.len();
            if self.s.int()? != want as i64 {
                return Err(self.s.error(format!("expected `%{want}`")));
            }
            let name = match self.s.peek()? {
                Token::Ident(_) | Token::Str(_) => self.s.name()?,
                _ => format!("v{want}"),
            };
            self.s.expect(":")?;
            let ty = self.ty()?;
            new.push(Value { name, ty });
            if !self.s.eat(",")? {
                break;
            }
        }
        self.s.expect("=")?;
        let word = self.s.name()?;
        let kind = match word.as_str() {
            "input" => InputKind::User {
                index: self.count()?,
            },
            "parameter" => InputKind::Parameter {
                name: self.s.name()?,
            },
            "buffer" => InputKind::Buffer {
                name: self.s.name()?,
                persistent: self.s.eat_word("persistent")?,
            },
            "constant" => InputKind::Constant {
                name: self.s.name()?,
            },
            _ => return self.call(word, new),
        };
        if new.len() != 1 {
            return Err(self.s.error("an input defines one value"));
        }
        let value = ValueId::from_index(self.g.values.len());
        self.g.values.extend(new);
        let mut input = Input::new(value, kind);
        if self.s.eat_word("at")? {
            input.begin = self.s.int()?;
        }
        if self.s.eat_word("reads")? {
            let word = self.s.ident()?;
            let found = READS.iter().find(|r| r.1 == word);
            let found = found.ok_or_else(|| self.s.error("expected `memory` or `storage`"))?;
            input.reads = found.0;
        }
        self.g.inputs.push(input);
        Ok(())
    }

    /// Reads a type. Strides that are left out are row-major.
    fn ty(&mut self) -> Result<Type> {
        let word = self.s.ident()?;
        if let Some(dtype) = DType::parse(&word)
            && *self.s.peek()? == Token::Punct("[")
        {
            let sizes = self.exprs()?;
            let strides = if self.s.eat_word("strides")? {
                self.exprs()?
            } else {
                self.g.exprs.contiguous_strides(&sizes)
            };
            return Ok(Type::Tensor(TensorType {
                dtype,
                sizes,
                strides,
            }));
        }
        Ok(match word.as_str() {
            "int" => Type::Int(self.expr()?),
            "float" => Type::Float,
            "bool" => Type::Bool,
            "constant" => Type::Constant(self.s.scalar()?),
            "none" => Type::None,
            "opaque" => Type::Opaque(self.s.string()?),
            _ => return Err(self.s.error(format!("unknown type `{word}`"))),
        })
    }

    /// Reads the arguments of `op` and what follows; `new` are its results.
    fn call(&mut self, op: String, new: Vec<Value>) -> Result<()> {
        self.s.expect("(")?;
        let mut args = Vec::new();
        if !self.s.eat(")")? {
            loop {
                args.push(self.arg()?);
                if self.s.eat(")")? {
                    break;
                }
                self.s.expect(",")?;
            }
        }
        let line = if self.s.eat_word("at")? {
            let k = self.s.id("line")?;
            if k >= self.g.lines.len() {
                return Err(self.s.error(format!("`line{k}` is not defined")));
            }
            Some(LineId::from_index(k))
        } else {
            None
        };
        let made_for = if self.s.eat_word("for")? {
            Some(self.s.name()?.into())
        } else {
            None
        };
        let first = self.g.values.len();
        self.g.values.extend(new);
        let outs = (first..self.g.values.len()).map(ValueId::from_index);
        self.g.nodes.push(Node {
            op,
            args,
            outs: outs.collect(),
            line,
            made_for,
        });
        Ok(())
    }

    /// Reads an argument.
    fn arg(&mut self) -> Result<Arg> {
        match self.s.peek()?.clone() {
            Token::Punct("%") => Ok(Arg::Value(self.value()?)),
            Token::Punct("[") => self.list(),
            Token::Str(s) => {
                self.s.next_token()?;
                Ok(Arg::Str(s))
            }
            Token::Ident(word) => self.word(&word),
            _ => self.number(),
        }
    }

    /// Reads an argument that begins with a word. Empty lists name their kind: `tensors []`.
    fn word(&mut self, word: &str) -> Result<Arg> {
        if let Some(d) = word.strip_prefix("dtype.").and_then(DType::parse) {
            self.s.next_token()?;
            return Ok(Arg::DType(d));
        }
        let format = word.strip_prefix("format.");
        if let Some((m, _)) = FORMATS.iter().find(|f| Some(f.1) == format) {
            self.s.next_token()?;
            return Ok(Arg::MemoryFormat(*m));
        }
        match word {
            "none" | "true" | "false" | "tensors" | "floats" | "complex" | "bools" | "body"
            | "other" => {
                self.s.next_token()?;
            }
            _ => return self.number(),
        }
        Ok(match word {
            "none" => Arg::None,
            "true" => Arg::Bool(true),
            "false" => Arg::Bool(false),
            "body" => Arg::Body(self.count()?),
            "other" => Arg::Other(self.s.string()?),
            "tensors" => {
                self.s.expect("[")?;
                self.s.expect("]")?;
                Arg::Values(Vec::new())
            }
            "floats" => Arg::Floats(self.s.list(|s| Ok(s.scalar()?.as_f64()))?),
            "complex" => match *self.s.list(|s| Ok(s.scalar()?.as_f64()))? {
                [re, im] => Arg::Complex(re, im),
                _ => return Err(self.s.error("expected a real and an imaginary part")),
            },
            _ => Arg::Bools(self.s.list(|s| match s.scalar()? {
                Scalar::Bool(b) => Ok(b),
                _ => Err(s.error("expected `true` or `false`")),
            })?),
        })
    }

    /// Reads an integer expression or a float.
    fn number(&mut self) -> Result<Arg> {
        let mut ahead = self.s.clone();
        if let Ok(Scalar::Float(f)) = ahead.scalar() {
            self.s = ahead;
            return Ok(Arg::Float(f));
        }
        Ok(Arg::Int(self.expr()?))
    }

    /// Reads `[%0, none]` or `[2, s0]`.
    fn list(&mut self) -> Result<Arg> {
        let mut ahead = self.s.clone();
        ahead.expect("[")?;
        let tensors = match ahead.peek()? {
            Token::Punct("%") => true,
            Token::Ident(w) => w == "none",
            _ => false,
        };
        if !tensors {
            return Ok(Arg::Ints(self.exprs()?));
        }
        self.s.expect("[")?;
        let mut out = Vec::new();
        loop {
            out.push(if self.s.eat_word("none")? {
                None
            } else {
                Some(self.value()?)
            });
            if self.s.eat("]")? {
                return Ok(Arg::Values(out));
            }
            self.s.expect(",")?;
        }
    }

    /// Reads `a <= b because "why"`.
    fn guard(&mut self) -> Result<()> {
        let left = self.expr()?;
        let mut relation = None;
        for (r, text) in RELATIONS {
            if self.s.eat(text)? {
                relation = Some(r);
                break;
            }
        }
        let relation = relation.ok_or_else(|| self.s.error("expected a relation"))?;
        let right = self.expr()?;
        self.s.expect_word("because")?;
        let why = self.s.string()?;
        self.g.guards.push(Guard {
            relation,
            left,
            right,
            why,
        });
        Ok(())
    }

    fn output(&mut self, kind: OutputKind) -> Result<()> {
        self.s.expect(":")?;
        let value = if self.s.eat_word("scalar")? {
            OutputValue::Scalar(self.s.scalar()?)
        } else if self.s.eat_word("none")? {
            OutputValue::None
        } else {
            OutputValue::Value(self.value()?)
        };
        self.g.outputs.push(Output { value, kind });
        Ok(())
    }
}

fn expr(exprs: &Exprs, s: &mut Scanner) -> Result<Expr> {
    exprs.parse(s, &|name| exprs.sym_by_name(name))
}
