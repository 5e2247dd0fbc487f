//! Fusion of small programs, and the kernels that it gives.

use inrush_base::{Caps, Isa};
use inrush_loops::{text, verify};
use inrush_sched::{Options, Plan, Step, schedule};

fn plan(t: &str) -> Plan {
    let loops = text::parse(t).unwrap();
    verify::verify(&loops).unwrap();
    let p = schedule(loops, &Caps::cpu(Isa::Avx512, 2), &Options::default()).unwrap();
    println!("{}", p.print());
    inrush_sched::verify(&p).unwrap();
    p
}

fn kernel(p: &Plan, at: usize) -> &inrush_sched::Group {
    match &p.steps[at] {
        Step::Kernel(g) => g,
        _ => panic!("no kernel"),
    }
}

#[test]
fn softmax_is_one_kernel_over_rows() {
    let p = plan(
        "loops softmax inputs 1
b0 x: f32[64, 1000] = input 0
b1 m: f32[64, 1] = temp
b2 e: f32[64, 1000] = temp
b3 s: f32[64, 1] = temp
b4 y: f32[64, 1000] layout [1000, 1] = temp
body [i0: 64] reduce [i1: 1000] {
  v0: f32 = load b0[i0, i1]
  v1: f32 = reduce.max v0
  store b1[i0, 0] = v1
}
body [i0: 64, i1: 1000] {
  v0: f32 = load b0[i0, i1]
  v1: f32 = load b1[i0, 0]
  v2: f32 = sub v0, v1
  v3: f32 = exp v2
  store b2[i0, i1] = v3
}
body [i0: 64] reduce [i1: 1000] {
  v0: f32 = load b2[i0, i1]
  v1: f32 = reduce.sum v0
  store b3[i0, 0] = v1
}
body [i0: 64, i1: 1000] {
  v0: f32 = load b2[i0, i1]
  v1: f32 = load b3[i0, 0]
  v2: f32 = div v0, v1
  store b4[i0, i1] = v2
}
output b4
",
    );
    assert_eq!(p.steps.len(), 1);
    let g = kernel(&p, 0);
    assert_eq!(g.axes.len(), 1);
    // amax, then exp with its sum, then the quotient.
    assert_eq!(g.bodies.len(), 3);
    assert_eq!(g.locals.len(), 3);
}

