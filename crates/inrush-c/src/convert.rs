//! Conversions: between dtypes with PyTorch's rounding and ranges, half types in memory, bits as another type.

use crate::helpers::{Helpers, Name, gcc_only};
use crate::types::{self, CType, each_lane};
use inrush_base::{Caps, DType, Float8, Isa};
use std::fmt::Write;

impl Helpers {
    /// Lanes of `from` as lanes of `to`, both C types.
    pub(crate) fn convert(
        &mut self,
        x: &str,
        from: CType,
        to: CType,
        w: u32,
        caps: &Caps,
    ) -> String {
        let v = self.vector(to, w);
        // AVX2 has no instruction for it, AVX-512 has.
        if to == CType::I64 && from.is_float() && w.is_multiple_of(4) && caps.isa == Isa::Avx2 {
            let f = self.whole(from, w, caps);
            return format!("{f}({x})");
        }
        let (read, written) = (from.bytes(), to.bytes());
        // Between small integers and floats there are instructions by way of 32 bits only.
        if to.is_float() && read < 4 || from.is_float() && written < 4 {
            let x = self.convert(x, from, CType::I32, w, caps);
            return self.convert(&x, CType::I32, to, w, caps);
        }
        if read == 4 && written == 1 && w == 8 && caps.isa == Isa::Avx2 {
            let f = self.narrow_eight(from, to);
            return format!("{f}({x})");
        }
        if caps.isa == Isa::Avx512
            && w == 16
            && matches!((read, written), (1, 4) | (4, 1))
            && !from.is_float()
        {
            let f = self.four_fold(from, to);
            return format!("{f}({x})");
        }
        // gcc takes vectors apart whose elements become four times as wide or a fourth; halving and doubling are instructions.
        let mut x = x.to_string();
        let (mut bytes, kind) = (read, if written > read { from } else { to });
        while bytes * 2 < written || bytes > written * 2 {
            bytes = if bytes < written {
                bytes * 2
            } else {
                bytes / 2
            };
            let step = self.vector(types::int_of(bytes, kind.is_unsigned()), w);
            x = format!("__builtin_convertvector({x}, {step})");
        }
        format!("__builtin_convertvector({x}, {v})")
    }

    /// Eight lanes of four bytes each as bytes with AVX2, as a shuffle of their bytes.
    fn narrow_eight(&mut self, from: CType, to: CType) -> String {
        let (from, v) = (self.vector(from, 8), self.vector(to, 8));
        let (bytes, words) = (self.vector(CType::I8, 32), self.vector(CType::I64, 4));
        let name = format!("narrow_{from}_{v}");
        let places: Vec<String> = (0..32).map(|k| (k % 8 * 4).to_string()).collect();
        let places = places.join(",");
        self.function(&name, format_args!("{v} {name}({from} x)"), |_| {
            gcc_only(
                &format!(
                    "return ({v})(({words})__builtin_shuffle(({bytes})x, ({bytes}){{{places}}}))[0];"
                ),
                &format!("return __builtin_convertvector(x, {v});"),
            )
        });
        name
    }

    /// Sixteen bytes as lanes of four bytes each, or back, with AVX-512: one instruction.
    fn four_fold(&mut self, from: CType, to: CType) -> String {
        let (x, v) = (self.vector(from, 16), self.vector(to, 16));
        let words = self.vector(CType::I32, 16);
        let name = format!("four_fold_{x}_{v}");
        let call = match (from.bytes(), from.is_unsigned()) {
            (1, true) => format!("pmovzxbd512_mask((chars)x, ({words}){{0}}, (u16)-1)"),
            (1, false) => format!("pmovsxbd512_mask((chars)x, ({words}){{0}}, (u16)-1)"),
            _ => format!("pmovdb512_mask(({words})x, (chars){{0}}, (u16)-1)"),
        };
        self.function(&name, format_args!("{v} {name}({x} x)"), |_| {
            gcc_only(
                &format!(
                    "typedef char chars __attribute__((vector_size(16))); return ({v})__builtin_ia32_{call};"
                ),
                &format!("return __builtin_convertvector(x, {v});"),
            )
        });
        name
    }

