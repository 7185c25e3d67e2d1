//! Algorithm 1 as the paper's lines have it, with their scans, against [`Cellular`]: which cell
//! each worker gets, and how many nodes of which subgraphs.
//!
//! Not word for word: where the scheduler departs from the paper, so does this (why:
//! `policy/cellular.rs`, serve's README).
//!
//! - a cell that has been passed over in four batches of a worker goes before those that have not,
//!   and ends a round of others;
//! - only ready nodes that the worker may take are counted when its cell is chosen;
//! - a subgraph stays pinned until its worker has put its states away, not only while tasks of it
//!   are in flight;
//! - where the times of cells' steps are known, a cell's turn is by what its rows are worth
//!   (`policy/selector.rs`);
//! - of a few more rows than a cell computes in a pass, as many as that are taken;
//! - where more nodes are ready than a batch has rows, up to an eighth of all rows goes by turns
//!   (`policy/turns.rs`), and is taken as it is;
//! - subgraphs go by priority first, and with [`Order::FewestLeft`] by how many nodes their
//!   requests have left.
//!
//! With one worker, one priority, no times, no passes and [`Order::Arrival`] only the first and the
//! turns say something. Which of a subgraph's ready nodes go first the paper leaves open: compared
//! is how many of each.

use std::cmp::Reverse;

use super::test_graphs::{plain_cells, random_graph, takes_of};
use super::*;
use crate::cell_graph::RequestGraph;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Node {
    Waits,
    Runs,
    Done,
}

struct Request {
    key: RequestKey,
    priority: u8,
    takes: Vec<Vec<usize>>,
    cells: Vec<usize>,
    subgraph: Vec<usize>,
    state: Vec<Node>,
}

impl Request {
    /// "A node whose data dependency is satisfied", within its subgraph by submission.
    fn is_ready(&self, node: usize) -> bool {
        let met = |&from: &usize| {
            self.state[from] == Node::Done
                || self.subgraph[from] == self.subgraph[node] && self.state[from] == Node::Runs
        };
        self.state[node] == Node::Waits && self.takes[node].iter().all(met)
    }

    /// How many nodes no task has got.
    fn left(&self) -> usize {
        let waits = self.state.iter().filter(|&&state| state == Node::Waits);
        waits.count()
    }

    fn nodes_of(&self, subgraph: usize) -> impl Iterator<Item = usize> {
        (0..self.state.len()).filter(move |&n| self.subgraph[n] == subgraph)
    }

    /// "All external dependencies to other parts of the graph have been satisfied".
    fn is_passed_on(&self, subgraph: usize) -> bool {
        let outside = |&from: &usize| self.subgraph[from] != subgraph;
        self.nodes_of(subgraph).all(|node| {
            let mut outer = self.takes[node].iter().copied().filter(outside);
            outer.all(|from| self.state[from] == Node::Done)
        })
    }
}

/// What waits in a queue.
#[derive(Clone, Copy)]
struct Queued {
    subgraph: SubgraphKey,
    /// Of its request, when its first ready node got ready.
    left: usize,
}

/// The paper's scheduler.
struct Paper {
    order: Order,
    sizes: Vec<BatchSizes>,
    requests: Vec<Request>,
    /// Of each cell type, in the order in which they were passed on.
    queues: Vec<Vec<Queued>>,
    running: Vec<usize>,
    pinned: BTreeMap<SubgraphKey, WorkerId>,
    /// Of each cell, what steps were measured: rows and seconds.
    steps: Vec<Vec<(usize, f64)>>,
    /// Of each worker, how many batches in a row were of other cells while a cell had something
    /// ready.
    passed_over: Vec<BTreeMap<usize, usize>>,
    /// Of each cell, the rows of all tasks, and those that are not the paper's but go by turns.
    rows: Vec<usize>,
    turn_rows: Vec<usize>,
}

impl Paper {
    fn request(&self, key: RequestKey) -> &Request {
        let mut requests = self.requests.iter();
        requests.find(|r| r.key == key).expect("known")
    }

    fn ready_of(&self, subgraph: SubgraphKey) -> Vec<usize> {
        let request = self.request(subgraph.request);
        let nodes = request.nodes_of(subgraph.index as usize);
        nodes.filter(|&n| request.is_ready(n)).collect()
    }

