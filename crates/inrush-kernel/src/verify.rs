//! Verifier of kernels: values and symbols are known where they are used, accumulators start before they are updated
//! and end after, dtypes agree, lanes loops do not nest.

use crate::text::{Place, print_with_notes};
use crate::{
    AccId, BufRole, Def, Item, KBufId, Kernel, KernelBuf, Kind, Range, Role, ValId, Value,
};
use inrush_base::{DType, Error, Result};
use inrush_expr::{Expr, Exprs, Sym};

/// Checks a kernel; the error names the first thing that is wrong.
pub fn verify(exprs: &Exprs, kernel: &Kernel) -> Result<()> {
    let mut v = Verifier {
        exprs,
        kernel,
        values: vec![false; kernel.values.len()],
        accs: vec![false; kernel.accs.len()],
        syms: kernel.sizes.iter().map(|p| p.sym).collect(),
        lanes: false,
        items: 0,
        at: Place::Kernel,
    };
    let run = |v: &mut Verifier| -> Result<()> {
        v.items(&kernel.head)?;
        v.at = Place::Grid;
        match &kernel.kind {
            Kind::Grid(axes) => {
                for a in axes {
                    v.expr(a.extent)?;
                }
                v.syms
                    .extend(axes.iter().filter(|a| a.block == 1).map(|a| a.sym));
            }
            Kind::Epilogue { batch, .. } => v.syms.push(*batch),
        }
        v.items(&kernel.body)
    };
    run(&mut v).map_err(|e| {
        let message = e.message().to_string();
        Error::internal(format!(
            "the kernel `{}` breaks a rule: {message}\n{}",
            kernel.name,
            print_with_notes(exprs, kernel, &[(v.at, message.clone())])
        ))
    })
}

/// Rules of dtypes, which hold of a value wherever it is evaluated.
pub(crate) struct Rules<'a> {
    pub values: &'a [Value],
    pub buffers: &'a [KernelBuf],
    /// Number of run-time checks.
    pub checks: usize,
}

impl Rules<'_> {
    /// Checks that an operand has a dtype.
    pub fn operand(&self, v: ValId, dtype: Option<DType>) -> Result<()> {
        let have = self.values[v.index()].dtype;
        match dtype {
            Some(want) if want != have => Err(Error::internal(format!(
                "{v} is {have} where {want} is wanted"
            ))),
            _ => Ok(()),
        }
    }

    fn mask(&self, mask: Option<ValId>) -> Result<()> {
        mask.map_or(Ok(()), |m| self.operand(m, Some(DType::Bool)))
    }

    /// Checks the dtypes of a value and of its operands, which exist.
    pub fn value(&self, v: ValId) -> Result<()> {
        let value = &self.values[v.index()];
        let dtype = value.dtype;
        let of = |v: ValId| self.values[v.index()].dtype;
        let wrong = || Err(Error::internal(format!("{v}: wrong dtype of the result")));
        match &value.def {
            Def::Const(_) | Def::Index(_) | Def::Sum(_) | Def::Final(_) | Def::Running { .. } => {}
            Def::Sorted { value } => {
                if !matches!(dtype, DType::I32 | DType::I64) {
                    return Err(Error::internal(format!("{v}: keys cannot be {dtype}")));
                }
                self.operand(*value, Some(dtype))?;
            }
            Def::Load { buf, mask, .. } => {
                let buffer = (self.buffers.get(buf.index()))
                    .ok_or_else(|| Error::internal(format!("{buf} is no buffer")))?;
                if buffer.dtype.compute() != dtype {
                    return Err(Error::internal(format!("{v} is not what {buf} holds")));
                }
                self.mask(*mask)?;
            }
            Def::Op { op, args } => {
                if args.len() != op.arity() {
                    return Err(Error::internal(format!("{v}: wrong number of operands")));
                }
                let skip = (*op == inrush_loops::ScalarOp::Where) as usize;
                if skip == 1 {
                    self.operand(args[0], Some(DType::Bool))?;
                }
                let operand = of(args[skip]);
                for a in &args[skip..] {
                    self.operand(*a, Some(operand))?;
                }
                if op.result(operand) != dtype {
                    return wrong();
                }
            }
            Def::Cast { to, .. } if to.compute() != dtype => return wrong(),
            Def::Cast { .. } => {}
            Def::Bitcast { arg, from, to } => {
                self.operand(*arg, Some(from.compute()))?;
                if from.size() != to.size() {
                    return Err(Error::internal(format!("{v}: bits of unequal size")));
                }
            }
            Def::Indirect {
                value, check, mask, ..
            } => {
                if !of(*value).is_int() {
                    return Err(Error::internal(format!("{v}: an index must be an integer")));
                }
                self.mask(*mask)?;
                if check.is_some_and(|c| c as usize >= self.checks) {
                    return Err(Error::internal(format!("{v}: no such check")));
                }
            }
        }
        Ok(())
    }
}

struct Verifier<'a> {
    exprs: &'a Exprs,
    kernel: &'a Kernel,
    values: Vec<bool>,
    accs: Vec<bool>,
    syms: Vec<Sym>,
    lanes: bool,
    /// Items so far, and the place of what is being checked.
    items: usize,
    at: Place,
}

