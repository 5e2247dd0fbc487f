//! Prints a graph in text form at one stage: `cargo run -p inrush-compile --example stage -- FILE STAGE`.

use inrush_base::{Caps, Isa};
use inrush_compile::{Observer, Options, compile};

struct Print(String);

impl Observer for Print {
    fn end(&mut self, stage: &'static str, text: &dyn Fn() -> String) {
        if stage == self.0 {
            println!("{}", text());
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (file, stage) = args.next().zip(args.next()).ok_or("FILE and STAGE")?;
    let graph = inrush_graph::text::parse(&std::fs::read_to_string(file)?)?;
    compile(
        graph,
        &Caps::cpu(Isa::Avx2, 2),
        &Options::default(),
        &mut Print(stage),
    )?;
    Ok(())
}
