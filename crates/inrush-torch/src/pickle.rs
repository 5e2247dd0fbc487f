//! A pickle reader that can build tensors and plain containers and nothing else.
//!
//! `torch.save` writes sample inputs as a pickle. A pickle is a program for a stack machine that
//! may import and call anything. This reader interprets only the opcodes that containers, numbers,
//! strings and tensors need. A name is refused unless it is in [`Global`], and a call of such a
//! name builds data; no code of the archive or of Python runs. Objects are entries of one list
//! ([`Pickle::objects`]) and refer to each other by position, so that shared and cyclic objects are
//! harmless. Limits on objects and dimensions bound what a small file can expand to.

use inrush_base::{DType, Error, Result};
use rustc_hash::FxHashMap;

/// A value of the pickle, a position in [`Pickle::objects`].
pub type Ref = usize;

#[derive(Clone, PartialEq, Debug)]
pub enum Object {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    List(Vec<Ref>),
    Tuple(Vec<Ref>),
    Dict(Vec<(Ref, Ref)>),
    DType(DType),
    /// A name that is known, to be called later.
    Global(Global),
    Storage {
        dtype: Option<DType>,
        key: String,
    },
    Tensor(Tensor),
}

/// A tensor over the storage `key`; `dtype` is that of the storage's class, or of the tensor for untyped storages.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    pub dtype: DType,
    pub sizes: Vec<i64>,
    pub strides: Vec<i64>,
    pub offset: i64,
    pub storage: String,
}

/// The names that a pickle may use.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Global {
    RebuildTensor,
    RebuildTensor3,
    RebuildParameter,
    OrderedDict,
    Size,
    Device,
    /// A storage class; untyped ones have no dtype.
    Storage(Option<DType>),
}

/// Most objects of a pickle. Sample inputs are a few nested containers.
const MOST_OBJECTS: usize = 1 << 20;
/// Most dimensions of a tensor and bytes of a storage's key. Calls copy these, and must not
/// multiply memory.
const MOST_DIMENSIONS: usize = 64;
const MOST_KEY: usize = 64;

/// The objects of a pickle and its result.
#[derive(Debug)]
pub struct Pickle {
    pub objects: Vec<Object>,
    pub root: Ref,
}

/// Interprets the opcodes of `bytes`.
pub fn read(bytes: &[u8]) -> Result<Pickle> {
    let mut m = Machine {
        bytes,
        pos: 0,
        objects: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: FxHashMap::default(),
    };
    let root = m.run()?;
    Ok(Pickle {
        objects: m.objects,
        root,
    })
}

struct Machine<'a> {
    bytes: &'a [u8],
    pos: usize,
    objects: Vec<Object>,
    stack: Vec<Ref>,
    marks: Vec<usize>,
    memo: FxHashMap<usize, Ref>,
}

impl<'a> Machine<'a> {
    fn bad(&self, what: &str) -> Error {
        Error::input(format!("pickle, byte {}: {what}", self.pos))
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let end = self.pos.checked_add(n);
        let s = end.and_then(|end| self.bytes.get(self.pos..end));
        let s = s.ok_or_else(|| self.bad("cut off"))?;
        self.pos += n;
        Ok(s)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let s = self.take(N)?;
        s.try_into().map_err(|_| self.bad("cut off"))
    }

    fn u8(&mut self) -> Result<usize> {
        Ok(self.array::<1>()?[0] as usize)
    }