    fn may_take(&self, subgraph: SubgraphKey, worker: WorkerId) -> bool {
        let pinned = self.pinned.get(&subgraph);
        pinned.is_none_or(|&pinned| pinned == worker)
    }

    fn ready_nodes(&self, cell: usize, worker: WorkerId) -> usize {
        let subgraphs = self.queues[cell].iter().map(|queued| queued.subgraph);
        let taken = subgraphs.filter(|&s| self.may_take(s, worker));
        taken.map(|s| self.ready_of(s).len()).sum()
    }

    /// Appends what can be passed on. Of several that the same event lets go, the order is
    /// `table`'s.
    fn pass_on(&mut self, table: &Table) {
        let mut new = Vec::new();
        for request in &self.requests {
            let subgraphs = request.subgraph.iter().max().map_or(0, |&last| last + 1);
            for subgraph in 0..subgraphs {
                let key = SubgraphKey {
                    request: request.key,
                    index: subgraph as u32,
                };
                let cell = request
                    .nodes_of(subgraph)
                    .map(|n| request.cells[n])
                    .next()
                    .expect("a node");
                let is_queued = self.queues[cell].iter().any(|q| q.subgraph == key);
                if request.is_passed_on(subgraph) && !is_queued {
                    let finished = request
                        .nodes_of(subgraph)
                        .all(|n| request.state[n] == Node::Done);
                    if !finished {
                        new.push((table.view(key).released, cell, key));
                    }
                }
            }
        }
        new.sort_unstable();
        for (_, cell, subgraph) in new {
            let left = self.request(subgraph.request).left();
            self.queues[cell].push(Queued { subgraph, left });
        }
    }

    fn forget(&mut self, key: RequestKey) {
        self.requests.retain(|request| request.key != key);
        for queue in &mut self.queues {
            queue.retain(|queued| queued.subgraph.request != key);
        }
    }

    /// What the rows of a cell are worth to a worker, if it has been measured.
    fn worth(&self, ct: usize, worker: WorkerId) -> Option<f64> {
        let (&(_, first), others) = self.steps[ct].split_first()?;
        let late = others
            .iter()
            .fold(first, |late, (_, took)| 0.75 * late + 0.25 * took);
        let in_all: usize = self.steps[ct].iter().map(|(rows, _)| rows).sum();
        let rows = self.ready_nodes(ct, worker).min(self.sizes[ct].max) as f64;
        Some(rows.powi(2) / late / in_all as f64)
    }

    /// Lines 4 to 11: the cell.
    fn schedule(&self, worker: WorkerId) -> Option<usize> {
        let ready = |ct: usize| self.ready_nodes(ct, worker);
        let all = |keep: &dyn Fn(usize) -> bool| {
            let cells = (0..self.sizes.len()).filter(|&ct| ready(ct) > 0 && keep(ct));
            cells.collect::<Vec<_>>()
        };
        let passed_over = |ct: usize| self.passed_over[worker.0].get(&ct).copied();
        let impatient = all(&|ct| passed_over(ct) >= Some(4));
        if let Some(most) = impatient.iter().map(|&ct| passed_over(ct)).max() {
            return impatient.into_iter().rfind(|&ct| passed_over(ct) == most);
        }
        let full = all(&|ct| ready(ct) >= self.sizes[ct].max);
        if let Some(&latest) = full.last() {
            return Some(latest);
        }
        let mut s = all(&|ct| self.running[ct] == 0);
        if s.is_empty() {
            s = all(&|_| true);
        }
        let untimed = s.iter().rfind(|&&ct| self.steps[ct].is_empty());
        let worth = |ct: &usize| self.worth(*ct, worker).expect("measured");
        untimed.copied().or_else(|| {
            let by_worth = |a: &usize, b: &usize| worth(a).total_cmp(&worth(b));
            s.into_iter().max_by(by_worth)
        })
    }

