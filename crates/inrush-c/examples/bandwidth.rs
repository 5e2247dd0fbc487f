//! Rates of typical kernels on large tensors, compared with a copy: `cargo run --release -p inrush-c --example bandwidth`.

#[path = "../tests/common/mod.rs"]
mod common;

use common::*;
use inrush_base::DType;
use inrush_interp::{Tensor, Value};
use std::time::Instant;

struct Case {
    name: &'static str,
    text: String,
    grouping: Grouping,
    /// Bytes that must move.
    bytes: usize,
}

const ROWS: usize = 8192;
const COLS: usize = 1024;

fn pointwise(name: &'static str, body: &str, inputs: usize) -> Case {
    let n = ROWS * COLS;
    let mut text = format!("loops t inputs {inputs}\n");
    for i in 0..inputs {
        text += &format!("b{i} x: f32[{n}] = input {i}\n");
    }
    text += &format!("b{inputs} y: f32[{n}] layout [1] = temp\n");
    text += &format!("body [i0: {n}] {{\n{body}}}\noutput b{inputs}\n");
    Case {
        name,
        text,
        grouping: Grouping::Apart,
        bytes: (inputs + 1) * n * 4,
    }
}

fn cases() -> Vec<Case> {
    let mut out = vec![
        pointwise(
            "add relu",
            "  v0: f32 = load b0[i0]\n  v1: f32 = load b1[i0]\n  v2: f32 = add v0, v1\n  v3: f32 = const 0.0\n  v4: f32 = maximum v2, v3\n  store b2[i0] = v4\n",
            2,
        ),
        pointwise(
            "gelu",
            "  v0: f32 = load b0[i0]\n  v1: f32 = const 0.70710678\n  v2: f32 = mul v0, v1\n  v3: f32 = erf v2\n  v4: f32 = const 1.0\n  v5: f32 = add v3, v4\n  v6: f32 = const 0.5\n  v7: f32 = mul v0, v6\n  v8: f32 = mul v7, v5\n  store b1[i0] = v8\n",
            1,
        ),
        pointwise(
            "silu",
            "  v0: f32 = load b0[i0]\n  v1: f32 = neg v0\n  v2: f32 = exp v1\n  v3: f32 = const 1.0\n  v4: f32 = add v2, v3\n  v5: f32 = div v0, v4\n  store b1[i0] = v5\n",
            1,
        ),
        pointwise(
            "tanh",
            "  v0: f32 = load b0[i0]\n  v1: f32 = tanh v0\n  store b1[i0] = v1\n",
            1,
        ),
    ];
    let (r, c) = (ROWS, COLS);
    let head = format!(
        "loops t inputs 1\nb0 x: f32[{r}, {c}] = input 0\nb1 y: f32[{r}, {c}] layout [{c}, 1] = temp\n\
         b2 m: f32[{r}] layout [1] = temp\nb3 s: f32[{r}] layout [1] = temp\n"
    );
    let local = Grouping::Together {
        axes: 1,
        locals: vec![2, 3],
    };
    out.push(Case {
        name: "softmax",
        text: format!(
            "{head}b4 e: f32[{r}, {c}] layout [{c}, 1] = temp
body [i0: {r}] reduce [i1: {c}] {{
  v0: f32 = load b0[i0, i1]
  v1: f32 = reduce.max v0
  store b2[i0] = v1
}}
body [i0: {r}, i1: {c}] {{
  v0: f32 = load b0[i0, i1]
  v1: f32 = load b2[i0]
  v2: f32 = sub v0, v1
  v3: f32 = exp v2
  store b4[i0, i1] = v3
}}
body [i0: {r}] reduce [i1: {c}] {{
  v0: f32 = load b4[i0, i1]
  v1: f32 = reduce.sum v0
  store b3[i0] = v1
}}
body [i0: {r}, i1: {c}] {{
  v0: f32 = load b4[i0, i1]
  v1: f32 = load b3[i0]
  v2: f32 = div v0, v1
  store b1[i0, i1] = v2
}}
output b1
"
        ),
        grouping: Grouping::Together {
            axes: 1,
            locals: vec![2, 3, 4],
        },
        bytes: 2 * r * c * 4,
    });
    for (name, tail) in [
        ("layer_norm", "  store b1[i0, i1] = v4\n"),
        (
            "layer_norm gelu",
            "  v5: f32 = const 0.70710678\n  v6: f32 = mul v4, v5\n  v7: f32 = erf v6\n  v8: f32 = const 1.0\n  v9: f32 = add v7, v8\n  v10: f32 = const 0.5\n  v11: f32 = mul v4, v10\n  v12: f32 = mul v11, v9\n  store b1[i0, i1] = v12\n",
        ),
    ] {
        out.push(Case {
            name,
            text: format!(
                "{head}body [i0: {r}] reduce [i1: {c}] {{
  v0: f32 = load b0[i0, i1]
  v1: f32 = reduce.sum v0
  v2: f32 = const {c}.0
  v3: f32 = div v1, v2
  store b2[i0] = v3
}}
body [i0: {r}] reduce [i1: {c}] {{
  v0: f32 = load b0[i0, i1]
  v1: f32 = load b2[i0]
  v2: f32 = sub v0, v1
  v3: f32 = mul v2, v2
  v4: f32 = reduce.sum v3
  v5: f32 = const {c}.0
  v6: f32 = div v4, v5
  v7: f32 = const 0.00001
  v8: f32 = add v6, v7
  v9: f32 = rsqrt v8
  store b3[i0] = v9
}}
body [i0: {r}, i1: {c}] {{
  v0: f32 = load b0[i0, i1]
  v1: f32 = load b2[i0]
  v2: f32 = sub v0, v1
  v3: f32 = load b3[i0]
  v4: f32 = mul v2, v3
{tail}}}
output b1
"
            ),
            grouping: local.clone(),
            bytes: 2 * r * c * 4,
        });
    }
    out.push(Case {
        name: "transpose",
        text: format!(
            "loops t inputs 1\nb0 x: f32[{r}, {c}] = input 0\nb1 y: f32[{c}, {r}] layout [{r}, 1] = temp
body [i0: {c}, i1: {r}] {{
  v0: f32 = load b0[i1, i0]
  store b1[i0, i1] = v0
}}
output b1
"
        ),
        grouping: Grouping::Apart,
        bytes: 2 * r * c * 4,
    });
    out.push(Case {
        name: "column sum",
        text: format!(
            "loops t inputs 1\nb0 x: f32[{r}, {c}] = input 0\nb1 y: f32[{c}] layout [1] = temp
body [i0: {c}] reduce [i1: {r}] {{
  v0: f32 = load b0[i1, i0]
  v1: f32 = reduce.sum v0
  store b1[i0] = v1
}}
output b1
"
        ),
        grouping: Grouping::Apart,
        bytes: r * c * 4,
    });
    out.push(Case {
        name: "row sum",
        text: format!(
            "loops t inputs 1\nb0 x: f32[{r}, {c}] = input 0\nb1 y: f32[{r}] layout [1] = temp
body [i0: {r}] reduce [i1: {c}] {{
  v0: f32 = load b0[i0, i1]
  v1: f32 = reduce.sum v0
  store b1[i0] = v1
}}
output b1
"
        ),
        grouping: Grouping::Apart,
        bytes: r * c * 4,
    });
    let n = r * c;
    out.push(Case {
        name: "bf16 gelu",
        text: format!(
            "loops t inputs 1\nb0 x: bf16[{n}] = input 0\nb1 y: bf16[{n}] layout [1] = temp
body [i0: {n}] {{
  v0: f32 = load b0[i0]
  v1: f32 = tanh v0
  v2: f32 = mul v0, v1
  store b1[i0] = v2
}}
output b1
"
        ),
        grouping: Grouping::Apart,
        bytes: 2 * n * 2,
    });
    out.push(Case {
        name: "depthwise 3x3",
        text: "\
loops t inputs 2
b0 x: f32[114, 114, 512] = input 0
b1 w: f32[3, 3, 512] = input 1
b2 y: f32[112, 112, 512] layout [57344, 512, 1] = temp
body [i0: 112, i1: 112, i2: 512] reduce [i3: 3, i4: 3] {
  v0: f32 = load b0[i0 + i3, i1 + i4, i2]
  v1: f32 = load b1[i3, i4, i2]
  v2: f32 = mul v0, v1
  v3: f32 = reduce.sum v2
  store b2[i0, i1, i2] = v3
}
output b2
"
        .into(),
        grouping: Grouping::Apart,
        bytes: (114 * 114 + 112 * 112) * 512 * 4,
    });
    out
}

