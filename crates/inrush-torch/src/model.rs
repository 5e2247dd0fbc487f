//! An archive as a whole.
//!
//! Files of an archive that are read, below its one top folder:
//!
//! ```text
//! archive_format, archive_version      "pt2" and "0"
//! byteorder                            "little"
//! models/NAME.json                     the exported program: graph, signature, guards, ranges
//! data/weights/NAME_weights_config.json, data/constants/NAME_constants_config.json
//!                                      names -> files of the same folder, dtypes, sizes, strides
//! data/sample_inputs/NAME.pt           a torch.save file inside the archive
//! ```
//!
//! Versions: a schema of another major version is refused. A newer minor version only adds, so it
//! is read, and named in the error if reading fails.

use crate::archive::{Archive, Bytes};
use crate::convert::convert;
use crate::json;
use crate::sample::{self, Sample};
use crate::schema::{self, ExportedProgram, MAJOR, MINOR, Versions};
use crate::tree::Tree;
use crate::weights::Weights;
use inrush_aten::NamedArg;
use inrush_base::schema::Operator;
use inrush_base::{Error, Result, both, with_helpers};
use inrush_expr::Exprs;
use inrush_graph::{Arg, Graph, InputKind, OutputKind, OutputValue, Type};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// Puts the arguments of a call in the order of its schema and fills in defaults; `None` when the operator is not known.
pub type Bind<'b> = &'b dyn Fn(&Exprs, &str, &[NamedArg]) -> Option<Result<Vec<Arg>>>;

/// A model as its archive describes it.
pub struct Model {
    pub graph: Graph,
    /// Parameters, buffers and constants by the names in [`InputKind`].
    pub weights: Weights,
    /// Empty if the archive has no nesting, or if it could not be read, which `notes` tells.
    pub signature: Signature,
    /// The inputs that the model was exported with, flattened; or why they could not be read.
    pub samples: std::result::Result<Vec<Sample>, String>,
    /// Version of PyTorch that wrote the archive.
    pub torch_version: String,
    /// Schema version, major and minor.
    pub schema_version: (i64, i64),
    /// Notes for the user about parts of the archive that were ignored.
    pub notes: Vec<String>,
    /// Values that symbols had at export, by name.
    /// In the order of declaration; symbols without a hint are absent.
    hints: Vec<(String, i64)>,
}

/// From this many bytes of program text on, a second thread reads the list of weights.
/// Below it, starting a thread takes longer than the reading that it saves.
const LONG: usize = 64 << 10;

/// Names and nesting of the user's inputs and outputs.
#[derive(Clone, Default, Debug)]
pub struct Signature {
    /// The pair of positional and keyword arguments.
    pub in_tree: Option<Tree>,
    pub out_tree: Option<Tree>,
    /// One for each flattened input (constants too), as the Python function names them: `x`, `pair.0`, `mask`.
    pub input_names: Vec<String>,
    /// One for each flattened output: its path in the returned value, empty for a lone tensor.
    /// Both lists are empty if the nesting could not be read.
    pub output_names: Vec<String>,
}

/// Options of reading an archive.
pub struct Options<'a> {
    /// The name of the model. By default the only one, or `model`.
    pub model: Option<&'a str>,
    /// The table of operators: `inrush_aten::complex::bind`, unless a test has its own.
    pub bind: Bind<'a>,
    /// Operators of the user's whose functions the host registers.
    pub operators: &'a [Operator],
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            model: None,
            bind: &inrush_aten::complex::bind,
            operators: &[],
        }
    }
}

/// Reads the archive at `path`.
pub fn open(path: &Path) -> Result<Model> {
    open_with(path, &Options::default())
}

/// Reads the archive at `path`.
pub fn open_with(path: &Path, options: &Options) -> Result<Model> {
    let bytes = Bytes::map(path)?;
    open_bytes(bytes, options).map_err(|e| e.in_file(path.display().to_string()))
}

