//! Zip archives over a mapped file: names and byte ranges; nothing is unpacked.
//!
//! Only stored (uncompressed) entries are readable, which is all that PyTorch writes. Every length
//! and offset is untrusted. Ranges are checked against the file, and must not overlap, before any
//! slice is taken.
//!
//! Layout of a zip file, read from its end:
//!
//! ```text
//! [local header | contents] ..  [central directory]  [zip64 record, locator]  [end | comment]
//!                               ^ offset, length are in the end records   ^ last 22..65557 bytes
//! ```
//!
//! The central directory is the one source of names and sizes. A local header is read only for
//! the lengths of its name and extra field, since these decide where the contents begin and may
//! differ from the directory's. Archives of more than 4 GB, or with entries of that size, keep
//! 64-bit fields in zip64 records.
//!
//! Entries that overlap are refused: such a file can list one range many times and so make
//! readers do work out of proportion to its size.

use inrush_base::{Error, Result};
use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

/// The contents of a file, mapped or in memory; cheap to clone.
#[derive(Clone)]
pub struct Bytes(Arc<Source>);

/// Owner of the bytes. A test, or a caller that received an archive over a network, has them in
/// memory.
enum Source {
    Map(memmap2::Mmap),
    Memory(Vec<u8>),
}

impl Bytes {
    /// Maps a file.
    pub fn map(path: &Path) -> Result<Bytes> {
        let shown = path.display();
        let file =
            File::open(path).map_err(|e| Error::input(format!("cannot open {shown}: {e}")))?;
        let meta = file
            .metadata()
            .map_err(|e| Error::input(format!("cannot read {shown}: {e}")))?;
        if !meta.is_file() {
            return Err(Error::input(format!("{shown} is not a file")));
        }
        // A mapping of length zero is an error of the system. An empty file must be reported as
        // no zip.
        if meta.len() == 0 {
            return Ok(Bytes::from(Vec::new()));
        }
        // SAFETY: the map is read-only and private to this process. Another process that changes the file while it is
        // mapped changes what is read here; that is the caller's agreement, as for every mapped model format.
        let map = unsafe { memmap2::Mmap::map(&file) }
            .map_err(|e| Error::input(format!("cannot map {shown}: {e}")))?;
        Ok(Bytes(Arc::new(Source::Map(map))))
    }

    /// Asks the system to read the file ahead, in parallel with the compiler's work.
    pub fn will_be_read(&self) {
        #[cfg(unix)]
        if let Source::Map(map) = &*self.0 {
            // A hint, which the system may ignore.
            let _ = map.advise(memmap2::Advice::WillNeed);
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes(Arc::new(Source::Memory(bytes)))
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &*self.0 {
            Source::Map(m) => m,
            Source::Memory(v) => v,
        }
    }
}

/// One file of the archive.
#[derive(Clone, Debug)]
struct Entry {
    /// Range of the name, in the central directory.
    name: Range<usize>,
    /// Range of the contents.
    data: Range<usize>,
    /// Compression, `STORED` for those that can be read. Others are kept, so that `range` can
    /// name the method and an entry that is never read does no harm.
    method: u16,
    /// Bit 0 of the general purpose flags.
    encrypted: bool,
    /// CRC-32 of the uncompressed contents.
    crc: u32,
}

/// The directory of a zip archive in `bytes[base]`. Ranges are positions in `bytes`.
pub struct Archive {
    bytes: Bytes,
    /// Sorted by name.
    entries: Vec<Entry>,
}

// Signatures of the records, as little-endian integers: `PK` and two bytes that tell the kind.
const END: u32 = 0x0605_4b50;
const END64: u32 = 0x0606_4b50;
const END64_LOCATOR: u32 = 0x0706_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const LOCAL: u32 = 0x0403_4b50;
const STORED: u16 = 0;

/// Little-endian fields of a byte slice; past its end is an error.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn get<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        at.checked_add(N)
            .and_then(|end| self.0.get(at..end))
            .and_then(|s| s.try_into().ok())
            .ok_or_else(|| Error::input("the zip directory is cut off"))
    }
    fn u16(&self, at: usize) -> Result<u16> {
        Ok(u16::from_le_bytes(self.get(at)?))
    }
    fn u32(&self, at: usize) -> Result<u32> {
        Ok(u32::from_le_bytes(self.get(at)?))
    }
    fn u64(&self, at: usize) -> Result<u64> {
        Ok(u64::from_le_bytes(self.get(at)?))
    }
    /// Reads a 64-bit field as a position. Fails only where `usize` is narrower.
    fn offset(&self, at: usize) -> Result<usize> {
        usize::try_from(self.u64(at)?).map_err(|_| Error::input("a zip offset is out of range"))
    }
}

/// The range of the central directory and its number of entries.
struct Directory {
    at: usize,
    len: usize,
    entries: usize,
}

