//! Control flow over functions of the model, and functions whose data decide sizes, as lines of C++.

use super::dtype;
use super::kernels::quoted;
use super::model::{list, number};
use super::segments::{Shared, function};
use super::steps::Call;
use crate::control::promised;
use crate::inputs::{Spec, spec};
use crate::names::plain;
use crate::{Object, Unit};
use inrush_base::{Error, Result};
use inrush_program::Output;
use inrush_program::host::{Lowered, Out, StepKind};
use inrush_program::parts::{Body, Cond, Dynamic, Operand, Param, Scan, While, Work};

/// Prints the programs that work calls, with all that they call. Returns their names.
pub(super) fn bodies<'a, 's: 'a>(
    unit: &'a Unit<'a>,
    work: &'a Work<Lowered>,
    read: &[bool],
    shared: &mut Shared<'s>,
) -> Result<Vec<String>> {
    let mut names = Vec::new();
    if let Work::Library { segment, .. } = work {
        names.push(function(unit, segment, read, shared)?);
    }
    for (role, body) in work.bodies() {
        let name = shared.fresh(role);
        let objects: Vec<Object> = body.program.objects.iter().map(Object::from).collect();
        let of_body = unit.of_body(&body.program, &objects);
        if !of_body.program.constants.is_empty() {
            return Err(Error::unsupported(
                "a weight that a step within control flow reads is not printed as C++",
            ));
        }
        let mut text = String::new();
        let needs = {
            let (mut call, functions) = Call::new(&of_body, true, shared)?;
            call.print(&name, &functions, &mut text)?;
            call.needs
        };
        shared.needs.add(needs);
        shared.add(&text);
        names.push(name);
    }
    Ok(names)
}

/// Returns true if a slot has a tensor, false for a number or nothing.
fn is_tensor(unit: &Unit<'_>, slot: usize) -> bool {
    let program = unit.program;
    for step in &program.steps {
        match &step.kind {
            StepKind::Segment(s) => {
                if let Some(k) = s.outputs.iter().position(|o| *o == slot) {
                    return matches!(s.program.outputs[k], Output::Tensor { .. });
                }
            }
            StepKind::Work(w) if w.fills().contains(&slot) => {
                let at = w.fills().iter().position(|o| *o == slot);
                return at.is_some_and(|at| gives_tensor(unit, w, at));
            }
            _ => {}
        }
    }
    match program.inputs.iter().position(|s| *s == slot) {
        None => true,
        Some(at) => {
            let read = vec![true; program.slots];
            matches!(spec(unit, &read, at), Spec::Tensor { .. } | Spec::Unknown)
        }
    }
}

/// Returns true if the result of work at a position is a tensor.
fn gives_tensor(unit: &Unit<'_>, w: &Work<Lowered>, at: usize) -> bool {
    let body = match w {
        Work::Dynamic(d) => return d.function != "item",
        Work::Library { .. } | Work::Custom(_) => return true,
        Work::Cond(c) => &c.then,
        Work::While(w) => &w.body,
        Work::Scan(s) => &s.body,
    };
    match body.program.program.outputs.get(at) {
        Some(Out::Slot(slot)) => {
            let objects: Vec<Object> = body.program.objects.iter().map(Object::from).collect();
            is_tensor(&unit.of_body(&body.program, &objects), *slot)
        }
        _ => false,
    }
}

/// Values that a turn of a loop hands to its body.
#[derive(Default)]
struct Turn {
    /// By position of what it carries: true for a tensor.
    carried: Vec<bool>,
    /// Expressions of this turn's slices.
    slices: Vec<String>,
}

