//! How vectors come from memory and go there: whole, in part, masked, strided, transposed.
//!
//! | helper | name | loads or stores |
//! |---|---|---|
//! | `load_where` | `ldm` | contiguous lanes under a mask |
//! | `load_gathered` | `ldg`, `ldgm` | lanes at 32-bit indices |
//! | `load_strided` | `lds` | lanes `s` elements apart, one by one |
//! | `load_second` | `ld2`, `ld2p`, `ld2m` | every second element: two vectors and a permutation |
//! | `load_near` | `ldn` | indices that are mostly neighbours |
//! | `tile` | `tile` | a rectangle, transposed |
//! | `add_lanes` | `addm` | adds to memory at indices |
//! | `stream` | `stream` | stores past the caches |
//!
//! Helpers that need an instruction return `None` without it. The caller then writes a loop over
//! lanes.

use crate::helpers::{Helpers, Name, gcc_only};
use crate::types::{CType, each_lane};
use inrush_base::{Caps, Isa};
use std::fmt::Write;

impl Helpers {
    /// Load of the lanes whose mask is set, zeros elsewhere; nothing is read there.
    pub(crate) fn load_where(&mut self, elem: CType, w: u32, caps: &Caps) -> Option<String> {
        let size = elem.bytes();
        // Registers of AVX2, except that whole registers of AVX-512 have masks of their own.
        let chunk = (32 / size).min(w);
        let native = matches!(caps.isa, Isa::Avx2 | Isa::Avx512) && matches!(size, 4 | 8);
        if !native || !matches!(chunk * size, 16 | 32) || !w.is_multiple_of(chunk) {
            return None;
        }
        let v = self.vector(elem, w);
        let m = self.vector(elem.int_like(), w);
        let name = format!("ldm_{v}");
        let (float, int) = match size {
            4 => (CType::F32, CType::I32),
            _ => (CType::F64, CType::I64),
        };
        let (f, i) = (self.vector(float, chunk), self.vector(int, chunk));
        let builtin = format!(
            "__builtin_ia32_maskload{}{}",
            if size == 4 { "ps" } else { "pd" },
            if chunk * size == 32 { "256" } else { "" }
        );
        // The sign bits of the lanes as the bits of an integer, which AVX-512 instructions take as
        // mask.
        let bits = match (caps.isa, elem, w) {
            (Isa::Avx512, CType::F32, 16) => Some(("ps", "cvtd2mask512")),
            (Isa::Avx512, CType::F64, 8) => Some(("pd", "cvtq2mask512")),
            _ => None,
        };
        if let Some((suffix, to_bits)) = bits {
            let each = each_lane(&w.to_string());
            self.function(
                &name,
                format_args!("{v} {name}(const {elem} *p, {m} m)"),
                |_| {
                    let native = format!(
                        "return __builtin_ia32_loadu{suffix}512_mask(p, ({v}){{0}}, __builtin_ia32_{to_bits}(m));"
                    );
                    let simple = format!("{v} r = {{0}}; {each} if (m[k]) r[k] = p[k]; return r;");
                    gcc_only(&native, &simple)
                },
            );
            return Some(name);
        }
        self.function(
            &name,
            format_args!("{v} {name}(const {elem} *p, {m} m)"),
            |_| {
                let mut body = format!("{v} r; ");
                for k in 0..w / chunk {
                    _ = write!(
                        body,
                        "(({f}u *)&r)[{k}] = {builtin}((const {f} *)(p + {}), (({i}u *)&m)[{k}]); ",
                        k * chunk
                    );
                }
                body + "return r;"
            },
        );
        Some(name)
    }

