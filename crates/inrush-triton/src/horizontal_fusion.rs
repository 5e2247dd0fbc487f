//! Horizontal fusion: launches that do not depend on each other as one (a combo kernel, or a foreach kernel). Each program finds
//! its part by its number.
//!
//! Parts with the same code but for their buffers and the length of their axis share it. A program then picks these by halving
//! steps and runs the one copy, so that a list of a hundred tensors is built as fast as one.
//!
//! ```text
//! pid = tl.program_id(0)
//! if pid < 96:                            class 0: three tensors of one list
//!     if pid < 32:  first_0 = 0;  in_ptr0_0 = part0_in_ptr0;  numel_0 = 30000
//!     else: ..                            a binary search over the members
//!     .._part0(pid - first_0, in_ptr0_0, numel_0, 1024)
//! elif pid < 104:                         class 1: another function
//!     .._part1(pid - 96, part3_in_ptr0, 64)
//! ```

use crate::function::{self, Role};
use crate::programmatic_launch;
use crate::{Argument, ArgumentSource, TritonKernel, arguments, named};
use inrush_base::{Caps, Error, Result};
use inrush_kernel::block::{Block, Piece};
use inrush_loops::{BufId, Loops};

/// One part: the arguments that its code gets.
struct Member {
    /// Pointers, then the length of the axis where the code wants it.
    values: Vec<String>,
    programs: i64,
}

/// Parts that run the same code.
struct Class {
    /// The function's text, with a placeholder for its name.
    text: String,
    /// Names of what members differ in, in the order of [`Member::values`].
    names: Vec<String>,
    /// Types of the pointers: a program that picks a member's has one of each.
    types: Vec<String>,
    constants: Vec<i64>,
    /// Lengths are multiples of 16.
    divisible: bool,
    members: Vec<Member>,
}

/// Writes `pieces`, which must not depend on each other, as one kernel.
///
/// # Errors
/// What [`crate::emit`] refuses; a piece with sizes that vary.
pub fn emit_concurrent(
    loops: &Loops,
    pieces: &[Piece],
    caps: &Caps,
    aligned: &dyn Fn(BufId) -> bool,
) -> Result<TritonKernel> {
    let mut launch = Launch::default();
    for piece in pieces {
        launch.add(Part::of(loops, piece.block, caps, aligned)?, piece)?;
    }
    // The number of a program has 32 bits.
    if launch.programs > i32::MAX as i64 {
        return Err(Error::unsupported("that many programs in one launch"));
    }
    let waits = programmatic_launch::applies(caps);
    let text = launch.text(waits);
    let first = (pieces.first()).map_or("nothing", |p| p.block.name.as_str());
    let title = format!("{first}_and_{}_more", pieces.len().saturating_sub(1));
    let head = function::head(&text);
    let (name, source) = named(&title, &head, &launch.comments, &text, &launch.arguments);
    Ok(TritonKernel {
        name,
        source,
        arguments: launch.arguments,
        constants: Vec::new(),
        programs: loops.exprs.int(launch.programs),
        // One launch has one number of warps, enough for the part that needs most.
        warps: pieces.iter().map(|p| p.block.warps).max().unwrap_or(1),
        stages: pieces.iter().map(|p| p.block.stages).max().unwrap_or(1),
        asserts: launch.asserts,
        programmatic: waits,
    })
}

/// A launch in the making.
#[derive(Default)]
struct Launch {
    arguments: Vec<Argument>,
    classes: Vec<Class>,
    comments: String,
    asserts: bool,
    programs: i64,
    /// Number of parts so far, for the names of their pointers.
    parts: usize,
}

impl Launch {
    /// Adds a part: to the class that has its code, or as a class of its own.
    fn add(&mut self, part: Part, piece: &Piece) -> Result<()> {
        let k = self.parts;
        self.parts += 1;
        self.asserts |= part.asserts;
        self.programs = self.programs.saturating_add(part.programs);
        let mut values: Vec<String> = Vec::new();
        for a in &part.arguments {
            values.push(self.pointer(k, a, piece)?);
        }
        values.extend(part.length.map(|n| n.to_string()));
        self.comments
            .push_str(&format!("# part {k}\n{}", part.comments));
        let divisible = part.length.is_some_and(|n| n % 16 == 0);
        let types: Vec<String> = part.arguments.iter().map(|a| a.ty.clone()).collect();
        let fits = |c: &&mut Class| {
            c.text == part.text
                && c.types == types
                && c.constants == part.constants
                && c.divisible == divisible
        };
        let member = Member {
            values,
            programs: part.programs,
        };
        match self.classes.iter_mut().find(fits) {
            Some(c) => c.members.push(member),
            None => self.classes.push(Class {
                names: (part.arguments.iter().map(|a| a.name.clone()))
                    .chain(part.length.map(|_| "numel".to_string()))
                    .collect(),
                text: part.text,
                types,
                constants: part.constants,
                divisible,
                members: vec![member],
            }),
        }
        Ok(())
    }

    /// Returns the name under which part `k` gets a buffer. One that several parts use is passed once.
    fn pointer(&mut self, k: usize, a: &Argument, piece: &Piece) -> Result<String> {
        let ArgumentSource::Buffer { buf, writes } = a.source else {
            return Err(Error::internal("a size where there is none"));
        };
        let at = piece.block.buffers.iter().position(|b| b.buf == buf);
        let buf = at.and_then(|at| piece.buffers.get(at)).copied();
        let buf = buf.ok_or_else(|| Error::internal("a pointer without a buffer"))?;
        let same = |b: &&Argument| matches!(b.source, ArgumentSource::Buffer { buf: other, .. } if other == buf);
        if let Some(b) = (self.arguments.iter().find(same)).filter(|b| b.ty == a.ty) {
            return Ok(b.name.clone());
        }
        let name = format!("part{k}_{}", a.name);
        self.arguments.push(Argument {
            name: name.clone(),
            source: ArgumentSource::Buffer { buf, writes },
            ..a.clone()
        });
        Ok(name)
    }

