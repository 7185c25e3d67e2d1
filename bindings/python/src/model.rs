//! `Model`: a recurrent stack with its weights.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gatestream::model::{self as core, Cell, Layout, Precision, SafetensorsOptions};
use gatestream_network::QuantizedGraph;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMapping};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::arrays::Floats;
use crate::errors::Error;

/// A stack of recurrent layers with its weights.
#[pyclass(frozen, module = "gatestream")]
pub struct Model(pub Arc<core::Model>);

/// The precision of this name.
pub fn precision(name: Option<&str>) -> PyResult<Option<Precision>> {
    let parsed = name.map(str::parse::<Precision>).transpose();
    Ok(parsed.map_err(Error::input)?)
}

fn options(
    prefix: Option<String>,
    cell: Option<&str>,
    batch_first: Option<bool>,
) -> PyResult<SafetensorsOptions> {
    let mut options = SafetensorsOptions::new();
    if let Some(prefix) = prefix {
        options = options.prefix(prefix);
    }
    if let Some(name) = cell {
        let named = Cell::NAMED.iter().find(|named| named.name == name);
        let named = named.ok_or_else(|| {
            let names: Vec<_> = Cell::NAMED.iter().map(|named| named.name).collect();
            Error::input(format!(
                "cell {name:?} is unknown; use one of {}",
                names.join(", ")
            ))
        })?;
        options = options.cell(named.cell);
    }
    if let Some(yes) = batch_first {
        options = options.batch_first(yes);
    }
    Ok(options)
}

impl Model {
    fn made(model: core::Model, precision: Option<Precision>) -> Result<Model, Error> {
        let model = match precision {
            Some(precision) => model.into_precision(precision)?,
            None => model,
        };
        Ok(Model(Arc::new(model)))
    }
}