    /// Loads by 32-bit indices by the machine's instruction, of the lanes whose mask is set where there is one, zeros
    /// elsewhere.
    pub(crate) fn load_gathered(
        &mut self,
        elem: CType,
        w: u32,
        masked: bool,
        caps: &Caps,
    ) -> Option<Name> {
        if caps.isa != Isa::Avx512 {
            return None;
        }
        let (builtin, bits, to_bits) = match (elem, w) {
            (CType::F32, 16) => ("gathersiv16sf", CType::U16, "cvtd2mask512"),
            (CType::F32, 8) => ("gather3siv8sf", CType::U8, "cvtd2mask256"),
            (CType::F64, 8) => ("gathersiv8df", CType::U8, "cvtq2mask512"),
            _ => return None,
        };
        let what = if masked { "gather_where" } else { "gather" };
        Some(self.once((what, "", elem, w), |h| {
            let (v, i) = (h.vector(elem, w), h.vector(CType::I32, w));
            let name = format!("{}_{v}", if masked { "ldgm" } else { "ldg" });
            let each = each_lane(&w.to_string());
            let (parameter, mask, guard) = if masked {
                (
                    format!(", {} m", h.vector(elem.int_like(), w)),
                    format!("__builtin_ia32_{to_bits}(m)"),
                    "if (m[k]) ",
                )
            } else {
                (String::new(), format!("({bits})-1"), "")
            };
            h.function(
                &name,
                format_args!("{v} {name}(const {elem} *p, {i} n{parameter})"),
                |_| {
                    let native = format!(
                        "return __builtin_ia32_{builtin}(({v}){{0}}, p, n, {mask}, {});",
                        elem.bytes()
                    );
                    let simple = format!("{v} r = {{0}}; {each} {guard}r[k] = p[n[k]]; return r;");
                    gcc_only(&native, &simple)
                },
            );
            name
        }))
    }

    /// Adds the lanes whose mask is set, one after the other, at 32-bit indices; none where the machine has no instruction
    /// that makes bits of such a mask. Where all are set none is asked. Indices and values go through memory: loads of it
    /// take less than taking each lane out of a vector.
    pub(crate) fn add_lanes(&mut self, elem: CType, w: u32, caps: &Caps) -> Option<Name> {
        let (to_bits, float) = match (caps.isa, elem, w) {
            (Isa::Avx512, CType::F32, 16) => ("cvtd2mask512", false),
            (Isa::Avx512, CType::F64, 8) => ("cvtq2mask512", false),
            (Isa::Avx2, CType::F32, 8) => ("movmskps256", true),
            (Isa::Avx2, CType::F64, 4) => ("movmskpd256", true),
            _ => return None,
        };
        Some(self.once(("add_lanes", "", elem, w), |h| {
            let (v, i) = (h.vector(elem, w), h.vector(CType::I32, w));
            let m = h.vector(elem.int_like(), w);
            let name = format!("addm_{v}");
            h.function(
                &name,
                format_args!("void {name}({elem} *p, {i} n, {v} x, {m} m)"),
                |_| {
                    let mask = if float { format!("({v})m") } else { "m".into() };
                    // Equal indices in one vector add twice, since lanes go one after the other.
                    let all = (1u32 << w) - 1;
                    let add = "p[at[k]] += by[k];";
                    let each = each_lane(&w.to_string());
                    let native = format!(
                        "i32 at[{w}]; {elem} by[{w}]; *({i}u *)at = n; *({v}u *)by = x; \
                         u32 set = (u32)__builtin_ia32_{to_bits}({mask}); \
                         if (set == {all}) {{ _Pragma(\"GCC unroll 4\") for (i32 k = 0; k < {w}; k++) {add} }} \
                         else for (; set; set &= set - 1) {{ const i32 k = __builtin_ctz(set); {add} }}"
                    );
                    gcc_only(&native, &format!("{each} if (m[k]) p[n[k]] += x[k];"))
                },
            );
            name
        }))
    }

