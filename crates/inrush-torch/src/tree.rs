//! Python's nesting of inputs and outputs, from the tree specifications that archives hold as JSON in a string.
//!
//! PyTorch flattens arguments and results with `torch.utils._pytree`. A specification is a list
//! of its version and a node; a node has a type (null for a leaf), a context (keys of a
//! dictionary, class of a named tuple) and children:
//!
//! ```text
//! [1, {"type": "builtins.tuple", "context": "null", "children_spec": [LEAF, LEAF]}]
//! ```
//!
//! A tree serves two purposes: it names inputs and outputs for people and for guards (`pair.0`,
//! `mask`), and it orders the leaves of sample inputs.

use crate::json::{self, FromJson, Read, Reader, Text, Value, record};
use inrush_base::{Error, Result};

/// A nest of containers; leaves are the flattened inputs or outputs in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tree {
    /// A tensor, number, string or `None`: one flattened value.
    Leaf,
    Tuple(Vec<Tree>),
    List(Vec<Tree>),
    /// Keys in the order of the leaves; those that are no strings are shown as JSON.
    Dict(Vec<(String, Tree)>),
    /// A named tuple, data class or registered class: its Python type, field names where they are known, children.
    Object {
        class: String,
        fields: Vec<String>,
        children: Vec<Tree>,
    },
}

record!(Spec<'a> {
    kind: Option<Text<'a>> as "type",
    context: Option<Value<'a>>,
    // Recursion here and below is bounded by the depth that the JSON reader accepts.
    children_spec: Vec<Spec<'a>> = Vec::new(),
});

/// A list of the version of the specification and the specification.
struct Versioned<'a>(i64, Spec<'a>);

impl<'a> FromJson<'a> for Versioned<'a> {
    fn read(r: &mut Reader<'a>) -> Read<Self> {
        let (mut version, mut spec) = (None, None);
        r.list(|r| {
            match (version, &spec) {
                // The list has items of two types, so it is read item by item.
                (None, _) => version = Some(i64::read(r)?),
                (_, None) => spec = Some(Spec::read(r)?),
                _ => return Err(r.mistake("more than a version and a specification")),
            }
            Ok(())
        })?;
        match (version, spec) {
            (Some(version), Some(spec)) => Ok(Versioned(version, spec)),
            _ => Err(r.mistake("a version and a specification are needed")),
        }
    }
}

impl Tree {
    /// Reads `[1, {"type": …, "context": …, "children_spec": […]}]`. `fields` gives the field names of a named tuple.
    pub fn parse(text: &str, fields: &dyn Fn(&str) -> Option<Vec<String>>) -> Result<Tree> {
        // The depth is bounded by the JSON parser's own limit.
        let Versioned(version, spec) =
            json::parse(text.as_bytes()).map_err(|e| e.context("tree specification"))?;
        if version != 1 {
            return Err(Error::unsupported(format!(
                "tree specifications of version {version}"
            )));
        }
        tree(spec, fields)
    }

    /// Returns the number of leaves.
    pub fn leaves(&self) -> usize {
        match self {
            Tree::Leaf => 1,
            _ => self.children().iter().map(|(_, t)| t.leaves()).sum(),
        }
    }

    /// Returns the children with the step that leads to each: an index, key or field.
    pub fn children(&self) -> Vec<(String, &Tree)> {
        let indexed = |v: &'_ [Tree]| (0..v.len()).map(|k| k.to_string()).collect::<Vec<_>>();
        match self {
            Tree::Leaf => Vec::new(),
            Tree::Tuple(v) | Tree::List(v) => indexed(v).into_iter().zip(v).collect(),
            Tree::Dict(v) => v.iter().map(|(k, t)| (k.clone(), t)).collect(),
            Tree::Object {
                fields, children, ..
            // Classes without known fields number their children.
            } if fields.len() == children.len() => fields.iter().cloned().zip(children).collect(),
            Tree::Object { children, .. } => indexed(children).into_iter().zip(children).collect(),
        }
    }

    /// Returns the path of each leaf: `0`, `1.mask`; a lone leaf has an empty path.
    pub fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect("", &mut out);
        out
    }

    fn collect(&self, prefix: &str, out: &mut Vec<String>) {
        if *self == Tree::Leaf {
            return out.push(prefix.to_string());
        }
        for (step, child) in self.children() {
            if prefix.is_empty() {
                child.collect(&step, out)
            } else {
                child.collect(&format!("{prefix}.{step}"), out)
            }
        }
    }

    /// Returns the names of the leaves of a call: `self` is the pair of positional and keyword
    /// arguments, `names` are the names of the function's parameters in that order. `x`, `pair.0`,
    /// `mask`.
    pub fn input_names(&self, names: &[String]) -> Vec<String> {
        let mut out = Vec::new();
        let mut names = names.iter();
        for (which, args) in self.children() {
            for (step, child) in args.children() {
                // The second of the pair holds keyword arguments; its steps are their names.
                let keyword = which == "1";
                let base = names.next().cloned();
                let base = match base {
                    Some(n) => n,
                    None if keyword => step,
                    // Archives without `forward_arg_names`.
                    None => format!("arg{step}"),
                };
                child.collect(&base, &mut out);
            }
        }
        out
    }
}

