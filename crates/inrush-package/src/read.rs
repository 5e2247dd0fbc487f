//! Reading a package. The file is mapped; weights are slices of the mapping.
//!
//! The manifest and all code are compared with their checksums and digests when the package is
//! opened; the weights, which are most of the bytes, by [`Package::check_weights`].

use crate::check;
use crate::file::SourceFile;
use crate::panels::Panels;
use crate::source::{MOST_CANDIDATES, MOST_SOURCE, StoredSource};
use crate::target::{Code, CpuTarget, GpuTarget, PtxTarget, StoredKernel, Target};
use crate::write::digest;
use crate::{
    FORMAT, Header, KernelEntry, MANIFEST, Manifest, OLDEST, Part, SourceEntry, TargetEntry,
    WeightEntry,
};
use inrush_base::{DType, Error, Result};
use memmap2::Mmap;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Cursor;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

/// A package that was opened.
pub struct Package {
    /// In the order in which they were asked for when it was made; one at least.
    pub targets: Vec<Target>,
    bytes: Bytes,
    weights: BTreeMap<String, StoredWeight>,
    /// Entries that hold weights, in order.
    files: BTreeMap<String, Entry>,
    /// All entries.
    entries: BTreeMap<String, Entry>,
    source: Option<SourceFile>,
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
pub(crate) struct Entry {
    pub(crate) range: Range<usize>,
    crc: u32,
}

impl Entry {
    fn check<'a>(&self, name: &str, file: &'a [u8]) -> Result<&'a [u8]> {
        let bytes = &file[self.range.clone()];
        self.compare(name, crc32fast::hash(bytes))?;
        Ok(bytes)
    }

    /// Compares the checksum with that of the bytes.
    pub(crate) fn compare(&self, name: &str, crc: u32) -> Result<()> {
        if crc == self.crc {
            return Ok(());
        }
        Err(Error::input(format!(
            "`{name}` is damaged: its checksum does not match"
        )))
    }
}

struct StoredWeight {
    dtype: DType,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    bytes: Range<usize>,
    panels: Option<Panels>,
    /// The storage of a weight in panels, once somebody wants it.
    plain: OnceLock<Vec<u8>>,
}

/// A weight that is stored in panels.
#[derive(Copy, Clone)]
pub struct PanelData<'a> {
    pub dtype: DType,
    pub sizes: &'a [i64],
    pub strides: &'a [i64],
    pub panels: &'a Panels,
    pub bytes: &'a [u8],
}

/// Returns an entry by name.
fn find(entries: &BTreeMap<String, Entry>, name: &str) -> Result<Entry> {
    let entry = entries.get(name).cloned();
    entry.ok_or_else(|| Error::input(format!("not a compiled package: no `{name}`")))
}

/// Checks the manifest's line of a weight.
fn weight(w: &WeightEntry, entry: &Entry) -> Result<StoredWeight> {
    let whole = entry.range.clone();
    let start = usize::try_from(w.offset)
        .ok()
        .and_then(|o| whole.start.checked_add(o));
    let bytes = start
        .filter(|s| *s <= whole.end)
        .map(|s| s..whole.end)
        .ok_or_else(|| Error::input(format!("weight `{}` lies outside its entry", w.name)))?;
    if w.sizes.len() != w.strides.len() || w.sizes.iter().chain(&w.strides).any(|v| *v < 0) {
        return Err(Error::input(format!(
            "weight `{}` has damaged sizes",
            w.name
        )));
    }
    let size = w.dtype.0.size();
    let fits = |p: &Panels| {
        let bytes_of = |elements: Option<usize>| elements?.checked_mul(size);
        matches!(size, 4 | 8)
            && bytes_of(p.stored()) == Some(bytes.len())
            && bytes_of(p.storage()).is_some()
    };
    if w.panels.as_ref().is_some_and(|p| !fits(p)) {
        return Err(Error::input(format!(
            "weight `{}` has damaged panels",
            w.name
        )));
    }
    Ok(StoredWeight {
        dtype: w.dtype.0,
        sizes: w.sizes.clone(),
        strides: w.strides.clone(),
        bytes,
        panels: w.panels,
        plain: OnceLock::new(),
    })
}

/// Checks a part against the zip's checksum and its digest.
fn code(part: Part, entries: &BTreeMap<String, Entry>, file: &[u8]) -> Result<Code> {
    let entry = find(entries, &part.entry)?;
    if digest(entry.check(&part.entry, file)?) != part.digest {
        return Err(Error::input(format!(
            "`{}` is damaged: its digest does not match",
            part.entry
        )));
    }
    Ok(Code {
        range: entry.range,
        digest: part.digest,
    })
}

