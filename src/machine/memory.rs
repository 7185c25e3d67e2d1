//! Memory that the allocator keeps.

/// Gives memory that was freed back to the system. glibc keeps it otherwise, once blocks of its
/// size have been freed before: hundreds of MiB after large requests. It takes about a millisecond,
/// and does nothing with other allocators.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes no pointer, and locks what it changes.
    unsafe {
        libc::malloc_trim(0);
    }
}