impl Verifier<'_> {
    fn items(&mut self, items: &[Item]) -> Result<()> {
        for item in items {
            self.item(item)?;
        }
        Ok(())
    }

    fn item(&mut self, item: &Item) -> Result<()> {
        self.at = Place::Item(self.items);
        self.items += 1;
        match item {
            Item::Loop(l) => {
                match l.range {
                    Range::Full(e) | Range::Block { extent: e, .. } => self.expr(e)?,
                    Range::Tile { start, extent, .. } => {
                        self.expr(start)?;
                        self.expr(extent)?;
                    }
                    Range::Rows | Range::Columns | Range::Pieces(_) | Range::Piece(_) => {
                        if let Range::Pieces(length) | Range::Piece(length) = l.range {
                            self.expr(length)?;
                        }
                        if !matches!(self.kernel.kind, Kind::Epilogue { .. }) {
                            return Err(Error::internal("a tile's range outside of an epilogue"));
                        }
                    }
                }
                let lanes = self.lanes;
                if let Role::Vector { width, unroll } = l.role {
                    if lanes {
                        return Err(Error::internal("a lanes loop inside a lanes loop"));
                    }
                    if width < 2 || unroll < 1 {
                        return Err(Error::internal("a lanes loop of fewer than two lanes"));
                    }
                    self.lanes = true;
                }
                let (values, accs, syms) =
                    (self.values.clone(), self.accs.clone(), self.syms.clone());
                self.syms.push(l.sym);
                self.items(&l.body)?;
                (self.values, self.accs, self.syms) = (values, accs, syms);
                self.lanes = lanes;
                Ok(())
            }
            Item::Let(v) => self.define(*v),
            Item::Acc(a) => {
                *self.acc_slot(*a)? = true;
                Ok(())
            }
            Item::Update { acc, value } => {
                self.started(*acc)?;
                let want = self.kernel.accs[acc.index()].dtype;
                self.used(*value, Some(want))?;
                if let Some(e) = self.kernel.accs[acc.index()].index {
                    self.expr(e)?;
                }
                Ok(())
            }
            Item::Store {
                buf,
                offset,
                value,
                mask,
                ..
            } => {
                self.expr(*offset)?;
                let b = self.buf(*buf)?;
                if matches!(b.role, BufRole::In) {
                    return Err(Error::internal(format!("store into the input {buf}")));
                }
                let want = b.dtype.compute();
                self.used(*value, Some(want))?;
                mask.map_or(Ok(()), |m| self.used(m, Some(DType::Bool)))
            }
        }
    }

    fn buf(&self, b: KBufId) -> Result<&KernelBuf> {
        (self.kernel.buffers.get(b.index()))
            .ok_or_else(|| Error::internal(format!("{b} is no buffer")))
    }

    fn acc_slot(&mut self, a: AccId) -> Result<&mut bool> {
        (self.accs.get_mut(a.index()))
            .ok_or_else(|| Error::internal(format!("{a} is no accumulator")))
    }

    fn started(&mut self, a: AccId) -> Result<()> {
        if *self.acc_slot(a)? {
            Ok(())
        } else {
            Err(Error::internal(format!("{a} is not started")))
        }
    }

    fn known(&self, v: ValId) -> Result<()> {
        match self.values.get(v.index()) {
            Some(true) => Ok(()),
            _ => Err(Error::internal(format!("{v} is not known here"))),
        }
    }

    fn used(&self, v: ValId, dtype: Option<DType>) -> Result<()> {
        self.known(v)?;
        self.rules().operand(v, dtype)
    }

    fn rules(&self) -> Rules<'_> {
        Rules {
            values: &self.kernel.values,
            buffers: &self.kernel.buffers,
            checks: self.kernel.checks.len(),
        }
    }

    fn expr(&self, e: Expr) -> Result<()> {
        for s in self.exprs.free_syms(e) {
            if !self.syms.contains(&s) {
                return Err(Error::internal(format!(
                    "the symbol `{}` of `{}` is not known here",
                    self.exprs.sym_info(s).name,
                    self.exprs.show(e)
                )));
            }
        }
        Ok(())
    }

    fn define(&mut self, v: ValId) -> Result<()> {
        let Some(value) = self.kernel.values.get(v.index()) else {
            return Err(Error::internal(format!("{v} is no value")));
        };
        if let Some(e) = value.def.expr() {
            self.expr(e)?;
        }
        value
            .def
            .operands()
            .iter()
            .try_for_each(|o| self.known(*o))?;
        self.rules().value(v)?;
        match &value.def {
            Def::Sum(_) if !matches!(self.kernel.kind, Kind::Epilogue { .. }) => {
                return Err(Error::internal(
                    "a contraction's sum outside of its epilogue",
                ));
            }
            Def::Sorted { .. } => {
                return Err(Error::internal("a sort, which no loop does"));
            }
            Def::Indirect { sym, size, .. } => {
                self.expr(*size)?;
                self.syms.push(*sym);
            }
            Def::Final(acc) | Def::Running { acc, .. } => self.started(*acc)?,
            _ => {}
        }
        self.values[v.index()] = true;
        Ok(())
    }
}
