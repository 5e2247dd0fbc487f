//! Symbolic integers: tensor sizes, strides, loop indices.
//!
//! An [`Expr`] is a handle into an [`Exprs`] arena. Every expression is interned and canonical, so
//! equal handles mean equal expressions and most equalities are decided by comparing two numbers.
//! Division and modulo are floor division and its remainder, as in Python. Arithmetic that would
//! overflow `i64` poisons nothing: constructors saturate to an opaque product that only fails when
//! it is evaluated.
//!
//! Canonical form is reached by construction. Each constructor takes canonical operands, applies
//! the rules of [`Rule`], and interns what is left:
//!
//! ```text
//! sum.rs      polynomials: expanded, sorted, merged           2*(s0 + 1) - s0   ->  s0 + 2
//! divide.rs   quotients and remainders, by ranges             (64*i0 + i1) // 64 ->  i0
//! extreme.rs  minima and maxima, flat and without dominated   max(s0, 1)         ->  s0
//! range.rs    constant bounds of each expression, kept in the arena
//! prove.rs    inequalities beyond constant bounds
//! subst.rs    substitution and affine decomposition
//! ```
//!
//! Rules may assume the bounds of symbols, so an expression is valid only under the bounds that its
//! symbols had when it was made.
//!
//! Does not know: loops.

#![forbid(unsafe_code)]

mod decl;
mod divide;
mod eval;
mod extreme;
mod fork;
mod order;
mod places;
mod position;
mod prove;
mod range;
mod rules;
mod subst;
mod sum;
mod text;

use inrush_base::{Lookup, Vacant, id_type};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::RefCell;

pub(crate) use eval::floor_div;
pub use fork::Import;
pub use position::Position;
pub use range::Range;
pub use rules::Rule;
pub use subst::{Coefficients, SymMap};

id_type!(
    /// An interned expression.
    Expr,
    "e"
);
id_type!(
    /// A symbol: an input size, a value read from data, or a loop index.
    Sym,
    "sym"
);

/// The shape of an expression. Sums hold no sums and at most one constant; products hold no constants and no sums.
#[derive(PartialEq, Eq, Hash, Debug)]
pub enum Node {
    Const(i64),
    Sym(Sym),
    /// `base + sum(coefficient * term)`, terms in canonical order, coefficients non-zero. Never a bare constant or term.
    Sum {
        base: i64,
        terms: SmallVec<[(i64, Expr); 4]>,
    },
    /// Product of two or more factors in canonical order, repeated for powers.
    Product(SmallVec<[Expr; 2]>),
    FloorDiv(Expr, Expr),
    Mod(Expr, Expr),
    Min(Expr, Expr),
    Max(Expr, Expr),
}

impl Clone for Node {
    fn clone(&self) -> Node {
        match self {
            Node::Const(v) => Node::Const(*v),
            Node::Sym(s) => Node::Sym(*s),
            // Copies bytes; the derived implementation clones element by element.
            Node::Sum { base, terms } => Node::Sum {
                base: *base,
                terms: SmallVec::from_slice(terms),
            },
            Node::Product(f) => Node::Product(SmallVec::from_slice(f)),
            Node::FloorDiv(a, b) => Node::FloorDiv(*a, *b),
            Node::Mod(a, b) => Node::Mod(*a, *b),
            Node::Min(a, b) => Node::Min(*a, *b),
            Node::Max(a, b) => Node::Max(*a, *b),
        }
    }
}

/// The kind of a symbol.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SymKind {
    /// A size of an input tensor or an integer input.
    Size,
    /// An integer read from data at run time.
    Unbacked,
    /// A loop index running over `0..extent`: one symbol for each pair of position and extent.
    Index { position: Position, extent: Expr },
}

/// A symbol's name, kind and constant bounds (both inclusive; `i64::MAX` when there is no upper bound).
#[derive(Clone, Debug)]
pub struct SymInfo {
    pub name: String,
    pub kind: SymKind,
    pub lower: i64,
    pub upper: i64,
    /// A typical value, for cost estimates only; never for correctness.
    pub hint: Option<i64>,
}

/// Constructors whose results are memoized.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
enum Op {
    Add,
    Mul,
    FloorDiv,
    Mod,
    Min,
    Max,
}

