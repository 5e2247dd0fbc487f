//! The scanner that every text form reads with: identifiers, numbers, strings, punctuation, errors with a caret. Printing of notes.

use crate::{Error, Result, Scalar};

/// Returns a text form with each note under the line of its place, after a caret: how verifiers report.
pub fn annotate<P: PartialEq, N: std::fmt::Display>(
    lines: impl IntoIterator<Item = (Option<P>, String)>,
    notes: &[(P, N)],
) -> String {
    let mut out = String::new();
    for (place, line) in lines {
        out.push_str(&line);
        out.push('\n');
        let indent = line.len() - line.trim_start().len();
        for (_, note) in notes.iter().filter(|n| Some(&n.0) == place.as_ref()) {
            out.push_str(&format!("{}^ {note}\n", " ".repeat(indent)));
        }
    }
    out
}

/// One token. Punctuation is a single character except `->`, `//`, `==`, `!=`, `<=`, `>=`.
#[derive(Clone, PartialEq, Debug)]
pub enum Token {
    /// Letters, digits, `_` and inner dots: `aten.add.Tensor`, `i0`, `f32`.
    Ident(String),
    Int(i64),
    Float(f64),
    Str(String),
    Punct(&'static str),
    Newline,
    End,
}

const PUNCT: &[&str] = &[
    "->", "//", "==", "!=", "<=", ">=", "(", ")", "[", "]", "{", "}", ",", ":", "=", "+", "-", "*",
    "%", "<", ">", "@", "|", "&", "?", ";", "/", "!", "#", "$", "^",
];

/// Reads a text form token by token; a clone is a place to go back to. Comments run from `;;` to the end of the line. Newlines are tokens.
#[derive(Clone)]
pub struct Scanner<'a> {
    text: &'a str,
    pos: usize,
    /// The next token with its start and end, once it was looked at.
    peeked: Option<(Token, usize, usize)>,
    /// Byte at which the last token starts, where errors point.
    last_start: usize,
}

impl<'a> Scanner<'a> {
    pub fn new(text: &'a str) -> Self {
        Scanner {
            text,
            pos: 0,
            peeked: None,
            last_start: 0,
        }
    }

    /// An input error at the last token, with its line and a caret.
    pub fn error(&self, message: impl std::fmt::Display) -> Error {
        let at = self.last_start.min(self.text.len());
        let start = self.text[..at].rfind('\n').map_or(0, |p| p + 1);
        let end = self.text[at..]
            .find('\n')
            .map_or(self.text.len(), |p| at + p);
        let line = self.text[..at].matches('\n').count() + 1;
        let column = self.text[start..at].chars().count();
        Error::input(format!(
            "line {line}: {message}\n  {}\n  {}^",
            &self.text[start..end],
            " ".repeat(column)
        ))
    }

    /// The next token without taking it.
    pub fn peek(&mut self) -> Result<&Token> {
        if self.peeked.is_none() {
            let token = self.scan()?;
            self.peeked = Some(token);
        }
        let (token, start, _) = self.peeked.as_ref().expect("just filled");
        self.last_start = *start;
        Ok(token)
    }

    /// Takes the next token.
    pub fn next_token(&mut self) -> Result<Token> {
        self.peek()?;
        let (token, start, end) = self.peeked.take().expect("peek fills it");
        self.last_start = start;
        self.pos = end;
        Ok(token)
    }

    /// Takes `p` if it comes next.
    pub fn eat(&mut self, p: &str) -> Result<bool> {
        let hit = matches!(self.peek()?, Token::Punct(q) if *q == p);
        if hit {
            self.next_token()?;
        }
        Ok(hit)
    }

    /// Takes the identifier `word` if it comes next.
    pub fn eat_word(&mut self, word: &str) -> Result<bool> {
        let hit = matches!(self.peek()?, Token::Ident(w) if w == word);
        if hit {
            self.next_token()?;
        }
        Ok(hit)
    }

    /// Takes `p`, or fails.
    pub fn expect(&mut self, p: &str) -> Result<()> {
        if self.eat(p)? {
            return Ok(());
        }
        let found = self.peek()?.clone();
        Err(self.error(format!("expected `{p}`, found {}", describe(&found))))
    }

