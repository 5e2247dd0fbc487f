//! A few pieces of HTML. All text is escaped where it enters.

/// Returns text that is safe in elements and attributes. Names and lines of models are untrusted.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Returns a table. The head is text; cells are HTML already, which the caller has escaped.
pub(super) fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut out = String::from("<table><thead><tr>");
    for h in head {
        out.push_str(&format!("<th>{}</th>", escape(h)));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            out.push_str(&format!("<td>{cell}</td>"));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table>\n");
    out
}

/// A part of the page that is shown on a click.
pub(super) fn details(summary: &str, inner: &str) -> String {
    format!(
        "<details><summary>{}</summary>\n{inner}</details>\n",
        escape(summary)
    )
}

/// Returns a number of bytes for people, in decimal units: `12.3 MB`.
pub(super) fn bytes(n: i64) -> String {
    let v = n as f64;
    match n {
        ..1_000 => format!("{n} B"),
        1_000..1_000_000 => format!("{:.1} kB", v / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", v / 1e6),
        _ => format!("{:.2} GB", v / 1e9),
    }
}

/// The style sheet of the page, which loads nothing from elsewhere.
pub(super) const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem;border-bottom:1px solid #d0d7de}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.2rem .6rem;vertical-align:top;border-bottom:1px solid #eaeef2}
th{font-weight:600;color:#57606a}code,pre{font:12.5px/1.4 ui-monospace,monospace}pre{overflow-x:auto;background:#f6f8fa;padding:.8rem}
.num{text-align:right;white-space:nowrap}.dim{color:#57606a}.bar{display:inline-block;height:.7rem;background:#4c8bf5;border-radius:2px}
svg{width:100%;height:auto;background:#f6f8fa}svg rect:hover{stroke:#000;stroke-width:1}summary{cursor:pointer}
@media(prefers-color-scheme:dark){body{color:#d7dde4;background:#14181d}h2,th,td{border-color:#2c333b}pre,svg{background:#1d232a}.dim,th{color:#97a1ac}}";
