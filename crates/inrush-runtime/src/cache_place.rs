//! The folder of the caches: the one that the environment names, or a private one among temporary files where that cannot be
//! written, as in a container with a read-only home.

use rustix::process::geteuid;
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that a trial writes: a full disk often still makes empty files.
const TRIAL: usize = 4096;

/// Time for which a folder that could be written is not tried again.
const TRUSTED: Duration = Duration::from_secs(1);

/// Where the caches are.
#[derive(Clone, Debug)]
pub struct CachePlace {
    pub dir: PathBuf,
    /// Says why the folder that the environment names is not used.
    pub notice: Option<String>,
}

/// The place that was found last, for which folder, and when.
static LAST: Mutex<Option<(PathBuf, CachePlace, Instant)>> = Mutex::new(None);

impl CachePlace {
    /// Returns the notice of the place that was found last; nothing is tried.
    pub fn last_notice() -> Option<String> {
        let last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().and_then(|(_, place, _)| place.notice.clone())
    }

    /// Returns the folder that can be written now. If none can, it is the one that the environment names, and writing there
    /// is an error.
    pub fn find() -> CachePlace {
        let wanted = wanted();
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, place, at)) = &*last
            && *of == wanted
            && at.elapsed() < TRUSTED
        {
            return place.clone();
        }
        let place = CachePlace::instead_of(&wanted, &std::env::temp_dir());
        *last = Some((wanted, place.clone(), Instant::now()));
        place
    }

    /// Writes a file without a name into the folder, or where it would be made.
    ///
    /// # Errors
    /// Why it cannot be written.
    pub fn try_writing(&self) -> io::Result<()> {
        try_writing(nearest(&self.dir))
    }

    /// Returns `wanted` if it can be written, else a private folder in `temporary`.
    fn instead_of(wanted: &Path, temporary: &Path) -> CachePlace {
        let Err(reason) = try_writing(nearest(wanted)) else {
            return CachePlace {
                dir: wanted.into(),
                notice: None,
            };
        };
        let dir = temporary.join(format!("inrush-{}", geteuid().as_raw()));
        match private(&dir).and_then(|()| try_writing(&dir)) {
            Ok(()) => CachePlace {
                notice: Some(format!(
                    "the cache folder `{}` cannot be written ({reason}): what is built is kept in `{}` (set INRUSH_CACHE_DIR to a writable folder)",
                    wanted.display(),
                    dir.display()
                )),
                dir,
            },
            Err(_) => CachePlace {
                dir: wanted.into(),
                notice: None,
            },
        }
    }
}

/// Returns `$INRUSH_CACHE_DIR`, else `$XDG_CACHE_HOME/inrush`, else `~/.cache/inrush`, else a folder among temporary files.
fn wanted() -> PathBuf {
    let env = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    env("INRUSH_CACHE_DIR")
        .or_else(|| env("XDG_CACHE_HOME").map(|d| d.join("inrush")))
        .or_else(|| env("HOME").map(|d| d.join(".cache").join("inrush")))
        .unwrap_or_else(|| std::env::temp_dir().join("inrush-cache"))
}

/// Returns the innermost folder of a path that exists: where others would be made.
fn nearest(dir: &Path) -> &Path {
    let exists = |d: &&Path| fs::symlink_metadata(d).is_ok();
    // The parent of a relative path's first folder is the empty path.
    dir.ancestors().find(exists).unwrap_or(Path::new("."))
}

/// Writes a file without a name.
fn try_writing(dir: &Path) -> io::Result<()> {
    tempfile::tempfile_in(dir)?.write_all(&[0; TRIAL])
}

/// Makes a folder that only this user can write. What is cached is run, so a folder that another user made is refused.
fn private(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let found = fs::symlink_metadata(dir)?;
    if found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::other("another user can write it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_folder_that_cannot_be_written_is_replaced_by_a_private_one() {
        let root = tempfile::tempdir().expect("a folder");
        let good = root.path().join("a").join("b");
        let place = CachePlace::instead_of(&good, root.path());
        assert_eq!((place.dir, place.notice), (good.clone(), None));
        assert!(!good.exists(), "a trial makes no folder");
        assert_eq!(nearest(Path::new("no such folder/below")), Path::new("."));

        let file = root.path().join("file");
        fs::write(&file, "").expect("a file");
        let place = CachePlace::instead_of(&file, root.path());
        assert_eq!(place.dir.parent(), Some(root.path()));
        let notice = place.notice.expect("a notice");
        assert!(notice.contains("file` cannot be written"), "{notice}");
        let mode = fs::metadata(&place.dir).expect("made").mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_temporary_folder_of_others_is_not_used() {
        let root = tempfile::tempdir().expect("a folder");
        let file = root.path().join("file");
        fs::write(&file, "").expect("a file");
        let dir = CachePlace::instead_of(&file, root.path()).dir;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("chmod");
        let place = CachePlace::instead_of(&file, root.path());
        assert_eq!((place.dir, place.notice), (file.clone(), None));

        fs::remove_dir(&dir).expect("removed");
        symlink(root.path(), &dir).expect("a link");
        assert_eq!(CachePlace::instead_of(&file, root.path()).dir, file);
    }
}
