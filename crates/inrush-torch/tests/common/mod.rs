//! Archives of `tests/data`, changed and packed again.
#![allow(dead_code)] // each test file uses a part

use inrush_base::Result;
use inrush_torch::{Archive, Bytes, Model, Options, open_bytes};
use std::path::PathBuf;

/// All archives that import, with the operators that they use.
pub const ARCHIVES: [&str; 8] = [
    "weights",
    "nested",
    "sizes",
    "conditions",
    "data",
    "modes",
    "writes",
    "foreign",
];

pub fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(file)
}

pub fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(path(&format!("{name}.pt2"))).expect("an archive of the repository")
}

/// Imports with any operator accepted: these tests are about the reader.
pub fn import(bytes: Vec<u8>) -> Result<Model> {
    let any = |exprs: &_, op: &str, given: &[inrush_aten::NamedArg]| {
        inrush_aten::bind(exprs, op, given)
            .or_else(|| Some(Ok(given.iter().map(|a| a.arg.clone()).collect())))
    };
    let options = Options {
        bind: &any,
        ..Options::default()
    };
    open_bytes(Bytes::from(bytes), &options)
}

/// The message of an import that must fail.
pub fn refusal(bytes: Vec<u8>) -> String {
    match import(bytes) {
        Ok(m) => panic!("imported:\n{}", m.summary()),
        Err(e) => e.to_string(),
    }
}

/// Files of an archive.
pub fn unpack(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let a = Archive::new(Bytes::from(bytes.to_vec())).expect("an archive");
    let file = |n: &str| (n.to_string(), a.read(n).expect("an entry").to_vec());
    a.names().map(file).collect()
}

/// An archive of these files, stored.
pub fn pack(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut central) = (Vec::new(), Vec::new());
    for (name, data) in files {
        let crc = crc32fast::hash(data).to_le_bytes();
        let len = (data.len() as u32).to_le_bytes();
        let sizes = [
            &crc[..],
            &len,
            &len,
            &(name.len() as u16).to_le_bytes(),
            &[0, 0],
        ]
        .concat();
        let at = (out.len() as u32).to_le_bytes();
        out.extend(
            [
                b"PK\x03\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
                &sizes[..],
                name.as_bytes(),
                data,
            ]
            .concat(),
        );
        let head = b"PK\x01\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
        central.extend([&head[..], &sizes, &[0; 10], &at, name.as_bytes()].concat());
    }
    let count = (files.len() as u16).to_le_bytes();
    let (len, at) = (
        (central.len() as u32).to_le_bytes(),
        (out.len() as u32).to_le_bytes(),
    );
    out.extend(&central);
    out.extend(
        [
            b"PK\x05\x06\x00\x00\x00\x00",
            &count[..],
            &count,
            &len,
            &at,
            &[0, 0],
        ]
        .concat(),
    );
    out
}

/// The archive with the file that ends in `file` changed.
pub fn edit(name: &str, file: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Vec<u8> {
    let mut files = unpack(&bytes(name));
    let at = files
        .iter()
        .position(|f| f.0.ends_with(file))
        .expect("a file of the archive");
    files[at].1 = change(std::mem::take(&mut files[at].1));
    pack(&files)
}

/// The archive with `from` replaced by `to` in its program; `from` must be there.
pub fn replace(name: &str, from: &str, to: &str) -> Vec<u8> {
    edit(name, "models/model.json", |json| {
        let text = String::from_utf8(json).expect("UTF-8");
        assert!(text.contains(from), "no `{from}` in {name}");
        text.replacen(from, to, 1).into_bytes()
    })
}
