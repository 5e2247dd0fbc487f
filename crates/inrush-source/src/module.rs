//! The file: a comment that says what it is, imports, helpers, kernels, functions.

use crate::kernels::{Kernels, programs, segments};
use crate::names::{Names, plain, quote};
use crate::{Code, Unit, host};
use inrush_base::{Device, Error, Result};
use inrush_program::SEED;
use std::fmt::Write;

const COMMON: &str = include_str!("python/common.py");
const CALLS: &str = include_str!("python/calls.py");
const CPU: &str = include_str!("python/cpu.py");
const CONTROL: &str = include_str!("python/control.py");
const CONTRACT: &str = include_str!("python/contract.py");
const GPU: &str = include_str!("python/gpu.py");
const LIBRARY: &str = include_str!("python/library.py");
const MAPS: &str = include_str!("python/maps.py");
const USER_KERNELS: &str = include_str!("python/user_kernels.py");
const WATCH: &str = include_str!("python/watch.py");
const WEIGHTS: &str = include_str!("python/weights.py");
const WEIGHT_FILE: &str = include_str!("python/weight_file.py");
const ARCHIVE: &str = include_str!("python/archive.py");
const MAIN: &str = include_str!("python/main.py");

/// Modules that a file imports if its text names them.
const MODULES: &[&str] = &[
    "argparse",
    "array",
    "base64",
    "concurrent.futures",
    "contextlib",
    "ctypes",
    "functools",
    "itertools",
    "json",
    "linecache",
    "math",
    "operator",
    "os",
    "shutil",
    "statistics",
    "subprocess",
    "tempfile",
    "time",
    "types",
    "zlib",
];

/// Prints a unit as a file of Python.
///
/// # Errors
/// An unsupported error that names what has no source, an input error for a damaged program.
pub fn python(unit: &Unit<'_>) -> Result<String> {
    python_and_weights(unit).map(|(text, _)| text)
}

/// Prints a unit as a file of Python. Returns the names of the weights that it reads besides. [`Unit::archive`] is an archive, or by
/// its name a safetensors file.
///
/// # Errors
/// An unsupported error that names what has no source, an input error for a damaged program.
pub fn python_and_weights(unit: &Unit<'_>) -> Result<(String, Vec<String>)> {
    unit.program.check(unit.objects.len())?;
    for s in segments(unit.program) {
        s.program.verify()?;
    }
    let device = match unit.code {
        Code::C { .. } => CPU.to_string(),
        Code::Gpu(device) | Code::Built(device, _) => of_gpu(unit, device)?,
    };
    let mut names = names(&device);
    let kernels = Kernels::new(unit, &mut names)?;
    let printed = host::call(unit, &kernels, &mut names)?;
    let mut weights = printed.weights;
    weights.sort();
    weights.dedup();
    let mut text = String::new();
    let mut add = |part: &str| {
        text.push_str(part.trim_end());
        text.push_str("\n\n\n");
    };
    add(WATCH);
    add(&device);
    if kernels.has_epilogues {
        add(CONTRACT);
    }
    if kernels.has_maps {
        add(MAPS);
    }
    add(COMMON);
    if kernels.has_users {
        add(USER_KERNELS);
    }
    if printed.segments.contains(" library(") {
        add(LIBRARY);
    }
    let named = |part: &&str| printed.call.contains(part) || printed.segments.contains(part);
    if ["flat(", "view(", "constant("].iter().any(named) {
        add(CALLS);
    }
    if ["owned(", "turns(", "conformed("].iter().any(named) {
        add(CONTROL);
    }
    if printed.has_weights {
        add(&print_weights(unit, &weights)?);
    }
    add("# Kernels.");
    if !kernels.text.is_empty() {
        add(&kernels.text);
    }
    add("# The graph.");
    if !printed.segments.is_empty() {
        add(&printed.segments);
    }
    if !printed.loads.is_empty() {
        let doc = "\"\"\"Runs the steps that depend on weights alone; to be called again after a change of weights.\"\"\"";
        let mut load = format!("LOADED = {{}}\n\n\ndef load():\n    {doc}\n");
        if printed.has_weights {
            load.push_str("    if not WEIGHTS:\n        load_weights()\n");
        }
        for line in &printed.loads {
            _ = writeln!(load, "    {line}");
        }
        add(&load);
    }
    add(&printed.call);
    add(&printed.inputs);
    add(MAIN);
    let header = header(unit, &text, printed.has_weights);
    let mut weights: Vec<String> = weights.into_iter().map(|(name, _)| name).collect();
    weights.retain(|name| name != SEED);
    weights.dedup();
    Ok((format!("{header}{}\n", text.trim_end()), weights))
}

/// Returns true if a function of PyTorch's stands for this one of the library.
pub(crate) fn has_library(function: &str) -> bool {
    LIBRARY.contains(&format!("\n    {}: ", quote(function)))
}

/// Returns the names that helpers and the text around kernels define.
fn names(device: &str) -> Names {
    let parts = [
        device,
        COMMON,
        CALLS,
        CPU,
        CONTRACT,
        CONTROL,
        GPU,
        LIBRARY,
        MAPS,
        USER_KERNELS,
        WATCH,
        WEIGHTS,
        WEIGHT_FILE,
        ARCHIVE,
        MAIN,
    ];
    let mut names = Names::of_module(&parts.join("\n"));
    let others = [
        "torch",
        "triton",
        "tl",
        "libdevice",
        "gdc_wait",
        "concurrent",
        "FLAGS",
        "LIBRARIES",
        "PIECES",
        "LIBRARY",
        "LOADED",
        "load",
        "call",
        "inputs",
        "ARCHIVE",
        "WEIGHT_LAYOUTS",
        "SEED",
        "int",
        "slice",
    ];
    for name in others.iter().chain(MODULES) {
        names.take(name);
    }
    names
}

