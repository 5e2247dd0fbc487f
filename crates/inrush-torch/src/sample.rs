//! Sample inputs: a reader of the pickle subset that `torch.save` writes for containers of tensors and numbers.
//!
//! A pickle is a program for a small stack machine that may call any Python function. This one may call the two functions
//! that rebuild a tensor, and refuses every other name: nothing in an archive is executed.

use crate::archive::Archive;
use inrush_base::{DType, Scalar};
use std::collections::BTreeMap;
use std::io::Cursor;
use std::rc::Rc;

/// One flattened input.
#[derive(Clone, Debug)]
pub enum Sample {
    Tensor(SampleTensor),
    Scalar(Scalar),
    None,
}

/// A tensor, copied out in row-major order.
#[derive(Clone, Debug)]
pub struct SampleTensor {
    pub dtype: DType,
    pub sizes: Vec<i64>,
    pub bytes: Vec<u8>,
}

/// Stack and memo never grow beyond this; a sample of a model's inputs has a few dozen objects.
const MAX_OBJECTS: usize = 100_000;
/// Elements of one tensor that are copied.
const MAX_ELEMENTS: usize = 1 << 28;
/// Containers in containers.
const MAX_DEPTH: usize = 64;

/// Reads the inputs that `model` was exported with.
pub fn read(archive: &Archive, model: &str) -> Result<Vec<Sample>, String> {
    let entry = format!("data/sample_inputs/{model}.pt");
    let bytes = archive
        .get(&entry)
        .ok_or_else(|| format!("no entry `{entry}`"))?;
    let file = Storages::open(bytes)?;
    let value = Machine {
        code: file.pickle,
        pos: 0,
        stack: Vec::new(),
        memo: BTreeMap::new(),
        file: &file,
    }
    .run()?;
    let mut out = Vec::new();
    flatten(&value, &mut out, 0)?;
    Ok(out)
}

/// The inner zip: `data.pkl` and one entry for each storage.
struct Storages<'a> {
    pickle: &'a [u8],
    data: BTreeMap<String, &'a [u8]>,
}

impl<'a> Storages<'a> {
    fn open(bytes: &'a [u8]) -> Result<Self, String> {
        let mut zip = zip::ZipArchive::new(Cursor::new(bytes))
            .map_err(|e| format!("not a torch.save file: {e}"))?;
        let mut pickle = None;
        let mut data = BTreeMap::new();
        for i in 0..zip.len() {
            let f = zip.by_index_raw(i).map_err(|e| e.to_string())?;
            let start = f.data_start().and_then(|s| usize::try_from(s).ok());
            let slice =
                start.and_then(|s| bytes.get(s..s.checked_add(usize::try_from(f.size()).ok()?)?));
            let slice = slice.filter(|_| f.compression() == zip::CompressionMethod::Stored);
            let slice = slice.ok_or("an entry lies outside the file or is compressed")?;
            let name = f
                .name()
                .split_once('/')
                .map_or(f.name(), |p| p.1)
                .to_string();
            if name == "data.pkl" {
                pickle = Some(slice);
            } else if let Some(key) = name.strip_prefix("data/") {
                data.insert(key.to_string(), slice);
            }
        }
        Ok(Storages {
            pickle: pickle.ok_or("no data.pkl")?,
            data,
        })
    }
}

#[derive(Clone, Debug)]
enum Object {
    Scalar(Scalar),
    None,
    Str(Rc<str>),
    /// Tuples and lists alike; shared, since lists are filled after they were stored.
    List(Rc<std::cell::RefCell<Vec<Object>>>),
    Dict(Rc<std::cell::RefCell<Vec<(Object, Object)>>>),
    /// A name, by module and attribute.
    Global(Rc<str>),
    Storage {
        dtype: DType,
        key: Rc<str>,
    },
    Tensor(Rc<SampleTensor>),
}

fn list(items: Vec<Object>) -> Object {
    Object::List(Rc::new(std::cell::RefCell::new(items)))
}

fn flatten(o: &Object, out: &mut Vec<Sample>, depth: usize) -> Result<(), String> {
    if depth > MAX_DEPTH || out.len() > MAX_OBJECTS {
        return Err("nested too deeply or too many objects".into());
    }
    match o {
        Object::Tensor(t) => out.push(Sample::Tensor(t.as_ref().clone())),
        Object::Scalar(s) => out.push(Sample::Scalar(*s)),
        // Strings take a place among the inputs and have no value here.
        Object::None | Object::Str(_) => out.push(Sample::None),
        Object::List(l) => l
            .borrow()
            .iter()
            .try_for_each(|i| flatten(i, out, depth + 1))?,
        Object::Dict(d) => d
            .borrow()
            .iter()
            .try_for_each(|(_, v)| flatten(v, out, depth + 1))?,
        Object::Global(name) => return Err(format!("the object `{name}` among the inputs")),
        Object::Storage { .. } => return Err("a bare storage among the inputs".into()),
    }
    Ok(())
}

