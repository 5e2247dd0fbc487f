//! Pieces of text, put together without formatting.

use std::fmt::{Arguments, Write};

/// Texts in a row. Formatting them would cost several times as much, and kernels are mostly such texts.
macro_rules! joined {
    ($($part:expr),+ $(,)?) => { [$(&$part as &str),+].concat() };
}
pub(crate) use joined;

/// A piece of a line.
pub(crate) trait Text {
    /// Appends the text. Takes `self`, because a piece is written once.
    fn put(self, out: &mut String);
}

impl Text for &str {
    fn put(self, out: &mut String) {
        out.push_str(self);
    }
}

impl<const N: usize> Text for [&str; N] {
    fn put(self, out: &mut String) {
        self.iter().for_each(|part| out.push_str(part));
    }
}

/// Three pieces of different kinds: the operands of an operator around its sign.
impl<A: Text, B: Text, C: Text> Text for (A, B, C) {
    fn put(self, out: &mut String) {
        self.0.put(out);
        self.1.put(out);
        self.2.put(out);
    }
}

impl Text for Arguments<'_> {
    fn put(self, out: &mut String) {
        // Writing to a string cannot fail.
        _ = out.write_fmt(self);
    }
}

/// `text` in parentheses unless it is a name or number.
pub(crate) fn paren(text: &str) -> String {
    parens(text.into())
}

/// The same of a text that is there.
/// Saves the copy where the caller owns the text.
pub(crate) fn parens(text: String) -> String {
    if text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        text
    } else {
        joined!("(", text, ")")
    }
}
