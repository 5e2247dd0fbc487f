//! Programs as source: one file for a graph, which one can read, run and change without inrush.
//!
//! The file is printed from the program as data. It has the kernels' sources, sizes as functions of symbols, guards, buffers,
//! launches with their grids, library calls as the calls of PyTorch that they stand for, and a function that calls the graph.
//!
//! ```text
//! names     identifiers of Python
//! sizes     size arithmetic as expressions
//! kernels   sources of kernels, and an object for each
//! segment   a program as a function
//! host      the steps of a call as a function
//! inputs    checks of a call's inputs, and drawn ones
//! control   control flow, and functions whose data decide sizes
//! parts     programs in parts as steps of a call
//! module    the file
//! python/   helpers that printed files begin with
//! cpp/      the same for C++
//! ```
//!
//! A program that cannot be printed is an error that names what is missing: a file that is printed computes what the program
//! computes.
//!
//! Does not know: what is inside a kernel, any IR of the compiler.

#![forbid(unsafe_code)]

mod control;
mod cpp;
mod host;
mod inputs;
mod kernels;
mod module;
mod names;
mod parts;
mod segment;
mod sizes;

use inrush_base::Device;
use inrush_program::host as host_objects;
use inrush_program::host::{Bounds, Expected, HostProgram, Layout, Lowered};
use inrush_program::{BinaryInfo, Guard};

pub use cpp::{CppFile, CppWeight, cpp};
pub use module::{python, python_and_weights};
pub use parts::host_program;

/// A compiled graph, with all that its file says besides the program.
#[derive(Copy, Clone)]
pub struct Unit<'a> {
    /// Name of the graph.
    pub name: &'a str,
    /// Name of the target, for readers.
    pub target: &'a str,
    /// The steps of a call.
    pub program: &'a HostProgram,
    /// The host's objects, by position.
    pub objects: &'a [Object],
    /// Names of the inputs in call order; empty if they have none.
    pub inputs: &'a [String],
    /// Path of the archive that has the weights, from the folder of the file.
    pub archive: Option<&'a str>,
    /// How its kernels are built.
    pub code: Code<'a>,
    /// Conditions on sizes besides those of segments.
    pub guards: &'a [Guard],
    /// Names and bounds of the symbols; empty where segments tell them.
    pub bounds: &'a [Bounds],
    /// Inputs and layouts of a program in parts for a CPU.
    pub expected: Option<&'a Expected>,
}

impl<'a> Unit<'a> {
    /// Returns the unit of a program that a package would hold, whose objects are `objects`. It has no name.
    pub fn of(lowered: &'a Lowered, objects: &'a [Object], code: Code<'a>) -> Unit<'a> {
        let in_parts = lowered.expected != Expected::default();
        Unit {
            name: "",
            target: "",
            program: &lowered.program,
            objects,
            inputs: &lowered.inputs,
            archive: None,
            code,
            guards: &lowered.guards,
            bounds: &lowered.bounds,
            expected: in_parts.then_some(&lowered.expected),
        }
    }

    /// Returns the unit of a program that control flow calls.
    pub(crate) fn of_body<'b>(&'b self, body: &'b Lowered, objects: &'b [Object]) -> Unit<'b> {
        Unit::of(body, objects, self.code)
    }

    /// Returns the layout of the tensor in a slot, if the program says it.
    pub(crate) fn layout(&self, slot: usize) -> Option<&'a Layout> {
        let layouts = match (&self.program.gpu, self.expected) {
            (Some(gpu), _) => &gpu.layouts,
            (None, Some(expected)) => &expected.layouts,
            (None, None) => return None,
        };
        layouts.get(slot)?.as_ref()
    }
}

/// How kernels are built.
#[derive(Copy, Clone)]
pub enum Code<'a> {
    /// From C, with flags for the compiler and for the linker.
    C {
        flags: &'a [&'a str],
        libraries: &'a [&'a str],
    },
    /// By the kernel compiler, for a kind of GPU, when the file runs.
    Gpu(&'a Device),
    /// They are built for a kind of GPU, in the order of the program's kernels.
    Built(&'a Device, &'a [Built]),
}

/// A kernel that is built.
#[derive(Clone, Debug)]
pub struct Built {
    /// The numbers that a launch needs.
    pub info: BinaryInfo,
    /// Machine code.
    pub code: Vec<u8>,
}

/// An object of the host, as the file can name it.
#[derive(Clone, PartialEq, Debug)]
pub enum Object {
    /// An expression of Python over `torch`, `operator` and `math`.
    Expression(String),
    /// A weight by its name.
    Weight(String),
    /// An object without such an expression: its description.
    Missing(String),
}

impl From<&host_objects::Object> for Object {
    fn from(object: &host_objects::Object) -> Object {
        match object {
            host_objects::Object::Weight(name) => Object::Weight(name.clone()),
            host_objects::Object::Scalar(n) => Object::Expression(segment::number(*n)),
            host_objects::Object::None => Object::Expression("None".into()),
        }
    }
}
