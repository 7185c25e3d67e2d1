//! Admission: requests, streams and steps are accepted, or refused at once.

use std::sync::{Arc, Weak};

use super::shared::{Shared, State};
use super::{Reply, Request, SubmitError};
use crate::scheduler::{
    LimitOf, ModelKey, Prepared, Reason, Refused, RequestKey, Requirements, StreamRoom,
};
use crate::worker::{ModelCells, RequestValues, Values};
use cellstream::execute::team::ProcessMark;

/// The reserved room of an open stream; dropping it returns the room.
pub(super) struct Room {
    shared: Weak<Shared>,
    made_in: ProcessMark,
    reserved: StreamRoom,
}

impl Room {
    pub fn position(&self) -> u64 {
        self.reserved.position
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade()
            && !self.made_in.is_forked()
        {
            let mut state = shared.lock();
            state.scheduler.handle_close_stream(self.reserved);
            state.idle_streams.forget(self.reserved.position);
            state.forget_model(self.reserved.model);
        }
    }
}

impl Shared {
    /// Accepts a request of a model, or rejects it at once.
    pub fn accept(
        &self,
        model: &Arc<ModelCells>,
        request: Request,
        reply: Reply,
    ) -> Result<RequestKey, SubmitError> {
        if self.made_in.is_forked() {
            return Err(SubmitError::Forked);
        }
        let (request, reply) = request.with_parts(reply);
        let Request {
            graph,
            grow,
            mut requirements,
            ..
        } = request;
        requirements.model = model.key;
        // Rejecting a request should cost less than accepting it.
        self.offer(graph.len(), &requirements)?;
        let unfolded = graph.unfold(&model.cells)?;
        graph.check_watched(grow.is_some())?;
        let values = Values::new(graph, &unfolded, grow, &model.cells, reply);
        requirements.bytes = requirements.bytes.max(values.bytes(&model.cells));
        let values = Arc::new(RequestValues::new(model, values));
        let continues = requirements.continues;
        let prepared = Prepared::new(&unfolded, requirements);
        // The values of a rejected request are dropped without the lock: they may own a ticket or
        // the engine, whose drop takes the lock.
        let kept = Arc::clone(&values);
        let accepted = self.with(|state, now| {
            let key = match state.scheduler.handle_prepared(now, prepared) {
                // It may have been removed meanwhile.
                Err(_) if !continues && !state.is_serving(model.key) => {
                    return Err(Refused::NoModel.into());
                }
                accepted => accepted?,
            };
            state.requests.insert(key, values);
            Ok(key)
        });
        drop(kept);
        accepted
    }

    /// An error if a request would be refused now.
    fn offer(&self, nodes: usize, requirements: &Requirements) -> Result<(), Refused> {
        let mut state = self.lock();
        // Segments that continue a stream are accepted until the model is idle.
        if !requirements.continues {
            state.refuse_removed(requirements.model)?;
        }
        state.scheduler.handle_offer(nodes, requirements)?;
        let have = state.replies.len();
        if have >= self.max_replies && requirements.stream.is_none() {
            (state.scheduler).handle_refused(requirements.model, Reason::Replies);
            return Err(Refused::Overloaded {
                of: LimitOf::Engine,
                what: Reason::Replies,
                have,
                needs: 1,
                most: self.max_replies,
            });
        }
        Ok(())
    }

    /// Reserves the room of a stream of a model.
    pub fn open_stream(
        shared: &Arc<Shared>,
        model: ModelKey,
        bytes: usize,
    ) -> Result<Room, SubmitError> {
        let mut state = shared.lock();
        state.refuse_removed(model)?;
        let reserved = state.scheduler.handle_open_stream(model, bytes)?;
        drop(state);
        Ok(Room {
            shared: Arc::downgrade(shared),
            made_in: shared.made_in,
            reserved,
        })
    }

    /// An error if steps of streams of a model are refused.
    pub fn check_draining(&self, model: ModelKey) -> Result<(), SubmitError> {
        let mut state = self.lock();
        state.refuse_removed(model)?;
        let checked = state.scheduler.check_draining(model);
        if let Err(refused) = checked {
            state.scheduler.handle_refused(model, refused.reason());
        }
        Ok(checked?)
    }
}

impl State {
    /// An error if a model is being removed or was removed.
    fn refuse_removed(&mut self, model: ModelKey) -> Result<(), Refused> {
        if self.is_serving(model) {
            return Ok(());
        }
        self.scheduler.handle_refused(model, Reason::NoModel);
        Err(Refused::NoModel)
    }
}