#[derive(Default)]
struct Inner {
    /// The arena. Operands come before the expressions that use them.
    nodes: Vec<Node>,
    /// Per expression: constant bounds.
    ranges: Vec<Range>,
    /// Per expression: a Bloom filter of its symbols, one bit per symbol number modulo 64. A clear
    /// bit proves that the symbol does not occur.
    masks: Vec<u64>,
    /// Positions in `nodes`.
    lookup: Lookup,
    /// All symbols, in order of declaration.
    syms: Vec<SymInfo>,
    /// Per symbol: its expression, made on first use.
    sym_exprs: Vec<Option<Expr>>,
    /// A direct-mapped cache of constants: an integer is at its [`place`] until another one evicts
    /// it. Allocated on first use.
    ints: Vec<(i64, Option<Expr>)>,
    /// Size and unbacked symbols; two loop indices may bear one name.
    by_name: FxHashMap<String, Sym>,
    /// Index symbols of axes by extent, then number. Numbers from [`NEAR`] on and all other
    /// positions are in `far`.
    near: Vec<SmallVec<[Option<Sym>; 4]>>,
    far: FxHashMap<(Position, Expr), Sym>,
    /// Results of constructors by operands. Cleared when the bounds of a symbol change.
    memo: FxHashMap<(Op, Expr, Expr), Expr>,
    /// A direct-mapped cache of weighted sums, by [`subst::Dot::place`]. Allocated on first use.
    dots: Vec<Option<subst::Dot>>,
    /// Number of saturated values so far, which keeps them distinct.
    saturated: i64,
    /// Numbers of expressions and symbols that a fork shares with the arena it was cloned from.
    common: (usize, usize),
}

/// Axes whose number is below this are found by table lookup, other index symbols by hashing.
const NEAR: u32 = 16;

/// Base-2 logarithm of the slots of [`Inner::ints`].
const PLACES: u32 = 9;

/// Returns the cache slot of an integer. Fibonacci hashing spreads multiples of powers of two,
/// which sizes and offsets are.
fn place(v: i64) -> usize {
    ((v as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - PLACES)) as usize
}

impl Inner {
    /// Returns the expression of a node, or the vacant slot for it.
    fn find(&self, node: &Node) -> Result<Expr, Vacant> {
        let at = self.lookup.find(node, |k| self.nodes[k] == *node)?;
        Ok(Expr::from_index(at))
    }

    /// Returns the symbol of an index that was made before.
    fn known_index(&self, position: Position, extent: Expr) -> Option<Sym> {
        match position {
            Position::Axis(number) if number < NEAR => {
                let list = self.near.get(extent.index())?;
                list.get(number as usize).copied().flatten()
            }
            _ => self.far.get(&(position, extent)).copied(),
        }
    }
}

/// Returns the bit of a symbol in a mask.
pub(crate) fn sym_bit(s: Sym) -> u64 {
    1 << (s.index() % 64)
}

/// The arena of expressions and symbols. Methods take `&self`; the arena grows inside.
#[derive(Default)]
pub struct Exprs {
    inner: RefCell<Inner>,
}

impl Exprs {
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a clone of the node of a handle (nodes are small).
    pub fn node(&self, e: Expr) -> Node {
        self.inner.borrow().nodes[e.index()].clone()
    }

    #[inline]
    pub(crate) fn with_node<T>(&self, e: Expr, f: impl FnOnce(&Node) -> T) -> T {
        f(&self.inner.borrow().nodes[e.index()])
    }

    /// Interns a node that is already canonical.
    fn intern(&self, node: Node) -> Expr {
        let place = match self.inner.borrow().find(&node) {
            Ok(e) => return e,
            Err(place) => place,
        };
        // Ranges of operands are known: that of the new node takes one pass over them.
        let range = self.range_of_node(&node);
        let mut inner = self.inner.borrow_mut();
        let e = Expr::from_index(inner.nodes.len());
        let mask = {
            let of = |e: &Expr| inner.masks[e.index()];
            match &node {
                Node::Const(_) => 0,
                Node::Sym(s) => sym_bit(*s),
                Node::Sum { terms, .. } => terms.iter().fold(0, |m, (_, t)| m | of(t)),
                Node::Product(f) => f.iter().fold(0, |m, t| m | of(t)),
                Node::FloorDiv(a, b) | Node::Mod(a, b) | Node::Min(a, b) | Node::Max(a, b) => {
                    of(a) | of(b)
                }
            }
        };
        inner.masks.push(mask);
        inner.nodes.push(node);
        inner.ranges.push(range);
        inner.lookup.insert(place, e.index());
        e
    }

