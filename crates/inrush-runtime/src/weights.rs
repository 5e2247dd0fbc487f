//! Where weights come from: a trait that an archive reader or a package implements.

use crate::tensor::Tensor;
use inrush_base::DType;
use inrush_package::PanelData;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A weight in the layout of its storage. `bytes` starts at the element with coordinates zero.
#[derive(Copy, Clone, Debug)]
pub struct WeightView<'a> {
    pub dtype: DType,
    pub sizes: &'a [i64],
    pub strides: &'a [i64],
    pub bytes: &'a [u8],
}

/// A complex weight as the pairs of real numbers that programs read: the same bytes with a last dimension of 2.
pub struct Pairs {
    dtype: DType,
    sizes: Vec<i64>,
    strides: Vec<i64>,
}

impl Pairs {
    /// Returns the pairs of a complex weight; `None` for another.
    pub fn of(view: &WeightView) -> Option<Pairs> {
        let dtype = view.dtype.part()?;
        let doubled = view.strides.iter().map(|s| s.checked_mul(2));
        let mut strides = doubled.collect::<Option<Vec<i64>>>()?;
        strides.push(1);
        let mut sizes = view.sizes.to_vec();
        sizes.push(2);
        Some(Pairs {
            dtype,
            sizes,
            strides,
        })
    }

    /// Returns the pairs in the bytes of the weight.
    pub fn view<'a>(&'a self, bytes: &'a [u8]) -> WeightView<'a> {
        WeightView {
            dtype: self.dtype,
            sizes: &self.sizes,
            strides: &self.strides,
            bytes,
        }
    }
}

/// Gives weights by fully qualified name. Bytes stay where they are (usually a file mapping) while the source lives.
pub trait WeightSource: Send + Sync {
    fn weight(&self, name: &str) -> Option<WeightView<'_>>;

    /// Returns a weight that is stored in panels; `None` for another. [`WeightSource::weight`] returns it in plain order, in fresh
    /// memory.
    fn panels(&self, _name: &str) -> Option<PanelData<'_>> {
        None
    }
}

/// Weights in memory. A clone shares the bytes.
#[derive(Clone, Default)]
pub struct MemoryWeights {
    items: BTreeMap<String, Arc<Item>>,
}

enum Item {
    /// Row-major bytes of its own.
    Own {
        dtype: DType,
        sizes: Vec<i64>,
        strides: Vec<i64>,
        bytes: Vec<u8>,
    },
    /// Memory that its owner may write.
    Shared(Tensor),
}

impl MemoryWeights {
    /// Adds a weight with row-major bytes.
    pub fn insert(&mut self, name: &str, dtype: DType, sizes: Vec<i64>, bytes: Vec<u8>) {
        let item = Item::Own {
            strides: crate::tensor::contiguous_strides(&sizes),
            dtype,
            sizes,
            bytes,
        };
        self.items.insert(name.to_string(), Arc::new(item));
    }

    /// Adds a weight that stays in the memory of a tensor.
    pub fn insert_shared(&mut self, name: &str, tensor: Tensor) {
        let item = Arc::new(Item::Shared(tensor));
        self.items.insert(name.to_string(), item);
    }
}

impl WeightSource for MemoryWeights {
    fn weight(&self, name: &str) -> Option<WeightView<'_>> {
        self.items.get(name).map(|item| match &**item {
            Item::Shared(t) => t.view(),
            Item::Own {
                dtype,
                sizes,
                strides,
                bytes,
            } => WeightView {
                dtype: *dtype,
                sizes,
                strides,
                bytes,
            },
        })
    }
}
