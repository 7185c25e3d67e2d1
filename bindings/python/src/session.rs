//! `Session`: runs a model.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gatestream::execute::team::ProcessMark;
use gatestream::execute::{self, RunError};
use gatestream::model::{self as core, Input, Layout, Output, Signature};
use gatestream::plan as core_plan;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::arrays::{Floats, FloatsOut, array, integers, zeros};
use crate::count::{Count, threads};
use crate::errors::Error;
use crate::model::Model;
use crate::plan::Plan;
use crate::streams::{StateShape, StreamState};
use crate::types::made;

/// Runs a model. Threads may share a session; its runs come one after the other.
///
/// Packs the weights and starts the threads.
///
/// :param plan: by default an estimate for the usual sizes, on ``threads`` cores or all.
#[pyclass(frozen, module = "gatestream")]
pub struct Session {
    session: Mutex<execute::Session>,
    /// A child has a copy of the lock, which may stay locked.
    pub made_in: ProcessMark,
    pub model: Arc<core::Model>,
    pub signature: Signature,
    pub states: StateShape,
    /// Operations of a step of a sequence, if steps may be run in several parts: each direction is
    /// forward.
    step_operations: Option<f64>,
}

/// Operations of a part of a long run, after which Ctrl-C is heeded: about a tenth of a second.
const PART_OPERATIONS: f64 = 2e10;

/// See [`Session::step_operations`].
fn step_operations(model: &gatestream::Model) -> Option<f64> {
    let directions = model.layers().iter().flat_map(|layer| layer.directions());
    let values: usize = directions
        .map(|direction| direction.weights().values())
        .sum();
    model.is_forward().then_some(2.0 * values as f64)
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

/// The arrays that a run writes; `cn` is empty without LSTM layers.
struct Results<'a> {
    y: &'a mut [f32],
    hn: &'a mut [f32],
    cn: &'a mut [f32],
}

impl Results<'_> {
    fn output(&mut self) -> Output<'_> {
        let output = Output::new(self.y).hn(self.hn);
        if self.cn.is_empty() {
            output
        } else {
            output.cn(self.cn)
        }
    }
}

fn axes(signature: &Signature) -> String {
    match signature.layout {
        Layout::BatchMajor => format!("[batch, steps, {}]", signature.input),
        _ => format!("[steps, batch, {}]", signature.input),
    }
}

