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
//! module    the file
//! python/   helpers that printed files begin with
//! cpp/      the same for C++, on CPUs
//! ```
//!
//! A program that cannot be printed is an error that names what is missing: a file that is printed computes what the program
//! computes.
//!
//! Does not know: what is inside a kernel, any IR of the compiler.

#![forbid(unsafe_code)]

mod cpp;
mod host;
mod kernels;
mod module;
mod names;
mod segment;
mod sizes;

use inrush_base::{Device, Error, Result};
use inrush_program::host as host_objects;
use inrush_program::host::HostProgram;
use inrush_program::{Program, SymbolSource};

pub use cpp::{CppFile, CppWeight, cpp};
pub use module::python;

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
}

/// How kernels are built.
#[derive(Copy, Clone)]
pub enum Code<'a> {
    /// From C, with flags for the compiler and for the linker.
    C {
        flags: &'a [&'a str],
        libraries: &'a [&'a str],
    },
    /// By the kernel compiler, for a kind of GPU.
    Gpu(&'a Device),
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

/// Returns the host program of a program that a package would hold: its only step.
///
/// # Errors
/// An unsupported error for a program in parts.
pub fn host_program(program: Program, pieces: Vec<String>) -> Result<HostProgram> {
    if program.parts.is_some() {
        return Err(Error::unsupported(
            "a program in parts (control flow, or sizes that depend on data) is not printed as source yet",
        ));
    }
    program.verify()?;
    let of_data = |s: &inrush_program::Symbol| matches!(s.source, SymbolSource::Data);
    if program.symbols.iter().any(of_data) {
        return Err(Error::input("a size that depends on data outside of parts"));
    }
    Ok(HostProgram {
        pieces,
        ..HostProgram::of(program)
    })
}