/// Reads an archive in memory.
/// Weights are not read and their checksums not compared: `Weights::check` does that on demand.
pub fn open_bytes(bytes: Bytes, options: &Options) -> Result<Model> {
    let archive = Arc::new(Archive::new(bytes)?);
    let root = root(&archive)?;
    check_container(&archive, &root)?;
    let name = model_name(&archive, &root, options.model)?;
    let entry = format!("{root}/models/{name}.json");
    let text = archive.read(&entry)?;
    // Two threads read a long program. Asking the system which parts of a file are in memory takes
    // a while.
    let (program, weights) = with_helpers((text.len() >= LONG) as usize, || {
        both(
            || program(text).map_err(|e| e.context(&entry)),
            || {
                archive.bytes().will_be_read();
                Weights::read(&archive, &root, &name)
            },
        )
    });
    let (program, weights) = (program?, weights?);

    // The entry with an empty name is the root module. The others are its submodules, kept for
    // unflattening.
    let call = (program.graph_module.module_call_graph.iter())
        .find(|m| m.fqn.is_empty())
        .and_then(|m| m.signature.as_ref());
    let mut notes = Vec::new();
    let signature = match call.map(|c| signature(&program, c)) {
        Some(Ok(s)) => s,
        // A model runs without names and nesting of its inputs, so this is no error.
        Some(Err(e)) => {
            notes.push(format!(
                "nesting of inputs and outputs not read: {}",
                e.message()
            ));
            Signature::default()
        }
        None => Signature::default(),
    };
    let mut converted = convert(&program, &root, &signature, &weights, options)
        .map_err(|e| e.context(&entry))
        .map_err(|e| newer(e, &program))?;
    // Fake tensors at export give strides that differ from those of the real kernels in some
    // operators. Later stages take strides as true.
    inrush_aten::layouts::correct(&mut converted.graph)?;
    if let Some(c) = call {
        converted.graph.in_tree = Some(c.in_spec.to_string());
        converted.graph.out_tree = Some(c.out_spec.to_string());
    }
    notes.extend(converted.notes);

    // A model without sample inputs compiles; `inrush run` then needs inputs from its caller.
    let sample_entry = format!("{root}/data/sample_inputs/{name}.pt");
    let samples = if !archive.contains(&sample_entry) {
        Err(format!("the archive holds no `{sample_entry}`"))
    } else {
        sample::read(&archive, &sample_entry, signature.in_tree.as_ref())
            .map_err(|e| format!("`{sample_entry}`: {e}"))
    };
    let x = &converted.graph.exprs;
    let hints = (x.symbols().into_iter())
        .filter_map(|s| {
            let info = x.sym_info(s);
            Some((info.name, info.hint?))
        })
        .collect();
    let version = program.schema_version;
    Ok(Model {
        hints,
        graph: converted.graph,
        weights,
        signature,
        samples,
        torch_version: (program.torch_version.as_deref())
            .unwrap_or_default()
            .to_string(),
        schema_version: (version.major, version.minor),
        notes,
    })
}

/// Returns the one folder at the top.
/// Other formats that are zips too are told apart, so that the error says what the file is.
fn root(archive: &Archive) -> Result<String> {
    let format = "/archive_format";
    if let Some(root) = archive
        .names()
        .find_map(|n| n.strip_suffix(format).filter(|r| !r.contains('/')))
    {
        return Ok(root.to_string());
    }
    let ends = |suffix: &str| archive.names().any(|n| n.ends_with(suffix));
    Err(Error::unsupported(
        if ends("serialized_exported_program.json") {
            "an archive as torch wrote it before 2.6; export it again with torch 2.11 or newer"
        } else if ends("/constants.pkl") {
            "a TorchScript archive, not one of torch.export"
        } else if ends("/data.pkl") {
            "a checkpoint of torch.save, not an archive of torch.export"
        } else {
            "a zip, but not an archive of torch.export: it holds no `archive_format`"
        },
    ))
}

