//! Bodies over flat memory: every access gets one coordinate, its element offset, and axes that walk memory in one stride
//! become one axis.
//!
//! ```text
//! axes n: 8, c: 32, h: 100                        axes i: 25600
//! load x[n, c, h]  strides 3200, 100, 1     ->    load x[i]
//! store y[n, c, h] strides 3200, 100, 1           store y[i]
//! ```
//!
//! Two axes join if every expression of the group depends on `a` and `b` through `a * extent(b) +
//! b` only. One long axis is cheaper than two: no index arithmetic, no partial vector at the end of
//! each row, and equal kernels for tensors of different ranks. Coordinates end here; later files
//! know offsets only.

use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::{Expr, Exprs, Position, SymMap};
use inrush_loops::{Axis, Body, BufId, Stmt, Tables};
use smallvec::smallvec;

/// Position of the index symbol that stands for the length of a flat kernel. [`Flat::fresh`] counts
/// on from it.
pub(crate) const LENGTH: Position = Position::Fresh(0);

/// A group in flat form: the first `shared` axes of every body are the group's.
pub(crate) struct Flat<'a> {
    pub tables: Tables<'a>,
    /// The group's axes, which lead the axes of every body.
    pub shared: Vec<Axis>,
    /// Every load and store has one coordinate: the offset in elements.
    pub bodies: Vec<Body>,
    /// Number of index symbols made so far.
    next: u32,
}

impl<'a> Flat<'a> {
    /// `axes` must lead the axes of every body.
    pub fn new(tables: Tables<'a>, axes: &[Axis], bodies: &[Body]) -> Result<Flat<'a>> {
        let mut flat = Flat {
            tables,
            shared: axes.to_vec(),
            bodies: Vec::with_capacity(bodies.len()),
            next: 0,
        };
        for body in bodies {
            if body.axes.len() < axes.len()
                || body.axes[..axes.len()] != *axes
                || body.outer < axes.len()
            {
                return Err(Error::internal(
                    "a body does not run over the axes of its group",
                ));
            }
            let mut body = body.clone();
            for stmt in &mut body.stmts {
                if let Stmt::Load { buf, coords, .. } | Stmt::Store { buf, coords, .. } = stmt {
                    *coords = smallvec![offset(tables, *buf, coords)?];
                }
            }
            flat.bodies.push(body);
        }
        Ok(flat)
    }

    pub fn exprs(&self) -> &'a Exprs {
        self.tables.exprs
    }

    /// Returns an axis whose index symbol no body has.
    pub fn fresh(&mut self, extent: Expr) -> Axis {
        self.next += 1;
        Axis {
            sym: self.exprs().sym_at(Position::Fresh(self.next), extent),
            size: extent,
        }
    }

    /// Replaces symbols in all statements of the bodies for which `which` holds.
    pub fn substitute(&mut self, map: &SymMap, which: impl Fn(usize) -> bool) {
        let exprs = self.exprs();
        for (_, body) in self
            .bodies
            .iter_mut()
            .enumerate()
            .filter(|(i, _)| which(*i))
        {
            for stmt in &mut body.stmts {
                for e in stmt.exprs_mut() {
                    *e = exprs.subst(*e, map);
                }
            }
        }
    }

    /// Takes the axes of one point out.
    pub fn drop_unit_axes(&mut self) {
        let exprs = self.exprs();
        let zero = exprs.int(0);
        let mut map = SymMap::default();
        let all = (self.bodies.iter().flat_map(|b| &b.axes)).chain(&self.shared);
        for a in all.filter(|a| exprs.is_int(a.size, 1)) {
            map.insert(a.sym, zero);
        }
        if map.is_empty() {
            return;
        }
        self.substitute(&map, |_| true);
        self.shared.retain(|a| map.get(a.sym).is_none());
        for body in &mut self.bodies {
            reduce_over_points(body, |a| map.get(a.sym).is_some());
            let outer = &body.axes[..body.outer];
            body.outer = outer.iter().filter(|a| map.get(a.sym).is_none()).count();
            body.axes.retain(|a| map.get(a.sym).is_none());
        }
    }

    /// Joins pairs of axes that every access walks in one stride.
    pub fn join_axes(&mut self) {
        // Joining one pair may make another one joinable.
        while let Some((a, b)) = self.shared_pair() {
            let joined = self.join(a, b, |_| true);
            replace(&mut self.shared, a, b, joined);
            for body in &mut self.bodies {
                replace(&mut body.axes, a, b, joined);
                body.outer -= 1;
            }
        }
        let shared = self.shared.len();
        for at in 0..self.bodies.len() {
            while let Some((a, b)) = self.own_pair(at, shared) {
                let joined = self.join(a, b, |i| i == at);
                let body = &mut self.bodies[at];
                let outer = body.axes[..body.outer].contains(&a);
                replace(&mut body.axes, a, b, joined);
                body.outer -= outer as usize;
            }
        }
    }

