//! A model of an engine: the handle of its users.

use std::num::NonZeroU32;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::answer::answer_slot;
use super::shared::Shared;
use super::stats::ModelStats;
use super::ticket::Ticket;
use super::waiting::Submission;
use super::{
    Reply, Request, RequestError, RequestId, Response, Stream, StreamError, SubmitAllError,
    SubmitError, Submitting,
};
use crate::cell_graph::{BatchSizes, CellId, Cells};
use crate::scheduler::{Limits, ModelShare, Refused};
use crate::worker::ModelCells;

/// Options of a model. Set single fields and take the others from the default, with
/// `..ModelOptions::default()`: later versions may add fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelOptions {
    /// The name in errors and statistics; it need not be unique.
    pub name: String,
    /// Where models wait for the same worker, they get times of it in proportion to their weights.
    pub weight: NonZeroU32,
    /// What the model holds at most. Those of the engine count, too.
    pub limits: Limits,
    /// Rows of the batches of each cell, in the order of the cells. If empty, those of
    /// [`Cell::cost`](crate::cell_graph::Cell::cost).
    pub sizes: Vec<BatchSizes>,
}

impl Default for ModelOptions {
    /// The name `model`, weight 1, no limits of its own.
    fn default() -> ModelOptions {
        let ModelShare { weight, limits } = ModelShare::default();
        ModelOptions {
            name: "model".into(),
            weight,
            limits,
            sizes: Vec::new(),
        }
    }
}

impl ModelOptions {
    pub(super) fn share(&self) -> ModelShare {
        ModelShare {
            weight: self.weight,
            limits: self.limits,
        }
    }
}

/// A model of an [`Engine`](super::Engine); a handle that is cheap to clone. Dropping it changes
/// nothing: [`Model::remove`] removes the model. It does not keep the engine.
#[derive(Clone)]
pub struct Model {
    shared: Weak<Shared>,
    cells: Arc<ModelCells>,
    name: Arc<str>,
}

impl Model {
    pub(super) fn new(shared: &Arc<Shared>, cells: Arc<ModelCells>, name: &Arc<str>) -> Model {
        Model {
            shared: Arc::downgrade(shared),
            cells,
            name: Arc::clone(name),
        }
    }

