//! Which instruction set levels this processor has.

use inrush_base::{Error, Isa, Result};
use std::cell::Cell;

thread_local! {
    /// Returns the best level that plans of this thread may use.
    static LIMIT: Cell<Isa> = const { Cell::new(Isa::Avx512) };
}

/// Runs `f` as on a processor that has no better level: for tests of the others. Threads that `f` starts are not limited; plans
/// are made by the caller's.
pub fn limited<R>(level: Isa, f: impl FnOnce() -> R) -> R {
    struct Restore(Isa);
    impl Drop for Restore {
        fn drop(&mut self) {
            LIMIT.set(self.0);
        }
    }
    let _restore = Restore(LIMIT.replace(level));
    f()
}

/// Returns the best level that this processor can run.
pub fn detect() -> Isa {
    available().pop().unwrap_or(Isa::Scalar)
}

/// Returns every level that this processor can run, the plainest first.
pub fn available() -> Vec<Isa> {
    let mut levels = vec![Isa::Scalar];
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        let v3 = has!("avx2") && has!("fma") && has!("f16c");
        if v3 {
            levels.push(Isa::Avx2);
        }
        if v3
            && has!("avx512f")
            && has!("avx512bw")
            && has!("avx512cd")
            && has!("avx512dq")
            && has!("avx512vl")
        {
            levels.push(Isa::Avx512);
        }
    }
    #[cfg(target_arch = "aarch64")]
    levels.push(Isa::Neon);
    levels.retain(|l| *l <= LIMIT.get());
    levels
}

/// Refuses a level that this processor cannot run.
pub(crate) fn check(isa: Isa) -> Result<()> {
    if available().contains(&isa) {
        return Ok(());
    }
    Err(Error::machine(format!(
        "this processor has no {}",
        isa.name()
    )))
}
