//! The JSON of an exported program, as far as inrush reads it. Unknown keys are skipped; an unknown kind of argument or
//! specification is an error that names it.

use inrush_base::DType;
use serde::Deserialize;
use std::borrow::Cow;

pub const MAJOR: i64 = 8;

type Str<'a> = Cow<'a, str>;
type Map<'a, T> = std::collections::BTreeMap<Str<'a>, T>;

#[derive(Deserialize)]
pub struct ExportedProgram<'a> {
    #[serde(borrow)]
    pub graph_module: GraphModule<'a>,
    #[serde(borrow, default)]
    pub range_constraints: Map<'a, RangeConstraint>,
    pub schema_version: SchemaVersion,
    #[serde(borrow, default)]
    pub torch_version: Str<'a>,
}

#[derive(Deserialize)]
pub struct SchemaVersion {
    pub major: i64,
    pub minor: i64,
}

#[derive(Deserialize)]
pub struct RangeConstraint {
    pub min_val: Option<i64>,
    pub max_val: Option<i64>,
}

#[derive(Deserialize)]
pub struct GraphModule<'a> {
    #[serde(borrow)]
    pub graph: Graph<'a>,
    #[serde(borrow)]
    pub signature: Signature<'a>,
    #[serde(borrow, default)]
    pub module_call_graph: Vec<ModuleCall<'a>>,
}

#[derive(Deserialize)]
pub struct ModuleCall<'a> {
    #[serde(borrow)]
    pub fqn: Str<'a>,
    #[serde(borrow, default)]
    pub signature: Option<ModuleSignature<'a>>,
}

#[derive(Deserialize)]
pub struct ModuleSignature<'a> {
    #[serde(borrow)]
    pub in_spec: Str<'a>,
    #[serde(borrow)]
    pub out_spec: Str<'a>,
}

#[derive(Deserialize)]
pub struct Graph<'a> {
    #[serde(borrow)]
    pub inputs: Vec<Argument<'a>>,
    #[serde(borrow)]
    pub outputs: Vec<Argument<'a>>,
    #[serde(borrow)]
    pub nodes: Vec<Node<'a>>,
    #[serde(borrow)]
    pub tensor_values: Map<'a, TensorMeta<'a>>,
    #[serde(borrow, default)]
    pub sym_int_values: Map<'a, SymInt<'a>>,
}

#[derive(Deserialize)]
pub struct Node<'a> {
    #[serde(borrow)]
    pub target: Str<'a>,
    #[serde(borrow)]
    pub inputs: Vec<NamedArgument<'a>>,
    #[serde(borrow)]
    pub outputs: Vec<Argument<'a>>,
    #[serde(borrow, default)]
    pub metadata: Map<'a, Str<'a>>,
    #[serde(borrow, default)]
    pub name: Option<Str<'a>>,
}

#[derive(Deserialize)]
pub struct NamedArgument<'a> {
    #[serde(borrow)]
    pub name: Str<'a>,
    #[serde(borrow)]
    pub arg: Argument<'a>,
    /// 1 positional, 2 keyword.
    #[serde(default)]
    pub kind: Option<i64>,
}

#[derive(Deserialize)]
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

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymInt<'a> {
    AsInt(i64),
    #[serde(borrow)]
    AsExpr(SymExpr<'a>),
}

#[derive(Deserialize)]
pub struct SymExpr<'a> {
    #[serde(borrow)]
    pub expr_str: Str<'a>,
    #[serde(default)]
    pub hint: Option<Hint>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    AsInt(i64),
    AsBool(serde::de::IgnoredAny),
    AsFloat(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
pub struct Name<'a> {
    #[serde(borrow)]
    pub name: Str<'a>,
}

