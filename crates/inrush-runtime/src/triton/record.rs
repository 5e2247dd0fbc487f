//! Records of built kernels: what a process that launches them needs, without Triton and without Python.
//!
//! A record is one file, which is written whole or not at all: a line that says what it is, the digest of all that follows, a line of
//! JSON, the machine code.
//!
//! ```text
//! FOLDER/KEY/BUILD.kernel
//!        |   digest of device, driver and release of Triton
//!        digest of the kernel's source, signature and options, of its candidates, and of the target
//! ```
//! The JSON says everything again that the names are digests of, and all numbers of a launch. A line that lacks one is damaged:
//! there are no defaults. What does not fit is passed over with a reason.

use super::{Binary, MachineCode, canonical};
use crate::cache::Cache;
use crate::cache_limit;
use inrush_base::{Error, Result};
use inrush_package::is_launchable;
use inrush_program::{BinaryInfo, GpuKernel, GpuTarget};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The first line of a record.
const MAGIC: &[u8] = b"inrush kernel record\n";
/// Number of the form of the JSON.
const FORMAT: u32 = 1;
/// Longest JSON in bytes: a bound for what a file makes a reader parse.
const MOST_HEADER: usize = 1 << 20;
/// Longest record.
const MOST_RECORD: u64 = 256 << 20;

/// The machine that kernels were built for, and measured on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Architecture and size of the device.
    pub device: String,
    /// The driver with its version.
    pub driver: String,
    /// The target of builds.
    pub target: GpuTarget,
}

/// The line of JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: u32,
    key: String,
    target: GpuTarget,
    device: String,
    driver: String,
    /// Release of Triton.
    triton: String,
    threads_per_warp: u32,
    info: BinaryInfo,
    /// Says how the kernel was chosen among its candidates.
    choice: String,
}

/// Folders of records.
pub struct Records {
    machine: Machine,
    /// The cache, which is bounded.
    cache: Cache,
    /// A folder that the caller named. It is looked at first, and written too.
    beside: Option<PathBuf>,
}

/// The result of a search.
#[derive(Debug)]
pub enum Search {
    Found(Binary),
    /// There is none; says why records that are there are not used.
    Missing(Vec<String>),
}

/// Returns the name of a kernel's records: a digest of all that its machine code depends on, but for the machine that it is for and
/// the release of Triton.
///
/// # Errors
/// An internal error for a kernel that has no text form.
pub fn key(kernel: &GpuKernel, candidates: &[GpuKernel], target: &GpuTarget) -> Result<String> {
    let plain = |k: &GpuKernel| GpuKernel {
        symbol: String::new(),
        ..canonical(k)
    };
    let candidates: Vec<GpuKernel> = candidates.iter().map(plain).collect();
    let text = serde_json::to_vec(&(plain(kernel), candidates, target));
    let text = text.map_err(|e| Error::internal(format!("the key of a record: {e}")))?;
    Ok(blake3::hash(&text).to_hex()[..40].to_string())
}

impl Records {
    /// Returns the records for a machine: those of the cache, and those of a folder.
    pub fn new(machine: Machine, beside: Option<PathBuf>) -> Records {
        Records {
            machine,
            cache: Cache::open_default(),
            beside,
        }
    }

    fn folders(&self) -> Vec<PathBuf> {
        let cache = self.cache.dir().join("triton").join("records");
        self.beside.iter().cloned().chain([cache]).collect()
    }

    /// Looks for a kernel's record; with a release of Triton, for one of that release.
    pub fn find(&self, key: &str, release: Option<&str>) -> Search {
        let mut reasons = Vec::new();
        for folder in self.folders() {
            let list = std::fs::read_dir(folder.join(key)).into_iter().flatten();
            let mut files: Vec<PathBuf> = (list.flatten().map(|e| e.path()))
                .filter(|p| p.extension().is_some_and(|e| e == "kernel"))
                .collect();
            // The same one is taken each time.
            files.sort();
            for path in files {
                match self.read(&path, key, release) {
                    Ok(binary) => {
                        cache_limit::touch(&path);
                        return Search::Found(binary);
                    }
                    Err(e) => reasons.push(format!("`{}`: {}", path.display(), e.message())),
                }
            }
        }
        Search::Missing(reasons)
    }

