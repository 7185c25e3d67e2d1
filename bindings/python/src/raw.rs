//! `RawSession`: runs on the addresses of arrays, for `cellstream.torch`.
//!
//! A tensor's address costs a sixth of a microsecond, its NumPy array one. So the Python side
//! allocates and checks all tensors, and hands over addresses.

use std::sync::{Arc, Mutex, PoisonError};

use cellstream::execute::team::{ProcessMark, Team};
use cellstream::execute::{PackedModel, Session, SessionError};
use cellstream::machine::Topology;
use cellstream::model::{self as core, Input, Layout, Output, Signature};
use cellstream::plan::Plan;
use pyo3::prelude::*;

use crate::errors::Error;
use crate::model::Model;
use crate::openmp::OpenMp;

/// Runs on addresses; for :mod:`cellstream.torch`.
#[pyclass(frozen, module = "cellstream")]
pub struct RawSession {
    state: Mutex<State>,
    made_in: ProcessMark,
    signature: Signature,
}

struct State {
    model: Arc<core::Model>,
    cores: usize,
    /// The threads of runs; `None`: those of the session.
    host: Option<OpenMp>,
    /// Made by the first run, and anew where its plan [grows](Plan::grown).
    session: Option<Session>,
    /// Padded sequences.
    padded: Vec<f32>,
    padded_output: Vec<f32>,
}

impl State {
    /// A session with room for these sizes.
    fn session(&mut self, batch: usize, steps: usize) -> Result<&mut Session, Error> {
        let earlier = self.session.as_ref().map(|session| session.packed().plan());
        let new = Plan::grown(earlier, &self.model, batch, steps, self.cores);
        if let Some(plan) = new {
            // The threads of the old one end before those of the new one start.
            self.session = None;
            self.session = Some(self.new_session(&plan)?);
        }
        let session = self
            .session
            .as_mut()
            .ok_or_else(|| Error::input("no session"))?;
        session.reserve(batch, steps)?;
        Ok(session)
    }

    /// A session on the threads of runs.
    fn new_session(&self, plan: &Plan) -> Result<Session, SessionError> {
        if self.host.is_none() {
            return Session::new(&self.model, plan);
        }
        let mut team = Team::for_host(plan.threads())?;
        let packed = PackedModel::new(&self.model, plan, &mut team)?;
        Session::with_team(packed, team)
    }

    /// Runs padded sequences.
    fn run(
        &mut self,
        arrays: Arrays<'_>,
        steps: usize,
        batch: usize,
        layout: Layout,
    ) -> Result<(), Error> {
        let host = self.host;
        let session = self.session(batch, steps)?;
        let mut input = Input::new(arrays.x, steps, batch).layout(layout);
        (input.h0, input.c0) = (arrays.h0, arrays.c0);
        let mut output = Output::new(arrays.y);
        (output.hn, output.cn) = (arrays.hn, arrays.cn);
        run_on(host, session, &input, &mut output)
    }

    /// Runs packed sequences: pads them, runs them, and packs the outputs.
    fn run_packed(
        &mut self,
        arrays: Arrays<'_>,
        batch_sizes: &[usize],
        of: &Signature,
    ) -> Result<(), Error> {
        let (steps, batch) = (batch_sizes.len(), batch_sizes.first().copied().unwrap_or(0));
        let mut padded = std::mem::take(&mut self.padded);
        let mut padded_output = std::mem::take(&mut self.padded_output);
        padded.resize(steps * batch * of.input, 0.0);
        padded_output.resize(steps * batch * of.output, 0.0);
        let mut rest = arrays.x;
        let padded_steps = padded.chunks_mut((batch * of.input).max(1));
        for (&size, step) in batch_sizes.iter().zip(padded_steps) {
            let (here, after) = rest.split_at(size * of.input);
            step[..here.len()].copy_from_slice(here);
            rest = after;
        }
        let length = |sequence| batch_sizes.partition_point(|&size| size > sequence);
        let lengths: Vec<usize> = (0..batch).map(length).collect();
        let host = self.host;
        let session = self.session(batch, steps)?;
        let mut input = Input::new(&padded, steps, batch).layout(Layout::TimeMajor);
        (input.h0, input.c0) = (arrays.h0, arrays.c0);
        input.lengths = Some(&lengths);
        let mut output = Output::new(&mut padded_output);
        (output.hn, output.cn) = (arrays.hn, arrays.cn);
        run_on(host, session, &input, &mut output)?;
        let mut rest = arrays.y;
        let padded_steps = padded_output.chunks((batch * of.output).max(1));
        for (&size, step) in batch_sizes.iter().zip(padded_steps) {
            let (here, after) = rest.split_at_mut(size * of.output);
            here.copy_from_slice(&step[..here.len()]);
            rest = after;
        }
        (self.padded, self.padded_output) = (padded, padded_output);
        Ok(())
    }
}

/// Runs a session on these threads; `None`: on its own.
fn run_on(
    host: Option<OpenMp>,
    session: &mut Session,
    input: &Input<'_>,
    output: &mut Output<'_>,
) -> Result<(), Error> {
    match host {
        Some(host) => session.run_on_host(input, output, &host)?,
        None => session.run(input, output)?,
    }
    Ok(())
}

/// Addresses of the arrays of a run; 0: there is none.
#[derive(Clone, Copy)]
struct Addresses {
    x: usize,
    h0: usize,
    c0: usize,
    y: usize,
    hn: usize,
    cn: usize,
}

