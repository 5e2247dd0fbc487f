//! JSON with errors that say where: borrowed strings, records, unions, and the text around a mistake.
//!
//! A program's JSON can have tens of megabytes, most of it node records. So there is no tree of
//! values: `record!` and `union!` declare structures, and their readers take keys and values
//! straight from the text, skipping keys that are not declared. Strings are borrowed.
//!
//! An error carries a position only; line, column, the text around it and the operator it belongs
//! to are found from that when it is reported. Keys that stand twice in a record are an error, as
//! readers differ in which one they take.

mod reader;

use inrush_base::{Error, Result};
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use crate::lex::{shorten, shortened};
pub use reader::{Read, Reader};

/// A type that is read from JSON.
/// `'a` is the lifetime of the JSON text.
pub trait FromJson<'a>: Sized {
    /// Reads one value at the reader's position and leaves the reader after it.
    fn read(r: &mut Reader<'a>) -> Read<Self>;

    /// Returns the value for a missing key; `None` if the key is required.
    fn missing() -> Option<Self> {
        None
    }
}

/// A string that is borrowed from the JSON text unless it holds escapes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Text<'a>(pub Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'a> FromJson<'a> for Text<'a> {
    fn read(r: &mut Reader<'a>) -> Read<Self> {
        r.string("a string").map(Text)
    }
}

impl FromJson<'_> for String {
    fn read(r: &mut Reader) -> Read<Self> {
        r.string("a string").map(Cow::into_owned)
    }
}

/// A float; archives write those that JSON cannot as strings.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Number(pub f64);

impl FromJson<'_> for Number {
    fn read(r: &mut Reader) -> Read<Self> {
        const WHAT: &str = "a number or \"Infinity\", \"-Infinity\", \"NaN\"";
        if r.peek() != Some(b'"') {
            let value = r.number(WHAT)?.parse().ok().filter(|v: &f64| v.is_finite());
            return (value.map(Number)).ok_or_else(|| r.mistake("number out of range"));
        }
        match &*r.string(WHAT)? {
            "Infinity" => Ok(Number(f64::INFINITY)),
            "-Infinity" => Ok(Number(f64::NEG_INFINITY)),
            "NaN" => Ok(Number(f64::NAN)),
            other => Err(r.mistake(format!("`{}` is not a number", shorten(other)))),
        }
    }
}

impl FromJson<'_> for i64 {
    fn read(r: &mut Reader) -> Read<Self> {
        r.integer()
    }
}

impl FromJson<'_> for bool {
    fn read(r: &mut Reader) -> Read<Self> {
        match r.peek() {
            Some(b't' | b'f') if let Some(word) = r.word() => Ok(word == "true"),
            _ => Err(r.expected("a boolean")),
        }
    }
}

impl<'a, T: FromJson<'a>> FromJson<'a> for Option<T> {
    fn read(r: &mut Reader<'a>) -> Read<Self> {
        match r.peek() {
            // A `null` and a missing key are the same to an optional field.
            Some(b'n') if r.word().is_some() => Ok(None),
            _ => T::read(r).map(Some),
        }
    }

    fn missing() -> Option<Self> {
        Some(None)
    }
}

impl<'a, T: FromJson<'a>> FromJson<'a> for Box<T> {
    fn read(r: &mut Reader<'a>) -> Read<Self> {
        T::read(r).map(Box::new)
    }
}

impl<'a, T: FromJson<'a>> FromJson<'a> for Vec<T> {
    fn read(r: &mut Reader<'a>) -> Read<Self> {
        let mut out = Vec::new();
        r.list(|r| {
            out.push(T::read(r)?);
            Ok(())
        })?;
        Ok(out)
    }
}

/// A value that is skipped.
#[derive(Copy, Clone, Debug)]
pub struct Skipped;

impl FromJson<'_> for Skipped {
    fn read(r: &mut Reader) -> Read<Self> {
        r.skip().map(|()| Skipped)
    }
}

