//! Random bits: Philox 4x32-10 on scalars and vectors.
//!
//! A round is two products of 32 bits with both halves kept. x86 has the instruction for every second lane; elsewhere the
//! lanes are widened.
//!
//! Counter-based generators (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011)
//! need no state: the word at a place depends on the key and the place alone, so that any split
//! among threads gives the same numbers.

use crate::helpers::{Helpers, Name, gcc_only};
use crate::types::CType;
use inrush_base::{Caps, Isa};
use std::fmt::Write;

/// Multipliers of the two products, and what the two words of the key grow by from round to round.
const MULTIPLIERS: [&str; 2] = ["0xd2511f53u", "0xcd9e8d57u"];
const WEYL: [&str; 2] = ["0x9e3779b9u", "0xbb67ae85u"];

impl Helpers {
    /// A word for a key of two words and a counter of two words and a number, whose last two bits say which of the four it is,
    /// over `w` lanes of `i32`. Compilers know the number, and make several words of one counter at once.
    pub(crate) fn philox(&mut self, w: u32, caps: &Caps) -> Name {
        self.once(("philox", "", CType::I32, w), |h| {
            let (int, word) = match w {
                1 => (Name::from("i32"), Name::from("u32")),
                _ => (h.vector(CType::I32, w), h.vector(CType::U32, w)),
            };
            let name = format!("philox_{int}");
            let high = h.high_word(w, caps);
            let mut body = format!(
                "{word} k = ({word})k0, l = ({word})k1, a = ({word})c0, b = ({word})c1, c = ({word})c2 >> 2, d = a ^ a; "
            );
            for round in 0..10 {
                // The key moves on between rounds, by the Weyl sequence.
                if round > 0 {
                    _ = write!(body, "k += {}; l += {}; ", WEYL[0], WEYL[1]);
                }
                let [p, q] = MULTIPLIERS;
                _ = write!(
                    body,
                    "{{ const {word} h = {high}(a, {p}), m = a * {p}, n = {high}(c, {q}), o = c * {q}; \
                     a = n ^ b ^ k; b = o; c = h ^ d ^ l; d = m; }} "
                );
            }
            let params = format!("{int} k0, {int} k1, {int} c0, {int} c1, {int} c2");
            h.function(&name, format_args!("{int} {name}({params})"), |_| {
                let pick = match w {
                    1 => "const u32 w = (u32)c2 & 3; return (i32)(w == 0 ? a : w == 1 ? b : w == 2 ? c : d);".into(),
                    _ => format!(
                        "const {int} w = c2 & 3; \
                         return (({int})a & (w == 0)) | (({int})b & (w == 1)) | (({int})c & (w == 2)) | (({int})d & (w == 3));"
                    ),
                };
                format!("{body}{pick}")
            });
            name
        })
    }

    /// The upper halves of the products with one number.
    fn high_word(&mut self, w: u32, caps: &Caps) -> String {
        if w == 1 {
            let name = "high_u32";
            self.function(name, format_args!("u32 {name}(u32 a, u32 m)"), |_| {
                "return (u32)((u64)a * m >> 32);".into()
            });
            return name.into();
        }
        let (word, long) = (self.vector(CType::U32, w), self.vector(CType::U64, w / 2));
        let name = format!("high_{word}");
        let (int, wide) = (self.vector(CType::I32, w), self.vector(CType::I64, w / 2));
        let bc = self.broadcast(CType::U32, w);
        let (even, odd) = ("a".to_string(), format!("({word})(({long})a >> 32)"));
        // The product of the even lanes of `x` with `m`, 64 bits each.
        let plain = |x: &str| format!("({word})((({long}){x} & 0xffffffffull) * m)");
        let product = |x: &str| {
            let packed = match (caps.isa, 4 * w) {
                (Isa::Avx2 | Isa::Avx512, 16) => "128(",
                (Isa::Avx2 | Isa::Avx512, 32) => "256(",
                (Isa::Avx512, 64) => "512_mask(",
                _ => return plain(x),
            };
            let rest = match 4 * w {
                64 => format!(", ({wide}){{0}}, (u8)-1"),
                _ => String::new(),
            };
            format!("({word})__builtin_ia32_pmuludq{packed}({int}){x}, ({int}){bc}(m){rest})")
        };
        let declare =
            |p: &dyn Fn(&str) -> String| format!("const {word} e = {}, o = {};", p(&even), p(&odd));
        // The upper halves of products of even lanes move over by one, those of odd lanes are in place.
        let lanes: Vec<String> = (0..w)
            .map(|k| (if k % 2 == 0 { k + 1 } else { w + k }).to_string())
            .collect();
        let body = format!(
            "{} return __builtin_shufflevector(e, o, {});",
            gcc_only(&declare(&product), &declare(&plain)),
            lanes.join(", ")
        );
        self.function(
            &name,
            format_args!("{word} {name}({word} a, u32 m)"),
            |_| body,
        );
        name
    }
}
