//! Reads the `.pt2` archives that `torch.export.save` writes (torch 2.11 to 2.15).
//!
//! The archive is mapped, not read: weights are slices of the mapping. Nothing in an archive is executed; sample inputs,
//! which are a pickle, go through a reader that can build tensors and plain containers and nothing else.

mod archive;
mod import;
mod sample;
mod schema;
mod signature;
mod srepr;
mod summary;
mod weights;

use inrush_base::{Error, Result};
use inrush_graph::Graph;
use std::path::Path;
use std::sync::Arc;

pub use sample::{Sample, SampleTensor};
pub use weights::{WeightView, Weights};

/// An archive that was read.
pub struct Model {
    pub graph: Graph,
    pub weights: Weights,
    /// The inputs that the model was exported with, flattened; or why they could not be read.
    pub samples: std::result::Result<Vec<Sample>, String>,
    /// Version of PyTorch that wrote the archive.
    pub torch_version: String,
    /// Schema version, major and minor.
    pub schema_version: (i64, i64),
    /// Values that symbols had at export, by name.
    hints: Vec<(String, i64)>,
}

impl Model {
    pub fn hints(&self) -> Vec<(String, i64)> {
        self.hints.clone()
    }
}

/// Opens an archive.
///
/// # Errors
/// An input error that names the file, and the entry, node and operator where there is one. Operators that inrush does not
/// know are reported together, each with its source lines.
pub fn open(path: &Path) -> Result<Model> {
    open_inner(path).map_err(|e| e.in_file(path.display().to_string()))
}

fn open_inner(path: &Path) -> Result<Model> {
    let archive = Arc::new(archive::Archive::open(path)?);
    let name = archive.model_name()?;
    let entry = format!("models/{name}.json");
    let program: schema::ExportedProgram = serde_json::from_slice(archive.bytes(&entry)?)
        .map_err(|e| Error::input(format!("`{entry}` is not what torch.export writes: {e}")))?;
    let version = &program.schema_version;
    if version.major != schema::MAJOR {
        return Err(Error::unsupported(format!(
            "schema version {}.{} (torch {}); this reader knows major version {}",
            version.major,
            version.minor,
            program.torch_version,
            schema::MAJOR
        )));
    }
    let weights = Weights::open(archive.clone(), &name)?;
    let (graph, hints) = import::import(&program, &name, &weights)?;
    let samples = sample::read(&archive, &name);
    Ok(Model {
        graph,
        weights,
        samples,
        torch_version: program.torch_version.to_string(),
        schema_version: (version.major, version.minor),
        hints,
    })
}
