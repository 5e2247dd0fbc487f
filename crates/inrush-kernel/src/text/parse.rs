//! Text to kernels. References are checked here (a name that is not there cannot be read); rules are the verifier's.

use crate::*;
use inrush_base::text::{Scanner, Token};
use inrush_base::{CheckKind, Result};
use inrush_expr::{Exprs, Position};

/// Loops in loops that are read; text is untrusted.
const MAX_DEPTH: usize = 64;

/// Reads declarations and kernels as [`super::print_all`] writes them. The result is well-formed but not verified.
pub fn parse(text: &str) -> Result<(Exprs, Vec<Kernel>)> {
    let exprs = Exprs::new();
    let mut s = Scanner::new(text);
    let mut out = Vec::new();
    loop {
        s.skip_newlines()?;
        if s.at_end()? {
            return Ok((exprs, out));
        }
        if exprs.parse_decl(&mut s)? {
            continue;
        }
        let mut p = Parser {
            s,
            exprs: &exprs,
            indices: Vec::new(),
            k: empty(&exprs),
        };
        p.kernel()?;
        s = p.s;
        out.push(p.k);
    }
}

pub(crate) fn empty(exprs: &Exprs) -> Kernel {
    Kernel {
        name: String::new(),
        origins: Vec::new(),
        kind: Kind::Grid(Vec::new()),
        buffers: Vec::new(),
        sizes: Vec::new(),
        values: Vec::new(),
        accs: Vec::new(),
        head: Vec::new(),
        body: Vec::new(),
        checks: Vec::new(),
        units: exprs.int(0),
        cost_per_unit: exprs.int(0),
        scratch_bytes: None,
    }
}

/// Reads kernels; block programs read their values and buffers by the same rules.
pub(crate) struct Parser<'a> {
    pub s: Scanner<'a>,
    pub exprs: &'a Exprs,
    pub indices: Vec<(String, Sym)>,
    pub k: Kernel,
}

