//! Loads and stores of the first lanes of a vector: masked instructions where the target has them, else words of 64 bits.
//!
//! A loop over lanes, once the compiler has written it out, costs it more than all other code of a kernel: each lane is a
//! load that alias analysis compares with every store (a depthwise convolution of bfloat16 took three times as long).
//!
//! ```text
//! f32x16 ldp_f32x16(const f32 *p, i64 c)         AVX-512: one masked load, mask (1 << c) - 1
//! u16x8 ldp_u16x8(const u16 *p, i64 c)           AVX2 masks 4 and 8 bytes only: if `c` is a
//!                                                constant, two words of 64 bits, the last one cut
//! ```
//!
//! Nothing past lane `c - 1` is read or written: the page after a buffer may not be mapped.

use crate::helpers::{Helpers, Name, gcc_only};
use crate::types::CType;
use inrush_base::{Caps, Isa};
use std::fmt::Write;

/// Instructions that move the first lanes of a vector, in chunks of a register each.
struct Masked {
    /// Elements and lanes of a chunk, as the builtins take them.
    elem: CType,
    lanes: u32,
    /// Names of the builtins.
    load: String,
    store: String,
    /// Masks are bits of an integer, not lanes of a vector.
    bits: bool,
}

/// The instructions for a part of vectors of `w` elements, if the target has some.
fn masked(elem: CType, w: u32, caps: &Caps) -> Option<Masked> {
    let size = elem.bytes();
    let register = match caps.isa {
        Isa::Avx2 => 32,
        Isa::Avx512 => 64,
        Isa::Scalar | Isa::Neon => return None,
    };
    let chunk = register.min(size * w);
    // The smallest register has 16 bytes.
    if chunk < 16 {
        return None;
    }
    let as_int = elem.int_like();
    let lanes = chunk / size;
    if caps.isa == Isa::Avx512 {
        // The builtin's types: floats, or vectors of 1, 2, 4 and 8 bytes, which gcc calls qi, hi,
        // si, di.
        let (elem, what) = match (elem, size) {
            (CType::F32, _) => (CType::F32, "ups"),
            (CType::F64, _) => (CType::F64, "upd"),
            (_, 1) => (as_int, "dquqi"),
            (_, 2) => (as_int, "dquhi"),
            (_, 4) => (as_int, "dqusi"),
            _ => (as_int, "dqudi"),
        };
        let name = |verb: &str| format!("__builtin_ia32_{verb}{what}{}_mask", chunk * 8);
        let (load, store) = (name("load"), name("store"));
        return Some(Masked {
            elem,
            lanes,
            load,
            store,
            bits: true,
        });
    }
    // AVX2 masks elements of 4 and 8 bytes. As floats, whose builtins both compilers have.
    let (elem, suffix) = match size {
        4 => (CType::F32, "ps"),
        8 => (CType::F64, "pd"),
        _ => return None,
    };
    let wide = if chunk == 32 { "256" } else { "" };
    let name = |verb: &str| format!("__builtin_ia32_mask{verb}{suffix}{wide}");
    let (load, store) = (name("load"), name("store"));
    Some(Masked {
        elem,
        lanes,
        load,
        store,
        bits: false,
    })
}

impl Masked {
    /// Returns the type that builtins with bits point to. C++ takes no pointer to another type of one byte.
    fn pointee(&self) -> &'static str {
        match self.elem.bytes() {
            1 => "char",
            _ => self.elem.name(),
        }
    }
}

/// The type of masks with a bit for each of so many lanes.
fn bits_type(lanes: u32) -> CType {
    match lanes {
        ..=8 => CType::U8,
        16 => CType::U16,
        32 => CType::U32,
        _ => CType::U64,
    }
}

/// The bits of the chunk that begins at lane `from`, if the first `c` of `w` lanes are set; `c` is at least 1.
fn bits(from: u32, lanes: u32, w: u32) -> String {
    let all = match w {
        64 => "~0ull >> (64 - c)".to_string(),
        33.. => "(1ull << c) - 1".to_string(),
        32 => "(u32)((1ull << c) - 1)".to_string(),
        _ => "(1u << c) - 1".to_string(),
    };
    let ty = bits_type(lanes);
    match from {
        0 => format!("({ty})({all})"),
        _ => format!("({ty})(({all}) >> {from})"),
    }
}

