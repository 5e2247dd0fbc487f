//! The JSON schema of an exported program, as far as it is read. Names are those of the archive;
//! other keys are skipped.

use crate::json::{Number, Pairs, Skipped, Text, Trace, record, union};

/// The major version of the schema that this reader knows; minor versions add to it.
pub const MAJOR: i64 = 8;
/// The newest minor version that it was written against.
pub const MINOR: i64 = 20;

record!(ExportedProgram<'a> {
    graph_module: GraphModule<'a>,
    schema_version: SchemaVersion,
    range_constraints: Pairs<'a, RangeConstraint> = Pairs::default(),
    torch_version: Option<Text<'a>>,
    guards_code: Vec<Text<'a>> = Vec::new(),
});

record!(
    /// The versions alone, for archives whose other parts cannot be read.
    Versions<'a> {
        schema_version: SchemaVersion,
        torch_version: Option<Text<'a>>,
    }
);

record!(
    #[derive(Copy)]
    SchemaVersion {
        major: i64,
        minor: i64,
    }
);

record!(RangeConstraint {
    min_val: Option<Number>,
    max_val: Option<Number>,
});

record!(GraphModule<'a> {
    graph: Graph<'a>,
    signature: Signature<'a>,
    module_call_graph: Vec<ModuleCall<'a>> = Vec::new(),
    treespec_namedtuple_fields: Pairs<'a, NamedTuple<'a>> = Pairs::default(),
});

record!(NamedTuple<'a> {
    field_names: Vec<Text<'a>>,
});

record!(ModuleCall<'a> {
    fqn: Text<'a>,
    signature: Option<CallSignature<'a>>,
});

record!(CallSignature<'a> {
    in_spec: Text<'a>,
    out_spec: Text<'a>,
    forward_arg_names: Option<Vec<Text<'a>>>,
});

record!(Graph<'a> {
    inputs: Vec<Argument<'a>>,
    outputs: Vec<Argument<'a>>,
    nodes: Vec<Node<'a>>,
    tensor_values: Pairs<'a, TensorMeta<'a>>,
    sym_int_values: Pairs<'a, SymInt<'a>> = Pairs::default(),
    sym_bool_values: Pairs<'a, SymBool<'a>> = Pairs::default(),
    sym_float_values: Pairs<'a, SymFloat<'a>> = Pairs::default(),
});

record!(Node<'a> {
    target: Text<'a>,
    inputs: Vec<NamedArgument<'a>>,
    outputs: Vec<Argument<'a>>,
    metadata: Metadata<'a> = Metadata::default(),
    name: Option<Text<'a>>,
});

impl Node<'_> {
    /// Returns the Python line that it comes from.
    pub fn line(&self) -> Option<String> {
        self.metadata.stack_trace?.last_frame()
    }
}

record!(
    #[derive(Default)]
    Metadata<'a> {
        stack_trace: Option<Trace<'a>>,
    }
);

/// `NamedArgument::kind` of a keyword argument.
pub const KEYWORD: i64 = 2;

record!(NamedArgument<'a> {
    name: Text<'a>,
    arg: Argument<'a>,
    kind: Option<i64>,
});

record!(Named<'a> {
    name: Text<'a>,
});

record!(GraphArgument<'a> {
    name: Text<'a>,
    graph: Graph<'a>,
});

record!(CustomObject<'a> {
    name: Text<'a>,
    class_fqn: Text<'a>,
});

record!(Device<'a> {
    kind: Text<'a> as "type",
    index: Option<i64>,
});

record!(TensorMeta<'a> {
    dtype: i64,
    sizes: Vec<SymInt<'a>>,
    strides: Vec<SymInt<'a>>,
    storage_offset: SymInt<'a>,
    layout: i64,
});

/// `TensorMeta::layout` of dense tensors.
pub const STRIDED: i64 = 7;

record!(SymExpr<'a> {
    expr_str: Text<'a>,
    hint: Option<Hint<'a>>,
});

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

record!(Signature<'a> {
    input_specs: Vec<InputSpec<'a>>,
    output_specs: Vec<OutputSpec<'a>>,
});

union!(InputSpec {
    "user_input" => User(UserSpec<'a>),
    "parameter" => Parameter(ParameterSpec<'a>),
    "buffer" => Buffer(BufferSpec<'a>),
    "tensor_constant" => Constant(ConstantSpec<'a>),
    "custom_obj" => CustomObject(CustomObjectSpec<'a>),
    "token" => Token(Skipped),
    "constant_input" => ConstantInput(ConstantInputSpec<'a>),
});

record!(UserSpec<'a> {
    arg: Argument<'a>,
});

record!(ParameterSpec<'a> {
    arg: Named<'a>,
    parameter_name: Text<'a>,
});

record!(BufferSpec<'a> {
    arg: Named<'a>,
    buffer_name: Text<'a>,
    persistent: Option<bool>,
});

record!(ConstantSpec<'a> {
    arg: Named<'a>,
    tensor_constant_name: Text<'a>,
});

record!(CustomObjectSpec<'a> {
    arg: CustomObject<'a>,
});

record!(ConstantInputSpec<'a> {
    name: Text<'a>,
    value: ConstantValue<'a>,
});

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
    "gradient_to_parameter" => GradientToParameter(Skipped),
    "gradient_to_user_input" => GradientToUserInput(Skipped),
    "token" => Token(Skipped),
});

record!(LossSpec<'a> {
    arg: Named<'a>,
});

record!(BufferMutation<'a> {
    arg: Named<'a>,
    buffer_name: Text<'a>,
});

record!(ParameterMutation<'a> {
    arg: Named<'a>,
    parameter_name: Text<'a>,
});

record!(UserInputMutation<'a> {
    arg: Named<'a>,
    user_input_name: Text<'a>,
});

record!(
    /// `data/weights/NAME_weights_config.json` and its twin for constants.
    PayloadConfig<'a> {
        config: Pairs<'a, Payload<'a>>,
    }
);

record!(Payload<'a> {
    path_name: Text<'a>,
    use_pickle: bool = false,
    tensor_meta: Option<TensorMeta<'a>>,
});
