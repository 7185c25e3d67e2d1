//! `RawSession`: runs on the addresses of arrays, for `gatestream.torch`.
//!
//! A tensor's address costs a sixth of a microsecond, its NumPy array one. So the Python side
//! allocates and checks all tensors, and hands over addresses and numbers of values, which are
//! checked against the model's here.

use std::sync::{Arc, Mutex, PoisonError};

use gatestream::execute::team::{ProcessMark, Team};
use gatestream::execute::{PackedModel, Session, SessionError};
use gatestream::machine::Topology;
use gatestream::model::{self as core, Input, InputError, Layout, Output, Signature};
use gatestream::plan::Plan;
use pyo3::prelude::*;

use crate::count::Count;
use crate::errors::{Class, Error};
use crate::model::Model;
use crate::openmp::OpenMp;

/// Runs on addresses; for :mod:`gatestream.torch`.
#[pyclass(frozen, module = "gatestream")]
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
        pad(&mut padded, &[steps, batch, of.input])?;
        pad(&mut padded_output, &[steps, batch, of.output])?;
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

/// Makes room for padded sequences of this shape.
///
/// # Errors
/// `TooLargeError` where there is no memory for them.
fn pad(values: &mut Vec<f32>, shape: &[usize]) -> Result<(), Error> {
    let len = shape
        .iter()
        .try_fold(1, |len: usize, &n| len.checked_mul(n));
    let more = len.map(|len| (len, len.saturating_sub(values.len())));
    match more {
        Some((len, more)) if values.try_reserve(more).is_ok() => values.resize(len, 0.0),
        _ => return Err(InputError::TooLarge.into()),
    }
    Ok(())
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

/// An array in memory.
#[derive(Clone, Copy)]
struct At {
    /// 0: there is none.
    address: usize,
    /// Number of values that it holds.
    values: usize,
}

impl At {
    fn new(address: usize, values: usize) -> At {
        At { address, values }
    }

    /// Whether there is no array, or one of this many values, aligned.
    fn fits(self, values: usize) -> bool {
        self.address == 0
            || (self.values == values && self.address.is_multiple_of(align_of::<f32>()))
    }

    /// # Safety
    /// If there is an array, it is aligned, and nobody writes its values during `'a`.
    unsafe fn read<'a>(self) -> Option<&'a [f32]> {
        let At { address, values } = self;
        // SAFETY: the caller's promise.
        (address != 0).then(|| unsafe { std::slice::from_raw_parts(address as *const f32, values) })
    }

    /// # Safety
    /// If there is an array, it is aligned, and nobody else uses its values during `'a`.
    unsafe fn write<'a>(self) -> Option<&'a mut [f32]> {
        let At { address, values } = self;
        // SAFETY: the caller's promise.
        (address != 0)
            .then(|| unsafe { std::slice::from_raw_parts_mut(address as *mut f32, values) })
    }
}

/// Where the arrays of a run are.
#[derive(Clone, Copy)]
struct Places {
    x: At,
    h0: At,
    c0: At,
    y: At,
    hn: At,
    cn: At,
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

impl Places {
    /// The arrays, if they have `rows` rows of input and output, and states of `batch` sequences.
    ///
    /// # Errors
    /// `InputError` for an array with another number of values, or one that is not aligned.
    ///
    /// # Safety
    /// The arrays hold as many values as is said; during `'a` nobody else writes those to be read,
    /// or uses those to be written.
    unsafe fn arrays<'a>(
        self,
        of: &Signature,
        rows: Option<usize>,
        batch: usize,
    ) -> Result<Arrays<'a>, Error> {
        let sequences = |features| rows.and_then(|rows| rows.checked_mul(features));
        let states = |size| batch.checked_mul(size);
        let arrays = [
            ("x", self.x, sequences(of.input)),
            ("h0", self.h0, states(of.hidden_state)),
            ("c0", self.c0, states(of.cell_state)),
            ("y", self.y, sequences(of.output)),
            ("hn", self.hn, states(of.hidden_state)),
            ("cn", self.cn, states(of.cell_state)),
        ];
        for (name, at, expected) in arrays {
            let expected = expected.ok_or(InputError::TooLarge)?;
            if !at.fits(expected) {
                let found = at.values;
                return Err(Error::input(format!(
                    "{name}: expected {expected} aligned values, found {found}"
                )));
            }
        }
        // SAFETY: the caller's promise, and what was checked.
        unsafe {
            Ok(Arrays {
                x: self.x.read().unwrap_or_default(),
                h0: self.h0.read(),
                c0: self.c0.read(),
                y: self.y.write().unwrap_or_default(),
                hn: self.hn.write(),
                cn: self.cn.write(),
            })
        }
    }
}

