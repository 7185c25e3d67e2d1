//! Admission: requests, streams and steps are accepted, or refused at once.

use std::sync::{Arc, Weak};
use std::time::Instant;

use super::shared::{Shared, State};
use super::{Reply, Request, SubmitAllError, SubmitError};
use crate::scheduler::{
    LimitOf, ModelKey, Prepared, Reason, Refused, RefusedAt, RequestKey, Requirements, StreamRoom,
};
use crate::worker::{ModelCells, RequestValues, Values};
use gatestream::execute::team::ProcessMark;

/// A request that was checked and is not accepted yet.
pub(super) struct Candidate {
    prepared: Prepared,
    values: Arc<RequestValues<Reply>>,
}

impl Candidate {
    pub fn requirements(&self) -> &Requirements {
        self.prepared.requirements()
    }
}

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
            let must_wake = !state.waiting.is_empty();
            drop(state);
            if must_wake {
                shared.wake_waiting();
            }
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
        let candidate = self.offer(model, request, reply)?;
        // The values of a rejected request are dropped without the lock: they may own a ticket or
        // the engine, whose drop takes the lock.
        let kept = Arc::clone(&candidate.values);
        let accepted = self.with(|state, now| state.accept(now, candidate));
        drop(kept);
        Ok(accepted?)
    }

    /// Accepts all requests of a model, or none. No row of them is computed before all are
    /// accepted.
    pub fn accept_all(
        &self,
        model: &Arc<ModelCells>,
        requests: impl IntoIterator<Item = (Request, Reply)>,
    ) -> Result<Vec<RequestKey>, SubmitAllError> {
        let mut candidates = Vec::new();
        for (index, (request, reply)) in requests.into_iter().enumerate() {
            let candidate = self.offer(model, request, reply);
            candidates.push(candidate.map_err(|why| SubmitAllError { index, why })?);
        }
        self.with(|state, now| {
            if let Err(RefusedAt { index, refused }) = state.check_room(None, &candidates) {
                state.scheduler.handle_refused(model.key, refused.reason());
                let why = refused.into();
                return Err(SubmitAllError { index, why });
            }
            let candidates = std::mem::take(&mut candidates).into_iter().enumerate();
            let accepted = candidates.map(|(index, candidate)| {
                let accepted = state.accept(now, candidate);
                // There is room for all.
                accepted.map_err(|refused| SubmitAllError {
                    index,
                    why: refused.into(),
                })
            });
            accepted.collect()
        })
    }

    /// [Prepares](Shared::prepare) a request if it would be accepted now: refusing a request should
    /// cost less than accepting it.
    fn offer(
        &self,
        model: &Arc<ModelCells>,
        request: Request,
        reply: Reply,
    ) -> Result<Candidate, SubmitError> {
        if self.made_in.is_forked() {
            return Err(SubmitError::Forked);
        }
        let mut requirements = request.requirements;
        requirements.model = model.key;
        self.check_offer(request.graph.len(), &requirements)?;
        self.prepare(model, request, reply)
    }

    /// Checks a request, and makes its records.
    pub fn prepare(
        &self,
        model: &Arc<ModelCells>,
        request: Request,
        reply: Reply,
    ) -> Result<Candidate, SubmitError> {
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
        let unfolded = graph.unfold(&model.cells)?;
        graph.check_watched(grow.is_some())?;
        let values = Values::new(graph, &unfolded, grow, &model.cells, reply);
        requirements.bytes = requirements.bytes.max(values.bytes(&model.cells));
        let values = Arc::new(RequestValues::new(model, values));
        Ok(Candidate {
            prepared: Prepared::new(&unfolded, requirements),
            values,
        })
    }

    /// An error if a request would be refused now.
    fn check_offer(&self, nodes: usize, requirements: &Requirements) -> Result<(), Refused> {
        let mut state = self.lock();
        // Segments that continue a stream are accepted until the model is idle.
        if !requirements.continues {
            state.refuse_removed(requirements.model)?;
        }
        state.scheduler.handle_offer(nodes, requirements)?;
        let refused = match state.behind(None, requirements) {
            Some(queued) => Err(queued),
            None => state.check_replies(requirements),
        };
        refused.inspect_err(|refused| {
            let reason = refused.reason();
            state.scheduler.handle_refused(requirements.model, reason);
        })
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
    /// Accepts a request.
    pub fn accept(&mut self, now: Instant, candidate: Candidate) -> Result<RequestKey, Refused> {
        let Candidate { prepared, values } = candidate;
        let Requirements {
            model, continues, ..
        } = *prepared.requirements();
        let key = match self.scheduler.handle_prepared(now, prepared) {
            // It may have been removed meanwhile.
            Err(_) if !continues && !self.is_serving(model) => return Err(Refused::NoModel),
            accepted => accepted?,
        };
        self.requests.insert(key, values);
        Ok(key)
    }

    /// Checks whether all of these would be accepted together now. A submission that waits has a
    /// number. A refusal is not counted.
    pub fn check_room(
        &self,
        number: Option<u64>,
        candidates: &[Candidate],
    ) -> Result<(), RefusedAt> {
        let requests = || candidates.iter().map(|one| one.prepared.requirements());
        for (index, requirements) in requests().enumerate() {
            let checked = if self.is_serving(requirements.model) {
                // Before it waits behind others.
                match self.scheduler.check_draining(requirements.model) {
                    Ok(()) => match self.behind(number, requirements) {
                        Some(queued) => Err(queued),
                        None => self.check_replies(requirements),
                    },
                    refused => refused,
                }
            } else {
                Err(Refused::NoModel)
            };
            checked.map_err(|refused| RefusedAt { index, refused })?;
        }
        let nodes = candidates.iter().map(|one| one.prepared.nodes());
        self.scheduler.check_room(requests().zip(nodes))
    }

    /// The refusal of a request because others that wait for the same limit are accepted before.
    fn behind(&self, number: Option<u64>, requirements: &Requirements) -> Option<Refused> {
        if requirements.stream.is_some() {
            return None;
        }
        let waiting = self.waiting.before(number, requirements)?;
        Some(Refused::Queued { waiting })
    }

    /// An error if too many replies are not delivered.
    fn check_replies(&self, requirements: &Requirements) -> Result<(), Refused> {
        let (have, most) = (self.replies.len(), self.max_replies);
        if have >= most && requirements.stream.is_none() {
            Err(Refused::Overloaded {
                of: LimitOf::Engine,
                what: Reason::Replies,
                have,
                needs: 1,
                most,
            })
        } else {
            Ok(())
        }
    }

    /// An error if a model is being removed or was removed.
    fn refuse_removed(&mut self, model: ModelKey) -> Result<(), Refused> {
        if self.is_serving(model) {
            return Ok(());
        }
        self.scheduler.handle_refused(model, Reason::NoModel);
        Err(Refused::NoModel)
    }
}
