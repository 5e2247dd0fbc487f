//! Placement of values in memory, found once for a program.

use crate::program::{HostProgram, Out, StepKind, UserKernel};
use inrush_program::{Output, Place, Program};

/// The memory that a slot's value is in.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Storage {
    /// Nothing ever puts a tensor there.
    Absent,
    /// A value of the host's: an argument, or the result of a call.
    Host,
    /// In the arena: only native steps touch it.
    Arena,
    /// A tensor of its own.
    Own,
    /// In the memory of another slot.
    Inside(usize),
}

pub struct Placement {
    pub storage: Vec<Storage>,
    /// True if the host sees the slot, or a view of it.
    pub seen: Vec<bool>,
    /// The last step that needs the memory; outputs are needed for ever.
    pub last: Vec<usize>,
    /// By step: slots whose memory or object nothing needs after it.
    pub frees: Vec<Vec<usize>>,
    /// Ranges of steps whose sizes are known before the first of them runs.
    pub regions: Vec<std::ops::Range<usize>>,
}

/// The buffer that holds an output of a program.
pub enum Inside {
    Itself,
    Input(usize),
    Output(usize),
}

/// Returns the buffer that holds output `k` of a program.
pub fn inside(program: &Program, k: usize) -> Option<Inside> {
    let Output::Tensor { buffer, .. } = program.outputs.get(k)? else {
        return None;
    };
    let mut b = *buffer;
    loop {
        match &program.buffers[b as usize].place {
            Place::Alias { of, .. } => b = *of,
            Place::Output { output } if *output as usize == k => return Some(Inside::Itself),
            Place::Output { output } => return Some(Inside::Output(*output as usize)),
            Place::Input { input } => return Some(Inside::Input(*input as usize)),
            _ => return None,
        }
    }
}

impl Placement {
    pub fn of(program: &HostProgram) -> Placement {
        let n = program.slots;
        let mut h = Placement {
            storage: vec![Storage::Absent; n],
            seen: vec![false; n],
            last: vec![0; n],
            frees: vec![Vec::new(); program.steps.len()],
            regions: Vec::new(),
        };
        let regions = regions(program);
        let region_of = |at: usize| regions.iter().position(|r| r.contains(&at));
        let args = program.inputs.iter().copied();
        for s in args.chain(program.constants.iter().map(|c| c.0)) {
            h.storage[s] = Storage::Host;
        }
        let mut defined = vec![None; n];
        let reads = Reads::of(program);
        for (at, step) in program.steps.iter().enumerate() {
            let outs: &[usize] = match &step.kind {
                StepKind::Segment(s) => &s.outputs,
                StepKind::Call(c) => &c.outs,
                StepKind::Work(w) => w.fills(),
                StepKind::Library(l) => &l.outs,
                StepKind::Kernel(k) => &k.outs,
                StepKind::View(v) => std::slice::from_ref(&v.value),
            };
            for s in outs {
                defined[*s] = Some(at);
            }
            match &step.kind {
                StepKind::Segment(s) => {
                    for (k, slot) in s.outputs.iter().enumerate() {
                        h.storage[*slot] = match inside(&s.program, k) {
                            None => Storage::Absent,
                            Some(Inside::Itself) => Storage::Arena,
                            Some(Inside::Input(i)) => s
                                .inputs
                                .get(i)
                                .map_or(Storage::Absent, |i| Storage::Inside(*i)),
                            Some(Inside::Output(o)) => s
                                .outputs
                                .get(o)
                                .map_or(Storage::Absent, |o| Storage::Inside(*o)),
                        };
                    }
                }
                StepKind::Call(c) => c.outs.iter().for_each(|s| h.storage[*s] = Storage::Host),
                StepKind::Work(w) => w.fills().iter().for_each(|s| h.storage[*s] = Storage::Host),
                StepKind::Library(l) => {
                    let storage = match l.op.writes_out() {
                        true => Storage::Arena,
                        false => Storage::Own,
                    };
                    l.outs.iter().for_each(|s| h.storage[*s] = storage);
                }
                StepKind::Kernel(k) => {
                    for (w, out) in k.written.iter().zip(&k.outs) {
                        h.storage[*out] = match k.tensors[*w] {
                            // A kernel that takes an address for a multiple of 16 bytes gets a copy of what may begin elsewhere, and
                            // its writes would stay there.
                            Some(s)
                                if is_last(&h.storage, &reads, at, k, *w, s)
                                    && !(k.aligned.contains(w)
                                        && matches!(h.storage[s], Storage::Inside(_))) =>
                            {
                                Storage::Inside(s)
                            }
                            _ => Storage::Arena,
                        };
                    }
                }
                StepKind::View(v) => h.storage[v.value] = Storage::Inside(v.base),
            }
        }
        // Backwards, so that what is known of a view reaches what it looks at.
        for o in &program.outputs {
            if let Out::Slot(s) | Out::Mutation { value: s, .. } = o {
                h.seen[*s] = true;
                h.last[*s] = usize::MAX;
            }
        }
        for s in &program.symbols {
            if let Some(at) = s.after {
                h.seen[s.slot] = true;
                // The symbol is read when the step is over.
                h.last[s.slot] = h.last[s.slot].max(at + 1);
            }
        }
        for (at, step) in program.steps.iter().enumerate().rev() {
            let here = region_of(at);
            let read = |h: &mut Placement, s: usize, python: bool| {
                h.last[s] = h.last[s].max(at);
                let elsewhere = defined[s].is_some_and(|d| region_of(d) != here);
                h.seen[s] |= python || elsewhere;
            };
            let outs: Vec<usize> = match &step.kind {
                StepKind::Segment(s) => {
                    s.inputs.iter().for_each(|i| read(&mut h, *i, false));
                    s.outputs.clone()
                }
                StepKind::Call(c) => {
                    c.reads().into_iter().for_each(|s| read(&mut h, s, true));
                    c.outs.clone()
                }
                StepKind::Work(w) => {
                    w.reads().into_iter().for_each(|s| read(&mut h, s, true));
                    w.fills().to_vec()
                }
                StepKind::Library(l) => {
                    for s in l.inputs.iter().flatten() {
                        read(&mut h, *s, false);
                    }
                    l.outs.clone()
                }
                StepKind::Kernel(k) => {
                    for s in k.tensors.iter().flatten() {
                        read(&mut h, *s, false);
                    }
                    k.outs.clone()
                }
                StepKind::View(v) => vec![v.value],
            };
            for s in outs.into_iter().rev() {
                h.last[s] = h.last[s].max(at);
                if let Storage::Inside(base) = h.storage[s] {
                    h.seen[base] |= h.seen[s];
                    h.last[base] = h.last[base].max(h.last[s]);
                    let elsewhere = defined[base].is_some_and(|d| region_of(d) != here);
                    h.seen[base] |= elsewhere;
                }
            }
        }
        let mut kept = vec![false; n];
        if program.gpu.as_ref().is_some_and(|g| g.keeps_arguments) {
            let constants = program.constants.iter().map(|c| &c.0);
            program
                .inputs
                .iter()
                .chain(constants)
                .for_each(|s| kept[*s] = true);
        }
        for (s, kept) in kept.into_iter().enumerate() {
            if h.storage[s] == Storage::Arena && h.seen[s] {
                h.storage[s] = Storage::Own;
            }
            let object = match h.storage[s] {
                Storage::Own | Storage::Host => true,
                Storage::Inside(_) => h.seen[s],
                Storage::Arena | Storage::Absent => false,
            };
            if object
                && !kept
                && let Some(frees) = h.frees.get_mut(h.last[s])
            {
                frees.push(s);
            }
        }
        h.regions = regions;
        h
    }
}

