//! The JSON of an exported program, as far as it is read. Names are those of the archive; keys that are not listed are skipped.

use crate::json::{Number, Pairs, Text, Trace, union};
use serde::Deserialize;

/// The major version of the schema that this reader knows; minor versions add to it.
pub const MAJOR: i64 = 8;
/// The newest minor version that it was written against.
pub const MINOR: i64 = 20;

#[derive(Deserialize, Debug)]
pub struct ExportedProgram<'a> {
    #[serde(borrow)]
    pub graph_module: GraphModule<'a>,
    pub schema_version: SchemaVersion,
    #[serde(borrow, default)]
    pub range_constraints: Pairs<'a, RangeConstraint>,
    #[serde(borrow)]
    pub torch_version: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub guards_code: Vec<Text<'a>>,
}

/// What can be read of an archive whose other parts cannot.
#[derive(Deserialize, Debug)]
pub struct Versions<'a> {
    pub schema_version: SchemaVersion,
    #[serde(borrow)]
    pub torch_version: Option<Text<'a>>,
}

#[derive(Deserialize, Copy, Clone, Debug)]
pub struct SchemaVersion {
    pub major: i64,
    pub minor: i64,
}

#[derive(Deserialize, Debug)]
pub struct RangeConstraint {
    pub min_val: Option<Number>,
    pub max_val: Option<Number>,
}

#[derive(Deserialize, Debug)]
pub struct GraphModule<'a> {
    #[serde(borrow)]
    pub graph: Graph<'a>,
    #[serde(borrow)]
    pub signature: Signature<'a>,
    #[serde(borrow, default)]
    pub module_call_graph: Vec<ModuleCall<'a>>,
    #[serde(borrow, default)]
    pub treespec_namedtuple_fields: Pairs<'a, NamedTuple<'a>>,
}

#[derive(Deserialize, Debug)]
pub struct NamedTuple<'a> {
    #[serde(borrow)]
    pub field_names: Vec<Text<'a>>,
}

#[derive(Deserialize, Debug)]
pub struct ModuleCall<'a> {
    #[serde(borrow)]
    pub fqn: Text<'a>,
    #[serde(borrow)]
    pub signature: Option<CallSignature<'a>>,
}

#[derive(Deserialize, Debug)]
pub struct CallSignature<'a> {
    #[serde(borrow)]
    pub in_spec: Text<'a>,
    #[serde(borrow)]
    pub out_spec: Text<'a>,
    #[serde(borrow)]
    pub forward_arg_names: Option<Vec<Text<'a>>>,
}

#[derive(Deserialize, Clone, Debug)]
pub struct Graph<'a> {
    #[serde(borrow)]
    pub inputs: Vec<Argument<'a>>,
    #[serde(borrow)]
    pub outputs: Vec<Argument<'a>>,
    #[serde(borrow)]
    pub nodes: Vec<Node<'a>>,
    #[serde(borrow)]
    pub tensor_values: Pairs<'a, TensorMeta<'a>>,
    #[serde(borrow, default)]
    pub sym_int_values: Pairs<'a, SymInt<'a>>,
    #[serde(borrow, default)]
    pub sym_bool_values: Pairs<'a, SymBool<'a>>,
    #[serde(borrow, default)]
    pub sym_float_values: Pairs<'a, SymFloat<'a>>,
}

#[derive(Deserialize, Clone, Debug)]
pub struct Node<'a> {
    #[serde(borrow)]
    pub target: Text<'a>,
    #[serde(borrow)]
    pub inputs: Vec<NamedArgument<'a>>,
    #[serde(borrow)]
    pub outputs: Vec<Argument<'a>>,
    #[serde(borrow, default)]
    pub metadata: Metadata<'a>,
    #[serde(borrow)]
    pub name: Option<Text<'a>>,
}

#[derive(Deserialize, Clone, Debug, Default)]
pub struct Metadata<'a> {
    #[serde(borrow, default)]
    pub stack_trace: Trace<'a>,
}

/// `NamedArgument::kind` of an argument that stands behind its keyword.
pub const KEYWORD: i64 = 2;

#[derive(Deserialize, Clone, Debug)]
pub struct NamedArgument<'a> {
    #[serde(borrow)]
    pub name: Text<'a>,
    #[serde(borrow)]
    pub arg: Argument<'a>,
    pub kind: Option<i64>,
}

