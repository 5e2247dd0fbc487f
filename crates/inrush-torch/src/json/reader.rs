//! A one-pass reader of JSON text that is known to be UTF-8. Strings without escapes are borrowed.
//!
//! Archives are mostly keys, short names and small numbers, so these have fast paths:
//! [`Reader::plain`] scans strings eight bytes at a time, and [`Reader::integer`] reads short
//! integers without a text. A value that no record names is skipped, with no more checks than
//! finding its end takes.

use std::borrow::Cow;

/// Containers within containers are read up to this depth.
/// Readers recurse, and each level takes some hundred bytes of stack.
const DEEPEST: usize = 128;

/// A mistake, and where it was found.
#[derive(Debug)]
pub struct Mistake {
    pub at: usize,
    pub message: String,
}

/// The result of reading a value.
/// The mistake is boxed, because each value that is read returns one of these, and a pointer
/// keeps it small.
pub type Read<T> = std::result::Result<T, Box<Mistake>>;

/// A position in a text. `at` is at the boundary of a character whenever a value has been read.
pub struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    pub fn new(text: &'a str) -> Reader<'a> {
        let (at, depth) = (0, 0);
        Reader { text, at, depth }
    }

    /// Returns a mistake here.
    #[cold]
    pub fn mistake(&self, message: impl Into<String>) -> Box<Mistake> {
        let (at, message) = (self.at, message.into());
        Box::new(Mistake { at, message })
    }

    /// Returns the mistake that `what` was expected here.
    #[cold]
    pub fn expected(&mut self, what: &str) -> Box<Mistake> {
        let found = match self.peek() {
            None => return self.mistake(format!("EOF where {what} should stand")),
            Some(b'{') => "an object",
            Some(b'[') => "a list",
            Some(b'"') => "a string",
            Some(b'-' | b'0'..=b'9') => "a number",
            Some(b't' | b'f') => "a boolean",
            Some(b'n') => "null",
            Some(_) => return self.mistake(format!("expected {what}")),
        };
        self.mistake(format!("invalid type: {found}, expected {what}"))
    }

    #[inline]
    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips white space and returns the next byte.
    #[inline]
    pub fn peek(&mut self) -> Option<u8> {
        loop {
            match self.byte() {
                Some(b' ' | b'\n' | b'\t' | b'\r') => self.at += 1,
                other => return other,
            }
        }
    }

    /// Takes a byte if it comes next.
    #[inline]
    fn eat(&mut self, byte: u8) -> bool {
        let hit = self.peek() == Some(byte);
        self.at += hit as usize;
        hit
    }

    /// Checks that only white space is left.
    pub fn end(&mut self) -> Read<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.mistake("trailing characters")),
        }
    }

    /// Enters a container. Returns true if it is not empty.
    #[inline]
    fn open(&mut self, open: u8, close: u8, what: &str) -> Read<bool> {
        if !self.eat(open) {
            return Err(self.expected(what));
        }
        if self.eat(close) {
            return Ok(false);
        }
        // Empty containers return above and need no `depth`.
        self.depth += 1;
        if self.depth > DEEPEST {
            Err(self.mistake("recursion limit exceeded"))
        } else {
            Ok(true)
        }
    }

    /// Returns true if another item follows in a container; leaves the container after the last.
    #[inline]
    fn more(&mut self, close: u8, what: &str) -> Read<bool> {
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(b) if b == close => {
                self.at += 1;
                self.depth -= 1;
                Ok(false)
            }
            None => Err(self.mistake(format!("EOF while parsing {what}"))),
            Some(_) => Err(self.mistake(format!("expected `,` or the end of {what}"))),
        }
    }

    /// Reads an object and calls `value` after each key.
    #[inline]
    pub fn object(
        &mut self,
        what: &str,
        mut value: impl FnMut(&mut Self, Cow<'a, str>) -> Read<()>,
    ) -> Read<()> {
        let mut more = self.open(b'{', b'}', what)?;
        while more {
            let key = self.string("a key")?;
            if !self.eat(b':') {
                return Err(self.mistake("expected `:`"));
            }
            value(self, key)?;
            more = self.more(b'}', "an object")?;
        }
        Ok(())
    }

    /// Reads a list and calls `item` for each item.
    #[inline]
    pub fn list(&mut self, mut item: impl FnMut(&mut Self) -> Read<()>) -> Read<()> {
        let mut more = self.open(b'[', b']', "a list")?;
        while more {
            item(self)?;
            more = self.more(b']', "a list")?;
        }
        Ok(())
    }

    /// Reads a string, which errors call `what`.
    pub fn string(&mut self, what: &str) -> Read<Cow<'a, str>> {
        if !self.eat(b'"') {
            return Err(self.expected(what));
        }
        let start = self.at;
        // Most strings end here, and are slices of the text.
        self.plain();
        match self.byte() {
            Some(b'"') => {
                self.at += 1;
                Ok(Cow::Borrowed(&self.text[start..self.at - 1]))
            }
            _ => self.unescaped(start).map(Cow::Owned),
        }
    }

    /// Reads the rest of the string that began at `start`, which holds escapes or a mistake.
    #[cold]
    fn unescaped(&mut self, mut start: usize) -> Read<String> {
        let mut out = String::new();
        loop {
            out.push_str(&self.text[start..self.at]);
            match self.byte() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    out.push(self.escape()?);
                }
                Some(_) => return Err(self.mistake("a control character in a string")),
                None => return Err(self.mistake("EOF while parsing a string")),
            }
            start = self.at;
            self.plain();
        }
    }

    /// Advances to the next quotation mark, backslash or control character, a word at a time.
    #[inline]
    fn plain(&mut self) {
        // `ONES` has a 1 in each byte, `HIGH` the top bit of each. A byte of `word ^ pattern` is
        // zero where the word has the pattern's byte, and `below(.., 1)` finds zero bytes.
        const ONES: u64 = u64::MAX / 255;
        const HIGH: u64 = ONES << 7;
        let rest = &self.text.as_bytes()[self.at..];
        let mut at = 0;
        while let Some(chunk) = rest.get(at..at + 8) {
            let word = u64::from_le_bytes(chunk.try_into().expect("8 bytes"));
            // Sets the high bit of each byte below `limit`, and possibly of bytes above the lowest
            // of these: only the lowest is used.
            let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word;
            let is = |byte: u8| below(word ^ (ONES * byte as u64), 1);
            let hits = (is(b'"') | is(b'\\') | below(word, 0x20)) & HIGH;
            if hits != 0 {
                self.at += at + hits.trailing_zeros() as usize / 8;
                return;
            }
            at += 8;
        }
        // Fewer than eight bytes are left.
        let hit = |b: &u8| matches!(b, b'"' | b'\\' | 0..0x20);
        let last = &rest[at..];
        self.at += at + last.iter().position(hit).unwrap_or(last.len());
    }

    /// Reads a string as it is written, with quotation marks and escapes.
    /// Used for stack traces, of which most are never shown, and for strings that are skipped.
    /// Escapes and control characters are not checked.
    pub fn written(&mut self, what: &str) -> Read<&'a str> {
        if !self.eat(b'"') {
            return Err(self.expected(what));
        }
        let start = self.at - 1;
        loop {
            let Some(next) = self.text[self.at..].find('"') else {
                return Err(self.mistake("EOF while parsing a string"));
            };
            let inside = &self.text.as_bytes()[self.at..self.at + next];
            self.at += next + 1;
            // After an odd number of backslashes it belongs to the string.
            let backslashes = inside.iter().rev().take_while(|b| **b == b'\\').count();
            if backslashes % 2 == 0 {
                return Ok(&self.text[start..self.at]);
            }
        }
    }

    /// Reads the rest of an escape, after its backslash.
    fn escape(&mut self) -> Read<char> {
        let letter = self.byte();
        self.at += letter.is_some() as usize;
        Ok(match letter {
            Some(b'"' | b'\\' | b'/') => letter.map_or('/', char::from),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode(),
            Some(_) => return Err(self.mistake("invalid escape")),
            None => return Err(self.mistake("EOF while parsing a string")),
        })
    }

    /// Reads the rest of `\uXXXX`, after the `u`. Characters outside of the basic plane are two of
    /// these.
    fn unicode(&mut self) -> Read<char> {
        let code = match self.hex()? {
            // UTF-16: a high surrogate and a low one make one character above U+FFFF.
            high @ 0xD800..0xDC00 if self.text.as_bytes()[self.at..].starts_with(b"\\u") => {
                self.at += 2;
                match self.hex()? {
                    low @ 0xDC00..0xE000 => 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00),
                    // Half a pair is no character.
                    _ => high,
                }
            }
            code => code,
        };
        char::from_u32(code).ok_or_else(|| self.mistake("half a surrogate pair"))
    }

    /// Reads four hexadecimal digits.
    fn hex(&mut self) -> Read<u32> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let digit = |b: &u8| char::from(*b).to_digit(16);
        let value = digits.and_then(|d| d.iter().try_fold(0, |v, b| Some(v << 4 | digit(b)?)));
        let value = value.ok_or_else(|| self.mistake("invalid escape"))?;
        self.at += 4;
        Ok(value)
    }

    /// Reads an integer.
    /// A number with a fraction or exponent is an error, also if its value is whole.
    pub fn integer(&mut self) -> Read<i64> {
        self.peek();
        let rest = &self.text.as_bytes()[self.at..];
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let next = rest.get(digits);
        // Most are short and have no sign.
        // 17 digits cannot overflow 64 bits. Leading zeros go the long way, which refuses them.
        if (1..18).contains(&digits)
            && (digits == 1 || rest[0] != b'0')
            && !matches!(next, Some(b'.' | b'e' | b'E'))
        {
            self.at += digits;
            let value = |v, b: &u8| 10 * v + (b - b'0') as i64;
            return Ok(rest[..digits].iter().fold(0, value));
        }
        let text = self.number("an integer")?;
        let wrong = |_| self.mistake(format!("`{text:.40}` is no integer of 64 bits"));
        text.parse().map_err(wrong)
    }

    /// Reads the text of a number, which errors call `what`.
    /// The grammar is that of JSON: no leading zeros, no `+`, digits on both sides of a point.
    pub fn number(&mut self, what: &str) -> Read<&'a str> {
        if !matches!(self.peek(), Some(b'-' | b'0'..=b'9')) {
            return Err(self.expected(what));
        }
        let start = self.at;
        self.at += (self.byte() == Some(b'-')) as usize;
        let zero = self.byte() == Some(b'0');
        if self.digits()? > 1 && zero {
            return Err(self.mistake("a number that begins with 0"));
        }
        if self.byte() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.byte() {
            self.at += 1;
            self.at += matches!(self.byte(), Some(b'+' | b'-')) as usize;
            self.digits()?;
        }
        Ok(&self.text[start..self.at])
    }

    /// Skips digits and returns how many there are.
    fn digits(&mut self) -> Read<usize> {
        let rest = &self.text.as_bytes()[self.at..];
        let count = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        self.at += count;
        match count {
            0 => Err(self.mistake("invalid number")),
            count => Ok(count),
        }
    }

    /// Reads `null`, `true` or `false`, if it comes next.
    pub fn word(&mut self) -> Option<&'static str> {
        let word = match self.peek()? {
            b'n' => "null",
            b't' => "true",
            b'f' => "false",
            _ => return None,
        };
        let rest = &self.text.as_bytes()[self.at..];
        rest.starts_with(word.as_bytes()).then(|| {
            self.at += word.len();
            word
        })
    }

    /// Skips a value.
    pub fn skip(&mut self) -> Read<()> {
        match self.peek() {
            Some(b'{') => self.object("", |r, _| r.skip()),
            Some(b'[') => self.list(Self::skip),
            Some(b'"') => self.written("").map(|_| ()),
            Some(b'-' | b'0'..=b'9') => self.number("").map(|_| ()),
            _ => match self.word() {
                Some(_) => Ok(()),
                None => Err(self.expected("a value")),
            },
        }
    }
}
