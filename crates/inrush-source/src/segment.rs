//! A program as a function: its inputs' layouts, its guards, its buffers, its launches, its outputs.
//!
//! Each value in the arena is memory of its own, made before the first step that names it and released after the last one: the
//! arena's plan is what the executor does to save allocations, and values do not overlap while they live.

use crate::inputs::laid_out;
use crate::kernels::{Kernels, Named, map_type};
use crate::module;
use crate::names::{Names, plain, quote, tuple};
use crate::sizes::Sizes;
use inrush_base::{DType, Error, Result};
use inrush_program::host::Segment;
use inrush_program::{
    BufferId, Contract, Guard, InputType, Launch, LibraryCall, Num, Operand, Output, Place,
    Program, Relation, SizeId, Step,
};

/// A printed program.
pub(crate) struct Function {
    /// Text of the function and, if there are load steps, of the one that runs these.
    pub(crate) text: String,
    /// Name of the function that runs the load steps.
    pub(crate) load: Option<String>,
    /// Weights that it names, in order.
    pub(crate) weights: Vec<(String, String)>,
}

/// Positions of the inputs that are tensors, in order.
pub(crate) fn tensors(s: &Segment) -> Vec<usize> {
    let inputs = s.program.inputs.iter().take(s.inputs.len());
    (inputs.enumerate())
        .filter(|(_, i)| matches!(i.ty, InputType::Tensor { .. }))
        .map(|(k, _)| k)
        .collect()
}

/// Returns PyTorch's name of a dtype.
pub(crate) fn dtype(d: DType) -> String {
    format!("torch.{}", d.torch_name())
}

/// Returns a number as an expression.
pub(crate) fn number(n: Num) -> String {
    match n {
        Num::Bool(true) => "True".into(),
        Num::Bool(false) => "False".into(),
        Num::Int(i) => i.to_string(),
        Num::FloatBits(bits) => match f64::from_bits(bits) {
            f if f.is_finite() => format!("{f:?}"),
            f => format!("float(\"{f}\")"),
        },
    }
}

/// Returns the check of the range of a symbol; `None` for one that has every value.
pub(crate) fn within(name: &str, shown: &str, lower: i64, upper: i64) -> Option<String> {
    let least = match lower {
        i64::MIN => "-math.inf".to_string(),
        v => v.to_string(),
    };
    let most = match upper {
        i64::MAX => "math.inf".to_string(),
        v => v.to_string(),
    };
    let bounded = lower > i64::MIN || upper < i64::MAX;
    bounded.then(|| format!("within({}, {name}, {least}, {most})", quote(shown)))
}

/// Returns the check of a relation of sizes.
pub(crate) fn guard(g: &Guard, left: &str, right: &str) -> String {
    let relation = match g.relation {
        Relation::Eq => "==",
        Relation::Ne => "!=",
        Relation::Le => "<=",
        Relation::Lt => "<",
    };
    let why = quote(&g.why);
    format!("guard({left} {relation} {right}, {why}, {left}, {right})")
}

/// Prints the program of a segment as the function `name`, which returns the outputs at the positions `wanted`. Layouts are
/// compared of the inputs for which `foreign` says so.
///
/// # Errors
/// An unsupported error that names what has no source.
pub(crate) fn function(
    s: &Segment,
    name: &str,
    (wanted, foreign): (&[usize], &[bool]),
    kernels: &Kernels<'_>,
    module: &mut Names,
) -> Result<Function> {
    let p = &s.program;
    if p.parts.is_some() {
        return Err(Error::unsupported(
            "a program in parts is not printed as source yet",
        ));
    }
    let mut names = module.clone();
    let symbols: Vec<(String, usize)> = (p.symbols.iter())
        .map(|s| (names.fresh(&s.name), 0))
        .collect();
    let mut printer = Printer {
        s,
        kernels,
        sizes: Sizes::new(&p.sizes, &symbols)?,
        params: vec![None; p.inputs.len()],
        given: vec![None; p.inputs.len()],
        buffers: vec![None; p.buffers.len()],
        storages: vec![None; p.outputs.len()],
        weights: Vec::new(),
        lines: Vec::new(),
        names,
    };
    let loaded = printer.loaded();
    let load = if p.load_steps.is_empty() {
        None
    } else {
        Some(module.fresh(&format!("load_{name}")))
    };
    let mut text = String::new();
    if let Some(load) = &load {
        let names = printer.names.clone();
        text = printer.print_load(load, &loaded)?;
        printer.names = names;
    }
    let symbols: Vec<String> = symbols.into_iter().map(|s| s.0).collect();
    text.push_str(&printer.print_call(name, &symbols, &loaded, (wanted, foreign))?);
    Ok(Function {
        text,
        load,
        weights: printer.weights,
    })
}

