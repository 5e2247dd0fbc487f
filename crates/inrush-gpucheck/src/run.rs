//! Facts that a harness needs to run a program: storages with their contents, launches with their arguments, outputs.
//!
//! The harness knows no plan and no symbols. Buffers that share memory become one storage, named by its representative and as
//! long as the longest of them; every size is evaluated.

use crate::program::{Given, id};
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Sym};
use inrush_interp::{Tensor, Value};
use inrush_loops::{BufId, Buffer, BufferKind, Loops, Output};
use inrush_sched::{Place, Plan};
use inrush_triton::{Argument, ArgumentSource, TritonKernel};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

/// A plan at given sizes.
pub(crate) struct Run<'a> {
    plan: &'a Plan,
    /// By buffer: the representative of its storage.
    storage: &'a [BufId],
    given: Option<&'a Given>,
    symbols: BTreeMap<Sym, i64>,
}

/// Storages before the call.
#[derive(Default)]
pub(crate) struct Storages {
    /// Length by number of the storage.
    pub bytes: BTreeMap<String, i64>,
    /// Contents of those that hold inputs and weights.
    pub tensors: Vec<(String, Tensor)>,
    /// Without inputs: what is to be drawn.
    pub random: Vec<Json>,
}

impl<'a> Run<'a> {
    /// Finds the values of the plan's symbols. Without inputs a size that is no number is an error later on.
    pub(crate) fn new(
        plan: &'a Plan,
        storage: &'a [BufId],
        given: Option<&'a Given>,
    ) -> Result<Run<'a>> {
        let symbols = given.map_or(Ok(BTreeMap::new()), |g| symbols(&plan.loops, g))?;
        Ok(Run {
            plan,
            storage,
            given,
            symbols,
        })
    }

    fn eval(&self, e: Expr) -> Result<i64> {
        let value = |s: Sym| self.symbols.get(&s).copied();
        self.plan.loops.exprs.eval(e, &value)
    }

    fn evals(&self, es: &[Expr]) -> Result<Vec<i64>> {
        es.iter().map(|e| self.eval(*e)).collect()
    }

    /// Returns the number of the storage that holds a buffer.
    fn owner(&self, b: BufId) -> usize {
        self.storage[self.plan.loops.storage(b).index()].index()
    }

    /// Returns the storages with what inputs and weights put into them.
    pub(crate) fn storages(&self) -> Result<Storages> {
        let mut out = Storages::default();
        for (k, b) in self.plan.loops.buffers.iter().enumerate() {
            let absent = |p: &Place| matches!(p, Place::Unused | Place::Local);
            if self.plan.memory.places.get(k).is_none_or(absent) {
                continue;
            }
            let Some(layout) = &b.layout else { continue };
            let (sizes, strides) = (self.evals(&b.sizes)?, self.evals(&layout.strides)?);
            // A storage reaches from its first byte to the last element of any buffer in it.
            let offset = self.eval(layout.offset)?;
            let steps = sizes.iter().zip(&strides);
            let last: i64 = steps.map(|(n, s)| (n - 1).max(0) * s).sum();
            let elements = offset + last + 1;
            let owner = self.storage[k].index();
            let bytes = out.bytes.entry(owner.to_string()).or_insert(0);
            *bytes = (*bytes).max(elements * b.dtype.size() as i64);
            if let Some(t) = self.content(b) {
                // The harness gets memory, not tensors: gaps and offsets are part of the test.
                let flat = laid_out(t, &strides, offset, elements as usize);
                out.tensors.push((format!("buf{owner}"), flat));
            } else if self.given.is_none()
                && matches!(b.kind, BufferKind::Input { .. } | BufferKind::Weight { .. })
            {
                out.random.push(json!({
                    "buf": owner,
                    "dtype": b.dtype.torch_name(),
                    "sizes": sizes,
                    "strides": strides,
                    "offset": offset,
                }));
            }
        }
        Ok(out)
    }

    /// Returns the tensor that is given for a buffer.
    fn content(&self, b: &Buffer) -> Option<&'a Tensor> {
        let given = self.given?;
        match &b.kind {
            BufferKind::Input { index } => match &given.inputs[*index] {
                Value::Tensor(t) => Some(t),
                _ => None,
            },
            BufferKind::Weight { name } => given.weights.get(name),
            _ => None,
        }
    }

    /// Returns a launch of a kernel, with its arguments.
    pub(crate) fn launch(&self, k: &TritonKernel) -> Result<Json> {
        let arguments = k.arguments.iter().map(|a| self.argument(a));
        Ok(json!({
            "kernel": id(k),
            "arguments": arguments.collect::<Result<Vec<Json>>>()?,
            "programs": self.eval(k.programs)?,
        }))
    }

    fn argument(&self, a: &Argument) -> Result<Json> {
        Ok(match &a.source {
            ArgumentSource::Buffer { buf, .. } => json!({"buf": self.owner(*buf), "type": a.ty}),
            ArgumentSource::Size(e) => json!({"int": self.eval(*e)?}),
            ArgumentSource::Map { buf, numbers, .. } => {
                // A tensor map is an offset, then as many sizes as strides.
                let rank = (numbers.len() - 1) / 2;
                json!({
                    "map": self.owner(*buf),
                    "type": a.ty,
                    "offset": self.eval(numbers[0])?,
                    "sizes": self.evals(&numbers[1..=rank])?,
                    "strides": self.evals(&numbers[1 + rank..])?,
                })
            }
        })
    }

    /// Says where the outputs are, and adds those that are expected to `tensors`.
    pub(crate) fn outputs(
        &self,
        expect: Option<&[Value]>,
        tensors: &mut Vec<(String, Tensor)>,
    ) -> Result<Vec<Json>> {
        let mut outputs = Vec::new();
        for (k, o) in self.plan.loops.outputs.iter().enumerate() {
            let buf = match o {
                Output::Tensor { buffer } => *buffer,
                // The step that computes the new contents has written them into the input.
                Output::Mutation { input, .. } => *input,
                _ => continue,
            };
            let b = self.plan.loops.buffer(buf);
            let layout = b.layout.as_ref();
            let layout = layout.ok_or_else(|| Error::internal("an output without a layout"))?;
            match expect.map(|e| &e[k]) {
                Some(Value::Tensor(want)) => tensors.push((format!("out{k}"), want.clone())),
                Some(_) => continue,
                None => {}
            }
            outputs.push(json!({
                "name": format!("out{k}"),
                "buf": self.owner(buf),
                "dtype": b.dtype.torch_name(),
                "sizes": self.evals(&b.sizes)?,
                "strides": self.evals(&layout.strides)?,
                "offset": self.eval(layout.offset)?,
            }));
        }
        Ok(outputs)
    }
}

