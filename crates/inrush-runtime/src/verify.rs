//! Verification of stages, by an environment variable. The compiler crates do not read the environment.

/// Returns true if `INRUSH_VERIFY` asks compiles to verify the output of every stage.
pub fn verify_is_asked_for() -> bool {
    std::env::var("INRUSH_VERIFY").is_ok_and(|v| !v.is_empty() && v != "0")
}
