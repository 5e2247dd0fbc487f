//! The table of rules: each row is rewritten by its rule, and gives equal values before and after.

use super::{FIRED, Rule, Rule::*};
use crate::builder::Builder;
use crate::{Buffer, BufferKind, ScalarOp, Stmt, StmtId, eval};
use inrush_base::{DType, Scalar, text::Scanner, text::Token};
use inrush_expr::{Expr, Exprs, Sym};
use smallvec::SmallVec;

const FLOATS: &[DType] = &[DType::F32, DType::F64];
const INTS: &[DType] = &[
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U64,
];
const SIGNED: &[DType] = &[DType::I8, DType::I16, DType::I32, DType::I64];
const BOOL: &[DType] = &[DType::Bool];

/// Rule, dtypes, input, result. `x` and `y` are values of the dtype, `p` and `q` bools; `i` is an
/// index below 8, `j` one below 64. Numbers are constants of the dtype; `to_f16(x)` converts.
const TABLE: &[(Rule, &[DType], &str, &str)] = &[
    (Constants, FLOATS, "add(1.5, 2.25)", "3.75"),
    (Constants, FLOATS, "div(1, 0)", "inf"),
    (Constants, FLOATS, "sqrt(2.25)", "1.5"),
    (Constants, FLOATS, "round(2.5)", "2.0"),
    (Constants, FLOATS, "lt(0.5, 2)", "true"),
    (Constants, FLOATS, "maximum(0.5, 2)", "2.0"),
    (Constants, INTS, "mul(5, 7)", "35"),
    (Constants, INTS, "floordiv(7, 2)", "3"),
    (Constants, SIGNED, "truncdiv(-7, 2)", "-3"),
    (Constants, SIGNED, "lt(-1, 2)", "true"),
    (Constants, BOOL, "not(true)", "false"),
    (Constants, BOOL, "xor(true, true)", "false"),
    (WhereConst, FLOATS, "where(true, x, y)", "x"),
    (WhereConst, INTS, "where(false, x, y)", "y"),
    (WhereSame, FLOATS, "where(p, x, x)", "x"),
    (WhereSame, BOOL, "where(p, q, q)", "q"),
    (AndOrSame, INTS, "and(x, x)", "x"),
    (AndOrSame, BOOL, "or(p, p)", "p"),
    (AndOrAbsorb, BOOL, "and(p, false)", "false"),
    (AndOrAbsorb, BOOL, "or(true, p)", "true"),
    (AndOrNeutral, BOOL, "and(true, p)", "p"),
    (AndOrNeutral, BOOL, "or(p, false)", "p"),
    (NotNot, INTS, "not(not(x))", "x"),
    (NotNot, BOOL, "not(not(p))", "p"),
    (CompareIndex, INTS, "lt(i, 8)", "true"),
    (CompareIndex, INTS, "ge(j, 64)", "false"),
    (CompareIndex, INTS, "le(0, i)", "true"),
    (CompareIndex, INTS, "gt(0, i)", "false"),
    (CompareIndex, INTS, "eq(i, i)", "true"),
    (CompareIndex, INTS, "ne(i, 9)", "true"),
    (IndexArith, INTS, "add(i, j)", "[i0 + i1]"),
    (IndexArith, INTS, "add(i, 3)", "[i0 + 3]"),
    (IndexArith, SIGNED, "sub(i, j)", "[i0 - i1]"),
    (IndexArith, INTS, "mul(i, 2)", "[2*i0]"),
    (IndexConst, INTS, "[3]", "3"),
    (IndexConst, FLOATS, "[3]", "3.0"),
    (MulOne, FLOATS, "mul(x, 1)", "x"),
    (MulOne, INTS, "mul(1, x)", "x"),
    (AddZero, INTS, "add(x, 0)", "x"),
    (AddZero, INTS, "add(0, x)", "x"),
    (SubZero, FLOATS, "sub(x, 0)", "x"),
    (SubZero, INTS, "sub(x, 0)", "x"),
    (DivOne, FLOATS, "div(x, 1)", "x"),
    (DivPower, FLOATS, "div(x, 4)", "mul(x, 0.25)"),
    (DivPower, FLOATS, "div(x, -0.5)", "mul(x, -2.0)"),
    (CastSame, &[DType::F32], "to_f32(x)", "x"),
    (CastSame, &[DType::I64], "to_i64(x)", "x"),
    (CastTwice, FLOATS, "to_f16(to_f16(x))", "to_f16(x)"),
    (CastTwice, FLOATS, "to_bf16(to_bf16(x))", "to_bf16(x)"),
    (CastConst, FLOATS, "to_f16(0.1)", "0.0999755859375"),
    (CastConst, FLOATS, "to_f16(65520)", "inf"),
    (CastConst, FLOATS, "to_i32(-2.5)", "-2"),
    (CastConst, &[DType::I64, DType::I32], "to_u8(-1)", "255"),
    (CastConst, INTS, "to_f32(3)", "3.0"),
    (CastConst, FLOATS, "to_bool(0.5)", "true"),
    (CastIndex, &[DType::I64, DType::I32], "to_i8(i)", "[i0]"),
    (CastIndex, &[DType::I8, DType::U64], "to_i64(j)", "[i1]"),
];

