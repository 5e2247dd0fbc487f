//! Floats of eight bits by their codes, for devices on which Triton has no type for them: [`Float8`] in a kernel's text.
//!
//! ```text
//! t0 = float8_number(tl.load(in_ptr0 + x, xmask, other=0), 20, 1006632960, 0.00048828125, 126, False)
//! tl.store(out_ptr1 + x, float8_code(t0, 20, ..), xmask)
//! ```

use inrush_base::Float8;

/// The number of a code (`tl.uint8`), as `tl.float32`.
pub(crate) fn number(code: &str, f: Float8) -> String {
    let infinite = python(f.beyond != f.nan);
    format!(
        "float8_number({code}, {}, {}, {:?}, {}, {infinite}, {})",
        f.shift(),
        f.rebias(),
        f.step(),
        f.largest,
        python(f.unsigned_zero),
    )
}

/// The code of the number that is nearest to a `tl.float32`, as `tl.uint8`.
pub(crate) fn code(x: &str, f: Float8) -> String {
    let place = f.step() * (1 << 23) as f32;
    format!(
        "float8_code({x}, {}, {}, {place:?}, {}, {}, {}, {}, {}, {})",
        f.shift(),
        f.rebias(),
        place.to_bits(),
        f.smallest_normal(),
        f.limit,
        f.beyond,
        f.nan,
        python(f.unsigned_zero),
    )
}

fn python(flag: bool) -> &'static str {
    if flag { "True" } else { "False" }
}
