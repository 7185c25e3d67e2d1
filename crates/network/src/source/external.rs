//! Data that a model keeps in other files.
//!
//! A path must be relative and stay within the folder of the model, also through links.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use tract_onnx::pb::tensor_proto::DataLocation;
use tract_onnx::pb::{GraphProto, TensorProto};

use super::MAX_BYTES;
use super::names::subgraphs_mut;
use crate::NetworkError;

/// Reads the external data of all tensors of a graph and those within.
pub(super) fn load(graph: &mut GraphProto, folder: Option<&Path>) -> Result<(), NetworkError> {
    let mut left = MAX_BYTES;
    load_in(graph, folder, &mut left)
}

fn load_in(
    graph: &mut GraphProto,
    folder: Option<&Path>,
    left: &mut u64,
) -> Result<(), NetworkError> {
    for tensor in &mut graph.initializer {
        load_tensor(tensor, folder, left)?;
    }
    for node in &mut graph.node {
        for attribute in &mut node.attribute {
            for tensor in attribute.t.iter_mut().chain(&mut attribute.tensors) {
                load_tensor(tensor, folder, left)?;
            }
        }
        for inner in subgraphs_mut(node) {
            load_in(inner, folder, left)?;
        }
    }
    Ok(())
}

fn load_tensor(
    tensor: &mut TensorProto,
    folder: Option<&Path>,
    left: &mut u64,
) -> Result<(), NetworkError> {
    if tensor.data_location != Some(DataLocation::External as i32) {
        return Ok(());
    }
    let read = folder
        .ok_or_else(|| "the model was not read from a folder; open it by its path".to_owned())
        .and_then(|folder| read(tensor, folder, left));
    let data = read.map_err(|why| NetworkError::ExternalData {
        tensor: tensor.name.clone(),
        why,
    })?;
    tensor.raw_data = data;
    tensor.external_data.clear();
    tensor.data_location = None;
    Ok(())
}

fn read(tensor: &TensorProto, folder: &Path, left: &mut u64) -> Result<Vec<u8>, String> {
    let entry = |key: &str| {
        let entries = tensor.external_data.iter();
        let mut of_key = entries.filter(|entry| entry.key == key);
        of_key.next().map(|entry| entry.value.as_str())
    };
    let number = |key: &str| match entry(key) {
        None => Ok(None),
        Some(text) => match text.parse::<u64>() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(format!("{key} {text:?} is no number of bytes")),
        },
    };
    let location = entry("location").ok_or("it has no location")?;
    let path = within(folder, Path::new(location))?;
    let mut file = File::open(&path).map_err(|why| format!("{}: {why}", path.display()))?;
    let has = file.metadata().map_err(|why| why.to_string())?.len();
    let offset = number("offset")?.unwrap_or(0);
    let length = match number("length")? {
        Some(length) => length,
        None => has.saturating_sub(offset),
    };
    if offset.checked_add(length).is_none_or(|end| end > has) {
        return Err(format!(
            "{length} bytes from byte {offset} of {location:?}, which has {has} bytes"
        ));
    }
    *left = left
        .checked_sub(length)
        .ok_or_else(|| format!("all external data exceeds {MAX_BYTES} bytes"))?;
    file.seek(SeekFrom::Start(offset))
        .map_err(|why| why.to_string())?;
    let mut data = Vec::new();
    let got = file.take(length).read_to_end(&mut data);
    got.map_err(|why| format!("{location:?}: {why}"))?;
    Ok(data)
}

/// The file of this name in the folder.
fn within(folder: &Path, location: &Path) -> Result<PathBuf, String> {
    let is_plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if !location.components().all(is_plain) {
        return Err(format!(
            "location {:?} is outside of the model's folder; use a relative path without `..`",
            location.display().to_string()
        ));
    }
    let path = folder.join(location);
    let real = |path: &Path| {
        let real = path.canonicalize();
        real.map_err(|why| format!("{}: {why}", path.display()))
    };
    match real(&path)?.starts_with(real(folder)?) {
        true => Ok(path),
        false => Err(format!(
            "location {:?} links to a file outside of the model's folder",
            location.display().to_string()
        )),
    }
}
