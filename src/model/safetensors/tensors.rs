//! Named tensors in a safetensors file, widened to `f32`.
//!
//! ```text
//! file = header length (8 bytes, little-endian) · header (JSON) · data
//! header = { "__metadata__": { key: text … }, name: { dtype, shape, data_offsets: [from, to] } … }
//! ```
//!
//! The `safetensors` crate checks that the byte ranges follow each other from 0 without gap or
//! overlap and that each is as long as its shape and dtype ask. Its own reader of whole files is
//! not used, because it
//! - keeps the last of two tensors with one name (both are refused here);
//! - adds the header's length to the last range's end, which a file can make overflow: a panic in
//!   builds that check arithmetic (here the two data lengths are compared as they are);
//! - holds the parsed JSON in generic trees, up to sixteen bytes for one (here it is read
//!   straight into entries).
//!
//! Nothing in the format aligns the data, so values are read byte-wise.

use std::collections::BTreeMap;
use std::fmt;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::metadata::{Kept, PRECISION};
use crate::kernels::Values;
use crate::model::precision::{check_depth, from_bf16, to_bf16};
use crate::model::{LoadError, Matrix, Precision};

/// Largest header that is read: some 30 000 tensors, far beyond a recurrent model, and little
/// enough that parsing it needs no more memory than a small model.
pub(super) const MAX_HEADER: usize = 4 << 20;

/// Values that one parallel task widens; smaller tensors are widened on the caller's thread.
const BLOCK: usize = 1 << 16;

/// The tensors of a safetensors file (<https://huggingface.co/docs/safetensors>), by name.
///
/// For the parts of a model that are not recurrent, such as an embedding; recurrent stacks are
/// read from it by [`Model::from_tensors`](crate::model::Model::from_tensors).
///
/// ```
/// use cellstream::model::Tensors;
/// let header = br#"{"dense.bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend(header);
/// file.extend([1.0f32, -2.0].map(f32::to_le_bytes).concat());
///
/// let tensors = Tensors::from_bytes(&file)?;
/// assert_eq!(tensors.vector("dense.bias")?, [1.0, -2.0]);
/// # Ok::<(), cellstream::model::LoadError>(())
/// ```
#[derive(Debug)]
pub struct Tensors<'a> {
    /// Sorted.
    names: Vec<String>,
    header: Metadata,
    metadata: BTreeMap<String, String>,
    data: &'a [u8],
}

impl<'a> Tensors<'a> {
    /// Reads the header of a whole file; tensors are read when asked for.
    ///
    /// # Errors
    /// [`LoadError::Malformed`] when the header is cut off, larger than 4 MiB, no JSON of the
    /// expected form, names a tensor or metadata key twice, or gives byte ranges that overlap,
    /// leave gaps, contradict shape and dtype, or do not end with the file.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Tensors<'a>, LoadError> {
        let (length, rest) = bytes
            .split_first_chunk::<8>()
            .ok_or_else(|| malformed("shorter than the 8 bytes of a header length"))?;
        let length = u64::from_le_bytes(*length);
        if length > MAX_HEADER as u64 {
            return Err(malformed(format!(
                "a header of {length} bytes; at most {MAX_HEADER} are read"
            )));
        }
        let (header, data) = rest.split_at_checked(length as usize).ok_or_else(|| {
            malformed(format!(
                "a header of {length} bytes in a file of {}",
                bytes.len()
            ))
        })?;
        let Header {
            mut tensors,
            metadata,
        } = serde_json::from_slice(header).map_err(|e| malformed(format!("header: {e}")))?;

