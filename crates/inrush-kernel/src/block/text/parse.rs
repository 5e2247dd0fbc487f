//! Text to block programs. References are checked here (a name that is not there cannot be read); rules are the verifier's.

use crate::ValId;
use crate::block::{
    Attention, Block, BlockItem, BlockStore, Blocks, Dim, DimRole, List, Operand, Product, Results,
    Side, Tile, Walk,
};
use crate::text::parse::{Parser, empty};
use inrush_base::text::{Scanner, Token};
use inrush_base::{DType, Result};
use inrush_expr::{Expr, Exprs, Sym};

/// Reads declarations and block programs as [`super::print_all`] writes them. The result is well-formed but not verified.
pub fn parse(text: &str) -> Result<(Exprs, Vec<Block>)> {
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
        let mut p = BlockParser {
            p: Parser {
                s,
                exprs: &exprs,
                indices: Vec::new(),
                k: empty(&exprs),
            },
            dims: Vec::new(),
            shapes: Vec::new(),
        };
        out.push(p.block()?);
        s = p.p.s;
    }
}

struct BlockParser<'a> {
    /// Reads what kernels have too: values, buffers, accumulators, checks.
    p: Parser<'a>,
    /// The axes, with their names.
    dims: Vec<(String, Dim)>,
    shapes: Vec<u32>,
}

