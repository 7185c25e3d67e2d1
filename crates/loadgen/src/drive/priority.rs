//! The generator comes first where it is due.
//!
//! The workers have all the cores, and never sleep under load: a generator of their rank that wakes up waits for the end
//! of somebody's time slice, 3 to 4 ms on Linux, which is many steps of a cell. A client on another machine would not. So
//! the generator's thread, which sleeps most of the time, gets the least real-time priority while it submits, where
//! the system lets it; where not, that is said, and how late it was is reported as ever.

/// What is said where the system refuses.
pub const REFUSED: &str = "the load generator has no right to go before the workers (CAP_SYS_NICE, or `ulimit -r 1`), so \
    it may be late where they have all cores; results show by how much (late)";

/// Whether the calling thread may be raised; it is one like all others afterwards.
pub fn is_allowed() -> bool {
    let allowed = raise();
    lower();
    allowed
}

/// The calling thread goes before all of ordinary rank; `false` where the system refuses.
#[cfg(target_os = "linux")]
pub fn raise() -> bool {
    use thread_priority::RealtimeThreadSchedulePolicy::Fifo;
    set(thread_priority::ThreadSchedulePolicy::Realtime(Fifo), 1)
}

/// The calling thread is one like all others, and so are threads that it starts.
#[cfg(target_os = "linux")]
pub fn lower() -> bool {
    use thread_priority::NormalThreadSchedulePolicy::Other;
    set(thread_priority::ThreadSchedulePolicy::Normal(Other), 0)
}

#[cfg(target_os = "linux")]
fn set(policy: thread_priority::ThreadSchedulePolicy, priority: u8) -> bool {
    use thread_priority::{ThreadPriority, set_thread_priority_and_policy, thread_native_id};
    let Ok(value) = priority.try_into() else {
        return false;
    };
    let priority = ThreadPriority::Crossplatform(value);
    set_thread_priority_and_policy(thread_native_id(), priority, policy).is_ok()
}

/// Nothing is asked for, and so nothing refused: no system but Linux is known to need it.
#[cfg(not(target_os = "linux"))]
pub fn raise() -> bool {
    true
}

/// As elsewhere.
#[cfg(not(target_os = "linux"))]
pub fn lower() -> bool {
    true
}
