//! Where each value of a recipe lives, found once for a recipe.

use crate::recipe::{Out, Recipe, UserKernel, What};
use inrush_program::{Output, Place, Program};

/// Where a slot's value is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Home {
    /// Nothing ever puts a tensor there.
    Nowhere,
    /// A Python object: an argument, or the result of a call.
    Python,
    /// In the arena: only native steps touch it.
    Arena,
    /// A tensor of its own.
    Own,
    /// In the memory of another slot.
    Inside(usize),
}

pub struct Homes {
    pub home: Vec<Home>,
    /// Whether Python sees the slot, or a view of it.
    pub seen: Vec<bool>,
    /// The last step that needs the memory; outputs are needed for ever.
    pub last: Vec<usize>,
    /// By step: slots whose memory or object nothing needs after it.
    pub frees: Vec<Vec<usize>>,
    /// Ranges of steps whose sizes are known before the first of them runs.
    pub stretches: Vec<std::ops::Range<usize>>,
}

/// What an output of a program lies in.
pub enum Inside {
    Itself,
    Input(usize),
    Output(usize),
}

/// Where output `k` of a program lies.
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

impl Homes {
    pub fn of(recipe: &Recipe) -> Homes {
        let n = recipe.slots;
        let mut h = Homes {
            home: vec![Home::Nowhere; n],
            seen: vec![false; n],
            last: vec![0; n],
            frees: vec![Vec::new(); recipe.steps.len()],
            stretches: Vec::new(),
        };
        let stretches = stretches(recipe);
        let stretch_of = |at: usize| stretches.iter().position(|r| r.contains(&at));
        let args = recipe.inputs.iter().copied();
        for s in args.chain(recipe.constants.iter().map(|c| c.0)) {
            h.home[s] = Home::Python;
        }
        let mut defined = vec![None; n];
        let reads = Reads::of(recipe);
        for (at, step) in recipe.steps.iter().enumerate() {
            let outs: &[usize] = match &step.what {
                What::Segment(s) => &s.outputs,
                What::Call(c) => &c.outs,
                What::Library(l) => &l.outs,
                What::Kernel(k) => &k.outs,
                What::View(v) => std::slice::from_ref(&v.value),
            };
            for s in outs {
                defined[*s] = Some(at);
            }
            match &step.what {
                What::Segment(s) => {
                    for (k, slot) in s.outputs.iter().enumerate() {
                        h.home[*slot] = match inside(&s.program, k) {
                            None => Home::Nowhere,
                            Some(Inside::Itself) => Home::Arena,
                            Some(Inside::Input(i)) => {
                                s.inputs.get(i).map_or(Home::Nowhere, |i| Home::Inside(*i))
                            }
                            Some(Inside::Output(o)) => {
                                s.outputs.get(o).map_or(Home::Nowhere, |o| Home::Inside(*o))
                            }
                        };
                    }
                }
                What::Call(c) => c.outs.iter().for_each(|s| h.home[*s] = Home::Python),
                What::Library(l) => {
                    let home = match l.op.writes_out() {
                        true => Home::Arena,
                        false => Home::Own,
                    };
                    l.outs.iter().for_each(|s| h.home[*s] = home);
                }
                What::Kernel(k) => {
                    for (w, out) in k.written.iter().zip(&k.outs) {
                        h.home[*out] = match k.tensors[*w] {
                            Some(s) if is_last(&h.home, &reads, at, k, *w, s) => Home::Inside(s),
                            _ => Home::Arena,
                        };
                    }
                }
                What::View(v) => h.home[v.value] = Home::Inside(v.base),
            }
        }
        // Backwards, so that what is known of a view reaches what it looks at.
        for o in &recipe.outputs {
            if let Out::Slot(s) = o {
                h.seen[*s] = true;
                h.last[*s] = usize::MAX;
            }
        }
        for s in &recipe.symbols {
            if let Some(at) = s.after {
                h.seen[s.slot] = true;
                // The symbol is read when the step is over.
                h.last[s.slot] = h.last[s.slot].max(at + 1);
            }
        }
        for (at, step) in recipe.steps.iter().enumerate().rev() {
            let here = stretch_of(at);
            let read = |h: &mut Homes, s: usize, python: bool| {
                h.last[s] = h.last[s].max(at);
                let elsewhere = defined[s].is_some_and(|d| stretch_of(d) != here);
                h.seen[s] |= python || elsewhere;
            };
            let outs: Vec<usize> = match &step.what {
                What::Segment(s) => {
                    s.inputs.iter().for_each(|i| read(&mut h, *i, false));
                    s.outputs.clone()
                }
                What::Call(c) => {
                    c.reads().into_iter().for_each(|s| read(&mut h, s, true));
                    c.outs.clone()
                }
                What::Library(l) => {
                    for s in l.inputs.iter().flatten() {
                        read(&mut h, *s, false);
                    }
                    l.outs.clone()
                }
                What::Kernel(k) => {
                    for s in k.tensors.iter().flatten() {
                        read(&mut h, *s, false);
                    }
                    k.outs.clone()
                }
                What::View(v) => vec![v.value],
            };
            for s in outs.into_iter().rev() {
                h.last[s] = h.last[s].max(at);
                if let Home::Inside(base) = h.home[s] {
                    h.seen[base] |= h.seen[s];
                    h.last[base] = h.last[base].max(h.last[s]);
                    let elsewhere = defined[base].is_some_and(|d| stretch_of(d) != here);
                    h.seen[base] |= elsewhere;
                }
            }
        }
        for s in 0..n {
            if h.home[s] == Home::Arena && h.seen[s] {
                h.home[s] = Home::Own;
            }
            let object = match h.home[s] {
                Home::Own | Home::Python => true,
                Home::Inside(_) => h.seen[s],
                Home::Arena | Home::Nowhere => false,
            };
            if object && let Some(frees) = h.frees.get_mut(h.last[s]) {
                frees.push(s);
            }
        }
        h.stretches = stretches;
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
    fn of(recipe: &Recipe) -> Reads {
        let mut r = Reads {
            last: vec![0; recipe.slots],
            python: vec![false; recipe.slots],
        };
        for (at, step) in recipe.steps.iter().enumerate() {
            let read: Vec<usize> = match &step.what {
                What::Segment(s) => s.inputs.clone(),
                What::Call(c) => c.reads(),
                What::Library(l) => l.inputs.iter().flatten().copied().collect(),
                What::Kernel(k) => k.tensors.iter().flatten().copied().collect(),
                What::View(v) => vec![v.base],
            };
            for s in read {
                r.last[s] = at;
                r.python[s] |= matches!(step.what, What::Call(_));
            }
        }
        let outputs = recipe.outputs.iter().filter_map(|o| match o {
            Out::Slot(s) => Some(*s),
            _ => None,
        });
        for s in outputs.chain(recipe.symbols.iter().map(|s| s.slot)) {
            r.last[s] = usize::MAX;
        }
        r
    }
}

/// Whether nothing needs what a tensor of a user's kernel held before the kernel in step `at` wrote it, so that it can write
/// there: the memory is this call's own, and neither a later step nor another argument looks at it.
fn is_last(home: &[Home], reads: &Reads, at: usize, k: &UserKernel, w: usize, slot: usize) -> bool {
    let root = |mut s: usize| {
        while let Home::Inside(base) = home[s] {
            s = base;
        }
        s
    };
    let memory = root(slot);
    let own = matches!(home[memory], Home::Arena | Home::Own);
    let others =
        (k.tensors.iter().enumerate()).any(|(t, s)| t != w && s.is_some_and(|s| root(s) == memory));
    let read = |s: usize| reads.last[s] > at || reads.python[s];
    let inside = (0..home.len()).filter(|s| home[*s] != Home::Nowhere && root(*s) == memory);
    own && !others && !inside.into_iter().any(read)
}

fn stretches(recipe: &Recipe) -> Vec<std::ops::Range<usize>> {
    let mut out = Vec::new();
    let mut begin = 0;
    for (at, step) in recipe.steps.iter().enumerate() {
        if step.learns || at + 1 == recipe.steps.len() {
            out.push(begin..at + 1);
            begin = at + 1;
        }
    }
    out
}
