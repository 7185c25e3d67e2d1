//! The threads of PyTorch's OpenMP library.
//!
//! After an operator they spin for a while, and threads of our own would compete with them.

use std::ffi::{c_uint, c_void};

use gatestream::execute::team::HostThreads;

/// `GOMP_parallel` of the GNU OpenMP library, which those of Intel and LLVM have, too: calls the
/// function with the data on threads of a pool, the calling one among them, and returns when all
/// calls have ended. Threads: the largest number. No flags: the pool binds them as usual.
type GompParallel = unsafe extern "C" fn(
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
    threads: c_uint,
    flags: c_uint,
);

/// See the [module](self).
#[derive(Clone, Copy)]
pub struct OpenMp {
    parallel: GompParallel,
    /// Always the number that PyTorch asks for: for another one the library ends threads or starts
    /// new ones.
    threads: c_uint,
}

impl OpenMp {
    /// `threads` threads of the library whose `GOMP_parallel` is at this address; `None` for 0.
    ///
    /// # Safety
    /// The address is 0, or that of `GOMP_parallel` in a library that stays loaded.
    pub unsafe fn new(address: usize, threads: usize) -> Option<OpenMp> {
        let address = std::ptr::without_provenance::<c_void>(address);
        (!address.is_null()).then(|| OpenMp {
            // SAFETY: the caller's promise; the type is that of `GOMP_parallel`.
            parallel: unsafe { std::mem::transmute::<*const c_void, GompParallel>(address) },
            threads: c_uint::try_from(threads).unwrap_or(1),
        })
    }
}

impl HostThreads for OpenMp {
    fn call(&self, _: usize, task: &(dyn Fn() + Sync)) {
        unsafe extern "C" fn call_task(task: *mut c_void) {
            // SAFETY: `call` passes this pointer, and returns after all calls.
            let task = unsafe { *task.cast::<&(dyn Fn() + Sync)>() };
            task();
        }
        let mut task = task;
        // SAFETY: the function matches the data, which lives until all calls have ended.
        unsafe { (self.parallel)(call_task, (&raw mut task).cast(), self.threads, 0) };
    }
}
