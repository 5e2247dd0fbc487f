//! The rewrite rules of index arithmetic, by name and law.
//!
//! Each rule must fire in a row of the test table below, or the test fails. To add one: a line with
//! its law, the call of [`fired`] where it is applied, and a row that needs it.

/// Declares the rules: name and law, in which `b`, `k`, `m` are positive.
macro_rules! rules {
    ($($name:ident $law:literal;)*) => {
        /// A rewrite rule.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        pub enum Rule { $(#[doc = $law] $name,)* }

        impl Rule {
            /// Every rule with its law.
            pub const ALL: &[(Rule, &str)] = &[$((Rule::$name, $law),)*];
        }
    };
}

rules! {
    DivConst   "7 // 2 -> 3";
    DivExact   "(k*b) // b -> k";
    DivRange   "a // b -> q, when q*b <= a < (q + 1)*b";
    DivSplit   "(k*b + r) // b -> k + r // b";
    DivNested  "(x // k) // b -> x // (k*b)";
    DivOfMod   "(x % (k*b)) // b -> (x // b) % k";
    DivCommon  "(k*x + r) // (k*m) -> x // m, when 0 <= r < k";
    ModConst   "7 % 2 -> 1";
    ModExact   "(k*b) % b -> 0";
    ModRange   "a % b -> a - q*b, when q*b <= a < (q + 1)*b";
    ModSplit   "(k*b + r) % b -> r % b";
    ModNested  "(x % (k*b)) % b -> x % b";
    ModCommon  "(k*x + r) % (k*m) -> k*(x % m) + r, when 0 <= r < k";
    SumJoin    "b*(a // b) + a % b -> a";
    SumWiden   "x % k + k*((x // k) % m) -> x % (k*m)";
    MinMaxDrop "min(a, b) -> a, when a <= b; likewise max";
    MinMaxFlat "min(min(a, b), a) -> min(a, b), and any nesting in one order";
}

