//! The answers of an engine: waited for by a thread, or awaited.

use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

use gatestream::execute::team::ProcessMark;
use gatestream_serve::RequestError;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use crate::arrays::array;
use crate::errors::Error;
use crate::interrupt::PERIOD;
use crate::time::deadline;

type Answer = Result<Vec<f32>, RequestError>;
type Pending = Pin<Box<dyn Future<Output = Answer> + Send>>;

enum State {
    Pending(Pending),
    Ended(Answer),
}

/// The answer of an engine, to be awaited or waited for.
#[pyclass(frozen, module = "gatestream")]
pub struct Ticket {
    state: Mutex<State>,
    /// Those of all who wait: a future keeps one waker, which is this list's.
    waiting: Arc<Waiting>,
    made_in: ProcessMark,
    /// Values of a step.
    width: usize,
    /// The answer is of one step, so it has no axis of steps.
    is_last: bool,
}

/// Wakes all who wait for an answer.
#[derive(Default)]
struct Waiting(Mutex<Vec<Waker>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, waker: &Waker) {
        let mut wakers = self.lock();
        if !wakers.iter().any(|other| other.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    fn remove(&self, waker: &Waker) {
        self.lock().retain(|other| !other.will_wake(waker));
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        // Not under the lock: a waker may wait for the interpreter.
        let wakers = mem::take(&mut *self.lock());
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Wakes a task of an event loop.
struct Call(Py<PyAny>);

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        // `None` when the interpreter is about to end: nobody waits then.
        Python::try_attach(|py| {
            if let Err(why) = self.0.call0(py) {
                why.write_unraisable(py, None);
            }
        });
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Ticket {
    pub fn new(
        pending: impl Future<Output = Answer> + Send + 'static,
        width: usize,
        is_last: bool,
    ) -> Ticket {
        Ticket {
            state: Mutex::new(State::Pending(Box::pin(pending))),
            waiting: Arc::default(),
            made_in: ProcessMark::new(),
            width,
            is_last,
        }
    }

    /// The lock is held for moments, never while the interpreter is waited for.
    fn lock(&self) -> Result<MutexGuard<'_, State>, Error> {
        if self.made_in.is_forked() {
            return Err(RequestError::Forked.into());
        }
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the request has ended. If not, `waker` and those of all earlier calls are woken when
    /// it does.
    fn poll(&self, waker: &Waker) -> Result<bool, Error> {
        let mut state = self.lock()?;
        if let State::Pending(pending) = &mut *state {
            self.waiting.add(waker);
            let all = Waker::from(Arc::clone(&self.waiting));
            match pending.as_mut().poll(&mut Context::from_waker(&all)) {
                Poll::Pending => return Ok(false),
                Poll::Ready(answer) => *state = State::Ended(answer),
            }
            // Those of the others, whom the request wakes no more.
            self.waiting.remove(waker);
            drop(state);
            all.wake();
        }
        Ok(true)
    }

    /// Waits for the end of the request until this time.
    fn wait(&self, py: Python<'_>, until: Option<Instant>, waker: &Waker) -> PyResult<()> {
        loop {
            let is_done = py.detach(|| {
                let is_done = self.poll(waker)?;
                if !is_done {
                    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                    std::thread::park_timeout(left.map_or(PERIOD, |left| left.min(PERIOD)));
                }
                Ok::<_, Error>(is_done)
            })?;
            if is_done {
                return Ok(());
            }
            py.check_signals()?;
            let is_late = until.is_some_and(|until| Instant::now() >= until);
            if is_late && !py.detach(|| self.poll(waker))? {
                return Err(PyTimeoutError::new_err("the request has not ended yet"));
            }
        }
    }
}

#[pymethods]
impl Ticket {
    /// Waits for the answer.
    ///
    /// :raises TimeoutError: after ``timeout`` seconds; the request goes on.
    /// :raises RequestError: if the request ended without an answer.
    #[pyo3(signature = (timeout=None))]
    fn result<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let until = deadline(timeout)?;
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let waited = self.wait(py, until, &waker);
        self.waiting.remove(&waker);
        waited?;
        let values = match &*self.lock()? {
            State::Ended(Ok(values)) => values.clone(),
            State::Ended(Err(why)) => return Err(Error::from(why.clone()).into()),
            State::Pending(_) => unreachable!("it has ended"),
        };
        let shape = if self.is_last {
            vec![values.len()]
        } else {
            vec![values.len() / self.width.max(1), self.width]
        };
        Ok(array(py, values, &shape)?.into_any())
    }

    /// Whether the request has ended; if not, `wake` is called once when it does, on another
    /// thread.
    fn _poll(&self, py: Python<'_>, wake: Py<PyAny>) -> PyResult<bool> {
        let waker = Waker::from(Arc::new(Call(wake)));
        Ok(py.detach(|| self.poll(&waker))?)
    }

    /// Whether the request has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(py.detach(|| self.poll(Waker::noop()))?)
    }

    /// Ends the request, unless it has ended.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| {
            let mut state = self.lock()?;
            if let State::Pending(_) = &*state {
                // Dropping the future of a request cancels it, and wakes nobody.
                *state = State::Ended(Err(RequestError::Cancelled));
                drop(state);
                Arc::clone(&self.waiting).wake();
            }
            Ok::<_, Error>(())
        })?)
    }

    fn __await__<'py>(slf: Bound<'py, Ticket>) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("gatestream._types")?;
        module.getattr("_wait")?.call1((slf,))
    }
}
