//! Operations that are loops: as many steps as their operands ask for.
//!
//! ```text
//! recurrence       v(n) of v(0) = 1, v(1) = first,
//!                  v(i+1) = ((a + i*s) * v(i) - (c + i*r) * v(i-1)) / (1 + i*q)
//! kummer           sum over n >= 1 of (b)_n / (c)_n * x^n / n!, which is 1F1(b; c; x) - 1
//! gamma fraction   1/(x+1-a - 1*(1-a)/(x+3-a - 2*(2-a)/(x+5-a - ..))), by Steed's algorithm
//! ```
//!
//! Orthogonal polynomials are recurrences; the incomplete gamma functions are a series where it
//! converges fast and the fraction elsewhere. Vectors go on while any lane wants a step. Lanes that
//! are done keep their value (recurrence), or add terms that are too small to change it.

use crate::helpers::Helpers;
use crate::types::CType;
use inrush_base::Caps;
use inrush_loops::{MOST_STEPS, ScalarOp};

impl Helpers {
    /// Greatest common divisor of integers, by lanes.
    pub(crate) fn gcd(&mut self, elem: CType, w: u32) -> String {
        let name = format!("gcd_{elem}");
        // Magnitudes. The least integer is negated in unsigned arithmetic, which wraps.
        let size = if elem.is_unsigned() {
            ""
        } else {
            "a = a < 0 ? 0ull - a : a; b = b < 0 ? 0ull - b : b; "
        };
        self.function(
            &name,
            format_args!("{elem} {name}({elem} a, {elem} b)"),
            |_| {
                format!(
                    "{size}while (a != 0) {{ const {elem} c = a; a = b % a; b = c; }} return b;"
                )
            },
        );
        match w {
            1 => name,
            _ => self.by_lane(&name, elem, w, 2),
        }
    }

    /// A polynomial's value by its recurrence, a step for all lanes at once while any of them wants one; one that `divides` has
    /// a `q` that is not zero.
    pub(crate) fn recurrence(&mut self, elem: CType, w: u32, divides: bool, caps: &Caps) -> String {
        let names = ["n", "first", "a", "s", "c", "r", "q"];
        if w == 1 {
            let name = format!("recurrence_{elem}");
            // `v == v` ends the loop at a NaN, which no further step changes.
            let params = names.map(|x| format!("{elem} {x}")).join(", ");
            self.function(&name, format_args!("{elem} {name}({params})"), |_| {
                format!(
                    "if (n < 1) return n >= 0; {elem} p = 1, v = first; \
                     for (i64 i = 1; i < n && v == v; i++) {{ const {elem} k = ({elem})i, \
                     y = ((a + k * s) * v - (c + k * r) * p) / (1 + k * q); p = v; v = y; }} return v;"
                )
            });
            return name;
        }
        let (v, m) = (self.vector(elem, w), self.vector(elem.int_like(), w));
        let bc = self.broadcast(elem, w);
        let select = self.select(elem, w, caps);
        let any = self.lanes_test("any", elem.int_like(), w, caps);
        let (name, quotient) = if divides {
            (format!("recurrence_{v}"), format!(" / ({bc}(1) + k * q)"))
        } else {
            (format!("recurrence_plain_{v}"), String::new())
        };
        let params = names.map(|x| format!("{v} {x}")).join(", ");
        self.function(&name, format_args!("{v} {name}({params})"), |_| {
            format!(
                "{v} p = {bc}(1), v = first; \
                 for (i64 i = 1;; i++) {{ const {v} k = {bc}(({elem})i); const {m} go = (k < n) & (v == v); \
                 if (!{any}(go)) break; \
                 const {v} y = ((a + k * s) * v - (c + k * r) * p){quotient}; \
                 p = {select}(go, v, p); v = {select}(go, y, v); }} \
                 v = {select}(n < {bc}(1), {bc}(1), v); return {select}(n >= {bc}(0), v, {bc}(0));"
            )
        });
        name
    }

    /// A series or a continued fraction, a step for all lanes at once until none of them changes any more.
    pub(crate) fn converging(&mut self, op: ScalarOp, elem: CType, w: u32, caps: &Caps) -> String {
        let int = elem.int_like();
        let (v, m) = (self.vector(elem, w), self.vector(int, w));
        let bc = self.broadcast(elem, w);
        let select = self.select(elem, w, caps);
        let any = self.lanes_test("any", int, w, caps);
        let (size, least) = match elem {
            CType::F32 => ("__builtin_fabsf", "1e-30f"),
            _ => ("__builtin_fabs", "1e-300"),
        };
        // One lane is spelled without vectors.
        let (ty, mask, number, go, pick) = match w {
            1 => (elem.name(), "i32", format!("({elem})"), "go".into(), None),
            _ => (&*v, &*m, bc.to_string(), format!("{any}(go)"), Some(select)),
        };
        let choose = |test: &str, a: &str, b: &str| match &pick {
            None => format!("{test} ? {a} : {b}"),
            Some(f) => format!("{f}({test}, {a}, {b})"),
        };
        // Clears the sign bit.
        let absolute = |x: &str| match w {
            1 => format!("{size}({x})"),
            _ => format!("({ty})(({m}){x} & ~({m}){number}(-0.0))"),
        };
        // A denominator that is nearly zero is replaced, as its reciprocal would be infinite.
        let kept = |x: &str| {
            let small = format!("({} < {number}({least}))", absolute(x));
            format!(
                "{x} = {};",
                choose(&small, &format!("{number}({least})"), x)
            )
        };
        let name = format!("{}_{ty}", op.text());
        let names: &[&str] = match op {
            ScalarOp::Kummer => &["b", "c", "x", "close"],
            _ => &["a", "x", "close"],
        };
        let params: Vec<String> = names.iter().map(|x| format!("{ty} {x}")).collect();
        let signature = format!("{ty} {name}({})", params.join(", "));
        self.function(&name, format_args!("{signature}"), |_| match op {
            ScalarOp::Kummer => format!(
                "{ty} term = {number}(1), sum = {number}(0); \
                 for (i32 i = 0; i < {MOST_STEPS}; i++) {{ const {ty} n = {number}(({elem})i); \
                 term = term * ((b + n) * x / ((c + n) * (n + {number}(1)))); \
                 sum = sum + term; const {mask} go = ({} > close * {}); \
                 if (!{go}) break; }} return sum;",
                absolute("term"),
                absolute("sum"),
            ),
            _ => format!(
                "{ty} b = x + {number}(1) - a, d = b; {kept} d = {number}(1) / d; {ty} term = d, sum = d; \
                 for (i32 i = 1; i <= {MOST_STEPS}; i++) {{ const {ty} n = {number}(({elem})i); \
                 b = b + {number}(2); const {ty} t = n * (a - n) * d; d = t + b; {kept} d = {number}(1) / d; \
                 term = -(t * d) * term; sum = sum + term; const {mask} go = ({} > close * {}); \
                 if (!{go}) break; }} return sum;",
                absolute("term"),
                absolute("sum"),
                kept = kept("d"),
            ),
        });
        name
    }
}