#[test]
fn a_convolution_takes_its_followers_and_writes_into_the_padded_buffer() {
    let p = plan(
        "loops conv inputs 1
b0 x: f32[2, 8, 16, 16] layout [2048, 256, 16, 1] = input 0
b1 w: f32[8, 8, 1, 1] layout [8, 1, 1, 1] = weight w
b2 v: f32[8, 8, 3, 3] layout [72, 9, 3, 1] = weight v
b3 bias: f32[8] layout [1] = weight bias
b4 t: f32[2, 8, 16, 16] = temp
b5 r: f32[2, 8, 16, 16] = temp
b6 p: f32[2, 8, 18, 18] = temp
b7 u: f32[2, 8, 16, 16] = temp
b8 y: f32[2, 8, 16, 16] layout [2048, 256, 16, 1] = temp
contraction f32 batch [] m [i0: 2, i1: 16, i2: 16] n [i3: 8] k [i4: 8] {
  a = b0[i0, i4, i1, i2]
  b = b1[i3, i4, 0, 0]
  v0: f32 = acc
  store b4[i0, i3, i1, i2] = v0
}
body [i0: 2, i1: 8, i2: 16, i3: 16] {
  v0: f32 = load b4[i0, i1, i2, i3]
  v1: f32 = load b3[i1]
  v2: f32 = add v0, v1
  v3: f32 = const 0.0
  v4: f32 = maximum v2, v3
  store b5[i0, i1, i2, i3] = v4
}
body [i0: 2, i1: 8, i2: 18, i3: 18] {
  v0: i64 = index i2 - 1
  v1: i64 = const 0
  v2: bool = ge v0, v1
  v3: i64 = const 16
  v4: bool = lt v0, v3
  v5: bool = and v2, v4
  v6: i64 = index i3 - 1
  v7: bool = ge v6, v1
  v8: bool = and v5, v7
  v9: bool = lt v6, v3
  v10: bool = and v8, v9
  v11: f32 = load b5[i0, i1, i2 - 1, i3 - 1] if v10 else 0.0
  store b6[i0, i1, i2, i3] = v11
}
contraction f32 batch [] m [i0: 2, i1: 16, i2: 16] n [i3: 8] k [i4: 3, i5: 3, i6: 8] {
  a = b6[i0, i6, i1 + i4, i2 + i5]
  b = b2[i3, i6, i4, i5]
  v0: f32 = acc
  store b7[i0, i3, i1, i2] = v0
}
body [i0: 2, i1: 8, i2: 16, i3: 16] {
  v0: f32 = load b7[i0, i1, i2, i3]
  v1: f32 = load b5[i0, i1, i2, i3]
  v2: f32 = add v0, v1
  store b8[i0, i1, i2, i3] = v2
}
output b8
",
    );
    // The border, the two convolutions.
    assert_eq!(p.steps.len(), 3);
    assert_eq!(kernel(&p, 0).bodies.len(), 2);
    let Step::Contraction(c) = &p.steps[1] else {
        panic!("a kernel")
    };
    assert_eq!(c.epilogue.stmts.len(), 6);
    // Channels last.
    let padded = p.loops.buffers[6].layout.as_ref().unwrap();
    assert!(p.loops.exprs.is_int(padded.strides[1], 1));
    let Step::Contraction(c) = &p.steps[2] else {
        panic!("a kernel")
    };
    assert_eq!(c.epilogue.reads().len(), 1);
}

#[test]
fn a_long_sum_is_split_over_threads() {
    let p = plan(
        "loops sum inputs 1
b0 x: f32[1048576] layout [1] = input 0
b1 y: f32[] layout [] = temp
body [] reduce [i0: 1048576] {
  v0: f32 = load b0[i0]
  v1: f32 = exp v0
  v2: f32 = reduce.sum v1
  v3: f32 = sqrt v2
  store b1[] = v3
}
output b1
",
    );
    assert_eq!(p.steps.len(), 2);
    assert_eq!(kernel(&p, 0).axes.len(), 1);
    assert_eq!(kernel(&p, 1).bodies[0].axes.len(), 1);
}