/// Terms that no rule may touch: dtypes and input.
const KEPT: &[(&[DType], &str)] = &[
    (FLOATS, "add(x, 0)"),
    (FLOATS, "add(x, -0.0)"),
    (FLOATS, "sub(x, -0.0)"),
    (FLOATS, "sub(0, x)"),
    (FLOATS, "mul(x, 0)"),
    (FLOATS, "mul(x, -1)"),
    (FLOATS, "div(1, x)"),
    (FLOATS, "div(x, 3)"),
    (FLOATS, "div(x, 0)"),
    (FLOATS, "exp(0.5)"),
    (FLOATS, "rsqrt(2)"),
    (FLOATS, "eq(x, x)"),
    (FLOATS, "maximum(0, -0.0)"),
    (FLOATS, "to_i32(3000000000)"),
    (FLOATS, "to_f16(to_bf16(x))"),
    (INTS, "floordiv(1, 0)"),
    (INTS, "sub(0, x)"),
    (INTS, "and(x, 0)"),
    (INTS, "or(x, 1)"),
    (INTS, "lt(i, j)"),
    (INTS, "eq(i, 7)"),
    // 2^64 - 1 is held as -1.
    (&[DType::U64], "lt(i, -1)"),
    (&[DType::U64], "sub(i, j)"),
    (&[DType::I8], "mul(j, 3)"),
    (&[DType::I8], "add(j, 65)"),
    (&[DType::U8], "sub(i, 1)"),
    (&[DType::I64], "to_f32(i)"),
    (&[DType::I64, DType::F32], "to_i8(to_i16(x))"),
];

/// A term as the table writes it.
#[derive(Clone, Debug)]
enum Term {
    /// `x`, `y`, `p`, `q` by number.
    Var(usize),
    Const(Scalar, DType),
    Index(Expr),
    Op(ScalarOp, Vec<Term>),
    Cast(Box<Term>, DType),
}

const VARS: [&str; 4] = ["x", "y", "p", "q"];

/// Everything that terms of one dtype refer to.
struct World {
    ex: Exprs,
    dtype: DType,
    buffers: Vec<Buffer>,
    indices: [Sym; 2],
}

impl World {
    fn new(dtype: DType) -> World {
        let ex = Exprs::new();
        let buffer = |name: &str, dtype| Buffer {
            name: name.into(),
            dtype,
            sizes: Vec::new(),
            layout: None,
            kind: BufferKind::Temp,
        };
        let indices = [ex.index_sym(0, ex.int(8)), ex.index_sym(1, ex.int(64))];
        let buffers = (VARS.iter().enumerate())
            .map(|(k, name)| buffer(name, if k < 2 { dtype } else { DType::Bool }))
            .collect();
        World {
            ex,
            dtype,
            buffers,
            indices,
        }
    }

    fn read(&self, text: &str) -> Term {
        self.term(&mut Scanner::new(text))
    }

    fn term(&self, s: &mut Scanner) -> Term {
        if s.eat("[").unwrap() {
            let e = self.ex.int(s.int().unwrap());
            s.expect("]").unwrap();
            return Term::Index(e);
        }
        if !matches!(s.peek().unwrap(), Token::Ident(_)) {
            return Term::Const(s.scalar().unwrap().convert(self.dtype), self.dtype);
        }
        let word = s.ident().unwrap();
        let var = VARS.iter().position(|v| *v == word);
        match word.as_str() {
            "true" | "false" => return Term::Const(Scalar::Bool(word == "true"), DType::Bool),
            "i" => return Term::Index(self.ex.sym_expr(self.indices[0])),
            "j" => return Term::Index(self.ex.sym_expr(self.indices[1])),
            _ => {}
        }
        if let Some(k) = var {
            return Term::Var(k);
        }
        s.expect("(").unwrap();
        let mut args = vec![self.term(s)];
        while s.eat(",").unwrap() {
            args.push(self.term(s));
        }
        s.expect(")").unwrap();
        match word.strip_prefix("to_") {
            Some(to) => Term::Cast(Box::new(args.remove(0)), DType::parse(to).unwrap()),
            None => Term::Op(ScalarOp::parse(&word).unwrap(), args),
        }
    }

