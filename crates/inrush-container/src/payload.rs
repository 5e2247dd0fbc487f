//! The package that belongs to this library: the file next to it with the extension `inrush`.

use inrush_base::{Error, Result};
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns the path of the package. Each package that a process loads has a copy of this library, with a path of its own.
pub(crate) fn path() -> Result<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: the address is a function of this library; the structure is a local.
    let found = unsafe { libc::dladdr(path as *const () as *const libc::c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return Err(Error::machine(
            "the system does not tell this library's path",
        ));
    }
    // SAFETY: a text that lives while the library is loaded.
    let own = unsafe { CStr::from_ptr(info.dli_fname) };
    next_to(Path::new(OsStr::from_bytes(own.to_bytes())))
}

/// Returns the package of a library.
fn next_to(library: &Path) -> Result<PathBuf> {
    let package = library.with_extension("inrush");
    if package.is_file() {
        return Ok(package);
    }
    Err(Error::input(format!(
        "no package `{}` belongs to this library",
        package.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_a_package_says_which() {
        let error = next_to(Path::new("/no/such/m.wrapper.so")).unwrap_err();
        assert!(
            error.to_string().contains("`/no/such/m.wrapper.inrush`"),
            "{error}"
        );
        assert!(path().is_err());
    }
}
