//! Writes one kernel as one C function: its frame, and what stands in a list of items.
//!
//! ```text
//! i32 k0123(char *const *bufs, const i64 *sizes, i64 begin, i64 end) {
//!  const i64 s0 = sizes[0];                       integer arguments
//!  const f32 *const b0 = (const f32 *)bufs[0];    buffers
//!  f32 b2[64] __attribute__((aligned(64)));       locals, or slices of the thread's scratch
//!  if (begin >= end) return 0;
//!  ..                                             head: evaluated once a call
//!  for (i64 u = begin; u < end; u++) {            g1, g0: digits of u, the last one fastest
//!   ..                                            body: once a unit
//!  }
//!  return 0;
//! }
//! ```
//!
//! A grid of one blocked axis has no loop over units: consecutive blocks are one range `lo..hi`,
//! and the loop over the block inside of the body runs over all of it.

use crate::branches::{DEPTH, Plan};
use crate::facts::Analysis;
use crate::helpers::{Helpers, Name};
use crate::loops::LoopState;
use crate::text::{Text, paren};
use crate::types::{self, CType};
use crate::values::Var;
use inrush_base::{Caps, Error, Isa, Result, digits};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_kernel::{BufRole, Def, Item, KBufId, Kernel, Kind, Role, ValId};
use rustc_hash::FxHashMap;

/// Stands for the function's name until its text is known.
pub(crate) const NAME: &str = "@name@";

/// Writes one kernel. What it knows is in four parts: `facts` never change, `state` belongs to the loop that is being written,
/// `masks` and the maps of names grow.
pub(crate) struct Emitter<'a> {
    pub exprs: &'a Exprs,
    pub kernel: &'a Kernel,
    pub caps: &'a Caps,
    pub helpers: &'a mut Helpers,
    pub writer: Writer,
    pub facts: Analysis<'a>,
    pub state: LoopState,
    pub masks: Masks,
    /// C variable of each value, once it is written.
    pub vars: Vec<Option<Var>>,
    /// C names of symbols, and true for those that differ between lanes.
    pub names: FxHashMap<Sym, (Name, bool)>,
    /// True once some symbol differs between lanes.
    pub some_vary: bool,
    /// Indices made of floats, as 32 bits each, by their symbols.
    pub short: FxHashMap<Sym, ValId>,
    /// Number of loops so far, for their names.
    pub loops: u32,
}

/// The text of the function so far.
pub(crate) struct Writer {
    pub out: String,
    /// Number of open braces.
    /// Also the number of blanks that a line begins with.
    depth: usize,
}

impl Writer {
    pub(crate) fn indent(&mut self) {
        // Most depths are a slice of one text; deeper ones are written blank by blank.
        const BLANKS: &str = "                                ";
        match BLANKS.get(..self.depth) {
            Some(blanks) => self.out.push_str(blanks),
            None => (0..self.depth).for_each(|_| self.out.push(' ')),
        }
    }

    fn line(&mut self, text: impl Text) {
        self.indent();
        text.put(&mut self.out);
        self.out.push('\n');
    }

    fn open(&mut self, text: impl Text) {
        self.indent();
        text.put(&mut self.out);
        self.out.push_str(" {\n");
        self.depth += 1;
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.line("}");
    }
}

/// Comparisons that masks were made of.
#[derive(Default)]
pub(crate) struct Masks {
    /// The comparison that gave the mask that is being written, in the size of its operands: name and element type.
    pub source: Option<(String, CType)>,
    /// By name of a mask: the comparison that it was widened or narrowed from. A mask of the other size uses it directly.
    pub sources: FxHashMap<Name, (String, CType)>,
    /// Number of such comparisons so far, for their names.
    pub count: usize,
}

/// Appends the text of the function to `out`; `helpers` notes the helpers that it uses.
pub(crate) fn emit(
    exprs: &Exprs,
    kernel: &Kernel,
    caps: &Caps,
    helpers: &mut Helpers,
    out: String,
) -> Result<String> {
    let mut e = Emitter {
        exprs,
        kernel,
        caps,
        helpers,
        writer: Writer { out, depth: 0 },
        facts: Analysis::new(exprs, kernel),
        state: LoopState::new(kernel),
        masks: Masks::default(),
        vars: vec![None; kernel.values.len()],
        names: FxHashMap::default(),
        some_vary: false,
        short: FxHashMap::default(),
        loops: 0,
    };
    e.function()?;
    Ok(e.writer.out)
}

