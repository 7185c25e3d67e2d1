//! Pinning threads to cores, and lifting the pin.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use core_affinity::CoreId;

use crate::machine::{Mask, remember_cpus, runnable_threads};

/// The pin of a thread.
#[derive(Clone, Copy)]
struct Pin {
    core: usize,
    /// Where the thread could run before.
    before: Option<Mask>,
}

thread_local!(static PIN: Cell<Option<Pin>> = const { Cell::new(None) });

/// Pins the calling thread. `false` if the system refuses or the core does not exist.
pub(super) fn pin_to(core: usize) -> bool {
    remember_cpus();
    let before = match PIN.get() {
        Some(pin) => pin.before,
        None => Mask::of_this_thread(),
    };
    let is_pinned = set_core(core);
    if is_pinned {
        PIN.set(Some(Pin { core, before }));
    }
    is_pinned
}

fn set_core(core: usize) -> bool {
    // core_affinity panics beyond the size of the system's core set.
    let max = if cfg!(windows) { 64 } else { 1024 };
    core < max && core_affinity::set_for_current(CoreId { id: core })
}

/// The pin of this thread, if the system still keeps it, and it has not been changed since.
fn kept() -> Option<Pin> {
    let pin = PIN.get()?;
    let is_kept = Mask::of_this_thread().is_none_or(|mask| mask.is_only(pin.core));
    is_kept.then_some(pin)
}

/// Does something for which this thread is not pinned, if it was pinned by a team: threads that are
/// started meanwhile may run wherever this one could before. On other systems than Linux it stays
/// pinned.
pub fn without_pin<T>(job: impl FnOnce() -> T) -> T {
    struct Again(Pin);
    impl Drop for Again {
        fn drop(&mut self) {
            set_core(self.0.core);
            PIN.set(Some(self.0));
        }
    }
    let lifted = kept().filter(|pin| pin.before.is_some_and(|before| before.apply()));
    let _again = lifted.map(Again);
    if lifted.is_some() {
        // A team that runs meanwhile must not pin the thread again.
        PIN.set(None);
    }
    job()
}

/// Lets this thread run on all of `cores`, if it is pinned to the first.
#[cold]
pub(super) fn roam(cores: &[usize]) {
    if kept().is_some_and(|pin| cores.first() == Some(&pin.core)) {
        #[cfg(target_os = "linux")]
        Mask::of(cores.iter().copied()).apply();
    }
}

/// Pins this thread again after [`roam`]. One that no team has pinned is moved to `core`: else it
/// might be where a worker is about to wake, and the system would be slow to part them.
#[cold]
pub(super) fn settle(core: usize) {
    match PIN.get() {
        Some(pin) if Mask::of_this_thread().is_some_and(|mask| mask.has(pin.core)) => {
            set_core(pin.core);
        }
        Some(_) => {}
        None => move_to(core),
    }
}

/// Moves this thread to `core`, if it may run there. It may leave it again.
#[cold]
pub(super) fn move_to(core: usize) {
    if let Some(mask) = Mask::of_this_thread()
        && mask.has(core)
        && !mask.is_only(core)
        && set_core(core)
    {
        mask.apply();
    }
}

/// Where a thread of a team is pinned.
pub(super) struct Home {
    /// `usize::MAX`: nowhere.
    core: AtomicUsize,
    is_lost: AtomicBool,
}

impl Default for Home {
    fn default() -> Self {
        Self {
            core: AtomicUsize::new(usize::MAX),
            is_lost: AtomicBool::new(false),
        }
    }
}

impl Home {
    /// Pins the calling thread there from now on, if the system lets it.
    pub(super) fn settle(&self, core: usize) {
        if pin_to(core) {
            self.core.store(core, Relaxed);
        }
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.core.load(Relaxed) != usize::MAX
    }

    /// Looks whether the calling thread is still there: the system takes cores from a process whose
    /// set of CPUs shrinks, and may forget the pin. It is pinned again where it may run; it is
    /// never moved out of the set that it has been given.
    #[cold]
    pub(super) fn look(&self) {
        let core = self.core.load(Relaxed);
        if core == usize::MAX {
            return;
        }
        let Some(mask) = Mask::of_this_thread() else {
            return;
        };
        let is_here = mask.is_only(core) || (mask.has(core) && set_core(core));
        self.is_lost.store(!is_here, Relaxed);
    }

    /// Whether its core was gone when it looked last.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Relaxed)
    }
}

/// Whether `cores` names a core twice, or more cores than can run at once.
pub(super) fn oversubscribed(cores: &[usize]) -> bool {
    let mut distinct = cores.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    distinct.len() < cores.len() || cores.len() > runnable_threads()
}
