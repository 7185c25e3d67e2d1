//! Writes a model to a safetensors file.
//!
//! ```text
//! header: the metadata, then name, dtype, shape and byte range of each tensor
//! data:   tensor by tensor, little-endian, each matrix in its precision
//! ```
//!
//! The `safetensors` crate's writer keeps the metadata in an unordered map. Here equal models give
//! equal bytes, and writing needs memory for one row beside the model.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use safetensors::tensor::{Dtype, TensorInfo};

use super::header::MAX_HEADER;
use super::metadata::Metadata;
use super::tensors::scale_name;
use crate::atomic_file;
use crate::model::{Matrix, Model, Precision, SaveError};
use gatestream_kernels::Numbers;

impl Model {
    /// Writes the model to a safetensors file that [`Model::from_safetensors`] reads back. Each
    /// matrix is written in its precision: F32, BF16, or I8 with a scale for each row. The file is
    /// replaced atomically: after an error the old file is unchanged. Equal models give equal
    /// bytes.
    ///
    /// ```
    /// use gatestream::model::{Lstm, Model, Precision};
    /// let path = std::env::temp_dir().join("gatestream-doc-save.safetensors");
    /// let model = Lstm::new(64, 256).random(1)?.in_precision(Precision::Int8)?;
    /// model.save_safetensors(&path)?;
    /// assert_eq!(Model::open(&path)?, model);
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SaveError::Unsupported`] for a layer without input features, for more tensors than fit in
    /// the header, and for an activation parameter or a clip that is not finite. [`SaveError::Io`]
    /// if the file cannot be written.
    pub fn save_safetensors(&self, path: impl AsRef<Path>) -> Result<(), SaveError> {
        let path = path.as_ref();
        let file = File::of(self)?;
        atomic_file::write(path, |out| file.write(out)).map_err(|source| SaveError::Io {
            path: path.into(),
            source,
        })
    }

    /// The bytes of the file that [`Model::save_safetensors`] writes.
    ///
    /// ```
    /// use gatestream::model::{Lstm, Model, SafetensorsOptions};
    /// let model = Lstm::new(4, 8).random(1)?;
    /// let bytes = model.to_safetensors()?;
    /// let read = Model::from_safetensors(&bytes, &SafetensorsOptions::new())?;
    /// assert_eq!(read, model);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SaveError::Unsupported`], as [`Model::save_safetensors`].
    pub fn to_safetensors(&self) -> Result<Vec<u8>, SaveError> {
        let file = File::of(self)?;
        let data: usize = file.tensors.iter().map(OutputTensor::bytes).sum();
        let mut bytes = Vec::with_capacity(8 + file.header.len() + data);
        file.write(&mut bytes).map_err(|source| SaveError::Io {
            path: "memory".into(),
            source,
        })?;
        Ok(bytes)
    }
}

/// The contents of a file.
struct File<'m> {
    header: Vec<u8>,
    tensors: Vec<OutputTensor<'m>>,
}

impl<'m> File<'m> {
    fn of(model: &'m Model) -> Result<File<'m>, SaveError> {
        let tensors = tensors(model)?;
        let header = header(&Metadata::of(model), &tensors)?;
        Ok(File { header, tensors })
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&(self.header.len() as u64).to_le_bytes())?;
        out.write_all(&self.header)?;
        self.tensors.iter().try_for_each(|tensor| tensor.write(out))
    }
}

struct OutputTensor<'m> {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    content: Content<'m>,
}