impl Helpers {
    /// Returns the function that loads the first `c` lanes, with zeros in the others.
    pub(crate) fn load_part(&mut self, elem: CType, w: u32, caps: &Caps) -> Name {
        self.once(("load_part", "", elem, w), |h| {
            let v = h.vector(elem, w);
            let name = format!("ldp_{v}");
            let simple = h.load_words(elem, w);
            let body = match masked(elem, w, caps) {
                Some(m) => {
                    let (declared, chunk) = h.chunk(&m);
                    let calls = h.chunks(&m, w, |at, mask| {
                        if m.bits {
                            format!(
                                "{}((const {} *)p + {at}, ({chunk}){{0}}, {mask})",
                                m.load,
                                m.pointee()
                            )
                        } else {
                            format!(
                                "{}((const {chunk} *)((const {} *)p + {at}), {mask})",
                                m.load, m.elem
                            )
                        }
                    });
                    // A wider vector is filled a register at a time, through memory that the
                    // compiler removes.
                    let native = match calls.as_slice() {
                        [call] => format!("{declared}return ({v}){call};"),
                        calls => {
                            let mut text = format!("{declared}{v} r; ");
                            for (k, call) in calls.iter().enumerate() {
                                _ = write!(text, "(({chunk}u *)&r)[{k}] = {call}; ");
                            }
                            text + "return r;"
                        }
                    };
                    if m.bits {
                        gcc_only(&native, &simple)
                    } else {
                        native
                    }
                }
                None => simple,
            };
            h.function(
                &name,
                format_args!("{v} {name}(const {elem} *p, i64 c)"),
                |_| body,
            );
            name
        })
    }

    /// Returns the function that stores the first `c` lanes.
    pub(crate) fn store_part(&mut self, elem: CType, w: u32, caps: &Caps) -> Name {
        self.once(("store_part", "", elem, w), |h| {
            let v = h.vector(elem, w);
            let name = format!("stp_{v}");
            let simple = h.store_words(elem, w);
            let body = match masked(elem, w, caps) {
                Some(m) => {
                    let (declared, chunk) = h.chunk(&m);
                    let whole = m.lanes == w;
                    let mut part = 0;
                    let calls = h.chunks(&m, w, |at, mask| {
                        let x = if whole {
                            format!("({chunk})x")
                        } else {
                            format!("(({chunk}u *)&x)[{part}]")
                        };
                        part += 1;
                        if m.bits {
                            format!("{}(({} *)p + {at}, {x}, {mask});", m.store, m.pointee())
                        } else {
                            format!(
                                "{}(({chunk} *)(({} *)p + {at}), {mask}, {x});",
                                m.store, m.elem
                            )
                        }
                    });
                    let native = declared + &calls.join(" ");
                    if m.bits {
                        gcc_only(&native, &simple)
                    } else {
                        native
                    }
                }
                None => simple,
            };
            h.function(
                &name,
                format_args!("void {name}({elem} *p, {v} x, i64 c)"),
                |_| body,
            );
            name
        })
    }

    /// Returns the type of a chunk, and its declaration where no other function has it: builtins take vectors of `char`, which is
    /// neither of the types of one byte.
    fn chunk(&mut self, m: &Masked) -> (String, Name) {
        if m.elem.bytes() > 1 {
            return (String::new(), self.vector(m.elem, m.lanes));
        }
        let size = m.lanes;
        let text = format!(
            "typedef char chars __attribute__((vector_size({size}))); \
             typedef char charsu __attribute__((vector_size({size}), aligned(1), may_alias)); "
        );
        (text, "chars".into())
    }

    /// Calls `one` with the first lane and the mask of each chunk of a vector of `w` lanes.
    fn chunks(
        &mut self,
        m: &Masked,
        w: u32,
        mut one: impl FnMut(u32, &str) -> String,
    ) -> Vec<String> {
        let mut out = Vec::new();
        for at in (0..w).step_by(m.lanes as usize) {
            let mask = if m.bits {
                bits(at, m.lanes, w)
            } else {
                let lanes = self.lane_mask(m.elem.int_like(), m.lanes);
                match at {
                    0 => format!("{lanes}(c)"),
                    _ => format!("{lanes}(c - {at})"),
                }
            };
            out.push(one(at, &mask));
        }
        out
    }

    /// The body of a load without masked instructions: words where the number of lanes is a constant, else lane by lane.
    fn load_words(&mut self, elem: CType, w: u32) -> String {
        let v = self.vector(elem, w);
        let lanes = format!("{v} r = {{0}}; for (i64 k = 0; k < c; k++) r[k] = p[k]; return r;");
        let Some(words) = words(elem, w) else {
            return lanes;
        };
        let all = self.vector(CType::U64, words);
        let size = elem.bytes();
        let mut text = String::from("if (__builtin_constant_p(c)) { ");
        for k in 0..words {
            let at = 8 * k;
            _ = write!(
                text,
                "u64 n{k} = 0; if (c * {size} > {at}) __builtin_memcpy(&n{k}, (const char *)p + {at}, {}); ",
                word_bytes(size, at)
            );
        }
        let names: Vec<String> = (0..words).map(|k| format!("n{k}")).collect();
        _ = write!(
            text,
            "return ({v})({all}){{{}}}; }} {lanes}",
            names.join(", ")
        );
        text
    }

