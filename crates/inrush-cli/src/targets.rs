//! The targets of a package as text.

use inrush_host::program::{LibraryOp, Lowered, StepKind};
use inrush_package::{CpuTarget, GpuTarget, Package, Target};
use inrush_program::parts::outline::outline;
use inrush_program::parts::{Custom, Work, operator_calls};
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
            for o in operators(t) {
                _ = writeln!(out, "  the host registers {o}");
            }
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
            Target::Gpu(t) => steps(&t.lowered, 0, &mut out),
        }
    }
    out
}

/// Returns the operators of the user's that a target calls, each once.
pub(crate) fn operators(t: &Target) -> Vec<&str> {
    let calls: Vec<&Custom> = match t {
        Target::Cpu(t) => operator_calls(&t.program),
        Target::Gpu(t) => t.lowered.operator_calls(),
    };
    let mut all: Vec<&str> = calls.into_iter().map(|c| c.operator.as_str()).collect();
    all.sort_unstable();
    all.dedup();
    all
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
        _ if t.sources.is_some() => return source(package, t),
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
        "{} kernels, {} products by a library, {code} bytes of machine code, {of_ptx}{}",
        t.kernels.len(),
        t.products(),
        on_host(t)
    )
}

/// Returns what a target for a GPU runs on the host.
fn on_host(t: &GpuTarget) -> String {
    match t.lowered.host_functions() {
        names if names.is_empty() => String::new(),
        names => format!(", runs on the host: {}", names.join(", ")),
    }
}

/// Returns what a target for a GPU consists of whose kernels are built where it is opened.
fn source(package: &Package, t: &GpuTarget) -> String {
    let sources = t.sources.as_deref().unwrap_or_default();
    let bytes: usize = sources.iter().map(|s| package.code(&s.text).len()).sum();
    let candidates: usize = sources.iter().map(|s| s.candidates.len()).sum();
    format!(
        "{} kernels, {} products by a library, {bytes} bytes of source, which Triton builds where the package is opened, {candidates} \
         more candidates{}",
        sources.len(),
        t.products(),
        on_host(t)
    )
}

fn dotted(capability: u32) -> String {
    format!("{}.{}", capability / 10, capability % 10)
}

/// Returns the steps of a host program, and of those that its control flow calls.
fn steps(lowered: &Lowered, depth: usize, out: &mut String) {
    let pad = "  ".repeat(depth);
    let slots = |all: &[usize]| {
        let names: Vec<String> = all.iter().map(|s| format!("%{s}")).collect();
        names.join(", ")
    };
    for step in &lowered.program.steps {
        match &step.kind {
            StepKind::Segment(s) => {
                _ = writeln!(
                    out,
                    "{pad}{} = segment({})",
                    slots(&s.outputs),
                    slots(&s.inputs)
                );
                for line in s.program.to_string().lines() {
                    _ = writeln!(out, "{pad}  {line}");
                }
            }
            StepKind::Library(l) => {
                let inputs: Vec<usize> = l.inputs.iter().flatten().copied().collect();
                let op = match l.op {
                    LibraryOp::Mm => "mm",
                    LibraryOp::Bmm => "bmm",
                    _ => "library",
                };
                _ = writeln!(out, "{pad}{} = {op}({})", slots(&l.outs), slots(&inputs));
            }
            StepKind::View(v) => {
                _ = writeln!(out, "{pad}%{} = view(%{})", v.value, v.base);
            }
            StepKind::Work(w) => {
                let host = match **w {
                    Work::Dynamic(_) | Work::Library { .. } => "on the host, ",
                    _ => "",
                };
                let origin: Vec<&str> = w.origin().split_whitespace().collect();
                _ = writeln!(
                    out,
                    "{pad}{} = {}({}), {host}{}",
                    slots(w.fills()),
                    w.title(),
                    slots(&w.reads()),
                    origin.join(" ")
                );
                for (name, body) in w.bodies() {
                    _ = writeln!(out, "{pad}  {name}:");
                    steps(&body.program, depth + 2, out);
                }
            }
            StepKind::Kernel(k) => {
                let tensors: Vec<usize> = k.tensors.iter().flatten().copied().collect();
                let origin: Vec<&str> = k.origin.split_whitespace().collect();
                _ = writeln!(
                    out,
                    "{pad}{} = triton({}), {}, {}",
                    slots(&k.outs),
                    slots(&tensors),
                    k.title,
                    origin.join(" ")
                );
            }
            StepKind::Call(_) => {}
        }
    }
}
