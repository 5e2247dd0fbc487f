//! The sections on a program in parts: its outline, with the memory and the steps of each compiled program.

use super::html::{details, escape};
use super::{Report, memory, page, symbols};
use inrush_program::parts::outline::outline;
use std::fmt::Write;

/// Returns the sections.
pub(super) fn sections(r: &Report) -> String {
    let mut out =
        String::from("<h2>Parts</h2>\n<p>In order; what control flow calls is indented.</p>\n");
    for line in outline(&r.program) {
        _ = writeln!(
            out,
            "<div style=\"margin-left:{}rem\"><b>{}</b> <span class=\"dim\">{}</span>",
            2 * line.depth,
            escape(&line.text),
            escape(line.origin)
        );
        if let Some((number, program)) = line.program {
            let symbols = symbols(program, &r.hints);
            let sizes = memory::sizes(program, &symbols);
            let plan = r.compilation.as_ref().and_then(|c| c.plans.get(number));
            if !(program.steps.is_empty() && program.load_steps.is_empty()) {
                let mut inner = page::arena(program, &sizes);
                inner.push_str(&page::steps(program, plan, &sizes));
                out.push_str(&details("memory and steps", &inner));
            }
        }
        out.push_str("</div>\n");
    }
    out
}
