//! Runs user-supplied code and turns a panic into a value.
//!
//! The panic hook is the process's, not a thread's: it prints `thread … panicked at …`. Where the
//! caller reports the panic itself, this line is left out on the thread that runs the code. For
//! this, the hook is wrapped once: on silent threads the wrapper does nothing, on all others it
//! calls the hook of the host program as before.
//!
//! ```text
//! a host sets another hook later    it is called once for a silent panic, and then wrapped, too
//! a host chains to the present one  its own part is called for silent panics
//! RUST_BACKTRACE is set             nothing is left out: causes and places are wanted
//! ```

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Runs `job`. After a panic the caller discards what the job may have left inconsistent. The panic
/// hook reports the panic.
///
/// # Errors
/// The payload of the panic.
pub fn catch_panic<T>(job: impl FnOnce() -> T) -> Result<T, PanicPayload> {
    catch_unwind(AssertUnwindSafe(job)).map_err(|payload| PanicPayload(Some(payload)))
}

/// As [`catch_panic`], for a caller that reports the panic's message itself: the panic hook does
/// not report panics of this thread during `job`, unless `RUST_BACKTRACE` is set. Other threads are
/// not affected.
///
/// # Errors
/// The payload of the panic.
pub fn catch_panic_silently<T>(job: impl FnOnce() -> T) -> Result<T, PanicPayload> {
    if *IS_LOUD {
        return catch_panic(job);
    }
    let silent = Silence::begin();
    let before = SILENCED.load(Ordering::Relaxed);
    let caught = catch_panic(job);
    if caught.is_err() && SILENCED.load(Ordering::Relaxed) == before {
        // The host program has replaced the hook.
        wrap_hook(silent.wraps);
    }
    caught
}

/// The panic hook does not report panics of this thread from now on, unless `RUST_BACKTRACE` is
/// set. For threads of a pool whose panics go on in the thread that has called it.
pub fn silence_panics_of_this_thread() {
    if !*IS_LOUD {
        std::mem::forget(Silence::begin());
    }
}

/// Whether the environment asks for backtraces.
static IS_LOUD: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0"));

thread_local! {
    /// How many callers want silence.
    static SILENT: Cell<u32> = const { Cell::new(0) };
}

/// Panics that were not reported.
static SILENCED: AtomicU64 = AtomicU64::new(0);

/// How often a hook was wrapped.
static WRAPS: AtomicU64 = AtomicU64::new(0);

/// Held while a hook is wrapped.
static WRAPPING: Mutex<()> = Mutex::new(());

/// A host that replaces the hook again and again has its panics reported.
const MAX_WRAPS: u64 = 64;

/// Silence of this thread.
struct Silence {
    /// The value of [`WRAPS`].
    wraps: u64,
}

impl Silence {
    fn begin() -> Silence {
        let wraps = WRAPS.load(Ordering::Acquire);
        if wraps == 0 {
            wrap_hook(0);
        }
        let _ = SILENT.try_with(|silent| silent.set(silent.get() + 1));
        Silence {
            wraps: wraps.max(1),
        }
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        let _ = SILENT.try_with(|silent| silent.set(silent.get() - 1));
    }
}

/// Wraps the present hook, unless another thread has done so since there were `wraps`.
fn wrap_hook(wraps: u64) {
    let _wrapping = WRAPPING.lock().unwrap_or_else(PoisonError::into_inner);
    // A panicking thread may not change the hook.
    let is_done = WRAPS.load(Ordering::Acquire) != wraps;
    if is_done || wraps == MAX_WRAPS || std::thread::panicking() {
        return;
    }
    let of_host = take_hook();
    set_hook(Box::new(move |panic| {
        let is_silent = SILENT.try_with(|silent| silent.get() > 0);
        if is_silent.unwrap_or(false) {
            SILENCED.fetch_add(1, Ordering::Relaxed);
        } else {
            of_host(panic);
        }
    }));
    WRAPS.store(wraps + 1, Ordering::Release);
}

/// The payload of a panic. It may be any value: it may hold a lock, or panic when it is dropped.
pub struct PanicPayload(Option<Box<dyn Any + Send>>);

impl PanicPayload {
    /// The message of the panic.
    pub fn message(&self) -> String {
        let payload = self.0.as_deref();
        let text = payload.and_then(|payload| payload.downcast_ref::<&str>());
        let text = text.map(|text| (*text).to_owned());
        let owned = || payload?.downcast_ref::<String>().cloned();
        text.or_else(owned).unwrap_or_else(|| "no message".into())
    }

    /// Whether the payload is a `T`.
    pub fn is<T: 'static>(&self) -> bool {
        self.0.as_deref().is_some_and(|payload| payload.is::<T>())
    }
}

impl Drop for PanicPayload {
    fn drop(&mut self) {
        let payload = self.0.take();
        if let Err(worse) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            // Leaked, because dropping it might panic again.
            std::mem::forget(worse);
        }
    }
}
