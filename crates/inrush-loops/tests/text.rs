//! The text form reads back to what it prints, and the verifier puts its findings on their lines.

use inrush_loops::{Stmt, text, verify};

const ALL: &str = "\
loops everything inputs 2
size s0 in [1, 64] hint 8
unbacked u0 in [0, inf]
origin o0: aten.softmax.int softmax at \"model.py:12\"
origin o1: \"odd op\" x_1
b0 x: f32[s0, 10] layout [10, 1] = input 0
b1 ids: i64[s0] = input 1
b2 w: f16[10, 7] layout [1, 10] offset 3 = weight \"fc/weight\"
b3 m: f32[s0, 1] = temp
b4 y: f16[s0, 7] layout [7, 1] = temp
b5 z: f32[s0, 10] = temp
b6 half: f16[s0, 10] = temp
b7 back: f16[7*s0] layout [1] = alias b4
body [i0: s0] reduce [i1: 10] from o0 o1 {
  v0: f32 = load b0[i0, i1]
  v1: f32 = reduce.max v0
  store b3[i0, 0] = v1
}
body [i0: s0, i1: 10] {
  v0: i64 = load b1[i0]
  v1: bool = const true
  j0: s0 = indirect v0 wrap check if v1
  v3: f32 = load b0[j0, -i1 + 9] if v1 else -inf
  v4: f32 = load b3[i0, 0]
  v5: bool = lt v3, v4
  v6: f32 = where v5, v3, v4
  v7: i64 = index (i0 // 2)
  v8: f32 = cast v7 to bf16
  v9: f32 = add v6, v8
  v10: i32 = bitcast v9 from f32 to i32
  v11: f32 = cast v10 to f32
  store b5[i0, i1] = v11 if v5
  store b6[i0, i1] = v11
}
contraction f32 batch [] m [i0: s0] n [i1: 7] k [i2: 10] from o0 {
  a = b6[i0, i2]
  b = b2[i2, i1]
  v0: f32 = acc
  store b4[i0, i1] = v0
}
output b4
output b0 = b5
output int s0 + 1
output scalar 2.5
output none
";

#[test]
fn text_reads_back() {
    let p = text::parse(ALL).unwrap();
    assert_eq!(p.print(), ALL);
    verify::verify(&p).unwrap();
    let places: Vec<_> = verify::unproven(&p).iter().map(|u| u.dim).collect();
    assert!(places.is_empty(), "{places:?}");
}

#[test]
fn indices_of_one_position_are_told_apart() {
    let t = "loops t inputs 1\nb0 x: f32[4, 8] = input 0\nb1 y: f32[4, 8] = temp\n\
             body [i0: 4, i0.1: 8] {\n  v0: f32 = load b0[i0, i0.1]\n  store b1[i0, i0.1] = v0\n}\n";
    assert_eq!(text::parse(t).unwrap().print(), t);
}

#[test]
fn axes_and_indirect_indices_are_told_apart() {
    for (axis, index) in [("i0", "i1"), ("j0", "j1"), ("i0", "t1")] {
        let text = format!(
            "loops t inputs 1\nb0 x: i64[4] layout [1] = input 0\nb1 y: i64[4] layout [1] = temp\n\
             body [{axis}: 4] {{\n  v0: i64 = load b0[{axis}]\n  {index}: 4 = indirect v0\n  \
             v2: i64 = load b0[{index}]\n  store b1[{axis}] = v2\n}}\noutput b1\n"
        );
        let e = text::parse(&text).unwrap_err().to_string();
        let wrong = if axis == "j0" { axis } else { index };
        assert!(e.contains(&format!("`{wrong}` is not an in")), "{e}");
    }
    let mut p = text::parse(ALL).unwrap();
    let axis = p.exprs.index_sym(7, p.exprs.int(10));
    let body = p.nodes[1].body_mut();
    let Stmt::Indirect { sym, .. } = &mut body.stmts[2] else {
        panic!("the third statement is indirect")
    };
    *sym = axis;
    let e = verify::verify(&p).unwrap_err().to_string();
    assert!(e.contains("i7 is not an indirect index"), "{e}");
}
