//! `RawSession`: runs on the addresses of arrays, for `cellstream.torch`.
//!
//! A tensor's address costs a sixth of a microsecond, its NumPy array one. So the Python side
//! allocates and checks all tensors, and hands over addresses.

use std::sync::{Arc, Mutex, PoisonError};

use cellstream::execute::Session;
use cellstream::execute::team::ProcessMark;
use cellstream::model::{self as core, Input, Layout, Output, Signature};
use cellstream::plan::Plan;
use pyo3::prelude::*;

use crate::errors::Error;
use crate::model::Model;
use crate::plan::threads;

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
            self.session = Some(Session::new(&self.model, &plan)?);
        }
        let session = self
            .session
            .as_mut()
            .ok_or_else(|| Error::input("no session"))?;
        session.reserve(batch, steps)?;
        Ok(session)
    }
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

impl Addresses {
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
    #[new]
    #[pyo3(signature = (model, threads=None))]
    fn new(model: &Model, threads: Option<usize>) -> RawSession {
        RawSession {
            signature: model.0.signature(),
            made_in: ProcessMark::new(),
            state: Mutex::new(State {
                model: Arc::clone(&model.0),
                cores: self::threads(threads),
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
        let of = self.signature;
        self.with(py, |state| {
            let session = state.session(batch, steps)?;
            // SAFETY: `cellstream.torch` allocates tensors of these sizes, and holds them until
            // this returns.
            let (x, h0, c0, y, hn, cn) = unsafe {
                (
                    Addresses::read(at.x, steps * batch * of.input),
                    Addresses::read(at.h0, batch * of.hidden_state),
                    Addresses::read(at.c0, batch * of.cell_state),
                    Addresses::write(at.y, steps * batch * of.output),
                    Addresses::write(at.hn, batch * of.hidden_state),
                    Addresses::write(at.cn, batch * of.cell_state),
                )
            };
            let layout = match is_batch_first {
                true => Layout::BatchMajor,
                false => Layout::TimeMajor,
            };
            let mut input = Input::new(x.unwrap_or_default(), steps, batch).layout(layout);
            (input.h0, input.c0) = (h0, c0);
            let mut output = Output::default();
            (output.values, output.hn, output.cn) = (y, hn, cn);
            Ok(session.run(&input, &mut output)?)
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
        let of = self.signature;
        let steps = batch_sizes.len();
        let batch = batch_sizes.first().copied().unwrap_or(0);
        if batch_sizes.windows(2).any(|pair| pair[0] < pair[1]) {
            return Err(Error::input("batch_sizes must not increase").into());
        }
        self.with(py, |state| {
            let rows: usize = batch_sizes.iter().sum();
            // SAFETY: as in `run`.
            let (x, h0, c0, y, hn, cn) = unsafe {
                (
                    Addresses::read(at.x, rows * of.input).unwrap_or_default(),
                    Addresses::read(at.h0, batch * of.hidden_state),
                    Addresses::read(at.c0, batch * of.cell_state),
                    Addresses::write(at.y, rows * of.output),
                    Addresses::write(at.hn, batch * of.hidden_state),
                    Addresses::write(at.cn, batch * of.cell_state),
                )
            };
            let mut padded = std::mem::take(&mut state.padded);
            let mut padded_output = std::mem::take(&mut state.padded_output);
            padded.resize(steps * batch * of.input, 0.0);
            padded_output.resize(steps * batch * of.output, 0.0);
            let mut rest = x;
            for (&size, step) in batch_sizes
                .iter()
                .zip(padded.chunks_mut((batch * of.input).max(1)))
            {
                let (here, after) = rest.split_at(size * of.input);
                step[..here.len()].copy_from_slice(here);
                rest = after;
            }
            let length = |sequence| batch_sizes.partition_point(|&size| size > sequence);
            let lengths: Vec<usize> = (0..batch).map(length).collect();
            let session = state.session(batch, steps)?;
            let mut input = Input::new(&padded, steps, batch).layout(Layout::TimeMajor);
            (input.h0, input.c0) = (h0, c0);
            input.lengths = Some(&lengths);
            let mut output = Output::new(&mut padded_output);
            (output.hn, output.cn) = (hn, cn);
            session.run(&input, &mut output)?;
            if let Some(mut rest) = y {
                let steps = padded_output.chunks((batch * of.output).max(1));
                for (&size, step) in batch_sizes.iter().zip(steps) {
                    let (here, after) = rest.split_at_mut(size * of.output);
                    here.copy_from_slice(&step[..here.len()]);
                    rest = after;
                }
            }
            (state.padded, state.padded_output) = (padded, padded_output);
            Ok(())
        })
    }
}
