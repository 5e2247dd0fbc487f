//! Reads PyTorch's operator schemas: `(Tensor self, int[1]? dim=None, *, ScalarType? dtype=None) -> (Tensor, Tensor)`.
//!
//! The text is that of `native_functions.yaml`. A parsed schema tells the order of
//! parameters, the kind that binding coerces arguments to, defaults, and which results alias
//! an argument (`Tensor(a)`). Return names are dropped.
//!
//! An operator that users define is declared with its name in front: [`Operator`].

use crate::{Error, Result};
use std::fmt;

/// Parameters and results of an operator.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Schema {
    pub params: Vec<Param>,
    pub returns: Vec<Return>,
}

/// A parameter. Its position in the list is that of its argument in every bound call.
#[derive(Clone, PartialEq, Debug)]
pub struct Param {
    pub name: String,
    pub kind: Kind,
    /// Its type ends with `?`: none is an argument. A parameter may have no default and be
    /// optional.
    pub optional: bool,
    /// It stands after `*`.
    pub keyword_only: bool,
    /// `None` for a parameter that each call must give; `Some(Default_::None)` for `=None`.
    pub default: Option<Default_>,
    /// Alias set of `Tensor(a)`.
    pub alias: Option<char>,
    /// The operator writes it: `Tensor(a!)`.
    pub written: bool,
    /// Entries of a list of tensors may be none: `Tensor?[]`.
    pub nullable: bool,
}

/// A result. A letter that a parameter has too means that the result shares its memory.
#[derive(Clone, PartialEq, Debug)]
pub struct Return {
    /// `Tensor` or `Tensor[]`.
    pub tensor: bool,
    /// A list of tensors, whose length the call decides.
    pub list: bool,
    pub alias: Option<char>,
}

/// The kind of a parameter's arguments.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    Tensor,
    Tensors,
    Scalar,
    Scalars,
    /// `int` and `SymInt`.
    Int,
    /// A list; with a fixed length (`int[2]`) a single integer stands for all entries.
    Ints(Option<usize>),
    Float,
    Floats,
    Bool,
    Bools,
    Str,
    DType,
    MemoryFormat,
    /// Device, layout, generator: no meaning for compilation.
    Other,
}

/// A default value.
#[derive(Clone, PartialEq, Debug)]
pub enum Default_ {
    None,
    Int(i64),
    Float(f64),
    Bool(bool),
    Str(String),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
    Contiguous,
}

impl Schema {
    /// Reads a schema.
    ///
    /// # Errors
    /// An input error for a malformed one.
    pub fn parse(text: &str) -> Result<Schema> {
        let bad = |what: &str| Error::input(format!("schema `{text}`: {what}"));
        // A default may hold an arrow, results do not.
        let (params, returns) = text.rsplit_once("->").ok_or_else(|| bad("no `->`"))?;
        let mut out = Schema::default();
        let mut keyword_only = false;
        let params = params.trim();
        let params = params
            .strip_prefix('(')
            .and_then(|p| p.strip_suffix(')'))
            .ok_or_else(|| bad("no parameter list"))?;
        for item in split_top(params) {
            if item == "*" {
                keyword_only = true;
                continue;
            }
            out.params
                .push(param(item, keyword_only).ok_or_else(|| bad(item))?);
        }
        let returns = returns.trim();
        let inner = returns
            .strip_prefix('(')
            .and_then(|r| r.strip_suffix(')'))
            .unwrap_or(returns);
        for item in split_top(inner) {
            let ty = item.split_whitespace().next().unwrap_or_default();
            let (ty, alias, _) = alias_of(ty);
            out.returns.push(Return {
                tensor: matches!(&*ty, "Tensor" | "Tensor[]"),
                list: ty.ends_with("[]"),
                alias,
            });
        }
        Ok(out)
    }

    /// Returns the position of the parameter of this name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.params.iter().position(|p| p.name == name)
    }

    /// Returns true if a call by one schema is a call by the other: same kinds of parameters and results, same writes. Names and
    /// defaults may differ.
    pub fn calls_alike(&self, other: &Schema) -> bool {
        let param = |p: &Param| (p.kind, p.optional, p.written, p.nullable);
        let result = |r: &Return| (r.tensor, r.list);
        self.params
            .iter()
            .map(param)
            .eq(other.params.iter().map(param))
            && (self.returns.iter().map(result)).eq(other.returns.iter().map(result))
    }
}

/// An operator that users define, as its host declares it: `mylib::scale(Tensor x, float by=2.0) -> Tensor`.
#[derive(Clone, PartialEq, Debug)]
pub struct Operator {
    /// The name as graphs have it: `mylib.scale.default`.
    pub name: String,
    pub schema: Schema,
}

