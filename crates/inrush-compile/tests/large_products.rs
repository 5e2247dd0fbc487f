//! Large products of halves on GPUs: which are kernels with what follows them, and which a library's.

use inrush_base::PersistentProducts;
use inrush_compile::{Options, Request, What, compile_sequence};

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
    let (request, options) = (Request::default(), Options::default());
    let made = compile_sequence(graph, &request, &caps, &options, &mut ()).expect("compiles");
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
