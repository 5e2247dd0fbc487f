//! The softmax of a row of scores, as attentions define it: in `f64`, over the keys that are kept.

/// The weights of a row.
pub(crate) struct Softmax {
    /// The exponential of each score less the greatest one.
    pub weights: Vec<f64>,
    total: f64,
    max: f64,
}

impl Softmax {
    /// Weighs the scores of a row. NaN is the greatest.
    pub(crate) fn of(scores: impl Iterator<Item = f64> + Clone) -> Softmax {
        let greatest = |m: f64, s: f64| if s.is_nan() || s > m { s } else { m };
        let max = scores.clone().fold(f64::NEG_INFINITY, greatest);
        let weights: Vec<f64> = scores.map(|s| libm::exp(s - shift(max))).collect();
        Softmax {
            total: weights.iter().sum(),
            weights,
            max,
        }
    }

    /// Divides a sum of weighted values by the sum of the weights. A row without keys gives zero.
    pub(crate) fn mean(&self, sum: f64) -> f64 {
        sum / if self.total == 0.0 { 1.0 } else { self.total }
    }

    /// Returns the logarithm of the sum of the scores' exponentials, base 2.
    pub(crate) fn logsumexp(&self) -> f64 {
        (libm::log(self.total) + shift(self.max)) * std::f64::consts::LOG2_E
    }

    /// Returns the greatest score times log2(e).
    pub(crate) fn max(&self) -> f64 {
        self.max * std::f64::consts::LOG2_E
    }
}

/// Returns what is subtracted from scores: the greatest one, or nothing if all are negative infinity.
fn shift(max: f64) -> f64 {
    if max == f64::NEG_INFINITY { 0.0 } else { max }
}
