//! Plain matrix arithmetic in `f64` for tests, row-major.

/// A matrix of its own elements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct M {
    pub rows: usize,
    pub cols: usize,
    pub v: Vec<f64>,
}

impl M {
    pub(crate) fn new(rows: usize, cols: usize, v: &[f64]) -> M {
        assert_eq!(v.len(), rows * cols);
        M {
            rows,
            cols,
            v: v.to_vec(),
        }
    }

    pub(crate) fn identity(n: usize) -> M {
        let v: Vec<f64> = (0..n * n)
            .map(|i| f64::from(u8::from(i / n == i % n)))
            .collect();
        M::new(n, n, &v)
    }

    pub(crate) fn at(&self, r: usize, c: usize) -> f64 {
        self.v[r * self.cols + c]
    }

    pub(crate) fn map(&self, f: impl Fn(usize, usize, f64) -> f64) -> M {
        let v: Vec<f64> = (0..self.v.len())
            .map(|i| f(i / self.cols, i % self.cols, self.v[i]))
            .collect();
        M::new(self.rows, self.cols, &v)
    }

    pub(crate) fn t(&self) -> M {
        let mut out = M::new(self.cols, self.rows, &self.v);
        for r in 0..self.rows {
            for c in 0..self.cols {
                out.v[c * self.rows + r] = self.at(r, c);
            }
        }
        out
    }

    pub(crate) fn mul(&self, other: &M) -> M {
        assert_eq!(self.cols, other.rows);
        let mut v = vec![0.0; self.rows * other.cols];
        for r in 0..self.rows {
            for c in 0..other.cols {
                v[r * other.cols + c] =
                    (0..self.cols).map(|k| self.at(r, k) * other.at(k, c)).sum();
            }
        }
        M::new(self.rows, other.cols, &v)
    }

    pub(crate) fn add(&self, other: &M, factor: f64) -> M {
        self.map(|r, c, v| v + factor * other.at(r, c))
    }
}