    /// A whole vector stored past the caches, where its place is aligned.
    pub(crate) fn stream(&mut self, elem: CType, w: u32) -> Name {
        self.once(("stream", "", elem, w), |h| {
            let v = h.vector(elem, w);
            let total = elem.bytes() * w;
            let name = format!("stream_{v}");
            // The instruction traps on a place that is not aligned to the vector, as rows of odd
            // lengths are.
            let (suffix, lanes) = match total {
                16 => ("", 4),
                32 => ("256", 8),
                _ => ("512", 16),
            };
            let f = h.vector(CType::F32, lanes);
            h.function(&name, format_args!("void {name}({elem} *p, {v} x)"), |_| {
                let past = gcc_only(
                    &format!("__builtin_ia32_movntps{suffix}((f32 *)p, ({f})x);"),
                    &format!("__builtin_nontemporal_store(x, ({v} *)p);"),
                );
                format!(
                    "if (__builtin_expect(((u64)p & {}) == 0, 1)) {{ {past} }} else *({v}u *)p = x;",
                    total - 1
                )
            });
            name
        })
    }

    /// Lanes `s` elements apart.
    pub(crate) fn load_strided(&mut self, elem: CType, w: u32) -> Name {
        self.once(("load_strided", "", elem, w), |h| {
            let v = h.vector(elem, w);
            let name = format!("lds_{v}");
            let lanes: Vec<String> = (0..w)
                .map(|i| match i {
                    0 => "p[0]".into(),
                    1 => "p[s]".into(),
                    i => format!("p[{i}*s]"),
                })
                .collect();
            h.function(
                &name,
                format_args!("{v} {name}(const {elem} *p, i64 s)"),
                |_| format!("return ({v}){{{}}};", lanes.join(",")),
            );
            name
        })
    }

    /// Every second element of the lanes whose mask is set, zeros elsewhere; nothing is read there.
    pub(crate) fn load_second_where(&mut self, elem: CType, w: u32, caps: &Caps) -> Option<Name> {
        let load = self.load_where(elem, w, caps)?;
        let int = elem.int_like();
        let (whole, all) = (
            self.load_second(elem, w, false, caps),
            self.lanes_test("all", int, w, caps),
        );
        Some(self.once(("load_second_where", "", elem, w), |h| {
            let (v, m) = (h.vector(elem, w), h.vector(int, w));
            let name = format!("ld2m_{v}");
            // The mask of each half, spread over the elements in memory, and the elements back.
            let spread = |from: u32| -> String {
                let place = |k: u32| if k.is_multiple_of(2) { from + k / 2 } else { w };
                let places: Vec<String> = (0..w).map(|k| place(k).to_string()).collect();
                places.join(",")
            };
            let every: Vec<String> = (0..w).map(|k| (2 * k).to_string()).collect();
            let (lo, hi, every) = (spread(0), spread(w / 2), every.join(","));
            let body = gcc_only(
                &format!(
                    "const {v} a = {load}(p, __builtin_shuffle(m, ({m}){{0}}, ({m}){{{lo}}})), \
                     b = {load}(p + {w}, __builtin_shuffle(m, ({m}){{0}}, ({m}){{{hi}}})); \
                     return __builtin_shuffle(a, b, ({m}){{{every}}});"
                ),
                &format!(
                    "const {v} a = {load}(p, __builtin_shufflevector(m, ({m}){{0}}, {lo})), \
                     b = {load}(p + {w}, __builtin_shufflevector(m, ({m}){{0}}, {hi})); \
                     return __builtin_shufflevector(a, b, {every});"
                ),
            );
            h.function(
                &name,
                format_args!("{v} {name}(const {elem} *p, {m} m)"),
                |_| format!("if ({all}(m)) return {whole}(p); {body}"),
            );
            name
        }))
    }