impl BlockParser<'_> {
    fn block(&mut self) -> Result<Block> {
        self.p.s.expect_word("block")?;
        let name = self.p.s.name()?;
        let origins = self.p.from()?;
        self.p.open()?;
        if self.p.s.eat_word("index")? {
            self.p.indices()?;
        }
        while *self.p.s.peek()? != Token::Ident("sizes".into()) {
            self.dim()?;
        }
        self.p.params()?;
        self.p.s.expect_word("programs")?;
        let programs = self.p.expr()?;
        self.p.s.expect_word("warps")?;
        let warps = self.p.count()?;
        self.p.s.expect_word("stages")?;
        let stages = self.p.count()?;
        let wide = self.p.s.eat_word("wide")?;
        self.p.s.end_of_line()?;
        let chosen = self.tile()?;
        self.p.head_lines()?;
        let product = self.product()?;
        let attention = self.attention()?;
        let items = self.items(true)?;
        self.p.close()?;
        let k = std::mem::replace(&mut self.p.k, empty(self.p.exprs));
        Ok(Block {
            name,
            origins,
            dims: self.dims.iter().map(|d| d.1).collect(),
            programs,
            buffers: k.buffers,
            sizes: k.sizes,
            values: k.values,
            shapes: std::mem::take(&mut self.shapes),
            accs: k.accs,
            checks: k.checks,
            items,
            product,
            attention,
            wide,
            warps,
            stages,
            chosen,
        })
    }

    /// `NAME = i9 < EXTENT by BLOCK`: a new axis under its name.
    fn axis(&mut self) -> Result<(String, Sym, Expr, i64)> {
        let name = self.p.s.ident()?;
        self.p.new_name(&name)?;
        self.p.s.expect("=")?;
        let symbol = self.p.s.ident()?;
        let position = self.p.position(&symbol)?;
        self.p.s.expect("<")?;
        let extent = self.p.expr()?;
        self.p.s.expect_word("by")?;
        let block = self.p.positive()?;
        let sym = self.p.exprs.sym_at(position, extent);
        if self.p.indices.iter().any(|(_, s)| *s == sym) {
            let message = format!("the index `{symbol}` is an axis already");
            return Err(self.p.s.error(message));
        }
        self.p.indices.push((name.clone(), sym));
        Ok((name, sym, extent, block))
    }

    fn dim(&mut self) -> Result<()> {
        let (name, sym, extent, block) = self.axis()?;
        if self.dims.len() == MAX_DIMS {
            return Err(self.p.s.error("too many axes"));
        }
        let role = match self.p.s.ident()?.as_str() {
            "grid" => DimRole::Grid,
            "persistent" => DimRole::Persistent,
            "looped" => DimRole::Looped,
            other => {
                let message = format!("`{other}` is no role of an axis");
                return Err(self.p.s.error(message));
            }
        };
        let exact = self.p.s.eat_word("exact")?;
        self.p.s.end_of_line()?;
        let dim = Dim {
            sym,
            extent,
            role,
            block,
            exact,
        };
        self.dims.push((name, dim));
        Ok(())
    }

    fn tile(&mut self) -> Result<Option<Tile>> {
        self.p.s.skip_newlines()?;
        if !self.p.s.eat_word("tile")? {
            return Ok(None);
        }
        let word = self.p.s.ident()?;
        let tile = word.parse().map_err(|e| self.p.s.error(e))?;
        self.p.s.end_of_line()?;
        Ok(Some(tile))
    }

    fn product(&mut self) -> Result<Option<Product>> {
        self.p.s.skip_newlines()?;
        if !self.p.s.eat_word("product")? {
            return Ok(None);
        }
        let dtype = self.p.dtype()?;
        // Offsets speak of the axis, which comes after them in the text.
        let operands = self.p.s.clone();
        while *self.p.s.peek()? != Token::Ident("for".into()) {
            if matches!(self.p.s.next_token()?, Token::Newline | Token::End) {
                return Err(self.p.s.error("expected `for` and the axis of the product"));
            }
        }
        self.p.s.expect_word("for")?;
        let (_, k, extent, block) = self.axis()?;
        let exact = self.p.s.eat_word("exact")?;
        self.p.s.expect_word("group")?;
        let group = self.p.positive()?;
        let persistent = self.p.s.eat_word("persistent")?;
        self.p.s.end_of_line()?;
        let after = std::mem::replace(&mut self.p.s, operands);
        let (a, b) = (self.operand()?, {
            self.p.s.expect(",")?;
            self.operand()?
        });
        self.p.s.expect_word("for")?;
        self.p.s = after;
        Ok(Some(Product {
            a,
            b,
            k,
            extent,
            block,
            exact,
            dtype,
            group,
            persistent,
        }))
    }

    fn attention(&mut self) -> Result<Option<Attention>> {
        self.p.s.skip_newlines()?;
        if !self.p.s.eat_word("attention")? {
            return Ok(None);
        }
        let d = self.side()?;
        self.line("columns")?;
        let n = self.side()?;
        let mut one = |word: &str| {
            self.line(word)?;
            let operand = self.operand()?;
            self.p.s.end_of_line()?;
            Ok::<_, inrush_base::Error>(operand)
        };
        let (query, key, value) = (one("query")?, one("key")?, one("value")?);
        self.p.s.skip_newlines()?;
        let mut grad = None;
        if self.p.s.eat_word("grad")? {
            grad = Some(self.operand()?);
            self.p.s.end_of_line()?;
            self.p.s.skip_newlines()?;
        }
        let mut blocks = None;
        if self.p.s.eat_word("blocks")? {
            let rows = self.p.positive()?;
            self.p.s.expect_word("by")?;
            let keys = self.p.positive()?;
            self.p.s.end_of_line()?;
            self.line("partial")?;
            let partial = self.block_list()?;
            self.p.s.skip_newlines()?;
            let full = if self.p.s.eat_word("full")? {
                Some(self.block_list()?)
            } else {
                None
            };
            blocks = Some(Blocks {
                rows,
                keys,
                partial,
                full,
            });
        }
        self.p.s.skip_newlines()?;
        let mut causal = None;
        if self.p.s.eat_word("causal")? {
            causal = Some(self.p.s.int()?);
            self.p.s.end_of_line()?;
        }
        let results = self.attended(grad)?;
        self.p.s.end_of_line()?;
        Ok(Some(Attention {
            d,
            n,
            query,
            key,
            value,
            results,
            blocks,
            causal,
        }))
    }

    /// Reads the results of an attention: those of a softmax, or of gradients if it has an operand `grad`.
    fn attended(&mut self, grad: Option<Operand>) -> Result<Results> {
        let Some(grad) = grad else {
            self.line("results")?;
            let out = self.operand()?;
            self.p.s.expect(",")?;
            let logsumexp = self.operand()?;
            self.p.s.expect(",")?;
            let max = self.operand()?;
            return Ok(Results::Softmax {
                out,
                logsumexp,
                max,
            });
        };
        self.line("sums")?;
        let by_key = self.operand()?;
        let by_value = if self.p.s.eat(",")? {
            Some(self.operand()?)
        } else {
            None
        };
        Ok(Results::Gradients {
            grad,
            by_key,
            by_value,
        })
    }

    /// Begins a line with this word.
    fn line(&mut self, word: &str) -> Result<()> {
        self.p.s.skip_newlines()?;
        self.p.s.expect_word(word)
    }

    fn side(&mut self) -> Result<Side> {
        let (_, sym, extent, block) = self.axis()?;
        let exact = self.p.s.eat_word("exact")?;
        self.p.s.end_of_line()?;
        Ok(Side {
            sym,
            extent,
            block,
            exact,
        })
    }

    /// `p = i6 < 8 by 1: b3[..], b4[..]`.
    fn block_list(&mut self) -> Result<List> {
        let (_, position, extent, _) = self.axis()?;
        self.p.s.expect(":")?;
        let count = self.operand()?;
        self.p.s.expect(",")?;
        let index = self.operand()?;
        self.p.s.end_of_line()?;
        Ok(List {
            count,
            index,
            position,
            extent,
        })
    }

    fn operand(&mut self) -> Result<Operand> {
        let (buf, offset) = self.p.access()?;
        Ok(Operand { buf, offset })
    }

    /// `[x, r]`, or nothing.
    fn shape(&mut self) -> Result<u32> {
        let mut shape = 0;
        if !self.p.s.eat("[")? {
            return Ok(0);
        }
        loop {
            let name = self.p.s.ident()?;
            match self.dims.iter().position(|d| d.0 == name) {
                Some(i) => shape |= 1 << i,
                None => return Err(self.p.s.error(format!("`{name}` is no axis"))),
            }
            if self.p.s.eat("]")? {
                return Ok(shape);
            }
            self.p.s.expect(",")?;
        }
    }

    fn items(&mut self, loops: bool) -> Result<Vec<BlockItem>> {
        let mut out = Vec::new();
        loop {
            self.p.s.skip_newlines()?;
            let word = match self.p.s.peek()?.clone() {
                Token::Ident(w) => w,
                _ => return Ok(out),
            };
            if word == "for" {
                if !loops {
                    return Err(self.p.s.error("a loop inside of a loop"));
                }
                out.push(BlockItem::Loop(self.walk()?));
                continue;
            }
            let item = self.item(&word)?;
            out.push(item);
            self.p.s.end_of_line()?;
        }
    }

    fn walk(&mut self) -> Result<Walk> {
        self.p.s.expect_word("for")?;
        let name = self.p.s.ident()?;
        let axis = self.dims.iter().find(|d| d.1.role != DimRole::Grid);
        if axis.is_none_or(|d| d.0 != name) {
            let message = format!("`{name}` is no axis that is reduced");
            return Err(self.p.s.error(message));
        }
        let back = self.p.s.eat_word("back")?;
        self.p.open()?;
        let body = self.items(false)?;
        self.p.close()?;
        Ok(Walk { body, back })
    }

    fn item(&mut self, word: &str) -> Result<BlockItem> {
        if word.starts_with("store.") {
            return Ok(BlockItem::Store(self.store()?));
        }
        if DType::parse(word).is_some() {
            return self.define();
        }
        self.p.s.next_token()?;
        Ok(match word {
            "start" => BlockItem::Acc(self.p.acc()?),
            "finish" => BlockItem::Finish(self.p.acc()?),
            "barrier" => BlockItem::Barrier,
            "attend" => BlockItem::Attend {
                score: self.p.value()?,
                second: if self.p.s.eat(",")? {
                    Some(self.p.value()?)
                } else {
                    None
                },
                keep: self.p.guard()?,
            },
            "update" => {
                let acc = self.p.acc()?;
                let value = self.after_comma(|p| p.value())?;
                BlockItem::Update { acc, value }
            }
            "moments" => BlockItem::Moments {
                sum: self.p.acc()?,
                squares: self.after_comma(|p| p.acc())?,
                value: self.after_comma(|p| p.value())?,
            },
            "finish_moments" => BlockItem::FinishMoments {
                sum: self.p.acc()?,
                squares: self.after_comma(|p| p.acc())?,
            },
            "exponentials" => BlockItem::Exponentials {
                max: self.p.acc()?,
                sum: self.after_comma(|p| p.acc())?,
                value: self.after_comma(|p| p.value())?,
            },
            "finish_exponentials" => BlockItem::FinishExponentials {
                max: self.p.acc()?,
                sum: self.after_comma(|p| p.acc())?,
                shift: self.after_comma(|p| p.value())?,
            },
            other => return Err(self.p.s.error(format!("`{other}` begins no item"))),
        })
    }

    fn after_comma<T>(&mut self, read: impl FnOnce(&mut Parser) -> Result<T>) -> Result<T> {
        self.p.s.expect(",")?;
        read(&mut self.p)
    }

    fn store(&mut self) -> Result<BlockStore> {
        let mode = self.p.store_mode()?;
        let shape = self.shape()?;
        let (buf, offset) = self.p.access()?;
        self.p.s.expect(",")?;
        Ok(BlockStore {
            buf,
            offset,
            value: self.p.value()?,
            mode,
            mask: self.p.guard()?,
            shape,
        })
    }

    /// `f32[x, r] v3 = ...`.
    fn define(&mut self) -> Result<BlockItem> {
        let dtype = self.p.dtype()?;
        let shape = self.shape()?;
        let v: ValId = self.p.define_as(dtype)?;
        match self.shapes.get(v.index()) {
            None => self.shapes.push(shape),
            Some(s) if *s == shape => {}
            Some(_) => return Err(self.p.s.error(format!("`{v}` had another shape before"))),
        }
        Ok(BlockItem::Let(v))
    }
}

/// Axes of a grid and the one that is reduced.
const MAX_DIMS: usize = 4;
