//! Reading a package. The file is mapped; weights are slices of the mapping.
//!
//! The manifest and the machine code are compared with their checksums when the package is opened; the weights, which are
//! most of the bytes, by [`Package::check_weights`], on all processors.

use crate::{FORMAT, MANIFEST, Manifest, OBJECT, Target};
use inrush_base::{DType, Error, Result};
use inrush_program::Program;
use memmap2::Mmap;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Cursor;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A package that was opened.
pub struct Package {
    pub program: Program,
    pub target: Target,
    bytes: Bytes,
    object: Range<usize>,
    weights: BTreeMap<String, StoredWeight>,
    /// Entries that hold weights, in order.
    files: BTreeMap<String, Entry>,
    /// All entries.
    entries: BTreeMap<String, Entry>,
}

/// The contents of a package, mapped or in memory.
enum Bytes {
    Map(Mmap),
    Memory(Vec<u8>),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Map(m) => m,
            Bytes::Memory(v) => v,
        }
    }
}

/// An entry of the zip: the range of its bytes, and their checksum.
#[derive(Clone)]
struct Entry {
    range: Range<usize>,
    crc: u32,
}

impl Entry {
    fn check<'a>(&self, name: &str, file: &'a [u8]) -> Result<&'a [u8]> {
        let bytes = &file[self.range.clone()];
        if crc32fast::hash(bytes) == self.crc {
            Ok(bytes)
        } else {
            Err(Error::input(format!(
                "`{name}` is damaged: its checksum does not match"
            )))
        }
    }
}

struct StoredWeight {
    dtype: DType,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    bytes: Range<usize>,
}

impl Package {
    /// Returns true if the file starts like a zip and holds a package's manifest.
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
        Self::from_bytes(Bytes::Map(map))
    }

    /// Reads a package in memory.
    pub fn read(bytes: Vec<u8>) -> Result<Package> {
        Self::from_bytes(Bytes::Memory(bytes))
    }

    fn from_bytes(map: Bytes) -> Result<Package> {
        let mut zip = zip::ZipArchive::new(Cursor::new(&map[..]))
            .map_err(|e| Error::input(format!("not a compiled package: {e}")))?;
        let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
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
            let crc = f.crc32();
            entries.insert(name, Entry { range, crc });
        }
        let find = |name: &str| {
            entries
                .get(name)
                .cloned()
                .ok_or_else(|| Error::input(format!("not a compiled package: no `{name}`")))
        };
        let text = find(MANIFEST)?.check(MANIFEST, &map)?;
        let manifest: Manifest = serde_json::from_slice(text)
            .map_err(|e| Error::input(format!("damaged `{MANIFEST}`: {e}")))?;
        if manifest.format != FORMAT {
            return Err(Error::input(format!(
                "package format {} (written by inrush {}), this inrush reads {FORMAT}",
                manifest.format, manifest.version
            )));
        }
        manifest.program.verify()?;
        let mut weights = BTreeMap::new();
        let mut files = BTreeMap::new();
        for w in &manifest.weights {
            let entry = find(&w.entry)?;
            let whole = entry.range.clone();
            files.insert(w.entry.clone(), entry);
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
        object.check(OBJECT, &map)?;
        Ok(Package {
            program: manifest.program,
            target: manifest.target,
            object: object.range,
            bytes: map,
            weights,
            files,
            entries,
        })
    }

    /// Returns the bytes of an entry that the program does not need, such as what another tool added; `None` where there is none.
    ///
    /// # Errors
    /// An input error where its checksum does not match.
    pub fn entry(&self, name: &str) -> Result<Option<&[u8]>> {
        let entry = self.entries.get(name);
        entry.map(|e| e.check(name, &self.bytes)).transpose()
    }

    /// Returns the shared object's bytes.
    pub fn object(&self) -> &[u8] {
        &self.bytes[self.object.clone()]
    }

    /// Returns a weight by name.
    pub fn weight(&self, name: &str) -> Option<crate::WeightData<'_>> {
        self.weights.get(name).map(|w| crate::WeightData {
            dtype: w.dtype,
            sizes: &w.sizes,
            strides: &w.strides,
            bytes: &self.bytes[w.bytes.clone()],
        })
    }

    /// Compares all weights with their checksums: reads every byte of them, which opening does not.
    pub fn check_weights(&self) -> Result<()> {
        let files: Vec<(&String, &Entry)> = self.files.iter().collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((name, entry)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                entry.check(name, &self.bytes)?;
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
}
