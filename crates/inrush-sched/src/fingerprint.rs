//! Structural fingerprints of bodies modulo buffers: a list of words in which buffers are numbered by first appearance. Bodies
//! with equal words differ in nothing but their buffers. The words are kept whole, so that equality needs no hash to be right.

use inrush_loops::{Body, BufId, Stmt, StmtId};
use std::hash::{Hash, Hasher};

/// The words so far, and the buffers that occur in them.
pub struct Fingerprint {
    /// Expressions and symbols stand in them by number: words are comparable within one arena only.
    pub words: Vec<u64>,
    /// In order of appearance.
    pub buffers: Vec<BufId>,
}

impl Default for Fingerprint {
    fn default() -> Fingerprint {
        Fingerprint {
            words: Vec::with_capacity(256),
            buffers: Vec::new(),
        }
    }
}

impl Fingerprint {
    /// Forgets what was written down.
    pub fn clear(&mut self) {
        self.words.clear();
        self.buffers.clear();
    }

    /// Writes down a value by what it hashes.
    pub fn add(&mut self, what: impl Hash) {
        what.hash(&mut Words(&mut self.words));
    }

    /// A buffer by its number among those that occur.
    pub fn buffer(&mut self, b: BufId) {
        // Few occur: the list itself is searched.
        let at = self.buffers.iter().position(|x| *x == b);
        let at = at.unwrap_or_else(|| {
            self.buffers.push(b);
            self.buffers.len() - 1
        });
        self.add(at as u32);
    }

    /// The first word of a statement: its kind, how many expressions or operands it has, its mask.
    fn head(&mut self, kind: u64, count: usize, mask: Option<StmtId>) {
        let mask = mask.map_or(u32::MAX, |m| m.0);
        self.words
            .push(kind | (count as u64) << 8 | (mask as u64) << 32);
    }

    /// Numbers, two in a word.
    fn pairs(&mut self, mut numbers: impl Iterator<Item = u32>) {
        while let Some(a) = numbers.next() {
            let b = numbers.next().unwrap_or(0);
            self.words.push(a as u64 | (b as u64) << 32);
        }
    }

    /// A body without its origins.
    pub fn body(&mut self, body: &Body) {
        self.add(&body.axes);
        self.add(body.outer);
        self.add(body.stmts.len());
        for s in &body.stmts {
            match s {
                Stmt::Load {
                    buf,
                    coords,
                    mask,
                    fill,
                } => {
                    self.head(0, coords.len(), *mask);
                    self.pairs(coords.iter().map(|c| c.0));
                    self.add(fill);
                    self.buffer(*buf);
                }
                Stmt::Store {
                    buf,
                    coords,
                    value,
                    mode,
                    mask,
                } => {
                    self.head(1, coords.len(), *mask);
                    self.pairs(coords.iter().map(|c| c.0));
                    self.add((value, mode));
                    self.buffer(*buf);
                }
                Stmt::Op { op, args, dtype } => {
                    self.head(2, args.len(), None);
                    self.words.push(*op as u64 | (*dtype as u64) << 32);
                    self.pairs(args.iter().map(|a| a.0));
                }
                other => {
                    self.head(3, 0, None);
                    // A check names its operator: others have another message.
                    self.add(other);
                }
            }
        }
    }
}

/// A hasher that forgets nothing.
struct Words<'a>(&'a mut Vec<u64>);

impl Hasher for Words<'_> {
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
