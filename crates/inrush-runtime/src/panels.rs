//! Weights that are stored in panels: which those are, decided when a package is written, and checked when it is loaded.
//!
//! A weight qualifies if nothing but products reads it, each as its right operand, all in the same panels, and if the panels
//! hold every element once. Then its plain order is needed by no call, and the package stores the panels instead.

use crate::contract::RightOperand;
use crate::model::root;
use inrush_base::{Isa, Result};
use inrush_cpu::{Affine, Packed, RhsPanels};
use inrush_package::{Axis, Cpu, Panels};
use inrush_program::{BufferId, Contract, Output, Place, Program, Step};
use std::collections::BTreeMap;

/// Returns the weights, by name, that a package for `cpu` alone stores in panels. None for another architecture, whose engine this
/// build does not hold.
///
/// # Errors
/// Contractions that the engine refuses.
pub fn panels_for(program: &Program, cpu: &Cpu) -> Result<BTreeMap<String, Panels>> {
    match Isa::parse(&cpu.isa).filter(|_| cpu.arch == std::env::consts::ARCH) {
        Some(isa) => panels(program, isa),
        None => Ok(BTreeMap::new()),
    }
}

/// Returns the weights, by name, that a CPU of level `isa` reads in panels only.
pub(crate) fn panels(program: &Program, isa: Isa) -> Result<BTreeMap<String, Panels>> {
    let mut out = BTreeMap::new();
    // The parts of a program in parts bind weights of their own.
    if program.parts.is_some() {
        return Ok(out);
    }
    // Several buffers of a weight read it as several tensors.
    let mut buffers: BTreeMap<&str, usize> = BTreeMap::new();
    for b in &program.buffers {
        if let Place::Weight(w) = &b.place {
            *buffers.entry(&w.name).or_default() += 1;
        }
    }
    for (id, panels) in of_buffers(program, isa)? {
        let b = &program.buffers[id as usize];
        let (Place::Weight(w), Some(panels)) = (&b.place, panels) else {
            continue;
        };
        let whole = panels.storage() == elements(&w.sizes);
        if whole && !b.written && buffers.get(w.name.as_str()) == Some(&1) {
            out.insert(w.name.clone(), panels);
        }
    }
    Ok(out)
}

/// Returns the product of sizes; `None` for one that cannot be counted.
fn elements(sizes: &[i64]) -> Option<usize> {
    (sizes.iter()).try_fold(1usize, |n, s| n.checked_mul(usize::try_from(*s).ok()?))
}

/// Returns for each buffer of a weight the panels that all its readers want; `None` where they want others, or its plain order.
fn of_buffers(program: &Program, isa: Isa) -> Result<BTreeMap<BufferId, Option<Panels>>> {
    let mut wanted: BTreeMap<BufferId, Option<Panels>> = BTreeMap::new();
    let sizes = crate::bind::constant_sizes(program);
    let mut want = |b: BufferId, panels: Option<Panels>| {
        let (owner, place) = root(program, b);
        if matches!(place, Place::Weight(_)) {
            let all = wanted.entry(owner).or_insert(panels);
            if *all != panels {
                *all = None;
            }
        }
    };
    for step in &program.load_steps {
        reads(step).for_each(|b| want(b, None));
    }
    for step in &program.steps {
        let Step::Contract(c) = step else {
            reads(step).for_each(|b| want(b, None));
            continue;
        };
        want(c.b, of_contraction(program, c, &sizes, isa)?);
        want(c.a, None);
        c.buffers.iter().for_each(|b| want(*b, None));
    }
    for o in &program.outputs {
        if let Output::Tensor { buffer, .. } = o {
            want(*buffer, None);
        }
    }
    Ok(wanted)
}

/// Returns all buffers of a step.
fn reads(step: &Step) -> Box<dyn Iterator<Item = BufferId> + '_> {
    match step {
        Step::Launch(l) => Box::new(l.buffers.iter().copied()),
        Step::Library(c) => Box::new(c.inputs.iter().chain(&c.outputs).map(|o| o.buffer)),
        Step::Contract(c) => Box::new([c.a, c.b].into_iter().chain(c.buffers.iter().copied())),
    }
}

/// Returns the panels of a contraction's right operand; `None` unless it begins its storage and has one stride an axis.
fn of_contraction(
    program: &Program,
    c: &Contract,
    sizes: &[Option<i64>],
    isa: Isa,
) -> Result<Option<Panels>> {
    let Some(right) = RightOperand::of(program, c, sizes)? else {
        return Ok(None);
    };
    let mut at = c.b;
    let mut begins = right.offset == 0;
    while let Place::Alias { of, offset } = program.buffers[at as usize].place {
        let same = program.buffers[of as usize].dtype == program.buffers[at as usize].dtype;
        begins &= same && sizes[offset.0 as usize] == Some(0);
        at = of;
    }
    if !begins {
        return Ok(None);
    }
    let packed = Packed::panels(isa, &right.contraction, right.convolution)?;
    Ok(packed.and_then(|p| stored(&p)))
}

