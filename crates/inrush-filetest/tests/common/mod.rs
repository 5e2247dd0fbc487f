//! The generator of tests with random choices.

/// A small xorshift generator. Its state must not be zero.
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `n`, or 0 if that is 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 9) % n.max(1) as u64) as usize
    }
}
