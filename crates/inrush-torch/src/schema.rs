//! The JSON schema of an exported program, as far as it is read. Names are those of the archive;
//! other keys are skipped.
//!
//! The source is `torch/_export/serde/schema.py`. `record!` is a data class there, `union!` a
//! class of which one field is set. Texts borrow from the JSON, so a program is read without
//! copying its names.
//!
//! Names connect the parts: a node's argument names a result of an earlier node or an input;
//! `tensor_values`, `sym_int_values` and the like describe each name once; `input_specs` say
//! which names are weights, and of which fully qualified name.

use crate::json::{Number, Pairs, Skipped, Text, Trace, record, union};

/// The major version of the schema that this reader knows; minor versions add to it.
pub const MAJOR: i64 = 8;
/// The newest minor version that it was written against.
pub const MINOR: i64 = 20;

// `range_constraints` are keyed by sympy's printed form: a symbol, or an expression such as
// `2*s0`. `guards_code` are Python conditions on the inputs.
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

// Inclusive bounds; absent where there is none. They are read as floats, so that bounds near the
// ends of 64 bits or beyond saturate.
record!(RangeConstraint {
    min_val: Option<Number>,
    max_val: Option<Number>,
});

// `module_call_graph` has the tree specifications of the root's call in its entry with an empty
// name.
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

// Tree specifications are JSON inside a string. `forward_arg_names` are the parameters of
// `forward`, positional ones first.
record!(CallSignature<'a> {
    in_spec: Text<'a>,
    out_spec: Text<'a>,
    forward_arg_names: Option<Vec<Text<'a>>>,
});

// Symbolic integers, booleans and floats that nodes compute, by name, with their expressions.
// Dtype, sizes and strides of tensors are those that export traced.
record!(Graph<'a> {
    inputs: Vec<Argument<'a>>,
    outputs: Vec<Argument<'a>>,
    nodes: Vec<Node<'a>>,
    tensor_values: Pairs<'a, TensorMeta<'a>>,
    sym_int_values: Pairs<'a, SymInt<'a>> = Pairs::default(),
    sym_bool_values: Pairs<'a, SymBool<'a>> = Pairs::default(),
    sym_float_values: Pairs<'a, SymFloat<'a>> = Pairs::default(),
});

// `target` is the Python name of what is called: `torch.ops.aten.add.Tensor`, `_operator.mul`.
// Arguments that have their default value may be absent.
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

// `name` is that of the operator's schema, empty for higher-order operators and functions of
// Python. Older archives have no `kind`.
record!(NamedArgument<'a> {
    name: Text<'a>,
    arg: Argument<'a>,
    kind: Option<i64>,
});

record!(Complex {
    real: Number,
    imag: Number,
});

record!(Named<'a> {
    name: Text<'a>,
});

// A graph of a higher-order operator; its names are a scope of their own.
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

// Numbers of `codes` for dtype and layout; strides and offset in elements.
record!(TensorMeta<'a> {
    dtype: i64,
    sizes: Vec<SymInt<'a>>,
    strides: Vec<SymInt<'a>>,
    storage_offset: SymInt<'a>,
    layout: i64,
});

/// `TensorMeta::layout` of dense tensors.
pub const STRIDED: i64 = 7;

// `expr_str` is sympy's `srepr`; the hint is the value that the expression had at export.
record!(SymExpr<'a> {
    expr_str: Text<'a>,
    hint: Option<Hint<'a>>,
});

union!(Hint { "as_int" => Int(i64), "as_bool" => Bool(bool), "as_float" => Float(Number) });
union!(SymInt { "as_expr" => Expr(SymExpr<'a>), "as_int" => Int(i64) });
union!(SymBool { "as_expr" => Expr(SymExpr<'a>), "as_bool" => Bool(bool) });
union!(SymFloat { "as_expr" => Expr(SymExpr<'a>), "as_float" => Float(Number) });
// In arguments a computed integer is a name. A constant occurs in lists that mix both.
union!(SymIntArgument { "as_name" => Name(Text<'a>), "as_int" => Int(i64) });
union!(SymBoolArgument { "as_name" => Name(Text<'a>), "as_bool" => Bool(bool) });
union!(SymFloatArgument { "as_name" => Name(Text<'a>), "as_float" => Float(Number) });
// An item of `Tensor?[]`, such as the indices of `index`.
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
        "as_complex" => Complex(Complex),
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

// Inputs of the graph in order: weights and constants first, as export lifts them, then the
// user's.
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

// A buffer that is not persistent is no part of a state dict; its contents are among the
// constants.
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

// An input whose value export fixed. A call passes it, the graph does not read it.
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

// Outputs of the graph in order. A mutation is the new contents of a weight or input, written
// back at the end of a call.
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

// `path_name` is a file of the same folder. Custom objects and some tensor subclasses are
// pickles; they have no `tensor_meta` that can be used.
record!(Payload<'a> {
    path_name: Text<'a>,
    use_pickle: bool = false,
    tensor_meta: Option<TensorMeta<'a>>,
});
