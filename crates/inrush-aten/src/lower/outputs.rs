//! Outputs of the graph: each is a buffer of its own with the strides that eager PyTorch gives.
//!
//! Copies are made where a value cannot be the output's own memory:
//!
//! - it is a view of a buffer, an input or a weight;
//! - the same buffer is an output already, since two outputs must not share memory;
//! - elements share places (`expand`), and would be written twice.
//!
//! All other outputs are buffers that a node writes, to which the output's strides are given
//! as a fixed layout. The new contents of an input that is written get a buffer of their own
//! too.

use super::{Lower, Mark, Tensor};
use crate::layouts::strides;
use inrush_base::{Error, Result};
use inrush_graph::{OutputKind, OutputValue, TensorType, Type, ValueId, source_name};
use inrush_loops::{BufId, BufferKind, Output};

impl Lower<'_> {
    /// Adds the outputs. Returns the marks before each, and after the last.
    pub(super) fn outputs(&mut self) -> Result<Vec<Mark>> {
        let mut taken: Vec<BufId> = Vec::new();
        let mut marks = Vec::with_capacity(self.graph.outputs.len() + 1);
        for output in &self.graph.outputs {
            marks.push(self.mark());
            let v = match &output.value {
                OutputValue::Value(v) => *v,
                OutputValue::Scalar(s) => {
                    self.loops.outputs.push(Output::Scalar(*s));
                    continue;
                }
                OutputValue::None => {
                    self.loops.outputs.push(Output::None);
                    continue;
                }
            };
            let out = match (&self.graph.value(v).ty, &output.kind) {
                (Type::Int(e), _) => Output::Int(*e),
                (Type::None, _) => Output::None,
                (Type::Tensor(ty), OutputKind::User { .. }) => {
                    let ty = &self.strides_of(v, ty)?;
                    let t = self.tensor(v)?;
                    self.begin("output", format!("{}.out", self.graph.value(v).name), None);
                    Output::Tensor {
                        buffer: self.output_buffer(&t, ty, &mut taken),
                    }
                }
                (Type::Tensor(_), OutputKind::Mutation { input }) => {
                    let target = self
                        .graph
                        .inputs
                        .get(*input)
                        .ok_or_else(|| Error::input(format!("no input {input} to mutate")))?;
                    if let Type::Tensor(ty) = &self.graph.value(target.value).ty
                        && self.exprs.overlaps(&ty.sizes, &ty.strides)
                    {
                        return Err(self.shares_places(target.value, ty));
                    }
                    let target = self.tensor(target.value)?;
                    let t = self.tensor(v)?;
                    self.begin("output", format!("{}.new", self.graph.value(v).name), None);
                    Output::Mutation {
                        input: target.buf,
                        buffer: self.own_buffer(&t).buf,
                    }
                }
                (other, _) => {
                    return Err(Error::unsupported(format!(
                        "output `{}` of type {other:?}",
                        self.graph.value(v).name
                    )));
                }
            };
            self.loops.outputs.push(out);
        }
        marks.push(self.mark());
        Ok(marks)
    }

    /// The strides of an output. No two elements of what is written may have one place: views that share places are copied,
    /// as a copy in eager is laid out. In PyTorch's process such a view has to be one of PyTorch.
    fn strides_of(&self, v: ValueId, ty: &TensorType) -> Result<TensorType> {
        if !self.exprs.overlaps(&ty.sizes, &ty.strides) {
            return Ok(ty.clone());
        }
        if self.graph.foreign_inputs {
            return Err(self.shares_places(v, ty));
        }
        Ok(TensorType {
            strides: strides::copy_of(self.exprs, ty),
            ..ty.clone()
        })
    }

    /// Returns the error for an output whose elements would be written to one place.
    fn shares_places(&self, v: ValueId, ty: &TensorType) -> Error {
        let name = &self.graph.value(v).name;
        let e = Error::unsupported(format!(
            "`{name}` is written, but elements of it share a place: sizes {}, strides {}",
            self.exprs.show_list(&ty.sizes),
            self.exprs.show_list(&ty.strides)
        ));
        e.at_node(source_name(name))
    }

    /// The buffer of an output tensor. A buffer that is another output already, or belongs to the caller, is copied.
    fn output_buffer(&mut self, t: &Tensor, ty: &TensorType, taken: &mut Vec<BufId>) -> BufId {
        let mut own = self.own_buffer(t);
        let layout = self.layout_of(ty);
        // A library function writes row by row, whatever the output's strides.
        let given = self.loops.buffers[own.buf.index()].layout.as_ref();
        if taken.contains(&own.buf) || given.is_some_and(|l| *l != layout) {
            own = self.copy(t);
        }
        self.loops.buffers[own.buf.index()].layout = Some(layout);
        taken.push(own.buf);
        own.buf
    }

    /// `t` as all of a buffer that a node of this program writes.
    fn own_buffer(&mut self, t: &Tensor) -> Tensor {
        let buffer = &self.loops.buffers[t.buf.index()];
        let temp = matches!(buffer.kind, BufferKind::Temp);
        if temp && t.is_whole(self.exprs, buffer) {
            t.clone()
        } else {
            self.copy(t)
        }
    }
}
