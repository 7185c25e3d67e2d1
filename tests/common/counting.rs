//! The system's allocator, counting what is asked of it on any thread. Including this file installs
//! it.
//!
//! For programs of one test and without the harness: the harness's main thread allocates when it
//! prepares to wait for the test, and may come to that at any time while the test runs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::SeqCst);
        BYTES.fetch_add(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        CALLS.fetch_add(1, Ordering::SeqCst);
        BYTES.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::SeqCst);
        BYTES.fetch_add(size, Ordering::SeqCst);
        BYTES.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls of the allocator so far: allocations, and memory given back.
#[allow(dead_code)] // Not every test counts them.
pub fn calls() -> usize {
    CALLS.load(Ordering::SeqCst)
}

/// Bytes that are allocated now, as they were asked for.
#[allow(dead_code)]
pub fn bytes() -> usize {
    BYTES.load(Ordering::SeqCst)
}
