//! Memory of the host that stays in its place and that a device reads and writes.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::{CudaContext, result, sys};

use super::failed;
use crate::arguments::Address;
use crate::driver::{DriverError, Pinned};

/// Pinned memory. No reference to it is ever made, because the device may write to it; the host
/// copies to and from it by pointer, and only what the device does not use meanwhile.
pub(super) struct PinnedBuffer {
    context: Arc<CudaContext>,
    pub(super) first: NonNull<u8>,
    bytes: usize,
    address: Address,
}

// SAFETY: the memory is of the process, not of a thread, and has one owner.
unsafe impl Send for PinnedBuffer {}

impl PinnedBuffer {
    pub fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<PinnedBuffer, DriverError> {
        let bytes = bytes.max(size_of::<u32>());
        let bound = context.bind_to_thread();
        bound.map_err(failed("cuCtxSetCurrent"))?;
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: the context is current, and the size is not 0. It is freed once, in `drop`.
        let first = unsafe { result::malloc_host(bytes, flags) };
        let first = first.map_err(failed("cuMemHostAlloc"))?.cast::<u8>();
        let Some(first) = NonNull::new(first) else {
            return Err(DriverError::Call {
                call: "cuMemHostAlloc",
                error: "no memory".into(),
            });
        };
        // SAFETY: all bytes were allocated above, and no device uses them yet.
        unsafe { first.write_bytes(0, bytes) };
        let mut address = 0;
        // SAFETY: the memory was allocated for this, and the address is written to once.
        let found = unsafe {
            sys::cuMemHostGetDevicePointer_v2(&raw mut address, first.as_ptr().cast(), 0)
        };
        let pinned = PinnedBuffer {
            context: Arc::clone(context),
            first,
            bytes,
            address,
        };
        found
            .result()
            .map_err(failed("cuMemHostGetDevicePointer"))?;
        Ok(pinned)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Pinned for PinnedBuffer {
    fn address(&self) -> Address {
        self.address
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.bytes);
        // SAFETY: within the allocation, and no other memory of Rust overlaps it. The device does
        // not use these bytes now: that is the contract of the trait.
        unsafe {
            let to = self.first.add(offset).as_ptr();
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset + bytes.len() <= self.bytes);
        // SAFETY: as in `write`.
        unsafe {
            let from = self.first.add(offset).as_ptr();
            from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len());
        }
    }

    fn word(&self) -> u32 {
        // SAFETY: there are four bytes at least, aligned to a page. The device writes them at once.
        let word = unsafe { AtomicU32::from_ptr(self.first.as_ptr().cast()) };
        word.load(Ordering::Acquire)
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated in `new` and freed once. The owner has waited for the stream.
            let _ = unsafe { result::free_host(self.first.as_ptr().cast()) };
        }
    }
}
