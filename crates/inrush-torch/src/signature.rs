//! Inputs and outputs of the exported program.

use crate::import::{Importer, Scope};
use crate::schema::{Argument, ConstantValue, InputSpec, OutputSpec, Signature, SymIntArgument};
use inrush_base::{Error, Result, Scalar};
use inrush_graph::{Input, InputKind, Output, OutputKind, OutputValue, Type, ValueId};

pub(crate) fn inputs<'a>(
    im: &mut Importer<'a>,
    signature: &'a Signature<'a>,
    scope: &mut Scope<'a>,
    weights: &crate::Weights,
) -> Result<()> {
    let mut user = 0;
    for spec in &signature.input_specs {
        let (name, kind): (&'a str, InputKind) = match spec {
            InputSpec::Parameter(p) => (
                &p.arg.name,
                InputKind::Parameter {
                    name: p.parameter_name.to_string(),
                },
            ),
            InputSpec::Buffer(b) => (
                &b.arg.name,
                InputKind::Buffer {
                    name: b.buffer_name.to_string(),
                    persistent: b.persistent,
                },
            ),
            InputSpec::TensorConstant(c) => (
                &c.arg.name,
                InputKind::Constant {
                    name: c.tensor_constant_name.to_string(),
                },
            ),
            InputSpec::UserInput(u) => {
                let kind = InputKind::User { index: user };
                user += 1;
                match &u.arg {
                    Argument::AsTensor(n) => (&n.name, kind),
                    Argument::AsSymInt(SymIntArgument::AsName(n)) => {
                        let e = im.int_value(scope, n)?;
                        let value = im.define(scope, n, Type::Int(e))?;
                        im.graph.inputs.push(Input { value, kind });
                        continue;
                    }
                    // A plain value that the caller still passes: kept in its place, read by nobody.
                    _ => {
                        let value = im.graph.add_value(&format!("unused_{user}"), Type::None);
                        im.graph.inputs.push(Input { value, kind });
                        continue;
                    }
                }
            }
            InputSpec::ConstantInput(c) => {
                // Specialised at export: the caller passes it, the graph holds its value.
                let kind = InputKind::User { index: user };
                user += 1;
                let value = match &c.value {
                    ConstantValue::AsInt(v) => Some(Scalar::Int(*v)),
                    ConstantValue::AsFloat(v) => Some(Scalar::Float(v.0)),
                    ConstantValue::AsBool(v) => Some(Scalar::Bool(*v)),
                    ConstantValue::AsNone(_) | ConstantValue::AsString(_) => None,
                };
                let ty = value.map_or(Type::None, Type::Constant);
                let value = im.graph.add_value(&c.name, ty);
                im.graph.inputs.push(Input { value, kind });
                continue;
            }
            InputSpec::CustomObj(_) => {
                return Err(Error::unsupported("an input that is a custom object"));
            }
            InputSpec::Token(_) => {
                return Err(Error::unsupported("an effect token among the inputs"));
            }
        };
        let ty = im
            .tensor_type(scope, name)
            .map_err(|e| e.context(format!("input `{name}`")))?;
        if let InputKind::Parameter { name: w }
        | InputKind::Buffer { name: w, .. }
        | InputKind::Constant { name: w } = &kind
        {
            check_weight(im, w, &ty, weights)?;
        }
        let value = im.define(scope, name, Type::Tensor(ty))?;
        im.graph.inputs.push(Input { value, kind });
    }
    Ok(())
}

/// The payload is there and is what the graph says.
fn check_weight(
    im: &Importer<'_>,
    name: &str,
    ty: &inrush_graph::TensorType,
    weights: &crate::Weights,
) -> Result<()> {
    let view = weights
        .view(name)
        .ok_or_else(|| Error::input(format!("the archive has no payload for `{name}`")))?;
    let ints = |list: &[inrush_expr::Expr]| {
        list.iter()
            .map(|e| im.graph.exprs.as_int(*e))
            .collect::<Option<Vec<_>>>()
    };
    if view.dtype != ty.dtype || ints(&ty.sizes).as_deref() != Some(view.sizes) {
        return Err(Error::input(format!(
            "`{name}` is {}{:?} in the payload and {}{} in the graph",
            view.dtype,
            view.sizes,
            ty.dtype,
            im.graph.exprs.show_list(&ty.sizes)
        )));
    }
    Ok(())
}

pub(crate) fn outputs<'a>(
    im: &mut Importer<'a>,
    signature: &'a Signature<'a>,
    scope: &Scope<'a>,
) -> Result<()> {
    let mut user = 0;
    let find = |im: &Importer<'a>, what: &dyn Fn(&Input, ValueId) -> bool, name: &str| {
        im.graph
            .inputs
            .iter()
            .position(|i| what(i, i.value))
            .ok_or_else(|| Error::input(format!("a mutation of `{name}`, which is no input")))
    };
    for spec in &signature.output_specs {
        let mutation = |input: usize| OutputKind::Mutation { input };
        let (name, kind) = match spec {
            OutputSpec::UserOutput(u) => {
                let kind = OutputKind::User { index: user };
                user += 1;
                let value = match &u.arg {
                    Argument::AsTensor(n) => OutputValue::Value(im.named(scope, &n.name)?),
                    Argument::AsNone(_) => OutputValue::None,
                    Argument::AsInt(v) | Argument::AsSymInt(SymIntArgument::AsInt(v)) => {
                        OutputValue::Scalar(Scalar::Int(*v))
                    }
                    Argument::AsFloat(v) => OutputValue::Scalar(Scalar::Float(v.0)),
                    Argument::AsBool(v) => OutputValue::Scalar(Scalar::Bool(*v)),
                    Argument::AsSymInt(SymIntArgument::AsName(n)) => {
                        let e = im.int_value(scope, n)?;
                        let v = match scope.values.get(&**n) {
                            Some(v) => *v,
                            None => im.graph.add_value(n, Type::Int(e)),
                        };
                        OutputValue::Value(v)
                    }
                    other => {
                        return Err(Error::unsupported(format!(
                            "an output of kind `{}`",
                            other.kind()
                        )));
                    }
                };
                im.graph.outputs.push(Output { value, kind });
                continue;
            }
            OutputSpec::LossOutput(l) => {
                let kind = OutputKind::User { index: user };
                user += 1;
                (&l.arg.name, kind)
            }
            OutputSpec::BufferMutation(b) => {
                let at = find(
                    im,
                    &|i, _| matches!(&i.kind, InputKind::Buffer { name, .. } if *name == b.buffer_name),
                    &b.buffer_name,
                )?;
                (&b.arg.name, mutation(at))
            }
            OutputSpec::ParameterMutation(p) => {
                let at = find(
                    im,
                    &|i, _| matches!(&i.kind, InputKind::Parameter { name } if *name == p.parameter_name),
                    &p.parameter_name,
                )?;
                (&p.arg.name, mutation(at))
            }
            OutputSpec::UserInputMutation(u) => {
                let value = im.named(scope, &u.user_input_name)?;
                let at = find(im, &|_, v| v == value, &u.user_input_name)?;
                (&u.arg.name, mutation(at))
            }
            OutputSpec::GradientToParameter(_) | OutputSpec::GradientToUserInput(_) => {
                return Err(Error::unsupported(
                    "a joint graph with gradients among its outputs",
                ));
            }
            OutputSpec::Token(_) => {
                return Err(Error::unsupported("an effect token among the outputs"));
            }
        };
        let value = OutputValue::Value(im.named(scope, name)?);
        im.graph.outputs.push(Output { value, kind });
    }
    Ok(())
}
