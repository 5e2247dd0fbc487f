//! The inputs that a model was exported with, stored in the archive as a pickle.
//!
//! The pickle holds the pair `(args, kwargs)` of the call. Its leaves in the order of the model's
//! input tree are the flattened inputs. Dictionaries need care: Python flattens them in the order
//! of the tree's keys, and the pickle holds them in the order of their insertion.
//!
//! Compiling does not need the samples. `inrush run` and `inrush bench` take them if no inputs
//! are given.

use crate::archive::{Archive, Bytes};
use crate::pickle::{self, Object, Pickle, Ref};
use crate::tree::Tree;
use crate::weights::TensorRef;
use inrush_base::{DType, Error, Result, Scalar};
use std::fmt;
use std::ops::{Deref, Range};

/// One flattened input.
#[derive(Clone, Debug)]
pub enum Sample {
    /// Copied out if its strides are not row-major, else a slice of the mapping.
    Tensor(SampleTensor),
    Scalar(Scalar),
    /// `None`, or a string: inputs that a compiled graph does not read.
    None,
}

/// A tensor in row-major order.
#[derive(Clone, Debug)]
pub struct SampleTensor {
    pub dtype: DType,
    /// In elements; the length of `bytes` is their product times the size of the dtype.
    pub sizes: Vec<i64>,
    pub bytes: Slice,
}

/// A part of a map, or bytes that were gathered from one.
#[derive(Clone)]
pub struct Slice {
    bytes: Bytes,
    range: Range<usize>,
}

impl Deref for Slice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

// Depth of containers, and visits of objects in all. Inputs of models are a few dozen leaves; a
// cyclic list or a list of one list many times would be endless or exponential without the second
// limit.
const MAX_DEPTH: usize = 64;
const MOST_STEPS: usize = 1 << 14;
/// Most bytes of a tensor that is larger than its storage.
/// A sample of `expand`ed sizes is legitimate, so it is not refused outright.
const MOST_REPEATED: usize = 64 << 20;

/// Reads `entry`, a zip inside the archive, and flattens its value in the order of `tree` (its own order without one).
pub fn read(archive: &Archive, entry: &str, tree: Option<&Tree>) -> Result<Vec<Sample>> {
    let inner = Archive::within(archive.bytes().clone(), archive.range(entry)?)?;
    let pkl = inner.names().find(|n| n.ends_with("/data.pkl"));
    let pkl = pkl.ok_or_else(|| Error::input("holds no `data.pkl`"))?;
    let root = &pkl[..pkl.len() - "data.pkl".len()];
    let order = format!("{root}byteorder");
    if inner.contains(&order) && inner.read(&order)?.trim_ascii() != b"little" {
        return Err(Error::unsupported("tensors are not little-endian"));
    }
    let mut f = Flatten {
        pickle: pickle::read(inner.read(pkl)?)?,
        inner: &inner,
        root,
        out: Vec::new(),
        steps: 0,
    };
    f.value(f.pickle.root, tree, 0)?;
    Ok(f.out)
}

/// A walk over the objects in the order of the tree.
struct Flatten<'a> {
    pickle: Pickle,
    inner: &'a Archive,
    /// Folder of the inner zip, with its slash.
    root: &'a str,
    out: Vec<Sample>,
    steps: usize,
}

