//! The file of a package, which can be recognised while nothing changes it.

use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The file that a package was opened from, as it was then.
pub struct SourceFile {
    path: PathBuf,
    identity: String,
    /// Time of the last change of its contents or its record.
    changed: SystemTime,
}

impl SourceFile {
    /// Describes an open file; `None` where the system does not number files.
    pub(crate) fn of(path: &Path, file: &File) -> Option<SourceFile> {
        let (identity, changed) = describe(&file.metadata().ok()?)?;
        Some(SourceFile {
            path: path.to_path_buf(),
            identity,
            changed,
        })
    }

    /// Returns device, number, size and times of the file as text. The system changes one of them with every change of the file.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns true if the path still leads to the file, which has not changed.
    pub fn is_unchanged(&self) -> bool {
        let now = std::fs::metadata(&self.path).ok();
        now.and_then(|m| describe(&m))
            .is_some_and(|d| d.0 == self.identity)
    }

    /// Returns true if the last change is longer ago than `age`.
    pub fn is_older_than(&self, age: Duration) -> bool {
        self.changed.elapsed().is_ok_and(|e| e > age)
    }
}

#[cfg(unix)]
fn describe(m: &Metadata) -> Option<(String, SystemTime)> {
    use std::os::unix::fs::MetadataExt;
    let identity = format!(
        "device {} file {} bytes {} written {}.{:09} changed {}.{:09}",
        m.dev(),
        m.ino(),
        m.size(),
        m.mtime(),
        m.mtime_nsec(),
        m.ctime(),
        m.ctime_nsec()
    );
    let seconds = Duration::from_secs(u64::try_from(m.ctime()).ok()?);
    let nanos = Duration::from_nanos(u64::try_from(m.ctime_nsec()).ok()?);
    Some((identity, SystemTime::UNIX_EPOCH + seconds + nanos))
}

#[cfg(not(unix))]
fn describe(_: &Metadata) -> Option<(String, SystemTime)> {
    None
}
