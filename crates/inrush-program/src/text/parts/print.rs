//! Programs in parts to text.

use super::super::print::{Sizes, symbol_name};
use crate::host::{Layout, Read, Segment, View};
use crate::parts::{
    Argument, Body, Custom, Dynamic, Operand, Out, Param, Scan, Sequence, Step, StepKind, While,
    Write,
};
use crate::{Num, Program, Scalar};
use inrush_base::text::{quote, show_name};

/// Returns the lines of a program's parts.
pub(in crate::text) fn lines(p: &Program, parts: &Sequence) -> Vec<String> {
    let mut out = Lines {
        sizes: Sizes::new(&p.symbols, &parts.sizes),
        all: vec![format!("parts {} slots", parts.slots)],
    };
    for (k, s) in parts.sizes.iter().enumerate() {
        let line = format!("size z{k} = {}", out.sizes.line(s));
        out.add(line);
    }
    out.add(format!("inputs {}", slots(&parts.inputs)));
    for (slot, name) in &parts.weights {
        out.add(format!("weight %{slot} = {}", show_name(name)));
    }
    for (k, s) in parts.symbols.iter().enumerate() {
        let name = (p.symbols.get(k)).map_or_else(|| quote(""), |s| symbol_name(&s.name));
        let mut line = format!("symbol {name} = %{}", s.slot);
        if let Read::Dim {
            dim,
            factor,
            offset,
        } = s.read
        {
            line.push_str(&format!(" dim {dim}"));
            if factor != 1 {
                line.push_str(&format!(" factor {factor}"));
            }
            if offset != 0 {
                line.push_str(&format!(" offset {offset}"));
            }
        }
        if let Some(step) = s.after {
            line.push_str(&format!(" after {step}"));
        }
        out.add(line);
    }
    parts.steps.iter().for_each(|s| out.step(s));
    for (k, o) in parts.outputs.iter().enumerate() {
        let what = match o {
            Out::Slot(s) => format!("%{s}"),
            Out::Size(id) => format!("size {}", out.sizes.get(*id)),
            Out::Scalar(v) => format!("scalar {}", Scalar::from(*v)),
            Out::None => "none".into(),
        };
        out.add(format!("output {k}: {what}"));
    }
    out.all.push("end".into());
    out.all
}

/// Lines in the making.
struct Lines<'a> {
    sizes: Sizes<'a>,
    all: Vec<String>,
}

