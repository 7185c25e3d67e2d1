//! Sessions.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gatestream::execute;
use gatestream::execute::State;
use gatestream::execute::team::ProcessMark;
use gatestream::model::{self, Input, Output};

use crate::model::Model;
use crate::plan::{Plan, threads};
use crate::status::{Error, Result, Status, free, guarded, object, put, read, write};

/// Runs one model. Threads may share it; its runs come one after the other.
pub struct Session {
    session: Mutex<Running>,
    signature: model::Signature,
    /// A child has a copy of the lock, which may stay locked.
    made_in: ProcessMark,
}

/// What one call at a time uses.
struct Running {
    session: execute::Session,
    /// The states of the streams of a step, kept for the next.
    state: State,
}

/// The arrays of a run, in row-major order. Null is allowed for all but `x`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// `[steps][batch][input]`, of a batch-first model `[batch][steps][input]`.
    pub x: *const f32,
    /// Steps.
    pub steps: usize,
    /// Sequences.
    pub batch: usize,
    /// Steps of each sequence, `[batch]`; null: all have `steps`. Outputs past the end are zero.
    pub lengths: *const usize,
    /// Initial hidden states: blocks `[batch][size]` of all layers and directions; null: zero.
    pub h0: *const f32,
    /// Initial cell states, likewise.
    pub c0: *const f32,
    /// The output, with the axes of `x`.
    pub y: *mut f32,
    /// Final hidden states.
    pub hn: *mut f32,
    /// Final cell states.
    pub cn: *mut f32,
}

impl Session {
    fn lock(&self) -> Result<MutexGuard<'_, Running>> {
        if self.made_in.is_forked() {
            let why = "the session was made before this process was forked; make a new one";
            return Err(Error::new(Status::Forked, why));
        }
        Ok(self.session.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Packs the weights and starts the threads. `plan` null: an estimate for requests of usual sizes.
///
/// # Safety
/// `model` is a model, `plan` a plan of it or null; `session` is a place for the pointer, to be
/// freed by `gs_session_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_session_new(
    model: *const Model,
    plan: *const Plan,
    session: *mut *mut Session,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promises.
        unsafe {
            let model = &object("model", model)?.0;
            let plan = plan.as_ref();
            put("session", session, || {
                let estimated;
                let plan = match plan {
                    Some(plan) => &plan.0,
                    None => {
                        estimated = gatestream::Plan::estimate_usual(model, threads(0)?);
                        &estimated
                    }
                };
                Ok(Box::into_raw(Box::new(Session {
                    session: Mutex::new(Running {
                        session: execute::Session::new(model, plan)?,
                        state: State::zero(model.signature(), 0),
                    }),
                    signature: model.signature(),
                    made_in: ProcessMark::new(),
                })))
            })
        }
    })
}

/// Runs whole sequences.
///
/// # Safety
/// `session` is a session; the arrays of `run` have the sizes that it says, and are not used by
/// others meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_session_run(session: *const Session, run: *const Run) -> Status {
    guarded(|| {
        // SAFETY: the caller's promises.
        let (session, run) = unsafe { (object("session", session)?, object("run", run)?) };
        let (of, batch, steps) = (&session.signature, run.batch, run.steps);
        let size = |rows: usize, width: usize| {
            let size = rows
                .checked_mul(batch)
                .and_then(|rows| rows.checked_mul(width));
            size.ok_or_else(|| Error::new(Status::Input, "the arrays exceed the memory"))
        };
        let (inputs, outputs) = (size(steps, of.input)?, size(steps, of.output)?);
        let (hidden, cell) = (size(1, of.hidden_state)?, size(1, of.cell_state)?);
        // SAFETY: the caller's promises.
        let (input, mut output) = unsafe {
            let x = read(run.x, inputs).ok_or_else(|| Error::new(Status::Argument, "x is null"))?;
            let mut input = Input::new(x, steps, batch);
            input.lengths = read(run.lengths, batch);
            (input.h0, input.c0) = (read(run.h0, hidden), read(run.c0, cell));
            let output = Output {
                values: write(run.y, outputs),
                hn: write(run.hn, hidden),
                cn: write(run.cn, cell),
            };
            (input, output)
        };
        let session = &mut session.lock()?.session;
        session.reserve(batch, steps)?;
        Ok(session.run(&input, &mut output)?)
    })
}

/// One step of `batch` streams: `x` is `[batch][input]`, `y` `[batch][output]`; `h` and `c` are
/// blocks `[batch][size]` of all layers, from before the step to after it. `c` may be null for a
/// model without LSTM layers.
///
/// # Safety
/// `session` is a session; the arrays have these sizes and are not used by others meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_session_step(
    session: *const Session,
    batch: usize,
    x: *const f32,
    h: *mut f32,
    c: *mut f32,
    y: *mut f32,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let session = unsafe { object("session", session)? };
        let of = &session.signature;
        let null = |name: &str| Error::new(Status::Argument, format!("{name} is null"));
        let size = |width: usize| {
            let size = batch.checked_mul(width);
            size.ok_or_else(|| Error::new(Status::Input, "the arrays exceed the memory"))
        };
        let (inputs, outputs) = (size(of.input)?, size(of.output)?);
        let (hidden, cell) = (size(of.hidden_state)?, size(of.cell_state)?);
        // SAFETY: the caller's promises.
        let (x, h, c, y) = unsafe {
            (
                read(x, inputs).ok_or_else(|| null("x"))?,
                write(h, hidden).ok_or_else(|| null("h"))?,
                write(c, cell),
                write(y, outputs).ok_or_else(|| null("y"))?,
            )
        };
        if c.is_none() && of.cell_state > 0 {
            return Err(null("c"));
        }
        let mut running = session.lock()?;
        let Running { session, state } = &mut *running;
        if state.batch() != batch {
            *state = State::zero(*of, batch);
        }
        let c = c.unwrap_or_default();
        state.h.copy_from_slice(h);
        state.c.copy_from_slice(c);
        session.reserve(batch, 1)?;
        session.step(x, state, y)?;
        h.copy_from_slice(&state.h);
        c.copy_from_slice(&state.c);
        Ok(())
    })
}

/// Frees a session and ends its threads. Null is allowed.
///
/// # Safety
/// `session` is a session that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_session_free(session: *mut Session) {
    // SAFETY: the caller's promise.
    unsafe { free(session) };
}
