//! A group becomes a kernel: lanes and grid are chosen, every statement is placed as far out as it may be.
//!
//! The steps, each of which gives a value that the next one takes:
//!
//! | step | result | file |
//! |---|---|---|
//! | flatten | bodies with one offset an access, joined axes | `flatten.rs` |
//! | build | numbered values, nests | `build.rs` |
//! | liveness, conflicts | what reaches memory, which axes threads may share | `live.rs`, `conflicts.rs` |
//! | vectorise | the loops over lanes | `vectorize/mod.rs` |
//! | partition | grid and loops inside a unit | `grid.rs` |
//! | place | the tree of loops | `place.rs` |
//! | finish | passes over the tree, arguments, memory | `finish.rs` |

use crate::build::Builder;
use crate::conflicts::Conflicts;
use crate::finish::{Choices, finish, origins};
use crate::flatten::Flat;
use crate::grid;
use crate::live::liveness;
use crate::place::Placer;
use crate::vectorize::{self, Group, Strategy, Vectorization};
use crate::{Kernel, Kind};
use inrush_base::tally::{Way, reached};
use inrush_base::{Caps, Result};
use inrush_expr::SymMap;
use inrush_loops::{Axis, Body, BufId, Tables};

/// Makes a kernel of a fused group: for each point of `axes`, `bodies` in order, with `locals` living within one point.
pub fn tile(
    tables: Tables,
    axes: &[Axis],
    bodies: &[Body],
    locals: &[BufId],
    caps: &Caps,
) -> Result<Kernel> {
    let mut flat = Flat::new(tables, axes, bodies)?;
    if let [body] = flat.bodies.as_slice() {
        // A lone body keeps nothing between its points: all its parallel axes may be shared out.
        flat.shared = body.axes[..body.outer].to_vec();
    }
    flat.drop_unit_axes();
    flat.join_axes();
    let builder = Builder::new(&flat, locals)?;
    let live = liveness(&builder);
    let shared = flat.shared.clone();
    let conflicts = Conflicts::new(&builder, &shared);
    let group = Group {
        b: &builder,
        live: &live,
        shared: &shared,
        conflicts: &conflicts,
        caps,
    };
    let vectors = vectorize::choose(&group);
    let grid = grid::partition(&mut flat, &group, &vectors);
    let mut choices = Choices::default();
    let mut own = None;
    reached(match &vectors {
        Vectorization::Scalar => Way::NoLanes,
        Vectorization::Own(axes) => {
            own = Some(axes.as_slice());
            Way::OwnLanes
        }
        Vectorization::Shared(lanes) => {
            choices.lane_width = Some(lanes.width);
            if let Strategy::JamPixels(row) = lanes.strategy {
                choices.jammed = Some((row.sym, vectorize::jam_factors(caps.isa)));
            }
            Way::SharedLanes
        }
    });
    let tree = Placer::new(&builder, &live, &grid.outer, &grid.loops, own).run()?;
    let kind = Kind::Grid(grid.axes);
    let mut kernel = finish(builder, tree, kind, origins(bodies), grid.units, choices);
    if let Some(p) = grid.length {
        let length = SymMap::from_iter([(p.sym, p.value)]);
        kernel.cost_per_unit = tables.exprs.subst(kernel.cost_per_unit, &length);
        kernel.sizes.push(p);
    }
    Ok(kernel)
}
