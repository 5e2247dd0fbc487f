//! Products that read their right operand in place, against a slow loop in double precision.

mod common;

use common::{Rng, close, counting};
use half::{bf16, f16};
use inrush_base::{DType, Isa};
use inrush_cpu::*;

/// Sizes and strides of an image in memory and of a convolution over it, padding included.
#[derive(Clone, Copy, Debug)]
struct Case {
    images: usize,
    groups: usize,
    c_in: usize,
    c_out: usize,
    input: [usize; 3],
    kernel: [usize; 3],
    step: [usize; 3],
    dilation: [usize; 3],
}

impl Case {
    fn output(&self) -> [usize; 3] {
        std::array::from_fn(|d| {
            (self.input[d] - self.dilation[d] * (self.kernel[d] - 1) - 1) / self.step[d] + 1
        })
    }

    fn shape(&self) -> NchwShape {
        let [_, ih, iw] = self.input;
        let [od, oh, ow] = self.output();
        let [kd, kh, kw] = self.kernel;
        let along = [ih * iw, iw, 1];
        let at = |d: usize, by: [usize; 3]| (along[d] * by[d]) as isize;
        let plane = (self.input.iter().product::<usize>()) as isize;
        let group = plane * self.c_in as isize;
        let image = group * self.groups as isize;
        let s = self.step;
        let d = self.dilation;
        NchwShape {
            m: self.c_out,
            lefts: Affine::new(&[(self.groups, 1), (self.images, 0)]).unwrap(),
            matrices: Affine::new(&[(self.groups, group), (self.images, image)]).unwrap(),
            k: Affine::new(&[
                (self.c_in, plane),
                (kd, at(0, d)),
                (kh, at(1, d)),
                (kw, at(2, d)),
            ])
            .unwrap(),
            cols: Affine::new(&[(od, at(0, s)), (oh, at(1, s)), (ow, at(2, s))]).unwrap(),
        }
    }
}

/// Every level, with the left operand laid out before and during the call; gives how many levels have a plan, and how often
/// sums were stored at once.
fn check(case: Case, dtype: DType, threads: usize, rng: &mut Rng) -> (usize, usize) {
    let shape = case.shape();
    let s = &shape;
    let (m, k, n, batch) = (s.m, s.k.len(), s.cols.len(), s.matrices.len());
    let last = |a: &Affine| {
        if a.is_empty() {
            0
        } else {
            a.offset(a.len() - 1) as usize
        }
    };
    // No element after the last one that is read.
    let input = rng.floats(last(&s.matrices) + last(&s.k) + last(&s.cols) + 1);
    let filters = rng.floats(case.groups * m * k);
    let (bytes, input): (Vec<u8>, Vec<f64>) = match dtype {
        DType::BF16 => (
            input
                .iter()
                .flat_map(|x| bf16::from_f32(*x).to_ne_bytes())
                .collect(),
            input.iter().map(|x| bf16::from_f32(*x).to_f64()).collect(),
        ),
        DType::F16 => (
            input
                .iter()
                .flat_map(|x| f16::from_f32(*x).to_ne_bytes())
                .collect(),
            input.iter().map(|x| f16::from_f32(*x).to_f64()).collect(),
        ),
        _ => (
            input.iter().flat_map(|x| x.to_ne_bytes()).collect(),
            input.iter().map(|x| *x as f64).collect(),
        ),
    };
    let mut want = vec![0f64; batch * m * n];
    for b in 0..batch {
        for i in 0..m {
            let row = (s.lefts.offset(b) as usize * m + i) * k;
            for j in 0..n {
                let at = s.matrices.offset(b) + s.cols.offset(j);
                want[(b * m + i) * n + j] = (0..k)
                    .map(|p| filters[row + p] as f64 * input[(at + s.k.offset(p)) as usize])
                    .sum();
            }
        }
    }
    let pool = Pool::new(Some(threads)).unwrap();
    // Products one after the other, read in place, or rows, which are laid out.
    let across: Vec<f32> = (0..filters.len())
        .map(|i| filters[i / (m * k) * m * k + i % m * k + i / m % k])
        .collect();
    let view = |of: &[f32], k_step: usize, row: usize| RhsView {
        ptr: of.as_ptr().cast(),
        dtype: DType::F32,
        matrices: Affine::linear(case.groups, (m * k) as isize),
        k: Affine::linear(k, k_step as isize),
        cols: Affine::linear(m, row as isize),
    };
    let (along, across) = (view(&filters, 1, k), view(&across, m, 1));
    let (mut plans, mut stores) = (0, 0);
    for isa in available() {
        let Some(plan) = DirectNchw::plan(shape, DType::F32, dtype, isa).unwrap() else {
            continue;
        };
        plans += 1;
        let lay_out = |view| unsafe { PackedA::pack(&pool, isa, DType::F32, view) }.unwrap();
        let near = |step: Option<isize>| step == Some(1);
        assert!(
            lay_out(&along).is_none() || !near(along.k.stride()),
            "{case:?}"
        );
        let packed = lay_out(&across);
        assert!(packed.is_some() || near(across.k.stride()), "{case:?}");
        let packed = packed.as_ref().map(Left::Packed);
        for left in [Left::View(&along), Left::View(&across)]
            .into_iter()
            .chain(packed)
        {
            let (mut out, mut count) = (vec![0f32; want.len()], vec![0i32; want.len()]);
            let args = [
                out.as_mut_ptr().cast::<u8>(),
                count.as_mut_ptr().cast::<u8>(),
            ];
            let syms = [m as i64, n as i64];
            let to = Output::Epilogue(Epilogue {
                f: counting,
                args: args.as_ptr(),
                syms: syms.as_ptr(),
            });
            unsafe { plan.run(&pool, left, bytes.as_ptr(), &to).unwrap() };
            let what = format!("{case:?} {dtype} {} x{threads}", isa.name());
            close(&out, &want, k, &what);
            assert!(
                count.iter().all(|&c| c == 1),
                "{what}: a result was not given exactly once"
            );
            // The same, stored with gaps between rows.
            let row = n + 3;
            let mut out = vec![0.5f32; batch * m * row];
            let view = StoreView {
                ptr: out.as_mut_ptr().cast(),
                dtype: DType::F32,
                batch: Affine::linear(batch, (m * row) as isize),
                rows: Affine::linear(m, row as isize),
                cols: Affine::linear(n, 1),
            };
            stores += usize::from(plan.stores(&view));
            unsafe {
                plan.run(&pool, left, bytes.as_ptr(), &Output::Store(view))
                    .unwrap();
            };
            let gaps = out.chunks(row).flat_map(|r| &r[n..]);
            assert!(gaps.clone().all(|x| *x == 0.5), "{what}: a gap was written");
            let stored: Vec<f32> = out.chunks(row).flat_map(|r| &r[..n]).copied().collect();
            close(&stored, &want, k, &what);
        }
    }
    (plans, stores)
}

