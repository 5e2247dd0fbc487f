//! Accumulators: started, updated, finished; kept in several vectors where a lanes loop feeds them.
//!
//! An accumulator is declared in one of three forms, by the vector loop that it starts in and the
//! one that feeds it:
//!
//! ```text
//! start    update    form                                  result
//! scalar   scalar    f32 a0                                a0
//! vector   vector    f32x16 a0_0, a0_1: one a copy         varies: each lane has a sum of its own
//! scalar   vector    f32x16 a0_0, a0_1: partial sums       a number: copies, then lanes in a tree
//! ```
//!
//! In the third form dead lanes of a partial vector take the neutral element; in the second they
//! are never stored. Long sums and products have an `f64` in addition, and running ones an `f64`
//! alone (see [`crate::cascade`]).

use crate::helpers::Helpers;
use crate::kernel::Emitter;
use crate::text::joined;
use crate::types::{self, CType};
use inrush_base::{Caps, DType, Error, Result, Scalar};
use inrush_kernel::{AccId, ValId};
use inrush_loops::ReduceOp;

impl Helpers {
    /// `a op b` for scalars (`w` 1) or vectors.
    fn combined(
        &mut self,
        op: ReduceOp,
        d: DType,
        w: u32,
        (a, b): (&str, &str),
        caps: &Caps,
    ) -> String {
        // 0 and 1, or masks of 0 and -1: bit operations are right for both.
        if d == DType::Bool {
            return match op {
                ReduceOp::Any | ReduceOp::Max | ReduceOp::Sum => format!("({a} | {b})"),
                ReduceOp::XorSum => format!("({a} ^ {b})"),
                _ => format!("({a} & {b})"),
            };
        }
        let elem = types::scalar(d);
        match op {
            ReduceOp::Sum => joined!("(", a, " + ", b, ")"),
            ReduceOp::Prod => format!("({a} * {b})"),
            ReduceOp::XorSum => format!("({a} ^ {b})"),
            ReduceOp::Max | ReduceOp::Min => {
                let which = if op == ReduceOp::Max { "max" } else { "min" };
                let f = self.extreme(which, elem, w, caps);
                joined!(f, "(", a, ", ", b, ")")
            }
            ReduceOp::LogSumExp => {
                let f = self.logaddexp(elem, w, caps);
                format!("{f}({a}, {b})")
            }
            // Of anything but bools: zero or not; lowering gives bools.
            ReduceOp::Any => format!("({a} | {b})"),
            ReduceOp::All => format!("({a} & {b})"),
            ReduceOp::ArgMax | ReduceOp::ArgMin => b.to_string(),
        }
    }
}

