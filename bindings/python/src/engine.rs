//! `Engine` and `Stream`: single cells of many requests, batched.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use gatestream::execute::team::ProcessMark;
use gatestream_serve as serve;
use gatestream_serve::cell_graph::{BatchSizes, Cells};
use gatestream_serve::engine::{EngineOptions, Request, StepOptions, Workers};
use gatestream_serve::networks::{Outputs, Stack};
use gatestream_serve::policy::PolicyKind;
use gatestream_serve::scheduler::End;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::Floats;
use crate::count::{Count, priority};
use crate::errors::{Class, Error};
use crate::model::Model;
use crate::plan::Plan;
use crate::ticket::Ticket;
use crate::time::deadline;

/// Serves one model to many users: batches single steps of all requests that are under way.
///
/// Starts the workers.
///
/// :param policy: ``ebatch`` (the default), ``cellular`` or ``shortest``.
/// :param max_batch: the largest number of rows of a batch.
/// :param max_steps: the longest sequence of a model with a reverse direction, which runs whole;
///     1000 by default.
/// :param max_requests: requests that have not ended; those beyond it are refused with
///     :class:`OverloadedError`. Likewise all limits below.
/// :param max_nodes: their steps together; of a model with a reverse direction, the sequences.
/// :param max_request_nodes: steps of one request.
/// :param max_bytes: memory of their inputs, states and outputs.
/// :param max_streams: open streams.
#[pyclass(frozen, module = "gatestream")]
pub struct Engine {
    /// `None` after `close`.
    engine: RwLock<Option<serve::Engine>>,
    made_in: ProcessMark,
    policy: PolicyKind,
    stack: Stack,
    input: usize,
    output: usize,
}

impl Engine {
    /// Calls `with` with the engine, without the interpreter.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        with: impl FnOnce(&serve::Engine) -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        if self.made_in.is_forked() {
            return Err(Error::forked("engine"));
        }
        py.detach(|| {
            let engine = self.engine.read().unwrap_or_else(PoisonError::into_inner);
            match &*engine {
                Some(engine) => with(engine),
                None => Err(Error::new(Class::Request, "the engine is closed")),
            }
        })
    }
}

/// States, in one axis.
fn flat<'py>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<Floats<'py>> {
    let floats = Floats::of(name, value)?;
    match floats.shape() {
        [_] => Ok(floats),
        shape => {
            let why = format!("{name} has the shape {shape:?}; it must have one axis");
            Err(Error::input(why).into())
        }
    }
}

/// Calls `work` without the interpreter, for which threads that it waits for may wait; `None`: the
/// interpreter is ending, and the process with it.
fn detached<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    Python::try_attach(|py| py.detach(work))
}

/// The reply thread is joined.
impl Drop for Engine {
    fn drop(&mut self) {
        let engine = self
            .engine
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let mut engine = engine.take();
        if engine.is_some() && detached(|| drop(engine.take())).is_none() {
            std::mem::forget(engine);
        }
    }
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (model, *, policy=None, max_batch=None, workers=None, plan=None,
        max_steps=None, max_requests=None, max_nodes=None, max_request_nodes=None, max_bytes=None,
        max_streams=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        model: &Model,
        policy: Option<&str>,
        max_batch: Option<Count>,
        workers: Option<&str>,
        plan: Option<&Plan>,
        max_steps: Option<Count>,
        max_requests: Option<Count>,
        max_nodes: Option<Count>,
        max_request_nodes: Option<Count>,
        max_bytes: Option<Count>,
        max_streams: Option<Count>,
    ) -> PyResult<Engine> {
        let policy = policy.map(str::parse::<PolicyKind>).transpose();
        let policy = policy.map_err(Error::input)?.unwrap_or_default();
        let workers = match workers {
            None | Some("one-per-core") => Workers::OnePerCore,
            Some("one-over-all") => Workers::OneOverAll,
            Some(other) => {
                let why = format!("workers {other:?} is unknown; use one-per-core or one-over-all");
                return Err(Error::input(why).into());
            }
        };
        let mut options = EngineOptions {
            policy,
            workers,
            ..EngineOptions::default()
        };
        if let Some(max) = max_batch {
            let max = max.within("max_batch", 1..=EngineOptions::MAX_ROWS)?;
            options.sizes = vec![BatchSizes { min: 1, max }];
        }
        let limits = &mut options.limits;
        for (name, asked, limit) in [
            ("max_requests", max_requests, &mut limits.requests),
            ("max_nodes", max_nodes, &mut limits.nodes),
            (
                "max_request_nodes",
                max_request_nodes,
                &mut limits.request_nodes,
            ),
            ("max_bytes", max_bytes, &mut limits.bytes),
            ("max_streams", max_streams, &mut limits.streams),
        ] {
            if let Some(asked) = asked {
                *limit = asked.positive(name)?;
            }
        }
        let max_steps = max_steps
            .unwrap_or_else(|| Count::from(1000_usize))
            .positive("max_steps")?;
        let (model, plan) = (&model.0, plan.map(|plan| plan.plan.clone()));
        let signature = model.signature();
        let start = || -> Result<(serve::Engine, Stack), Error> {
            let mut cells = Cells::new();
            let stack = Stack::add(&mut cells, Arc::clone(model), plan, max_steps)?;
            Ok((serve::Engine::start(cells, &options)?, stack))
        };
        let (engine, stack) = py.detach(start)?;
        Ok(Engine {
            engine: RwLock::new(Some(engine)),
            made_in: ProcessMark::new(),
            policy: options.policy,
            stack,
            input: signature.input,
            output: signature.output,
        })
    }

