//! The function of a block program.
//!
//! 1. Facts that need the whole block are found: loads that several loops share, rows, vector
//!    widths ([`Facts`]).
//! 2. The header names the points of each axis: `x`, `y`, `z` of the grid, `r` of the reduction,
//!    with a mask for each axis that its block does not divide.
//! 3. Items become lines in order. Each value is a line `tN = ..`; constants stand where they are
//!    used.
//!
//! A value spans some dimensions of the tile (its shape). It has one point along the others, and
//! the language broadcasts. Where that is not enough, as for addresses, it is spread explicitly.
//!
//! Masks keep accesses from being vectors. Where only the last program, or the last step of a walk,
//! needs one, the items are written twice ([`Emitter::twice`], [`Emitter::walk`]): without masks
//! for all others, and with them.

use crate::Argument;
use crate::fused::Fused;
use crate::programmatic_launch;
use crate::tail_masks::{self, TailMask};
use crate::{contiguity, dot, helpers, persistent};
use inrush_base::{Caps, Result};
use inrush_expr::{Exprs, Sym};
use inrush_kernel::block::{Attention, Block, BlockItem, Dim, DimRole, Results};
use inrush_kernel::{AccId, BufRole, Check, Def, KBufId, ValId};
use inrush_loops::{Loops, Origin};
use rustc_hash::{FxHashMap, FxHashSet};

mod items;
mod values;

/// Stands for the function's name until its digest is known.
pub(crate) const NAME: &str = "\u{1}name";

pub(crate) struct Emitted {
    /// For people: what the kernel computes, over what.
    pub comments: String,
    pub function: String,
    /// Names of the block's buffers; `None` for those that no code uses.
    pub buffers: Vec<Option<String>>,
    /// Names of the block's integer arguments, in order.
    pub sizes: Vec<String>,
    /// Sizes of the tile by parameter: `XBLOCK`, `RBLOCK`.
    pub constants: Vec<(&'static str, i64)>,
    /// Tensor maps: parameters after the sizes.
    pub maps: Vec<Argument>,
    pub asserts: bool,
}

/// Writes one function. Its `facts` are found once; `state` belongs to the code that is being written; names and lines grow.
pub(crate) struct Emitter<'a> {
    pub exprs: &'a Exprs,
    origins: &'a [Origin],
    pub block: &'a Block,
    pub role: Role,
    pub caps: &'a Caps,
    pub facts: Facts,
    pub names: Names,
    pub state: State,
    writer: Writer,
    /// Descriptors of tensors that the function has made or was given, in order.
    pub descriptors: Vec<crate::descriptors::Strided>,
    asserts: bool,
}

/// Facts about the block that its text depends on.
pub(crate) struct Facts {
    /// Accumulators that carry a running reduction from step to step.
    pub carries: FxHashSet<AccId>,
    /// Rows that are loaded before a reduction while others come after it.
    pub first_rows: FxHashSet<ValId>,
    /// Neighbours of a row that a thread has, where Triton would give it more than one instruction moves.
    pub contiguous: Option<i64>,
    /// Neighbours of a row that the maximum and the sum of a softmax take in at once.
    pub runs: FxHashMap<AccId, i64>,
    /// Positions in 64 bits that stay in 32: nothing but comparisons and conversions reads them.
    pub narrow: FxHashSet<ValId>,
    /// Functions that are computed with the addition that follows.
    fused: Fused,
}

/// Names in the text.
#[derive(Default)]
pub(crate) struct Names {
    /// Axes, sizes, and indices that were read from memory.
    pub symbols: FxHashMap<Sym, String>,
    /// Constants have none.
    pub values: FxHashMap<ValId, String>,
    /// Accumulators, and the positions of those that seek one.
    pub accs: FxHashMap<AccId, String>,
    /// By position among the block's: `in_ptr0`, `out_ptr1`, `in_out_ptr2`.
    pub buffers: Vec<String>,
    /// Positions of the buffers that the text uses.
    used: FxHashSet<usize>,
}