#[test]
fn random_convolutions() {
    let mut rng = Rng(77);
    let (mut plans, mut stores) = (0, 0);
    for round in 0..200 {
        let mut pick = |of: &[usize]| of[rng.below(of.len())];
        let kernel = [pick(&[1, 1, 1, 2]), pick(&[1, 2, 3]), pick(&[1, 2, 3, 5])];
        let dilation = [1, pick(&[1, 1, 2]), pick(&[1, 1, 3])];
        let step = [1, pick(&[1, 1, 2]), pick(&[1, 1, 2, 3])];
        let out = [
            pick(&[1, 1, 2]),
            pick(&[1, 2, 5, 9]),
            pick(&[1, 4, 7, 13, 16, 17, 40, 70]),
        ];
        let case = Case {
            images: pick(&[1, 2, 3]),
            groups: pick(&[1, 1, 3]),
            c_in: pick(&[1, 3, 8, 20]),
            c_out: pick(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 21, 70]),
            input: std::array::from_fn(|d| {
                // What is left over at the end belongs to no window.
                dilation[d] * (kernel[d] - 1) + 1 + (out[d] - 1) * step[d] + pick(&[0, 0, 1])
            }),
            kernel,
            step,
            dilation,
        };
        let dtype = [DType::F32, DType::F32, DType::BF16, DType::F16][round % 4];
        let (planned, stored) = check(case, dtype, 1 + round % 3, &mut rng);
        (plans, stores) = (plans + planned, stores + stored);
    }
    assert!(stores > 50, "only {stores} times sums were stored at once");
    assert!(
        plans > 150,
        "only {plans} of the cases are computed in place"
    );
}

#[test]
fn one_by_one_and_long_lines() {
    let mut rng = Rng(5);
    for (c_in, c_out, input) in [
        (16, 16, [1, 64, 65]),
        (7, 9, [1, 1, 2500]),
        (33, 140, [1, 1, 70]),
        (2, 5, [3, 11, 9]),
    ] {
        let case = Case {
            images: 2,
            groups: 1,
            c_in,
            c_out,
            input,
            kernel: [1, 1, if c_out > 64 { 3 } else { 1 }],
            step: [1; 3],
            dilation: [1; 3],
        };
        assert_eq!(check(case, DType::F32, 2, &mut rng).0, available().len());
    }
}

#[test]
fn nothing_to_compute() {
    let case = Case {
        images: 0,
        groups: 1,
        c_in: 4,
        c_out: 4,
        input: [1, 8, 8],
        kernel: [1, 3, 3],
        step: [1; 3],
        dilation: [1; 3],
    };
    assert!(
        DirectNchw::plan(case.shape(), DType::F32, DType::F32, Isa::Scalar)
            .unwrap()
            .is_none()
    );
}

#[test]
fn many_rows_without_windows_are_a_product() {
    let shape = |m: usize, k: usize| NchwShape {
        m,
        lefts: Affine::ONE,
        matrices: Affine::ONE,
        k: Affine::linear(k, 4096),
        cols: Affine::linear(4096, 1),
    };
    let plan = |m, k| DirectNchw::plan(shape(m, k), DType::F32, DType::F32, Isa::Scalar).unwrap();
    assert!(plan(16, 16).is_some());
    assert!(plan(1024, 16).is_none());
    assert!(plan(16, 4096).is_none());
}
