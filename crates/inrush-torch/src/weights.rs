//! Weights and constants: tensors of the mapped archive, by name.
//!
//! A weight is a strided view of a storage, and a storage is one file of the archive. Tied
//! weights name the same file, and views of one tensor (a transposed weight, parts of a fused
//! one) the same file with other strides or offsets. Nothing is copied or read here: ranges are
//! checked against the file, and pages are read when a weight is bound or packed.
//!
//! Sizes of a stored weight are constants. The graph's input of that name must agree with them,
//! which `convert` checks.

use crate::archive::Archive;
use crate::json;
use crate::schema::{PayloadConfig, STRIDED, SymInt, TensorMeta};
use inrush_base::{DType, Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A tensor inside the archive: a strided view of a storage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorRef {
    pub dtype: DType,
    pub sizes: Vec<i64>,
    /// In elements.
    pub strides: Vec<i64>,
    /// Of the first element in the storage, in elements.
    pub offset: i64,
    /// The whole storage, as positions in the archive. Several tensors may share one.
    pub storage: Range<usize>,
}

impl TensorRef {
    /// Returns a tensor after checking that it is inside its storage.
    /// Strides of zero and overlapping elements are accepted, negative strides are not. After
    /// this check `offset + sum(i * stride)` is inside the storage for each coordinate, and
    /// numbers of elements and bytes do not overflow.
    pub fn new(
        dtype: DType,
        sizes: Vec<i64>,
        strides: Vec<i64>,
        offset: i64,
        storage: Range<usize>,
    ) -> Result<TensorRef> {
        let needed = extent(&sizes, &strides, offset)
            .and_then(|n| n.checked_mul(dtype.size()))
            .ok_or_else(|| {
                Error::input(format!(
                    "sizes {sizes:?}, strides {strides:?}, offset {offset} are no tensor"
                ))
            })?;
        if needed > storage.len() {
            return Err(Error::input(format!(
                "{} bytes where sizes {sizes:?}, strides {strides:?}, offset {offset} of {} need {needed}",
                storage.len(),
                dtype.torch_name()
            )));
        }
        Ok(TensorRef {
            dtype,
            sizes,
            strides,
            offset,
            storage,
        })
    }

    /// Returns the position in the archive of the element with coordinates zero.
    pub fn start(&self) -> usize {
        // An empty tensor may have any offset.
        // The clamp keeps the range of an empty tensor inside the file.
        let skip = (self.offset as usize).saturating_mul(self.dtype.size());
        self.storage.start + skip.min(self.storage.len())
    }

    /// Returns the number of elements.
    pub fn numel(&self) -> i64 {
        // Does not overflow: checked when the tensor was made.
        self.sizes.iter().fold(1i64, |a, s| a.saturating_mul(*s))
    }

    /// Returns true if the tensor is row-major without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1i64;
        for (size, stride) in self.sizes.iter().zip(&self.strides).rev() {
            // The stride of a dimension of size 1 is never multiplied by anything but zero.
            if *size != 1 && *stride != expected {
                return false;
            }
            // A size of zero leaves no elements, and the strides of such a tensor are those of
            // size 1.
            expected = expected.saturating_mul((*size).max(1));
        }
        true
    }
}

/// Returns the number of storage elements that a tensor spans; `None` if a size or position is
/// negative or overflows.
fn extent(sizes: &[i64], strides: &[i64], offset: i64) -> Option<usize> {
    if sizes.len() != strides.len() || offset < 0 {
        return None;
    }
    if sizes.iter().chain(strides).any(|v| *v < 0) {
        return None;
    }
    // Also a tensor that strides of zero make larger than its storage must be countable.
    sizes.iter().try_fold(1i64, |a, s| a.checked_mul(*s))?;
    if sizes.contains(&0) {
        return Some(0);
    }
    // With strides that are not negative, the last element is the one furthest out.
    let mut last = offset;
    for (size, stride) in sizes.iter().zip(strides) {
        last = last.checked_add((size - 1).checked_mul(*stride)?)?;
    }
    usize::try_from(last).ok()?.checked_add(1)
}

/// A weight with its strides. `bytes` begins at the element with coordinates zero.
#[derive(Copy, Clone, Debug)]
pub struct WeightView<'a> {
    pub dtype: DType,
    pub sizes: &'a [i64],
    pub strides: &'a [i64],
    pub bytes: &'a [u8],
}

/// Tensors of the archive by fully qualified name.
pub struct Weights {
    archive: Arc<Archive>,
    /// The archive's files that hold them.
    /// Each is checked once by `check`, however many tensors share it.
    files: BTreeSet<String>,
    tensors: BTreeMap<String, TensorRef>,
    /// Names whose contents are pickled objects, with their file.
    pickled: BTreeMap<String, String>,
}

