//! Errors at the border to C.

use inrush_base::{Error, Result};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `AOTI_RUNTIME_SUCCESS`.
const SUCCESS: i32 = 0;
/// `AOTI_RUNTIME_FAILURE`.
const FAILURE: i32 = 1;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs a function of the interface. An error or a panic becomes a status, the thread's last error, and a line on stderr: releases
/// of PyTorch before 2.15 do not ask for the text.
pub(crate) fn guarded(f: impl FnOnce() -> Result<()>) -> i32 {
    let error = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => {
            set(CString::default());
            return SUCCESS;
        }
        Ok(Err(e)) => e,
        Err(_) => Error::internal("a panic inside inrush"),
    };
    let text = format!("inrush: {error}");
    eprintln!("{text}");
    set(c_text(&text));
    FAILURE
}

/// Returns a text of C, without the zero bytes that it cannot hold.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

/// Returns the text of the thread's last error, empty after a success. It lives until the thread's next call.
pub(crate) fn last() -> *const c_char {
    LAST_ERROR.with_borrow(|e| e.as_ptr())
}

fn set(text: CString) {
    // A thread that ends has no last error any more.
    _ = LAST_ERROR.try_with(|e| *e.borrow_mut() = text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn text() -> String {
        // SAFETY: a text of this thread, which makes no call meanwhile.
        unsafe { CStr::from_ptr(last()) }
            .to_string_lossy()
            .into_owned()
    }

    #[test]
    fn errors_and_panics_become_a_status_and_a_text() {
        assert_eq!(guarded(|| Err(Error::input("no such weight"))), FAILURE);
        assert!(text().contains("inrush: no such weight"), "{}", text());
        assert_eq!(guarded(|| Ok(())), SUCCESS);
        assert_eq!(text(), "");
        assert_eq!(guarded(|| panic!("oh")), FAILURE);
        assert!(text().contains("a panic inside inrush"), "{}", text());
        assert_eq!(guarded(|| Err(Error::input("a\0b"))), FAILURE);
        assert!(text().contains("ab"));
    }
}