/// The arrays of a run. `x` and `y` have rows of features; a state has rows of sequences.
struct Arrays<'a> {
    x: &'a [f32],
    h0: Option<&'a [f32]>,
    c0: Option<&'a [f32]>,
    y: &'a mut [f32],
    hn: Option<&'a mut [f32]>,
    cn: Option<&'a mut [f32]>,
}

impl Addresses {
    /// The arrays at these addresses: `rows` rows of input and output, states of `batch` sequences.
    ///
    /// # Safety
    /// Arrays of these sizes are at the addresses; during `'a` nobody else writes those to be read,
    /// or uses those to be written.
    unsafe fn arrays<'a>(self, of: &Signature, rows: usize, batch: usize) -> Arrays<'a> {
        // SAFETY: the caller's promise.
        unsafe {
            Arrays {
                x: read(self.x, rows * of.input).unwrap_or_default(),
                h0: read(self.h0, batch * of.hidden_state),
                c0: read(self.c0, batch * of.cell_state),
                y: write(self.y, rows * of.output).unwrap_or_default(),
                hn: write(self.hn, batch * of.hidden_state),
                cn: write(self.cn, batch * of.cell_state),
            }
        }
    }
}

/// # Safety
/// `address` is 0, or that of `len` values that nobody writes during `'a`.
unsafe fn read<'a>(address: usize, len: usize) -> Option<&'a [f32]> {
    // SAFETY: the caller's promise.
    (address != 0).then(|| unsafe { std::slice::from_raw_parts(address as *const f32, len) })
}

/// # Safety
/// `address` is 0, or that of `len` values that nobody else uses during `'a`.
unsafe fn write<'a>(address: usize, len: usize) -> Option<&'a mut [f32]> {
    // SAFETY: the caller's promise.
    (address != 0).then(|| unsafe { std::slice::from_raw_parts_mut(address as *mut f32, len) })
}

impl RawSession {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        with: impl FnOnce(&mut State) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        if self.made_in.is_forked() {
            return Err(Error::forked("session").into());
        }
        let ran = py.detach(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            with(&mut state)
        });
        Ok(ran?)
    }
}

#[pymethods]
impl RawSession {
    /// A session on as many threads as PyTorch, or one for each core if that is less: those of
    /// PyTorch's OpenMP library, whose `GOMP_parallel` is at this address; 0: threads of its own.
    #[new]
    fn new(model: &Model, threads: usize, gomp_parallel: usize) -> RawSession {
        // SAFETY: `cellstream.torch` has the address from a library that it keeps loaded.
        let host = unsafe { OpenMp::new(gomp_parallel, threads) };
        RawSession {
            signature: model.0.signature(),
            made_in: ProcessMark::new(),
            state: Mutex::new(State {
                model: Arc::clone(&model.0),
                cores: threads.min(Topology::detect().team_size()),
                host,
                session: None,
                padded: Vec::new(),
                padded_output: Vec::new(),
            }),
        }
    }

    /// Runs sequences at these addresses: float32, row-major, of the sizes of the model. The caller
    /// has checked all sizes, and keeps the arrays alive and to itself until this returns.
    #[pyo3(signature = (steps, batch, is_batch_first, x, h0, c0, y, hn, cn))]
    #[expect(clippy::too_many_arguments, reason = "a tuple would cost time")]
    fn run(
        &self,
        py: Python<'_>,
        steps: usize,
        batch: usize,
        is_batch_first: bool,
        x: usize,
        h0: usize,
        c0: usize,
        y: usize,
        hn: usize,
        cn: usize,
    ) -> PyResult<()> {
        let at = Addresses {
            x,
            h0,
            c0,
            y,
            hn,
            cn,
        };
        let layout = match is_batch_first {
            true => Layout::BatchMajor,
            false => Layout::TimeMajor,
        };
        self.with(py, |state| {
            // SAFETY: `cellstream.torch` allocates tensors of these sizes, and holds them until
            // this returns.
            let arrays = unsafe { at.arrays(&self.signature, steps * batch, batch) };
            state.run(arrays, steps, batch, layout)
        })
    }

    /// As `run`, for packed sequences: `x` and `y` have the rows of all sequences at a step, then
    /// those at the next; `batch_sizes` has the number of sequences at each step, longest first.
    #[pyo3(signature = (batch_sizes, x, h0, c0, y, hn, cn))]
    #[expect(clippy::too_many_arguments, reason = "a tuple would cost time")]
    fn run_packed(
        &self,
        py: Python<'_>,
        batch_sizes: Vec<usize>,
        x: usize,
        h0: usize,
        c0: usize,
        y: usize,
        hn: usize,
        cn: usize,
    ) -> PyResult<()> {
        let at = Addresses {
            x,
            h0,
            c0,
            y,
            hn,
            cn,
        };
        if batch_sizes.windows(2).any(|pair| pair[0] < pair[1]) {
            return Err(Error::input("batch_sizes must not increase").into());
        }
        let rows = batch_sizes.iter().sum();
        let batch = batch_sizes.first().copied().unwrap_or(0);
        self.with(py, |state| {
            // SAFETY: as in `run`.
            let arrays = unsafe { at.arrays(&self.signature, rows, batch) };
            state.run_packed(arrays, &batch_sizes, &self.signature)
        })
    }
}
