//! Sorts in a kernel of a GPU: value and position packed into one integer key.
//!
//! Comparing pairs of value and position takes several instructions for each exchange of a sorting network, and moves two
//! registers. A key that holds both is one integer, whose order is that of the values, and of the positions among equal
//! values. So the sort is stable, and keys are never equal.
//!
//! ```text
//! 4 bytes   i64   | order of the value: 32 bits | 0 .. | position: 12 bits | minus zero |
//! fewer     i32   | order of the value: 16 bits | 0 .. | position: 12 bits | minus zero |
//!
//! order of a float    its bits; those of negative values with all but the sign flipped
//! order of an integer the integer; less half of the range where it has no sign
//! ```
//!
//! - NaN is one value, greater than all others. A key restores it without its payload.
//! - Both zeros are equal, as eager has them: minus zero has the order of zero, and a bit of its own below the position.
//! - Falling order is the complement of the order, so that equal values keep their positions.
//!
//! Values of 8 bytes leave no room for a position.

use crate::{BodyBuilder, Lower, Tensor};
use inrush_base::{DType, Scalar};
use inrush_expr::Expr;
use inrush_loops::{ScalarOp as S, StmtId, StoreMode};

/// Positions that a key has bits for.
const POSITIONS: i64 = 4096;
/// Longest row that one program of a GPU sorts. On an H200 4,096 rows of 1,024 floats take 0.8 of the library's time, rows of 2,048
/// 1.7 times it.
const LONGEST: i64 = 1024;

/// Bits of a key below the position.
const BELOW: i64 = 1;

/// Returns true if a kernel of a GPU sorts rows of up to `longest` elements: their keys hold the position, and a program the row.
pub fn sorts_in_kernel(dtype: DType, longest: i64) -> bool {
    let float8 = dtype.is_float() && dtype.size() == 1;
    longest <= LONGEST && dtype.size() <= 4 && !float8
}

/// How the values of a dtype become keys.
struct Keys {
    dtype: DType,
    descending: bool,
    /// dtype of the keys, and where the order of the value begins in them.
    key: DType,
    shift: i64,
}

impl Keys {
    fn new(dtype: DType, descending: bool) -> Keys {
        let (key, shift) = match dtype.size() {
            4 => (DType::I64, 32),
            _ => (DType::I32, 16),
        };
        Keys {
            dtype,
            descending,
            key,
            shift,
        }
    }

    /// The integer of as many bits as a float has, and those of its largest positive value of all ones.
    fn bits(&self) -> (DType, i64) {
        match self.dtype.size() {
            4 => (DType::I32, i32::MAX.into()),
            _ => (DType::I16, i16::MAX.into()),
        }
    }

    /// The bits of the NaN that stands for all.
    fn nan(&self) -> i64 {
        match self.dtype {
            DType::F32 => 0x7fc0_0000,
            DType::BF16 => 0x7fc0,
            _ => 0x7e00,
        }
    }

    /// Returns what is subtracted from integers without a sign that need all bits.
    fn bias(&self) -> i64 {
        match self.dtype {
            DType::U32 => 1 << 31,
            DType::U16 => 1 << 15,
            _ => 0,
        }
    }

    /// Flips the bits of negative floats but for the sign; the same again restores them.
    fn flipped(&self, body: &mut BodyBuilder, bits: StmtId) -> StmtId {
        let all = self.bits().1;
        let (last, all) = (int(body, 31, DType::I32), int(body, all, DType::I32));
        let sign = body.op(S::Shr, &[bits, last]);
        let flips = body.op(S::And, &[sign, all]);
        body.op(S::Xor, &[bits, flips])
    }

    /// The order of a value as a number of the key's dtype, and the bit of minus zero.
    fn order(&self, body: &mut BodyBuilder, value: StmtId) -> (StmtId, Option<StmtId>) {
        if !self.dtype.is_float() {
            let value = body.cast(value, self.key);
            let bias = int(body, self.bias(), self.key);
            return (body.op(S::Sub, &[value, bias]), None);
        }
        let (narrow, all) = self.bits();
        let bits = body.bitcast(value, self.dtype, narrow);
        let bits = body.cast(bits, DType::I32);
        let least = int(body, -all - 1, DType::I32);
        let minus_zero = body.op(S::Eq, &[bits, least]);
        let (zero, nan) = (int(body, 0, DType::I32), int(body, self.nan(), DType::I32));
        let bits = body.select(minus_zero, zero, bits);
        let is_nan = body.op(S::IsNan, &[value]);
        let bits = body.select(is_nan, nan, bits);
        let order = self.flipped(body, bits);
        let order = body.cast(order, self.key);
        (order, Some(body.cast(minus_zero, self.key)))
    }

