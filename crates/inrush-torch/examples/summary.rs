//! Imports archives and prints what is in them, with the time it takes: `cargo run --release --example summary -- a.pt2 …`.
//! With `--any` operators that no row describes are accepted; with `--quiet` only the times are printed;
//! with `--check` the checksums of weights are compared too.

use inrush_torch::{Options, open_with};
use std::path::Path;
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|a| a == flag);
    let any = |exprs: &_, op: &str, given: &[inrush_aten::NamedArg]| {
        inrush_aten::bind(exprs, op, given)
            .or_else(|| Some(Ok(given.iter().map(|a| a.arg.clone()).collect())))
    };
    let mut options = Options::default();
    if has("--any") {
        options.bind = &any;
    }
    for path in args.iter().filter(|a| !a.starts_with("--")) {
        let start = Instant::now();
        let model = open_with(Path::new(path), &options);
        let ms = start.elapsed().as_secs_f64() * 1e3;
        match model {
            Ok(m) => {
                if !has("--quiet") {
                    print!("{}", m.summary());
                    println!("  sample inputs: {:?}", m.samples);
                }
                println!("{ms:8.2} ms {:6} nodes {path}", m.graph.nodes.len());
                if has("--check") {
                    let start = Instant::now();
                    let result = m.weights.check();
                    let ms = start.elapsed().as_secs_f64() * 1e3;
                    println!("{ms:8.2} ms checksums: {result:?}");
                }
            }
            Err(e) => println!("{ms:8.2} ms {e}"),
        }
    }
}