/// The state of printing a program.
struct Printer<'a, 'k> {
    s: &'a Segment,
    kernels: &'k Kernels<'k>,
    sizes: Sizes<'a>,
    names: Names,
    /// Names of the inputs that are tensors.
    params: Vec<Option<String>>,
    /// Names of those of them that an output shares or a step writes, as the caller gave them.
    given: Vec<Option<String>>,
    /// Names of the buffers that are there.
    buffers: Vec<Option<String>>,
    /// Names of the outputs' memory.
    storages: Vec<Option<String>>,
    /// Expressions of the layouts of weights, by name.
    weights: Vec<(String, String)>,
    lines: Vec<String>,
}

/// Steps in which a buffer is named, first and last.
type Uses = Vec<Option<(usize, usize)>>;

impl<'a, 'k> Printer<'a, 'k> {
    fn p(&self) -> &'a Program {
        &self.s.program
    }

    fn line(&mut self, text: String) {
        self.lines.push(text);
    }

    /// Returns the buffers that the load steps fill.
    fn loaded(&self) -> Vec<BufferId> {
        let persistent = |b: &BufferId| {
            let place = &self.p().buffers[*b as usize].place;
            matches!(place, Place::Persistent { .. })
        };
        let uses = self.uses(&self.p().load_steps);
        (0..self.p().buffers.len() as BufferId)
            .filter(|b| persistent(b) && uses[*b as usize].is_some())
            .collect()
    }

    /// Prints the function that runs the load steps and returns what they fill.
    fn print_load(&mut self, name: &str, loaded: &[BufferId]) -> Result<String> {
        let p = self.p();
        self.steps(&p.load_steps, &self.uses(&p.load_steps))?;
        let values: Vec<String> = (loaded.iter())
            .map(|b| self.buffer(*b))
            .collect::<Result<_>>()?;
        self.line(format!("return {}", tuple(&values)));
        let definitions = self.sizes.definitions(0);
        let body = std::mem::take(&mut self.lines);
        self.buffers.fill(None);
        let doc = "Runs the steps that depend on weights alone.";
        Ok(printed(name, &[], doc, definitions.into_iter().chain(body)))
    }

    fn print_call(
        &mut self,
        name: &str,
        symbols: &[String],
        loaded: &[BufferId],
        (wanted, foreign): (&[usize], &[bool]),
    ) -> Result<String> {
        let p = self.p();
        for at in tensors(self.s) {
            self.params[at] = Some(self.names.fresh(&p.inputs[at].name));
        }
        let mut params: Vec<String> = self.params.iter().flatten().cloned().collect();
        params.extend(symbols.iter().cloned());
        self.checks(symbols)?;
        let shared = self.shared_inputs();
        for at in tensors(self.s) {
            self.lay_out(at, shared[at], foreign[at])?;
        }
        if !loaded.is_empty() {
            let mut values = Vec::new();
            for b in loaded {
                let name = self.names.fresh(&p.buffers[*b as usize].name);
                self.buffers[*b as usize] = Some(name.clone());
                values.push(name);
            }
            let values = match values.as_slice() {
                [one] => format!("({one},)"),
                all => all.join(", "),
            };
            self.line(format!("{values} = LOADED[{}]", quote(name)));
        }
        let mut uses = self.uses(&p.steps);
        // What an output shares memory with is kept to the end.
        for o in &p.outputs {
            if let Output::Tensor { buffer, .. } = o {
                for b in self.chain(*buffer) {
                    let first = uses[b as usize].map_or(p.steps.len(), |u| u.0);
                    uses[b as usize] = Some((first, usize::MAX));
                }
            }
        }
        self.steps(&p.steps, &uses)?;
        for (at, shared) in shared.iter().enumerate() {
            if *shared == Some(true)
                && let (Some(name), Some(given)) = (self.params[at].clone(), self.given[at].clone())
            {
                self.line(format!("if {name} is not {given}:"));
                self.line(format!("    {given}.copy_({name})"));
            }
        }
        let mut results = Vec::new();
        for k in wanted {
            results.push(self.output(*k)?);
        }
        match results.as_slice() {
            [] => {}
            [one] => self.line(format!("return {one}")),
            all => self.line(format!("return {}", all.join(", "))),
        }
        let definitions = self.sizes.definitions(0);
        let body = std::mem::take(&mut self.lines);
        let doc = if p.name.is_empty() {
            "Runs kernels.".to_string()
        } else {
            format!("Runs the kernels of `{}`.", plain(&p.name))
        };
        let body = definitions.into_iter().chain(body);
        Ok(printed(name, &params, &doc, body))
    }

    /// Prints the checks of symbols and guards.
    fn checks(&mut self, symbols: &[String]) -> Result<()> {
        for (s, name) in self.p().symbols.iter().zip(symbols) {
            let line = within(name, &s.name, s.lower, s.upper);
            self.lines.extend(line);
        }
        for g in &self.p().guards {
            let (left, right) = (self.sizes.get(g.left)?, self.sizes.get(g.right)?);
            self.line(guard(g, &left, &right));
        }
        Ok(())
    }

    /// By input: `Some` if an output shares its memory or a step writes it, with true for the latter.
    fn shared_inputs(&self) -> Vec<Option<bool>> {
        let mut shared = vec![None; self.p().inputs.len()];
        for o in &self.p().outputs {
            if let Output::Tensor { buffer, .. } = o
                && let Place::Input { input } = self.root(*buffer).1
            {
                shared[*input as usize] = Some(false);
            }
        }
        for (at, written) in self.p().written_inputs().into_iter().enumerate() {
            if written {
                shared[at] = Some(true);
            }
        }
        shared
    }

    /// Prints the check of an input's layout, and the copy where it has another one.
    fn lay_out(&mut self, at: usize, shared: Option<bool>, foreign: bool) -> Result<()> {
        let input = &self.p().inputs[at];
        let (
            InputType::Tensor {
                dtype: d,
                sizes,
                strides,
            },
            Some(name),
        ) = (&input.ty, self.params[at].clone())
        else {
            return Ok(());
        };
        let sizes = tuple(&self.sizes.all(sizes)?);
        let strides = tuple(&self.sizes.all(strides)?);
        if shared.is_some() {
            let given = self.names.fresh(&format!("{name}_given"));
            self.line(format!("{given} = {name}"));
            self.given[at] = Some(given);
        }
        if !foreign {
            return Ok(());
        }
        let layout = (sizes.as_str(), strides.as_str());
        self.line(laid_out(&name, &input.name, d.0, layout, input.reads));
        Ok(())
    }

    /// Returns a buffer and those whose memory it is in.
    fn chain(&self, buffer: BufferId) -> Vec<BufferId> {
        let mut out = vec![buffer];
        let mut at = buffer;
        while let Place::Alias { of, .. } = &self.p().buffers[at as usize].place {
            at = *of;
            out.push(at);
        }
        out
    }

    /// Returns the buffer that has the memory of another, and its place.
    fn root(&self, buffer: BufferId) -> (BufferId, &'a Place) {
        root(self.p(), buffer)
    }

    fn uses(&self, steps: &[Step]) -> Uses {
        let mut uses: Uses = vec![None; self.p().buffers.len()];
        for (at, step) in steps.iter().enumerate() {
            let named: Vec<BufferId> = match step {
                Step::Launch(l) => l.buffers.clone(),
                Step::Contract(c) => c.buffers.iter().copied().chain([c.a, c.b]).collect(),
                Step::Library(c) => {
                    let operands = c.inputs.iter().chain(&c.outputs);
                    operands.map(|o| o.buffer).collect()
                }
            };
            for b in named.into_iter().flat_map(|b| self.chain(b)) {
                let first = uses[b as usize].map_or(at, |u| u.0);
                uses[b as usize] = Some((first, at));
            }
        }
        uses
    }

    /// Prints steps, and the memory that they take and release.
    fn steps(&mut self, steps: &'a [Step], uses: &Uses) -> Result<()> {
        for (at, step) in steps.iter().enumerate() {
            // A buffer comes after the one whose memory it is in.
            for (b, use_) in uses.iter().enumerate() {
                if use_.is_some_and(|u| u.0 == at) {
                    self.buffer(b as BufferId)?;
                }
            }
            match step {
                Step::Launch(l) => self.launch(l)?,
                Step::Contract(c) => self.contract(c)?,
                Step::Library(c) => self.library(c)?,
            }
            let released: Vec<String> = (uses.iter().enumerate())
                .filter(|(b, u)| {
                    let place = self.root(*b as BufferId).1;
                    u.is_some_and(|u| u.1 == at) && matches!(place, Place::Arena { .. })
                })
                .filter_map(|(b, _)| self.buffers[b].clone())
                .collect();
            if !released.is_empty() {
                self.line(format!("del {}", released.join(", ")));
            }
        }
        Ok(())
    }

    /// Returns the name of a buffer, which is made if it is not there.
    fn buffer(&mut self, id: BufferId) -> Result<String> {
        if let Some(name) = &self.buffers[id as usize] {
            return Ok(name.clone());
        }
        let b = &self.p().buffers[id as usize];
        let d = dtype(b.dtype.0);
        let name = match &b.place {
            Place::Input { input } => {
                let at = *input as usize;
                let param = self.params.get(at).cloned().flatten();
                let param = param.ok_or_else(|| {
                    Error::input("the program is damaged: a buffer of an input that is no tensor")
                })?;
                match &self.p().inputs[at].ty {
                    InputType::Tensor { dtype, .. } if *dtype != b.dtype => {
                        self.within(&param, "0", id)?
                    }
                    _ => param,
                }
            }
            Place::Weight(w) => {
                let all = |v: &[i64]| tuple(&v.iter().map(i64::to_string).collect::<Vec<_>>());
                let layout = format!("({d}, {}, {})", all(&w.sizes), all(&w.strides));
                self.weights.push((w.name.clone(), layout));
                let name = self.names.fresh(&b.name);
                self.line(format!("{name} = WEIGHTS[{}]", quote(&w.name)));
                name
            }
            Place::Persistent { .. } | Place::Arena { .. } => {
                let name = self.names.fresh(&b.name);
                let elements = self.sizes.divided(b.bytes, b.dtype.0.size())?;
                self.line(format!("{name} = memory({elements}, {d})"));
                name
            }
            Place::Output { output } => {
                let (storage, of) = self.storage(*output as usize, id)?;
                if of == b.dtype.0 {
                    storage
                } else {
                    self.within(&storage, "0", id)?
                }
            }
            Place::Alias { of, offset } => {
                let base = self.buffer(*of)?;
                let offset = self.sizes.get(*offset)?;
                self.within(&base, &offset, id)?
            }
        };
        self.buffers[id as usize] = Some(name.clone());
        Ok(name)
    }

    /// Prints a buffer in the memory of a tensor, and returns its name.
    fn within(&mut self, base: &str, offset: &str, id: BufferId) -> Result<String> {
        let b = &self.p().buffers[id as usize];
        let name = self.names.fresh(&b.name);
        let elements = self.sizes.divided(b.bytes, b.dtype.0.size())?;
        let d = dtype(b.dtype.0);
        self.line(format!(
            "{name} = inside({base}, {offset}, {d}, ({elements},))"
        ));
        Ok(name)
    }

    fn is_alone(&self, output: usize) -> bool {
        is_alone(self.p(), output)
    }

    /// Returns the name and the dtype of the memory of an output, which is made if it is not there.
    fn storage(&mut self, output: usize, buffer: BufferId) -> Result<(String, DType)> {
        let b = &self.p().buffers[buffer as usize];
        let (sizes, strides, of) = match self.p().outputs.get(output) {
            Some(Output::Tensor {
                dtype,
                sizes,
                strides,
                ..
            }) if self.is_alone(output) => (Some(sizes), strides.as_slice(), dtype.0),
            Some(_) => (None, [].as_slice(), b.dtype.0),
            None => return Err(Error::input("the program is damaged: no such output")),
        };
        if let Some(name) = &self.storages[output] {
            return Ok((name.clone(), of));
        }
        let name = self.names.fresh(&b.name);
        let d = dtype(of);
        match sizes {
            Some(sizes) => {
                let sizes = tuple(&self.sizes.all(sizes)?);
                let strides = tuple(&self.sizes.all(strides)?);
                self.line(format!("{name} = strided_memory({sizes}, {strides}, {d})"));
            }
            None => {
                let elements = self.sizes.divided(b.bytes, of.size())?;
                self.line(format!("{name} = memory({elements}, {d})"));
            }
        }
        self.storages[output] = Some(name.clone());
        Ok((name, of))
    }

    /// Returns the expression of an output.
    fn output(&mut self, at: usize) -> Result<String> {
        let (buffer, d, sizes, strides) = match &self.p().outputs[at] {
            Output::Tensor {
                buffer,
                dtype,
                sizes,
                strides,
            } => (*buffer, dtype.0, sizes, strides),
            Output::Int { value } => return self.sizes.get(*value),
            Output::Scalar { value } => return Ok(number(*value)),
            Output::None | Output::Mutation => return Ok("None".into()),
        };
        let (root, place) = self.root(buffer);
        let base = match place {
            Place::Input { input } => {
                let at = *input as usize;
                let given = self.given.get(at).cloned().flatten();
                let given = given.ok_or_else(|| {
                    Error::input("the program is damaged: an output in an input that is no tensor")
                })?;
                if let InputType::Tensor {
                    sizes: n,
                    strides: s,
                    dtype,
                } = &self.p().inputs[at].ty
                    && buffer == root
                    && (n, s, dtype.0) == (sizes, strides, d)
                {
                    return Ok(given);
                }
                // The tensor as the program expects it, which may be a copy of what was given.
                self.params[at].clone().unwrap_or(given)
            }
            Place::Output { output } => {
                let output = *output as usize;
                let alone = self.is_alone(output);
                let (name, _) = self.storage(output, root)?;
                if alone {
                    return Ok(name);
                }
                name
            }
            _ => {
                return Err(Error::internal(format!(
                    "output {at} has no storage of its own"
                )));
            }
        };
        let mut offsets = Vec::new();
        for b in self.chain(buffer) {
            if let Place::Alias { offset, .. } = &self.p().buffers[b as usize].place
                && self.sizes.constant(*offset) != Some(0)
            {
                offsets.push(self.sizes.get(*offset)?);
            }
        }
        let offset = if offsets.is_empty() {
            "0".to_string()
        } else {
            offsets.join(" + ")
        };
        let sizes = tuple(&self.sizes.all(sizes)?);
        let strides = tuple(&self.sizes.all(strides)?);
        Ok(format!(
            "inside({base}, {offset}, {}, {sizes}, {strides})",
            dtype(d)
        ))
    }

    /// Prints the comment above a step: the operators in it.
    fn comment(&mut self, origins: &[String]) {
        if !origins.is_empty() {
            let origins = plain(&origins.join(", "));
            self.line(format!("# {origins}"));
        }
    }

    fn names_of(&mut self, buffers: &[BufferId]) -> Result<Vec<String>> {
        buffers.iter().map(|b| self.buffer(*b)).collect()
    }

    fn kernel(&self, at: u32) -> Result<&'k Named<'k>> {
        let kernels = self.kernels;
        kernels.get(&self.p().kernels[at as usize].symbol)
    }

    /// Prints a launch.
    fn launch(&mut self, l: &'a Launch) -> Result<()> {
        let buffers = self.names_of(&l.buffers)?;
        let units = self.sizes.get(l.units)?;
        let named = self.kernel(l.kernel)?;
        let (name, gpu) = (named.name.clone(), named.gpu);
        let text = match gpu {
            Some(gpu) => {
                let arguments = self.gpu_arguments(&gpu.signature, l, buffers)?;
                let all: Vec<String> = std::iter::once(units).chain(arguments).collect();
                format!("{name}({})", all.join(", "))
            }
            None => {
                let sizes = self.sizes.all(&l.sizes)?.join(", ");
                let cost = self.sizes.get(l.unit_cost)?;
                let mut options = String::new();
                if self.sizes.constant(l.scratch_bytes) != Some(0) {
                    let scratch = self.sizes.get(l.scratch_bytes)?;
                    options.push_str(&format!(", scratch={scratch}"));
                }
                if l.serial {
                    options.push_str(", serial=True");
                }
                let buffers = buffers.join(", ");
                format!("{name}([{buffers}], [{sizes}], units={units}, cost={cost}{options})")
            }
        };
        self.comment(&l.origins);
        self.line(text);
        Ok(())
    }

    /// Returns what a launch on a GPU passes: pointers, numbers, then tensor maps.
    fn gpu_arguments(
        &mut self,
        signature: &[(String, String)],
        l: &Launch,
        buffers: Vec<String>,
    ) -> Result<Vec<String>> {
        let damaged = || Error::input("the program is damaged: arguments of a kernel");
        let maps: Vec<Vec<String>> = (signature.iter())
            .filter_map(|(_, ty)| map_type(ty))
            .map(|(_, block)| block.into_iter().map(str::to_string).collect())
            .collect();
        let pointers = buffers.len().checked_sub(maps.len()).ok_or_else(damaged)?;
        let numbers = (signature.len().checked_sub(maps.len()))
            .and_then(|n| n.checked_sub(pointers))
            .ok_or_else(damaged)?;
        let of_maps: usize = maps.iter().map(|m| 1 + 2 * m.len()).sum();
        if l.sizes.len() != numbers + of_maps {
            return Err(damaged());
        }
        let (bases, mut rest) = (buffers[pointers..].to_vec(), &l.sizes[numbers..]);
        let mut out = buffers[..pointers].to_vec();
        out.extend(self.sizes.all(&l.sizes[..numbers])?);
        for ((block, base), id) in maps.iter().zip(bases).zip(&l.buffers[pointers..]) {
            let (mine, others) = rest.split_at(1 + 2 * block.len());
            rest = others;
            let begin = self.sizes.get(mine[0])?;
            let sizes = tuple(&self.sizes.all(&mine[1..=block.len()])?);
            let strides = tuple(&self.sizes.all(&mine[1 + block.len()..])?);
            let d = dtype(self.p().buffers[*id as usize].dtype.0);
            let block = block.join(", ");
            out.push(format!(
                "tensor_map({base}, {begin}, {d}, {sizes}, {strides}, [{block}])"
            ));
        }
        Ok(out)
    }

    /// Prints a product or convolution: its sums, and the kernel that stores results.
    fn contract(&mut self, c: &'a Contract) -> Result<()> {
        let (a, b) = (self.buffer(c.a)?, self.buffer(c.b)?);
        let buffers = self.names_of(&c.buffers)?.join(", ");
        let sizes = self.sizes.all(&c.sizes)?.join(", ");
        let batch = self.levels(c.batch.iter().map(|l| vec![l.size, l.a_stride, l.b_stride]))?;
        let m = self.levels(c.m.iter().map(|l| vec![l.size, l.stride]))?;
        let n = self.levels(c.n.iter().map(|l| vec![l.size, l.stride]))?;
        let k = self.levels(c.k.iter().map(|l| vec![l.size, l.a_stride, l.b_stride]))?;
        let (from_a, from_b) = (self.sizes.get(c.a_offset)?, self.sizes.get(c.b_offset)?);
        let named = self.kernel(c.epilogue)?;
        if named.gpu.is_some() {
            return Err(Error::input(
                "the program is damaged: a contraction of the CPU in a GPU's program",
            ));
        }
        let name = named.name.clone();
        self.comment(&c.origins);
        self.line(format!("{name}("));
        self.line(format!(
            "    contract({}, {a}, {from_a}, {b}, {from_b}, batch={batch}, m={m}, n={n}, k={k}),",
            dtype(c.acc.0)
        ));
        self.line(format!("    [{buffers}],"));
        self.line(format!("    [{sizes}],"));
        self.line(")".into());
        Ok(())
    }

    /// Prints a call of a library function, as that of PyTorch's function.
    fn library(&mut self, c: &'a LibraryCall) -> Result<()> {
        if !module::has_library(&c.function) {
            return Err(Error::unsupported(format!(
                "the library function `{}` ({}) is not printed as source yet",
                c.function,
                c.origins.join(", ")
            )));
        }
        let inputs = self.operands(&c.inputs)?;
        let outputs = self.operands(&c.outputs)?;
        let params: Vec<String> = (c.params.iter())
            .map(|p| format!(", {}", number(*p)))
            .collect();
        self.comment(&c.origins);
        self.line(format!(
            "library({}, {inputs}, {outputs}{})",
            quote(&c.function),
            params.concat()
        ));
        Ok(())
    }

    /// Returns row-major tensors of a library call: buffers with sizes.
    fn operands(&mut self, operands: &[Operand]) -> Result<String> {
        let mut out = Vec::new();
        for o in operands {
            let buffer = self.buffer(o.buffer)?;
            let sizes = tuple(&self.sizes.all(&o.sizes)?);
            out.push(format!("({buffer}, {sizes})"));
        }
        Ok(format!("[{}]", out.join(", ")))
    }

    /// Returns levels of a product: sizes with strides.
    fn levels(&mut self, levels: impl Iterator<Item = Vec<SizeId>>) -> Result<String> {
        let mut out = Vec::new();
        for level in levels {
            out.push(tuple(&self.sizes.all(&level)?));
        }
        Ok(format!("[{}]", out.join(", ")))
    }
}

