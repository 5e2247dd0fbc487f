//! Reading a package. The file is mapped; weights are slices of the mapping.

use crate::{FORMAT, MANIFEST, Manifest, OBJECT, Target};
use inrush_base::{DType, Error, Result};
use inrush_program::Program;
use memmap2::Mmap;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Cursor;
use std::ops::Range;
use std::path::Path;

/// A package that was opened.
pub struct Package {
    pub program: Program,
    pub target: Target,
    map: Mmap,
    object: Range<usize>,
    weights: BTreeMap<String, StoredWeight>,
}

struct StoredWeight {
    dtype: DType,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    bytes: Range<usize>,
}

impl Package {
    /// The file starts like a zip and holds a package's manifest.
    pub fn is_package(path: &Path) -> bool {
        File::open(path)
            .ok()
            .and_then(|f| zip::ZipArchive::new(f).ok())
            .is_some_and(|z| z.index_for_name(MANIFEST).is_some())
    }

    /// Opens and checks a package.
    ///
    /// # Errors
    /// An input error that names the file, for anything that is not a whole package of this format.
    pub fn open(path: &Path) -> Result<Package> {
        Self::open_inner(path).map_err(|e| e.in_file(path.display().to_string()))
    }

    fn open_inner(path: &Path) -> Result<Package> {
        let file = File::open(path).map_err(|e| Error::input(format!("cannot open: {e}")))?;
        // SAFETY: the mapping is read only; a file that another process changes meanwhile gives wrong numbers, as a
        // weight file changed on disk would.
        let map =
            unsafe { Mmap::map(&file) }.map_err(|e| Error::input(format!("cannot map: {e}")))?;
        let mut zip = zip::ZipArchive::new(Cursor::new(&map[..]))
            .map_err(|e| Error::input(format!("not a compiled package: {e}")))?;
        let mut entries: BTreeMap<String, Range<usize>> = BTreeMap::new();
        for i in 0..zip.len() {
            let f = zip
                .by_index_raw(i)
                .map_err(|e| Error::input(format!("damaged entry {i}: {e}")))?;
            let name = f.name().to_string();
            let range = f
                .data_start()
                .and_then(|s| usize::try_from(s).ok())
                .and_then(|s| Some(s..s.checked_add(usize::try_from(f.size()).ok()?)?))
                .filter(|r| r.end <= map.len() && f.compression() == zip::CompressionMethod::Stored)
                .ok_or_else(|| {
                    Error::input(format!(
                        "entry `{name}` lies outside the file or is compressed"
                    ))
                })?;
            entries.insert(name, range);
        }
        let find = |name: &str| {
            entries
                .get(name)
                .cloned()
                .ok_or_else(|| Error::input(format!("not a compiled package: no `{name}`")))
        };
        let manifest: Manifest = serde_json::from_slice(&map[find(MANIFEST)?])
            .map_err(|e| Error::input(format!("damaged `{MANIFEST}`: {e}")))?;
        if manifest.format != FORMAT {
            return Err(Error::input(format!(
                "package format {} (written by inrush {}), this inrush reads {FORMAT}",
                manifest.format, manifest.version
            )));
        }
        manifest.program.verify()?;
        let mut weights = BTreeMap::new();
        for w in &manifest.weights {
            let whole = find(&w.entry)?;
            let start = usize::try_from(w.offset)
                .ok()
                .and_then(|o| whole.start.checked_add(o));
            let bytes = start
                .filter(|s| *s <= whole.end)
                .map(|s| s..whole.end)
                .ok_or_else(|| {
                    Error::input(format!("weight `{}` lies outside its entry", w.name))
                })?;
            if w.sizes.len() != w.strides.len() || w.sizes.iter().chain(&w.strides).any(|v| *v < 0)
            {
                return Err(Error::input(format!(
                    "weight `{}` has damaged sizes",
                    w.name
                )));
            }
            weights.insert(
                w.name.clone(),
                StoredWeight {
                    dtype: w.dtype.0,
                    sizes: w.sizes.clone(),
                    strides: w.strides.clone(),
                    bytes,
                },
            );
        }
        let object = find(OBJECT)?;
        Ok(Package {
            program: manifest.program,
            target: manifest.target,
            map,
            object,
            weights,
        })
    }

    /// The shared object's bytes.
    pub fn object(&self) -> &[u8] {
        &self.map[self.object.clone()]
    }

    /// A weight by name.
    pub fn weight(&self, name: &str) -> Option<crate::WeightData<'_>> {
        self.weights.get(name).map(|w| crate::WeightData {
            dtype: w.dtype,
            sizes: &w.sizes,
            strides: &w.strides,
            bytes: &self.map[w.bytes.clone()],
        })
    }
}
