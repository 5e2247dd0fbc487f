//! Weights: slices of the mapped archive by fully qualified name.

use crate::archive::Archive;
use crate::schema::{PayloadConfig, SymInt, TensorMeta, dtype};
use inrush_base::{DType, Error, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The weights, buffers and constants of an archive.
pub struct Weights {
    archive: Arc<Archive>,
    items: BTreeMap<String, Item>,
}

struct Item {
    dtype: DType,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    /// From the element at coordinates zero to the end of the storage.
    bytes: Range<usize>,
}

/// A weight as it lies in its storage; `bytes` starts at the element with coordinates zero.
#[derive(Copy, Clone, Debug)]
pub struct WeightView<'a> {
    pub dtype: DType,
    pub sizes: &'a [i64],
    pub strides: &'a [i64],
    pub bytes: &'a [u8],
}

impl Weights {
    pub(crate) fn open(archive: Arc<Archive>, model: &str) -> Result<Weights> {
        let mut items = BTreeMap::new();
        for (folder, what) in [("weights", "weight"), ("constants", "constant")] {
            let entry = format!("data/{folder}/{model}_{folder}_config.json");
            let Some(json) = archive.get(&entry) else {
                if archive.get(&format!("data/{folder}/{model}.pt")).is_some() {
                    return Err(Error::unsupported(format!(
                        "`data/{folder}/{model}.pt` is a pickle; save the model again with torch 2.11 or later"
                    )));
                }
                continue;
            };
            let config: PayloadConfig = serde_json::from_slice(json).map_err(|e| {
                Error::input(format!("`{entry}` is not what torch.export writes: {e}"))
            })?;
            for (name, payload) in &config.config {
                let place = |e: Error| e.context(format!("{what} `{name}`"));
                if payload.use_pickle {
                    return Err(place(Error::unsupported(
                        "stored as a pickle (a tensor subclass or an object)",
                    )));
                }
                let meta = payload
                    .tensor_meta
                    .as_ref()
                    .ok_or_else(|| place(Error::unsupported("no tensor but an object")))?;
                let path = format!("data/{folder}/{}", payload.path_name);
                let range = archive
                    .range(&path)
                    .ok_or_else(|| place(Error::input(format!("no entry `{path}`"))))?;
                items.insert(name.to_string(), item(meta, range).map_err(place)?);
            }
        }
        Ok(Weights { archive, items })
    }

    /// A weight by name.
    pub fn view(&self, name: &str) -> Option<WeightView<'_>> {
        self.items.get(name).map(|i| WeightView {
            dtype: i.dtype,
            sizes: &i.sizes,
            strides: &i.strides,
            bytes: &self.archive.map()[i.bytes.clone()],
        })
    }

    /// Names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.items.keys().map(String::as_str)
    }
}

fn item(meta: &TensorMeta, range: Range<usize>) -> Result<Item> {
    let dtype = dtype(meta.dtype)
        .ok_or_else(|| Error::unsupported(format!("dtype code {}", meta.dtype)))?;
    let ints = |list: &[SymInt], what: &str| -> Result<Vec<i64>> {
        list.iter()
            .map(|s| match s {
                SymInt::AsInt(v) if *v >= 0 => Ok(*v),
                SymInt::AsInt(v) => Err(Error::input(format!("negative {what} {v}"))),
                SymInt::AsExpr(_) => Err(Error::input(format!("symbolic {what}"))),
            })
            .collect()
    };
    let sizes = ints(&meta.sizes, "size")?;
    let strides = ints(&meta.strides, "stride")?;
    let offset = ints(std::slice::from_ref(&meta.storage_offset), "storage offset")?[0];
    if sizes.len() != strides.len() {
        return Err(Error::input("as many sizes as strides are needed"));
    }
    let too_small = || {
        Error::input(format!(
            "its payload of {} bytes is too small for {dtype}{sizes:?} with strides {strides:?} at offset {offset}",
            range.len()
        ))
    };
    let empty = sizes.contains(&0);
    let mut last = offset;
    for (s, t) in sizes.iter().zip(&strides) {
        if !empty {
            last = (s - 1)
                .checked_mul(*t)
                .and_then(|v| last.checked_add(v))
                .ok_or_else(too_small)?;
        }
    }
    let bytes = |n: i64| {
        usize::try_from(n)
            .ok()
            .and_then(|n| n.checked_mul(dtype.size()))
            .ok_or_else(too_small)
    };
    if !empty && bytes(last.checked_add(1).ok_or_else(too_small)?)? > range.len() {
        return Err(too_small());
    }
    let start = range.start + bytes(offset)?.min(range.len());
    Ok(Item {
        dtype,
        sizes,
        strides,
        bytes: start..range.end,
    })
}