impl Session {
    /// The session, if this process made it.
    pub fn lock(&self) -> Result<MutexGuard<'_, execute::Session>, Error> {
        if self.made_in.is_forked() {
            return Err(Error::forked("session"));
        }
        Ok(self.session.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Steps of a part of a run that is long and can be interrupted.
    fn part(&self, input: &Input<'_>) -> Option<usize> {
        let is_time_major = self.signature.layout == Layout::TimeMajor || input.batch == 1;
        let steps = PART_OPERATIONS / (self.step_operations? * input.batch.max(1) as f64);
        let steps = (steps as usize).max(1);
        (is_time_major && steps < input.steps).then_some(steps)
    }

    fn run_whole(&self, input: &Input<'_>, results: &mut Results<'_>) -> Result<(), Error> {
        let mut output = results.output();
        let mut session = self.lock()?;
        session.reserve(input.batch, input.steps)?;
        Ok(session.run(input, &mut output)?)
    }

    /// As [`run_whole`](Self::run_whole), to the same bits, in parts of so many steps. In between
    /// the interpreter handles signals.
    fn run_parts(
        &self,
        py: Python<'_>,
        input: &Input<'_>,
        part: usize,
        results: &mut Results<'_>,
    ) -> PyResult<()> {
        // All of it, before anything is computed.
        let all = input.check(&self.signature, &results.output());
        all.map_err(Error::input)?;
        let Results { y, hn, cn } = results;
        let (mut h, mut c) = (input.h0.map(<[f32]>::to_vec), input.c0.map(<[f32]>::to_vec));
        let width = |features: usize| (part * input.batch * features).max(1);
        let rows = { input.values.chunks(width(self.signature.input)) }
            .zip(y.chunks_mut(width(self.signature.output)));
        for (index, (x, y)) in rows.enumerate() {
            let begin = index * part;
            let steps = part.min(input.steps - begin);
            let lengths = input.lengths.map(|lengths| {
                let left = lengths
                    .iter()
                    .map(|length| length.saturating_sub(begin).min(steps));
                left.collect::<Vec<_>>()
            });
            let mut now = Input::new(x, steps, input.batch).layout(Layout::TimeMajor);
            now.lengths = lengths.as_deref();
            (now.h0, now.c0) = (h.as_deref(), c.as_deref());
            let mut results = Results { y, hn, cn };
            py.detach(|| self.run_whole(&now, &mut results))?;
            h = Some(hn.to_vec());
            c = (!cn.is_empty()).then(|| cn.to_vec());
            py.check_signals()?;
        }
        Ok(())
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
        threads: Option<Count>,
    ) -> PyResult<Session> {
        if plan.is_some() && threads.is_some() {
            let why = "threads applies without a plan only: a plan has its number of threads";
            return Err(Error::input(why).into());
        }
        let threads = self::threads(threads)?;
        let model = &model.0;
        let make = || -> Result<Session, Error> {
            let estimated;
            let plan = match plan {
                Some(plan) => &plan.plan,
                None => {
                    estimated = core_plan::Plan::estimate_usual(model, threads);
                    &estimated
                }
            };
            Ok(Session {
                session: Mutex::new(execute::Session::new(model, plan)?),
                made_in: ProcessMark::new(),
                model: Arc::clone(model),
                signature: model.signature(),
                states: StateShape::of(model),
                step_operations: step_operations(model),
            })
        };
        Ok(py.detach(make)?)
    }

    /// Runs whole sequences. float32 arrays in row-major order are not copied. Ctrl-C ends a long
    /// run, unless a layer is bidirectional or the batch comes first.
    ///
    /// :param x: ``[steps, batch, input_size]``, of a batch-first model
    ///     ``[batch, steps, input_size]``; or one sequence ``[steps, input_size]``.
    /// :param lengths: steps of each sequence, ``[batch]``. Outputs past the end are zero.
    /// :param h0: initial hidden states, ``[layers * directions, batch, size]`` as those that a run
    ///     returns, or in one axis as :attr:`StreamState.h`; zero by default.
    /// :param c0: initial cell states, likewise.
    /// :param out: an array to write the output to.
    /// :raises InputError: for arrays that do not fit; nothing has been computed then.
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
        let of_mask = "give the number of steps of each sequence, which is mask.sum over the axis \
                       of steps";
        let lengths = integers("lengths", lengths, of_mask)?;
        let h0 = self.states.hidden("h0", h0, batch)?;
        let c0 = self.states.cell("c0", c0, batch)?;
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
            None => zeros(&shape)?,
        };
        let mut hn = zeros(&[batch, self.signature.hidden_state])?;
        let mut cn = zeros(&[batch, self.signature.cell_state])?;
        {
            let values = match &mut out {
                Some((out, _)) => out.values()?,
                None => &mut y,
            };
            let mut input = Input::new(x.values()?, steps, batch);
            input.lengths = lengths.as_deref();
            input.h0 = h0.as_ref().map(Floats::values).transpose()?;
            input.c0 = c0.as_ref().map(Floats::values).transpose()?;
            let mut results = Results {
                y: values,
                hn: &mut hn,
                cn: &mut cn,
            };
            match self.part(&input) {
                Some(part) => self.run_parts(py, &input, part, &mut results)?,
                None => py.detach(|| self.run_whole(&input, &mut results))?,
            }
        }
        let y = match out {
            Some((_, array)) => array,
            None => array(py, y, &shape)?.into_any(),
        };
        let axis = (!sizes.is_single).then_some(batch);
        let hn = self.states.hidden_array(py, hn, axis)?;
        let cn = self.states.cell_array(py, cn, axis)?;
        static RESULT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        made(py, &RESULT, "Result", (y, hn, cn))
    }

    /// The states of ``batch`` streams that run step by step.
    ///
    /// :param h0: initial hidden states, as those of :meth:`run`; zero by default.
    /// :param c0: initial cell states, likewise.
    /// :raises InputError: for a model with a reverse direction, which needs whole sequences.
    #[pyo3(signature = (batch=Count::from(1_usize), *, h0=None, c0=None),
        text_signature = "($self, batch=1, *, h0=None, c0=None)")]
    fn stream(
        slf: Bound<'_, Session>,
        batch: Count,
        h0: Option<&Bound<'_, PyAny>>,
        c0: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<StreamState> {
        if slf.get().step_operations.is_none() {
            return Err(Error::from(RunError::NotStreamable).into());
        }
        let batch = batch.any("batch")?;
        StreamState::new(&slf, batch, h0, c0)
    }

    /// Makes room for inputs of this size, which a run otherwise does when it needs it.
    fn reserve(&self, py: Python<'_>, batch: Count, steps: Count) -> PyResult<()> {
        let batch = batch.any("batch")?;
        let steps = steps.any("steps")?;
        Ok(py.detach(|| self.lock()?.reserve(batch, steps).map_err(Error::from))?)
    }
}
