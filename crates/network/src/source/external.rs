//! Data that a model keeps in other files.
//!
//! A path must be relative and stay within the folder of the model, also through links; `a/../b`
//! is `b`.
//!
//! Data is read, not mapped: the values stay as they are when the file is replaced or cut off. With
//! a map, values would change, and reading past the new end would end the process. Large constants
//! are read once, into the memory that all plans share; tract's tensors own their memory anyway.
//! Large [`tables`] stay in their file: a run reads the rows that it needs, and a matrix is read
//! when the first plan packs it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use tract_onnx::pb::tensor_proto::{DataLocation, DataType};
use tract_onnx::pb::{GraphProto, TensorProto};
use tract_onnx::prelude::{DatumType, Tensor};

use super::MAX_BYTES;
use super::constants::{Constants, MIN_BYTES, is_value};
use super::names::subgraphs_mut;
use super::tables::{self, Table};
use crate::NetworkError;

/// The start of a pointer of git-lfs.
const GIT_LFS: &[u8; 36] = b"version https://git-lfs.github.com/s";

/// Reads the external data of all tensors of a graph and those within. Large constants are added to
/// `constants`, if it is there; all others are written into the graph.
pub(super) fn load(
    graph: &mut GraphProto,
    folder: Option<&Path>,
    constants: Option<&mut Constants>,
) -> Result<(), NetworkError> {
    let mut reader = Reader {
        folder,
        left: MAX_BYTES,
        // Those of branches and bodies are read as a whole.
        tables: tables::names(graph),
        constants,
    };
    reader.load(graph)
}

struct Reader<'a> {
    folder: Option<&'a Path>,
    /// Bytes that may still be read.
    left: u64,
    constants: Option<&'a mut Constants>,
    /// The names of constants that are read by rows alone.
    tables: Vec<String>,
}

/// A part of a file.
struct Part {
    file: File,
    path: PathBuf,
    /// Where it begins, in bytes.
    offset: u64,
    /// In bytes.
    length: u64,
}

impl Reader<'_> {
    fn load(&mut self, graph: &mut GraphProto) -> Result<(), NetworkError> {
        for tensor in &mut graph.initializer {
            self.load_tensor(tensor, true)?;
        }
        self.tables.clear();
        for node in &mut graph.node {
            let may_share = is_value(node);
            for attribute in &mut node.attribute {
                for tensor in attribute.t.iter_mut().chain(&mut attribute.tensors) {
                    self.load_tensor(tensor, may_share && attribute.name == "value")?;
                }
            }
            for inner in subgraphs_mut(node) {
                self.load(inner)?;
            }
        }
        Ok(())
    }

    fn load_tensor(
        &mut self,
        tensor: &mut TensorProto,
        may_share: bool,
    ) -> Result<(), NetworkError> {
        if tensor.data_location != Some(DataLocation::External as i32) {
            return Ok(());
        }
        let read = self.read(tensor, may_share);
        read.map_err(|why| NetworkError::ExternalData {
            tensor: tensor.name.clone(),
            why,
        })
    }

    fn read(&mut self, tensor: &mut TensorProto, may_share: bool) -> Result<(), String> {
        let folder =
            { self.folder }.ok_or("the model was not read from a folder; open it by its path")?;
        let mut part = part(tensor, folder)?;
        self.left = { self.left.checked_sub(part.length) }
            .ok_or_else(|| format!("all external data exceeds {MAX_BYTES} bytes"))?;
        if let Some(constants) = &mut self.constants
            && may_share
            && part.length >= MIN_BYTES as u64
            && let Some(datum) = shared_type(tensor)
        {
            let shape = part.shape(datum, &tensor.dims)?;
            if shape.len() > 1
                && part.length >= tables::MIN_BYTES
                && self.tables.contains(&tensor.name)
            {
                let table = Table {
                    file: part.file,
                    path: part.path,
                    offset: part.offset,
                    datum,
                    shape,
                };
                constants.add_table(tensor, table);
            } else {
                constants.add(tensor, part.read_values(datum, &shape)?);
            }
            return Ok(());
        }
        let mut data = Vec::new();
        part.read(|file| file.read_to_end(&mut data).map(drop))?;
        tensor.raw_data = data;
        tensor.external_data.clear();
        tensor.data_location = None;
        Ok(())
    }
}

