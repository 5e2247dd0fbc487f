//! Matrix products and convolutions: a program's contraction on the CPU engine.

use crate::model::Symbol;
use inrush_base::tally::{self, reached};
use inrush_base::{DType, Error, Result};
use inrush_cpu::{
    Affine, Algorithm, Conv, ConvShape, DirectNchw, Epilogue, EpilogueFn, Gemm, GemmShape, Left,
    Lhs, NchwShape, Output, PackedA, PackedB, PackedFilters, Pool, Rhs, RhsView, StoreView,
};
use inrush_program::{BufferId, Contract, Place, Program, SizeId, Store};

/// An operand that was laid out at load: the right-hand side, unless said otherwise.
pub(crate) enum Packed {
    Product(PackedB),
    /// The left-hand side, for right-hand sides that are read where they lie.
    Left(PackedA),
    /// Filters of a convolution that is computed with fewer products.
    Filters(PackedFilters),
}

/// A contraction with its sizes known.
pub(crate) struct Contraction {
    algorithm: Kind,
    a: BufferId,
    a_offset: isize,
    a_dtype: DType,
    a_matrices: Affine,
    rows: Affine,
    taps: Vec<isize>,
    k_step: isize,
    /// `None` where the operand was packed at load.
    b: Option<OperandView>,
    epilogue: EpilogueFn,
    /// Where sums are stored without the epilogue, for ways that write most of them there at once.
    store: Option<Stored>,
    buffers: Vec<BufferId>,
    sizes: Vec<i64>,
}

#[allow(clippy::large_enum_variant, reason = "boxed with its contraction")]
enum Kind {
    Product(Gemm),
    Filters(Conv),
    /// The right-hand side is read where it lies; the left one too, where it was not laid out at load.
    DirectNchw(DirectNchw, OperandView),
}

/// An operand where it lies; the columns of the left one are its rows.
struct OperandView {
    buffer: BufferId,
    offset: isize,
    dtype: DType,
    matrices: Affine,
    k: Affine,
    cols: Affine,
}

impl OperandView {
    fn at(&self, pointers: &[*mut u8]) -> RhsView {
        RhsView {
            ptr: pointers[self.buffer as usize]
                .wrapping_offset(self.offset * self.dtype.size() as isize),
            dtype: self.dtype,
            matrices: self.matrices,
            k: self.k,
            cols: self.cols,
        }
    }
}

/// Where sums are stored as they are.
struct Stored {
    offset: isize,
    dtype: DType,
    batch: Affine,
    rows: Affine,
    cols: Affine,
}

impl Stored {
    fn at(&self, buffer: *mut u8) -> StoreView {
        StoreView {
            ptr: buffer.wrapping_offset(self.offset * self.dtype.size() as isize),
            dtype: self.dtype,
            batch: self.batch,
            rows: self.rows,
            cols: self.cols,
        }
    }
}

/// Sizes and strides of a contraction as numbers, or `None` where they depend on symbols without values.
struct Numbers {
    batch: Vec<(usize, isize, isize)>,
    m: Vec<(usize, isize)>,
    n: Vec<(usize, isize)>,
    /// Slowest first in `a`, so that what is contiguous in `a` comes last.
    k: Vec<(usize, isize, isize)>,
}

fn size(v: i64) -> Result<usize> {
    usize::try_from(v)
        .map_err(|_| Error::input(format!("a dimension of a matrix product has size {v}")))
}

impl Numbers {
    fn new(c: &Contract, get: &dyn Fn(SizeId) -> i64) -> Result<Numbers> {
        let three = |s: SizeId, a: SizeId, b: SizeId| -> Result<(usize, isize, isize)> {
            Ok((size(get(s))?, get(a) as isize, get(b) as isize))
        };
        let two = |l: &inrush_program::Level| -> Result<(usize, isize)> {
            Ok((size(get(l.size))?, get(l.stride) as isize))
        };
        let mut k =
            c.k.iter()
                .map(|l| three(l.size, l.a_stride, l.b_stride))
                .collect::<Result<Vec<_>>>()?;
        k.retain(|l| l.0 != 1);
        // The order of summation is free; a stable sort keeps the given one among equals.
        k.sort_by_key(|l| std::cmp::Reverse(l.1.unsigned_abs()));
        Ok(Numbers {
            batch: c
                .batch
                .iter()
                .map(|l| three(l.size, l.a_stride, l.b_stride))
                .collect::<Result<_>>()?,
            m: c.m.iter().map(two).collect::<Result<_>>()?,
            n: c.n.iter().map(two).collect::<Result<_>>()?,
            k,
        })
    }

