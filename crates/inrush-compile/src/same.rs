//! Which steps make the same kernel: a step written down as words, with its buffers by order of appearance.
//!
//! Models repeat their blocks. Two steps with equal words differ in nothing that the stages tile and emit look at, so these
//! run once for both.

use inrush_loops::{Axis, Body, BufId, Loops, Stmt};
use inrush_sched::Step;
use std::hash::{Hash, Hasher};

/// A step in words, and the buffers that it touches.
pub struct Form {
    pub words: Vec<u64>,
    /// In order of appearance.
    pub buffers: Vec<BufId>,
}

/// Writes a step down.
pub fn form(loops: &Loops, step: &Step) -> Form {
    let mut w = Writer {
        words: Words(Vec::with_capacity(256)),
        buffers: Vec::new(),
    };
    match step {
        Step::Kernel(g) => {
            0u8.hash(&mut w.words);
            g.axes.hash(&mut w.words);
            g.bodies.len().hash(&mut w.words);
            g.bodies.iter().for_each(|b| w.body(b));
            g.locals.len().hash(&mut w.words);
            g.locals.iter().for_each(|b| w.buffer(*b));
        }
        Step::Contraction(c) => {
            1u8.hash(&mut w.words);
            let groups: [&[Axis]; 3] = [&c.batch, &c.m, &c.n];
            groups.hash(&mut w.words);
            w.body(&c.epilogue);
        }
    }
    // What is known of the buffers; an alias shares its storage with what has the same number.
    let mut k = 0;
    while k < w.buffers.len() {
        let b = loops.buffer(w.buffers[k]);
        b.dtype.hash(&mut w.words);
        b.sizes.hash(&mut w.words);
        if let Some(l) = &b.layout {
            l.strides.hash(&mut w.words);
            l.offset.hash(&mut w.words);
        }
        b.layout.is_some().hash(&mut w.words);
        w.buffer(loops.storage(w.buffers[k]));
        k += 1;
    }
    Form {
        words: w.words.0,
        buffers: w.buffers,
    }
}

struct Writer {
    words: Words,
    buffers: Vec<BufId>,
}

impl Writer {
    fn buffer(&mut self, b: BufId) {
        // A step touches few buffers: the list itself is searched.
        let at = self.buffers.iter().position(|x| *x == b);
        let at = at.unwrap_or_else(|| {
            self.buffers.push(b);
            self.buffers.len() - 1
        });
        (at as u32).hash(&mut self.words);
    }

    fn body(&mut self, body: &Body) {
        body.axes.hash(&mut self.words);
        body.outer.hash(&mut self.words);
        body.stmts.len().hash(&mut self.words);
        for s in &body.stmts {
            match s {
                Stmt::Load {
                    buf,
                    coords,
                    mask,
                    fill,
                } => {
                    (0u8, coords, mask, fill).hash(&mut self.words);
                    self.buffer(*buf);
                }
                Stmt::Store {
                    buf,
                    coords,
                    value,
                    mode,
                    mask,
                } => {
                    (1u8, coords, value, mode, mask).hash(&mut self.words);
                    self.buffer(*buf);
                }
                other => {
                    2u8.hash(&mut self.words);
                    // A check names its operator: others have another message.
                    other.hash(&mut self.words);
                }
            }
        }
    }
}

/// A hasher that forgets nothing.
struct Words(Vec<u64>);

impl Hasher for Words {
    fn finish(&self) -> u64 {
        0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0.push(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0.push(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, v: u8) {
        self.0.push(v.into());
    }
    fn write_u32(&mut self, v: u32) {
        self.0.push(v.into());
    }
    fn write_u64(&mut self, v: u64) {
        self.0.push(v);
    }
    fn write_i64(&mut self, v: i64) {
        self.0.push(v as u64);
    }
    fn write_usize(&mut self, v: usize) {
        self.0.push(v as u64);
    }
    fn write_isize(&mut self, v: isize) {
        self.0.push(v as u64);
    }
}
