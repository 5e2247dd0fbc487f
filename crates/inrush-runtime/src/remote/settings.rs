//! Settings of the second tier, from the environment.

use inrush_base::{Error, Result};
use std::fmt;
use std::time::Duration;

/// Time to connect, unless `INRUSH_REMOTE_CACHE_CONNECT` sets another one.
const CONNECT: Duration = Duration::from_millis(500);
/// Time to wait for data, unless `INRUSH_REMOTE_CACHE_READ` sets another one.
const READ: Duration = Duration::from_secs(2);
/// Longest time that can be set, in seconds.
const LONGEST: f64 = 600.0;
/// Waits for data that one request may take.
const WAITS: u32 = 4;

/// How to reach the second tier, and which entries to trust.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// `file:///folder`, `redis://host:port/db` or `s3://bucket/prefix`.
    pub url: String,
    /// The key under which entries are authenticated.
    pub(crate) secret: Option<[u8; 32]>,
    /// Longest time to connect.
    pub connect: Duration,
    /// Longest wait for the next bytes.
    pub read: Duration,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Settings({})", self.shown())
    }
}

impl Settings {
    /// Returns settings with the default times.
    ///
    /// # Examples
    /// ```
    /// use inrush_runtime::remote::Settings;
    /// let settings = Settings::new("redis://me:secret@cache:6379/0", None);
    /// assert_eq!(settings.shown(), "redis://cache:6379/0");
    /// ```
    pub fn new(url: &str, secret: Option<&str>) -> Settings {
        Settings {
            url: url.into(),
            secret: secret
                .map(|s| blake3::derive_key("inrush remote cache, version 1", s.as_bytes())),
            connect: CONNECT,
            read: READ,
        }
    }

    /// Reads the environment; None if no tier is asked for.
    ///
    /// # Errors
    /// An input error for a time that cannot be read.
    pub fn from_environment() -> Result<Option<Settings>> {
        let text = |name: &str| match std::env::var(name) {
            Ok(v) if !v.is_empty() => Ok(Some(v)),
            Ok(_) | Err(std::env::VarError::NotPresent) => Ok(None),
            Err(_) => Err(Error::input(format!("{name} is no text"))),
        };
        let Some(url) = text("INRUSH_REMOTE_CACHE")? else {
            return Ok(None);
        };
        let mut made = Settings::new(&url, text("INRUSH_REMOTE_CACHE_KEY")?.as_deref());
        let time = |name: &str, default: Duration| match text(name)? {
            None => Ok(default),
            Some(t) => seconds(&t).ok_or_else(|| {
                Error::input(format!(
                    "{name} is `{t}`, not a time in seconds of up to {LONGEST}"
                ))
            }),
        };
        made.connect = time("INRUSH_REMOTE_CACHE_CONNECT", CONNECT)?;
        made.read = time("INRUSH_REMOTE_CACHE_READ", READ)?;
        Ok(Some(made))
    }

    /// Returns the address without user name, password and query.
    pub fn shown(&self) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("", &self.url));
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = host.rsplit('@').next().unwrap_or_default();
        format!("{scheme}://{host}{path}")
    }

    /// Returns true if entries must be authenticated.
    pub fn is_keyed(&self) -> bool {
        self.secret.is_some()
    }

    /// Returns the time after which a request is given up, however it goes on.
    pub fn longest_request(&self) -> Duration {
        self.connect + WAITS * self.read
    }
}

fn seconds(text: &str) -> Option<Duration> {
    let value: f64 = text.parse().ok()?;
    (value > 0.0 && value <= LONGEST).then(|| Duration::from_secs_f64(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let shown = |url| Settings::new(url, Some("k")).shown();
        assert_eq!(shown("redis://a:b@h:1/2?x=y"), "redis://h:1/2");
        assert_eq!(shown("redis://:p@ss@h"), "redis://h");
        assert_eq!(shown("s3://bucket/a@b"), "s3://bucket/a@b");
        assert_eq!(shown("file:///a/b"), "file:///a/b");
        let text = format!("{:?}", Settings::new("redis://a:b@h", Some("k")));
        assert_eq!(text, "Settings(redis://h)");
    }

    #[test]
    fn times_are_positive_and_bounded() {
        assert_eq!(seconds("0.5"), Some(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "inf", "601", "1s", ""] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
