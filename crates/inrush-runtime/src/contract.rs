//! Matrix products and convolutions: a program's contraction on the CPU engine, which chooses how it is computed.

use crate::model::Symbol;
use inrush_base::tally::{self, reached};
use inrush_base::{DType, Error, Result};
use inrush_cpu::{
    Affine, Contraction, Epilogue, EpilogueFn, Operands, Output, Packed, Plan, Pool, StoreView,
};
use inrush_program::{BufferId, Contract, Level, Place, Program, SizeId, Store};
use std::cell::RefCell;

/// A contraction of known sizes with the engine's plan of it.
pub(crate) struct PlannedContraction {
    plan: Plan,
    a: Operand,
    b: Operand,
    epilogue: EpilogueFn,
    /// Where sums are stored without the epilogue, for plans that write most of them there at once.
    store: Option<Stored>,
    buffers: Vec<BufferId>,
    sizes: Vec<i64>,
}

/// Where an operand begins.
struct Operand {
    buffer: BufferId,
    /// In bytes.
    offset: isize,
}

impl Operand {
    fn new(program: &Program, buffer: BufferId, offset: i64) -> Operand {
        let size = program.buffers[buffer as usize].dtype.0.size();
        Operand {
            buffer,
            offset: offset as isize * size as isize,
        }
    }

