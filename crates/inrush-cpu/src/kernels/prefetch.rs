//! Addresses of memory that the next tile reads, asked for while this one computes.

/// A place in memory that will be read soon: runs of `run` cache lines, each `step` bytes after the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetch {
    pub at: *const u8,
    pub run: usize,
    pub step: isize,
    /// Lines of the present run that are left.
    pub left: usize,
}

impl Prefetch {
    /// Bytes of a cache line.
    pub const LINE: usize = 64;
    /// Nothing to read.
    pub const NONE: Prefetch = Prefetch::one(std::ptr::null());

    /// Returns memory without gaps.
    pub const fn one(at: *const u8) -> Prefetch {
        Prefetch {
            at,
            run: usize::MAX,
            step: 0,
            left: usize::MAX,
        }
    }

    /// Runs of `bytes` bytes that begin `step` bytes apart.
    pub fn runs(at: *const u8, bytes: usize, step: isize) -> Prefetch {
        // One more, for runs that begin inside a line.
        let run = bytes.div_ceil(Self::LINE) + usize::from(step % Self::LINE as isize != 0);
        Prefetch {
            at,
            run,
            step,
            left: run,
        }
    }

    /// Returns the place `lines` lines further on from the first.
    pub fn advanced(&self, lines: usize) -> Prefetch {
        let (runs, rest) = (lines / self.run, lines % self.run);
        let at = self.at.wrapping_offset(runs as isize * self.step);
        Prefetch {
            at: at.wrapping_add(rest * Self::LINE),
            left: self.run - rest,
            ..*self
        }
    }

    /// Takes the next line, as an address to ask for.
    #[inline(always)]
    pub(super) fn next(&mut self) -> *const u8 {
        let at = self.at;
        self.at = at.wrapping_add(Self::LINE);
        self.left -= 1;
        if self.left == 0 {
            let back = (self.run * Self::LINE) as isize;
            self.at = self.at.wrapping_offset(self.step - back);
            self.left = self.run;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_lines_follow_each_other() {
        let base = std::ptr::without_provenance::<u8>(1 << 20);
        let at = |x: *const u8| x.addr() - base.addr();
        for (bytes, step, run) in [(192, 4096, 3), (100, 144, 3), (64, 64, 1)] {
            let first = Prefetch::runs(base, bytes, step as isize);
            assert_eq!(first.run, run);
            let mut walk = first;
            for i in 0..20 {
                let line = i / run * step + i % run * Prefetch::LINE;
                assert_eq!(at(first.advanced(i).at), line);
                assert_eq!(at(walk.next()), line);
            }
        }
    }
}
