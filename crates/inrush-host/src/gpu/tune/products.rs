//! Measures whether a product and what follows it are faster as one kernel or with a library, and remembers which.

use super::{Bench, Clock, Measures, ROUNDS, ROUNDS_IN_BACKGROUND, TOTAL, within_share};
use crate::devices;
use inrush_base::Result;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Issues work on the stream that is current.
pub type Call<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Launches of one measurement: what follows the first ones finds the host ahead of the device.
const CALLS: usize = 5;
/// The gain from which on the kernel is taken: less is noise.
const GAIN: f64 = 0.98;

/// Seconds of both ways, in a file.
#[derive(Serialize, Deserialize)]
struct Measured {
    library_seconds: f64,
    kernel_seconds: f64,
}

impl Measured {
    fn takes_kernel(&self) -> bool {
        self.kernel_seconds < GAIN * self.library_seconds
    }
}

impl Bench {
    /// Returns true if it measures, now or in the background, and has time left.
    pub fn measures(&self) -> bool {
        self.measures != Measures::Nothing && !self.stops() && self.began.elapsed() < TOTAL
    }

    /// Refuses so many bytes of memory where the process may want them.
    ///
    /// # Errors
    /// A machine error, also where the device does not tell what is free.
    pub fn has_room(&self, bytes: u64) -> Result<()> {
        let free = (self.current_device)()?.free;
        free.map_or(Ok(()), |free| within_share(bytes, free))
    }

    /// Returns whether the kernel won for a product when that was measured; `text` is the product as a graph.
    pub fn known_product(&mut self, text: &str, told: &str) -> Option<bool> {
        let kept = std::fs::read(self.product_path(text)).ok()?;
        let takes_kernel = serde_json::from_slice::<Measured>(&kept)
            .ok()?
            .takes_kernel();
        let way = if takes_kernel { "kernel" } else { "library" };
        self.done.push(format!("{told}: {way}, from the cache"));
        Some(takes_kernel)
    }

    /// Measures calls of both ways by turns, and keeps the result.
    ///
    /// # Errors
    /// Those of the calls and of the driver.
    pub fn product(
        &mut self,
        (text, told): (&str, &str),
        library: Call<'_>,
        kernel: Call<'_>,
    ) -> Result<bool> {
        let [library_seconds, kernel_seconds] = self.by_turns([library, kernel])?;
        let measured = Measured {
            library_seconds,
            kernel_seconds,
        };
        let path = self.product_path(text);
        self.write(&path, &measured);
        self.done.push(format!(
            "{told}: library {:.2} us, kernel {:.2} us",
            library_seconds * 1e6,
            kernel_seconds * 1e6
        ));
        Ok(measured.takes_kernel())
    }

    /// Returns the least mean of each call's times.
    fn by_turns(&mut self, mut calls: [Call<'_>; 2]) -> Result<[f64; 2]> {
        let on = (self.current_device)()?;
        let driver = devices::driver(self.device)?;
        self.fill_caches(&driver)?;
        let clock = Clock {
            driver: &driver,
            stream: on.stream,
            other: self.other.as_ref(),
        };
        let rounds = match self.measures {
            Measures::InBackground => ROUNDS_IN_BACKGROUND,
            _ => ROUNDS,
        };
        let mut best = [f64::INFINITY; 2];
        for round in 0..=rounds {
            for (call, best) in calls.iter_mut().zip(&mut best) {
                let took = clock.time(CALLS, call)?;
                // The first round warms up.
                if round > 0 {
                    *best = best.min(took);
                }
            }
        }
        Ok(best)
    }

    fn product_path(&self, text: &str) -> PathBuf {
        let all = (text, &self.name, &self.target);
        let text = serde_json::to_string(&all).unwrap_or_default();
        self.folder
            .join(format!("product-{}.json", self.pool.address(&text)))
    }
}
