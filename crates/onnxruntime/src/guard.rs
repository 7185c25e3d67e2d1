//! Errors and panics as what ONNX Runtime calls a status.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::api::{Api, Result};
use crate::ffi::Status;

/// Calls `work`. A panic does not cross the border to ONNX Runtime: it becomes an error.
pub fn guarded(api: &Api, work: impl FnOnce() -> Result<()>) -> Status {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => ptr::null_mut(),
        Ok(Err(why)) => api.status(&why),
        Err(_) => api.status("gatestream panicked; this is a bug, please report it"),
    }
}