    /// The body of a store without masked instructions, as [`Self::load_words`].
    fn store_words(&mut self, elem: CType, w: u32) -> String {
        let lanes = "for (i64 k = 0; k < c; k++) p[k] = x[k];";
        let Some(words) = words(elem, w) else {
            return lanes.into();
        };
        let all = self.vector(CType::U64, words);
        let size = elem.bytes();
        let mut text = String::from("if (__builtin_constant_p(c)) { ");
        for k in 0..words {
            let at = 8 * k;
            _ = write!(
                text,
                "if (c * {size} > {at}) {{ const u64 n = (({all})x)[{k}]; __builtin_memcpy((char *)p + {at}, &n, {}); }} ",
                word_bytes(size, at)
            );
        }
        _ = write!(text, "}} else {lanes}");
        text
    }
}

/// How many words of 64 bits a vector has, where it is a whole number of them.
fn words(elem: CType, w: u32) -> Option<u32> {
    let total = elem.bytes() * w;
    total.is_multiple_of(8).then_some(total / 8)
}

/// C text: bytes of the word that begins at byte `at`, of `c` elements of so many bytes.
fn word_bytes(size: u32, at: u32) -> String {
    match at {
        0 => format!("c * {size} < 8 ? c * {size} : 8"),
        _ => format!("c * {size} < {} ? c * {size} - {at} : 8", at + 8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A program that moves every number of lanes of each vector type, a few of them known to the compiler, and fails where a
    /// lane differs or the element beyond the last one changes.
    fn program(caps: &Caps) -> String {
        let mut h = Helpers::default();
        let (mut checks, mut main) = (String::new(), String::new());
        for elem in [
            CType::U8,
            CType::I16,
            CType::U16,
            CType::I32,
            CType::U32,
            CType::F32,
            CType::I64,
            CType::F64,
        ] {
            for w in [2u32, 4, 8, 16, 32, 64] {
                if elem.bytes() * w > 128 {
                    continue;
                }
                let (load, store) = (h.load_part(elem, w, caps), h.store_part(elem, w, caps));
                let v = h.vector(elem, w);
                let check = |c: &str| {
                    format!(
                        "{{ {elem} to[{w} + 1]; for (i32 k = 0; k <= {w}; k++) to[k] = 99; \
                         {v} x = {load}(from, {c}); {store}(to, x, {c}); \
                         for (i32 k = 0; k < {w}; k++) if (x[k] != (k < {c} ? k + 1 : 0)) return 1; \
                         for (i32 k = 0; k <= {w}; k++) if (to[k] != (k < {c} ? k + 1 : 99)) return 1; }} "
                    )
                };
                let mut text = format!(
                    "static int of_{v}(i64 n) {{ {elem} from[{w}]; for (i32 k = 0; k < {w}; k++) from[k] = k + 1; "
                );
                let known = (1..w).filter(|c| matches!(c, 1 | 3) || [w / 2, w - 1].contains(c));
                known.for_each(|c| text += &check(&c.to_string()));
                text += &check("n");
                checks += &(text + "return 0; }\n");
                _ = write!(
                    main,
                    "for (volatile int n = 1; n <= {w}; n++) if (of_{v}(n)) return {w}; "
                );
            }
        }
        let helpers: String = h.take().iter().map(|x| x.text.as_str()).collect();
        format!(
            "{}{helpers}{checks}int main(void) {{ {main}return 0; }}\n",
            crate::types::PRELUDE
        )
    }

    #[test]
    fn parts_of_all_vectors_move_nothing_else() {
        let levels: [(Isa, &[&str], bool); 3] = [
            (Isa::Scalar, &[], true),
            (Isa::Avx2, &["-mavx2"], has_avx2()),
            (
                Isa::Avx512,
                &["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"],
                has_avx512(),
            ),
        ];
        for (isa, flags, runs) in levels {
            if isa != Isa::Scalar && !cfg!(target_arch = "x86_64") {
                continue;
            }
            let dir = tempfile::tempdir().unwrap();
            let (source, binary) = (dir.path().join("p.c"), dir.path().join("p"));
            std::fs::write(&source, program(&Caps::cpu(isa, 1))).unwrap();
            let mut cc = Command::new("cc");
            cc.args(["-O1", "-std=gnu11", "-w", "-Wno-psabi"])
                .args(flags);
            let done = cc.arg("-o").arg(&binary).arg(&source).output().unwrap();
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{}: {said}", isa.name());
            if runs {
                let status = Command::new(&binary).status().unwrap();
                assert!(status.success(), "{}: {status}", isa.name());
            }
        }
    }

    fn has_avx2() -> bool {
        #[cfg(target_arch = "x86_64")]
        return is_x86_feature_detected!("avx2");
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    fn has_avx512() -> bool {
        #[cfg(target_arch = "x86_64")]
        return is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl");
        #[cfg(not(target_arch = "x86_64"))]
        false
    }
}
