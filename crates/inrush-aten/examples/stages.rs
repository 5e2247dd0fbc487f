//! Times the stages of this crate on an archive, and verifies what they give.
//!
//! usage: stages MODEL.pt2 [graph | loops]

use inrush_aten::{Processor, decompose, lower, normalize};
use std::time::Instant;

fn main() -> inrush_base::Result<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_default();
    let show = args.next().unwrap_or_default();
    let t = Instant::now();
    let model = inrush_torch::open(std::path::Path::new(&path))?;
    let imported = t.elapsed();
    let nodes = model.graph.nodes.len();
    let t = Instant::now();
    let graph = normalize(model.graph)?;
    let normalized = t.elapsed();
    let t = Instant::now();
    let graph = decompose(graph)?;
    let decomposed = t.elapsed();
    inrush_graph::verify::verify(&graph)?;
    if show == "graph" {
        println!("{}", graph.print());
    }
    let (guards, after) = (graph.guards.len(), graph.nodes.len());
    let t = Instant::now();
    let loops = lower(graph, Processor::Cpu)?;
    let lowered = t.elapsed();
    inrush_loops::verify::verify(&loops)?;
    if show == "loops" {
        println!("{}", loops.print());
    }
    println!(
        "{path}: {nodes} nodes, {after} decomposed, {} loops, {guards} guards; import {imported:.1?}, normalize {normalized:.1?}, decompose {decomposed:.1?}, lower {lowered:.1?}",
        loops.nodes.len()
    );
    Ok(())
}