/// Checks format, version and byte order of the container. Weights are used in place, so their
/// order must be that of the machine.
fn check_container(archive: &Archive, root: &str) -> Result<()> {
    let text = |name: &str| -> Result<String> {
        let bytes = archive.read(&format!("{root}/{name}"))?;
        Ok(crate::lex::shorten(String::from_utf8_lossy(bytes).trim()))
    };
    let format = text("archive_format")?;
    if format != "pt2" {
        return Err(Error::unsupported(format!(
            "an archive of format `{format}`"
        )));
    }
    let version = text("archive_version")?;
    if version != "0" {
        return Err(Error::unsupported(format!(
            "an archive of version {version}; this reader knows version 0"
        )));
    }
    for order in ["byteorder", ".data/byteorder"] {
        if archive.contains(&format!("{root}/{order}")) && text(order)? != "little" {
            return Err(Error::unsupported("weights are not little-endian"));
        }
    }
    Ok(())
}

/// Returns the model to read: the wanted one, the only one, or the one called `model`, which is
/// the name that `torch.export.save` gives.
fn model_name(archive: &Archive, root: &str, wanted: Option<&str>) -> Result<String> {
    let folder = format!("{root}/models/");
    let names: Vec<&str> = archive
        .names()
        .filter_map(|n| n.strip_prefix(&folder)?.strip_suffix(".json"))
        .collect();
    let one = match (wanted, names.as_slice()) {
        (Some(w), _) => names.iter().find(|n| **n == w),
        (None, [one]) => Some(one),
        (None, _) => names.iter().find(|n| **n == "model"),
    };
    match one {
        Some(n) => Ok(n.to_string()),
        None if names.is_empty() => Err(Error::unsupported(
            "the archive holds no exported program (a package of compiled code?)",
        )),
        None => Err(Error::input(format!(
            "which model? The archive holds {}",
            names.join(", ")
        ))),
    }
}

/// Reads the program. If it cannot be read, the error is about its version where that explains
/// it.
fn program(text: &[u8]) -> Result<ExportedProgram<'_>> {
    match json::parse::<ExportedProgram>(text) {
        Ok(p) if p.schema_version.major == MAJOR => Ok(p),
        Ok(p) => Err(wrong_major(p.schema_version, p.torch_version.as_deref())),
        // The version comes after the graph. Read it alone before reporting a mistake of the graph.
        Err(e) => match json::parse::<Versions>(text) {
            Ok(v) if v.schema_version.major != MAJOR => {
                Err(wrong_major(v.schema_version, v.torch_version.as_deref()))
            }
            Ok(v) if v.schema_version.minor > MINOR => Err(e.context(format!(
                "schema {MAJOR}.{} is newer than {MAJOR}.{MINOR}, which this reader was written for",
                v.schema_version.minor
            ))),
            _ => Err(e),
        },
    }
}

fn wrong_major(v: schema::SchemaVersion, torch: Option<&str>) -> Error {
    Error::unsupported(format!(
        "schema {}.{} (torch {}); this reader knows schema {MAJOR}, which torch 2.11 to 2.15 write",
        v.major,
        v.minor,
        torch.unwrap_or("unknown")
    ))
}

/// Adds to an error that the archive is newer than the reader, if it is.
fn newer(e: Error, program: &ExportedProgram) -> Error {
    let v = program.schema_version;
    if v.minor <= MINOR {
        return e;
    }
    e.context(format!(
        "schema {}.{} is newer than {MAJOR}.{MINOR}, which this reader was written for",
        v.major, v.minor
    ))
}

