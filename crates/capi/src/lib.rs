//! The C interface of cellstream; `include/cellstream.h` is generated from it.
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
//! returns a [`Status`]; after an error nothing has been written, and `cs_last_error` has the
//! message. Texts end with a zero byte. Null pointers are errors, except where a function says that
//! they are allowed. A panic is an error, too, and does not leave the library.

mod engine;
mod model;
mod plan;
mod session;
mod status;

pub use engine::{
    Engine, EngineOptions, OnEnd, RequestId, cs_engine_cancel, cs_engine_free, cs_engine_start,
    cs_engine_submit, cs_request_free,
};
pub use model::{
    Model, Signature, cs_model_free, cs_model_open, cs_model_save, cs_model_signature,
};
pub use plan::{
    Plan, Size, cs_plan_estimate, cs_plan_free, cs_plan_load, cs_plan_save, cs_plan_tune,
};
pub use session::{Run, Session, cs_session_free, cs_session_new, cs_session_run, cs_session_step};
pub use status::{Status, cs_last_error};

/// The version of the interface. It changes when functions or structures do, other than by
/// additions.
#[unsafe(no_mangle)]
pub extern "C" fn cs_abi_version() -> u32 {
    2
}
