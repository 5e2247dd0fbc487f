//! Operations that are loops: as many steps as their operands ask for.

use crate::helpers::Helpers;
use crate::types;
use inrush_base::Caps;

impl Helpers {
    /// Greatest common divisor of integers, by lanes.
    pub(crate) fn gcd(&mut self, elem: &'static str, w: u32) -> String {
        let name = format!("gcd_{elem}");
        let size = match elem.starts_with('u') {
            true => "",
            // The least number stays what it is.
            false => "a = a < 0 ? 0ull - a : a; b = b < 0 ? 0ull - b : b; ",
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
    pub(crate) fn recurrence(
        &mut self,
        elem: &'static str,
        w: u32,
        divides: bool,
        caps: &Caps,
    ) -> String {
        let names = ["n", "first", "a", "s", "c", "r", "q"];
        if w == 1 {
            let name = format!("recurrence_{elem}");
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
        let (v, m) = (self.vector(elem, w), self.vector(types::int_like(elem), w));
        let bc = self.broadcast(elem, w);
        let select = self.select(elem, w, caps);
        let any = self.lanes_test("any", types::int_like(elem), w, caps);
        let (name, quotient) = match divides {
            true => (format!("recurrence_{v}"), format!(" / ({bc}(1) + k * q)")),
            false => (format!("recurrence_plain_{v}"), String::new()),
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
}
