//! Packages with changed manifests.

use serde_json::Value;
use std::io::{Cursor, Read, Write};

/// Returns a package with a changed manifest.
pub(crate) fn changed(whole: &[u8], edit: impl Fn(&mut Value)) -> Vec<u8> {
    let mut from = zip::ZipArchive::new(Cursor::new(whole)).expect("a zip");
    let mut to = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for k in 0..from.len() {
        let mut file = from.by_index(k).expect("an entry");
        let (name, mut bytes) = (file.name().to_string(), Vec::new());
        file.read_to_end(&mut bytes).expect("an entry");
        if name == "inrush.json" {
            let mut manifest: Value = serde_json::from_slice(&bytes).expect("a manifest");
            edit(&mut manifest);
            bytes = serde_json::to_vec(&manifest).expect("a manifest");
        }
        to.start_file(name, options).expect("an entry");
        to.write_all(&bytes).expect("an entry");
    }
    to.finish().expect("a zip").into_inner()
}
