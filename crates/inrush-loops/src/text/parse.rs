//! Text to loops. References are checked here (a name that is not there cannot be read); rules are
//! the verifier's.
//!
//! Statements are read in order, and the dtype of each is kept, because a store and an operation
//! have that of their operands. Index names are resolved in a scope: axes first, then each indirect
//! index from its definition on.

use crate::*;
use inrush_base::Result;
use inrush_base::text::{Scanner, Token};
use inrush_expr::Position;

/// Reads a program as [`Loops::print`] writes it. The result is well-formed but not verified.
pub fn parse(text: &str) -> Result<Loops> {
    let mut r = Reader::new(text);
    r.header("loops")?;
    while r.more()? {
        if r.declaration()? {
            continue;
        }
        let node = r.node()?;
        r.out.nodes.push(node);
    }
    Ok(r.out)
}

/// Reads the parts of a program's text; forms that hold loops (a schedule's) are read with it too.
pub struct Reader<'a> {
    pub s: Scanner<'a>,
    /// The program as read so far.
    pub out: Loops,
}

/// Index symbols of one body by name.
type Scope = Vec<(String, Sym)>;

impl<'a> Reader<'a> {
    pub fn new(text: &'a str) -> Self {
        Reader {
            s: Scanner::new(text),
            out: Loops::default(),
        }
    }

    /// Reads `WORD name inputs n`.
    pub fn header(&mut self, word: &str) -> Result<()> {
        self.s.skip_newlines()?;
        self.s.expect_word(word)?;
        self.out.name = self.s.name()?;
        if self.s.eat_word("inputs")? {
            self.out.num_inputs = self.size()?;
        }
        self.s.end_of_line()
    }

    /// Skips empty lines. Returns true if anything follows.
    pub fn more(&mut self) -> Result<bool> {
        self.s.skip_newlines()?;
        Ok(!self.s.at_end()?)
    }