    /// Floats toward zero as `i64`, for which there is no instruction: added to 1.5 * 2^52, whole numbers below 2^51 are the low
    /// bits of the sum. Others go one by one.
    fn whole(&mut self, from: CType, w: u32, caps: &Caps) -> String {
        let (x, v) = (self.vector(from, w), self.vector(CType::I64, w));
        let name = format!("whole_{x}");
        let trunc = self.rounding("trunc", from, w, caps);
        let (part, d, l) = (
            self.vector(from, 4),
            self.vector(CType::F64, 4),
            self.vector(CType::I64, 4),
        );
        let (wide, bits, limit) = (
            self.broadcast(CType::F64, 4),
            self.broadcast(CType::I64, 4),
            self.broadcast(from, 4),
        );
        let test = match from {
            CType::F32 => "__builtin_ia32_movmskps",
            _ => "__builtin_ia32_movmskpd256",
        };
        self.function(&name, format_args!("{v} {name}({x} x)"), |_| {
            let mut body = format!("const {x} t = {trunc}(x); i32 easy = 15; {v} r; ");
            for k in 0..w / 4 {
                _ = write!(
                    body,
                    "{{ const {part} y = (({part}u *)&t)[{k}]; \
                     easy &= {test}(({part})((y < {limit}(0x1p51)) & (y > {limit}(-0x1p51)))); \
                     (({l}u *)&r)[{k}] = ({l})(__builtin_convertvector(y, {d}) + {wide}(0x1.8p52)) - {bits}(0x4338000000000000); }} "
                );
            }
            body + &format!("if (easy != 15) for (i32 k = 0; k < {w}; k++) r[k] = (i64)x[k]; return r;")
        });
        name
    }

    /// Returns the function whose upper 16 bits are those of the nearest `bf16` of each lane; NaN stays NaN with its sign.
    fn nearest_bf16(&mut self, w: u32, caps: &Caps) -> Name {
        self.once(("nearest", "bf16", CType::F32, w), |h| {
            let (fv, uv) = (h.vector(CType::F32, w), h.vector(CType::U32, w));
            let sel = h.select(CType::U32, w, caps);
            let name = format!("nearest_bf16x{w}");
            h.function(&name, format_args!("{uv} {name}({fv} x)"), |_| {
                let generic = format!("return {sel}(x != x, quiet, r);");
                // gcc makes three operations of a selection by a comparison, instead of one by the mask.
                let select = match (caps.isa, w) {
                    (Isa::Avx512, 16) => gcc_only(
                        &format!(
                            "return ({uv})__builtin_ia32_blendmps_512_mask(({fv})r, ({fv})quiet, \
                             __builtin_ia32_cmpps512_mask(x, x, 3, (u16)-1, 4));"
                        ),
                        &generic,
                    ),
                    _ => generic,
                };
                format!(
                    "const {uv} u = ({uv})x, r = u + 0x7fff + (u >> 16 & 1), quiet = u | 0x400000; {select}"
                )
            });
            name
        })
    }

    /// Returns the function that rounds each lane to the nearest value of a half type without leaving the vector.
    pub(crate) fn rounded(&mut self, kind: &'static str, w: u32, caps: &Caps) -> Name {
        self.once(("rounded", kind, CType::F32, w), |h| {
            let fv = h.vector(CType::F32, w);
            let name = format!("rnd_{kind}x{w}");
            let body = match kind {
                "bf16" => {
                    let nearest = h.nearest_bf16(w, caps);
                    format!("return ({fv})({nearest}(x) & 0xffff0000u);")
                }
                _ => {
                    let (st, ld) = (h.half(kind, true, w, caps), h.half(kind, false, w, caps));
                    format!("return {ld}({st}(x));")
                }
            };
            h.function(&name, format_args!("{fv} {name}({fv} x)"), |_| body);
            name
        })
    }