/// A map in the order of the file.
/// Keys may repeat; users that need them unique check it.
#[derive(Clone, Debug)]
pub struct Pairs<'a, T>(pub Vec<(Text<'a>, T)>);

impl<T> Default for Pairs<'_, T> {
    fn default() -> Self {
        Pairs(Vec::new())
    }
}

impl<'a, T: FromJson<'a>> FromJson<'a> for Pairs<'a, T> {
    fn read(r: &mut Reader<'a>) -> Read<Self> {
        let mut out = Vec::new();
        r.object("an object", |r, key| {
            out.push((Text(key), T::read(r)?));
            Ok(())
        })?;
        Ok(Pairs(out))
    }
}

/// Any value.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    Text(Text<'a>),
    List(Vec<Value<'a>>),
    Object(Pairs<'a, Value<'a>>),
    /// A number or word, as it is written.
    Plain(&'a str),
}

impl<'a> FromJson<'a> for Value<'a> {
    fn read(r: &mut Reader<'a>) -> Read<Self> {
        Ok(match r.peek() {
            Some(b'"') => Value::Text(Text::read(r)?),
            Some(b'[') => Value::List(Vec::read(r)?),
            Some(b'{') => Value::Object(Pairs::read(r)?),
            _ => match r.word() {
                Some(word) => Value::Plain(word),
                None => Value::Plain(r.number("a value")?),
            },
        })
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(t) => write!(f, "\"{}\"", t.replace('\\', "\\\\").replace('"', "\\\"")),
            Value::List(v) => {
                f.write_str("[")?;
                for (k, v) in v.iter().enumerate() {
                    write!(f, "{}{v}", if k > 0 { "," } else { "" })?;
                }
                f.write_str("]")
            }
            Value::Object(m) => {
                f.write_str("{")?;
                for (n, (k, v)) in m.0.iter().enumerate() {
                    let comma = if n > 0 { "," } else { "" };
                    write!(f, "{comma}{}:{v}", Value::Text(k.clone()))?;
                }
                f.write_str("}")
            }
            Value::Plain(s) => f.write_str(s),
        }
    }
}

/// A stack trace as it is written. Many nodes share one, so it is read only once per distinct text.
#[derive(Copy, Clone, Debug)]
pub struct Trace<'a>(pub &'a str);

impl Trace<'_> {
    /// Returns the last Python frame outside of PyTorch: `model.py:12 in forward: x = x + 1`.
    pub fn last_frame(self) -> Option<String> {
        last_frame(&Reader::new(self.0).string("a stack trace").ok()?)
    }
}

impl<'a> FromJson<'a> for Trace<'a> {
    fn read(r: &mut Reader<'a>) -> Read<Self> {
        r.written("a stack trace").map(Trace)
    }
}

/// Returns the last line of a Python stack trace that is the user's own. Frames are written `File
/// "path", line 12, in forward` with the source text on the next line.
pub fn last_frame(trace: &str) -> Option<String> {
    const START: &str = "File \"";
    // Paths may be relative to the folder that holds PyTorch.
    let own = |frame: &str| {
        let path = frame.split('"').next().unwrap_or_default();
        !path.starts_with("torch/") && !path.contains("/site-packages/torch/")
    };
    // Lines are walked from the end, because the innermost frame of the user is wanted and traces
    // are deep. A trace with frames of PyTorch only gives the innermost of these.
    let (mut last, mut below) = (None, "");
    for line in trace.rsplit('\n') {
        let line = line.trim();
        if let Some(frame) = line.strip_prefix(START) {
            if own(frame) {
                return show_frame(frame, below);
            }
            last = last.or(Some((frame, below)));
            // The line above a frame is not its source.
            below = "";
        } else {
            below = line;
        }
    }
    last.and_then(|(frame, source)| show_frame(frame, source))
}

