//! Triton kernels that users wrote, in programs that are compiled ahead of time.
//!
//! A graph names a kernel by its number ([`inrush_compile::user_kernel`]). The process that compiles has the kernels: their source in one
//! or more configurations, of which each target takes one. The launch becomes a step of the host program like those of kernels that
//! stage emit wrote.

use crate::gpu::build;
use crate::program::{Argument, USER_KERNEL, UserKernel};
use inrush_base::{Error, Result};
use inrush_compile::parts::Calls;
use inrush_compile::{Call, user_kernel};
use inrush_graph::{Arg, Graph, Node, TensorType};
use inrush_program::{GpuKernel, GpuTarget};
use inrush_runtime::triton::Pool;

/// A kernel that a user wrote.
#[derive(Clone, PartialEq, Debug)]
pub struct UserSource {
    pub name: String,
    /// Positions among the tensors of a launch of those that it writes.
    pub written: Vec<usize>,
    /// In the order in which the user lists them; at least one.
    pub configurations: Vec<Configuration>,
    /// The fastest configuration, where the process measured them on a GPU.
    pub measured: Option<Measured>,
}

/// A kernel in one configuration.
#[derive(Clone, PartialEq, Debug)]
pub struct Configuration {
    /// Its text has the constants. The symbol is empty: it depends on the program.
    pub kernel: GpuKernel,
    /// By position in the signature.
    pub arguments: Vec<Given>,
    /// Positions among the launch's tensors of those that the kernel takes for multiples of 16 bytes.
    pub aligned: Vec<usize>,
    /// Constants and options as the user wrote them.
    pub title: String,
}

/// An argument of a kernel.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Given {
    /// The tensor at this position among the launch's.
    Tensor(usize),
    /// A descriptor of that tensor.
    Descriptor(usize),
    /// The number at this position among the launch's.
    Number(usize),
    Int(i64),
    Float(f64),
}

/// The outcome of a measurement.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// The architecture that was measured on: results hold for targets of the same one.
    pub backend: String,
    pub arch: String,
    /// Position among the configurations.
    pub fastest: usize,
}

/// A kernel in the configuration that a target takes.
#[derive(Clone, PartialEq, Debug)]
pub struct Chosen<'a> {
    pub source: &'a UserSource,
    /// Position among the configurations.
    pub at: usize,
    /// Why this one, for reports; empty where there is no other.
    pub why: &'static str,
}

impl Chosen<'_> {
    /// Returns the kernel's name, with its configuration if there are others.
    fn title(&self) -> String {
        let all = &self.source.configurations;
        match all.len() {
            1 => self.source.name.clone(),
            n => format!(
                "{}, configuration {} of {n} ({}), {}",
                self.source.name,
                self.at + 1,
                all[self.at].title,
                self.why
            ),
        }
    }
}

/// Chooses a configuration of each kernel for a target whose programs have `shared` bytes of shared memory: what was measured on such a
/// device, else the first that builds.
///
/// # Errors
/// Where none builds, the error of the first.
pub fn choose<'a>(
    sources: &'a [UserSource],
    target: &GpuTarget,
    shared: u32,
    pool: &Pool,
) -> Result<Vec<Chosen<'a>>> {
    sources
        .iter()
        .map(|source| {
            let chosen = |at, why| Ok(Chosen { source, at, why });
            if source.configurations.len() == 1 {
                return chosen(0, "");
            }
            if let Some(m) = &source.measured
                && (m.backend == target.backend && m.arch == target.arch)
                && m.fastest < source.configurations.len()
            {
                return chosen(m.fastest, "the fastest here");
            }
            let mut first = None;
            for (at, c) in source.configurations.iter().enumerate() {
                let kernel = GpuKernel {
                    symbol: symbol(&c.kernel, 0),
                    ..c.kernel.clone()
                };
                match build::try_kernel(pool, &kernel, target, shared) {
                    Ok(()) => return chosen(at, "the first that builds, not measured"),
                    Err(e) => first = first.or(Some(e)),
                }
            }
            Err(first.unwrap_or_else(|| Error::internal("a kernel without configurations")))
        })
        .collect()
}

/// Returns the symbol of a kernel at a position among the program's.
fn symbol(kernel: &GpuKernel, at: usize) -> String {
    format!("{USER_KERNEL}{}.{at}", kernel.function)
}

