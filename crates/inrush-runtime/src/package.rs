//! A compiled package as a model.

use crate::{Model, Parts, WeightSource, WeightView};
use inrush_base::{Error, Isa, Result};
use inrush_cpu::Pool;
use inrush_package::Package;
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

    /// Loads a package's code and binds its weights, in place.
    ///
    /// # Errors
    /// A machine error where this processor cannot run the code, an input error for damaged weights or a damaged program.
    pub fn from_package(package: Package, pool: Arc<Pool>) -> Result<Model> {
        let t = &package.target;
        let runs = Isa::parse(&t.isa).is_some_and(|i| inrush_cpu::available().contains(&i));
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        if !runs || t.arch != arch || t.os != os {
            return Err(Error::machine(format!(
                "the package was compiled for {} {} {}, this machine is {os} {arch} {}",
                t.os,
                t.arch,
                t.isa,
                inrush_cpu::detect().name()
            )));
        }
        package.check_weights()?;
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
        std::fs::write(object.path(), package.object()).map_err(fail)?;
        Model::from_parts(Parts {
            program: package.program.clone(),
            object: object.path(),
            weights: Box::new(PackageWeights(package)),
            pool,
        })
    }
}

struct PackageWeights(Package);

impl WeightSource for PackageWeights {
    fn weight(&self, name: &str) -> Option<WeightView<'_>> {
        self.0.weight(name).map(|w| WeightView {
            dtype: w.dtype,
            sizes: w.sizes,
            strides: w.strides,
            bytes: w.bytes,
        })
    }
}
