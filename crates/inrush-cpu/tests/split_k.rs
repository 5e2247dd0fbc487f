//! Products with long sums and few results, as gradients of filters are, against a slow loop: every level, channels of either side
//! with every kind of remainder, kernels, strides, dilation, groups, images, dtypes; the same results whatever the threads.

mod common;

use common::{Rng, counting, multiply};
use half::bf16;
use inrush_base::{DType, Isa};
use inrush_cpu::*;

/// The gradient of the filters of a convolution over images with channels last.
#[derive(Clone, Copy, Debug)]
struct Case {
    images: usize,
    groups: usize,
    /// Channels of a group: of the input, and of the gradient.
    large: usize,
    small: usize,
    /// Pixels of the gradient.
    size: [usize; 2],
    kernel: [usize; 2],
    step: usize,
    dilation: usize,
    /// Both operands are NCHW, plane by plane, instead of with channels last: those of the input by channels, then images.
    planes: bool,
}

impl Case {
    fn input(&self) -> [usize; 2] {
        std::array::from_fn(|d| {
            (self.size[d] - 1) * self.step + (self.kernel[d] - 1) * self.dilation + 1
        })
    }

    fn m(&self) -> usize {
        self.large * self.kernel[0] * self.kernel[1]
    }

    fn pixels(&self) -> usize {
        self.images * self.size[0] * self.size[1]
    }

    /// Results in order, computed from the elements as they are stored.
    fn want(&self, a: impl Fn(usize) -> f64, b: impl Fn(usize) -> f64) -> Vec<f64> {
        let (c, [ih, iw], [oh, ow], [kh, kw]) = (
            self.groups * self.large,
            self.input(),
            self.size,
            self.kernel,
        );
        let channels = self.groups * self.small;
        let mut out = Vec::new();
        for m in 0..self.m() {
            let (l, h, w) = (m / (kh * kw), m / kw % kh, m % kw);
            for n in 0..channels {
                let l = n / self.small * self.large + l;
                let mut sum = 0.0;
                for p in 0..self.pixels() {
                    let (image, y, x) = (p / (oh * ow), p / ow % oh, p % ow);
                    let (y, x) = (
                        y * self.step + h * self.dilation,
                        x * self.step + w * self.dilation,
                    );
                    sum += a(((image * ih + y) * iw + x) * c + l) * b(p * channels + n);
                }
                out.push(sum);
            }
        }
        out
    }

    /// Results by the engine, through an epilogue.
    fn got(&self, a: *const u8, b: *const u8, dtype: DType, isa: Isa, threads: usize) -> Vec<f32> {
        let pool = Pool::new(Some(threads)).unwrap();
        let (c, [ih, iw], [oh, ow], [kh, kw]) = (
            self.groups * self.large,
            self.input(),
            self.size,
            self.kernel,
        );
        let (step, reach) = (self.step as isize, self.dilation as isize);
        let channels = self.groups * self.small;
        let (plane, pixels) = (ih * iw, oh * ow);
        // Elements between images, pixels and channels.
        let ([ai, ap, ac], [bi, bp, bc]) = match self.planes {
            true => (
                [plane, 1, self.images * plane],
                [channels * pixels, 1, pixels],
            ),
            false => ([plane * c, c, 1], [pixels * channels, channels, 1]),
        };
        let (row, pixel) = ((iw * ap) as isize, ap as isize);
        let taps: Vec<isize> = (0..self.images * oh)
            .map(|t| (t / oh * ai) as isize + (t % oh) as isize * step * row)
            .collect();
        let lhs = Lhs {
            ptr: a,
            dtype,
            matrices: Affine::linear(self.groups, (self.large * ac) as isize),
            rows: Affine::new(&[
                (self.large, ac as isize),
                (kh, row * reach),
                (kw, pixel * reach),
            ])
            .unwrap(),
            taps: &taps,
            k_step: step * pixel,
        };
        let view = RhsView {
            ptr: b,
            dtype,
            matrices: Affine::linear(self.groups, (self.small * bc) as isize),
            k: Affine::new(&[(self.images, bi as isize), (pixels, bp as isize)]).unwrap(),
            cols: Affine::linear(self.small, bc as isize),
        };
        let shape = GemmShape {
            batch: 1,
            groups: self.groups,
            m: self.m(),
            n: self.small,
            taps: taps.len(),
            k: ow,
        };
        let mut out = vec![0f32; self.m() * channels];
        let mut count = vec![0i32; out.len()];
        let args = [
            out.as_mut_ptr().cast::<u8>(),
            count.as_mut_ptr().cast::<u8>(),
        ];
        let syms = [self.m() as i64, channels as i64];
        let output = Output::Epilogue(Epilogue {
            f: counting,
            args: args.as_ptr(),
            syms: syms.as_ptr(),
        });
        let how = (shape, DType::F32, isa);
        unsafe { multiply(&pool, how, &lhs, &view, None, &output).unwrap() };
        assert!(count.iter().all(|c| *c == 1), "{self:?}");
        out
    }
}

