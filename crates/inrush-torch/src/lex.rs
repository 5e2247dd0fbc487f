//! Tokens of the two small Python-like languages in archives: sympy's `srepr` and guards.
//!
//! Both are ASCII. Tokens borrow from the text and nothing is allocated. The lexer can be cloned
//! at no cost, which is how `peek` works: it lexes the token twice. Texts are short, so a token
//! buffer would not pay.

use inrush_base::{Error, Result};

#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Token<'a> {
    Ident(&'a str),
    /// Digits, with a fraction or exponent perhaps.
    Number(&'a str),
    /// The inside of a quoted string; escapes are not undone.
    Str(&'a str),
    /// An operator or bracket of the list below.
    Punct(&'static str),
    /// The end of the text; asking again gives it again.
    End,
}

// Longest first: `//` must be met before `/`.
const PUNCT: &[&str] = &[
    "//", "**", "==", "!=", "<=", ">=", "(", ")", "[", "]", "{", "}", ",", ".", "=", "+", "-", "*",
    "/", "%", "<", ">", ":", "~", "&", "|", "^",
];

/// A position in a text, always at the boundary of a character.
#[derive(Clone)]
pub struct Lexer<'a> {
    text: &'a str,
    pos: usize,
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Self {
        Lexer { text, pos: 0 }
    }

    /// Returns an input error that shows the whole text, shortened.
    pub fn error(&self, message: impl std::fmt::Display) -> Error {
        Error::input(format!("{message} in `{}`", shorten(self.text)))
    }

    pub fn peek(&self) -> Result<Token<'a>> {
        self.clone().next()
    }

    /// Returns the next token and advances past it. Fails on a character outside of both
    /// languages and on a string that does not end.
    pub fn next(&mut self) -> Result<Token<'a>> {
        let rest = self.text[self.pos..].trim_start_matches([' ', '\n', '\t']);
        let start = self.text.len() - rest.len();
        let take = |f: &dyn Fn(u8) -> bool| rest.bytes().take_while(|b| f(*b)).count();
        let Some(first) = rest.bytes().next() else {
            self.pos = start;
            return Ok(Token::End);
        };
        let (token, len) = if first.is_ascii_alphabetic() || first == b'_' {
            let n = take(&|b| b.is_ascii_alphanumeric() || b == b'_');
            (Token::Ident(&rest[..n]), n)
        } else if first.is_ascii_digit() {
            // Letters belong to it, so that `1e5` and `3s0` are one token, which then fails to
            // parse as an integer with a message that shows it whole.
            let n = take(&|b| b.is_ascii_alphanumeric() || b == b'.');
            (Token::Number(&rest[..n]), n)
        } else if first == b'\'' || first == b'"' {
            let quote = first as char;
            // A quotation mark is ASCII, so `rest[1..]` is at a boundary. Names of symbols hold
            // no escapes; keys of dictionaries with a quotation mark inside end early, and the
            // guard is noted as not read.
            let Some(n) = rest[1..].find(quote) else {
                return Err(self.error("a string that does not end"));
            };
            (Token::Str(&rest[1..1 + n]), n + 2)
        } else if let Some(p) = PUNCT.iter().find(|p| rest.starts_with(**p)) {
            (Token::Punct(p), p.len())
        } else {
            return Err(self.error("an unexpected character"));
        };
        self.pos = start + len;
        Ok(token)
    }

    /// Takes `p` if it comes next.
    pub fn eat(&mut self, p: &str) -> Result<bool> {
        let hit = matches!(self.peek()?, Token::Punct(q) if q == p);
        if hit {
            self.next()?;
        }
        Ok(hit)
    }

    /// Takes `p`; fails if another token comes next.
    pub fn expect(&mut self, p: &str) -> Result<()> {
        if self.eat(p)? {
            Ok(())
        } else {
            Err(self.error(format_args!("expected `{p}`")))
        }
    }

    /// Checks that nothing but white space is left.
    pub fn end(&mut self) -> Result<()> {
        match self.peek()? {
            Token::End => Ok(()),
            _ => Err(self.error("something follows the expression")),
        }
    }
}

/// Returns the text from an archive as an error message shows it.
/// At most 160 characters, control characters as spaces: a hostile archive must not write escape
/// sequences to a terminal or flood a log.
pub fn shorten(text: &str) -> String {
    shortened(text.to_string())
}

/// Returns [`shorten`] of a text that is there.
pub fn shortened(mut text: String) -> String {
    const MOST: usize = 160;
    // Most texts are plain.
    // Bytes are characters here, and truncation cannot split one.
    if text.bytes().all(|b| matches!(b, b' '..=b'~')) {
        if text.len() > MOST {
            text.truncate(MOST);
            text.push('…');
        }
        return text;
    }
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut out: String = text.chars().take(MOST).map(clean).collect();
    if text.chars().nth(MOST).is_some() {
        out.push('…');
    }
    out
}
