//! A pickle reader that can build tensors and plain containers and nothing else.
//!
//! `torch.save` writes sample inputs as a pickle. A pickle is a program for a stack machine that
//! may import and call anything. This reader interprets only the opcodes that containers, numbers,
//! strings and tensors need. A name is refused unless it is in [`Global`], and a call of such a
//! name builds data; no code of the archive or of Python runs. Objects are entries of one list
//! ([`Pickle::objects`]) and refer to each other by position, so that shared and cyclic objects are
//! harmless. Limits on objects and dimensions bound what a small file can expand to.
//!
//! The machine has a stack of references, a stack of marks (positions in it where a container
//! began) and a memo (references by number). For `[1, x]` with `x` a tensor:
//!
//! ```text
//! ]                     push an empty list
//! (                     mark
//! K 1                   push the integer 1
//! c torch._utils _rebuild_tensor_v2     push a name of the table
//! ( ( .. persistent id .. t Q           mark; a tuple becomes a storage
//!   0, sizes, strides, .. t             the call's arguments, down to the mark
//! R                     pop arguments and name, push a tensor
//! e                     append all above the mark to the list below it
//! .                     the result is on top
//! ```
//!
//! Persistent ids stand for storages: the bytes are in `data/KEY` of the same zip, which `sample`
//! looks up.

use inrush_base::{DType, Error, Result};
use rustc_hash::FxHashMap;

/// A value of the pickle, a position in [`Pickle::objects`].
pub type Ref = usize;

/// Containers hold references, and `BINGET` pushes a reference again: two names of one Python
/// object stay one object.
#[derive(Clone, PartialEq, Debug)]
pub enum Object {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    List(Vec<Ref>),
    Tuple(Vec<Ref>),
    /// In order of insertion. A key that occurs twice is kept twice.
    Dict(Vec<(Ref, Ref)>),
    DType(DType),
    /// A name that is known, to be called later.
    Global(Global),
    Storage {
        dtype: Option<DType>,
        key: String,
    },
    /// A tensor whose call has been made; its bytes are not looked at here.
    Tensor(Tensor),
}

/// A tensor over the storage `key`; `dtype` is that of the storage's class, or of the tensor for untyped storages.
/// Sizes, strides and offset are as written, in elements, and unchecked. `TensorRef::new` checks
/// them against the storage.
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
    /// `_rebuild_tensor_v2(storage, offset, sizes, strides, ..)`: the dtype is in the storage's
    /// class.
    RebuildTensor,
    /// `_rebuild_tensor_v3(storage, offset, sizes, strides, grad, hooks, dtype, ..)`: untyped
    /// storage, for dtypes without a storage class.
    RebuildTensor3,
    /// `_rebuild_parameter(tensor, ..)`: the tensor itself.
    RebuildParameter,
    /// Called without arguments; its items follow by `SETITEMS`.
    OrderedDict,
    Size,
    /// A device is an argument of no tensor that is read; it becomes a string and is ignored.
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
    /// Objects that were popped and are in no container stay here; nothing refers to them.
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

/// The state of the stack machine. All of it is bounded by `MOST_OBJECTS` or by the length of
/// `bytes`.
struct Machine<'a> {
    bytes: &'a [u8],
    pos: usize,
    objects: Vec<Object>,
    /// Operands; an object may be on it several times.
    stack: Vec<Ref>,
    /// Heights of the stack where containers began.
    marks: Vec<usize>,
    /// A map, since a hostile index must not size a list.
    memo: FxHashMap<usize, Ref>,
}

impl<'a> Machine<'a> {
    /// Returns an input error with the position after the last byte that was taken.
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

    /// Reads a line of the text opcodes, without its end.
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

    /// Adds an object and pushes a reference to it.
    fn push(&mut self, o: Object) -> Result<()> {
        if self.objects.len() >= MOST_OBJECTS || self.stack.len() >= MOST_OBJECTS {
            return Err(self.bad("too many objects"));
        }
        self.stack.push(self.objects.len());
        self.objects.push(o);
        Ok(())
    }

    /// Pops a value, never through a mark: a value below it belongs to an outer container.
    fn pop(&mut self) -> Result<Ref> {
        if self.marks.last().is_some_and(|m| self.stack.len() <= *m) {
            return Err(self.bad("a mark where a value is wanted"));
        }
        self.stack
            .pop()
            .ok_or_else(|| self.bad("nothing on the stack"))
    }

    /// Pops the last mark and all values above it.
    fn pop_mark(&mut self) -> Result<Vec<Ref>> {
        let at = self.marks.pop().ok_or_else(|| self.bad("no mark"))?;
        // `min` costs nothing and excludes a panic.
        Ok(self.stack.split_off(at.min(self.stack.len())))
    }

