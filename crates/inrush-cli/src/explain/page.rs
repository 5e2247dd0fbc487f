//! The page: what was measured, what was fused and what was not, where memory goes, what runs.
//!
//! Sections in order: summary, stages, memory over time, steps, refused fusions by reason, the
//! program as text. A program in parts has its parts in place of memory and steps. Each is a function from the report to HTML.

use super::html::{STYLE, bytes, details, escape, table};
use super::{Compilation, Report, memory, parts};
use inrush_program::parts::outline::outline;
use inrush_program::{Place, Program, Step};
use inrush_sched::{Plan, Reason};
use std::collections::BTreeMap;

/// Refusals of one reason that are listed. Bounds the page of a large model.
const MAX_LISTED: usize = 500;

pub(super) fn page(r: &Report) -> String {
    let sizes = memory::sizes(&r.program, &r.symbols);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{0}</title><style>{STYLE}</style></head><body>\n<h1>{0}</h1>\n",
        escape(&format!("inrush: {}", r.model))
    );
    out.push_str(&summary(r, &sizes));
    match &r.compilation {
        Some(c) => out.push_str(&stages(c)),
        None => out.push_str(
            "<p class=\"dim\">A compiled package: it keeps its program, neither the times of stages nor refusals.</p>\n",
        ),
    }
    if r.program.parts.is_some() {
        out.push_str(&parts::sections(r));
    } else {
        let plan = r.compilation.as_ref().and_then(|c| c.plans.first());
        out.push_str("<h2>Memory over time</h2>\n");
        out.push_str(&arena(&r.program, &sizes));
        out.push_str("<h2>Steps</h2>\n");
        out.push_str(&steps(&r.program, plan, &sizes));
    }
    if let Some(c) = &r.compilation {
        out.push_str(&refusals(c));
    }
    let text = format!("<pre>{}</pre>\n", escape(&r.program.print()));
    out.push_str("<h2>Program</h2>\n");
    out.push_str(&details("the whole program as text", &text));
    out.push_str("</body></html>\n");
    out
}

/// Returns the value of a size line; 0 for one that a damaged program does not have.
fn value(sizes: &[i64], id: inrush_program::SizeId) -> i64 {
    sizes.get(id.0 as usize).copied().unwrap_or(0)
}

/// Returns the table of key figures.
fn summary(r: &Report, sizes: &[i64]) -> String {
    let p = &r.program;
    let weights: i64 = (p.buffers.iter())
        .filter(|b| matches!(b.place, Place::Weight(_)))
        .fold(0, |sum: i64, b| sum.saturating_add(value(sizes, b.bytes)));
    let symbols: Vec<String> = (p.symbols.iter().zip(&r.symbols))
        .map(|(s, v)| format!("{} = {v}", s.name))
        .collect();
    let mut rows = vec![["target".to_string(), r.target.clone()]];
    match &p.parts {
        Some(_) => rows.extend(of_parts(p)),
        None => rows.extend([
            ["a call".into(), kernels_and_products(&[p])],
            ["at load".into(), format!("{} steps", p.load_steps.len())],
            ["weights".into(), bytes(weights)],
            ["arena of a call".into(), bytes(value(sizes, p.arena_bytes))],
            [
                "kept with the weights".into(),
                bytes(value(sizes, p.load_bytes)),
            ],
        ]),
    }
    if !symbols.is_empty() {
        let shown = format!("{} (what sizes below are for)", symbols.join(", "));
        rows.push(["symbols".into(), shown]);
    }
    let rows = rows
        .into_iter()
        .map(|r| r.iter().map(|c| escape(c)).collect());
    table(&["", ""], rows)
}

/// Returns the key figures of a program in parts.
fn of_parts(p: &Program) -> [[String; 2]; 3] {
    let lines = outline(p);
    let programs: Vec<&Program> = (lines.iter())
        .filter_map(|l| l.program.map(|p| p.1))
        .collect();
    let loads: usize = programs.iter().map(|p| p.load_steps.len()).sum();
    [
        ["programs".into(), programs.len().to_string()],
        ["in all of them".into(), kernels_and_products(&programs)],
        ["at load".into(), format!("{loads} steps")],
    ]
}

