//! The threads of ONNX Runtime's session.

use gatestream::execute::team::HostThreads;

use crate::api::Api;
use crate::ffi::KernelContext;

/// The pool of the session whose kernel runs now.
pub struct Pool<'a> {
    pub api: Api,
    pub context: &'a KernelContext,
}

// SAFETY: the pool is called through a shared reference by the thread of the kernel alone; the
// trait asks for `Sync`, and ONNX Runtime's function takes a constant object.
unsafe impl Sync for Pool<'_> {}

impl HostThreads for Pool<'_> {
    fn call(&self, count: usize, task: &(dyn Fn() + Sync)) {
        if self.api.parallel_for(self.context, count, task).is_err() {
            // A build without this function has called nothing.
            task();
        }
    }
}
