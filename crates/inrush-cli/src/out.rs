//! Standard output of commands. A reader may close the pipe early (`| head -1`); any other failure
//! is an error.

use inrush_base::{Error, Result};
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Prints a line to standard output, with `println!`'s arguments; a `Result`.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::out::line(format_args!($($text)*))
    };
}
pub(crate) use say;

/// One line, written through.
///
/// # Errors
/// A machine error when standard output cannot be written.
pub fn line(text: Arguments<'_>) -> Result<()> {
    bytes(format!("{text}\n").as_bytes())
}

/// Text as it is, written through.
///
/// # Errors
/// A machine error when standard output cannot be written.
pub fn bytes(text: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Error::machine(format!(
            "cannot write to standard output: {e}"
        ))),
        _ => Ok(()),
    }
}
