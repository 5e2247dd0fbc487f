//! A convolution written as a contraction, whose filters are laid out at load for minimal filtering: right for every
//! number of images, and as precise as its neighbours need.

use inrush_base::{DType, Isa};
use inrush_cpu::{Conv, ConvAlgorithm, ConvShape, Pool};
use inrush_program::*;
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Compiler, Target};
use inrush_runtime::{MemoryWeights, Model, Parts, Tensor, Value};
use std::sync::Arc;

const CI: i64 = 64;
const CO: i64 = 64;
/// Lines and pixels of the result; the input has one more on each side.
const SIZE: [i64; 2] = [22, 17];

const SOURCE: &str = "
typedef long long i64;
void epilogue(char *const *bufs, const i64 *syms, const void *acc, i64 ld, i64 batch, i64 m0, i64 m1, i64 n0, i64 n1) {
  const float *a = acc; float *out = (float *)bufs[0];
  for (i64 m = m0; m < m1; m++) for (i64 n = n0; n < n1; n++) out[m * 64 + n] = a[(m - m0) * ld + (n - n0)];
}
";

fn program() -> Program {
    let mut sizes = vec![Size::Sym(0)];
    let mut id = |line: Size| {
        sizes.push(line);
        SizeId(sizes.len() as u32 - 1)
    };
    let images = SizeId(0);
    let [h, w] = SIZE;
    let (row, image) = ((w + 2) * CI, (h + 2) * (w + 2) * CI);
    let mut number = |n: i64| id(Size::Const(n));
    let (zero, one, nine) = (number(0), number(1), number(9));
    let [ci, co, high, wide] = [CI, CO, h, w].map(&mut number);
    let [padded_high, padded_wide] = [h + 2, w + 2].map(&mut number);
    let [row, image, filter, three] = [row, image, 9 * CI, 3].map(&mut number);
    let [weight_bytes, out_row, out_image] = [4 * 9 * CI * CO, w * CO, h * w * CO].map(&mut number);
    let [image_bytes, out_bytes] = [4 * (h + 2) * (w + 2) * CI, 4 * h * w * CO].map(&mut number);
    let x_bytes = id(Size::Mul(images, image_bytes));
    let y_bytes = id(Size::Mul(images, out_bytes));
    let buffer = |name: &str, place, bytes| Buffer {
        name: name.into(),
        dtype: Dt(DType::F32),
        place,
        bytes,
        written: false,
    };
    let level = |size, stride| Level { size, stride };
    let sum = |size, a_stride, b_stride| KLevel {
        size,
        a_stride,
        b_stride,
    };
    Program {
        name: "convolution".into(),
        symbols: vec![Symbol {
            name: "b".into(),
            lower: 1,
            upper: 100,
            source: SymbolSource::Dim {
                input: 0,
                dim: 0,
                factor: 1,
                offset: 0,
            },
        }],
        inputs: vec![Input {
            name: "x".into(),
            ty: InputType::Tensor {
                dtype: Dt(DType::F32),
                sizes: vec![images, padded_high, padded_wide, ci],
                strides: vec![image, row, ci, one],
            },
            reads: Reads::Elements,
        }],
        buffers: vec![
            buffer("x", Place::Input { input: 0 }, x_bytes),
            buffer(
                "w",
                Place::Weight(Weight {
                    name: "w".into(),
                    sizes: vec![CO, CI, 3, 3],
                    strides: vec![9 * CI, 9, 3, 1],
                }),
                weight_bytes,
            ),
            buffer("y", Place::Output { output: 0 }, y_bytes),
        ],
        arena_bytes: zero,
        load_bytes: zero,
        parts: None,
        kernels: vec![Kernel {
            symbol: "epilogue".into(),
            title: "epilogue".into(),
            checks: vec![],
        }],
        steps: vec![Step::Contract(Contract {
            a: 0,
            b: 1,
            a_offset: zero,
            b_offset: zero,
            batch: vec![],
            m: vec![level(images, image), level(high, row), level(wide, ci)],
            n: vec![level(co, filter)],
            // In another order than they are summed.
            k: vec![
                sum(ci, one, nine),
                sum(three, row, three),
                sum(three, ci, one),
            ],
            acc: Dt(DType::F32),
            epilogue: 0,
            buffers: vec![2],
            sizes: vec![],
            store: None,
            origins: vec![],
        })],
        outputs: vec![Output::Tensor {
            buffer: 2,
            dtype: Dt(DType::F32),
            sizes: vec![images, high, wide, co],
            strides: vec![out_image, out_row, co, one],
        }],
        sizes,
        ..Program::default()
    }
}

/// In -1..1, the same everywhere.
fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut x = seed;
    (0..n)
        .map(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 33) as f32 / (1u64 << 30) as f32 - 1.0
        })
        .collect()
}

fn bytes(v: &[f32]) -> Vec<u8> {
    v.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn every_number_of_images() {
    let [h, w] = SIZE.map(|x| x as usize);
    let (ci, co) = (CI as usize, CO as usize);
    let shape = ConvShape::new_2d(2, ci, co, [h + 2, w + 2], [3, 3], 1);
    let algorithm = Conv::choose(&shape, DType::F32, inrush_cpu::detect(), 2);
    assert!(
        matches!(algorithm, ConvAlgorithm::Winograd(_)),
        "{algorithm:?}: nothing would be tested"
    );
    let dir = tempfile::tempdir().unwrap();
    let target = Target {
        isa: Isa::Scalar,
        vector_math: false,
    };
    let cache = Cache::at(dir.path().to_path_buf());
    let source = [SOURCE.to_string()];
    let built = Compiler::find()
        .unwrap()
        .build(&source, &target, &cache)
        .unwrap();
    let weight = noise(co * ci * 9, 1);
    let mut weights = MemoryWeights::default();
    weights.insert("w", DType::F32, vec![CO, CI, 3, 3], bytes(&weight));
    let model = Model::from_parts(Parts {
        program: program(),
        object: &built.path,
        weights: Box::new(weights),
        pool: Arc::new(Pool::new(Some(2)).unwrap()),
    })
    .unwrap();
    for images in [1usize, 2, 3, 1] {
        let x = noise(images * (h + 2) * (w + 2) * ci, 2 + images as u64);
        let sizes = vec![images as i64, SIZE[0] + 2, SIZE[1] + 2, CI];
        let t = Tensor::from_bytes(DType::F32, sizes, &bytes(&x)).unwrap();
        let y = model.run(&[Value::Tensor(t)]).unwrap();
        let Value::Tensor(y) = &y[0] else {
            panic!("a tensor")
        };
        let got: Vec<f32> = y
            .to_bytes()
            .chunks_exact(4)
            .map(|c| f32::from_le_bytes(c.try_into().unwrap()))
            .collect();
        let (mut worst, mut largest) = (0f64, 0f64);
        for (at, got) in got.iter().enumerate() {
            let (pixel, o) = (at / co, at % co);
            let (line, px) = (pixel / w, pixel % w);
            let (image, line) = (line / h, line % h);
            let mut sum = 0f64;
            for (r, c) in (0..9).map(|t| (t / 3, t % 3)) {
                let from = ((image * (h + 2) + line + r) * (w + 2) + px + c) * ci;
                for i in 0..ci {
                    sum += x[from + i] as f64 * weight[(o * ci + i) * 9 + r * 3 + c] as f64;
                }
            }
            worst = worst.max((sum - *got as f64).abs());
            largest = largest.max(sum.abs());
        }
        assert!(
            worst <= 1e-5 * largest,
            "{images} images: {worst} of {largest}"
        );
    }
}
