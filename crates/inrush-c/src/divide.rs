//! Remainders of divisions, and integer operations with their edge cases.
//!
//! `fmod` is exact: `x - trunc(x / y) * y` without any rounding of the result. The library's
//! function takes one lane at a time. Where the quotient is small, one division and a correction
//! give the same bits. A vector with any other lane goes the next slower way: `f32` with fused
//! multiply-add, then `f64`, then the library.

use crate::helpers::{Helpers, Name};
use crate::types::CType;
use inrush_base::{Caps, Isa};

impl Helpers {
    /// Returns a helper for the remainder of `f32` by lanes: `fmod` with the sign of the dividend, `remainder` with that of the divisor.
    pub(crate) fn left_over(&mut self, which: &'static str, w: u32, caps: &Caps) -> Name {
        self.once(("left_over", which, CType::F32, w), |h| {
            // By eight, whose tests are one instruction.
            if w > 8 && w.is_multiple_of(8) {
                let eight = h.left_over(which, 8, caps);
                return h.by_parts(&eight, CType::F32, 8, w, 2);
            }
            let (v, i) = (h.vector(CType::F32, w), h.vector(CType::I32, w));
            let fmod = match caps.isa {
                Isa::Scalar => h.left_over_wide(w, caps),
                Isa::Avx2 | Isa::Avx512 | Isa::Neon => h.left_over_narrow(w, caps),
            };
            if which == "fmod" {
                return fmod;
            }
            let name = format!("remainder_{v}");
            let sel = h.select(CType::F32, w, caps);
            let zero = h.broadcast(CType::F32, w);
            h.function(&name, format_args!("{v} {name}({v} x, {v} y)"), |_| {
                format!(
                    "const {v} r = {fmod}(x, y), z = {zero}(0.0f); \
                     return {sel}(({i})(r != z) & (({i})(y < z) ^ ({i})(r < z)), r + y, r);"
                )
            });
            name
        })
    }

    /// `fmod` in `f32`, where the processor multiplies and adds with one rounding: a quotient below 2^23 is cut to the whole
    /// number below it or to the next one, and what either leaves is a multiple of the divisor's last place no greater than the
    /// divisor, so it is exact. The rest goes the wide way.
    fn left_over_narrow(&mut self, w: u32, caps: &Caps) -> String {
        let slow = self.left_over_wide(w, caps);
        let (v, i) = (self.vector(CType::F32, w), self.vector(CType::I32, w));
        let (number, bits) = (self.broadcast(CType::F32, w), self.broadcast(CType::I32, w));
        let trunc = self.rounding("trunc", CType::F32, w, caps);
        let all = self.lanes_test("all", CType::I32, w, caps);
        let name = format!("fmod_{v}");
        self.function(&name, format_args!("{v} {name}({v} x, {v} y)"), |_| {
            format!(
                "const {i} sign = ({i})x & {bits}(-2147483647-1); \
                 const {v} a = ({v})(({i})x ^ sign), b = ({v})(({i})y & {bits}(2147483647)), q = a / b; \
                 const {i} easy = (q < {number}(0x1p23f)) & (b < {number}(__builtin_inff())); \
                 if (__builtin_expect(!{all}(easy), 0)) return {slow}(x, y); \
                 {v} r = a - {trunc}(q) * b; r += ({v})(({i})b & (r < {number}(0.0f))); \
                 return ({v})(({i})r | sign);"
            )
        });
        name
    }

    /// `fmod` of `f32` in `f64`, where the product of a whole quotient of up to 29 bits and a finite divisor is exact, and so is
    /// what it leaves; the rest is the library's.
    fn left_over_wide(&mut self, w: u32, caps: &Caps) -> String {
        // By four, whose quotients fill a register.
        if w > 4 && w.is_multiple_of(4) {
            let four = self.left_over_wide(4, caps);
            return self.by_parts(&four, CType::F32, 4, w, 2);
        }
        let (v, d) = (self.vector(CType::F32, w), self.vector(CType::F64, w));
        let (i, l) = (self.vector(CType::I32, w), self.vector(CType::I64, w));
        let one = self.libm("fmod", CType::F32, 2);
        let slow = self.by_lane(&one, CType::F32, w, 2);
        let wide = self.broadcast(CType::F64, w);
        let bits = self.broadcast(CType::I32, w);
        let all = self.lanes_test("all", CType::I64, w, caps);
        let name = format!("wide_fmod_{v}");
        self.function(&name, format_args!("{v} {name}({v} x, {v} y)"), |_| {
            format!(
                "const {i} sign = ({i})x & {bits}(-2147483647-1); \
                 const {d} a = __builtin_convertvector(({v})(({i})x ^ sign), {d}); \
                 const {d} b = __builtin_convertvector(({v})(({i})y & {bits}(2147483647)), {d}); \
                 const {d} q = a / b; const {l} easy = (q < {wide}(536870912.0)) & (b < {wide}(0x1p128)); \
                 if (__builtin_expect(!{all}(easy), 0)) return {slow}(x, y); \
                 {d} r = a - __builtin_convertvector(__builtin_convertvector(q, {i}), {d}) * b; \
                 r += ({d})(({l})b & (r < {wide}(0.0))); \
                 return ({v})(({i})__builtin_convertvector(r, {v}) | sign);"
            )
        });
        name
    }

    /// Integer division and shifts with their edge cases; floats for `remainder`. Scalars.
    pub(crate) fn guarded(&mut self, which: &'static str, elem: CType) -> Name {
        self.once(("guarded", which, elem, 1), |h| {
            let name = format!("{which}_{elem}");
            // On x86 a division by zero traps, and so does the least integer by -1: neither is
            // evaluated.
            let signed = !elem.is_unsigned();
            let bits = elem.bytes() * 8;
            let body = match which {
                "truncdiv" if signed => "return b == 0 ? 0 : b == -1 ? -a : a / b;".into(),
                "truncdiv" | "floordiv" if !signed => "return b == 0 ? 0 : a / b;".into(),
                "fmod" if signed => "return b == 0 || b == -1 ? 0 : a % b;".into(),
                "fmod" | "remainder" if !signed => "return b == 0 ? 0 : a % b;".into(),
                // Floors: one less than C's quotient where signs differ and something is left over.
                "floordiv" => format!(
                    "if (b == 0) return 0; if (b == -1) return -a; \
                     {elem} q = a / b; return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;"
                ),
                "remainder" if elem.is_float() => {
                    let f = h.libm("fmod", elem, 2);
                    format!(
                        "{elem} r = {f}(a, b); return r != 0 && (b < 0) != (r < 0) ? r + b : r;"
                    )
                }
                "remainder" => format!(
                    "if (b == 0 || b == -1) return 0; \
                     {elem} r = a % b; return r != 0 && (b < 0) != (r < 0) ? r + b : r;"
                ),
                // C leaves shifts by the width or more open. All bits are gone then; a right shift
                // keeps the sign.
                "shl" => format!("return (u64)b >= {bits} ? 0 : ({elem})((u64)a << b);"),
                _ => {
                    let out = if signed { "a < 0 ? -1 : 0" } else { "0" };
                    format!("return (u64)b >= {bits} ? ({out}) : ({elem})(a >> b);")
                }
            };
            h.function(
                &name,
                format_args!("{elem} {name}({elem} a, {elem} b)"),
                |_| body,
            );
            name
        })
    }
}
