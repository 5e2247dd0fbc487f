//! The form of one entry of the second tier: a few files with names, a digest, and where a secret is set a message authentication code.
//!
//! ```text
//! "inrush entry 1\n"
//! digest   32 bytes   BLAKE3 of name and body
//! code     32 bytes   BLAKE3 of the same, keyed by the secret; zeros without one
//! body     count u32, then of each file: length of its name u32, name, length u64, bytes
//! ```
//!
//! Numbers are little-endian. The name is that under which the entry is asked for, so that no entry passes for another one.

/// Begins each entry.
const MAGIC: &[u8] = b"inrush entry 1\n";
/// Bytes before the body.
const HEAD: usize = MAGIC.len() + 64;
/// Files of an entry at most.
const MOST_FILES: u32 = 64;
/// Bytes of a file's name at most.
const LONGEST_NAME: u32 = 200;
/// Bytes of an entry at most: larger ones are neither sent nor read.
pub const LARGEST: usize = 256 << 20;

/// A file of an entry: its name and contents.
pub type Part = (String, Vec<u8>);

/// Why an entry is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It is no entry, was cut, or has another digest.
    Damaged,
    /// It was not written with the secret that is set here.
    NotAuthentic,
}

/// Returns an entry's bytes; None if it is larger than allowed, or a name is not plain.
pub fn encode(name: &str, parts: &[Part], secret: Option<&[u8; 32]>) -> Option<Vec<u8>> {
    let size: usize = parts.iter().map(|(n, b)| n.len() + b.len() + 12).sum();
    if size + HEAD + 4 > LARGEST || parts.len() > MOST_FILES as usize {
        return None;
    }
    let mut out = Vec::with_capacity(HEAD + 4 + size);
    out.extend_from_slice(MAGIC);
    out.resize(HEAD, 0);
    out.extend_from_slice(&(parts.len() as u32).to_le_bytes());
    for (file, bytes) in parts {
        if !is_plain(file) {
            return None;
        }
        out.extend_from_slice(&(file.len() as u32).to_le_bytes());
        out.extend_from_slice(file.as_bytes());
        out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        out.extend_from_slice(bytes);
    }
    let (digest, code) = marks(name, &out[HEAD..], secret);
    out[MAGIC.len()..][..32].copy_from_slice(digest.as_bytes());
    if let Some(code) = code {
        out[MAGIC.len() + 32..HEAD].copy_from_slice(code.as_bytes());
    }
    Some(out)
}

/// Returns the files of an entry that was asked for under `name`.
///
/// # Errors
/// The reason for which it is not taken.
pub fn decode(name: &str, entry: &[u8], secret: Option<&[u8; 32]>) -> Result<Vec<Part>, Refusal> {
    let rest = entry.strip_prefix(MAGIC).ok_or(Refusal::Damaged)?;
    let (digest, rest) = rest.split_first_chunk::<32>().ok_or(Refusal::Damaged)?;
    let (code, body) = rest.split_first_chunk::<32>().ok_or(Refusal::Damaged)?;
    let (wanted, wanted_code) = marks(name, body, secret);
    if wanted != *digest {
        return Err(Refusal::Damaged);
    }
    // Hashes are compared in constant time.
    if wanted_code.is_some_and(|w| w != *code) {
        return Err(Refusal::NotAuthentic);
    }
    files(body).ok_or(Refusal::Damaged)
}

fn marks(
    name: &str,
    body: &[u8],
    secret: Option<&[u8; 32]>,
) -> (blake3::Hash, Option<blake3::Hash>) {
    let of = |mut hasher: blake3::Hasher| {
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        hasher.update(body);
        hasher.finalize()
    };
    let code = secret.map(|s| of(blake3::Hasher::new_keyed(s)));
    (of(blake3::Hasher::new()), code)
}

fn files(mut body: &[u8]) -> Option<Vec<Part>> {
    let count = number(&mut body)?;
    if count > MOST_FILES {
        return None;
    }
    let mut out: Vec<Part> = Vec::new();
    for _ in 0..count {
        let length = number(&mut body)?;
        if length > LONGEST_NAME {
            return None;
        }
        let (name, rest) = body.split_at_checked(length as usize)?;
        let name = std::str::from_utf8(name).ok().filter(|n| is_plain(n))?;
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (bytes, rest) = rest.split_at_checked(length)?;
        if out.iter().any(|(n, _)| n == name) {
            return None;
        }
        out.push((name.into(), bytes.into()));
        body = rest;
    }
    body.is_empty().then_some(out)
}

fn number(body: &mut &[u8]) -> Option<u32> {
    let (bytes, rest) = body.split_first_chunk::<4>()?;
    *body = rest;
    Some(u32::from_le_bytes(*bytes))
}

/// Returns true if a name can be that of a file in any folder: no separators, not hidden.
fn is_plain(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !name.is_empty()
        && name.len() <= LONGEST_NAME as usize
        && !name.starts_with('.')
        && name.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Vec<Part> {
        vec![("a.so".into(), vec![7; 100]), ("a.sum".into(), vec![])]
    }

    #[test]
    fn entries_are_read_as_they_were_written() {
        for (write, read) in [
            (None, None),
            (Some([1; 32]), Some([1; 32])),
            (Some([1; 32]), None),
        ] {
            let bytes = encode("objects/k", &parts(), write.as_ref()).expect("small");
            let found = decode("objects/k", &bytes, read.as_ref());
            assert_eq!(found, Ok(parts()));
        }
    }

    #[test]
    fn any_flipped_bit_and_any_cut_is_found() {
        let bytes = encode("objects/k", &parts(), None).expect("small");
        let code = MAGIC.len() + 32..HEAD;
        for at in (0..bytes.len()).filter(|at| !code.contains(at)) {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert_eq!(
                decode("objects/k", &wrong, None),
                Err(Refusal::Damaged),
                "{at}"
            );
        }
        for length in 0..bytes.len() {
            let cut = decode("objects/k", &bytes[..length], None);
            assert_eq!(cut, Err(Refusal::Damaged), "{length}");
        }
        assert_eq!(decode("objects/l", &bytes, None), Err(Refusal::Damaged));
    }

    #[test]
    fn entries_of_others_are_refused_where_a_secret_is_set() {
        let secret = [1; 32];
        for writer in [None, Some([2; 32])] {
            let bytes = encode("k", &parts(), writer.as_ref()).expect("small");
            let found = decode("k", &bytes, Some(&secret));
            assert_eq!(found, Err(Refusal::NotAuthentic));
        }
        let mut bytes = encode("k", &parts(), Some(&secret)).expect("small");
        bytes[HEAD - 1] ^= 1;
        let found = decode("k", &bytes, Some(&secret));
        assert_eq!(found, Err(Refusal::NotAuthentic));
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["", ".", "..", "../x", "a/b", "/a", ".hidden", "a\0b", "ä"] {
            assert!(
                encode("k", &[(name.into(), vec![])], None).is_none(),
                "{name}"
            );
        }
        // Whoever writes an entry writes its digest too.
        let mut bytes = encode("k", &[("aa.so".into(), vec![1])], None).expect("small");
        let at = bytes.windows(5).position(|w| w == b"aa.so").expect("there");
        bytes[at..at + 3].copy_from_slice(b"../");
        let (digest, _) = marks("k", &bytes[HEAD..], None);
        bytes[MAGIC.len()..][..32].copy_from_slice(digest.as_bytes());
        assert_eq!(decode("k", &bytes, None), Err(Refusal::Damaged));
    }
}
