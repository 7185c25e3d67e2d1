//! Graph batching: a worker runs a group of requests to its end before it takes another.
//!
//! ```text
//! a worker without a group:  take up to N requests of the next queue, oldest first
//! while the group has nodes: step = ready nodes of its lowest cell: one of each member (padding),
//!                                   or all (merging)
//!                            submit it, split at the cell's maximum number of rows
//! at its end:                return all members
//! ```
//!
//! It does not wait for a group to fill: BatchMaker's authors found that better than any timeout
//! (section 7.1). The next step is formed before the last one is done only if it would be the same
//! afterwards: the cell is the same, and every member with nodes left is in it.
//!
//! A member that is cancelled, late or failed is not in the next step; in a padded group its row is
//! still computed, like that of a member that is done. An open request returns to the queues with
//! its next input: the group does not wait for it.
//!
//! All members are of one model. A worker without a group takes one of the model whose turn it is
//! ([`Shares`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use slotmap::SecondaryMap;

use gatestream_serve::cell_graph::CellId;
use gatestream_serve::policy::Shares;
use gatestream_serve::scheduler::{
    Completion, Demand, NewModel, NewTask, Policy, RequestKey, Row, SubgraphKey, Table, Task,
    WorkerId,
};

/// What a step is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// One node of each member; those that have none are padded. Groups have at most as many
    /// members as every cell has rows.
    Padded,
    /// All ready nodes of all members.
    Level,
}

/// Which requests run together, and how: the difference between graph-batching policies.
pub trait Rule: Send {
    /// What a step is made of.
    fn step(&self) -> Step;

    /// The queue of a request. Queues are served in turn, in the order of their numbers.
    fn queue(&self, table: &Table, request: RequestKey) -> usize {
        let _ = (table, request);
        0
    }

    /// Whether `next`, of the same queue, may run with `first`, the first member. The first request
    /// that may not closes the group, so that requests are not reordered.
    fn fits(&self, table: &Table, first: RequestKey, next: RequestKey) -> bool {
        let _ = (table, first, next);
        true
    }
}

/// See the [module](self).
pub struct GraphBatching<R> {
    rule: R,
    /// Maximum members of a group.
    requests: usize,
    /// By index.
    models: Vec<Option<Waiting>>,
    shares: Shares,
    arrivals: u64,
    positions: SecondaryMap<RequestKey, Position>,
    /// By worker.
    groups: Vec<Option<Group>>,
    released: VecDeque<RequestKey>,
}

/// The requests of a model that are in no group and have ready nodes.
struct Waiting {
    /// The index of the first cell of the model.
    first_cell: usize,
    /// Maximum rows of a batch, by cell of the model.
    max_rows: Vec<usize>,
    /// Maximum members of a group.
    max_members: usize,
    /// No queue is empty.
    queues: BTreeMap<usize, BTreeSet<Turn>>,
    /// The queue whose turn it is, or the next after it.
    turn: usize,
}

/// The order of a queue: by priority, then by arrival.
type Turn = (Reverse<u8>, u64, RequestKey);

/// The position of a request: in a queue, or in the group of a worker.
#[derive(Clone, Copy)]
enum Position {
    Waits { queue: usize, turn: Turn },
    Member { worker: usize, index: usize },
}

struct Group {
    /// The index of its model.
    model: usize,
    members: Vec<Member>,
    /// Of the last step.
    cell: Option<CellId>,
    /// What is left of the last step: the member, and how many nodes of which subgraph.
    step: VecDeque<(usize, SubgraphKey, usize)>,
    /// Ready nodes that have not been taken.
    ready: usize,
    /// Tasks.
    in_flight: usize,
}

struct Member {
    request: RequestKey,
    phase: Phase,
    /// Ready nodes that are in no step yet.
    ready: BTreeMap<CellId, VecDeque<(SubgraphKey, usize)>>,
    /// Nodes taken so far.
    taken: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// All nodes are done.
    Held,
    Gone,
}

impl<R: Rule> GraphBatching<R> {
    /// Groups of up to `requests` requests (at least one), for this number of workers.
    pub fn new(rule: R, workers: usize, requests: usize) -> GraphBatching<R> {
        GraphBatching {
            rule,
            requests,
            models: Vec::new(),
            shares: Shares::new(workers),
            arrivals: 0,
            positions: SecondaryMap::new(),
            groups: (0..workers).map(|_| None).collect(),
            released: VecDeque::new(),
        }
    }

