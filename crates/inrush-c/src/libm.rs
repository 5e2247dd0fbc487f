//! Functions of the C library and of its vector library, and ways to apply what is made for fewer lanes.
//!
//! libmvec's names follow the vector ABI of x86: `_ZGV`, a letter for the registers (`b` SSE, `d`
//! AVX2, `e` AVX-512), `N` for no mask, lanes, a `v` for each vector operand, and the scalar
//! function: `_ZGVdN8v_sinf`.

use crate::helpers::{Helpers, Name};
use crate::types::{CType, each_lane};
use crate::{approx, gamma};
use inrush_base::{Caps, Isa};
use std::f64::consts::LN_2;
use std::fmt::Write;

impl Helpers {
    /// A scalar function of one, two or three operands, applied by lanes.
    pub(crate) fn by_lane(&mut self, f: &str, elem: CType, w: u32, arity: usize) -> String {
        let v = self.vector(elem, w);
        let name = format!("{f}_x{w}");
        let (params, args) = operands(&v, arity, "[k]");
        self.function(&name, format_args!("{v} {name}({params})"), |_| {
            let each = each_lane(&w.to_string());
            format!("{v} r; {each} r[k] = {f}({args}); return r;")
        });
        name
    }

    /// The C library's function `f` for scalars of type `elem`: declares it.
    pub(crate) fn libm(&mut self, f: &str, elem: CType, arity: usize) -> String {
        let name = if elem == CType::F32 {
            format!("{f}f")
        } else {
            f.to_string()
        };
        let params = vec![elem.name(); arity].join(", ");
        self.add(&name, |_| format!("{elem} {name}({params});\n"));
        name
    }

    /// The function `f` over vectors: one of [`crate::approx`], else the C library's, libmvec's where it has one, else lane
    /// by lane.
    pub(crate) fn math(
        &mut self,
        f: &'static str,
        elem: CType,
        w: u32,
        arity: usize,
        caps: &Caps,
    ) -> Name {
        self.once(("math", f, elem, w), |h| {
            if elem == CType::F32
                && w > 1
                && let Some(own) = approx::function(h, f, w, caps)
            {
                return own.to_string();
            }
            if f == "lgamma" && elem == CType::F32 && w.is_multiple_of(4) {
                let (part, lanes) = gamma::log_gamma(h, w, caps);
                return if w == lanes {
                    part
                } else {
                    h.by_parts(&part, elem, lanes, w, 1)
                };
            }
            let scalar = h.libm(f, elem, arity);
            let total = elem.bytes() * w;
            let best = if caps.isa == Isa::Avx512 { 64 } else { 32 };
            // `vector_math` tells that the machine has the library.
            let known = MVEC.contains(&f)
                && caps.vector_math
                && matches!(caps.isa, Isa::Avx2 | Isa::Avx512)
                && total >= 16;
            if !known {
                return h.by_lane(&scalar, elem, w, arity);
            }
            let chunk = total.min(best) / elem.bytes();
            let isa = match total.min(best) {
                16 => 'b',
                32 => 'd',
                _ => 'e',
            };
            let mangled = format!("_ZGV{isa}N{chunk}{}_{scalar}", "v".repeat(arity));
            let part = h.vector(elem, chunk);
            let params = vec![&*part; arity].join(", ");
            h.add(&mangled, |_| format!("{part} {mangled}({params});\n"));
            if chunk == w {
                return mangled;
            }
            h.by_parts(&mangled, elem, chunk, w, arity)
        })
    }

    /// [`inrush_loops::ScalarOp::Logaddexp`], scalar for `w == 1`. The distance of equal infinities is no number: equal operands
    /// are told apart.
    pub(crate) fn logaddexp(&mut self, elem: CType, w: u32, caps: &Caps) -> Name {
        self.once(("logaddexp", "", elem, w), |h| {
            let (max, min) = (
                h.extreme("max", elem, w, caps),
                h.extreme("min", elem, w, caps),
            );
            if w == 1 {
                let (exp, log1p) = (h.libm("exp", elem, 1), h.libm("log1p", elem, 1));
                let name = format!("logaddexp_{elem}");
                h.function(
                    &name,
                    format_args!("{elem} {name}({elem} a, {elem} b)"),
                    |_| {
                        format!(
                            "const {elem} high = {max}(a, b); \
                             return a == b ? a + ({elem}){LN_2} : high + {log1p}({exp}({min}(a, b) - high));"
                        )
                    },
                );
                return name;
            }
            let v = h.vector(elem, w);
            let name = format!("logaddexp_{v}");
            let (exp, log1p) = (
                h.math("exp", elem, w, 1, caps),
                h.math("log1p", elem, w, 1, caps),
            );
            let sel = h.select(elem, w, caps);
            h.function(&name, format_args!("{v} {name}({v} a, {v} b)"), |_| {
                format!(
                    "const {v} high = {max}(a, b); \
                     return {sel}(a == b, a + ({elem}){LN_2}, high + {log1p}({exp}({min}(a, b) - high)));"
                )
            });
            name
        })
    }

    /// A function of vectors of `chunk` lanes, applied to the parts of vectors of `w`.
    pub(crate) fn by_parts(
        &mut self,
        f: &str,
        elem: CType,
        chunk: u32,
        w: u32,
        arity: usize,
    ) -> String {
        let (v, part) = (self.vector(elem, w), self.vector(elem, chunk));
        let name = format!("{f}_of_{v}");
        let (params, _) = operands(&v, arity, "");
        self.function(&name, format_args!("{v} {name}({params})"), |_| {
            let vars = ["a", "b", "c"];
            let mut body = format!("{v} r; ");
            for at in 0..w / chunk {
                let parts: Vec<String> = (vars[..arity].iter())
                    .map(|x| format!("*(({part}u *)&{x} + {at})"))
                    .collect();
                _ = write!(
                    body,
                    "*(({part}u *)&r + {at}) = {f}({}); ",
                    parts.join(", ")
                );
            }
            body + "return r;"
        });
        name
    }
}

/// libmvec's functions (glibc 2.35). Later releases have more, but a symbol that the machine's
/// library lacks would not load.
const MVEC: &[&str] = &[
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp", "exp2",
    "expm1", "log", "log10", "log1p", "log2", "sin", "sinh", "tan", "tanh", "atan2", "hypot",
    "pow",
];

/// Parameters `v a, v b` and arguments `a[k], b[k]`.
fn operands(v: &str, arity: usize, index: &str) -> (String, String) {
    let vars = &["a", "b", "c"][..arity.min(3)];
    let params: Vec<String> = vars.iter().map(|x| format!("{v} {x}")).collect();
    let args: Vec<String> = vars.iter().map(|x| format!("{x}{index}")).collect();
    (params.join(", "), args.join(", "))
}