    /// Every second element: two vectors and a permutation. With a number of lanes `c`, nothing after the last one is read.
    pub(crate) fn load_second(&mut self, elem: CType, w: u32, part: bool, caps: &Caps) -> Name {
        let what = if part {
            "load_second_part"
        } else {
            "load_second"
        };
        self.once((what, "", elem, w), |h| {
            let (v, m) = (h.vector(elem, w), h.vector(elem.int_like(), w));
            let name = format!("{}_{v}", if part { "ld2p" } else { "ld2" });
            // The second vector of a whole load ends with the last lane's element.
            let place = |k: u32| 2 * k + u32::from(!part && 2 * k >= w);
            let places: Vec<String> = (0..w).map(|k| place(k).to_string()).collect();
            let places = places.join(",");
            let shuffle = gcc_only(
                &format!("return __builtin_shuffle(a, b, ({m}){{{places}}});"),
                &format!("return __builtin_shufflevector(a, b, {places});"),
            );
            // The last lane's element is the last that is read: `2c - 1` elements, not `2c`.
            let head = if part {
                let f = h.load_part(elem, w, caps);
                format!(
                    "const i64 n = 2 * c - 1; const {v} a = {f}(p, n < {w} ? n : {w}), \
                     b = n > {w} ? {f}(p + {w}, n - {w}) : ({v}){{0}};"
                )
            } else {
                format!(
                    "const {v} a = *(const {v}u *)p, b = *(const {v}u *)(p + {});",
                    w - 1
                )
            };
            let count = if part { ", i64 c" } else { "" };
            h.function(
                &name,
                format_args!("{v} {name}(const {elem} *p{count})"),
                |_| format!("{head} {shuffle}"),
            );
            name
        })
    }

    /// Returns a helper that gathers eight or, with AVX-512, sixteen elements. If all indices are within one vector that ends
    /// with the last one, that vector is loaded and permuted.
    pub(crate) fn load_near(&mut self, w: u32) -> Name {
        self.once(("load_near", "", CType::F32, w), |h| {
            let (v, i) = (h.vector(CType::F32, w), h.vector(CType::I32, w));
            let bc = h.broadcast(CType::I32, w);
            // `far` holds the bits of distances beyond the vector: none of them set means that all
            // lanes are inside.
            let (none_far, permuted) = match w {
                16 => (
                    "!__builtin_ia32_ptestmd512(far, far, (u16)-1)".to_string(),
                    format!("__builtin_ia32_permvarsf512_mask(near, d, ({v}){{0}}, (u16)-1)"),
                ),
                _ => {
                    let l = h.vector(CType::I64, 4);
                    (
                        format!("__builtin_ia32_ptestz256(({l})far, ({l})far)"),
                        "__builtin_ia32_permvarsf256(near, d)".to_string(),
                    )
                }
            };
            let name = format!("ldn_{v}");
            let each = each_lane(&w.to_string());
            let most = w - 1;
            h.function(
                &name,
                format_args!("{v} {name}(const f32 *p, i64 at, {i} n)"),
                |_| {
                    // The vector ends with the last lane's element, which is in bounds: so is all
                    // of it if it begins at 0 or later.
                    let near = format!(
                        "const i32 first = n[{most}] - {most}; const {i} d = n - {bc}(first), far = d & {bc}(~{most}); \
                         if (at + first >= 0 && {none_far}) \
                         {{ const {v} near = *(const {v}u *)(p + at + first); return {permuted}; }} "
                    );
                    format!(
                        "{}{v} r; {each} r[k] = p[at + n[k]]; return r;",
                        gcc_only(&near, "")
                    )
                },
            );
            name
        })
    }

    /// Transposes `nl` rows of `na` elements, `s` apart, into rows of `w`: `t[a * w + l] = p[l * s + a]`, zero from `nl` on.
    pub(crate) fn tile(&mut self, elem: CType, caps: &Caps) -> Name {
        self.once(("tile", "", elem, 1), |h| {
            let name = format!("tile_{elem}");
            let mut body = String::new();
            if elem.bytes() == 4 && matches!(caps.isa, Isa::Avx2 | Isa::Avx512) {
                let block = h.transpose8();
                _ = write!(
                    body,
                    "const i64 ml = nl & ~7, ma = na & ~7; for (i64 l = 0; l < ml; l += 8) \
                     for (i64 a = 0; a < ma; a += 8) \
                     {block}((f32 *)t + a * w + l, w, (const f32 *)p + l * s + a, s); \
                     for (i64 l = 0; l < nl; l++) for (i64 a = l < ml ? ma : 0; a < na; a++) t[a * w + l] = p[l * s + a]; "
                );
            } else {
                body += "for (i64 l = 0; l < nl; l++) for (i64 a = 0; a < na; a++) t[a * w + l] = p[l * s + a]; ";
            }
            // Lanes beyond the edge are zero, as partial loads make them: what the stack holds may be a degree that a recurrence
            // goes up to, or a divisor.
            body += "if (nl < w) for (i64 a = 0; a < na; a++) for (i64 l = nl; l < w; l++) t[a * w + l] = 0;";
            let text = format!(
                "static __attribute__((noinline, unused)) void {name}({elem} *t, i64 w, const {elem} *p, i64 s, i64 na, i64 nl) \
                 {{ {body} }}\n"
            );
            h.add(&name, |_| text);
            name
        })
    }

