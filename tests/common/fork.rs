//! Runs a check in a child of this process.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Whether `check` returns in a child made by `fork`: no panic, no hang, no exit of its own.
pub fn returns_in_child(check: impl FnOnce()) -> bool {
    // SAFETY: the child has this thread alone. It touches no lock of the test harness, and leaves
    // by `_exit`; the alarm ends it where it hangs.
    unsafe {
        match libc::fork() {
            0 => {
                libc::alarm(60);
                let status = i32::from(catch_unwind(AssertUnwindSafe(check)).is_err());
                libc::_exit(status)
            }
            child => {
                assert!(child > 0, "the system forks");
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
            }
        }
    }
}