    /// Offsets of the outer levels of `k` in `a`, and the inner run: its length and step.
    fn taps(&self) -> Result<(Vec<isize>, usize, isize)> {
        let Some(&(mut run, step, _)) = self.k.last() else {
            return Ok((vec![0], 1, 1));
        };
        let mut outer = self.k.len() - 1;
        while outer > 0 && self.k[outer - 1].1 == step * run as isize {
            run *= self.k[outer - 1].0;
            outer -= 1;
        }
        let levels: Vec<(usize, isize)> = self.k[..outer].iter().map(|l| (l.0, l.1)).collect();
        let map = Affine::new(&levels)?;
        if map.len() > 1 << 16 {
            return Err(Error::unsupported(format!(
                "a contraction with {} separate runs of products",
                map.len()
            )));
        }
        Ok(((0..map.len()).map(|t| map.offset(t)).collect(), run, step))
    }

    /// The two-dimensional convolution of step 1 with 3 x 3 filters that this is, and the filters' strides: `m` counts
    /// images (where there are several), lines and pixels, `n` output channels, `k` the filter's lines, pixels and
    /// channels.
    fn convolution(&self) -> Option<(ConvShape, [isize; 5])> {
        let (batch, image, lines, pixels) = match *self.m.as_slice() {
            [(oh, row), (ow, pixel)] => (1, 0, (oh, row), (ow, pixel)),
            [(n, image), (oh, row), (ow, pixel)] => (n, image, (oh, row), (ow, pixel)),
            _ => return None,
        };
        let (&[(c_out, o)], &[(3, row, h), (3, pixel, w), (c_in, 1, i)]) =
            (self.n.as_slice(), self.k.as_slice())
        else {
            return None;
        };
        if self.batch.iter().any(|l| l.0 != 1) || (lines.1, pixels.1) != (row, pixel) {
            return None;
        }
        let input = [lines.0.checked_add(2)?, pixels.0.checked_add(2)?];
        let mut shape = ConvShape::new_2d(batch, c_in, c_out, input, [3, 3], 1);
        shape.strides = [image, image, row, pixel];
        Some((shape, [o, i, 0, h, w]))
    }

    /// Maps of the right operand: matrices, k, columns. One matrix where no batch level moves in it.
    fn right(&self) -> Result<(Affine, Affine, Affine)> {
        let moving = self.batch.iter().any(|l| l.2 != 0 && l.0 > 1);
        let matrices = if moving {
            Affine::new(&self.batch.iter().map(|l| (l.0, l.2)).collect::<Vec<_>>())?
        } else {
            Affine::ONE
        };
        let k = Affine::new(&self.k.iter().map(|l| (l.0, l.2)).collect::<Vec<_>>())?;
        Ok((matrices, k, Affine::new(&self.n)?))
    }

    /// Maps of the left operand: matrices, k, rows. One matrix for all batches that do not move in it.
    fn left(&self) -> Result<(Affine, Affine, Affine)> {
        let moving: Vec<(usize, isize)> = (self.batch.iter())
            .filter(|l| l.1 != 0)
            .map(|l| (l.0, l.1))
            .collect();
        let k = Affine::new(&self.k.iter().map(|l| (l.0, l.1)).collect::<Vec<_>>())?;
        Ok((Affine::new(&moving)?, k, Affine::new(&self.m)?))
    }

    /// The product as one that reads its right operand where it lies.
    fn planes(&self) -> Result<NchwShape> {
        // Batches count the matrices of the left operand through the levels that move in it.
        let mut index = 1;
        let mut lefts: Vec<(usize, isize)> = Vec::with_capacity(self.batch.len());
        for l in self.batch.iter().rev() {
            lefts.push((l.0, if l.1 == 0 { 0 } else { index }));
            if l.1 != 0 {
                index *= l.0 as isize;
            }
        }
        lefts.reverse();
        let over = |f: fn(&(usize, isize, isize)) -> (usize, isize), of: &[_]| {
            Affine::new(&of.iter().map(f).collect::<Vec<_>>())
        };
        Ok(NchwShape {
            m: self.m.iter().map(|l| l.0).product(),
            lefts: Affine::new(&lefts)?,
            matrices: over(|l| (l.0, l.2), &self.batch)?,
            k: over(|l| (l.0, l.2), &self.k)?,
            cols: Affine::new(&self.n)?,
        })
    }
}