impl Operator {
    /// Reads a declaration: the name with its namespace, then the schema.
    ///
    /// # Errors
    /// An input error for a malformed one; an unsupported error for parameters and results that packages do not pass.
    pub fn parse(text: &str) -> Result<Operator> {
        let bad = |what: &str| Error::input(format!("the operator `{text}`: {what}"));
        let at = text.find('(').ok_or_else(|| bad("no parameter list"))?;
        let (name, schema) = text.split_at(at);
        let word = |w: &str| {
            let letters = |c: char| c.is_alphanumeric() || c == '_';
            !w.is_empty() && w.chars().all(letters)
        };
        let (namespace, op) = (name.trim().split_once("::"))
            .ok_or_else(|| bad("its name has no namespace: `mylib::scale`"))?;
        let (op, overload) = op.split_once('.').unwrap_or((op, "default"));
        if ![namespace, op, overload].into_iter().all(word) {
            return Err(bad("a name is a word"));
        }
        let operator = Operator {
            name: format!("{namespace}.{op}.{overload}"),
            schema: Schema::parse(schema)?,
        };
        operator.check().map_err(|e| e.context(text))?;
        Ok(operator)
    }

    /// Refuses what calls from packages do not pass.
    fn check(&self) -> Result<()> {
        for p in &self.schema.params {
            let passed = !matches!(p.kind, Kind::Scalars | Kind::Other | Kind::MemoryFormat);
            if !passed || p.written && p.kind != Kind::Tensor {
                return Err(Error::unsupported(format!(
                    "the parameter `{}` of a custom operator: {}",
                    p.name,
                    if p.written {
                        "a list that is written"
                    } else {
                        "its type"
                    }
                )));
            }
            if p.alias.is_some() && !p.written {
                return Err(Error::unsupported(format!(
                    "a result that shares memory with `{}`: custom operators give new tensors",
                    p.name
                )));
            }
        }
        if self.schema.returns.iter().any(|r| !r.tensor) {
            return Err(Error::unsupported(
                "a custom operator whose result is no tensor",
            ));
        }
        if self.schema.returns.iter().any(|r| r.alias.is_some()) {
            return Err(Error::unsupported(
                "a custom operator whose result shares memory with an argument: it gives new tensors",
            ));
        }
        Ok(())
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = self.name.splitn(3, '.');
        let mut word = || words.next().unwrap_or_default();
        write!(f, "{}::{}", word(), word())?;
        match word() {
            "default" => {}
            overload => write!(f, ".{overload}")?,
        }
        write!(f, "{}", self.schema)
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(")?;
        let mut star = false;
        for (at, p) in self.params.iter().enumerate() {
            if at > 0 {
                write!(f, ", ")?;
            }
            if p.keyword_only && !star {
                write!(f, "*, ")?;
                star = true;
            }
            write!(f, "{p}")?;
        }
        write!(f, ") -> ")?;
        let result = |r: &Return| match (r.tensor, r.list) {
            (true, true) => "Tensor[]",
            (true, false) => "Tensor",
            (false, _) => "Scalar",
        };
        match &self.returns[..] {
            [one] => write!(f, "{}", result(one)),
            all => {
                let all: Vec<&str> = all.iter().map(result).collect();
                write!(f, "({})", all.join(", "))
            }
        }
    }
}

impl fmt::Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Tensor => match (self.alias, self.written) {
                (Some(a), true) => write!(f, "Tensor({a}!)")?,
                (Some(a), false) => write!(f, "Tensor({a})")?,
                _ => write!(f, "Tensor")?,
            },
            Kind::Ints(Some(n)) => write!(f, "int[{n}]")?,
            Kind::Tensors if self.nullable => write!(f, "Tensor?[]")?,
            kind => write!(f, "{}", kind.name())?,
        }
        let optional = if self.optional { "?" } else { "" };
        write!(f, "{optional} {}", self.name)?;
        match &self.default {
            Some(default) => write!(f, "={default}"),
            None => Ok(()),
        }
    }
}

impl Kind {
    /// Returns the word of the schema language.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Tensor => "Tensor",
            Kind::Tensors => "Tensor[]",
            Kind::Scalar => "Scalar",
            Kind::Scalars => "Scalar[]",
            Kind::Int => "int",
            Kind::Ints(_) => "int[]",
            Kind::Float => "float",
            Kind::Floats => "float[]",
            Kind::Bool => "bool",
            Kind::Bools => "bool[]",
            Kind::Str => "str",
            Kind::DType => "ScalarType",
            Kind::MemoryFormat => "MemoryFormat",
            Kind::Other => "Device",
        }
    }
}

