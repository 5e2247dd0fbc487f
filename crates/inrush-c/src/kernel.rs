//! Writes one kernel as one C function: its frame, and what stands in a list of items.

use crate::branches::{DEPTH, Plan, Uses};
use crate::cascade::Cascade;
use crate::helpers::{Helpers, Name};
use crate::peephole::Peephole;
use crate::text::{Text, paren};
use crate::types;
use crate::values::Var;
use inrush_base::{Caps, Error, Isa, Result, digits};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_kernel::{AccId, Access, BufRole, Def, Item, KBufId, Kernel, Kind, Loop, Role, ValId};
use rustc_hash::FxHashMap;

/// Stands for the function's name until its text is known.
pub(crate) const NAME: &str = "@name@";

/// The open lanes loop.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub sym: Sym,
    pub width: u32,
    /// Number of live lanes where it may be less than the width: a C expression.
    pub count: Option<String>,
    /// Unroll factor: vectors that one turn of the loop handles.
    pub copies: u32,
    /// The outer loop whose turns the copies are, if rows are jammed; otherwise copies are consecutive vectors of lanes.
    pub rows: Option<Sym>,
    /// The copy that is being written.
    pub copy: u32,
}

pub(crate) struct Emitter<'a> {
    pub exprs: &'a Exprs,
    pub kernel: &'a Kernel,
    pub caps: &'a Caps,
    pub helpers: &'a mut Helpers,
    pub out: String,
    depth: usize,
    /// C variable of each value, once it is written.
    pub vars: Vec<Option<Var>>,
    /// C names of symbols, and true for those that differ between lanes.
    pub names: FxHashMap<Sym, (Name, bool)>,
    /// True once some symbol differs between lanes.
    pub some_vary: bool,
    pub lane: Option<Lane>,
    pub(crate) loops: u32,
    /// Loads that the open tile has transposed: the array and the start of the tile.
    pub tiles: FxHashMap<ValId, (String, String)>,
    /// Indices made of floats, as 32 bits each, by their symbols.
    pub short: FxHashMap<Sym, ValId>,
    /// Index of the innermost serial loop.
    pub tile_index: Name,
    /// For each load that several vector loops repeat: the last of these loops.
    pub(crate) last_of_several: Vec<Option<&'a Loop>>,
    /// True for loads whose last use among several passes is the open vector loop: it prefetches the next unit's.
    pub last_use: Vec<bool>,
    /// The grid axis along which consecutive units step by one.
    pub inner_grid_axis: Option<Sym>,
    /// Per accumulator declared outside its vector loop: that loop's width and unroll factor.
    pub acc_vectors: Vec<Option<(u32, u32)>>,
    /// Per accumulator: width of the vector loop in which it was declared.
    pub started: Vec<Option<u32>>,
    pub peephole: Peephole,
    pub cascade: Cascade,
    uses: Uses,
    /// Nesting depth of the arms of [`crate::branches`] that are being written.
    pub(crate) open_branches: u32,
    /// The comparison that gave the mask that is being written, in the size of its operands: name and element type.
    pub mask_source: Option<(String, &'static str)>,
    /// By name of a mask: the comparison that it was widened or narrowed from. A mask of the other size uses it directly.
    pub mask_sources: FxHashMap<Name, (String, &'static str)>,
    /// Number of such comparisons so far, for their names.
    pub mask_count: usize,
    /// True if some value has eight bytes: half-width vectors are then full registers of these, otherwise half registers.
    pub has_64bit: bool,
    /// Accumulators for which the open loop keeps independent partial sums.
    pub partial_sums: Vec<AccId>,
    /// The loop over the taps of a column and the loop over rows, while rows are jammed.
    pub tap_column: Option<(Sym, Sym)>,
    /// Per load in the tap loop: a pointer to the first tap, and the strides of a tap and of a row.
    pub columns: FxHashMap<ValId, (Name, i64, i64)>,
    /// The jammed loop around the next vector loop, and its jam factor.
    pub jam: Option<(Sym, u32)>,
    /// Memo of the last query: offset, vector axis, kind of access.
    pub access_memo: Option<(Expr, Sym, Access)>,
}

/// Appends the text of the function to `out`; `helpers` notes the helpers that it uses.
pub(crate) fn emit(
    exprs: &Exprs,
    kernel: &Kernel,
    caps: &Caps,
    helpers: &mut Helpers,
    out: String,
) -> Result<String> {
    let uses = Uses::of(kernel);
    let mut e = Emitter {
        exprs,
        kernel,
        caps,
        helpers,
        out,
        depth: 0,
        vars: vec![None; kernel.values.len()],
        names: FxHashMap::default(),
        some_vary: false,
        lane: None,
        loops: 0,
        tiles: FxHashMap::default(),
        short: FxHashMap::default(),
        tile_index: "".into(),
        last_of_several: vec![None; kernel.values.len()],
        last_use: vec![false; kernel.values.len()],
        inner_grid_axis: match &kernel.kind {
            Kind::Grid(axes) => axes.last().filter(|a| a.block == 1).map(|a| a.sym),
            Kind::Epilogue { .. } => None,
        },
        acc_vectors: vec![None; kernel.accs.len()],
        started: vec![None; kernel.accs.len()],
        peephole: Peephole::find(kernel, &uses),
        cascade: Cascade::find(exprs, kernel),
        uses,
        open_branches: 0,
        mask_source: None,
        mask_sources: FxHashMap::default(),
        mask_count: 0,
        has_64bit: kernel.values.iter().any(|v| v.dtype.compute().size() == 8),
        access_memo: None,
        partial_sums: Vec::new(),
        jam: None,
        tap_column: None,
        columns: FxHashMap::default(),
    };
    let mut first = vec![None; kernel.values.len()];
    find_repeated(&kernel.body, None, &mut first, &mut e.last_of_several);
    e.find_acc_vectors(&kernel.head, None);
    e.find_acc_vectors(&kernel.body, None);
    e.function()?;
    Ok(e.out)
}

/// Finds, for each value that several vector loops evaluate, the last of these loops.
fn find_repeated<'k>(
    items: &'k [Item],
    open: Option<&'k Loop>,
    first: &mut [Option<&'k Loop>],
    last: &mut [Option<&'k Loop>],
) {
    for item in items {
        match item {
            Item::Loop(l) => {
                let inner = match l.role {
                    Role::Vector { .. } => Some(l.as_ref()),
                    Role::Serial => open,
                };
                find_repeated(&l.body, inner, first, last);
            }
            Item::Let(v) => match (open, first[v.index()]) {
                (Some(l), None) => first[v.index()] = Some(l),
                (Some(l), Some(f)) if !std::ptr::eq(l, f) => last[v.index()] = Some(l),
                _ => {}
            },
            _ => {}
        }
    }
}

impl Emitter<'_> {
    pub(crate) fn indent(&mut self) {
        const BLANKS: &str = "                                ";
        match BLANKS.get(..self.depth) {
            Some(blanks) => self.out.push_str(blanks),
            None => (0..self.depth).for_each(|_| self.out.push(' ')),
        }
    }

    pub(crate) fn line(&mut self, text: impl Text) {
        self.indent();
        text.put(&mut self.out);
        self.out.push('\n');
    }

    pub(crate) fn open(&mut self, text: impl Text) {
        self.indent();
        text.put(&mut self.out);
        self.out.push_str(" {\n");
        self.depth += 1;
    }

    pub(crate) fn close(&mut self) {
        self.depth -= 1;
        self.line("}");
    }

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
                    // Other threads see these stores after the next synchronisation only behind a fence.
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
                c, ty, " *const ", &id, " = (", c, ty, " *)bufs[", &place, "];",
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
            let lanes = if per_lane { self.group_lanes() } else { 1 };
            let len = self.expr(len, false)?;
            if k.scratch_bytes.is_some() {
                self.line(format_args!("{ty} *const {id} = ({ty} *)scratch;"));
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

    /// Finds accumulators that live outside of the lanes loop that updates them.
    fn find_acc_vectors(&mut self, items: &[Item], lanes: Option<(u32, u32)>) {
        for item in items {
            match item {
                Item::Loop(l) => {
                    let inner = match l.role {
                        Role::Vector { width, .. } => Some((width, self.cut(l).unroll)),
                        Role::Serial => lanes,
                    };
                    self.find_acc_vectors(&l.body, inner);
                }
                Item::Acc(a) => self.started[a.index()] = lanes.map(|l| l.0),
                Item::Update { acc, .. } if self.started[acc.index()].is_none() => {
                    // Parts of a row that is cut at bends feed one accumulator, with as many vectors side by side as each part has room for.
                    let most = self.acc_vectors[acc.index()].map_or(0, |s| s.1);
                    self.acc_vectors[acc.index()] = lanes.map(|(w, copies)| (w, copies.max(most)));
                }
                _ => {}
            }
        }
    }

    pub(crate) fn items(&mut self, items: &[Item]) -> Result<()> {
        // Side by side, branches would be taken together.
        let alone = self.lane.as_ref().is_some_and(|l| l.copies == 1);
        let plan = if alone && !self.peephole.any() && self.open_branches < DEPTH {
            self.uses.plan(self.kernel, items)
        } else {
            Plan::default()
        };
        for item in items {
            match item {
                Item::Loop(l) => self.loop_item(l)?,
                Item::Let(v) if self.peephole.unused(*v) || plan.waits(*v) => {}
                Item::Let(v) => {
                    self.branches(&plan, *v)?;
                    let copies = self.copies(*v);
                    let mut copy = 0;
                    while copy < copies {
                        self.set_copy(copy);
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

    pub(crate) fn all_copies(&self) -> u32 {
        self.lane.as_ref().map_or(1, |l| l.copies)
    }

    fn set_copy(&mut self, copy: u32) {
        if let Some(l) = &mut self.lane {
            l.copy = copy;
        }
    }

    pub(crate) fn next_copy(&mut self) {
        if let Some(l) = &mut self.lane {
            l.copy += 1;
        }
    }

    /// How often a value is evaluated in one turn: once if all copies would have the same, as a filter's elements are for rows
    /// that are side by side.
    pub(crate) fn copies(&self, v: ValId) -> u32 {
        let Some(lane) = self.lane.as_ref().filter(|l| l.copies > 1) else {
            return 1;
        };
        let def = &self.kernel.value(v).def;
        let varies = |v: ValId| matches!(self.vars[v.index()], Some(Var::Lanes(_)));
        let own = match def {
            Def::Load { buf, .. } => matches!(
                self.kernel.buffer(*buf).role,
                BufRole::Local { per_lane: true, .. }
            ),
            Def::Final(a) => self.started[a.index()].is_some(),
            Def::Running { .. } | Def::Sum => true,
            _ => false,
        };
        let differs =
            own || match self.peephole.sum(v) {
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
        let Some(lane) = &self.lane else { return false };
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
        match &self.lane {
            Some(l) => l.count.clone().unwrap_or_else(|| l.width.to_string()),
            None => "1".into(),
        }
    }
}
