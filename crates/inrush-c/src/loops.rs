//! Loops: serial ones, and vector loops as a main loop of full vectors and a remainder.
//!
//! ```text
//! for i in 0..n, 16 lanes, unroll 2         i64 i = 0;
//!   body                                    for (; i + 32 <= n; i += 32)    two full vectors a turn
//!                                             body at i, body at i + 16
//!                                           for (; i < n; i += 16)          up to two vectors, the last one partial
//!                                             body for c = min(n - i, 16) lanes
//! ```

use crate::helpers::Name;
use crate::kernel::Emitter;
use crate::text::{paren, parens};
use crate::unroll_jam::{FEW_TURNS, unroll_count};
use inrush_base::tally::{Way, reached};
use inrush_base::{Result, digits};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_kernel::{AccId, Access, Item, Kernel, Loop, Range, Role, ValId};
use rustc_hash::FxHashMap;

/// How a vector loop is split into unrolled full vectors and a remainder.
#[derive(Copy, Clone, Debug)]
pub(crate) struct VectorSplit {
    /// Vectors that a turn of the main loop handles; at least 1.
    pub unroll: u32,
    /// True if there is a main loop of `unroll` full vectors a turn.
    pub main: bool,
    /// The points after the last whole turn of the main loop.
    pub rest: Rest,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// The extent is a multiple of what the main loop takes.
    None,
    /// At most one partial vector; its number of lanes if known.
    Part(Option<i64>),
    /// Up to `unroll` vectors, the last one partial.
    Loop,
}

/// The open lanes loop.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    /// The index of the loop, whose value in lane `k` is that in lane 0 plus `k`.
    pub sym: Sym,
    /// Lanes of a vector.
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

/// State of the loops that are open. Each field says who sets and who resets it.
pub(crate) struct LoopState {
    /// The open vector loop, within its body.
    pub lane: Option<Lane>,
    /// True for loads whose last use among several passes is the open vector loop: it prefetches the next unit's.
    pub last_use: Vec<bool>,
    /// Accumulators for which the open unrolled loop keeps independent partial sums, which are added after it.
    pub partial_sums: Vec<AccId>,
    /// The jammed loop around the next vector loop, and its jam factor, within [`Emitter::jammed_rows`].
    pub jam: Option<(Sym, u32)>,
    /// The loop over the taps of a column and the loop over rows, within [`Emitter::jammed_rows`].
    pub tap_column: Option<(Sym, Sym)>,
    /// Per load in the tap loop: a pointer to the first tap, and the strides of a tap and of a row.
    pub columns: FxHashMap<ValId, (Name, i64, i64)>,
    /// Loads that the open tile has transposed: the array and the start of the tile.
    pub tiles: FxHashMap<ValId, (String, String)>,
    /// Index of the innermost serial loop.
    pub tile_index: Name,
    /// Memo of the last query: offset, vector axis, kind of access.
    pub access_memo: Option<(Expr, Sym, Access)>,
    /// Nesting depth of the arms of [`crate::branches`] that are being written.
    pub open_branches: u32,
}

impl LoopState {
    pub(crate) fn new(kernel: &Kernel) -> LoopState {
        LoopState {
            lane: None,
            last_use: vec![false; kernel.values.len()],
            partial_sums: Vec::new(),
            jam: None,
            tap_column: None,
            columns: FxHashMap::default(),
            tiles: FxHashMap::default(),
            tile_index: "".into(),
            access_memo: None,
            open_branches: 0,
        }
    }
}

/// Splits a vector loop, by what is known of its extent.
pub(crate) fn split_vector(exprs: &Exprs, l: &Loop) -> VectorSplit {
    let Role::Vector { width, unroll } = l.role else {
        return VectorSplit {
            unroll: 1,
            main: true,
            rest: Rest::None,
        };
    };
    let w = width as i64;
    let step = w * unroll as i64;
    let known = match l.range {
        Range::Full(e) => exprs.as_int(e),
        _ => None,
    };
    match known {
        // Less than a vector: one partial vector, without a loop.
        Some(n) if n < w => VectorSplit {
            unroll: 1,
            main: false,
            rest: if n > 0 {
                Rest::Part(Some(n))
            } else {
                Rest::None
            },
        },
        Some(n) => {
            let full = n / w;
            let mut u = (unroll as i64).min(full);
            if n % w == 0 {
                // The greatest factor that leaves no vector over.
                while full % u != 0 {
                    u -= 1;
                }
                return VectorSplit {
                    unroll: u as u32,
                    main: true,
                    rest: Rest::None,
                };
            }
            VectorSplit {
                unroll: u as u32,
                main: true,
                rest: if u > 1 && full % u != 0 {
                    Rest::Loop
                } else {
                    Rest::Part(Some(n % w))
                },
            }
        }
        None => {
            // Blocks are multiples of the step: only the end of the axis may be partial.
            let exact = match l.range {
                Range::Full(e) | Range::Block { extent: e, .. } => {
                    let rest = exprs.modulo(e, exprs.int(step));
                    exprs.is_int(rest, 0)
                }
                _ => false,
            };
            if exact {
                return VectorSplit {
                    unroll,
                    main: true,
                    rest: Rest::None,
                };
            }
            VectorSplit {
                unroll,
                main: true,
                rest: if unroll > 1 {
                    Rest::Loop
                } else {
                    Rest::Part(None)
                },
            }
        }
    }
}