enum Content<'m> {
    Vectors(Vec<&'m [f32]>),
    Matrix(&'m Matrix),
}

impl<'m> OutputTensor<'m> {
    fn vectors(name: String, shape: Vec<usize>, values: Vec<&'m [f32]>) -> OutputTensor<'m> {
        OutputTensor {
            name,
            dtype: Dtype::F32,
            shape,
            content: Content::Vectors(values),
        }
    }

    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }

    fn write(&self, file: &mut dyn Write) -> io::Result<()> {
        let mut floats = |values: &[f32]| {
            let mut values = values.iter();
            values.try_for_each(|value| file.write_all(&value.to_le_bytes()))
        };
        match &self.content {
            Content::Vectors(parts) => parts.iter().copied().try_for_each(floats),
            Content::Matrix(matrix) => match matrix.numbers() {
                Numbers::F32(values) => floats(values),
                Numbers::Bf16(halves) => {
                    let mut halves = halves.iter();
                    halves.try_for_each(|half| file.write_all(&half.to_le_bytes()))
                }
                Numbers::Int8 { whole, .. } => {
                    whole.chunks(matrix.cols().max(1)).try_for_each(|row| {
                        let row: Vec<u8> = row.iter().map(|&q| q as u8).collect();
                        file.write_all(&row)
                    })
                }
            },
        }
    }
}

/// All tensors in the file's order: by width of the dtype, widest first, which keeps every tensor
/// aligned; then by name.
fn tensors(model: &Model) -> Result<Vec<OutputTensor<'_>>, SaveError> {
    let mut tensors = Vec::new();
    for (index, layer) in model.layers().iter().enumerate() {
        if layer.input_size() == 0 {
            let what = format!("layer {index}, which has no input features; use 1 or more");
            return Err(SaveError::Unsupported { what });
        }
        for direction in layer.directions() {
            let suffix = if direction.is_reverse() {
                "_reverse"
            } else {
                ""
            };
            let name = |part: &str| format!("{part}_l{index}{suffix}");
            let weights = direction.weights();
            let matrices = [
                ("weight_ih", Some(&weights.input)),
                ("weight_hh", Some(&weights.recurrent)),
                ("weight_hr", weights.projection.as_ref()),
            ];
            for (part, matrix) in matrices {
                if let Some(matrix) = matrix {
                    add_matrix(&mut tensors, name(part), matrix);
                }
            }
            for (part, bias) in [
                ("bias_ih", &weights.input_bias),
                ("bias_hh", &weights.recurrent_bias),
            ] {
                tensors.push(OutputTensor::vectors(
                    name(part),
                    vec![bias.len()],
                    vec![bias],
                ));
            }
            if let Some(p) = &weights.peepholes {
                let rows = vec![&p.input[..], &p.forget, &p.output];
                let shape = vec![3, direction.hidden_size()];
                tensors.push(OutputTensor::vectors(name("peephole"), shape, rows));
            }
        }
    }
    let width = |tensor: &OutputTensor<'_>| std::cmp::Reverse(tensor.dtype.bitsize());
    tensors.sort_by(|a, b| (width(a), &a.name).cmp(&(width(b), &b.name)));
    Ok(tensors)
}

/// Adds a matrix and, if it is int8, its scales.
fn add_matrix<'m>(tensors: &mut Vec<OutputTensor<'m>>, name: String, matrix: &'m Matrix) {
    let dtype = match matrix.precision() {
        Precision::F32 => Dtype::F32,
        Precision::Bf16 => Dtype::BF16,
        Precision::Int8 => Dtype::I8,
    };
    if matrix.precision() == Precision::Int8 {
        let scales = matrix.scales();
        let scale = scale_name(&name);
        tensors.push(OutputTensor::vectors(
            scale,
            vec![scales.len()],
            vec![scales],
        ));
    }
    tensors.push(OutputTensor {
        name,
        dtype,
        shape: vec![matrix.rows(), matrix.cols()],
        content: Content::Matrix(matrix),
    });
}

/// The header's JSON, padded to align the data as the format requires.
fn header(metadata: &Metadata, tensors: &[OutputTensor<'_>]) -> Result<Vec<u8>, SaveError> {
    let unsupported = |what: String| SaveError::Unsupported { what };
    let json = |error: serde_json::Error| unsupported(error.to_string());
    let entries: BTreeMap<&str, String> = metadata.entries()?.into_iter().collect();
    let entries = serde_json::to_string(&entries).map_err(json)?;
    let mut header = format!("{{\"__metadata__\":{entries}");
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.bytes();
        let info = TensorInfo {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            data_offsets: (start, end),
        };
        let name = serde_json::to_string(&tensor.name).map_err(json)?;
        let info = serde_json::to_string(&info).map_err(json)?;
        header += &format!(",{name}:{info}");
        start = end;
    }
    header.push('}');
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    if header.len() > MAX_HEADER {
        return Err(unsupported(format!(
            "a model with {} tensors: their header would have {} bytes; at most {MAX_HEADER} are \
             supported",
            tensors.len(),
            header.len()
        )));
    }
    Ok(header.into_bytes())
}