/// Builds nesting and names from the tree specifications of the root module's call.
fn signature(program: &ExportedProgram, call: &schema::CallSignature) -> Result<Signature> {
    let mut tuples = BTreeMap::new();
    // A tree specification names a named tuple's class only; its fields stand here.
    for (class, def) in &program.graph_module.treespec_namedtuple_fields.0 {
        let fields: Vec<String> = def.field_names.iter().map(|f| f.to_string()).collect();
        tuples.insert(class.to_string(), fields);
    }
    let fields = |class: &str| tuples.get(class).cloned();
    let in_tree = Tree::parse(&call.in_spec, &fields)?;
    let out_tree = Tree::parse(&call.out_spec, &fields)?;
    let names: Vec<String> = (call.forward_arg_names.iter().flatten())
        .map(|n| n.to_string())
        .collect();
    Ok(Signature {
        input_names: in_tree.input_names(&names),
        output_names: out_tree.paths(),
        in_tree: Some(in_tree),
        out_tree: Some(out_tree),
    })
}

impl Model {
    /// Returns the values that symbols had at export, by name.
    pub fn hints(&self) -> Vec<(String, i64)> {
        self.hints.clone()
    }

    /// Returns a few lines for people: what goes in, what comes out, which operators are called how
    /// often.
    pub fn summary(&self) -> String {
        let g = &self.graph;
        let x = &g.exprs;
        let show = |ty: &Type| match ty {
            Type::Tensor(t) => format!("{}{}", t.dtype, x.show_list(&t.sizes)),
            Type::Int(e) => format!("int {}", x.show(*e)),
            Type::Float => "float".into(),
            Type::Bool => "bool".into(),
            Type::Constant(s) => format!("always {s}"),
            Type::None => "none".into(),
            Type::Opaque(what) => what.clone(),
        };
        let mut out = String::new();
        let (major, minor) = self.schema_version;
        _ = writeln!(
            out,
            "{} (torch {}, schema {major}.{minor})",
            g.name, self.torch_version
        );
        for line in x.show_decls() {
            _ = writeln!(out, "  {line}");
        }
        for i in &g.inputs {
            if let InputKind::User { index } = i.kind {
                let v = g.value(i.value);
                let name = self.signature.input_names.get(index).unwrap_or(&v.name);
                _ = writeln!(out, "  input {index} {name}: {}", show(&v.ty));
            }
        }
        for o in &g.outputs {
            let what = match &o.value {
                OutputValue::Value(v) => show(&g.value(*v).ty),
                OutputValue::Scalar(s) => s.to_string(),
                OutputValue::None => "none".into(),
            };
            match o.kind {
                OutputKind::User { index } => {
                    let name = self.signature.output_names.get(index);
                    let name = name.map(String::as_str).unwrap_or_default();
                    _ = writeln!(out, "  output {index} {name}: {what}");
                }
                OutputKind::Mutation { input } => {
                    let name = &g.value(g.inputs[input].value).name;
                    _ = writeln!(out, "  writes {name}: {what}");
                }
            }
        }
        for guard in &g.guards {
            _ = writeln!(
                out,
                "  guard {} {:?} {}",
                x.show(guard.left),
                guard.relation,
                x.show(guard.right)
            );
        }
        _ = writeln!(
            out,
            "  {} weights, {:.1} MB; {} nodes:",
            self.weights.iter().count(),
            self.weights.total_bytes() as f64 / 1e6,
            g.nodes.len()
        );
        for (op, n) in self.operators() {
            _ = writeln!(out, "  {n:6} {op}");
        }
        for note in &self.notes {
            _ = writeln!(out, "  note: {note}");
        }
        if let Err(why) = &self.samples {
            _ = writeln!(out, "  no sample inputs: {why}");
        }
        out
    }

    /// Returns the operators with their numbers of calls, most frequent first. Those of bodies count once.
    pub fn operators(&self) -> Vec<(&str, usize)> {
        fn add<'g>(graph: &'g Graph, count: &mut BTreeMap<&'g str, usize>) {
            for n in &graph.nodes {
                *count.entry(&n.op).or_default() += 1;
            }
            graph.bodies.iter().for_each(|b| add(b, count));
        }
        let mut count = BTreeMap::new();
        add(&self.graph, &mut count);
        let mut out: Vec<_> = count.into_iter().collect();
        out.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        out
    }
}
