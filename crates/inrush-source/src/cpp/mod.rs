//! A program as one file of C++17 that needs the standard library only, on a GPU its driver, and libinrush for functions of the
//! library.
//!
//! ```text
//! kernels   C functions or machine code, and the objects that launch them
//! inputs    checks of a call's inputs, and drawn ones
//! model     the program of a CPU as a struct: weights, load steps, calls; steps of segments
//! control   control flow, and functions whose data decide sizes
//! segments  segments as functions
//! steps     a program of several steps, and that of a GPU, as a struct
//! parts/    what files have in common: tensors, checks, threads, products, files of tensors, `main`
//! ```

mod control;
mod inputs;
mod kernels;
mod model;
mod segments;
mod steps;

use crate::kernels::segments;
use crate::names::{Names, plain};
use crate::sizes::cpp_literal;
use crate::{Built, Code, Object, Unit};
use inrush_base::{DType, Device, Error, Result};
use inrush_program::host::{Segment, StepKind};
use kernels::{Kernels, quoted};
use std::fmt::Write;

const CHECKS: &str = include_str!("parts/checks.cpp");
const DEVICE: &str = include_str!("parts/device.cpp");
const CONTROL: &str = include_str!("parts/control.cpp");
const CONTRACT: &str = include_str!("parts/contract.cpp");
const DRAWN: &str = include_str!("parts/drawn.cpp");
const FILES: &str = include_str!("parts/files.cpp");
const HOST: &str = include_str!("parts/host.cpp");
const LAUNCH: &str = include_str!("parts/launch.cpp");
const LIBRARY: &str = include_str!("parts/library.cpp");
const MAIN: &str = include_str!("parts/main.cpp");
const MULTIPLY: &str = include_str!("parts/multiply.cpp");
const STEPS: &str = include_str!("parts/steps.cpp");
const OPERANDS: &str = include_str!("parts/operands.cpp");
const TENSOR: &str = include_str!("parts/tensor.cpp");

/// Headers of the standard library that files include.
const HEADERS: &str = "algorithm atomic chrono cmath condition_variable cstdint cstdio cstring exception fstream functional limits \
    map memory mutex new random stdexcept string system_error thread variant vector";

/// Headers that files for GPUs include instead of those of threads.
const GPU_HEADERS: &str = "dlfcn.h";

/// Keywords, names that the text around a program uses, and macros of compilers and headers.
const TAKEN: &str = "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class \
    co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype \
    default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline \
    int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public \
    register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch \
    template this thread_local throw true try typedef typeid typename typeof union unsigned using virtual void \
    volatile wchar_t while xor xor_eq Blocks Brain CheckError Contraction DType Eight Epilogue Half INPUTS Input \
    InputError Kernel Kind Level MachineError Model Offsets Options Plain Reads SERIAL_COST Size Sizes Special Team \
    Tensor TensorFile Value Values WEIGHTS allocate arena arena_bytes at expect_names expect_value call contract \
    copy copy_from drawn drawn_inputs dtypes elements empty_tensor expect_constant expect_int expect_sizes \
    expect_tensor extent file floordiv given guard i64 inputs integer kernels known laid_out larger launch \
    lies_as load loaded main memory mod numbers options outputs overflow pack places read_inputs reserve \
    row_major seed shown size_of sizes smaller solve std team text threads weights PLACE default_place \
    expect_place fetched finish given placed within write_tensors EOF NULL NAN INFINITY \
    HUGE_VAL BUFSIZ RAND_MAX TMP_MAX UNROLL VECTOR_BYTES assert errno i386 linux stderr stdin stdout unix major \
    minor makedev";

/// Names that the text of files with several steps uses besides.
const TAKEN_BY_STEPS: &str = "assign carried clone conformed expect_some_tensor filled is_zero item new_tensor nonzero on_device on_host \
    owned put resident slice slices tensor_at to_fill truth turn view";