impl fmt::Display for Default_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Default_::None => write!(f, "None"),
            Default_::Int(v) => write!(f, "{v}"),
            Default_::Float(v) => write!(f, "{v:?}"),
            Default_::Bool(true) => write!(f, "True"),
            Default_::Bool(false) => write!(f, "False"),
            Default_::Str(s) => write!(f, "\"{}\"", escaped(s)),
            Default_::Ints(all) => {
                let all: Vec<String> = all.iter().map(i64::to_string).collect();
                write!(f, "[{}]", all.join(", "))
            }
            Default_::Floats(all) => {
                let all: Vec<String> = all.iter().map(|v| format!("{v:?}")).collect();
                write!(f, "[{}]", all.join(", "))
            }
            Default_::Bools(all) => {
                let word = |v: &bool| if *v { "True" } else { "False" };
                let all: Vec<&str> = all.iter().map(word).collect();
                write!(f, "[{}]", all.join(", "))
            }
            Default_::Contiguous => write!(f, "contiguous_format"),
        }
    }
}

/// Splits at commas outside brackets and strings.
fn split_top(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut out) = (0i32, 0, Vec::new());
    let (mut quote, mut skip) = (None, false);
    for (i, c) in text.char_indices() {
        if let Some(q) = quote {
            match c {
                _ if skip => skip = false,
                '\\' => skip = true,
                c if c == q => quote = None,
                _ => {}
            }
            continue;
        }
        match c {
            '\'' | '"' => quote = Some(c),
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                out.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(text[start..].trim());
    out.retain(|s| !s.is_empty());
    out
}

/// `Tensor(a!)[]` as `Tensor[]`, `a`, and whether it is written.
fn alias_of(ty: &str) -> (String, Option<char>, bool) {
    match (ty.find('('), ty.find(')')) {
        (Some(l), Some(r)) if l < r => (
            format!("{}{}", &ty[..l], &ty[r + 1..]),
            ty[l + 1..].chars().next(),
            ty[l..r].contains('!'),
        ),
        _ => (ty.to_string(), None, false),
    }
}

/// Reads `SymInt[2] stride=1`; `None` for a type that is not known.
fn param(item: &str, keyword_only: bool) -> Option<Param> {
    let (head, default) = match item.split_once('=') {
        Some((h, d)) => (h.trim(), Some(default_value(d.trim())?)),
        None => (item, None),
    };
    // `Tensor(a -> *) self` has a space inside the brackets; the name is the last word.
    let (ty, name) = head.rsplit_once(' ')?;
    let (ty, alias, written) = alias_of(ty.trim());
    let optional = ty.ends_with('?');
    let kind = match ty.trim_end_matches('?') {
        "Tensor" => Kind::Tensor,
        "Tensor[]" | "Tensor?[]" => Kind::Tensors,
        "Scalar" => Kind::Scalar,
        "Scalar[]" => Kind::Scalars,
        "int" | "SymInt" => Kind::Int,
        "float" => Kind::Float,
        "float[]" => Kind::Floats,
        "bool" => Kind::Bool,
        "str" => Kind::Str,
        "ScalarType" => Kind::DType,
        "MemoryFormat" => Kind::MemoryFormat,
        "Device" | "Layout" | "Generator" | "Dimname" => Kind::Other,
        list => {
            let (base, len) = list.strip_suffix(']')?.split_once('[')?;
            match base {
                "int" | "SymInt" => Kind::Ints(if len.is_empty() {
                    None
                } else {
                    Some(len.parse().ok()?)
                }),
                "bool" => Kind::Bools,
                "float" => Kind::Floats,
                _ => return None,
            }
        }
    };
    Some(Param {
        name: name.to_string(),
        kind,
        optional,
        keyword_only,
        default,
        alias,
        written,
        nullable: ty.trim_end_matches('?') == "Tensor?[]",
    })
}

/// Reads a default as the schema language writes it, with Python's words for bool and none.
fn default_value(text: &str) -> Option<Default_> {
    Some(match text {
        "None" => Default_::None,
        "True" => Default_::Bool(true),
        "False" => Default_::Bool(false),
        "contiguous_format" => Default_::Contiguous,
        // Values of the reduction enumeration of losses.
        "Mean" => Default_::Int(1),
        t if t.starts_with(['\'', '"']) => Default_::Str(string(t)?),
        t if t.starts_with('[') => list(split_top(t.strip_prefix('[')?.strip_suffix(']')?))?,
        // `1` is an integer even for a float parameter; binding coerces it.
        t => match t.parse::<i64>() {
            Ok(i) => Default_::Int(i),
            Err(_) => Default_::Float(t.parse().ok()?),
        },
    })
}

/// Reads a list of integers, floats or bools.
fn list(items: Vec<&str>) -> Option<Default_> {
    let word = |v: &&str| match *v {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    };
    let ints: Option<Vec<i64>> = items.iter().map(|v| v.parse().ok()).collect();
    if let Some(ints) = ints {
        return Some(Default_::Ints(ints));
    }
    if let Some(bools) = items.iter().map(word).collect() {
        return Some(Default_::Bools(bools));
    }
    let floats: Option<Vec<f64>> = items.iter().map(|v| v.parse().ok()).collect();
    floats.map(Default_::Floats)
}

/// Reads a string between equal quotes, with the escapes that PyTorch writes.
fn string(text: &str) -> Option<String> {
    let quote = text.chars().next()?;
    let inner = text.get(1..)?.strip_suffix(quote)?;
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        if c == quote {
            return None;
        }
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match chars.next()? {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'x' => {
                let digits: String = chars.by_ref().take(2).collect();
                char::from(u8::from_str_radix(&digits, 16).ok()?)
            }
            c if c.is_ascii_digit() => {
                // Three octal digits.
                let rest: String = chars.by_ref().take(2).collect();
                char::from(u8::from_str_radix(&format!("{c}{rest}"), 8).ok()?)
            }
            c => c,
        });
    }
    Some(out)
}

