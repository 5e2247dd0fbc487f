//! GPU targets of packages: the one that fits a device, loaded.

use super::building;
use super::model::{Model, Options};
use crate::devices;
use crate::gpu::Provided;
use crate::gpu::cublas::{self, Blas};
use crate::program::Device;
use inrush_base::{Error, Result};
use inrush_package::{Code, GpuTarget, Package};
use inrush_runtime::triton::{Binary, MachineCode};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The form in which a target's kernels reach a device.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Form {
    /// As machine code.
    Code,
    /// As PTX, which the driver finishes.
    Ptx,
}

impl Model {
    /// Opens a package and loads the target that fits a device.
    ///
    /// # Errors
    /// Those of [`Package::open`] and [`Model::from_package`]; they name the file.
    pub fn open(path: &Path, device: Device, options: Options) -> Result<Model> {
        let package = Package::open(path)?;
        Model::from_package(&package, device, options)
            .map_err(|e| e.in_file(path.display().to_string()))
    }

    /// Loads the target of a package that fits a device, and copies the weights there. Kernels whose source the package holds are
    /// taken from records, or built if the options allow it: the first call waits for what it launches.
    ///
    /// # Errors
    /// A machine error without a driver or device, or without cuBLAS where the program calls it; an unsupported one that lists
    /// the package's targets if none fits, or says that building kernels is not allowed; an input error for damaged weights.
    pub fn from_package(package: &Package, device: Device, options: Options) -> Result<Model> {
        check_kind(package, device)?;
        let driver = devices::driver(device)?;
        let name = devices::name(device);
        let context = driver.primary_context(device.index);
        let context = context.map_err(|e| e.context(format!("`{name}`")))?;
        let _entered = driver.enter(context)?;
        let p = driver.properties()?;
        let (target, form) = choose(package, device, &p.arch)
            .map_err(|e| e.context(format!("`{name}`, of architecture {}", p.arch)))?;
        let blas = match target.products() {
            0 => None,
            n => Some(needed_blas(n, device)?),
        };
        package.check_weights()?;
        let mut lowered = target.lowered.clone();
        lowered.change(&mut |gpu| gpu.device = device);
        let (kernels, builder) = match package.source_kernels(target)? {
            Some(sources) => {
                let build = &target.gpu.build;
                building::provide(
                    sources,
                    (&target.lowered, build),
                    (&driver, device),
                    &options,
                )?
            }
            None => {
                let binaries = binaries(package, target, form)?.into_iter();
                (binaries.map(Provided::Built).collect(), None)
            }
        };
        Model::with(lowered, (kernels, builder), package, device, blas, options)
    }
}

/// Refuses a package without a target for a kind of device, whether this machine has such a device or not.
///
/// # Errors
/// An unsupported error that lists the targets.
pub fn check_kind(package: &Package, device: Device) -> Result<()> {
    let kind = devices::by_torch_number(device.kind).map(|d| d.device.name);
    if package.gpus().any(|t| Some(t.gpu.kind.as_str()) == kind) {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "the package has no target for `{}`, only {}",
        devices::name(device),
        package.target_names()
    )))
}

/// Returns the target for a device of an architecture: the machine code of the latest architecture that fits, else PTX.
///
/// # Errors
/// An unsupported error that lists the targets if none fits.
pub fn choose<'p>(
    package: &'p Package,
    device: Device,
    arch: &str,
) -> Result<(&'p GpuTarget, Form)> {
    let kind = devices::by_torch_number(device.kind)
        .ok_or_else(|| Error::internal("a device without an executor"))?;
    let mine = || {
        let of = |t: &&GpuTarget| t.gpu.kind == kind.device.name;
        package.gpus().filter(of)
    };
    let latest = |fits: &dyn Fn(&GpuTarget) -> bool| {
        // The first of equals.
        mine()
            .filter(|t| fits(t))
            .fold(None, |best: Option<&GpuTarget>, t| match best {
                Some(b) if b.capability() >= t.capability() => Some(b),
                _ => Some(t),
            })
    };
    if let Some(t) = latest(&|t| t.fits(arch)) {
        return Ok((t, Form::Code));
    }
    if let Some(t) = latest(&|t| t.fits_by_ptx(arch)) {
        return Ok((t, Form::Ptx));
    }
    let specific = mine().any(|t| t.ptx.is_some_and(|p| p.specific));
    let why = match specific {
        true => "; code for architectures from 9.0 on (`sm_90a`) runs on these alone, as PTX too",
        false => "",
    };
    Err(Error::unsupported(format!(
        "the package has no target for this device, only {}{why}",
        package.target_names()
    )))
}

/// Finds cuBLAS for a program that calls it.
fn needed_blas(products: usize, device: Device) -> Result<&'static Blas> {
    let kind = devices::by_torch_number(device.kind);
    let folders = kind.and_then(|k| k.products()).ok_or_else(|| {
        Error::input("the program calls a library for products, which the device does not have")
    })?;
    let folders: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
    cublas::find(&folders).ok_or_else(|| {
        Error::machine(format!(
            "the program calls cuBLAS for {products} matrix products, and `libcublas` (12 or 13) is not found: install it or name its \
             folder in LD_LIBRARY_PATH, or compile the package with `--no-libraries`"
        ))
    })
}

/// Returns the kernels of a target in memory.
fn binaries(package: &Package, target: &GpuTarget, form: Form) -> Result<Vec<Binary>> {
    let bytes = |code: &Code| -> Arc<[u8]> { package.code(code).into() };
    (target.kernels.iter())
        .map(|k| {
            let code = match (form, &k.ptx) {
                (Form::Code, _) => MachineCode::Memory {
                    digest: k.code.digest.clone(),
                    bytes: bytes(&k.code),
                },
                (Form::Ptx, Some(ptx)) => MachineCode::Ptx {
                    digest: ptx.digest.clone(),
                    text: bytes(ptx),
                },
                (Form::Ptx, None) => return Err(Error::internal("a kernel without PTX")),
            };
            Ok(Binary {
                code,
                info: k.info.clone(),
                ptx: None,
            })
        })
        .collect()
}
