//! Large products of halves on GPUs: which are kernels with what follows them, and which a library's.

use inrush_base::{Caps, Gpu, PersistentProducts};
use inrush_compile::{Options, Request, What, compile_sequence, fusible};
use inrush_graph::Graph;

/// Compiles operators on `x @ w + b` of 4096 by 4096 halves for an H100, or for another `device`; returns the library's calls and the
/// number of segments.
fn calls(
    device: &str,
    products: Option<PersistentProducts>,
    operators: &str,
) -> (Vec<String>, usize) {
    let text = format!(
        "graph t\n%0 x: bf16[4096, 4096] = input 0\n%1 w: bf16[4096, 4096] = input 1\n%2 b: bf16[4096] = input 2\n\
         %3 c: bf16[4096, 4096] = input 3\n%4 y: bf16[4096, 4096] = aten.addmm.default(%2, %0, %1, 1, 1)\n{operators}"
    );
    calls_of(&text, device, products)
}

fn calls_of(
    text: &str,
    device: &str,
    products: Option<PersistentProducts>,
) -> (Vec<String>, usize) {
    let graph = inrush_graph::text::parse(text).expect("parses");
    let mut caps = inrush_devices::model(device).expect("a preset");
    if let (Some(gpu), Some(products)) = (&mut caps.gpu, products) {
        gpu.persistent_products = products;
    }
    compiled(graph, &caps)
}

fn compiled(graph: Graph, caps: &Caps) -> (Vec<String>, usize) {
    let (request, options) = (Request::default(), Options::default());
    let made = compile_sequence(graph, &request, caps, &options, &mut ()).expect("compiles");
    let parts = made.parts.iter();
    let called = parts.clone().filter_map(|p| match &p.what {
        What::Call(c) => Some(c.op.clone()),
        _ => None,
    });
    let segments = parts.filter(|p| matches!(p.what, What::Segment(_)));
    (called.collect(), segments.count())
}

const GATE: &str = "%5 z: bf16[4096, 4096] = aten.mul.Tensor(%4, %3)\noutput 0: %5\n";

#[test]
fn pointwise_work_on_a_large_product_is_its_epilogue() {
    assert_eq!(calls("h100", None, GATE), (vec![], 1));
    let exact = "%5 z: bf16[4096, 4096] = aten.gelu.default(%4, \"none\")\n\
                 %6 u: bf16[4096, 4096] = aten.mm.default(%5, %3)\noutput 0: %6\n";
    assert_eq!(
        calls("h100", None, exact),
        (vec!["aten.mm.default".into()], 1)
    );
}

#[test]
fn other_large_products_are_a_librarys() {
    let call = |op: &str| (vec![op.to_string()], 0);
    // Nothing follows, or the library has it.
    assert_eq!(
        calls("h100", None, "output 0: %4\n"),
        call("aten.addmm.default")
    );
    let relu = "%5 z: bf16[4096, 4096] = aten.relu.default(%4)\noutput 0: %5\n";
    assert_eq!(
        calls("h100", None, relu),
        call("aten._addmm_activation.default")
    );
    // The kernel of a reduction computes what is pointwise.
    let sum = "%5 z: bf16[4096, 4096] = aten.mul.Tensor(%4, %3)\n\
               %6 s: bf16[4096] = aten.sum.dim_IntList(%5, [1], false, none)\noutput 0: %6\n";
    assert_eq!(
        calls("h100", None, sum),
        (vec!["aten.mm.default".into()], 1)
    );
    // What reads a part of it is no epilogue.
    let part = "%5 p: bf16[4096, 2048] strides [4096, 1] = aten.slice.Tensor(%4, 1, 0, 2048, 1)\n\
                %6 z: bf16[4096, 2048] = aten.relu.default(%5)\noutput 0: %4\noutput 1: %6\n";
    assert_eq!(calls("h100", None, part).0.len(), 1);
}

#[test]
fn a_symbolic_number_of_rows_counts_by_its_least_value() {
    let called = |least: i64| {
        let text = format!(
            "graph t\nsize s0 in [{least}, 100000] hint 8192\n%0 x: bf16[s0, 512] = input 0\n%1 w: bf16[512, 2048] = input 1\n\
             %2 y: bf16[s0, 2048] = aten.mm.default(%0, %1)\n%3 z: bf16[s0, 2048] = aten.silu.default(%2)\noutput 0: %3\n"
        );
        calls_of(&text, "h100", None).0.len()
    };
    assert_eq!((called(8192), called(2)), (0, 1));
}

