//! An execution provider for ONNX Runtime: it computes the recurrent layers of a model on
//! gatestream, and leaves all other nodes to ONNX Runtime.
//!
//! ```text
//! ffi.rs       the structures of ONNX Runtime's interface, places of its functions
//! api.rs       these functions with Rust's types and errors
//! factory.rs   what the library exports: the factory of providers
//! provider.rs  claims nodes, makes kernels
//! node.rs      reads a node: its model, by the library's own loader
//! claim.rs     leaves nodes that would run slower
//! kernel.rs    the sessions of a node
//! pool.rs      the threads of ONNX Runtime's session, on which they run
//! guard.rs     errors and panics as ONNX Runtime's
//! ```
//!
//! A program registers the shared library by its path, under a name of its choice, and adds the
//! provider's device to the options of a session; the README says how. No function is for Rust.

mod api;
mod claim;
mod factory;
mod ffi;
mod guard;
mod kernel;
mod node;
mod pool;
mod provider;

pub use factory::{CreateEpFactories, ReleaseEpFactory};