impl Lines<'_> {
    fn add(&mut self, line: String) {
        self.all.push(format!("  {line}"));
    }

    /// Adds a program and its end.
    fn program(&mut self, p: &Program) {
        for line in p.print().lines() {
            self.all.push(format!("    {line}"));
        }
        self.add("end".into());
    }

    fn step(&mut self, step: &Step) {
        let frees = if step.frees.is_empty() {
            String::new()
        } else {
            format!(" frees {}", slots(&step.frees))
        };
        match &step.kind {
            StepKind::Segment(s) => {
                self.add(format!("{}{frees}", segment(s)));
                self.program(&s.program);
            }
            StepKind::View(v) => {
                let line = self.view(v);
                self.add(format!("{line}{frees}"));
            }
            StepKind::Dynamic(d) => {
                let line = self.dynamic(d);
                self.add(format!("{line}{frees}"));
            }
            StepKind::Custom(c) => {
                let line = self.custom(c);
                self.add(format!("{line}{frees}"));
            }
            StepKind::Cond(c) => {
                let (outs, from) = (slots(&c.outs), quote(&c.origin));
                let line = format!("cond %{} -> {outs} from {from}{frees}", c.predicate);
                self.add(line);
                self.body("then", &c.then);
                self.body("otherwise", &c.otherwise);
            }
            StepKind::While(w) => {
                let line = self.while_loop(w);
                self.add(format!("{line}{frees}"));
                self.body("condition", &w.condition);
                self.body("body", &w.body);
            }
            StepKind::Scan(s) => {
                let line = self.scan(s);
                self.add(format!("{line}{frees}"));
                self.body("body", &s.body);
            }
            StepKind::Write(all) => self.add(format!("{}{frees}", writes(all))),
        }
    }

    fn body(&mut self, word: &str, body: &Body) {
        let line = format!("{word} {}", self.operands(&body.inputs));
        self.add(line);
        self.program(&body.program);
    }

    fn operands(&self, all: &[Operand]) -> String {
        let parts: Vec<String> = (all.iter())
            .map(|o| match o {
                Operand::Slot(s) => format!("%{s}"),
                Operand::Size(id) => format!("size {}", self.sizes.get(*id)),
                Operand::Carried(k) => format!("carried {k}"),
                Operand::Slice(k) => format!("slice {k}"),
            })
            .collect();
        format!("[{}]", parts.join(", "))
    }

    fn view(&self, v: &View) -> String {
        let mut line = format!(
            "view %{} = %{} at {} {} strides {}",
            v.value,
            v.base,
            self.sizes.get(v.offset),
            self.sizes.list(&v.sizes),
            self.sizes.list(&v.strides)
        );
        if let Some(d) = v.dtype {
            line.push_str(&format!(" as {}", d.0.name()));
        }
        if let Some((sizes, strides)) = &v.base_layout {
            let (sizes, strides) = (self.sizes.list(sizes), self.sizes.list(strides));
            line.push_str(&format!(" of {sizes} strides {strides}"));
        }
        line
    }

    fn dynamic(&self, d: &Dynamic) -> String {
        let params: Vec<String> = (d.params.iter())
            .map(|p| match p {
                Param::Num(v) => Scalar::from(*v).to_string(),
                Param::Size(id) => format!("size {}", self.sizes.get(*id)),
                Param::None => "none".into(),
            })
            .collect();
        let inputs: Vec<String> = (d.inputs.iter())
            .map(|s| s.map_or_else(|| "none".into(), |s| format!("%{s}")))
            .collect();
        format!(
            "dynamic {} [{}] [{}] -> {} from {}",
            show_name(&d.function),
            params.join(", "),
            inputs.join(", "),
            slots(&d.outs),
            quote(&d.origin)
        )
    }

    fn custom(&self, c: &Custom) -> String {
        let list = |all: Vec<String>| all.join(", ");
        let num = |n: &Num| Scalar::from(*n).to_string();
        let slot = |s: &Option<usize>| s.map_or_else(|| "none".into(), |s| format!("%{s}"));
        let args = (c.args.iter())
            .map(|a| match a {
                Argument::None => "none".into(),
                Argument::Tensor(s) => format!("%{s}"),
                Argument::Tensors(all) => {
                    format!("tensors [{}]", list(all.iter().map(slot).collect()))
                }
                Argument::Size(id) => format!("size {}", self.sizes.get(*id)),
                Argument::Sizes(all) => format!("sizes {}", self.sizes.list(all)),
                Argument::Num(n) => num(n),
                Argument::Nums(all) => format!("numbers [{}]", list(all.iter().map(num).collect())),
                Argument::Text(t) => format!("text {}", quote(t)),
                Argument::DType(d) => format!("dtype {}", d.0.name()),
            })
            .collect();
        let results = c.results.iter().map(|l| self.layout(l)).collect();
        format!(
            "custom {} [{}] -> {} results [{}] from {}",
            quote(&c.operator),
            list(args),
            slots(&c.outs),
            list(results),
            quote(&c.origin)
        )
    }

    fn while_loop(&self, w: &While) -> String {
        format!(
            "while {} -> {} from {}",
            self.operands(&w.carried),
            slots(&w.outs),
            quote(&w.origin)
        )
    }

    fn scan(&self, s: &Scan) -> String {
        let stacked: Vec<String> = s.stacked.iter().map(|l| self.layout(l)).collect();
        format!(
            "scan {} over {} -> {} stacked [{}] from {}",
            self.operands(&s.carried),
            slots(&s.sliced),
            slots(&s.outs),
            stacked.join(", "),
            quote(&s.origin)
        )
    }

    fn layout(&self, l: &Layout) -> String {
        format!(
            "{}{} strides {}",
            l.dtype.0.name(),
            self.sizes.list(&l.sizes),
            self.sizes.list(&l.strides)
        )
    }
}

fn segment(s: &Segment) -> String {
    let symbols: Vec<String> = s.symbols.iter().map(u32::to_string).collect();
    format!(
        "segment {} symbols [{}] -> {}",
        slots(&s.inputs),
        symbols.join(", "),
        slots(&s.outputs)
    )
}

fn writes(all: &[Write]) -> String {
    let parts: Vec<String> = (all.iter())
        .map(|w| format!("%{} to %{}", w.from, w.to))
        .collect();
    format!("write [{}]", parts.join(", "))
}

fn slots(all: &[usize]) -> String {
    let parts: Vec<String> = all.iter().map(|s| format!("%{s}")).collect();
    format!("[{}]", parts.join(", "))
}
