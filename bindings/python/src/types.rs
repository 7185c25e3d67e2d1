//! Values of the classes of `gatestream/_types.py`.

use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// A class of `gatestream/_types.py`, called with these arguments.
pub fn made<'py>(
    py: Python<'py>,
    class: &'static PyOnceLock<Py<PyAny>>,
    name: &str,
    arguments: impl PyCallArgs<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let class = class.get_or_try_init(py, || {
        let module = py.import("gatestream._types")?;
        Ok::<_, PyErr>(module.getattr(name)?.unbind())
    })?;
    class.bind(py).call1(arguments)
}
