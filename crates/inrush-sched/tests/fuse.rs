//! What fuses, and what the kernels look like.

use inrush_base::{Caps, Isa};
use inrush_loops::{text, verify};
use inrush_sched::{Options, Plan, Step, schedule};

fn plan(t: &str) -> Plan {
    let loops = text::parse(t).unwrap();
    verify::verify(&loops).unwrap();
    let p = schedule(loops, &Caps::cpu(Isa::Avx512, 2), &Options::default()).unwrap();
    println!("{}", p.print());
    verify::verify(&p.to_loops()).unwrap();
    p
}

fn kernel(p: &Plan, at: usize) -> &inrush_sched::Group {
    match &p.steps[at] {
        Step::Kernel(g) => g,
        Step::Contraction(_) => panic!("a contraction"),
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
