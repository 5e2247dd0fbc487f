//! What must hold of a kernel: values and symbols are known where they are used, accumulators start before they are updated
//! and end after, dtypes agree, lanes loops do not nest.

use crate::text::{Place, print_with_notes};
use crate::{AccId, BufRole, Def, Item, KBufId, Kernel, Kind, Range, Role, ValId};
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
                if let Role::Lanes { width, unroll } = l.role {
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

    fn buf(&self, b: KBufId) -> Result<&crate::KernelBuf> {
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

    fn used(&self, v: ValId, dtype: Option<DType>) -> Result<()> {
        if !self.values.get(v.index()).copied().unwrap_or(false) {
            return Err(Error::internal(format!("{v} is not known here")));
        }
        let have = self.kernel.value(v).dtype;
        match dtype {
            Some(want) if want != have => Err(Error::internal(format!(
                "{v} is {have} where {want} is wanted"
            ))),
            _ => Ok(()),
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
        let dtype = value.dtype;
        if let Some(e) = value.def.expr() {
            self.expr(e)?;
        }
        match &value.def {
            Def::Const(_) | Def::Index(_) => {}
            Def::Sum => {
                if !matches!(self.kernel.kind, Kind::Epilogue { .. }) {
                    return Err(Error::internal(
                        "a contraction's sum outside of its epilogue",
                    ));
                }
            }
            Def::Load { buf, mask, .. } => {
                if self.buf(*buf)?.dtype.compute() != dtype {
                    return Err(Error::internal(format!("{v} is not what {buf} holds")));
                }
                if let Some(m) = mask {
                    self.used(*m, Some(DType::Bool))?;
                }
            }
            Def::Op { op, args } => {
                if args.len() != op.arity() {
                    return Err(Error::internal(format!("{v}: wrong number of operands")));
                }
                let skip = (*op == inrush_loops::ScalarOp::Where) as usize;
                if skip == 1 {
                    self.used(args[0], Some(DType::Bool))?;
                }
                self.used(args[skip], None)?;
                let operand = self.kernel.value(args[skip]).dtype;
                for a in &args[skip..] {
                    self.used(*a, Some(operand))?;
                }
                if op.result(operand) != dtype {
                    return Err(Error::internal(format!("{v}: wrong dtype of the result")));
                }
            }
            Def::Cast { arg, to } => {
                self.used(*arg, None)?;
                if to.compute() != dtype {
                    return Err(Error::internal(format!("{v}: wrong dtype of the result")));
                }
            }
            Def::Bitcast { arg, from, to } => {
                self.used(*arg, Some(from.compute()))?;
                if from.size() != to.size() {
                    return Err(Error::internal(format!("{v}: bits of unequal size")));
                }
            }
            Def::Indirect {
                value,
                sym,
                size,
                check,
                mask,
                ..
            } => {
                self.used(*value, None)?;
                if !self.kernel.value(*value).dtype.is_int() {
                    return Err(Error::internal(format!("{v}: an index must be an integer")));
                }
                self.expr(*size)?;
                if let Some(m) = mask {
                    self.used(*m, Some(DType::Bool))?;
                }
                if check.is_some_and(|c| c as usize >= self.kernel.checks.len()) {
                    return Err(Error::internal(format!("{v}: no such check")));
                }
                self.syms.push(*sym);
            }
            Def::Final(a) => self.started(*a)?,
            Def::Running { acc, value } => {
                self.started(*acc)?;
                self.used(*value, None)?;
            }
        }
        self.values[v.index()] = true;
        Ok(())
    }
}
