//! Nodes that differ in nothing but their buffers are of one class: what holds for all of them is found out once.
//!
//! Models repeat their layers, so that a program of thousands of nodes has some dozens of classes.
//! Axes, coordinates and statements are equal within a class, and buffers correspond by place;
//! dtypes and layouts of these may differ.

use inrush_loops::{BufId, Node};
use rustc_hash::FxHashMap;

use crate::Fingerprint;

pub(crate) struct Classes {
    /// By node: its class. Classes are numbered as they are met.
    of: Vec<u32>,
    /// By class: its first node, and how many it has.
    members: Vec<(u32, u32)>,
    /// By node: where its buffers begin in `buffers`, which has them in the order in which bodies name them.
    starts: Vec<u32>,
    buffers: Vec<BufId>,
}

impl Classes {
    /// Groups the nodes by their fingerprints.
    pub(crate) fn new(nodes: &[Node]) -> Classes {
        let mut out = Classes {
            of: Vec::with_capacity(nodes.len()),
            members: Vec::new(),
            starts: Vec::with_capacity(nodes.len() + 1),
            buffers: Vec::with_capacity(3 * nodes.len()),
        };
        let mut known: FxHashMap<Vec<u64>, u32> = FxHashMap::default();
        let mut form = Fingerprint::default();
        for (k, node) in nodes.iter().enumerate() {
            form.clear();
            if let Node::Contraction(c) = node {
                form.add(&c.k);
            }
            if let Node::Library(_) | Node::Attention(_) = node {
                // No two calls or attentions are of a class: some of their buffers are in no body.
                form.words.push(k as u64 | 1 << 63);
            }
            form.body(node.body());
            let class = match known.get(form.words.as_slice()) {
                Some(class) => *class,
                None => {
                    let class = out.members.len() as u32;
                    known.insert(form.words.clone(), class);
                    out.members.push((k as u32, 0));
                    class
                }
            };
            out.members[class as usize].1 += 1;
            out.of.push(class);
            out.starts.push(out.buffers.len() as u32);
            out.buffers.extend_from_slice(&form.buffers);
        }
        out.starts.push(out.buffers.len() as u32);
        out
    }

    /// The class of a node.
    pub(crate) fn of(&self, node: usize) -> usize {
        self.of[node] as usize
    }

    /// The first node of each class.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = usize> {
        self.members.iter().map(|m| m.0 as usize)
    }

    /// How many nodes are of the class of `node`.
    pub(crate) fn like(&self, node: usize) -> usize {
        self.members[self.of(node)].1 as usize
    }

    /// Buffers that the body of a node names, each once. In the same places for all of a class.
    pub(crate) fn buffers(&self, node: usize) -> &[BufId] {
        &self.buffers[self.starts[node] as usize..self.starts[node + 1] as usize]
    }
}
