//! Text to plans. References are checked here; rules are the verifier's.

use super::print::{implied, locals};
use crate::{Group, Memory, Place, Plan, Reason, Refusal, Step};
use inrush_base::Result;
use inrush_base::text::Token;
use inrush_loops::text::Reader;
use inrush_loops::{Node, OriginId};

/// Reads a plan as [`Plan::print`] writes it. The result is well-formed but not verified.
pub fn parse(text: &str) -> Result<Plan> {
    let mut p = Parser {
        r: Reader::new(text),
        plan: Plan::default(),
        places: Vec::new(),
    };
    p.r.header("plan")?;
    while p.r.more()? {
        p.line()?;
    }
    p.finish()
}

struct Parser<'a> {
    r: Reader<'a>,
    plan: Plan,
    /// Places that lines name, in order.
    places: Vec<(usize, Place)>,
}

impl Parser<'_> {
    fn line(&mut self) -> Result<()> {
        if self.r.declaration()? {
            return Ok(());
        }
        if self.r.s.eat_word("refused")? {
            return self.refusal();
        }
        if self.r.s.eat_word("place")? {
            return self.place();
        }
        if self.r.s.eat_word("arena")? {
            let bytes = self.bytes()?;
            self.r.s.end_of_line()?;
            self.plan.memory.arena_bytes = Some(bytes);
            return Ok(());
        }
        let load = self.r.s.eat_word("load")?;
        if load && self.r.s.eat_word("arena")? {
            let bytes = self.bytes()?;
            self.r.s.end_of_line()?;
            self.plan.memory.load_bytes = Some(bytes);
            return Ok(());
        }
        let step = self.step()?;
        if load {
            self.plan.load_steps.push(step)
        } else {
            self.plan.steps.push(step)
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Step> {
        if !self.r.s.eat_word("kernel")? {
            return match self.r.node()? {
                Node::Contraction(c) => Ok(Step::Contraction(c)),
                Node::Library(c) => Ok(Step::Library(c)),
                Node::Attention(a) => Ok(Step::Attention(a)),
                Node::Body(_) => Err(self.r.s.error("a body stands inside of a kernel")),
            };
        }
        let mut g = Group {
            axes: self.r.outer_axes()?,
            ..Group::default()
        };
        if self.r.s.eat_word("locals")? {
            while matches!(self.r.s.peek()?, Token::Ident(_)) {
                g.locals.push(self.r.buf()?);
            }
        }
        self.r.s.expect("{")?;
        self.r.s.end_of_line()?;
        loop {
            self.r.s.skip_newlines()?;
            if self.r.s.eat("}")? {
                self.r.s.end_of_line()?;
                return Ok(Step::Kernel(g));
            }
            match self.r.node()? {
                Node::Body(b) => g.bodies.push(b),
                Node::Contraction(_) | Node::Library(_) | Node::Attention(_) => {
                    return Err(self.r.s.error("only bodies stand inside of a kernel"));
                }
            }
        }
    }

    /// `EXPR bytes`.
    fn bytes(&mut self) -> Result<inrush_expr::Expr> {
        let e = self.r.size_expr()?;
        self.r.s.expect_word("bytes")?;
        Ok(e)
    }

    fn place(&mut self) -> Result<()> {
        let buffer = self.r.buf()?.index();
        let place = match self.r.s.ident()?.as_str() {
            "unused" => Place::Unused,
            "input" => Place::Input(self.r.size()?),
            "weight" => Place::Weight,
            "output" => Place::Output(self.r.size()?),
            "local" => Place::Local,
            "alias" => Place::Alias(self.r.buf()?),
            "arena" => {
                let offset = self.r.size_expr()?;
                self.r.s.expect(",")?;
                let bytes = self.bytes()?;
                let mut in_place_of = None;
                if self.r.s.eat_word("in")? {
                    self.r.s.expect_word("place")?;
                    self.r.s.expect_word("of")?;
                    in_place_of = Some(self.r.buf()?);
                }
                Place::Arena {
                    offset,
                    bytes,
                    in_place_of,
                }
            }
            "load" => {
                let offset = self.r.size_expr()?;
                self.r.s.expect(",")?;
                let bytes = self.bytes()?;
                Place::Load { offset, bytes }
            }
            other => return Err(self.r.s.error(format!("`{other}` is no place"))),
        };
        self.r.s.end_of_line()?;
        self.places.push((buffer, place));
        Ok(())
    }

    fn refusal(&mut self) -> Result<()> {
        let producer = self.origin()?;
        self.r.s.expect("->")?;
        let consumer = self.origin()?;
        self.r.s.expect(":")?;
        let word = self.r.s.ident()?;
        let Some(reason) = Reason::parse(&word) else {
            return Err(self.r.s.error(format!("`{word}` is no reason")));
        };
        self.r.s.end_of_line()?;
        self.plan.refusals.push(Refusal {
            producer,
            consumer,
            reason,
        });
        Ok(())
    }

    fn origin(&mut self) -> Result<Option<OriginId>> {
        if self.r.s.eat("?")? {
            return Ok(None);
        }
        let count = self.r.out.origins.len();
        Ok(Some(OriginId::from_index(self.r.reference("o", count)?)))
    }

    fn finish(self) -> Result<Plan> {
        let mut plan = self.plan;
        plan.loops = self.r.out;
        let locals = locals(&plan);
        let n = plan.loops.buffers.len();
        plan.memory = Memory {
            places: (0..n).map(|b| implied(&plan.loops, &locals, b)).collect(),
            ..plan.memory
        };
        for (b, place) in self.places {
            plan.memory.places[b] = place;
        }
        Ok(plan)
    }
}
