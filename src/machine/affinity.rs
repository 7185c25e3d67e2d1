//! The CPUs that threads may run on: those of the calling thread, and those of the process, which
//! are its main thread's.

pub(crate) use system::{Mask, current_cpu};
pub(super) use system::{is_main_thread, main_thread_cpus};

#[cfg(target_os = "linux")]
mod system {
    use std::mem::size_of;

    /// A set of CPUs. Of no use on a machine with more than 1024, where there is none.
    #[derive(Clone, Copy)]
    pub(crate) struct Mask(libc::cpu_set_t);

    impl Mask {
        const MOST: usize = 8 * size_of::<libc::cpu_set_t>();

        /// The calling thread's.
        pub(crate) fn of_this_thread() -> Option<Mask> {
            let mut mask = Mask::of([]);
            // SAFETY: the set is writable and of the size given.
            let got = unsafe { libc::sched_getaffinity(0, size_of_val(&mask.0), &mut mask.0) };
            (got == 0).then_some(mask)
        }

        pub(crate) fn of(cpus: impl IntoIterator<Item = usize>) -> Mask {
            // SAFETY: an array of integers.
            let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
            for cpu in cpus.into_iter().filter(|&cpu| cpu < Mask::MOST) {
                // SAFETY: within the set.
                unsafe { libc::CPU_SET(cpu, &mut set) };
            }
            Mask(set)
        }

        /// The calling thread may run on these from now on, as far as the system lets it: `false`
        /// if on none.
        pub(crate) fn apply(&self) -> bool {
            // SAFETY: the set is readable and of the size given.
            unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &self.0) == 0 }
        }

        pub(crate) fn has(&self, cpu: usize) -> bool {
            // SAFETY: within the set.
            cpu < Mask::MOST && unsafe { libc::CPU_ISSET(cpu, &self.0) }
        }

        pub(crate) fn is_only(&self, cpu: usize) -> bool {
            // SAFETY: it reads the set.
            self.has(cpu) && unsafe { libc::CPU_COUNT(&self.0) } == 1
        }

        pub(crate) fn cpus(&self) -> impl Iterator<Item = usize> + '_ {
            (0..Mask::MOST).filter(|&cpu| self.has(cpu))
        }
    }

    /// The CPU that this thread is on at this moment.
    #[inline]
    pub(crate) fn current_cpu() -> Option<usize> {
        // SAFETY: it has no arguments.
        usize::try_from(unsafe { libc::sched_getcpu() }).ok()
    }

    pub(crate) fn is_main_thread() -> bool {
        // SAFETY: neither has arguments, nor can fail.
        unsafe { libc::gettid() == libc::getpid() }
    }

    /// The CPUs that the process's first thread may run on.
    pub(crate) fn main_thread_cpus() -> Option<Vec<usize>> {
        // Of the thread that the process is named after.
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let mut lines = status.lines();
        let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let cpus = super::super::sysfs::parse_cpu_list(list.trim())?;
        Some(cpus.into_iter().collect())
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    /// Not known: threads are only ever pinned.
    #[derive(Clone, Copy)]
    pub(crate) enum Mask {}

    impl Mask {
        pub(crate) fn of_this_thread() -> Option<Mask> {
            None
        }

        pub(crate) fn apply(&self) -> bool {
            match *self {}
        }

        pub(crate) fn has(&self, _: usize) -> bool {
            match *self {}
        }

        pub(crate) fn is_only(&self, _: usize) -> bool {
            match *self {}
        }

        pub(crate) fn cpus(&self) -> impl Iterator<Item = usize> + '_ {
            std::iter::empty()
        }
    }

    pub(crate) fn current_cpu() -> Option<usize> {
        None
    }

    pub(crate) fn is_main_thread() -> bool {
        true
    }

    pub(crate) fn main_thread_cpus() -> Option<Vec<usize>> {
        None
    }
}
