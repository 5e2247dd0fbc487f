//! The tile of sums that an epilogue gets: read along its columns, or transposed first if the result is contiguous along rows.
//!
//! ```text
//! lanes along n     acc[(m - m0)*ld + (n - n0)]      contiguous in the tile, read as it is
//! lanes along m     x[(n - lo)*128 + (row - p0)]     panels of 128 rows, 16 columns at a time,
//!                                                    transposed into arrays on the stack
//! ```
//!
//! Rows come in pieces where consecutive rows of the product are one run of memory of the result,
//! as the pixels of an image are in a convolution that stores NCHW.

use crate::kernel::Emitter;
use crate::text::parens;
use crate::types;
use inrush_base::{Error, Result};
use inrush_kernel::{Def, Kind, Pieces, ValId};

/// Columns transposed at a time: few enough that their lines of the result stay in the caches.
const COLUMNS: i64 = 16;
/// Rows transposed at a time: runs of several cache lines.
const ROWS: i64 = 128;

impl Emitter<'_> {
    /// How rows come in pieces, in an epilogue whose lanes go over them.
    pub(crate) fn pieces(&self) -> Option<Pieces> {
        match self.kernel.kind {
            Kind::Epilogue { pieces, .. } => pieces,
            Kind::Grid(_) => None,
        }
    }

    /// Opens the loop over panels of the tile's rows, `p0..p1`, that are in this piece.
    pub(crate) fn open_panels(&mut self, piece: &str) -> Result<()> {
        let Some(p) = self.pieces() else {
            return Err(Error::internal("pieces of rows outside of an epilogue"));
        };
        let length = parens(self.expr(p.length, false)?);
        self.line(format_args!(
            "const i64 first = m0 > {piece} * {length} ? m0 - {piece} * {length} : 0, \
             last = m1 < ({piece} + 1) * {length} ? m1 - {piece} * {length} : {length};"
        ));
        self.open(format_args!(
            "for (i64 p0 = first; p0 < last; p0 += {ROWS})"
        ));
        self.line(format_args!(
            "const i64 p1 = p0 + {ROWS} < last ? p0 + {ROWS} : last;"
        ));
        // The tile's row that the panel begins with.
        self.line(format_args!(
            "const i64 row = {piece} * {length} + p0 - m0;"
        ));
        Ok(())
    }

    /// Opens the loop over a few columns of the panel at a time, whose sums it transposes; gives their bounds.
    pub(crate) fn transposed_columns(&mut self, name: &str) -> Result<(String, String)> {
        let (lo, hi) = (format!("{name}l"), format!("{name}h"));
        self.open(format_args!(
            "for (i64 {lo} = n0; {lo} < n1; {lo} += {COLUMNS})"
        ));
        self.line(format_args!(
            "const i64 {hi} = {lo} + {COLUMNS} < n1 ? {lo} + {COLUMNS} : n1;"
        ));
        for (at, value) in self.kernel.values.iter().enumerate() {
            if !matches!(value.def, Def::Sum(_)) {
                continue;
            }
            let elem = types::scalar(value.dtype);
            let f = self.helpers.tile(elem, self.caps);
            let array = format!("x{at}");
            self.line(format_args!(
                "{elem} {array}[{}] __attribute__((aligned(64)));",
                COLUMNS * ROWS
            ));
            self.line(format_args!(
                "{f}({array}, {ROWS}, (const {elem} *)acc + row * ld + ({lo} - n0), ld, {hi} - {lo}, p1 - p0);"
            ));
            self.state
                .tiles
                .insert(ValId::from_index(at), (array, lo.to_string()));
        }
        Ok((lo, hi))
    }

    /// The contraction's sum at the current point of the tile.
    pub(crate) fn sum(&mut self, v: ValId) -> Result<()> {
        let Kind::Epilogue { m, n, pieces, .. } = self.kernel.kind else {
            return Err(Error::internal("a sum outside of an epilogue"));
        };
        let elem = types::scalar(self.dtype(v));
        let column = self.sym(n, false)?;
        let (at, along) = match (self.state.tiles.get(&v), pieces) {
            (Some((array, lo)), Some(p)) => {
                let (array, lo) = (array.clone(), lo.clone());
                let row = self.sym(p.row, false)?;
                (
                    format!("{array} + ({column} - {lo}) * {ROWS} + ({row} - p0)"),
                    p.row,
                )
            }
            _ => {
                let row = self.sym(m, false)?;
                (
                    format!("(const {elem} *)acc + ({row} - m0) * ld + ({column} - n0)"),
                    n,
                )
            }
        };
        match self
            .state
            .lane
            .as_ref()
            .map(|l| (l.sym == along, l.count.clone()))
        {
            None | Some((false, _)) => self.declare(v, ["*(", &at, ")"], false),
            Some((true, None)) => {
                let ty = self.helpers.vector(elem, self.width());
                self.declare(v, format!("({ty})*(const {ty}u *)({at})").as_str(), true);
            }
            Some((true, Some(count))) => {
                let f = self.helpers.load_part(elem, self.width(), self.caps);
                self.declare(v, format!("{f}({at}, {count})").as_str(), true);
            }
        }
        Ok(())
    }
}