/// A float; non-finite ones are strings.
#[derive(Copy, Clone)]
pub struct Number(pub f64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw<'a> {
            Float(f64),
            #[serde(borrow)]
            Text(Cow<'a, str>),
        }
        match Raw::deserialize(d)? {
            Raw::Float(v) => Ok(Number(v)),
            Raw::Text(t) => match &*t {
                "Infinity" => Ok(Number(f64::INFINITY)),
                "-Infinity" => Ok(Number(f64::NEG_INFINITY)),
                "NaN" => Ok(Number(f64::NAN)),
                other => Err(serde::de::Error::custom(format!("`{other}` is no number"))),
            },
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymIntArgument<'a> {
    #[serde(borrow)]
    AsName(Str<'a>),
    AsInt(i64),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymBoolArgument<'a> {
    #[serde(borrow)]
    AsName(Str<'a>),
    AsBool(bool),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymFloatArgument<'a> {
    #[serde(borrow)]
    AsName(Str<'a>),
    AsFloat(Number),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptionalTensor<'a> {
    #[serde(borrow)]
    AsTensor(Name<'a>),
    AsNone(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
pub struct Device<'a> {
    #[serde(borrow, rename = "type")]
    pub kind: Str<'a>,
}

#[derive(Deserialize)]
pub struct GraphArgument<'a> {
    #[serde(borrow)]
    pub name: Str<'a>,
    #[serde(borrow)]
    pub graph: Box<Graph<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Argument<'a> {
    AsNone(serde::de::IgnoredAny),
    #[serde(borrow)]
    AsTensor(Name<'a>),
    #[serde(borrow)]
    AsTensors(Vec<Name<'a>>),
    AsInt(i64),
    AsInts(Vec<i64>),
    AsFloat(Number),
    AsFloats(Vec<Number>),
    #[serde(borrow)]
    AsString(Str<'a>),
    AsStrings(serde::de::IgnoredAny),
    AsBool(bool),
    AsBools(Vec<bool>),
    #[serde(borrow)]
    AsSymInt(SymIntArgument<'a>),
    #[serde(borrow)]
    AsSymInts(Vec<SymIntArgument<'a>>),
    #[serde(borrow)]
    AsSymBool(SymBoolArgument<'a>),
    AsSymBools(serde::de::IgnoredAny),
    #[serde(borrow)]
    AsSymFloat(SymFloatArgument<'a>),
    AsSymFloats(serde::de::IgnoredAny),
    AsScalarType(i64),
    AsMemoryFormat(i64),
    AsLayout(i64),
    #[serde(borrow)]
    AsDevice(Device<'a>),
    #[serde(borrow)]
    AsGraph(GraphArgument<'a>),
    #[serde(borrow)]
    AsOptionalTensor(OptionalTensor<'a>),
    #[serde(borrow)]
    AsOptionalTensors(Vec<OptionalTensor<'a>>),
    AsCustomObj(serde::de::IgnoredAny),
    AsOperator(serde::de::IgnoredAny),
    AsComplex(serde::de::IgnoredAny),
    AsNestedTensors(serde::de::IgnoredAny),
    AsIntLists(serde::de::IgnoredAny),
    AsFloatLists(serde::de::IgnoredAny),
    AsStringToArgument(serde::de::IgnoredAny),
}

impl Argument<'_> {
    /// The kind's name in the archive, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Argument::AsNone(_) => "none",
            Argument::AsTensor(_) => "tensor",
            Argument::AsTensors(_) => "tensors",
            Argument::AsInt(_) | Argument::AsSymInt(_) => "int",
            Argument::AsInts(_) | Argument::AsSymInts(_) => "ints",
            Argument::AsFloat(_) | Argument::AsSymFloat(_) => "float",
            Argument::AsFloats(_) | Argument::AsSymFloats(_) => "floats",
            Argument::AsString(_) => "string",
            Argument::AsStrings(_) => "strings",
            Argument::AsBool(_) | Argument::AsSymBool(_) => "bool",
            Argument::AsBools(_) | Argument::AsSymBools(_) => "bools",
            Argument::AsScalarType(_) => "scalar_type",
            Argument::AsMemoryFormat(_) => "memory_format",
            Argument::AsLayout(_) => "layout",
            Argument::AsDevice(_) => "device",
            Argument::AsGraph(_) => "graph",
            Argument::AsOptionalTensor(_) => "optional_tensor",
            Argument::AsOptionalTensors(_) => "optional_tensors",
            Argument::AsCustomObj(_) => "custom_obj",
            Argument::AsOperator(_) => "operator",
            Argument::AsComplex(_) => "complex",
            Argument::AsNestedTensors(_) => "nested_tensors",
            Argument::AsIntLists(_) => "int_lists",
            Argument::AsFloatLists(_) => "float_lists",
            Argument::AsStringToArgument(_) => "string_to_argument",
        }
    }
}

#[derive(Deserialize)]
pub struct Signature<'a> {
    #[serde(borrow)]
    pub input_specs: Vec<InputSpec<'a>>,
    #[serde(borrow)]
    pub output_specs: Vec<OutputSpec<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputSpec<'a> {
    #[serde(borrow)]
    UserInput(UserInput<'a>),
    #[serde(borrow)]
    Parameter(ParameterSpec<'a>),
    #[serde(borrow)]
    Buffer(BufferSpec<'a>),
    #[serde(borrow)]
    TensorConstant(ConstantSpec<'a>),
    #[serde(borrow)]
    ConstantInput(ConstantInput<'a>),
    CustomObj(serde::de::IgnoredAny),
    Token(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
pub struct UserInput<'a> {
    #[serde(borrow)]
    pub arg: Argument<'a>,
}

#[derive(Deserialize)]
pub struct ParameterSpec<'a> {
    #[serde(borrow)]
    pub arg: Name<'a>,
    #[serde(borrow)]
    pub parameter_name: Str<'a>,
}

#[derive(Deserialize)]
pub struct BufferSpec<'a> {
    #[serde(borrow)]
    pub arg: Name<'a>,
    #[serde(borrow)]
    pub buffer_name: Str<'a>,
    pub persistent: bool,
}

#[derive(Deserialize)]
pub struct ConstantSpec<'a> {
    #[serde(borrow)]
    pub arg: Name<'a>,
    #[serde(borrow)]
    pub tensor_constant_name: Str<'a>,
}

#[derive(Deserialize)]
pub struct ConstantInput<'a> {
    #[serde(borrow)]
    pub name: Str<'a>,
    pub value: ConstantValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConstantValue {
    AsNone(serde::de::IgnoredAny),
    AsInt(i64),
    AsFloat(Number),
    AsString(serde::de::IgnoredAny),
    AsBool(bool),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputSpec<'a> {
    #[serde(borrow)]
    UserOutput(UserInput<'a>),
    #[serde(borrow)]
    LossOutput(LossOutput<'a>),
    #[serde(borrow)]
    BufferMutation(BufferMutation<'a>),
    #[serde(borrow)]
    ParameterMutation(ParameterMutation<'a>),
    #[serde(borrow)]
    UserInputMutation(UserInputMutation<'a>),
    GradientToParameter(serde::de::IgnoredAny),
    GradientToUserInput(serde::de::IgnoredAny),
    Token(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
pub struct LossOutput<'a> {
    #[serde(borrow)]
    pub arg: Name<'a>,
}

#[derive(Deserialize)]
pub struct BufferMutation<'a> {
    #[serde(borrow)]
    pub arg: Name<'a>,
    #[serde(borrow)]
    pub buffer_name: Str<'a>,
}

#[derive(Deserialize)]
pub struct ParameterMutation<'a> {
    #[serde(borrow)]
    pub arg: Name<'a>,
    #[serde(borrow)]
    pub parameter_name: Str<'a>,
}

#[derive(Deserialize)]
pub struct UserInputMutation<'a> {
    #[serde(borrow)]
    pub arg: Name<'a>,
    #[serde(borrow)]
    pub user_input_name: Str<'a>,
}

/// `data/weights/*_config.json` and `data/constants/*_config.json`.
#[derive(Deserialize)]
pub struct PayloadConfig<'a> {
    #[serde(borrow)]
    pub config: Map<'a, Payload<'a>>,
}

#[derive(Deserialize)]
pub struct Payload<'a> {
    #[serde(borrow)]
    pub path_name: Str<'a>,
    #[serde(default)]
    pub use_pickle: bool,
    #[serde(borrow, default)]
    pub tensor_meta: Option<TensorMeta<'a>>,
}

/// The dtype of torch.export's own numbering (not c10's).
pub fn dtype(code: i64) -> Option<DType> {
    Some(match code {
        1 => DType::U8,
        2 => DType::I8,
        3 => DType::I16,
        4 => DType::I32,
        5 => DType::I64,
        6 => DType::F16,
        7 => DType::F32,
        8 => DType::F64,
        10 => DType::C64,
        11 => DType::C128,
        12 => DType::Bool,
        13 => DType::BF16,
        28 => DType::U16,
        29 => DType::F8E4M3FN,
        30 => DType::F8E5M2,
        31 => DType::F8E4M3FNUZ,
        32 => DType::F8E5M2FNUZ,
        34 => DType::U32,
        35 => DType::U64,
        _ => return None,
    })
}
