//! PyTorch on the same archive, in another process that answers timing requests.
//!
//! ```text
//! peer   -> {"compile_s": 9.1, "eager": {..}, ..}  once, when it is ready
//! inrush -> aoti 0.4                               backend and seconds, a line
//! peer   -> {"median_ms": 1.2, "min_ms": 1.1}
//! ```
//!
//! The peer stays alive between requests, so that the two can be measured in turns. It waits for
//! its standard input meanwhile and takes no processor time.

use inrush_base::{Error, Result};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running peer. Dropping it closes its input and waits for its end.
pub struct Peer {
    child: Child,
    /// Taken when the peer is to end: it ends with its input.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts `aoti_baseline.py --serve`; the second result is what it says of compile time, memory and errors.
    pub fn start(
        python: &Path,
        archive: &Path,
        keep: Option<&Path>,
        threads: usize,
    ) -> Result<(Peer, Value)> {
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/bench/aoti_baseline.py");
        let mut command = Command::new(python);
        command
            .arg(script)
            .args(["--serve", "--seconds", "0", "--threads"])
            .arg(threads.to_string());
        if let Some(dir) = keep {
            command.arg("--keep").arg(dir);
        }
        let mut child = command
            .arg(archive)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| Error::machine(format!("cannot start `{}`: {e}", python.display())))?;
        let requests = child.stdin.take();
        let stdout = child.stdout.take().expect("piped");
        let mut peer = Peer {
            child,
            requests,
            answers: BufReader::new(stdout),
        };
        let first = peer.answer()?;
        Ok((peer, first))
    }

    /// Times a backend (`aoti` or `eager`) for so long: median and least, in milliseconds.
    pub fn time(&mut self, backend: &str, seconds: f64) -> Result<(f64, f64)> {
        let requests = self.requests.as_mut().expect("taken only by drop");
        writeln!(requests, "{backend} {seconds}")
            .and_then(|()| requests.flush())
            .map_err(|e| Error::machine(format!("the peer has gone: {e}")))?;
        let answer = self.answer()?;
        let field = |name: &str| answer[name].as_f64();
        field("median_ms")
            .zip(field("min_ms"))
            .ok_or_else(|| Error::machine(format!("the peer answers {answer}")))
    }

    /// Reads a line of JSON.
    ///
    /// # Errors
    /// The peer has ended, or reports an error of its own.
    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        let n = self.answers.read_line(&mut line);
        if !matches!(n, Ok(n) if n > 0) {
            return Err(Error::machine(
                "the peer ended early; see its messages above",
            ));
        }
        let value: Value = serde_json::from_str(&line)
            .map_err(|e| Error::machine(format!("the peer does not answer in JSON: {e}")))?;
        match value.get("error") {
            Some(e) => Err(Error::machine(format!("the peer failed: {e}"))),
            None => Ok(value),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.requests.take());
        // Nothing is left to do about a peer that cannot be waited for.
        let _ = self.child.wait();
    }
}
