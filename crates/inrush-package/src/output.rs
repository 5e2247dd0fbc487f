//! Files that a user asked for, written whole or not at all.

use inrush_base::{Error, Result};
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, Write};
use std::path::Path;

/// Writes `path` through `fill`, into a temporary file of the same folder that replaces `path` when
/// complete. A path that exists and is no regular file (`/dev/stdout`, a pipe) is written to
/// directly.
///
/// # Errors The error of `fill`, or a machine error that names `path`. An existing file is
/// unchanged then.
pub fn write_whole(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> Result<()>,
) -> Result<()> {
    let fail = |e: io::Error| cannot_write(path, &e);
    let special = fs::metadata(path).is_ok_and(|m| !m.is_file());
    let mut builder = tempfile::Builder::new();
    builder.prefix(".inrush-");
    #[cfg(unix)]
    {
        // Applies the user's mask, as for any file. Temporary files are readable by their owner
        // only.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let dir = (path.parent()).filter(|d| !d.as_os_str().is_empty() && !special);
    let mut file = match (dir, special) {
        (_, true) => builder.tempfile(),
        (dir, false) => builder.tempfile_in(dir.unwrap_or(Path::new("."))),
    }
    // Names the path that the user gave, not the temporary one.
    .map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => cannot_write(path, &"there is no such folder"),
        kind => cannot_write(path, &kind),
    })?;
    let mut out = BufWriter::new(file.as_file());
    fill(&mut out)?;
    out.flush().map_err(fail)?;
    drop(out);
    if special {
        let mut to = fs::OpenOptions::new()
            .write(true)
            .open(path)
            .map_err(fail)?;
        file.rewind().map_err(fail)?;
        io::copy(&mut file, &mut to).map_err(fail)?;
        return to.flush().map_err(fail);
    }
    file.persist(path).map_err(|e| fail(e.error))?;
    Ok(())
}

/// Returns the machine error of a file that cannot be written.
pub fn cannot_write(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::machine(format!("cannot write `{}`: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(path: &Path, text: &str) -> Result<()> {
        write_whole(path, |f| {
            f.write_all(text.as_bytes())
                .map_err(|e| cannot_write(path, &e))
        })
    }

    #[test]
    fn replaces_a_file_only_when_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        put(&path, "first").unwrap();
        put(&path, "second").unwrap();
        let stopped = write_whole(&path, |f| {
            f.write_all(b"half").unwrap();
            Err(Error::input("stopped"))
        });
        assert!(stopped.is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_folder_is_named() {
        let error = put(Path::new("/no/such/folder/out"), "x").unwrap_err();
        assert!(error.to_string().contains("/no/such/folder/out"));
        assert!(!error.to_string().contains(".inrush-"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_device_is_written_to_and_stays() {
        use std::os::unix::fs::FileTypeExt;
        put(Path::new("/dev/null"), "x").unwrap();
        let error = put(Path::new("/dev/full"), "x").unwrap_err();
        assert!(error.to_string().contains("/dev/full"), "{error}");
        for p in ["/dev/null", "/dev/full"] {
            assert!(fs::metadata(p).unwrap().file_type().is_char_device());
        }
    }
}
