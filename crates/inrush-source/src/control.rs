//! Work between segments as lines of Python: control flow over functions of the file, functions whose data decide sizes, operators of
//! the user's.

use crate::host::{Printer, is_foreign};
use crate::names::{is_keyword, plain, quote, tuple};
use crate::segment::{dtype, number};
use crate::{Object, Unit};
use inrush_base::schema::Kind;
use inrush_base::{Error, Result};
use inrush_program::host::{Layout, Lowered, Out, StepKind};
use inrush_program::parts::{
    Argument, Body, Cond, Custom, Dynamic, Operand, Param, Scan, While, Work,
};

/// Values that a turn of a loop hands to its body: names of what it carries, and of this turn's slices.
#[derive(Default)]
struct Turn {
    carried: Vec<String>,
    slices: Vec<String>,
}

/// Returns the results of work whose layouts something relies on: an output, or a view. Programs give theirs, which may differ.
pub(crate) fn promised<'a>(unit: &Unit<'a>, w: &Work<Lowered>) -> Vec<(usize, &'a Layout)> {
    let made = match w {
        // Functions of PyTorch give their own strides; segments those of their programs.
        Work::Dynamic(_) | Work::Library { .. } => return Vec::new(),
        // Stacked results are made with them.
        Work::Scan(s) => s.outs.get(..s.carried.len()).unwrap_or_default(),
        Work::Custom(_) | Work::Cond(_) | Work::While(_) => w.fills(),
    };
    let program = unit.program;
    let relies = |slot: usize| {
        let viewed = |k: &StepKind| matches!(k, StepKind::View(v) if v.base == slot && v.base_layout.is_none());
        program.outputs.contains(&Out::Slot(slot)) || program.steps.iter().any(|s| viewed(&s.kind))
    };
    (made.iter())
        .filter(|slot| relies(**slot))
        .filter_map(|slot| Some((*slot, unit.layout(*slot)?)))
        .filter(|(_, layout)| !layout.sizes.is_empty())
        .collect()
}

