//! The outline of a program in parts: a line for each part in order, bodies of control flow indented below theirs.
//!
//! ```text
//! segment: 2 kernels, 1 product
//! nonzero, node `at` (aten.nonzero.default) at model.py:12 in forward: at = torch.nonzero(y)
//! cond, node `cond` (higher_order.cond)
//!   then: 1 kernel
//!   otherwise:
//!     segment: 3 kernels
//! write 1
//! ```

use super::{Sequence, StepKind};
use crate::{Program, Step};

/// A line of an outline.
pub struct Line<'a> {
    /// How far it is indented.
    pub depth: usize,
    /// The part and what it consists of.
    pub text: String,
    /// The operator and its Python line; empty where several are fused.
    pub origin: &'a str,
    /// The program without parts that the line stands for, and its number in the order in which programs are compiled.
    pub program: Option<(usize, &'a Program)>,
}

impl std::fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:1$}{2}", "", 2 * self.depth, self.text)?;
        let words: Vec<&str> = self.origin.split_whitespace().collect();
        if words.is_empty() {
            Ok(())
        } else {
            write!(f, ", {}", words.join(" "))
        }
    }
}

/// Returns the outline of a program's parts; one line for a program without.
pub fn outline(program: &Program) -> Vec<Line<'_>> {
    let mut out = Outline::default();
    match &program.parts {
        Some(parts) => out.parts(parts, 0),
        None => out.program("program", program, 0),
    }
    out.lines
}

/// Returns the steps of a call by kind: `2 kernels, 1 product, library sort`.
pub fn counts(program: &Program) -> String {
    let (mut kernels, mut products) = (0, 0);
    let mut words = Vec::new();
    for s in &program.steps {
        match s {
            Step::Launch(_) => kernels += 1,
            Step::Contract(_) => products += 1,
            Step::Library(c) => words.push(format!("library {}", c.function)),
        }
    }
    let mut all = Vec::new();
    let mut count = |n: usize, word: &str| match n {
        0 => {}
        1 => all.push(format!("1 {word}")),
        n => all.push(format!("{n} {word}s")),
    };
    count(kernels, "kernel");
    count(products, "product");
    all.append(&mut words);
    if all.is_empty() {
        all.push("no steps".into());
    }
    if !program.load_steps.is_empty() {
        all.push(format!("{} steps at load", program.load_steps.len()));
    }
    all.join(", ")
}

/// An outline in the making.
#[derive(Default)]
struct Outline<'a> {
    lines: Vec<Line<'a>>,
    /// Programs that have a number.
    numbered: usize,
}

impl<'a> Outline<'a> {
    fn add(&mut self, depth: usize, text: String, origin: &'a str) {
        self.lines.push(Line {
            depth,
            text,
            origin,
            program: None,
        });
    }

    /// Adds a program that control flow calls.
    fn program(&mut self, word: &str, p: &'a Program, depth: usize) {
        match &p.parts {
            Some(parts) => {
                self.add(depth, format!("{word}:"), "");
                self.parts(parts, depth + 1);
            }
            None => {
                self.compiled(word, self.numbered, p, depth);
                self.numbered += 1;
            }
        }
    }

    fn compiled(&mut self, word: &str, number: usize, p: &'a Program, depth: usize) {
        self.lines.push(Line {
            depth,
            text: format!("{word}: {}", counts(p)),
            origin: "",
            program: Some((number, p)),
        });
    }

    fn parts(&mut self, parts: &'a Sequence, depth: usize) {
        // Segments of a program are compiled before its bodies.
        let mut segment = self.numbered;
        let is_segment = |s: &&super::Step| matches!(s.kind, StepKind::Segment(_));
        self.numbered += parts.steps.iter().filter(is_segment).count();
        for step in &parts.steps {
            match &step.kind {
                StepKind::Segment(s) => {
                    self.compiled("segment", segment, &s.program, depth);
                    segment += 1;
                }
                StepKind::View(_) => self.add(depth, "view".into(), ""),
                StepKind::Dynamic(d) => self.add(depth, d.function.clone(), &d.origin),
                StepKind::Custom(c) => self.add(depth, c.name().into(), &c.origin),
                StepKind::Cond(c) => {
                    self.add(depth, "cond".into(), &c.origin);
                    self.program("then", &c.then.program, depth + 1);
                    self.program("otherwise", &c.otherwise.program, depth + 1);
                }
                StepKind::While(w) => {
                    self.add(depth, "while".into(), &w.origin);
                    self.program("condition", &w.condition.program, depth + 1);
                    self.program("body", &w.body.program, depth + 1);
                }
                StepKind::Scan(s) => {
                    self.add(depth, "scan".into(), &s.origin);
                    self.program("body", &s.body.program, depth + 1);
                }
                StepKind::Write(all) => {
                    let text = format!("write {} inputs or weights", all.len());
                    self.add(depth, text, "");
                }
            }
        }
    }
}