    /// Pops `n` values, in the order in which they were pushed.
    fn pop_n(&mut self, n: usize) -> Result<Vec<Ref>> {
        let mut out = Vec::with_capacity(n);
        for _ in 0..n {
            out.push(self.pop()?);
        }
        out.reverse();
        Ok(out)
    }

    /// Remembers the top of the stack under `key`; it stays on the stack.
    fn put(&mut self, key: usize) -> Result<()> {
        let v = *self
            .stack
            .last()
            .ok_or_else(|| self.bad("nothing to remember"))?;
        self.memo.insert(key, v);
        Ok(())
    }

    /// Pushes what was remembered under `key`.
    fn get(&mut self, key: usize) -> Result<()> {
        let v = self.memo.get(&key).copied();
        let v = v.ok_or_else(|| self.bad("nothing was remembered"))?;
        if self.stack.len() >= MOST_OBJECTS {
            return Err(self.bad("too many objects"));
        }
        self.stack.push(v);
        Ok(())
    }

    /// Appends to the list on top of the stack, in place: references to it see the items.
    fn append(&mut self, items: Vec<Ref>) -> Result<()> {
        let at = *self.stack.last().ok_or_else(|| self.bad("no list"))?;
        match &mut self.objects[at] {
            Object::List(v) => v.extend(items),
            _ => return Err(self.bad("not a list")),
        }
        Ok(())
    }

    /// Adds alternating keys and values to the dictionary on top of the stack.
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

    /// Interprets opcodes until `STOP` and returns the result. Codes above 0x7f came with
    /// protocol 2 and later, letters are older. Opcodes that build objects of classes (`BUILD`,
    /// `NEWOBJ`, `INST`, `OBJ`) and those for sets and bytes are absent, and an error.
    fn run(&mut self) -> Result<Ref> {
        loop {
            let op = self.array::<1>()?[0];
            match op {
                // PROTO. Protocol 5 adds buffers outside of the stream, which `torch.save` does
                // not write.
                0x80 => match self.u8()? {
                    0..=4 => {}
                    v => return Err(self.bad(&format!("protocol {v}"))),
                },
                0x95 => _ = self.take(8)?, // FRAME
                // MARK; then STOP, POP, POP_MARK, NONE, NEWTRUE, NEWFALSE.
                b'(' => self.marks.push(self.stack.len()),
                b'.' => return self.pop(),
                b'0' => _ = self.pop()?,
                b'1' => _ = self.pop_mark()?,
                b'N' => self.push(Object::None)?,
                0x88 => self.push(Object::Bool(true))?,
                0x89 => self.push(Object::Bool(false))?,
                // BININT, BININT1, BININT2, LONG1: integers of 4, 1, 2 and of a given number of
                // bytes.
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
                // BINFLOAT is big-endian, unlike all else.
                b'G' => {
                    let v = f64::from_be_bytes(self.array()?);
                    self.push(Object::Float(v))?;
                }
                // BINUNICODE and SHORT_BINUNICODE: UTF-8 with a length of 4 bytes or 1.
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
                // EMPTY_LIST, EMPTY_DICT, EMPTY_TUPLE, TUPLE1 to TUPLE3, TUPLE, LIST.
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
                // APPEND, APPENDS, SETITEM, SETITEMS.
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
                // BINPUT, LONG_BINPUT, MEMOIZE; then BINGET, LONG_BINGET.
                b'q' => {
                    let k = self.u8()?;
                    self.put(k)?;
                }
                b'r' => {
                    let k = self.u32()?;
                    self.put(k)?;
                }
                // MEMOIZE numbers by the size of the memo, as Python's own reader does.
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
                // GLOBAL has module and name as two lines, STACK_GLOBAL takes them from the
                // stack.
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
                // REDUCE calls; BINPERSID turns a persistent id into a storage.
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
        // Sign extension: the top bit of the last byte is the sign. No bytes at all mean 0.
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

    /// Builds the object that a call of a known name gives. Further arguments (gradient flags,
    /// hooks) are ignored.
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
            // A copy of a list at each call: a long one would let a short pickle fill the memory.
            (Global::Size, [sizes]) if self.tuple(*sizes)?.len() <= MOST_DIMENSIONS => {
                Ok(Object::Tuple(self.tuple(*sizes)?.to_vec()))
            }
            (Global::Device, _) => Ok(Object::Str("device".into())),
            _ => Err(self.bad(&format!("a call of {g:?} with {} arguments", args.len()))),
        }
    }

    /// `dtype` is given for untyped storages and wins over that of the storage's class.
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

/// Returns the object for a name, or the error that refuses it. This match is the list of all
/// names that are accepted.
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

/// Returns the dtype of a typed storage class of PyTorch.
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