impl Printer<'_> {
    /// Prints the work of a step. `functions` are those of the programs that it calls.
    pub(crate) fn work(&mut self, w: &Work<Lowered>, functions: &[String]) -> Result<()> {
        for line in w.origin().lines() {
            self.line(format!("# {}", plain(line.trim())));
        }
        match (w, functions) {
            (Work::Dynamic(d), _) => self.dynamic(d),
            (Work::Library { segment, .. }, _) => {
                self.segment(segment, functions);
                Ok(())
            }
            (Work::Custom(c), _) => self.custom(c),
            (Work::Cond(c), [then, otherwise]) => self.cond(c, then, otherwise),
            (Work::While(w), [condition, body]) => self.while_loop(w, condition, body),
            (Work::Scan(s), [body]) => self.scan(s, body),
            _ => Err(Error::internal("control flow without its programs")),
        }
    }

    /// Prints copies of results to the layouts that the program says, where something relies on these.
    pub(crate) fn conform(&mut self, w: &Work<Lowered>, known: usize) -> Result<()> {
        for (slot, layout) in promised(self.unit, w) {
            let mut of = layout.sizes.iter().chain(&layout.strides);
            if of.any(|id| self.sizes.known(*id) > known) {
                continue;
            }
            let sizes = tuple(&self.sizes.all(&layout.sizes)?);
            let strides = tuple(&self.sizes.all(&layout.strides)?);
            let name = &self.slots[slot];
            let line = format!("{name} = conformed({name}, {sizes}, {strides})");
            self.line(line);
        }
        Ok(())
    }

    /// Returns the targets of an assignment of results.
    fn targets(&self, outs: &[usize]) -> String {
        let names: Vec<String> = outs.iter().map(|s| self.slots[*s].clone()).collect();
        names.join(", ")
    }

    /// Returns the expression of an argument of a body.
    fn operand(&mut self, o: &Operand, turn: &Turn) -> Result<String> {
        let missing = || Error::input("the program is damaged: an argument of a body");
        match o {
            Operand::Slot(s) => Ok(self.slots[*s].clone()),
            Operand::Size(id) => self.sizes.get(*id),
            Operand::Carried(k) => turn.carried.get(*k).cloned().ok_or_else(missing),
            Operand::Slice(k) => turn.slices.get(*k).cloned().ok_or_else(missing),
        }
    }

    fn called(&mut self, name: &str, body: &Body<Lowered>, turn: &Turn) -> Result<String> {
        let arguments: Vec<String> = (body.inputs.iter())
            .map(|o| self.operand(o, turn))
            .collect::<Result<_>>()?;
        Ok(format!("{name}({})", arguments.join(", ")))
    }

    /// Prints copies of results that may be in the memory of what control flow takes: operators of control flow give new memory.
    fn own(&mut self, outs: &[usize], taken: impl Iterator<Item = usize>) {
        let mut given: Vec<usize> = taken.collect();
        given.sort_unstable();
        given.dedup();
        let results = self.targets(outs);
        let given = self.targets(&given);
        let left = match outs {
            [_] => format!("({results},)"),
            _ => results.clone(),
        };
        self.line(format!("{left} = owned([{results}], [{given}])"));
    }

    fn cond(&mut self, c: &Cond<Lowered>, then: &str, otherwise: &str) -> Result<()> {
        let targets = match c.outs.as_slice() {
            [] => String::new(),
            outs => format!("{} = ", self.targets(outs)),
        };
        let none = Turn::default();
        let then = self.called(then, &c.then, &none)?;
        let otherwise = self.called(otherwise, &c.otherwise, &none)?;
        self.line(format!("if {}:", self.slots[c.predicate]));
        self.line(format!("    {targets}{then}"));
        self.line("else:".into());
        self.line(format!("    {targets}{otherwise}"));
        if self.may_share(&c.then) || self.may_share(&c.otherwise) {
            self.own(&c.outs, c.reads().into_iter());
        }
        Ok(())
    }

    /// Prints the assignment of what a loop carries at first.
    fn first(&mut self, outs: &[usize], carried: &[Operand]) -> Result<()> {
        let none = Turn::default();
        let values: Vec<String> = (carried.iter())
            .map(|o| self.operand(o, &none))
            .collect::<Result<_>>()?;
        if !outs.is_empty() {
            let targets = self.targets(outs);
            self.line(format!("{targets} = {}", values.join(", ")));
        }
        Ok(())
    }

    fn while_loop(&mut self, w: &While<Lowered>, condition: &str, body: &str) -> Result<()> {
        self.first(&w.outs, &w.carried)?;
        let turn = Turn {
            carried: w.outs.iter().map(|s| self.slots[*s].clone()).collect(),
            slices: Vec::new(),
        };
        let condition = self.called(condition, &w.condition, &turn)?;
        let body = self.called(body, &w.body, &turn)?;
        self.line(format!("while {condition}:"));
        let targets = self.targets(&w.outs);
        self.line(format!("    {targets} = {body}"));
        self.own(&w.outs, w.reads().into_iter());
        Ok(())
    }

    fn scan(&mut self, s: &Scan<Lowered>, body: &str) -> Result<()> {
        let damaged = || Error::input("the program is damaged: results of a scan");
        let carried = s.outs.get(..s.carried.len()).ok_or_else(damaged)?;
        let stacked = &s.outs[carried.len()..];
        if stacked.len() != s.stacked.len() {
            return Err(damaged());
        }
        for (slot, l) in stacked.iter().zip(&s.stacked) {
            let sizes = tuple(&self.sizes.all(&l.sizes)?);
            let strides = tuple(&self.sizes.all(&l.strides)?);
            let (name, d) = (&self.slots[*slot], dtype(l.dtype.0));
            let line = format!("{name} = strided_memory({sizes}, {strides}, {d})");
            self.line(line);
        }
        self.first(carried, &s.carried)?;
        let at = self.names.fresh("at");
        let slice = |slot: &usize| format!("{}[{at}]", self.slots[*slot]);
        let turn = Turn {
            carried: carried.iter().map(|s| self.slots[*s].clone()).collect(),
            slices: s.sliced.iter().map(slice).collect(),
        };
        let body_call = self.called(body, &s.body, &turn)?;
        let (sliced, into) = (self.targets(&s.sliced), self.targets(stacked));
        self.line(format!("for {at} in range(turns([{sliced}], [{into}])):"));
        let mut results = turn.carried;
        let mut places = Vec::new();
        for slot in stacked {
            let name = self.slots[*slot].clone();
            let result = self.names.fresh(&format!("{name}_at"));
            places.push(format!("    put({result}, {name}, {at})"));
            results.push(result);
        }
        self.line(format!("    {} = {body_call}", results.join(", ")));
        places.into_iter().for_each(|p| self.line(p));
        if !carried.is_empty() {
            self.own(carried, s.reads().into_iter());
        }
        Ok(())
    }

    /// Returns true if a body may give what it takes, or one tensor twice.
    fn may_share(&self, body: &Body<Lowered>) -> bool {
        let program = &body.program.program;
        let objects: Vec<Object> = body.program.objects.iter().map(Object::from).collect();
        let unit: Unit<'_> = self.unit.of_body(&body.program, &objects);
        let outs: Vec<usize> = (program.outputs.iter())
            .filter_map(|o| match o {
                Out::Slot(s) => Some(*s),
                _ => None,
            })
            .collect();
        let by_work = |slot: usize| {
            let fills = |k: &StepKind| matches!(k, StepKind::Work(w) if w.fills().contains(&slot));
            program.steps.iter().any(|s| fills(&s.kind))
        };
        let constant = |slot: usize| program.constants.iter().any(|c| c.0 == slot);
        outs.iter().enumerate().any(|(k, slot)| {
            constant(*slot)
                || is_foreign(&unit, *slot) && !by_work(*slot)
                || outs[..k].contains(slot)
        })
    }

    /// Prints a call of a function whose data decide the sizes of its results, as that of PyTorch's function.
    fn dynamic(&mut self, d: &Dynamic) -> Result<()> {
        let damaged = || {
            let what = format!("the program is damaged: arguments of `{}`", d.function);
            Error::input(what)
        };
        let inputs: Vec<String> = (d.inputs.iter())
            .map(|s| s.map_or("None".to_string(), |s| self.slots[s].clone()))
            .collect();
        let params: Vec<String> = (d.params.iter())
            .map(|p| match p {
                Param::Num(n) => Ok(number(*n)),
                Param::Size(id) => self.sizes.get(*id),
                Param::None => Ok("None".into()),
            })
            .collect::<Result<_>>()?;
        let (x, p) = (inputs.first().ok_or_else(damaged)?, params.as_slice());
        let all = params.join(", ");
        let call = match (d.function.as_str(), p) {
            ("bincount", [least]) => {
                let weights = inputs.get(1).map_or("None", String::as_str);
                format!("torch.bincount({x}, {weights}, minlength={least})")
            }
            ("item", []) => format!("{x}.item()"),
            ("nonzero", []) => format!("torch.nonzero({x})"),
            ("nonzero_static", [size, fill]) => {
                format!("torch.nonzero_static({x}, size={size}, fill_value={fill})")
            }
            ("repeat_interleave", [size]) => {
                format!("torch.repeat_interleave({x}, output_size={size})")
            }
            ("unique", [_, _, _]) => format!("torch.ops.aten._unique2({x}, {all})"),
            ("unique_consecutive", [_, _, _]) => {
                format!("torch.ops.aten.unique_consecutive({x}, {all})")
            }
            ("unique_dim", [_, _, _, _]) => format!("torch.ops.aten.unique_dim({x}, {all})"),
            (
                "bincount" | "item" | "nonzero" | "nonzero_static" | "repeat_interleave" | "unique"
                | "unique_consecutive" | "unique_dim",
                _,
            ) => return Err(damaged()),
            (other, _) => {
                return Err(Error::unsupported(format!(
                    "the library function `{other}` is not printed as source yet"
                )));
            }
        };
        let targets = self.targets(&d.outs);
        self.line(format!("{targets} = {call}"));
        Ok(())
    }

    /// Prints a call of an operator of the user's, which writes into copies.
    fn custom(&mut self, c: &Custom) -> Result<()> {
        let schema = c.declaration()?.schema;
        let mut arguments = Vec::new();
        for (at, (a, p)) in c.args.iter().zip(&schema.params).enumerate() {
            let value = match (a, c.written(&schema, at).and_then(|k| c.outs.get(k))) {
                (Argument::Tensor(from), Some(to)) => {
                    let (from, to) = (self.slots[*from].clone(), self.slots[*to].clone());
                    self.line(format!("{to} = {from}.clone()"));
                    to
                }
                _ => self.custom_argument(a, p.kind)?,
            };
            arguments.push(match p.keyword_only {
                true if is_keyword(&p.name) => format!("**{{{}: {value}}}", quote(&p.name)),
                true => format!("{}={value}", p.name),
                false => value,
            });
        }
        let name = c.name().replace("::", ".");
        let call = format!("torch.ops.{name}({})", arguments.join(", "));
        let results = c.outs.get(..c.results.len()).unwrap_or_default();
        let targets = self.targets(results);
        let lists = schema.returns.iter().any(|r| r.list);
        self.line(match results {
            [] => call,
            [_] if !lists => format!("{targets} = {call}"),
            [_] => format!("({targets},) = flat({call})"),
            _ => format!("{targets} = flat({call})"),
        });
        Ok(())
    }

    fn custom_argument(&mut self, a: &Argument, kind: Kind) -> Result<String> {
        let list = |all: Vec<String>| format!("[{}]", all.join(", "));
        Ok(match a {
            Argument::None => "None".into(),
            Argument::Tensor(s) => self.slots[*s].clone(),
            Argument::Tensors(all) => list(
                (all.iter())
                    .map(|s| s.map_or("None".to_string(), |s| self.slots[s].clone()))
                    .collect(),
            ),
            Argument::Size(id) => self.sizes.get(*id)?,
            Argument::Sizes(all) => list(self.sizes.all(all)?),
            Argument::Num(n) => number(*n),
            Argument::Nums(all) => list(all.iter().map(|n| number(*n)).collect()),
            Argument::Text(t) => quote(t),
            Argument::DType(d) if kind == Kind::DType => dtype(d.0),
            Argument::DType(_) => return Err(Error::input("the program is damaged: a dtype")),
        })
    }
}