    /// Takes the identifier `word`, or fails.
    pub fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.eat_word(word)? {
            return Ok(());
        }
        let found = self.peek()?.clone();
        Err(self.error(format!("expected `{word}`, found {}", describe(&found))))
    }

    /// Takes an identifier.
    pub fn ident(&mut self) -> Result<String> {
        match self.next_token()? {
            Token::Ident(s) => Ok(s),
            t => Err(self.error(format!("expected a name, found {}", describe(&t)))),
        }
    }

    /// A name as [`show_name`] writes it.
    pub fn name(&mut self) -> Result<String> {
        match self.peek()? {
            Token::Str(_) => self.string(),
            _ => self.ident(),
        }
    }

    /// `[a, b, c]` (possibly empty), each element read by `item`.
    pub fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        self.expect("[")?;
        let mut out = Vec::new();
        if self.eat("]")? {
            return Ok(out);
        }
        loop {
            out.push(item(self)?);
            if self.eat("]")? {
                return Ok(out);
            }
            self.expect(",")?;
        }
    }

    /// An identifier `prefix` + number, such as `b12`.
    pub fn id(&mut self, prefix: &str) -> Result<usize> {
        let word = self.ident()?;
        word.strip_prefix(prefix)
            .and_then(|n| n.parse::<u32>().ok())
            .map(|n| n as usize)
            .ok_or_else(|| self.error(format!("expected `{prefix}` and a number, found `{word}`")))
    }

    /// An integer with an optional minus sign.
    pub fn int(&mut self) -> Result<i64> {
        let negative = self.eat("-")?;
        match self.next_token()? {
            // 2^63 is scanned as the least integer, whose wrapping negation is itself.
            Token::Int(i) => Ok(if negative { i.wrapping_neg() } else { i }),
            t => Err(self.error(format!("expected an integer, found {}", describe(&t)))),
        }
    }

    /// Takes a string.
    pub fn string(&mut self) -> Result<String> {
        match self.next_token()? {
            Token::Str(s) => Ok(s),
            t => Err(self.error(format!("expected a string, found {}", describe(&t)))),
        }
    }

    /// A scalar as [`Scalar`] prints it.
    pub fn scalar(&mut self) -> Result<Scalar> {
        let negative = self.eat("-")?;
        let sign = if negative { -1.0 } else { 1.0 };
        match self.next_token()? {
            Token::Int(i) => Ok(Scalar::Int(if negative { i.wrapping_neg() } else { i })),
            Token::Float(f) => Ok(Scalar::Float(sign * f)),
            Token::Ident(w) if w == "inf" => Ok(Scalar::Float(sign * f64::INFINITY)),
            Token::Ident(w) if w == "nan" => Ok(Scalar::Float(f64::NAN)),
            Token::Ident(w) if w == "true" && !negative => Ok(Scalar::Bool(true)),
            Token::Ident(w) if w == "false" && !negative => Ok(Scalar::Bool(false)),
            t => Err(self.error(format!("expected a number, found {}", describe(&t)))),
        }
    }

    /// Skips newlines.
    pub fn skip_newlines(&mut self) -> Result<()> {
        while *self.peek()? == Token::Newline {
            self.next_token()?;
        }
        Ok(())
    }

    /// Takes the end of a line (or of the text).
    pub fn end_of_line(&mut self) -> Result<()> {
        match self.peek()?.clone() {
            Token::End => Ok(()),
            Token::Newline => {
                self.next_token()?;
                Ok(())
            }
            t => Err(self.error(format!(
                "expected the end of the line, found {}",
                describe(&t)
            ))),
        }
    }

    pub fn at_end(&mut self) -> Result<bool> {
        Ok(*self.peek()? == Token::End)
    }

    /// Scans the next token. Returns it with its start and end.
    fn scan(&mut self) -> Result<(Token, usize, usize)> {
        let bytes = self.text.as_bytes();
        let mut p = self.pos;
        loop {
            match bytes.get(p) {
                Some(b' ' | b'\t' | b'\r') => p += 1,
                Some(b';') if bytes.get(p + 1) == Some(&b';') => {
                    while p < bytes.len() && bytes[p] != b'\n' {
                        p += 1;
                    }
                }
                _ => break,
            }
        }
        let start = p;
        self.last_start = start;
        let Some(&c) = bytes.get(p) else {
            return Ok((Token::End, start, p));
        };
        if c == b'\n' {
            return Ok((Token::Newline, start, p + 1));
        }
        if c.is_ascii_alphabetic() || c == b'_' {
            while bytes
                .get(p)
                .is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_' || *b == b'.')
            {
                p += 1;
            }
            // A dot that ends a name is not part of it.
            while bytes[p - 1] == b'.' {
                p -= 1;
            }
            return Ok((Token::Ident(self.text[start..p].to_string()), start, p));
        }
        if c.is_ascii_digit() {
            return self.scan_number(start);
        }
        if c == b'"' {
            return self.scan_string(start);
        }
        // Longer ones come first in the table, so that `//` is not read as two.
        for q in PUNCT {
            if self.text[p..].starts_with(q) {
                return Ok((Token::Punct(q), start, p + q.len()));
            }
        }
        let ch = self.text[p..].chars().next().unwrap_or('?');
        Err(self.error(format!("unexpected character `{ch}`")))
    }

    /// Scans a number. It is a float if it has a point with a digit after it, or an exponent.
    fn scan_number(&mut self, start: usize) -> Result<(Token, usize, usize)> {
        let bytes = self.text.as_bytes();
        let mut p = start;
        let mut float = false;
        while let Some(&b) = bytes.get(p) {
            let exponent_sign =
                (b == b'-' || b == b'+') && float && matches!(bytes[p - 1], b'e' | b'E');
            if b.is_ascii_digit() || exponent_sign {
                p += 1;
            } else if (b == b'.' && bytes.get(p + 1).is_some_and(u8::is_ascii_digit))
                || ((b == b'e' || b == b'E')
                    && bytes
                        .get(p + 1)
                        .is_some_and(|n| n.is_ascii_digit() || *n == b'-' || *n == b'+'))
            {
                float = true;
                p += 1;
            } else {
                break;
            }
        }
        let word = &self.text[start..p];
        let token = if float {
            word.parse().ok().map(Token::Float)
        } else {
            // One past the largest i64 may stand behind a minus sign.
            word.parse::<u64>()
                .ok()
                .filter(|v| *v <= 1 << 63)
                .map(|v| Token::Int(v as i64))
        };
        match token {
            Some(t) => Ok((t, start, p)),
            None => Err(self.error(format!("`{word}` is not a number that fits"))),
        }
    }

    /// Scans a string: the escapes are `\n`, `\"` and `\\`.
    fn scan_string(&mut self, start: usize) -> Result<(Token, usize, usize)> {
        let mut out = String::new();
        let mut chars = self.text[start + 1..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => return Ok((Token::Str(out), start, start + 1 + at + 1)),
                '\\' => match chars.next() {
                    Some((_, 'n')) => out.push('\n'),
                    Some((_, c @ ('"' | '\\'))) => out.push(c),
                    _ => return Err(self.error("unknown escape in a string")),
                },
                '\n' => break,
                c => out.push(c),
            }
        }
        Err(self.error("a string that does not end on its line"))
    }
}

