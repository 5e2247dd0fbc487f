//! Other tiles than those of the rules, as tuning by measurement may choose them: `tiles=N` in the settings of a block.
//!
//! Times come from a checksum of N and the kernel, so the same tiles win each time.

use inrush_compile::{Candidate, Observer, Tile, Tuner};

/// Takes the place of a tuner that measures; without a number the rules' tiles stay.
pub struct OtherTiles(pub Option<u64>);

impl Observer for OtherTiles {
    fn tuner(&mut self) -> Option<&mut dyn Tuner> {
        self.0.is_some().then_some(self)
    }
}

impl Tuner for OtherTiles {
    fn known(&mut self, _rule: &Candidate) -> Option<Tile> {
        None
    }

    fn time(&mut self, candidates: &[Candidate]) -> Vec<Option<f64>> {
        let time = |c: &Candidate| {
            let text = format!("{:?} {} {}", self.0, c.tile, c.kernel.text);
            Some(1.0 + f64::from(crc32fast::hash(text.as_bytes())))
        };
        candidates.iter().map(time).collect()
    }

    fn keep(&mut self, _rule: &Candidate, _winner: Tile, _before: f64, _after: f64) {}
}