/// The type of the elements, if any bytes are values of it.
fn shared_type(tensor: &TensorProto) -> Option<DatumType> {
    let datum = DataType::try_from(tensor.data_type).ok()?.try_into().ok()?;
    match datum {
        DatumType::Bool | DatumType::String => None,
        datum => Some(datum),
    }
}

impl Part {
    fn read(
        &mut self,
        read: impl FnOnce(&mut std::io::Take<&mut File>) -> std::io::Result<()>,
    ) -> Result<(), String> {
        let read = read(&mut Read::take(&mut self.file, self.length));
        read.map_err(|why| format!("{}: {why}", self.path.display()))
    }

    /// The shape of a tensor, whose bytes these are.
    fn shape(&self, datum: DatumType, dims: &[i64]) -> Result<Vec<usize>, String> {
        let shape: Vec<usize> = { dims.iter() }
            .map(|&size| usize::try_from(size).map_err(|_| format!("an axis has the size {size}")))
            .collect::<Result<_, _>>()?;
        let mut sizes = shape.iter().map(|&size| size as u64);
        let needed = sizes.try_fold(datum.size_of() as u64, u64::checked_mul);
        if needed == Some(self.length) {
            return Ok(shape);
        }
        Err(format!(
            "{} bytes are not a tensor of the shape {shape:?} with elements of {} bytes",
            self.length,
            datum.size_of()
        ))
    }

    fn read_values(&mut self, datum: DatumType, shape: &[usize]) -> Result<Tensor, String> {
        let failed = |why| format!("{why:#}");
        let mut values = Tensor::zero_dt(datum, shape).map_err(failed)?;
        let mut plain = values.try_as_plain_ram_mut().map_err(failed)?;
        self.read(|file| file.read_exact(plain.as_bytes_mut()))?;
        Ok(values)
    }
}

/// Finds the data of a tensor.
fn part(tensor: &TensorProto, folder: &Path) -> Result<Part, String> {
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
    let path = within(folder, location)?;
    let mut file = File::open(&path).map_err(|why| format!("{}: {why}", path.display()))?;
    let has = file.metadata().map_err(|why| why.to_string())?.len();
    let offset = number("offset")?.unwrap_or(0);
    let length = match number("length")? {
        Some(length) => length,
        None => has.saturating_sub(offset),
    };
    if offset.checked_add(length).is_none_or(|end| end > has) {
        let mut start = [0; GIT_LFS.len()];
        if file.read_exact(&mut start).is_ok() && start == *GIT_LFS {
            return Err(format!(
                "{location:?} is a pointer of git-lfs, which stands for the data; `git lfs pull` \
                 in its repository gets the data itself"
            ));
        }
        return Err(format!(
            "{length} bytes from byte {offset} of {location:?}, which has {has} bytes"
        ));
    }
    file.seek(SeekFrom::Start(offset))
        .map_err(|why| why.to_string())?;
    Ok(Part {
        file,
        path,
        offset,
        length,
    })
}

/// The file of this name in the folder.
fn within(folder: &Path, location: &str) -> Result<PathBuf, String> {
    let outside =
        || format!("location {location:?} is outside of the model's folder; move the data into it");
    let mut plain = PathBuf::new();
    for part in Path::new(location).components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::CurDir => {}
            Component::ParentDir if plain.pop() => {}
            _ => return Err(outside()),
        }
    }
    let path = folder.join(plain);
    let real = |path: &Path| {
        let real = path.canonicalize();
        real.map_err(|why| format!("{}: {why}", path.display()))
    };
    if real(&path)?.starts_with(real(folder)?) {
        Ok(path)
    } else {
        Err(format!(
            "location {location:?} links to a file outside of the model's folder"
        ))
    }
}
