//! Convolutions against a slow loop in double precision.

mod common;

use common::{Rng, close, counting};
use half::bf16;
use inrush_base::{DType, ErrorKind, Isa};
use inrush_cpu::*;

/// The algorithm that is chosen for the shape.
fn run(shape: ConvShape, padding: usize, isa: Isa, threads: usize, rng: &mut Rng) {
    let algorithm = Conv::choose(&shape, DType::F32, isa, threads);
    run_with(shape, padding, &[isa], threads, &[algorithm], rng);
}

/// Every level with every algorithm against one slow result. `padding` stands for channels that belong to someone else.
fn run_with(
    shape: ConvShape,
    padding: usize,
    levels: &[Isa],
    threads: usize,
    algorithms: &[ConvAlgorithm],
    rng: &mut Rng,
) {
    let pool = Pool::new(Some(threads)).unwrap();
    let s = &shape;
    let [id, ih, iw] = s.input;
    let pixel = s.c_in + padding;
    let len = s.batch * id * ih * iw * pixel;
    // No element after the last one that is read.
    let input = rng.floats(len.saturating_sub(padding));
    let [kd, kh, kw] = s.kernel;
    let ci = s.c_in / s.groups;
    let filters = rng.floats(s.c_out * ci * kd * kh * kw);
    let strides = [ci * kd * kh * kw, kd * kh * kw, kh * kw, kw, 1].map(|x| x as isize);
    let [od, oh, ow] = s.output();
    let m = s.batch * od * oh * ow;
    let want = slow(s, pixel, &input, &filters);
    for &isa in levels {
        for &algorithm in algorithms {
            let what = format!("{shape:?} {algorithm:?} {} x{threads}", isa.name());
            let conv = Conv::plan(shape, DType::F32, DType::F32, isa, threads, algorithm).unwrap();
            let ptr = filters.as_ptr().cast();
            let packed = unsafe { conv.pack(&pool, ptr, DType::F32, strides).unwrap() };
            let mut out = vec![0f32; m * s.c_out];
            let mut count = vec![0i32; out.len()];
            let args = [
                out.as_mut_ptr().cast::<u8>(),
                count.as_mut_ptr().cast::<u8>(),
            ];
            let syms = [m as i64, s.c_out as i64];
            let output = Output::Epilogue(Epilogue {
                f: counting,
                args: args.as_ptr(),
                syms: syms.as_ptr(),
            });
            let ptr = input.as_ptr().cast();
            unsafe { conv.run(&pool, ptr, &packed, &output).unwrap() };
            // Minimal filtering loses a digit: as if the sums were so many times longer.
            let worse = if let ConvAlgorithm::Winograd(_) = algorithm {
                30
            } else {
                1
            };
            close(&out, &want, ci * kd * kh * kw * worse, &what);
            assert!(
                count.iter().all(|&c| c == 1),
                "{what}: a result was not given exactly once"
            );
        }
    }
}

fn slow(s: &ConvShape, pixel: usize, input: &[f32], filters: &[f32]) -> Vec<f64> {
    let ([_, ih, iw], [id, ..]) = (s.input, s.input);
    let [kd, kh, kw] = s.kernel;
    let [od, oh, ow] = s.output();
    let ci = s.c_in / s.groups;
    let mut want = Vec::new();
    for i in 0..s.batch * od * oh * ow {
        let (n, d, h, w) = (i / (od * oh * ow), i / (oh * ow) % od, i / ow % oh, i % ow);
        for o in 0..s.c_out {
            let group = o / (s.c_out / s.groups);
            let mut sum = 0.0;
            for t in 0..kd * kh * kw {
                let (td, th, tw) = (t / (kh * kw), t / kw % kh, t % kw);
                let z = d * s.step[0] + td * s.dilation[0];
                let y = h * s.step[1] + th * s.dilation[1];
                let x = w * s.step[2] + tw * s.dilation[2];
                let at = (((n * id + z) * ih + y) * iw + x) * pixel + group * ci;
                let taken = filters[o * ci * kd * kh * kw + t..]
                    .iter()
                    .step_by(kd * kh * kw);
                for (a, b) in input[at..at + ci].iter().zip(taken) {
                    sum += *a as f64 * *b as f64;
                }
            }
            want.push(sum);
        }
    }
    want
}