/// Builds the tree of a node and its children.
fn tree(spec: Spec, fields: &dyn Fn(&str) -> Option<Vec<String>>) -> Result<Tree> {
    let Some(kind) = spec.kind else {
        return Ok(Tree::Leaf);
    };
    let children = (spec.children_spec.into_iter())
        .map(|c| tree(c, fields))
        .collect::<Result<Vec<_>>>()?;
    Ok(match &*kind {
        "builtins.tuple" => Tree::Tuple(children),
        "builtins.list" => Tree::List(children),
        "builtins.dict" | "collections.OrderedDict" | "collections.defaultdict" => {
            let keys = keys(&spec.context);
            if keys.len() != children.len() {
                return Err(Error::input(format!(
                    "a tree specification with {} keys for {} values",
                    keys.len(),
                    children.len()
                )));
            }
            Tree::Dict(keys.into_iter().zip(children).collect())
        }
        _ => {
            let class = match (&spec.context, &*kind) {
                // The context of a named tuple is its class, itself written as JSON.
                (Some(Value::Text(s)), "collections.namedtuple") => {
                    json::parse(s.as_bytes()).unwrap_or_else(|_| s.to_string())
                }
                _ => kind.to_string(),
            };
            // A registered class may write its field names as its context, as a list.
            let fields = fields(&class).unwrap_or_else(|| keys(&spec.context));
            Tree::Object {
                class,
                fields,
                children,
            }
        }
    })
}

/// Returns the dictionary keys of a context: a JSON list, which most classes write as a string. A
/// `defaultdict` nests it once more.
fn keys(context: &Option<Value>) -> Vec<String> {
    let show = |v: &Value| match v {
        Value::Text(s) => s.to_string(),
        other => other.to_string(),
    };
    let list = |v: &Value| match v {
        Value::List(v) => v.iter().map(show).collect(),
        // `defaultdict`: an object with the factory's name and the keys.
        Value::Object(m) => match m.0.iter().find(|(k, _)| &**k == "dict_context") {
            Some((_, Value::List(v))) => v.iter().map(show).collect(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    match context {
        Some(Value::Text(text)) => {
            json::parse(text.as_bytes()).map_or(Vec::new(), |v: Value| list(&v))
        }
        Some(v) => list(v),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: &str = r#"{"type": null, "context": null, "children_spec": []}"#;

    fn parse(body: &str) -> Result<Tree> {
        Tree::parse(&format!("[1, {body}]"), &|class| {
            (class == "pair").then(|| vec!["a".into(), "b".into()])
        })
    }

    fn node(kind: &str, context: &str, children: &[&str]) -> String {
        let children = children.join(", ");
        format!(r#"{{"type": "{kind}", "context": {context}, "children_spec": [{children}]}}"#)
    }

    #[test]
    fn names_inputs_as_python_does() {
        let pair = node("collections.namedtuple", r#""pair""#, &[LEAF, LEAF]);
        let dict = node("builtins.dict", r#""[\"k\", 3]""#, &[LEAF, LEAF]);
        let default = node(
            "collections.defaultdict",
            r#"{"default_factory_name": "list", "dict_context": ["q"]}"#,
            &[LEAF],
        );
        let args = node("builtins.tuple", r#""null""#, &[LEAF, &pair, &dict]);
        let kwargs = node("builtins.dict", r#""[\"mask\"]""#, &[&default]);
        let t = parse(&node("builtins.tuple", r#""null""#, &[&args, &kwargs])).unwrap();
        assert_eq!(t.leaves(), 6);
        let names = ["x", "p", "d", "mask"].map(String::from);
        let shown = t.input_names(&names).join(" ");
        assert_eq!(shown, "x p.a p.b d.k d.3 mask.q");
        assert_eq!(
            t.input_names(&[]).join(" "),
            "arg0 arg1.a arg1.b arg2.k arg2.3 mask.q"
        );
    }

    #[test]
    fn bad_specifications_are_errors() {
        let deep = format!(
            "{}{}",
            r#"{"type":"builtins.tuple","children_spec":["#.repeat(5000),
            ""
        );
        for bad in [
            "",
            "3",
            "[]",
            &node("builtins.dict", r#""[]""#, &[LEAF]),
            &deep,
        ] {
            assert!(parse(bad).is_err(), "{}", &bad[..bad.len().min(40)]);
        }
    }
}
