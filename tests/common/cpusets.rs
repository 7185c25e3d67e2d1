//! Changes the CPU set of a process while it runs, as an administrator does (`taskset --all-tasks`)
//! or a container's manager.

use std::mem::size_of_val;

/// The CPU sets that the threads of this process had; they get them again when it is dropped.
pub struct Confined(Vec<(libc::pid_t, libc::cpu_set_t)>);

/// Moves all threads of this process to one CPU. `None` where the system refuses it.
pub fn confine(cpu: usize) -> Option<Confined> {
    // SAFETY: an array of integers.
    let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the macro checks the index.
    unsafe { libc::CPU_SET(cpu, &mut one) };
    let mut before = Confined(Vec::new());
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        let thread = task.ok()?.file_name().to_str()?.parse().ok()?;
        let mut had = one;
        // SAFETY: the sets are of the size given. A thread may have ended: an error.
        let changed = unsafe {
            libc::sched_getaffinity(thread, size_of_val(&had), &mut had) == 0
                && libc::sched_setaffinity(thread, size_of_val(&one), &one) == 0
        };
        if changed {
            before.0.push((thread, had));
        }
    }
    (!before.0.is_empty()).then_some(before)
}

impl Drop for Confined {
    fn drop(&mut self) {
        for (thread, had) in &self.0 {
            // SAFETY: the set is of the size given. A thread may have ended: an error.
            unsafe { libc::sched_setaffinity(*thread, size_of_val(had), had) };
        }
    }
}
