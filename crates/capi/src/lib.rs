//! The C interface of gatestream; `include/gatestream.h` is generated from it.
//!
//! ```text
//! status.rs    error codes, the last error of a thread
//! model.rs     models
//! plan.rs      plans, tuning
//! session.rs   sessions: whole sequences, single steps
//! engine.rs    the serving engine
//! ```
//!
//! Rules of all functions: objects are pointers that the library makes and frees. A function
//! returns a [`Status`]; after an error nothing has been written, and `gs_last_error` has the
//! message. Texts end with a zero byte. Null pointers are errors, except where a function says that
//! they are allowed. A panic is an error, too, and does not leave the library.

mod engine;
mod model;
mod plan;
mod session;
mod status;

pub use engine::{
    Engine, EngineOptions, OnEnd, RequestId, gs_engine_cancel, gs_engine_free, gs_engine_start,
    gs_engine_submit, gs_request_free,
};
pub use model::{
    Model, Signature, gs_model_free, gs_model_open, gs_model_save, gs_model_signature,
};
pub use plan::{
    Plan, Size, gs_plan_estimate, gs_plan_free, gs_plan_load, gs_plan_save, gs_plan_tune,
};
pub use session::{Run, Session, gs_session_free, gs_session_new, gs_session_run, gs_session_step};
pub use status::{Status, gs_last_error};

/// The version of the interface. It changes when functions or structures do, other than by
/// additions.
#[unsafe(no_mangle)]
pub extern "C" fn gs_abi_version() -> u32 {
    2
}