/// Returns `path", line 12, in forward` and the source text for people.
fn show_frame(frame: &str, source: &str) -> Option<String> {
    let (path, rest) = frame.split_once("\", line ")?;
    let (line, function) = rest.split_once(", in ")?;
    let mut out =
        String::with_capacity(path.len() + line.len() + function.len() + source.len() + 8);
    let between = if source.is_empty() { "" } else { ": " };
    for part in [path, ":", line, " in ", function, between, source] {
        out.push_str(part);
    }
    Some(shortened(out))
}

/// Reads `text`. An error shows the text around the place.
pub fn parse<'a, T: FromJson<'a>>(text: &'a [u8]) -> Result<T> {
    // One check of the whole text; slices of it at ASCII bytes are UTF-8 again.
    let read = std::str::from_utf8(text).map_err(|e| (e.valid_up_to(), "invalid UTF-8".into()));
    let read = read.and_then(|text| {
        let mut r = Reader::new(text);
        let value = T::read(&mut r).and_then(|v| r.end().map(|()| v));
        value.map_err(|e| (e.at, e.message))
    });
    read.map_err(|(at, message)| {
        let at = at.min(text.len());
        let before = &text[..at];
        let start = before
            .iter()
            .rposition(|b| *b == b'\n')
            .map_or(0, |p| p + 1);
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        let column = at - start + 1;
        let around = &text[at.saturating_sub(60)..(at + 20).min(text.len())];
        let around = shortened(String::from_utf8_lossy(around).into_owned());
        let mut message = format!("{message} at line {line} column {column}, near `{around}`");
        if let Some(target) = target_before(before) {
            message.push_str(&format!(", in or after a call of `{}`", shorten(&target)));
        }
        Error::input(message)
    })
}

/// Returns the operator of the last node that begins before the mistake.
/// Node records begin with their target. The search assumes the spacing of Python's `json.dumps`
/// and finds nothing in other text.
fn target_before(text: &[u8]) -> Option<String> {
    const KEY: &[u8] = b"\"target\": \"";
    let at = text.windows(KEY.len()).rposition(|w| w == KEY)? + KEY.len();
    let end = text[at..].iter().position(|b| *b == b'"')?;
    Some(String::from_utf8_lossy(&text[at..at + end]).into_owned())
}

/// Declares a record: an object with these keys. Other keys are skipped. A missing key is an error
/// unless its type, or `= default`, gives a value. `as "key"` gives a key that is no identifier.
macro_rules! record {
    ($(#[$attribute:meta])* $name:ident $(<$lt:lifetime>)? {
        $($field:ident: $ty:ty $(as $key:literal)? $(= $default:expr)?),* $(,)?
    }) => {
        #[derive(Clone, Debug)]
        $(#[$attribute])*
        pub struct $name $(<$lt>)? {
            $(pub $field: $ty,)*
        }
        impl<'a> $crate::json::FromJson<'a> for $name $(<$lt>)? {
            fn read(r: &mut $crate::json::Reader<'a>) -> $crate::json::Read<Self> {
                $(let mut $field: Option<$ty> = None;)*
                r.object(concat!("an object (", stringify!($name), ")"), |r, key| {
                    $(if key == $crate::json::record!(@key $field $($key)?) {
                        if $field.is_some() {
                            return Err(r.mistake(format!("`{key}` is there twice")));
                        }
                        $field = Some($crate::json::FromJson::read(r)?);
                        return Ok(());
                    })*
                    r.skip()
                })?;
                Ok($name {
                    $($field: match $field {
                        Some(value) => value,
                        None => None$(.or(Some($default)))?
                            .or_else(<$ty as $crate::json::FromJson>::missing)
                            .ok_or_else(|| r.mistake(concat!(
                                "missing field `", $crate::json::record!(@key $field $($key)?), "`"
                            )))?,
                    },)*
                })
            }
        }
    };
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };
}
pub(crate) use record;

