//! `StreamState`: the states of streams between steps.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gatestream::execute::State;
use gatestream::execute::team::ProcessMark;
use gatestream::model::Model;
use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::arrays::{Floats, array, integers, zeros};
use crate::errors::Error;
use crate::session::Session;

/// The shapes of states.
#[derive(Clone, Copy)]
pub struct StateShape {
    /// Layers times directions.
    blocks: usize,
    hidden: Sizes,
    cell: Sizes,
}

/// Values of a sequence.
#[derive(Clone, Copy)]
struct Sizes {
    /// In all blocks.
    all: usize,
    /// In each block, if all have the same number.
    each: Option<usize>,
}

impl Sizes {
    fn of(blocks: impl Iterator<Item = usize>) -> Sizes {
        let sizes: Vec<usize> = blocks.collect();
        let first = sizes.first().copied().filter(|&size| size > 0);
        Sizes {
            all: sizes.iter().sum(),
            each: first.filter(|first| sizes.iter().all(|size| size == first)),
        }
    }
}

impl StateShape {
    pub fn of(model: &Model) -> StateShape {
        let directions = || model.layers().iter().flat_map(|layer| layer.directions());
        StateShape {
            blocks: directions().count(),
            hidden: Sizes::of(directions().map(|d| d.output_size())),
            cell: Sizes::of(directions().map(|d| d.cell_state_size())),
        }
    }

    /// The hidden states of `batch` sequences that are given.
    pub fn hidden<'py>(
        &self,
        name: &str,
        value: Option<&Bound<'py, PyAny>>,
        batch: usize,
    ) -> PyResult<Option<Floats<'py>>> {
        self.given(name, value, batch, self.hidden)
    }

    /// The cell states of `batch` sequences that are given.
    pub fn cell<'py>(
        &self,
        name: &str,
        value: Option<&Bound<'py, PyAny>>,
        batch: usize,
    ) -> PyResult<Option<Floats<'py>>> {
        self.given(name, value, batch, self.cell)
    }

    fn given<'py>(
        &self,
        name: &str,
        value: Option<&Bound<'py, PyAny>>,
        batch: usize,
        sizes: Sizes,
    ) -> PyResult<Option<Floats<'py>>> {
        let Some(floats) = Floats::optional(name, value)? else {
            return Ok(None);
        };
        let shape = floats.shape();
        let all = batch.saturating_mul(sizes.all);
        let blocks = sizes.each.map(|size| [self.blocks, batch, size]);
        let fits = shape == [all]
            || blocks.is_some_and(|blocks| {
                shape == blocks || (batch == 1 && shape == [blocks[0], blocks[2]])
            });
        if fits {
            return Ok(Some(floats));
        }
        let right = match blocks {
            Some(blocks) => format!("{blocks:?} or [{all}]"),
            None => format!("[{all}]"),
        };
        let why = format!("{name} has the shape {shape:?}; it must be {right}");
        Err(Error::input(why).into())
    }

    /// Hidden states as an array; `batch`: the length of the axis of sequences, if there is one.
    pub fn hidden_array<'py>(
        &self,
        py: Python<'py>,
        values: Vec<f32>,
        batch: Option<usize>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.made(py, values, batch, self.hidden)
    }

    /// Cell states as an array, likewise; `None`: there are none.
    pub fn cell_array<'py>(
        &self,
        py: Python<'py>,
        values: Vec<f32>,
        batch: Option<usize>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.made(py, values, batch, self.cell)
    }

    fn made<'py>(
        &self,
        py: Python<'py>,
        values: Vec<f32>,
        batch: Option<usize>,
        sizes: Sizes,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if values.is_empty() && sizes.each.is_none() {
            return Ok(None);
        }
        let shape = match (sizes.each, batch) {
            (Some(size), None) => vec![self.blocks, size],
            (Some(size), Some(batch)) => vec![self.blocks, batch, size],
            (None, _) => vec![values.len()],
        };
        Ok(Some(array(py, values, &shape)?.into_any()))
    }
}

/// The states of streams between steps.
#[pyclass(frozen, module = "gatestream")]
pub struct StreamState {
    session: Py<Session>,
    state: Mutex<State>,
    made_in: ProcessMark,
}

