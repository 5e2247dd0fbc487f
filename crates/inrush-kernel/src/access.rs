//! How an access moves from lane to lane.
//!
//! ```text
//! over i:    a[4*j]      uniform        a[i + 4*j]  contiguous
//!            a[2*i]      strided by 2   a[i // 2]   gather, as it is not linear in i
//!            a[s0*i]     strided by s0  a[j0 + i]   gather, if the index j0 differs between lanes
//! ```

use inrush_expr::{Expr, Exprs, Sym};

/// How an offset moves with a lane index.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Access {
    /// The same element for all lanes.
    Uniform,
    /// Consecutive elements.
    Contiguous,
    /// A constant distance.
    Strided(Expr),
    /// Anywhere.
    Gather,
}

/// Classifies `offset` for lanes over `lane`; `varies` tells of other symbols whether they differ between lanes.
pub fn access(exprs: &Exprs, offset: Expr, lane: Sym, varies: impl Fn(Sym) -> bool) -> Access {
    let (mut gathers, mut moves) = (false, false);
    exprs.each_sym(offset, |s| {
        gathers |= varies(s);
        moves |= s == lane;
    });
    if gathers {
        return Access::Gather;
    }
    if !moves {
        return Access::Uniform;
    }
    match exprs.coefficient(offset, lane) {
        Some(c) if exprs.is_int(c, 1) => Access::Contiguous,
        Some(c) => Access::Strided(c),
        None => Access::Gather,
    }
}
