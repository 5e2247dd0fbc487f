//! The loop interpreter on programs small enough to check by hand.

use inrush_base::{DType, Scalar};
use inrush_interp::{LoopsOptions, Tensor, Value, loops};
use std::collections::BTreeMap;

fn run(text: &str, inputs: &[Value]) -> Result<Vec<Value>, String> {
    let p = inrush_loops::text::parse(text).map_err(|e| e.to_string())?;
    inrush_loops::verify::verify(&p).map_err(|e| e.to_string())?;
    let none = BTreeMap::new();
    loops(&p, inputs, &none, &BTreeMap::new(), LoopsOptions::default()).map_err(|e| e.to_string())
}

fn f32s(sizes: &[i64], v: &[f64]) -> Value {
    let v: Vec<Scalar> = v.iter().map(|x| Scalar::Float(*x)).collect();
    Value::Tensor(Tensor::from_scalars(DType::F32, sizes, &v).unwrap())
}

fn i64s(sizes: &[i64], v: &[i64]) -> Value {
    let v: Vec<Scalar> = v.iter().map(|x| Scalar::Int(*x)).collect();
    Value::Tensor(Tensor::from_scalars(DType::I64, sizes, &v).unwrap())
}

#[test]
fn reductions_and_scans() {
    let text = "\
loops t inputs 1
size s0 in [0, inf]
b0 x: f32[s0, 3] = input 0
b1 at: i64[s0] layout [1] = temp
b2 run: f32[s0, 3] layout [1, s0] = temp
b3 mean: f32[s0] layout [1] = temp
body [i0: s0] reduce [i1: 3] {
  v0: f32 = load b0[i0, i1]
  v1: i64 = reduce.argmax v0
  v2: f32 = scan.sum v0
  v3: f32 = reduce.sum v0
  v4: f32 = const 3.0
  v5: f32 = div v3, v4
  store b1[i0] = v1
  store b2[i0, i1] = v2
  store b3[i0] = v5
}
output b1
output b2
output b3
";
    let nan = f64::NAN;
    let out = run(text, &[f32s(&[2, 3], &[1., 5., 5., 2., nan, 7.])]).unwrap();
    assert_eq!(out[0], i64s(&[2], &[1, 1]));
    assert_eq!(out[1], f32s(&[2, 3], &[1., 6., 11., 2., nan, nan]));
    assert_eq!(
        out[2].tensor().unwrap().get(0).unwrap(),
        Scalar::Float((11f32 / 3.0) as f64)
    );
    assert_eq!(
        run(text, &[f32s(&[0, 3], &[])]).unwrap()[0],
        i64s(&[0], &[])
    );
    assert!(
        run(text, &[f32s(&[2], &[1., 2.])])
            .unwrap_err()
            .contains("dimensions")
    );
}

#[test]
fn indirect_wraps_checks_and_masks() {
    let text = "\
loops t inputs 2
b0 x: f32[3] = input 0
b1 at: i64[2] = input 1
b2 y: f32[2] layout [1] = temp
body [i0: 2] {
  v0: i64 = load b1[i0]
  j0: 3 = indirect v0 wrap check
  v2: f32 = load b0[j0]
  store b2[i0] = v2
}
output b2
";
    let x = f32s(&[3], &[1., 2., 3.]);
    let ok = run(text, &[x.clone(), i64s(&[2], &[-1, 0])]).unwrap();
    assert_eq!(ok[0], f32s(&[2], &[3., 1.]));
    let e = run(text, &[x, i64s(&[2], &[0, 3])]).unwrap_err();
    assert!(
        e.contains("index 3 is out of range for a dimension of size 3"),
        "{e}"
    );
}

#[test]
fn contractions_with_epilogue_and_atomics() {
    let text = "\
loops t inputs 2
b0 x: f32[2, 3] = input 0
b1 w: f32[2, 3] = input 1
b2 y: f32[2, 2] layout [2, 1] = temp
b3 total: f32[] layout [] = temp
contraction f32 batch [] m [i0: 2] n [i1: 2] k [i2: 3] {
  a = b0[i0, i2]
  b = b1[i1, i2]
  v0: f32 = acc
  v1: f32 = neg v0
  store b2[i0, i1] = v1
}
body [] {
  v0: f32 = const 10.0
  store b3[] = v0
}
body [i0: 2, i1: 2] {
  v0: f32 = load b2[i0, i1]
  store.add b3[] = v0
}
output b2
output b3
";
    let (x, w) = (
        f32s(&[2, 3], &[1., 2., 3., 4., 5., 6.]),
        f32s(&[2, 3], &[1., 0., 0., 0., 1., 1.]),
    );
    let out = run(text, &[x, w]).unwrap();
    assert_eq!(out[0], f32s(&[2, 2], &[-1., -5., -4., -11.]));
    assert_eq!(out[1], f32s(&[], &[-11.]));
}
