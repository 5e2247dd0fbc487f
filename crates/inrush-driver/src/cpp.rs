//! Drivers in printed programs: C++ that looks their functions up when the program runs.
//!
//! ```text
//! types      statuses, handles, addresses, the text of a status
//! Driver     the class that looks functions up, and throws what they report
//! functions  work over them, by names that all drivers have: `take_memory`, `copy_to_device`, `load_kernel`, `issue`, ..
//! ```
//!
//! The symbols of drivers of one shape are those of the [`Dialect`], so that a printed program and the executor call the same
//! functions.

use crate::calls::Dialect;
use std::fmt::Write;

/// The class `Driver`.
const CALLS: &str = include_str!("calls.cpp");
/// The functions over drivers of one shape.
const DIALECT: &str = include_str!("dialect.cpp");
/// The text of a status in drivers of one shape.
const STATUS: &str = include_str!("status.cpp");

/// A driver as printed programs call it.
pub struct Text<'a> {
    /// For messages.
    pub name: &'a str,
    /// Names of functions in the program, their symbols, their parameters. One is `init`.
    pub functions: &'a [(&'a str, &'a str, &'a str)],
    /// The argument of `init`.
    pub flags: u32,
    /// Names of its library.
    pub libraries: &'a [&'a str],
    /// Advice for machines without one.
    pub missing: &'a str,
    /// Threads of a launch at most.
    pub max_threads: u64,
    /// C++ that defines `status_text`.
    pub status: &'a str,
    /// C++ that defines the functions that programs call.
    pub text: &'a str,
}

impl Text<'_> {
    /// Returns the declarations of the driver.
    pub fn print(&self) -> String {
        let mut out = format!(
            "// The functions of {}'s driver that the program calls: name, symbol, parameters.\n#define DRIVER_FUNCTIONS(F)",
            self.name
        );
        for (name, symbol, parameters) in self.functions {
            _ = write!(out, " \\\n    F({name}, {symbol}, {parameters})");
        }
        let libraries: Vec<String> = self.libraries.iter().map(|l| format!("{l:?}")).collect();
        let missing = format!("no {} driver: {}", self.name, self.missing);
        let threads = i64::try_from(self.max_threads).unwrap_or(i64::MAX);
        _ = write!(
            out,
            "\n\n// Names of its library, what to do where there is none, what it is started with.\n\
             const char *const DRIVER_LIBRARIES[] = {{{}}};\n\
             const char *const DRIVER_MISSING = {missing:?};\nconstexpr unsigned DRIVER_FLAGS = {};\n\n\
             // Threads of a launch at most.\nconstexpr long long MAX_THREADS = {threads};\n\n{}\n{}",
            libraries.join(", "),
            self.flags,
            CALLS.replace("//STATUS\n", self.status),
            self.text,
        );
        out
    }
}

/// Returns the declarations of a driver whose functions have the shape that vendors share. `own` has the functions that others
/// lack: their names in the program, their symbols, their parameters. `text` defines `use_device` and `permit_shared` over them.
pub fn declarations<D: Dialect>(own: &[(&str, &str, &str)], text: &str) -> String {
    let s = D::SYMBOLS;
    let dimensions = "unsigned, unsigned, unsigned";
    let of_launch =
        format!("Handle, {dimensions}, {dimensions}, unsigned, Handle, Handle *, Handle *");
    let shared = [
        ("init", s.init, "unsigned"),
        ("error_text", s.error_text, "Status, const char **"),
        ("module_load", s.module_load, "Handle *, const void *"),
        (
            "module_function",
            s.module_function,
            "Handle *, Handle, const char *",
        ),
        ("launch", s.launch, &of_launch),
        ("allocate", s.allocate, "Address *, std::size_t"),
        ("free", s.free, "Address"),
        ("copy", s.copy, "Address, Address, std::size_t, Handle"),
        (
            "to_device",
            s.to_device_later,
            "Address, const void *, std::size_t, Handle",
        ),
        ("to_host", s.to_host, "void *, Address, std::size_t"),
        ("stream_synchronize", s.stream_synchronize, "Handle"),
    ];
    let functions: Vec<_> = shared.iter().chain(own).copied().collect();
    let end = format!(
        "// The end of the list of a launch's arguments.\nconstexpr std::uintptr_t ARGUMENTS_END = {};\n\n",
        D::PARAM_END
    );
    Text {
        name: D::NAME,
        functions: &functions,
        flags: 0,
        libraries: D::LIBRARIES,
        missing: D::MISSING,
        max_threads: D::MAX_THREADS,
        status: STATUS,
        text: &format!("{end}{text}\n{DIALECT}"),
    }
    .print()
}
