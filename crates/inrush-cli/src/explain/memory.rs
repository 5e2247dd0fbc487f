//! The arena over time, drawn: a rectangle for each buffer, from the step that writes it to the
//! last that reads it, as high as its bytes.
//!
//! ```text
//! offset ^   +----+
//!        |   | t1 |  +-----+
//!        | +-+----+--+  t2 |
//!        | |   t0    |-----+
//!        +-+---------+-------> steps
//! ```
//!
//! Rectangles do not overlap, except for buffers that are written in place of others. Gaps are
//! bytes that the plan could not use.

use super::html::{bytes, escape};
use inrush_program::{Place, Program, SizeId, Step};
use std::fmt::Write;

/// A buffer of the arena.
pub(super) struct Block {
    /// Position in the program's buffers.
    pub buffer: usize,
    /// Bytes from the arena's start.
    pub offset: i64,
    pub bytes: i64,
    /// First and last step that uses it.
    pub from: usize,
    pub to: usize,
}

/// The values of all size lines, zeros where they overflow.
pub(super) fn sizes(program: &Program, symbols: &[i64]) -> Vec<i64> {
    let mut out = Vec::new();
    _ = inrush_program::evaluate(&program.sizes, symbols, &mut out);
    out.resize(program.sizes.len(), 0);
    out
}

/// Buffers that a step touches.
pub(super) fn touched(step: &Step) -> Vec<u32> {
    match step {
        Step::Launch(l) => l.buffers.clone(),
        Step::Library(c) => {
            let all = c.inputs.iter().chain(&c.outputs);
            all.map(|o| o.buffer).collect()
        }
        Step::Contract(c) => {
            let mut out = vec![c.a, c.b];
            out.extend(&c.buffers);
            out
        }
    }
}

/// Returns the arena's buffers with their ranges of bytes and of steps.
pub(super) fn blocks(program: &Program, sizes: &[i64]) -> Vec<Block> {
    let value = |id: SizeId| sizes.get(id.0 as usize).copied().unwrap_or(0);
    let n = program.buffers.len();
    let (mut from, mut to) = (vec![usize::MAX; n], vec![0; n]);
    for (k, step) in program.steps.iter().enumerate() {
        for b in touched(step) {
            let mut b = b as usize;
            // An alias uses the storage that it is of; those are earlier buffers.
            while let Some(Place::Alias { of, .. }) = program.buffers.get(b).map(|b| &b.place) {
                b = *of as usize;
            }
            from[b] = from[b].min(k);
            to[b] = to[b].max(k);
        }
    }
    let block = |(k, b): (usize, &inrush_program::Buffer)| match b.place {
        Place::Arena { offset } if from[k] != usize::MAX => Some(Block {
            buffer: k,
            offset: value(offset),
            bytes: value(b.bytes),
            from: from[k],
            to: to[k],
        }),
        _ => None,
    };
    program
        .buffers
        .iter()
        .enumerate()
        .filter_map(block)
        .collect()
}

/// Units of the drawing; the page scales it to its width.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 360.0;

/// Returns the drawing as SVG. A rectangle tells its buffer, bytes and steps when pointed at.
pub(super) fn svg(program: &Program, blocks: &[Block], arena: i64) -> String {
    let (steps, arena) = (program.steps.len().max(1) as f64, arena.max(1) as f64);
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"arena over steps\" preserveAspectRatio=\"none\">\n"
    );
    for b in blocks {
        let (x, width) = (
            b.from as f64 / steps * WIDTH,
            (b.to - b.from + 1) as f64 / steps * WIDTH,
        );
        let (y, height) = (
            HEIGHT - (b.offset as f64 + b.bytes as f64) / arena * HEIGHT,
            b.bytes as f64 / arena * HEIGHT,
        );
        // Neighbouring numbers get hues far apart.
        let hue = (b.buffer * 137) % 360;
        let name = escape(&program.buffers[b.buffer].name);
        _ = writeln!(
            out,
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" fill=\"hsl({hue} 55% 60%)\">\
             <title>{name}: {} at {}, steps {} to {}</title></rect>",
            bytes(b.bytes),
            b.offset,
            b.from,
            b.to
        );
    }
    out.push_str("</svg>\n");
    out
}