#[test]
fn two_readers_of_an_expensive_value_share_one_kernel() {
    let p = plan(
        "loops siblings inputs 1
b0 x: f32[100, 64] layout [64, 1] = input 0
b1 e: f32[100, 64] = temp
b2 y: f32[100, 64] layout [64, 1] = temp
b3 z: f32[6400] layout [1] = temp
body [i0: 100, i1: 64] {
  v0: f32 = load b0[i0, i1]
  v1: f32 = exp v0
  store b1[i0, i1] = v1
}
body [i0: 100, i1: 64] {
  v0: f32 = load b1[i0, i1]
  v1: f32 = neg v0
  store b2[i0, i1] = v1
}
body [i0: 6400] {
  v0: f32 = load b1[(i0 // 64), (i0 % 64)]
  v1: f32 = tanh v0
  store b3[i0] = v1
}
output b2
output b3
",
    );
    assert_eq!(p.steps.len(), 1);
    let g = kernel(&p, 0);
    // One loop over everything, one body, two results.
    assert_eq!((g.axes.len(), g.bodies.len()), (1, 1));
    assert_eq!(g.bodies[0].writes().len(), 2);
    assert!(g.locals.is_empty());
}

#[test]
fn an_input_is_overwritten_after_its_last_read() {
    let p = plan(
        "loops mutate inputs 1
b0 x: f32[8, 8] layout [8, 1] = input 0
b1 a: f32[8, 8] = temp
b2 y: f32[8, 8] layout [8, 1] = temp
body [i0: 8, i1: 8] {
  v0: f32 = load b0[i0, i1]
  v1: f32 = exp v0
  store b1[i0, i1] = v1
}
body [i0: 8, i1: 8] {
  v0: f32 = load b0[-i0 + 7, i1]
  store b2[i0, i1] = v0
}
output b0 = b1
output b2
",
    );
    let writer = p
        .steps
        .iter()
        .position(|s| s.writes().contains(&inrush_loops::BufId(0)));
    let reader = p
        .steps
        .iter()
        .position(|s| s.writes().contains(&inrush_loops::BufId(2)));
    assert!(reader < writer, "{reader:?} {writer:?}");
}

#[test]
fn refusals_carry_reasons() {
    let p = plan(
        "loops refused inputs 1
origin o0: a first
origin o1: b second
b0 x: f32[64, 64] layout [64, 1] = input 0
b1 e: f32[64, 64] = temp
b2 y: f32[64, 64] layout [64, 1] = temp
b3 z: f32[64, 64] layout [64, 1] = temp
body [i0: 64, i1: 64] from o0 {
  v0: f32 = load b0[i0, i1]
  v1: f32 = exp v0
  store b1[i0, i1] = v1
}
body [i0: 64, i1: 64] from o1 {
  v0: f32 = load b1[i0, i1]
  v1: f32 = load b1[-i0 + 63, i1]
  v2: f32 = add v0, v1
  store b2[i0, i1] = v2
}
output b1
output b2
"
        .replace(
            "b1 e: f32[64, 64] = temp",
            "b1 e: f32[64, 64] layout [64, 1] = temp",
        )
        .as_str(),
    );
    assert_eq!(p.steps.len(), 2);
    let text: Vec<String> = p.refusals.iter().map(|r| p.show_refusal(r)).collect();
    assert!(
        text.contains(&"first -> second: reads_other_points".into()),
        "{text:?}"
    );
}

/// `NODES=20000 cargo test --release -p inrush-sched --test fuse chain -- --nocapture` prints how long the stages take.
#[test]
fn a_long_chain_becomes_kernels_of_bounded_size() {
    use std::fmt::Write;
    let n: usize = std::env::var("NODES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(2000);
    let mut t = String::from("loops chain inputs 1\nb0 x: f32[64, 64] layout [64, 1] = input 0\n");
    for k in 1..=n {
        let layout = if k == n { " layout [64, 1]" } else { "" };
        _ = writeln!(t, "b{k} t: f32[64, 64]{layout} = temp");
    }
    for k in 1..=n {
        let other = k.saturating_sub(10);
        let other = if k % 7 == 0 { other } else { k - 1 };
        _ = writeln!(
            t,
            "body [i0: 64, i1: 64] {{\n  v0: f32 = load b{}[i0, i1]\n  v1: f32 = load b{other}[i0, i1]\n  v2: f32 = add v0, v1\n  v3: f32 = tanh v2\n  store b{k}[i0, i1] = v3\n}}",
            k - 1
        );
    }
    _ = writeln!(t, "output b{n}");
    let loops = text::parse(&t).unwrap();
    let (caps, options) = (Caps::cpu(Isa::Avx512, 2), Options::default());
    let start = std::time::Instant::now();
    let mut p = inrush_sched::fuse(loops, &caps, &options).unwrap();
    let fused = start.elapsed();
    inrush_sched::layout(&mut p, &caps, &options).unwrap();
    let arranged = start.elapsed();
    inrush_sched::plan_memory(&mut p).unwrap();
    let took = start.elapsed();
    println!(
        "{} kernels: fuse {fused:?}, layout {:?}, memory {:?}",
        p.steps.len(),
        arranged - fused,
        took - arranged
    );
    inrush_sched::verify(&p).unwrap();
    assert!(p.steps.len() <= n / 40, "{}", p.steps.len());
    let longest = p
        .steps
        .iter()
        .flat_map(|s| s.bodies())
        .map(|b| b.stmts.len())
        .max();
    assert!(longest <= Some(options.max_stmts), "{longest:?}");
}