/// Returns the step of a call, whose kernel is added to those of the program unless an equal one is there; `None` for calls of other
/// operators.
///
/// # Errors
/// An unsupported error for a kernel that this process does not have.
pub(super) fn step(
    graph: &Graph,
    c: &Call,
    calls: &mut Calls<'_>,
    chosen: &[Chosen<'_>],
    kernels: &mut Vec<GpuKernel>,
) -> Result<Option<UserKernel>> {
    let node = &graph.nodes[c.node.index()];
    let Some(launch) = user_kernel::launch(&graph.exprs, node)? else {
        return Ok(None);
    };
    let missing = || {
        graph.locate(
            node,
            Error::unsupported(format!(
                "the source of the Triton kernel `{}` is not in the archive: `inrush.aot_compile` makes packages with it",
                launch.name
            )),
        )
    };
    let chosen = chosen.get(launch.kernel).ok_or_else(missing)?;
    let (source, at) = (chosen.source, chosen.at);
    let configuration = &source.configurations[at];
    check_layouts(graph, node)?;
    let other_form = || Error::input("a launch of a Triton kernel of another form");
    let grid = (launch.grid.get(3 * at..3 * at + 3)).ok_or_else(other_form)?;
    let known = |e| graph.exprs.as_int(e).map(Argument::Int);
    let number = |e| match known(e) {
        Some(v) => Ok(v),
        None => calls.int(e).map(Argument::Size),
    };
    let [x, y, z] = grid else {
        return Err(other_form());
    };
    let grid = [number(*x)?, number(*y)?, number(*z)?];
    let arguments = (configuration.arguments.iter())
        .map(|a| match a {
            Given::Tensor(t) if *t < launch.tensors.len() => Ok(Argument::Tensor(*t)),
            Given::Descriptor(t) if *t < launch.tensors.len() => Ok(Argument::Descriptor(*t)),
            Given::Tensor(_) | Given::Descriptor(_) => Err(other_form()),
            Given::Number(n) => number(*launch.numbers.get(*n).ok_or_else(other_form)?),
            Given::Int(v) => Ok(Argument::Int(*v)),
            Given::Float(v) => Ok(Argument::Float(*v)),
        })
        .collect::<Result<_>>()?;
    let aligned = configuration.aligned.iter().copied();
    let origin = calls.origin(c);
    Ok(Some(UserKernel {
        kernel: add(&configuration.kernel, kernels),
        grid,
        arguments,
        tensors: (launch.tensors.iter())
            .map(|t| t.map(|v| calls.slots.of(v)))
            .collect(),
        written: source.written.clone(),
        outs: calls.slots.all(&c.outs),
        aligned: aligned.filter(|t| *t < launch.tensors.len()).collect(),
        title: chosen.title(),
        origin,
    }))
}

/// Checks that the operands of a launch have the strides that its kernel was traced with.
fn check_layouts(graph: &Graph, node: &Node) -> Result<()> {
    let wanted = user_kernel::operand_types(graph, node);
    let [Arg::Values(tensors), ..] = node.args.as_slice() else {
        return Err(Error::internal("a launch without tensors"));
    };
    let same = |(at, ty): &(usize, TensorType)| {
        let actual = tensors[*at].and_then(|v| graph.tensor(v).ok());
        actual.is_some_and(|t| t.strides == ty.strides)
    };
    match wanted {
        Some(all) if all.iter().all(same) => Ok(()),
        _ => Err(graph.locate(
            node,
            Error::internal("an operand of a Triton kernel has another layout than at export"),
        )),
    }
}

/// Returns the position of a kernel among those of a program, to which it is added unless an equal one is there.
pub fn add(kernel: &GpuKernel, kernels: &mut Vec<GpuKernel>) -> usize {
    let mut kernel = kernel.clone();
    // Equal but for the symbol: it is copied from each candidate first.
    let known = kernels.iter().position(|k| {
        kernel.symbol.clone_from(&k.symbol);
        *k == kernel
    });
    known.unwrap_or_else(|| {
        kernel.symbol = symbol(&kernel, kernels.len());
        kernels.push(kernel);
        kernels.len() - 1
    })
}
