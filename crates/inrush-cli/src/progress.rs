//! A spinner for steps that take over a second, on a terminal only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Shows the current step's name once the work has taken a second.
pub struct Progress {
    /// Hidden until a second has passed.
    bar: ProgressBar,
    start: Instant,
    /// False where no one looks: with `--json`, or if standard error is no terminal.
    visible: bool,
}

impl Progress {
    /// Returns a spinner that is hidden at first.
    pub fn new(quiet: bool) -> Progress {
        let bar = ProgressBar::new_spinner().with_style(ProgressStyle::default_spinner());
        bar.set_draw_target(ProgressDrawTarget::hidden());
        Progress {
            bar,
            start: Instant::now(),
            visible: !quiet && std::io::stderr().is_terminal(),
        }
    }

    /// Names the step that begins.
    pub fn step(&self, what: String) {
        self.bar.set_message(what);
        if !self.visible {
            return;
        }
        if self.start.elapsed() > Duration::from_secs(1) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.enable_steady_tick(Duration::from_millis(100));
    }

    /// The bar appears a second from now if the work is still going on.
    pub fn watch(&self) {
        if !self.visible {
            return;
        }
        let bar = self.bar.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(1));
            if !bar.is_finished() {
                bar.set_draw_target(ProgressDrawTarget::stderr());
                bar.enable_steady_tick(Duration::from_millis(100));
            }
        });
    }

    /// Removes the spinner.
    pub fn done(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.done();
    }
}