fn kernels_and_products(programs: &[&Program]) -> String {
    let steps = || programs.iter().flat_map(|p| &p.steps);
    let products = steps().filter(|s| matches!(s, Step::Contract(_))).count();
    let kernels = steps().count() - products;
    format!("{kernels} kernels, {products} products and convolutions")
}

/// Returns the table of times, with bars relative to the longest stage.
fn stages(c: &Compilation) -> String {
    let longest = c.stages.iter().map(|s| s.1).max().unwrap_or_default();
    let rows = c.stages.iter().map(|(name, time)| {
        let share = time.as_secs_f64() / longest.as_secs_f64().max(1e-9);
        vec![
            format!("<code>{}</code>", escape(name)),
            format!(
                "<span class=\"num\">{:.2} ms</span>",
                time.as_secs_f64() * 1e3
            ),
            format!(
                "<span class=\"bar\" style=\"width:{:.2}rem\"></span>",
                share * 30.0
            ),
        ]
    });
    let mut out = format!("<h2>Stages</h2>\n{}", table(&["stage", "time", ""], rows));
    if let Some(note) = &c.build {
        out.push_str(&format!("<p class=\"dim\">build: {}</p>\n", escape(note)));
    }
    out
}

/// Returns the drawing of the arena with its totals.
pub(super) fn arena(p: &Program, sizes: &[i64]) -> String {
    let blocks = memory::blocks(p, sizes);
    let total = value(sizes, p.arena_bytes);
    let mut out = String::new();
    if blocks.is_empty() {
        out.push_str("<p>No temporary reaches memory.</p>\n");
        return out;
    }
    // The most that lives at once bounds what any packing can do.
    let live = (0..p.steps.len())
        .map(|k| {
            let now = blocks.iter().filter(|b| b.from <= k && k <= b.to);
            let mut ranges: Vec<(i64, i64)> = now
                .map(|b| (b.offset, b.offset.saturating_add(b.bytes)))
                .collect();
            ranges.sort_unstable();
            // Buffers written in place of others share their bytes.
            let mut end = 0;
            ranges.iter().fold(0i64, |sum, (a, b)| {
                let new = b.saturating_sub(*a.max(&end)).max(0);
                end = end.max(*b);
                sum.saturating_add(new)
            })
        })
        .max()
        .unwrap_or(0);
    out.push_str(&format!(
        "<p>{} buffers share an arena of {}; at most {} of it live at once. Steps run to the right, offsets upwards.</p>\n",
        blocks.len(),
        bytes(total),
        bytes(live)
    ));
    out.push_str(&memory::svg(p, &blocks, total));
    out
}

/// Returns the operators fused into a step, with the lines that called them.
fn fused(plan: Option<&Plan>, at: usize, step: &Step) -> String {
    let named = match step {
        Step::Launch(l) => &l.origins,
        Step::Contract(c) => &c.origins,
        Step::Library(c) => &c.origins,
    };
    let Some(plan) = plan else {
        return escape(&named.join(", "));
    };
    // Steps of the program and of the plan are paired by position.
    let steps = plan.load_steps.iter().chain(&plan.steps);
    let mut seen = Vec::new();
    let mut out = String::new();
    for o in (steps.skip(at).take(1)).flat_map(|s| s.bodies().iter().flat_map(|b| &b.origins)) {
        let Some(origin) = plan.loops.origins.get(o.index()) else {
            continue;
        };
        if seen.contains(o) {
            continue;
        }
        seen.push(*o);
        let line = origin.line.as_deref().unwrap_or("");
        out.push_str(&format!(
            "<code>{}</code> {} <span class=\"dim\">{}</span><br>",
            escape(&origin.op),
            escape(&origin.name),
            escape(line)
        ));
    }
    out
}