    /// Lines 24 to 32, with up to `most` rows.
    fn form_batched_task(
        &self,
        ct: usize,
        worker: WorkerId,
        most: usize,
    ) -> BTreeMap<SubgraphKey, usize> {
        let mut queue = self.queues[ct].clone();
        queue.retain(|queued| self.may_take(queued.subgraph, worker));
        // Of equals the one that was passed on first stays first.
        queue.sort_by_key(|queued| {
            let left = match self.order {
                Order::Arrival => 0,
                Order::FewestLeft => queued.left,
            };
            let priority = self.request(queued.subgraph.request).priority;
            (Reverse(priority), left)
        });
        let mut batch = BTreeMap::new();
        let mut size = 0;
        for Queued { subgraph, .. } in queue {
            for _ in self.ready_of(subgraph) {
                if size == most {
                    return batch;
                }
                *batch.entry(subgraph).or_insert(0) += 1;
                size += 1;
            }
        }
        batch
    }

    /// Lines 12 to 23 against the tasks that were given.
    fn check(&mut self, worker: WorkerId, tasks: &[Task], at_once: usize) {
        let Some(ct) = self.schedule(worker) else {
            assert!(tasks.is_empty(), "nothing is ready");
            return;
        };
        let mut num_tasks = 0;
        while num_tasks < at_once {
            let max = self.sizes[ct].max;
            let batch = self.form_batched_task(ct, worker, max);
            let size: usize = batch.values().sum();
            let ready = |other: &usize| *other != ct && self.ready_nodes(*other, worker) > 0;
            let waiting: Vec<usize> = (0..self.sizes.len()).filter(ready).collect();
            let passed_over = &mut self.passed_over[worker.0];
            let stops = waiting.iter().any(|ct| passed_over.get(ct) >= Some(&4));
            if size > 0 && (size >= self.sizes[ct].min && !stops || num_tasks == 0) {
                passed_over.retain(|ct, _| waiting.contains(ct));
                for ct in waiting {
                    *passed_over.entry(ct).or_default() += 1;
                }
                let task = tasks.get(num_tasks).expect("a task more");
                assert_eq!(task.cell.index(), ct, "{worker:?}'s cell");
                let mut got = BTreeMap::new();
                for &Row { request, node } in &task.rows {
                    let of = self.request(request);
                    let index = of.subgraph[node.index()] as u32;
                    *got.entry(SubgraphKey { request, index }).or_insert(0) += 1;
                    assert!(of.is_ready(node.index()));
                }
                assert_eq!(task.rows.len(), size);
                let others = got.iter().map(|(subgraph, &rows): (_, &usize)| {
                    rows.saturating_sub(batch.get(subgraph).copied().unwrap_or(0))
                });
                self.turn_rows[ct] += others.sum::<usize>();
                self.rows[ct] += size;
                assert!(
                    8 * self.turn_rows[ct] <= self.rows[ct],
                    "{got:?}, {batch:?}"
                );
                if got != batch {
                    let first = self.form_batched_task(ct, worker, max - max.div_ceil(8));
                    let here = |(subgraph, rows)| got.get(subgraph).is_some_and(|got| got >= rows);
                    assert!(first.iter().all(here), "{got:?}, {first:?}");
                }
                self.submit(ct, worker, &got, &task.rows);
                num_tasks += 1;
            } else {
                break;
            }
        }
        assert_eq!(tasks.len(), num_tasks);
    }

    /// What lines 12 to 23 do with a batch, of these rows.
    fn submit(
        &mut self,
        ct: usize,
        worker: WorkerId,
        batch: &BTreeMap<SubgraphKey, usize>,
        rows: &[Row],
    ) {
        let all_go = |(&subgraph, &count): (&SubgraphKey, &usize)| {
            (self.ready_of(subgraph).len() == count).then_some(subgraph)
        };
        let emptied: Vec<SubgraphKey> = batch.iter().filter_map(all_go).collect();
        for row in rows {
            let mut requests = self.requests.iter_mut();
            let request = requests.find(|r| r.key == row.request).expect("known");
            request.state[row.node.index()] = Node::Runs;
        }
        // What is ready of those now was not before.
        for subgraph in emptied {
            let left = self.request(subgraph.request).left();
            let mut queue = self.queues[ct].iter_mut();
            let queued = queue.find(|queued| queued.subgraph == subgraph);
            queued.expect("in its queue").left = left;
        }
        self.pinned.extend(batch.keys().map(|&key| (key, worker)));
        self.running[ct] += 1;
    }