#[cfg(test)]
thread_local! {
    static FIRED: std::cell::RefCell<Vec<Rule>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Records that a rule was applied. Compiled out except in tests.
pub(crate) fn fired(_rule: Rule) {
    #[cfg(test)]
    FIRED.with_borrow_mut(|f| f.push(_rule));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Exprs;
    use Rule::*;
    use inrush_base::text::Scanner;

    /// Rule, input, result. Symbols: sizes `s0 >= 1`, `s1 >= 0`, `u >= 2`; indices `i0 < s0`, `i1 < 64`, `i2 < s0*u`.
    const TABLE: &[(Rule, &str, &str)] = &[
        (DivConst, "-7 // 2", "-4"),
        (DivConst, "7 // -2", "-4"),
        (DivExact, "(6*s0 + 3*s1) // 3", "2*s0 + s1"),
        (DivExact, "(s0*s1) // s0", "s1"),
        (DivExact, "(s0*u + s1*u) // u", "s0 + s1"),
        (DivExact, "(12*s0*u) // (4*s0)", "3*u"),
        (DivExact, "(s0*u + 2*s0) // (u + 2)", "s0"),
        (DivRange, "i1 // 64", "0"),
        (DivRange, "i0 // s0", "0"),
        (DivRange, "(i1 % 4 + 9) // 8", "1"),
        (DivRange, "(i0 + i1*s0) // (64*s0)", "0"),
        (DivSplit, "(64*i0 + i1) // 64", "i0"),
        (DivSplit, "(i1*s0 + i0) // s0", "i1"),
        (DivSplit, "(s1 + 9) // 4", "((s1 + 1) // 4) + 2"),
        (DivNested, "(s1 // 3) // 5", "(s1 // 15)"),
        (DivNested, "(s1 // u) // s0", "(s1 // (u*s0))"),
        (DivOfMod, "(i1 % 12) // 4", "((i1 // 4) % 3)"),
        (DivCommon, "(6*s1 + 1) // 9", "((2*s1) // 3)"),
        (DivSplit, "(64*i0 + 8) // 16", "4*i0"),
        (DivCommon, "(s0*s1 + i0) // (s0*u)", "(s1 // u)"),
        (ModConst, "-7 % 2", "1"),
        (ModExact, "(6*s0 + 3*s1) % 3", "0"),
        (ModRange, "i1 % 64", "i1"),
        (ModRange, "(i1 % 4 + 9) % 8", "(i1 % 4) + 1"),
        (ModSplit, "(64*i0 + i1) % 64", "i1"),
        (ModSplit, "(i1*s0 + i0) % s0", "i0"),
        (ModSplit, "(s1 - 1) % 4", "((s1 + 3) % 4)"),
        (ModNested, "(s1 % 12) % 4", "(s1 % 4)"),
        (ModSplit, "(64*i0 + 8) % 16", "8"),
        (ModCommon, "(4*s1 + 3) % 12", "4*(s1 % 3) + 3"),
        (SumJoin, "4*(i1 // 4) + i1 % 4", "i1"),
        (SumJoin, "u*(i2 // u) + i2 % u", "i2"),
        (SumJoin, "12*(s1 // 12) + 4*((s1 // 4) % 3) + s1 % 4", "s1"),
        (SumJoin, "4*u*(s1 // 4) + u*(s1 % 4)", "u*s1"),
        (SumWiden, "4*u*((s1 // 4) % 3) + u*(s1 % 4)", "u*(s1 % 12)"),
        (SumWiden, "4*((s1 // 4) % 3) + s1 % 4", "(s1 % 12)"),
        (MinMaxDrop, "min(i0, s0)", "i0"),
        (MinMaxDrop, "max(s0, 1)", "s0"),
        (MinMaxDrop, "max(min(s1, 3), 4)", "4"),
        (MinMaxFlat, "min(min(s1, 3), s1)", "min(3, s1)"),
        (MinMaxFlat, "max(3, max(s1, u))", "max(max(3, u), s1)"),
    ];

    fn world() -> Exprs {
        let ex = Exprs::new();
        let s0 = ex.sym_expr(ex.size_sym("s0", 1, i64::MAX));
        ex.size_sym("s1", 0, i64::MAX);
        let u = ex.sym_expr(ex.size_sym("u", 2, i64::MAX));
        ex.index(0, s0);
        ex.index(1, ex.int(64));
        ex.index(2, ex.mul(s0, u));
        ex
    }

    fn read(ex: &Exprs, text: &str) -> crate::Expr {
        let symbol = |n: &str| match n {
            "i0" => Some(ex.index_sym(0, ex.sym_expr(ex.sym_by_name("s0")?))),
            "i1" => Some(ex.index_sym(1, ex.int(64))),
            "i2" => {
                let (a, b) = (ex.sym_by_name("s0")?, ex.sym_by_name("u")?);
                Some(ex.index_sym(2, ex.mul(ex.sym_expr(a), ex.sym_expr(b))))
            }
            _ => ex.sym_by_name(n),
        };
        ex.parse(&mut Scanner::new(text), &symbol).unwrap()
    }

    #[test]
    fn each_row_gives_its_result_by_its_rule() {
        for (rule, input, want) in TABLE {
            let ex = world();
            FIRED.with_borrow_mut(Vec::clear);
            let e = read(&ex, input);
            let fired = FIRED.with_borrow(Clone::clone);
            assert_eq!(ex.show(e), *want, "{input} by {fired:?}");
            assert!(fired.contains(rule), "{input}: {fired:?} without {rule:?}");
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
    fn proofs_that_lowering_needs() {
        let ex = world();
        for (a, b) in [
            // A strided window stays inside: rows 2*i for i up to (n - 1) // 2.
            ("2*((s0 - 1) // 2)", "s0"),
            ("i2 // u", "s0"),
            ("i2 % u", "u"),
            ("s0 - 1 - i0", "s0"),
            ("min(i0 + 3, s0 - 1)", "s0"),
            ("i0*u + i2 % u", "s0*u"),
            ("max(i0 - 1, 0)", "s0"),
            ("(s0 - 1 - i0) // 2", "s0"),
        ] {
            let (x, y) = (read(&ex, a), read(&ex, b));
            assert!(ex.prove_lt(x, y) && ex.prove_nonneg(x), "0 <= {a} < {b}");
        }
        for (a, b) in [
            ("i0 + 1", "s0"),
            ("i1", "s0"),
            ("s1", "s0"),
            ("i2 // u + 1", "s0"),
        ] {
            assert!(!ex.prove_lt(read(&ex, a), read(&ex, b)), "{a} < {b}");
        }
    }
}
