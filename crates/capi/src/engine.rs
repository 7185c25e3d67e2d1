//! The serving engine.

use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gatestream_serve as serve;
use gatestream_serve::RequestError;
use gatestream_serve::cell_graph::{BatchSizes, Cells};
use gatestream_serve::engine::{Request, Response};
use gatestream_serve::networks::{Outputs, Stack};

use crate::model::Model;
use crate::plan::Plan;
use crate::status::{Error, Status, free, guarded, object, put, read};

/// Serves one model: batches single steps of all requests that are under way.
pub struct Engine {
    engine: serve::Engine,
    stack: Stack,
    input: usize,
}

/// Options of an engine; 0 and null are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// The largest number of rows of a batch.
    pub max_batch: usize,
    /// Requests that have not ended; those beyond it are refused.
    pub max_requests: usize,
    /// Their steps together; of a model with a reverse direction, the sequences.
    pub max_nodes: usize,
    /// Steps of one request.
    pub max_request_nodes: usize,
    /// Memory of their inputs, states and outputs.
    pub max_bytes: usize,
    /// The longest sequence of a model with a reverse direction, which runs whole; default 1000.
    pub max_steps: usize,
    /// A plan of the model.
    pub plan: *const Plan,
}

/// The end of a request: its `count` values, or a status with a message. Both live during the call.
pub type OnEnd = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        status: Status,
        values: *const f32,
        count: usize,
        message: *const c_char,
    ),
>;

/// An accepted request.
pub struct RequestId(serve::engine::RequestId);

/// The function that gets the answer, and what it is called with.
struct Receiver {
    on_end: OnEnd,
    user: *mut c_void,
}

// SAFETY: the caller of `gs_engine_submit` says that any thread may call it.
unsafe impl Send for Receiver {}

impl Receiver {
    fn end(&self, answer: Result<Response, RequestError>) {
        let (status, values, message) = match answer {
            Ok(response) => (Status::Ok, response.values, CString::default()),
            Err(why) => {
                let error = Error::from(why);
                (error.status, Vec::new(), error.c_message())
            }
        };
        if let Some(on_end) = self.on_end {
            let (user, count) = (self.user, values.len());
            // SAFETY: the caller's promise; values and message live during the call.
            unsafe { on_end(user, status, values.as_ptr(), count, message.as_ptr()) };
        }
    }
}

/// Starts the workers: one for each core. `options` null: the defaults.
///
/// # Safety
/// `model` is a model, `options` null or options; `engine` is a place for the pointer, to be freed
/// by `gs_engine_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_engine_start(
    model: *const Model,
    options: *const EngineOptions,
    engine: *mut *mut Engine,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promises.
        unsafe {
            let model = &object("model", model)?.0;
            let given = options.as_ref();
            let mut options = serve::engine::EngineOptions::default();
            let mut max_steps = 1000;
            let mut plan = None;
            if let Some(given) = given {
                if given.max_batch > 0 {
                    let max = given.max_batch;
                    options.sizes = vec![BatchSizes { min: 1, max }];
                }
                let limits = &mut options.limits;
                for (limit, given) in [
                    (&mut limits.requests, given.max_requests),
                    (&mut limits.nodes, given.max_nodes),
                    (&mut limits.request_nodes, given.max_request_nodes),
                    (&mut limits.bytes, given.max_bytes),
                ] {
                    if given > 0 {
                        *limit = given;
                    }
                }
                if given.max_steps > 0 {
                    max_steps = given.max_steps;
                }
                plan = given.plan.as_ref().map(|plan| plan.0.clone());
            }
            put("engine", engine, || {
                let mut cells = Cells::new();
                let stack = Stack::add(&mut cells, Arc::clone(model), plan, max_steps)?;
                Ok(Box::into_raw(Box::new(Engine {
                    engine: serve::Engine::start(cells, &options)?,
                    stack,
                    input: model.signature().input,
                })))
            })
        }
    })
}

