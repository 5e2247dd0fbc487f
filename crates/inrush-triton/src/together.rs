//! Several small kernels that do not depend on each other as one launch: each program finds its part by its number.

use crate::{Argument, ArgumentSource, TritonKernel, arguments, function, named};
use inrush_base::{Error, Result};
use inrush_kernel::BufRole;
use inrush_kernel::block::{Block, Context};
use inrush_loops::{BufId, Loops};

/// Whether `a` and `b` may run in any order: neither writes what the other touches.
pub fn independent(loops: &Loops, context: &Context, a: &Block, b: &Block) -> bool {
    let storage = |buf: BufId| {
        let s = loops.storage(buf);
        context.storage.get(s.index()).copied().unwrap_or(s)
    };
    let clash = |x: &Block, y: &Block| {
        let writes = x.buffers.iter().filter(|k| k.role != BufRole::In);
        let mut writes = writes.map(|k| storage(k.buf));
        writes.any(|w| y.buffers.iter().any(|k| storage(k.buf) == w))
    };
    !clash(a, b) && !clash(b, a)
}

/// Writes independent `blocks` as one kernel.
///
/// # Errors
/// What [`crate::emit`] refuses; a block with sizes that vary.
pub fn emit_together(
    loops: &Loops,
    blocks: &[&Block],
    aligned: &dyn Fn(BufId) -> bool,
) -> Result<TritonKernel> {
    let ex = &loops.exprs;
    let mut all: Vec<Argument> = Vec::new();
    let mut parts: Vec<String> = Vec::new();
    let mut comments = String::new();
    let mut calls: Vec<String> = Vec::new();
    let (mut asserts, mut start) = (false, 0i64);
    for (k, block) in blocks.iter().enumerate() {
        let Some(programs) = ex.as_int(block.programs).filter(|_| block.sizes.is_empty()) else {
            return Err(Error::unsupported(
                "kernels of sizes that vary in one launch",
            ));
        };
        let emitted = function::emit(loops, block, true)?;
        asserts |= emitted.asserts;
        let own = arguments(loops, block, &emitted.buffers, &emitted.sizes, aligned)?;
        // A buffer that several parts read is passed once.
        let mut passed: Vec<String> = Vec::new();
        for a in own {
            let ArgumentSource::Buffer { buf, .. } = a.source else {
                return Err(Error::internal("a size where there is none"));
            };
            let same = |b: &&Argument| matches!(b.source, ArgumentSource::Buffer { buf: other, .. } if other == buf);
            if let Some(b) = all.iter().find(same) {
                passed.push(b.name.clone());
                continue;
            }
            let name = format!("part{k}_{}", a.name);
            passed.push(name.clone());
            all.push(Argument { name, ..a });
        }
        passed.extend(emitted.constants.iter().map(|(_, v)| v.to_string()));
        let same = parts.iter().position(|p| *p == emitted.function);
        let at = same.unwrap_or_else(|| {
            parts.push(emitted.function);
            parts.len() - 1
        });
        comments.push_str(&emitted.comments);
        let number = match start {
            0 => "pid".to_string(),
            n => format!("pid - {n}"),
        };
        let end = start.saturating_add(programs);
        let word = if calls.is_empty() { "if" } else { "elif" };
        calls.push(format!("    {word} pid < {end}:"));
        calls.push(format!(
            "        {}_part{at}({number}, {})",
            function::NAME,
            passed.join(", ")
        ));
        start = end;
    }
    if start > i32::MAX as i64 {
        return Err(Error::unsupported("that many programs in one launch"));
    }
    let mut text = String::new();
    for (k, p) in parts.iter().enumerate() {
        let own = format!("{}_part{k}", function::NAME);
        text.push_str(&p.replace(function::NAME, &own));
        text.push_str("\n\n");
    }
    let names: Vec<&str> = all.iter().map(|a| a.name.as_str()).collect();
    text.push_str(&format!(
        "@triton.jit\ndef {}({}):\n    pid = tl.program_id(0)\n{}\n",
        function::NAME,
        names.join(", "),
        calls.join("\n")
    ));
    let first = blocks.first().map_or("nothing", |b| b.name.as_str());
    let title = format!("{first}_and_{}_more", blocks.len().saturating_sub(1));
    let head = function::head(&text);
    let (name, source) = named(&title, &head, &comments, &text, &all);
    Ok(TritonKernel {
        name,
        source,
        arguments: all,
        constants: Vec::new(),
        programs: ex.int(start),
        warps: blocks.iter().map(|b| b.warps).max().unwrap_or(1),
        stages: blocks.iter().map(|b| b.stages).max().unwrap_or(1),
        asserts,
    })
}
