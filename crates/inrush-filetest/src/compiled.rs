//! Compiled code as a way to evaluate a graph.
//!
//! Compiles a graph, builds its C source, loads the object and calls it, all in this process.
//! Beyond the comparison of results a call is held to three promises:
//!
//! - it writes only the elements of inputs that it mutates (`untouched`): not gaps between
//!   strides, not memory around;
//! - it reads only what was written: the arena is poisoned;
//! - inputs may begin anywhere (`offset`), so no alignment beyond the element's is assumed.
//!
//! Objects are cached by content. Programs of equal source are built once for all tests.

use crate::emulated::Emulated;
use inrush_base::{Caps, Error, Isa, Result, Scalar};
use inrush_graph::{Graph, InputKind, OutputKind};
use inrush_interp::{Tensor, Value};
use inrush_program::{InputType, Reads};
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Compiler, Target};
use inrush_runtime::{MemoryWeights, Model, Parts, Pool, tensor};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The kernels' machine code.
enum Code {
    Native(PathBuf),
    Emulated(Emulated),
}

impl Code {
    /// Builds the machine code, or takes it from the cache.
    fn build(compiled: &inrush_compile::Compiled, isa: Isa) -> Result<Code> {
        let cache = Cache::at(cache_dir());
        if crate::emulated::is_needed(isa) {
            let emulated = Emulated::new(&compiled.program, &compiled.pieces, &cache)?;
            return Ok(Code::Emulated(emulated));
        }
        let target = Target {
            isa,
            vector_math: false,
        };
        let built = Compiler::find()?.build(&compiled.pieces, &target, &cache)?;
        Ok(Code::Native(built.path))
    }
}

/// A compiled graph. Weights are given with each call, so the model is loaded anew for each.
pub struct Compiled {
    compiled: inrush_compile::Compiled,
    code: Code,
    isa: Isa,
    threads: usize,
    /// Position of the user's input whose new contents each output is; `None` for the user's outputs.
    outputs: Vec<Option<usize>>,
}

impl Compiled {
    /// Compiles for calls in poisoned memory.
    pub fn new(g: &Graph, isa: Isa, threads: usize) -> Result<Compiled> {
        inrush_runtime::poison::enable();
        // glibc's vector math is not asked for: what it is accurate to differs from machine to machine.
        let caps = Caps {
            vector_math: false,
            ..Caps::cpu(isa, threads)
        };
        let options = inrush_compile::Options {
            // One piece of source: the programs are small, and an emulator takes one.
            pieces: 1,
            verify: true,
            ..Default::default()
        };
        let compiled = inrush_compile::compile(g.clone(), &caps, &options, &mut ())?;
        let code = Code::build(&compiled, isa)?;
        // Mutations are outputs of a graph, but a model writes them to the input: their results
        // are read from there.
        let outputs = g.outputs.iter().map(|o| match o.kind {
            OutputKind::User { .. } => Ok(None),
            OutputKind::Mutation { input } => match g.inputs[input].kind {
                InputKind::User { index } => Ok(Some(index)),
                _ => Err(Error::unsupported("file tests of mutated weights")),
            },
        });
        Ok(Compiled {
            compiled,
            code,
            isa,
            threads,
            outputs: outputs.collect::<Result<_>>()?,
        })
    }

    /// Runs on inputs that start `offset` elements into their memory. Inputs in whose storage the program counts
    /// positions (`as_strided`) start at 0.
    /// Returns outputs in the graph's order, mutations included.
    pub fn run(
        &self,
        user: &[Value],
        weights: &BTreeMap<String, Tensor>,
        offset: usize,
    ) -> Result<Vec<Value>> {
        // The matrix engine chooses its kernels by the processor. Here it must use those of the
        // level that is tested.
        inrush_cpu::limited(self.isa, || match &self.code {
            Code::Native(object) => self.run_here(object, user, weights, offset),
            Code::Emulated(e) => e.run(|| self.run_here(&e.object, user, weights, offset)),
        })
    }

