//! `inrush compile --emit`: an archive, or a package with the source of its kernels, into a file of source.

use crate::args::{CompileArgs, Emit};
use crate::io;
use crate::out::say;
use crate::package::{Target, libraries};
use crate::progress::Progress;
use crate::session::{self, ArchiveWeights, Times};
use crate::triton::{self, Gpu, lower};
use inrush_base::{Caps, Device, Error, Result};
use inrush_compile::Libraries;
use inrush_graph::Graph;
use inrush_host::native::WantedGpu;
use inrush_package::{Package, cannot_write, write_whole};
use inrush_program::host::Lowered;
use inrush_runtime::triton::Python;
use inrush_runtime::{Pairs, Tensor, WeightSource, cc};
use inrush_source::{Built, Code, CppFile, CppWeight, Object, Unit};
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Compiles an archive for its only target and writes the program as source.
pub(crate) fn write(a: &CompileArgs, targets: &[Target], language: Emit) -> Result<ExitCode> {
    let [target] = targets else {
        return Err(Error::input(
            "source is printed for one target: name one with `--target`",
        ));
    };
    let shown = a.model.display().to_string();
    let progress = Progress::new(a.json);
    progress.watch();
    let mut times = Times::default();
    let is_same = |x: &Path, y: &Path| -> Option<bool> {
        Some(std::fs::canonicalize(x).ok()? == std::fs::canonicalize(y).ok()?)
    };
    if is_same(&a.output, &a.model) == Some(true) {
        return Err(Error::input(format!(
            "{shown}: the source would replace the archive: name another file with `-o`"
        )));
    }
    let weights = a.output.with_extension("weights.safetensors");
    let is_package = Package::is_package(&a.model);
    let from_file = match language {
        Emit::Python if !is_package => from_file(&a.output, &a.model)?,
        _ => from_file(&a.output, &weights)?,
    };
    let how = How {
        name: a
            .model
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        target: target.name(),
        archive: from_file,
        no_libraries: a.no_libraries,
    };
    let start = Instant::now();
    progress.step("import".into());
    let source: Box<dyn WeightSource>;
    let printed = if is_package {
        let package = Package::open(&a.model)?;
        times.stages.push(("import", start.elapsed()));
        let printed = of_package(&package, target, &how, language);
        source = Box::new(package);
        printed
    } else {
        let mut archive = session::open_archive(&a.model)?;
        times.stages.push(("import", start.elapsed()));
        let graph = std::mem::take(&mut archive.graph);
        source = Box::new(ArchiveWeights(archive.weights));
        match target {
            Target::Cpu(caps) => of_cpu(graph, caps, &how, language, &progress, &mut times),
            Target::Gpu(w) if language == Emit::Cpp => {
                cpp_of_gpu(graph, w, &how, &progress, &mut times)
            }
            Target::Gpu(w) => of_gpu(graph, w, &how, &progress, &mut times),
        }
    };
    let CppFile {
        text,
        weights: read,
    } = printed.map_err(|e| e.in_file(shown.clone()))?;
    if !read.is_empty() {
        progress.step("weights".into());
        write_weights(&weights, &read, source.as_ref())?;
    }
    write_whole(&a.output, |f| {
        f.write_all(text.as_bytes())
            .map_err(|e| cannot_write(&a.output, &e))
    })?;
    progress.done();
    let ms = times.compile().as_secs_f64() * 1e3;
    let output = a.output.display().to_string();
    if a.json {
        let line = serde_json::json!({
            "model": shown,
            "source": output,
            "weights": (!read.is_empty()).then(|| weights.display().to_string()),
            "target": how.target,
            "compile_ms": ms,
            "bytes": text.len(),
        });
        say!("{line}")?;
    } else {
        let lines = text.lines().count();
        let with = if read.is_empty() {
            String::new()
        } else {
            format!(", weights: {}", weights.display())
        };
        say!(
            "{shown} for {} in {ms:.0} ms: {output} ({lines} lines){with}",
            how.target
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Facts that the file says besides its program.
struct How {
    name: String,
    target: String,
    archive: String,
    no_libraries: bool,
}

impl How {
    fn unit<'a>(&'a self, lowered: &'a Lowered, objects: &'a [Object], code: Code<'a>) -> Unit<'a> {
        Unit {
            name: &self.name,
            target: &self.target,
            archive: Some(&self.archive),
            ..Unit::of(lowered, objects, code)
        }
    }
}

/// Compiles a graph for a CPU and prints it.
fn of_cpu(
    graph: Graph,
    caps: &Caps,
    how: &How,
    language: Emit,
    progress: &Progress,
    times: &mut Times,
) -> Result<CppFile> {
    let c = session::compile_graph(graph, caps, progress, times)?;
    let lowered = inrush_source::host_program(c.program, c.pieces)?;
    let libraries: &[&str] = if caps.vector_math {
        &["-lmvec", "-lm"]
    } else {
        &["-lm"]
    };
    let code = Code::C {
        flags: &cc::compile_flags(caps.isa),
        libraries,
    };
    let objects: Vec<Object> = lowered.objects.iter().map(Object::from).collect();
    let unit = how.unit(&lowered, &objects, code);
    match language {
        Emit::Python => python(&unit),
        Emit::Cpp => inrush_source::cpp(&unit),
    }
}

/// Prints the program of a package for a GPU as Python. The package has the source of its kernels, those of the user's too, which
/// archives lack.
fn of_package(package: &Package, target: &Target, how: &How, language: Emit) -> Result<CppFile> {
    let (Emit::Python, Target::Gpu(w)) = (language, target) else {
        return Err(Error::unsupported(
            "packages are printed as Python, for the GPU that `--target` names: for other source pass the archive",
        ));
    };
    let found = package.gpus().find(|t| t.gpu == w.gpu).ok_or_else(|| {
        Error::input(format!(
            "the package was compiled for {}, not for {}: name one of these with `--target`",
            package.target_names(),
            w.gpu
        ))
    })?;
    let Some(kernels) = package.source_kernels(found)? else {
        return Err(Error::unsupported(
            "the package holds machine code: packages with the source of their kernels are printed (`--kernels source`)",
        ));
    };
    let mut lowered = found.lowered.clone();
    expect_real(&lowered)?;
    let mut texts = kernels.into_iter().map(|k| k.kernel.text);
    lowered.change(&mut |gpu| {
        for (kernel, text) in gpu.kernels.iter_mut().zip(&mut texts) {
            kernel.text = text;
        }
    });
    let objects: Vec<Object> = lowered.objects.iter().map(Object::from).collect();
    let unit = how.unit(&lowered, &objects, Code::Gpu(kind(w)?));
    let (text, names) = inrush_source::python_and_weights(&unit)?;
    let of_one = |name: String| {
        let missing = || Error::input(format!("the package's weight `{name}` is missing"));
        let w = package.weight(&name).ok_or_else(missing)?;
        let (dtype, sizes) = (w.dtype, w.sizes.to_vec());
        Ok(CppWeight { name, dtype, sizes })
    };
    Ok(CppFile {
        text,
        weights: names.into_iter().map(of_one).collect::<Result<_>>()?,
    })
}

/// Prints a unit as Python, which reads its weights from the archive.
fn python(unit: &Unit<'_>) -> Result<CppFile> {
    Ok(CppFile {
        text: inrush_source::python(unit)?,
        weights: Vec::new(),
    })
}

/// Writes the weights that a file of C++ reads.
fn write_weights(path: &Path, weights: &[CppWeight], archive: &dyn WeightSource) -> Result<()> {
    let mut tensors = Vec::with_capacity(weights.len());
    for w in weights {
        let view = archive
            .weight(&w.name)
            .ok_or_else(|| Error::input(format!("the model's weight `{}` is missing", w.name)))?;
        let pairs = Pairs::of(&view);
        let view = pairs.as_ref().map_or(view, |p| p.view(view.bytes));
        if view.dtype != w.dtype || view.sizes != w.sizes {
            return Err(Error::input(format!(
                "the weight `{}` is {}{:?}, the program wants {}{:?}",
                w.name, view.dtype, view.sizes, w.dtype, w.sizes
            )));
        }
        tensors.push((w.name.clone(), Tensor::from_view(&view)?));
    }
    io::write(path, &tensors)
}

/// Compiles a graph for a GPU and prints it as Python. No kernel is built.
fn of_gpu(
    graph: Graph,
    w: &WantedGpu,
    how: &How,
    progress: &Progress,
    times: &mut Times,
) -> Result<CppFile> {
    let gpu = Gpu {
        caps: &w.caps,
        target: &w.gpu.build,
        device: w.device,
        libraries: libraries(w, how.no_libraries),
    };
    let lowered = lower(graph, &gpu, progress, times)?;
    expect_real(&lowered)?;
    let objects: Vec<Object> = lowered.objects.iter().map(Object::from).collect();
    let device = kind(w)?;
    python(&how.unit(&lowered, &objects, Code::Gpu(device)))
}

/// Refuses complex inputs and outputs: programs for GPUs have pairs of real numbers in their place, which callers would see.
fn expect_real(lowered: &Lowered) -> Result<()> {
    if lowered.complex.is_empty() {
        return Ok(());
    }
    Err(Error::unsupported(
        "complex inputs and outputs are not printed for a GPU: take and give `torch.view_as_real` of them",
    ))
}

/// Returns the kind of a GPU.
fn kind(w: &WantedGpu) -> Result<&'static Device> {
    inrush_devices::by_name(&w.gpu.kind).ok_or_else(|| Error::internal("a GPU of no kind"))
}

/// Compiles a graph for a GPU, builds its kernels and prints it as C++. Products are kernels, which take no tensor maps: the file
/// needs no library of products.
fn cpp_of_gpu(
    graph: Graph,
    w: &WantedGpu,
    how: &How,
    progress: &Progress,
    times: &mut Times,
) -> Result<CppFile> {
    let device = kind(w)?;
    let pool = Python::find()?.pool(false)?;
    let mut caps = w.caps.clone();
    if let Some(gpu) = &mut caps.gpu {
        gpu.tensor_maps = false;
    }
    let gpu = Gpu {
        caps: &caps,
        target: &w.gpu.build,
        device: w.device,
        libraries: Libraries::None,
    };
    let (lowered, binaries, _) = triton::compile(graph, &gpu, &pool, progress, times)?;
    expect_real(&lowered)?;
    let built = binaries.iter().map(|b| {
        Ok(Built {
            info: b.info.clone(),
            code: b.code.bytes()?.into_owned(),
        })
    });
    let built = built.collect::<Result<Vec<_>>>()?;
    let objects: Vec<Object> = lowered.objects.iter().map(Object::from).collect();
    inrush_source::cpp(&how.unit(&lowered, &objects, Code::Built(device, &built)))
}

/// Returns the path of a file from the folder of another one, so that both can be moved together.
fn from_file(from: &Path, to: &Path) -> Result<String> {
    let whole = |p: &Path| -> Result<PathBuf> {
        // Links and `..` of the folder are resolved; the file itself may not exist yet.
        let folder = p.parent().filter(|f| !f.as_os_str().is_empty());
        let folder = std::fs::canonicalize(folder.unwrap_or(Path::new(".")));
        let folder = folder.map_err(|e| Error::machine(format!("{}: {e}", p.display())))?;
        Ok(folder.join(p.file_name().unwrap_or_default()))
    };
    let (from, to) = (whole(from)?, whole(to)?);
    let folder: Vec<Component<'_>> = from.parent().unwrap_or(&from).components().collect();
    let file: Vec<Component<'_>> = to.components().collect();
    let same = folder.iter().zip(&file).take_while(|(a, b)| a == b).count();
    let mut out = PathBuf::new();
    out.extend(folder[same..].iter().map(|_| Component::ParentDir));
    out.extend(&file[same..]);
    let text = out
        .to_str()
        .ok_or_else(|| Error::input(format!("{}: a path that is not UTF-8", out.display())))?;
    Ok(text.to_string())
}