    /// Value of the bits of a half (`f16`, `bf16` or a float of eight bits) and back, scalar for `w == 1`: `ld_f16x8`, `st_bf16`.
    pub(crate) fn half(&mut self, kind: &'static str, store: bool, w: u32, caps: &Caps) -> Name {
        if let Some(f) = DType::parse(kind).and_then(Float8::of) {
            return self.float8(kind, f, store, w, caps);
        }
        self.once((if store { "store_half" } else { "load_half" }, kind, CType::F32, w), |h| {
            let dir = if store { "st" } else { "ld" };
            let native = caps.isa == Isa::Avx2 || caps.isa == Isa::Avx512;
            if w == 1 {
                let name = format!("{dir}_{kind}");
                let body = match (kind, store) {
                    ("bf16", false) => {
                        "u32 u = (u32)x << 16; f32 r; __builtin_memcpy(&r, &u, 4); return r;".into()
                    }
                    ("bf16", true) => {
                        "u32 u; __builtin_memcpy(&u, &x, 4); if (x != x) return (u16)(u >> 16 | 0x40); \
                         return (u16)((u + 0x7fff + (u >> 16 & 1)) >> 16);"
                            .into()
                    }
                    (_, false) => F16_LOAD.to_string(),
                    (_, true) => F16_STORE.to_string(),
                };
                let signature = if store {
                    format!("u16 {name}(f32 x)")
                } else {
                    format!("f32 {name}(u16 x)")
                };
                h.function(&name, format_args!("{signature}"), |_| body);
                return name;
            }
            let (fv, hv) = (h.vector(CType::F32, w), h.vector(CType::U16, w));
            let name = format!("{dir}_{kind}x{w}");
            let signature = if store {
                format!("{hv} {name}({fv} x)")
            } else {
                format!("{fv} {name}({hv} x)")
            };
            let body = match (kind, store) {
                ("bf16", false) => {
                    let uv = h.vector(CType::U32, w);
                    format!("return ({fv})(__builtin_convertvector(x, {uv}) << 16);")
                }
                ("bf16", true) => {
                    let nearest = h.nearest_bf16(w, caps);
                    format!("return __builtin_convertvector({nearest}(x) >> 16, {hv});")
                }
                _ => {
                    let scalar = h.half(kind, store, 1, caps);
                    let target = if store { &hv } else { &fv };
                    let loops = format!(
                        "{target} r; {} r[k] = {scalar}(x[k]); return r;",
                        each_lane(&w.to_string())
                    );
                    if caps.isa == Isa::Avx512 && w == 16 {
                        let bits = h.vector(CType::I16, 16);
                        let call = if store {
                            format!(
                                "({hv})__builtin_ia32_vcvtps2ph512_mask(x, 0, ({bits}){{0}}, (u16)-1)"
                            )
                        } else {
                            format!(
                                "__builtin_ia32_vcvtph2ps512_mask(({bits})x, ({fv}){{0}}, (u16)-1, 4)"
                            )
                        };
                        gcc_only(&format!("return {call};"), &loops)
                    } else if native && w.is_multiple_of(8) {
                        let (f8, h8) = (h.vector(CType::F32, 8), h.vector(CType::I16, 8));
                        let mut body = format!("{target} r; ");
                        for at in 0..w / 8 {
                            _ = if store {
                                write!(
                                    body,
                                    "(({h8}u *)&r)[{at}] = ({h8})__builtin_ia32_vcvtps2ph256((({f8}u *)&x)[{at}], 0); "
                                )
                            } else {
                                write!(
                                    body,
                                    "(({f8}u *)&r)[{at}] = __builtin_ia32_vcvtph2ps256((({h8}u *)&x)[{at}]); "
                                )
                            };
                        }
                        gcc_only(&(body + "return r;"), &loops)
                    } else {
                        loops
                    }
                }
            };
            h.function(&name, format_args!("{signature}"), |_| body);
            name
        })
    }