/// Returns the table of steps, those at load first.
pub(super) fn steps(p: &Program, plan: Option<&Plan>, sizes: &[i64]) -> String {
    let loads = p.load_steps.len();
    let rows = p
        .load_steps
        .iter()
        .chain(&p.steps)
        .enumerate()
        .map(|(k, s)| {
            let (kernel, what) = match s {
                Step::Library(c) => (None, format!("library function {}", c.function)),
                Step::Launch(l) => (
                    Some(l.kernel),
                    format!(
                        "kernel, {} units of {}{}",
                        value(sizes, l.units),
                        value(sizes, l.unit_cost),
                        if l.serial { ", one thread" } else { "" }
                    ),
                ),
                Step::Contract(c) => {
                    let count = |sizes_of: Vec<inrush_program::SizeId>| -> i64 {
                        let each = sizes_of.into_iter().map(|s| value(sizes, s));
                        each.fold(1i64, |a, b| a.saturating_mul(b))
                    };
                    let batch = count(c.batch.iter().map(|l| l.size).collect());
                    let m = count(c.m.iter().map(|l| l.size).collect());
                    let n = count(c.n.iter().map(|l| l.size).collect());
                    let k = count(c.k.iter().map(|l| l.size).collect());
                    (
                        Some(c.epilogue),
                        format!("product, {batch} × {m} × {n} × {k}"),
                    )
                }
            };
            let kernel = kernel.map(|k| &p.kernels[k as usize]);
            let (title, symbol) = kernel.map_or(("library", ""), |k| (&k.title, &k.symbol));
            let touched: Vec<String> = (memory::touched(s).iter())
                .map(|b| escape(&buffer(p, *b as usize)))
                .collect();
            let at = if k < loads {
                format!("load {k}")
            } else {
                (k - loads).to_string()
            };
            vec![
                format!("<span class=\"num\">{at}</span>"),
                format!(
                    "<b>{}</b><br><span class=\"dim\">{}<br><code>{}</code></span>",
                    escape(title),
                    escape(&what),
                    escape(symbol)
                ),
                fused(plan, k, s),
                format!("<span class=\"dim\">{}</span>", touched.join(", ")),
            ]
        });
    table(
        &[
            "step",
            "kernel",
            "fused operators, with their source lines",
            "buffers",
        ],
        rows,
    )
}

/// A buffer's name and what it is.
fn buffer(p: &Program, at: usize) -> String {
    let b = &p.buffers[at];
    let kind = match b.place {
        Place::Input { .. } => "input",
        Place::Weight(_) => "weight",
        Place::Persistent { .. } => "kept",
        Place::Arena { .. } => "temporary",
        Place::Output { .. } => "output",
        Place::Alias { .. } => "view",
    };
    format!("{} ({kind})", b.name)
}

/// Returns the refused fusions, folded by reason.
fn refusals(c: &Compilation) -> String {
    let mut by_reason: BTreeMap<Reason, Vec<(&Plan, &inrush_sched::Refusal)>> = BTreeMap::new();
    for plan in &c.plans {
        for r in &plan.refusals {
            by_reason.entry(r.reason).or_default().push((plan, r));
        }
    }
    let mut out = String::from("<h2>Fusions that were refused</h2>\n");
    if by_reason.is_empty() {
        out.push_str("<p>None.</p>\n");
    }
    let origin = |plan: &Plan, o: Option<inrush_sched::OriginId>| {
        let found = o.and_then(|o| plan.loops.origins.get(o.index()));
        found.map_or("?".to_string(), |o| {
            let line = o.line.as_deref().unwrap_or("");
            format!(
                "<code>{}</code> {} <span class=\"dim\">{}</span>",
                escape(&o.op),
                escape(&o.name),
                escape(line)
            )
        })
    };
    for (reason, list) in by_reason {
        let rows = (list.iter().take(MAX_LISTED))
            .map(|(plan, r)| vec![origin(plan, r.producer), origin(plan, r.consumer)]);
        let mut inner = table(&["producer", "consumer"], rows);
        if list.len() > MAX_LISTED {
            let more = list.len() - MAX_LISTED;
            inner.push_str(&format!("<p class=\"dim\">and {more} more</p>\n"));
        }
        let summary = format!("{} ({}): {}", reason.text(), list.len(), reason.why());
        out.push_str(&details(&summary, &inner));
    }
    out
}
