//! A compiled package as a model.

use crate::cache::Cache;
use crate::{Model, Parts, WeightSource, WeightView};
use inrush_base::{Error, Isa, Result};
use inrush_cpu::Pool;
use inrush_package::{CpuTarget, Package, PanelData};
use std::path::Path;
use std::sync::Arc;

impl Model {
    /// Opens a package and loads it. Weights stay in the mapped file.
    ///
    /// # Errors
    /// Those of [`Package::open`] and [`Model::from_package`]; they name the file.
    pub fn open(path: &Path, pool: Arc<Pool>) -> Result<Model> {
        Model::from_package(Package::open(path)?, pool)
            .map_err(|e| e.in_file(path.display().to_string()))
    }

    /// Loads a package that was read into memory.
    ///
    /// # Errors
    /// Those of [`Package::read`] and [`Model::from_package`].
    pub fn from_bytes(bytes: Vec<u8>, pool: Arc<Pool>) -> Result<Model> {
        Model::from_package(Package::read(bytes)?, pool)
    }

    /// Loads the code of the target that fits this processor best and binds its weights, in place.
    ///
    /// # Errors
    /// A machine error where this processor cannot run the code of any target, an input error for damaged weights or a damaged
    /// program.
    pub fn from_package(package: Package, pool: Arc<Pool>) -> Result<Model> {
        let target = cpu_target(&package)?;
        crate::checked::check(&package, Cache::open_default)?;
        // The loader needs a file. It is removed once the code is mapped.
        let folder = std::env::temp_dir();
        let fail = |e: std::io::Error| {
            Error::machine(format!(
                "cannot write the package's code to a temporary file in `{}`: {e} (set TMPDIR to a writable directory)",
                folder.display()
            ))
        };
        let object = tempfile::Builder::new()
            .prefix("inrush-")
            .suffix(".so")
            .tempfile_in(&folder)
            .map_err(fail)?;
        std::fs::write(object.path(), package.code(&target.object)).map_err(fail)?;
        Model::from_parts(Parts {
            program: target.program.clone(),
            object: object.path(),
            weights: Box::new(package),
            pool,
        })
    }
}

/// Returns the target for this processor: that of the highest level which it runs.
///
/// # Errors
/// A machine error that lists the targets if none fits.
pub fn cpu_target(package: &Package) -> Result<&CpuTarget> {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    let level = |t: &CpuTarget| {
        let isa = Isa::parse(&t.cpu.isa).filter(|_| t.cpu.arch == arch && t.cpu.os == os);
        // Levels in order, the highest last.
        isa.and_then(|isa| inrush_cpu::available().iter().position(|i| *i == isa))
    };
    let fitting = package.cpus().filter_map(|t| Some((level(t)?, t)));
    let best = fitting.reduce(|a, b| if b.0 > a.0 { b } else { a });
    best.map(|b| b.1).ok_or_else(|| {
        Error::machine(format!(
            "the package was compiled for {}, this machine is cpu:{} ({os} {arch})",
            package.target_names(),
            inrush_cpu::detect().name()
        ))
    })
}

impl WeightSource for Package {
    fn weight(&self, name: &str) -> Option<WeightView<'_>> {
        Package::weight(self, name).map(|w| WeightView {
            dtype: w.dtype,
            sizes: w.sizes,
            strides: w.strides,
            bytes: w.bytes,
        })
    }

    fn panels(&self, name: &str) -> Option<PanelData<'_>> {
        Package::panels(self, name)
    }
}
