//! Real-time priority of the generator's thread.
//!
//! The workers have all cores and do not sleep under load. A generator of the same priority would
//! wait for the end of a worker's time slice, which is many steps of a cell; a client on another
//! machine would not. So the thread, which sleeps most of the time, gets the lowest real-time
//! priority while it submits, if the system permits. If not, a notice is printed, and the delays
//! show in the reported lateness.

/// The notice if the system refuses.
pub const REFUSED: &str = "the load generator has no right to go before the workers \
    (CAP_SYS_NICE, or `ulimit -r 1`), so it may be late where they have all cores; results show by \
    how much (late)";

/// Whether the calling thread may have real-time priority. It has normal priority afterwards.
pub fn is_allowed() -> bool {
    let allowed = raise();
    lower();
    allowed
}

/// Raises the calling thread to the lowest real-time priority; `false` if the system refuses.
#[cfg(target_os = "linux")]
pub fn raise() -> bool {
    use thread_priority::RealtimeThreadSchedulePolicy::Fifo;
    set(thread_priority::ThreadSchedulePolicy::Realtime(Fifo), 1)
}

/// Sets the calling thread, and threads that it starts from now on, to normal priority.
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

/// Does nothing: only Linux is known to need it.
#[cfg(not(target_os = "linux"))]
pub fn raise() -> bool {
    true
}

/// Does nothing.
#[cfg(not(target_os = "linux"))]
pub fn lower() -> bool {
    true
}
