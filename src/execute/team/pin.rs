//! Which cores there are, and staying on one.

use std::sync::OnceLock;

use core_affinity::CoreId;

/// The cores this process may use, and how many threads that is worth at once.
pub(super) struct Machine {
    pub(super) cores: Vec<usize>,
    pub(super) at_once: usize,
}

/// Asked once and remembered, before a team can have pinned anybody: the system answers for the
/// calling thread, and a pinned one would see a machine with a single core.
pub(super) fn machine() -> &'static Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    MACHINE.get_or_init(|| {
        let cores: Vec<usize> = core_affinity::get_core_ids()
            .unwrap_or_default()
            .iter()
            .map(|core| core.id)
            .collect();
        // Less than the number of cores where a container has a quota.
        let at_once = std::thread::available_parallelism().map_or(cores.len().max(1), usize::from);
        Machine { cores, at_once }
    })
}

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
    distinct.len() < cores.len() || cores.len() > machine().at_once
}