    /// The key of a value at a position.
    fn pack(&self, body: &mut BodyBuilder, value: StmtId, position: Expr) -> StmtId {
        let (mut order, minus_zero) = self.order(body, value);
        if self.descending {
            order = body.op(S::Not, &[order]);
        }
        let shift = int(body, self.shift, self.key);
        let high = body.op(S::Shl, &[order, shift]);
        let place = body.exprs.mul(position, body.exprs.int(1 << BELOW));
        let low = body.index_as(place, self.key);
        let key = body.op(S::Or, &[high, low]);
        match minus_zero {
            Some(bit) => body.op(S::Or, &[key, bit]),
            None => key,
        }
    }

    /// The value of a key.
    fn value(&self, body: &mut BodyBuilder, key: StmtId) -> StmtId {
        let shift = int(body, self.shift, self.key);
        let mut order = body.op(S::Shr, &[key, shift]);
        if self.descending {
            order = body.op(S::Not, &[order]);
        }
        if !self.dtype.is_float() {
            let bias = int(body, self.bias(), self.key);
            let value = body.op(S::Add, &[order, bias]);
            return body.cast(value, self.dtype);
        }
        let (narrow, all) = self.bits();
        let order = body.cast(order, DType::I32);
        let bits = self.flipped(body, order);
        let (one, zero) = (int(body, 1, self.key), int(body, 0, self.key));
        let bit = body.op(S::And, &[key, one]);
        let minus_zero = body.op(S::Ne, &[bit, zero]);
        let least = int(body, -all - 1, DType::I32);
        let bits = body.select(minus_zero, least, bits);
        let bits = body.cast(bits, narrow);
        body.bitcast(bits, narrow, self.dtype)
    }

    /// The position that a key came from.
    fn position(&self, body: &mut BodyBuilder, key: StmtId) -> StmtId {
        let (below, all) = (
            int(body, BELOW, self.key),
            int(body, POSITIONS - 1, self.key),
        );
        let place = body.op(S::Shr, &[key, below]);
        let place = body.op(S::And, &[place, all]);
        body.cast(place, DType::I64)
    }
}

fn int(body: &mut BodyBuilder, v: i64, dtype: DType) -> StmtId {
    body.constant(Scalar::Int(v), dtype)
}

/// The first `count` of each row in order, and where they came from. `x` has dimensions, and [`sorts_in_kernel`] holds.
pub(super) fn packed<'g>(
    lw: &mut Lower<'g>,
    x: &Tensor,
    dim: usize,
    count: Expr,
    descending: bool,
) -> Vec<Tensor> {
    let keys = Keys::new(x.dtype, descending);
    let mut outer = x.sizes.clone();
    let along = outer.remove(dim);
    let mut sizes = x.sizes.clone();
    sizes[dim] = count;
    let (values, places) = (lw.temp(x.dtype, &sizes), lw.temp(DType::I64, &sizes));

    let mut body = lw.body(&outer);
    let mut at = body.outer();
    let position = body.reduce_axes(&[along])[0];
    at.insert(dim, position);
    let value = body.load(x, &at);
    let key = keys.pack(&mut body, value, position);
    let key = body.sort(key);
    // A prefix of the row is stored through a mask.
    let mask = (!lw.exprs.prove_eq(count, along)).then(|| {
        let (place, end) = (body.index_value(position), body.index_value(count));
        let inside = body.op(S::Lt, &[place, end]);
        at[dim] = body.indirect(place, count, false, false, Some(inside));
        inside
    });
    let value = keys.value(&mut body, key);
    let place = keys.position(&mut body, key);
    body.store_with(values.buf, &at, value, StoreMode::Set, mask);
    body.store_with(places.buf, &at, place, StoreMode::Set, mask);
    lw.push(body);
    vec![values, places]
}