impl Emitter<'_> {
    /// The neutral element as C text.
    /// Of an arg reduction it is the worst value: where nothing is better, index 0 stays, which is
    /// the first point.
    pub(crate) fn neutral(&self, op: ReduceOp, d: DType) -> String {
        let extreme = |low: bool| match d.int_range() {
            Some((lo, hi)) => {
                let v = if low { lo } else { hi };
                types::literal(Scalar::Int(v as i64), d)
            }
            None => {
                let inf = if low {
                    f64::NEG_INFINITY
                } else {
                    f64::INFINITY
                };
                types::literal(Scalar::Float(inf), d)
            }
        };
        match op {
            ReduceOp::Sum | ReduceOp::XorSum | ReduceOp::Any => types::literal(Scalar::Int(0), d),
            ReduceOp::Prod | ReduceOp::All => types::literal(Scalar::Int(1), d),
            ReduceOp::Max | ReduceOp::ArgMax | ReduceOp::LogSumExp => extreme(true),
            ReduceOp::Min | ReduceOp::ArgMin => extreme(false),
        }
    }

    /// Declares an accumulator at its neutral element, in as many vectors as its loop needs.
    pub(crate) fn start(&mut self, a: AccId) -> Result<()> {
        let acc = &self.kernel.accs[a.index()];
        let (op, d) = (acc.op, acc.dtype);
        if matches!(op, ReduceOp::Any | ReduceOp::All) && d != DType::Bool {
            return Err(Error::unsupported(format!("`{}` of {d}", op.text())));
        }
        if self.facts.cascade.is_scan(a) {
            self.start_wide(a);
            return Ok(());
        }
        let neutral = self.neutral(op, d);
        let arg = op.is_arg();
        let (width, copies) = match (self.facts.acc_vectors[a.index()], self.state.lane.is_some()) {
            (Some((w, u)), _) => (Some(w), u),
            (None, true) => (
                Some(self.width()),
                self.state.lane.as_ref().map_or(1, |l| l.copies),
            ),
            (None, false) => (None, 1),
        };
        match width {
            None => {
                let name = self.helpers.variable('a', a.0, None);
                self.line([types::scalar(d).name(), " ", &name, " = ", &neutral, ";"]);
                if arg {
                    self.line(format_args!("i64 {a}i = 0;"));
                }
            }
            Some(w) => {
                let spread = self.facts.acc_vectors[a.index()].is_some();
                if spread && arg {
                    return Err(Error::internal("an arg reduction over lanes"));
                }
                // Outside of the lanes loop its width decides.
                let elem = self.acc_elem(d, w);
                let ty = self.helpers.vector(elem, w);
                let bc = self.helpers.broadcast(elem, w);
                let sign = if d == DType::Bool { "-" } else { "" };
                for copy in 0..copies {
                    let name = self.helpers.variable('a', a.0, Some(copy));
                    self.line([&*ty, " ", &name, " = ", &bc, "(", sign, &neutral, ");"]);
                }
                if arg {
                    let index = self.helpers.vector(CType::I64, w);
                    for copy in 0..copies {
                        self.line(format_args!("{index} {a}i_{copy} = {{0}};"));
                    }
                }
            }
        }
        if self.facts.cascade.is_long(a) {
            self.start_wide(a);
        }
        Ok(())
    }

    /// Returns the C type of an accumulator's lanes: bools are masks of the integer type that loops
    /// of `w` lanes use.
    fn acc_elem(&self, d: DType, w: u32) -> CType {
        if d != DType::Bool {
            return types::scalar(d);
        }
        self.mask_elem_of(w)
    }

    /// Writes an update of an accumulator.
    pub(crate) fn update(&mut self, a: AccId, value: ValId) -> Result<()> {
        let acc = &self.kernel.accs[a.index()];
        let (op, d) = (acc.op, acc.dtype);
        if op.is_arg() {
            return self.update_arg(a, value, acc.index);
        }
        let spread = self.facts.acc_vectors[a.index()].is_some();
        let lanes = spread || self.facts.started[a.index()].is_some();
        if !lanes {
            let (x, _) = self.var(value)?;
            let elem = types::scalar(d);
            let name = self.helpers.variable('a', a.0, None);
            let text = self.helpers.combined(op, d, 1, (&name, &x), self.caps);
            self.line([&*name, " = (", elem.name(), ")", &text, ";"]);
            return Ok(());
        }
        let w = self.width();
        let mut x = self.vector(value)?;
        let (copy, count) = match &self.state.lane {
            Some(l) if spread => (l.copy, l.count.clone()),
            Some(l) => (l.copy, None),
            None => (0, None),
        };
        if let Some(c) = count {
            // Dead lanes take no part.
            let elem = self.elem(d);
            let live = self.helpers.lane_mask(elem.int_like(), w);
            let sel = self.helpers.select(elem, w, self.caps);
            let neutral = self.neutral(op, d);
            let neutral = self.spread_out(&neutral, d);
            x = joined!(sel, "(", live, "(", c, "), ", x, ", ", neutral, ")").into();
        }
        let letter = if self.state.partial_sums.contains(&a) {
            'p'
        } else {
            'a'
        };
        let name = self.helpers.variable(letter, a.0, Some(copy));
        // The new value comes first: a NaN in it is looked for off the chain through the accumulator.
        let text = self.helpers.combined(op, d, w, (&x, &name), self.caps);
        self.line([&*name, " = ", &text, ";"]);
        Ok(())
    }

    /// Takes the value and its index where it is a new extreme: greater, or the first NaN.
    /// The comparison is strict, so that of equals the first one stays, as eager's. The first NaN
    /// stays, because no later value is greater and `a == a` fails then.
    fn update_arg(
        &mut self,
        a: AccId,
        value: ValId,
        index: Option<inrush_expr::Expr>,
    ) -> Result<()> {
        let acc = &self.kernel.accs[a.index()];
        let (op, d) = (acc.op, acc.dtype);
        let index = index.ok_or_else(|| Error::internal("an arg reduction without an index"))?;
        let sign = if op == ReduceOp::ArgMax { ">" } else { "<" };
        let at = self.expr(index, false)?;
        if self.facts.started[a.index()].is_none() {
            let (x, _) = self.var(value)?;
            let nan = if types::scalar(d).is_float() {
                format!(" || {x} != {x} && {a} == {a}")
            } else {
                String::new()
            };
            self.line(format_args!(
                "if ({x} {sign} {a}{nan}) {{ {a} = {x}; {a}i = {at}; }}"
            ));
            return Ok(());
        }
        let w = self.width();
        let x = self.vector(value)?;
        let elem = self.elem(d);
        let copy = self.copy();
        let best = format!("{a}_{copy}");
        let int = elem.int_like();
        let m = self.helpers.vector(int, w);
        let sign = match (d, op) {
            // Masks are negative where they are true.
            (DType::Bool, ReduceOp::ArgMax) => "<",
            (DType::Bool, _) => ">",
            _ => sign,
        };
        let nan = if elem.is_float() {
            format!(" | (({x} != {x}) & ({best} == {best}))")
        } else {
            String::new()
        };
        let sel = self.helpers.select(elem, w, self.caps);
        let sel_index = self.helpers.select(CType::I64, w, self.caps);
        let bc = self.helpers.broadcast(CType::I64, w);
        // Indices are lanes of 64 bits, whatever the size of the values.
        let mask = if elem.bytes() == 8 {
            "t".to_string()
        } else {
            self.helpers.convert("t", int, CType::I64, w, self.caps)
        };
        self.line(format_args!(
            "{{ const {m} t = ({x} {sign} {best}){nan}; {best} = {sel}(t, {x}, {best}); \
             {a}i_{copy} = {sel_index}({mask}, {bc}({at}), {a}i_{copy}); }}"
        ));
        Ok(())
    }

    /// The result of an accumulator.
    pub(crate) fn finish(&mut self, v: ValId, a: AccId) -> Result<()> {
        let acc = &self.kernel.accs[a.index()];
        let (op, d) = (acc.op, acc.dtype);
        let lanes = self.facts.started[a.index()].is_some();
        let out = self.dtype(v);
        if op.is_arg() {
            let text = if lanes {
                format!("{a}i_{}", self.copy())
            } else {
                format!("{a}i")
            };
            self.declare(v, &*text, lanes);
            return Ok(());
        }
        if out != d {
            return Err(Error::unsupported(format!(
                "`{}` of {d} with a result of {out}",
                op.text()
            )));
        }
        let long = self.facts.cascade.is_long(a);
        let Some((w, copies)) = self.facts.acc_vectors[a.index()] else {
            let copy = lanes.then(|| self.copy());
            if long || self.facts.cascade.is_scan(a) {
                let all = self.emptied(a, copy);
                self.declare_narrow(v, a, &all);
            } else {
                let name = self.helpers.variable('a', a.0, copy);
                self.declare(v, &*name, lanes);
            }
            return Ok(());
        };
        if long {
            // Copies and lanes are combined in `f64`, and rounded once.
            let mut total = self.emptied(a, Some(0));
            for copy in 1..copies {
                let next = self.emptied(a, Some(copy));
                total = joined!("(", total, self.sign(a), next, ")");
            }
            let caps = self.caps;
            let both = |h: &mut Helpers| h.combined(op, DType::F64, w, ("x", "y"), caps);
            let f = self.helpers.across(op.text(), false, CType::F64, w, both);
            self.declare(v, ["(f32)", &f, "(", &total, ")"], false);
            return Ok(());
        }
        let (h, caps) = (&mut *self.helpers, self.caps);
        let mut total = h.variable('a', a.0, Some(0));
        for copy in 1..copies {
            let next = h.variable('a', a.0, Some(copy));
            total = h.combined(op, d, w, (&total, &next), caps).into();
        }
        let elem = self.acc_elem(d, w);
        let masks = d == DType::Bool;
        let both = |h: &mut Helpers| h.combined(op, d, w, ("x", "y"), caps);
        let f = self.helpers.across(op.text(), masks, elem, w, both);
        let sign = if masks { "-" } else { "" };
        self.declare(v, [sign, &f, "(", &total, ")"], false);
        Ok(())
    }

    /// A scan: updates the accumulator and gives what it holds.
    pub(crate) fn running(&mut self, v: ValId, a: AccId, value: ValId) -> Result<()> {
        if self.state.lane.is_some() && self.facts.started[a.index()].is_none() {
            return self.running_lanes(v, a, value);
        }
        if self.facts.cascade.is_scan(a) {
            return self.step(v, a, value);
        }
        let lanes = self.facts.started[a.index()].is_some();
        let copy = lanes.then(|| self.copy());
        self.update(a, value)?;
        let name = self.helpers.variable('a', a.0, copy);
        self.declare(v, &*name, lanes);
        Ok(())
    }

    /// A running extreme along the lanes, a vector register at a time. What comes before is a scalar.
    /// Extremes alone: their result does not depend on the order, while a sum's would round in
    /// another way than eager's.
    fn running_lanes(&mut self, v: ValId, a: AccId, value: ValId) -> Result<()> {
        let acc = &self.kernel.accs[a.index()];
        let (op, d) = (acc.op, acc.dtype);
        if !op.is_extreme() || d == DType::Bool {
            return Err(Error::internal("a scan over lanes"));
        }
        let (elem, w) = (types::scalar(d), self.width());
        let part = w.min((self.caps.vector_bytes as u32 / elem.bytes()).max(1));
        // Of equals the later one, as element by element.
        let caps = self.caps;
        let both = |h: &mut Helpers| h.combined(op, d, part, ("y", "x"), caps);
        let f = (self.helpers).along(op.text(), elem, (part, w), both);
        let x = self.vector(value)?;
        let text = format!("{f}({x}, &{a})");
        self.declare(v, &*text, true);
        Ok(())
    }

    /// Returns the copy of the open vector loop that is being written; 0 without one.
    pub(crate) fn copy(&self) -> u32 {
        self.state.lane.as_ref().map_or(0, |l| l.copy)
    }
}