/// Names that the text of files with library functions uses besides; those of `inrush.h` have prefixes.
const TAKEN_BY_LIBRARY: &str = "Dense Described filled new_tensor on_device on_host tensor_at to_fill expect_done expect_library int64_t library library_results parameter type_of";

/// Names that the text of files for GPUs uses besides.
const TAKEN_ON_GPUS: &str = "ARGUMENTS_END Address Arguments Code DRIVER_FLAGS DRIVER_FUNCTIONS DRIVER_LIBRARIES DRIVER_MISSING \
    Driver Handle Int32 Loaded MAX_THREADS Pool Span Status address assign bytes_of clone copy_on_device copy_to_device copy_to_host \
    device device_memory drain driver enter index int32 issue load_kernel moved on_device on_host permit_shared pointer pool \
    release_memory resident status_text stream take_memory use_device view zero";

/// Warnings of GCC that generated C gives.
const KERNEL_WARNINGS: &[&str] = &[
    "attributes",
    "bool-operation",
    "int-in-bool-context",
    "maybe-uninitialized",
    "overflow",
    "parentheses",
    "sign-compare",
    "type-limits",
    "unused-but-set-variable",
    "unused-function",
    "unused-local-typedefs",
    "unused-parameter",
    "unused-variable",
];

/// A file of C++, and the weights that it reads.
pub struct CppFile {
    pub text: String,
    /// In order of their names.
    pub weights: Vec<CppWeight>,
}

/// A weight that a file reads: a tensor of a safetensors file, in row-major order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CppWeight {
    pub name: String,
    pub dtype: DType,
    pub sizes: Vec<i64>,
}

/// Prints a unit as a file of C++. [`Unit::archive`] is the path of the safetensors file that has the weights, from the folder of
/// the program.
///
/// # Errors
/// An unsupported error that names what has no source, an input error for a damaged program.
pub fn cpp(unit: &Unit<'_>) -> Result<CppFile> {
    unit.program.check(unit.objects.len())?;
    match unit.code {
        Code::C { flags, .. } => for_cpu(unit, flags),
        Code::Built(device, built) => for_gpu(unit, device, built),
        Code::Gpu(_) => Err(Error::unsupported(
            "C++ has machine code for a GPU: build the kernels first",
        )),
    }
}

/// Prints a unit whose kernels are built for a GPU.
fn for_gpu(unit: &Unit<'_>, device: &Device, built: &[Built]) -> Result<CppFile> {
    let declarations = device.cpp.ok_or_else(|| {
        Error::unsupported(format!(
            "C++ is not printed for GPUs of kind {} yet",
            device.name
        ))
    })?;
    for s in segments(unit.program) {
        s.program.verify()?;
    }
    let taken = [TAKEN, TAKEN_ON_GPUS, TAKEN_BY_STEPS, TAKEN_BY_LIBRARY];
    let mut names = Names::with(taken.into_iter().flat_map(|t| t.split(' ')));
    let kernels = Kernels::built(unit, built, &mut names)?;
    let model = steps::print(unit, &kernels, &mut names)?;
    let mut text = comment(unit, None, &model);
    for header in HEADERS.split(' ').chain(GPU_HEADERS.split(' ')) {
        _ = writeln!(text, "#include <{header}>");
    }
    let library = include_library(&mut text, model.needs);
    let works = |k: &StepKind| matches!(k, StepKind::Work(_));
    let control = if unit.program.steps.iter().any(|s| works(&s.kind)) {
        CONTROL
    } else {
        ""
    };
    text.push('\n');
    let place = "    // Elements are in memory of the device, which the host does not read.\n    bool on_device = false;\n";
    let tensor = TENSOR.replace("//DTYPES\n", &dtypes());
    let kernels_title = format!(
        "// Kernels: Triton's source, and the object that launches its machine code.\n\n{}",
        kernels.objects
    );
    let weights = weights_path(unit);
    let code = format!("// Machine code of the kernels.\n\n{}", kernels.code);
    let parts = [
        &tensor.replace("//PLACE\n", place),
        CHECKS,
        &declarations(),
        DEVICE,
        library,
        control,
        FILES,
        DRAWN,
        &kernels_title,
        &model.text,
        &weights,
        MAIN,
        &code,
    ];
    finish(unit, text, &parts, model.weights)
}

