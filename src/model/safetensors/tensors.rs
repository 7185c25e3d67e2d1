//! Reads named tensors of a file, widened to `f32`.
//!
//! Safetensors files do not align the data, so values are read from bytes. Checkpoints of PyTorch,
//! and the files of a set, become the same map of entries.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use safetensors::tensor::Dtype;

use super::entry::{Entry, Place, width};
use super::header::{Header, malformed, two_of};
use super::names::{self, Source};
use super::stored_as::{PRECISION, StoredAs};
use crate::model::precision::{check_depth, from_bf16, to_bf16};
use crate::model::{LoadError, Matrix, ModelError, Precision};
use gatestream_kernels::Values;

/// Values that a thread reads at a time. Smaller tensors are read on the calling thread alone.
const VALUES_PER_PART: usize = 1 << 18;

/// The tensors of a safetensors file (<https://huggingface.co/docs/safetensors>), by name.
///
/// Use it to read the non-recurrent parts of a model, such as an embedding.
/// [`Model::from_tensors`](crate::model::Model::from_tensors) reads the recurrent stack.
///
/// ```
/// use gatestream::model::Tensors;
/// let header = br#"{"dense.bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend(header);
/// file.extend([1.0f32, -2.0].map(f32::to_le_bytes).concat());
///
/// let tensors = Tensors::from_bytes(&file)?;
/// assert_eq!(tensors.vector("dense.bias")?, [1.0, -2.0]);
/// # Ok::<(), gatestream::model::LoadError>(())
/// ```
#[derive(Debug)]
pub struct Tensors<'a> {
    /// Sorted.
    names: Vec<String>,
    stored: Arc<BTreeMap<String, Entry<'a>>>,
    metadata: BTreeMap<String, String>,
    /// Names in the file of tensors that have another name here.
    aliases: BTreeMap<String, String>,
    computed: BTreeMap<String, Entry<'static>>,
    /// Most values of a tensor, and bytes of a stack: views may share bytes of a file.
    limit: usize,
    unread: BTreeMap<String, String>,
    modules: BTreeMap<String, ModuleOptions>,
}

/// What a pickled module says of itself; the default is PyTorch's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::model) struct ModuleOptions {
    pub is_relu: Stated,
    pub batch_first: Stated,
}

/// Whether a module says that it has a property.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::model) enum Stated {
    #[default]
    No,
    Yes,
    /// It has a value that is not known here.
    #[cfg_attr(not(feature = "pytorch"), expect(dead_code))]
    Unknown,
}