    fn dtype(&self, t: &Term) -> DType {
        match t {
            Term::Var(k) => self.buffers[*k].dtype,
            Term::Const(_, d) => *d,
            Term::Index(_) => self.dtype,
            Term::Op(op, args) => op.result(self.operand(*op, args)),
            Term::Cast(_, to) => to.compute(),
        }
    }

    fn operand(&self, op: ScalarOp, args: &[Term]) -> DType {
        self.dtype(&args[usize::from(op == ScalarOp::Where)])
    }

    fn build(&self, b: &mut Builder, t: &Term) -> StmtId {
        let stmt = match t {
            Term::Var(k) => Stmt::Load {
                buf: crate::BufId(*k as u32),
                coords: SmallVec::new(),
                mask: None,
                fill: Scalar::Int(0),
            },
            Term::Const(value, dtype) => Stmt::Const {
                value: *value,
                dtype: *dtype,
            },
            Term::Index(expr) => Stmt::Index {
                expr: *expr,
                dtype: self.dtype,
            },
            Term::Op(op, args) => Stmt::Op {
                op: *op,
                args: args.iter().map(|a| self.build(b, a)).collect(),
                dtype: self.operand(*op, args),
            },
            Term::Cast(arg, to) => Stmt::Cast {
                arg: self.build(b, arg),
                to: *to,
            },
        };
        b.push(stmt)
    }

    /// Returns the text of a statement's value, as the table writes it.
    fn show(&self, b: &Builder, s: StmtId) -> String {
        match &b.stmts()[s.index()] {
            Stmt::Load { buf, .. } => VARS[buf.index()].into(),
            Stmt::Const { value, .. } => value.to_string(),
            Stmt::Index { expr, .. } => format!("[{}]", self.ex.show(*expr)),
            Stmt::Op { op, args, .. } => {
                let args: Vec<String> = args.iter().map(|a| self.show(b, *a)).collect();
                format!("{}({})", op.text(), args.join(", "))
            }
            Stmt::Cast { arg, to } => format!("to_{to}({})", self.show(b, *arg)),
            other => panic!("{other:?}"),
        }
    }

    /// Evaluates a term as it is written.
    fn value(&self, t: &Term, at: &Point) -> Scalar {
        match t {
            Term::Var(k) => at.vars[*k],
            Term::Const(c, _) => *c,
            Term::Index(e) => self.index(*e, self.dtype, at),
            Term::Op(op, args) => {
                let values: Vec<Scalar> = args.iter().map(|a| self.value(a, at)).collect();
                eval::op(*op, self.operand(*op, args), &values).unwrap()
            }
            Term::Cast(arg, to) => eval::cast(self.value(arg, at), self.dtype(arg), *to),
        }
    }

    /// Evaluates a statement of the builder.
    fn built(&self, b: &Builder, s: StmtId, at: &Point) -> Scalar {
        match &b.stmts()[s.index()] {
            Stmt::Load { buf, .. } => at.vars[buf.index()],
            Stmt::Const { value, .. } => *value,
            Stmt::Index { expr, dtype } => self.index(*expr, *dtype, at),
            Stmt::Op { op, args, dtype } => {
                let values: Vec<Scalar> = args.iter().map(|a| self.built(b, *a, at)).collect();
                eval::op(*op, *dtype, &values).unwrap()
            }
            Stmt::Cast { arg, to } => eval::cast(self.built(b, *arg, at), b.dtype(*arg), *to),
            other => panic!("{other:?}"),
        }
    }

    fn index(&self, e: Expr, dtype: DType, at: &Point) -> Scalar {
        let of = |s: Sym| {
            let k = self.indices.iter().position(|i| *i == s);
            k.map(|k| at.indices[k])
        };
        Scalar::Int(self.ex.eval(e, &of).unwrap()).convert(dtype)
    }
}

/// Values of variables and indices.
struct Point {
    vars: [Scalar; 4],
    indices: [i64; 2],
}