/// Writes a string as [`string`] reads it.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_kinds_defaults_and_aliases() {
        let s = Schema::parse(
            "(Tensor(a) self, int[1]? dim=None, Tensor?[] indices, *, Scalar alpha=1, str mode='none', float eps=1e-05, int[2] p=[0, 1]) -> (Tensor(a), Tensor[])",
        )
        .unwrap();
        assert_eq!(s.params[0].alias, Some('a'));
        assert_eq!(s.params[1].kind, Kind::Ints(Some(1)));
        assert!(s.params[1].optional);
        assert_eq!(s.params[2].kind, Kind::Tensors);
        assert!(s.params[3].keyword_only);
        assert_eq!(s.params[4].default, Some(Default_::Str("none".into())));
        assert_eq!(s.params[6].default, Some(Default_::Ints(vec![0, 1])));
        assert_eq!(s.returns.len(), 2);
        assert!(s.returns[1].list);
    }

    #[test]
    fn declarations_read_back() {
        let text = "mylib::scale.out(Tensor x, Tensor(a!)? y, float by=2.0, int[]? dims=None, *, str mode=\"x\") -> (Tensor, Tensor[])";
        let op = Operator::parse(text).unwrap();
        assert_eq!(op.name, "mylib.scale.out");
        assert!(op.schema.params[1].written && op.schema.params[1].optional);
        assert_eq!(op.to_string(), text);
        for text in [
            "a::b() -> ()",
            "a::b(Tensor?[] x, Tensor[] y) -> Tensor",
            "a::b(str s=\", -> ) '=\\n\\\"\\\\\", bool[] b=[True, False], float[] f=[1.0, 2.5]) -> Tensor",
        ] {
            assert_eq!(Operator::parse(text).unwrap().to_string(), text);
        }
        let quoted = Schema::parse("(str a='\"', str b=\"'q'\\x41\") -> Tensor").unwrap();
        let strings: Vec<_> = quoted.params.iter().map(|p| p.default.clone()).collect();
        let wanted = ["\"", "'q'A"].map(|s| Some(Default_::Str(s.into())));
        assert_eq!(strings, wanted);
    }

    #[test]
    fn bad_declarations_are_refused() {
        for text in [
            "scale(Tensor x) -> Tensor",
            "mylib::scale",
            "mylib::(Tensor x) -> Tensor",
            "mylib::a b(Tensor x) -> Tensor",
            "mylib::scale(Tensor x -> Tensor",
            "mylib::scale(Thing x) -> Tensor",
            "mylib::scale(Tensor(a) x) -> Tensor(a)",
            "mylib::scale_(Tensor(a!) x) -> Tensor(a!)",
            "mylib::scale(str s=\"a\") b\") -> Tensor",
            "mylib::scale(Tensor(a!)[] x) -> ()",
            "mylib::scale(Tensor x) -> int",
            "mylib::scale(int[] x=[) -> Tensor",
        ] {
            assert!(Operator::parse(text).is_err(), "{text}");
        }
    }
}