    fn shared(&self) -> Result<Arc<Shared>, SubmitError> {
        Ok(self.shared.upgrade().ok_or(Refused::ShuttingDown)?)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its cells. Graphs of its requests call these.
    pub fn cells(&self) -> &Cells {
        &self.cells.cells
    }

    /// Accepts a request, or rejects it at once.
    ///
    /// # Errors
    /// [`SubmitError`]; the engine keeps nothing of the request. [`Refused::ModelDrains`] and
    /// [`Refused::NoModel`] after [`Model::drain`] and [`Model::remove`].
    pub fn submit(&self, request: Request) -> Result<Ticket, SubmitError> {
        let (sender, receiver) = answer_slot();
        let shared = self.shared()?;
        let key = shared.accept(&self.cells, request, Reply::Ticket(sender))?;
        let id = RequestId::new(&shared, key);
        Ok(Ticket::new(receiver, id, Weak::clone(&self.shared)))
    }

    /// As [`Model::submit`], but calls `done` exactly once, with the response or the error, on the
    /// engine's reply thread. It delays the callbacks and wakers of other requests while it runs,
    /// but no batch and no thread that waits for a ticket. It may wait for tickets; in it,
    /// [`Model::drain`] does not wait. See
    /// [`EngineOptions::reply_thread`](super::EngineOptions::reply_thread).
    ///
    /// # Errors
    /// As [`Model::submit`], and [`Refused::Overloaded`] if the reply thread is far behind; `done`
    /// is not called then.
    pub fn submit_with(
        &self,
        request: Request,
        done: impl FnOnce(Result<Response, RequestError>) + Send + 'static,
    ) -> Result<RequestId, SubmitError> {
        let shared = self.shared()?;
        let key = shared.accept(&self.cells, request, Reply::Call(Box::new(done)))?;
        Ok(RequestId::new(&shared, key))
    }

    /// As [`Model::submit`], but waits for room, at most for `timeout`. Submissions that wait for
    /// the same limit are accepted in the order of their arrival. Meanwhile [`Model::submit`] is
    /// refused ([`Refused::Queued`]). The deadline of the request also bounds the wait.
    ///
    /// In a callback or waker of the engine this may delay the reply that makes room: choose a
    /// short timeout there.
    ///
    /// # Errors
    /// As [`Model::submit`]: at once if the request can never be accepted, and after `timeout` if
    /// there is still no room.
    pub fn submit_wait(&self, request: Request, timeout: Duration) -> Result<Ticket, SubmitError> {
        // A time that cannot be represented does not come.
        let until = Instant::now().checked_add(timeout);
        let deadline = request.requirements.deadline;
        let until = until.into_iter().chain(deadline).min();
        Submission::new(self.shared()?, &self.cells, request)?.wait(until)
    }

    /// As [`Model::submit_wait`], for tasks: waits for room without a limit of time. Dropping the
    /// future withdraws the request. A waiting task is woken by the engine's reply thread.
    ///
    /// ```
    /// # use std::error::Error;
    /// # use gatestream_serve::engine::{Model, Request, Response};
    /// async fn answer(model: Model, request: Request) -> Result<Response, Box<dyn Error>> {
    ///     let ticket = model.submit_async(request).await?; // waits for room
    ///     Ok(ticket.await?) // waits for the response
    /// }
    /// ```
    pub fn submit_async(&self, request: Request) -> Submitting {
        let shared = self.shared();
        Submitting(shared.and_then(|shared| Submission::new(shared, &self.cells, request)))
    }

    /// Accepts all of these requests, or none. No row of them is computed before all are accepted.
    /// The tickets are in the order of the requests.
    ///
    /// # Errors
    /// [`SubmitAllError`]: the first request that is refused, alone or because of the room that
    /// those before it take.
    pub fn submit_all(
        &self,
        requests: impl IntoIterator<Item = Request>,
    ) -> Result<Vec<Ticket>, SubmitAllError> {
        let shared = self
            .shared()
            .map_err(|why| SubmitAllError { index: 0, why })?;
        let mut receivers = Vec::new();
        let requests = requests.into_iter().map(|request| {
            let (sender, receiver) = answer_slot();
            receivers.push(receiver);
            (request, Reply::Ticket(sender))
        });
        let keys = shared.accept_all(&self.cells, requests)?;
        let tickets = keys.into_iter().zip(receivers).map(|(key, receiver)| {
            let id = RequestId::new(&shared, key);
            Ticket::new(receiver, id, Weak::clone(&self.shared))
        });
        Ok(tickets.collect())
    }

    /// As [`Engine::stream`](super::Engine::stream), of a cell of this model.
    ///
    /// # Errors
    /// As [`Engine::stream`](super::Engine::stream).
    pub fn stream(&self, cell: CellId, states: Option<&[f32]>) -> Result<Stream, StreamError> {
        Stream::open(&self.shared()?, &self.cells, cell, states)
    }

    /// Rejects new requests, streams and steps of this model, and waits until all accepted ones
    /// have ended and their replies are delivered, callbacks included. It does not wait for open
    /// streams without unanswered steps. Returns the number of requests and callbacks that remain:
    /// 0, except in a callback or waker, where it does not wait, because it would wait for itself.
    /// Returns at once in a child of the process that started the engine.
    pub fn drain(&self) -> usize {
        self.drain_until(None)
    }

    /// As [`Model::drain`], but waits for at most `timeout`. The requests that remain go on.
    pub fn drain_for(&self, timeout: Duration) -> usize {
        // A time that cannot be represented does not come.
        self.drain_until(Instant::now().checked_add(timeout))
    }

    fn drain_until(&self, deadline: Option<Instant>) -> usize {
        let Some(shared) = self.shared.upgrade() else {
            return 0;
        };
        if shared.made_in.is_forked() {
            return 0;
        }
        shared.drain_model(self.cells.key);
        shared.wait_for_model(self.cells.key, deadline)
    }

    /// Statistics since it was added; `None` if it was removed or the engine has stopped, or in a
    /// child of the process that started the engine.
    pub fn stats(&self) -> Option<ModelStats> {
        let shared = self.shared.upgrade()?;
        if shared.made_in.is_forked() {
            None
        } else {
            shared.lock().model_stats(self.cells.key)
        }
    }

    /// Ends all accepted requests and streams with unanswered steps of this model, with
    /// [`RequestError::Cancelled`].
    pub fn cancel_all(&self) {
        if let Some(shared) = self.shared.upgrade()
            && !shared.made_in.is_forked()
        {
            shared.cancel_model(self.cells.key);
        }
    }

    /// Removes the model: rejects new requests, streams and steps, waits until all accepted ones
    /// have ended and their replies are delivered, and until each worker has freed its cells.
    /// Nothing is lost; [`Model::drain_for`] and [`Model::cancel_all`] bound the wait. Open streams
    /// keep their states ([`Stream::state`]) and take no more steps. Does nothing if the model was
    /// removed before, or in a child of the process that started the engine.
    ///
    /// In a callback or waker of the engine, which it would wait for, it only drains, without a
    /// wait, and the model is not removed.
    pub fn remove(&self) {
        if let Some(shared) = self.shared.upgrade()
            && !shared.made_in.is_forked()
        {
            if shared.is_replying() {
                shared.drain_model(self.cells.key)
            } else {
                shared.remove_model(self.cells.key)
            }
        }
    }
}
