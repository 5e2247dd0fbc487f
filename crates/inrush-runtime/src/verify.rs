//! The environment's word on verification, which compiles themselves do not read.

/// Returns true if `INRUSH_VERIFY` asks compiles to verify the output of every stage.
pub fn verify_is_asked_for() -> bool {
    std::env::var("INRUSH_VERIFY").is_ok_and(|v| !v.is_empty() && v != "0")
}