/// Returns the path of the weights as the file says it.
fn weights_path(unit: &Unit<'_>) -> String {
    format!(
        "// The file of the weights, in the folder of the program.\nconst char *const WEIGHTS = {};",
        quoted(unit.archive.unwrap_or(""))
    )
}

/// Joins the parts of a file.
///
/// # Errors
/// An unsupported error for weights without a file.
fn finish(
    unit: &Unit<'_>,
    mut text: String,
    parts: &[&str],
    weights: Vec<CppWeight>,
) -> Result<CppFile> {
    if !weights.is_empty() && unit.archive.is_none() {
        return Err(Error::unsupported(
            "a graph with weights is not printed without the file that has them",
        ));
    }
    for part in parts.iter().filter(|p| !p.is_empty()) {
        text.push_str(part.trim_end());
        text.push_str("\n\n");
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    Ok(CppFile { text, weights })
}

/// Prints a unit for a CPU.
fn for_cpu(unit: &Unit<'_>, flags: &[&str]) -> Result<CppFile> {
    for s in segments(unit.program) {
        s.program.verify()?;
    }
    let segment = only_segment(unit);
    let taken = TAKEN.split(' ').chain(TAKEN_BY_LIBRARY.split(' '));
    let mut names = match segment {
        Some(_) => Names::with(taken),
        None => Names::with(taken.chain(TAKEN_BY_STEPS.split(' '))),
    };
    let kernels = Kernels::new(unit, &mut names)?;
    let model = match segment {
        Some(s) => model::print(unit, s, &kernels, &mut names)?,
        None => steps::print(unit, &kernels, &mut names)?,
    };
    let (steps, control) = if segment.is_none() {
        (STEPS, CONTROL)
    } else {
        ("", "")
    };
    let mut text = comment(unit, Some(flags), &model);
    for header in HEADERS.split(' ') {
        _ = writeln!(text, "#include <{header}>");
    }
    let library = include_library(&mut text, model.needs);
    let host = if steps.is_empty() && library.is_empty() {
        ""
    } else {
        HOST
    };
    text.push('\n');
    let tensor = TENSOR.replace("//DTYPES\n", &dtypes());
    let products = if model.needs.products {
        [OPERANDS, CONTRACT]
    } else {
        ["", ""]
    };
    let objects = match kernels.objects.as_str() {
        "" => String::new(),
        all => format!("// Kernels with checks, and the errors of these.\n{all}"),
    };
    let (compiled, weights) = (
        compiled(flags, &kernels, model.needs.products),
        weights_path(unit),
    );
    let parts = [
        &tensor.replace("//PLACE\n", ""),
        CHECKS,
        LAUNCH,
        host,
        library,
        steps,
        control,
        &compiled,
        products[0],
        products[1],
        FILES,
        DRAWN,
        &objects,
        &model.text,
        &weights,
        MAIN,
    ];
    finish(unit, text, &parts, model.weights)
}

/// Includes the header of the library if functions of it are called. Returns the text that calls them.
fn include_library(text: &mut String, needs: model::Needs) -> &'static str {
    if !needs.library {
        return "";
    }
    text.push_str("\n#include \"inrush.h\"\n");
    LIBRARY
}