/// Checks a target, its program and its code.
fn target(t: TargetEntry, entries: &BTreeMap<String, Entry>, file: &[u8]) -> Result<Target> {
    match t {
        TargetEntry::Cpu {
            cpu,
            program,
            object,
        } => {
            program.verify()?;
            Ok(Target::Cpu(Box::new(CpuTarget {
                cpu,
                program,
                object: code(object, entries, file)?,
            })))
        }
        TargetEntry::Gpu {
            gpu,
            lowered,
            kernels,
        } => {
            let kernels = (kernels.into_iter())
                .map(|k| kernel(k, entries, file))
                .collect::<Result<Vec<_>>>()?;
            let target = GpuTarget {
                ptx: ptx_target(&kernels, file)?,
                gpu,
                lowered,
                kernels,
                sources: None,
            };
            target.check()?;
            Ok(Target::Gpu(Box::new(target)))
        }
        TargetEntry::Source {
            gpu,
            lowered,
            kernels,
        } => {
            bound_sources(&kernels, entries)?;
            let sources = (kernels.into_iter())
                .map(|k| source(k, entries, file))
                .collect::<Result<Vec<_>>>()?;
            let target = GpuTarget {
                ptx: None,
                gpu,
                lowered,
                kernels: Vec::new(),
                sources: Some(sources),
            };
            target.check()?;
            Ok(Target::Gpu(Box::new(target)))
        }
    }
}

/// Bounds what a target's texts take once they are read: kernels may share an entry.
fn bound_sources(kernels: &[SourceEntry], entries: &BTreeMap<String, Entry>) -> Result<()> {
    let mut bytes = 0usize;
    for k in kernels {
        if k.candidates.len() > MOST_CANDIDATES {
            return Err(Error::input("a kernel has too many candidates"));
        }
        let texts = k.candidates.iter().map(|c| &c.text).chain([&k.text]);
        for part in texts {
            let length = find(entries, &part.entry)?.range.len();
            bytes = bytes.saturating_add(length);
        }
    }
    if bytes > MOST_SOURCE {
        return Err(Error::input(format!(
            "the sources of kernels take {bytes} bytes, more than {MOST_SOURCE}"
        )));
    }
    Ok(())
}

/// Checks the texts of a kernel.
fn source(k: SourceEntry, entries: &BTreeMap<String, Entry>, file: &[u8]) -> Result<StoredSource> {
    let text = |part: Part| {
        let name = part.entry.clone();
        let found = code(part, entries, file)?;
        match std::str::from_utf8(&file[found.range.clone()]) {
            Ok(text) if !text.is_empty() && !text.contains('\0') => Ok(found),
            _ => Err(Error::input(format!(
                "`{name}` is damaged: it is no source"
            ))),
        }
    };
    let candidates = (k.candidates.into_iter()).map(|c| Ok((c.kernel, text(c.text)?)));
    Ok(StoredSource {
        candidates: candidates.collect::<Result<_>>()?,
        text: text(k.text)?,
    })
}

/// Checks the parts of a kernel.
fn kernel(k: KernelEntry, entries: &BTreeMap<String, Entry>, file: &[u8]) -> Result<StoredKernel> {
    Ok(StoredKernel {
        info: k.info,
        code: code(k.code, entries, file)?,
        ptx: k.ptx.map(|p| code(p, entries, file)).transpose()?,
    })
}

/// Returns the architecture that the PTX of all kernels targets; `None` if a kernel has no PTX.
///
/// # Errors
/// An input error for PTX that is no text or names no architecture, and for kernels that differ.
fn ptx_target(kernels: &[StoredKernel], file: &[u8]) -> Result<Option<PtxTarget>> {
    let mut found = None;
    for k in kernels {
        let Some(ptx) = &k.ptx else { return Ok(None) };
        let text = std::str::from_utf8(&file[ptx.range.clone()]).ok();
        let target = text.filter(|t| !t.contains('\0')).and_then(PtxTarget::of);
        if target.is_none() || found.is_some_and(|f| Some(f) != target) {
            return Err(Error::input("the PTX of a kernel is damaged"));
        }
        found = target;
    }
    Ok(found)
}