impl Packed {
    /// Packs the right operand of `c` if it is a weight (or computed from weights) of constant shape; else the left one,
    /// where the right one is read where it lies.
    pub fn of_weight(
        program: &Program,
        c: &Contract,
        sizes: &[Option<i64>],
        base: &[*mut u8],
        pool: &Pool,
    ) -> Result<Option<Packed>> {
        let buffer = &program.buffers[c.b as usize];
        if !is_weight(program, c.b, base) {
            return if is_weight(program, c.a, base) {
                Self::of_left(program, c, sizes, base, pool)
            } else {
                Ok(None)
            };
        }
        let known = |id: SizeId| sizes[id.0 as usize];
        // Only what the operand itself needs: rows and shared batches may be symbolic.
        let mut constant = known(c.b_offset).is_some();
        constant &=
            c.n.iter()
                .all(|l| known(l.size).and(known(l.stride)).is_some());
        constant &= c.k.iter().all(|l| {
            known(l.size)
                .and(known(l.a_stride))
                .and(known(l.b_stride))
                .is_some()
        });
        constant &= c.batch.iter().all(|l| {
            known(l.b_stride) == Some(0) || known(l.size).and(known(l.b_stride)).is_some()
        });
        if !constant {
            return Ok(None);
        }
        let numbers = Numbers::new(c, &|id| known(id).unwrap_or(2))?;
        let offset = known(c.b_offset).unwrap_or(0) as isize * buffer.dtype.0.size() as isize;
        let ptr = base[c.b as usize].wrapping_offset(offset);
        // All but the number of images decides how filters are laid out.
        let images = c.m.len().saturating_sub(2);
        let fixed = c.m[images..]
            .iter()
            .all(|l| known(l.size).and(known(l.stride)).is_some());
        if let Some((shape, strides)) = numbers.convolution().filter(|_| fixed)
            && program.buffers[c.a as usize].dtype.0 == DType::F32
        {
            let isa = inrush_cpu::detect();
            let algorithm = Conv::choose(&shape, c.acc.0, isa, pool.threads());
            if algorithm != Algorithm::Direct {
                let conv = Conv::plan_with(shape, c.acc.0, isa, pool.threads(), algorithm)?;
                // SAFETY: as below.
                let filters = unsafe { conv.pack(pool, ptr, buffer.dtype.0, strides) }?;
                return Ok(Some(Packed::Filters(filters)));
            }
        }
        let (matrices, k, cols) = numbers.right()?;
        if k.is_empty() || cols.is_empty() || matrices.is_empty() {
            return Ok(None);
        }
        let view = RhsView {
            ptr,
            dtype: buffer.dtype.0,
            matrices,
            k,
            cols,
        };
        // SAFETY: the weight's extent was checked when it was bound, and the access lies inside it (the compiler's promise).
        let packed = unsafe { PackedB::pack(pool, inrush_cpu::detect(), c.acc.0, &view) }?;
        Ok(Some(Packed::Product(packed)))
    }

    /// Packs the left operand, if the sizes of all but the batch are known and the product is one that reads the right one
    /// where it lies.
    fn of_left(
        program: &Program,
        c: &Contract,
        sizes: &[Option<i64>],
        base: &[*mut u8],
        pool: &Pool,
    ) -> Result<Option<Packed>> {
        let known = |id: SizeId| sizes[id.0 as usize];
        let level = |l: &inrush_program::Level| known(l.size).and(known(l.stride)).is_some();
        let constant = known(c.a_offset).is_some()
            && c.m.iter().chain(&c.n).all(level)
            && c.k.iter().all(|l| {
                let strides = known(l.a_stride).and(known(l.b_stride));
                known(l.size).and(strides).is_some()
            })
            && c.batch.iter().all(|l| {
                known(l.a_stride) == Some(0) || known(l.size).and(known(l.a_stride)).is_some()
            });
        if !constant {
            return Ok(None);
        }
        // What is not known does not move in the left operand.
        let numbers = Numbers::new(c, &|id| known(id).unwrap_or(2))?;
        let (isa, stored) = (inrush_cpu::detect(), program.buffers[c.b as usize].dtype.0);
        if DirectNchw::plan(numbers.planes()?, c.acc.0, stored, isa)?.is_none() {
            return Ok(None);
        }
        let (matrices, k, cols) = numbers.left()?;
        let dtype = program.buffers[c.a as usize].dtype.0;
        let offset = known(c.a_offset).unwrap_or(0) as isize * dtype.size() as isize;
        let view = RhsView {
            ptr: base[c.a as usize].wrapping_offset(offset),
            dtype,
            matrices,
            k,
            cols,
        };
        // SAFETY: as above.
        let packed = unsafe { PackedA::pack(pool, isa, c.acc.0, &view) }?;
        Ok(packed.map(Packed::Left))
    }
}