/// State of the code that is being written.
#[derive(Default)]
pub(crate) struct State {
    /// Within the loop over the looped axis.
    pub in_loop: bool,
    /// The code is for programs whose whole tile is within bounds.
    pub unmasked: bool,
    /// The code is for steps of an attention that do not reach beyond the last key.
    pub whole_step: bool,
    /// A comparison that holds for all elements of the programs that the code is for.
    pub tail_mask: Option<TailMask>,
    /// How many loops are still to come that load a value.
    pub loads_left: FxHashMap<ValId, usize>,
    /// Accumulators whose lanes are wanted after they have been combined.
    pub kept: FxHashSet<AccId>,
}

/// The text so far.
struct Writer {
    /// Lines of the body, without the signature.
    lines: Vec<String>,
    /// Levels of four blanks.
    indent: usize,
    /// Number of temporary names so far.
    next: usize,
}

/// Longest list of items that is written twice.
pub(crate) const TWICE: usize = 64;

/// Letters of grid axes from the last to the first.
const LETTERS: [&str; 3] = ["x", "y", "z"];

/// Who calls the function.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// A launch.
    Kernel {
        /// Begins with a wait for the kernel before it.
        waits: bool,
    },
    /// Another function, which hands over the program's number.
    Part,
    /// As [`Role::Part`], with the length of its only axis.
    Foreach,
}

/// The length of the only axis, where a caller hands it over.
const LENGTH: &str = "numel";

/// Writes the function of a block, for the caller that `role` names.
pub(crate) fn emit<'a>(
    loops: &'a Loops,
    block: &'a Block,
    caps: &'a Caps,
    role: Role,
) -> Result<Emitted> {
    let carries = block.values.iter().filter_map(|v| match v.def {
        Def::Running { acc, .. } => Some(acc),
        _ => None,
    });
    let mut e = Emitter {
        exprs: &loops.exprs,
        origins: &loops.origins,
        block,
        role,
        caps,
        facts: Facts {
            carries: carries.collect(),
            first_rows: FxHashSet::default(),
            contiguous: None,
            runs: FxHashMap::default(),
            narrow: FxHashSet::default(),
            fused: Fused::find(block),
        },
        names: Names::default(),
        state: State::default(),
        writer: Writer {
            lines: Vec::new(),
            indent: 1,
            next: 0,
        },
        descriptors: Vec::new(),
        asserts: false,
    };
    for (i, b) in block.buffers.iter().enumerate() {
        let kind = match b.role {
            BufRole::In => "in_ptr",
            BufRole::Out => "out_ptr",
            _ => "in_out_ptr",
        };
        e.names.buffers.push(format!("{kind}{i}"));
    }
    let mut sizes = Vec::new();
    for p in &block.sizes {
        let name = e.exprs.sym_info(p.sym).name;
        // Names of sizes may have characters that Python does not take.
        let name = match name.chars().all(|c| c.is_ascii_alphanumeric()) {
            true => name,
            false => format!("ks{}", sizes.len()),
        };
        e.names.symbols.insert(p.sym, name.clone());
        sizes.push(name);
    }
    e.count_loads(&block.items);
    e.find_first_rows();
    e.facts.contiguous = contiguity::neighbours(&e);
    e.facts.runs = crate::online_softmax::runs(&e);
    e.facts.narrow = crate::attention::narrow_positions(&e);
    match (&block.product, &block.attention) {
        (Some(p), _) if p.persistent => e.persistent_product(p)?,
        (Some(p), _) => {
            e.begin()?;
            e.product(p)?;
            e.body()?;
        }
        (None, Some(a)) => {
            e.begin()?;
            e.attention(a)?;
        }
        (None, None) => {
            e.begin()?;
            e.body()?;
        }
    }
    let constants = e.constants();
    let body = e.writer.lines.join("\n");
    // Parameters that the body does not use would stay parameters of the binary.
    let buffers: Vec<Option<String>> = (e.names.buffers.iter().enumerate())
        .map(|(i, n)| e.names.used.contains(&i).then(|| n.clone()))
        .collect();
    let mut parameters: Vec<String> = Vec::new();
    let begin = match role {
        Role::Kernel { waits: true } => programmatic_launch::WAIT,
        _ => "",
    };
    if matches!(role, Role::Part | Role::Foreach) {
        parameters.push("pid".into());
    }
    parameters.extend(buffers.iter().flatten().cloned());
    parameters.extend(sizes.iter().cloned());
    let maps = e.maps()?;
    parameters.extend(maps.iter().map(|m| m.name.clone()));
    if role == Role::Foreach {
        parameters.push(LENGTH.into());
    }
    parameters.extend(constants.iter().map(|(n, _)| format!("{n}: tl.constexpr")));
    let function = format!(
        "@triton.jit\ndef {NAME}({}):\n{begin}{body}\n",
        parameters.join(", ")
    );
    Ok(Emitted {
        comments: comments(loops, block, &buffers),
        function,
        buffers,
        sizes,
        constants,
        maps,
        asserts: e.asserts,
    })
}