impl<'a> Tensors<'a> {
    /// Reads the header of a whole file. Values are read later, tensor by tensor.
    ///
    /// # Errors
    /// [`LoadError::Malformed`] if the header is truncated, larger than 4 MiB or not the expected
    /// JSON; if it names a tensor or metadata key twice; or if its byte ranges overlap, leave gaps,
    /// contradict shape and dtype, or do not end at the end of the file.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Tensors<'a>, LoadError> {
        let (header, data) = Header::read(bytes)?;
        let entries = header.tensors.into_iter().map(|(name, info)| {
            let (from, to) = info.data_offsets;
            (name, Entry::new(info.dtype, info.shape, &data[from..to]))
        });
        Tensors::from_entries(entries, header.metadata, usize::MAX).map_err(malformed)
    }

    /// Tensors with their bytes. `limit`: see [`Tensors`].
    ///
    /// # Errors
    /// Two have the same name.
    pub(in crate::model) fn from_entries(
        entries: impl IntoIterator<Item = (String, Entry<'a>)>,
        metadata: BTreeMap<String, String>,
        limit: usize,
    ) -> Result<Tensors<'a>, String> {
        let mut stored = BTreeMap::new();
        for (name, entry) in entries {
            if stored.contains_key(&name) {
                return Err(two_of(&name));
            }
            stored.insert(name, entry);
        }
        Ok(Tensors {
            names: stored.keys().cloned().collect(),
            stored: Arc::new(stored),
            metadata,
            aliases: BTreeMap::new(),
            computed: BTreeMap::new(),
            limit,
            unread: BTreeMap::new(),
            modules: BTreeMap::new(),
        })
    }

    /// The tensors of all files of a set.
    ///
    /// # Errors
    /// Two have the same name, or two files have different metadata of this crate.
    pub(in crate::model) fn of_set(parts: Vec<Tensors<'a>>) -> Result<Tensors<'a>, String> {
        let (mut entries, mut metadata) = (Vec::new(), BTreeMap::new());
        let (mut unread, mut modules) = (BTreeMap::new(), BTreeMap::new());
        let mut limit = 0usize;
        for part in parts {
            limit = limit.saturating_add(part.limit);
            unread.extend(part.unread);
            modules.extend(part.modules);
            for (key, text) in part.metadata {
                let other = metadata.insert(key.clone(), text.clone());
                if key.starts_with("gatestream.") && other.is_some_and(|other| other != text) {
                    return Err(format!(
                        "two files of the set have different metadata {key:?}"
                    ));
                }
            }
            let stored = Arc::into_inner(part.stored).unwrap_or_default();
            entries.extend(stored);
        }
        let all = Tensors::from_entries(entries, metadata, limit)?;
        Ok(all.with_objects(unread, modules))
    }

    /// With objects of the file that may be tensors but cannot be read, and their types; and with
    /// the options of its modules, by their names.
    pub(in crate::model) fn with_objects(
        mut self,
        unread: BTreeMap<String, String>,
        modules: BTreeMap<String, ModuleOptions>,
    ) -> Self {
        (self.unread, self.modules) = (unread, modules);
        self
    }

    /// Objects of a checkpoint that hold numbers but are not read, such as quantised tensors: their
    /// names and Python types.
    pub fn unread(&self) -> impl Iterator<Item = (&str, &str)> {
        let unread = self.unread.iter();
        unread.map(|(name, of)| (name.as_str(), of.as_str()))
    }

    /// The same tensors under the names of PyTorch's recurrent modules, without parametrisations
    /// ([`names`]).
    ///
    /// # Errors
    /// [`LoadError::Tensor`] for a parametrisation that is not supported.
    pub(super) fn canonical(&self) -> Result<Tensors<'a>, LoadError> {
        let renamed = names::rename(self)?;
        let kept = self
            .names
            .iter()
            .filter(|name| !renamed.replaced.contains(*name));
        let mut names: Vec<String> = kept.cloned().collect();
        names.extend(renamed.sources.keys().cloned());
        names.sort_unstable();
        let (mut aliases, mut computed) = (BTreeMap::new(), BTreeMap::new());
        for (name, source) in renamed.sources {
            match source {
                Source::Stored(stored) => drop(aliases.insert(name, stored)),
                Source::Computed(tensor) => drop(computed.insert(name, tensor)),
            }
        }
        Ok(Tensors {
            names,
            stored: Arc::clone(&self.stored),
            metadata: self.metadata.clone(),
            aliases,
            computed,
            limit: self.limit,
            unread: self.unread.clone(),
            modules: self.modules.clone(),
        })
    }

    /// The names of tensors of `F64`, whose values are rounded to `f32` when they are read.
    pub fn rounded(&self) -> impl Iterator<Item = &str> {
        let is_f64 = |name: &&str| (self.find(name)).is_some_and(|entry| entry.dtype == Dtype::F64);
        self.names().filter(is_f64)
    }

    /// The type of the values of the tensor `name`, as safetensors names it (`F32`); `None` if it
    /// does not exist.
    pub fn dtype(&self, name: &str) -> Option<String> {
        Some(self.find(name)?.dtype.to_string())
    }

    /// # Errors
    /// [`LoadError::Malformed`]: these tensors are much larger than their file, as views that share
    /// its bytes may be.
    pub(super) fn check_size(
        &self,
        names: impl Iterator<Item = impl AsRef<str>>,
    ) -> Result<(), LoadError> {
        let entries = names.filter_map(|name| self.find(name.as_ref()));
        // Tied weights of f32 share theirs.
        let sizes = entries.map(|entry| entry.values().saturating_mul(width(entry.dtype).min(2)));
        if sizes.fold(0, usize::saturating_add) <= self.limit {
            return Ok(());
        }
        Err(LoadError::Malformed {
            format: "PyTorch",
            reason: "its tensors together are larger than the file".into(),
        })
    }

    /// The options of the pickled module whose tensors have names of this beginning.
    pub(super) fn module_options(&self, prefix: &str) -> ModuleOptions {
        let module = prefix.strip_suffix('.').unwrap_or(prefix);
        self.modules.get(module).copied().unwrap_or_default()
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The first key of `__metadata__` with this prefix.
    pub(super) fn metadata_key(&self, prefix: &str) -> Option<&str> {
        let mut keys = self.metadata.keys();
        keys.find(|key| key.starts_with(prefix)).map(String::as_str)
    }

    /// The value of the entry `key` of `__metadata__`.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// The shape of the tensor `name`, outermost axis first; `None` if it does not exist.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(&self.find(name)?.shape)
    }

    /// Reads the tensor `name` as a row-major matrix `[rows, cols]`.
    ///
    /// # Errors
    /// [`LoadError::Tensor`] unless it exists, has two axes of length 1 or more, and has the dtype
    /// `F32`, `F16`, `BF16` or `F64`; for a finite value of `F64` beyond the range of `f32`.
    pub fn matrix(&self, name: &str) -> Result<Matrix, LoadError> {
        let [rows, cols] = self.matrix_shape(name)?;
        // At most twice the tensor's bytes in the file, because `from_bytes` checked the shape.
        let mut values = Values::zeroed(rows * cols);
        self.read(name, &mut values)?;
        Ok(Matrix::from_values(rows, cols, values)?)
    }

    /// Reads the tensor `name` as a vector `[length]`.
    ///
    /// # Errors
    /// [`LoadError::Tensor`] unless it exists, has one axis of length 1 or more, and has the dtype
    /// `F32`, `F16`, `BF16` or `F64`; for a finite value of `F64` beyond the range of `f32`.
    pub fn vector(&self, name: &str) -> Result<Vec<f32>, LoadError> {
        let [length] = self.vector_shape(name)?;
        let mut values = vec![0.0; length];
        self.read(name, &mut values)?;
        Ok(values)
    }

    /// All values of the tensor `name`, of any shape.
    pub(super) fn floats(&self, name: &str) -> Result<Vec<f32>, LoadError> {
        let info = self.info(name)?;
        if !FLOATS.contains(&info.dtype) {
            let reason = format!(
                "has dtype {}; supported are {}",
                info.dtype,
                listed(&FLOATS)
            );
            return Err(tensor_error(name, reason));
        }
        let mut values = vec![0.0; info.shape.iter().product()];
        self.read(name, &mut values)?;
        Ok(values)
    }

    /// The shape of the matrix that [`Tensors::matrix`] reads, with the same errors.
    pub(super) fn matrix_shape(&self, name: &str) -> Result<[usize; 2], LoadError> {
        self.checked_shape(name, "two axes", &FLOATS)
    }

    /// The shape of the vector that [`Tensors::vector`] reads, with the same errors.
    pub(super) fn vector_shape(&self, name: &str) -> Result<[usize; 1], LoadError> {
        self.checked_shape(name, "one axis", &FLOATS)
    }

    /// The shape of the matrix that [`Tensors::weight`] reads, with the same errors except those
    /// about values.
    pub(super) fn weight_shape(
        &self,
        name: &str,
        stored_as: Option<StoredAs>,
    ) -> Result<[usize; 2], LoadError> {
        let scale = scale_name(name);
        let has_scale = self.shape(&scale).is_some();
        let is_int8 = (self.find(name)).is_some_and(|info| info.dtype == Dtype::I8);
        if has_scale && !is_int8 {
            let reason = format!("is the scale of {name}, which is not a tensor of I8");
            return Err(tensor_error(&scale, reason));
        }
        if is_int8 && !has_scale {
            let reason = format!(
                "has dtype I8 but no scales; supported are {}, and I8 with a tensor {scale} of one \
                 value for each row",
                listed(&FLOATS)
            );
            return Err(tensor_error(name, reason));
        }
        let dtypes: &[Dtype] = match stored_as {
            None | Some(StoredAs::Mixed) => {
                &[Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F64, Dtype::I8]
            }
            Some(StoredAs::Uniform(Precision::F32)) => &FLOATS,
            Some(StoredAs::Uniform(Precision::Bf16)) => &[Dtype::BF16],
            Some(StoredAs::Uniform(Precision::Int8)) => &[Dtype::I8],
        };
        let info = self.info(name)?;
        if let Some(StoredAs::Uniform(precision)) = stored_as
            && !dtypes.contains(&info.dtype)
        {
            let reason = format!(
                "has dtype {}, but the metadata {PRECISION:?} is {:?}",
                info.dtype,
                precision.name()
            );
            return Err(tensor_error(name, reason));
        }
        let [rows, cols] = self.checked_shape(name, "two axes", dtypes)?;
        if is_int8 {
            check_depth(cols).map_err(|error| tensor_error(name, error.to_string()))?;
            let [scales] = self.vector_shape(&scale)?;
            if scales != rows {
                let reason = format!("has shape [{scales}]; to match {name} it must be [{rows}]");
                return Err(tensor_error(&scale, reason));
            }
        }
        Ok([rows, cols])
    }

    /// Reads the weight matrix `name`: as int8 if its dtype is I8, with the scales in
    /// `{name}_scale` `[rows]`; as bf16 if its dtype is BF16 and the metadata gives a precision for
    /// it; else as `f32`.
    pub(super) fn weight(
        &self,
        name: &str,
        stored_as: Option<StoredAs>,
    ) -> Result<Matrix, LoadError> {
        let [rows, cols] = self.weight_shape(name, stored_as)?;
        let info = self.info(name)?;
        let invalid = |error: ModelError| tensor_error(name, error.to_string());
        match (info.dtype, stored_as) {
            (Dtype::I8, _) => {
                let mut integers = Values::<i8>::zeroed(rows * cols);
                for (q, &byte) in integers.iter_mut().zip(info.bytes().iter()) {
                    *q = byte as i8;
                }
                let scales = self.vector(&scale_name(name))?;
                Matrix::from_int8_values(rows, cols, integers, scales).map_err(invalid)
            }
            (Dtype::BF16, Some(StoredAs::Mixed | StoredAs::Uniform(Precision::Bf16))) => {
                let mut halves = Values::<u16>::zeroed(rows * cols);
                let bytes = info.bytes();
                for (half, &bytes) in halves.iter_mut().zip(bytes.as_chunks().0) {
                    // The conversion to f32 and back makes signalling NaNs quiet, as rounding does.
                    *half = to_bf16(from_bf16(u16::from_le_bytes(bytes)));
                }
                Matrix::from_bf16(rows, cols, halves).map_err(invalid)
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
            return Err(tensor_error(
                name,
                format!("has dtype {}; supported are {}", info.dtype, listed(dtypes)),
            ));
        }
        match <[usize; N]>::try_from(info.shape.as_slice()) {
            Ok(shape) if !shape.contains(&0) => Ok(shape),
            _ => Err(tensor_error(
                name,
                format!(
                    "has shape {}; supported are {axes} of length 1 or more",
                    Shape(&info.shape)
                ),
            )),
        }
    }

    /// Where the values of a tensor are.
    pub(super) fn place(&self, name: &str) -> Option<Place> {
        self.find(name).map(Entry::place)
    }

    fn find(&self, name: &str) -> Option<&Entry<'_>> {
        if let Some(computed) = self.computed.get(name) {
            return Some(computed);
        }
        let stored = self.aliases.get(name).map_or(name, String::as_str);
        self.stored.get(stored)
    }

    /// # Errors
    /// [`LoadError::Tensor`]: there is none, or its strides make it larger than its file.
    fn info(&self, name: &str) -> Result<&Entry<'_>, LoadError> {
        let Some(entry) = self.find(name) else {
            return Err(tensor_error(name, "is not in the file".into()));
        };
        if entry.is_view() && entry.values() > self.limit {
            let reason = "repeats values of its file by strides; save a copy of it (`.clone()`)";
            return Err(tensor_error(name, reason.into()));
        }
        Ok(entry)
    }

    /// Reads all values of a tensor as `f32`.
    fn read(&self, name: &str, values: &mut [f32]) -> Result<(), LoadError> {
        let info = self.info(name)?;
        let bytes = &*info.bytes();
        if info.dtype == Dtype::F64 {
            return round_f64(bytes, values).map_err(|value| {
                tensor_error(name, format!("has the value {value}, which is no f32"))
            });
        }
        let (width, widen): (usize, Widen) = match info.dtype {
            Dtype::F16 => (2, widen_f16),
            Dtype::BF16 => (2, widen_bf16),
            _ => (4, read_f32),
        };
        widen_on_threads(widen, bytes, width, values);
        Ok(())
    }
}

