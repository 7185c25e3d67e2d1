//! NumPy arrays to slices and back.

use numpy::{
    IxDyn, PyArray, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyReadwriteArrayDyn,
    PyUntypedArrayMethods,
};
use pyo3::exceptions::PyMemoryError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::errors::{Class, Error};

/// The module `numpy`, imported once.
pub fn numpy<'py>(py: Python<'py>) -> PyResult<&'py Bound<'py, PyModule>> {
    static NUMPY: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = NUMPY.get_or_try_init(py, || Ok::<_, PyErr>(py.import("numpy")?.unbind()))?;
    Ok(module.bind(py))
}

/// float32 values in row-major order: the array itself where it is that, else a copy. Objects with
/// `__dlpack__` and no `__array__`, such as those of JAX, are taken by DLPack.
pub struct Floats<'py>(PyReadonlyArrayDyn<'py, f32>);

impl<'py> Floats<'py> {
    /// # Errors
    /// `InputError` for what is no array of numbers.
    pub fn of(name: &str, value: &Bound<'py, PyAny>) -> PyResult<Floats<'py>> {
        if let Ok(array) = value.cast::<PyArrayDyn<f32>>()
            && array.is_c_contiguous()
        {
            return Ok(Floats(array.try_readonly().map_err(Error::input)?));
        }
        let py = value.py();
        let convert = || {
            let numpy = numpy(py)?;
            let has = |name| value.hasattr(name);
            let value = if has(intern!(py, "detach"))? {
                // A tensor of PyTorch, which may need a gradient, or have a type that NumPy lacks.
                { value.call_method0(intern!(py, "detach"))? }.call_method0(intern!(py, "float"))?
            } else if has(intern!(py, "__dlpack__"))? && !has(intern!(py, "__array__"))? {
                numpy.call_method1(intern!(py, "from_dlpack"), (value,))?
            } else {
                value.clone()
            };
            let options = pyo3::types::PyDict::new(py);
            options.set_item("dtype", numpy.getattr(intern!(py, "float32"))?)?;
            let array = numpy.getattr(intern!(py, "ascontiguousarray"))?;
            let array = array.call((numpy.call_method1("asarray", (value,))?,), Some(&options))?;
            Ok::<_, PyErr>(array.cast_into::<PyArrayDyn<f32>>()?)
        };
        let array = convert().map_err(|why| {
            let class = match why.is_instance_of::<PyMemoryError>(py) {
                true => Class::TooLarge,
                false => Class::Input,
            };
            PyErr::from(Error::new(
                class,
                format!("{name} is no array of numbers: {why}"),
            ))
        })?;
        Ok(Floats(array.try_readonly().map_err(Error::input)?))
    }

    /// As [`Floats::of`], for an argument that may be left out.
    pub fn optional(
        name: &str,
        value: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Floats<'py>>> {
        value.map(|value| Floats::of(name, value)).transpose()
    }

    pub fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    pub fn values(&self) -> PyResult<&[f32]> {
        Ok(self.0.as_slice().map_err(Error::input)?)
    }
}

/// An array to be written.
pub struct FloatsOut<'py>(PyReadwriteArrayDyn<'py, f32>);

impl<'py> FloatsOut<'py> {
    /// # Errors
    /// `InputError` for anything but a writeable float32 array of this shape in row-major order.
    pub fn of(name: &str, value: &Bound<'py, PyAny>, shape: &[usize]) -> PyResult<FloatsOut<'py>> {
        let refused = || {
            Error::input(format!(
                "{name} must be a writeable float32 array of shape {shape:?} in row-major order"
            ))
        };
        let array = value.cast::<PyArrayDyn<f32>>().map_err(|_| refused())?;
        if array.shape() != shape || !array.is_c_contiguous() {
            return Err(refused().into());
        }
        Ok(FloatsOut(array.try_readwrite().map_err(|_| refused())?))
    }

    pub fn values(&mut self) -> PyResult<&mut [f32]> {
        Ok(self.0.as_slice_mut().map_err(Error::input)?)
    }
}

/// Lengths of sequences, or other numbers: any array or list of integers.
pub fn lengths(name: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Vec<usize>>> {
    let Some(value) = value else {
        return Ok(None);
    };
    let py = value.py();
    let list = numpy(py)?
        .call_method1(intern!(py, "asarray"), (value,))?
        .call_method0(intern!(py, "tolist"))?;
    let lengths = list.extract::<Vec<usize>>().map_err(|_| {
        PyErr::from(Error::input(format!(
            "{name} must be one axis of integers, 0 or more"
        )))
    })?;
    Ok(Some(lengths))
}

/// Zeros for an array of this shape.
///
/// # Errors
/// `TooLargeError` where there is no memory for them.
pub fn zeros(shape: &[usize]) -> Result<Vec<f32>, Error> {
    let len = shape
        .iter()
        .try_fold(1, |len: usize, &n| len.checked_mul(n));
    let mut values = Vec::new();
    match len {
        Some(len) if values.try_reserve_exact(len).is_ok() => values.resize(len, 0.0),
        _ => {
            let why = format!("there is no memory for an array of shape {shape:?}");
            return Err(Error::new(Class::TooLarge, why));
        }
    }
    Ok(values)
}

/// An array that takes over the values.
pub fn array<'py>(
    py: Python<'py>,
    values: Vec<f32>,
    shape: &[usize],
) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
    PyArray::from_vec(py, values).reshape(IxDyn(shape))
}