struct Machine<'a> {
    code: &'a [u8],
    pos: usize,
    /// `None` is a mark.
    stack: Vec<Option<Object>>,
    memo: BTreeMap<u32, Object>,
    file: &'a Storages<'a>,
}

impl<'a> Machine<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let end = self.pos.checked_add(n).ok_or("a length overflows")?;
        let s = self
            .code
            .get(self.pos..end)
            .ok_or("the pickle is cut short")?;
        self.pos = end;
        Ok(s)
    }
    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.take(1)?[0])
    }
    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(
            self.take(4)?.try_into().expect("four bytes"),
        ))
    }
    fn line(&mut self) -> Result<&'a str, String> {
        let rest = &self.code[self.pos..];
        let end = rest
            .iter()
            .position(|b| *b == b'\n')
            .ok_or("the pickle is cut short")?;
        self.pos += end + 1;
        std::str::from_utf8(&rest[..end]).map_err(|_| "a name that is no text".into())
    }
    fn text(&mut self, n: usize) -> Result<Object, String> {
        let s = std::str::from_utf8(self.take(n)?).map_err(|_| "a string that is no text")?;
        Ok(Object::Str(s.into()))
    }
    fn push(&mut self, o: Object) -> Result<(), String> {
        if self.stack.len() >= MAX_OBJECTS {
            return Err("too many objects".into());
        }
        self.stack.push(Some(o));
        Ok(())
    }
    fn pop(&mut self) -> Result<Object, String> {
        self.stack
            .pop()
            .flatten()
            .ok_or_else(|| "the pickle's stack is empty".into())
    }
    fn top(&self) -> Result<&Object, String> {
        self.stack
            .last()
            .and_then(Option::as_ref)
            .ok_or_else(|| "the pickle's stack is empty".into())
    }
    /// Objects above the last mark.
    fn marked(&mut self) -> Result<Vec<Object>, String> {
        let at = self
            .stack
            .iter()
            .rposition(Option::is_none)
            .ok_or("no mark on the pickle's stack")?;
        let items = self.stack.split_off(at);
        Ok(items.into_iter().flatten().collect())
    }
    fn memoize(&mut self, key: u32) -> Result<(), String> {
        if self.memo.len() >= MAX_OBJECTS {
            return Err("too many objects".into());
        }
        let o = self.top()?.clone();
        self.memo.insert(key, o);
        Ok(())
    }
    fn recall(&mut self, key: u32) -> Result<(), String> {
        let o = self
            .memo
            .get(&key)
            .cloned()
            .ok_or("a memo entry that was never made")?;
        self.push(o)
    }

    fn run(mut self) -> Result<Object, String> {
        loop {
            let op = self.byte()?;
            match op {
                0x80 => _ = self.byte()?,
                b'.' => return self.pop(),
                b'(' => {
                    if self.stack.len() >= MAX_OBJECTS {
                        return Err("too many objects".into());
                    }
                    self.stack.push(None);
                }
                b'N' => self.push(Object::None)?,
                0x88 => self.push(Object::Scalar(Scalar::Bool(true)))?,
                0x89 => self.push(Object::Scalar(Scalar::Bool(false)))?,
                b'K' => {
                    let v = self.byte()?;
                    self.push(Object::Scalar(Scalar::Int(v as i64)))?;
                }
                b'M' => {
                    let v = u16::from_le_bytes(self.take(2)?.try_into().expect("two bytes"));
                    self.push(Object::Scalar(Scalar::Int(v as i64)))?;
                }
                b'J' => {
                    let v = self.u32()? as i32;
                    self.push(Object::Scalar(Scalar::Int(v as i64)))?;
                }
                0x8a => {
                    let n = self.byte()? as usize;
                    let raw = self.take(n)?;
                    if n > 8 {
                        return Err("an integer beyond 64 bits".into());
                    }
                    let negative = raw.last().is_some_and(|b| b & 0x80 != 0);
                    let mut bytes = [if negative { 0xff } else { 0 }; 8];
                    bytes[..n].copy_from_slice(raw);
                    self.push(Object::Scalar(Scalar::Int(i64::from_le_bytes(bytes))))?;
                }
                b'G' => {
                    let v = f64::from_be_bytes(self.take(8)?.try_into().expect("eight bytes"));
                    self.push(Object::Scalar(Scalar::Float(v)))?;
                }
                b'X' => {
                    let n = self.u32()? as usize;
                    let s = self.text(n)?;
                    self.push(s)?;
                }
                0x8c => {
                    let n = self.byte()? as usize;
                    let s = self.text(n)?;
                    self.push(s)?;
                }
                b')' | b']' => self.push(list(Vec::new()))?,
                b'}' => self.push(Object::Dict(Rc::default()))?,
                b't' | b'l' => {
                    let items = self.marked()?;
                    self.push(list(items))?;
                }
                0x85..=0x87 => {
                    let n = (op - 0x84) as usize;
                    let mut items = (0..n).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
                    items.reverse();
                    self.push(list(items))?;
                }
                b'a' => {
                    let item = self.pop()?;
                    self.append(vec![item])?;
                }
                b'e' => {
                    let items = self.marked()?;
                    self.append(items)?;
                }
                b's' => {
                    let (v, k) = (self.pop()?, self.pop()?);
                    self.set(vec![k, v])?;
                }
                b'u' => {
                    let items = self.marked()?;
                    self.set(items)?;
                }
                b'q' => {
                    let k = self.byte()? as u32;
                    self.memoize(k)?;
                }
                b'r' => {
                    let k = self.u32()?;
                    self.memoize(k)?;
                }
                0x94 => {
                    let k = self.memo.len() as u32;
                    self.memoize(k)?;
                }
                b'h' => {
                    let k = self.byte()? as u32;
                    self.recall(k)?;
                }
                b'j' => {
                    let k = self.u32()?;
                    self.recall(k)?;
                }
                b'c' => {
                    let name = format!("{}.{}", self.line()?, self.line()?);
                    self.push(Object::Global(name.into()))?;
                }
                b'Q' => {
                    let id = self.pop()?;
                    let storage = self.storage(&id)?;
                    self.push(storage)?;
                }
                b'R' => {
                    let (args, function) = (self.pop()?, self.pop()?);
                    let value = self.call(&function, &args)?;
                    self.push(value)?;
                }
                // State of a rebuilt parameter (hooks and the like): dropped.
                b'b' => _ = self.pop()?,
                other => return Err(format!("the pickle operation 0x{other:02x}")),
            }
        }
    }

    fn append(&mut self, items: Vec<Object>) -> Result<(), String> {
        match self.top()? {
            Object::List(l) => l.borrow_mut().extend(items),
            _ => return Err("an append to something that is no list".into()),
        }
        Ok(())
    }

    fn set(&mut self, items: Vec<Object>) -> Result<(), String> {
        let Object::Dict(d) = self.top()? else {
            return Err("an item set in something that is no dict".into());
        };
        let mut items = items.into_iter();
        while let (Some(k), Some(v)) = (items.next(), items.next()) {
            d.borrow_mut().push((k, v));
        }
        Ok(())
    }

    /// `('storage', torch.FloatStorage, '0', 'cpu', 4)`.
    fn storage(&self, id: &Object) -> Result<Object, String> {
        let Object::List(l) = id else {
            return Err("a persistent id of an unknown kind".into());
        };
        let l = l.borrow();
        match l.as_slice() {
            [
                Object::Str(kind),
                Object::Global(class),
                Object::Str(key),
                ..,
            ] if &**kind == "storage" => {
                let dtype = match &**class {
                    "torch.FloatStorage" => DType::F32,
                    "torch.DoubleStorage" => DType::F64,
                    "torch.HalfStorage" => DType::F16,
                    "torch.BFloat16Storage" => DType::BF16,
                    "torch.LongStorage" => DType::I64,
                    "torch.IntStorage" => DType::I32,
                    "torch.ShortStorage" => DType::I16,
                    "torch.CharStorage" => DType::I8,
                    "torch.ByteStorage" => DType::U8,
                    "torch.BoolStorage" => DType::Bool,
                    other => return Err(format!("the storage class `{other}`")),
                };
                Ok(Object::Storage {
                    dtype,
                    key: key.clone(),
                })
            }
            _ => Err("a persistent id of an unknown kind".into()),
        }
    }

    fn call(&self, function: &Object, args: &Object) -> Result<Object, String> {
        let (Object::Global(name), Object::List(args)) = (function, args) else {
            return Err("a call of something that is no name".into());
        };
        let args = args.borrow();
        match &**name {
            "torch._utils._rebuild_tensor_v2" => match args.as_slice() {
                [
                    Object::Storage { dtype, key },
                    Object::Scalar(offset),
                    Object::List(sizes),
                    Object::List(strides),
                    ..,
                ] => self.tensor(*dtype, key, *offset, &sizes.borrow(), &strides.borrow()),
                _ => Err("a tensor with arguments of unknown kinds".into()),
            },
            "torch._utils._rebuild_parameter" => match args.first() {
                Some(t @ Object::Tensor(_)) => Ok(t.clone()),
                _ => Err("a parameter that is no tensor".into()),
            },
            "collections.OrderedDict" => Ok(Object::Dict(Rc::default())),
            "torch.Size" => match args.first() {
                Some(l @ Object::List(_)) => Ok(l.clone()),
                _ => Err("a size that is no tuple".into()),
            },
            other => Err(format!("the pickle asks for `{other}`, which is refused")),
        }
    }

    fn tensor(
        &self,
        dtype: DType,
        key: &str,
        offset: Scalar,
        sizes: &[Object],
        strides: &[Object],
    ) -> Result<Object, String> {
        let ints = |list: &[Object]| {
            list.iter()
                .map(|o| match o {
                    Object::Scalar(Scalar::Int(v)) if *v >= 0 => Some(*v),
                    _ => None,
                })
                .collect::<Option<Vec<i64>>>()
                .ok_or("a size or stride that is no natural number")
        };
        let (sizes, strides) = (ints(sizes)?, ints(strides)?);
        let bytes = self
            .file
            .data
            .get(key)
            .ok_or("a storage that is not in the file")?;
        let numel = sizes
            .iter()
            .try_fold(1usize, |a, s| a.checked_mul(*s as usize))
            .filter(|n| *n <= MAX_ELEMENTS);
        let numel = numel.ok_or("a tensor that is too large")?;
        if sizes.len() != strides.len() || sizes.len() > 64 {
            return Err("as many sizes as strides are needed".into());
        }
        let width = dtype.size();
        let mut out = Vec::with_capacity(numel.min(bytes.len()) * width);
        let mut at = vec![0i64; sizes.len()];
        for _ in 0..numel {
            let mut pos = offset.as_i64();
            for (a, s) in at.iter().zip(&strides) {
                pos = a
                    .checked_mul(*s)
                    .and_then(|v| pos.checked_add(v))
                    .ok_or("an offset overflows")?;
            }
            let start = usize::try_from(pos)
                .ok()
                .and_then(|p| p.checked_mul(width))
                .ok_or("an offset overflows")?;
            let element = start.checked_add(width).and_then(|e| bytes.get(start..e));
            out.extend_from_slice(element.ok_or("a tensor that reaches beyond its storage")?);
            for d in (0..sizes.len()).rev() {
                at[d] += 1;
                if at[d] < sizes[d] {
                    break;
                }
                at[d] = 0;
            }
        }
        Ok(Object::Tensor(Rc::new(SampleTensor {
            dtype,
            sizes,
            bytes: out,
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(code: &[u8]) -> Result<Object, String> {
        let file = Storages {
            pickle: code,
            data: BTreeMap::new(),
        };
        Machine {
            code,
            pos: 0,
            stack: Vec::new(),
            memo: BTreeMap::new(),
            file: &file,
        }
        .run()
    }

    #[test]
    fn containers_and_numbers() {
        let mut out = Vec::new();
        flatten(
            &run(b"\x80\x02K\x07\x88\x86}q\x00X\x01\x00\x00\x00aM\x01\x02s\x86.").unwrap(),
            &mut out,
            0,
        )
        .unwrap();
        assert!(matches!(out[0], Sample::Scalar(Scalar::Int(7))));
        assert!(matches!(out[2], Sample::Scalar(Scalar::Int(513))));
    }

    #[test]
    fn a_pickle_that_calls_a_function_is_refused() {
        let e = run(b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.").unwrap_err();
        assert!(e.contains("os.system"), "{e}");
    }

    #[test]
    fn a_list_in_itself_and_cut_pickles_are_errors() {
        let o = run(b"]q\x00h\x00a.").unwrap();
        assert!(flatten(&o, &mut Vec::new(), 0).is_err());
        for n in 0..20 {
            assert!(run(&b"\x80\x02X\xff\xff\xff\xffabc"[..n.min(10)]).is_err());
        }
    }
}