impl Call<'_> {
    /// Prints the work of a step. `functions` are those of the programs that it calls.
    pub(super) fn work(&mut self, w: &Work<Lowered>, functions: &[String]) -> Result<()> {
        for line in w.origin().lines() {
            self.line(format!("// {}", plain(line.trim())));
        }
        match (w, functions) {
            (Work::Dynamic(d), _) => self.dynamic(d),
            (Work::Cond(c), [then, otherwise]) => self.cond(w, c, then, otherwise),
            (Work::While(l), [condition, body]) => self.while_loop(w, l, condition, body),
            (Work::Scan(s), [body]) => self.scan(w, s, body),
            (Work::Custom(c), _) => Err(Error::unsupported(format!(
                "the operator `{}` of the user is not printed as C++",
                c.name()
            ))),
            (Work::Library { segment, .. }, [function]) => {
                self.segment(segment, function);
                Ok(())
            }
            _ => Err(Error::internal("control flow without its programs")),
        }
    }

    /// Returns an argument of a body: a tensor, a size, or any value.
    fn argument(&mut self, o: &Operand, turn: &Turn, wanted: &Spec<'_>) -> Result<String> {
        let missing = || Error::input("the program is damaged: an argument of a body");
        let (value, tensor) = match o {
            Operand::Slot(s) => (self.slots[*s].clone(), is_tensor(self.unit, *s)),
            Operand::Size(id) => return self.sizes.get(*id),
            Operand::Carried(k) => {
                let tensor = *turn.carried.get(*k).ok_or_else(missing)?;
                let value = format!("carried[{k}]");
                return Ok(match (wanted, tensor) {
                    (Spec::Tensor { .. } | Spec::Unknown, _) => {
                        format!("std::get<Tensor>({value})")
                    }
                    (Spec::Int(_) | Spec::OuterInt(_), _) => {
                        format!("Size(std::get<i64>({value}))")
                    }
                    _ => value,
                });
            }
            Operand::Slice(k) => return turn.slices.get(*k).cloned().ok_or_else(missing),
        };
        let is_input = matches!(o, Operand::Slot(s) if self.unit.program.inputs.contains(s));
        Ok(match wanted {
            Spec::Int(_) | Spec::OuterInt(_) if !is_input => {
                format!("Size(std::get<i64>({value}))")
            }
            Spec::Tensor { .. } | Spec::Unknown if !tensor => {
                format!("std::get<Tensor>({value})")
            }
            _ => value,
        })
    }

    fn called(&mut self, name: &str, body: &Body<Lowered>, turn: &Turn) -> Result<String> {
        let objects: Vec<Object> = body.program.objects.iter().map(Object::from).collect();
        let unit = self.unit.of_body(&body.program, &objects);
        let read = crate::host::reads(&unit);
        let mut arguments = Vec::new();
        for (at, o) in body.inputs.iter().enumerate() {
            arguments.push(self.argument(o, turn, &spec(&unit, &read, at))?);
        }
        Ok(format!("{name}({})", arguments.join(", ")))
    }

    /// Returns the tensors among slots, as a list.
    fn tensors(&self, slots: impl IntoIterator<Item = usize>) -> String {
        let mut all: Vec<usize> = slots.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        let names: Vec<String> = (all.into_iter())
            .filter(|s| is_tensor(self.unit, *s))
            .map(|s| self.slots[s].clone())
            .collect();
        list(&names)
    }

    /// Prints copies of results to the layouts that the program says, where something relies on these.
    pub(super) fn conform(&mut self, w: &Work<Lowered>, known: usize) -> Result<()> {
        for (slot, layout) in promised(self.unit, w) {
            let mut of = layout.sizes.iter().chain(&layout.strides);
            if of.any(|id| self.sizes.known(*id) > known) {
                continue;
            }
            let sizes = list(&self.sizes.all(&layout.sizes)?);
            let strides = list(&self.sizes.all(&layout.strides)?);
            let name = self.slots[slot].clone();
            self.line(format!("{name} = conformed({name}, {sizes}, {strides});"));
        }
        Ok(())
    }

    /// Prints the names of results, from the list `results`.
    fn unpack(&mut self, w: &Work<Lowered>, outs: &[usize], results: &str) {
        let copied: Vec<usize> = (promised(self.unit, w).into_iter())
            .map(|(slot, _)| slot)
            .collect();
        for (k, slot) in outs.iter().enumerate() {
            if !self.read[*slot] {
                continue;
            }
            let name = self.slots[*slot].clone();
            self.line(if gives_tensor(self.unit, w, k) {
                let constant = if copied.contains(slot) { "" } else { "const " };
                format!("{constant}Tensor {name} = std::get<Tensor>({results}[{k}]);")
            } else {
                format!("const Value {name} = {results}[{k}];")
            });
        }
    }

    fn cond(
        &mut self,
        w: &Work<Lowered>,
        c: &Cond<Lowered>,
        then: &str,
        otherwise: &str,
    ) -> Result<()> {
        let none = Turn::default();
        let then = self.called(then, &c.then, &none)?;
        let otherwise = self.called(otherwise, &c.otherwise, &none)?;
        let given = self.tensors(c.reads());
        let results = self.names.fresh("results");
        let predicate = self.slots[c.predicate].clone();
        self.line(format!(
            "const Values {results} = owned(truth({predicate}) ? {then} : {otherwise}, {given});"
        ));
        self.unpack(w, &c.outs, &results);
        Ok(())
    }

    /// Returns the list of what a loop carries at first, and the kinds of these.
    fn first(&mut self, w: &Work<Lowered>, carried: &[Operand]) -> Result<(String, Vec<bool>)> {
        let mut values = Vec::new();
        let mut kinds = Vec::new();
        for (k, o) in carried.iter().enumerate() {
            let is_input = matches!(o, Operand::Slot(s) if self.unit.program.inputs.contains(s));
            values.push(match o {
                Operand::Slot(s) if is_input && !is_tensor(self.unit, *s) => {
                    format!("Value({}.value)", self.slots[*s])
                }
                Operand::Slot(s) => format!("Value({})", self.slots[*s]),
                Operand::Size(id) => format!("Value(Size({}).value)", self.sizes.get(*id)?),
                _ => {
                    return Err(Error::input(
                        "the program is damaged: a loop begins with a turn",
                    ));
                }
            });
            kinds.push(gives_tensor(self.unit, w, k));
        }
        Ok((list(&values), kinds))
    }

    fn while_loop(
        &mut self,
        w: &Work<Lowered>,
        l: &While<Lowered>,
        condition: &str,
        body: &str,
    ) -> Result<()> {
        let (first, carried) = self.first(w, &l.carried)?;
        let turn = Turn {
            carried,
            slices: Vec::new(),
        };
        let condition = self.called(condition, &l.condition, &turn)?;
        let body = self.called(body, &l.body, &turn)?;
        let given = self.tensors(l.reads());
        let results = self.names.fresh("results");
        self.line(format!("Values {results} = {first};"));
        self.line("{".into());
        self.line(format!("    Values &carried = {results};"));
        self.line(format!(
            "    while (truth({condition}.at(0))) carried = {body};"
        ));
        self.line("}".into());
        self.line(format!("{results} = owned({results}, {given});"));
        self.unpack(w, &l.outs, &results);
        Ok(())
    }

    fn scan(&mut self, w: &Work<Lowered>, s: &Scan<Lowered>, body: &str) -> Result<()> {
        let damaged = || Error::input("the program is damaged: results of a scan");
        let count = s.carried.len();
        let stacked = s.outs.get(count..).ok_or_else(damaged)?;
        if stacked.len() != s.stacked.len() {
            return Err(damaged());
        }
        for (slot, l) in stacked.iter().zip(&s.stacked) {
            let sizes = list(&self.sizes.all(&l.sizes)?);
            let strides = list(&self.sizes.all(&l.strides)?);
            let (name, d) = (self.slots[*slot].clone(), dtype(l.dtype.0)?);
            self.line(format!(
                "const Tensor {name} = new_tensor({d}, {sizes}, {strides});"
            ));
        }
        let (first, carried) = self.first(w, &s.carried)?;
        let slice = |slot: &usize| format!("slice({}, turn)", self.slots[*slot]);
        let turn = Turn {
            carried,
            slices: s.sliced.iter().map(slice).collect(),
        };
        let body = self.called(body, &s.body, &turn)?;
        let sliced = self.tensors(s.sliced.iter().copied());
        let into = self.tensors(stacked.iter().copied());
        let given = self.tensors(s.reads());
        let results = self.names.fresh("results");
        self.line(format!("Values {results} = {first};"));
        self.line(format!(
            "for (i64 turn = 0, last = slices({sliced}, {into}); turn < last; turn++) {{"
        ));
        self.line(format!("    Values &carried = {results};"));
        self.line(format!("    carried = {body};"));
        for (k, slot) in stacked.iter().enumerate() {
            let name = self.slots[*slot].clone();
            self.line(format!(
                "    put(carried.at({}), slice({name}, turn));",
                count + k
            ));
        }
        self.line(format!("    carried.resize({count});"));
        self.line("}".into());
        self.line(format!("{results} = owned({results}, {given});"));
        self.unpack(w, &s.outs[..count], &results);
        Ok(())
    }

    /// Prints a function whose data decide the sizes of its results: some are functions of the file, others the library's.
    fn dynamic(&mut self, d: &Dynamic) -> Result<()> {
        let own = match (d.function.as_str(), d.inputs.as_slice(), d.outs.as_slice()) {
            ("item", [Some(x)], [out]) => Some((x, out, "[[maybe_unused]] const Value")),
            ("nonzero", [Some(x)], [out]) => Some((x, out, "const Tensor")),
            _ => None,
        };
        if let (Some((x, out, ty)), []) = (own, d.params.as_slice()) {
            let (x, out) = (self.slots[*x].clone(), self.slots[*out].clone());
            self.line(format!("{ty} {out} = {}({x});", d.function));
            return Ok(());
        }
        self.needs.library = true;
        let inputs: Vec<String> = (d.inputs.iter())
            .map(|x| x.map_or("nullptr".into(), |x| format!("&{}", self.slots[x])))
            .collect();
        let mut numbers = Vec::with_capacity(d.params.len());
        for p in &d.params {
            numbers.push(match p {
                Param::Num(n) => format!("parameter({})", number(*n)),
                Param::Size(id) => format!("parameter(Size({}).value)", self.sizes.get(*id)?),
                Param::None => "parameter()".into(),
            });
        }
        let results = self.names.fresh("results");
        self.line(format!(
            "const Values {results} = library_results({}, {}, {}, {}, {});",
            quoted(&d.function),
            self.kernels.threads(),
            list(&inputs),
            list(&numbers),
            d.outs.len()
        ));
        for (k, slot) in d.outs.iter().enumerate() {
            if self.read[*slot] {
                let name = self.slots[*slot].clone();
                self.line(format!(
                    "const Tensor {name} = std::get<Tensor>({results}[{k}]);"
                ));
            }
        }
        Ok(())
    }
}
