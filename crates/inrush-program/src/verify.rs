//! The rules that a program keeps. An executor may rely on them, so a program read from disk is verified first.

use crate::*;
use inrush_base::{Error, Result};

impl Program {
    /// Every reference points at something that exists, sizes refer backwards, aliases do not form cycles.
    pub fn verify(&self) -> Result<()> {
        let bad = |what: String| Err(Error::input(format!("the program is damaged: {what}")));
        for (at, line) in self.sizes.iter().enumerate() {
            if line.operands().iter().any(|o| o.0 as usize >= at) {
                return bad(format!("size {at} refers forward"));
            }
            if matches!(line, Size::Sym(s) if *s as usize >= self.symbols.len()) {
                return bad(format!("size {at} names a symbol that does not exist"));
            }
        }
        let size = |id: &SizeId| (id.0 as usize) < self.sizes.len();
        let buffer = |id: &BufferId| (*id as usize) < self.buffers.len();
        if !size(&self.arena_bytes) || !size(&self.load_bytes) {
            return bad("arena size".into());
        }
        for s in &self.symbols {
            let ok = match s.source {
                SymbolSource::Dim { input, dim, factor, .. } => {
                    factor != 0
                        && self.inputs.get(input as usize).is_some_and(
                            |i| matches!(&i.ty, InputType::Tensor { sizes, .. } if (dim as usize) < sizes.len()),
                        )
                }
                SymbolSource::Int { input } => {
                    self.inputs.get(input as usize).is_some_and(|i| matches!(i.ty, InputType::Int { .. }))
                }
            };
            if !ok {
                return bad(format!("symbol `{}` has no source", s.name));
            }
        }
        for i in &self.inputs {
            let ok = match &i.ty {
                InputType::Tensor { sizes, strides, .. } => {
                    sizes.len() == strides.len() && sizes.iter().chain(strides).all(size)
                }
                InputType::Int { value } => size(value),
                InputType::Constant { .. } | InputType::Ignored => true,
            };
            if !ok {
                return bad(format!("input `{}`", i.name));
            }
        }
        if !self.guards.iter().all(|g| size(&g.left) && size(&g.right)) {
            return bad("a guard".into());
        }
        for (at, b) in self.buffers.iter().enumerate() {
            let ok = match &b.place {
                Place::Input { input } => self
                    .inputs
                    .get(*input as usize)
                    .is_some_and(|i| matches!(i.ty, InputType::Tensor { .. })),
                Place::Weight(w) => w.sizes.len() == w.strides.len(),
                Place::Persistent { offset } => size(offset),
                Place::Arena { offset } => size(offset),
                Place::Output { output } => (*output as usize) < self.outputs.len(),
                Place::Alias { of, offset } => (*of as usize) < at && size(offset),
            };
            if !ok || !size(&b.bytes) {
                return bad(format!("buffer `{}`", b.name));
            }
        }
        for (at, s) in self.load_steps.iter().chain(&self.steps).enumerate() {
            let ok = match s {
                Step::Launch(l) => {
                    (l.kernel as usize) < self.kernels.len()
                        && l.buffers.iter().all(buffer)
                        && l.sizes.iter().all(size)
                        && [l.units, l.unit_cost, l.scratch_bytes].iter().all(size)
                }
                Step::Contract(c) => {
                    (c.epilogue as usize) < self.kernels.len()
                        && buffer(&c.a)
                        && buffer(&c.b)
                        && c.buffers.iter().all(buffer)
                        && c.sizes.iter().all(size)
                        && size(&c.a_offset)
                        && size(&c.b_offset)
                        && c.batch
                            .iter()
                            .all(|l| size(&l.size) && size(&l.a_stride) && size(&l.b_stride))
                        && c.k
                            .iter()
                            .all(|l| size(&l.size) && size(&l.a_stride) && size(&l.b_stride))
                        && c.m
                            .iter()
                            .chain(&c.n)
                            .all(|l| size(&l.size) && size(&l.stride))
                }
            };
            if !ok {
                return bad(format!("step {at}"));
            }
        }
        for (at, o) in self.outputs.iter().enumerate() {
            let ok = match o {
                Output::Tensor {
                    buffer: b,
                    sizes,
                    strides,
                    ..
                } => {
                    buffer(b)
                        && sizes.len() == strides.len()
                        && sizes.iter().chain(strides).all(size)
                }
                Output::Int { value } => size(value),
                Output::Scalar { .. } | Output::Mutation | Output::None => true,
            };
            if !ok {
                return bad(format!("output {at}"));
            }
        }
        Ok(())
    }
}
