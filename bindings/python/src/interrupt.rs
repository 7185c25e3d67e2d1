//! Ctrl-C during long calls.
//!
//! The interpreter handles signals on its main thread, and only while that thread runs Python. So
//! the work runs on a thread of its own, and the calling thread asks for signals meanwhile.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

/// Time between two questions.
pub const PERIOD: Duration = Duration::from_millis(50);

/// What the work and the calling thread share.
#[derive(Default)]
pub struct Watch {
    is_stopped: AtomicBool,
    progress: Mutex<Option<Progress>>,
    is_over: Mutex<bool>,
    over: Condvar,
}

/// Tells the end of the work, also after a panic.
struct Ended<'a>(&'a Watch);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        *self
            .0
            .is_over
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.0.over.notify_all();
    }
}

/// How far the work has come.
pub struct Progress {
    /// From 0 to 1.
    pub fraction: f64,
    /// What is done now.
    pub stage: String,
}

impl Watch {
    /// Reports progress; whether the work is to go on.
    pub fn goes_on(&self, progress: Progress) -> bool {
        let mut latest = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = Some(progress);
        // Relaxed: it publishes nothing.
        !self.is_stopped.load(Ordering::Relaxed)
    }

    /// Waits for the end of the work, for at most [`PERIOD`]; whether it has come.
    fn wait(&self) -> bool {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .over
            .wait_timeout_while(is_over, PERIOD, |is_over| !*is_over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn report(&self, py: Python<'_>, to: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        py.check_signals()?;
        let latest = {
            let mut latest = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            latest.take()
        };
        if let (Some(to), Some(progress)) = (to, latest)
            && to
                .call1((progress.fraction, progress.stage))?
                .is(pyo3::types::PyBool::new(py, false))
        {
            self.is_stopped.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Runs `work`, and calls `progress` with its latest report. A signal's exception, or one of
/// `progress`, ends the work and is raised; where `progress` returns `False`, the work ends early
/// with its result so far.
pub fn watched<T: Send>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&Watch) -> T + Send,
) -> PyResult<T> {
    let watch = Watch::default();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let _ended = Ended(&watch);
            work(&watch)
        });
        let mut raised = None;
        loop {
            let is_over = py.detach(|| watch.wait());
            if let Err(why) = watch.report(py, progress) {
                watch.is_stopped.store(true, Ordering::Relaxed);
                raised.get_or_insert(why);
            }
            if is_over {
                break;
            }
        }
        let result = py.detach(|| worker.join());
        match raised {
            Some(why) => Err(why),
            None => Ok(result.unwrap_or_else(|panic| resume_unwind(panic))),
        }
    })
}
