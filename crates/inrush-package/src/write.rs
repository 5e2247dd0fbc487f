//! Writing a package.

use crate::panels::Panels;
use crate::target::{Cpu, Gpu};
use crate::{
    ALIGN, CandidateEntry, FORMAT, FORMAT_OF_CODE, KernelEntry, MANIFEST, Manifest, Part,
    SourceEntry, TargetEntry, WeightEntry,
};
use crate::{cannot_write, write_whole};
use inrush_base::{DType, Error, Result};
use inrush_program::host::{Lowered, Object};
use inrush_program::{BinaryInfo, Dt, GpuKernel, Place, Program};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
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

/// A target to be stored.
pub enum TargetParts<'a> {
    Cpu {
        cpu: Cpu,
        program: &'a Program,
        object: &'a [u8],
    },
    Gpu {
        gpu: Gpu,
        lowered: &'a Lowered,
        /// In the order of the program's kernels.
        kernels: Vec<KernelParts>,
    },
    /// A GPU whose kernels are built where the package is opened. Their text is the program's.
    Source {
        gpu: Gpu,
        lowered: &'a Lowered,
        /// In the order of the program's kernels.
        kernels: Vec<SourceParts>,
    },
}

/// A kernel whose source is stored.
#[derive(Clone, Debug, Default)]
pub struct SourceParts {
    /// Kernels that take the same launches as the program's.
    pub candidates: Vec<GpuKernel>,
}

/// A kernel to be stored.
pub struct KernelParts {
    pub info: BinaryInfo,
    pub code: Vec<u8>,
    pub ptx: Option<Vec<u8>>,
}

/// Entries of the zip, by name, in the order in which they are written.
type Entries<'a> = Vec<(String, &'a [u8])>;

/// How a package is written.
#[derive(Default)]
pub struct Options<'a> {
    /// Weights that are stored in panels if the package has one target: those of its program that nothing else reads.
    pub panels: BTreeMap<String, Panels>,
    /// Further entries, which programs do not need and [`crate::Package::entry`] reads.
    pub entries: &'a [(&'a str, &'a [u8])],
}

/// Most bytes that the padding of panels may add to a package: half of what its program and code usually take.
const MOST_PADDING: usize = 1 << 20;

/// The bytes of an entry that holds weights.
struct Blob<'a> {
    bytes: &'a [u8],
    /// Order of the elements in the entry, and their size.
    panels: Option<(Panels, usize)>,
}

impl<'a> Blob<'a> {
    /// Returns the bytes in the order in which they are stored.
    fn stored(&self) -> Result<Cow<'a, [u8]>> {
        let Some((panels, size)) = &self.panels else {
            return Ok(Cow::Borrowed(self.bytes));
        };
        let packed = panels.pack(self.bytes, *size);
        packed
            .map(Cow::Owned)
            .ok_or_else(|| Error::internal("a weight does not fit its panels"))
    }
}

/// Writes a package. `weight` returns the weights of all programs by name.
///
/// # Errors A machine error if the file cannot be written (no file is left then), an input error if
/// a weight is missing.
pub fn write<'a>(
    path: &Path,
    targets: &[TargetParts<'_>],
    weight: &dyn Fn(&str) -> Option<WeightData<'a>>,
) -> Result<()> {
    write_with(path, targets, weight, &Options::default())
}

