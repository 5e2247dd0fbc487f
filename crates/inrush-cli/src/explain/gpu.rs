//! The page of a package whose targets are all GPUs: for each its key figures, its steps and its program as text.

use super::html::{STYLE, bytes, details, escape, table};
use crate::targets;
use inrush_host::program::{LibraryOp, Lowered, StepKind};
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
    let launches = t.lowered.launches();
    let host = t.lowered.host_functions().join(", ");
    let code: usize = (t.kernels.iter())
        .map(|k| package.code(&k.code).len())
        .sum();
    let ptx: usize = (t.kernels.iter().filter_map(|k| k.ptx.as_ref()))
        .map(|c| package.code(c).len())
        .sum();
    let source: usize = (t.sources.iter().flatten())
        .map(|s| package.code(&s.text).len())
        .sum();
    let some = |n: usize| match n {
        0 => String::new(),
        n => bytes(n as i64),
    };
    let rows = [
        [
            "a call".to_string(),
            format!(
                "{launches} launches, {} products by a library",
                t.products()
            ),
        ],
        ["kernels".into(), t.lowered.kernels().len().to_string()],
        ["machine code".into(), some(code)],
        ["PTX".into(), some(ptx)],
        ["source, to be built".into(), some(source)],
        ["weights".into(), program.constants.len().to_string()],
        ["runs on the host".into(), host],
    ];
    let shown = rows.iter().filter(|r| !r[1].is_empty());
    let cells = shown.map(|r| r.iter().map(|c| escape(c)).collect());
    table(&["", ""], cells)
}

/// Returns the table of the steps of a call. Those of programs that control flow calls are named after it.
fn steps(t: &GpuTarget) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    add_steps(&t.lowered, "", &mut rows);
    table(&["step", "what", "kernel"], rows)
}

fn add_steps(lowered: &Lowered, within: &str, rows: &mut Vec<Vec<String>>) {
    let row = |rows: &mut Vec<Vec<String>>, what: &str, how: &str| {
        rows.push(vec![
            (rows.len() + 1).to_string(),
            escape(&format!("{within}{what}")),
            format!("<code>{}</code>", escape(how)),
        ]);
    };
    for step in &lowered.program.steps {
        match &step.kind {
            StepKind::Segment(s) => {
                for step in &s.program.steps {
                    if let Step::Launch(l) = step {
                        let kernel = &s.program.kernels[l.kernel as usize];
                        row(rows, &kernel.title, &kernel.symbol);
                    }
                }
            }
            StepKind::Library(l) => row(
                rows,
                "a product by cuBLAS",
                match l.op {
                    LibraryOp::Mm => "mm",
                    LibraryOp::Bmm => "bmm",
                    _ => "library",
                },
            ),
            StepKind::Work(w) => {
                let title = w.title();
                if w.bodies().is_empty() {
                    row(rows, &format!("{title}, on the host"), w.origin());
                } else {
                    row(rows, &title, w.origin());
                }
                for (name, body) in w.bodies() {
                    add_steps(&body.program, &format!("{within}{title}, {name}: "), rows);
                }
            }
            StepKind::Kernel(k) => {
                let title = format!("the user's Triton kernel {}, {}", k.title, k.origin);
                let kernels = lowered.program.gpu.as_ref().map(|g| &g.kernels);
                let kernel = kernels.and_then(|all| all.get(k.kernel));
                row(rows, &title, kernel.map_or("", |k| &k.symbol));
            }
            StepKind::View(_) | StepKind::Call(_) => {}
        }
    }
}
