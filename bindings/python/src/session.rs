//! `Session`: runs a model.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cellstream::execute::team::ProcessMark;
use cellstream::execute::{self, State};
use cellstream::model::{Input, Layout, Output, Signature};
use cellstream::plan as core_plan;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::arrays::{Floats, FloatsOut, array, lengths};
use crate::errors::{Error, made};
use crate::model::Model;
use crate::plan::{Plan, threads};

#[pyclass(frozen, module = "cellstream")]
pub struct Session {
    session: Mutex<execute::Session>,
    /// A child has a copy of the lock, which may stay locked.
    made_in: ProcessMark,
    signature: Signature,
    states: StateShape,
}

/// The shape of final states.
#[derive(Clone, Copy)]
struct StateShape {
    /// Layers times directions.
    blocks: usize,
    /// Hidden state values of a block, if all blocks have the same number.
    hidden: Option<usize>,
    /// Cell state values of a block, likewise.
    cell: Option<usize>,
}

impl StateShape {
    fn of(model: &cellstream::Model) -> StateShape {
        let directions = || model.layers().iter().flat_map(|layer| layer.directions());
        let same = |sizes: Vec<usize>| {
            let first = sizes.first().copied().filter(|&size| size > 0);
            first.filter(|first| sizes.iter().all(|size| size == first))
        };
        StateShape {
            blocks: directions().count(),
            hidden: same(directions().map(|d| d.output_size()).collect()),
            cell: same(directions().map(|d| d.cell_state_size()).collect()),
        }
    }
}

/// The sizes of an input, as its array has them.
struct Sizes {
    steps: usize,
    batch: usize,
    /// The batch axis is left out.
    is_single: bool,
}

fn sizes(shape: &[usize], signature: &Signature) -> Result<Sizes, Error> {
    let (steps, batch, features, is_single) = match *shape {
        [steps, features] => (steps, 1, features, true),
        [steps, batch, features] if signature.layout == Layout::TimeMajor => {
            (steps, batch, features, false)
        }
        [batch, steps, features] => (steps, batch, features, false),
        _ => {
            return Err(Error::input(format!(
                "x has the shape {shape:?}; it must be {}, or [steps, {}]",
                axes(signature),
                signature.input
            )));
        }
    };
    if features != signature.input {
        return Err(Error::input(format!(
            "x has {features} features; the model takes {}: {}",
            signature.input,
            axes(signature)
        )));
    }
    Ok(Sizes {
        steps,
        batch,
        is_single,
    })
}

fn axes(signature: &Signature) -> String {
    match signature.layout {
        Layout::BatchMajor => format!("[batch, steps, {}]", signature.input),
        _ => format!("[steps, batch, {}]", signature.input),
    }
}

