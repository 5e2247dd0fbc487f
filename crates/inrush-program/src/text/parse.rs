//! Text to programs. Numbers of buffers, kernels and inputs are taken as they stand: what they refer to is the verifier's.

use super::{READS, RELATIONS};
use crate::*;
use inrush_base::text::{Scanner, Token};
use inrush_base::{CheckKind, DType, Result};

/// Reads a program as [`Program::print`] writes it. A constant that no line of sizes holds gets one.
pub fn parse(text: &str) -> Result<Program> {
    let mut p = Parser {
        s: Scanner::new(text),
        out: Program::default(),
        depth: 0,
    };
    p.program()?;
    if p.s.at_end()? {
        Ok(p.out)
    } else {
        Err(p.s.error("there is nothing to end"))
    }
}

/// The number of a size's name, `z12`.
pub(super) fn size_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix('z')?;
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| plain)
}

pub(super) struct Parser<'a> {
    pub(super) s: Scanner<'a>,
    pub(super) out: Program,
    /// Programs around this one.
    pub(super) depth: usize,
}

impl Parser<'_> {
    /// Reads a program, up to the end of the text or the word `end`.
    pub(super) fn program(&mut self) -> Result<()> {
        self.s.skip_newlines()?;
        self.s.expect_word("program")?;
        self.out.name = self.s.name()?;
        self.s.end_of_line()?;
        loop {
            self.s.skip_newlines()?;
            match self.s.peek()? {
                Token::End => return Ok(()),
                Token::Ident(w) if w == "end" => return Ok(()),
                _ => {}
            }
            self.line()?;
            self.s.end_of_line()?;
        }
    }

    fn line(&mut self) -> Result<()> {
        let word = match self.s.peek()? {
            Token::Ident(w) => w.clone(),
            _ => return Err(self.s.error("expected a line of a program")),
        };
        match word.as_str() {
            "symbol" => self.symbol(),
            "size" => self.size_line(),
            "input" => self.input(),
            "guard" => self.guard(),
            "kernel" => self.kernel(),
            "arena" => {
                self.s.next_token()?;
                self.out.arena_bytes = self.bytes()?;
                Ok(())
            }
            "load" => {
                self.s.next_token()?;
                if self.s.eat_word("arena")? {
                    self.out.load_bytes = self.bytes()?;
                    return Ok(());
                }
                let step = self.step()?;
                self.out.load_steps.push(step);
                Ok(())
            }
            "launch" | "contract" | "library" => {
                let step = self.step()?;
                self.out.steps.push(step);
                Ok(())
            }
            "output" => self.output(),
            "parts" => self.parts(),
            _ => self.buffer(),
        }
    }

    pub(super) fn number(&mut self) -> Result<u32> {
        let v = self.s.int()?;
        u32::try_from(v).map_err(|_| self.s.error("expected a position"))
    }

    fn id(&mut self, prefix: &str) -> Result<u32> {
        Ok(self.s.id(prefix)? as u32)
    }

    /// A position that must be `count`.
    pub(super) fn in_order(&mut self, found: usize, count: usize, prefix: &str) -> Result<()> {
        if found == count {
            return Ok(());
        }
        let message = format!("expected `{prefix}{count}`, found `{prefix}{found}`");
        Err(self.s.error(message))
    }

    pub(super) fn dtype(&mut self) -> Result<Dt> {
        let word = self.s.ident()?;
        let dtype = DType::parse(&word).map(Dt);
        dtype.ok_or_else(|| self.s.error(format!("unknown dtype `{word}`")))
    }

    /// Reads a bound of a symbol. Infinities are the ends of `i64`.
    fn bound(&mut self) -> Result<i64> {
        if self.s.eat_word("inf")? {
            return Ok(i64::MAX);
        }
        // `-inf` or a number; a clone is a place to go back to.
        let mut ahead = self.s.clone();
        if ahead.eat("-")? && ahead.eat_word("inf")? {
            self.s = ahead;
            return Ok(i64::MIN);
        }
        self.s.int()
    }

    fn symbol(&mut self) -> Result<()> {
        self.s.next_token()?;
        let name = self.s.name()?;
        if self.out.symbols.iter().any(|s| s.name == name) {
            let message = format!("the symbol `{name}` is declared twice");
            return Err(self.s.error(message));
        }
        self.s.expect_word("in")?;
        self.s.expect("[")?;
        let lower = self.bound()?;
        self.s.expect(",")?;
        let upper = self.bound()?;
        self.s.expect("]")?;
        self.s.expect("=")?;
        let source = if self.s.eat_word("data")? {
            SymbolSource::Data
        } else {
            self.symbol_source()?
        };
        self.out.symbols.push(Symbol {
            name,
            lower,
            upper,
            source,
        });
        Ok(())
    }

    /// Reads the input that a symbol is read from.
    fn symbol_source(&mut self) -> Result<SymbolSource> {
        self.s.expect_word("input")?;
        let input = self.number()?;
        Ok(if !self.s.eat_word("dim")? {
            SymbolSource::Int { input }
        } else {
            SymbolSource::Dim {
                input,
                dim: self.number()?,
                factor: if self.s.eat_word("factor")? {
                    self.s.int()?
                } else {
                    1
                },
                offset: if self.s.eat_word("offset")? {
                    self.s.int()?
                } else {
                    0
                },
            }
        })
    }

    /// Reads a line of the size arithmetic. Numbers count up, so that they can be checked.
    pub(super) fn size_line(&mut self) -> Result<()> {
        self.s.next_token()?;
        let at = self.s.id("z")?;
        self.in_order(at, self.out.sizes.len(), "z")?;
        self.s.expect("=")?;
        let line = self.size_right()?;
        if self.out.sizes.len() > at {
            // A constant of this very line was new and took the place.
            return Err(self.s.error("a constant in a size needs a line before"));
        }
        self.out.sizes.push(line);
        Ok(())
    }

    /// Reads the right side of a size line.
    fn size_right(&mut self) -> Result<Size> {
        if let Token::Ident(w) = self.s.peek()?
            && (w == "min" || w == "max")
        {
            let least = w == "min";
            self.s.next_token()?;
            self.s.expect("(")?;
            let a = self.size()?;
            self.s.expect(",")?;
            let b = self.size()?;
            self.s.expect(")")?;
            return Ok(if least {
                Size::Min(a, b)
            } else {
                Size::Max(a, b)
            });
        }
        // A lone constant or symbol is a line of its own, also when an earlier line holds the same.
        let mut ahead = self.s.clone();
        if let Some(leaf) = self.leaf()?
            && matches!(self.s.peek()?, Token::Newline | Token::End)
        {
            return Ok(leaf);
        }
        std::mem::swap(&mut self.s, &mut ahead);
        let a = self.size()?;
        for (op, make) in [
            ("+", Size::Add as fn(SizeId, SizeId) -> Size),
            ("*", Size::Mul),
            ("//", Size::FloorDiv),
            ("%", Size::Mod),
        ] {
            if self.s.eat(op)? {
                return Ok(make(a, self.size()?));
            }
        }
        Err(self.s.error("expected `+`, `*`, `//` or `%`"))
    }

    /// A constant or a symbol.
    fn leaf(&mut self) -> Result<Option<Size>> {
        match self.s.peek()?.clone() {
            Token::Int(_) | Token::Punct("-") => Ok(Some(Size::Const(self.s.int()?))),
            Token::Ident(name) if size_number(&name).is_none() => {
                self.s.next_token()?;
                self.symbol_line(&name).map(Some)
            }
            Token::Str(name) => {
                self.s.next_token()?;
                self.symbol_line(&name).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn symbol_line(&mut self, name: &str) -> Result<Size> {
        match self.out.symbols.iter().position(|s| s.name == name) {
            Some(k) => Ok(Size::Sym(k as u32)),
            None => Err(self.s.error(format!("unknown symbol `{name}`"))),
        }
    }

    /// A size where it is used: `z3`, a constant, a symbol.
    pub(super) fn size(&mut self) -> Result<SizeId> {
        let Some(leaf) = self.leaf()? else {
            let word = self.s.ident()?;
            return match size_number(&word) {
                Some(k) => Ok(SizeId(k)),
                None => Err(self.s.error(format!("`{word}` is no size"))),
            };
        };
        let known = self.out.sizes.iter().position(|s| *s == leaf);
        let at = known.unwrap_or_else(|| {
            self.out.sizes.push(leaf);
            self.out.sizes.len() - 1
        });
        Ok(SizeId(at as u32))
    }

    /// `SIZE bytes`.
    fn bytes(&mut self) -> Result<SizeId> {
        let size = self.size()?;
        self.s.expect_word("bytes")?;
        Ok(size)
    }

    pub(super) fn sizes(&mut self) -> Result<Vec<SizeId>> {
        self.items(Self::size)
    }

    /// `[a, b]`, each read by `item`.
    pub(super) fn items<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.s.expect("[")?;
        let mut out = Vec::new();
        if self.s.eat("]")? {
            return Ok(out);
        }
        loop {
            out.push(item(self)?);
            if self.s.eat("]")? {
                return Ok(out);
            }
            self.s.expect(",")?;
        }
    }

    fn buffers(&mut self) -> Result<Vec<BufferId>> {
        self.items(|p| p.id("b"))
    }

    fn names(&mut self) -> Result<Vec<String>> {
        self.s.list(Scanner::name)
    }

    fn input(&mut self) -> Result<()> {
        self.s.next_token()?;
        let at = self.number()? as usize;
        self.in_order(at, self.out.inputs.len(), "")?;
        let name = self.s.name()?;
        self.s.expect(":")?;
        let ty = if self.s.eat_word("int")? {
            InputType::Int {
                value: self.size()?,
            }
        } else if self.s.eat_word("constant")? {
            InputType::Constant {
                value: self.s.scalar()?.into(),
            }
        } else if self.s.eat_word("ignored")? {
            InputType::Ignored
        } else {
            let dtype = self.dtype()?;
            let sizes = self.sizes()?;
            self.s.expect_word("strides")?;
            let strides = self.sizes()?;
            InputType::Tensor {
                dtype,
                sizes,
                strides,
            }
        };
        let reads = if !self.s.eat_word("reads")? {
            Reads::Elements
        } else {
            let word = self.s.ident()?;
            let found = READS.iter().find(|r| r.1 == word);
            found
                .ok_or_else(|| self.s.error("expected `memory` or `storage`"))?
                .0
        };
        self.out.inputs.push(Input { name, ty, reads });
        Ok(())
    }

    fn guard(&mut self) -> Result<()> {
        self.s.next_token()?;
        let left = self.size()?;
        let Token::Punct(p) = self.s.next_token()? else {
            return Err(self.s.error("expected a relation"));
        };
        let Some((relation, _)) = RELATIONS.into_iter().find(|r| r.1 == p) else {
            return Err(self.s.error("expected `==`, `!=`, `<=` or `<`"));
        };
        let right = self.size()?;
        let why = self.s.string()?;
        self.out.guards.push(Guard {
            relation,
            left,
            right,
            why,
        });
        Ok(())
    }

    fn buffer(&mut self) -> Result<()> {
        let at = self.s.id("b")?;
        self.in_order(at, self.out.buffers.len(), "b")?;
        let name = self.s.name()?;
        self.s.expect(":")?;
        let dtype = self.dtype()?;
        let bytes = self.bytes()?;
        let written = self.s.eat_word("written")?;
        self.s.expect("=")?;
        let place = self.place()?;
        self.out.buffers.push(Buffer {
            name,
            dtype,
            place,
            bytes,
            written,
        });
        Ok(())
    }

    fn place(&mut self) -> Result<Place> {
        Ok(match self.s.ident()?.as_str() {
            "input" => Place::Input {
                input: self.number()?,
            },
            "output" => Place::Output {
                output: self.number()?,
            },
            "arena" => Place::Arena {
                offset: self.size()?,
            },
            "load" => {
                self.s.expect_word("arena")?;
                let offset = self.size()?;
                Place::Persistent { offset }
            }
            "alias" => {
                let of = self.id("b")?;
                self.s.expect_word("at")?;
                let offset = self.size()?;
                Place::Alias { of, offset }
            }
            "weight" => {
                let name = self.s.name()?;
                let sizes = self.s.list(Scanner::int)?;
                self.s.expect_word("strides")?;
                let strides = self.s.list(Scanner::int)?;
                Place::Weight(Weight {
                    name,
                    sizes,
                    strides,
                })
            }
            other => return Err(self.s.error(format!("`{other}` is no place"))),
        })
    }

    fn kernel(&mut self) -> Result<()> {
        self.s.next_token()?;
        let at = self.s.id("k")?;
        self.in_order(at, self.out.kernels.len(), "k")?;
        let (symbol, title) = (self.s.name()?, self.s.name()?);
        self.s.expect_word("checks")?;
        let checks = self.s.list(|s| {
            let name = s.ident()?;
            let kind = CheckKind::parse(&name)
                .ok_or_else(|| s.error(format!("unknown check `{name}`")))?;
            let message = s.string()?;
            Ok(Check { kind, message })
        })?;
        self.out.kernels.push(Kernel {
            symbol,
            title,
            checks,
        });
        Ok(())
    }

    fn step(&mut self) -> Result<Step> {
        if self.s.eat_word("launch")? {
            self.launch().map(Step::Launch)
        } else if self.s.eat_word("library")? {
            self.library().map(Step::Library)
        } else {
            self.contract().map(Step::Contract)
        }
    }

    /// The word and then a list of sizes.
    pub(super) fn sizes_of(&mut self, word: &str) -> Result<Vec<SizeId>> {
        self.s.expect_word(word)?;
        self.sizes()
    }

    pub(super) fn size_of(&mut self, word: &str) -> Result<SizeId> {
        self.s.expect_word(word)?;
        self.size()
    }

    fn origins(&mut self) -> Result<Vec<String>> {
        self.s.expect_word("from")?;
        self.names()
    }

    fn launch(&mut self) -> Result<Launch> {
        Ok(Launch {
            kernel: self.id("k")?,
            buffers: self.buffers()?,
            sizes: self.sizes_of("sizes")?,
            units: self.size_of("units")?,
            unit_cost: self.size_of("cost")?,
            scratch_bytes: self.size_of("scratch")?,
            serial: self.s.eat_word("serial")?,
            beside: self.s.eat_word("beside")?,
            origins: self.origins()?,
        })
    }

    fn library(&mut self) -> Result<LibraryCall> {
        Ok(LibraryCall {
            function: self.s.name()?,
            params: self.s.list(|s| Ok(s.scalar()?.into()))?,
            inputs: self.operands()?,
            outputs: {
                self.s.expect("->")?;
                self.operands()?
            },
            origins: self.origins()?,
        })
    }

    /// Reads `[b0[2, s0], b1[]]`.
    fn operands(&mut self) -> Result<Vec<Operand>> {
        self.s.expect("[")?;
        let mut out = Vec::new();
        while !self.s.eat("]")? {
            if !out.is_empty() {
                self.s.expect(",")?;
            }
            out.push(Operand {
                buffer: self.id("b")?,
                sizes: self.sizes()?,
            });
        }
        Ok(out)
    }

    fn contract(&mut self) -> Result<Contract> {
        self.s.expect_word("contract")?;
        let acc = self.dtype()?;
        let a = self.id("b")?;
        let a_offset = self.size_of("at")?;
        self.s.expect(",")?;
        let b = self.id("b")?;
        let b_offset = self.size_of("at")?;
        let batch = self.levels("batch", |size, s: [SizeId; 2]| BatchLevel {
            size,
            a_stride: s[0],
            b_stride: s[1],
        })?;
        let one = |size, s: [SizeId; 1]| Level { size, stride: s[0] };
        let m = self.levels("m", one)?;
        let n = self.levels("n", one)?;
        let k = self.levels("k", |size, s: [SizeId; 2]| KLevel {
            size,
            a_stride: s[0],
            b_stride: s[1],
        })?;
        self.s.expect("->")?;
        Ok(Contract {
            a,
            b,
            a_offset,
            b_offset,
            batch,
            m,
            n,
            k,
            acc,
            epilogue: self.id("k")?,
            buffers: self.buffers()?,
            sizes: self.sizes_of("sizes")?,
            store: if self.s.eat_word("stores")? {
                Some(Store {
                    offset: self.size_of("at")?,
                    batch: self.sizes_of("batch")?,
                    m: self.sizes_of("m")?,
                    n: self.sizes_of("n")?,
                })
            } else {
                None
            },
            origins: self.origins()?,
        })
    }

    /// `WORD [size: stride .., ..]` with `N` strides each.
    fn levels<T, const N: usize>(
        &mut self,
        word: &str,
        make: impl Fn(SizeId, [SizeId; N]) -> T,
    ) -> Result<Vec<T>> {
        self.s.expect_word(word)?;
        self.items(|p| {
            let size = p.size()?;
            p.s.expect(":")?;
            let mut strides = [SizeId(0); N];
            for s in &mut strides {
                *s = p.size()?;
            }
            Ok(make(size, strides))
        })
    }

    fn output(&mut self) -> Result<()> {
        self.s.next_token()?;
        let at = self.number()? as usize;
        self.in_order(at, self.out.outputs.len(), "")?;
        self.s.expect(":")?;
        let out = if self.s.eat_word("int")? {
            Output::Int {
                value: self.size()?,
            }
        } else if self.s.eat_word("scalar")? {
            Output::Scalar {
                value: self.s.scalar()?.into(),
            }
        } else if self.s.eat_word("mutation")? {
            Output::Mutation
        } else if self.s.eat_word("none")? {
            Output::None
        } else {
            let buffer = self.id("b")?;
            let dtype = self.dtype()?;
            let sizes = self.sizes()?;
            self.s.expect_word("strides")?;
            let strides = self.sizes()?;
            Output::Tensor {
                buffer,
                dtype,
                sizes,
                strides,
            }
        };
        self.out.outputs.push(out);
        Ok(())
    }
}