    /// The next group of a worker that has none.
    fn gather(&mut self, table: &Table, worker: WorkerId) -> Option<Group> {
        let choose = |waiting: &Option<Waiting>| {
            let waiting = waiting.as_ref()?;
            waiting.choose(&self.rule, table, worker)
        };
        let mut chosen: Vec<_> = self.models.iter().map(choose).collect();
        let has_rows = |model: usize| chosen[model].is_some();
        let model = self.shares.next(worker, has_rows)?;
        self.shares.taken(worker, model, has_rows);
        let (queue, chosen) = chosen[model].take()?;
        let waiting = self.models[model].as_mut()?;
        waiting.turn = queue + 1;
        let mut group = Group {
            model,
            members: Vec::with_capacity(chosen.len()),
            cell: None,
            step: VecDeque::new(),
            ready: 0,
            in_flight: 0,
        };
        for (index, turn) in chosen.into_iter().enumerate() {
            waiting.leave(queue, turn);
            let (request, worker) = (turn.2, worker.0);
            self.positions
                .insert(request, Position::Member { worker, index });
            group.members.push(Member {
                request,
                phase: Phase::Running,
                ready: BTreeMap::new(),
                // Nothing of what waits is in flight.
                taken: table.nodes(request) - table.nodes_left(request),
            });
            for subgraph in table.ready_subgraphs(request) {
                group.ready(table, index, subgraph, table.ready(subgraph));
            }
        }
        Some(group)
    }
}

impl Waiting {
    /// The next queue with a request that the worker may take, and the next members of a group.
    fn choose(
        &self,
        rule: &impl Rule,
        table: &Table,
        worker: WorkerId,
    ) -> Option<(usize, Vec<Turn>)> {
        let queues = self.queues.range(self.turn..);
        let mut queues = queues.chain(self.queues.range(..self.turn));
        queues.find_map(|(&queue, waiting)| {
            let chosen = self.members(rule, table, worker, waiting);
            (!chosen.is_empty()).then_some((queue, chosen))
        })
    }

    fn members(
        &self,
        rule: &impl Rule,
        table: &Table,
        worker: WorkerId,
        waiting: &BTreeSet<Turn>,
    ) -> Vec<Turn> {
        let mut chosen: Vec<Turn> = Vec::new();
        // A stream that went on before may have its states at another worker still.
        let here = waiting
            .iter()
            .filter(|turn| table.may_run_on(turn.2, worker));
        for &turn in here.take(self.max_members) {
            if let Some(first) = chosen.first()
                && !rule.fits(table, first.2, turn.2)
            {
                break;
            }
            chosen.push(turn);
        }
        chosen
    }

    fn leave(&mut self, queue: usize, turn: Turn) {
        if let Some(waiting) = self.queues.get_mut(&queue) {
            waiting.remove(&turn);
            if waiting.is_empty() {
                self.queues.remove(&queue);
            }
        }
    }
}

impl Group {
    fn ready(&mut self, table: &Table, index: usize, subgraph: SubgraphKey, count: usize) {
        let ready = &mut self.members[index].ready;
        let nodes = ready.entry(table.cell(subgraph)).or_default();
        nodes.push_back((subgraph, count));
        self.ready += count;
    }

    fn running(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|m| m.phase == Phase::Running)
    }

    /// Nothing is left to run.
    fn is_over(&self) -> bool {
        self.in_flight == 0 && self.ready == 0
    }

    /// Fills `step`; `None` if nothing is ready or the step may still change.
    fn next_step(&mut self, table: &Table, step: Step) -> Option<()> {
        let first = |member: &Member| member.ready.keys().next().copied();
        let cell = self.running().filter_map(first).min()?;
        let lags = |m: &Member| !m.ready.contains_key(&cell) && m.taken < table.nodes(m.request);
        if self.in_flight > 0 && (self.cell != Some(cell) || self.running().any(lags)) {
            return None;
        }
        for (index, member) in self.members.iter_mut().enumerate() {
            let Some(nodes) = member.ready.get_mut(&cell) else {
                continue;
            };
            match step {
                Step::Level => {
                    let all = nodes.drain(..);
                    self.step.extend(all.map(|(s, count)| (index, s, count)));
                }
                Step::Padded => {
                    if let Some((subgraph, count)) = nodes.front_mut() {
                        self.step.push_back((index, *subgraph, 1));
                        *count -= 1;
                        if *count == 0 {
                            nodes.pop_front();
                        }
                    }
                }
            }
            if nodes.is_empty() {
                member.ready.remove(&cell);
            }
        }
        self.cell = Some(cell);
        Some(())
    }

    /// Whether the next task has the rows of this one, the last of the group, a step further.
    fn continues(&mut self, table: &Table, before: &Task, step: Step) -> bool {
        // The rest of a level that was split has other rows. So may the next level after that rest.
        if !self.step.is_empty() || self.next_step(table, step).is_none() {
            return false;
        }
        // Both are in the order of the members.
        let mut rows = before.rows.iter();
        let mut step = self.step.iter();
        step.all(|(_, subgraph, count)| {
            *count == 1 && rows.any(|row| table.node_subgraph(*row) == *subgraph)
        })
    }

    /// Takes what is left of the step, up to `max` rows.
    fn take(&mut self, table: &mut Table, max: usize, rows: &mut Vec<Row>) {
        while rows.len() < max
            && let Some((index, subgraph, count)) = self.step.pop_front()
        {
            let member = &mut self.members[index];
            if member.phase == Phase::Gone {
                continue;
            }
            let before = rows.len();
            table.take(subgraph, count.min(max - before), rows);
            let taken = rows.len() - before;
            member.taken += taken;
            self.ready -= taken;
            if taken < count {
                self.step.push_front((index, subgraph, count - taken));
            }
        }
    }
}