impl Archive {
    /// Reads the directory of the archive that fills all of `bytes`.
    pub fn new(bytes: Bytes) -> Result<Archive> {
        let all = 0..bytes.len();
        Archive::within(bytes, all)
    }

    /// Reads the directory of the archive that fills `bytes[base]` (an archive stored inside another).
    pub fn within(bytes: Bytes, base: Range<usize>) -> Result<Archive> {
        let file = bytes
            .get(base.clone())
            .ok_or_else(|| Error::internal("an archive outside its file"))?;
        let mut entries = entries(file)?;
        for e in &mut entries {
            // An inner archive counts from its own beginning. Ranges of the whole file let its
            // tensors be slices of the one mapping, without a second one.
            for r in [&mut e.name, &mut e.data] {
                *r = r.start + base.start..r.end + base.start;
            }
        }
        entries.sort_by(|a, b| bytes[a.name.clone()].cmp(&bytes[b.name.clone()]));
        let archive = Archive { bytes, entries };
        // Two entries of one name could pass a check as one and be read as the other.
        if let Some(w) =
            (archive.entries.windows(2)).find(|w| archive.name(&w[0]) == archive.name(&w[1]))
        {
            return Err(Error::input(format!(
                "the archive holds `{}` twice",
                archive.name(&w[0])
            )));
        }
        Ok(archive)
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    fn name(&self, e: &Entry) -> &str {
        // Checked when the directory was read.
        std::str::from_utf8(&self.bytes[e.name.clone()]).unwrap_or_default()
    }

    /// Returns the names of all entries, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|e| self.name(e))
    }

    /// Finds an entry by binary search over the sorted names.
    fn find(&self, name: &str) -> Option<&Entry> {
        (self.entries)
            .binary_search_by(|e| self.bytes[e.name.clone()].cmp(name.as_bytes()))
            .ok()
            .map(|i| &self.entries[i])
    }

    /// Returns true if the directory lists `name`, readable or not.
    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Returns the range of the contents of `name`.
    /// The checksum is not compared: of weights that would read every byte. An entry that is
    /// missing or encrypted is an input error, a compressed one is unsupported.
    pub fn range(&self, name: &str) -> Result<Range<usize>> {
        let e = self
            .find(name)
            .ok_or_else(|| Error::input(format!("the archive holds no `{name}`")))?;
        if e.encrypted {
            return Err(Error::input(format!("`{name}` is encrypted")));
        }
        if e.method != STORED {
            return Err(Error::unsupported(format!(
                "`{name}` is compressed (method {}); PyTorch stores entries as they are",
                e.method
            )));
        }
        Ok(e.data.clone())
    }

    /// Contents of `name` after a check against the archive's checksum.
    pub fn read(&self, name: &str) -> Result<&[u8]> {
        let range = self.range(name)?;
        self.check(name)?;
        Ok(&self.bytes[range])
    }

    /// Compares the contents of `name` with the archive's checksum.
    pub fn check(&self, name: &str) -> Result<()> {
        let range = self.range(name)?;
        let stored = self.find(name).map_or(0, |e| e.crc);
        if crc32fast::hash(&self.bytes[range]) != stored {
            return Err(Error::input(format!(
                "`{name}` is damaged: its checksum does not match"
            )));
        }
        Ok(())
    }
}

/// Finds the central directory from the records at the end of the file.
fn directory(file: &[u8]) -> Result<Directory> {
    const END_LEN: usize = 22;
    let not_zip = || Error::input("not a zip archive, or its end is cut off");
    // The record is followed by a comment of at most 65535 bytes.
    // The search goes backwards and demands that the comment ends with the file. A signature that
    // occurs inside contents or comment then does not match.
    let last = file.len().checked_sub(END_LEN).ok_or_else(not_zip)?;
    let first = last.saturating_sub(0xffff);
    let f = Fields(file);
    let end = (first..=last)
        .rev()
        .find(|&p| {
            f.u32(p).is_ok_and(|s| s == END)
                && f.u16(p + 20)
                    .is_ok_and(|n| p + END_LEN + n as usize == file.len())
        })
        .ok_or_else(not_zip)?;
    // Offsets of the end record: 10 entries in all, 12 bytes of the directory, 16 its position.
    // In a zip64 file these may be all ones; the locator before the record leads to the 64-bit
    // fields.
    let (entries, len, at) = (f.u16(end + 10)?, f.u32(end + 12)?, f.u32(end + 16)?);
    let locator = end.checked_sub(20);
    if let Some(l) = locator.filter(|&l| f.u32(l).is_ok_and(|s| s == END64_LOCATOR)) {
        let record = f.offset(l + 8)?;
        if f.u32(record)? != END64 {
            return Err(Error::input("the zip64 directory is missing"));
        }
        return Ok(Directory {
            entries: f.offset(record + 32)?,
            len: f.offset(record + 40)?,
            at: f.offset(record + 48)?,
        });
    }
    Ok(Directory {
        at: at as usize,
        len: len as usize,
        entries: entries as usize,
    })
}