    fn u32(&mut self) -> Result<usize> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn line(&mut self) -> Result<&'a str> {
        let rest = &self.bytes[self.pos..];
        let n = rest.iter().position(|b| *b == b'\n');
        let n = n.ok_or_else(|| self.bad("a line that does not end"))?;
        let s = self.take(n + 1)?;
        std::str::from_utf8(&s[..n]).map_err(|_| self.bad("not UTF-8"))
    }

    fn text(&mut self, len: usize) -> Result<Object> {
        let s = self.take(len)?;
        let s = std::str::from_utf8(s).map_err(|_| self.bad("not UTF-8"))?;
        Ok(Object::Str(s.to_string()))
    }

    fn push(&mut self, o: Object) -> Result<()> {
        if self.objects.len() >= MOST_OBJECTS || self.stack.len() >= MOST_OBJECTS {
            return Err(self.bad("too many objects"));
        }
        self.stack.push(self.objects.len());
        self.objects.push(o);
        Ok(())
    }

    fn pop(&mut self) -> Result<Ref> {
        if self.marks.last().is_some_and(|m| self.stack.len() <= *m) {
            return Err(self.bad("a mark where a value is wanted"));
        }
        self.stack
            .pop()
            .ok_or_else(|| self.bad("nothing on the stack"))
    }

    fn pop_mark(&mut self) -> Result<Vec<Ref>> {
        let at = self.marks.pop().ok_or_else(|| self.bad("no mark"))?;
        Ok(self.stack.split_off(at.min(self.stack.len())))
    }

    fn pop_n(&mut self, n: usize) -> Result<Vec<Ref>> {
        let mut out = Vec::with_capacity(n);
        for _ in 0..n {
            out.push(self.pop()?);
        }
        out.reverse();
        Ok(out)
    }

    fn put(&mut self, key: usize) -> Result<()> {
        let v = *self
            .stack
            .last()
            .ok_or_else(|| self.bad("nothing to remember"))?;
        self.memo.insert(key, v);
        Ok(())
    }

    fn get(&mut self, key: usize) -> Result<()> {
        let v = self.memo.get(&key).copied();
        let v = v.ok_or_else(|| self.bad("nothing was remembered"))?;
        if self.stack.len() >= MOST_OBJECTS {
            return Err(self.bad("too many objects"));
        }
        self.stack.push(v);
        Ok(())
    }

    fn append(&mut self, items: Vec<Ref>) -> Result<()> {
        let at = *self.stack.last().ok_or_else(|| self.bad("no list"))?;
        match &mut self.objects[at] {
            Object::List(v) => v.extend(items),
            _ => return Err(self.bad("not a list")),
        }
        Ok(())
    }

    fn set_items(&mut self, items: Vec<Ref>) -> Result<()> {
        let at = *self.stack.last().ok_or_else(|| self.bad("no dictionary"))?;
        if !items.len().is_multiple_of(2) {
            return Err(self.bad("a key without a value"));
        }
        match &mut self.objects[at] {
            Object::Dict(v) => v.extend(items.chunks(2).map(|c| (c[0], c[1]))),
            _ => return Err(self.bad("not a dictionary")),
        }
        Ok(())
    }

    fn run(&mut self) -> Result<Ref> {
        loop {
            let op = self.array::<1>()?[0];
            match op {
                0x80 => match self.u8()? {
                    0..=4 => {}
                    v => return Err(self.bad(&format!("protocol {v}"))),
                },
                0x95 => _ = self.take(8)?, // FRAME
                b'(' => self.marks.push(self.stack.len()),
                b'.' => return self.pop(),
                b'0' => _ = self.pop()?,
                b'1' => _ = self.pop_mark()?,
                b'N' => self.push(Object::None)?,
                0x88 => self.push(Object::Bool(true))?,
                0x89 => self.push(Object::Bool(false))?,
                b'J' => {
                    let v = i32::from_le_bytes(self.array()?);
                    self.push(Object::Int(v as i64))?;
                }
                b'K' => {
                    let v = self.u8()?;
                    self.push(Object::Int(v as i64))?;
                }
                b'M' => {
                    let v = u16::from_le_bytes(self.array()?);
                    self.push(Object::Int(v as i64))?;
                }
                0x8a => {
                    let n = self.u8()?;
                    let v = self.long(n)?;
                    self.push(Object::Int(v))?;
                }
                b'G' => {
                    let v = f64::from_be_bytes(self.array()?);
                    self.push(Object::Float(v))?;
                }
                b'X' => {
                    let n = self.u32()?;
                    let s = self.text(n)?;
                    self.push(s)?;
                }
                0x8c => {
                    let n = self.u8()?;
                    let s = self.text(n)?;
                    self.push(s)?;
                }
                b']' => self.push(Object::List(Vec::new()))?,
                b'}' => self.push(Object::Dict(Vec::new()))?,
                b')' => self.push(Object::Tuple(Vec::new()))?,
                0x85..=0x87 => {
                    let v = self.pop_n(op as usize - 0x84)?;
                    self.push(Object::Tuple(v))?;
                }
                b't' => {
                    let v = self.pop_mark()?;
                    self.push(Object::Tuple(v))?;
                }
                b'l' => {
                    let v = self.pop_mark()?;
                    self.push(Object::List(v))?;
                }
                b'a' => {
                    let v = self.pop_n(1)?;
                    self.append(v)?;
                }
                b'e' => {
                    let v = self.pop_mark()?;
                    self.append(v)?;
                }
                b's' => {
                    let v = self.pop_n(2)?;
                    self.set_items(v)?;
                }
                b'u' => {
                    let v = self.pop_mark()?;
                    self.set_items(v)?;
                }
                b'q' => {
                    let k = self.u8()?;
                    self.put(k)?;
                }
                b'r' => {
                    let k = self.u32()?;
                    self.put(k)?;
                }
                0x94 => {
                    let k = self.memo.len();
                    self.put(k)?;
                }
                b'h' => {
                    let k = self.u8()?;
                    self.get(k)?;
                }
                b'j' => {
                    let k = self.u32()?;
                    self.get(k)?;
                }
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    let g = global(module, name)?;
                    self.push(g)?;
                }
                0x93 => {
                    let v = self.pop_n(2)?;
                    let g = match (&self.objects[v[0]], &self.objects[v[1]]) {
                        (Object::Str(m), Object::Str(n)) => global(m, n)?,
                        _ => return Err(self.bad("a name that is no string")),
                    };
                    self.push(g)?;
                }
                b'R' => {
                    let v = self.pop_n(2)?;
                    let o = self.call(v[0], v[1])?;
                    self.push(o)?;
                }
                b'Q' => {
                    let id = self.pop()?;
                    let o = self.storage(id)?;
                    self.push(o)?;
                }
                _ => return Err(self.bad(&format!("the opcode 0x{op:02x} is not accepted"))),
            }
        }
    }

    /// Reads a little-endian two's complement integer of `n` bytes.
    fn long(&mut self, n: usize) -> Result<i64> {
        let s = self.take(n)?;
        let mut v: i64 = if s.last().is_some_and(|b| *b >= 0x80) {
            -1
        } else {
            0
        };
        if n > 8 {
            return Err(self.bad("an integer beyond 64 bits"));
        }
        for b in s.iter().rev() {
            v = (v << 8) | *b as i64;
        }
        Ok(v)
    }

    fn tuple(&self, at: Ref) -> Result<&[Ref]> {
        match &self.objects[at] {
            Object::Tuple(v) | Object::List(v) => Ok(v),
            _ => Err(self.bad("expected a tuple")),
        }
    }

    fn int(&self, at: Ref) -> Result<i64> {
        match &self.objects[at] {
            Object::Int(v) => Ok(*v),
            _ => Err(self.bad("expected an integer")),
        }
    }

    fn ints(&self, at: Ref) -> Result<Vec<i64>> {
        let items = self.tuple(at)?;
        if items.len() > MOST_DIMENSIONS {
            return Err(self.bad("too many dimensions"));
        }
        items.iter().map(|r| self.int(*r)).collect()
    }

    fn call(&self, function: Ref, args: Ref) -> Result<Object> {
        let Object::Global(g) = &self.objects[function] else {
            return Err(self.bad("a call of something that is no name"));
        };
        let args = self.tuple(args)?;
        match (g, args) {
            (Global::RebuildTensor, [storage, offset, sizes, strides, ..]) => {
                self.tensor(*storage, *offset, *sizes, *strides, None)
            }
            (Global::RebuildTensor3, [storage, offset, sizes, strides, _, _, dtype, ..]) => {
                self.tensor(*storage, *offset, *sizes, *strides, Some(*dtype))
            }
            (Global::RebuildParameter, [tensor, ..]) => match &self.objects[*tensor] {
                t @ Object::Tensor(_) => Ok(t.clone()),
                _ => Err(self.bad("a parameter that is no tensor")),
            },
            (Global::OrderedDict, []) => Ok(Object::Dict(Vec::new())),
            (Global::Size, [sizes]) if self.tuple(*sizes)?.len() <= MOST_DIMENSIONS => {
                Ok(Object::Tuple(self.tuple(*sizes)?.to_vec()))
            }
            (Global::Device, _) => Ok(Object::Str("device".into())),
            _ => Err(self.bad(&format!("a call of {g:?} with {} arguments", args.len()))),
        }
    }

    fn tensor(
        &self,
        storage: Ref,
        offset: Ref,
        sizes: Ref,
        strides: Ref,
        dtype: Option<Ref>,
    ) -> Result<Object> {
        let Object::Storage { dtype: class, key } = &self.objects[storage] else {
            return Err(self.bad("a tensor without a storage"));
        };
        let given = match dtype.map(|d| &self.objects[d]) {
            Some(Object::DType(d)) => Some(*d),
            Some(_) => return Err(self.bad("expected a dtype")),
            None => None,
        };
        Ok(Object::Tensor(Tensor {
            dtype: (given.or(*class)).ok_or_else(|| self.bad("a tensor without a dtype"))?,
            sizes: self.ints(sizes)?,
            strides: self.ints(strides)?,
            offset: self.int(offset)?,
            storage: key.clone(),
        }))
    }

    /// Reads `('storage', class, key, location, number of elements)`.
    fn storage(&self, id: Ref) -> Result<Object> {
        let id = self.tuple(id)?;
        let [kind, class, key, ..] = id else {
            return Err(self.bad("an unknown persistent id"));
        };
        match (
            &self.objects[*kind],
            &self.objects[*class],
            &self.objects[*key],
        ) {
            (Object::Str(kind), Object::Global(Global::Storage(dtype)), Object::Str(key))
                if kind == "storage" && key.len() <= MOST_KEY =>
            {
                Ok(Object::Storage {
                    dtype: *dtype,
                    key: key.clone(),
                })
            }
            _ => Err(self.bad("an unknown persistent id")),
        }
    }
}