/// Imports and helpers of `functions`.
pub(crate) fn head(functions: &str) -> String {
    let mut text = String::from("import triton\nimport triton.language as tl\n");
    let helpers = helpers::source(functions);
    if functions.contains("libdevice.") || helpers.contains("libdevice.") {
        text.push_str("from triton.language.extra import libdevice\n");
    }
    if functions.contains("gdc_wait()") {
        text.push_str(programmatic_launch::IMPORT);
    }
    text.push_str("\n\n");
    text.push_str(&helpers);
    text
}

/// The operators that the kernel came from, with their Python lines, and its buffers.
fn comments(loops: &Loops, block: &Block, names: &[Option<String>]) -> String {
    let mut out = String::new();
    for o in &block.origins {
        let Some(origin) = loops.origins.get(o.index()) else {
            continue;
        };
        let at = origin.line.as_deref().unwrap_or("");
        let line = format!("# {} {} {at}", origin.op, origin.name);
        out.push_str(&line.replace(['\n', '\r'], " "));
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    for (b, name) in block.buffers.iter().zip(names) {
        let (Some(name), Some(buffer)) = (name, loops.buffers.get(b.buf.index())) else {
            continue;
        };
        let sizes = loops.exprs.show_list(&buffer.sizes);
        let sizes = sizes.trim_start_matches('[').trim_end_matches(']');
        out.push_str(&format!("# {name}: {}[{sizes}]", b.dtype));
        if let Some(l) = &buffer.layout {
            let strides = loops.exprs.show_list(&l.strides);
            let strides = strides.trim_start_matches('[').trim_end_matches(']');
            out.push_str(&format!(" strides [{strides}]"));
        }
        out.push('\n');
    }
    out
}

impl Emitter<'_> {
    /// Returns the message of a check that fails, with the operator and its Python line.
    fn blame(&self, check: &Check) -> String {
        let origin = check.origin.and_then(|o| self.origins.get(o.index()));
        let mut text = check.message.clone();
        if let Some(origin) = origin {
            text.push_str(&format!(", in {}", origin.op));
            if let Some(line) = &origin.line {
                text.push_str(&format!(" at {line}"));
            }
        }
        text.replace(['"', '\\', '\n', '\r', '%'], "'")
    }

    /// Appends a line at the current indentation.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) {
        let indent = "    ".repeat(self.writer.indent);
        self.writer.lines.push(format!("{indent}{}", text.as_ref()));
    }

    /// Returns a new name.
    pub(crate) fn fresh(&mut self) -> String {
        self.writer.next += 1;
        format!("t{}", self.writer.next - 1)
    }

    /// Returns the name of a buffer, and notes that it is used.
    pub(crate) fn buffer(&mut self, b: KBufId) -> String {
        self.names.used.insert(b.index());
        self.names.buffers[b.index()].clone()
    }

    /// The tile's dimensions: positions in the block's list.
    pub(crate) fn tile_dims(&self) -> Vec<usize> {
        (0..self.block.dims.len())
            .filter(|i| self.block.dims[*i].is_tile())
            .collect()
    }

    /// Returns the name of an axis; see [`Block::letter`].
    pub(crate) fn letter(&self, at: usize) -> &'static str {
        let dims = &self.block.dims;
        if dims[at].role != DimRole::Grid {
            return "r";
        }
        let after = dims[at + 1..].iter().filter(|d| d.role == DimRole::Grid);
        LETTERS[after.count().min(2)]
    }

    /// Returns the constant parameter that holds the points of an axis.
    pub(crate) fn block_name(&self, at: usize) -> &'static str {
        match self.letter(at) {
            "x" => "XBLOCK",
            "y" => "YBLOCK",
            "z" => "ZBLOCK",
            _ => "RBLOCK",
        }
    }

    /// Writes the items: twice where most programs need no mask.
    fn body(&mut self) -> Result<()> {
        match (self.inside()?, tail_masks::find(self)) {
            (Some(inside), _) => self.twice(&inside, |e| e.state.unmasked = true),
            (None, Some(s)) => {
                let inside = format!("{} < {}", self.offset(s.last)?, s.end);
                self.twice(&inside, |e| e.state.tail_mask = Some(s))
            }
            (None, None) => self.items(&self.block.items),
        }
    }

    /// Lists the constant parameters: blocks of the tile's dimensions, then of a product's `k`.
    fn constants(&self) -> Vec<(&'static str, i64)> {
        let mut out: Vec<(&'static str, i64)> = (self.tile_dims().into_iter())
            .map(|i| (self.block_name(i), self.block.dims[i].block))
            .collect();
        if let Some(p) = &self.block.product
            && !dot::by_outer_products(self.block, self.caps)
        {
            out.push(("KBLOCK", p.block));
        }
        if self.is_persistent() {
            out.push(("PROGRAMS", persistent::programs(self.caps)));
        }
        if let Some(a) = &self.block.attention {
            out.extend([("DBLOCK", a.d.block), ("NBLOCK", a.n.block)]);
        }
        out
    }

    /// `[XBLOCK, 1]`: the dimensions of `shape`, ones elsewhere.
    pub(crate) fn shape(&self, shape: u32) -> String {
        let dims: Vec<&str> = (self.tile_dims().into_iter())
            .map(|i| match shape & (1 << i) {
                0 => "1",
                _ => self.block_name(i),
            })
            .collect();
        format!("[{}]", dims.join(", "))
    }

    /// Returns the subscript that puts a vector along dimension `at`: `[:, None]`.
    pub(crate) fn along(&self, at: usize) -> String {
        let tile = self.tile_dims();
        if tile.len() < 2 {
            return String::new();
        }
        let parts: Vec<&str> = (tile.iter())
            .map(|i| if *i == at { ":" } else { "None" })
            .collect();
        format!("[{}]", parts.join(", "))
    }

    /// Makes 64 bits of an index where offsets need them.
    fn widened(&self, text: String) -> String {
        match self.block.wide {
            true => format!("{text}.to(tl.int64)"),
            false => text,
        }
    }

    /// Writes which points this program works on, and the descriptors of what it accesses.
    fn begin(&mut self) -> Result<()> {
        self.header()?;
        self.describe(&self.block.items)
    }

    /// Which point of every axis this program works on.
    fn header(&mut self) -> Result<()> {
        let dims = self.block.dims.clone();
        let grid = self.grid();
        if !grid.is_empty() {
            let number = match self.role {
                Role::Kernel { .. } => "tl.program_id(0)",
                Role::Part | Role::Foreach => "pid",
            };
            let pid = self.widened(number.into());
            if pid != "pid" {
                self.line(format!("pid = {pid}"));
            }
        }
        let mut counts = Vec::new();
        for &i in &grid {
            let extent = self.extent(&dims[i])?;
            counts.push(match dims[i].is_tile() {
                true => format!("tl.cdiv({extent}, {})", self.block_name(i)),
                false => extent,
            });
        }
        self.places(&grid, &counts);
        self.points()?;
        if let Some(i) = self.block.reduced() {
            let d = dims[i];
            self.names.symbols.insert(d.sym, "r".into());
            if d.role == DimRole::Persistent {
                let along = self.along(i);
                let range = self.neighbours("tl.arange(0, RBLOCK)".into());
                let range = self.widened(format!("{range}{along}"));
                self.line(format!("r = {range}"));
                self.mask_line(i, &d)?;
            }
        }
        Ok(())
    }

    /// The axes that are shared out over the grid.
    pub(crate) fn grid(&self) -> Vec<usize> {
        let dims = self.block.dims.iter().enumerate();
        (dims.filter(|(_, d)| d.role == DimRole::Grid))
            .map(|(i, _)| i)
            .collect()
    }

    /// `x` and the like, with their masks, from `xpid`.
    pub(crate) fn points(&mut self) -> Result<()> {
        for i in self.grid() {
            let letter = self.letter(i);
            let d = &self.block.dims[i];
            if !d.is_tile() {
                self.line(format!("{letter} = {letter}pid"));
            } else {
                let block = self.block_name(i);
                let along = self.along(i);
                self.line(format!(
                    "{letter} = {letter}pid * {block} + tl.arange(0, {block}){along}"
                ));
            }
            self.names.symbols.insert(d.sym, letter.into());
            self.mask_line(i, d)?;
        }
        Ok(())
    }

    /// `xpid` and the like, from `pid`.
    fn places(&mut self, grid: &[usize], counts: &[String]) {
        if let (Some(p), [rest @ .., y, x]) = (&self.block.product, grid) {
            // Tiles of neighbouring rows run side by side and share columns.
            let (ny, nx) = (&counts[counts.len() - 2], &counts[counts.len() - 1]);
            let (ly, lx) = (self.letter(*y), self.letter(*x));
            // Programs that run at the same time cover `group` rows of tiles: their operands are
            // shared in the cache.
            let group = p.group;
            let lines = [
                format!("ny = {ny}"),
                format!("nx = {nx}"),
                "tile = pid % (ny * nx)".to_string(),
                format!("first = tile // ({group} * nx) * {group}"),
                format!("rows = tl.minimum(ny - first, {group})"),
                format!("{ly}pid = first + tile % ({group} * nx) % rows"),
                format!("{lx}pid = tile % ({group} * nx) // rows"),
            ];
            lines.into_iter().for_each(|l| self.line(l));
            if let [z] = rest {
                let lz = self.letter(*z);
                self.line(format!("{lz}pid = pid // (ny * nx)"));
            }
            return;
        }
        match grid {
            [] => {}
            [x] => {
                let l = self.letter(*x);
                self.line(format!("{l}pid = pid"));
            }
            [y, x] => {
                let (ly, lx) = (self.letter(*y), self.letter(*x));
                self.line(format!("nx = {}", counts[1]));
                // Under a causal mask the last queries take longest, and the first keys: they go first.
                let of_keys = |a: &Attention| {
                    matches!(
                        a.results,
                        Results::Gradients {
                            by_value: Some(_),
                            ..
                        }
                    )
                };
                self.line(match &self.block.attention {
                    Some(a) if !of_keys(a) => format!("{lx}pid = nx - 1 - pid % nx"),
                    _ => format!("{lx}pid = pid % nx"),
                });
                self.line(format!("{ly}pid = pid // nx"));
            }
            _ => {
                self.line(format!("ny = {}", counts[1]));
                self.line(format!("nx = {}", counts[2]));
                self.line("xpid = pid % nx");
                self.line("ypid = pid // nx % ny");
                self.line("zpid = pid // (nx * ny)");
            }
        }
    }

    /// Returns the length of an axis: a number, an expression of sizes, or what the caller hands
    /// over.
    pub(crate) fn extent(&self, d: &Dim) -> Result<String> {
        match self.role {
            Role::Foreach => Ok(LENGTH.into()),
            Role::Kernel { .. } | Role::Part => self.offset(d.extent),
        }
    }

    /// Declares the mask of an axis, unless its blocks are exact.
    fn mask_line(&mut self, at: usize, d: &Dim) -> Result<()> {
        if d.is_tile() && !d.exact {
            let letter = self.letter(at);
            let extent = self.extent(d)?;
            self.line(format!("{letter}mask = {letter} < {extent}"));
        }
        Ok(())
    }

    /// The masks of the dimensions of `shape`, joined; `None` when none is needed.
    pub(crate) fn mask(&self, shape: u32) -> Option<String> {
        if self.state.unmasked {
            return None;
        }
        let parts: Vec<String> = (self.tile_dims().into_iter())
            .filter(|i| shape & (1 << i) != 0 && !self.block.dims[*i].exact)
            .filter(|i| !self.state.whole_step || self.block.dims[*i].role != DimRole::Looped)
            .map(|i| format!("{}mask", self.letter(i)))
            .collect();
        (!parts.is_empty()).then(|| parts.join(" & "))
    }

    /// Where a mask would keep accesses narrow, though only the last program needs it: the condition under which a program
    /// needs none.
    fn inside(&self) -> Result<Option<String>> {
        let block = self.block;
        let [d] = block.dims.as_slice() else {
            return Ok(None);
        };
        if d.role != DimRole::Grid || !d.is_tile() || d.exact || block.product.is_some() {
            return Ok(None);
        }
        // Accesses are 16 bytes wide where the mask changes at multiples of their length only.
        let sizes = block.buffers.iter().map(|b| b.dtype.size());
        let lanes = 16 / sizes.min().unwrap_or(16).clamp(1, 16) as i64;
        let ex = self.exprs;
        // Those that share code do so whatever their length.
        // A lone program that its axis does not fill has no full tile to write twice for.
        let lone = self.role != Role::Foreach && ex.range(d.extent).hi < d.block;
        let narrow = !lone && !ex.is_int(ex.modulo(d.extent, ex.int(lanes)), 0);
        let flat = |item: &BlockItem| {
            matches!(item, BlockItem::Let(_) | BlockItem::Store(_)) && !self.checks(item)
        };
        if !narrow || block.items.len() > TWICE || !block.items.iter().all(flat) {
            return Ok(None);
        }
        let extent = self.extent(d)?;
        Ok(Some(format!("(xpid + 1) * XBLOCK <= {extent}")))
    }

    pub(crate) fn checks(&self, item: &BlockItem) -> bool {
        matches!(item, BlockItem::Let(v) if matches!(self.block.value(*v).def, Def::Indirect { check: Some(_), .. }))
    }

    /// In how many loops each load occurs.
    fn count_loads(&mut self, items: &[BlockItem]) {
        for item in items {
            match item {
                BlockItem::Loop(w) => self.count_loads(&w.body),
                BlockItem::Let(v) if matches!(self.block.value(*v).def, Def::Load { .. }) => {
                    *self.state.loads_left.entry(*v).or_insert(0) += 1;
                }
                _ => {}
            }
        }
    }

    /// Finds loads of rows ahead of the first reduction, if other rows are loaded after it.
    fn find_first_rows(&mut self) {
        let rows = |item: &BlockItem| match item {
            BlockItem::Let(v) if self.is_row(*v) => Some(*v),
            _ => None,
        };
        let items = &self.block.items;
        let reduces = |i: &BlockItem| matches!(i, BlockItem::Update { .. });
        let Some(at) = items.iter().position(reduces) else {
            return;
        };
        if items[at..].iter().any(|i| rows(i).is_some()) {
            self.facts.first_rows = items[..at].iter().filter_map(rows).collect();
        }
    }

    /// A load that brings each program rows of its own.
    fn is_row(&self, v: ValId) -> bool {
        let (Some(at), Def::Load { offset, .. }) = (self.block.reduced(), &self.block.value(v).def)
        else {
            return false;
        };
        let grid = (self.block.dims.iter())
            .any(|d| d.role == DimRole::Grid && self.exprs.contains_sym(*offset, d.sym));
        grid && self.block.shapes[v.index()] & (1 << at) != 0
    }
}

impl Emitter<'_> {
    /// Writes what `f` writes one level deeper.
    pub(crate) fn indented(&mut self, f: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.writer.indent += 1;
        let result = f(self);
        self.writer.indent -= 1;
        result
    }
}
