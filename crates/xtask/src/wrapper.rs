//! The compiler as cargo calls it for the tests: unit tests are built without optimisation.
//!
//! `cargo test` builds each crate a second time, with its unit tests, and that takes as long as the first build. These copies run a
//! few short functions once. The crates that they and the other tests link are those that everything else links, optimised.
//! Cargo has a profile for both or for neither, so the program stands between cargo and `rustc`, which changes no fingerprint:
//! nothing is built again.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The variable that makes this program a wrapper of `rustc`.
const WRAPS: &str = "INRUSH_XTASK_WRAPS_RUSTC";

/// Options that rustc gets after all others. Overflow wraps as in the other builds.
const UNOPTIMISED: [&str; 3] = [
    "-Copt-level=0",
    "-Cdebug-assertions=off",
    "-Coverflow-checks=off",
];

/// Returns the environment that puts this program between cargo and `rustc`; nothing where another wrapper is set.
pub(crate) fn env() -> Vec<(&'static str, String)> {
    let name = "RUSTC_WRAPPER";
    let taken = std::env::var_os(name).is_some_and(|w| !w.is_empty());
    match std::env::current_exe() {
        Ok(own) if !taken => vec![(name, own.display().to_string()), (WRAPS, "1".into())],
        _ => Vec::new(),
    }
}

/// Runs the compiler where cargo called this program as a wrapper.
pub(crate) fn run() -> Option<ExitCode> {
    std::env::var_os(WRAPS)?;
    let mut args = std::env::args_os().skip(1);
    let compiler = args.next()?;
    let args: Vec<OsString> = args.collect();
    let mut command = Command::new(compiler);
    command.args(&args);
    if is_unit_test(&args) {
        command.args(UNOPTIMISED);
    }
    let code = match command.status() {
        Ok(status) => status.code().and_then(|c| u8::try_from(c).ok()),
        Err(e) => {
            eprintln!("{command:?}: {e}");
            None
        }
    };
    Some(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Returns true if `rustc` is asked for the unit tests of a crate: those of its `src`, and not those of `tests`.
fn is_unit_test(args: &[OsString]) -> bool {
    let of_source = |a: &OsString| {
        let path = Path::new(a);
        path.extension().is_some_and(|e| e == "rs")
            && path.components().any(|c| c.as_os_str() == "src")
    };
    args.iter().any(|a| a == "--test") && args.iter().any(of_source)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(args: &[&str]) -> bool {
        is_unit_test(&args.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn only_unit_tests_are_not_optimised() {
        assert!(of(&[
            "--crate-name",
            "a",
            "crates/a/src/lib.rs",
            "-Copt-level=3",
            "--test"
        ]));
        assert!(of(&[
            "--crate-name",
            "a",
            "crates/a/src/bin/b.rs",
            "--test"
        ]));
        assert!(!of(&[
            "--crate-name",
            "a",
            "crates/a/src/lib.rs",
            "--crate-type",
            "lib"
        ]));
        assert!(!of(&["--crate-name", "t", "crates/a/tests/t.rs", "--test"]));
    }
}
