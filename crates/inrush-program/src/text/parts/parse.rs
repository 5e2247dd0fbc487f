//! Text to programs in parts.

use super::super::parse::Parser;
use crate::host::{Layout, Read, Segment, Symbol, View};
use crate::parts::{
    Argument, Body, Cond, Custom, Dynamic, MOST_NESTED, Operand, Out, Param, Scan, Sequence, Step,
    StepKind, While, Write,
};
use inrush_base::Result;
use inrush_base::text::Token;

impl Parser<'_> {
    /// Reads the block of a program's parts up to its `end`.
    pub(in crate::text) fn parts(&mut self) -> Result<()> {
        self.s.expect_word("parts")?;
        if self.out.parts.is_some() {
            return Err(self.s.error("the parts of a program are given twice"));
        }
        let mut parts = Sequence {
            slots: self.number()? as usize,
            ..Sequence::default()
        };
        self.s.expect_word("slots")?;
        self.s.end_of_line()?;
        // Lines of sizes in the block are its own.
        let outer = std::mem::take(&mut self.out.sizes);
        let read = self.part_lines(&mut parts);
        parts.sizes = std::mem::replace(&mut self.out.sizes, outer);
        read?;
        self.out.parts = Some(Box::new(parts));
        Ok(())
    }

    fn part_lines(&mut self, parts: &mut Sequence) -> Result<()> {
        loop {
            self.s.skip_newlines()?;
            let word = match self.s.peek()? {
                Token::Ident(w) => w.clone(),
                _ => return Err(self.s.error("expected a line of a program's parts")),
            };
            match word.as_str() {
                "end" => {
                    self.s.next_token()?;
                    return Ok(());
                }
                "size" => self.size_line()?,
                "inputs" => {
                    self.s.next_token()?;
                    parts.inputs = self.slots()?;
                }
                "weight" => {
                    self.s.next_token()?;
                    let slot = self.slot()?;
                    self.s.expect("=")?;
                    parts.weights.push((slot, self.s.name()?));
                }
                "symbol" => self.part_symbol(parts)?,
                "output" => self.part_output(parts)?,
                _ => {
                    let step = self.part_step(&word)?;
                    parts.steps.push(step);
                }
            }
            self.s.end_of_line()?;
        }
    }

    /// Reads where a symbol comes from. Symbols are in the order of the program's.
    fn part_symbol(&mut self, parts: &mut Sequence) -> Result<()> {
        self.s.next_token()?;
        let name = self.s.name()?;
        let wanted = self.out.symbols.get(parts.symbols.len());
        if wanted.is_none_or(|s| s.name != name) {
            let message = format!("the symbol `{name}` is not the next of the program");
            return Err(self.s.error(message));
        }
        self.s.expect("=")?;
        let slot = self.slot()?;
        let read = if self.s.eat_word("dim")? {
            let dim = self.number()? as usize;
            let factor = self.number_after("factor", 1)?;
            let offset = self.number_after("offset", 0)?;
            Read::Dim {
                dim,
                factor,
                offset,
            }
        } else {
            Read::Int
        };
        let after = if self.s.eat_word("after")? {
            Some(self.number()? as usize)
        } else {
            None
        };
        parts.symbols.push(Symbol { slot, read, after });
        Ok(())
    }

    /// Reads a number after a word; `default` where the word is left out.
    fn number_after(&mut self, word: &str, default: i64) -> Result<i64> {
        if self.s.eat_word(word)? {
            self.s.int()
        } else {
            Ok(default)
        }
    }

    fn part_output(&mut self, parts: &mut Sequence) -> Result<()> {
        self.s.next_token()?;
        let at = self.number()? as usize;
        self.in_order(at, parts.outputs.len(), "")?;
        self.s.expect(":")?;
        let out = if self.s.eat_word("size")? {
            Out::Size(self.size()?)
        } else if self.s.eat_word("scalar")? {
            Out::Scalar(self.s.scalar()?.into())
        } else if self.s.eat_word("none")? {
            Out::None
        } else {
            Out::Slot(self.slot()?)
        };
        parts.outputs.push(out);
        Ok(())
    }

    fn part_step(&mut self, word: &str) -> Result<Step> {
        let unknown = self
            .s
            .error(format!("`{word}` is no step of a program in parts"));
        self.s.next_token()?;
        let (kind, frees) = match word {
            "segment" => self.segment()?,
            "view" => (StepKind::View(self.view()?), self.frees()?),
            "dynamic" => (StepKind::Dynamic(self.dynamic()?), self.frees()?),
            "custom" => (StepKind::Custom(self.custom()?), self.frees()?),
            "cond" => self.cond()?,
            "while" => self.while_loop()?,
            "scan" => self.scan()?,
            "write" => {
                let all = self.items(|p| {
                    let from = p.slot()?;
                    p.s.expect_word("to")?;
                    Ok(Write {
                        from,
                        to: p.slot()?,
                    })
                })?;
                (StepKind::Write(all), self.frees()?)
            }
            _ => return Err(unknown),
        };
        Ok(Step { kind, frees })
    }

    fn slot(&mut self) -> Result<usize> {
        self.s.expect("%")?;
        Ok(self.number()? as usize)
    }

    fn slots(&mut self) -> Result<Vec<usize>> {
        self.items(Self::slot)
    }

    fn frees(&mut self) -> Result<Vec<usize>> {
        if self.s.eat_word("frees")? {
            self.slots()
        } else {
            Ok(Vec::new())
        }
    }

    fn outs(&mut self) -> Result<Vec<usize>> {
        self.s.expect("->")?;
        self.slots()
    }

    fn from(&mut self) -> Result<String> {
        self.s.expect_word("from")?;
        self.s.string()
    }

    /// Reads a program on the lines that follow, up to its `end`.
    fn inner(&mut self) -> Result<crate::Program> {
        self.s.end_of_line()?;
        // Segments of the innermost program are one level below it.
        if self.depth > MOST_NESTED {
            return Err(self.s.error("too many programs within programs"));
        }
        let mut inner = Parser {
            s: self.s.clone(),
            out: crate::Program::default(),
            depth: self.depth + 1,
        };
        inner.program()?;
        self.s = inner.s;
        self.s.expect_word("end")?;
        Ok(inner.out)
    }

    fn segment(&mut self) -> Result<(StepKind, Vec<usize>)> {
        let inputs = self.slots()?;
        self.s.expect_word("symbols")?;
        let symbols = self.items(Self::number)?;
        let outputs = self.outs()?;
        let frees = self.frees()?;
        let segment = Segment {
            inputs,
            symbols,
            outputs,
            program: self.inner()?,
        };
        Ok((StepKind::Segment(segment), frees))
    }

    fn view(&mut self) -> Result<View> {
        let value = self.slot()?;
        self.s.expect("=")?;
        let base = self.slot()?;
        let offset = self.size_of("at")?;
        let sizes = self.sizes()?;
        let strides = self.sizes_of("strides")?;
        let dtype = if self.s.eat_word("as")? {
            Some(self.dtype()?)
        } else {
            None
        };
        let base_layout = if self.s.eat_word("of")? {
            Some((self.sizes()?, self.sizes_of("strides")?))
        } else {
            None
        };
        Ok(View {
            base,
            value,
            sizes,
            strides,
            offset,
            dtype,
            base_layout,
        })
    }

    fn dynamic(&mut self) -> Result<Dynamic> {
        let function = self.s.name()?;
        let params = self.items(|p| {
            Ok(if p.s.eat_word("size")? {
                Param::Size(p.size()?)
            } else if p.s.eat_word("none")? {
                Param::None
            } else {
                Param::Num(p.s.scalar()?.into())
            })
        })?;
        let inputs = self.optional_slots()?;
        Ok(Dynamic {
            function,
            params,
            inputs,
            outs: self.outs()?,
            origin: self.from()?,
        })
    }

    fn custom(&mut self) -> Result<Custom> {
        let operator = self.s.string()?;
        let args = self.items(Self::argument)?;
        let outs = self.outs()?;
        self.s.expect_word("results")?;
        let results = self.items(Self::layout)?;
        Ok(Custom {
            operator,
            args,
            outs,
            results,
            origin: self.from()?,
        })
    }

    fn argument(&mut self) -> Result<Argument> {
        Ok(if *self.s.peek()? == Token::Punct("%") {
            Argument::Tensor(self.slot()?)
        } else if self.s.eat_word("none")? {
            Argument::None
        } else if self.s.eat_word("tensors")? {
            Argument::Tensors(self.optional_slots()?)
        } else if self.s.eat_word("size")? {
            Argument::Size(self.size()?)
        } else if self.s.eat_word("sizes")? {
            Argument::Sizes(self.sizes()?)
        } else if self.s.eat_word("numbers")? {
            Argument::Nums(self.items(|p| Ok(p.s.scalar()?.into()))?)
        } else if self.s.eat_word("text")? {
            Argument::Text(self.s.string()?)
        } else if self.s.eat_word("dtype")? {
            Argument::DType(self.dtype()?)
        } else {
            Argument::Num(self.s.scalar()?.into())
        })
    }

    fn optional_slots(&mut self) -> Result<Vec<Option<usize>>> {
        self.items(|p| {
            if p.s.eat_word("none")? {
                Ok(None)
            } else {
                p.slot().map(Some)
            }
        })
    }

    fn layout(&mut self) -> Result<Layout> {
        Ok(Layout {
            dtype: self.dtype()?,
            sizes: self.sizes()?,
            strides: self.sizes_of("strides")?,
        })
    }

    fn operands_of_body(&mut self) -> Result<Vec<Operand>> {
        self.items(|p| {
            Ok(if p.s.eat_word("size")? {
                Operand::Size(p.size()?)
            } else if p.s.eat_word("carried")? {
                Operand::Carried(p.number()? as usize)
            } else if p.s.eat_word("slice")? {
                Operand::Slice(p.number()? as usize)
            } else {
                Operand::Slot(p.slot()?)
            })
        })
    }

    /// Reads a body on the lines that follow.
    fn body(&mut self, word: &str) -> Result<Body> {
        self.s.end_of_line()?;
        self.s.skip_newlines()?;
        self.s.expect_word(word)?;
        Ok(Body {
            inputs: self.operands_of_body()?,
            program: self.inner()?,
        })
    }

    fn cond(&mut self) -> Result<(StepKind, Vec<usize>)> {
        let predicate = self.slot()?;
        let (outs, origin, frees) = (self.outs()?, self.from()?, self.frees()?);
        let cond = Cond {
            predicate,
            then: self.body("then")?,
            otherwise: self.body("otherwise")?,
            outs,
            origin,
        };
        Ok((StepKind::Cond(cond), frees))
    }

    fn while_loop(&mut self) -> Result<(StepKind, Vec<usize>)> {
        let carried = self.operands_of_body()?;
        let (outs, origin, frees) = (self.outs()?, self.from()?, self.frees()?);
        let step = While {
            condition: self.body("condition")?,
            body: self.body("body")?,
            carried,
            outs,
            origin,
        };
        Ok((StepKind::While(step), frees))
    }

    fn scan(&mut self) -> Result<(StepKind, Vec<usize>)> {
        let carried = self.operands_of_body()?;
        self.s.expect_word("over")?;
        let sliced = self.slots()?;
        let outs = self.outs()?;
        self.s.expect_word("stacked")?;
        let stacked = self.items(Self::layout)?;
        let (origin, frees) = (self.from()?, self.frees()?);
        let scan = Scan {
            body: self.body("body")?,
            carried,
            sliced,
            outs,
            stacked,
            origin,
        };
        Ok((StepKind::Scan(scan), frees))
    }
}
