//! Compiled packages: opened, verified, printed and read as text, sizes evaluated. Their machine code is never loaded.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|data: &[u8]| -> Corpus {
    let Ok(package) = inrush_package::Package::read(data.to_vec()) else {
        return Corpus::Keep;
    };
    _ = package.check_weights();
    for capability in [70, 80, 89, 90, 100] {
        for gpu in package.gpus() {
            _ = (gpu.fits(capability), gpu.fits_by_ptx(capability));
        }
    }
    for gpu in package.gpus() {
        for k in &gpu.kernels {
            _ = package.code(&k.code);
        }
        for step in &gpu.lowered.program.steps {
            if let inrush_program::host::StepKind::Segment(s) = &step.kind {
                check(&package, &s.program);
            }
        }
    }
    for cpu in package.cpus() {
        check(&package, &cpu.program);
    }
    Corpus::Keep
});

/// Reads the weights of a program, prints and parses it, and evaluates its sizes.
fn check(package: &inrush_package::Package, program: &inrush_program::Program) {
    for b in &program.buffers {
        if let inrush_program::Place::Weight(w) = &b.place {
            _ = package.weight(&w.name);
        }
    }
    let text = program.print();
    let again = inrush_program::text::parse(&text).map(|p| p.print());
    assert_eq!(again.as_deref(), Ok(text.as_str()));
    for value in [0, 1, 3, i64::MAX] {
        let symbols: Vec<i64> = (program.symbols.iter())
            .map(|s| value.min(s.upper).max(s.lower))
            .collect();
        _ = inrush_program::evaluate(&program.sizes, &symbols, &mut Vec::new());
    }
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    inrush_fuzz::mutate_zip(data, size, max_size, seed, fuzzer_mutate)
});