    /// Submits a sequence ``[steps, input_size]``.
    ///
    /// :param states: initial states, ``[size]`` each: of each layer the hidden state and, of an
    ///     LSTM, the cell state. A model with a reverse direction has two: all hidden states, and
    ///     all cell states.
    /// :param outputs: the output of the last step, ``[output_size]``, or of each,
    ///     ``[steps, output_size]``.
    /// :param priority: from 0 to 255; higher ones come first.
    /// :param timeout: seconds after which the request ends with :class:`DeadlineError`.
    #[pyo3(signature = (x, *, states=None, outputs="last", priority=Count::from(0_usize),
        timeout=None),
        text_signature = "($self, x, *, states=None, outputs='last', priority=0, timeout=None)")]
    fn submit(
        slf: Bound<'_, Engine>,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        states: Option<Vec<Bound<'_, PyAny>>>,
        outputs: &str,
        priority: Count,
        timeout: Option<f64>,
    ) -> PyResult<Ticket> {
        let this = slf.get();
        let priority = self::priority(priority)?;
        let x = Floats::of("x", x)?;
        if x.shape().len() != 2 || x.shape()[1] != this.input {
            let why = format!(
                "x has the shape {:?}; it must be [steps, {}]",
                x.shape(),
                this.input
            );
            return Err(Error::input(why).into());
        }
        let is_last = match outputs {
            "last" => true,
            "each" => false,
            _ => {
                let why = format!("outputs {outputs:?} is unknown; use last or each");
                return Err(Error::input(why).into());
            }
        };
        let kind = if is_last {
            Outputs::Last
        } else {
            Outputs::Each
        };
        let states = states.unwrap_or_default();
        let states = { states.iter() }.map(|state| flat("states", state));
        let states = states.collect::<PyResult<Vec<_>>>()?;
        let states = states
            .iter()
            .map(Floats::values)
            .collect::<PyResult<Vec<_>>>()?;
        let deadline = deadline(timeout)?;
        let values = x.values()?;
        let ticket = this.with(py, |engine| {
            let initial = (!states.is_empty()).then_some(&states[..]);
            let graph = this.stack.unfold(values, initial, kind)?;
            let mut request = Request::new(graph).priority(priority);
            if let Some(deadline) = deadline {
                request = request.deadline(deadline);
            }
            Ok(engine.submit(request)?)
        })?;
        // An engine without other references ends with its last request.
        let engine = slf.clone().unbind();
        let answer = async move {
            let response = ticket.await;
            drop(engine);
            response.map(|response| response.values)
        };
        Ok(Ticket::new(answer, this.output, is_last))
    }

    /// Opens a stream, whose steps come one by one.
    ///
    /// :param states: those of :meth:`Stream.state` of another; zero by default.
    #[pyo3(signature = (states=None))]
    fn stream(slf: Bound<'_, Engine>, states: Option<&Bound<'_, PyAny>>) -> PyResult<Stream> {
        let states = states.map(|states| flat("states", states)).transpose()?;
        let states = states.as_ref().map(Floats::values).transpose()?;
        let engine = slf.get();
        let stream = engine.with(slf.py(), |started| {
            Ok(started.stream(engine.stack.cell(), states)?)
        })?;
        Ok(Stream {
            stream: Mutex::new(Some(stream)),
            made_in: engine.made_in,
            input: engine.input,
            output: engine.output,
            engine: slf.unbind(),
        })
    }

    /// The policy that forms batches: ``ebatch``, ``cellular`` or ``shortest``.
    #[getter]
    fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// Numbers of requests: ``submitted``, ``completed``, ``cancelled``, ``late``, ``failed``,
    /// ``refused``, ``unanswered``. The rows that wait for a worker, ``ready_rows``, and those of
    /// all batches, ``computed_rows``. The number of ``workers``, and the time of their batches,
    /// ``busy_seconds``.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, workers) = self.with(py, |engine| {
            Ok((engine.model().stats(), engine.stats().workers))
        })?;
        let entries = PyDict::new(py);
        let busy: Duration = workers.iter().map(|worker| worker.busy).sum();
        entries.set_item("workers", workers.len())?;
        entries.set_item("busy_seconds", busy.as_secs_f64())?;
        if let Some(stats) = stats {
            let counts = stats.counts;
            entries.set_item("submitted", counts.submitted)?;
            entries.set_item("refused", counts.refused())?;
            entries.set_item("unanswered", stats.unanswered)?;
            entries.set_item("ready_rows", stats.ready)?;
            let rows: u64 = stats.cells.iter().map(|cell| cell.rows).sum();
            entries.set_item("computed_rows", rows)?;
            entries.set_item("completed", counts.of(End::Completed))?;
            entries.set_item("cancelled", counts.of(End::Cancelled))?;
            entries.set_item("late", counts.of(End::Late))?;
            entries.set_item("failed", counts.of(End::Failed))?;
        }
        Ok(entries)
    }

    /// Ends all requests and the workers. An engine without references, not even of a
    /// :class:`Ticket`, ends as well.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.made_in.is_forked() {
            return Err(Error::forked("engine").into());
        }
        py.detach(|| {
            let engine = self
                .engine
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            drop(engine);
        });
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Engine>) -> Bound<'_, Engine> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }
}

