//! Code that is not ours to vouch for: a panic of it is nobody else's.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does `job`. What a panic leaves half done is the caller's to give up.
pub(crate) fn caught<T>(job: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(job)).map_err(|payload| Panicked(Some(payload)))
}

/// What a panic carried: anything, which may own what is locked, or panic in turn when it is dropped.
pub(crate) struct Panicked(Option<Box<dyn Any + Send>>);

impl Panicked {
    /// What the panic said.
    pub fn message(&self) -> String {
        let payload = self.0.as_deref();
        let text = payload.and_then(|payload| payload.downcast_ref::<&str>());
        let text = text.map(|text| (*text).to_owned());
        let owned = || payload?.downcast_ref::<String>().cloned();
        text.or_else(owned).unwrap_or_else(|| "no message".into())
    }

    /// Whether it carried a `T`.
    pub fn is<T: 'static>(&self) -> bool {
        self.0.as_deref().is_some_and(|payload| payload.is::<T>())
    }
}

impl Drop for Panicked {
    fn drop(&mut self) {
        let payload = self.0.take();
        if let Err(worse) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            // That one's payload is left alone: it might go on like this.
            std::mem::forget(worse);
        }
    }
}
