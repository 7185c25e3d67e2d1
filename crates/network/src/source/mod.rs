//! Reads ONNX files and prepares their graphs.

mod branches;
mod external;
mod functions;
mod names;
mod rewrites;

use std::path::Path;

use prost::Message;
use tract_onnx::pb::{GraphProto, ModelProto};

use crate::NetworkError;
pub(crate) use branches::decide_branches;

/// The supported opsets.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=26;

/// Largest file, and largest external data together.
const MAX_BYTES: u64 = 8 << 30;

/// Reads a file, with the data that it keeps in others.
pub(crate) fn open(path: &Path) -> Result<ModelProto, NetworkError> {
    let read = |why| NetworkError::Read {
        path: path.to_owned(),
        why,
    };
    let length = std::fs::metadata(path).map_err(read)?.len();
    if length > MAX_BYTES {
        return Err(malformed(format!(
            "the file has {length} bytes; the maximum is {MAX_BYTES}"
        )));
    }
    let bytes = std::fs::read(path).map_err(read)?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    prepare(&bytes, Some(folder.unwrap_or(Path::new("."))))
}

/// Reads the bytes of a file. `folder`: where it may keep other data.
pub(crate) fn prepare(bytes: &[u8], folder: Option<&Path>) -> Result<ModelProto, NetworkError> {
    if bytes.is_empty() {
        return Err(malformed("the file is empty"));
    }
    let mut model = ModelProto::decode(bytes).map_err(|why| malformed(why.to_string()))?;
    check_opset(&model)?;
    let mut graph = (model.graph.take()).ok_or_else(|| malformed("it has no graph"))?;
    external::load(&mut graph, folder)?;
    functions::inline(&mut graph, &std::mem::take(&mut model.functions))?;
    names::complete(&mut graph);
    rewrites::rewrite(&mut graph);
    if graph.output.is_empty() {
        return Err(malformed("the graph has no outputs"));
    }
    model.graph = Some(graph);
    Ok(model)
}

fn check_opset(model: &ModelProto) -> Result<(), NetworkError> {
    let imports = model.opset_import.iter();
    let mut versions = imports.filter(|set| matches!(set.domain.as_str(), "" | "ai.onnx"));
    let Some(first) = versions.next() else {
        return Err(malformed("it imports no version of the ONNX operator set"));
    };
    if let Some(other) = versions.find(|other| other.version != first.version) {
        return Err(malformed(format!(
            "it imports the versions {} and {} of the ONNX operator set; keep one",
            first.version, other.version
        )));
    }
    match OPSETS.contains(&first.version) {
        true => Ok(()),
        false => Err(NetworkError::Opset {
            found: first.version,
            oldest: *OPSETS.start(),
            newest: *OPSETS.end(),
        }),
    }
}

pub(crate) fn malformed(why: impl Into<String>) -> NetworkError {
    NetworkError::Malformed(why.into())
}

/// The graph of a prepared model.
pub(crate) fn graph(model: &ModelProto) -> &GraphProto {
    model.graph.as_ref().expect("a prepared model has a graph")
}