    /// Loads the model, calls it once and checks the memory of inputs.
    fn run_here(
        &self,
        object: &Path,
        user: &[Value],
        weights: &BTreeMap<String, Tensor>,
        offset: usize,
    ) -> Result<Vec<Value>> {
        let mut source = MemoryWeights::default();
        for (name, t) in weights {
            source.insert(name, t.dtype, t.sizes.clone(), t.data.clone());
        }
        let model = Model::from_parts(Parts {
            program: self.compiled.program.clone(),
            object,
            weights: Box::new(source),
            pool: pool(self.threads)?,
        })?;
        let strides: Vec<Option<Vec<i64>>> = self.strides();
        let given = |(k, v): (usize, &Value)| {
            let strides = strides.get(k).and_then(|s| s.as_deref());
            given(v, strides, self.start(k, offset))
        };
        let inputs: Vec<tensor::Value> =
            user.iter().enumerate().map(given).collect::<Result<_>>()?;
        let before: Vec<Option<Vec<u8>>> = inputs.iter().map(bytes).collect();
        // Every output has its place; that of a mutation is empty, the input has the new contents.
        let results = model.run(&inputs)?;
        if results.len() != self.outputs.len() {
            return Err(Error::internal(format!("{} outputs", results.len())));
        }
        for (k, (input, before)) in inputs.iter().zip(&before).enumerate() {
            let written = self.outputs.contains(&Some(k));
            if let (tensor::Value::Tensor(t), Some(before)) = (input, before) {
                untouched(t, before, written).map_err(|e| e.context(format!("input {k}")))?;
            }
        }
        let out = (self.outputs.iter().zip(&results)).map(|(mutated, result)| match mutated {
            Some(index) => got(&inputs[*index]),
            None => got(result),
        });
        Ok(out.collect())
    }

    /// Returns the element of its memory at which the user's input `k` starts: `offset` where that is allowed.
    fn start(&self, k: usize, offset: usize) -> usize {
        match self.compiled.program.inputs.get(k) {
            Some(i) if i.reads == Reads::Storage => 0,
            _ => offset,
        }
    }

    /// Strides of the user's inputs where they are numbers.
    fn strides(&self) -> Vec<Option<Vec<i64>>> {
        let p = &self.compiled.program;
        let known = inrush_program::evaluate_known(&p.sizes, &[]);
        let of = |i: &inrush_program::Input| match &i.ty {
            InputType::Tensor { strides, .. } => {
                // `None` for an input with a symbolic stride, which is then given contiguous.
                strides.iter().map(|s| known[s.0 as usize]).collect()
            }
            _ => None,
        };
        p.inputs.iter().map(of).collect()
    }
}

/// Where objects are kept: `$INRUSH_CACHE_DIR`, else in the folder of builds.
fn cache_dir() -> PathBuf {
    match std::env::var_os("INRUSH_CACHE_DIR") {
        Some(dir) => dir.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/filetest-cache"),
    }
}

/// A pool of so many threads, shared by all models.
fn pool(threads: usize) -> Result<Arc<Pool>> {
    // Threads are kept: starting them anew for each of many small programs takes longer than the
    // programs.
    static POOLS: Mutex<BTreeMap<usize, Arc<Pool>>> = Mutex::new(BTreeMap::new());
    let mut pools = POOLS.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(p) = pools.get(&threads) {
        return Ok(p.clone());
    }
    let made = Arc::new(Pool::new(Some(threads))?);
    pools.insert(threads, made.clone());
    Ok(made)
}

/// The bytes around an input's elements.
/// Not zero and not poison, so that writes of either kind show.
const AROUND: u8 = 0xA5;

