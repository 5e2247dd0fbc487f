//! Slots of a sequence's values: the form in which executors take its parts.

use crate::{Layout, Segment, SymbolDef, SymbolFrom, View};
use inrush_graph::ValueId;
use inrush_program::{Dt, host};
use rustc_hash::FxHashMap;

/// Slots of values, numbered as they are met.
#[derive(Default)]
pub struct Slots(FxHashMap<ValueId, usize>);

impl Slots {
    /// Returns a value's slot, a new one if it has none.
    pub fn of(&mut self, v: ValueId) -> usize {
        let next = self.0.len();
        *self.0.entry(v).or_insert(next)
    }

    /// Returns the slots of several values.
    pub fn all(&mut self, values: &[ValueId]) -> Vec<usize> {
        values.iter().map(|v| self.of(*v)).collect()
    }

    /// Returns a value's slot; `None` if it was not met.
    pub fn get(&self, v: ValueId) -> Option<usize> {
        self.0.get(&v).copied()
    }

    /// Returns the number of slots.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Names the tensors of a segment by their slots.
    pub fn segment(&mut self, s: Segment) -> host::Segment {
        host::Segment {
            inputs: self.all(&s.inputs),
            outputs: self.all(&s.outputs),
            symbols: s.symbols,
            program: s.program,
        }
    }

    /// Names the tensors of a view by their slots.
    pub fn view(&mut self, v: View) -> host::View {
        host::View {
            base: self.of(v.base),
            value: self.of(v.value),
            sizes: v.sizes,
            strides: v.strides,
            offset: v.offset,
            dtype: v.dtype.map(Dt),
            base_layout: v.lies,
        }
    }

    /// Says where a symbol's value is read.
    pub fn symbol(&mut self, s: &SymbolDef) -> host::Symbol {
        let (value, read) = match s.source {
            SymbolFrom::Int(v) => (v, host::Read::Int),
            SymbolFrom::Dim {
                value,
                dim,
                factor,
                offset,
            } => {
                let dim = dim as usize;
                let read = host::Read::Dim {
                    dim,
                    factor,
                    offset,
                };
                (value, read)
            }
        };
        host::Symbol {
            slot: self.of(value),
            read,
            after: s.after,
        }
    }

    /// Orders layouts by slot. Values without a slot need none.
    pub fn layouts(&self, given: Vec<(ValueId, Layout)>) -> Vec<Option<host::Layout>> {
        let mut layouts = vec![None; self.count()];
        for (v, l) in given {
            if let Some(slot) = self.get(v) {
                layouts[slot] = Some(host::Layout {
                    dtype: Dt(l.dtype),
                    sizes: l.sizes,
                    strides: l.strides,
                });
            }
        }
        layouts
    }
}