#[test]
fn devices_and_the_option_decide() {
    assert_eq!(
        calls("a100", None, GATE),
        (vec!["aten.mm.default".into()], 1)
    );
    let never = Some(PersistentProducts::Never);
    assert_eq!(
        calls("h100", never, GATE),
        (vec!["aten.mm.default".into()], 1)
    );
    let always = Some(PersistentProducts::Always);
    // Without tensor maps there are none.
    assert_eq!(
        calls("a100", always, GATE),
        (vec!["aten.mm.default".into()], 1)
    );
    assert_eq!(calls("h100", always, "output 0: %4\n"), (vec![], 1));
}

/// Calls and segments for `silu(x @ w) * g` of `m` by `n` halves with sums of `k` terms.
fn gated([m, n, k]: [i64; 3], change: impl FnOnce(&mut Gpu)) -> (Vec<String>, usize) {
    let text = gated_text([m, n, k]);
    let graph = inrush_graph::text::parse(&text).expect("parses");
    let mut caps = inrush_devices::model("h100").expect("a preset");
    change(caps.gpu.as_mut().expect("a GPU"));
    compiled(graph, &caps)
}

fn gated_text([m, n, k]: [i64; 3]) -> String {
    format!(
        "graph t\n%0 x: bf16[{m}, {k}] = input 0\n%1 w: bf16[{k}, {n}] = input 1\n%2 g: bf16[{m}, {n}] = input 2\n\
         %3 y: bf16[{m}, {n}] = aten.mm.default(%0, %1)\n%4 s: bf16[{m}, {n}] = aten.silu.default(%3)\n\
         %5 z: bf16[{m}, {n}] = aten.mul.Tensor(%4, %2)\noutput 0: %5\n"
    )
}

#[test]
fn short_sums_are_fused_with_what_follows() {
    let is_fused = |sizes| gated(sizes, |_| {}).0.is_empty();
    for sizes in [
        [128, 3072, 768],
        [197, 768, 768],
        [128, 2048, 2048],
        [2048, 768, 1024],
    ] {
        assert!(is_fused(sizes), "{sizes:?}");
    }
    for sizes in [[128, 4096, 4096], [197, 2048, 2048], [128, 128, 768]] {
        assert!(!is_fused(sizes), "{sizes:?}");
    }
}

#[test]
fn what_was_measured_goes_before_the_rules() {
    let measured =
        |sizes, kernel| gated(sizes, |gpu| _ = gpu.measured_products.insert(sizes, kernel));
    assert_eq!(measured([197, 2048, 2048], true), (vec![], 1));
    assert_eq!(
        measured([128, 3072, 768], false),
        (vec!["aten.mm.default".into()], 1)
    );
}

#[test]
fn products_to_measure_are_graphs_of_their_own() {
    let find = |text: &str, caps: &Caps| {
        let graph = inrush_graph::text::parse(text).expect("parses");
        let (request, options) = (Request::default(), Options::default());
        fusible(graph, &request, caps, &options, &mut ()).expect("passes run")
    };
    let mut caps = inrush_devices::model("h100").expect("a preset");
    // What comes before and after is left out, and names do not count.
    let text = gated_text([200, 512, 512]).replace(
        "output 0: %5",
        "%6 q: bf16[200, 512] = aten.exp.default(%2)\n%7 r: bf16[200, 512] = aten.mm.default(%5, %1)\noutput 0: %7\noutput 1: %6",
    );
    let found = find(&text, &caps);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].sizes, [200, 512, 512]);
    assert_eq!(found[0].graph.nodes.len(), 3);
    assert_eq!(
        found[0].graph.print(),
        find(&gated_text([200, 512, 512]), &caps)[0].graph.print()
    );
    for kernel in [false, true] {
        let gpu = caps.gpu.as_mut().expect("a GPU");
        gpu.measured_products.insert([200, 512, 512], kernel);
        let (calls, _) = compiled(found[0].graph.clone(), &caps);
        assert_eq!(calls.len(), usize::from(!kernel));
        // What is known is not measured.
        assert!(find(&text, &caps).is_empty());
    }
    // Few rows are kernels in any case, and sizes that vary are not measured.
    let caps = inrush_devices::model("h100").expect("a preset");
    let linear = gated_text([8, 4096, 4096]).replace("= input 1", "strides [1, 4096] = input 1");
    assert!(find(&linear, &caps).is_empty());
    let symbolic =
        gated_text([200, 512, 512]).replace("graph t", "graph t\nsize s0 in [2, 100000] hint 200");
    assert!(find(&symbolic.replace("[200, ", "[s0, "), &caps).is_empty());
}
