//! `Network`: a whole ONNX graph.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use gatestream::execute::team::ProcessMark;
use gatestream_network::{self as core, Data, NetworkOptions, NetworkPlan, NetworkTuning, Tensor};
use half::f16;
use numpy::{
    Element, IxDyn, PyArray, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyUntypedArray,
    PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMapping};

use crate::arrays::{no_array, plain};
use crate::count::{Count, threads_asked};
use crate::errors::Error;
use crate::interrupt::{Progress, watched};
use crate::model::precision;
use crate::plan::effort;
use crate::time::duration;
use crate::types::made;

/// A whole ONNX graph: its recurrent and dense layers on gatestream, the others on tract.
#[pyclass(frozen, module = "gatestream")]
pub struct Network {
    network: Arc<core::Network>,
    made_in: ProcessMark,
}

/// A tensor of a [plain] array, if its elements are of this type.
fn tensor_of<T>(array: &Bound<'_, PyUntypedArray>) -> PyResult<Option<Tensor>>
where
    T: Element + Clone,
    Data: From<Vec<T>>,
{
    let Ok(array) = array.cast::<PyArrayDyn<T>>() else {
        return Ok(None);
    };
    let values = array.try_readonly().map_err(Error::input)?;
    let values = values.as_slice().map_err(Error::input)?.to_vec();
    Ok(Some(
        Tensor::new(array.shape(), values).map_err(Error::from)?,
    ))
}

/// A tensor of an array, or of what NumPy makes an array of.
fn tensor(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let array = plain(value)
        .map_err(|why| no_array(&format!("input {name:?} is no array"), why, value.py()))?;
    macro_rules! first {
        ($($type:ty),*) => {
            $(if let Some(tensor) = tensor_of::<$type>(&array)? {
                return Ok(tensor);
            })*
        };
    }
    first!(f32, i64, i32, bool, f64, f16, u8, i8, i16, u16, u32, u64);
    let found = array.dtype().typeobj().name()?;
    Err(Error::input(format!(
        "input {name:?}: arrays of {found} are not supported"
    ))
    .into())
}

fn array<'py>(py: Python<'py>, tensor: Tensor) -> PyResult<Bound<'py, PyAny>> {
    fn of<'py, T: Element>(
        py: Python<'py>,
        values: Vec<T>,
        shape: &[usize],
    ) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyArray::from_vec(py, values)
            .reshape(IxDyn(shape))?
            .into_any())
    }
    let shape = &tensor.shape().to_vec()[..];
    match tensor.into_data() {
        Data::F32(v) => of(py, v, shape),
        Data::F64(v) => of(py, v, shape),
        Data::F16(v) => of(py, v, shape),
        Data::I64(v) => of(py, v, shape),
        Data::I32(v) => of(py, v, shape),
        Data::I16(v) => of(py, v, shape),
        Data::I8(v) => of(py, v, shape),
        Data::U64(v) => of(py, v, shape),
        Data::U32(v) => of(py, v, shape),
        Data::U16(v) => of(py, v, shape),
        Data::U8(v) => of(py, v, shape),
        Data::Bool(v) => of(py, v, shape),
        other => {
            let found = other.element_type();
            Err(Error::input(format!("outputs of {found} are not supported")).into())
        }
    }
}

fn inputs(arrays: &Bound<'_, PyMapping>) -> PyResult<Vec<(String, Tensor)>> {
    let pairs = arrays.items()?.iter().map(|item| {
        let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
        let tensor = tensor(&name, &value)?;
        Ok((name, tensor))
    });
    pairs.collect()
}

fn named(inputs: &[(String, Tensor)]) -> Vec<(&str, &Tensor)> {
    inputs
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor))
        .collect()
}

impl Network {
    fn here(&self) -> Result<&core::Network, Error> {
        if self.made_in.is_forked() {
            Err(Error::forked("network"))
        } else {
            Ok(&self.network)
        }
    }
}