    /// Reads a record and compares it with what is wanted.
    fn read(&self, path: &Path, key: &str, release: Option<&str>) -> Result<Binary> {
        let damaged = |what: &str| Error::input(format!("the record is damaged: {what}"));
        let machine = |e: std::io::Error| Error::machine(e.to_string());
        // Others may write the folder: a pipe would never end.
        let found = std::fs::metadata(path).map_err(machine)?;
        if !found.is_file() || found.len() > MOST_RECORD {
            return Err(damaged("it is no file of a record's size"));
        }
        let file = std::fs::read(path).map_err(machine)?;
        let rest = file.strip_prefix(MAGIC);
        let rest = rest.ok_or_else(|| damaged("it does not begin as one"))?;
        let (digest, rest) = (rest.split_at_checked(DIGEST)).ok_or_else(|| damaged("it is cut"))?;
        if line_of_digest(rest).as_bytes() != digest {
            return Err(damaged("its digest does not match"));
        }
        let end = rest.iter().take(MOST_HEADER).position(|b| *b == b'\n');
        let end = end.ok_or_else(|| damaged("its numbers have no end"))?;
        let (line, code) = (&rest[..end], &rest[end + 1..]);
        let h: Header = serde_json::from_slice(line).map_err(|e| damaged(&e.to_string()))?;
        let m = &self.machine;
        let other = |what: &str, theirs: &str, ours: &str| {
            Err(Error::input(format!(
                "it is for {what} {theirs}, this is {ours}"
            )))
        };
        if h.format != FORMAT {
            return other("format", &h.format.to_string(), &FORMAT.to_string());
        }
        if h.key != key || h.target != m.target {
            return Err(damaged("it is of another kernel"));
        }
        if h.device != m.device {
            return other("the device", &h.device, &m.device);
        }
        if h.driver != m.driver {
            return other("the driver", &h.driver, &m.driver);
        }
        if let Some(release) = release.filter(|r| *r != h.triton) {
            return other("Triton", &h.triton, release);
        }
        if h.threads_per_warp != m.target.warp || !is_launchable(&h.info, &m.target) {
            return Err(damaged("numbers of its launch"));
        }
        Ok(Binary {
            code: MachineCode::Memory {
                digest: blake3::hash(code).to_hex().to_string(),
                bytes: Arc::from(code),
            },
            info: h.info,
            ptx: None,
        })
    }

    /// Keeps a build. Returns why folders could not be written.
    pub fn keep(&self, key: &str, binary: &Binary, release: &str, choice: &str) -> Vec<String> {
        let mut notes = Vec::new();
        let file = match self.file(key, binary, release, choice) {
            Ok(file) => file,
            Err(e) => return vec![e.to_string()],
        };
        let m = &self.machine;
        let build = format!("{}\n{}\n{release}", m.device, m.driver);
        let name = format!("{}.kernel", &blake3::hash(build.as_bytes()).to_hex()[..16]);
        for folder in self.folders() {
            if let Err(e) = write(&folder.join(key), &name, &file) {
                notes.push(format!(
                    "the record of a kernel cannot be written to `{}`: {e}",
                    folder.display()
                ));
            }
        }
        cache_limit::stored(&self.cache, file.len() as u64);
        notes
    }

    /// Returns the bytes of a record.
    fn file(&self, key: &str, binary: &Binary, release: &str, choice: &str) -> Result<Vec<u8>> {
        let code = binary.code.bytes()?;
        let m = self.machine.clone();
        let header = Header {
            format: FORMAT,
            key: key.into(),
            threads_per_warp: m.target.warp,
            target: m.target,
            device: m.device,
            driver: m.driver,
            triton: release.into(),
            info: binary.info.clone(),
            choice: choice.into(),
        };
        let line = serde_json::to_vec(&header);
        let line = line.map_err(|e| Error::internal(format!("the record of a kernel: {e}")))?;
        let rest = [&line, &b"\n"[..], &code].concat();
        Ok([MAGIC, line_of_digest(&rest).as_bytes(), &rest].concat())
    }
}

/// Bytes of the line with the digest.
const DIGEST: usize = 2 * blake3::OUT_LEN + 1;

/// Returns the digest of what follows it, as a line.
fn line_of_digest(rest: &[u8]) -> String {
    format!("{}\n", blake3::hash(rest).to_hex())
}

