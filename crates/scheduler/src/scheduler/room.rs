//! The room for requests and streams: the accounts of all models together and of each one decide.

use super::account::{Before, Usage};
use super::{ClientId, ModelKey, Reason, Refused, RefusedAt, RequestKey, Requirements, Scheduler};
use super::{RequestGraph, StreamRoom};

impl Scheduler {
    /// Checks whether a request of this number of nodes would be refused now, before it is
    /// unfolded. [`Scheduler::handle_submit`] also checks its bytes.
    ///
    /// # Errors
    /// As of [`Scheduler::handle_submit`].
    pub fn handle_offer(
        &mut self,
        nodes: usize,
        requirements: &Requirements,
    ) -> Result<(), Refused> {
        self.room_or_refused(requirements, nodes).map(drop)
    }

    /// Checks whether all of these requests would be accepted together now, each given by its
    /// requirements and its number of nodes. A refusal is not counted.
    ///
    /// # Errors
    /// The first that would be refused.
    pub fn check_room<'a>(
        &self,
        requests: impl IntoIterator<Item = (&'a Requirements, usize)>,
    ) -> Result<(), RefusedAt> {
        let mut before = Before::default();
        for (index, (requirements, nodes)) in requests.into_iter().enumerate() {
            let usage = self.room_after(&before, requirements, nodes);
            let usage = usage.map_err(|refused| RefusedAt { index, refused })?;
            before.add(usage, requirements.client);
        }
        Ok(())
    }

    /// A stream of a model is opened: reserves its room, and its position in the order of arrivals.
    ///
    /// # Errors
    /// [`Refused`]; nothing is reserved.
    pub fn handle_open_stream(
        &mut self,
        model: ModelKey,
        bytes: usize,
    ) -> Result<StreamRoom, Refused> {
        let needs = Usage::of_stream(bytes);
        let room = self.room_for(model, &Before::default(), needs, None, false);
        room.inspect_err(|refused| self.handle_refused(model, refused.reason()))?;
        let of_model = self.models.get_mut(model).ok_or(Refused::NoModel)?;
        of_model.account.opened_stream(bytes);
        self.account.opened_stream(bytes);
        let position = self.table.reserve_position();
        Ok(StreamRoom {
            model,
            position,
            bytes,
        })
    }

    /// A stream has ended; its last segment may still run.
    pub fn handle_close_stream(&mut self, room: StreamRoom) {
        self.account.closed_stream(room.bytes);
        if let Some(model) = self.models.get_mut(room.model) {
            model.account.closed_stream(room.bytes);
        }
    }

    /// Whether steps of streams of a model are accepted.
    ///
    /// # Errors
    /// [`Refused::ShuttingDown`] after [`Scheduler::handle_drain`], [`Refused::ModelDrains`] after
    /// [`Scheduler::handle_drain_model`].
    pub fn check_draining(&self, model: ModelKey) -> Result<(), Refused> {
        self.room_for(model, &Before::default(), Usage::default(), None, false)
    }

    /// A request, stream or step of a model was refused outside of the scheduler: counts it.
    pub fn handle_refused(&mut self, model: ModelKey, reason: Reason) {
        self.account.counts.refused[reason as usize] += 1;
        if let Some(model) = self.models.get_mut(model) {
            model.account.counts.refused[reason as usize] += 1;
        }
    }

    /// Checks whether a live request may grow by so many nodes.
    pub(super) fn room_for_nodes(&self, key: RequestKey, nodes: usize) -> Result<(), Refused> {
        let early = self.early.get(key).into_iter().flatten();
        let early: usize = early.map(RequestGraph::nodes).sum();
        let all = self.table.nodes(key) + early + nodes;
        if let Some(model) = self.models.get(self.table.model(key)) {
            model.account.room_for_nodes(all, nodes)?;
        }
        self.account.room_for_nodes(all, nodes)
    }

    /// The usage of a request with so many nodes, if there is room for it.
    pub(super) fn room_or_refused(
        &mut self,
        requirements: &Requirements,
        nodes: usize,
    ) -> Result<Usage, Refused> {
        let room = self.room_after(&Before::default(), requirements, nodes);
        room.inspect_err(|refused| self.handle_refused(requirements.model, refused.reason()))
    }

    /// The usage of a request with so many nodes, if there is room for it after those `before`.
    fn room_after(
        &self,
        before: &Before,
        requirements: &Requirements,
        nodes: usize,
    ) -> Result<Usage, Refused> {
        let Requirements {
            model,
            client,
            continues,
            ..
        } = *requirements;
        let needs = Usage::of(requirements.stream.is_some(), nodes, requirements.bytes);
        let room = self.room_for(model, before, needs, client, continues);
        room.map(|()| needs)
    }

    fn room_for(
        &self,
        model: ModelKey,
        before: &Before,
        needs: Usage,
        client: Option<ClientId>,
        continues: bool,
    ) -> Result<(), Refused> {
        let model = self.models.get(model).ok_or(Refused::NoModel)?;
        self.account.room_for(before, needs, client, continues)?;
        model.account.room_for(before, needs, client, continues)
    }
}
