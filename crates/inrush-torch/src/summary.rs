//! A few lines about an archive: `inrush inspect`.

use crate::Model;
use inrush_graph::{InputKind, OutputKind, OutputValue, Type};
use std::collections::BTreeMap;
use std::fmt::Write;

impl Model {
    /// Inputs, outputs, sizes, weights, operators with their counts.
    pub fn summary(&self) -> String {
        let g = &self.graph;
        let show = |ty: &Type| match ty {
            Type::Tensor(t) => format!("{}{}", t.dtype.torch_name(), g.exprs.show_list(&t.sizes)),
            Type::Int(e) => format!("int {}", g.exprs.show(*e)),
            other => format!("{other:?}"),
        };
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{}: torch {}, schema {}.{}",
            g.name, self.torch_version, self.schema_version.0, self.schema_version.1
        );
        let (mut weights, mut bytes) = (0, 0);
        for name in self.weights.names() {
            if let Some(w) = self.weights.view(name) {
                weights += 1;
                bytes += w.sizes.iter().product::<i64>() as usize * w.dtype.size();
            }
        }
        let _ = writeln!(
            out,
            "weights: {weights} tensors, {:.1} MB",
            bytes as f64 / 1e6
        );
        for s in g.exprs.symbols() {
            let i = g.exprs.sym_info(s);
            let upper = if i.upper == i64::MAX {
                "any".to_string()
            } else {
                i.upper.to_string()
            };
            let _ = writeln!(out, "size {}: {}..={upper}", i.name, i.lower);
        }
        for i in &g.inputs {
            if let InputKind::User { index } = i.kind {
                let v = g.value(i.value);
                let _ = writeln!(out, "input {index} `{}`: {}", v.name, show(&v.ty));
            }
        }
        for o in &g.outputs {
            if let OutputKind::User { index } = o.kind {
                let text = match &o.value {
                    OutputValue::Value(v) => show(&g.value(*v).ty),
                    OutputValue::Scalar(s) => s.to_string(),
                    OutputValue::None => "None".into(),
                };
                let _ = writeln!(out, "output {index}: {text}");
            }
        }
        let mut ops: BTreeMap<&str, usize> = BTreeMap::new();
        for n in &g.nodes {
            *ops.entry(&n.op).or_default() += 1;
        }
        let _ = writeln!(
            out,
            "operators: {} calls of {} kinds",
            g.nodes.len(),
            ops.len()
        );
        for (op, count) in ops {
            let _ = writeln!(out, "  {count:>5} {op}");
        }
        if let Err(why) = &self.samples {
            let _ = writeln!(out, "sample inputs: none ({why})");
        }
        out
    }
}