/// C texts of the first index of a loop, and of the one after its last.
type Bounds = (String, String);

impl Emitter<'_> {
    /// Returns a new name for an index.
    pub(crate) fn loop_name(&mut self) -> Name {
        let name = match self.loops {
            // `i8` and its like are types.
            n @ (8 | 16 | 32 | 64) => format!("i{n}x").into(),
            n => self.helpers.variable('i', n, None),
        };
        self.loops += 1;
        name
    }

    /// Writes a loop, in the form that its role and its surroundings ask for.
    pub(crate) fn loop_item(&mut self, l: &Loop) -> Result<()> {
        let name = self.loop_name();
        if self.state.lane.is_none()
            && let Some(strips) = self.as_column_reduction(l, &name)
        {
            return self.column_reduction(&strips);
        }
        if let Some(rows) = self.jam_rows(l) {
            return self.jammed_rows(l, rows, &name);
        }
        if let Some(store) = self.interleaved(l) {
            return self.interleave(l, &name, store);
        }
        let bounds = self.bounds(l, &name)?;
        match l.role {
            Role::Serial => self.serial_loop(l, &name, &bounds),
            Role::Vector { width, .. } => self.vector_loop(l, &name, width, &bounds),
        }
    }

    /// Returns the bounds of a loop. Opens a block for those that need declarations.
    fn bounds(&mut self, l: &Loop, name: &Name) -> Result<Bounds> {
        Ok(match l.range {
            Range::Full(e) => ("0".to_string(), parens(self.expr(e, false)?)),
            Range::Block { .. } => ("lo".into(), "hi".into()),
            Range::Tile {
                start,
                step,
                extent,
            } => {
                let (start, extent) = (self.expr(start, false)?, self.expr(extent, false)?);
                let (lo, hi) = (format!("{name}l"), format!("{name}h"));
                self.open("");
                self.line(format_args!(
                    "const i64 {lo} = {start}, {hi} = {lo} + {step} < {0} ? {lo} + {step} : {0};",
                    paren(&extent)
                ));
                self.names.insert(l.sym, (lo.as_str().into(), false));
                self.transpose(l, &lo, &hi, step)?;
                (lo, hi)
            }
            Range::Rows => ("m0".into(), "m1".into()),
            Range::Columns if self.pieces().is_some() => self.transposed_columns(name)?,
            Range::Columns => ("n0".into(), "n1".into()),
            Range::Pieces(length) => {
                let length = parens(self.expr(length, false)?);
                (
                    format!("m0 / {length}"),
                    format!("(m1 + {length} - 1) / {length}"),
                )
            }
            Range::Piece(_) => ("p0".into(), "p1".into()),
        })
    }

    /// Writes a loop that runs point by point.
    fn serial_loop(&mut self, l: &Loop, name: &Name, (lo, hi): &Bounds) -> Result<()> {
        self.names.insert(l.sym, (name.clone(), false));
        self.unroll_pragma(l)?;
        let partial_sums = !self.state.partial_sums.is_empty();
        self.open([
            "for (i64 ",
            name,
            " = ",
            lo,
            "; ",
            name,
            " < ",
            hi,
            "; ",
            name,
            "++)",
        ]);
        // Transposed tiles are indexed by the innermost serial loop, which is the loop over the
        // tile.
        self.state.tile_index = name.clone();
        let panels = matches!(l.range, Range::Pieces(_));
        if panels {
            self.open_panels(name)?;
        }
        // Jammed rows skip the loop over taps that ends the body, where it adds nothing.
        let (first, then) = l.body.split_at(self.guarded(&l.body));
        self.items(first)?;
        self.guard(then, first)?;
        self.items(then)?;
        if !partial_sums {
            self.fold(&l.body);
        }
        self.close();
        // The partial sums of one run of this loop are one term of the cascade.
        if partial_sums {
            self.add_partial_sums();
            self.fold(&l.body);
        }
        if panels {
            self.close();
        }
        let transposed = match l.range {
            Range::Tile { .. } => true,
            Range::Columns => self.pieces().is_some(),
            _ => false,
        };
        if transposed {
            self.state.tiles.clear();
            self.close();
        }
        Ok(())
    }

    /// Has the C compiler write out a loop over a window of a few points: it costs more than its body.
    fn unroll_pragma(&mut self, l: &Loop) -> Result<()> {
        let lane = self.state.lane.as_ref().map(|lane| lane.sym);
        let turns = lane.and_then(|lane| unroll_count(self.exprs, self.kernel, l, lane));
        let Some(n) = turns else {
            return Ok(());
        };
        self.start_column(l)?;
        if n >= FEW_TURNS {
            self.start_partial_sums(l);
        }
        // Rows share what they read for the taps of the innermost loop. Loops around it, written out, save a jump in many
        // operations and cost the C compiler most of the time that it needs for the kernel.
        let rows = self.state.lane.as_ref().is_some_and(|l| l.rows.is_some());
        if !rows || !l.body.iter().any(|i| matches!(i, Item::Loop(_))) {
            self.line(format_args!("#pragma GCC unroll {n}"));
        }
        Ok(())
    }

    /// Writes a vector loop as a main loop and a remainder.
    fn vector_loop(&mut self, l: &Loop, name: &Name, w: u32, (lo, hi): &Bounds) -> Result<()> {
        let cut = split_vector(self.exprs, l);
        if cut.main && cut.unroll > 1 {
            reached(Way::Copies);
        }
        if cut.rest != Rest::None {
            reached(Way::PartialVector);
        }
        self.open("");
        self.line(["i64 ", name, " = ", lo, ";"]);
        if cut.main {
            let step = digits(w * cut.unroll);
            if cut.rest == Rest::None {
                self.open(["for (; ", name, " < ", hi, "; ", name, " += ", &step, ")"]);
            } else {
                self.open([
                    "for (; ", name, " + ", &step, " <= ", hi, "; ", name, " += ", &step, ")",
                ]);
            }
            self.lanes_body(l, name, w, None, cut.unroll)?;
            self.fold(&l.body);
            self.close();
        }
        match cut.rest {
            Rest::None => {}
            Rest::Part(Some(n)) => {
                self.open("");
                self.lanes_body(l, name, w, Some(n.to_string()), 1)?;
                self.close();
            }
            Rest::Part(None) => {
                self.open(format_args!("if ({name} < {hi})"));
                self.line(format_args!("const i64 c = {hi} - {name};"));
                self.lanes_body(l, name, w, Some("c".into()), 1)?;
                self.close();
            }
            Rest::Loop => {
                self.open(format_args!("for (; {name} < {hi}; {name} += {w})"));
                self.line(format_args!(
                    "const i64 c = {hi} - {name} < {w} ? {hi} - {name} : {w};"
                ));
                self.lanes_body(l, name, w, Some("c".into()), 1)?;
                self.close();
            }
        }
        // Without a main loop the remainder is the only turn, and counts as one.
        if !cut.main {
            self.fold(&l.body);
        }
        self.close();
        Ok(())
    }

    /// Declares the index of each copy, `step` apart.
    pub(crate) fn name_copies(&mut self, name: &Name, copies: u32, step: u32) {
        for copy in 0..copies {
            let (copy, ahead) = (digits(copy), digits(copy * step));
            self.line([
                "const i64 ",
                name,
                "_",
                &copy,
                " = ",
                name,
                " + ",
                &ahead,
                ";",
            ]);
        }
    }

    /// Writes the body of a vector loop for `copies` vectors at once, of which `count` lanes are live.
    fn lanes_body(
        &mut self,
        l: &Loop,
        name: &Name,
        width: u32,
        count: Option<String>,
        copies: u32,
    ) -> Result<()> {
        self.names.insert(l.sym, (name.clone(), false));
        if copies > 1 {
            self.name_copies(name, copies, width);
        }
        for (again, last) in self
            .state
            .last_use
            .iter_mut()
            .zip(&self.facts.last_of_several)
        {
            *again = last.is_some_and(|x| std::ptr::eq(x, l));
        }
        // Copies are the jammed rows, of which each has one vector.
        let rows = self.state.jam;
        self.state.lane = Some(Lane {
            sym: l.sym,
            width,
            count,
            copies: rows.map_or(copies, |r| r.1),
            rows: rows.map(|r| r.0),
            copy: 0,
        });
        let done = self.items(&l.body);
        self.state.lane = None;
        done
    }
}
