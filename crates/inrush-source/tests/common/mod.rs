//! The small program that both languages print.

use inrush_program::Program;
use inrush_program::text::parse;

const PROGRAM: &str = r#"program scaled
symbol n in [2, 64] = input 0 dim 0
size z0 = n
size z1 = 3
size z2 = 1
size z3 = 12
size z4 = 0
size z5 = 2
size z6 = 12 * n
size z7 = n % 2
input 0 x: f32[n, 3] strides [3, 1]
guard z7 == 0 "the size is even"
b0 x: f32 z6 bytes = input 0
b1 scale: f32 12 bytes = weight a.scale [3] strides [1]
b2 half: f32 12 bytes = load arena 0
b3 t: f32 z6 bytes written = arena 0
b4 y: f32 z6 bytes written = output 0
kernel k0 f0 halve checks []
kernel k1 f1 "mul add" checks [index "index out of \"range\""]
kernel k2 f2 sum checks []
arena z6 bytes
load arena 12 bytes
load launch k0 [b1, b2] sizes [] units 1 cost 1 scratch 0 from [aten.div.Tensor]
launch k1 [b0, b2, b3] sizes [n] units n cost 12 scratch 12 serial from [aten.mul.Tensor]
contract f32 b3 at 0, b0 at 0 batch [] m [n: 3] n [3: 1] k [1: 1 1] -> k2 [b4] sizes [] from [aten.mm.default]
output 0: b4 f32[n, 3] strides [3, 1]
"#;

/// Reads the program, with `replacements` in its text.
pub(crate) fn scaled(replacements: &[(&str, &str)]) -> Program {
    let mut text = PROGRAM.to_string();
    for (from, to) in replacements {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}