#[derive(Deserialize, Clone, Debug)]
pub struct Named<'a> {
    #[serde(borrow)]
    pub name: Text<'a>,
}

#[derive(Deserialize, Clone, Debug)]
pub struct GraphArgument<'a> {
    #[serde(borrow)]
    pub name: Text<'a>,
    #[serde(borrow)]
    pub graph: Graph<'a>,
}

#[derive(Deserialize, Clone, Debug)]
pub struct CustomObject<'a> {
    #[serde(borrow)]
    pub name: Text<'a>,
    #[serde(borrow)]
    pub class_fqn: Text<'a>,
}

#[derive(Deserialize, Clone, Debug)]
pub struct Device<'a> {
    #[serde(borrow, rename = "type")]
    pub kind: Text<'a>,
    pub index: Option<i64>,
}

#[derive(Deserialize, Clone, Debug)]
pub struct TensorMeta<'a> {
    pub dtype: i64,
    #[serde(borrow)]
    pub sizes: Vec<SymInt<'a>>,
    #[serde(borrow)]
    pub strides: Vec<SymInt<'a>>,
    #[serde(borrow)]
    pub storage_offset: SymInt<'a>,
    pub layout: i64,
}

/// `TensorMeta::layout` of dense tensors.
pub const STRIDED: i64 = 7;

#[derive(Deserialize, Clone, Debug)]
pub struct SymExpr<'a> {
    #[serde(borrow)]
    pub expr_str: Text<'a>,
    #[serde(borrow)]
    pub hint: Option<Hint<'a>>,
}