#[pymethods]
impl Model {
    /// Reads a file, whose bytes tell its kind: ONNX, safetensors, or a checkpoint of PyTorch
    /// (``.pt``, ``.ckpt``, ``.bin``, …), of which no code is executed. A file of a set, or the
    /// index of the set, stands for all of its files.
    ///
    /// :param prefix: selects the stack in a state dict whose tensor names start with it.
    /// :param cell: ``lstm``, ``gru``, ``light_gru``, ``rnn_tanh`` or ``rnn_relu``, where a state
    ///     dict does not say it.
    /// :param batch_first: whether the batch is the first axis, where a state dict does not say it.
    /// :param precision: rounds the weights to it.
    /// :raises ModelError: for a file that is not a supported model.
    #[staticmethod]
    #[pyo3(signature = (path, *, prefix=None, cell=None, batch_first=None, precision=None))]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        prefix: Option<String>,
        cell: Option<&str>,
        batch_first: Option<bool>,
        precision: Option<&str>,
    ) -> PyResult<Model> {
        let options = options(prefix, cell, batch_first)?;
        let precision = self::precision(precision)?;
        let read = || -> Result<Model, Error> {
            let model = core::Model::open_with(&path, &options);
            let model = model.map_err(|why| match why {
                core::LoadError::Options => Error::input(why),
                why => why.into(),
            });
            Model::made(model?, precision)
        };
        Ok(py.detach(read)?)
    }

    /// A model of arrays with the names of PyTorch's modules: ``weight_ih_l0``
    /// ``[gates * hidden, input]``, ``weight_hh_l0``, ``bias_ih_l0``, ``bias_hh_l0``, and so on.
    #[staticmethod]
    #[pyo3(signature = (tensors, *, prefix=None, cell=None, batch_first=None, precision=None))]
    fn from_state_dict(
        tensors: &Bound<'_, PyMapping>,
        prefix: Option<String>,
        cell: Option<&str>,
        batch_first: Option<bool>,
        precision: Option<&str>,
    ) -> PyResult<Model> {
        let options = options(prefix, cell, batch_first)?;
        let precision = self::precision(precision)?;
        let mut arrays = Vec::new();
        for item in tensors.items()?.iter() {
            let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
            let floats = Floats::of(&name, &value)?;
            let values = floats.values()?;
            let mut bytes = vec![0; size_of_val(values)];
            for (bytes, value) in bytes.chunks_exact_mut(size_of::<f32>()).zip(values) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
            arrays.push((name, floats.shape().to_vec(), bytes));
        }
        let views = arrays.iter().map(|(name, shape, bytes)| {
            let view = TensorView::new(Dtype::F32, shape.clone(), bytes);
            view.map(|view| (name.as_str(), view)).map_err(Error::input)
        });
        let views = views.collect::<Result<Vec<_>, _>>()?;
        let bytes = safetensors::serialize(views, None).map_err(Error::input)?;
        let model = core::Model::from_safetensors(&bytes, &options).map_err(Error::from)?;
        Ok(Model::made(model, precision)?)
    }

    #[staticmethod]
    fn _from_bytes(bytes: &[u8]) -> PyResult<Model> {
        let model = core::Model::from_safetensors(bytes, &SafetensorsOptions::new());
        Ok(Model(Arc::new(model.map_err(Error::from)?)))
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let bytes = self.0.to_safetensors().map_err(Error::from)?;
        let make = py.get_type::<Model>().getattr("_from_bytes")?;
        Ok((make, (PyBytes::new(py, &bytes),)))
    }

    /// Writes a safetensors file that :meth:`open` reads back, whole or not at all.
    ///
    /// :param path: ends with ``.safetensors``.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        check_ending(&path, "safetensors")?;
        Ok(py.detach(|| self.0.save_safetensors(path).map_err(Error::from))?)
    }

    /// The same model with its weights rounded.
    fn in_precision(&self, py: Python<'_>, precision: &str) -> PyResult<Model> {
        let precision: Precision = precision.parse().map_err(Error::input)?;
        let model = py.detach(|| self.0.in_precision(precision).map_err(Error::from))?;
        Ok(Model(Arc::new(model)))
    }

    /// Features of an input step.
    #[getter]
    fn input_size(&self) -> usize {
        self.0.signature().input
    }

    /// Features of an output step.
    #[getter]
    fn output_size(&self) -> usize {
        self.0.signature().output
    }

    /// The hidden size of each layer.
    #[getter]
    fn hidden_sizes(&self) -> Vec<usize> {
        self.0
            .layers()
            .iter()
            .map(|layer| layer.hidden_size())
            .collect()
    }

    /// Whether a layer has two directions.
    #[getter]
    fn bidirectional(&self) -> bool {
        self.0
            .layers()
            .iter()
            .any(|layer| layer.directions().len() == 2)
    }

    /// Whether the batch is the first axis of inputs and outputs.
    #[getter]
    fn batch_first(&self) -> bool {
        self.0.layout() == Layout::BatchMajor
    }

    /// ``f32``, ``bf16``, ``int8`` or ``mixed``.
    #[getter]
    fn precision(&self) -> &'static str {
        self.0.precision().map_or("mixed", Precision::name)
    }

    /// Bytes of all weights.
    #[getter]
    fn weight_bytes(&self) -> usize {
        self.0.weight_bytes()
    }

    fn __eq__(&self, other: &Model) -> bool {
        self.0 == other.0
    }

    fn __repr__(&self) -> String {
        let kinds: Vec<String> = { self.0.layers().iter() }
            .map(|layer| {
                let directions = if layer.directions().len() == 2 {
                    "2x"
                } else {
                    ""
                };
                format!("{directions}{:?} {}", layer.kind(), layer.hidden_size()).to_lowercase()
            })
            .collect();
        let (input, precision) = (self.input_size(), self.precision());
        format!(
            "<gatestream.Model {input} -> {}, {precision}>",
            kinds.join(" -> ")
        )
    }
}

/// # Errors
/// `InputError` for a path with another ending, by which nobody would read the file back.
fn check_ending(path: &Path, ending: &str) -> Result<(), Error> {
    if path
        .extension()
        .is_some_and(|found| found.eq_ignore_ascii_case(ending))
    {
        Ok(())
    } else {
        Err(Error::input(format!(
            "{}: the file is written as .{ending}, so its name must end with that",
            path.display()
        )))
    }
}

/// Writes an ONNX file with the recurrent weights of another in 8 bits; returns their names.
#[pyfunction]
pub fn quantize(py: Python<'_>, source: PathBuf, target: PathBuf) -> PyResult<Vec<String>> {
    check_ending(&target, "onnx")?;
    let quantized = || -> Result<Vec<String>, Error> {
        let graph = QuantizedGraph::of(&source)?;
        gatestream::atomic_file::write(&target, |out| out.write_all(&graph.bytes))
            .map_err(|why| Error::input(format!("{}: {why}", target.display())))?;
        Ok(graph.reduced)
    };
    Ok(py.detach(quantized)?)
}