impl Weights {
    /// Reads `data/KIND/MODEL_KIND_config.json` for both kinds, weights and constants.
    pub(crate) fn read(archive: &Arc<Archive>, root: &str, model: &str) -> Result<Weights> {
        let mut out = Weights {
            archive: archive.clone(),
            files: BTreeSet::new(),
            tensors: BTreeMap::new(),
            pickled: BTreeMap::new(),
        };
        for kind in ["weights", "constants"] {
            let folder = format!("{root}/data/{kind}");
            let name = format!("{folder}/{model}_{kind}_config.json");
            if archive.contains(&name) {
                out.add(archive, &folder, &name)?;
            } else if archive.contains(&format!("{folder}/{model}.pt")) {
                return Err(Error::unsupported(format!(
                    "its {kind} are a pickle (`{folder}/{model}.pt`), as older versions of torch wrote; export it again with torch 2.11 or newer"
                )));
            }
        }
        Ok(out)
    }

    /// Adds the tensors of one configuration. A name may occur in one of the two kinds only.
    fn add(&mut self, archive: &Archive, folder: &str, name: &str) -> Result<()> {
        let text = archive.read(name)?;
        let config: PayloadConfig = json::parse(text).map_err(|e| e.context(name))?;
        for (fqn, payload) in config.config.0 {
            let at = format!("{folder}/{}", payload.path_name);
            // A pickled object is an error only if the graph reads it.
            let Some(meta) = payload.tensor_meta.filter(|_| !payload.use_pickle) else {
                self.pickled.insert(fqn.to_string(), at);
                continue;
            };
            let tensor = archive
                .range(&at)
                .and_then(|range| tensor(&meta, range))
                .map_err(|e| e.context(format!("{name}, `{fqn}` in `{at}`")))?;
            self.files.insert(at);
            if self.tensors.insert(fqn.to_string(), tensor).is_some() {
                return Err(Error::input(format!("{name}: `{fqn}` is there twice")));
            }
        }
        Ok(())
    }

    /// Returns the tensor called `name`.
    /// Fails if there is none, or if it is a pickled object.
    pub fn get(&self, name: &str) -> Result<&TensorRef> {
        if let Some(file) = self.pickled.get(name) {
            return Err(Error::unsupported(format!(
                "`{name}` is a pickled object (`{file}`), not a plain tensor"
            )));
        }
        (self.tensors.get(name))
            .ok_or_else(|| Error::input(format!("the archive holds no weight called `{name}`")))
    }

    /// Returns all tensors, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &TensorRef)> {
        self.tensors.iter().map(|(n, t)| (n.as_str(), t))
    }

    /// Returns the names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns a weight by name, with its bytes.
    /// The bytes extend to the end of the storage, which may be more than the tensor spans.
    pub fn view(&self, name: &str) -> Option<WeightView<'_>> {
        self.tensors.get(name).map(|t| WeightView {
            dtype: t.dtype,
            sizes: &t.sizes,
            strides: &t.strides,
            bytes: &self.archive.bytes()[t.start()..t.storage.end],
        })
    }

    /// Compares all weights with the archive's checksums, on all processors: reads every byte of them, which opening does
    /// not.
    pub fn check(&self) -> Result<()> {
        let files: Vec<&String> = self.files.iter().collect();
        // Threads take files from a shared counter: sizes of weights differ by orders of
        // magnitude, so equal shares would be unequal work.
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.archive.check(file)?;
            }
            Ok(())
        };
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        std::thread::scope(|s| {
            // If the machine refuses a thread, the others do its work.
            let helpers: Vec<_> = (1..threads.min(files.len()))
                .filter_map(|_| std::thread::Builder::new().spawn_scoped(s, work).ok())
                .collect();
            let mut out = work();
            for h in helpers {
                let other = h.join();
                out = out.and(other.unwrap_or_else(|_| Err(Error::internal("a check panicked"))));
            }
            out
        })
    }

    /// Returns the bytes of all storages, each counted once.
    pub fn total_bytes(&self) -> usize {
        let mut ranges: Vec<_> = (self.tensors.values())
            .map(|t| (t.storage.start, t.storage.end))
            .collect();
        ranges.sort_unstable();
        // Storages do not overlap (the archive's directory was checked), so equal ranges are the
        // only repetitions.
        ranges.dedup();
        ranges.iter().map(|(a, b)| b - a).sum()
    }
}

/// Returns the tensor that `meta` describes; `storage` is the range of its file.
fn tensor(meta: &TensorMeta, storage: Range<usize>) -> Result<TensorRef> {
    if meta.layout != STRIDED {
        return Err(Error::unsupported(format!(
            "a tensor of layout {} (only strided ones are dense)",
            meta.layout
        )));
    }
    let fixed = |s: &SymInt| match s {
        SymInt::Int(v) => Ok(*v),
        _ => Err(Error::input("a weight of symbolic size")),
    };
    let all = |v: &[SymInt]| v.iter().map(fixed).collect::<Result<Vec<i64>>>();
    TensorRef::new(
        crate::codes::dtype(meta.dtype)?,
        all(&meta.sizes)?,
        all(&meta.strides)?,
        fixed(&meta.storage_offset)?,
        storage,
    )
}
