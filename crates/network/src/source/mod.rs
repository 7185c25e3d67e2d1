//! Reads ONNX files and prepares their graphs.

pub(crate) mod attributes;
pub(crate) mod constants;
mod external;
pub(crate) mod flat;
mod functions;
mod inputs;
pub(crate) mod names;
mod tables;

use std::collections::HashSet;
use std::path::Path;

use gatestream::model::{FileKind, LoadError};
use prost::Message;
use tract_onnx::pb::{GraphProto, ModelProto, OperatorSetIdProto, ValueInfoProto};

use self::attributes::is_standard;
use self::constants::Constants;
pub(crate) use self::tables::{Table, TableRead, is_plain_product};
use crate::NetworkError;
pub(crate) use inputs::{fix_shape, fix_value, input, input_of, of_any_size};

/// The supported opsets.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=26;

/// Largest file, and largest external data together.
const MAX_BYTES: u64 = 8 << 30;

/// Reads a file, with the data that it keeps in others.
pub(crate) fn open(path: &Path) -> Result<ModelProto, NetworkError> {
    prepare(&read(path)?, Some(folder_of(path)), None)
}

/// As [`open`], with the large constants beside the graph.
pub(crate) fn open_shared(path: &Path) -> Result<Source, NetworkError> {
    shared(&read(path)?, Some(folder_of(path)))
}

/// As [`open_shared`], of the bytes of a file. `folder`: where it may keep other data.
pub(crate) fn shared(bytes: &[u8], folder: Option<&Path>) -> Result<Source, NetworkError> {
    let mut constants = Constants::default();
    let mut model = prepare(bytes, folder, Some(&mut constants))?;
    model
        .graph
        .iter_mut()
        .for_each(|graph| constants.take(graph));
    Ok(Source { model, constants })
}

/// A prepared model.
pub(crate) struct Source {
    pub model: ModelProto,
    /// Its large constants, to which the graph refers.
    pub constants: Constants,
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent();
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Reads a file of any opset for questions about it, without its external data.
pub(crate) fn describe(path: &Path) -> Result<ModelProto, NetworkError> {
    let bytes = read(path)?;
    let mut model = decode(&bytes)?;
    let mut graph = (model.graph.take()).ok_or_else(|| malformed("it has no graph"))?;
    let functions = functions::read(std::mem::take(&mut model.functions), &bytes)?;
    functions::inline(&mut graph, &functions, &model.opset_import)?;
    names::complete(&mut graph);
    model.graph = Some(graph);
    Ok(model)
}

fn read(path: &Path) -> Result<Vec<u8>, NetworkError> {
    let failed = |why| NetworkError::Read {
        path: path.to_owned(),
        why,
    };
    let length = std::fs::metadata(path).map_err(failed)?.len();
    // A file of another program says how it becomes a graph.
    match FileKind::of(path) {
        Ok(FileKind::Onnx) | Err(LoadError::UnknownFormat { .. }) => {}
        Ok(_) => return Err(malformed("it holds tensors without a graph")),
        Err(LoadError::Foreign { found, way, .. }) => {
            return Err(malformed(format!("this is {found}; {way}")));
        }
        Err(LoadError::Io { source, .. }) => return Err(failed(source)),
        Err(other) => return Err(malformed(other.to_string())),
    }
    if length > MAX_BYTES {
        return Err(malformed(format!(
            "the file has {length} bytes; the maximum is {MAX_BYTES}"
        )));
    }
    std::fs::read(path).map_err(failed)
}

fn decode(bytes: &[u8]) -> Result<ModelProto, NetworkError> {
    if bytes.is_empty() {
        return Err(malformed("the file is empty"));
    }
    ModelProto::decode(bytes).map_err(|why| malformed(why.to_string()))
}

/// The inputs of a graph that a run needs: before IR version 4 every constant is also an input.
pub(crate) fn inputs_of(graph: &GraphProto) -> impl Iterator<Item = &ValueInfoProto> {
    let constants = graph.initializer.iter().map(|tensor| tensor.name.as_str());
    let constants: HashSet<&str> = constants.collect();
    let inputs = graph.input.iter();
    inputs.filter(move |input| !constants.contains(input.name.as_str()))
}

/// Reads the bytes of a file. `folder`: where it may keep other data; `constants`: as for
/// [`external::load`].
fn prepare(
    bytes: &[u8],
    folder: Option<&Path>,
    constants: Option<&mut Constants>,
) -> Result<ModelProto, NetworkError> {
    let mut model = decode(bytes)?;
    check_opset(&model)?;
    let mut graph = (model.graph.take()).ok_or_else(|| malformed("it has no graph"))?;
    let functions = functions::read(std::mem::take(&mut model.functions), bytes)?;
    functions::inline(&mut graph, &functions, &model.opset_import)?;
    // Afterwards: constants in the bodies of functions may have external data, too.
    external::load(&mut graph, folder, constants)?;
    names::complete(&mut graph);
    if graph.output.is_empty() {
        return Err(malformed("the graph has no outputs"));
    }
    model.graph = Some(graph);
    Ok(model)
}

/// The versions of the ONNX operator set among these imports: of a prepared model, one.
pub(crate) fn opsets(imports: &[OperatorSetIdProto]) -> impl Iterator<Item = i64> {
    let imports = imports.iter();
    let standard = imports.filter(|set| is_standard(&set.domain));
    standard.map(|set| set.version)
}

fn check_opset(model: &ModelProto) -> Result<(), NetworkError> {
    let mut versions = opsets(&model.opset_import);
    let Some(first) = versions.next() else {
        return Err(malformed("it imports no version of the ONNX operator set"));
    };
    if let Some(other) = versions.find(|other| *other != first) {
        return Err(malformed(format!(
            "it imports the versions {first} and {other} of the ONNX operator set; keep one"
        )));
    }
    if OPSETS.contains(&first) {
        Ok(())
    } else {
        Err(NetworkError::Opset {
            found: first,
            oldest: *OPSETS.start(),
            newest: *OPSETS.end(),
        })
    }
}

pub(crate) fn malformed(why: impl Into<String>) -> NetworkError {
    NetworkError::Malformed(why.into())
}

/// The names of the nodes of a graph and of the graphs within.
pub(crate) fn node_names(graph: &GraphProto) -> Vec<&str> {
    let mut found = Vec::new();
    for node in &graph.node {
        found.push(node.name.as_str());
        names::subgraphs(node).for_each(|inner| found.extend(node_names(inner)));
    }
    found
}

/// The graph of a prepared model.
pub(crate) fn graph(model: &ModelProto) -> &GraphProto {
    model.graph.as_ref().expect("a prepared model has a graph")
}