#[test]
fn random_convolutions() {
    let mut rng = Rng(21);
    let levels = available();
    for round in 0..300 {
        let mut pick = |of: &[usize]| of[rng.below(of.len())];
        let groups = pick(&[1, 1, 2, 3, 8, 17, 40]);
        let (ci, co) = if groups > 3 {
            (pick(&[1, 1, 2]), pick(&[1, 1, 3]))
        } else {
            (pick(&[1, 3, 5, 16]), pick(&[1, 4, 16, 33]))
        };
        let kernel = [
            pick(&[1, 1, 1, 2]),
            pick(&[1, 2, 3, 5]),
            pick(&[1, 2, 3, 7]),
        ];
        let dilation = [1, pick(&[1, 1, 2]), pick(&[1, 1, 3])];
        let mut input = [0; 3];
        for d in 0..3 {
            input[d] = dilation[d] * (kernel[d] - 1)
                + 1
                + pick(&[0, 1, 2, 4, 9]) / if d == 0 { 2 } else { 1 };
        }
        let padding = pick(&[0, 0, 0, 5]);
        let pixel = (groups * ci + padding) as isize;
        let [_, ih, iw] = input.map(|x| x as isize);
        let shape = ConvShape {
            batch: pick(&[1, 1, 2, 0]),
            groups,
            c_in: groups * ci,
            c_out: groups * co,
            input,
            strides: [
                input[0] as isize * ih * iw * pixel,
                ih * iw * pixel,
                iw * pixel,
                pixel,
            ],
            kernel,
            step: [1, pick(&[1, 1, 2]), pick(&[1, 2, 3])],
            dilation,
        };
        run(
            shape,
            padding,
            levels[round % levels.len()],
            1 + rng.below(4),
            &mut rng,
        );
    }
}

/// Groups of few channels, which share vectors: lines of every length, channels that do not divide by four, and groups whose input
/// is apart or ends inside a vector.
#[test]
fn groups_that_share_vectors() {
    let mut rng = Rng(29);
    for round in 0..60 {
        let mut pick = |of: &[usize]| of[rng.below(of.len())];
        let (ci, co) = (pick(&[1, 2, 3, 4, 5, 8]), pick(&[2, 4, 8]));
        let groups = pick(&[4, 8, 16, 32]);
        let line = pick(&[1, 2, 7, 15, 33, 130]);
        let kernel = pick(&[1, 3]);
        let step = pick(&[1, 1, 2]);
        let input = [
            pick(&[1, 4]) * step + kernel - 1,
            (line - 1) * step + kernel,
        ];
        let padding = pick(&[0, 0, 3]);
        let mut shape = ConvShape::new_2d(
            pick(&[1, 2]),
            groups * ci,
            groups * co,
            input,
            [kernel; 2],
            step,
        );
        let pixel = (groups * ci + padding) as isize;
        let row = pixel * input[1] as isize;
        let image = row * input[0] as isize;
        shape.groups = groups;
        shape.strides = [image, image, row, pixel];
        let direct = [ConvAlgorithm::Direct];
        run_with(
            shape,
            padding,
            &available(),
            1 + round % 4,
            &direct,
            &mut rng,
        );
    }
}

#[test]
fn convolutions_of_whole_networks() {
    let mut rng = Rng(22);
    for isa in available() {
        run(
            ConvShape::new_2d(1, 3, 64, [38, 38], [7, 7], 2),
            0,
            isa,
            2,
            &mut rng,
        );
        run(
            ConvShape::new_2d(2, 64, 48, [12, 12], [3, 3], 1),
            0,
            isa,
            3,
            &mut rng,
        );
        run(
            ConvShape::new_2d(1, 96, 24, [14, 14], [1, 1], 2),
            0,
            isa,
            2,
            &mut rng,
        );
        let mut depthwise = ConvShape::new_2d(1, 120, 120, [32, 32], [5, 5], 1);
        depthwise.groups = 120;
        run(depthwise, 0, isa, 2, &mut rng);
    }
}

#[test]
fn impossible_convolutions() {
    let isa = Isa::Scalar;
    let good = ConvShape::new_2d(1, 4, 4, [5, 5], [3, 3], 1);
    let refused = |shape| {
        let algorithm = Conv::choose(&shape, DType::F32, isa, 1);
        let plan = Conv::plan(shape, DType::F32, DType::F32, isa, 1, algorithm);
        plan.unwrap_err().kind()
    };
    assert_eq!(refused(ConvShape { groups: 3, ..good }), ErrorKind::Input);
    assert_eq!(
        refused(ConvShape {
            step: [1, 0, 1],
            ..good
        }),
        ErrorKind::Input
    );
    // A kernel larger than its input has no output.
    assert_eq!(
        ConvShape {
            input: [1, 2, 5],
            ..good
        }
        .output(),
        [1, 0, 3]
    );
    run(
        ConvShape {
            input: [1, 2, 5],
            ..good
        },
        0,
        isa,
        1,
        &mut Rng(1),
    );
}

