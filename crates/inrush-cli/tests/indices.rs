//! Indices that name no element: the call ends with an error that names the operator and its source line, wherever the
//! operator went in the meantime.

use inrush_base::Caps;
use inrush_cli::{io, session};
use inrush_compile::Options;
use inrush_package::{Cpu, TargetParts};
use inrush_runtime::Tensor;
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Compiler, Target};
use std::path::Path;
use std::process::Command;

/// Name, lines of the graph after `x: f32[6, 10]`, `i: i64[6, 3]` and `v: f32[6, 3]`, the operator
/// to blame, and the bound of the index. All are followed by operators that they fuse with.
const CASES: &[(&str, &str, &str, i64)] = &[
    (
        "embedding",
        "%3 a: f32[6, 3, 10] = aten.embedding.default(%0, %1, -1, false, false) at line0",
        "aten.embedding.default",
        6,
    ),
    (
        "gather",
        "%3 a: f32[6, 3] = aten.gather.default(%0, 1, %1, false) at line0",
        "aten.gather.default",
        10,
    ),
    (
        "index",
        "%3 a: f32[6, 3, 10] = aten.index.Tensor(%0, [%1]) at line0",
        "aten.index.Tensor",
        6,
    ),
    (
        "scatter",
        "%3 a: f32[6, 10] = aten.scatter.src(%0, 1, %1, %2) at line0",
        "aten.scatter.src",
        10,
    ),
    (
        "scatter_add",
        "%3 a: f32[6, 10] = aten.scatter_add.default(%0, 1, %1, %2) at line0",
        "aten.scatter_add.default",
        10,
    ),
];

fn graph(case: &(&str, &str, &str, i64)) -> String {
    let ty = case
        .1
        .split_once(" = ")
        .unwrap()
        .0
        .split_once(": ")
        .unwrap()
        .1;
    format!(
        "graph t\nline0: \"model.py:7 in forward: here\"\nline1: \"model.py:9 in forward: elsewhere\"\n\
         %0 x: f32[6, 10] = input 0\n%1 i: i64[6, 3] = input 1\n%2 v: f32[6, 3] = input 2\n{}\n\
         %4 b: {ty} = aten.mul.Tensor(%3, 2.0) at line1\n%5 c: {ty} = aten.relu.default(%4) at line1\noutput 0: %5\n",
        case.1
    )
}

/// Compiles the graph into a package, as `inrush compile` does with an archive.
fn package(text: &str, cache: &Cache, path: &Path) {
    let caps: Caps = session::caps(&inrush_cli::args::TargetArgs {
        target: "native".into(),
        threads: Some(1),
    })
    .unwrap();
    let graph = inrush_graph::text::parse(text).unwrap();
    let compiled = inrush_compile::compile(graph, &caps, &Options::default(), &mut ()).unwrap();
    let target = Target {
        isa: caps.isa,
        vector_math: caps.vector_math,
    };
    let built = (Compiler::find()
        .unwrap()
        .build(&compiled.pieces, &target, cache))
    .unwrap();
    let cpu = Cpu {
        arch: std::env::consts::ARCH.into(),
        os: std::env::consts::OS.into(),
        isa: caps.isa.name().into(),
    };
    let object = std::fs::read(built.path).unwrap();
    let parts = TargetParts::Cpu {
        cpu,
        program: &compiled.program,
        object: &object,
    };
    inrush_package::write(path, &[parts], &|_| None).unwrap();
}

fn floats(sizes: &[i64]) -> Tensor {
    let n: i64 = sizes.iter().product();
    let bytes: Vec<u8> = (0..n)
        .flat_map(|k| (k as f32 * 0.25 - 1.0).to_le_bytes())
        .collect();
    Tensor::from_bytes(inrush_base::DType::F32, sizes.to_vec(), &bytes).unwrap()
}

#[test]
fn the_operator_and_its_line_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::at(dir.path().join("cache"));
    for case in CASES {
        let (name, _, operator, size) = *case;
        let path = dir.path().join(format!("{name}.inrush"));
        package(&graph(case), &cache, &path);
        let run = |index: i64| {
            // One bad element among good ones, at a place that vectors reach.
            let indices: Vec<u8> = (0..18)
                .flat_map(|k| (if k == 10 { index } else { k % 6 }).to_le_bytes())
                .collect();
            let i = Tensor::from_bytes(inrush_base::DType::I64, vec![6, 3], &indices).unwrap();
            let file = dir.path().join("inputs.safetensors");
            let inputs = [floats(&[6, 10]), i, floats(&[6, 3])];
            let keyed: Vec<(String, Tensor)> = (inputs.into_iter().enumerate())
                .map(|(k, t)| (k.to_string(), t))
                .collect();
            io::write(&file, &keyed).unwrap();
            Command::new(env!("CARGO_BIN_EXE_inrush"))
                .args(["run", "--seconds", "0", "--inputs"])
                .args([&file, &path])
                .output()
                .unwrap()
        };
        let good = run(size - 1);
        assert!(good.status.success(), "{name}: {good:?}");
        for bad in [size, -size - 1, 1 << 40, i64::MIN, i64::MAX] {
            let out = run(bad);
            let err = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(2), "{name} {bad}: {err}");
            for word in [operator, "out of range", "model.py:7", &size.to_string()] {
                assert!(err.contains(word), "{name}: `{word}` is not in: {err}");
            }
            assert!(!err.contains("model.py:9"), "{name}: {err}");
        }
    }
}
