//! Declarations of a driver for printed programs: C++ that looks its functions up when the program runs.
//!
//! The names are those of the [`Dialect`], so that a printed program and the executor call the same functions.

use crate::calls::Dialect;
use std::fmt::Write;

/// The class `Driver`, which the declarations stand above.
const CALLS: &str = include_str!("calls.cpp");

/// Returns the declarations of a driver. `own` has the functions that others lack: their names in the program, their symbols,
/// their parameters. `text` defines `use_device` and `permit_shared` over them.
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
    let mut out = format!(
        "// The functions of {}'s driver that the program calls: name, symbol, parameters.\n#define DRIVER_FUNCTIONS(F)",
        D::NAME
    );
    for (name, symbol, parameters) in shared.iter().chain(own) {
        _ = write!(out, " \\\n    F({name}, {symbol}, {parameters})");
    }
    let libraries: Vec<String> = D::LIBRARIES.iter().map(|l| format!("{l:?}")).collect();
    let missing = format!("no {} driver: {}", D::NAME, D::MISSING);
    let threads = i64::try_from(D::MAX_THREADS).unwrap_or(i64::MAX);
    _ = write!(
        out,
        "\n\n// Names of its library, and what to do where there is none.\n\
         const char *const DRIVER_LIBRARIES[] = {{{}}};\n\
         const char *const DRIVER_MISSING = {missing:?};\n\n\
         // The end of the list of a launch's arguments.\nconstexpr std::uintptr_t ARGUMENTS_END = {};\n\n\
         // Threads of a launch at most.\nconstexpr long long MAX_THREADS = {threads};\n\n{CALLS}\n{text}",
        libraries.join(", "),
        D::PARAM_END,
    );
    out
}
