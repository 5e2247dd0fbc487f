//! The container: a zip with stored entries under one top folder.

use inrush_base::{Error, Result};
use memmap2::Mmap;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Cursor;
use std::ops::Range;
use std::path::Path;

/// A mapped archive. Names are given without the top folder.
pub struct Archive {
    map: Mmap,
    entries: BTreeMap<String, Range<usize>>,
}

impl Archive {
    pub fn open(path: &Path) -> Result<Archive> {
        let file = File::open(path).map_err(|e| Error::input(format!("cannot open: {e}")))?;
        let length = file
            .metadata()
            .map_err(|e| Error::input(format!("cannot read: {e}")))?;
        if !length.is_file() || length.len() == 0 {
            return Err(Error::input(
                "not a `.pt2` archive: an empty file or no file at all",
            ));
        }
        // SAFETY: the mapping is read only; a file that another process changes meanwhile gives wrong numbers, as changed
        // weights on disk would.
        let map =
            unsafe { Mmap::map(&file) }.map_err(|e| Error::input(format!("cannot map: {e}")))?;
        let mut zip = zip::ZipArchive::new(Cursor::new(&map[..]))
            .map_err(|e| Error::input(format!("not a `.pt2` archive (or a truncated one): {e}")))?;
        let mut entries = BTreeMap::new();
        let mut top: Option<String> = None;
        for i in 0..zip.len() {
            let f = zip
                .by_index_raw(i)
                .map_err(|e| Error::input(format!("damaged zip entry {i}: {e}")))?;
            let name = f.name().to_string();
            if f.is_dir() {
                continue;
            }
            let range = f
                .data_start()
                .and_then(|s| usize::try_from(s).ok())
                .and_then(|s| Some(s..s.checked_add(usize::try_from(f.size()).ok()?)?))
                .filter(|r| r.end <= map.len())
                .ok_or_else(|| Error::input(format!("zip entry `{name}` lies outside the file")))?;
            if f.compression() != zip::CompressionMethod::Stored {
                return Err(Error::input(format!(
                    "zip entry `{name}` is compressed; torch.export stores its entries"
                )));
            }
            let Some((folder, rest)) = name.split_once('/') else {
                return Err(Error::input(format!(
                    "zip entry `{name}` is in no folder; not a `.pt2` archive"
                )));
            };
            if top.get_or_insert_with(|| folder.to_string()) != folder {
                return Err(Error::input(format!(
                    "zip entry `{name}` is not under `{}`",
                    top.unwrap_or_default()
                )));
            }
            if entries.insert(rest.to_string(), range).is_some() {
                return Err(Error::input(format!("two zip entries are called `{name}`")));
            }
        }
        drop(zip);
        let archive = Archive { map, entries };
        archive.check_format()?;
        Ok(archive)
    }

    fn check_format(&self) -> Result<()> {
        let text = |name: &str| {
            self.get(name)
                .map(|b| String::from_utf8_lossy(b).trim().to_string())
        };
        match (text("archive_format"), text("archive_version")) {
            (Some(f), Some(v)) if f == "pt2" && v == "0" => {}
            (Some(f), v) => {
                return Err(Error::unsupported(format!(
                    "archive format `{f}` version `{}`; this reader knows `pt2` version `0`",
                    v.unwrap_or_default()
                )));
            }
            (None, _) if self.get("serialized_exported_program.json").is_some() => {
                return Err(Error::unsupported(
                    "an archive of torch before 2.9; save it again with torch 2.11 or later",
                ));
            }
            (None, _) => {
                return Err(Error::input(
                    "not a `.pt2` archive: it has no `archive_format`",
                ));
            }
        }
        match text(".data/byteorder").or_else(|| text("byteorder")) {
            Some(order) if order != "little" => {
                Err(Error::unsupported(format!("byte order `{order}`")))
            }
            _ => Ok(()),
        }
    }

    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.entries.get(name).map(|r| &self.map[r.clone()])
    }

    /// The bytes of an entry, or an error that names it.
    pub fn bytes(&self, name: &str) -> Result<&[u8]> {
        self.get(name)
            .ok_or_else(|| Error::input(format!("the archive has no entry `{name}`")))
    }

    /// Where an entry lies in the mapping.
    pub fn range(&self, name: &str) -> Option<Range<usize>> {
        self.entries.get(name).cloned()
    }

    pub fn map(&self) -> &[u8] {
        &self.map
    }

    /// The one model in the archive.
    pub fn model_name(&self) -> Result<String> {
        let names: Vec<&str> = self
            .entries
            .keys()
            .filter_map(|n| n.strip_prefix("models/")?.strip_suffix(".json"))
            .collect();
        match names[..] {
            [one] => Ok(one.to_string()),
            [] => Err(Error::input("the archive holds no model (`models/*.json`)")),
            _ => Err(Error::unsupported(format!(
                "the archive holds several models: {}",
                names.join(", ")
            ))),
        }
    }
}