/// Tiles that end inside and beyond the image, images of a batch, several chunks of tile rows, channels of someone else
/// between the pixels.
#[test]
fn minimal_filtering() {
    let mut rng = Rng(23);
    for (batch, ci, co, [h, w], padding) in [
        (1, 16, 16, [3, 3], 0),
        (1, 16, 48, [6, 6], 0),
        (2, 32, 16, [7, 9], 0),
        (3, 48, 32, [8, 12], 5),
        (1, 64, 32, [14, 15], 0),
        (1, 16, 16, [86, 91], 0),
        (0, 16, 16, [6, 6], 0),
    ] {
        let mut shape = ConvShape::new_2d(batch, ci, co, [h, w], [3, 3], 1);
        let pixel = (ci + padding) as isize;
        let image = (h * w) as isize * pixel;
        shape.strides = [image, image, w as isize * pixel, pixel];
        let algorithms = [ConvAlgorithm::Winograd(2), ConvAlgorithm::Winograd(4)];
        let threads = 1 + rng.below(4);
        run_with(shape, padding, &available(), threads, &algorithms, &mut rng);
    }
    let shape = ConvShape::new_2d(1, 16, 16, [8, 8], [3, 3], 2);
    let refused = |algorithm| {
        Conv::plan(shape, DType::F32, DType::F32, Isa::Scalar, 1, algorithm)
            .unwrap_err()
            .kind()
    };
    assert_eq!(refused(ConvAlgorithm::Winograd(4)), ErrorKind::Internal);
    assert_eq!(refused(ConvAlgorithm::Depthwise), ErrorKind::Internal);
}

/// The large network layers that minimal filtering is chosen for, against the direct way.
#[test]
fn minimal_filtering_is_chosen_where_it_pays() {
    let isa = detect();
    let chosen = |c, size: usize| {
        let shape = ConvShape::new_2d(1, c, c, [size + 2, size + 2], [3, 3], 1);
        Conv::choose(&shape, DType::F32, isa, 2)
    };
    assert_eq!(chosen(64, 56), ConvAlgorithm::Winograd(4));
    assert_eq!(chosen(128, 28), ConvAlgorithm::Winograd(4));
    assert_ne!(chosen(512, 7), ConvAlgorithm::Winograd(4));
    assert_eq!(chosen(20, 56), ConvAlgorithm::Direct);
}

/// Halves are summed in f32 by every way.
#[test]
fn halves() {
    let pool = Pool::new(Some(2)).unwrap();
    let isa = detect();
    let mut rng = Rng(24);
    let mut depthwise = ConvShape::new_2d(2, 24, 24, [7, 9], [3, 3], 1);
    depthwise.groups = 24;
    let dense = ConvShape::new_2d(2, 16, 32, [7, 9], [3, 3], 1);
    for (shape, algorithm) in [
        (depthwise, ConvAlgorithm::Depthwise),
        (dense, ConvAlgorithm::Direct),
        (dense, ConvAlgorithm::Winograd(4)),
    ] {
        let ci = shape.c_in / shape.groups;
        let mut small = |n: usize| -> Vec<bf16> {
            (0..n)
                .map(|_| bf16::from_f64(rng.below(9) as f64 - 4.0))
                .collect()
        };
        let (input, filters) = (small(2 * 7 * 9 * shape.c_in), small(shape.c_out * ci * 9));
        let floats = |v: &[bf16]| v.iter().map(|x| x.to_f32()).collect::<Vec<_>>();
        let want = slow(&shape, shape.c_in, &floats(&input), &floats(&filters));
        let conv = Conv::plan(shape, DType::BF16, DType::F32, isa, 2, algorithm).unwrap();
        let strides = [ci * 9, 9, 0, 3, 1].map(|x| x as isize);
        let m = 2 * 5 * 7;
        let mut out = vec![0f32; m * shape.c_out];
        let to = Output::Store(StoreView {
            ptr: out.as_mut_ptr().cast(),
            dtype: DType::F32,
            batch: Affine::ONE,
            rows: Affine::linear(m, shape.c_out as isize),
            cols: Affine::linear(shape.c_out, 1),
        });
        unsafe {
            let packed = conv
                .pack(&pool, filters.as_ptr().cast(), DType::BF16, strides)
                .unwrap();
            conv.run(&pool, input.as_ptr().cast(), &packed, &to)
                .unwrap();
        }
        close(&out, &want, 1 << 18, &format!("{algorithm:?}"));
    }
}