    /// Returns the memoized result of `make` for these operands.
    fn remembered(&self, op: Op, a: Expr, b: Expr, make: impl FnOnce() -> Expr) -> Expr {
        if let Some(&e) = self.inner.borrow().memo.get(&(op, a, b)) {
            return e;
        }
        let e = make();
        self.inner.borrow_mut().memo.insert((op, a, b), e);
        e
    }

    /// Returns a constant.
    #[inline]
    pub fn int(&self, v: i64) -> Expr {
        if let Some(&(known, Some(e))) = self.inner.borrow().ints.get(place(v))
            && known == v
        {
            return e;
        }
        self.new_int(v)
    }

    /// Interns a constant and puts it into the cache, in the place of another one.
    fn new_int(&self, v: i64) -> Expr {
        let e = self.intern(Node::Const(v));
        let ints = &mut self.inner.borrow_mut().ints;
        ints.resize(1 << PLACES, (0, None));
        ints[place(v)] = (v, Some(e));
        e
    }

    /// Returns a symbol as an expression.
    #[inline]
    pub fn sym_expr(&self, s: Sym) -> Expr {
        if let Some(Some(e)) = self.inner.borrow().sym_exprs.get(s.index()) {
            return *e;
        }
        let e = self.intern(Node::Sym(s));
        let mut inner = self.inner.borrow_mut();
        let count = inner.syms.len().max(s.index() + 1);
        inner.sym_exprs.resize(count, None);
        inner.sym_exprs[s.index()] = Some(e);
        e
    }

    /// Returns the bits of the symbols in `e`, see [`sym_bit`].
    #[inline]
    pub(crate) fn mask(&self, e: Expr) -> u64 {
        self.inner.borrow().masks[e.index()]
    }

    /// Returns the kind of a symbol.
    pub fn sym_kind(&self, s: Sym) -> SymKind {
        self.inner.borrow().syms[s.index()].kind
    }

    /// Returns the constant value, if it is one.
    #[inline]
    pub fn as_int(&self, e: Expr) -> Option<i64> {
        self.with_node(e, |n| match n {
            Node::Const(v) => Some(*v),
            _ => None,
        })
    }

    #[inline]
    pub fn is_int(&self, e: Expr, v: i64) -> bool {
        self.as_int(e) == Some(v)
    }

    /// Returns the symbol, if the expression is nothing else.
    #[inline]
    pub fn as_sym(&self, e: Expr) -> Option<Sym> {
        self.with_node(e, |n| match n {
            Node::Sym(s) => Some(*s),
            _ => None,
        })
    }

    /// Declares a size symbol with inclusive bounds. A name declared before keeps its symbol; its bounds become the new ones,
    /// also in the ranges of expressions that exist (which stay as they were simplified: bounds may tighten, not widen).
    pub fn size_sym(&self, name: &str, lower: i64, upper: i64) -> Sym {
        self.declare(name, SymKind::Size, lower, upper)
    }

    /// Declares an integer that is read from data at run time.
    pub fn unbacked_sym(&self, name: &str, lower: i64, upper: i64) -> Sym {
        self.declare(name, SymKind::Unbacked, lower, upper)
    }

    /// Turns integers that are read from data into sizes of the same bounds, for programs that go on once such an integer is known.
    /// Returns the symbols that changed.
    pub fn unbacked_as_sizes(&self) -> Vec<Sym> {
        let unbacked = |s: &Sym| self.sym_kind(*s) == SymKind::Unbacked;
        let found: Vec<Sym> = self.symbols().into_iter().filter(unbacked).collect();
        for s in &found {
            let info = self.sym_info(*s);
            self.size_sym(&info.name, info.lower, info.upper);
        }
        found
    }

    /// Declares a symbol, or gives a known one new kind and bounds.
    fn declare(&self, name: &str, kind: SymKind, lower: i64, upper: i64) -> Sym {
        let mut inner = self.inner.borrow_mut();
        if let Some(&s) = inner.by_name.get(name) {
            let info = &mut inner.syms[s.index()];
            let changed = (info.lower, info.upper) != (lower, upper);
            (info.kind, info.lower, info.upper) = (kind, lower, upper);
            if changed {
                inner.memo.clear();
                drop(inner);
                self.refresh_ranges();
            }
            return s;
        }
        let s = Sym::from_index(inner.syms.len());
        inner.syms.push(SymInfo {
            name: name.into(),
            kind,
            lower,
            upper,
            hint: None,
        });
        inner.by_name.insert(name.into(), s);
        s
    }

    /// Returns the loop index of axis `number` with the given extent: [`Exprs::sym_at`] of
    /// [`Position::Axis`].
    #[inline]
    pub fn index_sym(&self, number: u32, extent: Expr) -> Sym {
        self.sym_at(Position::Axis(number), extent)
    }