/// Writes a file whole or not at all.
fn write(folder: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.persist(folder.join(name))
        .map(drop)
        .map_err(|e| e.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(device: &str) -> Machine {
        Machine {
            device: device.into(),
            driver: "a driver 12.4".into(),
            target: GpuTarget {
                backend: "cuda".into(),
                arch: "90".into(),
                warp: 32,
            },
        }
    }

    fn records(folder: &Path, machine: Machine) -> Records {
        Records {
            machine,
            cache: Cache::at(folder.join("cache")),
            beside: None,
        }
    }

    fn built() -> Binary {
        Binary {
            code: MachineCode::Memory {
                digest: String::new(),
                bytes: Arc::from(&b"code\nof two lines"[..]),
            },
            info: BinaryInfo {
                symbol: "k".into(),
                warps: 4,
                ctas: 1,
                shared: 128,
                scratch: 0,
                scratch_align: 1,
                cooperative: false,
                maps: Vec::new(),
            },
            ptx: None,
        }
    }

    fn reasons(s: Search) -> String {
        match s {
            Search::Found(_) => panic!("a record that does not fit is found"),
            Search::Missing(reasons) => reasons.join("\n"),
        }
    }

    #[test]
    fn a_record_is_found_for_its_machine_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let here = records(folder.path(), machine("an H100"));
        assert_eq!(reasons(here.find("key", None)), "");
        assert!(here.keep("key", &built(), "3.6", "the only one").is_empty());
        for release in [None, Some("3.6")] {
            let Search::Found(b) = here.find("key", release) else {
                panic!("the record is not found");
            };
            assert_eq!(b.info, built().info);
            assert_eq!(&*b.code.bytes().expect("code"), b"code\nof two lines");
        }
        assert!(reasons(here.find("key", Some("3.7"))).contains("for Triton 3.6, this is 3.7"));
        let other = records(folder.path(), machine("an H200"));
        let why = reasons(other.find("key", None));
        assert!(
            why.contains("for the device an H100, this is an H200"),
            "{why}"
        );
        let newer = Machine {
            driver: "a driver 13.0".into(),
            ..machine("an H100")
        };
        let why = reasons(records(folder.path(), newer).find("key", None));
        assert!(why.contains("for the driver a driver 12.4"), "{why}");
    }

    #[test]
    fn what_is_no_file_of_a_records_size_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let here = records(folder.path(), machine("an H100"));
        let at = here.folders()[0].join("key");
        std::fs::create_dir_all(at.join("a.kernel")).expect("a folder");
        let large = std::fs::File::create(at.join("b.kernel")).expect("a file");
        large.set_len(MOST_RECORD + 1).expect("a sparse file");
        let why = reasons(here.find("key", None));
        assert_eq!(
            why.matches("no file of a record's size").count(),
            2,
            "{why}"
        );
    }

    #[test]
    fn a_record_without_a_number_or_with_a_wrong_one_is_damaged() {
        let folder = tempfile::tempdir().expect("a folder");
        let here = records(folder.path(), machine("an H100"));
        let whole = here.file("key", &built(), "3.6", "").expect("a record");
        let begin = MAGIC.len() + DIGEST;
        let end = begin
            + whole[begin..]
                .iter()
                .position(|b| *b == b'\n')
                .expect("a line");
        let header: serde_json::Value = serde_json::from_slice(&whole[begin..end]).expect("JSON");
        let path = here.folders()[0].join("key");
        let refused = |bytes: &[u8]| {
            write(&path, "a.kernel", bytes).expect("written");
            reasons(here.find("key", None))
        };
        let with = |h: &serde_json::Value| {
            let rest = [h.to_string().as_bytes(), &whole[end..]].concat();
            [MAGIC, line_of_digest(&rest).as_bytes(), &rest].concat()
        };
        write(&path, "a.kernel", &with(&header)).expect("written");
        assert!(matches!(here.find("key", None), Search::Found(_)));
        let mut fields = 0;
        for (place, names) in [
            ("", header.as_object().expect("an object")),
            ("/info", header["info"].as_object().expect("an object")),
        ] {
            for name in names.keys() {
                let mut less = header.clone();
                let inner = less.pointer_mut(place).and_then(|v| v.as_object_mut());
                inner.expect("an object").remove(name);
                let why = refused(&with(&less));
                assert!(
                    why.contains(&format!("missing field `{name}`")),
                    "{name}: {why}"
                );
                fields += 1;
            }
        }
        assert!(fields > 15, "{fields}");
        let mut more = header.clone();
        more["guess"] = 1.into();
        assert!(refused(&with(&more)).contains("unknown field"));
        for (at, value) in [
            ("/info/warps", 64),
            ("/info/ctas", 2),
            ("/threads_per_warp", 64),
        ] {
            let mut wrong = header.clone();
            *wrong.pointer_mut(at).expect("a number") = value.into();
            assert!(
                refused(&with(&wrong)).contains("numbers of its launch"),
                "{at}"
            );
        }
        // Every cut, and a flipped bit of each byte, is found.
        for at in 0..whole.len() {
            assert!(!refused(&whole[..at]).is_empty(), "cut at {at}");
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            assert!(!refused(&flipped).is_empty(), "byte {at}");
        }
    }
}