/// `text` as it stands where [`Scanner::name`] reads it: bare if it scans as an identifier, quoted otherwise.
pub fn show_name(text: &str) -> String {
    let bare = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && !text.ends_with('.')
        && (text.bytes()).all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.');
    if bare { text.to_string() } else { quote(text) }
}

/// `text` as the scanner reads a string back.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns a token as messages show it.
fn describe(token: &Token) -> String {
    match token {
        Token::Ident(s) => format!("`{s}`"),
        Token::Int(i) => format!("`{i}`"),
        Token::Float(f) => format!("`{f:?}`"),
        Token::Str(s) => quote(s),
        Token::Punct(p) => format!("`{p}`"),
        Token::Newline => "the end of the line".into(),
        Token::End => "the end of the text".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_read_back() {
        for v in [
            Scalar::Int(i64::MIN),
            Scalar::Int(7),
            Scalar::Float(1e-300),
            Scalar::Float(-0.0),
            Scalar::Float(f64::NEG_INFINITY),
            Scalar::Float(f64::NAN),
            Scalar::Bool(true),
        ] {
            assert_eq!(Scanner::new(&v.to_string()).scalar().unwrap(), v);
        }
    }

    #[test]
    fn an_error_points_at_its_token() {
        let mut s = Scanner::new("a = 3\nb = ]");
        for _ in 0..6 {
            s.next_token().unwrap();
        }
        let e = s.int().unwrap_err().to_string();
        assert!(e.contains("line 2") && e.ends_with("    ^"), "{e}");
    }

    #[test]
    fn hostile_text_is_an_error() {
        for bad in ["\"abc", "99999999999999999999", "\u{1F600}", "\"\\q\""] {
            assert!(Scanner::new(bad).next_token().is_err(), "{bad}");
        }
    }
}