/// Returns the steps of a program, those at load first.
pub(crate) fn all_steps(p: &Program) -> impl Iterator<Item = &Step> {
    p.load_steps.iter().chain(&p.steps)
}

/// Returns the buffer that has the memory of another, and its place.
pub(crate) fn root(p: &Program, buffer: BufferId) -> (BufferId, &Place) {
    let mut at = buffer;
    loop {
        match &p.buffers[at as usize].place {
            Place::Alias { of, .. } => at = *of,
            place => return (at, place),
        }
    }
}

/// Returns true if an output is all of its memory, which no other output shares.
pub(crate) fn is_alone(p: &Program, output: usize) -> bool {
    let shares = |o: &Output| match o {
        Output::Tensor { buffer, .. } => {
            matches!(root(p, *buffer).1, Place::Output { output: of } if *of as usize == output)
        }
        _ => false,
    };
    let is_own = match &p.outputs[output] {
        Output::Tensor { buffer, .. } => {
            let place = &p.buffers[*buffer as usize].place;
            matches!(place, Place::Output { output: of } if *of as usize == output)
        }
        _ => false,
    };
    is_own && p.outputs.iter().filter(|o| shares(o)).count() == 1
}

/// Returns the text of a function.
fn printed(name: &str, params: &[String], doc: &str, body: impl Iterator<Item = String>) -> String {
    let mut text = format!(
        "def {name}({}):\n    \"\"\"{doc}\"\"\"\n",
        params.join(", ")
    );
    for line in body {
        text.push_str("    ");
        text.push_str(&line);
        text.push('\n');
    }
    text.push_str("\n\n");
    text
}