/// Who reads which slot.
struct Reads {
    /// The last step that reads it by itself; outputs are read for ever.
    last: Vec<usize>,
    /// Python reads it: it may keep what it saw.
    python: Vec<bool>,
}

impl Reads {
    fn of(program: &HostProgram) -> Reads {
        let mut r = Reads {
            last: vec![0; program.slots],
            python: vec![false; program.slots],
        };
        for (at, step) in program.steps.iter().enumerate() {
            let read: Vec<usize> = match &step.kind {
                StepKind::Segment(s) => s.inputs.clone(),
                StepKind::Call(c) => c.reads(),
                StepKind::Work(w) => w.reads(),
                StepKind::Library(l) => l.inputs.iter().flatten().copied().collect(),
                StepKind::Kernel(k) => k.tensors.iter().flatten().copied().collect(),
                StepKind::View(v) => vec![v.base],
            };
            for s in read {
                r.last[s] = at;
                r.python[s] |= matches!(step.kind, StepKind::Call(_) | StepKind::Work(_));
            }
        }
        let outputs = program.outputs.iter().filter_map(|o| match o {
            Out::Slot(s) | Out::Mutation { value: s, .. } => Some(*s),
            _ => None,
        });
        for s in outputs.chain(program.symbols.iter().map(|s| s.slot)) {
            r.last[s] = usize::MAX;
        }
        r
    }
}

/// Returns true if nothing needs what a tensor of a user's kernel held before the kernel in step `at` wrote it, so that it can write
/// there: the memory is this call's own, and neither a later step nor another argument looks at it.
fn is_last(
    storage: &[Storage],
    reads: &Reads,
    at: usize,
    k: &UserKernel,
    w: usize,
    slot: usize,
) -> bool {
    let root = |mut s: usize| {
        while let Storage::Inside(base) = storage[s] {
            s = base;
        }
        s
    };
    let memory = root(slot);
    let own = matches!(storage[memory], Storage::Arena | Storage::Own);
    let others =
        (k.tensors.iter().enumerate()).any(|(t, s)| t != w && s.is_some_and(|s| root(s) == memory));
    let read = |s: usize| reads.last[s] > at || reads.python[s];
    let inside =
        (0..storage.len()).filter(|s| storage[*s] != Storage::Absent && root(*s) == memory);
    own && !others && !inside.into_iter().any(read)
}

fn regions(program: &HostProgram) -> Vec<std::ops::Range<usize>> {
    let mut out = Vec::new();
    let mut begin = 0;
    for (at, step) in program.steps.iter().enumerate() {
        if step.binds_symbols || at + 1 == program.steps.len() {
            out.push(begin..at + 1);
            begin = at + 1;
        }
    }
    out
}
