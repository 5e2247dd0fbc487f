//! Who reads and writes which storage.
//!
//! A *buffer* has coordinates; a *storage* has bytes, which views share. Reads and writes are
//! listed for both: fusion compares coordinates of one buffer, while the order of nodes depends on
//! storages.

use inrush_loops::{BufId, BufferKind, Bufs, Loops, Node, Output};
use smallvec::SmallVec;

/// Users of each buffer and storage, by node position.
pub(crate) struct Deps {
    /// By node: buffers that it reads, each once.
    pub reads: Vec<Bufs>,
    /// By node: buffers that it writes, each once.
    pub writes: Vec<Bufs>,
    /// By buffer: nodes that write it, in order.
    pub writers: Vec<SmallVec<[u32; 1]>>,
    /// By buffer: nodes that read it, in order, each once.
    pub readers: Vec<SmallVec<[u32; 2]>>,
    /// By buffer: its storage is reached through another buffer too.
    pub aliased: Vec<bool>,
    /// By buffer: it is an output, or a mutated input.
    pub output: Vec<bool>,
    /// By buffer: it belongs to the caller or the model.
    pub fixed: Vec<bool>,
    /// By buffer: nodes that write its storage.
    storage_writers: Vec<SmallVec<[u32; 1]>>,
    /// By buffer: nodes that read its storage.
    storage_readers: Vec<SmallVec<[u32; 2]>>,
}

/// By node: buffers that it reads, and that it writes, each once.
pub(crate) type Uses = Vec<(Bufs, Bufs)>;

/// Lists the buffers of each node.
pub(crate) fn uses(nodes: &[Node]) -> Uses {
    nodes.iter().map(Node::uses).collect()
}

impl Deps {
    /// Finds the users of all buffers.
    pub(crate) fn new(loops: &Loops, nodes: &[Node]) -> Deps {
        Deps::of(loops, uses(nodes))
    }

    /// Of nodes with these uses.
    pub(crate) fn of(loops: &Loops, uses: Uses) -> Deps {
        let n = loops.buffers.len();
        let mut d = Deps {
            reads: Vec::with_capacity(uses.len()),
            writes: Vec::with_capacity(uses.len()),
            writers: lists(n),
            readers: lists(n),
            aliased: vec![false; n],
            output: vec![false; n],
            fixed: loops
                .buffers
                .iter()
                .map(|b| b.kind != BufferKind::Temp)
                .collect(),
            storage_writers: lists(n),
            storage_readers: lists(n),
        };
        for (k, b) in loops.buffers.iter().enumerate() {
            if matches!(b.kind, BufferKind::Alias { .. }) {
                d.aliased[k] = true;
                d.aliased[loops.storage(BufId::from_index(k)).index()] = true;
            }
        }
        for o in &loops.outputs {
            if let Output::Tensor { buffer } | Output::Mutation { buffer, .. } = o {
                d.output[buffer.index()] = true;
                d.output[loops.storage(*buffer).index()] = true;
            }
        }
        for (k, (reads, writes)) in uses.into_iter().enumerate() {
            for b in &reads {
                d.readers[b.index()].push(k as u32);
                push_last(&mut d.storage_readers[loops.storage(*b).index()], k as u32);
            }
            for b in &writes {
                d.writers[b.index()].push(k as u32);
                push_last(&mut d.storage_writers[loops.storage(*b).index()], k as u32);
            }
            d.reads.push(reads);
            d.writes.push(writes);
        }
        d
    }

    /// Nodes that write the storage of `b` after `from`, up to and including `to`.
    pub(crate) fn written_between(&self, loops: &Loops, b: BufId, from: usize, to: usize) -> bool {
        self.storage_writers[loops.storage(b).index()]
            .iter()
            .any(|w| (*w as usize) > from && (*w as usize) <= to)
    }

    /// Number of nodes that write the storage of `b`.
    pub(crate) fn storage_writers(&self, loops: &Loops, b: BufId) -> usize {
        self.storage_writers[loops.storage(b).index()].len()
    }

    /// Returns true if `b` may hold different values at different times.
    pub(crate) fn rewritten(&self, loops: &Loops, b: BufId) -> bool {
        let s = loops.storage(b).index();
        let writers = self.storage_writers[s].len();
        writers > 1 || (writers == 1 && self.fixed[s])
    }

    /// The nodes that must run before node `k`, each once: writers of what it reads, readers and writers of what it
    /// writes.
    pub(crate) fn before(&self, loops: &Loops, k: usize) -> SmallVec<[u32; 4]> {
        let mut out: SmallVec<[u32; 4]> = SmallVec::new();
        let (reads, writes) = (&self.reads[k], &self.writes[k]);
        let k = k as u32;
        let mut add = |list: &[u32]| {
            for &x in list {
                if x < k && !out.contains(&x) {
                    out.push(x);
                }
            }
        };
        for b in reads {
            add(&self.storage_writers[loops.storage(*b).index()]);
        }
        for b in writes {
            let s = loops.storage(*b).index();
            add(&self.storage_writers[s]);
            // A buffer that is written once has no reader before that.
            if self.storage_writers[s].len() > 1
                || !matches!(loops.buffers[s].kind, BufferKind::Temp)
            {
                add(&self.storage_readers[s]);
            }
        }
        out
    }
}

/// Empty lists; `vec![…; n]` would clone them one by one.
pub(crate) fn lists<A: smallvec::Array>(n: usize) -> Vec<SmallVec<A>> {
    let mut out = Vec::new();
    out.resize_with(n, SmallVec::new);
    out
}

/// Adds a node unless it is the last one already: nodes come in order.
fn push_last<A: smallvec::Array<Item = u32>>(list: &mut SmallVec<A>, k: u32) {
    if list.last() != Some(&k) {
        list.push(k);
    }
}

/// Which nodes, of these uses, reach an output or a mutated input.
fn live(loops: &Loops, uses: &Uses) -> Vec<bool> {
    let mut wanted = vec![false; loops.buffers.len()];
    for o in &loops.outputs {
        if let Output::Tensor { buffer } | Output::Mutation { buffer, .. } = o {
            wanted[loops.storage(*buffer).index()] = true;
        }
    }
    let mut live = vec![false; uses.len()];
    for (k, (reads, writes)) in uses.iter().enumerate().rev() {
        live[k] = writes.iter().any(|b| wanted[loops.storage(*b).index()]);
        if live[k] {
            for b in reads {
                wanted[loops.storage(*b).index()] = true;
            }
        }
    }
    live
}

/// Drops nodes that reach no output and no mutated input; gives the uses of the others.
pub(crate) fn drop_dead(loops: &Loops, nodes: &mut Vec<Node>) -> Uses {
    let mut uses = uses(nodes);
    let live = live(loops, &uses);
    if live.contains(&false) {
        let mut flags = live.iter();
        nodes.retain(|_| *flags.next().expect("one per node"));
        let mut flags = live.iter();
        uses.retain(|_| *flags.next().expect("one per node"));
    }
    uses
}
