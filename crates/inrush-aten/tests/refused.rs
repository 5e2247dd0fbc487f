//! Calls that eager refuses although shapes and dtypes fit. A Python test asks eager about the same lines.

use inrush_aten::{Processor, decompose, example, lookup, lower, normalize, numbers};

/// Returns whether a call is refused before anything runs.
fn is_refused(op: &str, call: &str) -> bool {
    let Ok(example) = example::parse(op, call) else {
        return true;
    };
    numbers::check(&example.graph, Processor::Cpu)
        .and_then(|()| normalize(example.graph))
        .and_then(decompose)
        .and_then(|g| lower(g, Processor::Cpu))
        .is_err()
}

#[test]
fn what_eager_refuses_is_refused() {
    let lines: Vec<&str> = include_str!("refused.txt")
        .lines()
        .filter(|l| !l.starts_with('#'))
        .collect();
    assert!(lines.len() > 200 && lines.is_sorted());
    for line in lines {
        let (op, call) = line.split_once(' ').expect("an operator and its call");
        let row = lookup(op).unwrap_or_else(|| panic!("{op} has no row")).row;
        assert!(is_refused(op, call), "accepted: {line}");
        assert!(!is_refused(op, row.example), "{op} is refused altogether");
    }
}