    /// Returns the loop index of this position with the given extent: one symbol for each pair,
    /// named by position and told apart by extent. Its range is `0..extent`.
    pub fn sym_at(&self, position: Position, extent: Expr) -> Sym {
        if let Some(s) = self.inner.borrow().known_index(position, extent) {
            return s;
        }
        let upper = range::index_upper(self.range(extent));
        let mut inner = self.inner.borrow_mut();
        let s = Sym::from_index(inner.syms.len());
        inner.syms.push(SymInfo {
            name: position.to_string(),
            kind: SymKind::Index { position, extent },
            lower: 0,
            upper,
            hint: None,
        });
        match position {
            Position::Axis(number) if number < NEAR => {
                let (p, e) = (number as usize, extent.index());
                let count = inner.near.len().max(e + 1);
                inner.near.resize_with(count, SmallVec::new);
                let list = &mut inner.near[e];
                list.resize(list.len().max(p + 1), None);
                list[p] = Some(s);
            }
            _ => _ = inner.far.insert((position, extent), s),
        }
        s
    }

    /// Returns [`Exprs::index_sym`] as an expression.
    #[inline]
    pub fn index(&self, number: u32, extent: Expr) -> Expr {
        self.sym_expr(self.index_sym(number, extent))
    }

    /// Returns position and extent of a loop index; `None` for other symbols.
    pub fn index_of(&self, s: Sym) -> Option<(Position, Expr)> {
        match self.sym_kind(s) {
            SymKind::Index { position, extent } => Some((position, extent)),
            SymKind::Size | SymKind::Unbacked => None,
        }
    }

    pub fn sym_info(&self, s: Sym) -> SymInfo {
        self.inner.borrow().syms[s.index()].clone()
    }

    pub fn sym_by_name(&self, name: &str) -> Option<Sym> {
        self.inner.borrow().by_name.get(name).copied()
    }

    /// Sets the typical value of a symbol, for cost estimates.
    pub fn set_hint(&self, s: Sym, hint: i64) {
        self.inner.borrow_mut().syms[s.index()].hint = Some(hint);
    }

    /// Returns the size and unbacked symbols in order of declaration (loop indices left out).
    pub fn symbols(&self) -> Vec<Sym> {
        let inner = self.inner.borrow();
        (0..inner.syms.len())
            .map(Sym::from_index)
            .filter(|s| !matches!(inner.syms[s.index()].kind, SymKind::Index { .. }))
            .collect()
    }

    #[inline]
    pub fn is_index(&self, s: Sym) -> bool {
        matches!(
            self.inner.borrow().syms[s.index()].kind,
            SymKind::Index { .. }
        )
    }

    // Shorthands over many operands.

    pub fn sum(&self, items: impl IntoIterator<Item = Expr>) -> Expr {
        items.into_iter().fold(self.int(0), |a, b| self.add(a, b))
    }

    pub fn product(&self, items: impl IntoIterator<Item = Expr>) -> Expr {
        items.into_iter().fold(self.int(1), |a, b| self.mul(a, b))
    }

    /// Returns row-major strides of `sizes`; a zero size counts as one, as in ATen.
    pub fn contiguous_strides(&self, sizes: &[Expr]) -> Vec<Expr> {
        let mut strides = vec![self.int(1); sizes.len()];
        for d in (0..sizes.len().saturating_sub(1)).rev() {
            let step = match self.as_int(sizes[d + 1]) {
                Some(size) => self.int(size.max(1)),
                None => self.max(sizes[d + 1], self.int(1)),
            };
            strides[d] = self.mul(strides[d + 1], step);
        }
        strides
    }
}

impl Clone for Exprs {
    fn clone(&self) -> Self {
        let i = self.inner.borrow();
        Exprs {
            inner: RefCell::new(Inner {
                nodes: i.nodes.clone(),
                ranges: i.ranges.clone(),
                masks: i.masks.clone(),
                lookup: i.lookup.clone(),
                syms: i.syms.clone(),
                sym_exprs: i.sym_exprs.clone(),
                ints: i.ints.clone(),
                by_name: i.by_name.clone(),
                near: i.near.clone(),
                far: i.far.clone(),
                memo: i.memo.clone(),
                dots: Vec::new(),
                saturated: i.saturated,
                common: i.common,
            }),
        }
    }
}

impl std::fmt::Debug for Exprs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Exprs({} nodes)", self.inner.borrow().nodes.len())
    }
}
