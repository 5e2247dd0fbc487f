//! Packages for tests of damage: programs of the archives of `inrush-torch`'s tests, with made-up machine code and weights of zeros.

use inrush_base::schema::Operator;
use inrush_base::{Caps, Result};
use inrush_package::{Cpu, Options, TargetParts, WeightData};
use inrush_program::{Place, Program, Weight};
use std::path::{Path, PathBuf};

/// Operators that the archive of `examples/operators` calls.
const OPERATORS: [&str; 4] = [
    "example::scale(Tensor x, float by=2.0, str rounding=\"none\", int[]? dims=None) -> Tensor",
    "example::count(Tensor(a!) seen, Tensor x, int by=1) -> ()",
    "example::above(Tensor x, float limit) -> Tensor",
    "example::blend(Tensor[] items, float[] weights, bool flip) -> (Tensor, Tensor[])",
];

/// Returns the archives of `inrush-torch`'s tests, and that of `examples/operators`, sorted by name.
///
/// # Errors
/// A folder that cannot be read.
pub fn archives() -> std::io::Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inrush-torch/tests/data");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "pt2") {
            all.push(path);
        }
    }
    all.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/operators/model.pt2"));
    all.sort();
    Ok(all)
}

/// Compiles the program of an archive.
///
/// # Errors
/// Those of the reader and of the compiler: some archives hold what is not supported.
pub fn compile(archive: &Path, caps: &Caps) -> Result<Program> {
    let operators: Vec<Operator> = (OPERATORS.iter())
        .map(|o| Operator::parse(o))
        .collect::<Result<_>>()?;
    let options = inrush_torch::Options {
        operators: &operators,
        ..inrush_torch::Options::default()
    };
    let model = inrush_torch::open_with(archive, &options)?;
    let options = inrush_compile::Options::default();
    Ok(inrush_compile::compile(model.graph, caps, &options, &mut ())?.program)
}

/// Writes a package of the program, with weights in panels where they may be.
///
/// # Errors
/// Those of the writer.
pub fn write(path: &Path, program: &Program) -> Result<()> {
    let cpu = Cpu {
        arch: "x86_64".into(),
        os: "linux".into(),
        isa: "avx2".into(),
    };
    let zeros = [0; 4096];
    let options = Options {
        panels: inrush_runtime::panels_for(program, &cpu)?,
        ..Options::default()
    };
    let parts = TargetParts::Cpu {
        cpu,
        program,
        object: b"no machine code",
    };
    let zeros = |name: &str| {
        let (dtype, w) = weight(program, name)?;
        Some(WeightData {
            dtype,
            sizes: &w.sizes,
            strides: &w.strides,
            bytes: &zeros,
        })
    };
    inrush_package::write_with(path, &[parts], &zeros, &options)
}

/// Finds a weight of a program or of one that it calls.
fn weight<'a>(program: &'a Program, name: &str) -> Option<(inrush_base::DType, &'a Weight)> {
    let own = program.buffers.iter().find_map(|b| match &b.place {
        Place::Weight(w) if w.name == name => Some((b.dtype.0, w)),
        _ => None,
    });
    own.or_else(|| {
        let steps = &program.parts.as_ref()?.steps;
        let called = steps.iter().flat_map(|s| s.kind.programs());
        called.into_iter().find_map(|p| weight(p, name))
    })
}