    /// Reads a line that declares a symbol, an origin, a buffer or an output, if one comes next.
    pub fn declaration(&mut self) -> Result<bool> {
        if self.out.exprs.parse_decl(&mut self.s)? {
            return Ok(true);
        }
        if self.s.eat_word("origin")? {
            self.origin()?;
        } else if self.s.eat_word("output")? {
            self.output()?;
        } else if matches!(self.s.peek()?, Token::Ident(w) if w.starts_with('b') && w != "body") {
            self.buffer()?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Reads a body, a contraction or a library call.
    pub fn node(&mut self) -> Result<Node> {
        if self.s.eat_word("library")? {
            return Ok(Node::Library(Box::new(self.library()?)));
        }
        if self.s.eat_word("attention")? {
            return Ok(Node::Attention(Box::new(self.attention()?)));
        }
        if self.s.eat_word("contraction")? {
            return Ok(Node::Contraction(Box::new(self.contraction()?)));
        }
        self.s.expect_word("body")?;
        Ok(Node::Body(self.body()?))
    }

    /// Reads a count: an integer that is not negative.
    pub fn size(&mut self) -> Result<usize> {
        let v = self.s.int()?;
        usize::try_from(v).map_err(|_| self.s.error("expected a count"))
    }

    /// Reads a reference or declaration `prefix` + number that must be `count` (declaration) or
    /// below it (reference).
    fn declared(&mut self, prefix: &str, count: usize) -> Result<()> {
        let k = self.s.id(prefix)?;
        if k == count {
            return Ok(());
        }
        let found = format!("expected `{prefix}{count}`, found `{prefix}{k}`");
        Err(self.s.error(found))
    }

    /// Reads a name `prefix` + number below `count`.
    pub fn reference(&mut self, prefix: &str, count: usize) -> Result<usize> {
        let k = self.s.id(prefix)?;
        if k < count {
            return Ok(k);
        }
        Err(self.s.error(format!("`{prefix}{k}` is not defined")))
    }

    /// Reads a buffer that was declared.
    pub fn buf(&mut self) -> Result<BufId> {
        let count = self.out.buffers.len();
        Ok(BufId::from_index(self.reference("b", count)?))
    }

    pub fn dtype(&mut self) -> Result<DType> {
        let word = self.s.ident()?;
        DType::parse(&word).ok_or_else(|| self.s.error(format!("unknown dtype `{word}`")))
    }

    fn expr(&mut self, scope: &Scope) -> Result<Expr> {
        expr(&self.out.exprs, &mut self.s, scope)
    }

    fn exprs(&mut self, scope: &Scope) -> Result<Vec<Expr>> {
        let exprs = &self.out.exprs;
        self.s.list(|s| expr(exprs, s, scope))
    }

    /// Reads the rest of `origin o0: op name at "line"`.
    fn origin(&mut self) -> Result<()> {
        self.declared("o", self.out.origins.len())?;
        self.s.expect(":")?;
        let (op, name) = (self.s.name()?, self.s.name()?);
        let line = if self.s.eat_word("at")? {
            Some(self.s.string()?)
        } else {
            None
        };
        self.s.end_of_line()?;
        self.out.origins.push(Origin { op, name, line });
        Ok(())
    }

    /// Reads `b0 name: f32[s0] layout [1] offset 0 = temp`. Sizes and layouts hold no loop index.
    fn buffer(&mut self) -> Result<()> {
        self.declared("b", self.out.buffers.len())?;
        let name = self.s.name()?;
        self.s.expect(":")?;
        let dtype = self.dtype()?;
        let none = Scope::new();
        let sizes = self.exprs(&none)?;
        let layout = if self.s.eat_word("layout")? {
            Some(Layout {
                strides: self.exprs(&none)?,
                offset: if self.s.eat_word("offset")? {
                    self.expr(&none)?
                } else {
                    self.out.exprs.int(0)
                },
            })
        } else {
            None
        };
        self.s.expect("=")?;
        let kind = match self.s.ident()?.as_str() {
            "input" => BufferKind::Input {
                index: self.size()?,
            },
            "weight" => BufferKind::Weight {
                name: self.s.name()?,
            },
            "temp" => BufferKind::Temp,
            "alias" => BufferKind::Alias { of: self.buf()? },
            _ => {
                return Err(self
                    .s
                    .error("expected `input`, `weight`, `temp` or `alias`"));
            }
        };
        self.s.end_of_line()?;
        self.out.buffers.push(Buffer {
            name,
            dtype,
            sizes,
            layout,
            kind,
        });
        Ok(())
    }

    /// Reads the rest of an output: a buffer, `b1 = b2` for new contents of `b1`, or a number.
    fn output(&mut self) -> Result<()> {
        let out = if self.s.eat_word("int")? {
            Output::Int(self.expr(&Scope::new())?)
        } else if self.s.eat_word("scalar")? {
            Output::Scalar(self.s.scalar()?)
        } else if self.s.eat_word("none")? {
            Output::None
        } else {
            let first = self.buf()?;
            if self.s.eat("=")? {
                Output::Mutation {
                    input: first,
                    buffer: self.buf()?,
                }
            } else {
                Output::Tensor { buffer: first }
            }
        };
        self.s.end_of_line()?;
        self.out.outputs.push(out);
        Ok(())
    }

    /// Reads `i3` or `i3.1` with an extent: the symbol of that position and extent. An index that
    /// is read from data is called `j3`.
    fn index(&mut self, scope: &mut Scope, indirect: bool) -> Result<Axis> {
        let name = self.s.ident()?;
        let position = Position::parse(&name).filter(|p| p.is_indirect() == indirect);
        let Some(position) = position else {
            let example = if indirect {
                "an indirect index such as `j0`"
            } else {
                "an index such as `i0`"
            };
            return Err(self.s.error(format!("`{name}` is not {example}")));
        };
        if scope.iter().any(|(n, _)| *n == name) {
            return Err(self.s.error(format!("the index `{name}` is defined twice")));
        }
        self.s.expect(":")?;
        let size = self.expr(&Scope::new())?;
        let sym = self.out.exprs.sym_at(position, size);
        scope.push((name, sym));
        Ok(Axis { sym, size })
    }

    /// Reads `[i0: s0, i1: 4]` with a scope of its own.
    pub fn outer_axes(&mut self) -> Result<Vec<Axis>> {
        self.axes(&mut Scope::new())
    }

    /// Reads an expression over sizes.
    pub fn size_expr(&mut self) -> Result<Expr> {
        self.expr(&Scope::new())
    }

    fn axes(&mut self, scope: &mut Scope) -> Result<Vec<Axis>> {
        self.s.expect("[")?;
        let mut out = Vec::new();
        if self.s.eat("]")? {
            return Ok(out);
        }
        loop {
            out.push(self.index(scope, false)?);
            if self.s.eat("]")? {
                return Ok(out);
            }
            self.s.expect(",")?;
        }
    }

    /// Reads `from o0 o1`, if it follows.
    fn from(&mut self) -> Result<crate::Origins> {
        let mut out = crate::Origins::new();
        if self.s.eat_word("from")? {
            while matches!(self.s.peek()?, Token::Ident(_)) {
                let k = self.reference("o", self.out.origins.len())?;
                out.push(OriginId::from_index(k));
            }
        }
        Ok(out)
    }

    /// Reads the operator that a check names, if one follows.
    fn named(&mut self) -> Result<Option<OriginId>> {
        match self.s.peek()? {
            Token::Ident(word) if word != "if" => {
                let k = self.reference("o", self.out.origins.len())?;
                Ok(Some(OriginId::from_index(k)))
            }
            _ => Ok(None),
        }
    }

    /// Reads axes, origins and statements of a body.
    fn body(&mut self) -> Result<Body> {
        let mut scope = Scope::new();
        let mut body = Body {
            axes: self.axes(&mut scope)?,
            ..Body::default()
        };
        body.outer = body.axes.len();
        if self.s.eat_word("reduce")? {
            body.axes.extend(self.axes(&mut scope)?);
        }
        body.origins = self.from()?;
        self.s.expect("{")?;
        self.s.end_of_line()?;
        self.stmts(&mut body, &mut scope)?;
        // The text names a check's operator only if it is not the body's own.
        body.name_checks();
        Ok(body)
    }

    /// Reads a contraction: four groups of axes, two operands, the statements of the epilogue.
    fn contraction(&mut self) -> Result<Contraction> {
        let dtype = self.dtype()?;
        let mut scope = Scope::new();
        let mut part = |p: &mut Self, word| {
            p.s.expect_word(word)?;
            p.axes(&mut scope)
        };
        let (batch, m) = (part(self, "batch")?, part(self, "m")?);
        let (n, k) = (part(self, "n")?, part(self, "k")?);
        let axes: Vec<Axis> = batch.iter().chain(&m).chain(&n).copied().collect();
        let mut epilogue = Body {
            outer: axes.len(),
            axes,
            origins: self.from()?,
            stmts: Vec::new(),
        };
        self.s.expect("{")?;
        self.s.end_of_line()?;
        let (a, b) = (self.operand(&scope, "a")?, self.operand(&scope, "b")?);
        self.stmts(&mut epilogue, &mut scope)?;
        epilogue.name_checks();
        Ok(Contraction {
            batch,
            m,
            n,
            k,
            a,
            b,
            dtype,
            epilogue,
        })
    }

    /// Reads a line of an operand, `word = access`.
    fn operand(&mut self, scope: &Scope, word: &str) -> Result<Access> {
        self.s.skip_newlines()?;
        self.s.expect_word(word)?;
        self.s.expect("=")?;
        let (buf, coords) = self.access(scope)?;
        self.s.end_of_line()?;
        Ok(Access { buf, coords })
    }

    /// Reads an attention: axes by role, operands, blocks, results, the statements of the scores.
    fn attention(&mut self) -> Result<Attention> {
        let mut scope = Scope::new();
        self.s.expect_word("batch")?;
        let batch = self.axes(&mut scope)?;
        let mut one = |p: &mut Self, word| {
            p.s.expect_word(word)?;
            match p.axes(&mut scope)?.as_slice() {
                [axis] => Ok(*axis),
                _ => Err(p.s.error("expected one axis")),
            }
        };
        let (m, k) = (one(self, "m")?, one(self, "k")?);
        let (d, n) = (one(self, "d")?, one(self, "n")?);
        let axes: Vec<Axis> = batch.iter().chain([&m, &k]).copied().collect();
        let mut scores = Body {
            outer: axes.len(),
            axes,
            origins: self.from()?,
            stmts: Vec::new(),
        };
        self.s.expect("{")?;
        self.s.end_of_line()?;
        let query = self.operand(&scope, "query")?;
        let key = self.operand(&scope, "key")?;
        let value = self.operand(&scope, "value")?;
        self.s.skip_newlines()?;
        let grad = if self.s.eat_word("grad")? {
            self.s.expect("=")?;
            let (buf, coords) = self.access(&scope)?;
            self.s.end_of_line()?;
            self.s.skip_newlines()?;
            Some(Access { buf, coords })
        } else {
            None
        };
        let product = self.product("product")?;
        let grad_product = match grad {
            Some(_) => self.product("grad_product")?,
            None => None,
        };
        let blocks = if self.s.eat_word("blocks")? {
            Some(self.block_mask(&mut scope)?)
        } else {
            None
        };
        self.s.skip_newlines()?;
        let results = match grad {
            Some(grad) => Attended::Gradients(self.gradients(grad, grad_product)?),
            None => {
                self.s.expect_word("results")?;
                self.s.expect("=")?;
                let out = self.buf()?;
                self.s.expect(",")?;
                let logsumexp = self.buf()?;
                self.s.expect(",")?;
                let max = self.buf()?;
                Attended::Softmax {
                    out,
                    logsumexp,
                    max,
                }
            }
        };
        self.s.end_of_line()?;
        self.stmts(&mut scores, &mut scope)?;
        scores.name_checks();
        Ok(Attention {
            batch,
            m,
            k,
            d,
            n,
            query,
            key,
            value,
            product,
            scores,
            blocks,
            results,
        })
    }

    /// Reads `product = b3`, if it follows.
    fn product(&mut self, word: &str) -> Result<Option<BufId>> {
        if !self.s.eat_word(word)? {
            return Ok(None);
        }
        self.s.expect("=")?;
        let buf = self.buf()?;
        self.s.end_of_line()?;
        self.s.skip_newlines()?;
        Ok(Some(buf))
    }

    /// Reads `sums = b5, b6`: the results of gradients.
    fn gradients(&mut self, grad: Access, product: Option<BufId>) -> Result<Gradients> {
        let exchanged = self.s.eat_word("exchanged")?;
        self.s.expect_word("sums")?;
        self.s.expect("=")?;
        let by_key = self.buf()?;
        let by_value = if self.s.eat(",")? {
            Some(self.buf()?)
        } else {
            None
        };
        Ok(Gradients {
            grad,
            product,
            exchanged,
            by_key,
            by_value,
        })
    }

    /// Reads what follows `blocks`: sizes of a block and lists.
    fn block_mask(&mut self, scope: &mut Scope) -> Result<BlockMask> {
        let rows = self.s.int()?;
        self.s.expect_word("by")?;
        let keys = self.s.int()?;
        self.s.end_of_line()?;
        self.s.skip_newlines()?;
        self.s.expect_word("partial")?;
        let partial = self.block_list(scope)?;
        self.s.skip_newlines()?;
        let full = if self.s.eat_word("full")? {
            Some(self.block_list(scope)?)
        } else {
            None
        };
        Ok(BlockMask {
            rows,
            keys,
            partial,
            full,
        })
    }

    /// Reads `[i5: 8] = b3[i0, i1, i2//128], b4[i0, i1, i2//128, i5]`.
    fn block_list(&mut self, scope: &mut Scope) -> Result<BlockList> {
        let axes = self.axes(scope)?;
        let [position] = axes.as_slice() else {
            return Err(self.s.error("expected one axis"));
        };
        self.s.expect("=")?;
        let (buf, coords) = self.access(scope)?;
        let count = Access { buf, coords };
        self.s.expect(",")?;
        let (buf, coords) = self.access(scope)?;
        self.s.end_of_line()?;
        Ok(BlockList {
            count,
            index: Access { buf, coords },
            position: *position,
        })
    }

    /// Reads `fft.r2c (1, false) b0 b1 -> b2 from o0`.
    fn library(&mut self) -> Result<LibraryCall> {
        let function = self.s.name()?;
        self.s.expect("(")?;
        let mut params = Vec::new();
        while !self.s.eat(")")? {
            if !params.is_empty() {
                self.s.expect(",")?;
            }
            params.push(self.s.scalar()?);
        }
        let inputs = self.bufs()?;
        self.s.expect("->")?;
        let outputs = self.bufs()?;
        let site = Body {
            origins: self.from()?,
            ..Body::default()
        };
        self.s.end_of_line()?;
        Ok(LibraryCall {
            function,
            params,
            inputs,
            outputs,
            site,
        })
    }

    /// Reads buffers that stand one after the other.
    fn bufs(&mut self) -> Result<Vec<BufId>> {
        let mut out = Vec::new();
        while matches!(self.s.peek()?, Token::Ident(w) if w != "from") {
            out.push(self.buf()?);
        }
        Ok(out)
    }

    /// Reads `b0[i0, i1]`.
    fn access(&mut self, scope: &Scope) -> Result<(BufId, Coords)> {
        let buf = self.buf()?;
        Ok((buf, self.exprs(scope)?.into()))
    }

    /// Reads statements up to the closing brace.
    fn stmts(&mut self, body: &mut Body, scope: &mut Scope) -> Result<()> {
        let mut dtypes: Vec<DType> = Vec::new();
        loop {
            self.s.skip_newlines()?;
            if self.s.eat("}")? {
                return self.s.end_of_line();
            }
            let (stmt, dtype) = self.stmt(&dtypes, scope)?;
            self.s.end_of_line()?;
            body.stmts.push(stmt);
            dtypes.push(dtype);
        }
    }

    fn value(&mut self, dtypes: &[DType]) -> Result<StmtId> {
        Ok(StmtId::from_index(self.reference("v", dtypes.len())?))
    }

    /// Reads `if v3`, the mask of an access.
    fn guard(&mut self, dtypes: &[DType]) -> Result<Option<StmtId>> {
        if self.s.eat_word("if")? {
            Ok(Some(self.value(dtypes)?))
        } else {
            Ok(None)
        }
    }

    /// Reads a statement and the dtype of its value.
    fn stmt(&mut self, dtypes: &[DType], scope: &mut Scope) -> Result<(Stmt, DType)> {
        match self.s.peek()? {
            Token::Ident(w) if w == "store" || w.starts_with("store.") => self.store(dtypes, scope),
            Token::Ident(w) if Position::parse(w).is_some() => self.indirect(dtypes, scope),
            _ => {
                self.declared("v", dtypes.len())?;
                self.s.expect(":")?;
                let dtype = self.dtype()?;
                self.s.expect("=")?;
                let stmt = self.defining(dtype, dtypes, scope)?;
                Ok((stmt, dtype))
            }
        }
    }

    /// Reads `store.add b0[i0] = v3 if v4`.
    fn store(&mut self, dtypes: &[DType], scope: &Scope) -> Result<(Stmt, DType)> {
        let word = self.s.ident()?;
        let text = word.strip_prefix("store.").unwrap_or("set");
        let Some(mode) = StoreMode::ALL.into_iter().find(|m| m.text() == text) else {
            return Err(self.s.error(format!("unknown store mode `{text}`")));
        };
        let (buf, coords) = self.access(scope)?;
        self.s.expect("=")?;
        let value = self.value(dtypes)?;
        let mask = self.guard(dtypes)?;
        let stmt = Stmt::Store {
            buf,
            coords,
            value,
            mode,
            mask,
        };
        Ok((stmt, dtypes[value.index()]))
    }

    /// Reads `j0: s0 = indirect v3 wrap check`, and puts the index into scope.
    fn indirect(&mut self, dtypes: &[DType], scope: &mut Scope) -> Result<(Stmt, DType)> {
        let Axis { sym, size } = self.index(scope, true)?;
        self.s.expect("=")?;
        self.s.expect_word("indirect")?;
        let stmt = Stmt::Indirect {
            value: self.value(dtypes)?,
            sym,
            size,
            wrap: self.s.eat_word("wrap")?,
            check: match self.s.eat_word("check")? {
                true => Check::Index(self.named()?),
                false if self.s.eat_word("divisor")? => Check::Divisor(self.named()?),
                false if self.s.eat_word("value")? => Check::Value(self.named()?),
                false => Check::None,
            },
            mask: self.guard(dtypes)?,
        };
        Ok((stmt, DType::I64))
    }

    /// Reads the right side of `v3: dtype = ...`.
    fn defining(&mut self, dtype: DType, dtypes: &[DType], scope: &Scope) -> Result<Stmt> {
        let word = self.s.ident()?;
        let stmt = match word.as_str() {
            "const" => Stmt::Const {
                value: self.s.scalar()?,
                dtype,
            },
            "index" => Stmt::Index {
                expr: self.expr(scope)?,
                dtype,
            },
            "acc" => Stmt::Acc { dtype, of: 0 },
            "grad_acc" => Stmt::Acc { dtype, of: 1 },
            "load" => self.load(dtypes, scope)?,
            "cast" => {
                let arg = self.value(dtypes)?;
                self.s.expect_word("to")?;
                let to = self.dtype()?;
                Stmt::Cast { arg, to }
            }
            "bitcast" => {
                let arg = self.value(dtypes)?;
                self.s.expect_word("from")?;
                let from = self.dtype()?;
                self.s.expect_word("to")?;
                let to = self.dtype()?;
                Stmt::Bitcast { arg, from, to }
            }
            _ => self.op_or_reduction(&word, dtype, dtypes)?,
        };
        // The type on the left is what the right side gives.
        let gives = match &stmt {
            Stmt::Load { buf, .. } => self.out.buffer(*buf).dtype.compute(),
            Stmt::Cast { to, .. } | Stmt::Bitcast { to, .. } => to.compute(),
            Stmt::Op { op, dtype, .. } => op.result(*dtype),
            _ => dtype,
        };
        if gives != dtype {
            return Err(self
                .s
                .error(format!("`{word}` gives {gives} here, not {dtype}")));
        }
        Ok(stmt)
    }

    /// Reads the rest of a load: `b0[i0] if v3 else 0.0`.
    fn load(&mut self, dtypes: &[DType], scope: &Scope) -> Result<Stmt> {
        let (buf, coords) = self.access(scope)?;
        let mask = self.guard(dtypes)?;
        let fill = match mask {
            Some(_) => {
                self.s.expect_word("else")?;
                self.s.scalar()?
            }
            // Unused; this is what an unmasked load reads back as.
            None => Scalar::Int(0).convert(self.out.buffer(buf).dtype),
        };
        Ok(Stmt::Load {
            buf,
            coords,
            mask,
            fill,
        })
    }

    fn op_or_reduction(&mut self, word: &str, dtype: DType, dtypes: &[DType]) -> Result<Stmt> {
        if let Some(op) = word.strip_prefix("reduce.").and_then(ReduceOp::parse) {
            let value = self.value(dtypes)?;
            return Ok(Stmt::Reduce { op, value, dtype });
        }
        if let Some(op) = word.strip_prefix("scan.").and_then(ReduceOp::parse) {
            let value = self.value(dtypes)?;
            return Ok(Stmt::Scan { op, value, dtype });
        }
        if word == "sort" {
            let value = self.value(dtypes)?;
            return Ok(Stmt::Sort { value, dtype });
        }
        let Some(op) = ScalarOp::parse(word) else {
            return Err(self.s.error(format!("unknown operation `{word}`")));
        };
        let mut args: SmallVec<[StmtId; 3]> = SmallVec::new();
        loop {
            args.push(self.value(dtypes)?);
            if !self.s.eat(",")? {
                break;
            }
        }
        // The operands' dtype where the result does not tell it.
        let dtype = match op.result(DType::F32) {
            DType::Bool => dtypes[args[0].index()],
            _ => dtype,
        };
        Ok(Stmt::Op { op, args, dtype })
    }
}

fn expr(exprs: &Exprs, s: &mut Scanner, scope: &Scope) -> Result<Expr> {
    exprs.parse(s, &|name| {
        scope
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, s)| *s)
            .or_else(|| exprs.sym_by_name(name))
    })
}