impl Flatten<'_> {
    /// Appends the leaves of an object. Without a tree the object's own order holds.
    fn value(&mut self, at: Ref, tree: Option<&Tree>, depth: usize) -> Result<()> {
        // A pickle may refer to an object many times. The count bounds what a small file can expand
        // to.
        self.steps += 1;
        if depth > MAX_DEPTH || self.steps > MOST_STEPS {
            return Err(Error::input("nested too deeply, or too large"));
        }
        let children = match &self.pickle.objects[at] {
            // The length is checked before the copy: copies of one long list at many visits would
            // multiply memory.
            Object::Tuple(v) | Object::List(v) if v.len() <= MOST_STEPS => v.clone(),
            Object::Dict(items) if items.len() <= MOST_STEPS => self.in_order(items, tree)?,
            Object::Tuple(_) | Object::List(_) | Object::Dict(_) => {
                return Err(Error::input("too large"));
            }
            other => {
                let leaf = self.leaf(other)?;
                self.out.push(leaf);
                return Ok(());
            }
        };
        let trees = tree.map(Tree::children);
        if let Some(t) = trees.as_ref().filter(|t| t.len() != children.len()) {
            return Err(Error::input(format!(
                "{} values where the model takes {}",
                children.len(),
                t.len()
            )));
        }
        for (k, child) in children.into_iter().enumerate() {
            let t = trees.as_ref().map(|t| t[k].1);
            self.value(child, t, depth + 1)?;
        }
        Ok(())
    }

    /// Returns the values of a dictionary in the order of the tree's keys.
    fn in_order(&self, items: &[(Ref, Ref)], tree: Option<&Tree>) -> Result<Vec<Ref>> {
        let Some(Tree::Dict(keys)) = tree else {
            return Ok(items.iter().map(|i| i.1).collect());
        };
        let named = |key: Ref, name: &str| match &self.pickle.objects[key] {
            Object::Str(s) => s == name,
            // The tree holds keys as text, integers in decimal.
            Object::Int(i) => i.to_string() == name,
            _ => false,
        };
        keys.iter()
            .map(|(name, _)| {
                (items.iter().find(|(k, _)| named(*k, name)))
                    .map(|(_, v)| *v)
                    .ok_or_else(|| Error::input(format!("no value for the key `{name}`")))
            })
            .collect()
    }

    fn leaf(&self, o: &Object) -> Result<Sample> {
        Ok(match o {
            Object::None => Sample::None,
            Object::Bool(v) => Sample::Scalar(Scalar::Bool(*v)),
            Object::Int(v) => Sample::Scalar(Scalar::Int(*v)),
            Object::Float(v) => Sample::Scalar(Scalar::Float(*v)),
            // Export specialises the graph to a string's value, so there is nothing to pass.
            Object::Str(_) => Sample::None,
            Object::Tensor(t) => {
                let entry = format!("{}data/{}", self.root, t.storage);
                let t = TensorRef::new(
                    t.dtype,
                    t.sizes.clone(),
                    t.strides.clone(),
                    t.offset,
                    self.inner.range(&entry)?,
                )?;
                Sample::Tensor(SampleTensor {
                    dtype: t.dtype,
                    bytes: row_major(self.inner.bytes(), &t)?,
                    sizes: t.sizes,
                })
            }
            other => {
                return Err(Error::unsupported(format!(
                    "an input that is neither a tensor nor a number: {other:?}"
                )));
            }
        })
    }
}

/// Returns the elements of `t` in row-major order: a slice of the mapping if it is contiguous, else
/// a copy.
/// Takes time in proportion to the number of elements times dimensions when it copies.
fn row_major(bytes: &Bytes, t: &TensorRef) -> Result<Slice> {
    let size = t.dtype.size();
    let count = t.numel() as usize;
    let len = count.saturating_mul(size);
    let start = t.start();
    if t.is_contiguous() {
        return Ok(Slice {
            bytes: bytes.clone(),
            range: start..start + len,
        });
    }
    // Strides of zero repeat elements, so that a small file could ask for any amount.
    if len > MOST_REPEATED.max(t.storage.len()) {
        return Err(Error::unsupported("an expanded tensor of this size"));
    }
    let mut out = Vec::with_capacity(len);
    let mut at = vec![0i64; t.sizes.len()];
    for _ in 0..count {
        // Inside the storage for all coordinates, and free of overflow: `TensorRef::new` has
        // checked the last element, and strides are not negative.
        let offset: i64 = at.iter().zip(&t.strides).map(|(i, s)| i * s).sum();
        let from = start + offset as usize * size;
        out.extend_from_slice(&bytes[from..from + size]);
        // Advances the coordinates like an odometer, last dimension first.
        for d in (0..at.len()).rev() {
            at[d] += 1;
            if at[d] < t.sizes[d] {
                break;
            }
            at[d] = 0;
        }
    }
    let range = 0..out.len();
    Ok(Slice {
        bytes: Bytes::from(out),
        range,
    })
}
