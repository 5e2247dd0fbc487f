//! Inputs and outputs of the program.
//!
//! Export lifts weights to inputs of the graph. `input_specs` say for each input if it is a
//! weight, a constant or an argument of the user; these are counted in the order of the flattened
//! call, constants included, so that `index` is the position in the caller's list.
//!
//! In a functional graph a mutation is an output: the new contents of a weight or argument, which
//! the executor copies back at the end of a call.

use super::symbols::{Meeting, unknown};
use super::{Bound, Importer, Scope};
use crate::schema::{Argument, ConstantValue, InputSpec, OutputSpec, Signature, SymIntArgument};
use crate::weights::{TensorRef, Weights};
use inrush_base::{Error, Result, Scalar};
use inrush_graph::{Input, InputKind, Output, OutputKind, OutputValue, Type, ValueId};

impl<'a> Importer<'a, '_> {
    /// Defines the inputs, declares the symbols of their sizes and checks weights against the
    /// archive.
    pub(super) fn inputs(
        &mut self,
        scope: &mut Scope<'a>,
        signature: &'a Signature<'a>,
        weights: &Weights,
    ) -> Result<()> {
        let mut user = 0;
        for spec in &signature.input_specs {
            let (name, kind) = match spec {
                InputSpec::Parameter(p) => {
                    let name = p.parameter_name.to_string();
                    (&p.arg.name, InputKind::Parameter { name })
                }
                InputSpec::Buffer(b) => (
                    &b.arg.name,
                    InputKind::Buffer {
                        name: b.buffer_name.to_string(),
                        persistent: b.persistent.unwrap_or(true),
                    },
                ),
                InputSpec::Constant(c) => {
                    let name = c.tensor_constant_name.to_string();
                    (&c.arg.name, InputKind::Constant { name })
                }
                InputSpec::User(u) => {
                    self.user_input(scope, &u.arg, user)?;
                    user += 1;
                    continue;
                }
                InputSpec::ConstantInput(c) => {
                    let value = match &c.value {
                        ConstantValue::None(_) | ConstantValue::Str(_) => None,
                        ConstantValue::Int(v) => Some(Scalar::Int(*v)),
                        ConstantValue::Float(v) => Some(Scalar::Float(v.0)),
                        ConstantValue::Bool(v) => Some(Scalar::Bool(*v)),
                        ConstantValue::Unknown(k) => return Err(unknown("constant", k)),
                    };
                    self.constant(user, &c.name, value);
                    user += 1;
                    continue;
                }
                InputSpec::CustomObject(o) => {
                    return Err(Error::unsupported(format!(
                        "the input `{}` is an object of class `{}`",
                        o.arg.name, o.arg.class_fqn
                    )));
                }
                InputSpec::Token(_) => {
                    return Err(Error::unsupported("effect tokens as inputs"));
                }
                InputSpec::Unknown(k) => return Err(unknown("input", k)),
            };
            let value = self.define_tensor(scope, name)?;
            let begin = self.same_as_weight(value, &kind, weights)?;
            self.graph.inputs.push(Input {
                begin,
                ..Input::new(value, kind)
            });
        }
        Ok(())
    }

    /// Adds an input that export specialised to a constant: the caller passes it, the graph does
    /// not read it.
    fn constant(&mut self, index: usize, name: &str, value: Option<Scalar>) {
        let ty = value.map_or(Type::None, Type::Constant);
        let value = self.graph.add_value(name, ty);
        let kind = InputKind::User { index };
        self.graph.inputs.push(Input::new(value, kind));
    }

    /// Adds an argument of the user: a tensor, an integer or a constant.
    fn user_input(
        &mut self,
        scope: &mut Scope<'a>,
        arg: &'a Argument<'a>,
        index: usize,
    ) -> Result<()> {
        let value = match arg {
            Argument::Tensor(t) => self.define_tensor(scope, &t.name)?,
            Argument::SymInt(SymIntArgument::Name(n)) => {
                // Only for this one: a symbol that a tensor's size named first stays a size, and
                // is not negative.
                self.symbols.meeting = Meeting::InputInteger;
                let s = scope.ints.get(&**n).copied();
                let s = s.ok_or_else(|| {
                    Error::input(format!("the archive does not describe the integer `{n}`"))
                })?;
                let e = self.symbols.int(&self.graph.exprs, s)?;
                self.symbols.meeting = Meeting::InputSize;
                scope.define(n, Bound::Int(e))?;
                self.graph.add_value(n, Type::Int(e))
            }
            Argument::None(_) | Argument::Str(_) => return self.plain(index, None),
            Argument::Int(v) => return self.plain(index, Some(Scalar::Int(*v))),
            Argument::Float(v) => return self.plain(index, Some(Scalar::Float(v.0))),
            Argument::Bool(v) => return self.plain(index, Some(Scalar::Bool(*v))),
            Argument::Unknown(k) => return Err(unknown("input", k)),
            _ => {
                return Err(Error::unsupported(format!(
                    "input {index}: only tensors, integers and constants are taken"
                )));
            }
        };
        let kind = InputKind::User { index };
        self.graph.inputs.push(Input::new(value, kind));
        Ok(())
    }

    /// Adds a constant argument under a name of its own; its specification has none.
    fn plain(&mut self, index: usize, value: Option<Scalar>) -> Result<()> {
        self.constant(index, &format!("constant_{index}"), value);
        Ok(())
    }

    /// Checks that the graph's input and the stored tensor agree, and returns the tensor's offset
    /// in its storage.
    fn same_as_weight(&self, value: ValueId, kind: &InputKind, weights: &Weights) -> Result<i64> {
        let name = match kind {
            InputKind::Parameter { name }
            | InputKind::Buffer { name, .. }
            | InputKind::Constant { name } => name,
            InputKind::User { .. } => return Ok(0),
        };
        let stored: &TensorRef = weights.get(name)?;
        let t = self.graph.tensor(value)?;
        let x = &self.graph.exprs;
        let same = t.dtype == stored.dtype
            && t.sizes.len() == stored.sizes.len()
            && t.sizes
                .iter()
                .zip(&stored.sizes)
                // Strides are not compared: weights are handed on with those of the stored
                // tensor.
                .all(|(a, b)| x.is_int(*a, *b));
        if same {
            return Ok(stored.offset);
        }
        Err(Error::input(format!(
            "the graph takes `{name}` as {}{}, the archive stores {}{:?}",
            t.dtype,
            x.show_list(&t.sizes),
            stored.dtype,
            stored.sizes
        )))
    }

    /// Adds the outputs, in the order of the specifications.
    pub(super) fn outputs(
        &mut self,
        scope: &Scope<'a>,
        signature: &'a Signature<'a>,
    ) -> Result<()> {
        let mut user = 0;
        for (k, spec) in signature.output_specs.iter().enumerate() {
            self.output(scope, spec, &mut user)
                .map_err(|e| e.context(format!("output {k}")))?;
        }
        Ok(())
    }

    fn output(
        &mut self,
        scope: &Scope<'a>,
        spec: &'a OutputSpec<'a>,
        user: &mut usize,
    ) -> Result<()> {
        let weight = |kind: &InputKind, wanted: &str| match kind {
            InputKind::Parameter { name } | InputKind::Buffer { name, .. } => name == wanted,
            _ => false,
        };
        let (value, kind) = match spec {
            OutputSpec::User(u) => {
                *user += 1;
                let value = self.user_output(scope, &u.arg)?;
                (value, OutputKind::User { index: *user - 1 })
            }
            OutputSpec::Loss(l) => {
                *user += 1;
                let value = OutputValue::Value(scope.value(&l.arg.name)?);
                (value, OutputKind::User { index: *user - 1 })
            }
            OutputSpec::BufferMutation(m) => {
                let hit = |i: &Input| weight(&i.kind, &m.buffer_name);
                self.mutation(scope, &m.arg.name, &m.buffer_name, &hit)?
            }
            OutputSpec::ParameterMutation(m) => {
                let hit = |i: &Input| weight(&i.kind, &m.parameter_name);
                self.mutation(scope, &m.arg.name, &m.parameter_name, &hit)?
            }
            OutputSpec::UserInputMutation(m) => {
                let v = scope.value(&m.user_input_name)?;
                let hit = |i: &Input| i.value == v && matches!(i.kind, InputKind::User { .. });
                self.mutation(scope, &m.arg.name, &m.user_input_name, &hit)?
            }
            OutputSpec::GradientToParameter(_) | OutputSpec::GradientToUserInput(_) => {
                return Err(Error::unsupported(
                    "gradients as outputs (a training graph with its backward pass)",
                ));
            }
            OutputSpec::Token(_) => return Err(Error::unsupported("effect tokens as outputs")),
            OutputSpec::Unknown(k) => return Err(unknown("output", k)),
        };
        self.graph.outputs.push(Output { value, kind });
        Ok(())
    }

    /// Returns a value, constant or `None`. An integer that is an expression gets a node that
    /// computes it, because outputs are values.
    pub(super) fn user_output(
        &mut self,
        scope: &Scope<'a>,
        arg: &'a Argument<'a>,
    ) -> Result<OutputValue> {
        Ok(match arg {
            Argument::Tensor(n) => match scope.find(&n.name)? {
                Bound::Nothing => OutputValue::None,
                _ => OutputValue::Value(scope.value(&n.name)?),
            },
            Argument::None(_) => OutputValue::None,
            Argument::Int(v) => OutputValue::Scalar(Scalar::Int(*v)),
            Argument::Float(v) => OutputValue::Scalar(Scalar::Float(v.0)),
            Argument::Bool(v) => OutputValue::Scalar(Scalar::Bool(*v)),
            Argument::SymInt(s) => {
                let e = self.sym_int(scope, s)?;
                match self.graph.exprs.as_int(e) {
                    Some(v) => OutputValue::Scalar(Scalar::Int(v)),
                    None => OutputValue::Value(self.int_value(e)),
                }
            }
            Argument::SymFloat(_) | Argument::SymBool(_) => match self.arg(scope, arg)? {
                inrush_graph::Arg::Value(v) => OutputValue::Value(v),
                inrush_graph::Arg::Float(v) => OutputValue::Scalar(Scalar::Float(v)),
                inrush_graph::Arg::Bool(v) => OutputValue::Scalar(Scalar::Bool(v)),
                _ => return Err(Error::internal("a scalar output of another kind")),
            },
            Argument::Str(s) => {
                return Err(Error::unsupported(format!("the string `{s}` as an output")));
            }
            Argument::Unknown(k) => return Err(unknown("output", k)),
            _ => return Err(Error::unsupported("an output of this kind")),
        })
    }

    /// Returns the output that writes `value` to the input for which `hit` is true. Dtype and
    /// sizes must agree; the input keeps its strides.
    fn mutation(
        &self,
        scope: &Scope<'a>,
        value: &str,
        target: &str,
        hit: &dyn Fn(&Input) -> bool,
    ) -> Result<(OutputValue, OutputKind)> {
        let input = (self.graph.inputs.iter().position(hit))
            .ok_or_else(|| Error::input(format!("there is no input `{target}` to write to")))?;
        let v = scope.value(value)?;
        let (old, new) = (
            self.graph.tensor(self.graph.inputs[input].value)?,
            self.graph.tensor(v)?,
        );
        if (old.dtype, &old.sizes) != (new.dtype, &new.sizes) {
            return Err(Error::input(format!(
                "the new contents of `{target}` have another type than it has"
            )));
        }
        Ok((OutputValue::Value(v), OutputKind::Mutation { input }))
    }
}
