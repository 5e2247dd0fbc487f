//! Packages of format `aoti`: an archive that PyTorch's AOTInductor loader takes, around an ordinary package.
//!
//! ```text
//! <stem>/data/aotinductor/model/inrush.wrapper.so             the container library, built once with inrush
//! <stem>/data/aotinductor/model/inrush.wrapper.inrush         the package
//! <stem>/data/aotinductor/model/inrush.wrapper_metadata.json  the device, for the loader
//! <stem>/data/aotinductor/model/inrush.wrapper.cpp            empty; PyTorch 2.11 derives the name of the metadata from it
//! <stem>/archive_format, archive_version, .data/version, byteorder
//! ```
//!
//! The loader extracts the folder of the model, loads the library, and the library opens the package next to it. All entries
//! are stored uncompressed.

use crate::{ALIGN, Package, cannot_write, write_whole};
use inrush_base::{Error, Result};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

/// The file name of the container library, which `cargo build` and the wheel put next to the program that compiles.
pub fn library_name() -> String {
    format!(
        "{}inrush_container{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    )
}

/// Finds the container library in one of several folders.
///
/// # Errors
/// A machine error that says where it was looked for and how to build it.
pub fn find_library(folders: &[PathBuf]) -> Result<PathBuf> {
    let name = library_name();
    let found = folders.iter().map(|f| f.join(&name)).find(|p| p.is_file());
    found.ok_or_else(|| {
        let looked: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
        Error::machine(format!(
            "a package of format `aoti` holds `{name}`, which is not in {}: build it with `cargo build --release -p inrush-container`",
            looked.join(" or ")
        ))
    })
}

/// Writes an archive around the package that `fill` writes into a temporary file.
///
/// # Errors
/// Those of `fill` and of [`write`].
pub fn pack(output: &Path, library: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let folder = output.parent().filter(|f| !f.as_os_str().is_empty());
    // In the folder of the archive, where there is room for a file of this size.
    let folder = tempfile::Builder::new()
        .prefix(".inrush-")
        .tempdir_in(folder.unwrap_or(Path::new(".")))
        .map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => cannot_write(output, &"there is no such folder"),
            kind => cannot_write(output, &kind),
        })?;
    let package = folder.path().join("package.inrush");
    fill(&package)?;
    write(output, &package, library)
}

/// Writes an archive around `package`, with a copy of the container library.
///
/// # Errors
/// A machine error if a file cannot be read or written (no file is left then), an input error for what is no package for CPUs or
/// for GPUs that PyTorch's loader has a runner for.
pub fn write(output: &Path, package: &Path, library: &Path) -> Result<()> {
    let inner = Package::open(package)?;
    let gpu = inner.gpus().any(|t| t.gpu.kind == GPU);
    let device = match (inner.cpus().next(), gpu) {
        (Some(_), _) => "cpu",
        (None, true) => GPU,
        (None, false) => return Err(no_runner(&inner.target_names())),
    };
    drop(inner);
    let metadata = serde_json::json!({
        "AOTI_DEVICE_KEY": device,
        "AOTI_MACHINE": std::env::consts::ARCH,
        "AOTI_PLATFORM": std::env::consts::OS,
    });
    let metadata = metadata.to_string();
    let stem = output.file_stem().and_then(|s| s.to_str());
    let stem = stem.filter(|s| !s.is_empty()).unwrap_or("model");
    // The first entries share the archive's folder, by which the reader knows it.
    let entries: [(&str, Content<'_>); 8] = [
        (
            "data/aotinductor/model/inrush.wrapper.so",
            Content::File(library),
        ),
        (
            "data/aotinductor/model/inrush.wrapper.cpp",
            Content::Bytes(b""),
        ),
        (
            "data/aotinductor/model/inrush.wrapper_metadata.json",
            Content::Bytes(metadata.as_bytes()),
        ),
        (
            "data/aotinductor/model/inrush.wrapper.inrush",
            Content::File(package),
        ),
        ("archive_format", Content::Bytes(b"pt2")),
        ("archive_version", Content::Bytes(b"0")),
        (".data/version", Content::Bytes(b"6\n")),
        ("byteorder", Content::Bytes(b"little")),
    ];
    let fail = |e: &dyn std::fmt::Display| cannot_write(output, e);
    write_whole(output, |file| {
        let mut zip = zip::ZipWriter::new(file);
        for (name, content) in &entries {
            if let Err(e) = content.write(&mut zip, format!("{stem}/{name}"), output) {
                // Its destructor would try to finish the archive and report the failure on stderr.
                std::mem::forget(zip);
                return Err(e);
            }
        }
        zip.finish().map_err(|e| fail(&e)).map(drop)
    })
}

/// The kind of GPUs that PyTorch's loader has a runner for, by its name there, which is that of inrush too.
const GPU: &str = "cuda";

/// Returns true if PyTorch's loader has a runner for a kind of device.
pub fn has_runner(kind: &str) -> bool {
    kind == "cpu" || kind == GPU
}

/// Returns the error for a package of targets that PyTorch's loader has no runner for.
pub fn no_runner(targets: &str) -> Error {
    Error::input(format!(
        "a package of format `aoti` runs on CPUs and on GPUs of kind `{GPU}`, this one is for {targets}"
    ))
}

/// The contents of an entry.
enum Content<'a> {
    File(&'a Path),
    Bytes(&'a [u8]),
}

impl Content<'_> {
    /// Writes the entry.
    fn write<W: Write + io::Seek>(
        &self,
        zip: &mut zip::ZipWriter<W>,
        name: String,
        output: &Path,
    ) -> Result<()> {
        let fail = |e: &dyn std::fmt::Display| cannot_write(output, e);
        let unreadable = |path: &Path, e: &io::Error| {
            Error::machine(format!("cannot read `{}`: {e}", path.display()))
        };
        let (mut bytes, size): (Box<dyn Read>, u64) = match self {
            Content::Bytes(b) => (Box::new(*b), b.len() as u64),
            Content::File(path) => {
                let file = File::open(path).map_err(|e| unreadable(path, &e))?;
                let size = file.metadata().map_err(|e| unreadable(path, &e))?.len();
                (Box::new(file), size)
            }
        };
        // A fixed time: the same model gives the same bytes.
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(size >= u64::from(u32::MAX))
            .with_alignment(ALIGN)
            .last_modified_time(zip::DateTime::default());
        zip.start_file(name, options).map_err(|e| fail(&e))?;
        io::copy(&mut bytes, zip)
            .and_then(|_| zip.flush())
            .map_err(|e| fail(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_the_folders() {
        let error = find_library(&["/no/such/a".into(), "/no/such/b".into()]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("`libinrush_container") || text.contains("inrush_container.dll"));
        assert!(text.contains("/no/such/a or /no/such/b"), "{text}");
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join(library_name());
        std::fs::write(&library, "x").unwrap();
        let found = find_library(&["/no/such".into(), folder.path().into()]).unwrap();
        assert_eq!(found, library);
    }

    #[test]
    fn nothing_is_written_around_what_is_no_package() {
        let folder = tempfile::tempdir().unwrap();
        let (bad, out) = (folder.path().join("bad"), folder.path().join("m.pt2"));
        std::fs::write(&bad, "nothing").unwrap();
        assert!(write(&out, &bad, &bad).is_err());
        assert!(!out.exists());
    }
}
