//! Packages whose weights were compared with their checksums before: a file that has not changed since is not read again.
//!
//! A file is known by its device, its number there, its size, and the times when its contents and its record changed. The system
//! sets the latter (`ctime`) with every write, truncation and change of times, and no call sets it. Weights that passed are
//! noted under the digest of these numbers, in the build cache. Damage of the disk itself below an unchanged file is not seen;
//! `INRUSH_CHECK=always` compares each time.

use crate::cache::Cache;
use inrush_base::Result;
use inrush_package::Package;
use std::time::Duration;

/// A file that changed so recently is not noted: a later change may have the same time, where clocks of file systems are coarse.
const COARSE: Duration = Duration::from_secs(2);

/// Compares the weights of a package with their checksums, unless its file passed before and has not changed since. Opens the
/// cache only for a file that may have passed.
///
/// # Errors
/// Those of [`Package::check_weights`].
pub(crate) fn check(package: &Package, cache: impl FnOnce() -> Cache) -> Result<()> {
    let always = std::env::var_os("INRUSH_CHECK").is_some_and(|v| v == "always");
    let Some(file) = package.file().filter(|_| !always) else {
        return package.check_weights();
    };
    let cache = cache();
    let key = blake3::hash(file.identity().as_bytes()).to_hex();
    if cache.is_noted(&key) {
        package.map_panels();
        return Ok(());
    }
    package.check_weights()?;
    // The numbers are those from before the check; a change during it shows now.
    if file.is_unchanged() && file.is_older_than(COARSE) {
        cache.note(&key);
    }
    Ok(())
}