    fn at(&self, pointers: &[*mut u8]) -> *mut u8 {
        pointers[self.buffer as usize].wrapping_offset(self.offset)
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

fn size(v: i64) -> Result<usize> {
    usize::try_from(v)
        .map_err(|_| Error::input(format!("a dimension of a matrix product has size {v}")))
}

/// Describes a contraction to the engine, with sizes and strides as numbers.
fn describe(program: &Program, c: &Contract, get: &dyn Fn(SizeId) -> i64) -> Result<Contraction> {
    let three = |s: SizeId, a: SizeId, b: SizeId| -> Result<(usize, isize, isize)> {
        Ok((size(get(s))?, get(a) as isize, get(b) as isize))
    };
    let two =
        |l: &Level| -> Result<(usize, isize)> { Ok((size(get(l.size))?, get(l.stride) as isize)) };
    let dtype = |buffer: BufferId| program.buffers[buffer as usize].dtype.0;
    let mut out = Contraction {
        acc: c.acc.0,
        a_dtype: dtype(c.a),
        b_dtype: dtype(c.b),
        batch: (c.batch.iter())
            .map(|l| three(l.size, l.a_stride, l.b_stride))
            .collect::<Result<_>>()?,
        m: c.m.iter().map(two).collect::<Result<_>>()?,
        n: c.n.iter().map(two).collect::<Result<_>>()?,
        k: (c.k.iter())
            .map(|l| three(l.size, l.a_stride, l.b_stride))
            .collect::<Result<_>>()?,
    };
    out.sort();
    Ok(out)
}

/// The right operand of a contraction at load.
pub(crate) struct RightOperand {
    pub contraction: Contraction,
    /// Elements from the start of its buffer.
    pub offset: i64,
    /// All sizes but the number of images are those of every call.
    pub convolution: bool,
}

impl RightOperand {
    /// Describes the right operand of `c` if its shape is constant; rows and batches that it does not move in may be symbolic.
    pub(crate) fn of(
        program: &Program,
        c: &Contract,
        sizes: &[Option<i64>],
    ) -> Result<Option<RightOperand>> {
        let known = |id: SizeId| sizes[id.0 as usize];
        let level = |l: &Level| known(l.size).and(known(l.stride)).is_some();
        let batches = c.batch.iter().all(|l| {
            known(l.b_stride) == Some(0) || known(l.size).and(known(l.b_stride)).is_some()
        });
        let constant = has_constant_sums(c, sizes) && batches && c.n.iter().all(level);
        let Some(offset) = known(c.b_offset).filter(|_| constant) else {
            return Ok(None);
        };
        // The packing of filters depends on everything but the number of images.
        let images = c.m.len().saturating_sub(2);
        Ok(Some(RightOperand {
            // Sizes that are not known do not matter to the operand.
            contraction: describe(program, c, &|id| known(id).unwrap_or(2))?,
            offset,
            convolution: c.m[images..].iter().all(level),
        }))
    }
}

/// Returns true if the levels that are summed over have constant sizes and strides.
fn has_constant_sums(c: &Contract, sizes: &[Option<i64>]) -> bool {
    let known = |id: SizeId| sizes[id.0 as usize];
    c.k.iter().all(|l| {
        let strides = known(l.a_stride).and(known(l.b_stride));
        known(l.size).and(strides).is_some()
    })
}

/// Packs the right operand of `c` if it is a weight (or computed from weights) of constant shape; else the left one, where the
/// engine reads the right one in place. `lent` says that the right operand is packed already, in so many bytes.
pub(crate) fn pack(
    program: &Program,
    c: &Contract,
    sizes: &[Option<i64>],
    base: &[*mut u8],
    lent: Option<usize>,
    pool: &Pool,
) -> Result<Option<Packed>> {
    let isa = inrush_cpu::detect();
    if is_weight(program, c.b, base) {
        let Some(right) = RightOperand::of(program, c, sizes)? else {
            return Ok(None);
        };
        let ptr = Operand::new(program, c.b, right.offset).at(base);
        let (contraction, convolution) = (&right.contraction, right.convolution);
        if let Some(len) = lent {
            let panels = Packed::panels(isa, contraction, convolution)?
                .ok_or_else(|| Error::internal("an operand is packed that is never packed"))?;
            // SAFETY: the source of weights has this many bytes there, which it keeps and never writes.
            return unsafe { Packed::lent(isa, &panels, ptr, len) }.map(Some);
        }
        // SAFETY: the weight's extent was checked when it was bound, and the access is inside it (the compiler's promise).
        return unsafe { Packed::right(pool, isa, contraction, ptr, convolution) };
    }
    let known = |id: SizeId| sizes[id.0 as usize];
    let level = |l: &Level| known(l.size).and(known(l.stride)).is_some();
    if is_weight(program, c.a, base) {
        let batches = c.batch.iter().all(|l| {
            known(l.a_stride) == Some(0) || known(l.size).and(known(l.a_stride)).is_some()
        });
        let Some(offset) = known(c.a_offset).filter(|_| has_constant_sums(c, sizes) && batches)
        else {
            return Ok(None);
        };
        if !c.m.iter().chain(&c.n).all(level) {
            return Ok(None);
        }
        let ptr = Operand::new(program, c.a, offset).at(base);
        let c = describe(program, c, &|id| known(id).unwrap_or(2))?;
        // SAFETY: as above.
        return unsafe { Packed::left(pool, isa, &c, ptr) };
    }
    Ok(None)
}

/// Returns true if a buffer is there at load and never changes.
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

/// Returns where results are stored in their buffer.
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

thread_local! {
    /// An epilogue's arguments, kept so that calls allocate nothing.
    static ARGS: RefCell<Vec<*mut u8>> = const { RefCell::new(Vec::new()) };
}

impl PlannedContraction {
    /// Plans the contraction for known sizes; `None` when there is nothing to compute.
    pub fn new(
        program: &Program,
        c: &Contract,
        sizes: &[i64],
        packed: Option<&Packed>,
        symbols: &[Symbol],
        threads: usize,
    ) -> Result<Option<PlannedContraction>> {
        let get = |id: SizeId| sizes[id.0 as usize];
        let description = describe(program, c, &get)?;
        let Some(plan) = Plan::new(&description, packed, inrush_cpu::detect(), threads)? else {
            return Ok(None);
        };
        let store = c.store.as_ref().map(|s| stored(c, s, &get)).transpose()?;
        let store = store.filter(|s| plan.stores(&s.at(std::ptr::null_mut())));
        reached(match &store {
            Some(_) => tally::Way::Stored,
            None => tally::Way::Epilogue,
        });
        // SAFETY: the symbol was emitted with the epilogue's signature.
        let epilogue =
            unsafe { std::mem::transmute::<Symbol, EpilogueFn>(symbols[c.epilogue as usize]) };
        Ok(Some(PlannedContraction {
            plan,
            a: Operand::new(program, c.a, get(c.a_offset)),
            b: Operand::new(program, c.b, get(c.b_offset)),
            epilogue,
            store,
            buffers: c.buffers.clone(),
            sizes: c.sizes.iter().map(|s| get(*s)).collect(),
        }))
    }

    /// Computes the results; allocates nothing but, at first, what its threads keep.
    pub fn run(&self, pointers: &[*mut u8], packed: Option<&Packed>, pool: &Pool) -> Result<()> {
        let mut args = ARGS.take();
        args.clear();
        args.extend(self.buffers.iter().map(|b| pointers[*b as usize]));
        let out = match (&self.store, args.first()) {
            (Some(store), Some(to)) => Output::Store(store.at(*to)),
            _ => Output::Epilogue(Epilogue {
                f: self.epilogue,
                args: args.as_ptr(),
                syms: self.sizes.as_ptr(),
            }),
        };
        let operands = Operands {
            a: self.a.at(pointers),
            b: self.b.at(pointers),
            packed,
        };
        // SAFETY: buffers hold what the program promises; the epilogue stores inside its block.
        let done = unsafe { self.plan.run(pool, &operands, &out) };
        ARGS.set(args);
        done
    }
}