/// An open stream of an engine. One without references ends as by :meth:`close`.
#[pyclass(frozen, module = "gatestream")]
pub struct Stream {
    /// `None` after `close`.
    stream: Mutex<Option<serve::engine::Stream>>,
    made_in: ProcessMark,
    input: usize,
    output: usize,
    engine: Py<Engine>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        let stream = self
            .stream
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let mut stream = stream.take();
        if !self.made_in.is_forked() {
            detached(|| drop(stream.take().map(serve::engine::Stream::close)));
        }
    }
}

impl Stream {
    fn lock(&self) -> Result<MutexGuard<'_, Option<serve::engine::Stream>>, Error> {
        if self.made_in.is_forked() {
            return Err(Error::forked("stream"));
        }
        Ok(self.stream.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl Stream {
    /// Adds a step, ``[input_size]``; its answer is ``[output_size]``.
    #[pyo3(signature = (x, *, priority=Count::from(0_usize), timeout=None),
        text_signature = "($self, x, *, priority=0, timeout=None)")]
    fn push(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        priority: Count,
        timeout: Option<f64>,
    ) -> PyResult<Ticket> {
        let x = Floats::of("x", x)?;
        if x.shape() != [self.input] {
            let why = format!(
                "x has the shape {:?}; it must be [{}]",
                x.shape(),
                self.input
            );
            return Err(Error::input(why).into());
        }
        let options = StepOptions {
            priority: self::priority(priority)?,
            deadline: deadline(timeout)?,
        };
        let values = x.values()?;
        let step = py.detach(|| match &mut *self.lock()? {
            Some(stream) => Ok(stream.push_with(values, options)?),
            None => Err(Error::new(Class::Request, "the stream is closed")),
        })?;
        let engine = self.engine.clone_ref(py);
        let answer = async move {
            let answer = step.await;
            drop(engine);
            answer
        };
        Ok(Ticket::new(answer, self.output, true))
    }

    /// The states after the last answered step.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let state = py.detach(|| match &*self.lock()? {
            Some(stream) => Ok(stream.state()),
            None => Err(Error::new(Class::Request, "the stream is closed")),
        })?;
        let shape = [state.len()];
        Ok(crate::arrays::array(py, state, &shape)?.into_any())
    }

    /// Ends the stream after the steps that were added.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| {
            if let Some(stream) = self.lock()?.take() {
                drop(stream.close());
            }
            Ok::<_, Error>(())
        })?)
    }
}
