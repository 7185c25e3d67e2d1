//! Staying on one core.

use core_affinity::CoreId;

use crate::machine::runnable_threads;

/// Pins the calling thread; `false` where the system refuses or there is no such core.
pub(super) fn pin_to(core: usize) -> bool {
    // The sizes of the systems' core sets, beyond which core_affinity would panic.
    let most = if cfg!(windows) { 64 } else { 1024 };
    core < most && core_affinity::set_for_current(CoreId { id: core })
}

/// Whether `cores` names a core twice, or more cores than can run at once.
pub(super) fn oversubscribed(cores: &[usize]) -> bool {
    let mut distinct = cores.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    distinct.len() < cores.len() || cores.len() > runnable_threads()
}