/// Where each element of these sizes and strides has its place, counted from the first.
fn places(sizes: &[i64], strides: &[i64]) -> Vec<usize> {
    let count = numel(sizes);
    let mut out = Vec::with_capacity(count);
    for k in 0..count {
        let (mut rest, mut at) = (k as i64, 0);
        for (n, s) in sizes.iter().zip(strides).rev() {
            at += (rest % n) * s;
            rest /= n;
        }
        out.push(at as usize);
    }
    out
}

/// Returns the number of elements.
fn numel(sizes: &[i64]) -> usize {
    sizes.iter().product::<i64>() as usize
}

/// The values that a tensor has where elements share places by these strides.
pub(crate) fn shared(mut t: Tensor, strides: &[i64]) -> Result<Tensor> {
    let at = places(&t.sizes, strides);
    let size = t.dtype.size();
    // An expanded or overlapping input has one value a place: the last one written wins, as in
    // memory.
    let mut last = BTreeMap::new();
    for (k, at) in at.iter().enumerate() {
        last.insert(*at, k);
    }
    for (k, at) in at.iter().enumerate() {
        let from = last[at] * size;
        if from != k * size {
            t.data.copy_within(from..from + size, k * size);
        }
    }
    Ok(t)
}

/// A tensor in memory of its own, with something else in the gaps and around.
fn given(v: &Value, strides: Option<&[i64]>, offset: usize) -> Result<tensor::Value> {
    Ok(match v {
        Value::Tensor(t) => {
            let contiguous = tensor::contiguous_strides(&t.sizes);
            let strides = strides.unwrap_or(&contiguous);
            let size = t.dtype.size();
            let reach = tensor::extent(&t.sizes, strides)
                .ok_or_else(|| Error::input("an input is too large"))?;
            // Three elements after the last one, which a vector that reads too far would touch.
            let mut block = vec![AROUND; (offset + reach + 3) * size];
            for (k, at) in places(&t.sizes, strides).into_iter().enumerate() {
                let to = (offset + at) * size;
                block[to..to + size].copy_from_slice(&t.data[k * size..(k + 1) * size]);
            }
            tensor::Value::Tensor(tensor::Tensor {
                dtype: t.dtype,
                sizes: t.sizes.clone(),
                strides: strides.to_vec(),
                offset,
                storage: Arc::new(tensor::Storage::from_bytes(&block)?),
            })
        }
        Value::Scalar(Scalar::Int(i)) => tensor::Value::Int(*i),
        Value::Scalar(s) => tensor::Value::Scalar(*s),
        Value::None => tensor::Value::None,
    })
}

/// All bytes of an input's memory.
fn bytes(v: &tensor::Value) -> Option<Vec<u8>> {
    match v {
        tensor::Value::Tensor(t) => Some(t.storage.bytes().to_vec()),
        _ => None,
    }
}

/// A call leaves the memory around an input, and the input where it is not written.
fn untouched(t: &tensor::Tensor, before: &[u8], written: bool) -> Result<()> {
    let size = t.dtype.size();
    let mut own = vec![false; before.len()];
    // A mutated input may change at its own elements, and not in the gaps between them.
    if written {
        for at in places(&t.sizes, &t.strides) {
            own[(t.offset + at) * size..][..size].fill(true);
        }
    }
    let after = t.storage.bytes();
    let wrong = (0..before.len()).find(|k| !own[*k] && before[*k] != after[*k]);
    match wrong {
        None => Ok(()),
        Some(at) => Err(Error::internal(format!(
            "byte {at} of its memory, which is not the call's to write, was written"
        ))),
    }
}

/// Converts a result to a value of the interpreters, row-major.
fn got(v: &tensor::Value) -> Value {
    match v {
        tensor::Value::Tensor(t) => Value::Tensor(Tensor {
            dtype: t.dtype,
            sizes: t.sizes.clone(),
            data: t.to_bytes(),
        }),
        tensor::Value::Int(i) => Value::Scalar(Scalar::Int(*i)),
        tensor::Value::Scalar(s) => Value::Scalar(*s),
        tensor::Value::None => Value::None,
    }
}
