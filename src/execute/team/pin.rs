//! Pinning threads to cores.

use core_affinity::CoreId;

use crate::machine::runnable_threads;

/// Pins the calling thread. `false` if the system refuses or the core does not exist.
pub(super) fn pin_to(core: usize) -> bool {
    // core_affinity panics beyond the size of the system's core set.
    let max = if cfg!(windows) { 64 } else { 1024 };
    core < max && core_affinity::set_for_current(CoreId { id: core })
}

/// Whether `cores` names a core twice, or more cores than can run at once.
pub(super) fn oversubscribed(cores: &[usize]) -> bool {
    let mut distinct = cores.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    distinct.len() < cores.len() || cores.len() > runnable_threads()
}
