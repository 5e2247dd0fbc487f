//! Identifiers of Python and C++.

use std::collections::BTreeSet;

/// Words that are no identifiers, and built-in functions that the printed text calls.
const RESERVED: &[&str] = &[
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import",
    "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while",
    "with", "yield", "float", "len", "list", "max", "min", "print", "range", "tuple",
];

/// The identifiers of a scope, and of those around it.
#[derive(Clone, Debug)]
pub(crate) struct Names(BTreeSet<String>);

impl Names {
    /// Returns the names of a module that defines what `text` defines at its top level.
    pub(crate) fn of_module(text: &str) -> Names {
        let mut names: BTreeSet<String> = RESERVED.iter().map(|n| n.to_string()).collect();
        for line in text.lines() {
            names.extend(defined(line).into_iter().map(str::to_string));
        }
        Names(names)
    }

    /// Returns a scope with these names.
    pub(crate) fn with<'a>(taken: impl Iterator<Item = &'a str>) -> Names {
        Names(taken.map(str::to_string).collect())
    }

    /// Returns an identifier like `wanted` that nothing else has.
    pub(crate) fn fresh(&mut self, wanted: &str) -> String {
        let mut base = identifier(wanted);
        // Lines of size arithmetic have such names.
        if (base.strip_prefix('z')).is_some_and(|n| n.parse::<usize>().is_ok()) {
            base.push('_');
        }
        let mut name = base.clone();
        let mut count = 2;
        while self.0.contains(&name) {
            name = format!("{base}_{count}");
            count += 1;
        }
        self.0.insert(name.clone());
        name
    }

    /// Takes a name; false if something has it.
    pub(crate) fn take(&mut self, name: &str) -> bool {
        self.0.insert(name.to_string())
    }
}

/// Returns the names that a line at the top level of a module defines.
fn defined(line: &str) -> Vec<&str> {
    let word = |text: &'static str| line.strip_prefix(text);
    if let Some(rest) = word("def ").or_else(|| word("class ")) {
        return rest.split(['(', ':']).next().into_iter().collect();
    }
    if let Some(rest) = word("import ") {
        return (rest.split(", "))
            .filter_map(|m| m.split(" as ").last()?.split('.').next())
            .collect();
    }
    if let Some((_, names)) = word("from ").and_then(|r| r.split_once(" import ")) {
        return names.split(", ").collect();
    }
    match line.split_once(" = ") {
        Some((name, _)) if is_identifier(name) => vec![name],
        _ => Vec::new(),
    }
}

fn is_identifier(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.chars().all(word) && text.starts_with(|c: char| !c.is_ascii_digit())
}

/// Returns true if a name cannot be that of an argument.
pub(crate) fn is_keyword(name: &str) -> bool {
    RESERVED.contains(&name) || !is_identifier(name)
}

/// Returns the identifier that is most like a text.
fn identifier(text: &str) -> String {
    let mut name: String = (text.chars())
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    if !is_identifier(&name) {
        name.insert(0, 'v');
    }
    name
}

/// Returns a text as it can stand in a comment or in a string of several lines.
pub(crate) fn plain(text: &str) -> String {
    (text.chars())
        .map(|c| match c {
            '"' | '\\' => '\'',
            c if c.is_control() => ' ',
            c => c,
        })
        .collect()
}

/// Returns a string literal.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns a tuple of expressions.
pub(crate) fn tuple(items: &[String]) -> String {
    match items {
        [one] => format!("({one},)"),
        all => format!("({})", all.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_identifiers_and_given_once() {
        let mut names =
            Names::of_module("import torch\nfrom a import b, c\nX = 1\ndef f(x):\n    y = 2\n");
        let wanted = [
            "torch",
            "b",
            "X",
            "f",
            "y",
            "y",
            "conv2d.t1",
            "2x",
            "",
            "def",
            "Größe",
            "z7",
        ];
        let given: Vec<String> = wanted.iter().map(|w| names.fresh(w)).collect();
        let expected = [
            "torch_2",
            "b_2",
            "X_2",
            "f_2",
            "y",
            "y_2",
            "conv2d_t1",
            "v2x",
            "v",
            "def_2",
            "Gr__e",
            "z7_",
        ];
        assert_eq!(given, expected);
    }

    #[test]
    fn literals_hold_quotes_and_control_characters() {
        assert_eq!(quote("a\"b\\\n\u{1}ü"), "\"a\\\"b\\\\\\n\\u0001ü\"");
    }
}