    /// A macro that picks lanes of two vectors of `w` elements of 32 bits, whichever compiler reads it.
    pub(crate) fn shuffle(&mut self, w: u32) {
        let m = self.vector(CType::I32, w);
        self.add(&format!("SHUF{w}"), |_| {
            format!(
                "#ifdef __clang__\n#define SHUF{w}(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)\n\
                 #else\n#define SHUF{w}(a, b, ...) __builtin_shuffle(a, b, ({m}){{__VA_ARGS__}})\n#endif\n"
            )
        });
    }

    /// An 8 x 8 block of 32-bit elements, from rows `s` apart to rows `d` apart.
    fn transpose8(&mut self) -> &'static str {
        let v = self.vector(CType::F32, 8);
        let mut body = String::new();
        for i in 0..8 {
            _ = writeln!(body, "{v} r{i} = *(const {v}u *)(p + {i} * s);");
        }
        let mut step = |from: &str, to: &str, pairs: &[(usize, usize)], lo: &str, hi: &str| {
            for (i, (a, b)) in pairs.iter().enumerate() {
                let (x, y) = (2 * i, 2 * i + 1);
                _ = writeln!(
                    body,
                    "{v} {to}{x} = SHUF8({from}{a}, {from}{b}, {lo}), {to}{y} = SHUF8({from}{a}, {from}{b}, {hi});"
                );
            }
        };
        // Pairs of elements, pairs of pairs, halves.
        let (lo, hi) = ("0,8,1,9,4,12,5,13", "2,10,3,11,6,14,7,15");
        step("r", "t", &[(0, 1), (2, 3), (4, 5), (6, 7)], lo, hi);
        let (lo, hi) = ("0,1,8,9,4,5,12,13", "2,3,10,11,6,7,14,15");
        step("t", "u", &[(0, 2), (1, 3), (4, 6), (5, 7)], lo, hi);
        let (lo, hi) = ("0,1,2,3,8,9,10,11", "4,5,6,7,12,13,14,15");
        step("u", "o", &[(0, 4), (1, 5), (2, 6), (3, 7)], lo, hi);
        // The order in which the three steps leave the columns.
        for (i, o) in [0, 2, 4, 6, 1, 3, 5, 7].iter().enumerate() {
            _ = writeln!(body, "*({v}u *)(t + {i} * d) = o{o};");
        }
        self.shuffle(8);
        self.function(
            "transpose8",
            format_args!("void transpose8(f32 *t, i64 d, const f32 *p, i64 s)"),
            |_| body,
        );
        "transpose8"
    }

    /// All bits in the first `c` lanes.
    /// The comparison is made in the integer type of the elements: `c` is at most the width, which
    /// fits a byte.
    pub(crate) fn lane_mask(&mut self, int: CType, w: u32) -> Name {
        self.once(("lane_mask", "", int, w), |h| {
            let v = h.vector(int, w);
            let name = format!("lanes_{v}");
            let iota = h.iota(int, w);
            let bc = h.broadcast(int, w);
            h.function(&name, format_args!("{v} {name}(i64 c)"), |_| {
                format!("return {iota} < {bc}(({int})c);")
            });
            name
        })
    }
}
