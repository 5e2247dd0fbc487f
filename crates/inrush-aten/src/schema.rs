//! Reads PyTorch's operator schemas: `(Tensor self, int[1]? dim=None, *, ScalarType? dtype=None) -> (Tensor, Tensor)`.
//!
//! The text is that of `native_functions.yaml`. A parsed schema tells the order of
//! parameters, the kind that binding coerces arguments to, defaults, and which results alias
//! an argument (`Tensor(a)`). Return names are dropped.

use inrush_base::{Error, Result};

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
}

/// A result. A letter that a parameter has too means that the result shares its memory.
#[derive(Clone, PartialEq, Debug)]
pub struct Return {
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
    Contiguous,
}

impl Schema {
    /// Reads a schema. A malformed one is an internal error, since only rows have schemas.
    pub fn parse(text: &str) -> Result<Schema> {
        let bad = |what: &str| Error::internal(format!("schema `{text}`: {what}"));
        let (params, returns) = text.split_once("->").ok_or_else(|| bad("no `->`"))?;
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
            let (ty, alias) = alias_of(ty);
            out.returns.push(Return {
                list: ty.ends_with("[]"),
                alias,
            });
        }
        Ok(out)
    }

    pub fn position(&self, name: &str) -> Option<usize> {
        self.params.iter().position(|p| p.name == name)
    }
}

/// Splits at commas outside brackets.
fn split_top(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut out) = (0i32, 0, Vec::new());
    for (i, c) in text.char_indices() {
        match c {
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

/// `Tensor(a!)[]` as `Tensor[]` and `a`.
fn alias_of(ty: &str) -> (String, Option<char>) {
    match (ty.find('('), ty.find(')')) {
        (Some(l), Some(r)) if l < r => (
            format!("{}{}", &ty[..l], &ty[r + 1..]),
            ty[l + 1..].chars().next(),
        ),
        _ => (ty.to_string(), None),
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
    let (ty, alias) = alias_of(ty.trim());
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
        t if t.starts_with(['\'', '"']) => Default_::Str(t.trim_matches(['\'', '"']).to_string()),
        t if t.starts_with('[') => Default_::Ints(
            split_top(&t[1..t.len() - 1])
                .into_iter()
                .map(|v| v.parse().ok())
                .collect::<Option<_>>()?,
        ),
        // `1` is an integer even for a float parameter; binding coerces it.
        t => match t.parse::<i64>() {
            Ok(i) => Default_::Int(i),
            Err(_) => Default_::Float(t.parse().ok()?),
        },
    })
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
    fn every_row_has_a_good_schema() {
        for row in crate::rows() {
            Schema::parse(row.schema).unwrap_or_else(|e| panic!("{}: {e}", row.name));
        }
    }
}
