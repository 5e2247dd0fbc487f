//! Kernels of users and library calls.

use super::{Addresses, At, Copy, Launch, LibraryCall, Op, Operand, Planner, View};
use crate::gpu::POINTER_ALIGNMENT;
use crate::gpu::arguments::{Form, Made, Map, rank};
use crate::gpu::cublas::Gemm;
use crate::gpu::driver::Arguments;
use crate::gpu::placement::Storage;
use crate::program::{Argument, Library, LibraryOp, UserKernel};
use inrush_base::{Error, Result};
use smallvec::SmallVec;
use std::sync::Arc;

/// Packed arguments of a user's kernel.
struct Passed {
    arguments: Arguments,
    addresses: Addresses,
    maps: Vec<Map>,
    /// Where the address of the scratch space goes.
    scratch: u32,
}

impl Planner<'_> {
    /// Launches a kernel of the user's, after copies of what it writes and others read.
    pub(super) fn kernel(&mut self, at: usize, k: &UserKernel) -> Result<()> {
        let mut places = Vec::with_capacity(k.tensors.len());
        for slot in &k.tensors {
            let (root, from) = match slot {
                Some(slot) => {
                    self.touch(*slot)?;
                    self.root(*slot)
                }
                None => (0, 0),
            };
            places.push((At::Slot(root), from));
        }
        for (w, out) in k.written.iter().zip(&k.outs) {
            let shape = self.shape(k.tensors[*w].unwrap_or(*out))?;
            if let Storage::Inside(base) = self.placement.storage[*out] {
                if self.placement.seen[*out] {
                    self.ops.push(Op::View(Box::new(View {
                        slot: *out,
                        base,
                        sizes: shape.sizes,
                        strides: shape.strides,
                        offset: 0,
                        dtype: None,
                        base_layout: None,
                    })));
                }
                continue;
            }
            let bytes = shape.bytes()?;
            self.define(*out, shape, at)?;
            let (from, offset) = places[*w];
            let to = At::Slot(*out);
            if bytes > 0 && k.tensors[*w].is_some() {
                self.ops.push(Op::Copy(Copy {
                    to: (to.code(), 0),
                    from: (from.code(), offset),
                    bytes,
                }));
            }
            places[*w] = (to, 0);
        }
        self.align(at, k, &mut places)?;
        let gpu = (self.program.gpu.as_ref()).ok_or_else(|| Error::internal("no kernels"))?;
        let kernel = &gpu.kernels[k.kernel];
        let mut grid = [0u32; 3];
        for (n, g) in grid.iter_mut().zip(&k.grid) {
            let size = self.number(g)?;
            *n = u32::try_from(size.max(0))
                .ok()
                .filter(|n| *n < 1 << 31)
                .ok_or_else(|| {
                    Error::unsupported(format!(
                        "a grid of {size} programs of `{}`",
                        kernel.function
                    ))
                })?;
        }
        if grid.contains(&0) {
            return Ok(());
        }
        let Passed {
            arguments,
            mut addresses,
            maps,
            scratch,
        } = self.passed(k, &places)?;
        addresses.extend(self.scratch(at, k.kernel, grid, scratch)?);
        self.ops.push(Op::Launch(Launch {
            kernel: k.kernel,
            grid,
            arguments: arguments.bytes().into(),
            addresses: addresses.as_slice().into(),
            maps: maps.into(),
            writes: Box::default(),
        }));
        Ok(())
    }

    /// Packs the arguments of a user's kernel, whose tensors are at `places`.
    fn passed(&mut self, k: &UserKernel, places: &[(At, u64)]) -> Result<Passed> {
        let gpu = (self.program.gpu.as_ref()).ok_or_else(|| Error::internal("no kernels"))?;
        let kernel = &gpu.kernels[k.kernel];
        let mut arguments = Arguments::default();
        let mut addresses: Addresses = SmallVec::new();
        let (mut maps, mut descriptors) = (Vec::new(), 0);
        for (a, (name, ty)) in k.arguments.iter().zip(&kernel.signature) {
            if let Argument::Tensor(t) = a {
                let (from, offset) = places[*t];
                addresses.push((arguments.pointer(0) as u32, from.code(), offset));
                continue;
            }
            if let Argument::Descriptor(t) = a {
                let binary = self.provided.info(k.kernel)?;
                let form = Form::of(binary, descriptors)?;
                descriptors += 1;
                let (sizes, strides) = self.described(k, *t, ty).map_err(|why| {
                    let kernel = &kernel.function;
                    why.context(format!("`{name}` of the Triton kernel `{kernel}`"))
                })?;
                let (from, offset) = places[*t];
                let (place, tensor) = form.add(&mut arguments, &sizes, &strides)?;
                addresses.push((place, from.code(), offset));
                maps.extend(tensor.map(|tensor| {
                    let known = (self.maps.iter()).find(|(b, o, m)| {
                        (*b, *o) == (from.code(), offset) && *m.tensor() == tensor
                    });
                    let made = match known {
                        Some((_, _, made)) => made.clone(),
                        None => {
                            let made = Arc::new(Made::new(tensor));
                            self.maps.push((from.code(), offset, made.clone()));
                            made
                        }
                    };
                    Map::new(place, made)
                }));
                continue;
            }
            let narrow = |v: i64| {
                Error::unsupported(format!(
                    "`{name}` of the Triton kernel `{}` is {v}: it was built for {ty}",
                    kernel.function
                ))
            };
            match (ty.as_str(), a) {
                ("fp32", Argument::Float(f)) => arguments.f32(*f as f32),
                ("fp32", _) => arguments.f32(self.number(a)? as f32),
                ("i1", _) => arguments.bool(self.number(a)? != 0),
                ("i64" | "u64", _) => arguments.i64(self.number(a)?),
                ("i32", _) => {
                    let v = self.number(a)?;
                    arguments.i32(i32::try_from(v).map_err(|_| narrow(v))?)
                }
                ("u32", _) => {
                    let v = self.number(a)?;
                    arguments.i32(u32::try_from(v).map_err(|_| narrow(v))? as i32)
                }
                (other, _) => {
                    return Err(Error::internal(format!("an argument of type `{other}`")));
                }
            };
        }
        let scratch = arguments.finish(0) as u32;
        Ok(Passed {
            arguments,
            addresses,
            maps,
            scratch,
        })
    }

    /// Returns the sizes and strides of the tensor at a position of a launch, which a descriptor of the type `ty` is made of.
    ///
    /// # Errors
    /// Those of `TensorDescriptor`, in its words, for what the copy engine does not take.
    fn described(
        &self,
        k: &UserKernel,
        t: usize,
        ty: &str,
    ) -> Result<(SmallVec<[i64; 6]>, SmallVec<[i64; 6]>)> {
        let out = || {
            let w = k.written.iter().position(|w| *w == t)?;
            k.outs.get(w).copied()
        };
        let slot = (k.tensors[t].or_else(out)).ok_or_else(|| Error::internal("no tensor"))?;
        let shape = self.shape(slot)?;
        let Some((last, others)) = shape.strides.split_last() else {
            return Err(Error::input("a descriptor of a tensor without dimensions"));
        };
        let multiple = |s: &i64| {
            let bytes = u64::try_from(*s)
                .ok()
                .and_then(|s| s.checked_mul(shape.element));
            bytes.is_some_and(|b| b.is_multiple_of(POINTER_ALIGNMENT))
        };
        let broken = if rank(ty) != Some(shape.sizes.len()) {
            "rank mismatch"
        } else if !others.iter().all(multiple) {
            "strides must be 16-byte aligned"
        } else if !shape.sizes.iter().all(|n| *n > 0) {
            "shape must be positive"
        } else if *last != 1 {
            "Last dimension must be contiguous"
        } else {
            return Ok((shape.sizes, shape.strides));
        };
        Err(Error::input(format!(
            "a descriptor of sizes {:?} and strides {:?}: {broken}",
            shape.sizes, shape.strides
        )))
    }

    /// Copies tensors that begin in the middle of others, where a kernel takes their addresses for multiples of 16 bytes.
    fn align(&mut self, at: usize, k: &UserKernel, places: &mut [(At, u64)]) -> Result<()> {
        for t in &k.aligned {
            let (from, offset) = places[*t];
            let (Some(slot), false) = (k.tensors[*t], offset.is_multiple_of(POINTER_ALIGNMENT))
            else {
                continue;
            };
            let bytes = self.shape(slot)?.bytes()?;
            let to = self.temporary(at, bytes);
            if bytes > 0 {
                self.ops.push(Op::Copy(Copy {
                    to: (to.code(), 0),
                    from: (from.code(), offset),
                    bytes,
                }));
            }
            places[*t] = (to, 0);
        }
        Ok(())
    }

    fn number(&self, a: &Argument) -> Result<i64> {
        match a {
            Argument::Size(id) => self.size(*id),
            Argument::Int(i) => Ok(*i),
            Argument::Float(_) | Argument::Tensor(_) | Argument::Descriptor(_) => {
                Err(Error::input("a stored graph is damaged: no integer"))
            }
        }
    }

    pub(super) fn library(&mut self, at: usize, l: &Library) -> Result<()> {
        let mut inputs: SmallVec<[Option<Operand>; 4]> = SmallVec::new();
        for slot in &l.inputs {
            let Some(slot) = slot else {
                inputs.push(None);
                continue;
            };
            if self.layouts[*slot].is_none() {
                inputs.push(Some(Operand::Slot(*slot)));
                continue;
            }
            self.touch(*slot)?;
            let (root, from) = self.root(*slot);
            let operand = self.operand(*slot, At::Slot(root), from)?;
            inputs.push(Some(operand));
        }
        let mut out = None;
        if l.op.writes_out() {
            let slot = *(l.outs.first()).ok_or_else(|| Error::internal("no result"))?;
            let shape = self.shape(slot)?;
            self.define(slot, shape, at)?;
            out = Some(self.operand(slot, At::Slot(slot), 0)?);
        }
        let shapes = (l.outs.iter())
            .map(|s| match self.layouts[*s] {
                Some(_) => self.shape(*s).map(Some),
                None => Ok(None),
            })
            .collect::<Result<_>>()?;
        let gemm = match (&l.op, inputs.as_slice(), &out) {
            (
                LibraryOp::Mm | LibraryOp::Bmm,
                [
                    Some(Operand::Memory { shape: a, .. }),
                    Some(Operand::Memory { shape: b, .. }),
                ],
                Some(Operand::Memory { shape: out, .. }),
            ) => Gemm::of(a, b, out),
            _ => None,
        };
        let wanted = (l.outs.iter())
            .map(|s| self.placement.seen[*s] || self.placement.last[*s] > at)
            .collect();
        self.ops.push(Op::Library(Box::new(LibraryCall {
            step: at,
            inputs,
            gemm,
            out,
            wanted,
            shapes,
        })));
        Ok(())
    }

    fn operand(&mut self, slot: usize, at: At, offset: u64) -> Result<Operand> {
        self.operands += 1;
        Ok(Operand::Memory {
            cached: self.operands - 1,
            base: at.code(),
            offset,
            shape: self.shape(slot)?,
        })
    }
}
