//! The targets of a package as text.

use inrush_host::program::{LibraryOp, StepKind};
use inrush_package::{CpuTarget, GpuTarget, Package, Target};
use inrush_program::parts::outline::outline;
use std::fmt::Write;

/// Returns the text of a package's targets: a line for each, then their programs.
pub(crate) fn text(package: &Package, stage: &str) -> String {
    let mut out = String::new();
    // A package for one CPU reads as its program does.
    let plain = matches!(package.targets.as_slice(), [Target::Cpu(_)]) && stage == "wrap";
    if !plain {
        for t in &package.targets {
            let line = match t {
                Target::Cpu(t) => cpu(package, t),
                Target::Gpu(t) => gpu(package, t),
            };
            _ = writeln!(out, "target {t}: {line}");
        }
    }
    for t in &package.targets {
        if !plain {
            _ = writeln!(out, "\nprogram for {t}");
        }
        match t {
            Target::Cpu(t) if t.program.parts.is_some() && stage == "summary" => {
                for line in outline(&t.program) {
                    _ = writeln!(out, "{line}");
                }
            }
            Target::Cpu(t) => out.push_str(&t.program.to_string()),
            Target::Gpu(t) => out.push_str(&steps(t)),
        }
    }
    out
}

/// Returns what a target for a CPU consists of.
fn cpu(package: &Package, t: &CpuTarget) -> String {
    let steps = match &t.program.parts {
        Some(parts) => format!("{} parts", parts.steps.len()),
        None => format!("{} steps", t.program.steps.len()),
    };
    let code = package.code(&t.object).len();
    format!("{steps}, {code} bytes of machine code")
}

/// Returns what a target for a GPU consists of.
fn gpu(package: &Package, t: &GpuTarget) -> String {
    let bytes = |code: &inrush_package::Code| package.code(code).len();
    let code: usize = t.kernels.iter().map(|k| bytes(&k.code)).sum();
    let ptx: usize = (t.kernels.iter().filter_map(|k| k.ptx.as_ref()))
        .map(bytes)
        .sum();
    let of_ptx = match t.ptx {
        None => "no PTX".to_string(),
        Some(p) if p.specific => format!(
            "{ptx} of PTX for compute capability {} alone",
            dotted(p.capability)
        ),
        Some(p) => format!(
            "{ptx} of PTX for compute capability {} and later",
            dotted(p.capability)
        ),
    };
    format!(
        "{} kernels, {} products by a library, {code} bytes of machine code, {of_ptx}",
        t.kernels.len(),
        t.products()
    )
}

fn dotted(capability: u32) -> String {
    format!("{}.{}", capability / 10, capability % 10)
}

/// Returns the steps of a host program.
fn steps(t: &GpuTarget) -> String {
    let mut out = String::new();
    let slots = |all: &[usize]| {
        let names: Vec<String> = all.iter().map(|s| format!("%{s}")).collect();
        names.join(", ")
    };
    for step in &t.lowered.program.steps {
        match &step.kind {
            StepKind::Segment(s) => {
                _ = writeln!(out, "{} = segment({})", slots(&s.outputs), slots(&s.inputs));
                for line in s.program.to_string().lines() {
                    _ = writeln!(out, "  {line}");
                }
            }
            StepKind::Library(l) => {
                let inputs: Vec<usize> = l.inputs.iter().flatten().copied().collect();
                let op = match l.op {
                    LibraryOp::Mm => "mm",
                    LibraryOp::Bmm => "bmm",
                    _ => "library",
                };
                _ = writeln!(out, "{} = {op}({})", slots(&l.outs), slots(&inputs));
            }
            StepKind::View(v) => {
                _ = writeln!(out, "%{} = view(%{})", v.value, v.base);
            }
            StepKind::Call(_) | StepKind::Kernel(_) => {}
        }
    }
    out
}
