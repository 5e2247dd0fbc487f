//! Small inline functions of the emitted C, made on demand: each unit holds those that its kernels use.
//!
//! Here is what keeps them, and the arithmetic; memory is in `vector_memory.rs`, conversions in `convert.rs`, divisions in `divide.rs`,
//! the libraries' functions in `libm.rs`, our own in `approx.rs` and `gamma.rs`.

use crate::text::Text;
use crate::types::{CType, each_lane};
use inrush_base::{Caps, Isa, digits};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::fmt::{Arguments, Write};
use std::rc::Rc;
use std::sync::Arc;

/// One of them: a type, a macro, a declaration or a function.
#[derive(Debug)]
pub struct Helper {
    /// Its C name, which holds all that its text depends on: operation, element type and lanes.
    pub name: String,
    pub text: String,
}

/// The name of a helper or variable in C.
pub(crate) type Name = Rc<str>;

/// A call of a method of [`Helpers`]: which, the variant that it is asked for, the C type of the elements, lanes.
type Request = (&'static str, &'static str, CType, u32);

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
    /// All helpers so far, in the order in which they were first asked for.
    made: Vec<Made>,
    /// Position in `made` of each.
    by_name: FxHashMap<String, u32>,
    /// Memo: the result of each request and the helpers that it asked for.
    known: FxHashMap<Request, (Name, Marks)>,
    /// Helpers that this kernel uses, each after those that it needs.
    used: Vec<u32>,
    /// By position: true if it is in `used`.
    is_used: Vec<bool>,
    /// For each open request, innermost last: the helpers that it has asked for so far.
    open: Vec<Marks>,
    /// Vector types by element and lanes, see [`vector_place`], with their helpers: nothing is asked for more often.
    vectors: Vec<Option<(Name, u32)>>,
    /// By letter, copy of the lanes loop and number: names of variables, which are the same in all kernels.
    variables: Vec<Vec<Vec<Name>>>,
    /// The last request of [`Helpers::arithmetic`] by this kernel, which uses all that it gives.
    plain: Option<(CType, u32)>,
    /// [`Helpers::broadcast`].
    spread: Option<(CType, u32, Name)>,
}

/// The element at a place, after so many others as it takes.
fn at_least<T: Default>(list: &mut Vec<T>, place: usize) -> &mut T {
    if place >= list.len() {
        list.resize_with(place + 1, T::default);
    }
    &mut list[place]
}

/// The place of a vector type in a table.
fn vector_place(elem: CType, w: u32) -> usize {
    let kind = match elem {
        _ if elem.is_float() => 2,
        _ => usize::from(elem.is_unsigned()),
    };
    let size = elem.bytes().trailing_zeros() as usize;
    w as usize * 12 + kind * 4 + size
}

impl Helpers {
    /// The helpers of a kernel that is done; another one may begin.
    pub(crate) fn take(&mut self) -> Vec<Arc<Helper>> {
        (self.plain, self.spread) = (None, None);
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
        self.variable_name(letter, number, copy).clone()
    }

    pub(crate) fn variable_name(&mut self, letter: char, number: u32, copy: Option<u32>) -> &Name {
        let (letters, copies) = (
            letter as usize - 'a' as usize,
            copy.map_or(0, |c| c as usize + 1),
        );
        let known = self.variables.get(letters).and_then(|l| l.get(copies));
        if known.is_some_and(|names| (number as usize) < names.len()) {
            return &self.variables[letters][copies][number as usize];
        }
        let names = at_least(at_least(&mut self.variables, letters), copies);
        while names.len() <= number as usize {
            let number = names.len();
            let mut name = String::from(letter);
            name.push_str(&digits(number as u64));
            if let Some(copy) = copy {
                ["_", &digits(copy)].put(&mut name);
            }
            names.push(name.into());
        }
        &names[number as usize]
    }

    /// The kernel at hand uses the helper at this position, and what that needs.
    fn mark(&mut self, at: u32) {
        if let Some(open) = self.open.last_mut() {
            open.push(at);
        }
        self.mark_used(at);
    }

