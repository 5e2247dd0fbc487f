//! Which steps make the same kernel: a step written down as words, with its buffers by order of appearance.
//!
//! Models repeat their blocks. Two steps with equal words differ in nothing that the stages tile and emit look at, so these
//! run once for both.

use inrush_loops::{Attended, Axis, Loops};
use inrush_sched::{Form, Step};

/// Writes a step down in the place of what was written before.
pub fn form(loops: &Loops, step: &Step, f: &mut Form) {
    f.clear();
    match step {
        Step::Kernel(g) => {
            f.add(0u8);
            f.add(&g.axes);
            f.add(g.bodies.len());
            g.bodies.iter().for_each(|b| f.body(b));
            f.add(g.locals.len());
            g.locals.iter().for_each(|b| f.buffer(*b));
        }
        Step::Attention(a) => {
            f.add(match &a.results {
                Attended::Softmax { .. } => 2u8,
                Attended::Gradients(g) => 3 + u8::from(g.exchanged),
            });
            f.add(a.axes().copied().collect::<Vec<Axis>>().as_slice());
            for x in a.accesses() {
                f.buffer(x.buf);
                f.add(x.coords.as_slice());
            }
            if let Some(b) = &a.blocks {
                f.add(b.rows);
                f.add(b.keys);
                b.lists().for_each(|l| f.add([l.position].as_slice()));
            }
            f.body(&a.scores);
            a.results().into_iter().for_each(|b| f.buffer(b));
        }
        // It has no kernel.
        Step::Library(_) => {}
        Step::Contraction(c) => {
            f.add(1u8);
            let groups: [&[Axis]; 3] = [&c.batch, &c.m, &c.n];
            f.add(groups);
            f.body(&c.epilogue);
        }
    }
    // What is known of the buffers; an alias shares its storage with what has the same number.
    // The list grows meanwhile: the storage of an alias may be a buffer that the step does not
    // touch.
    let mut k = 0;
    while k < f.buffers.len() {
        let b = loops.buffer(f.buffers[k]);
        f.add(b.dtype);
        f.add(&b.sizes);
        if let Some(l) = &b.layout {
            f.add(&l.strides);
            f.add(l.offset);
        }
        f.add(b.layout.is_some());
        f.buffer(loops.storage(f.buffers[k]));
        k += 1;
    }
}