    fn admit(&mut self, key: RequestKey, priority: u8, graph: &Graph, unfolded: &RequestGraph) {
        let nodes = 0..graph.len();
        let id = NodeId::new;
        self.requests.push(Request {
            key,
            priority,
            takes: nodes.clone().map(|n| takes_of(graph, n)).collect(),
            cells: nodes.clone().map(|n| graph.cell(id(n)).index()).collect(),
            subgraph: nodes.clone().map(|n| unfolded.subgraph(id(n))).collect(),
            state: vec![Node::Waits; nodes.len()],
        });
    }

    fn done(&mut self, task: &Task) {
        self.running[task.cell.index()] -= 1;
        for row in &task.rows {
            let request = self.requests.iter_mut().find(|r| r.key == row.request);
            if let Some(request) = request {
                request.state[row.node.index()] = Node::Done;
            }
        }
    }
}

/// What happened: else little was tested.
#[derive(Debug, Default)]
struct Seen {
    full: usize,
    partly: usize,
    /// Rounds of several tasks.
    several: usize,
    /// Rounds whose cell is another where nodes pinned to other workers count, too.
    pinned: usize,
    /// Rounds whose first task has others where subgraphs go as they were passed on.
    overtaken: usize,
    /// Rounds whose cell is another where no times are known.
    by_worth: usize,
    /// Rounds of cells that had been passed over four times.
    by_patience: usize,
}

impl Seen {
    /// Before the paper's scheduler is told of the round.
    fn look(&mut self, paper: &mut Paper, worker: WorkerId, tasks: &[Task]) {
        self.several += usize::from(tasks.len() > 1);
        for task in tasks {
            if task.rows.len() == paper.sizes[task.cell.index()].max {
                self.full += 1
            } else {
                self.partly += 1
            }
        }
        let cell = paper.schedule(worker);
        if let Some(cell) = cell {
            let batch = paper.form_batched_task(cell, worker, paper.sizes[cell].max);
            let size: usize = batch.values().sum();
            let queued = paper.queues[cell].iter().map(|queued| queued.subgraph);
            let arrived = queued.filter(|&s| paper.may_take(s, worker));
            let nodes = arrived.flat_map(|s| vec![s; paper.ready_of(s).len()]);
            let same = nodes.take(size).all(|s| batch.contains_key(&s));
            self.overtaken += usize::from(!same);
        }
        let pinned = std::mem::take(&mut paper.pinned);
        self.pinned += usize::from(paper.schedule(worker) != cell);
        paper.pinned = pinned;
        let passed_over = std::mem::take(&mut paper.passed_over[worker.0]);
        self.by_patience += usize::from(paper.schedule(worker) != cell);
        paper.passed_over[worker.0] = passed_over;
        let steps = std::mem::replace(&mut paper.steps, vec![Vec::new(); paper.sizes.len()]);
        self.by_worth += usize::from(paper.schedule(worker) != cell);
        paper.steps = steps;
    }
}

fn decides(seed: u64, workers: usize, order: Order, priorities: u8, seen: &mut Seen) {
    decides_by(seed, workers, order, priorities, None, seen);
}

