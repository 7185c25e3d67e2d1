//! The extension module `gatestream._native`.
//!
//! ```text
//! errors.rs    the exceptions of gatestream/errors.py
//! arrays.rs    NumPy arrays to slices and back
//! count.rs     integers as arguments
//! model.rs     Model
//! plan.rs      Plan and tune
//! session.rs   Session
//! streams.rs   StreamState
//! raw.rs       runs on addresses, for gatestream.torch
//! network.rs   Network
//! engine.rs    Engine, Stream
//! ticket.rs    the answers of an engine, awaitable
//! interrupt.rs Ctrl-C during long calls
//! openmp.rs    the threads of PyTorch, for RawSession
//! time.rs      seconds as durations and deadlines
//! types.rs     values of the classes of gatestream/_types.py
//! ```
//!
//! Every class may be used by several threads; a session runs one call at a time. The interpreter
//! is released while gatestream computes or waits.

mod arrays;
mod count;
mod engine;
mod errors;
mod interrupt;
mod model;
mod network;
mod openmp;
mod plan;
mod raw;
mod session;
mod streams;
mod ticket;
mod time;
mod types;

use pyo3::prelude::*;

// ONNX Runtime finds these two in the same shared library.
pub use gatestream_onnxruntime::{CreateEpFactories, ReleaseEpFactory};

#[pymodule(name = "_native")]
mod native {
    #[pymodule_export]
    use super::engine::{Engine, Stream};
    #[pymodule_export]
    use super::model::{Model, quantize};
    #[pymodule_export]
    use super::network::Network;
    #[pymodule_export]
    use super::plan::{Plan, tune};
    #[pymodule_export]
    use super::raw::RawSession;
    #[pymodule_export]
    use super::session::Session;
    #[pymodule_export]
    use super::streams::StreamState;
    #[pymodule_export]
    use super::ticket::Ticket;
    use super::*;

    /// Runs the program `gatestream` with these arguments; the first is its name.
    #[pyfunction]
    fn main(py: Python<'_>, arguments: Vec<std::ffi::OsString>) -> u8 {
        py.detach(|| gatestream_cli::run(arguments))
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