unsafe extern "C" {
    fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
}

/// Seconds that this thread has run: others may use the machine meanwhile.
fn cpu_seconds() -> f64 {
    const THREAD_CPU: i32 = 3;
    let mut t = [0i64; 2];
    // SAFETY: the clock writes two words.
    unsafe { clock_gettime(THREAD_CPU, &mut t) };
    t[0] as f64 + t[1] as f64 * 1e-9
}

fn best(mut f: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed().as_secs_f64() < 1.0 {
        let t = cpu_seconds();
        f();
        best = best.min(cpu_seconds() - t);
    }
    best
}

fn main() {
    let only = std::env::args().nth(1);
    let caps = machine();
    let n = ROWS * COLS;
    let (a, mut b) = (vec![1.5f32; n], vec![0.5f32; n]);
    let t = best(|| std::hint::black_box(&mut b).copy_from_slice(std::hint::black_box(&a)));
    let copy = 8.0 * n as f64 / t / 1e9;
    println!("{:16} {copy:6.1} GB/s", "copy");
    for case in cases() {
        if only
            .as_ref()
            .is_some_and(|o| !case.name.contains(o.as_str()))
        {
            continue;
        }
        let p = inrush_loops::text::parse(&case.text).unwrap();
        let inputs: Vec<Value> = (p.buffers.iter())
            .take(p.num_inputs)
            .map(|b| {
                let sizes: Vec<i64> = b
                    .sizes
                    .iter()
                    .map(|e| p.exprs.as_int(*e).unwrap())
                    .collect();
                let n = sizes.iter().product::<i64>() as usize;
                let mut t = Tensor::zeros(b.dtype, &sizes).unwrap();
                let mut r = Random(7);
                for k in 0..n {
                    let v = r.float() as f32;
                    match b.dtype {
                        DType::BF16 => t.data[2 * k..2 * k + 2]
                            .copy_from_slice(&((v.to_bits() >> 16) as u16).to_le_bytes()),
                        _ => t.data[4 * k..4 * k + 4].copy_from_slice(&v.to_le_bytes()),
                    }
                }
                Value::Tensor(t)
            })
            .collect();
        let t = Instant::now();
        let c = Compiled::new(p, &case.grouping, &caps).unwrap();
        let built = t.elapsed().as_secs_f64() * 1e3;
        if only.is_some() {
            println!("{}\n{}", c.print(), c.source);
        }
        let known = symbols(&c.loops, &inputs);
        let mut ready = c.prepare(&inputs, &known);
        let t = best(|| ready.launch(i64::MAX / 2).unwrap());
        let rate = case.bytes as f64 / t / 1e9;
        println!(
            "{:16} {rate:6.1} GB/s  {:4.0} % of the copy, {built:.0} ms to build",
            case.name,
            100.0 * rate / copy
        );
    }
}