/// A list such as "F32, F16 and BF16".
fn listed(dtypes: &[Dtype]) -> String {
    let names: Vec<String> = dtypes.iter().map(Dtype::to_string).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

/// The dtypes that are read as `f32` without a scale.
const FLOATS: [Dtype; 4] = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F64];

/// The name of the tensor that holds the scales of a matrix, one for each row.
pub(super) fn scale_name(name: &str) -> String {
    format!("{name}_scale")
}

type Widen = fn(&[u8], &mut [f32]);

/// Reads values of `width` bytes each; those of a large tensor on several threads. They are started
/// for it: a forked process has none of the threads of a pool.
fn widen_on_threads(widen: Widen, bytes: &[u8], width: usize, values: &mut [f32]) {
    let threads = match values.len().div_ceil(VALUES_PER_PART) {
        0 | 1 => 1,
        parts => std::thread::available_parallelism().map_or(1, |cores| parts.min(cores.get())),
    };
    let bytes = bytes.chunks(VALUES_PER_PART * width);
    let parts = Mutex::new(values.chunks_mut(VALUES_PER_PART).zip(bytes));
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
    let read = || {
        while let Some((values, bytes)) = next() {
            widen(bytes, values);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Those that cannot be started leave their parts to the others.
            let _ = std::thread::Builder::new().spawn_scoped(scope, read);
        }
        read();
    });
}