    /// Puts the helpers that it needs first: C wants declarations ahead of their uses.
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
            // Most often the kernel uses all of them already, and no list is being recorded.
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
    pub(crate) fn add(&mut self, name: &str, text: impl FnOnce(&mut Helpers) -> String) {
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
    pub(crate) fn vector(&mut self, elem: CType, w: u32) -> Name {
        self.vector_name(elem, w).clone()
    }

    pub(crate) fn vector_name(&mut self, elem: CType, w: u32) -> &Name {
        let place = vector_place(elem, w);
        match at_least(&mut self.vectors, place) {
            Some((_, at)) => {
                let at = *at;
                if !self.open.is_empty() || !self.is_used[at as usize] {
                    self.mark(at);
                }
            }
            None => {
                let known = self.new_vector(elem, w);
                self.vectors[place] = Some(known);
            }
        }
        let known = self.vectors[place].as_ref();
        &known.expect("it was put there").0
    }

    /// Has the types that any operation on such vectors may ask for.
    pub(crate) fn arithmetic(&mut self, elem: CType, w: u32) {
        if self.plain == Some((elem, w)) && self.open.is_empty() {
            return;
        }
        self.vector_name(elem, w);
        self.vector_name(elem.int_like(), w);
        self.plain = Some((elem, w));
    }

    fn new_vector(&mut self, elem: CType, w: u32) -> (Name, u32) {
        let name = format!("{elem}x{w}");
        let (align, size) = (elem.bytes(), elem.bytes() * w);
        self.add(&name, |_| {
            format!(
                "typedef {elem} {name} __attribute__((vector_size({size})));\n\
                 typedef {elem} {name}u __attribute__((vector_size({size}), aligned({align}), may_alias));\n"
            )
        });
        let at = self.by_name[&name];
        (name.into(), at)
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
    pub(crate) fn broadcast(&mut self, elem: CType, w: u32) -> Name {
        if let Some((e, lanes, name)) = &self.spread
            && (*e, *lanes) == (elem, w)
            && self.open.is_empty()
        {
            return name.clone();
        }
        let name = self.new_broadcast(elem, w);
        self.spread = Some((elem, w, name.clone()));
        name
    }

    fn new_broadcast(&mut self, elem: CType, w: u32) -> Name {
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
    pub(crate) fn iota(&mut self, elem: CType, w: u32) -> Name {
        self.once(("iota", "", elem, w), |h| {
            let v = h.vector(elem, w);
            let lanes: Vec<String> = (0..w).map(|i| i.to_string()).collect();
            format!("(({v}){{{}}})", lanes.join(","))
        })
    }

    /// `m ? a : b` by lanes; `m` is an integer vector of the elements' size.
    pub(crate) fn select(&mut self, elem: CType, w: u32, caps: &Caps) -> Name {
        self.once(("select", "", elem, w), |h| {
            let v = h.vector(elem, w);
            let m = h.vector(elem.int_like(), w);
            let name = format!("sel_{v}");
            let total = elem.bytes() * w;
            let builtin = match (elem.bytes(), total) {
                (4, 16) => Some(("__builtin_ia32_blendvps", CType::F32, 4)),
                (4, 32) => Some(("__builtin_ia32_blendvps256", CType::F32, 8)),
                (8, 16) => Some(("__builtin_ia32_blendvpd", CType::F64, 2)),
                (8, 32) => Some(("__builtin_ia32_blendvpd256", CType::F64, 4)),
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
    pub(crate) fn nextafter(&mut self, elem: CType, w: u32, caps: &Caps) -> Name {
        self.once(("nextafter", "", elem, w), |h| {
            let v = h.vector(elem, w);
            let int = elem.int_like();
            let (i, bc) = (h.vector(int, w), h.broadcast(int, w));
            let name = format!("nextafter_{v}");
            let sel = h.select(elem, w, caps);
            let top = 8 * elem.bytes() - 1;
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
        elem: CType,
        w: u32,
        caps: &Caps,
    ) -> Name {
        self.once(("extreme", which, elem, w), |h| {
            // `a > b` alone would drop a NaN in `a` and keep one in `b`: the test of `a` makes
            // either win.
            let op = if which == "max" { ">" } else { "<" };
            if w == 1 {
                let name = format!("{which}_{elem}");
                let nan = if elem.is_float() { " || a != a" } else { "" };
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
            let (blend, whole) = match (elem, elem.bytes() * w == 64) {
                (CType::F32, true) => ("ps", "(u16)-1"),
                (CType::F64, true) => ("pd", "(u8)-1"),
                _ => ("", ""),
            };
            h.function(&name, format_args!("{v} {name}({v} a, {v} b)"), |_| {
                let nan = if elem.is_float() { " | (a != a)" } else { "" };
                let generic = format!("return {sel}((a {op} b){nan}, a, b);");
                match builtin {
                    Some(f) if !elem.is_float() => {
                        gcc_only(&format!("return {};", f("a, b")), &generic)
                    }
                    // gcc makes three operations of a selection by a comparison, instead of one by the mask.
                    Some(f) if !whole.is_empty() => gcc_only(
                        &format!(
                            "return __builtin_ia32_blendm{blend}_512_mask({}, a, \
                             __builtin_ia32_cmp{blend}512_mask(a, a, 3, {whole}, 4));",
                            f("a, b")
                        ),
                        &generic,
                    ),
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
    pub(crate) fn clamp(&mut self, which: &'static str, elem: CType, w: u32, caps: &Caps) -> Name {
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

    /// Returns a helper that is true if `all` or `any` lanes of a mask of integers are set.
    pub(crate) fn lanes_test(
        &mut self,
        which: &'static str,
        int: CType,
        w: u32,
        caps: &Caps,
    ) -> Name {
        self.once(("lanes_test", which, int, w), |h| {
            let m = h.vector(int, w);
            let name = format!("{which}_{m}");
            let goal = |lanes: u32| match which {
                "all" => format!("== {}", (1u64 << lanes) - 1),
                _ => "!= 0".into(),
            };
            let (first, sign) = if which == "all" { (-1, "&") } else { (0, "|") };
            let each = each_lane(&w.to_string());
            let simple = format!("i64 r = {first}; {each} r {sign}= m[k]; return r != 0;");
            // The vector that one instruction takes, and its name.
            let (float, lanes, test) = match (caps.isa, int, w) {
                (Isa::Avx512, CType::I32, 16) => (None, 16, "cvtd2mask512"),
                (Isa::Avx512, CType::I64, 8) => (None, 8, "cvtq2mask512"),
                (Isa::Avx2 | Isa::Avx512, CType::I32, 4) => (Some(CType::F32), 4, "movmskps"),
                (Isa::Avx2 | Isa::Avx512, CType::I32, 8 | 16 | 32) => {
                    (Some(CType::F32), 8, "movmskps256")
                }
                (Isa::Avx2 | Isa::Avx512, CType::I64, 2) => (Some(CType::F64), 2, "movmskpd"),
                (Isa::Avx2 | Isa::Avx512, CType::I64, 4 | 8 | 16) => {
                    (Some(CType::F64), 4, "movmskpd256")
                }
                _ => (None, 0, ""),
            };
            let body = match (float, lanes) {
                (_, 0) => simple,
                (None, _) => gcc_only(
                    &format!("return __builtin_ia32_{test}(m) {};", goal(w)),
                    &simple,
                ),
                (Some(float), _) => {
                    let v = h.vector(float, lanes);
                    let parts: Vec<String> = match w / lanes {
                        1 => vec![format!("({v})m")],
                        n => (0..n).map(|k| format!("(({v}u *)&m)[{k}]")).collect(),
                    };
                    let tests: Vec<String> = (parts.iter())
                        .map(|p| format!("__builtin_ia32_{test}({p})"))
                        .collect();
                    let all = tests.join(&format!(" {sign} "));
                    format!("return ({all}) {};", goal(lanes))
                }
            };
            h.function(&name, format_args!("i32 {name}({m} m)"), |_| body);
            name
        })
    }

    /// Square root and roundings, by lanes.
    pub(crate) fn rounding(
        &mut self,
        which: &'static str,
        elem: CType,
        w: u32,
        caps: &Caps,
    ) -> Name {
        self.once(("rounding", which, elem, w), |h| {
            let v = h.vector(elem, w);
            let name = format!("{which}_{v}");
            let f = format!(
                "__builtin_{which}{}",
                if elem == CType::F32 { "f" } else { "" }
            );
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

    /// Floor division and modulo of index arithmetic, for operands that may be negative.
    pub(crate) fn index_div(&mut self, which: &'static str) -> Name {
        self.once(("index_div", which, CType::I64, 1), |h| {
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

    /// Combines the lanes of a vector: `both` makes what combines two vectors `x` and `y` of numbers, or of `masks`.
    pub(crate) fn across(
        &mut self,
        what: &'static str,
        masks: bool,
        elem: CType,
        w: u32,
        both: impl FnOnce(&mut Helpers) -> String,
    ) -> Name {
        let (request, b) = if masks {
            ("across_masks", "b")
        } else {
            ("across", "")
        };
        self.once((request, what, elem, w), |h| {
            let both = both(h);
            let v = h.vector(elem, w);
            let m = h.vector(elem.int_like(), w);
            let name = format!("h{what}{b}_{v}");
            h.function(&name, format_args!("{elem} {name}({v} x)"), |_| {
                let mut body = format!("{v} y;");
                // A butterfly: after log2(w) exchanges all lanes hold the result.
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

    /// The extremes, `both` of `y` and `x` in that order, of each lane and all lanes before it, and of the scalar that came before,
    /// which becomes the last lane. Registers of `part` of the `w` lanes follow one after the other.
    pub(crate) fn along(
        &mut self,
        what: &'static str,
        elem: CType,
        (part, w): (u32, u32),
        both: impl FnOnce(&mut Helpers) -> String,
    ) -> Name {
        self.once(("along", what, elem, w), |h| {
            let both = both(h);
            let (v, all) = (h.vector(elem, part), h.vector(elem, w));
            let m = h.vector(elem.int_like(), part);
            let bc = h.broadcast(elem, part);
            let register = format!("s{what}_{v}");
            let params = format!("{v} x, {elem} *last");
            h.function(&register, format_args!("{v} {register}({params})"), |_| {
                let mut body = format!("{v} y;");
                // An inclusive scan in log2(part) steps (Hillis and Steele): each lane takes the
                // one `by` before it.
                let mut by = 1;
                while by < part {
                    // Lanes without one so far before them take themselves: that changes no extreme.
                    let lane = |i: u32| if i < by { i } else { i - by };
                    let lanes: Vec<String> = (0..part).map(|i| lane(i).to_string()).collect();
                    let lanes = lanes.join(",");
                    body += &gcc_only(
                        &format!("y = __builtin_shuffle(x, ({m}){{{lanes}}});"),
                        &format!("y = __builtin_shufflevector(x, x, {lanes});"),
                    );
                    _ = write!(body, "x = {both};");
                    by *= 2;
                }
                let end = part - 1;
                _ = write!(body, "y = {bc}(*last); x = {both}; *last = x[{end}];");
                body + " return x;"
            });
            if part == w {
                return register;
            }
            let name = format!("s{what}_of_{all}");
            h.function(
                &name,
                format_args!("{all} {name}({all} x, {elem} *last)"),
                |_| {
                    let mut body = format!("{all} r;");
                    for at in 0..w / part {
                        _ = write!(
                            body,
                            " *(({v}u *)&r + {at}) = {register}(*(({v}u *)&x + {at}), last);"
                        );
                    }
                    body + " return r;"
                },
            );
            name
        })
    }
}

/// gcc's builtins where the compiler is gcc; clang makes good code of the other text.
pub(crate) fn gcc_only(gcc: &str, other: &str) -> String {
    format!("\n#ifdef __clang__\n{other}\n#else\n{gcc}\n#endif\n")
}

type Call = Box<dyn Fn(&str) -> String>;

/// The packed instruction for `which`, if the target has one for vectors of this size.
fn packed(which: &'static str, elem: CType, w: u32, caps: &Caps) -> Option<Call> {
    let total = elem.bytes() * w;
    if let (CType::I64, "max" | "min", 64, Isa::Avx512) = (elem, which, total, caps.isa) {
        return Some(Box::new(move |a| {
            format!("__builtin_ia32_p{which}sq512_mask({a}, (i64x8){{0}}, (u8)-1)")
        }));
    }
    if !elem.is_float() || !matches!(caps.isa, Isa::Avx2 | Isa::Avx512) {
        return None;
    }
    let p = if elem == CType::F32 { "ps" } else { "pd" };
    let v = format!("{elem}x{w}");
    // Rounding modes of the instruction: 0 nearest even, 1 down, 2 up, 3 to zero; 8 raises no
    // exception.
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
        let mask = format!("({})-1", if w == 16 { CType::U16 } else { CType::U8 });
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