/// Decides the same as the paper until all requests of a random scene have ended. With `times`,
/// batches of some cells take up to so many times as long as those of others.
fn decides_by(
    seed: u64,
    workers: usize,
    order: Order,
    priorities: u8,
    times: Option<u32>,
    seen: &mut Seen,
) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let kinds = rng.usize(1..=4);
    // Full batches go first, whatever rows are worth: with times there are few.
    let most = if times.is_some() { 40 } else { 6 };
    let sizes = random_sizes(&mut rng, kinds, most);
    let at_once = rng.usize(1..=5);
    let policy = Box::new(Cellular::new(workers, order));
    let mut simulated = Simulated::new(policy, plain_cells(kinds), &sizes, workers, at_once);
    let mut paper = Paper {
        order,
        queues: vec![Vec::new(); kinds],
        running: vec![0; kinds],
        pinned: BTreeMap::new(),
        steps: vec![Vec::new(); kinds],
        passed_over: vec![BTreeMap::new(); workers],
        rows: vec![0; kinds],
        turn_rows: vec![0; kinds],
        sizes,
        requests: Vec::new(),
    };
    let slow: Vec<u32> = (0..kinds)
        .map(|_| rng.u32(1..=times.unwrap_or(1)))
        .collect();
    let mut to_come = rng.usize(1..30);
    while to_come > 0 || simulated.scheduler.counts().live() > 0 {
        for _ in 0..rng.usize(0..4).min(to_come) {
            to_come -= 1;
            let graph = random_graph(&mut rng, kinds, 12);
            let unfolded = graph.unfold(&simulated.cells).expect("valid");
            let priority = rng.u8(0..priorities);
            let key = simulated.submit(graph.clone(), priority, None, false);
            paper.admit(key, priority, &graph, &unfolded);
            paper.pass_on(&simulated.scheduler.table);
        }
        if rng.u8(0..12) == 0 && !paper.requests.is_empty() {
            let key = paper.requests[rng.usize(0..paper.requests.len())].key;
            simulated.cancel(key);
            paper.forget(key);
        }
        for worker in (0..workers).map(WorkerId) {
            if simulated.queues[worker.0].is_empty() || rng.u8(0..5) == 0 {
                simulated.evict_from(worker);
                let is_there = |key: &SubgraphKey| simulated.states.contains_key(key);
                paper.pinned.retain(|key, _| is_there(key));
                let tasks = simulated.poll(worker);
                seen.look(&mut paper, worker, &tasks);
                paper.check(worker, &tasks, at_once);
            }
            // Several workers are not done at once.
            let goes_on = workers > 1 && rng.bool();
            if let Some(task) = simulated.queues[worker.0].front().cloned()
                && !goes_on
            {
                paper.done(&task);
                let (cell, rows) = (task.cell.index(), task.rows.len());
                let mut took = None;
                if times.is_some() {
                    let time = Duration::from_micros(rng.u64(900..1100)) * slow[cell];
                    paper.steps[cell].push((rows, time.as_secs_f64()));
                    took = Some(time);
                }
                simulated.done_after(worker, took, false, |_, _| ());
                for row in &task.rows {
                    if !simulated.is_live(row.request) {
                        paper.forget(row.request);
                    }
                }
                paper.pass_on(&simulated.scheduler.table);
            }
        }
        if rng.bool() {
            simulated.evict();
        }
    }
}

#[test]
fn decides_as_the_paper() {
    let mut seen = Seen::default();
    for seed in 0..250 {
        decides(seed, 1, Order::Arrival, 1, &mut seen);
    }
    let most = seen.full.min(seen.partly);
    assert!(most > 500 && seen.several > 300, "{seen:?}");
}

#[test]
fn each_of_several_workers_gets_the_cell_and_the_nodes_that_are_its_due() {
    for order in [Order::Arrival, Order::FewestLeft] {
        let mut seen = Seen::default();
        for seed in 0..250 {
            decides(seed, 2 + seed as usize % 3, order, 1, &mut seen);
        }
        let most = seen.full.min(seen.partly);
        assert!(
            most > 500 && seen.several > 300 && seen.pinned > 100,
            "{order:?}: {seen:?}"
        );
        assert_eq!(seen.overtaken > 0, order == Order::FewestLeft, "{seen:?}");
    }
}

#[test]
fn cells_whose_times_are_known_go_by_what_their_rows_are_worth() {
    let mut seen = Seen::default();
    for seed in 0..400 {
        let workers = 1 + seed as usize % 3;
        decides_by(seed, workers, Order::Arrival, 1, Some(200), &mut seen);
    }
    assert!(seen.by_worth > 500 && seen.by_patience > 5, "{seen:?}");
}

#[test]
fn priorities_and_few_nodes_left_go_first() {
    for order in [Order::Arrival, Order::FewestLeft] {
        let mut seen = Seen::default();
        for seed in 0..250 {
            decides(seed, 1 + seed as usize % 3, order, 3, &mut seen);
        }
        assert!(seen.overtaken > 300, "{order:?}: {seen:?}");
    }
}
