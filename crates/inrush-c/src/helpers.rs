//! Small inline functions of the emitted C, made on demand: each unit holds those that its kernels use.

use crate::types::{self, each_lane, int_like, is_float};
use crate::{approx, gamma};
use inrush_base::{Caps, Isa};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::fmt::{Arguments, Write};
use std::rc::Rc;
use std::sync::Arc;

/// One of them: a type, a macro, a declaration or a function.
#[derive(Debug)]
pub struct Helper {
    pub name: String,
    pub text: String,
}

/// What a helper is called.
pub(crate) type Name = Rc<str>;

/// A call of a method of [`Helpers`]: which, the variant that it is asked for, the C type of the elements, lanes.
type Request = (&'static str, &'static str, &'static str, u32);

/// A helper that was made, and those that its text needs.
struct Made {
    helper: Arc<Helper>,
    needs: Marks,
}

/// Positions of helpers, in the order in which they were asked for.
type Marks = SmallVec<[u32; 6]>;

/// Makes helpers for any number of kernels, each once, and notes which of them the kernel at hand uses.
#[derive(Default)]
pub(crate) struct Helpers {
    made: Vec<Made>,
    by_name: FxHashMap<String, u32>,
    /// What requests that came before gave, and which helpers they asked for.
    known: FxHashMap<Request, (Name, Marks)>,
    /// What this kernel uses; each comes after those that it needs.
    used: Vec<u32>,
    is_used: Vec<bool>,
    /// What the requests that are being answered have asked for so far, innermost last.
    open: Vec<Marks>,
    /// By letter, number and copy of the lanes loop: names of variables, which are the same in all kernels.
    variables: FxHashMap<(char, u32, Option<u32>), Name>,
}

impl Helpers {
    /// The helpers of a kernel that is done; another one may begin.
    pub fn take(&mut self) -> Vec<Arc<Helper>> {
        let used = std::mem::take(&mut self.used);
        (used.into_iter())
            .map(|at| {
                self.is_used[at as usize] = false;
                self.made[at as usize].helper.clone()
            })
            .collect()
    }

    /// The variable of this letter and number, in this copy of the lanes loop where there are several.
    pub(crate) fn variable(&mut self, letter: char, number: u32, copy: Option<u32>) -> Name {
        let make = || match copy {
            Some(copy) => format!("{letter}{number}_{copy}").into(),
            None => format!("{letter}{number}").into(),
        };
        let known = self.variables.entry((letter, number, copy));
        known.or_insert_with(make).clone()
    }

    /// The kernel at hand uses the helper at this position, and what that needs.
    fn mark(&mut self, at: u32) {
        if let Some(open) = self.open.last_mut() {
            open.push(at);
        }
        self.mark_used(at);
    }

    fn mark_used(&mut self, at: u32) {
        if self.is_used[at as usize] {
            return;
        }
        for k in 0..self.made[at as usize].needs.len() {
            self.mark_used(self.made[at as usize].needs[k]);
        }
        self.is_used[at as usize] = true;
        self.used.push(at);
    }

    /// Runs `work`; gives also what it asked for.
    fn watch<T>(&mut self, work: impl FnOnce(&mut Helpers) -> T) -> (T, Marks) {
        self.open.push(Marks::new());
        let out = work(self);
        let marks = self.open.pop().unwrap_or_default();
        if let Some(outer) = self.open.last_mut() {
            outer.extend_from_slice(&marks);
        }
        (out, marks)
    }

    /// The result of `make`, which runs once for each request.
    pub(crate) fn once(
        &mut self,
        request: Request,
        make: impl FnOnce(&mut Helpers) -> String,
    ) -> Name {
        if let Some((name, marks)) = self.known.get(&request) {
            let name = name.clone();
            // Most often the kernel uses all of them already, and nobody watches.
            if !self.open.is_empty() || marks.iter().any(|at| !self.is_used[*at as usize]) {
                marks.clone().into_iter().for_each(|at| self.mark(at));
            }
            return name;
        }
        let (name, marks) = self.watch(make);
        let name = Name::from(name);
        self.known.insert(request, (name.clone(), marks));
        name
    }

    /// A helper, unless there is one of that name: `text` makes it.
    fn add(&mut self, name: &str, text: impl FnOnce(&mut Helpers) -> String) {
        if let Some(&at) = self.by_name.get(name) {
            return self.mark(at);
        }
        let (text, needs) = self.watch(text);
        let at = self.made.len() as u32;
        let name = name.to_string();
        self.by_name.insert(name.clone(), at);
        let helper = Arc::new(Helper { name, text });
        self.made.push(Made { helper, needs });
        self.is_used.push(false);
        self.mark(at);
    }

    /// The vector type of `w` elements of C type `elem`.
    pub(crate) fn vector(&mut self, elem: &'static str, w: u32) -> Name {
        self.once(("vector", "", elem, w), |h| {
            let name = format!("{elem}x{w}");
            let align = types::bytes(elem);
            let size = align * w;
            h.add(&name, |_| {
                format!(
                    "typedef {elem} {name} __attribute__((vector_size({size})));\n\
                     typedef {elem} {name}u __attribute__((vector_size({size}), aligned({align}), may_alias));\n"
                )
            });
            name
        })
    }

    /// A function unless it is there: `text` makes its body.
    pub(crate) fn function(
        &mut self,
        name: &str,
        signature: Arguments,
        body: impl FnOnce(&mut Helpers) -> String,
    ) {
        self.add(name, |h| {
            let body = body(h);
            format!("static inline __attribute__((always_inline)) {signature} {{ {body} }}\n")
        });
    }

    /// A vector with `x` in each lane.
    pub(crate) fn broadcast(&mut self, elem: &'static str, w: u32) -> Name {
        self.once(("broadcast", "", elem, w), |h| {
            let v = h.vector(elem, w);
            let name = format!("bc_{v}");
            let lanes = vec!["x"; w as usize].join(",");
            h.function(&name, format_args!("{v} {name}({elem} x)"), |_| {
                format!("return ({v}){{{lanes}}};")
            });
            name
        })
    }

    /// `0, 1, 2, ...`.
    pub(crate) fn iota(&mut self, elem: &'static str, w: u32) -> Name {
        self.once(("iota", "", elem, w), |h| {
            let v = h.vector(elem, w);
            let lanes: Vec<String> = (0..w).map(|i| i.to_string()).collect();
            format!("(({v}){{{}}})", lanes.join(","))
        })
    }

    /// Load of the first `c` lanes, zeros behind.
    pub(crate) fn load_part(&mut self, elem: &'static str, w: u32, caps: &Caps) -> Name {
        self.once(("load_part", "", elem, w), |h| {
            let v = h.vector(elem, w);
            let name = format!("ldp_{v}");
            let native = caps.isa == Isa::Avx2 && elem == "f32" && w == 8;
            if native {
                let mask = h.lane_mask("i32", w);
                h.function(
                    &name,
                    format_args!("{v} {name}(const {elem} *p, i64 c)"),
                    |_| {
                        format!(
                            "return ({v})__builtin_ia32_maskloadps256((const {v} *)p, {mask}(c));"
                        )
                    },
                );
            } else {
                h.function(
                    &name,
                    format_args!("{v} {name}(const {elem} *p, i64 c)"),
                    |_| {
                        format!("{v} r = {{0}}; for (i64 k = 0; k < c; k++) r[k] = p[k]; return r;")
                    },
                );
            }
            name
        })
    }

    /// Load of the lanes whose mask is set, zeros elsewhere; nothing is read there.
    pub(crate) fn load_where(&mut self, elem: &'static str, w: u32, caps: &Caps) -> Option<String> {
        let size = types::bytes(elem);
        let chunk = (32 / size).min(w);
        let native = matches!(caps.isa, Isa::Avx2 | Isa::Avx512) && matches!(size, 4 | 8);
        if !native || !matches!(chunk * size, 16 | 32) || !w.is_multiple_of(chunk) {
            return None;
        }
        let v = self.vector(elem, w);
        let m = self.vector(int_like(elem), w);
        let name = format!("ldm_{v}");
        let (float, int) = match size {
            4 => ("f32", "i32"),
            _ => ("f64", "i64"),
        };
        let (f, i) = (self.vector(float, chunk), self.vector(int, chunk));
        let builtin = format!(
            "__builtin_ia32_maskload{}{}",
            if size == 4 { "ps" } else { "pd" },
            if chunk * size == 32 { "256" } else { "" }
        );
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

    /// Store of the first `c` lanes.
    pub(crate) fn store_part(&mut self, elem: &'static str, w: u32, caps: &Caps) -> Name {
        self.once(("store_part", "", elem, w), |h| {
            let v = h.vector(elem, w);
            let name = format!("stp_{v}");
            let native = caps.isa == Isa::Avx2 && elem == "f32" && w == 8;
            if native {
                let mask = h.lane_mask("i32", w);
                h.function(
                    &name,
                    format_args!("void {name}({elem} *p, {v} x, i64 c)"),
                    |_| format!("__builtin_ia32_maskstoreps256(({v} *)p, {mask}(c), x);"),
                );
            } else {
                h.function(
                    &name,
                    format_args!("void {name}({elem} *p, {v} x, i64 c)"),
                    |_| "for (i64 k = 0; k < c; k++) p[k] = x[k];".into(),
                );
            }
            name
        })
    }

    /// A whole vector stored past the caches, where its place is aligned.
    pub(crate) fn stream(&mut self, elem: &'static str, w: u32) -> Name {
        self.once(("stream", "", elem, w), |h| {
            let v = h.vector(elem, w);
            let total = types::bytes(elem) * w;
            let name = format!("stream_{v}");
            let (suffix, lanes) = match total {
                16 => ("", 4),
                32 => ("256", 8),
                _ => ("512", 16),
            };
            let f = h.vector("f32", lanes);
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
    pub(crate) fn load_strided(&mut self, elem: &'static str, w: u32) -> Name {
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

    /// Transposes `nl` rows of `na` elements, `s` apart, into rows of `w`: `t[a * w + l] = p[l * s + a]`.
    pub(crate) fn tile(&mut self, elem: &'static str, caps: &Caps) -> Name {
        self.once(("tile", "", elem, 1), |h| {
            let name = format!("tile_{elem}");
            let mut body = String::new();
            if types::bytes(elem) == 4 && matches!(caps.isa, Isa::Avx2 | Isa::Avx512) {
                let block = h.transpose8();
                _ = write!(
                    body,
                    "if (nl % 8 == 0 && na % 8 == 0) {{ for (i64 l = 0; l < nl; l += 8) \
                     for (i64 a = 0; a < na; a += 8) \
                     {block}((f32 *)t + a * w + l, w, (const f32 *)p + l * s + a, s); return; }} "
                );
            }
            body += "for (i64 l = 0; l < nl; l++) for (i64 a = 0; a < na; a++) t[a * w + l] = p[l * s + a];";
            let text = format!(
                "static __attribute__((noinline, unused)) void {name}({elem} *t, i64 w, const {elem} *p, i64 s, i64 na, i64 nl) \
                 {{ {body} }}\n"
            );
            h.add(&name, |_| text);
            name
        })
    }

    /// An 8 x 8 block of 32-bit elements, from rows `s` apart to rows `d` apart.
    fn transpose8(&mut self) -> &'static str {
        let (v, m) = (self.vector("f32", 8), self.vector("i32", 8));
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
        for (i, o) in [0, 2, 4, 6, 1, 3, 5, 7].iter().enumerate() {
            _ = writeln!(body, "*({v}u *)(t + {i} * d) = o{o};");
        }
        let shuffle = format!(
            "#ifdef __clang__\n#define SHUF8(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)\n\
             #else\n#define SHUF8(a, b, ...) __builtin_shuffle(a, b, ({m}){{__VA_ARGS__}})\n#endif\n"
        );
        self.add("SHUF8", |_| shuffle);
        self.function(
            "transpose8",
            format_args!("void transpose8(f32 *t, i64 d, const f32 *p, i64 s)"),
            |_| body,
        );
        "transpose8"
    }

    /// All bits in the first `c` lanes.
    pub(crate) fn lane_mask(&mut self, int: &'static str, w: u32) -> Name {
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

    /// `m ? a : b` by lanes; `m` is an integer vector of the elements' size.
    pub(crate) fn select(&mut self, elem: &'static str, w: u32, caps: &Caps) -> Name {
        self.once(("select", "", elem, w), |h| {
            let v = h.vector(elem, w);
            let m = h.vector(int_like(elem), w);
            let name = format!("sel_{v}");
            let total = types::bytes(elem) * w;
            let builtin = match (types::bytes(elem), total) {
                (4, 16) => Some(("__builtin_ia32_blendvps", "f32", 4)),
                (4, 32) => Some(("__builtin_ia32_blendvps256", "f32", 8)),
                (8, 16) => Some(("__builtin_ia32_blendvpd", "f64", 2)),
                (8, 32) => Some(("__builtin_ia32_blendvpd256", "f64", 4)),
                _ => None,
            }
            .filter(|_| matches!(caps.isa, Isa::Avx2 | Isa::Avx512));
            let generic = format!("return ({v})(((({m})a) & m) | (~m & ({m})b));");
            let body = match builtin {
                Some((f, e, lanes)) => {
                    let t = h.vector(e, lanes);
                    gcc_only(
                        &format!("return ({v}){f}(({t})b, ({t})a, ({t})m);"),
                        &generic,
                    )
                }
                None => generic,
            };
            h.function(
                &name,
                format_args!("{v} {name}({m} m, {v} a, {v} b)"),
                |_| body,
            );
            name
        })
    }

    /// The next number from `x` towards `y`: one more or less as an integer, since numbers of one sign are in the order of their
    /// bits.
    pub(crate) fn nextafter(&mut self, elem: &'static str, w: u32, caps: &Caps) -> Name {
        self.once(("nextafter", "", elem, w), |h| {
            let v = h.vector(elem, w);
            let int = int_like(elem);
            let (i, bc) = (h.vector(int, w), h.broadcast(int, w));
            let name = format!("nextafter_{v}");
            let sel = h.select(elem, w, caps);
            let top = 8 * types::bytes(elem) - 1;
            h.function(&name, format_args!("{v} {name}({v} x, {v} y)"), |_| {
                format!(
                    "const {i} n = ({i})x, up = (x < y) ^ (n < 0); \
                     const {v} next = ({v})(n + ((up & 2) - 1)), least = ({v})((({i})y & ({bc}(1) << {top})) | 1); \
                     const {v} r = {sel}(x == y, y, {sel}(x == 0, least, next)); \
                     return {sel}((x != x) | (y != y), x + y, r);"
                )
            });
            name
        })
    }

    /// Extreme in which NaN wins (`max` or `min`), scalar for `w == 1`.
    pub(crate) fn extreme(
        &mut self,
        which: &'static str,
        elem: &'static str,
        w: u32,
        caps: &Caps,
    ) -> Name {
        self.once(("extreme", which, elem, w), |h| {
            let op = if which == "max" { ">" } else { "<" };
            if w == 1 {
                let name = format!("{which}_{elem}");
                let nan = if is_float(elem) { " || a != a" } else { "" };
                h.function(
                    &name,
                    format_args!("{elem} {name}({elem} a, {elem} b)"),
                    |_| format!("return a {op} b{nan} ? a : b;"),
                );
                return name;
            }
            let v = h.vector(elem, w);
            let name = format!("{which}_{v}");
            let sel = h.select(elem, w, caps);
            let builtin = packed(which, elem, w, caps);
            h.function(&name, format_args!("{v} {name}({v} a, {v} b)"), |_| {
                let nan = if is_float(elem) { " | (a != a)" } else { "" };
                let generic = format!("return {sel}((a {op} b){nan}, a, b);");
                match builtin {
                    // The instruction gives its second operand when either is NaN.
                    Some(f) => gcc_only(
                        &format!("return {sel}(a != a, a, {});", f("a, b")),
                        &generic,
                    ),
                    None => generic,
                }
            });
            name
        })
    }

    /// Extreme against `c`, which is not NaN: one instruction where there is one for it.
    pub(crate) fn clamp(
        &mut self,
        which: &'static str,
        elem: &'static str,
        w: u32,
        caps: &Caps,
    ) -> Name {
        self.once(("clamp", which, elem, w), |h| {
            let Some(f) = (w > 1).then(|| packed(which, elem, w, caps)).flatten() else {
                return h.extreme(which, elem, w, caps).to_string();
            };
            let v = h.vector(elem, w);
            let name = format!("{which}c_{v}");
            let sel = h.select(elem, w, caps);
            let op = if which == "max" { "<" } else { ">" };
            h.function(&name, format_args!("{v} {name}({v} x, {v} c)"), |_| {
                gcc_only(
                    &format!("return {};", f("c, x")),
                    &format!("return {sel}(x {op} c, c, x);"),
                )
            });
            name
        })
    }

    /// Whether `all` or `any` lanes of a mask of integers are set.
    pub(crate) fn lanes_test(
        &mut self,
        which: &'static str,
        int: &'static str,
        w: u32,
        caps: &Caps,
    ) -> Name {
        self.once(("lanes_test", which, int, w), |h| {
            let m = h.vector(int, w);
            let name = format!("{which}_{m}");
            let (float, test) = match (caps.isa, int, w) {
                (Isa::Avx2 | Isa::Avx512, "i32", 4) => ("f32", "ps"),
                (Isa::Avx2 | Isa::Avx512, "i32", 8) => ("f32", "ps256"),
                (Isa::Avx2 | Isa::Avx512, "i64", 2) => ("f64", "pd"),
                (Isa::Avx2 | Isa::Avx512, "i64", 4) => ("f64", "pd256"),
                _ => ("", ""),
            };
            let (first, sign) = if which == "all" { (-1, "&") } else { (0, "|") };
            let body = if test.is_empty() {
                let each = each_lane(&w.to_string());
                format!("i64 r = {first}; {each} r {sign}= m[k]; return r != 0;")
            } else {
                let v = h.vector(float, w);
                let goal = match which {
                    "all" => format!("== {}", (1 << w) - 1),
                    _ => "!= 0".into(),
                };
                format!("return __builtin_ia32_movmsk{test}(({v})m) {goal};")
            };
            h.function(&name, format_args!("i32 {name}({m} m)"), |_| body);
            name
        })
    }

    /// Square root and roundings, by lanes.
    pub(crate) fn rounding(
        &mut self,
        which: &'static str,
        elem: &'static str,
        w: u32,
        caps: &Caps,
    ) -> Name {
        self.once(("rounding", which, elem, w), |h| {
            let v = h.vector(elem, w);
            let name = format!("{which}_{v}");
            let f = format!("__builtin_{which}{}", if elem == "f32" { "f" } else { "" });
            let each = each_lane(&w.to_string());
            let loops = format!("{v} r; {each} r[k] = {f}(x[k]); return r;");
            let body = match packed(which, elem, w, caps) {
                Some(call) => gcc_only(&format!("return {};", call("x")), &loops),
                None => loops,
            };
            h.function(&name, format_args!("{v} {name}({v} x)"), |_| body);
            name
        })
    }

    /// A scalar function of one, two or three operands, applied by lanes.
    pub(crate) fn by_lane(&mut self, f: &str, elem: &'static str, w: u32, arity: usize) -> String {
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
    pub(crate) fn libm(&mut self, f: &str, elem: &'static str, arity: usize) -> String {
        let name = if elem == "f32" {
            format!("{f}f")
        } else {
            f.to_string()
        };
        let params = vec![elem; arity].join(", ");
        self.add(&name, |_| format!("{elem} {name}({params});\n"));
        name
    }

    /// The function `f` over vectors: one of [`crate::approx`], else the C library's, libmvec's where it has one, else lane
    /// by lane.
    pub(crate) fn math(
        &mut self,
        f: &'static str,
        elem: &'static str,
        w: u32,
        arity: usize,
        caps: &Caps,
    ) -> Name {
        self.once(("math", f, elem, w), |h| {
            if elem == "f32"
                && w > 1
                && let Some(own) = approx::function(h, f, w, caps)
            {
                return own;
            }
            if f == "lgamma" && elem == "f32" && w.is_multiple_of(4) {
                let four = gamma::log_gamma(h, caps);
                return match w {
                    4 => four,
                    _ => h.by_parts(&four, elem, 4, w, 1),
                };
            }
            let scalar = h.libm(f, elem, arity);
            let total = types::bytes(elem) * w;
            let best = if caps.isa == Isa::Avx512 { 64 } else { 32 };
            let known = MVEC.contains(&f)
                && caps.vector_math
                && matches!(caps.isa, Isa::Avx2 | Isa::Avx512)
                && total >= 16;
            if !known {
                return h.by_lane(&scalar, elem, w, arity);
            }
            let chunk = total.min(best) / types::bytes(elem);
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

    /// A function of vectors of `chunk` lanes, applied to the parts of vectors of `w`.
    pub(crate) fn by_parts(
        &mut self,
        f: &str,
        elem: &'static str,
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

    /// Lanes of `from` as lanes of `to`, both C types.
    pub(crate) fn convert(
        &mut self,
        x: &str,
        from: &'static str,
        to: &'static str,
        w: u32,
        caps: &Caps,
    ) -> String {
        let v = self.vector(to, w);
        if to == "i64" && is_float(from) && w.is_multiple_of(4) && caps.isa == Isa::Avx2 {
            let f = self.whole(from, w, caps);
            return format!("{f}({x})");
        }
        let narrow = w == 8 && types::bytes(from) == 4 && types::bytes(to) == 1;
        if !(narrow && caps.isa == Isa::Avx2) {
            return format!("__builtin_convertvector({x}, {v})");
        }
        // gcc takes such a vector apart; a shuffle of its bytes is three instructions.
        let (from, bytes, words) = (
            self.vector(from, w),
            self.vector("i8", 32),
            self.vector("i64", 4),
        );
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
        format!("{name}({x})")
    }

    /// Floats toward zero as `i64`, for which there is no instruction: added to 1.5 * 2^52, whole numbers below 2^51 are the low
    /// bits of the sum. Others go one by one.
    fn whole(&mut self, from: &'static str, w: u32, caps: &Caps) -> String {
        let (x, v) = (self.vector(from, w), self.vector("i64", w));
        let name = format!("whole_{x}");
        let trunc = self.rounding("trunc", from, w, caps);
        let (part, d, l) = (
            self.vector(from, 4),
            self.vector("f64", 4),
            self.vector("i64", 4),
        );
        let (wide, bits, limit) = (
            self.broadcast("f64", 4),
            self.broadcast("i64", 4),
            self.broadcast(from, 4),
        );
        let test = match from {
            "f32" => "__builtin_ia32_movmskps",
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

    /// Floor division and modulo of index arithmetic, for operands that may be negative.
    pub(crate) fn index_div(&mut self, which: &'static str) -> Name {
        self.once(("index_div", which, "i64", 1), |h| {
            let name = format!("ix{which}");
            let body = if which == "div" {
                "i64 q = a / b; return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;"
            } else {
                "i64 r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r;"
            };
            h.function(&name, format_args!("i64 {name}(i64 a, i64 b)"), |_| {
                body.into()
            });
            name
        })
    }

    /// Value of the bits of a half (`f16` or `bf16`) and back, scalar for `w == 1`: `ld_f16x8`, `st_bf16`.
    pub(crate) fn half(&mut self, kind: &'static str, store: bool, w: u32, caps: &Caps) -> Name {
        self.once((if store { "store_half" } else { "load_half" }, kind, "f32", w), |h| {
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
            let (fv, hv) = (h.vector("f32", w), h.vector("u16", w));
            let name = format!("{dir}_{kind}x{w}");
            let signature = if store {
                format!("{hv} {name}({fv} x)")
            } else {
                format!("{fv} {name}({hv} x)")
            };
            let body = match (kind, store) {
                ("bf16", false) => {
                    let uv = h.vector("u32", w);
                    format!("return ({fv})(__builtin_convertvector(x, {uv}) << 16);")
                }
                ("bf16", true) => {
                    let uv = h.vector("u32", w);
                    let sel = h.select("u32", w, caps);
                    format!(
                        "{uv} u = ({uv})x; {uv} r = (u + 0x7fff + (u >> 16 & 1)) >> 16; \
                         return __builtin_convertvector({sel}(x != x, u >> 16 | 0x40, r), {hv});"
                    )
                }
                _ => {
                    let scalar = h.half(kind, store, 1, caps);
                    let target = if store { &hv } else { &fv };
                    let loops = format!(
                        "{target} r; {} r[k] = {scalar}(x[k]); return r;",
                        each_lane(&w.to_string())
                    );
                    if native && w.is_multiple_of(8) {
                        let (f8, h8) = (h.vector("f32", 8), h.vector("i16", 8));
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

    /// Combines the lanes of a vector: `both` says how two vectors `x` and `y` of numbers, or of `masks`, are combined.
    pub(crate) fn across(
        &mut self,
        what: &'static str,
        masks: bool,
        elem: &'static str,
        w: u32,
        both: &str,
    ) -> Name {
        let (request, b) = match masks {
            true => ("across_masks", "b"),
            false => ("across", ""),
        };
        self.once((request, what, elem, w), |h| {
            let v = h.vector(elem, w);
            let m = h.vector(int_like(elem), w);
            let name = format!("h{what}{b}_{v}");
            h.function(&name, format_args!("{elem} {name}({v} x)"), |_| {
                let mut body = format!("{v} y;");
                let mut half = w / 2;
                while half > 0 {
                    let lanes: Vec<String> = (0..w).map(|i| (i ^ half).to_string()).collect();
                    let lanes = lanes.join(",");
                    body += &gcc_only(
                        &format!("y = __builtin_shuffle(x, ({m}){{{lanes}}});"),
                        &format!("y = __builtin_shufflevector(x, x, {lanes});"),
                    );
                    _ = write!(body, "x = {both};");
                    half /= 2;
                }
                body + " return x[0];"
            });
            name
        })
    }

    /// The bits of `from` read as `to`, both C types of one size.
    pub(crate) fn bits(&mut self, from: &str, to: &str) -> String {
        let name = format!("bits_{from}_{to}");
        self.function(&name, format_args!("{to} {name}({from} x)"), |_| {
            format!("{to} r; __builtin_memcpy(&r, &x, sizeof r); return r;")
        });
        name
    }
}

/// libmvec's functions (glibc 2.35).
const MVEC: &[&str] = &[
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp", "exp2",
    "expm1", "log", "log10", "log1p", "log2", "sin", "sinh", "tan", "tanh", "atan2", "hypot",
    "pow",
];

const F16_LOAD: &str = "u32 s = (u32)(x & 0x8000) << 16, e = x >> 10 & 31, m = x & 0x3ff, u; \
     if (e == 31) u = s | 0x7f800000 | m << 13; \
     else if (e) u = s | (e + 112) << 23 | m << 13; \
     else { f32 t = (f32)m * 0x1p-24f; __builtin_memcpy(&u, &t, 4); u |= s; } \
     f32 r; __builtin_memcpy(&r, &u, 4); return r;";

const F16_STORE: &str = "u32 u; __builtin_memcpy(&u, &x, 4); u32 s = u >> 16 & 0x8000, a = u & 0x7fffffff; \
     if (a > 0x7f800000) return (u16)(s | 0x7e00 | (a >> 13 & 0x3ff)); \
     if (a >= 0x477ff000) return (u16)(s | 0x7c00); \
     if (a < 0x38800000) { f32 t; __builtin_memcpy(&t, &a, 4); t += 0.5f; __builtin_memcpy(&a, &t, 4); \
     return (u16)(s | (a - 0x3f000000)); } \
     return (u16)(s | ((a + 0xc8000fff + (a >> 13 & 1)) >> 13));";

/// gcc's builtins where the compiler is gcc; clang makes good code of the other text.
pub(crate) fn gcc_only(gcc: &str, other: &str) -> String {
    format!("\n#ifdef __clang__\n{other}\n#else\n{gcc}\n#endif\n")
}

type Call = Box<dyn Fn(&str) -> String>;

/// The packed instruction for `which`, if the target has one for vectors of this size.
fn packed(which: &'static str, elem: &'static str, w: u32, caps: &Caps) -> Option<Call> {
    if !is_float(elem) || !matches!(caps.isa, Isa::Avx2 | Isa::Avx512) {
        return None;
    }
    let total = types::bytes(elem) * w;
    let p = if elem == "f32" { "ps" } else { "pd" };
    let v = format!("{elem}x{w}");
    let round = match which {
        "floor" => Some(9),
        "ceil" => Some(10),
        "trunc" => Some(11),
        "rint" => Some(8),
        _ => None,
    };
    let suffix = match total {
        16 => "",
        32 => "256",
        64 if caps.isa == Isa::Avx512 => "512",
        _ => return None,
    };
    let call: Call = if total == 64 {
        let mask = format!("({})-1", if w == 16 { "u16" } else { "u8" });
        match round {
            Some(r) => Box::new(move |a| {
                format!("__builtin_ia32_rndscale{p}_mask({a}, {r}, ({v}){{0}}, {mask}, 4)")
            }),
            None => {
                let f = format!("__builtin_ia32_{which}{p}512_mask");
                Box::new(move |a| format!("{f}({a}, ({v}){{0}}, {mask}, 4)"))
            }
        }
    } else {
        match round {
            Some(r) => Box::new(move |a| format!("__builtin_ia32_round{p}{suffix}({a}, {r})")),
            None => {
                let f = format!("__builtin_ia32_{which}{p}{suffix}");
                Box::new(move |a| format!("{f}({a})"))
            }
        }
    };
    Some(call)
}

/// Parameters `v a, v b` and arguments `a[k], b[k]`.
fn operands(v: &str, arity: usize, index: &str) -> (String, String) {
    let vars = &["a", "b", "c"][..arity.min(3)];
    let params: Vec<String> = vars.iter().map(|x| format!("{v} {x}")).collect();
    let args: Vec<String> = vars.iter().map(|x| format!("{x}{index}")).collect();
    (params.join(", "), args.join(", "))
}