/// Whether a buffer is there at load and never changes.
fn is_weight(program: &Program, buffer: BufferId, base: &[*mut u8]) -> bool {
    let written = program.buffers[buffer as usize].written;
    let (_, place) = crate::model::root(program, buffer);
    !base[buffer as usize].is_null()
        && match place {
            Place::Weight(_) => !written,
            Place::Persistent { .. } => true,
            _ => false,
        }
}

/// A result in its buffer.
fn stored(c: &Contract, s: &Store, get: &dyn Fn(SizeId) -> i64) -> Result<Stored> {
    let map = |sizes: &mut dyn Iterator<Item = SizeId>, strides: &[SizeId]| {
        let levels = sizes.zip(strides);
        let levels = levels.map(|(n, s)| Ok((size(get(n))?, get(*s) as isize)));
        Affine::new(&levels.collect::<Result<Vec<_>>>()?)
    };
    Ok(Stored {
        offset: get(s.offset) as isize,
        dtype: c.acc.0,
        batch: map(&mut c.batch.iter().map(|l| l.size), &s.batch)?,
        rows: map(&mut c.m.iter().map(|l| l.size), &s.m)?,
        cols: map(&mut c.n.iter().map(|l| l.size), &s.n)?,
    })
}

impl Contraction {
    /// Plans the contraction for known sizes; `None` when there is nothing to compute.
    pub fn new(
        program: &Program,
        c: &Contract,
        sizes: &[i64],
        packed: Option<&Packed>,
        symbols: &[Symbol],
        threads: usize,
    ) -> Result<Option<Contraction>> {
        let get = |id: SizeId| sizes[id.0 as usize];
        let numbers = Numbers::new(c, &get)?;
        let batch = Affine::new(&numbers.batch.iter().map(|l| (l.0, l.1)).collect::<Vec<_>>())?;
        let rows = Affine::new(&numbers.m)?;
        let (matrices, k, cols) = numbers.right()?;
        if batch.is_empty() || rows.is_empty() || cols.is_empty() {
            return Ok(None);
        }
        let (taps, run, k_step) = if k.is_empty() {
            (vec![0], 0, 1)
        } else {
            numbers.taps()?
        };
        let shape = GemmShape {
            batch: batch.len(),
            groups: 1,
            m: rows.len(),
            n: cols.len(),
            taps: taps.len(),
            k: run,
        };
        let a_dtype = program.buffers[c.a as usize].dtype.0;
        let plan = if a_dtype == c.acc.0 && k_step == 1 {
            Gemm::plan
        } else {
            Gemm::plan_copying
        };
        let isa = inrush_cpu::detect();
        let b_dtype = program.buffers[c.b as usize].dtype.0;
        let planes = match packed {
            None | Some(Packed::Left(_)) => {
                DirectNchw::plan(numbers.planes()?, c.acc.0, b_dtype, isa)?
            }
            _ => None,
        };
        let algorithm = match packed {
            Some(Packed::Filters(f)) => {
                let (shape, _) = numbers.convolution().ok_or_else(|| {
                    Error::internal("a convolution at load is none for the sizes of a call")
                })?;
                match f.algorithm() {
                    Algorithm::Winograd(2) => reached(tally::Way::Winograd2),
                    Algorithm::Winograd(_) => reached(tally::Way::Winograd4),
                    Algorithm::Direct | Algorithm::Depthwise => {}
                }
                let conv = Conv::plan_with(shape, c.acc.0, isa, threads, f.algorithm())?;
                Kind::Filters(conv)
            }
            _ => match planes {
                Some(planes) => {
                    let (matrices, k, cols) = numbers.left()?;
                    let left = OperandView {
                        buffer: c.a,
                        offset: get(c.a_offset) as isize,
                        dtype: a_dtype,
                        matrices,
                        k,
                        cols,
                    };
                    Kind::DirectNchw(planes, left)
                }
                None => {
                    let packs = matches!(packed, Some(Packed::Product(_)));
                    Kind::Product(plan(shape, c.acc.0, isa, threads, packs)?)
                }
            },
        };
        let b = match packed {
            Some(Packed::Product(_) | Packed::Filters(_)) => None,
            Some(Packed::Left(_)) | None => Some(OperandView {
                buffer: c.b,
                offset: get(c.b_offset) as isize,
                dtype: b_dtype,
                // An unpacked operand names a matrix for every batch.
                matrices: if matrices.len() == batch.len() {
                    matrices
                } else {
                    Affine::linear(batch.len(), 0)
                },
                k,
                cols,
            }),
        };
        let store = c.store.as_ref().map(|s| stored(c, s, &get)).transpose()?;
        let store = store.filter(|s| {
            let view = s.at(std::ptr::null_mut());
            match &algorithm {
                Kind::Product(gemm) => gemm.stores(&view),
                Kind::DirectNchw(planes, _) => planes.stores(&view),
                Kind::Filters(_) => false,
            }
        });
        reached(match &store {
            Some(_) => tally::Way::Stored,
            None => tally::Way::Epilogue,
        });
        // SAFETY: the symbol was emitted with the epilogue's signature.
        let epilogue =
            unsafe { std::mem::transmute::<Symbol, EpilogueFn>(symbols[c.epilogue as usize]) };
        Ok(Some(Contraction {
            algorithm,
            a: c.a,
            a_offset: get(c.a_offset) as isize,
            a_dtype,
            a_matrices: batch,
            rows,
            taps,
            k_step,
            b,
            epilogue,
            store,
            buffers: c.buffers.clone(),
            sizes: c.sizes.iter().map(|s| get(*s)).collect(),
        }))
    }

