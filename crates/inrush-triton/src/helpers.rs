//! Functions that a kernel's source brings along, each once and only if it is used.
//!
//! The text of a kernel is searched for the names, so that a helper has to be called, or passed to
//! a reduction, by its own name.

/// A helper: its name and its text.
pub(crate) struct Helper {
    pub name: &'static str,
    text: &'static str,
}

/// All helpers. Their comments are part of the source that a user may read.
pub(crate) const ALL: &[Helper] = &[
    Helper {
        name: "floor_div",
        text: "\
def floor_div(a, b):
    # Toward minus infinity; 0 where the divisor is 0.
    d = tl.where(b == 0, 1, b)
    q = a // d
    r = a - q * d
    q = tl.where((r != 0) & ((r < 0) != (d < 0)), q - 1, q)
    return tl.where(b == 0, 0, q)
",
    },
    Helper {
        name: "trunc_div",
        text: "\
def trunc_div(a, b):
    # Toward zero; 0 where the divisor is 0.
    return tl.where(b == 0, 0, a // tl.where(b == 0, 1, b))
",
    },
    Helper {
        name: "random_bits",
        text: "\
def random_bits(k0, k1, c0, c1, c2):
    # Word c2 % 4 of Philox 4x32-10 with the key (k0, k1) and the counter (c0, c1, c2 / 4, 0).
    k0, k1 = k0.to(tl.uint32, bitcast=True), k1.to(tl.uint32, bitcast=True)
    c0, c1, c2 = c0.to(tl.uint32, bitcast=True), c1.to(tl.uint32, bitcast=True), c2.to(tl.uint32, bitcast=True)
    key = k0.to(tl.uint64) | (k1.to(tl.uint64) << 32)
    a, b, c, d = tl.philox(key, c0, c1, c2 >> 2, c0 * 0)
    word = c2 & 3
    a = tl.where(word == 0, a, tl.where(word == 1, b, tl.where(word == 2, c, d)))
    return a.to(tl.int32, bitcast=True)
",
    },
    Helper {
        name: "logaddexp",
        text: "\
def logaddexp(a, b):
    # The distance of equal infinities is no number.
    high = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    return tl.where(a == b, a + 0.6931471805599453, high + libdevice.log1p(tl.exp(-tl.abs(a - b))))
",
    },
    Helper {
        name: "gcd",
        text: "\
def gcd(a, b):
    a, b = tl.broadcast(a, b)
    # The least number stays what it is. A scalar has no maximum: it is made a block of one.
    a, b = tl.where(a < 0, 0 - a, a), tl.where(b < 0, 0 - b, b)
    while tl.max((a != 0).to(tl.int32) + tl.zeros([1], tl.int32)) > 0:
        rest = tl.where(a != 0, b % tl.where(a != 0, a, 1), 0)
        b = tl.where(a != 0, a, b)
        a = rest
    return b
",
    },
    Helper {
        name: "recurrence",
        text: "\
def recurrence(n, first, a, s, c, r, q):
    # A step for all at once while any of them wants one. A scalar has no maximum: it is made a block of one.
    n, now = tl.broadcast(n, first + (a + s + c + r + q))
    now = tl.where(n == n, first, now)
    before = tl.where(n == n, 1.0, 1.0).to(now.dtype)
    k = before
    go = (k < n) & (now == now)
    while tl.max(go.to(tl.int32) + tl.zeros([1], tl.int32)) > 0:
        new = ((a + k * s) * now - (c + k * r) * before) / (1.0 + k * q)
        before = tl.where(go, now, before)
        now = tl.where(go, new, now)
        k += 1.0
        go = (k < n) & (now == now)
    return tl.where(n >= 0, tl.where(n < 1, 1.0, now), 0.0)
",
    },
    Helper {
        name: "kummer",
        text: "\
def kummer(b, c, x, close):
    # The series without its first term, a step for all at once while one changes more than what counts.
    b, term = tl.broadcast(b, (c + x) * 0 + 1)
    total = term * 0
    n = total
    i = 0
    going = 1
    while (going > 0) & (i < 2000):
        term = term * ((b + n) * x / ((c + n) * (n + 1)))
        total += term
        going = tl.max((tl.abs(term) > close * tl.abs(total)).to(tl.int32) + tl.zeros([1], tl.int32))
        n += 1
        i += 1
    return total
",
    },
    Helper {
        name: "gamma_fraction",
        text: "\
def gamma_fraction(a, x, close):
    # The continued fraction of the upper incomplete gamma function, a step for all at once while one changes more than
    # what counts.
    a, x = tl.broadcast(a, x)
    wide: tl.constexpr = x.dtype == tl.float64
    least: tl.constexpr = 1e-300 if wide else 1e-30
    b = x + 1 - a
    d = 1 / tl.where(tl.abs(b) < least, least, b).to(x.dtype)
    term = d
    total = d
    n = d * 0
    i = 0
    going = 1
    while (going > 0) & (i < 2000):
        n += 1
        b += 2
        t = n * (a - n) * d
        d = t + b
        d = 1 / tl.where(tl.abs(d) < least, least, d).to(x.dtype)
        term = -(t * d) * term
        total += term
        going = tl.max((tl.abs(term) > close * tl.abs(total)).to(tl.int32) + tl.zeros([1], tl.int32))
        i += 1
    return total
",
    },
    Helper {
        name: "int_fmod",
        text: "\
def int_fmod(a, b):
    # With the sign of the dividend; 0 where the divisor is 0.
    return tl.where(b == 0, 0, a % tl.where(b == 0, 1, b))
",
    },
    Helper {
        name: "int_remainder",
        text: "\
def int_remainder(a, b):
    # With the sign of the divisor; 0 where it is 0.
    d = tl.where(b == 0, 1, b)
    r = a % d
    r = tl.where((r != 0) & ((r < 0) != (d < 0)), r + d, r)
    return tl.where(b == 0, 0, r)
",
    },
    Helper {
        name: "uint_remainder",
        text: "\
def uint_remainder(a, b):
    # 0 where the divisor is 0.
    return tl.where(b == 0, 0, a % tl.where(b == 0, 1, b))
",
    },
    Helper {
        name: "float_remainder",
        text: "\
def float_remainder(a, b):
    # With the sign of the divisor.
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
",
    },
    Helper {
        name: "to_f8e4m3fn",
        text: "\
def to_f8e4m3fn(x):
    # To the nearest, ties to even; NaN from 464 on. Machines have the largest number there.
    bits = x.to(tl.int32, bitcast=True)
    a = bits & 0x7FFFFFFF
    normal = (a - 0x3BF80001 + ((a >> 20) & 1)) >> 20
    small = (tl.abs(x) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(a < 0x3C800000, small, tl.where(a < 0x43F00000, normal, 127))
    return (code | ((bits >> 24) & 128)).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
",
    },
    Helper {
        name: "to_f8e5m2",
        text: "\
def to_f8e5m2(x):
    # To the nearest, ties to even; infinite from 61440 on. Machines have the largest number there.
    bits = x.to(tl.int32, bitcast=True)
    a = bits & 0x7FFFFFFF
    normal = (a - 0x37F00001 + ((a >> 21) & 1)) >> 21
    small = (tl.abs(x) + 128.0).to(tl.int32, bitcast=True) - 0x43000000
    large = tl.where(a > 0x7F800000, 127, 124)
    code = tl.where(a < 0x38800000, small, tl.where(a < 0x47800000, normal, large))
    return (code | ((bits >> 24) & 128)).to(tl.uint8).to(tl.float8e5, bitcast=True)
",
    },
    Helper {
        name: "float8_number",
        text: "\
def float8_number(
    code, SHIFT: tl.constexpr, REBIAS: tl.constexpr, STEP: tl.constexpr, LARGEST: tl.constexpr, INFINITE: tl.constexpr, UNSIGNED_ZERO: tl.constexpr
):
    # Codes below the first with an exponent are multiples of a step.
    a = code.to(tl.int32) & 127
    normal = ((a << SHIFT) + REBIAS).to(tl.float32, bitcast=True)
    x = tl.where(a < (1 << (23 - SHIFT)), a.to(tl.float32) * STEP, normal)
    if INFINITE:
        x = tl.where(a == LARGEST + 1, float(\"inf\"), x)
        x = tl.where(a > LARGEST + 1, float(\"nan\"), x)
    else:
        x = tl.where(a > LARGEST, float(\"nan\"), x)
    if UNSIGNED_ZERO:
        x = tl.where(code == 128, float(\"nan\"), x)
    sign = (code.to(tl.int32) & 128) << 24
    return (x.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
",
    },
    Helper {
        name: "float8_code",
        text: "\
def float8_code(
    x, SHIFT: tl.constexpr, REBIAS: tl.constexpr, PLACE: tl.constexpr, PLACE_BITS: tl.constexpr, NORMAL: tl.constexpr, LIMIT: tl.constexpr,
    BEYOND: tl.constexpr, NAN: tl.constexpr, UNSIGNED_ZERO: tl.constexpr
):
    # To the nearest, ties to even. The last place of `PLACE` is the step of numbers without an exponent.
    bits = x.to(tl.int32, bitcast=True)
    a = bits & 0x7FFFFFFF
    normal = (a - REBIAS + ((1 << (SHIFT - 1)) - 1) + ((a >> SHIFT) & 1)) >> SHIFT
    small = (tl.abs(x) + PLACE).to(tl.int32, bitcast=True) - PLACE_BITS
    code = tl.where(a < NORMAL, small, tl.where(a < LIMIT, normal, tl.where(a > 0x7F800000, NAN, BEYOND)))
    signed = code | ((bits >> 24) & 128)
    if UNSIGNED_ZERO:
        signed = tl.where((code == 0) | (code == 128), code, signed)
    return signed.to(tl.uint8)
",
    },
    Helper {
        name: "nan_max",
        text: "\
def nan_max(a, b):
    # A NaN wins.
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
",
    },
    Helper {
        name: "nan_min",
        text: "\
def nan_min(a, b):
    # A NaN wins.
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
",
    },
    Helper {
        name: "int_max",
        text: "\
def int_max(a, b):
    return tl.maximum(a, b)
",
    },
    Helper {
        name: "int_min",
        text: "\
def int_min(a, b):
    return tl.minimum(a, b)
",
    },
    Helper {
        name: "exponentials",
        text: "\
def exponentials(m, s, v):
    # The greatest so far, the sum of exponentials of distances to it: with one more. One of two exponentials is 1.
    e = tl.where(v == m, 1.0, tl.exp(0 - tl.abs(v - m)))
    return tl.maximum(m, v, propagate_nan=tl.PropagateNan.ALL), tl.where(v > m, s * e + 1.0, s + e)
",
    },
    Helper {
        name: "exponentials_of_runs",
        text: "\
def exponentials_of_runs(m, s, v, run: tl.constexpr):
    # The greatest so far, the sum of exponentials of distances to it: with a run of elements more.
    v = tl.reshape(v, [v.shape[0] // run, run])
    n = tl.maximum(m, tl.reduce(v, 1, nan_max), propagate_nan=tl.PropagateNan.ALL)
    # Sums are in units of the exponential of the greatest, if that is finite.
    unit = tl.where(tl.abs(n) == float(\"inf\"), 0.0, n)
    return n, s * tl.exp(m - unit) + tl.sum(tl.exp(v - unit[:, None]), 1)
",
    },
    Helper {
        name: "add",
        text: "\
def add(a, b):
    return a + b
",
    },
    Helper {
        name: "multiply",
        text: "\
def multiply(a, b):
    return a * b
",
    },
    Helper {
        name: "bit_xor",
        text: "\
def bit_xor(a, b):
    return a ^ b
",
    },
    Helper {
        name: "bit_or",
        text: "\
def bit_or(a, b):
    return a | b
",
    },
    Helper {
        name: "bit_and",
        text: "\
def bit_and(a, b):
    return a & b
",
    },
    Helper {
        name: "quotient",
        text: "\
def quotient(x, c, r):
    # x / c, where r is 1 / c: the remainder says what the product lacks. The machine's division is off by up to two units.
    q = x * r
    return tl.where((q - q == 0) & (q != 0), tl.fma(tl.fma(0 - q, c, x), r, q), q)
",
    },
    Helper {
        name: "rsqrt",
        text: "\
def rsqrt(x):
    # The machine's instruction flushes subnormal operands.
    small = x < 1.1754944e-38
    return tl.rsqrt(tl.where(small, x * 16777216.0, x)) * tl.where(small, 4096.0, 1.0)
",
    },
    Helper {
        name: "one_plus_erf",
        text: "\
def one_plus_erf(x):
    # log2(erfc(a)) is nearly a parabola: a polynomial in a = |x|, within 1.4e-7 of the result for every x.
    a = tl.abs(x)
    p = -2.86287214e-05 * a + 3.21309764e-04
    p = p * a - 1.1289675e-03
    p = p * a - 1.29681682e-03
    p = p * a + 2.8652977e-02
    p = p * a - 1.48637986e-01
    p = p * a - 9.18388687e-01
    p = p * a - 1.62791017e00
    e = tl.exp2(p * a)
    return tl.where(x < 0, e, 2.0 - e)
",
    },
    Helper {
        name: "one_plus_tanh",
        text: "\
def one_plus_tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x))
",
    },
    Helper {
        name: "first_max",
        text: "\
def first_max(a, i, b, j):
    # The larger value and where it is; the first of equals, and of NaNs.
    a_nan = a != a
    b_nan = b != b
    better = (b > a) | (b_nan & (a_nan == 0))
    equal = (b == a) | (b_nan & a_nan)
    take = better | (equal & (j < i))
    return tl.where(take, b, a), tl.where(take, j, i)
",
    },
    Helper {
        name: "first_min",
        text: "\
def first_min(a, i, b, j):
    # The smaller value and where it is; the first of equals, and of NaNs.
    a_nan = a != a
    b_nan = b != b
    better = (b < a) | (b_nan & (a_nan == 0))
    equal = (b == a) | (b_nan & a_nan)
    take = better | (equal & (j < i))
    return tl.where(take, b, a), tl.where(take, j, i)
",
    },
];

/// Combines a value in memory with another one by the helper `NAME`, in a loop of compare-and-swap. Lanes that are done, or were never meant, exchange
/// zero for zero.
const EXCHANGE: &str = "\
def exchange_NAME(pointer, offset, value, lanes, bits: tl.constexpr):
    # Again and again until no other program came between.
    kind: tl.constexpr = pointer.dtype.element_ty
    cells = (pointer + tl.where(lanes, offset, 0)).to(tl.pointer_type(bits), bitcast=True)
    old = tl.load(cells, lanes, other=0)
    left = lanes
    while tl.max(left.to(tl.int32)) > 0:
        new = NAME(old.to(kind, bitcast=True).to(value.dtype), value).to(kind).to(bits, bitcast=True)
        seen = tl.atomic_cas(cells, tl.where(left, old, 0), tl.where(left, new, 0))
        left = left & (seen != old)
        old = seen
";

/// The source of the helpers that `body` names, in table order, and of those that these use.
pub(crate) fn source(body: &str) -> String {
    let exchanges: Vec<(&str, String)> = (ALL.iter())
        .map(|h| (h.name, EXCHANGE.replace("NAME", h.name)))
        .filter(|(name, _)| uses(body, &format!("exchange_{name}")))
        .collect();
    let mut out = String::new();
    for h in ALL {
        if uses(body, h.name) || exchanges.iter().any(|(name, _)| *name == h.name) {
            out.push_str(&format!("@triton.jit\n{}\n\n", h.text));
        }
    }
    for (_, text) in exchanges {
        out.push_str(&format!("@triton.jit\n{text}\n\n"));
    }
    out
}

/// Returns true if `name` occurs as a word of its own, outside of a module.
fn uses(body: &str, name: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    body.match_indices(name).any(|(at, _)| {
        let before = body[..at].chars().next_back().is_none_or(|c| !word(c));
        let after = body[at + name.len()..].chars().next();
        before && after.is_some_and(|c| c == '(' || c == ')' || c == ',')
    })
}
