//! Sigmoid and hyperbolic tangent without branches, so that loops over them are vectorised.

/// Element types that states are computed in.
pub(super) trait Activation: Copy {
    fn sigmoid(self) -> Self;
    fn tanh(self) -> Self;
}

/// Computes `e^x` for `x` within the exponents of normal numbers; others are taken for the nearest of these. About one unit in the
/// last place: `x = n ln 2 + r`, and a polynomial of `r` with Cephes' coefficients.
#[inline]
fn exp(x: f32) -> f32 {
    // Adding this rounds to an integer, which the low bits of the sum then hold.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    let exponent = shifted
        .to_bits()
        .wrapping_sub(ROUND.to_bits())
        .wrapping_add(127);
    p * f32::from_bits(exponent << 23)
}

impl Activation for f32 {
    #[inline]
    fn sigmoid(self) -> f32 {
        1.0 / (1.0 + exp(-self))
    }

    #[inline]
    fn tanh(self) -> f32 {
        let a = self.abs();
        let large = 1.0 - 2.0 / (exp(2.0 * a) + 1.0);
        // Near zero the difference would cancel: an odd polynomial with Cephes' coefficients.
        let z = self * self;
        let mut p = -5.704_988_7e-3;
        p = p * z + 2.063_909e-2;
        p = p * z - 5.373_971_6e-2;
        p = p * z + 1.333_144_2e-1;
        p = p * z - 3.333_328e-1;
        let small = p * z * self + self;
        if a < 0.625 {
            small
        } else {
            large.copysign(self)
        }
    }
}

impl Activation for f64 {
    fn sigmoid(self) -> f64 {
        1.0 / (1.0 + (-self).exp())
    }

    fn tanh(self) -> f64 {
        f64::tanh(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_are_accurate_to_a_few_units() {
        let mut worst = (0.0f64, 0.0f64);
        for i in -40_000..=40_000 {
            let x = i as f32 / 2_000.0;
            let sigmoid = 1.0 / (1.0 + (-f64::from(x)).exp());
            let tanh = f64::from(x).tanh();
            worst.0 = worst.0.max((f64::from(x.sigmoid()) / sigmoid - 1.0).abs());
            if x != 0.0 {
                worst.1 = worst
                    .1
                    .max((f64::from(Activation::tanh(x)) / tanh - 1.0).abs());
            }
        }
        let unit = f64::from(f32::EPSILON);
        assert!(
            worst.0 < 3.0 * unit && worst.1 < 3.0 * unit,
            "{worst:?} of {unit}"
        );
    }

    #[test]
    fn activations_of_what_is_not_finite() {
        assert!(f32::NAN.sigmoid().is_nan());
        assert!(Activation::tanh(f32::NAN).is_nan());
        assert_eq!(Activation::tanh(f32::INFINITY), 1.0);
        assert_eq!(Activation::tanh(f32::NEG_INFINITY), -1.0);
        assert_eq!(f32::INFINITY.sigmoid(), 1.0);
        assert!(f32::NEG_INFINITY.sigmoid() < 1e-37);
    }
}