/// Writes a package with options.
///
/// # Errors
/// Those of [`write`].
pub fn write_with<'a>(
    path: &Path,
    targets: &[TargetParts<'_>],
    weight: &dyn Fn(&str) -> Option<WeightData<'a>>,
    options: &Options<'_>,
) -> Result<()> {
    let fail = |e: &dyn std::fmt::Display| cannot_write(path, e);
    let (weights, blobs) = weights(targets, weight, &options.panels)?;
    let mut code: Entries<'_> = Vec::new();
    let has_source = targets
        .iter()
        .any(|t| matches!(t, TargetParts::Source { .. }));
    let manifest = Manifest {
        format: if has_source { FORMAT } else { FORMAT_OF_CODE },
        version: env!("CARGO_PKG_VERSION").to_string(),
        weights,
        targets: (targets.iter().enumerate())
            .map(|(n, t)| entry(n, t, &mut code))
            .collect(),
    };
    let json = serde_json::to_vec(&manifest).map_err(|e| fail(&e))?;

    // A fixed time: the same model gives the same bytes.
    let stored = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .large_file(true)
        .with_alignment(ALIGN)
        .last_modified_time(zip::DateTime::default());
    write_whole(path, |file| {
        let mut zip = zip::ZipWriter::new(file);
        let mut add = |name: &str, bytes: &[u8]| -> Result<()> {
            zip.start_file(name, stored).map_err(|e| fail(&e))?;
            zip.write_all(bytes).map_err(|e| fail(&e))
        };
        let mut fill = || -> Result<()> {
            add(MANIFEST, &json)?;
            for (name, bytes) in &code {
                add(name, bytes)?;
            }
            for (k, blob) in blobs.iter().enumerate() {
                add(&format!("weights/{k}"), &blob.stored()?)?;
            }
            for (name, bytes) in options.entries {
                add(name, bytes)?;
            }
            Ok(())
        };
        let written = fill();
        if let Err(e) = written.and_then(|()| zip.flush().map_err(|e| fail(&e))) {
            // Its destructor would try to finish the archive and report the failure on stderr.
            std::mem::forget(zip);
            return Err(e);
        }
        zip.finish().map_err(|e| fail(&e)).map(drop)
    })
}

/// Returns the manifest's line of a target, and appends the target's code to the entries.
fn entry<'a>(n: usize, target: &'a TargetParts<'_>, code: &mut Entries<'a>) -> TargetEntry {
    match target {
        TargetParts::Cpu {
            cpu,
            program,
            object,
        } => TargetEntry::Cpu {
            cpu: cpu.clone(),
            program: (*program).clone(),
            object: part(code, format!("targets/{n}/kernels.so"), object),
        },
        TargetParts::Gpu {
            gpu,
            lowered,
            kernels,
        } => {
            let first = code.len();
            let mut add = |name: String, bytes: &'a [u8]| shared(code, first, name, bytes);
            let kernels = (kernels.iter().enumerate())
                .map(|(k, kernel)| KernelEntry {
                    info: kernel.info.clone(),
                    code: add(format!("targets/{n}/kernel/{k}"), &kernel.code),
                    ptx: (kernel.ptx.as_ref()).map(|p| add(format!("targets/{n}/ptx/{k}"), p)),
                })
                .collect();
            TargetEntry::Gpu {
                gpu: gpu.clone(),
                lowered: without_text(lowered),
                kernels,
            }
        }
        TargetParts::Source {
            gpu,
            lowered,
            kernels,
        } => {
            let first = code.len();
            let folder = format!("targets/{n}/source");
            let kernels = (kernels.iter().zip(lowered.kernels()).enumerate())
                .map(|(k, (parts, kernel))| SourceEntry {
                    text: shared(code, first, format!("{folder}/{k}"), kernel.text.as_bytes()),
                    candidates: (parts.candidates.iter().enumerate())
                        .map(|(c, kernel)| CandidateEntry {
                            kernel: GpuKernel {
                                text: String::new(),
                                ..kernel.clone()
                            },
                            text: shared(
                                code,
                                first,
                                format!("{folder}/{k}.{c}"),
                                kernel.text.as_bytes(),
                            ),
                        })
                        .collect(),
                })
                .collect();
            TargetEntry::Source {
                gpu: gpu.clone(),
                lowered: without_text(lowered),
                kernels,
            }
        }
    }
}

/// Returns a program without the source of its kernels, which is of no use to a machine that builds nothing.
fn without_text(lowered: &Lowered) -> Lowered {
    let mut lowered = lowered.clone();
    lowered.change(&mut |gpu| gpu.kernels.iter_mut().for_each(|k| k.text.clear()));
    lowered
}

