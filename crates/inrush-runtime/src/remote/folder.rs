//! A folder that machines share as the second tier: `file:///folder`.

use super::Tier;
use super::entry::LARGEST;
use super::settings::Settings;
use inrush_base::{Error, Result};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A shared folder. Entries are written under a temporary name and renamed.
pub struct Folder {
    dir: PathBuf,
}

/// Opens the folder that an address names; it must exist, so that a share that is not mounted is noticed.
pub(super) fn open(settings: &Settings) -> Result<Arc<dyn Tier>> {
    let path = settings.url.strip_prefix("file://").unwrap_or_default();
    // `file://host/path` is another machine's.
    let path = path.strip_prefix("localhost").unwrap_or(path);
    if !path.starts_with('/') {
        return Err(Error::input(
            "the address of a folder is `file:///` and its absolute path",
        ));
    }
    Ok(Arc::new(Folder { dir: path.into() }))
}

impl Folder {
    fn path(&self, name: &str) -> PathBuf {
        // Two digits of the key make folders of some thousand files.
        let (kind, key) = name.split_once('/').unwrap_or(("", name));
        self.dir
            .join(kind)
            .join(key.get(..2).unwrap_or(""))
            .join(key)
    }

    /// Makes a folder of entries, as open to others as the shared folder is.
    fn make(&self, folder: &Path) -> io::Result<()> {
        let rest = folder.strip_prefix(&self.dir).unwrap_or(Path::new(""));
        let mut at = self.dir.clone();
        for part in rest.components() {
            at.push(part);
            match fs::create_dir(&at) {
                Ok(()) => {
                    let _ = fs::set_permissions(&at, fs::metadata(&self.dir)?.permissions());
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

fn fail(path: &Path) -> impl Fn(io::Error) -> Error {
    move |e| Error::machine(format!("{}: {e}", path.display()))
}

impl Tier for Folder {
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // An entry that is not there, or no folder at all.
                fs::metadata(&self.dir).map_err(fail(&self.dir))?;
                return Ok(None);
            }
            // Another user's entry, which is not for all.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
            Err(e) => return Err(fail(&path)(e)),
        };
        let mut bytes = Vec::new();
        let most = LARGEST as u64 + 1;
        (file.take(most).read_to_end(&mut bytes)).map_err(fail(&path))?;
        Ok(Some(bytes))
    }

    fn put(&self, name: &str, entry: &[u8]) -> Result<()> {
        fs::metadata(&self.dir).map_err(fail(&self.dir))?;
        let path = self.path(name);
        let folder = path.parent().unwrap_or(&self.dir);
        self.make(folder).map_err(fail(folder))?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(".tmp");
        #[cfg(unix)]
        {
            // Temporary files are their owner's alone; others are to read this one, as far as the process's mask lets them.
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(fs::Permissions::from_mode(0o644));
        }
        let mut file = builder.tempfile_in(folder).map_err(fail(folder))?;
        file.write_all(entry).map_err(fail(&path))?;
        file.persist(&path).map_err(|e| fail(&path)(e.error))?;
        Ok(())
    }

    fn ping(&self) -> Result<()> {
        let found = fs::metadata(&self.dir).map_err(fail(&self.dir))?;
        if !found.is_dir() {
            return Err(Error::machine(format!("{}: no folder", self.dir.display())));
        }
        Ok(())
    }
}
