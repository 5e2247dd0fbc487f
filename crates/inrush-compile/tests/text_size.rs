//! How much C a graph becomes: the C compiler's time follows it.

use inrush_base::{Caps, DType, Isa};
use inrush_compile::{Options, compile};

/// The C text of a sort of four rows.
fn sort(dtype: DType, length: i64, isa: Isa) -> String {
    let text = format!(
        "graph t\n%0 x: {dtype}[4,{length}] = input 0\n\
         %1 values: {dtype}[4,{length}], %2 indices: i64[4,{length}] = aten.sort.default(%0, 1, false)\n\
         output 0: %1\noutput 1: %2\n"
    );
    let graph = inrush_graph::text::parse(&text).expect("a graph");
    let options = Options::default();
    let compiled = compile(graph, &Caps::cpu(isa, 2), &options, &mut ()).expect("compiles");
    compiled.pieces.concat()
}

#[test]
fn sorts_become_little_text() {
    for isa in [Isa::Avx2, Isa::Avx512] {
        for dtype in [DType::F32, DType::BF16, DType::I64] {
            let (short, long) = (sort(dtype, 1000, isa), sort(dtype, 100_000, isa));
            assert!(short.len() < 120_000, "{dtype}: {}", short.len());
            // The steps of a search are not written out once more for each row.
            assert!(!short.contains("unroll 4\n"), "{dtype}");
            // A pass for each doubling of the runs, a step of the search for each in a pass.
            assert!(long.len() < 350_000, "{dtype}: {}", long.len());
        }
    }
}
