//! Compares what two commits recorded for a corpus of programs.
//!
//! A record is a `stamp` line and sections: `=== TARGET STAGE`, then what the stage printed. Sections are compared one by one,
//! so that the summary says which stages differ: a change of the form in which kernels print shows in stage tile alone.

use std::collections::BTreeMap;
use std::fmt::Write;

/// A target and a stage.
type Head<'a> = (&'a str, &'a str);

/// The differences between two sets of records.
#[derive(Default)]
pub(super) struct Comparison {
    /// Programs that both have.
    pub programs: usize,
    /// Sections of these programs.
    pub sections: usize,
    /// Programs that differ, in order: name and the first lines that differ.
    pub differing: Vec<(String, String)>,
    /// Number of differing sections by target and stage.
    pub stages: BTreeMap<String, usize>,
}

impl Comparison {
    /// Adds a program by its records, one of which may be missing. Keeps at most `lines` lines of each side of the first
    /// section that differs.
    pub(super) fn add(&mut self, name: &str, base: Option<&str>, now: Option<&str>, lines: usize) {
        let (Some(base), Some(now)) = (base, now) else {
            let what = match base {
                Some(_) => "  only the base has it\n",
                None => "  the base does not have it\n",
            };
            self.differing.push((name.into(), what.into()));
            return;
        };
        self.programs += 1;
        let mut pairs: Vec<(Head, Option<&str>, Option<&str>)> = sections(base)
            .into_iter()
            .map(|(head, text)| (head, Some(text), None))
            .collect();
        for (head, text) in sections(now) {
            match pairs.iter_mut().find(|p| p.0 == head && p.2.is_none()) {
                Some(pair) => pair.2 = Some(text),
                None => pairs.push((head, None, Some(text))),
            }
        }
        self.sections += pairs.len();
        pairs.retain(|(_, base, now)| base != now);
        for ((target, stage), ..) in &pairs {
            *self.stages.entry(format!("{target} {stage}")).or_default() += 1;
        }
        if let Some(((target, stage), base, now)) = pairs.first() {
            let mut text = format!("  {target} {stage}");
            if pairs.len() > 1 {
                _ = write!(text, " and {} more", pairs.len() - 1);
            }
            text.push('\n');
            difference(&mut text, base.unwrap_or(""), now.unwrap_or(""), lines);
            self.differing.push((name.into(), text));
        }
    }
}

/// Splits a record into its sections, in order.
fn sections(record: &str) -> Vec<(Head<'_>, &str)> {
    let mut out: Vec<(Head, &str)> = Vec::new();
    let mut at = 0;
    let mut start = 0;
    for line in record.split_inclusive('\n') {
        if let Some(head) = line.strip_prefix("=== ") {
            if let Some(last) = out.last_mut() {
                last.1 = &record[start..at];
            }
            start = at + line.len();
            let head = head.trim_end();
            out.push((head.split_once(' ').unwrap_or((head, "")), ""));
        }
        at += line.len();
    }
    if let Some(last) = out.last_mut() {
        last.1 = &record[start..];
    }
    out
}

/// Appends the lines between the common head and the common tail of two texts: the base's with `-`, the others with `+`, at
/// most `lines` of each.
fn difference(out: &mut String, base: &str, now: &str, lines: usize) {
    let (base, now): (Vec<&str>, Vec<&str>) = (base.lines().collect(), now.lines().collect());
    // No alignment in between: a few lines of each side are shown.
    let front = base.iter().zip(&now).take_while(|(a, b)| a == b).count();
    let (base, now) = (&base[front..], &now[front..]);
    let tail = (base.iter().rev().zip(now.iter().rev()))
        .take_while(|(a, b)| a == b)
        .count();
    _ = writeln!(out, "  line {}", front + 1);
    for (sign, side) in [('-', base), ('+', now)] {
        let side = &side[..side.len() - tail];
        for l in side.iter().take(lines) {
            _ = writeln!(out, "  {sign} {l}");
        }
        if side.len() > lines {
            _ = writeln!(out, "  {sign} … {} more lines", side.len() - lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "stamp 1\n=== avx2 fuse\na\nb\n=== avx2 emit\nc\nd\ne\n=== h100 emit\nf\n";

    #[test]
    fn equal_records_do_not_differ_whatever_their_stamps() {
        let mut c = Comparison::default();
        c.add(
            "p",
            Some(BASE),
            Some(&BASE.replace("stamp 1", "stamp 2")),
            3,
        );
        assert_eq!((c.programs, c.sections, c.differing.len()), (1, 3, 0));
        assert!(c.stages.is_empty());
    }

    #[test]
    fn one_byte_is_a_difference_in_its_section_alone() {
        let mut c = Comparison::default();
        c.add("p", Some(BASE), Some(&BASE.replace("d\n", "D\n")), 3);
        assert_eq!(c.stages, BTreeMap::from([("avx2 emit".into(), 1)]));
        let want = "  avx2 emit\n  line 2\n  - d\n  + D\n".to_string();
        assert_eq!(c.differing, [("p".to_string(), want)]);
    }

    #[test]
    fn the_end_of_the_last_line_counts() {
        let mut c = Comparison::default();
        c.add("p", Some(BASE), Some(BASE.trim_end()), 3);
        assert_eq!(c.stages, BTreeMap::from([("h100 emit".into(), 1)]));
    }

    #[test]
    fn missing_sections_and_programs_are_differences() {
        let mut c = Comparison::default();
        let failing = "stamp 1\n=== avx2 error\nwhy\n=== h100 emit\nf\n";
        c.add("p", Some(BASE), Some(failing), 1);
        c.add("q", None, Some(BASE), 1);
        c.add("r", Some(BASE), None, 1);
        let names: Vec<&str> = c.differing.iter().map(|d| d.0.as_str()).collect();
        assert_eq!(names, ["p", "q", "r"]);
        let stages: Vec<&str> = c.stages.keys().map(String::as_str).collect();
        assert_eq!(stages, ["avx2 emit", "avx2 error", "avx2 fuse"]);
        assert_eq!((c.programs, c.sections), (1, 4));
        assert!(c.differing[0].1.starts_with("  avx2 fuse and 2 more\n"));
        assert!(c.differing[0].1.ends_with("  - a\n  - … 1 more lines\n"));
    }
}