/// Appends an entry unless one from `first` on has the same bytes: kernels that differ in names only have the same code.
fn shared<'a>(code: &mut Entries<'a>, first: usize, name: String, bytes: &'a [u8]) -> Part {
    match code[first..].iter().find(|e| e.1 == bytes) {
        Some((entry, _)) => Part {
            entry: entry.clone(),
            digest: digest(bytes),
        },
        None => part(code, name, bytes),
    }
}

/// Appends an entry and returns the reference to it.
fn part<'a>(code: &mut Entries<'a>, entry: String, bytes: &'a [u8]) -> Part {
    code.push((entry.clone(), bytes));
    Part {
        entry,
        digest: digest(bytes),
    }
}

/// Returns the digest of code.
pub(crate) fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// Returns the names of the weights that programs read, without those that no file holds.
fn names(targets: &[TargetParts<'_>]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for t in targets {
        match t {
            TargetParts::Cpu { program, .. } => {
                let of = |b: &inrush_program::Buffer| match &b.place {
                    Place::Weight(w) => Some(w.name.clone()),
                    _ => None,
                };
                names.extend(program.buffers.iter().filter_map(of));
            }
            TargetParts::Gpu { lowered, .. } | TargetParts::Source { lowered, .. } => {
                let constants = lowered.program.constants.iter();
                names.extend(
                    constants.filter_map(|(_, o)| match lowered.objects.get(*o) {
                        Some(Object::Weight(name)) => Some(name.clone()),
                        _ => None,
                    }),
                );
            }
        }
    }
    names.remove(inrush_program::SEED);
    names
}

/// Collects the weights of all programs, and the bytes of each entry that holds some.
fn weights<'a>(
    targets: &[TargetParts<'_>],
    weight: &dyn Fn(&str) -> Option<WeightData<'a>>,
    panels: &BTreeMap<String, Panels>,
) -> Result<(Vec<WeightEntry>, Vec<Blob<'a>>)> {
    // Weights whose bytes are the same memory (tied weights) are stored once.
    let mut blobs: Vec<Blob<'_>> = Vec::new();
    let mut by_address: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    let mut weights = Vec::new();
    let mut of_weight = Vec::new();
    let mut padding = MOST_PADDING;
    for name in names(targets) {
        let data = weight(&name)
            .ok_or_else(|| Error::input(format!("the model's weight `{name}` is missing")))?;
        let bytes = &data.bytes[..used_bytes(&data).min(data.bytes.len())];
        // Another target would read another order.
        let order = panels.get(&name).filter(|_| targets.len() == 1);
        let order = order.and_then(|p| fitting(p, &data, bytes, &mut padding));
        let blob = *by_address
            .entry((bytes.as_ptr() as usize, bytes.len()))
            .or_insert_with(|| {
                blobs.push(Blob {
                    bytes,
                    panels: order,
                });
                blobs.len() - 1
            });
        if blobs[blob].panels != order {
            blobs[blob].panels = None;
        }
        of_weight.push(blob);
        weights.push(WeightEntry {
            name,
            dtype: Dt(data.dtype),
            sizes: data.sizes.to_vec(),
            strides: data.strides.to_vec(),
            entry: format!("weights/{blob}"),
            offset: 0,
            panels: None,
        });
    }
    for (w, blob) in weights.iter_mut().zip(of_weight) {
        w.panels = blobs[blob].panels.map(|(p, _)| p);
    }
    Ok((weights, blobs))
}

/// Returns panels with the size of an element if they hold all bytes of a weight, and takes their bytes of padding from what is
/// left of it.
fn fitting(
    panels: &Panels,
    data: &WeightData<'_>,
    bytes: &[u8],
    padding: &mut usize,
) -> Option<(Panels, usize)> {
    let size = data.dtype.size();
    let (storage, stored) = (panels.storage()?, panels.stored()?);
    let fits = storage.checked_mul(size)? == bytes.len()
        && data.dtype.part().is_none()
        && matches!(size, 4 | 8);
    let added = (stored - storage).checked_mul(size)?;
    *padding = padding.checked_sub(added).filter(|_| fits)?;
    Some((*panels, size))
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
