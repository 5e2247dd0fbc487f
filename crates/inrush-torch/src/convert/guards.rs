//! Conditions on the sizes of inputs.
//!
//! Three sources end here, as relations of expressions: the Python conditions that export
//! generated (`guards_code`), assertions among the nodes (`demand`), and ranges of expressions
//! (`derived_ranges`). A relation that follows from the symbols' ranges is dropped.

use super::Importer;
use crate::Signature;
use crate::arith::{self, Relations};
use crate::guard::{self, Part, Step};
use crate::json::Text;
use crate::lex::shorten;
use inrush_graph::{Guard, InputKind, Relation, Type};
use rustc_hash::FxHashMap;

impl<'a> Importer<'a, '_> {
    /// Reads `guards_code`. Conditions that cannot be read become notes, because export has checked
    /// them for the sample inputs only.
    /// The notes appear in `Model::notes`. A call with sizes that such a guard would have refused
    /// is not refused then.
    pub(super) fn guards(&mut self, code: &[Text], signature: &Signature) {
        // Python paths of the user's inputs (`x`, `pair.0`) to their types.
        let mut inputs: FxHashMap<&str, &Type> = FxHashMap::default();
        for i in &self.graph.inputs {
            let InputKind::User { index } = i.kind else {
                continue;
            };
            let v = self.graph.value(i.value);
            // A guard may use the placeholder's name or the Python path.
            inputs.insert(&v.name, &v.ty);
            if let Some(path) = signature.input_names.get(index) {
                inputs.insert(path, &v.ty);
            }
        }
        let resolve = |name: &str, path: &[Step], part: Part| {
            let ty = candidates(name, path)
                .iter()
                .find_map(|p| inputs.get(p.as_str()))?;
            match (part, ty) {
                (Part::Value, Type::Int(e)) => Some(*e),
                (Part::Size(d), Type::Tensor(t)) => t.sizes.get(d).copied(),
                (Part::Stride(d), Type::Tensor(t)) => t.strides.get(d).copied(),
                _ => None,
            }
        };
        // `resolve` borrows the graph, so relations are added after all texts are read.
        let mut found = Vec::new();
        let mut notes = Vec::new();
        for text in code {
            match guard::parse(&self.graph.exprs, text, &resolve) {
                Ok(relations) => found.push((relations, shorten(text))),
                Err(e) => notes.push(format!("guard not checked: {}", e.message())),
            }
        }
        self.notes.extend(notes);
        for (relations, why) in found {
            self.demand(relations, &why);
        }
    }

    /// Adds relations that are not proved to the graph's guards, each once.
    /// `why` is shown when the guard fails at a call.
    pub(super) fn demand(&mut self, relations: Relations, why: &str) {
        for (relation, left, right) in relations {
            let held = arith::decide(&self.graph.exprs, (relation, left, right)) == Some(true);
            let known = |g: &Guard| (g.relation, g.left, g.right) == (relation, left, right);
            if !held && !self.graph.guards.iter().any(known) {
                self.graph.guards.push(Guard {
                    relation,
                    left,
                    right,
                    why: why.to_string(),
                });
            }
        }
    }

    /// Constraints on expressions, such as `2*s0` in 4 to 64: bounds that the symbols' own ranges do not give.
    pub(super) fn derived_ranges(&mut self) {
        for (text, lower, upper) in self.symbols.derived(&self.graph.exprs) {
            let x = &self.graph.exprs;
            let symbol = |name: &str, _: &[Step], _: Part| Some(x.sym_expr(x.sym_by_name(name)?));
            match guard::arithmetic(x, text, &symbol) {
                Ok(e) => {
                    let mut relations = Vec::new();
                    if lower != i64::MIN {
                        relations.push((Relation::Le, x.int(lower), e));
                    }
                    if upper != i64::MAX {
                        relations.push((Relation::Le, e, x.int(upper)));
                    }
                    // A range of something that is read from data is what export assumed. No
                    // guard can check it before the call runs.
                    if super::symbols::known_at_call(x, &relations) {
                        self.demand(relations, &format!("range of {}", shorten(text)));
                    }
                }
                // A symbol that occurs nowhere in the graph constrains nothing.
                Err(_) if text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') => {}
                Err(e) => (self.notes).push(format!("range not checked: {}", e.message())),
            }
        }
    }
}

/// Returns the names under which an input may be known: `L['args'][0]` is `args.0`, or `args_0` for
/// a variadic parameter; `L['kwargs']['mask']` is `mask`.
fn candidates(name: &str, path: &[Step]) -> Vec<String> {
    let steps: Vec<String> = path
        .iter()
        .map(|s| match s {
            Step::Index(k) => k.to_string(),
            Step::Key(k) => k.to_string(),
        })
        .collect();
    if steps.is_empty() {
        return vec![name.to_string()];
    }
    let rest = steps.join(".");
    vec![format!("{name}.{rest}"), format!("{name}_{rest}"), rest]
}
