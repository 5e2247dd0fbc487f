//! Functions that kernels spell out, at their edges, and branches that only some lanes take, compared with the interpreter.

mod common;

use common::{Compiled, Grouping, builds_for_others, expected, levels, symbols};
use inrush_base::{DType, Scalar};

const EDGES: &[f64] = &[
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    0.0,
    -0.0,
    1.0,
    -1.0,
    1e-45,
    1.1754942e-38,
    3.4028235e38,
    -1e-30,
    1e-8,
    0.99999994,
    -0.99999994,
    1.0000001,
    0.6666667,
    1.3333334,
    3.0,
    -7.5,
    8388609.0,
    16777216.0,
    0.1,
    -2.0,
    1e10,
    5e-40,
];

/// One result of two inputs of which every pair of edges is tried.
fn check(body: &str, tolerance: f64) {
    check_over("[i0: s0]", body, tolerance);
}

/// The same over axes of the caller's.
fn check_over(axes: &str, body: &str, tolerance: f64) {
    let text = format!(
        "loops t inputs 2\nsize s0 in [0, inf]\nb0 x: f32[s0] = input 0\nb1 y: f32[s0] = input 1\n\
         b2 z: f32[s0] layout [1] = temp\nbody {axes} {{\n  v0: f32 = load b0[i0]\n  v1: f32 = load b1[i0]\n{body}}}\noutput b2\n"
    );
    let p = inrush_loops::text::parse(&text).unwrap();
    let pairs: Vec<(f64, f64)> = (EDGES.iter())
        .flat_map(|x| EDGES.iter().map(|y| (*x, *y)))
        .collect();
    let input = |f: fn(&(f64, f64)) -> f64| {
        let scalars: Vec<_> = pairs.iter().map(|p| Scalar::Float(f(p))).collect();
        let sizes = [pairs.len() as i64];
        let t = inrush_interp::Tensor::from_scalars(DType::F32, &sizes, &scalars).unwrap();
        inrush_interp::Value::Tensor(t)
    };
    let inputs = [input(|p| p.0), input(|p| p.1)];
    let want = expected(&p, &inputs).unwrap();
    builds_for_others(&p, &Grouping::Apart);
    for caps in levels() {
        let c = Compiled::new(p.clone(), &Grouping::Apart, &caps).unwrap();
        let got = c.run(&inputs, &symbols(&p, &inputs), i64::MAX / 2).unwrap();
        for (k, (x, y)) in pairs.iter().enumerate() {
            let g = got[0].tensor().unwrap().get(k).unwrap().as_f64();
            let w = want[0].tensor().unwrap().get(k).unwrap().as_f64();
            let same = g == w && g.is_sign_negative() == w.is_sign_negative();
            // Denormals have no digits for less than a step.
            let step = if tolerance > 0.0 { 1.5e-45 } else { 0.0 };
            let near = (g - w).abs() <= (w.abs() * tolerance).max(step);
            let close = same || g.is_nan() && w.is_nan() || near;
            assert!(close, "{caps}: of {x:?} and {y:?} {w:?}, got {g:?}\n{body}");
        }
    }
}

#[test]
fn remainders_are_exact() {
    check("  v2: f32 = fmod v0, v1\n  store b2[i0] = v2\n", 0.0);
    check("  v2: f32 = remainder v0, v1\n  store b2[i0] = v2\n", 0.0);
}

#[test]
fn edges_of_the_logarithm() {
    check("  v2: f32 = log v0\n  store b2[i0] = v2\n", 1.3e-7);
    check("  v2: f32 = log1p v0\n  store b2[i0] = v2\n", 1.3e-7);
}

/// Where results become denormals, nothing or infinite, each step of a half.
#[test]
fn edges_of_the_power_of_two() {
    check("  v2: f32 = exp2 v0\n  store b2[i0] = v2\n", 1.3e-7);
    for at in ["126.5", "-126.5", "-149.5"] {
        let near = format!("  v2: f32 = const {at}\n  v3: f32 = add v2, v1\n  v4: f32 = exp2 v3\n");
        check(&format!("{near}  store b2[i0] = v4\n"), 1.3e-7);
    }
}

#[test]
fn edges_of_the_logarithm_of_the_gamma_function() {
    check("  v2: f32 = lgamma v0\n  store b2[i0] = v2\n", 1e-6);
}

/// Along vectors, and at their end: of equal values the latest, NaN for good, places as numbers of 64 bits.
#[test]
fn running_extremes() {
    for op in ["max", "min"] {
        let extreme = format!("  v2: f32 = add v0, v1\n  v3: f32 = scan.{op} v2\n");
        check_over(
            "[] reduce [i0: s0]",
            &format!("{extreme}  store b2[i0] = v3\n"),
            0.0,
        );
        let place = "  v4: bool = eq v2, v3\n  v5: i64 = index i0\n  v6: i64 = const 0\n  v7: i64 = where v4, v5, v6\n\
                     \x20 v8: i64 = scan.max v7\n  v9: f32 = cast v8 to f32\n  store b2[i0] = v9\n";
        check_over("[] reduce [i0: s0]", &format!("{extreme}{place}"), 0.0);
    }
}

/// Functions on both sides of a selection, one inside the other.
#[test]
fn branches_that_some_lanes_take() {
    let body = "  v2: f32 = const 0.5\n  v3: bool = gt v0, v2\n  v4: f32 = sin v0\n  v5: f32 = atan v4\n  v6: f32 = asinh v5\n\
                \x20 v7: bool = lt v1, v2\n  v8: f32 = atan v1\n  v9: f32 = sin v8\n  v10: f32 = asinh v9\n  v11: f32 = where v7, v10, v0\n\
                \x20 v12: f32 = atan v11\n  v13: f32 = where v3, v6, v12\n  store b2[i0] = v13\n";
    check(body, 1e-6);
}
