//! The page of a package whose targets are all GPUs: for each its key figures, its steps and its program as text.

use super::html::{STYLE, bytes, details, escape, table};
use crate::targets;
use inrush_host::program::{LibraryOp, StepKind};
use inrush_package::{GpuTarget, Package, Target};
use inrush_program::Step;

/// Returns the page.
pub(super) fn page(model: &str, package: &Package) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{0}</title><style>{STYLE}</style></head><body>\n<h1>{0}</h1>\n",
        escape(&format!("inrush: {model}"))
    );
    out.push_str(
        "<p class=\"dim\">A compiled package: it keeps its programs, neither the times of stages nor refusals.</p>\n",
    );
    for t in &package.targets {
        if let Target::Gpu(g) = t {
            out.push_str(&format!("<h2>{}</h2>\n", escape(&t.to_string())));
            out.push_str(&summary(package, g));
            out.push_str(&steps(g));
        }
    }
    let text = targets::text(package, "summary");
    out.push_str("<h2>Programs</h2>\n");
    let text = format!("<pre>{}</pre>\n", escape(&text));
    out.push_str(&details("all programs as text", &text));
    out.push_str("</body></html>\n");
    out
}

/// Returns the table of key figures of a target.
fn summary(package: &Package, t: &GpuTarget) -> String {
    let program = &t.lowered.program;
    let launches: usize = (program.steps.iter())
        .map(|s| match &s.kind {
            StepKind::Segment(s) => s.program.steps.len(),
            _ => 0,
        })
        .sum();
    let code: usize = (t.kernels.iter())
        .map(|k| package.code(&k.code).len())
        .sum();
    let ptx: usize = (t.kernels.iter().filter_map(|k| k.ptx.as_ref()))
        .map(|c| package.code(c).len())
        .sum();
    let rows = [
        [
            "a call".to_string(),
            format!(
                "{launches} launches, {} products by a library",
                t.products()
            ),
        ],
        ["kernels".into(), t.kernels.len().to_string()],
        ["machine code".into(), bytes(code as i64)],
        ["PTX".into(), bytes(ptx as i64)],
        ["weights".into(), program.constants.len().to_string()],
    ];
    let cells = rows.map(|r| r.iter().map(|c| escape(c)).collect());
    table(&["", ""], cells)
}

/// Returns the table of the steps of a call.
fn steps(t: &GpuTarget) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |what: &str, how: &str| {
        rows.push(vec![
            (rows.len() + 1).to_string(),
            escape(what),
            format!("<code>{}</code>", escape(how)),
        ]);
    };
    for step in &t.lowered.program.steps {
        match &step.kind {
            StepKind::Segment(s) => {
                for step in &s.program.steps {
                    if let Step::Launch(l) = step {
                        let kernel = &s.program.kernels[l.kernel as usize];
                        row(&kernel.title, &kernel.symbol);
                    }
                }
            }
            StepKind::Library(l) => row(
                "a product by cuBLAS",
                match l.op {
                    LibraryOp::Mm => "mm",
                    LibraryOp::Bmm => "bmm",
                    _ => "library",
                },
            ),
            StepKind::View(_) | StepKind::Call(_) | StepKind::Kernel(_) => {}
        }
    }
    table(&["step", "what", "kernel"], rows)
}