fn read_f32(bytes: &[u8], values: &mut [f32]) {
    for (value, &bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_le_bytes(bytes);
    }
}

/// Rounds to the nearest f32. Returns a value beyond its range.
fn round_f64(bytes: &[u8], values: &mut [f32]) -> Result<(), f64> {
    for (value, &bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        let exact = f64::from_le_bytes(bytes);
        *value = exact as f32;
        if value.is_infinite() && exact.is_finite() {
            return Err(exact);
        }
    }
    Ok(())
}

fn widen_bf16(bytes: &[u8], values: &mut [f32]) {
    for (value, &bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = bf16::from_le_bytes(bytes).to_f32();
    }
}

fn widen_f16(bytes: &[u8], values: &mut [f32]) {
    // The conversion instruction takes eight values at a time from memory aligned for f16.
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

/// Prints a shape as PyTorch does, without axes past the eighth.
pub(super) struct Shape<'a>(pub &'a [usize]);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A hostile shape may have as many axes as fit in the header.
        const SHOWN: usize = 8;
        write!(f, "{:?}", &self.0[..self.0.len().min(SHOWN)])?;
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} axes more"),
        }
    }
}

pub(super) fn tensor_error(name: &str, reason: String) -> LoadError {
    LoadError::Tensor {
        name: name.into(),
        reason,
    }
}