union!(Hint { "as_int" => Int(i64), "as_bool" => Bool(bool), "as_float" => Float(Number) });
union!(SymInt { "as_expr" => Expr(SymExpr<'a>), "as_int" => Int(i64) });
union!(SymBool { "as_expr" => Expr(SymExpr<'a>), "as_bool" => Bool(bool) });
union!(SymFloat { "as_expr" => Expr(SymExpr<'a>), "as_float" => Float(Number) });
union!(SymIntArgument { "as_name" => Name(Text<'a>), "as_int" => Int(i64) });
union!(SymBoolArgument { "as_name" => Name(Text<'a>), "as_bool" => Bool(bool) });
union!(SymFloatArgument { "as_name" => Name(Text<'a>), "as_float" => Float(Number) });
union!(OptionalTensor { "as_tensor" => Tensor(Named<'a>), "as_none" => None(bool) });
union!(
    /// An argument or result of a node.
    Argument {
        "as_none" => None(bool),
        "as_tensor" => Tensor(Named<'a>),
        "as_tensors" => Tensors(Vec<Named<'a>>),
        "as_optional_tensor" => OptionalTensor(OptionalTensor<'a>),
        "as_optional_tensors" => OptionalTensors(Vec<OptionalTensor<'a>>),
        "as_int" => Int(i64),
        "as_ints" => Ints(Vec<i64>),
        "as_float" => Float(Number),
        "as_floats" => Floats(Vec<Number>),
        "as_bool" => Bool(bool),
        "as_bools" => Bools(Vec<bool>),
        "as_string" => Str(Text<'a>),
        "as_strings" => Strs(Vec<Text<'a>>),
        "as_sym_int" => SymInt(SymIntArgument<'a>),
        "as_sym_ints" => SymInts(Vec<SymIntArgument<'a>>),
        "as_sym_bool" => SymBool(SymBoolArgument<'a>),
        "as_sym_bools" => SymBools(Vec<SymBoolArgument<'a>>),
        "as_sym_float" => SymFloat(SymFloatArgument<'a>),
        "as_sym_floats" => SymFloats(Vec<SymFloatArgument<'a>>),
        "as_scalar_type" => ScalarType(i64),
        "as_memory_format" => MemoryFormat(i64),
        "as_layout" => Layout(i64),
        "as_device" => Device(Device<'a>),
        "as_graph" => Graph(Box<GraphArgument<'a>>),
        "as_operator" => Operator(Text<'a>),
        "as_custom_obj" => CustomObject(CustomObject<'a>),
    }
);

#[derive(Deserialize, Debug)]
pub struct Signature<'a> {
    #[serde(borrow)]
    pub input_specs: Vec<InputSpec<'a>>,
    #[serde(borrow)]
    pub output_specs: Vec<OutputSpec<'a>>,
}

union!(InputSpec {
    "user_input" => User(UserSpec<'a>),
    "parameter" => Parameter(ParameterSpec<'a>),
    "buffer" => Buffer(BufferSpec<'a>),
    "tensor_constant" => Constant(ConstantSpec<'a>),
    "custom_obj" => CustomObject(CustomObjectSpec<'a>),
    "token" => Token(serde::de::IgnoredAny),
    "constant_input" => ConstantInput(ConstantInputSpec<'a>),
});

#[derive(Deserialize, Clone, Debug)]
pub struct UserSpec<'a> {
    #[serde(borrow)]
    pub arg: Argument<'a>,
}

#[derive(Deserialize, Clone, Debug)]
pub struct ParameterSpec<'a> {
    #[serde(borrow)]
    pub arg: Named<'a>,
    #[serde(borrow)]
    pub parameter_name: Text<'a>,
}

#[derive(Deserialize, Clone, Debug)]
pub struct BufferSpec<'a> {
    #[serde(borrow)]
    pub arg: Named<'a>,
    #[serde(borrow)]
    pub buffer_name: Text<'a>,
    pub persistent: Option<bool>,
}

#[derive(Deserialize, Clone, Debug)]
pub struct ConstantSpec<'a> {
    #[serde(borrow)]
    pub arg: Named<'a>,
    #[serde(borrow)]
    pub tensor_constant_name: Text<'a>,
}

#[derive(Deserialize, Clone, Debug)]
pub struct CustomObjectSpec<'a> {
    #[serde(borrow)]
    pub arg: CustomObject<'a>,
}

#[derive(Deserialize, Clone, Debug)]
pub struct ConstantInputSpec<'a> {
    #[serde(borrow)]
    pub name: Text<'a>,
    #[serde(borrow)]
    pub value: ConstantValue<'a>,
}

union!(ConstantValue {
    "as_none" => None(bool),
    "as_int" => Int(i64),
    "as_float" => Float(Number),
    "as_string" => Str(Text<'a>),
    "as_bool" => Bool(bool),
});

union!(OutputSpec {
    "user_output" => User(UserSpec<'a>),
    "loss_output" => Loss(LossSpec<'a>),
    "buffer_mutation" => BufferMutation(BufferMutation<'a>),
    "parameter_mutation" => ParameterMutation(ParameterMutation<'a>),
    "user_input_mutation" => UserInputMutation(UserInputMutation<'a>),
    "gradient_to_parameter" => GradientToParameter(serde::de::IgnoredAny),
    "gradient_to_user_input" => GradientToUserInput(serde::de::IgnoredAny),
    "token" => Token(serde::de::IgnoredAny),
});

#[derive(Deserialize, Clone, Debug)]
pub struct LossSpec<'a> {
    #[serde(borrow)]
    pub arg: Named<'a>,
}

#[derive(Deserialize, Clone, Debug)]
pub struct BufferMutation<'a> {
    #[serde(borrow)]
    pub arg: Named<'a>,
    #[serde(borrow)]
    pub buffer_name: Text<'a>,
}

#[derive(Deserialize, Clone, Debug)]
pub struct ParameterMutation<'a> {
    #[serde(borrow)]
    pub arg: Named<'a>,
    #[serde(borrow)]
    pub parameter_name: Text<'a>,
}

#[derive(Deserialize, Clone, Debug)]
pub struct UserInputMutation<'a> {
    #[serde(borrow)]
    pub arg: Named<'a>,
    #[serde(borrow)]
    pub user_input_name: Text<'a>,
}

/// `data/weights/NAME_weights_config.json` and its twin for constants.
#[derive(Deserialize, Debug)]
pub struct PayloadConfig<'a> {
    #[serde(borrow)]
    pub config: Pairs<'a, Payload<'a>>,
}

#[derive(Deserialize, Debug)]
pub struct Payload<'a> {
    #[serde(borrow)]
    pub path_name: Text<'a>,
    #[serde(default)]
    pub use_pickle: bool,
    #[serde(borrow)]
    pub tensor_meta: Option<TensorMeta<'a>>,
}