impl Emitter<'_> {
    pub(crate) fn line(&mut self, text: impl Text) {
        self.writer.line(text);
    }

    pub(crate) fn open(&mut self, text: impl Text) {
        self.writer.open(text);
    }

    pub(crate) fn close(&mut self) {
        self.writer.close();
    }

    /// Writes the function: signature, arguments, head, the loop over units, body.
    fn function(&mut self) -> Result<()> {
        let k = self.kernel;
        match &k.kind {
            Kind::Grid(_) => self.open(format_args!(
                "i32 {NAME}(char *const *bufs, const i64 *sizes, i64 begin, i64 end)"
            )),
            Kind::Epilogue { .. } => {
                if !k.checks.is_empty() {
                    return Err(Error::unsupported("an epilogue with run-time checks"));
                }
                self.open(format_args!(
                    "void {NAME}(char *const *bufs, const i64 *sizes, const void *acc, i64 ld, \
                     i64 batch, i64 m0, i64 m1, i64 n0, i64 n1)"
                ))
            }
        }
        self.parameters()?;
        match &k.kind {
            Kind::Grid(axes) => {
                self.line("if (begin >= end) return 0;");
                self.items(&k.head)?;
                match axes.as_slice() {
                    // Consecutive blocks of a lone axis are one longer block.
                    [a] if a.block != 1 => {
                        let extent = self.expr(a.extent, false)?;
                        self.line(format_args!(
                            "const i64 lo = begin * {0}, hi = end * {0} < {1} ? end * {0} : {1};",
                            a.block,
                            paren(&extent)
                        ));
                        self.items(&k.body)?;
                    }
                    [] => self.items(&k.body)?,
                    axes => {
                        self.open("for (i64 u = begin; u < end; u++)");
                        if axes.len() > 1 {
                            self.line("i64 r = u;");
                        }
                        for (i, a) in axes.iter().enumerate().rev() {
                            let extent = self.expr(a.extent, false)?;
                            let count = if a.block == 1 {
                                paren(&extent)
                            } else {
                                format!("(({extent} + {}) / {})", a.block - 1, a.block)
                            };
                            let from = if axes.len() == 1 { "u" } else { "r" };
                            let name = format!("g{i}");
                            if i == 0 {
                                self.line(format_args!("const i64 {name} = {from};"));
                            } else {
                                self.line(format_args!(
                                    "const i64 {name} = r % {count}; r /= {count};"
                                ));
                            }
                            if a.block == 1 {
                                self.names.insert(a.sym, (name.into(), false));
                            } else {
                                self.line(format_args!(
                                    "const i64 lo = {name} * {0}, hi = lo + {0} < {1} ? lo + {0} : {1};",
                                    a.block,
                                    paren(&extent)
                                ));
                            }
                        }
                        self.items(&k.body)?;
                        self.close();
                    }
                }
                if (k.buffers.iter()).any(|b| b.role == BufRole::Stream)
                    && matches!(self.caps.isa, Isa::Avx2 | Isa::Avx512)
                {
                    // Other threads see these stores after the next synchronisation only if a fence precedes it.
                    self.line("__builtin_ia32_sfence();");
                }
                self.line("return 0;");
            }
            Kind::Epilogue { batch, .. } => {
                self.names.insert(*batch, ("batch".into(), false));
                self.items(&k.head)?;
                self.items(&k.body)?;
            }
        }
        self.close();
        Ok(())
    }

    /// Declares sizes, buffers and locals.
    fn parameters(&mut self) -> Result<()> {
        let k = self.kernel;
        for (at, p) in k.sizes.iter().enumerate() {
            let number = digits(at as u64);
            self.line(["const i64 s", &number, " = sizes[", &number, "];"]);
            self.names
                .insert(p.sym, (self.helpers.variable('s', at as u32, None), false));
        }
        let mut at = 0u32;
        for (id, b) in k.arguments() {
            let ty = types::memory(b.dtype);
            let c = if b.role == BufRole::In { "const " } else { "" };
            let (id, place) = (self.buffer_name(id), digits(at));
            self.line([
                c,
                ty.name(),
                " *const ",
                &id,
                " = (",
                c,
                ty.name(),
                " *)bufs[",
                &place,
                "];",
            ]);
            at += 1;
        }
        if k.scratch_bytes.is_some() {
            self.line(format_args!("char *scratch = bufs[{at}];"));
        }
        for (i, b) in k.buffers.iter().enumerate() {
            let BufRole::Local { len, per_lane } = b.role else {
                continue;
            };
            let id = KBufId::from_index(i);
            let ty = types::memory(b.dtype);
            // A local of a group that runs inside lanes holds a vector where the kernel counts one
            // element.
            let lanes = if per_lane { self.group_lanes() } else { 1 };
            let len = self.expr(len, false)?;
            if k.scratch_bytes.is_some() {
                self.line(format_args!("{ty} *const {id} = ({ty} *)scratch;"));
                // Each local begins at a cache line, as arrays on the stack do.
                let size = b.dtype.size() as u32 * lanes;
                self.line(format_args!(
                    "scratch += (({len}) * {size} + 63) / 64 * 64;"
                ));
            } else {
                self.line(format_args!(
                    "{ty} {id}[({len}) * {lanes}] __attribute__((aligned(64)));"
                ));
            }
        }
        Ok(())
    }

    /// Lanes of the loop that the whole group runs in.
    pub(crate) fn group_lanes(&self) -> u32 {
        fn find(items: &[Item]) -> Option<u32> {
            items.iter().find_map(|i| match i {
                Item::Loop(l) => match l.role {
                    Role::Vector { width, .. } => Some(width),
                    Role::Serial => find(&l.body),
                },
                _ => None,
            })
        }
        find(&self.kernel.body).unwrap_or(1)
    }

    /// Writes items in order. Values that only one arm of a branch needs are written there.
    pub(crate) fn items(&mut self, items: &[Item]) -> Result<()> {
        // Side by side, branches would be taken together.
        let alone = self.state.lane.as_ref().is_some_and(|l| l.copies == 1);
        let plan = if alone && !self.facts.peephole.any() && self.state.open_branches < DEPTH {
            self.facts.uses.plan(self.kernel, items)
        } else {
            Plan::default()
        };
        for item in items {
            match item {
                Item::Loop(l) => self.loop_item(l)?,
                Item::Let(v) if self.facts.peephole.unused(*v) || plan.waits(*v) => {}
                Item::Let(v) => {
                    self.branches(&plan, *v)?;
                    let copies = self.copies(*v);
                    let mut copy = 0;
                    while copy < copies {
                        self.set_copy(copy);
                        // Several copies of an expensive function are one call, which interleaves
                        // them.
                        let n = (copies - copy).min(4);
                        copy += if self.together(*v, n)? {
                            n
                        } else {
                            self.value(*v)?;
                            1
                        };
                    }
                }
                Item::Acc(a) => self.start(*a)?,
                Item::Update { acc, value } => {
                    for copy in 0..self.all_copies() {
                        self.set_copy(copy);
                        self.update(*acc, *value)?;
                    }
                }
                Item::Store {
                    buf,
                    offset,
                    value,
                    mode,
                    mask,
                } => {
                    for copy in 0..self.all_copies() {
                        self.set_copy(copy);
                        self.store(*buf, *offset, *value, *mode, *mask)?;
                    }
                }
            }
            self.set_copy(0);
        }
        Ok(())
    }

    /// Returns the number of vectors that the open loop handles at once.
    pub(crate) fn all_copies(&self) -> u32 {
        self.state.lane.as_ref().map_or(1, |l| l.copies)
    }

    /// Makes a copy of the open vector loop the current one.
    fn set_copy(&mut self, copy: u32) {
        if let Some(l) = &mut self.state.lane {
            l.copy = copy;
        }
    }

    /// Goes on to the next copy.
    pub(crate) fn next_copy(&mut self) {
        if let Some(l) = &mut self.state.lane {
            l.copy += 1;
        }
    }

    /// How often a value is evaluated in one turn: once if all copies would have the same, as a filter's elements are for rows
    /// that are side by side.
    pub(crate) fn copies(&self, v: ValId) -> u32 {
        let Some(lane) = self.state.lane.as_ref().filter(|l| l.copies > 1) else {
            return 1;
        };
        let def = &self.kernel.value(v).def;
        // Operands were written before: what they are tells what this one is.
        let varies = |v: ValId| matches!(self.vars[v.index()], Some(Var::Lanes(_)));
        // Values of which each copy has its own, whatever their operands are.
        let own = match def {
            Def::Load { buf, .. } => matches!(
                self.kernel.buffer(*buf).role,
                BufRole::Local { per_lane: true, .. }
            ),
            // An accumulator from inside the vector loop has a sum for each lane; one from outside
            // was reduced to a number.
            Def::Final(a) => self.facts.started[a.index()].is_some(),
            Def::Running { .. } | Def::Sum(_) => true,
            _ => false,
        };
        let differs =
            own || match self.facts.peephole.sum(v) {
                Some((_, arg)) => varies(arg),
                None => {
                    let mut any = false;
                    def.each_operand(|v| any |= varies(v));
                    any
                }
            } || self.differs_by_row(v)
                || lane.rows.is_none() && def.expr().is_some_and(|e| self.expr_varies(e));
        if differs { lane.copies } else { 1 }
    }

    /// Returns true if an expression differs between lanes.
    pub(crate) fn expr_varies(&self, e: Expr) -> bool {
        let Some(lane) = &self.state.lane else {
            return false;
        };
        let syms = self.exprs.free_syms(e);
        syms.iter().any(|s| *s == lane.sym || self.sym_varies(*s))
    }

    /// Returns true if a symbol other than the vector loop's own differs between lanes.
    pub(crate) fn sym_varies(&self, s: Sym) -> bool {
        self.some_vary && self.names.get(&s).is_some_and(|n| n.1)
    }

    /// The name of a buffer.
    pub(crate) fn buffer_name(&mut self, buf: KBufId) -> Name {
        self.helpers.variable('b', buf.0, None)
    }

    /// Number of live lanes as C text.
    pub(crate) fn lane_count(&self) -> String {
        match &self.state.lane {
            Some(l) => l.count.clone().unwrap_or_else(|| l.width.to_string()),
            None => "1".into(),
        }
    }
}