/// Submits a sequence `x`, `[steps][input]`, which is copied. `each` 0: the answer is the output of
/// the last step; otherwise that of each step, `[steps][output]`. `timeout` 0: none; otherwise
/// seconds. `on_end` is called once, on a thread of the engine; after an error of this function it
/// is not called. `request` (null is allowed) gets a pointer for `gs_engine_cancel`, to be freed by
/// `gs_request_free` before or after the end of the request; `on_end` may be called before it is
/// written.
///
/// # Safety
/// `engine` is an engine, `x` has that size; `on_end` may be called with `user` by any thread until
/// the request has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_engine_submit(
    engine: *const Engine,
    x: *const f32,
    steps: usize,
    each: u8,
    timeout: f64,
    on_end: OnEnd,
    user: *mut c_void,
    request: *mut *mut RequestId,
) -> Status {
    guarded(|| {
        if on_end.is_none() {
            return Err(Error::new(Status::Argument, "on_end is null"));
        }
        // SAFETY: the caller's promises.
        let (engine, x) = unsafe {
            let engine = object("engine", engine)?;
            let size = steps.checked_mul(engine.input);
            let size = size.ok_or_else(|| Error::new(Status::Input, "steps exceed the memory"))?;
            let x = read(x, size).ok_or_else(|| Error::new(Status::Argument, "x is null"))?;
            (engine, x)
        };
        let outputs = match each {
            0 => Outputs::Last,
            _ => Outputs::Each,
        };
        let graph = engine.stack.unfold(x, None, outputs)?;
        let mut asked = Request::new(graph);
        if timeout != 0.0 {
            let timeout = Duration::try_from_secs_f64(timeout)
                .map_err(|why| Error::new(Status::Input, format!("timeout: {why}")))?;
            let deadline = Instant::now().checked_add(timeout);
            let too_long = || Error::new(Status::Input, "timeout: too long");
            asked = asked.deadline(deadline.ok_or_else(too_long)?);
        }
        let receiver = Receiver { on_end, user };
        let done = move |answer: Result<Response, RequestError>| receiver.end(answer);
        let id = engine.engine.submit_with(asked, done)?;
        // SAFETY: the caller's promise.
        if let Some(place) = unsafe { request.as_mut() } {
            *place = Box::into_raw(Box::new(RequestId(id)));
        }
        Ok(())
    })
}

/// Ends a request with `GS_STATUS_CANCELLED`, unless it has ended.
///
/// # Safety
/// `engine` is an engine, `request` a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_engine_cancel(
    engine: *const Engine,
    request: *const RequestId,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promises.
        let (engine, request) = unsafe { (object("engine", engine)?, object("request", request)?) };
        engine.engine.cancel(request.0);
        Ok(())
    })
}

/// Frees the pointer to a request, which goes on. Null is allowed.
///
/// # Safety
/// `request` is a request whose pointer is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_request_free(request: *mut RequestId) {
    // SAFETY: the caller's promise.
    unsafe { free(request) };
}

/// Frees an engine: ends its requests and workers. Null is allowed.
///
/// # Safety
/// `engine` is an engine that is not used any more. Not from `on_end`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_engine_free(engine: *mut Engine) {
    // SAFETY: the caller's promise.
    unsafe { free(engine) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    unsafe extern "C" fn keep(
        user: *mut c_void,
        status: Status,
        _: *const f32,
        count: usize,
        message: *const c_char,
    ) {
        assert_eq!((status, count), (Status::Request, 0));
        // SAFETY: `user` is the test's text, and the message lives during the call.
        unsafe { *user.cast::<CString>() = CStr::from_ptr(message).to_owned() };
    }

    #[test]
    fn message_with_a_zero_byte_is_told() {
        let mut told = CString::default();
        let receiver = Receiver {
            on_end: Some(keep),
            user: (&raw mut told).cast(),
        };
        receiver.end(Err(RequestError::CellPanicked {
            cell: "lstm".into(),
            message: "a\0b".into(),
        }));
        assert_eq!(told.as_c_str(), c"cell `lstm` panicked: a b");
    }
}