/// A generator of 64 random bits (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws a value: every other one is an end of the range or another special value.
    fn value(&mut self, d: DType) -> Scalar {
        let special = self.next().is_multiple_of(2);
        let pick = self.next() as usize;
        if d == DType::Bool {
            return Scalar::Bool(pick.is_multiple_of(2));
        }
        if let Some((lo, hi)) = d.int_range() {
            let ends = [lo, hi, 0, 1, -1, lo + 1, hi - 1, hi / 2 + 1];
            let random = self.next() as i64 as i128;
            let v = if special {
                ends[pick % ends.len()]
            } else {
                random
            };
            return Scalar::Int(v as i64).convert(d);
        }
        let (least, most) = match d {
            DType::F32 => (f64::from(f32::from_bits(1)), f64::from(f32::MAX)),
            _ => (f64::from_bits(1), f64::MAX),
        };
        let floats = [
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            0.0,
            -0.0,
            0.5,
            -0.5,
            1.0,
            least,
            -least,
            most,
            -most,
            65504.0,
            65520.0,
            6e-8,
            128.0,
            -129.0,
            2147483648.0,
            9.3e18,
        ];
        let random = f64::from_bits(self.next());
        let v = if special {
            floats[pick % floats.len()]
        } else {
            random
        };
        Scalar::Float(v).convert(d)
    }

    fn point(&mut self, dtype: DType) -> Point {
        let vars = [dtype, dtype, DType::Bool, DType::Bool].map(|d| self.value(d));
        let indices = [8, 64].map(|n| (self.next() % n) as i64);
        Point { vars, indices }
    }
}

/// Returns true if two values are one: a NaN equals a NaN, and zeros differ by their signs.
fn same(a: Scalar, b: Scalar) -> bool {
    match (a, b) {
        (Scalar::Float(a), Scalar::Float(b)) => {
            a.is_nan() && b.is_nan() || a.to_bits() == b.to_bits()
        }
        _ => a == b,
    }
}

#[test]
fn each_row_gives_its_result_by_its_rule() {
    for (rule, dtypes, input, want) in TABLE {
        for d in *dtypes {
            let w = World::new(*d);
            let mut b = Builder::new(&w.ex, &w.buffers, w.indices.into_iter());
            FIRED.with_borrow_mut(Vec::clear);
            let s = w.build(&mut b, &w.read(input));
            let fired = FIRED.with_borrow(Clone::clone);
            assert_eq!(w.show(&b, s), *want, "{input} of {d} by {fired:?}");
            assert!(
                fired.contains(rule),
                "{input} of {d}: {fired:?} without {rule:?}"
            );
        }
    }
}

#[test]
fn every_rule_fires_in_the_table() {
    let idle: Vec<_> = Rule::ALL
        .iter()
        .filter(|(r, _)| !TABLE.iter().any(|row| row.0 == *r))
        .collect();
    assert!(idle.is_empty(), "rules without a test: {idle:?}");
}

#[test]
fn simplified_terms_have_the_values_of_what_was_written() {
    let mut random = Random(7);
    let rewritten = TABLE.iter().map(|(_, dtypes, input, _)| (*dtypes, *input));
    for (dtypes, input) in rewritten.chain(KEPT.iter().copied()) {
        for d in dtypes {
            let w = World::new(*d);
            let mut b = Builder::new(&w.ex, &w.buffers, w.indices.into_iter());
            let term = w.read(input);
            let s = w.build(&mut b, &term);
            assert_eq!(b.dtype(s), w.dtype(&term), "{input} of {d}");
            for _ in 0..400 {
                let at = random.point(*d);
                let (want, got) = (w.value(&term, &at), w.built(&b, s, &at));
                let (vars, indices) = (at.vars, at.indices);
                assert!(
                    same(want, got),
                    "{input} of {d} at {vars:?} {indices:?}: {want:?} became {got:?}"
                );
            }
        }
    }
}

#[test]
fn terms_that_could_differ_are_kept() {
    for (dtypes, input) in KEPT {
        for d in *dtypes {
            let w = World::new(*d);
            let mut b = Builder::new(&w.ex, &w.buffers, w.indices.into_iter());
            FIRED.with_borrow_mut(Vec::clear);
            w.build(&mut b, &w.read(input));
            let fired = FIRED.with_borrow(Clone::clone);
            assert!(fired.is_empty(), "{input} of {d}: {fired:?}");
        }
    }
}