/// Declares a union of the archive's schema: an object with exactly one key. A key that is not listed becomes `Unknown`,
/// so that the reader can say where a newer archive holds something that it does not know.
macro_rules! union {
    ($(#[$doc:meta])* $name:ident { $($key:literal => $variant:ident($ty:ty)),* $(,)? }) => {
        $(#[$doc])*
        // What a union holds is stated in full, read or not.
        #[allow(dead_code)]
        #[derive(Clone, Debug)]
        pub enum $name<'a> {
            $($variant($ty),)*
            Unknown($crate::json::Text<'a>),
        }
        impl<'a> $crate::json::FromJson<'a> for $name<'a> {
            fn read(r: &mut $crate::json::Reader<'a>) -> $crate::json::Read<Self> {
                let mut out = None;
                r.object(concat!("an object with one key (", stringify!($name), ")"), |r, key| {
                    if out.is_some() {
                        return Err(r.mistake("a union with two keys"));
                    }
                    out = Some(match &*key {
                        $($key => $name::$variant($crate::json::FromJson::read(r)?),)*
                        _ => {
                            r.skip()?;
                            $name::Unknown($crate::json::Text(key))
                        }
                    });
                    Ok(())
                })?;
                out.ok_or_else(|| r.mistake("a union without a key"))
            }
        }
    };
}
pub(crate) use union;

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "  File \"/home/me/model.py\", line 12, in forward\n    x = x + 1\n";
    const TORCH: &str =
        "  File \"/lib/site-packages/torch/nn/linear.py\", line 3, in forward\n    return f(x)\n";

    #[test]
    fn the_last_frame_outside_torch_is_the_users() {
        let own = Some("/home/me/model.py:12 in forward: x = x + 1");
        let torch = Some("/lib/site-packages/torch/nn/linear.py:3 in forward: return f(x)");
        let of = |parts: &[&str]| last_frame(&parts.concat());
        assert_eq!(of(&[OWN]).as_deref(), own);
        assert_eq!(of(&[TORCH, OWN, TORCH, TORCH]).as_deref(), own);
        assert_eq!(of(&[TORCH]).as_deref(), torch);
        assert_eq!(of(&["called from\n", OWN.trim_end()]).as_deref(), own);
        assert_eq!(of(&["no frame", "File \"cut"]), None);
    }

    #[test]
    fn a_frame_without_its_source_text_is_shown_without() {
        let bare = "File \"a.py\", line 1, in f\n";
        let shown = Some("a.py:1 in f");
        assert_eq!(last_frame(bare).as_deref(), shown);
        assert_eq!(last_frame(&[bare, TORCH].concat()).as_deref(), shown);
    }

    #[test]
    fn long_texts_are_cut_by_characters() {
        let long = |c: &str| c.repeat(200);
        for c in ["x", "é"] {
            let shown = shorten(&long(c));
            assert_eq!(shown, c.repeat(160) + "…");
        }
        assert_eq!(shorten("a\nb\u{7f}"), "a b ");
    }

    fn read<'a, T: FromJson<'a>>(text: &'a str) -> Option<T> {
        parse(text.as_bytes()).ok()
    }

    #[test]
    fn strings_are_borrowed_unless_they_hold_escapes() {
        fn text(t: &str) -> Option<Cow<'_, str>> {
            read::<Text>(t).map(|t| t.0)
        }
        for plain in [
            "",
            "a",
            "exactly ",
            "eight and more \u{e9} \u{1f600} \u{7f}",
        ] {
            let quoted = format!(" \"{plain}\" ");
            assert!(
                matches!(text(&quoted), Some(Cow::Borrowed(p)) if p == plain),
                "{plain}"
            );
        }
        let escaped = r#""12345678\" \\ \/ \b\f\n\r\t \u00e9\uD83D\ude00é""#;
        let meant = "12345678\" \\ / \u{8}\u{c}\n\r\t \u{e9}\u{1f600}\u{e9}";
        assert_eq!(text(escaped).as_deref(), Some(meant));
        for bad in [
            "\"",
            "\"abc",
            "\"\\",
            r#""\x""#,
            r#""\u12""#,
            r#""\u12é""#,
            r#""\ud83d""#,
            r#""\ud83d\u0041""#,
            r#""\ude00""#,
            "\"a\nb\"",
            "\"12345678\u{1f}\"",
            "'a'",
        ] {
            assert!(text(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn numbers_are_those_of_json() {
        for (text, value) in [("0", 0), ("-7", -7), ("9223372036854775807", i64::MAX)] {
            assert_eq!(read::<i64>(text), Some(value));
        }
        for bad in [
            "01",
            "-",
            "1.5",
            "1e2",
            "9223372036854775808",
            "+1",
            "1 2",
            "\"1\"",
            "0x1",
        ] {
            assert_eq!(read::<i64>(bad), None, "{bad}");
        }
        let float = |t| read::<Number>(t).map(|n| n.0);
        for (text, value) in [
            ("1", 1.0),
            ("-0.5e-1", -0.05),
            ("1E+2", 100.0),
            ("0.1", 0.1),
        ] {
            assert_eq!(float(text), Some(value));
        }
        assert_eq!(float("\"-Infinity\""), Some(f64::NEG_INFINITY));
        assert!(float("\"NaN\"").unwrap().is_nan());
        for bad in ["1.", ".5", "1e", "1e999", "\"one\"", "true", "NaN"] {
            assert_eq!(float(bad), None, "{bad}");
        }
    }

    record!(Thing<'a> {
        name: Text<'a>,
        kind: Option<i64> as "type",
        more: Vec<bool> = vec![true],
    });

    #[test]
    fn records_skip_what_they_do_not_know() {
        let thing = |t| read::<Thing>(t).map(|t| (t.name.to_string(), t.kind, t.more));
        let a = || "a".to_string();
        assert_eq!(thing(r#"{"name": "a"}"#), Some((a(), None, vec![true])));
        let full =
            r#" { "x" : {"name":[1,-2.5e3,null,"\\\"",{}]}, "more":[ ] ,"type":null,"name":"a"} "#;
        assert_eq!(thing(full), Some((a(), None, vec![])));
        assert_eq!(thing(r#"{"name":"a","type":3}"#).unwrap().1, Some(3));
        for bad in [
            "{}",
            "[]",
            r#"{"name":"a""#,
            r#"{"name":"a",}"#,
            r#"{,"name":"a"}"#,
            r#"{"name" "a"}"#,
            r#"{"name":"a" "type":1}"#,
            r#"{"name":"a","name":"a"}"#,
            r#"{"name":"a"} x"#,
            r#"{"name":"a","more":[true,]}"#,
            r#"{"name":"a","more":null}"#,
            r#"{"name":"a","x":tru}"#,
            r#"{"name":"a","x":01}"#,
            r#"{name:"a"}"#,
        ] {
            assert!(thing(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn depth_is_limited() {
        let nest = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(read::<Skipped>(&nest(128)).is_some());
        assert!(read::<Skipped>(&nest(130)).is_none());
        assert!(read::<Value>(&nest(100_000)).is_none());
        // What was closed does not count.
        assert!(read::<Skipped>(&format!("[{}]", vec![nest(120); 50].join(","))).is_some());
    }

    #[test]
    fn mistakes_say_where_they_are() {
        let of = |t: &[u8]| parse::<Thing>(t).unwrap_err().to_string();
        let kind = of(b"{\"name\": \"a\",\n \"type\": \"one\"}");
        assert!(
            kind.contains("invalid type: a string, expected an integer at line 2 column 10"),
            "{kind}"
        );
        assert!(of(b"{").contains("EOF"));
        assert!(of(b"{}").contains("missing field `name`"));
        assert!(of(b"{\"name\": \"\xff\"}").contains("invalid UTF-8 at line 1 column 11"));
    }

    #[test]
    fn values_are_shown_as_json() {
        let text = r#"["a\\\"",[1.50,null,{"k":true,"l":[]}]]"#;
        assert_eq!(read::<Value>(text).unwrap().to_string(), text);
    }
}