/// Returns the values of symbols: those that are given, and those that sizes of inputs determine.
fn symbols(loops: &Loops, given: &Given) -> Result<BTreeMap<Sym, i64>> {
    let mut known = inrush_interp::Symbols::default();
    for (name, v) in &given.symbols {
        if let Some(s) = loops.exprs.sym_by_name(name) {
            known.insert(s, *v);
        }
    }
    for b in &loops.buffers {
        if let BufferKind::Input { index } = b.kind
            && let Some(Value::Tensor(t)) = given.inputs.get(index)
        {
            inrush_interp::bind(&loops.exprs, &b.sizes, &t.sizes, &mut known, "input")?;
        }
    }
    Ok(known.into_iter().collect())
}

/// Returns a tensor's elements where its buffer's layout puts them, as a flat tensor of `length`
/// elements. Gaps are zero.
fn laid_out(t: &Tensor, strides: &[i64], offset: i64, length: usize) -> Tensor {
    let size = t.dtype.size();
    let mut data = vec![0u8; length * size];
    for k in 0..t.numel() {
        // Row-major position to coordinates, last dimension first.
        let (mut rest, mut at) = (k as i64, offset);
        for (n, s) in t.sizes.iter().zip(strides).rev() {
            at += rest % n * s;
            rest /= n;
        }
        let at = at as usize * size;
        data[at..at + size].copy_from_slice(&t.data[k * size..(k + 1) * size]);
    }
    Tensor {
        dtype: t.dtype,
        sizes: vec![length as i64],
        data,
    }
}
