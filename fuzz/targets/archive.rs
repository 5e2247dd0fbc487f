//! Archives of `torch.export`: read, and compiled up to C source.
#![no_main]

use inrush_base::{Caps, Isa};
use libfuzzer_sys::{Corpus, fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|data: &[u8]| -> Corpus {
    let options = inrush_torch::Options::default();
    let Ok(model) = inrush_torch::open_bytes(data.to_vec().into(), &options) else {
        return Corpus::Keep;
    };
    _ = (model.summary(), model.graph.print(), model.weights.check());
    for (name, _) in model.weights.iter() {
        _ = model.weights.view(name);
    }
    let options = inrush_compile::Options::default();
    _ = inrush_compile::compile(model.graph, &Caps::cpu(Isa::Avx2, 2), &options, &mut ());
    Corpus::Keep
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    inrush_fuzz::mutate_zip(data, size, max_size, seed, fuzzer_mutate)
});