        let mut names: Vec<String> = tensors.iter().map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(malformed(format!(
                "two tensors are named {:?}; names must differ",
                pair[0]
            )));
        }
        // The crate checks the ranges in this order.
        tensors.sort_by_key(|(_, info)| info.data_offsets);
        let header = Metadata::new(None, tensors).map_err(|e| malformed(format!("header: {e}")))?;
        if header.data_len() != data.len() {
            return Err(malformed(format!(
                "{} bytes of data where the header describes {}",
                data.len(),
                header.data_len()
            )));
        }
        Ok(Tensors {
            names,
            header,
            metadata,
            data,
        })
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The value of an entry of `__metadata__`.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// The shape of a tensor, outermost axis first; `None` if there is none of that name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(&self.header.info(name)?.shape)
    }

    /// The tensor `name`, `[rows, cols]`, row-major as it is in the file.
    ///
    /// # Errors
    /// [`LoadError::Tensor`] unless it exists, has two axes, none of length 0, and is of `F32`,
    /// `F16` or `BF16`.
    pub fn matrix(&self, name: &str) -> Result<Matrix, LoadError> {
        let [rows, cols] = self.matrix_shape(name)?;
        // At most twice the tensor's bytes in the file: `from_bytes` has held shape, dtype, range
        // and file against each other.
        let mut values = Values::zeroed(rows * cols);
        self.read(name, &mut values)?;
        Ok(Matrix::from_values(rows, cols, values)?)
    }

    /// The tensor `name`, `[length]`.
    ///
    /// # Errors
    /// [`LoadError::Tensor`] unless it exists, has one axis, not of length 0, and is of `F32`,
    /// `F16` or `BF16`.
    pub fn vector(&self, name: &str) -> Result<Vec<f32>, LoadError> {
        let [length] = self.vector_shape(name)?;
        let mut values = vec![0.0; length];
        self.read(name, &mut values)?;
        Ok(values)
    }

    /// The shape of what [`Tensors::matrix`] would give, refusing what it would refuse.
    pub(super) fn matrix_shape(&self, name: &str) -> Result<[usize; 2], LoadError> {
        self.checked_shape(name, "two axes", &FLOATS)
    }

    /// The shape of what [`Tensors::vector`] would give, refusing what it would refuse.
    pub(super) fn vector_shape(&self, name: &str) -> Result<[usize; 1], LoadError> {
        self.checked_shape(name, "one axis", &FLOATS)
    }

    /// The shape of what [`Tensors::weight`] would give, refusing what it would refuse but for values.
    pub(super) fn weight_shape(
        &self,
        name: &str,
        kept: Option<Kept>,
    ) -> Result<[usize; 2], LoadError> {
        let (scale, has_scale) = (scale_name(name), self.shape(&scale_name(name)).is_some());
        let is_int8 = (self.header.info(name)).is_some_and(|info| info.dtype == Dtype::I8);
        if has_scale && !is_int8 {
            let reason = format!("is the scale of {name}, which is no tensor of I8");
            return Err(tensor(&scale, reason));
        }
        if is_int8 && !has_scale {
            let reason = format!(
                "has dtype I8 without scales; supported are F32, F16 and BF16, and I8 with a tensor \
                 {scale} of one value for each row"
            );
            return Err(tensor(name, reason));
        }
        let dtypes: &[Dtype] = match kept {
            None | Some(Kept::AsStored) => &[Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::I8],
            Some(Kept::All(Precision::F32)) => &FLOATS,
            Some(Kept::All(Precision::Bf16)) => &[Dtype::BF16],
            Some(Kept::All(Precision::Int8)) => &[Dtype::I8],
        };
        let info = self.info(name)?;
        if let Some(Kept::All(precision)) = kept
            && !dtypes.contains(&info.dtype)
        {
            let reason = format!(
                "has dtype {}, but the metadata {PRECISION:?} is {:?}",
                info.dtype,
                precision.name()
            );
            return Err(tensor(name, reason));
        }
        let [rows, cols] = self.checked_shape(name, "two axes", dtypes)?;
        if is_int8 {
            check_depth(cols).map_err(|error| tensor(name, error.to_string()))?;
            let [scales] = self.vector_shape(&scale)?;
            if scales != rows {
                let reason = format!("has shape [{scales}]; beside {name} it must be [{rows}]");
                return Err(tensor(&scale, reason));
            }
        }
        Ok([rows, cols])
    }

    /// The matrix `name` of a recurrent layer, in the precision that `kept` asks for: int8 where it is
    /// I8 with a tensor `{name}_scale` `[rows]`, bf16 where it is BF16 and its file means that.
    pub(super) fn weight(&self, name: &str, kept: Option<Kept>) -> Result<Matrix, LoadError> {
        let [rows, cols] = self.weight_shape(name, kept)?;
        let info = self.info(name)?;
        let unfit = |error: crate::model::ModelError| tensor(name, error.to_string());
        match (info.dtype, kept) {
            (Dtype::I8, _) => {
                let mut whole = Values::<i8>::zeroed(rows * cols);
                for (q, &byte) in whole.iter_mut().zip(self.bytes(info)) {
                    *q = byte as i8;
                }
                let scales = self.vector(&scale_name(name))?;
                Matrix::from_whole(rows, cols, whole, scales).map_err(unfit)
            }
            (Dtype::BF16, Some(Kept::AsStored | Kept::All(Precision::Bf16))) => {
                let mut halves = Values::<u16>::zeroed(rows * cols);
                for (half, &bytes) in halves.iter_mut().zip(self.bytes(info).as_chunks().0) {
                    // Through the value, which makes signalling NaNs quiet, as rounding does.
                    *half = to_bf16(from_bf16(u16::from_le_bytes(bytes)));
                }
                Matrix::from_bf16(rows, cols, halves).map_err(unfit)
            }
            _ => self.matrix(name),
        }
    }

    fn checked_shape<const N: usize>(
        &self,
        name: &str,
        axes: &str,
        dtypes: &[Dtype],
    ) -> Result<[usize; N], LoadError> {
        let info = self.info(name)?;
        if !dtypes.contains(&info.dtype) {
            return Err(tensor(
                name,
                format!("has dtype {}; supported are {}", info.dtype, listed(dtypes)),
            ));
        }
        match <[usize; N]>::try_from(info.shape.as_slice()) {
            Ok(shape) if !shape.contains(&0) => Ok(shape),
            _ => Err(tensor(
                name,
                format!(
                    "has shape {}; supported are {axes}, of at least 1",
                    Shape(&info.shape)
                ),
            )),
        }
    }

    fn info(&self, name: &str) -> Result<&TensorInfo, LoadError> {
        let info = self.header.info(name);
        info.ok_or_else(|| tensor(name, "is not in the file".into()))
    }

    fn bytes(&self, info: &TensorInfo) -> &'a [u8] {
        let (from, to) = info.data_offsets;
        &self.data[from..to]
    }

    /// Writes all values as `f32`.
    fn read(&self, name: &str, values: &mut [f32]) -> Result<(), LoadError> {
        let info = self.info(name)?;
        let bytes = self.bytes(info);
        let (width, widen): (usize, Widen) = match info.dtype {
            Dtype::F16 => (2, widen_f16),
            Dtype::BF16 => (2, widen_bf16),
            _ => (4, read_f32),
        };
        if values.len() <= BLOCK {
            widen(bytes, values);
        } else {
            values
                .par_chunks_mut(BLOCK)
                .zip(bytes.par_chunks(BLOCK * width))
                .for_each(|(values, bytes)| widen(bytes, values));
        }
        Ok(())
    }
}