fn global(module: &str, name: &str) -> Result<Object> {
    let known = match (module, name) {
        ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensor,
        ("torch._utils", "_rebuild_tensor_v3") => Global::RebuildTensor3,
        ("torch._utils", "_rebuild_parameter") => Global::RebuildParameter,
        ("collections", "OrderedDict") => Global::OrderedDict,
        ("torch", "Size") => Global::Size,
        ("torch", "device") => Global::Device,
        ("torch.storage" | "torch", "UntypedStorage") => Global::Storage(None),
        ("torch", _) if storage_dtype(name).is_some() => Global::Storage(storage_dtype(name)),
        ("torch", _) if DType::all().any(|d| d.torch_name() == name) => {
            let dtype = DType::all().find(|d| d.torch_name() == name);
            return Ok(dtype.map_or(Object::None, Object::DType));
        }
        _ => {
            let full = crate::lex::shorten(&format!("{module}.{name}"));
            return Err(Error::unsupported(format!(
                "the pickle names `{full}`, which this reader refuses"
            )));
        }
    };
    Ok(Object::Global(known))
}

fn storage_dtype(class: &str) -> Option<DType> {
    Some(match class {
        "FloatStorage" => DType::F32,
        "DoubleStorage" => DType::F64,
        "HalfStorage" => DType::F16,
        "BFloat16Storage" => DType::BF16,
        "LongStorage" => DType::I64,
        "IntStorage" => DType::I32,
        "ShortStorage" => DType::I16,
        "CharStorage" => DType::I8,
        "ByteStorage" => DType::U8,
        "BoolStorage" => DType::Bool,
        "ComplexFloatStorage" => DType::C64,
        "ComplexDoubleStorage" => DType::C128,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_name_is_refused() {
        let e = read(b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.").unwrap_err();
        assert!(e.to_string().contains("os.system"), "{e}");
    }

    #[test]
    fn a_list_may_hold_itself() {
        let p = read(b"\x80\x02]q\x00h\x00a.").unwrap();
        assert_eq!(p.objects[p.root], Object::List(vec![p.root]));
    }

    #[test]
    fn hostile_bytes_are_errors() {
        let cases: [&[u8]; 9] = [
            b"",
            b".",
            b"(.",
            b"X\xff\xff\xff\xff",
            b"h\x05.",
            b"t.",
            b"NR.",
            b"\x8a\xff",
            b"Na.",
        ];
        for bad in cases {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn integers_of_any_length() {
        let p = read(b"\x8a\x03\x00\x00\x80.").unwrap();
        assert_eq!(p.objects[p.root], Object::Int(-(1 << 23)));
    }
}
