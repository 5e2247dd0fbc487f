//! Printed files of C++ of small programs. `python/tests/test_source_cpp.py` compiles and runs those of models.

mod common;

use common::scaled;
use inrush_base::Device;
use inrush_program::host::{Call, HostProgram, StepKind};
use inrush_source::{Code, CppWeight, Object, Unit, cpp, host_program};

const SOURCE: &str = "typedef int i32; typedef long long i64;
static i32 one(i32 x) { return x; }
i32 f0(char *const *bufs, const i64 *sizes, i64 begin, i64 end) {
 return one(0);
}
";

const MORE: &str = "typedef int i32; typedef long long i64;
static i32 one(i32 x) { return x; }
i32 f1(char *const *bufs, const i64 *sizes, i64 begin, i64 end) {
 return one(0);
}
void f2(char *const *bufs, const i64 *sizes, const void *acc, i64 ld, i64 batch, i64 m0, i64 m1, i64 n0, i64 n1) {
}
";

const FLAGS: &[&str] = &["-O2", "-fwrapv", "-mavx2", "-mfma"];

/// Reads the program, with `replacements` in its text.
fn program(replacements: &[(&str, &str)]) -> HostProgram {
    // A trigraph of older C++.
    let mut all = vec![(r#"\"range\"""#, r#"\"range\"??/""#)];
    all.extend_from_slice(replacements);
    let program = scaled(&all);
    host_program(program, vec![SOURCE.into(), MORE.into()])
        .unwrap()
        .program
}

fn unit(program: &HostProgram) -> Unit<'_> {
    Unit {
        name: "scaled",
        target: "a CPU",
        program,
        objects: &[],
        inputs: &[],
        archive: Some("scaled.weights.safetensors"),
        code: Code::C {
            flags: FLAGS,
            libraries: &["-lm"],
        },
        guards: &[],
        bounds: &[],
        expected: None,
    }
}

#[test]
fn a_program_is_a_struct_with_its_weights_guards_buffers_and_launches() {
    let program = program(&[]);
    let file = cpp(&unit(&program)).unwrap();
    let expected = r#"    void load() {
        loaded = allocate(12);
        char *const half = at(loaded.get(), 0);  // float32
        // aten.div.Tensor
        launch(team, {kernels::halve_kernel, {}}, {a_scale.data, half}, {}, 1, 1);
    }
"#;
    assert!(file.text.contains(expected), "{}", file.text);
    let expected = r#"        const Tensor &x_given = expect_tensor("x", inputs[0], dtypes::F32, 2);
        const Size n = solve("x", x_given, 0, 1, 0, "n");
        within("dimension 0 of input `x`", "n", n, 2, 64);
        const auto known = [&] { return std::string() + "n = " + std::to_string(n.value); };
        expect_sizes("x", x_given, {n, 3}, {"n", "3"}, known);
        guard(mod(n, 2) == 0, "the size is even", mod(n, 2), 0);
        const Tensor x = laid_out("x", x_given, {3, 1});
        char *const memory = reserve(12 * n);
        char *const half = at(loaded.get(), 0);  // float32
        char *const t = at(memory, 0);  // float32
        // aten.mul.Tensor
        launch(team, mul_add_kernel, {x.data, half, t}, {n}, n, 12, 12, true);
        const std::shared_ptr<char> y_memory = allocate(12 * n);
        char *const y = y_memory.get();  // float32
        // aten.mm.default
        contract<Plain<float>, Plain<float>, float>(
            team, {t, x.data, 0, 0, /* batch */ {}, /* m */ {{n, 3, 0}}, /* n */ {{3, 0, 1}}, /* k */ {{1, 1, 1}}},
            kernels::sum_kernel, {y}, {});
        Values outputs;
        outputs.push_back(Tensor{dtypes::F32, {n, 3}, {3, 1}, y, y_memory});
        return outputs;
"#;
    assert!(file.text.contains(expected), "{}", file.text);
    for part in [
        "const Kernel mul_add_kernel = {kernels::mul_add_kernel, {\"index out of \\\"range\\\"?\\?/\"}};\n",
        "        a_scale = file.read_weight(\"a.scale\", dtypes::F32, {3}, {1});\n",
        "#pragma GCC target(\"avx2,fma\")\n",
        "#define VECTOR_BYTES 32\n",
        "\n// aten.div.Tensor\ni32 halve_kernel(char *const *bufs,",
        "\n// Takes sums of products: aten.mm.default\nvoid sum_kernel(",
        "    const Size n = size_of(given, \"n\", 8);\n",
        "const std::vector<Input> INPUTS = {{\"x\", Kind::tensor}};\n",
    ] {
        assert!(file.text.contains(part), "{part}\n{}", file.text);
    }
    // Pieces have the same helpers.
    assert_eq!(file.text.matches("static i32 one(").count(), 1);
    let weight = CppWeight {
        name: "a.scale".into(),
        dtype: inrush_base::DType::F32,
        sizes: vec![3],
    };
    assert_eq!(file.weights, [weight]);
}

