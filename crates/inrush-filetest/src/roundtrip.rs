//! Printed texts parse back: every stage's text of a graph or of loops, read and printed again.
//!
//! The text form of a stage is its interface for tests, for `inspect` and for reports of faults,
//! so it must lose nothing. Comparing prints instead of values needs no equality of programs, and
//! shows the first line that differs. Only stage wrap compares values too.
//!
//! Texts that a verifier would refuse are caught as well: plans, kernels and block programs are
//! verified when they are read back.

use crate::stages::{Program, Setup};
use inrush_base::{Caps, Error, Result};

/// Takes a program down and reads every text on the way. Gives the number of texts, those of stages that refuse left out.
///
/// # Errors
/// The first text that does not read back to itself.
pub fn round_trips(program: &Program, caps: &Caps) -> Result<usize> {
    let mut count = 0;
    let mut check = |stage: &str, once: Result<String>, read: &dyn Fn(&str) -> Result<String>| {
        // A refusal is another test's matter.
        let Ok(once) = once else { return Ok(()) };
        let again = read(&once).map_err(|e| e.context(format!("{stage} does not read back")))?;
        if let Some((a, b)) = once.lines().zip(again.lines()).find(|(a, b)| a != b) {
            return Err(Error::internal(format!(
                "{stage} reads back as something else\n- {a}\n+ {b}"
            )));
        }
        if once.len() != again.len() {
            return Err(Error::internal(format!("{stage} loses lines")));
        }
        count += 1;
        Ok(())
    };
    let graph = |t: &str| Ok(inrush_graph::text::parse(t)?.print());
    let loops = |t: &str| Ok(inrush_loops::text::parse(t)?.print());
    if let Program::Graph(g) = program {
        // Each stage prints what it gives for the same program; none starts from a text that was
        // read back.
        check("import", Ok(g.print()), &graph)?;
        check("normalize", program.normalized().map(|g| g.print()), &graph)?;
        // Stage rewrite does little for CPUs, so a GPU's graph is checked too.
        for caps in [
            caps,
            &inrush_devices::model("h100").unwrap_or_else(|| caps.clone()),
        ] {
            let setup = Setup::of(caps.clone());
            let rewritten = program.rewritten(&setup);
            check("rewrite", rewritten.map(|g| g.print()), &graph)?;
        }
        check("decompose", program.decomposed().map(|g| g.print()), &graph)?;
    }
    check("lower", program.loops().map(|l| l.print()), &loops)?;
    check("fuse", program.plan(caps).map(|p| p.print()), &|t| {
        let plan = inrush_sched::text::parse(t)?;
        inrush_sched::verify(&plan)?;
        Ok(plan.print())
    })?;
    let kernels = program
        .kernels(caps)
        .map(|(e, k)| inrush_kernel::text::print_all(&e, &k));
    check("tile", kernels, &|t| {
        let (exprs, kernels) = inrush_kernel::text::parse(t)?;
        (kernels.iter()).try_for_each(|k| inrush_kernel::verify(&exprs, k))?;
        Ok(inrush_kernel::text::print_all(&exprs, &kernels))
    })?;
    // Numbers of blocks and launches are comments, which are lost.
    let blocks = program.block_text("h100").map(|t| {
        let lines = t.lines().filter(|l| !l.starts_with(";;"));
        lines.map(|l| format!("{l}\n")).collect::<String>()
    });
    check("tile for a GPU", blocks, &|t| {
        let (exprs, blocks) = inrush_kernel::block::text::parse(t)?;
        for b in &blocks {
            inrush_kernel::block::verify(&exprs, b, None, &[])?;
        }
        Ok(inrush_kernel::block::text::print_all(&exprs, &blocks))
    })?;
    if let Ok(program) = program.program(caps) {
        let text = program.print();
        let again =
            inrush_program::text::parse(&text).map_err(|e| e.context("wrap does not read back"))?;
        if again != program {
            let diff = (text.lines().zip(again.print().lines()))
                .find(|(a, b)| a != b)
                .map(|(a, b)| format!("- {a}\n+ {b}"));
            return Err(Error::internal(format!(
                "wrap reads back as something else\n{}",
                diff.unwrap_or_default()
            )));
        }
        count += 1;
    }
    Ok(count)
}
