//! NumPy arrays to slices and back.

use numpy::{
    IxDyn, PyArray, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn,
    PyReadwriteArrayDyn, PyUntypedArray, PyUntypedArrayMethods,
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

/// The array that NumPy makes of a value: in this machine's byte order, aligned, row-major; the
/// value itself where it is that, else a copy. Objects with `__dlpack__` and no `__array__`, such
/// as those of JAX, are taken by DLPack.
///
/// # Errors
/// What NumPy refuses, and masked arrays.
pub fn plain<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = value.py();
    let numpy = numpy(py)?;
    let has = |name| value.hasattr(name);
    if has(intern!(py, "mask"))? && has(intern!(py, "fill_value"))? {
        let why = "it is a masked array; its filled() is an array without a mask";
        return Err(Error::input(why).into());
    }
    let value = if has(intern!(py, "detach"))? {
        // A tensor of PyTorch, which may need a gradient.
        value.call_method0(intern!(py, "detach"))?
    } else if has(intern!(py, "__dlpack__"))? && !has(intern!(py, "__array__"))? {
        numpy.call_method1(intern!(py, "from_dlpack"), (value,))?
    } else {
        value.clone()
    };
    let array = numpy.call_method1(intern!(py, "asarray"), (value,))?;
    let array = array.cast_into::<PyUntypedArray>()?;
    let dtype = array.dtype();
    let is_native = dtype.is_native_byteorder() != Some(false);
    if is_native && array.is_aligned() && array.is_c_contiguous() {
        return Ok(array);
    }
    let native = dtype.call_method1(intern!(py, "newbyteorder"), ("=",))?;
    let needs = ["C", "ALIGNED"];
    let array = numpy.call_method1(intern!(py, "require"), (array, native, needs))?;
    Ok(array.cast_into::<PyUntypedArray>()?)
}

/// The error for a value that is no [plain] array.
pub fn no_array(what: &str, why: PyErr, py: Python<'_>) -> Error {
    let class = if why.is_instance_of::<PyMemoryError>(py) {
        Class::TooLarge
    } else {
        Class::Input
    };
    Error::new(class, format!("{what}: {}", why.value(py)))
}

/// float32 values in row-major order: the array itself where it is that, else a [plain] copy.
pub struct Floats<'py>(PyReadonlyArrayDyn<'py, f32>);

impl<'py> Floats<'py> {
    /// # Errors
    /// `InputError` for what is no array of numbers.
    pub fn of(name: &str, value: &Bound<'py, PyAny>) -> PyResult<Floats<'py>> {
        if value.is_exact_instance_of::<PyUntypedArray>()
            && let Ok(array) = value.cast::<PyArrayDyn<f32>>()
            && array.is_c_contiguous()
            && array.is_aligned()
        {
            return Ok(Floats(array.try_readonly().map_err(Error::input)?));
        }
        let array = Floats::converted(value)
            .map_err(|why| no_array(&format!("{name} is no array of numbers"), why, value.py()))?;
        Ok(Floats(array.try_readonly().map_err(Error::input)?))
    }

    fn converted(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
        let py = value.py();
        let array = match value.getattr_opt(intern!(py, "is_floating_point"))? {
            // A tensor of PyTorch may have a type that NumPy lacks, such as bfloat16.
            Some(is_float) if is_float.call0()?.is_truthy()? => {
                plain(&value.call_method0(intern!(py, "float"))?)?
            }
            _ => plain(value)?,
        };
        let dtype = array.dtype();
        // NumPy would convert texts, times and complex numbers as well.
        let name = dtype.typeobj().name()?;
        if !matches!(dtype.kind(), b'b' | b'i' | b'u' | b'f') && name != "bfloat16" {
            return Err(Error::input(format!("its elements are of the type {name}")).into());
        }
        let float32 = numpy(py)?.getattr(intern!(py, "float32"))?;
        let options = pyo3::types::PyDict::new(py);
        options.set_item("copy", false)?;
        let array = array.call_method(intern!(py, "astype"), (float32,), Some(&options))?;
        Ok(array.cast_into::<PyArrayDyn<f32>>()?)
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
                "{name} must be a writeable, aligned float32 array of shape {shape:?} in row-major \
                 order, and not an input"
            ))
        };
        let array = value.cast::<PyArrayDyn<f32>>().map_err(|_| refused())?;
        if array.shape() != shape || !array.is_c_contiguous() || !array.is_aligned() {
            return Err(refused().into());
        }
        Ok(FloatsOut(array.try_readwrite().map_err(|_| refused())?))
    }

    pub fn values(&mut self) -> PyResult<&mut [f32]> {
        Ok(self.0.as_slice_mut().map_err(Error::input)?)
    }
}

/// Lengths of sequences, or other numbers: any array or list of integers. `of_mask`: what to give
/// in place of a mask, whose numbers would be 0 and 1.
pub fn integers(
    name: &str,
    value: Option<&Bound<'_, PyAny>>,
    of_mask: &str,
) -> PyResult<Option<Vec<usize>>> {
    let Some(value) = value else {
        return Ok(None);
    };
    let py = value.py();
    let list = || {
        let array = numpy(py)?.call_method1(intern!(py, "asarray"), (value,))?;
        let array = array.cast_into::<PyUntypedArray>()?;
        if array.dtype().kind() == b'b' {
            return Ok(None);
        }
        let list = array.call_method0(intern!(py, "tolist"))?;
        Ok::<_, PyErr>(Some(list.extract::<Vec<usize>>()?))
    };
    let wrong = |_| Error::input(format!("{name} must be one axis of integers, 0 or more"));
    match list().map_err(wrong)? {
        Some(list) => Ok(Some(list)),
        None => Err(Error::input(format!("{name} is a mask; {of_mask}")).into()),
    }
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