/// Most rows of padded sequences for each packed row. Padding sequences that are more uneven would
/// take many times their memory, and their time.
const MAX_PADDING: usize = 32;

/// The number of rows of packed sequences, if these are numbers of sequences at each step.
fn packed_rows(batch_sizes: &[usize]) -> Result<usize, Error> {
    let refused = |why| Err(Error::input(format!("batch_sizes must {why}")));
    if batch_sizes.is_empty() || batch_sizes.contains(&0) {
        return refused("be 1 or more at each of 1 or more steps");
    }
    if !batch_sizes.is_sorted_by(|now, next| now >= next) {
        return refused("not increase");
    }
    let rows = batch_sizes
        .iter()
        .try_fold(0, |rows: usize, &size| rows.checked_add(size));
    rows.map_or_else(|| refused("have a sum that can be counted"), Ok)
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
        // SAFETY: `gatestream.torch` has the address from a library that it keeps loaded.
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

    /// Runs sequences in arrays, each an address and its number of values: float32, row-major.
    /// Arrays of other sizes than the model's are refused. The caller keeps them alive and to
    /// itself until this returns.
    #[pyo3(signature = (steps, batch, is_batch_first, x, x_values, h0, h0_values, c0, c0_values, y,
        y_values, hn, hn_values, cn, cn_values))]
    #[expect(clippy::too_many_arguments, reason = "a tuple would cost time")]
    fn run(
        &self,
        py: Python<'_>,
        steps: usize,
        batch: usize,
        is_batch_first: bool,
        x: usize,
        x_values: usize,
        h0: usize,
        h0_values: usize,
        c0: usize,
        c0_values: usize,
        y: usize,
        y_values: usize,
        hn: usize,
        hn_values: usize,
        cn: usize,
        cn_values: usize,
    ) -> PyResult<()> {
        let places = Places {
            x: At::new(x, x_values),
            h0: At::new(h0, h0_values),
            c0: At::new(c0, c0_values),
            y: At::new(y, y_values),
            hn: At::new(hn, hn_values),
            cn: At::new(cn, cn_values),
        };
        let layout = if is_batch_first {
            Layout::BatchMajor
        } else {
            Layout::TimeMajor
        };
        self.with(py, |state| {
            // SAFETY: `gatestream.torch` has the numbers of values from its tensors, and holds the
            // tensors until this returns.
            let arrays =
                unsafe { places.arrays(&self.signature, steps.checked_mul(batch), batch)? };
            state.run(arrays, steps, batch, layout)
        })
    }

    /// As `run`, for packed sequences: `x` and `y` have the rows of all sequences at a step, then
    /// those at the next; `batch_sizes` has the number of sequences at each step, longest first.
    /// Sequences that are too uneven to be padded are a `TooLargeError`.
    #[pyo3(signature = (batch_sizes, x, x_values, h0, h0_values, c0, c0_values, y, y_values,
        hn, hn_values, cn, cn_values))]
    #[expect(clippy::too_many_arguments, reason = "a tuple would cost time")]
    fn run_packed(
        &self,
        py: Python<'_>,
        batch_sizes: Vec<Count>,
        x: usize,
        x_values: usize,
        h0: usize,
        h0_values: usize,
        c0: usize,
        c0_values: usize,
        y: usize,
        y_values: usize,
        hn: usize,
        hn_values: usize,
        cn: usize,
        cn_values: usize,
    ) -> PyResult<()> {
        let places = Places {
            x: At::new(x, x_values),
            h0: At::new(h0, h0_values),
            c0: At::new(c0, c0_values),
            y: At::new(y, y_values),
            hn: At::new(hn, hn_values),
            cn: At::new(cn, cn_values),
        };
        let batch_sizes = { batch_sizes.into_iter() }.map(|size| size.any("a batch size"));
        let batch_sizes = batch_sizes.collect::<Result<Vec<_>, _>>()?;
        let rows = packed_rows(&batch_sizes)?;
        self.with(py, |state| {
            // SAFETY: as in `run`.
            let arrays = unsafe { places.arrays(&self.signature, Some(rows), batch_sizes[0])? };
            let padded_rows = batch_sizes.len().checked_mul(batch_sizes[0]);
            if padded_rows.is_none_or(|padded| padded > rows.saturating_mul(MAX_PADDING)) {
                let why = format!(
                    "the sequences are too uneven: padded, they take more than {MAX_PADDING} times \
                     their rows"
                );
                return Err(Error::new(Class::TooLarge, why));
            }
            state.run_packed(arrays, &batch_sizes, &self.signature)
        })
    }
}