    pub fn run(&self, pointers: &[*mut u8], packed: Option<&Packed>, pool: &Pool) -> Result<()> {
        let args: Vec<*mut u8> = self.buffers.iter().map(|b| pointers[*b as usize]).collect();
        let at = |buffer: BufferId, offset: isize, dtype: DType| {
            pointers[buffer as usize].wrapping_offset(offset * dtype.size() as isize)
        };
        let a = at(self.a, self.a_offset, self.a_dtype);
        let out = match (&self.store, args.first()) {
            (Some(store), Some(to)) => Output::Store(store.at(*to)),
            _ => Output::Epilogue(Epilogue {
                f: self.epilogue,
                args: args.as_ptr(),
                syms: self.sizes.as_ptr(),
            }),
        };
        let gemm = match (&self.algorithm, packed) {
            (Kind::Product(gemm), _) => gemm,
            (Kind::Filters(conv), Some(Packed::Filters(f))) => {
                // SAFETY: as below.
                return unsafe { conv.run(pool, a, self.a_dtype, f, &out) };
            }
            (Kind::Filters(_), _) => return Err(Error::internal("packed filters are missing")),
            (Kind::DirectNchw(planes, left), packed) => {
                let b = self.b.as_ref();
                let b = b.ok_or_else(|| Error::internal("an operand of a product is missing"))?;
                let view = left.at(pointers);
                let left = match packed {
                    Some(Packed::Left(p)) => Left::Packed(p),
                    _ => Left::View(&view),
                };
                // SAFETY: as below.
                return unsafe { planes.run(pool, left, b.at(pointers).ptr, &out) };
            }
        };
        let lhs = Lhs {
            ptr: a,
            dtype: self.a_dtype,
            matrices: self.a_matrices,
            rows: self.rows,
            taps: &self.taps,
            k_step: self.k_step,
        };
        let view;
        let rhs = match (&self.b, packed) {
            (None, Some(Packed::Product(p))) => Rhs::Packed(p),
            (Some(b), _) => {
                view = b.at(pointers);
                Rhs::View(&view)
            }
            (None, _) => return Err(Error::internal("a packed operand is missing")),
        };
        // SAFETY: buffers hold what the program promises; the epilogue stores inside its block.
        unsafe { gemm.run(pool, &lhs, rhs, &out) }
    }
}
