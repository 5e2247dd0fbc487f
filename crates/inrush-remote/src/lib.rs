//! Second tiers of the cache over networks: Redis and S3. Folders are part of `inrush-runtime`.
//!
//! A crate of its own, so that programs that run packages contain no network code. Does not know: any compiler crate.

#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "s3")]
mod s3;

/// Makes Redis and S3 known to this process, for `INRUSH_REMOTE_CACHE`. Nothing is connected.
pub fn install() {
    #[cfg(feature = "redis")]
    inrush_runtime::remote::add_kind("redis", self::redis::open);
    #[cfg(feature = "s3")]
    inrush_runtime::remote::add_kind("s3", self::s3::open);
}