    /// Finds two axes of the group that every body walks in one stride.
    fn shared_pair(&self) -> Option<(Axis, Axis)> {
        pairs(&self.shared).find(|(a, b)| self.bodies.iter().all(|body| self.joinable(body, a, b)))
    }

    /// Finds two axes of one body that it walks in one stride. Both are parallel, or both are reduced.
    fn own_pair(&self, at: usize, shared: usize) -> Option<(Axis, Axis)> {
        let body = &self.bodies[at];
        let fixed_order = body.stmts.iter().any(|s| match s {
            Stmt::Reduce { op, .. } => op.is_arg(),
            Stmt::Scan { .. } | Stmt::Sort { .. } => true,
            _ => false,
        });
        let reduction = body.reduction_axes();
        pairs(&body.axes[shared..body.outer])
            .chain(pairs(reduction).filter(|(a, b)| {
                // Where order counts, only neighbours keep it; a scan runs along the last axis alone.
                let place = |x: &Axis| reduction.iter().position(|y| y == x);
                !fixed_order || place(a).zip(place(b)).is_some_and(|(p, q)| q == p + 1)
            }))
            .filter(|_| !body.stmts.iter().any(Stmt::is_along_row))
            .find(|(a, b)| self.joinable(body, a, b))
    }

    /// Returns true if all expressions of `body` depend on `a` and `b` through `a * b.size + b` only.
    pub fn joinable(&self, body: &Body, a: &Axis, b: &Axis) -> bool {
        let exprs = self.exprs();
        let mut all = body.stmts.iter().flat_map(|s| s.exprs());
        all.all(|e| match exprs.coefficients(*e, &[a.sym, b.sym]) {
            // Equal expressions have equal ids. Both coefficients are zero where an expression
            // depends on neither axis.
            Some(c) => c[0] == exprs.mul(c[1], b.size),
            None => false,
        })
    }

    /// Replaces two axes by one over the product of their extents, in all statements of the bodies for which `which` holds.
    pub fn join(&mut self, a: Axis, b: Axis, which: impl Fn(usize) -> bool) -> Axis {
        let exprs = self.exprs();
        let joined = self.fresh(exprs.mul(a.size, b.size));
        // `a * b.size + b` becomes the joined index: with `a` at zero, what is left is `b`.
        let map = SymMap::from_iter([(a.sym, exprs.int(0)), (b.sym, exprs.sym_expr(joined.sym))]);
        self.substitute(&map, which);
        joined
    }
}

/// `joined` takes the place of `a`; `b` goes.
fn replace(axes: &mut Vec<Axis>, a: Axis, b: Axis, joined: Axis) {
    for x in axes.iter_mut().filter(|x| **x == a) {
        *x = joined;
    }
    axes.retain(|x| *x != b);
}

/// Iterates over ordered pairs of different axes.
fn pairs(axes: &[Axis]) -> impl Iterator<Item = (Axis, Axis)> {
    axes.iter()
        .flat_map(move |a| axes.iter().map(move |b| (*a, *b)))
        .filter(|(a, b)| a != b)
}

/// Element offset of an access.
fn offset(tables: Tables, buf: BufId, coords: &[Expr]) -> Result<Expr> {
    let exprs = tables.exprs;
    let buffer = &tables.buffers[buf.index()];
    if coords.len() != buffer.sizes.len() {
        return Err(Error::internal(format!(
            "an access of `{}` has {} coordinates for {} dimensions",
            buffer.name,
            coords.len(),
            buffer.sizes.len()
        )));
    }
    let row_major;
    let (base, strides) = match &buffer.layout {
        Some(l) => (l.offset, &l.strides),
        None => {
            row_major = exprs.contiguous_strides(&buffer.sizes);
            (exprs.int(0), &row_major)
        }
    };
    Ok(exprs.add(base, exprs.dot(strides, coords)))
}

/// Replaces reductions, scans and sorts over one point by their operand, or by position 0 where they seek a position. A scan runs along
/// the last reduction axis only.
fn reduce_over_points(body: &mut Body, unit: impl Fn(&Axis) -> bool) {
    let axes = body.reduction_axes();
    let last = axes.last().is_some_and(&unit);
    let all = last && axes.iter().all(&unit);
    for stmt in &mut body.stmts {
        *stmt = match stmt {
            Stmt::Scan { op, dtype, .. } if last && op.is_arg() => position(*dtype),
            Stmt::Reduce { op, dtype, .. } if all && op.is_arg() => position(*dtype),
            Stmt::Scan { value, dtype, .. } | Stmt::Sort { value, dtype } if last => Stmt::Cast {
                arg: *value,
                to: *dtype,
            },
            Stmt::Reduce { value, dtype, .. } if all => Stmt::Cast {
                arg: *value,
                to: *dtype,
            },
            _ => continue,
        };
    }
}

/// Makes the position of an extreme among one point.
fn position(dtype: DType) -> Stmt {
    let value = Scalar::Int(0).convert(dtype);
    Stmt::Const { value, dtype }
}