/// An image with channels last, plane by plane: all images of a channel, or all channels of an image, after each other.
fn planes<T: Copy>(of: &[T], images: usize, channels: usize, by_channel: bool) -> Vec<T> {
    let pixels = of.len() / images / channels;
    let at = |x: usize| {
        let (outer, pixel) = (x / pixels, x % pixels);
        let (image, channel) = match by_channel {
            true => (outer % images, outer / images),
            false => (outer / channels, outer % channels),
        };
        of[(image * pixels + pixel) * channels + channel]
    };
    (0..of.len()).map(at).collect()
}

fn close(got: &[f32], want: &[f64], pixels: usize, what: &str) {
    common::close(got, want, pixels, what);
}

#[test]
fn gradients_of_filters() {
    let mut rng = Rng(31);
    for round in 0..240 {
        let mut pick = |of: &[usize]| of[rng.below(of.len())];
        let channels = [1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 40, 64];
        let case = Case {
            images: pick(&[1, 2, 3]),
            groups: pick(&[1, 1, 1, 2, 3, 4, 8]),
            large: pick(&channels),
            small: pick(&channels),
            size: [pick(&[9, 16, 17]), pick(&[7, 9, 16, 19])],
            kernel: [pick(&[1, 2, 3]), pick(&[1, 3, 5])],
            step: pick(&[1, 1, 2, 3]),
            dilation: pick(&[1, 1, 2]),
            planes: round / 4 % 2 == 1,
        };
        let input = case.input();
        let a = rng.floats(case.images * input[0] * input[1] * case.groups * case.large);
        let b = rng.floats(case.pixels() * case.groups * case.small);
        let isa = available()[round % available().len()];
        let (large, small) = (case.groups * case.large, case.groups * case.small);
        let lie = |v: &[f32], channels, by_channel| match case.planes {
            true => planes(v, case.images, channels, by_channel),
            false => v.to_vec(),
        };
        let (la, lb) = (lie(&a, large, true), lie(&b, small, false));
        let run = |threads| {
            case.got(
                la.as_ptr().cast(),
                lb.as_ptr().cast(),
                DType::F32,
                isa,
                threads,
            )
        };
        let one = run(1);
        let want = case.want(|i| f64::from(a[i]), |i| f64::from(b[i]));
        close(
            &one,
            &want,
            case.pixels(),
            &format!("{case:?} {}", isa.name()),
        );
        // Shorter sums and single channels are computed another way.
        if case.pixels() >= 256 && case.large > 1 && case.small > 1 && !case.planes {
            assert!(one == run(3), "{case:?}: threads change results");
        }
        if round % 4 == 0 {
            let half = |v: &[f32]| v.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>();
            let (la, lb) = (half(&la), half(&lb));
            let got = case.got(la.as_ptr().cast(), lb.as_ptr().cast(), DType::BF16, isa, 2);
            let (a, b) = (half(&a), half(&b));
            let want = case.want(|i| a[i].to_f64(), |i| b[i].to_f64());
            close(&got, &want, case.pixels(), &format!("{case:?} in halves"));
        }
    }
}

/// Sums of many parts, in both float types that are summed in; products with a weight's rows that are apart.
#[test]
fn long_sums_of_doubles() {
    let mut rng = Rng(32);
    for isa in available() {
        for (m, n, k) in [
            (16, 16, 9000),
            (5, 21, 4099),
            (100, 3, 3000),
            (37, 64, 2500),
        ] {
            let (ma, nb) = (m + 3, n + 5);
            let a: Vec<f64> = (0..k * ma).map(|_| rng.unit()).collect();
            let b: Vec<f64> = (0..k * nb).map(|_| rng.unit()).collect();
            let mut results = Vec::new();
            for threads in [1, 2, 5] {
                let pool = Pool::new(Some(threads)).unwrap();
                let mut c = vec![0f64; m * n];
                let lhs = Lhs {
                    ptr: a.as_ptr().cast(),
                    dtype: DType::F64,
                    matrices: Affine::ONE,
                    rows: Affine::linear(m, 1),
                    taps: &[0],
                    k_step: ma as isize,
                };
                let view = RhsView {
                    ptr: b.as_ptr().cast(),
                    dtype: DType::F64,
                    matrices: Affine::ONE,
                    k: Affine::linear(k, nb as isize),
                    cols: Affine::linear(n, 1),
                };
                // Stored with the columns as rows.
                let out = Output::Store(StoreView {
                    ptr: c.as_mut_ptr().cast(),
                    dtype: DType::F64,
                    batch: Affine::ONE,
                    rows: Affine::linear(m, 1),
                    cols: Affine::linear(n, m as isize),
                });
                let how = (GemmShape::new(1, m, k, n), DType::F64, isa);
                let taken = unsafe { multiply(&pool, how, &lhs, &view, None, &out).unwrap() };
                assert_eq!(taken, "split-k");
                results.push(c);
            }
            for (i, got) in results[0].iter().enumerate() {
                let (r, j) = (i % m, i / m);
                let want: f64 = (0..k).map(|x| a[x * ma + r] * b[x * nb + j]).sum();
                assert!(
                    (got - want).abs() < 1e-11,
                    "{m} x {n} x {k}: {} is {want}",
                    got
                );
            }
            assert!(results.iter().all(|c| *c == results[0]));
        }
    }
}
