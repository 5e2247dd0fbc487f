//! Horizontal fusion of launches: one table of work for several independent launches, so that threads are started once.

use crate::exec::{CHUNK_COST, SERIAL_COST, with_scratch};
use crate::model::{KernelFn, Model, Symbol};
use inrush_base::Result;
use inrush_program::{BufferId, Launch};
use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering};

/// Independent launches, partitioned into work for threads.
pub(crate) struct Together {
    parts: Vec<Part>,
    /// Units of one part each.
    cuts: Vec<Cut>,
    /// Runs of cuts that a thread takes at once.
    shares: Vec<Range<usize>>,
    /// Arguments of all parts.
    arguments: usize,
    pub serial: bool,
}

struct Part {
    f: KernelFn,
    kernel: u32,
    buffers: Vec<BufferId>,
    sizes: Vec<i64>,
    scratch: usize,
    /// Where its arguments begin.
    at: usize,
}

struct Cut {
    part: usize,
    begin: i64,
    end: i64,
}

impl Together {
    /// Partitions launches that have work; returns `None` if none has any.
    pub fn new(
        launches: &[&Launch],
        sizes: &[i64],
        symbols: &[Symbol],
        threads: usize,
    ) -> Option<Together> {
        let mut out = Together {
            parts: Vec::new(),
            cuts: Vec::new(),
            shares: Vec::new(),
            arguments: 0,
            serial: threads == 1,
        };
        let up = |a: i64, b: i64| (a - 1) / b + 1;
        let size = |id: inrush_program::SizeId| sizes[id.0 as usize];
        let cost = |l: &Launch| {
            size(l.unit_cost)
                .max(1)
                .saturating_mul(size(l.units).max(0))
        };
        let total = launches.iter().fold(0i64, |t, l| t.saturating_add(cost(l)));
        out.serial |= total <= SERIAL_COST;
        // A few shares for each thread balance threads of different speed.
        let share = (total / (4 * threads as i64)).max(CHUNK_COST);
        let (mut first, mut filled) = (0, 0i64);
        for l in launches {
            let units = size(l.units);
            if units <= 0 {
                continue;
            }
            let unit = size(l.unit_cost).max(1);
            let grain = if l.serial {
                units
            } else {
                up(share, unit).clamp(1, units)
            };
            let mut begin = 0;
            while begin < units {
                let end = units.min(begin.saturating_add(grain));
                let part = out.parts.len();
                out.cuts.push(Cut { part, begin, end });
                filled = filled.saturating_add(unit.saturating_mul(end - begin));
                if filled >= share {
                    out.shares.push(first..out.cuts.len());
                    (first, filled) = (out.cuts.len(), 0);
                }
                begin = end;
            }
            // SAFETY: the symbol was emitted with this signature; its address comes from the model's own object.
            let f = unsafe { std::mem::transmute::<Symbol, KernelFn>(symbols[l.kernel as usize]) };
            out.parts.push(Part {
                f,
                kernel: l.kernel,
                buffers: l.buffers.clone(),
                sizes: l.sizes.iter().map(|s| size(*s)).collect(),
                scratch: size(l.scratch_bytes).max(0) as usize,
                at: out.arguments,
            });
            out.arguments += l.buffers.len() + 1;
        }
        if first < out.cuts.len() {
            out.shares.push(first..out.cuts.len());
        }
        (!out.parts.is_empty()).then_some(out)
    }

    /// Runs the launches. The arguments of each end with a place for the address of its scratch.
    pub fn run(&self, model: &Model, pointers: &[*mut u8]) -> Result<()> {
        let mut arguments = Vec::with_capacity(self.arguments);
        for p in &self.parts {
            arguments.extend(p.buffers.iter().map(|b| pointers[*b as usize]));
            arguments.push(std::ptr::null_mut());
        }
        let arguments = Arguments(arguments);
        // Kernel in the high half, its code in the low one.
        let failed = AtomicI64::new(0);
        let work = |shares: Range<usize>| {
            for cut in self.shares[shares]
                .iter()
                .flat_map(|s| &self.cuts[s.clone()])
            {
                let code = self.parts[cut.part].call(&arguments, cut.begin, cut.end);
                if code != 0 {
                    let kernel = self.parts[cut.part].kernel as i64;
                    failed.store(kernel << 32 | code as u32 as i64, Ordering::Relaxed);
                }
            }
        };
        if self.serial {
            work(0..self.shares.len())
        } else {
            model
                .bound
                .pool
                .parallel_for(self.shares.len(), 1, &|range| work(range))?
        }
        let failed = failed.into_inner();
        model.check((failed >> 32) as u32, failed as i32 as i64)
    }
}

/// Addresses shared with worker threads for the length of one launch.
struct Arguments(Vec<*mut u8>);
// SAFETY: the launch outlives the workers' use, and each worker writes its own ranges only.
unsafe impl Sync for Arguments {}

impl Part {
    fn call(&self, arguments: &Arguments, begin: i64, end: i64) -> i32 {
        let own = &arguments.0[self.at..=self.at + self.buffers.len()];
        // SAFETY: arguments follow the emitted signature; buffers hold what the program promises; ranges are disjoint, and
        // each thread has its own scratch.
        let call =
            |args: &[*mut u8]| unsafe { (self.f)(args.as_ptr(), self.sizes.as_ptr(), begin, end) };
        if self.scratch == 0 {
            return call(own);
        }
        with_scratch(self.scratch, |scratch| {
            let mut args = own.to_vec();
            args[self.buffers.len()] = scratch;
            call(&args)
        })
    }
}
