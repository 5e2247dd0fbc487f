//! JSON with errors that say where: borrowed strings, unions, and the text around a mistake.

use inrush_base::{Error, Result};
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use crate::lex::{shorten, shortened};

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

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, v: &'de str) -> std::result::Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(v)))
            }
            fn visit_str<E>(self, v: &str) -> std::result::Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(v.to_string())))
            }
        }
        d.deserialize_str(V)
    }
}

/// A float; archives write those that JSON cannot as strings.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Number(pub f64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = Number;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a number or \"Infinity\", \"-Infinity\", \"NaN\"")
            }
            fn visit_f64<E>(self, v: f64) -> std::result::Result<Number, E> {
                Ok(Number(v))
            }
            fn visit_i64<E>(self, v: i64) -> std::result::Result<Number, E> {
                Ok(Number(v as f64))
            }
            fn visit_u64<E>(self, v: u64) -> std::result::Result<Number, E> {
                Ok(Number(v as f64))
            }
            fn visit_str<E: serde::de::Error>(self, v: &str) -> std::result::Result<Number, E> {
                match v {
                    "Infinity" => Ok(Number(f64::INFINITY)),
                    "-Infinity" => Ok(Number(f64::NEG_INFINITY)),
                    "NaN" => Ok(Number(f64::NAN)),
                    _ => Err(E::custom(format_args!("`{v}` is not a number"))),
                }
            }
        }
        d.deserialize_any(V)
    }
}

/// A map in the order of the file.
#[derive(Clone, Debug)]
pub struct Pairs<'a, T>(pub Vec<(Text<'a>, T)>);

impl<T> Default for Pairs<'_, T> {
    fn default() -> Self {
        Pairs(Vec::new())
    }
}

impl<'de: 'a, 'a, T: Deserialize<'de>> Deserialize<'de> for Pairs<'a, T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct V<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for V<T> {
            type Value = Pairs<'de, T>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Pairs<'de, T>, A::Error> {
                let mut out = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    out.push(pair);
                }
                Ok(Pairs(out))
            }
        }
        d.deserialize_map(V(std::marker::PhantomData))
    }
}

/// A stack trace as it is written: many nodes have the same, so few are read.
#[derive(Copy, Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Trace<'a>(#[serde(borrow)] pub Option<&'a RawValue>);

impl Trace<'_> {
    /// Its last Python frame outside PyTorch itself: `model.py:12 in forward: x = x + 1`.
    pub fn last_frame(self) -> Option<String> {
        let text: Text = serde_json::from_str(self.0?.get()).ok()?;
        last_frame(&text)
    }
}

/// The last line of a Python stack trace that is the user's own. Frames are written
/// `File "path", line 12, in forward` with the source text on the next line.
pub fn last_frame(trace: &str) -> Option<String> {
    const START: &str = "File \"";
    let own = |frame: &str| {
        let path = frame.split('"').next().unwrap_or_default();
        !path.starts_with("torch/") && !path.contains("/site-packages/torch/")
    };
    let (mut last, mut below) = (None, "");
    for line in trace.rsplit('\n') {
        let line = line.trim();
        if let Some(frame) = line.strip_prefix(START) {
            if own(frame) {
                return show_frame(frame, below);
            }
            last = last.or(Some((frame, below)));
            // What stands above a frame is no source of its.
            below = "";
        } else {
            below = line;
        }
    }
    last.and_then(|(frame, source)| show_frame(frame, source))
}

/// `path", line 12, in forward` and the source text for people.
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

/// Reads `text`; an error shows what stands around the place.
pub fn parse<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T> {
    // Strings of a text that is known to be UTF-8 are not looked at one by one.
    let read = match std::str::from_utf8(text) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(text),
    };
    read.map_err(|e| {
        let at = offset(text, e.line(), e.column());
        let from = at.saturating_sub(60);
        let to = (at + 20).min(text.len());
        let around = String::from_utf8_lossy(&text[from..to]);
        let mut message = format!("{e}, near `{}`", shorten(&around));
        if let Some(target) = target_before(&text[..at]) {
            message.push_str(&format!(", in or after a call of `{}`", shorten(&target)));
        }
        Error::input(message)
    })
}

/// Position of a line and column, both counted from one.
fn offset(text: &[u8], line: usize, column: usize) -> usize {
    let mut start = 0;
    for _ in 1..line {
        match text[start..].iter().position(|b| *b == b'\n') {
            Some(p) => start += p + 1,
            None => break,
        }
    }
    (start + column).min(text.len())
}

/// The operator of the last node that begins before the mistake.
fn target_before(text: &[u8]) -> Option<String> {
    const KEY: &[u8] = b"\"target\": \"";
    let at = text.windows(KEY.len()).rposition(|w| w == KEY)? + KEY.len();
    let end = text[at..].iter().position(|b| *b == b'"')?;
    Some(String::from_utf8_lossy(&text[at..at + end]).into_owned())
}

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
        impl<'de: 'a, 'a> serde::Deserialize<'de> for $name<'a> {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                struct V;
                impl<'de> serde::de::Visitor<'de> for V {
                    type Value = $name<'de>;
                    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                        f.write_str(concat!("an object with one key (", stringify!($name), ")"))
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(
                        self,
                        mut map: A,
                    ) -> Result<$name<'de>, A::Error> {
                        use serde::de::Error;
                        let key = map.next_key::<$crate::json::Text<'de>>()?;
                        let key = key.ok_or_else(|| A::Error::custom("a union without a key"))?;
                        let out = match &*key {
                            $($key => $name::$variant(map.next_value()?),)*
                            _ => {
                                map.next_value::<serde::de::IgnoredAny>()?;
                                $name::Unknown(key)
                            }
                        };
                        match map.next_key::<serde::de::IgnoredAny>()? {
                            None => Ok(out),
                            Some(_) => Err(A::Error::custom("a union with two keys")),
                        }
                    }
                }
                d.deserialize_map(V)
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

    #[test]
    fn what_is_no_utf8_is_refused_where_it_is_read() {
        let bad = b"{\"major\": 8, \"minor\": 1, \"other\": \"\xff\"}";
        let read: Result<crate::schema::SchemaVersion> = parse(bad);
        assert_eq!(read.unwrap().major, 8);
        assert!(parse::<Vec<String>>(b"[\"\xff\"]").is_err());
    }
}
