//! Prepared transforms by length. A few of the last used are kept, since programs transform lines of few lengths again and
//! again, and preparing one costs as much as many lines.

use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};
use rustfft::{Fft, FftDirection, FftPlanner};
use std::sync::{Arc, Mutex, PoisonError};

/// Prepared transforms that are kept for each kind and element type. A bound, because a process may see lines of any length.
const KEPT: usize = 16;

/// Prepared transforms, the last used first.
pub(crate) struct Cache<K, V: ?Sized>(Mutex<Vec<(K, Arc<V>)>>);

impl<K: Copy + PartialEq, V: ?Sized> Cache<K, V> {
    const fn new() -> Self {
        Cache(Mutex::new(Vec::new()))
    }

    /// Returns the transform for `key`, made by `make` if it is not kept.
    fn get(&self, key: K, make: impl FnOnce() -> Arc<V>) -> Arc<V> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match kept.iter().position(|(k, _)| *k == key) {
            Some(at) => kept.remove(at),
            None => (key, make()),
        };
        let plan = entry.1.clone();
        kept.truncate(KEPT - 1);
        kept.insert(0, entry);
        plan
    }
}

/// Element types with caches of prepared transforms.
pub(crate) trait Cached: Sized + Send + Sync {
    /// Returns the transform of complex lines.
    fn complex(n: usize, direction: FftDirection) -> Arc<dyn Fft<Self>>;
    /// Returns the transform of real lines.
    fn from_real(n: usize) -> Arc<dyn RealToComplex<Self>>;
    /// Returns the inverse transform to real lines.
    fn to_real(n: usize) -> Arc<dyn ComplexToReal<Self>>;
}

macro_rules! cached {
    ($t:ty) => {
        impl Cached for $t {
            fn complex(n: usize, direction: FftDirection) -> Arc<dyn Fft<$t>> {
                static CACHE: Cache<(usize, bool), dyn Fft<$t>> = Cache::new();
                CACHE.get((n, direction == FftDirection::Forward), || {
                    FftPlanner::new().plan_fft(n, direction)
                })
            }

            fn from_real(n: usize) -> Arc<dyn RealToComplex<$t>> {
                static CACHE: Cache<usize, dyn RealToComplex<$t>> = Cache::new();
                CACHE.get(n, || RealFftPlanner::new().plan_fft_forward(n))
            }

            fn to_real(n: usize) -> Arc<dyn ComplexToReal<$t>> {
                static CACHE: Cache<usize, dyn ComplexToReal<$t>> = Cache::new();
                CACHE.get(n, || RealFftPlanner::new().plan_fft_inverse(n))
            }
        }
    };
}
cached!(f32);
cached!(f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_transforms_are_kept() {
        let cache: Cache<usize, usize> = Cache::new();
        for n in 0..100 {
            assert_eq!(*cache.get(n, || Arc::new(n)), n);
        }
        assert_eq!(cache.0.lock().unwrap().len(), KEPT);
        assert_eq!(*cache.get(99, || panic!("was not kept")), 99);
    }
}