    /// Writes the functions of all classes, and the one that calls them by the program's number.
    fn text(&self, waits: bool) -> String {
        let mut texts: Vec<&str> = Vec::new();
        let mut lines: Vec<String> = Vec::new();
        let mut start = 0i64;
        for (k, c) in self.classes.iter().enumerate() {
            let at = texts.iter().position(|t| *t == c.text).unwrap_or_else(|| {
                texts.push(&c.text);
                texts.len() - 1
            });
            let count: i64 = c.members.iter().map(|m| m.programs).sum();
            // One class needs no choice: every program is its own.
            let deep = self.classes.len() > 1;
            if deep {
                let word = if k == 0 { "if" } else { "elif" };
                lines.push(format!("    {word} pid < {}:", start + count));
            }
            let indent = if deep { 2 } else { 1 };
            c.call(k, at, start, indent, &mut lines);
            start += count;
        }
        let mut text = String::new();
        for (k, p) in texts.iter().enumerate() {
            let own = format!("{}_part{k}", function::NAME);
            text.push_str(&p.replace(function::NAME, &own));
            text.push_str("\n\n");
        }
        let names: Vec<&str> = self.arguments.iter().map(|a| a.name.as_str()).collect();
        text.push_str(&format!(
            "@triton.jit\ndef {}({}):\n{}    pid = tl.program_id(0)\n{}\n",
            function::NAME,
            names.join(", "),
            if waits { programmatic_launch::WAIT } else { "" },
            lines.join("\n")
        ));
        text
    }
}

/// A block as a function that others call.
struct Part {
    text: String,
    comments: String,
    /// In the terms of the block.
    arguments: Vec<Argument>,
    constants: Vec<i64>,
    /// Length of the axis, where the function takes it.
    length: Option<i64>,
    programs: i64,
    asserts: bool,
}

impl Part {
    /// Writes the function of a block whose sizes are known.
    fn of(
        loops: &Loops,
        block: &Block,
        caps: &Caps,
        aligned: &dyn Fn(BufId) -> bool,
    ) -> Result<Part> {
        let ex = &loops.exprs;
        let Some(programs) = ex.as_int(block.programs).filter(|_| block.sizes.is_empty()) else {
            return Err(Error::unsupported(
                "kernels of sizes that vary in one launch",
            ));
        };
        let length = (block.is_flat())
            .then(|| ex.as_int(block.dims[0].extent))
            .flatten();
        let emitted = match length {
            Some(_) => {
                // Blocks that fill their axis share code with others.
                let mut open = block.clone();
                open.dims[0].exact = false;
                function::emit(loops, &open, caps, Role::Foreach)?
            }
            None => function::emit(loops, block, caps, Role::Part)?,
        };
        Ok(Part {
            arguments: arguments(
                loops,
                block,
                caps,
                &emitted.buffers,
                &emitted.sizes,
                aligned,
            )?,
            text: emitted.function,
            comments: emitted.comments,
            constants: emitted.constants.iter().map(|(_, v)| *v).collect(),
            length,
            programs,
            asserts: emitted.asserts,
        })
    }
}

impl Class {
    /// Has the program `pid` run the members, which begin at program `start`.
    fn call(&self, class: usize, part: usize, start: i64, indent: usize, lines: &mut Vec<String>) {
        let mut starts = vec![start];
        for m in &self.members {
            starts.push(starts[starts.len() - 1] + m.programs);
        }
        let first = &self.members[0];
        // Names differ between classes: a name has one type in a function.
        let differ: Vec<Option<String>> = (self.names.iter().enumerate())
            .map(|(i, n)| {
                let differs = self.members.iter().any(|m| m.values[i] != first.values[i]);
                differs.then(|| format!("{n}_{class}"))
            })
            .collect();
        let mut number = match start {
            0 => "pid".to_string(),
            n => format!("pid - {n}"),
        };
        if self.members.len() > 1 {
            let from = format!("first_{class}");
            self.choose(
                &differ,
                &from,
                &starts,
                0..self.members.len(),
                indent,
                lines,
            );
            number = format!("pid - {from}");
        }
        let values = (differ.iter().zip(&first.values)).map(|(d, v)| d.as_ref().unwrap_or(v));
        let constants = self.constants.iter().map(|v| v.to_string());
        let passed: Vec<String> = values.cloned().chain(constants).collect();
        lines.push(format!(
            "{}{}_part{part}({number}, {})",
            "    ".repeat(indent),
            function::NAME,
            passed.join(", ")
        ));
    }

    /// Writes a binary search for the member that this program belongs to, which names what the member gets.
    fn choose(
        &self,
        differ: &[Option<String>],
        from: &str,
        starts: &[i64],
        range: std::ops::Range<usize>,
        indent: usize,
        lines: &mut Vec<String>,
    ) {
        let pad = "    ".repeat(indent);
        if range.len() == 1 {
            let member = &self.members[range.start];
            lines.push(format!("{pad}{from} = {}", starts[range.start]));
            for (name, value) in differ.iter().zip(&member.values) {
                if let Some(name) = name {
                    lines.push(format!("{pad}{name} = {value}"));
                }
            }
            return;
        }
        let middle = range.start + range.len() / 2;
        lines.push(format!("{pad}if pid < {}:", starts[middle]));
        self.choose(differ, from, starts, range.start..middle, indent + 1, lines);
        lines.push(format!("{pad}else:"));
        self.choose(differ, from, starts, middle..range.end, indent + 1, lines);
    }
}