/// Returns the error for a package of another format.
fn other_format(h: &Header) -> Error {
    let (format, version) = (h.format, &h.version);
    Error::input(if format > FORMAT {
        format!(
            "made by a newer inrush, {version}: package format {format}, this inrush reads {FORMAT}: install it, or compile the model again"
        )
    } else {
        format!(
            "package format {format} (written by inrush {version}), this inrush reads {OLDEST} to {FORMAT}: compile the model again"
        )
    })
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
        let source = SourceFile::of(path, &file);
        let package = Self::from_bytes(Bytes::Map(map))?;
        Ok(Package { source, ..package })
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
        let text = find(&entries, MANIFEST)?.check(MANIFEST, &map)?;
        let damaged = |e: serde_json::Error| Error::input(format!("damaged `{MANIFEST}`: {e}"));
        // Manifests of other formats have other fields.
        let header: Header = serde_json::from_slice(text).map_err(damaged)?;
        if !(OLDEST..=FORMAT).contains(&header.format) {
            return Err(other_format(&header));
        }
        let manifest: Manifest = serde_json::from_slice(text).map_err(damaged)?;
        let mut weights = BTreeMap::new();
        let mut files = BTreeMap::new();
        for w in &manifest.weights {
            let entry = find(&entries, &w.entry)?;
            weights.insert(w.name.clone(), weight(w, &entry)?);
            files.insert(w.entry.clone(), entry);
        }
        let targets = (manifest.targets.into_iter())
            .map(|t| target(t, &entries, &map))
            .collect::<Result<Vec<_>>>()?;
        if targets.is_empty() {
            return Err(Error::input("the package has no targets"));
        }
        Ok(Package {
            targets,
            bytes: map,
            weights,
            files,
            entries,
            source: None,
        })
    }

    /// Returns the targets that are CPUs.
    pub fn cpus(&self) -> impl Iterator<Item = &CpuTarget> {
        self.targets.iter().filter_map(|t| match t {
            Target::Cpu(t) => Some(&**t),
            Target::Gpu(_) => None,
        })
    }

    /// Returns the targets that are GPUs.
    pub fn gpus(&self) -> impl Iterator<Item = &GpuTarget> {
        self.targets.iter().filter_map(|t| match t {
            Target::Gpu(t) => Some(&**t),
            Target::Cpu(_) => None,
        })
    }

    /// Returns the names of all targets, for messages.
    pub fn target_names(&self) -> String {
        let names: Vec<String> = self.targets.iter().map(ToString::to_string).collect();
        names.join(", ")
    }

    /// Returns the bytes of an entry that programs do not need, such as what another tool added; `None` where there is none.
    ///
    /// # Errors
    /// An input error where its checksum does not match.
    pub fn entry(&self, name: &str) -> Result<Option<&[u8]>> {
        let entry = self.entries.get(name);
        entry.map(|e| e.check(name, &self.bytes)).transpose()
    }

    /// Returns the bytes of a target's code.
    pub fn code(&self, code: &Code) -> &[u8] {
        self.bytes.get(code.range.clone()).unwrap_or(&[])
    }

    /// Returns a weight by name. The first call for one that is stored in panels puts its elements back into their order, in
    /// memory that the package keeps.
    pub fn weight(&self, name: &str) -> Option<crate::WeightData<'_>> {
        let w = self.weights.get(name)?;
        let stored = &self.bytes[w.bytes.clone()];
        let bytes: &[u8] = match &w.panels {
            None => stored,
            Some(p) => (w.plain)
                // Reading has compared the panels with their bytes.
                .get_or_init(|| p.unpack(stored, w.dtype.size()).unwrap_or_default()),
        };
        Some(crate::WeightData {
            dtype: w.dtype,
            sizes: &w.sizes,
            strides: &w.strides,
            bytes,
        })
    }

    /// Returns a weight that is stored in panels; `None` for another.
    pub fn panels(&self, name: &str) -> Option<PanelData<'_>> {
        let w = self.weights.get(name)?;
        Some(PanelData {
            dtype: w.dtype,
            sizes: &w.sizes,
            strides: &w.strides,
            panels: w.panels.as_ref()?,
            bytes: &self.bytes[w.bytes.clone()],
        })
    }

    /// Returns the file that the package was opened from; `None` for one in memory.
    pub fn file(&self) -> Option<&SourceFile> {
        self.source.as_ref()
    }

    /// Enters the pages of weights in panels into the page table: every call reads all of them, and the first one would take a page
    /// fault for every few. [`Package::check_weights`] does so for all weights.
    pub fn map_panels(&self) {
        let Bytes::Map(map) = &self.bytes else { return };
        for w in self.weights.values().filter(|w| w.panels.is_some()) {
            check::populate(map, &w.bytes);
        }
    }

    /// Compares all weights with their checksums: reads every byte of them, which opening does not. All processors share the work.
    ///
    /// # Errors
    /// An input error that names the damaged entry.
    pub fn check_weights(&self) -> Result<()> {
        let map = match &self.bytes {
            Bytes::Map(map) => Some(map),
            Bytes::Memory(_) => None,
        };
        check::entries(&self.files, &self.bytes, map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Part;

    #[test]
    fn sources_that_kernels_share_are_counted_as_often_as_they_are_named() {
        let text = "text".to_string();
        let entry = Entry {
            range: 0..(1 << 20),
            crc: 0,
        };
        let entries = BTreeMap::from([(text.clone(), entry)]);
        let kernels = |count: usize| -> Vec<SourceEntry> {
            let one = || SourceEntry {
                text: Part {
                    entry: text.clone(),
                    digest: String::new(),
                },
                candidates: Vec::new(),
            };
            (0..count).map(|_| one()).collect()
        };
        let most = MOST_SOURCE >> 20;
        assert!(bound_sources(&kernels(most), &entries).is_ok());
        assert!(bound_sources(&kernels(most + 1), &entries).is_err());
        assert!(bound_sources(&kernels(1), &BTreeMap::new()).is_err());
    }
}