/// Returns every entry, in directory order, with ranges inside `file` that do not overlap.
fn entries(file: &[u8]) -> Result<Vec<Entry>> {
    const HEADER: usize = 46;
    let dir = directory(file)?;
    // `dir.entries` is not trusted as a capacity: each step of the loop reads 46 bytes or fails,
    // so the list is bounded by the size of the file.
    let end = dir.at.checked_add(dir.len).filter(|e| *e <= file.len());
    let end = end.ok_or_else(|| Error::input("the zip directory lies outside the file"))?;
    let mut out = Vec::new();
    let mut spans = Vec::new();
    let mut p = dir.at;
    for _ in 0..dir.entries {
        let f = Fields(&file[..end]);
        if f.u32(p)? != CENTRAL {
            return Err(Error::input("the zip directory is damaged"));
        }
        // Offsets in a central header: 8 flags, 10 method, 16 CRC, 20 packed size, 24 size, 28
        // length of the name, 30 of the extra field, 32 of the comment, 42 position of the local
        // header.
        let (flags, method, crc) = (f.u16(p + 8)?, f.u16(p + 10)?, f.u32(p + 16)?);
        let name_at = p + HEADER;
        let extra_at = name_at + f.u16(p + 28)? as usize;
        let comment_at = extra_at + f.u16(p + 30)? as usize;
        let next = comment_at + f.u16(p + 32)? as usize;
        if next > end {
            return Err(Error::input("the zip directory is cut off"));
        }
        let name = std::str::from_utf8(&file[name_at..extra_at])
            .map_err(|_| Error::input("an entry's name is not UTF-8"))?;
        let sizes = [f.u32(p + 24)?, f.u32(p + 20)?, f.u32(p + 42)?];
        let [size, packed, header] = zip64(&file[extra_at..comment_at], sizes)
            .ok_or_else(|| Error::input(format!("the sizes of `{name}` are damaged")))?;
        if method == STORED && size != packed {
            return Err(Error::input(format!("the sizes of `{name}` disagree")));
        }
        // Contents must end before the directory.
        let span = payload(&file[..dir.at], header, packed)
            .map_err(|e| e.context(format!("entry `{name}`")))?;
        // The span begins at the local header: an entry inside another one's header is an overlap
        // too.
        spans.push((header, span.end, out.len()));
        out.push(Entry {
            name: name_at..extra_at,
            data: span,
            method,
            encrypted: flags & 1 != 0,
            crc,
        });
        p = next;
    }
    spans.sort_unstable();
    // Sorted by start, so an overlap of any two implies one of two neighbours.
    if let Some(w) = spans.windows(2).find(|w| w[0].1 > w[1].0) {
        let name = |k: usize| String::from_utf8_lossy(&file[out[k].name.clone()]).into_owned();
        return Err(Error::input(format!(
            "entries `{}` and `{}` overlap",
            name(w[0].2),
            name(w[1].2)
        )));
    }
    Ok(out)
}

/// Returns the sizes and the offset of an entry. Fields of all ones are replaced from the zip64
/// field, in its order.
fn zip64(mut extra: &[u8], fields: [u32; 3]) -> Option<[usize; 3]> {
    let mut out = fields.map(|v| v as usize);
    if fields.iter().all(|v| *v != u32::MAX) {
        return Some(out);
    }
    // Extra fields are (id, length, body). Id 1 is zip64; it holds values only for those fields
    // that are all ones, in the order size, packed size, header position.
    while extra.len() >= 4 {
        let id = u16::from_le_bytes([extra[0], extra[1]]);
        let len = u16::from_le_bytes([extra[2], extra[3]]) as usize;
        let body = extra.get(4..4 + len)?;
        if id == 1 {
            let mut values = body.chunks_exact(8);
            for (o, _) in out.iter_mut().zip(fields).filter(|(_, f)| *f == u32::MAX) {
                let bytes: [u8; 8] = values.next()?.try_into().ok()?;
                *o = usize::try_from(u64::from_le_bytes(bytes)).ok()?;
            }
            return Some(out);
        }
        extra = &extra[4 + len..];
    }
    None
}

/// Returns the range of the contents of the entry whose local header is at `header`.
/// The fixed part of a local header has 30 bytes, with the lengths of name and extra field at 26
/// and 28. `len` comes from the directory: streaming writers leave the sizes of local headers
/// zero.
fn payload(file: &[u8], header: usize, len: usize) -> Result<Range<usize>> {
    let f = Fields(file);
    if f.u32(header)? != LOCAL {
        return Err(Error::input("its header is damaged"));
    }
    let start = header + 30 + f.u16(header + 26)? as usize + f.u16(header + 28)? as usize;
    start
        .checked_add(len)
        .filter(|end| *end <= file.len())
        .map(|end| start..end)
        .ok_or_else(|| Error::input("its contents lie outside the file"))
}