impl<R: Rule> Policy for GraphBatching<R> {
    fn queued(&self) -> usize {
        let groups = self.groups.iter().flatten();
        let members: usize = groups.map(|group| group.members.len()).sum();
        let models = self.models.iter().flatten();
        let queues = models.flat_map(|waiting| waiting.queues.values());
        members + queues.map(BTreeSet::len).sum::<usize>() + self.released.len()
    }

    fn add_model(&mut self, model: NewModel<'_>) {
        let max_rows: Vec<usize> = model.costs.iter().map(|cost| cost.rows.max).collect();
        let max_members = match (self.rule.step(), max_rows.iter().min()) {
            (Step::Padded, Some(&rows)) => self.requests.min(rows),
            _ => self.requests,
        };
        if self.models.len() <= model.index {
            self.models.resize_with(model.index + 1, || None);
        }
        self.models[model.index] = Some(Waiting {
            first_cell: model.first_cell.index(),
            max_rows,
            max_members: max_members.max(1),
            queues: BTreeMap::new(),
            turn: 0,
        });
        self.shares.add(model.index, model.weight);
    }

    fn remove_model(&mut self, index: usize) {
        self.models[index] = None;
        self.shares.remove(index);
    }

    fn ready(&mut self, table: &Table, subgraph: SubgraphKey, count: usize) {
        let request = subgraph.request;
        match self.positions.get(request) {
            Some(&Position::Member { worker, index }) => {
                if let Some(group) = &mut self.groups[worker] {
                    group.ready(table, index, subgraph, count);
                }
            }
            Some(Position::Waits { .. }) => {}
            None => {
                let turn = (Reverse(table.priority(request)), self.arrivals, request);
                self.arrivals += 1;
                let queue = self.rule.queue(table, request);
                let model = table.model(request).index();
                if let Some(waiting) = &mut self.models[model] {
                    if waiting.queues.is_empty() {
                        self.shares.enter(model);
                    }
                    waiting.queues.entry(queue).or_default().insert(turn);
                }
                self.positions
                    .insert(request, Position::Waits { queue, turn });
            }
        }
    }

    fn next_task(
        &mut self,
        table: &mut Table,
        demand: Demand<'_>,
        rows: &mut Vec<Row>,
    ) -> Option<NewTask> {
        let worker = match demand {
            Demand::Any { worker, .. } => worker,
            Demand::NextStep(before) => {
                let group = self.groups[before.worker.0].as_mut()?;
                if !group.continues(table, before, self.rule.step()) {
                    return None;
                }
                before.worker
            }
        };
        if self.groups[worker.0].is_none() {
            self.groups[worker.0] = self.gather(table, worker);
        }
        let step = self.rule.step();
        let group = self.groups[worker.0].as_mut()?;
        let Waiting {
            max_rows,
            first_cell,
            ..
        } = self.models[group.model].as_ref()?;
        let cell = loop {
            if let Some(cell) = group.cell {
                group.take(table, max_rows[cell.index() - first_cell], rows);
                if !rows.is_empty() {
                    break cell;
                }
            }
            group.next_step(table, step)?;
        };
        group.in_flight += 1;
        self.shares.start(worker, group.model, None);
        let padding = match step {
            Step::Padded => group.members.len() - rows.len(),
            Step::Level => 0,
        };
        Some(NewTask { cell, padding })
    }

    fn done(&mut self, _: &Table, task: &Task, took: Option<Duration>) {
        if let Some(group) = &mut self.groups[task.worker.0] {
            group.in_flight -= 1;
            self.shares.done(task.worker, group.model, took);
        }
    }

    fn completed(&mut self, _: &Table, request: RequestKey) -> Completion {
        if let Some(&Position::Member { worker, index }) = self.positions.get(request)
            && let Some(group) = &mut self.groups[worker]
        {
            group.members[index].phase = Phase::Held;
            return Completion::Hold;
        }
        Completion::Return
    }

    fn released(&mut self) -> Option<RequestKey> {
        for group in &mut self.groups {
            if let Some(over) = group.take_if(|group| group.is_over()) {
                for member in over.members {
                    match member.phase {
                        Phase::Gone => {}
                        // Waits for input: in no group, and in no queue until that comes.
                        Phase::Running => {
                            self.positions.remove(member.request);
                        }
                        Phase::Held => {
                            self.positions.remove(member.request);
                            self.released.push_back(member.request);
                        }
                    }
                }
            }
        }
        self.released.pop_front()
    }

    fn ended(&mut self, table: &Table, request: RequestKey) {
        match self.positions.remove(request) {
            Some(Position::Waits { queue, turn }) => {
                if let Some(waiting) = &mut self.models[table.model(request).index()] {
                    waiting.leave(queue, turn);
                }
            }
            Some(Position::Member { worker, index }) => {
                if let Some(group) = &mut self.groups[worker] {
                    let ready = table.ready_subgraphs(request).map(|s| table.ready(s));
                    group.ready -= ready.sum::<usize>();
                    let member = &mut group.members[index];
                    member.phase = Phase::Gone;
                    member.ready.clear();
                }
            }
            None => {}
        }
    }
}
