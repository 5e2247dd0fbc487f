//! Writing a package.

use crate::{ALIGN, FORMAT, MANIFEST, Manifest, OBJECT, Target, WeightEntry};
use crate::{cannot_write, write_whole};
use inrush_base::{DType, Error, Result};
use inrush_program::{Dt, Place, Program};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

/// A weight to be stored. `bytes` starts at the element with coordinates zero.
pub struct WeightData<'a> {
    pub dtype: DType,
    pub sizes: &'a [i64],
    pub strides: &'a [i64],
    pub bytes: &'a [u8],
}

/// Writes a package. `weight` returns the program's weights by name.
///
/// # Errors A machine error if the file cannot be written (no file is left then), an input error if
/// a weight is missing.
pub fn write<'a>(
    path: &Path,
    target: Target,
    program: &Program,
    object: &[u8],
    weight: &dyn Fn(&str) -> Option<WeightData<'a>>,
) -> Result<()> {
    let fail = |e: &dyn std::fmt::Display| cannot_write(path, e);
    // Weights whose bytes are the same memory (tied weights) are stored once.
    let mut blobs: Vec<&[u8]> = Vec::new();
    let mut by_address: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    let mut weights = Vec::new();
    for b in &program.buffers {
        let Place::Weight(w) = &b.place else { continue };
        if w.name == inrush_program::SEED {
            continue;
        }
        let data = weight(&w.name)
            .ok_or_else(|| Error::input(format!("the model's weight `{}` is missing", w.name)))?;
        let bytes = &data.bytes[..used_bytes(&data).min(data.bytes.len())];
        let blob = *by_address
            .entry((bytes.as_ptr() as usize, bytes.len()))
            .or_insert_with(|| {
                blobs.push(bytes);
                blobs.len() - 1
            });
        weights.push(WeightEntry {
            name: w.name.clone(),
            dtype: Dt(data.dtype),
            sizes: data.sizes.to_vec(),
            strides: data.strides.to_vec(),
            entry: format!("weights/{blob}"),
            offset: 0,
        });
    }
    let manifest = Manifest {
        format: FORMAT,
        target,
        version: env!("CARGO_PKG_VERSION").to_string(),
        weights,
        program: program.clone(),
    };
    let json = serde_json::to_vec(&manifest).map_err(|e| fail(&e))?;

    // A fixed time: the same model gives the same bytes.
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .large_file(true)
        .with_alignment(ALIGN)
        .last_modified_time(zip::DateTime::default());
    let names = (0..blobs.len()).map(|i| format!("weights/{i}"));
    let mut entries = (std::iter::once((MANIFEST.to_string(), json.as_slice())))
        .chain(std::iter::once((OBJECT.to_string(), object)))
        .chain(names.zip(blobs.iter().copied()));
    write_whole(path, |file| {
        let mut zip = zip::ZipWriter::new(file);
        let written = entries.try_for_each(|(name, bytes)| {
            zip.start_file(name, options).map_err(|e| fail(&e))?;
            zip.write_all(bytes).map_err(|e| fail(&e))
        });
        if let Err(e) = written.and_then(|()| zip.flush().map_err(|e| fail(&e))) {
            // Its destructor would try to finish the archive and report the failure on stderr.
            std::mem::forget(zip);
            return Err(e);
        }
        zip.finish().map_err(|e| fail(&e)).map(drop)
    })
}

/// Returns the bytes up to the last element that the weight touches.
fn used_bytes(w: &WeightData<'_>) -> usize {
    if w.sizes.contains(&0) {
        return 0;
    }
    let last: i64 = w
        .sizes
        .iter()
        .zip(w.strides)
        .map(|(s, t)| (s - 1) * t)
        .sum();
    usize::try_from(last + 1).map_or(usize::MAX, |n| n.saturating_mul(w.dtype.size()))
}