impl Session {
    fn lock(&self) -> Result<MutexGuard<'_, execute::Session>, Error> {
        if self.made_in.is_forked() {
            return Err(Error::forked("session"));
        }
        Ok(self.session.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn state_array<'py>(
        &self,
        py: Python<'py>,
        values: Vec<f32>,
        size: Option<usize>,
        sizes: &Sizes,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if values.is_empty() && size.is_none() {
            return Ok(None);
        }
        let all = values.len();
        let shape = match (size, sizes.is_single) {
            (Some(size), true) => vec![self.states.blocks, size],
            (Some(size), false) => vec![self.states.blocks, sizes.batch, size],
            (None, _) => vec![all],
        };
        Ok(Some(array(py, values, &shape)?.into_any()))
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (model, plan=None, *, threads=None))]
    fn new(
        py: Python<'_>,
        model: &Model,
        plan: Option<&Plan>,
        threads: Option<usize>,
    ) -> PyResult<Session> {
        if plan.is_some() && threads.is_some() {
            let why = "threads applies without a plan only: a plan has its number of threads";
            return Err(Error::input(why).into());
        }
        let model = &model.0;
        let make = || -> Result<Session, Error> {
            let estimated;
            let plan = match plan {
                Some(plan) => &plan.plan,
                None => {
                    estimated = core_plan::Plan::estimate_usual(model, self::threads(threads));
                    &estimated
                }
            };
            Ok(Session {
                session: Mutex::new(execute::Session::new(model, plan)?),
                made_in: ProcessMark::new(),
                signature: model.signature(),
                states: StateShape::of(model),
            })
        };
        Ok(py.detach(make)?)
    }

    #[pyo3(signature = (x, *, lengths=None, h0=None, c0=None, out=None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        lengths: Option<&Bound<'py, PyAny>>,
        h0: Option<&Bound<'py, PyAny>>,
        c0: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let x = Floats::of("x", x)?;
        let sizes = sizes(x.shape(), &self.signature)?;
        let Sizes { steps, batch, .. } = sizes;
        let lengths = self::lengths(lengths)?;
        let h0 = Floats::optional("h0", h0)?;
        let c0 = Floats::optional("c0", c0)?;
        let features = self.signature.output;
        let shape = match (sizes.is_single, self.signature.layout) {
            (true, _) => vec![steps, features],
            (false, Layout::BatchMajor) => vec![batch, steps, features],
            (false, _) => vec![steps, batch, features],
        };
        let mut out = match out {
            Some(out) => Some((FloatsOut::of("out", out, &shape)?, out.clone())),
            None => None,
        };
        let mut y = match out {
            Some(_) => Vec::new(),
            None => vec![0.0; steps * batch * features],
        };
        let mut hn = vec![0.0; batch * self.signature.hidden_state];
        let mut cn = vec![0.0; batch * self.signature.cell_state];
        {
            let values = match &mut out {
                Some((out, _)) => out.values()?,
                None => &mut y,
            };
            let mut input = Input::new(x.values()?, steps, batch);
            input.lengths = lengths.as_deref();
            input.h0 = h0.as_ref().map(Floats::values).transpose()?;
            input.c0 = c0.as_ref().map(Floats::values).transpose()?;
            let (hn, cn) = (&mut hn, &mut cn);
            py.detach(|| -> Result<(), Error> {
                let mut output = Output::new(values).hn(hn);
                if !cn.is_empty() {
                    output = output.cn(cn);
                }
                let mut session = self.lock()?;
                session.reserve(batch, steps)?;
                Ok(session.run(&input, &mut output)?)
            })?;
        }
        let y = match out {
            Some((_, array)) => array,
            None => array(py, y, &shape)?.into_any(),
        };
        let hn = self.state_array(py, hn, self.states.hidden, &sizes)?;
        let cn = self.state_array(py, cn, self.states.cell, &sizes)?;
        static RESULT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        made(py, &RESULT, "Result", (y, hn, cn))
    }

    #[pyo3(signature = (batch=1))]
    fn stream(slf: Bound<'_, Session>, batch: usize) -> PyResult<StreamState> {
        let signature = slf.get().signature;
        Ok(StreamState {
            made_in: slf.get().made_in,
            state: Mutex::new(State::zero(signature, batch)),
            batch,
            session: slf.unbind(),
        })
    }

    fn reserve(&self, py: Python<'_>, batch: usize, steps: usize) -> PyResult<()> {
        Ok(py.detach(|| self.lock()?.reserve(batch, steps).map_err(Error::from))?)
    }
}

#[pyclass(frozen, module = "cellstream")]
pub struct StreamState {
    session: Py<Session>,
    state: Mutex<State>,
    made_in: ProcessMark,
    batch: usize,
}

impl StreamState {
    fn lock(&self) -> Result<MutexGuard<'_, State>, Error> {
        if self.made_in.is_forked() {
            return Err(Error::forked("stream"));
        }
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl StreamState {
    fn step<'py>(&self, py: Python<'py>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let session = self.session.get();
        let x = Floats::of("x", x)?;
        let mut y = vec![0.0; self.batch * session.signature.output];
        let values = x.values()?;
        py.detach(|| -> Result<(), Error> {
            let mut state = self.lock()?;
            let mut session = session.lock()?;
            session.reserve(self.batch, 1)?;
            Ok(session.step(values, &mut state, &mut y)?)
        })?;
        let shape = match x.shape().len() {
            1 => vec![session.signature.output],
            _ => vec![self.batch, session.signature.output],
        };
        Ok(array(py, y, &shape)?.into_any())
    }

    #[getter]
    fn h<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let h = py.detach(|| Ok::<_, Error>(self.lock()?.h.clone()))?;
        let shape = [h.len()];
        Ok(array(py, h, &shape)?.into_any())
    }

    #[getter]
    fn c<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let c = py.detach(|| Ok::<_, Error>(self.lock()?.c.clone()))?;
        let shape = [c.len()];
        Ok(array(py, c, &shape)?.into_any())
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        let zero = State::zero(self.session.get().signature, self.batch);
        Ok(py.detach(|| {
            *self.lock()? = zero;
            Ok::<_, Error>(())
        })?)
    }
}