impl Parser<'_> {
    fn kernel(&mut self) -> Result<()> {
        self.s.expect_word("kernel")?;
        self.k.name = self.s.name()?;
        self.k.origins = self.from()?;
        self.open()?;
        if self.s.eat_word("index")? {
            self.indices()?;
        }
        self.params()?;
        self.s.expect_word("units")?;
        self.k.units = self.expr()?;
        self.s.expect_word("cost")?;
        self.k.cost_per_unit = self.expr()?;
        if self.s.eat_word("scratch")? {
            self.k.scratch_bytes = Some(self.expr()?);
        }
        self.s.end_of_line()?;
        self.head_lines()?;
        self.k.head = self.items(0)?;
        if self.s.eat_word("tile")? {
            let batch = self.sym()?;
            self.s.expect(",")?;
            let m = self.sym()?;
            self.s.expect(",")?;
            let n = self.sym()?;
            let pieces = match self.s.eat_word("with")? {
                true => {
                    let row = self.sym()?;
                    self.s.expect("<")?;
                    let length = self.expr()?;
                    Some(Pieces { row, length })
                }
                false => None,
            };
            self.k.kind = Kind::Epilogue {
                batch,
                m,
                n,
                pieces,
            };
        } else {
            self.s.expect_word("grid")?;
            self.k.kind = Kind::Grid(self.grid()?);
        }
        self.open()?;
        self.k.body = self.items(0)?;
        self.close()?;
        self.s.skip_newlines()?;
        self.close()
    }

    /// ` {` and the end of the line.
    pub fn open(&mut self) -> Result<()> {
        self.s.expect("{")?;
        self.s.end_of_line()?;
        self.s.skip_newlines()
    }

    pub fn close(&mut self) -> Result<()> {
        self.s.expect("}")?;
        self.s.end_of_line()
    }

    /// `sizes [s0, i9 = 4*s0]`.
    pub fn params(&mut self) -> Result<()> {
        self.s.expect_word("sizes")?;
        self.s.expect("[")?;
        while !self.s.eat("]")? {
            let e = self.expr()?;
            let Some(sym) = self.exprs.as_sym(e) else {
                return Err(self.s.error("expected a symbol"));
            };
            let value = match self.s.eat("=")? {
                true => self.expr()?,
                false => e,
            };
            self.k.sizes.push(Param { sym, value });
            if *self.s.peek()? != Token::Punct("]") {
                self.s.expect(",")?;
            }
        }
        self.s.end_of_line()
    }

    pub fn from(&mut self) -> Result<Vec<OriginId>> {
        let mut out = Vec::new();
        if self.s.eat_word("from")? {
            // The kind of a check may follow.
            let origin = |w: &str| {
                w.strip_prefix('o')
                    .is_some_and(|n| n.parse::<u32>().is_ok())
            };
            while matches!(self.s.peek()?, Token::Ident(w) if origin(w)) {
                out.push(OriginId::from_index(self.s.id("o")?));
            }
        }
        Ok(out)
    }

    /// `index [i0: s0, i3.1: 4]`.
    pub fn indices(&mut self) -> Result<()> {
        self.s.expect("[")?;
        while !self.s.eat("]")? {
            let name = self.s.ident()?;
            let position = self.position(&name)?;
            self.new_name(&name)?;
            self.s.expect(":")?;
            let extent = self.expr()?;
            let sym = self.exprs.sym_at(position, extent);
            self.indices.push((name, sym));
            if *self.s.peek()? != Token::Punct("]") {
                self.s.expect(",")?;
            }
        }
        self.s.end_of_line()
    }

    /// The position of an index, from its name.
    pub fn position(&mut self, name: &str) -> Result<Position> {
        Position::parse(name).ok_or_else(|| {
            let message = format!("`{name}` is not an index such as `i0`");
            self.s.error(message)
        })
    }

    /// Refuses a name that an index has already.
    pub fn new_name(&mut self, name: &str) -> Result<()> {
        match self.indices.iter().any(|(n, _)| n == name) {
            true => Err(self.s.error(format!("the index `{name}` is defined twice"))),
            false => Ok(()),
        }
    }

    pub fn expr(&mut self) -> Result<Expr> {
        let (exprs, indices) = (self.exprs, &self.indices);
        exprs.parse(&mut self.s, &|name| {
            let index = indices.iter().find(|(n, _)| n == name);
            index.map(|(_, s)| *s).or_else(|| exprs.sym_by_name(name))
        })
    }

    /// An index that was declared.
    fn sym(&mut self) -> Result<Sym> {
        let name = self.s.ident()?;
        match self.indices.iter().find(|(n, _)| *n == name) {
            Some((_, s)) => Ok(*s),
            None => Err(self.s.error(format!("unknown index `{name}`"))),
        }
    }

    pub fn dtype(&mut self) -> Result<DType> {
        let word = self.s.ident()?;
        DType::parse(&word).ok_or_else(|| self.s.error(format!("unknown dtype `{word}`")))
    }

    /// Buffers, accumulators and checks.
    pub fn head_lines(&mut self) -> Result<()> {
        loop {
            self.s.skip_newlines()?;
            match self.s.peek()?.clone() {
                Token::Ident(w) if is_id(&w, 'b') => {
                    self.next_id("b", self.k.buffers.len())?;
                    self.s.expect("=")?;
                    let dtype = self.dtype()?;
                    let buf = BufId::from_index(self.s.id("b")?);
                    let role = self.role()?;
                    self.k.buffers.push(KernelBuf { buf, dtype, role });
                }
                Token::Ident(w) if is_id(&w, 'a') => {
                    self.next_id("a", self.k.accs.len())?;
                    self.s.expect("=")?;
                    let dtype = self.dtype()?;
                    let word = self.s.ident()?;
                    let Some(op) = ReduceOp::parse(&word) else {
                        return Err(self.s.error(format!("unknown reduction `{word}`")));
                    };
                    let index = match self.s.eat_word("at")? {
                        true => Some(self.expr()?),
                        false => None,
                    };
                    self.k.accs.push(Acc { op, dtype, index });
                }
                Token::Ident(w) if w == "check" => {
                    self.s.next_token()?;
                    let origin = self.from()?.first().copied();
                    let name = self.s.ident()?;
                    let Some(kind) = CheckKind::parse(&name) else {
                        return Err(self.s.error(format!("unknown check `{name}`")));
                    };
                    let message = self.s.string()?;
                    self.k.checks.push(Check {
                        kind,
                        origin,
                        message,
                    });
                }
                _ => return Ok(()),
            }
            self.s.end_of_line()?;
        }
    }

    fn role(&mut self) -> Result<BufRole> {
        Ok(match self.s.ident()?.as_str() {
            "in" => BufRole::In,
            "out" => BufRole::Out,
            "stream" => BufRole::Stream,
            "inout" => BufRole::InOut,
            "local" => BufRole::Local {
                len: self.expr()?,
                per_lane: self.s.eat_word("lanes")?,
            },
            other => return Err(self.s.error(format!("`{other}` is no role of a buffer"))),
        })
    }

    fn next_id(&mut self, prefix: &str, count: usize) -> Result<()> {
        let k = self.s.id(prefix)?;
        if k == count {
            return Ok(());
        }
        let message = format!("expected `{prefix}{count}`, found `{prefix}{k}`");
        Err(self.s.error(message))
    }

    fn reference(&mut self, prefix: &str, count: usize) -> Result<usize> {
        let k = self.s.id(prefix)?;
        if k < count {
            return Ok(k);
        }
        Err(self.s.error(format!("`{prefix}{k}` is not defined")))
    }

    pub fn value(&mut self) -> Result<ValId> {
        let count = self.k.values.len();
        Ok(ValId::from_index(self.reference("v", count)?))
    }

    pub fn buf(&mut self) -> Result<KBufId> {
        let count = self.k.buffers.len();
        Ok(KBufId::from_index(self.reference("b", count)?))
    }

    pub fn acc(&mut self) -> Result<AccId> {
        let count = self.k.accs.len();
        Ok(AccId::from_index(self.reference("a", count)?))
    }

    fn grid(&mut self) -> Result<Vec<GridAxis>> {
        let mut out = Vec::new();
        while *self.s.peek()? != Token::Punct("{") {
            if !out.is_empty() {
                self.s.expect(",")?;
            }
            let sym = self.sym()?;
            self.s.expect("<")?;
            let extent = self.expr()?;
            let block = match self.s.eat_word("by")? {
                true => self.positive()?,
                false => 1,
            };
            out.push(GridAxis { sym, extent, block });
        }
        Ok(out)
    }

    pub fn positive(&mut self) -> Result<i64> {
        match self.s.int()? {
            v if v > 0 => Ok(v),
            _ => Err(self.s.error("expected a positive number")),
        }
    }

    pub fn count(&mut self) -> Result<u32> {
        let v = self.s.int()?;
        u32::try_from(v).map_err(|_| self.s.error("expected a count"))
    }

    /// Items up to a line that is none: `}`, `grid` or `tile`.
    fn items(&mut self, depth: usize) -> Result<Vec<Item>> {
        let mut out = Vec::new();
        loop {
            self.s.skip_newlines()?;
            match self.s.peek()?.clone() {
                Token::Ident(w) if w == "grid" || w == "tile" => return Ok(out),
                Token::Ident(w) if w == "for" => {
                    if depth >= MAX_DEPTH {
                        return Err(self.s.error("loops nested too deeply"));
                    }
                    out.push(Item::Loop(Box::new(self.a_loop(depth)?)));
                    continue;
                }
                Token::Ident(w) if w == "start" => {
                    self.s.next_token()?;
                    out.push(Item::Acc(self.acc()?));
                }
                Token::Ident(w) if w == "update" => {
                    self.s.next_token()?;
                    let acc = self.acc()?;
                    self.s.expect(",")?;
                    let value = self.value()?;
                    out.push(Item::Update { acc, value });
                }
                Token::Ident(w) if w.starts_with("store.") => out.push(self.store()?),
                Token::Ident(_) => out.push(self.define()?),
                _ => return Ok(out),
            }
            self.s.end_of_line()?;
        }
    }

    fn a_loop(&mut self, depth: usize) -> Result<Loop> {
        self.s.expect_word("for")?;
        let sym = self.sym()?;
        let range = self.range()?;
        let role = match self.s.eat_word("lanes")? {
            true => {
                let width = self.count()?;
                self.s.expect_word("by")?;
                let unroll = self.count()?;
                Role::Vector { width, unroll }
            }
            false => Role::Serial,
        };
        self.open()?;
        let body = self.items(depth + 1)?;
        self.close()?;
        Ok(Loop {
            sym,
            range,
            role,
            body,
        })
    }

    fn range(&mut self) -> Result<Range> {
        if self.s.eat_word("in")? {
            return match self.s.ident()?.as_str() {
                "rows" => Ok(Range::Rows),
                "columns" => Ok(Range::Columns),
                pieces @ ("pieces" | "piece") => {
                    self.s.expect_word("of")?;
                    let length = self.expr()?;
                    Ok(match pieces {
                        "pieces" => Range::Pieces(length),
                        _ => Range::Piece(length),
                    })
                }
                other => Err(self.s.error(format!("`{other}` is no range"))),
            };
        }
        self.s.expect("<")?;
        let extent = self.expr()?;
        if !self.s.eat_word("in")? {
            return Ok(Range::Full(extent));
        }
        if self.s.eat_word("block")? {
            self.s.expect_word("of")?;
            let block = self.positive()?;
            return Ok(Range::Block { extent, block });
        }
        self.s.expect_word("tile")?;
        self.s.expect_word("of")?;
        let step = self.positive()?;
        self.s.expect_word("from")?;
        let start = self.expr()?;
        Ok(Range::Tile {
            start,
            step,
            extent,
        })
    }

    /// `b0[EXPR]`.
    pub fn access(&mut self) -> Result<(KBufId, Expr)> {
        let buf = self.buf()?;
        self.s.expect("[")?;
        let offset = self.expr()?;
        self.s.expect("]")?;
        Ok((buf, offset))
    }

    pub fn guard(&mut self) -> Result<Option<ValId>> {
        match self.s.eat_word("if")? {
            true => Ok(Some(self.value()?)),
            false => Ok(None),
        }
    }

    fn store(&mut self) -> Result<Item> {
        let mode = self.store_mode()?;
        let (buf, offset) = self.access()?;
        self.s.expect(",")?;
        Ok(Item::Store {
            buf,
            offset,
            value: self.value()?,
            mode,
            mask: self.guard()?,
        })
    }

    /// `store.add`.
    pub fn store_mode(&mut self) -> Result<StoreMode> {
        let word = self.s.ident()?;
        let text = word.strip_prefix("store.").unwrap_or("");
        let mode = StoreMode::ALL.into_iter().find(|m| m.text() == text);
        mode.ok_or_else(|| self.s.error(format!("unknown store mode `{text}`")))
    }

    /// `f32 v3 = ...`; a value that is evaluated in two places is written twice.
    fn define(&mut self) -> Result<Item> {
        let dtype = self.dtype()?;
        Ok(Item::Let(self.define_as(dtype)?))
    }

    /// `v3 = ...` after its dtype.
    pub fn define_as(&mut self, dtype: DType) -> Result<ValId> {
        let count = self.k.values.len();
        let id = self.reference("v", count + 1)?;
        self.s.expect("=")?;
        let def = self.def()?;
        let value = Value { def, dtype };
        if id == count {
            self.k.values.push(value);
        } else if self.k.values[id] != value {
            let message = format!("`v{id}` was defined as something else");
            return Err(self.s.error(message));
        }
        Ok(ValId::from_index(id))
    }

    fn def(&mut self) -> Result<Def> {
        let word = self.s.ident()?;
        Ok(match word.as_str() {
            "const" => Def::Const(self.s.scalar()?),
            "index" => Def::Index(self.expr()?),
            "sum" => Def::Sum(0),
            "grad_sum" => Def::Sum(1),
            "load" => {
                let (buf, offset) = self.access()?;
                let mask = self.guard()?;
                let fill = match mask {
                    Some(_) => {
                        self.s.expect_word("else")?;
                        self.s.scalar()?
                    }
                    // Unused; this is what an unmasked load reads back as.
                    None => Scalar::Int(0).convert(self.k.buffer(buf).dtype),
                };
                Def::Load {
                    buf,
                    offset,
                    mask,
                    fill,
                }
            }
            "cast" => {
                let arg = self.value()?;
                self.s.expect_word("to")?;
                let to = self.dtype()?;
                Def::Cast { arg, to }
            }
            "bitcast" => {
                let arg = self.value()?;
                self.s.expect_word("from")?;
                let from = self.dtype()?;
                self.s.expect_word("to")?;
                let to = self.dtype()?;
                Def::Bitcast { arg, from, to }
            }
            "indirect" => self.indirect()?,
            "final" => Def::Final(self.acc()?),
            "running" => {
                let acc = self.acc()?;
                self.s.expect(",")?;
                let value = self.value()?;
                Def::Running { acc, value }
            }
            "sorted" => Def::Sorted {
                value: self.value()?,
            },
            other => {
                let Some(op) = ScalarOp::parse(other) else {
                    return Err(self.s.error(format!("unknown operation `{other}`")));
                };
                let mut args = SmallVec::new();
                loop {
                    args.push(self.value()?);
                    if !self.s.eat(",")? {
                        break;
                    }
                }
                Def::Op { op, args }
            }
        })
    }

    fn indirect(&mut self) -> Result<Def> {
        let value = self.value()?;
        self.s.expect_word("as")?;
        let sym = self.sym()?;
        self.s.expect("<")?;
        let size = self.expr()?;
        let wrap = self.s.eat_word("wrap")?;
        let check = match self.s.eat_word("check")? {
            true => Some(self.count()?),
            false => None,
        };
        Ok(Def::Indirect {
            value,
            sym,
            size,
            wrap,
            check,
            mask: self.guard()?,
        })
    }
}

/// `prefix` and digits.
fn is_id(word: &str, prefix: char) -> bool {
    word.strip_prefix(prefix)
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}