/// Returns the helpers of a kind of GPU, by the device's strings.
fn of_gpu(unit: &Unit<'_>, device: &Device) -> Result<String> {
    let gpu = (unit.program.gpu.as_ref())
        .ok_or_else(|| Error::input("the program is damaged: it has no GPU"))?;
    let target = &gpu.target;
    let arch = match target.arch.parse::<u64>() {
        Ok(n) => n.to_string(),
        Err(_) => quote(&target.arch),
    };
    let torch_name = device.torch_name;
    let index = gpu.device.index;
    let mut wait = String::new();
    let mut all = programs(unit.program).into_iter();
    if all.any(|p| (p.gpu.iter()).any(|g| g.kernels.iter().any(|k| k.programmatic))) {
        wait = format!(
            "if INTERPRETED:\n\n    \
                 def gdc_wait():\n        \
                     \"\"\"Grids run one after the other here.\"\"\"\n\nelse:\n    \
                 from triton.language.extra.{torch_name} import gdc_wait\n\n\n"
        );
    }
    Ok(format!(
        "# Back end, architecture and width of a warp that kernels are built for.\n\
         TARGET = ({}, {arch}, {})\n\
         # Triton's interpreter runs the kernels, over memory of the CPU.\n\
         INTERPRETED = os.environ.get(\"TRITON_INTERPRET\") == \"1\"\n\
         DEVICE = torch.device(\"cpu\") if INTERPRETED else torch.device(\"{torch_name}\", {index})\n\n\n\
         {wait}\
         def on_device():\n    \
             \"\"\"Makes the device current; work goes to PyTorch's current stream of it.\"\"\"\n    \
             return contextlib.nullcontext() if INTERPRETED else torch.{torch_name}.device(DEVICE)\n\n\n\
         def synchronize():\n    \
             \"\"\"Waits for the work of the device.\"\"\"\n    \
             if not INTERPRETED:\n        \
                 torch.{torch_name}.synchronize(DEVICE)\n\n\n\
         {GPU}",
        quote(&target.backend),
        target.warp,
    ))
}

fn print_weights(unit: &Unit<'_>, weights: &[(String, String)]) -> Result<String> {
    let archive = (unit.archive).ok_or_else(|| {
        Error::unsupported("a graph with weights is not printed without the archive that has them")
    })?;
    let mut text = format!(
        "# The file that has the weights, which INRUSH_ARCHIVE can name too.\n\
         ARCHIVE = os.environ.get(\"INRUSH_ARCHIVE\") or os.path.join(os.path.dirname(os.path.abspath(__file__)), {})\n\
         # The seed of the next call's random numbers, for graphs that draw some.\n\
         SEED = {}\nWEIGHT_LAYOUTS = {{\n",
        quote(archive),
        quote(SEED),
    );
    for (name, layout) in weights {
        _ = writeln!(text, "    {}: {layout},", quote(name));
    }
    text.push_str("}\n");
    text.push_str(if archive.ends_with(".safetensors") {
        WEIGHT_FILE
    } else {
        ARCHIVE
    });
    text.push_str(WEIGHTS);
    Ok(text)
}

/// Returns the comment at the beginning, and the imports that the text needs.
fn header(unit: &Unit<'_>, text: &str, has_weights: bool) -> String {
    let name = if unit.name.is_empty() {
        "a graph".to_string()
    } else {
        format!("`{}`", plain(unit.name))
    };
    let needs = match unit.code {
        Code::C { .. } => "PyTorch and a C compiler",
        Code::Gpu(_) | Code::Built(..) => {
            "PyTorch and Triton; with TRITON_INTERPRET=1 it runs without a GPU, slowly"
        }
    };
    let weights = if has_weights {
        "\nWeights are read from the file `ARCHIVE` at the first call, or set by `load_weights(tensors)`."
    } else {
        ""
    };
    let mut out = format!(
        "\"\"\"Source of {name} as compiled by inrush for {}.\n\n\
         Run it to see its outputs and the time of a call on drawn inputs, or import it and use `call(*inputs)`.\n\
         It needs {needs}.{weights}\n\"\"\"\n\n",
        plain(unit.target),
    );
    for module in MODULES {
        if names_module(text, module) {
            _ = writeln!(out, "import {module}");
        }
    }
    out.push_str("\nimport torch\n");
    if let Code::Gpu(_) | Code::Built(..) = unit.code {
        out.push_str("import triton\nimport triton.language as tl\n");
        if text.contains("libdevice.") {
            out.push_str("from triton.language.extra import libdevice\n");
        }
    }
    out.push_str("\n\n");
    out
}

/// Returns true if a text names something in a module.
fn names_module(text: &str, module: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    text.match_indices(module).any(|(at, _)| {
        let after = text[at + module.len()..].strip_prefix('.');
        let member = after.is_some_and(|a| a.starts_with(|c: char| c.is_ascii_alphabetic()));
        member && !text[..at].ends_with(word)
    })
}