#[pymethods]
impl Network {
    /// Reads an ONNX file.
    ///
    /// :param threads: those that all recurrent layers share; one for each core by default.
    /// :param precision: that of the weights of all recurrent layers; that of the file by default.
    /// :param plan_bytes: most bytes of the plans that are kept, each for other shapes of the
    ///     inputs; 512 MiB by default. The last one is kept in any case.
    /// :param unchecked: run operators, too, that ONNX's own test cases have not verified; their
    ///     results may be wrong.
    /// :raises ModelError: for a file that is not a supported model.
    #[staticmethod]
    #[pyo3(signature = (path, *, threads=None, precision=None, plan_bytes=None,
        unchecked=false))]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        threads: Option<Count>,
        precision: Option<&str>,
        plan_bytes: Option<Count>,
        unchecked: bool,
    ) -> PyResult<Network> {
        let options = NetworkOptions {
            threads: threads_asked(threads)?,
            precision: self::precision(precision)?,
            plan_bytes: plan_bytes
                .map(|bytes| bytes.any("plan_bytes"))
                .transpose()?,
            unchecked,
            ..NetworkOptions::default()
        };
        let open = || core::Network::open_with(path, options).map_err(Error::from);
        Ok(Network {
            network: Arc::new(py.detach(open)?),
            made_in: ProcessMark::new(),
        })
    }

    /// The inputs that a run needs.
    #[getter]
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.network
            .inputs()
            .iter()
            .map(|port| self::port(py, port))
            .collect()
    }

    /// The outputs.
    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.network
            .outputs()
            .iter()
            .map(|port| self::port(py, port))
            .collect()
    }

    /// Runs the graph on named arrays; returns all outputs by name. The first run with inputs of
    /// other shapes takes longer.
    fn run<'py>(
        &self,
        py: Python<'py>,
        arrays: &Bound<'py, PyMapping>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let network = self.here()?;
        let inputs = inputs(arrays)?;
        let outputs = py.detach(|| network.run(&named(&inputs)).map_err(Error::from))?;
        let results = PyDict::new(py);
        for output in outputs {
            results.set_item(output.name, array(py, output.tensor)?)?;
        }
        Ok(results)
    }

    /// The plans that are ``kept`` and their ``bytes``, without the constants of the file; how many
    /// were ``made`` and ``evicted``.
    fn plan_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.here()?.plan_stats();
        let entries = PyDict::new(py);
        entries.set_item("kept", stats.kept)?;
        entries.set_item("bytes", stats.bytes)?;
        entries.set_item("made", stats.made)?;
        entries.set_item("evicted", stats.evicted)?;
        Ok(entries)
    }

    /// Finds the fastest plan of each recurrent layer for these inputs and uses it from now on;
    /// writes the plans to ``path``.
    #[pyo3(signature = (arrays, path=None, *, seconds=20.0, effort="measure", progress=None))]
    fn tune(
        &self,
        py: Python<'_>,
        arrays: &Bound<'_, PyMapping>,
        path: Option<PathBuf>,
        seconds: f64,
        effort: &str,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let network = self.here()?;
        let inputs = inputs(arrays)?;
        let options = NetworkTuning {
            budget: duration(seconds)?,
            effort: self::effort(effort)?,
        };
        let tuned = watched(py, progress, |watch| {
            network.tune(&named(&inputs), options, |now| {
                let goes_on = watch.goes_on(Progress {
                    fraction: now.fraction,
                    stage: now.node.to_owned(),
                });
                if goes_on {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })
        })?;
        let tuned = tuned.map_err(Error::from)?;
        if let Some(path) = path {
            py.detach(|| tuned.plan.save(path).map_err(Error::from))?;
        }
        Ok(())
    }

    /// Uses the plans of a file.
    fn use_plan(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let network = self.here()?;
        Ok(py.detach(|| {
            let plan = NetworkPlan::load(path)?;
            network.use_plan(Some(plan)).map_err(Error::from)
        })?)
    }

    fn __repr__(&self) -> String {
        let names = |ports: &[core::NetworkPort]| {
            let names: Vec<_> = ports.iter().map(|port| port.name.as_str()).collect();
            names.join(", ")
        };
        let (inputs, outputs) = (names(self.network.inputs()), names(self.network.outputs()));
        format!("<gatestream.Network {inputs} -> {outputs}>")
    }
}

fn port<'py>(py: Python<'py>, port: &core::NetworkPort) -> PyResult<Bound<'py, PyAny>> {
    static PORT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let element = port.element_type.map(|kind| kind.name());
    made(
        py,
        &PORT,
        "Port",
        (port.name.as_str(), element, port.shape.clone()),
    )
}