impl StreamState {
    /// Streams of a session, with these states or zero.
    pub fn new(
        session: &Bound<'_, Session>,
        batch: usize,
        h0: Option<&Bound<'_, PyAny>>,
        c0: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<StreamState> {
        let of = session.get();
        let h0 = of.states.hidden("h0", h0, batch)?;
        let c0 = of.states.cell("c0", c0, batch)?;
        let mut state = State::try_zero(of.signature, batch).map_err(Error::from)?;
        if let Some(h0) = h0 {
            state.h.copy_from_slice(h0.values()?);
        }
        if let Some(c0) = c0 {
            state.c.copy_from_slice(c0.values()?);
        }
        Ok(StreamState::of(session.clone().unbind(), state))
    }

    fn of(session: Py<Session>, state: State) -> StreamState {
        StreamState {
            made_in: session.get().made_in,
            session,
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>, Error> {
        if self.made_in.is_forked() {
            return Err(Error::forked("stream"));
        }
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A copy, so that no two locks are held at once.
    fn copied(&self) -> Result<State, Error> {
        Ok(self.lock()?.clone())
    }

    /// These streams of a state of the session.
    fn select(&self, state: &State, streams: &[usize]) -> Result<State, Error> {
        let streams: Vec<_> = streams.iter().map(|&stream| (state, stream)).collect();
        Ok(self.session.get().lock()?.state_of(&streams)?)
    }

    /// All streams of these states of the session, one after the other.
    fn join_all(&self, states: &[State]) -> Result<State, Error> {
        let streams = states
            .iter()
            .flat_map(|state| (0..state.batch()).map(move |stream| (state, stream)));
        let streams: Vec<_> = streams.collect();
        Ok(self.session.get().lock()?.state_of(&streams)?)
    }

    fn check_same_model(&self, other: &StreamState) -> Result<(), Error> {
        let (ours, theirs) = (&self.session.get().model, &other.session.get().model);
        if Arc::ptr_eq(ours, theirs) || ours == theirs {
            Ok(())
        } else {
            Err(Error::input("the streams are those of different models"))
        }
    }
}

#[pymethods]
impl StreamState {
    /// Runs a step: ``x`` ``[batch, input_size]``, or ``[input_size]`` of one stream. Returns the
    /// output, ``[batch, output_size]`` or ``[output_size]``.
    ///
    /// :raises InputError: for an array that does not fit; the states are as before then.
    fn step<'py>(&self, py: Python<'py>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let session = self.session.get();
        let (input, output) = (session.signature.input, session.signature.output);
        let x = Floats::of("x", x)?;
        let (shape, values) = (x.shape(), x.values()?);
        let (y, batch) = py.detach(|| {
            let mut state = self.lock()?;
            let batch = state.batch();
            if shape != [batch, input] && !(batch == 1 && shape == [input]) {
                return Err(Error::input(format!(
                    "x has the shape {shape:?}; a step of {batch} streams takes [{batch}, {input}]"
                )));
            }
            let mut y = zeros(&[batch, output])?;
            let mut session = session.lock()?;
            session.reserve(batch, 1)?;
            session.step(values, &mut state, &mut y)?;
            Ok((y, batch))
        })?;
        let shape = match shape.len() {
            1 => vec![output],
            _ => vec![batch, output],
        };
        Ok(array(py, y, &shape)?.into_any())
    }

    /// Number of streams.
    #[getter]
    fn batch(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(py.detach(|| Ok::<_, Error>(self.lock()?.batch()))?)
    }

    /// The hidden states: blocks ``[batch, size]`` of all layers, one after the other in one axis.
    /// May be set to such an array, or to ``[layers, batch, size]``.
    #[getter]
    fn h<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let h = py.detach(|| self.copied())?.h;
        let shape = [h.len()];
        Ok(array(py, h, &shape)?.into_any())
    }

    #[setter]
    fn set_h(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let batch = self.batch(py)?;
        let states = self.session.get().states;
        if let Some(h) = states.hidden("h", Some(value), batch)? {
            let values = h.values()?;
            py.detach(|| set(&mut self.lock()?.h, values))?;
        }
        Ok(())
    }

    /// The cell states, likewise.
    #[getter]
    fn c<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let c = py.detach(|| self.copied())?.c;
        let shape = [c.len()];
        Ok(array(py, c, &shape)?.into_any())
    }

    #[setter]
    fn set_c(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let batch = self.batch(py)?;
        let states = self.session.get().states;
        if let Some(c) = states.cell("c", Some(value), batch)? {
            let values = c.values()?;
            py.detach(|| set(&mut self.lock()?.c, values))?;
        }
        Ok(())
    }

    /// Sets all states to zero.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| {
            let mut state = self.lock()?;
            state.h.fill(0.0);
            state.c.fill(0.0);
            Ok::<_, Error>(())
        })?)
    }

    /// The streams again, in states of their own.
    ///
    /// :param streams: which ones, in this order, by their numbers from 0; all by default.
    #[pyo3(signature = (streams=None))]
    fn copy(&self, py: Python<'_>, streams: Option<&Bound<'_, PyAny>>) -> PyResult<StreamState> {
        let streams = numbers(streams)?;
        let state = py.detach(|| {
            let state = self.copied()?;
            match &streams {
                Some(streams) => self.select(&state, streams),
                None => Ok(state),
            }
        })?;
        Ok(StreamState::of(self.session.clone_ref(py), state))
    }

    /// The streams of several states of one model, one after the other, in states of their own.
    #[staticmethod]
    fn join(py: Python<'_>, states: Vec<Bound<'_, StreamState>>) -> PyResult<StreamState> {
        let Some(first) = states.first().map(Bound::get) else {
            return Err(Error::input("there is nothing to join").into());
        };
        let states: Vec<&StreamState> = states.iter().map(Bound::get).collect();
        let state = py.detach(|| {
            states
                .iter()
                .try_for_each(|other| first.check_same_model(other))?;
            let copies = states.iter().map(|other| other.copied());
            first.join_all(&copies.collect::<Result<Vec<_>, _>>()?)
        })?;
        Ok(StreamState::of(first.session.clone_ref(py), state))
    }

    /// Each stream, in states of its own.
    fn split(&self, py: Python<'_>) -> PyResult<Vec<StreamState>> {
        let states = py.detach(|| {
            let state = self.copied()?;
            let each = (0..state.batch()).map(|stream| self.select(&state, &[stream]));
            each.collect::<Result<Vec<_>, _>>()
        })?;
        let own = |state| StreamState::of(self.session.clone_ref(py), state);
        Ok(states.into_iter().map(own).collect())
    }

    /// Adds the streams of other states of the same model after its own. The others stay as they
    /// are.
    fn add(&self, py: Python<'_>, other: &Bound<'_, StreamState>) -> PyResult<()> {
        let other = other.get();
        Ok(py.detach(|| {
            self.check_same_model(other)?;
            let added = other.copied()?;
            let mut state = self.lock()?;
            let joined = self.join_all(&[state.clone(), added])?;
            *state = joined;
            Ok::<_, Error>(())
        })?)
    }

    /// Takes streams out, and returns them in states of their own.
    ///
    /// :param streams: their numbers from 0; the streams after them move up.
    fn remove(&self, py: Python<'_>, streams: &Bound<'_, PyAny>) -> PyResult<StreamState> {
        let streams = numbers(Some(streams))?.unwrap_or_default();
        if (1..streams.len()).any(|at| streams[..at].contains(&streams[at])) {
            return Err(Error::input(format!("a stream occurs twice in {streams:?}")).into());
        }
        let removed = py.detach(|| {
            let mut state = self.lock()?;
            let removed = self.select(&state, &streams)?;
            let left = (0..state.batch()).filter(|stream| !streams.contains(stream));
            let left = self.select(&state, &left.collect::<Vec<_>>())?;
            *state = left;
            Ok::<_, Error>(removed)
        })?;
        Ok(StreamState::of(self.session.clone_ref(py), removed))
    }
}

/// Sets states, unless streams have come or gone since their number was asked for.
fn set(states: &mut [f32], values: &[f32]) -> Result<(), Error> {
    if states.len() != values.len() {
        return Err(Error::input("streams were added or removed meanwhile"));
    }
    states.copy_from_slice(values);
    Ok(())
}

/// Numbers of streams: one, or any array or list of them.
fn numbers(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Vec<usize>>> {
    match value.map(|value| (value.is_instance_of::<PyBool>(), value.extract::<usize>())) {
        Some((false, Ok(one))) => Ok(Some(vec![one])),
        _ => integers("streams", value, "numpy.flatnonzero(mask) are its numbers"),
    }
}