/// Returns the engine's panels as a package stores them; `None` for maps of several levels, and for those that go backwards.
fn stored(p: &RhsPanels) -> Option<Panels> {
    let axis = |map: &Affine| {
        let step = usize::try_from(map.stride()?).ok()?;
        Some(Axis {
            size: map.len(),
            step: if map.len() == 1 { 0 } else { step },
        })
    };
    let panels = Panels {
        matrices: axis(&p.matrices)?,
        rows: axis(&p.k)?,
        columns: axis(&p.cols)?,
        width: p.width,
        last: p.last,
    };
    panels.storage().map(|_| panels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use inrush_base::DType;
    use inrush_package::{Options, Package, TargetParts, WeightData};

    /// A product with a weight `w` of 6 x 5, whose rows are its columns.
    const PRODUCT: &str = include_str!("../../inrush-package/tests/product.txt");

    fn program(edit: &[(&str, &str)]) -> Program {
        let mut text = PRODUCT.to_string();
        for (from, to) in edit {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        let program = inrush_program::text::parse(&text).expect("a program");
        program.verify().expect("a sound program");
        program
    }

    fn cpu(isa: Isa) -> Cpu {
        Cpu {
            arch: std::env::consts::ARCH.into(),
            os: std::env::consts::OS.into(),
            isa: isa.name().into(),
        }
    }

    /// Returns a package of the program for a level, with its weight in that level's panels.
    fn package(program: &Program, isa: Isa) -> Package {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.inrush");
        let options = Options {
            panels: panels_for(program, &cpu(isa)).expect("panels"),
            ..Options::default()
        };
        let weight = |_: &str| {
            Some(WeightData {
                dtype: DType::F32,
                sizes: &[6, 5],
                strides: &[5, 1],
                bytes: &[1; 120],
            })
        };
        let target = TargetParts::Cpu {
            cpu: cpu(isa),
            program,
            object: b"no machine code",
        };
        inrush_package::write_with(&path, &[target], &weight, &options).expect("a package");
        Package::open(&path).expect("a package")
    }

    #[test]
    fn panels_of_this_level_are_used_where_they_are() {
        let program = program(&[]);
        let lent = |isa| crate::model::lends(&program, &package(&program, isa), "w");
        assert!(lent(inrush_cpu::detect()));
        // Panels of as many columns serve either level.
        let width = |isa| panels(&program, isa).expect("panels")["w"];
        let same = width(Isa::Scalar) == width(inrush_cpu::detect());
        assert_eq!(lent(Isa::Scalar), same);
    }

    #[test]
    fn other_readers_keep_the_plain_order() {
        let found = |p: &Program| panels(p, Isa::Scalar).expect("panels").contains_key("w");
        assert!(found(&program(&[])));
        let launch = "launch k1 [b1, b2] sizes [] units 1 cost z1 scratch 0 from []";
        let output = "output 0: b2 f32[3, 6] strides [6, 1]";
        let kernels = (
            "kernel k0 function0 linear checks []",
            "kernel k0 function0 linear checks []\nkernel k1 function1 copy checks []",
        );
        let half = ("[5: 1 1]", "[3: 1 1]");
        for (edit, why) in [
            (
                vec![kernels, (output, &*format!("{launch}\n{output}"))],
                "a kernel reads it",
            ),
            (
                vec![(output, "output 0: b1 f32[6, 5] strides [5, 1]")],
                "it is an output",
            ),
            (
                vec![("-> k0 [b2]", "-> k0 [b1, b2]")],
                "an epilogue reads it",
            ),
            (
                vec![("b0 at 0, b1", "b1 at 0, b1")],
                "it is the left operand too",
            ),
            (vec![half], "a product reads a part of it"),
            (
                vec![("b1 at 0 batch", "b1 at 1 batch")],
                "a product begins elsewhere",
            ),
            (
                vec![("f32 z5 bytes =", "f32 z5 bytes written =")],
                "calls write it",
            ),
        ] {
            assert!(!found(&program(&edit)), "{why}");
        }
    }

    #[test]
    fn other_architectures_keep_the_plain_order() {
        let mut other = cpu(Isa::Scalar);
        other.arch = "riscv64".into();
        assert!(
            panels_for(&program(&[]), &other)
                .expect("panels")
                .is_empty()
        );
    }
}
