//! Runs user-supplied code and turns a panic into a value.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `job`. After a panic the caller discards what the job may have left inconsistent.
///
/// # Errors
/// The payload of the panic.
pub fn catch_panic<T>(job: impl FnOnce() -> T) -> Result<T, PanicPayload> {
    catch_unwind(AssertUnwindSafe(job)).map_err(|payload| PanicPayload(Some(payload)))
}

/// The payload of a panic. It may be any value: it may hold a lock, or panic when it is dropped.
pub struct PanicPayload(Option<Box<dyn Any + Send>>);

impl PanicPayload {
    /// The message of the panic.
    pub fn message(&self) -> String {
        let payload = self.0.as_deref();
        let text = payload.and_then(|payload| payload.downcast_ref::<&str>());
        let text = text.map(|text| (*text).to_owned());
        let owned = || payload?.downcast_ref::<String>().cloned();
        text.or_else(owned).unwrap_or_else(|| "no message".into())
    }

    /// Whether the payload is a `T`.
    pub fn is<T: 'static>(&self) -> bool {
        self.0.as_deref().is_some_and(|payload| payload.is::<T>())
    }
}

impl Drop for PanicPayload {
    fn drop(&mut self) {
        let payload = self.0.take();
        if let Err(worse) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            // Leaked, because dropping it might panic again.
            std::mem::forget(worse);
        }
    }
}
