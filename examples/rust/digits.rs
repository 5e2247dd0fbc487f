//! Classifies handwritten digits from Rust, and replaces the weights of the loaded model while threads call it.
//!
//! ```text
//! cargo run --release -p inrush-runtime --example digits -- PACKAGE IMAGES
//! ```
//!
//! PACKAGE is made by `inrush compile examples/digits/digits.pt2 -o digits.inrush`. IMAGES holds 64 float32 an image, grey values 0 to
//! 16. One line an image: its class. Then the bias of the last layer is replaced so that every image is a 7, and the lines are printed
//! again. Only `inrush-runtime` is linked: neither a compiler nor Python.

use inrush_base::{DType, Error, Result};
use inrush_runtime::{Model, Names, Pool, Session, Tensor, Value, WeightView};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Numbers of an image, and classes.
const PIXELS: usize = 64;
const CLASSES: usize = 10;
/// Threads that call the model while its weights are replaced.
const CALLERS: usize = 4;

#[allow(dead_code)] // Tests call `run`.
fn main() -> ExitCode {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [package, images] = paths.as_slice() else {
        eprintln!("usage: digits PACKAGE IMAGES");
        return ExitCode::from(2);
    };
    match run(package, images, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("digits: {e}");
            ExitCode::from(2)
        }
    }
}

/// Writes the classes of all images before and after the weights are replaced.
pub(crate) fn run(package: &Path, images: &Path, out: &mut impl Write) -> Result<()> {
    let pool = Arc::new(Pool::new(Some(2))?);
    let session = Session::new(Model::open(package, pool)?);
    let input = [Value::Tensor(read_images(images)?)];
    write_classes(&session.run(&input)?, out)?;

    // The bias of the last layer.
    let bias = (session.weights().into_iter().rev()).find(|w| w.sizes == [CLASSES as i64]);
    let bias = bias.ok_or_else(|| Error::input("the model has no weight of ten numbers"))?;
    let sevens: Vec<u8> = (0..CLASSES)
        .flat_map(|c| (if c == 7 { 1e6f32 } else { 0.0 }).to_ne_bytes())
        .collect();
    let new = WeightView {
        dtype: bias.dtype,
        sizes: &bias.sizes,
        strides: &[1],
        bytes: &sevens,
    };

    // Each answer comes wholly from one set of weights.
    let (before, done) = (classes(&session.run(&input)?)?, AtomicBool::new(false));
    std::thread::scope(|s| {
        let call = || -> Result<()> {
            loop {
                let last = done.load(Ordering::Acquire);
                let got = classes(&session.run(&input)?)?;
                if got != before && got.iter().any(|c| *c != 7) {
                    return Err(Error::internal("an answer of two sets of weights"));
                }
                if last {
                    return Ok(());
                }
            }
        };
        let callers: Vec<_> = (0..CALLERS).map(|_| s.spawn(call)).collect();
        let swapped = session
            .update_weights(&[(&bias.name, new)], Names::Some)
            .and_then(|()| session.swap_weights());
        done.store(true, Ordering::Release);
        let called = callers.into_iter().map(|c| match c.join() {
            Ok(called) => called,
            Err(_) => Err(Error::internal("a caller panicked")),
        });
        called.chain([swapped]).collect::<Result<()>>()
    })?;
    write_classes(&session.run(&input)?, out)
}

fn read_images(path: &Path) -> Result<Tensor> {
    let shown = || path.display().to_string();
    let bytes = std::fs::read(path).map_err(|e| Error::input(e.to_string()).in_file(shown()))?;
    let count = bytes.len() / (PIXELS * size_of::<f32>());
    Tensor::from_bytes(DType::F32, vec![count as i64, 1, 8, 8], &bytes)
        .map_err(|e| e.in_file(shown()))
}

/// Returns the position of the largest logit of each row.
fn classes(outputs: &[Value]) -> Result<Vec<usize>> {
    let Some(Value::Tensor(logits)) = outputs.first() else {
        return Err(Error::input("the model gives no tensor"));
    };
    let bytes = logits.to_bytes();
    let values: Vec<f32> = (bytes.chunks_exact(4))
        .map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let best = |row: &[f32]| {
        let greatest = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
        greatest.unwrap_or(0)
    };
    Ok(values.chunks_exact(CLASSES).map(best).collect())
}

fn write_classes(outputs: &[Value], out: &mut impl Write) -> Result<()> {
    for class in classes(outputs)? {
        writeln!(out, "{class}").map_err(|e| Error::machine(e.to_string()))?;
    }
    Ok(())
}
