//! Builds of Triton kernels in the second tier of the cache.
//!
//! An entry is the notes of a build, whose paths are names of files there, the binary, and the PTX where there is one. What was read
//! is written into the folder and found there, by the digests in the notes.

use super::{Binary, MachineCode, Pool};
use crate::cache_limit;
use crate::remote::{Part, Remote, Source};
use serde_json::{Value as Json, json};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Kind of the entries in the second tier.
const KIND: &str = "triton";
/// Name of the notes in an entry.
const NOTES: &str = "notes.json";
/// Requests at the same time at most.
const REQUESTS: usize = 8;

impl Pool {
    fn remote(&self) -> Option<Arc<Remote>> {
        self.cache.as_ref()?.remote()
    }

    /// Looks for builds that the folder lacks in the second tier, several at a time.
    pub(super) fn fetch_missing(&self, keys: &[String], found: &mut [Option<Binary>]) {
        if self.remote().is_none() {
            return;
        }
        let mut missing: Vec<&String> = (keys.iter().zip(found.iter()))
            .filter(|(_, f)| f.is_none())
            .map(|(k, _)| k)
            .collect();
        missing.sort();
        missing.dedup();
        let next = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..REQUESTS.min(missing.len()) {
                s.spawn(|| {
                    while let Some(key) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                        self.fetch(key);
                    }
                });
            }
        });
        for (key, found) in keys.iter().zip(found) {
            if found.is_none() {
                *found = self.find(key);
            }
        }
    }

    /// Looks for a build that the folder lacks in the second tier, and keeps it in the folder.
    pub(super) fn fetch(&self, key: &str) -> Option<Binary> {
        let remote = self.remote().filter(|_| self.find(key).is_none())?;
        let parts = remote.get(KIND, key)?;
        if self.setup.ptx && !has_ptx(&parts) {
            remote.lacks();
            return None;
        }
        let kept = self.unpack(key, &parts).and_then(|()| self.find(key));
        if kept.is_none() {
            remote.take_back(KIND, key);
        }
        kept
    }

    /// Writes the files of an entry, the notes last: they make a build complete.
    fn unpack(&self, key: &str, parts: &[Part]) -> Option<()> {
        let part = |name: &str| parts.iter().find(|(n, _)| n == name).map(|(_, b)| b);
        let mut notes: Json = serde_json::from_slice(part(NOTES)?).ok()?;
        let folder = self.setup.folder.join("binaries");
        std::fs::create_dir_all(&folder).ok()?;
        for field in ["binary", "ptx"] {
            let Some(name) = notes[field].as_str() else {
                continue;
            };
            // Names of entries are plain; those of builds begin with their key.
            let bytes = part(name).filter(|_| name.starts_with(key))?;
            let path = folder.join(name);
            write(&folder, &path, bytes)?;
            notes[field] = json!(path);
        }
        write(&folder, &self.notes(key), notes.to_string().as_bytes())
    }

    /// Has a build that was just kept stored in the second tier.
    pub(super) fn share(&self, key: &str, notes: &Json, made: &Binary) {
        let Some(cache) = &self.cache else {
            return;
        };
        let binary = match &made.code {
            MachineCode::File(path) => Some(path),
            MachineCode::Memory { .. } | MachineCode::Ptx { .. } => None,
        };
        let length = |p: &std::path::PathBuf| std::fs::metadata(p).map_or(0, |m| m.len());
        let bytes = binary.into_iter().chain(&made.ptx).map(length).sum();
        cache_limit::stored(cache, bytes);
        let Some(remote) = self.remote() else {
            return;
        };
        let mut notes = notes.clone();
        let mut files = Vec::new();
        for (field, path) in [("binary", binary), ("ptx", made.ptx.as_ref())] {
            let name = path.and_then(|p| Some((p, p.file_name()?.to_str()?)));
            if let Some((path, name)) = name {
                notes[field] = json!(name);
                files.push((name.to_string(), Source::File(path.clone())));
            }
        }
        let notes = notes.to_string().into_bytes();
        files.push((NOTES.to_string(), Source::Memory(notes)));
        remote.put(KIND, key, files);
    }

    /// Notes that a build was used now.
    pub(super) fn touch(&self, key: &str, found: &Binary) {
        if self.cache.is_none() {
            return;
        }
        cache_limit::touch(&self.notes(key));
        if let MachineCode::File(path) = &found.code {
            cache_limit::touch(path);
        }
        found.ptx.iter().for_each(|p| cache_limit::touch(p));
    }
}

/// Returns true if the notes of an entry name PTX, say that there is none for the device, or cannot be read.
fn has_ptx(parts: &[Part]) -> bool {
    let notes = parts.iter().find(|(n, _)| n == NOTES);
    let notes = notes.and_then(|(_, b)| serde_json::from_slice::<Json>(b).ok());
    notes.is_none_or(|n| n["ptx"].is_string() || n["ptx"] == false)
}

/// Writes a file whole or not at all.
fn write(folder: &Path, path: &Path, bytes: &[u8]) -> Option<()> {
    let mut file = tempfile::NamedTempFile::new_in(folder).ok()?;
    file.write_all(bytes).ok()?;
    file.persist(path).ok().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_without_ptx_lack_none() {
        let of = |notes: &str| has_ptx(&[(NOTES.to_string(), notes.as_bytes().to_vec())]);
        assert!(of(r#"{"ptx": "key.ptx"}"#) && of(r#"{"ptx": false}"#));
        assert!(!of("{}"));
        // Its damage is found when it is unpacked.
        assert!(of("no notes") && has_ptx(&[]));
    }
}