/// "F32, F16 and BF16".
fn listed(dtypes: &[Dtype]) -> String {
    let names: Vec<String> = dtypes.iter().map(Dtype::to_string).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Widened to `f32` without a scale.
const FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

/// The tensor with the scales of a tensor's rows.
pub(super) fn scale_name(name: &str) -> String {
    format!("{name}_scale")
}

type Widen = fn(&[u8], &mut [f32]);

fn read_f32(bytes: &[u8], values: &mut [f32]) {
    for (value, &bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_le_bytes(bytes);
    }
}

fn widen_bf16(bytes: &[u8], values: &mut [f32]) {
    for (value, &bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = bf16::from_le_bytes(bytes).to_f32();
    }
}

fn widen_f16(bytes: &[u8], values: &mut [f32]) {
    // The conversion instruction takes eight at a time, from memory aligned for f16.
    const LANES: usize = 64;
    let mut aligned = [f16::ZERO; LANES];
    for (values, bytes) in values.chunks_mut(LANES).zip(bytes.chunks(2 * LANES)) {
        let aligned = &mut aligned[..values.len()];
        for (half, &bytes) in aligned.iter_mut().zip(bytes.as_chunks().0) {
            *half = f16::from_le_bytes(bytes);
        }
        aligned.convert_to_f32_slice(values);
    }
}

/// A shape as PyTorch prints it.
pub(super) struct Shape<'a>(pub &'a [usize]);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A hostile shape has as many axes as fit in the header; an error is one line.
        const SHOWN: usize = 8;
        write!(f, "{:?}", &self.0[..self.0.len().min(SHOWN)])?;
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} axes more"),
        }
    }
}

fn malformed(reason: impl Into<String>) -> LoadError {
    LoadError::Malformed {
        format: "safetensors",
        reason: reason.into(),
    }
}

pub(super) fn tensor(name: &str, reason: String) -> LoadError {
    LoadError::Tensor {
        name: name.into(),
        reason,
    }
}

/// The header's JSON, in the file's order.
struct Header {
    tensors: Vec<(String, TensorInfo)>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut tensors = Vec::new();
                let mut metadata = None;
                while let Some(name) = map.next_key::<String>()? {
                    if name != "__metadata__" {
                        let info = map
                            .next_value()
                            .map_err(|e| A::Error::custom(format!("tensor {name:?}: {e}")))?;
                        tensors.push((name, info));
                    } else if metadata.is_none() {
                        let Texts(texts) = map.next_value()?;
                        metadata = Some(texts);
                    } else {
                        return Err(A::Error::custom("__metadata__ is given twice"));
                    }
                }
                Ok(Header {
                    tensors,
                    metadata: metadata.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// The entries of `__metadata__`: text by key, no key twice.
struct Texts(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Texts, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                let mut texts = BTreeMap::new();
                while let Some((key, text)) = map.next_entry::<String, String>()? {
                    if texts.contains_key(&key) {
                        let twice = format!("metadata {key:?} is given twice");
                        return Err(A::Error::custom(twice));
                    }
                    texts.insert(key, text);
                }
                Ok(Texts(texts))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