/// Returns the segment that is all of a unit's program; `None` for a program of other steps.
fn only_segment<'a>(unit: &Unit<'a>) -> Option<&'a Segment> {
    match unit.program.steps.as_slice() {
        [step] if unit.expected.is_none() => match &step.kind {
            StepKind::Segment(s) => Some(s),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the expression of a constant output.
fn constant(unit: &Unit<'_>, at: usize) -> Result<String> {
    match unit.objects.get(at) {
        Some(Object::Expression(e)) if e == "None" => Ok("Value()".into()),
        Some(Object::Expression(e)) => match (e.as_str(), e.parse::<i64>(), e.parse::<f64>()) {
            ("True", ..) => Ok("true".into()),
            ("False", ..) => Ok("false".into()),
            (_, Ok(n), _) => Ok(format!("i64({})", cpp_literal(n))),
            (_, _, Ok(x)) if x.is_finite() => Ok(format!("{x:?}")),
            _ => Err(Error::unsupported(format!(
                "the output `{e}` is not printed as C++"
            ))),
        },
        _ => Err(Error::unsupported(
            "an output that is an object is not printed as C++",
        )),
    }
}

/// Returns the table of element types.
fn dtypes() -> String {
    let mut text = String::new();
    let mut all = Vec::new();
    for d in DType::all() {
        let Some(in_files) = in_files(d) else {
            continue;
        };
        let (name, bytes, is_float) = (d.torch_name(), d.size(), d.is_float());
        _ = writeln!(
            text,
            "const DType {in_files}{{\"{name}\", \"{in_files}\", {bytes}, {is_float}}};"
        );
        all.push(in_files);
    }
    _ = writeln!(text, "const DType ALL[] = {{{}}};", all.join(", "));
    text
}

/// Returns the name of a dtype in safetensors files; `None` for one that they do not hold.
fn in_files(d: DType) -> Option<&'static str> {
    Some(match d {
        DType::Bool => "BOOL",
        DType::U8 => "U8",
        DType::I8 => "I8",
        DType::U16 => "U16",
        DType::I16 => "I16",
        DType::U32 => "U32",
        DType::I32 => "I32",
        DType::U64 => "U64",
        DType::I64 => "I64",
        DType::F8E4M3FN => "F8_E4M3",
        DType::F8E5M2 => "F8_E5M2",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::F32 => "F32",
        DType::F64 => "F64",
        DType::F8E4M3FNUZ | DType::F8E5M2FNUZ | DType::C64 | DType::C128 => return None,
    })
}

/// Returns the expression of a dtype.
///
/// # Errors
/// An unsupported error for one that files of tensors do not hold.
pub(crate) fn dtype(d: DType) -> Result<String> {
    match in_files(d) {
        Some(name) => Ok(format!("dtypes::{name}")),
        None => Err(Error::unsupported(format!(
            "a tensor of {} is not printed as C++",
            d.torch_name()
        ))),
    }
}

/// Returns what is compiled for the processor: helpers, kernels, the tiles of products. Settings of compilers stand around it, so
/// that `c++ -O2` is enough.
fn compiled(flags: &[&str], kernels: &Kernels, has_products: bool) -> String {
    let target: Vec<&str> = flags.iter().filter_map(|f| f.strip_prefix("-m")).collect();
    let features: Vec<&str> = target
        .iter()
        .copied()
        .filter(|f| !f.contains('='))
        .collect();
    let mut text = String::from(
        "// Kernels: C for GCC and Clang. Buffers come in the order of a launch, then its scratch; units begin..end are computed.\n",
    );
    let gcc = match target.as_slice() {
        [] => String::new(),
        all => format!("#pragma GCC target(\"{}\")\n", all.join(",")),
    };
    let clang = match features.as_slice() {
        [] => String::new(),
        all => format!(
            "#pragma clang attribute push(__attribute__((target(\"{}\"))), apply_to = function)\n",
            all.join(",")
        ),
    };
    let ignored: Vec<String> = (KERNEL_WARNINGS.iter())
        .map(|w| format!("#pragma GCC diagnostic ignored \"-W{w}\"\n"))
        .collect();
    _ = write!(
        text,
        "#if defined(__clang__)\n{clang}#pragma clang diagnostic push\n#pragma clang diagnostic ignored \"-Weverything\"\n#else\n\
         #pragma GCC push_options\n{gcc}\
         #pragma GCC optimize(\"wrapv\", \"no-math-errno\", \"no-trapping-math\", \"no-strict-aliasing\")\n\
         // How vectors are passed is told at the end of the file, and matters to no other.\n\
         #pragma GCC diagnostic ignored \"-Wpsabi\"\n#pragma GCC diagnostic push\n{}#endif\n\
         namespace kernels {{\nextern \"C\" {{\n{}}}  // extern \"C\"\n",
        ignored.concat(),
        kernels.functions
    );
    if has_products {
        let bytes = match features.as_slice() {
            all if all.contains(&"avx512f") => 64,
            all if all.contains(&"avx2") => 32,
            _ => 16,
        };
        _ = write!(
            text,
            "\n#define VECTOR_BYTES {bytes}\n#define UNROLL _Pragma(\"GCC unroll 6\")\n{MULTIPLY}"
        );
    }
    let pop = if clang.is_empty() {
        ""
    } else {
        "#pragma clang attribute pop\n"
    };
    _ = write!(
        text,
        "}}  // namespace kernels\n#if defined(__clang__)\n#pragma clang diagnostic pop\n{pop}#else\n#pragma GCC diagnostic pop\n#pragma GCC pop_options\n#endif\n"
    );
    text
}

/// Returns the comment at the beginning. `flags` are those of a C compiler, for a CPU.
fn comment(unit: &Unit<'_>, flags: Option<&[&str]>, model: &model::Printed) -> String {
    let name = if unit.name.is_empty() {
        "a graph".to_string()
    } else {
        format!("`{}`", plain(unit.name))
    };
    let is_needed = |f: &&str| {
        f.starts_with("-fwrapv")
            || f.starts_with("-fno-strict")
            || f.starts_with("-ffp")
            || f.starts_with("-fno-math")
    };
    let (libraries, place, clang) = match flags {
        Some(flags) => {
            let clang: Vec<&str> = flags.iter().copied().filter(is_needed).collect();
            let clang = format!("    (with Clang also: {})", clang.join(" "));
            ("-pthread", "--threads N", clang)
        }
        None => ("-pthread -ldl", "--device N", String::new()),
    };
    let with = if model.needs.library {
        " -I FOLDER-OF-inrush.h -L FOLDER-OF-libinrush.so -linrush -Wl,-rpath,FOLDER-OF-libinrush.so"
    } else {
        ""
    };
    let build = match flags {
        Some(_) => format!("c++ -std=c++17 -O2 {libraries} FILE.cpp -o program{with}{clang}"),
        None => format!("c++ -std=c++17 -O2 FILE.cpp {libraries} -o program{with}"),
    };
    let second = match flags {
        Some(_) => "threads",
        None => "device",
    };
    let mut text = format!(
        "// Source of {name} as compiled by inrush for {}.\n//\n\
         // Build:  {build}\n\
         // Run:    ./program                              draws inputs; prints its outputs and the time of a call\n\
         //         ./program --inputs x.safetensors --output y.safetensors    reads inputs by name or position, writes outputs\n\
         //         {place}, --size NAME=N (of drawn inputs), --weights FILE, --calls N (to be timed)\n\
         // Use:    `Model model(\"FILE\", {second}); model.call(inputs)`. Calls of one model come one after the other.\n",
        plain(unit.target),
    );
    if let Some(file) = unit.archive.filter(|_| !model.weights.is_empty()) {
        _ = writeln!(
            text,
            "//\n// Weights are read from {}, in the folder of the program.",
            plain(file)
        );
    }
    if flags.is_none() {
        text.push_str("//\n// It needs the driver of the GPU when it runs. Work goes to `stream`; memory of values is used again in its order.\n");
    }
    if model.needs.library {
        text.push_str(
            "//\n// Functions of the library, such as factorisations and transforms, are those of libinrush, with which the program is linked. \
             They run on the host.\n",
        );
    }
    if model.needs.products {
        text.push_str(
            "//\n// Matrix products and convolutions are the plain blocked loops of `contract`, several times slower than a tuned library.\n",
        );
    }
    text.push('\n');
    text
}
