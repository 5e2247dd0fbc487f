//! Runs processes in parallel. When one fails, takes too long or is cancelled, all are stopped.

use inrush_base::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Cancels from any thread.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Interval at which cancellation and time limits are polled while processes write nothing.
const GLANCE: Duration = Duration::from_millis(50);

/// A running process with its output so far. Dropping it kills the process.
struct Running {
    child: Child,
    /// It leads a group of its own.
    apart: bool,
    stderr: Option<ChildStderr>,
    said: Vec<u8>,
    ended: Option<ExitStatus>,
}

impl Running {
    /// Reads output; closes the pipe at its end.
    fn listen(&mut self) {
        let mut some = [0; 4096];
        let Some(pipe) = &mut self.stderr else { return };
        match pipe.read(&mut some) {
            Ok(n) if n > 0 => self.said.extend_from_slice(&some[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            _ => self.stderr = None,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.is_none() {
            if self.apart {
                // With what it started itself, as compilers' drivers do.
                let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs all commands in parallel until each has ended well. With `cancel` they run in process groups of their own, which get no
/// signals of the terminal: the caller decides what an interrupt does.
///
/// # Errors
/// A machine error: with the message of the first that fails, when one cannot be started, has not ended after `limit`, or
/// `cancel` says so. None of them is running then.
pub fn run(commands: Vec<Command>, limit: Duration, cancel: Option<&Cancel>) -> Result<()> {
    let end = Instant::now() + limit;
    let mut running = Vec::with_capacity(commands.len());
    for command in commands {
        running.push(start(command, cancel.is_some())?);
    }
    while !running.is_empty() {
        if cancel.is_some_and(Cancel::is_cancelled) {
            return Err(Error::machine("the build was interrupted"));
        }
        if Instant::now() >= end {
            let program = &running[0].0;
            let limit = limit.as_secs();
            return Err(Error::machine(format!(
                "`{program}` did not end within {limit} s"
            )));
        }
        hear(&mut running)?;
        for (program, r) in &mut running {
            if r.stderr.is_some() {
                continue;
            }
            let ended = r.child.try_wait();
            r.ended = ended.map_err(|e| Error::machine(format!("lost `{program}`: {e}")))?;
            if let Some(status) = r.ended.filter(|s| !s.success()) {
                return Err(failure(program, status, &r.said));
            }
        }
        running.retain(|(_, r)| r.ended.is_none());
    }
    Ok(())
}

fn start(mut command: Command, apart: bool) -> Result<(String, Running)> {
    let program = command.get_program().to_string_lossy().into_owned();
    if apart {
        command.process_group(0);
    }
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|e| Error::machine(format!("cannot start `{program}`: {e}")))?;
    let stderr = child.stderr.take();
    let running = Running {
        child,
        apart,
        stderr,
        said: Vec::new(),
        ended: None,
    };
    Ok((program, running))
}

/// Waits until a process writes or closes its pipe, or for one polling interval.
fn hear(running: &mut [(String, Running)]) -> Result<()> {
    let heard: Vec<bool> = {
        let mut pipes: Vec<PollFd<'_>> = (running.iter())
            .filter_map(|(_, r)| r.stderr.as_ref())
            .map(|pipe| PollFd::new(pipe, PollFlags::IN))
            .collect();
        // What closed its pipe ends at once, or else is asked again and again.
        let glance = if pipes.len() == running.len() {
            GLANCE
        } else {
            Duration::from_micros(200)
        };
        let glance = Timespec::try_from(glance).map_err(|e| Error::internal(e.to_string()))?;
        match poll(&mut pipes, Some(&glance)) {
            Ok(_) => pipes.iter().map(|p| !p.revents().is_empty()).collect(),
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(e) => return Err(Error::machine(format!("cannot wait for programs: {e}"))),
        }
    };
    let talking = running.iter_mut().filter(|(_, r)| r.stderr.is_some());
    for ((_, r), heard) in talking.zip(heard) {
        if heard {
            r.listen();
        }
    }
    Ok(())
}

fn failure(program: &str, status: ExitStatus, said: &[u8]) -> Error {
    let message = String::from_utf8_lossy(said);
    let shown: Vec<&str> = message.lines().take(12).collect();
    let shown = if shown.is_empty() {
        " and said nothing".to_string()
    } else {
        format!(":\n{}", shown.join("\n"))
    };
    Error::machine(format!("`{program}` failed ({status}){shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut c = Command::new("/bin/sh");
        c.args(["-c", script]);
        c
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn all_of_a_long_message_is_read_while_others_work() {
        let loud = "yes 0123456789 | head -c 300000 >&2";
        run(
            vec![shell("sleep 0.1"), shell(loud)],
            seconds(60),
            Some(&Cancel::default()),
        )
        .unwrap();
        let e = run(
            vec![shell("echo no good >&2; exit 3")],
            seconds(60),
            Some(&Cancel::default()),
        );
        let text = e.unwrap_err().to_string();
        assert!(
            text.contains("exit status: 3") && text.contains("no good"),
            "{text}"
        );
        let e = run(
            vec![Command::new("/nowhere/cc")],
            seconds(60),
            Some(&Cancel::default()),
        );
        assert!(e.unwrap_err().to_string().contains("cannot start"));
    }

    #[test]
    fn when_one_fails_the_others_and_what_they_started_are_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        let slow = shell(&format!("(sleep 2; touch {}) & wait", mark.display()));
        let begin = Instant::now();
        let e = run(
            vec![slow, shell("sleep 0.2; exit 1")],
            seconds(60),
            Some(&Cancel::default()),
        );
        assert!(e.unwrap_err().to_string().contains("said nothing"));
        assert!(begin.elapsed() < seconds(2));
        std::thread::sleep(seconds(3));
        assert!(!mark.exists());
    }

    #[test]
    fn what_hangs_is_stopped_by_the_clock_and_by_request() {
        for script in ["sleep 100", "exec 2>&-; sleep 100"] {
            let begin = Instant::now();
            let e = run(vec![shell(script)], seconds(1), None).unwrap_err();
            assert!(e.to_string().contains("did not end within 1 s"), "{e}");
            let cancel = Cancel::default();
            let other = cancel.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                other.cancel();
            });
            let e = run(vec![shell(script)], seconds(100), Some(&cancel)).unwrap_err();
            assert!(e.to_string().contains("interrupted"), "{e}");
            assert!(begin.elapsed() < seconds(20));
        }
    }
}