    /// The bits of `from` read as `to`, both C types of one size.
    pub(crate) fn bits(&mut self, from: CType, to: CType) -> String {
        let name = format!("bits_{from}_{to}");
        self.function(&name, format_args!("{to} {name}({from} x)"), |_| {
            format!("{to} r; __builtin_memcpy(&r, &x, sizeof r); return r;")
        });
        name
    }
}

/// `f32` of the bits `x` of an `f16`: the exponent moves by 127 - 15 = 112. Denormals are whole
/// multiples of 2^-24. Infinities and NaNs keep their digits.
const F16_LOAD: &str = "u32 s = (u32)(x & 0x8000) << 16, e = x >> 10 & 31, m = x & 0x3ff, u; \
     if (e == 31) u = s | 0x7f800000 | m << 13; \
     else if (e) u = s | (e + 112) << 23 | m << 13; \
     else { f32 t = (f32)m * 0x1p-24f; __builtin_memcpy(&u, &t, 4); u |= s; } \
     f32 r; __builtin_memcpy(&r, &u, 4); return r;";

/// Bits of the nearest `f16`, ties to even. NaN becomes quiet. From 65520 on (0x477ff000) it is
/// infinite, as that is halfway to 2^16. Below 2^-14 (0x38800000) adding 0.5 rounds: the last place
/// of the sum is 2^-24, that of denormals. Else the exponent moves by 112, and 0xfff plus the last
/// kept bit rounds.
const F16_STORE: &str = "u32 u; __builtin_memcpy(&u, &x, 4); u32 s = u >> 16 & 0x8000, a = u & 0x7fffffff; \
     if (a > 0x7f800000) return (u16)(s | 0x7e00 | (a >> 13 & 0x3ff)); \
     if (a >= 0x477ff000) return (u16)(s | 0x7c00); \
     if (a < 0x38800000) { f32 t; __builtin_memcpy(&t, &a, 4); t += 0.5f; __builtin_memcpy(&a, &t, 4); \
     return (u16)(s | (a - 0x3f000000)); } \
     return (u16)(s | ((a + 0xc8000fff + (a >> 13 & 1)) >> 13));";

#[cfg(test)]
mod tests {
    use super::*;

    /// gcc takes a vector apart whose elements change their size more than twofold at once: as slow as a loop over lanes.
    #[test]
    fn sizes_change_twofold_at_most() {
        let sizes = [
            CType::I8,
            CType::U8,
            CType::I16,
            CType::I32,
            CType::U32,
            CType::I64,
            CType::F32,
            CType::F64,
        ];
        for isa in [Isa::Avx2, Isa::Neon] {
            let caps = Caps::cpu(isa, 1);
            for (from, to) in sizes.iter().flat_map(|a| sizes.map(|b| (*a, b))) {
                if (to == CType::I64 && from.is_float()) || from == to {
                    continue;
                }
                let mut bytes = from.bytes();
                let text = Helpers::default().convert("x", from, to, 16, &caps);
                // The innermost conversion comes first: `convert(convert(x, i16x16), i32x16)`.
                for step in text.split(", ").skip(1) {
                    let name = step.split('x').next().unwrap_or(step);
                    let mut known = sizes.iter().chain(&[CType::U16, CType::U64]);
                    let next = known.find(|t| t.name() == name).expect("a C type");
                    let next = next.bytes();
                    let fits = bytes.max(next) <= 2 * bytes.min(next);
                    let small_to_float = bytes < 4 && step.starts_with('f');
                    assert!(fits && !small_to_float, "{from} to {to}: {text}");
                    bytes = next;
                }
                assert_eq!(bytes, to.bytes(), "{from} to {to}: {text}");
            }
        }
    }
}
