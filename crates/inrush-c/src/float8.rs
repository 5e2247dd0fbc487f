//! Conversions between `f32` and the floats of eight bits, for a scalar and for vectors: [`Float8`] in C.

use crate::helpers::{Helpers, Name};
use crate::types::CType;
use inrush_base::{Caps, Float8};
use std::fmt::Write;

/// The types of a conversion of `w` lanes; a scalar where `w` is 1.
struct Lanes {
    w: u32,
    floats: String,
    words: String,
    codes: String,
}

impl Lanes {
    fn new(h: &mut Helpers, w: u32) -> Lanes {
        let mut ty = |scalar: &str, elem| match w {
            1 => scalar.to_string(),
            _ => h.vector(elem, w).to_string(),
        };
        Lanes {
            w,
            floats: ty("f32", CType::F32),
            words: ty("u32", CType::U32),
            codes: ty("u8", CType::U8),
        }
    }

    /// Spells `m ? a : b`.
    fn select(&self, h: &mut Helpers, caps: &Caps, m: &str, a: &str, b: &str) -> String {
        match self.w {
            1 => format!("({m} ? {a} : {b})"),
            w => format!("{}({m}, {a}, {b})", h.select(CType::U32, w, caps)),
        }
    }

    /// Spells the same number in each lane.
    fn all(&self, h: &mut Helpers, n: u32) -> String {
        match self.w {
            1 => format!("{n:#x}u"),
            w => format!("{}({n:#x}u)", h.broadcast(CType::U32, w)),
        }
    }

    /// Spells a conversion of each lane.
    fn convert(&self, h: &mut Helpers, caps: &Caps, x: &str, types: (CType, CType)) -> String {
        match self.w {
            1 => format!("({})({x})", types.1),
            w => h.convert(x, types.0, types.1, w, caps),
        }
    }

    /// Writes the bits of one variable to another of type `ty`.
    fn same(&self, from: &str, to: &str, ty: &str) -> String {
        match self.w {
            1 => format!("__builtin_memcpy(&{to}, &{from}, 4);"),
            _ => format!("{to} = ({ty}){from};"),
        }
    }
}

impl Helpers {
    /// Returns the function from codes to numbers, or with `store` from numbers to the nearest codes: `ld_f8e5m2x8`,
    /// `st_f8e4m3fn`.
    pub(crate) fn float8(
        &mut self,
        kind: &'static str,
        f: Float8,
        store: bool,
        w: u32,
        caps: &Caps,
    ) -> Name {
        let purpose = if store { "store_half" } else { "load_half" };
        self.once((purpose, kind, CType::F32, w), |h| {
            let l = Lanes::new(h, w);
            let suffix = if w == 1 {
                String::new()
            } else {
                format!("x{w}")
            };
            let (direction, body) = if store {
                ("st", encode(h, f, &l, caps))
            } else {
                ("ld", decode(h, f, &l, caps))
            };
            let name = format!("{direction}_{kind}{suffix}");
            let (to, from) = if store {
                (&l.codes, &l.floats)
            } else {
                (&l.floats, &l.codes)
            };
            h.function(&name, format_args!("{to} {name}({from} x)"), |_| body);
            name
        })
    }
}

/// Returns the body of a function from codes: the fraction and the exponent move to their places, denormals are multiples of
/// their step.
fn decode(h: &mut Helpers, f: Float8, l: &Lanes, caps: &Caps) -> String {
    let (shift, rebias, step) = (f.shift(), f.rebias(), f.step());
    let (words, floats) = (&l.words, &l.floats);
    let wide = l.convert(h, caps, "x", (CType::U8, CType::U32));
    let m = match l.w {
        1 => "m".to_string(),
        w => format!("({})m", h.vector(CType::I32, w)),
    };
    let small = l.convert(h, caps, &m, (CType::I32, CType::F32));
    let normal = l.select(h, caps, &format!("m < {}", 1 << f.fraction), "t", "n");
    let mut body = format!(
        "const {words} c = {wide}, m = c & 0x7f; const {floats} tiny = {small} * {step:e}f; {words} t, n; {} \
         n = (m << {shift}) + {rebias:#x}u; n = {normal}; ",
        l.same("tiny", "t", words)
    );
    let nan = l.all(h, 0x7fc0_0000);
    let sign = "n = n | (c & 0x80) << 24; ";
    if f.unsigned_zero {
        let last = l.select(h, caps, "c == 0x80", &nan, "n");
        _ = write!(body, "{sign}n = {last}; ");
    } else {
        let ends = if f.beyond == f.nan {
            nan
        } else {
            format!("((m << {shift}) | 0x7f800000u)")
        };
        let last = l.select(h, caps, &format!("m > {}", f.largest), &ends, "n");
        _ = write!(body, "n = {last}; {sign}");
    }
    body + &format!("{floats} r; {} return r;", l.same("n", "r", floats))
}

/// Returns the body of a function to codes, rounding to the nearest, ties to even. Adding a number whose last place is the step of
/// denormals rounds these.
fn encode(h: &mut Helpers, f: Float8, l: &Lanes, caps: &Caps) -> String {
    let (shift, rebias) = (f.shift(), f.rebias());
    let (words, floats) = (&l.words, &l.floats);
    let place = f.step() * (1 << 23) as f32;
    let half = (1u32 << (shift - 1)) - 1;
    let mut body = format!(
        "{words} u, p, code; {} const {words} a = u & 0x7fffffff; {floats} y; {} const {floats} q = y + {place:e}f; {} \
         const {words} normal = (a - {rebias:#x}u + {half:#x}u + (a >> {shift} & 1)) >> {shift}, small = p - {:#x}u; ",
        l.same("x", "u", words),
        l.same("a", "y", floats),
        l.same("q", "p", words),
        place.to_bits(),
    );
    let is_small = format!("a < {:#x}u", f.smallest_normal());
    let is_large = format!("a >= {:#x}u", f.limit);
    let beyond = l.all(h, f.beyond);
    let mut choices = vec![
        l.select(h, caps, &is_small, "small", "normal"),
        l.select(h, caps, &is_large, &beyond, "code"),
    ];
    if f.beyond != f.nan {
        let nan = l.all(h, f.nan);
        choices.push(l.select(h, caps, "a > 0x7f800000u", &nan, "code"));
    }
    for choice in choices {
        _ = write!(body, "code = {choice}; ");
    }
    let signed = "(code | (u >> 24 & 0x80))";
    let code = if f.unsigned_zero {
        l.select(h, caps, "code == 0", "code", signed)
    } else {
        signed.to_string()
    };
    let narrow = l.convert(h, caps, &code, (CType::U32, CType::U8));
    body + &format!("return {narrow};")
}