#[test]
fn printing_is_deterministic() {
    let program = program(&[]);
    let first = cpp(&unit(&program)).unwrap();
    let second = cpp(&unit(&program)).unwrap();
    assert_eq!(first.text, second.text);
    assert_eq!(first.weights, second.weights);
}

#[test]
fn functions_of_the_library_are_called_by_name() {
    let plain = program(&[]);
    let file = cpp(&unit(&plain)).unwrap();
    assert!(!file.text.contains("inrush.h"), "{}", file.text);
    let with_library = program(&[(
        "load launch k0 [b1, b2] sizes [] units 1 cost 1 scratch 0 from [aten.div.Tensor]",
        "load library rnn.gru [] [b1[z1]] -> [b2[z1]] from [aten.gru.input]",
    )]);
    let file = cpp(&unit(&with_library)).unwrap();
    assert!(file.text.contains("#include \"inrush.h\"\n"));
    assert!(file.text.contains("-linrush"), "{}", file.text);
    let call = "        // aten.gru.input\n        library(\"rnn.gru\", \"aten.gru.input\", team.size(), \
        {{a_scale.data, dtypes::F32, {3}}}, {{half, dtypes::F32, {3}}}, {});\n";
    assert!(file.text.contains(call), "{}", file.text);
}

#[test]
fn what_is_not_printed_is_named() {
    let program = program(&[]);
    let error = cpp(&Unit {
        archive: None,
        ..unit(&program)
    });
    let error = error.err().unwrap();
    assert!(error.message().contains("weights"), "{error}");
    let device = Device {
        name: "toy",
        torch_name: "toy",
        torch_build: "toy",
        backend: "toy",
        backend_package: ("toy", "`toy`"),
        binary: "toy",
        presets: &[],
        cpp: None,
        runs: None,
    };
    let error = cpp(&Unit {
        code: Code::Gpu(&device),
        ..unit(&program)
    });
    let error = error.err().unwrap();
    assert!(error.message().contains("machine code"), "{error}");
    let error = cpp(&Unit {
        code: Code::Built(&device, &[]),
        ..unit(&program)
    });
    let error = error.err().unwrap();
    assert!(error.message().contains("GPUs of kind toy"), "{error}");
    let device = Device {
        cpp: Some(String::new),
        ..device
    };
    let error = cpp(&Unit {
        code: Code::Built(&device, &[]),
        ..unit(&program)
    });
    let error = error.err().unwrap();
    assert!(error.message().contains("it has no GPU"), "{error}");
    let mut called = program.clone();
    called.steps[0].kind = StepKind::Call(Call {
        target: 0,
        args: Vec::new(),
        kwargs: Vec::new(),
        unpack: false,
        outs: vec![1],
    });
    let objects = [Object::Expression("torch.ops.aten.sort.default".into())];
    let error = cpp(&Unit {
        objects: &objects,
        ..unit(&called)
    });
    let error = error.err().unwrap();
    assert!(error.message().contains("torch.ops.aten.sort"), "{error}");
}

#[test]
fn damaged_programs_are_errors() {
    let program = program(&[]);
    let mut broken = program.clone();
    broken.pieces[0] = "i32 f0(".into();
    assert!(cpp(&unit(&broken)).is_err());
    let mut broken = program.clone();
    broken.pieces.pop();
    let error = cpp(&unit(&broken)).err().unwrap();
    assert!(error.message().contains("no source of `f1`"), "{error}");
    let mut broken = program.clone();
    broken.outputs.push(inrush_program::host::Out::Slot(99));
    assert!(cpp(&unit(&broken)).is_err());
    let mut broken = program;
    if let StepKind::Segment(s) = &mut broken.steps[0].kind {
        s.inputs.clear();
    }
    assert!(cpp(&unit(&broken)).is_err());
}
