//! Compiled code as a way to evaluate a graph.

use inrush_base::{Caps, Error, Isa, Result, Scalar};
use inrush_graph::{Graph, InputKind, OutputKind};
use inrush_interp::{Tensor, Value};
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Compiler, Target};
use inrush_runtime::{MemoryWeights, Model, Parts, Pool, tensor};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// A compiled graph. Weights are given with each call, so the model is loaded anew for each.
pub struct Compiled {
    compiled: inrush_compile::Compiled,
    object: PathBuf,
    /// Position of the user's input whose new contents each output is; `None` for the user's outputs.
    outputs: Vec<Option<usize>>,
}

impl Compiled {
    pub fn new(g: &Graph, isa: Isa) -> Result<Compiled> {
        // glibc's vector math is not asked for: what it is accurate to differs from machine to machine.
        let caps = Caps {
            vector_math: false,
            ..Caps::cpu(isa, 2)
        };
        let options = inrush_compile::Options {
            pieces: 1,
            ..Default::default()
        };
        let compiled = inrush_compile::compile(g.clone(), &caps, &options, &mut ())?;
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/filetest-cache");
        let target = Target {
            isa,
            vector_math: false,
        };
        let built = Compiler::find()?.build(&compiled.pieces, &target, &Cache::at(dir))?;
        let outputs = g.outputs.iter().map(|o| match o.kind {
            OutputKind::User { .. } => Ok(None),
            OutputKind::Mutation { input } => match g.inputs[input].kind {
                InputKind::User { index } => Ok(Some(index)),
                _ => Err(Error::unsupported("file tests of mutated weights")),
            },
        });
        Ok(Compiled {
            compiled,
            object: built.path,
            outputs: outputs.collect::<Result<_>>()?,
        })
    }

    pub fn run(&self, user: &[Value], weights: &BTreeMap<String, Tensor>) -> Result<Vec<Value>> {
        static POOL: OnceLock<Arc<Pool>> = OnceLock::new();
        if POOL.get().is_none() {
            _ = POOL.set(Arc::new(Pool::new(Some(2))?));
        }
        let pool = POOL.get().expect("just set");
        let mut source = MemoryWeights::default();
        for (name, t) in weights {
            source.insert(name, t.dtype, t.sizes.clone(), t.data.clone());
        }
        let model = Model::from_parts(Parts {
            program: self.compiled.program.clone(),
            object: &self.object,
            weights: Box::new(source),
            pool: pool.clone(),
        })?;
        let inputs: Vec<tensor::Value> = user.iter().map(given).collect::<Result<_>>()?;
        // Every output has its place; that of a mutation is empty, the input has the new contents.
        let results = model.run(&inputs)?;
        if results.len() != self.outputs.len() {
            return Err(Error::internal(format!("{} outputs", results.len())));
        }
        let out = (self.outputs.iter().zip(&results)).map(|(mutated, result)| match mutated {
            Some(index) => got(&inputs[*index]),
            None => got(result),
        });
        Ok(out.collect())
    }
}

fn given(v: &Value) -> Result<tensor::Value> {
    Ok(match v {
        Value::Tensor(t) => tensor::Value::Tensor(tensor::Tensor::from_bytes(
            t.dtype,
            t.sizes.clone(),
            &t.data,
        )?),
        Value::Scalar(Scalar::Int(i)) => tensor::Value::Int(*i),
        Value::Scalar(s) => tensor::Value::Scalar(*s),
        Value::None => tensor::Value::None,
    })
}

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
