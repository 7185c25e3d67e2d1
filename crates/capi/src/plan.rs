//! Plans.

use std::ffi::{c_char, c_void};
use std::ops::ControlFlow;
use std::time::Duration;

use gatestream::execute::team::check_threads;
use gatestream::machine::Topology;
use gatestream::plan;
use gatestream::tune::{Options, tune};

use crate::model::Model;
use crate::status::{Error, Result, Status, free, guarded, object, path, put, read};

/// How a session runs a model on this machine.
pub struct Plan(pub(crate) plan::Plan);

/// A size of requests.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Sequences.
    pub batch: usize,
    /// Steps of each.
    pub steps: usize,
}

/// The threads asked for; 0: one for each core.
///
/// # Errors
/// More than a team can have.
pub(crate) fn threads(asked: usize) -> Result<usize> {
    if asked == 0 {
        return Ok(Topology::detect().team_size());
    }
    check_threads(asked).map_err(|why| Error::new(Status::Input, why))?;
    Ok(asked)
}

/// # Safety
/// `place` is null, or a place for the pointer.
unsafe fn give(place: *mut *mut Plan, make: impl FnOnce() -> Result<plan::Plan>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { put("plan", place, || Ok(Box::into_raw(Box::new(Plan(make()?))))) }
}

/// A plan without measuring. `batch` and `steps` 0: for requests of usual sizes. `max_threads` 0:
/// one for each core.
///
/// # Safety
/// `model` is a model; `plan` is a place for the pointer, to be freed by `gs_plan_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_plan_estimate(
    model: *const Model,
    batch: usize,
    steps: usize,
    max_threads: usize,
    plan: *mut *mut Plan,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promises.
        unsafe {
            let model = &object("model", model)?.0;
            let cores = threads(max_threads)?;
            give(plan, || match (batch, steps) {
                (0, 0) => Ok(plan::Plan::estimate_usual(model, cores)),
                (0, _) | (_, 0) => Err(Error::new(
                    Status::Input,
                    "batch and steps must be 1 or more",
                )),
                _ => Ok(plan::Plan::estimate(model, batch, steps, cores)),
            })
        }
    })
}

/// Finds the fastest plan for each of `count` sizes by measuring, in about `seconds` for all
/// together. `progress` (null is allowed) is called with the fraction of the time, from 0 to 1, on
/// another thread; where it returns something else than 0, the tuning ends with its result so far.
///
/// # Safety
/// `model` is a model, `sizes` an array; `progress` may be called with `user` by any thread; `plan`
/// is a place for the pointer, to be freed by `gs_plan_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_plan_tune(
    model: *const Model,
    sizes: *const Size,
    count: usize,
    max_threads: usize,
    seconds: f64,
    progress: Option<unsafe extern "C" fn(user: *mut c_void, fraction: f64) -> i32>,
    user: *mut c_void,
    plan: *mut *mut Plan,
) -> Status {
    /// The caller says that any thread may use it.
    struct User(*mut c_void);
    // SAFETY: as above.
    unsafe impl Send for User {}
    let user = User(user);
    guarded(|| {
        // SAFETY: the caller's promises.
        unsafe {
            let model = &object("model", model)?.0;
            let sizes = read(sizes, count).unwrap_or_default();
            let sizes = sizes.iter().map(|size| (size.batch, size.steps)).collect();
            let budget = Duration::try_from_secs_f64(seconds)
                .map_err(|why| Error::new(Status::Input, format!("seconds: {why}")))?;
            let options = Options::new(sizes, threads(max_threads)?, budget);
            give(plan, || {
                let tuned = tune(model, &options, move |now| {
                    // The whole of it, so that the closure may be sent.
                    let User(user) = &user;
                    match progress.map_or(0, |progress| progress(*user, now.fraction)) {
                        0 => ControlFlow::Continue(()),
                        _ => ControlFlow::Break(()),
                    }
                })?;
                Ok(tuned.plan)
            })
        }
    })
}

/// Reads a plan that was made for this model on this machine.
///
/// # Safety
/// `path` is a text, `model` a model; `plan` is a place for the pointer, to be freed by
/// `gs_plan_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_plan_load(
    path: *const c_char,
    model: *const Model,
    plan: *mut *mut Plan,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promises.
        unsafe {
            let (path, model) = (self::path(path)?, object("model", model)?);
            give(plan, || Ok(plan::Plan::load(path, &model.0)?))
        }
    })
}

/// Writes a plan of this model, whole or not at all.
///
/// # Safety
/// `plan` is a plan, `model` a model, `path` a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_plan_save(
    plan: *const Plan,
    model: *const Model,
    path: *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promises.
        let (plan, model, path) = unsafe {
            (
                object("plan", plan)?,
                object("model", model)?,
                self::path(path)?,
            )
        };
        Ok(plan.0.save(path, &model.0)?)
    })
}

/// Frees a plan. Null is allowed.
///
/// # Safety
/// `plan` is a plan that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_plan_free(plan: *mut Plan) {
    // SAFETY: the caller's promise.
    unsafe { free(plan) };
}
