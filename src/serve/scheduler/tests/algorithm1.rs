//! Algorithm 1 word for word, with its scans, against [`Cellular`].
//!
//! One worker: with several, the paper counts ready nodes of subgraphs pinned to others, which that worker
//! may not take, when it chooses the cell; see there. With one, no subgraph is pinned elsewhere, and both
//! must decide the same. Which of a subgraph's ready nodes go first the paper leaves open: compared is how
//! many of each.

use super::*;
use crate::serve::cell_graph::samples::{plain_cells, random_graph};
use crate::serve::policy::{Cellular, Order};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Node {
    Waits,
    Runs,
    Done,
}

struct Request {
    key: RequestKey,
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

/// The paper's scheduler.
#[derive(Default)]
struct Paper {
    sizes: Vec<BatchSizes>,
    requests: Vec<Request>,
    /// Of each cell type, in the order in which they were passed on.
    queues: Vec<Vec<SubgraphKey>>,
    running: Vec<usize>,
    /// Cells that have had a round in this turn.
    had: Vec<usize>,
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

    fn ready_nodes(&self, cell: usize) -> usize {
        self.queues[cell]
            .iter()
            .map(|&s| self.ready_of(s).len())
            .sum()
    }

    /// Appends what can be passed on. Of several that the same event lets go, the order is `table`'s.
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
                if request.is_passed_on(subgraph) && !self.queues[cell].contains(&key) {
                    let finished = request
                        .nodes_of(subgraph)
                        .all(|n| request.state[n] == Node::Done);
                    if !finished {
                        new.push((table.standing(key).released, cell, key));
                    }
                }
            }
        }
        new.sort_unstable();
        for (_, cell, key) in new {
            self.queues[cell].push(key);
        }
    }

    fn forget(&mut self, key: RequestKey) {
        self.requests.retain(|request| request.key != key);
        for queue in &mut self.queues {
            queue.retain(|subgraph| subgraph.request != key);
        }
    }

    /// Lines 4 to 11: the cell, and whether all others that could have had a round.
    fn schedule(&self) -> (Option<usize>, bool) {
        let cells = 0..self.sizes.len();
        let all =
            |keep: &dyn Fn(usize) -> bool| cells.clone().filter(|&ct| keep(ct)).collect::<Vec<_>>();
        let mut s = all(&|ct| self.ready_nodes(ct) >= self.sizes[ct].max);
        if s.is_empty() {
            // What has had its round counts as running: see `policy/cellular.rs`.
            let runs = |ct: usize| self.running[ct] > 0 || self.had.contains(&ct);
            s = all(&|ct| !runs(ct) && self.ready_nodes(ct) > 0);
        }
        let turn_over = s.is_empty();
        if s.is_empty() {
            s = all(&|ct| self.ready_nodes(ct) > 0);
        }
        (s.into_iter().max(), turn_over)
    }

    /// Lines 24 to 32.
    fn form_batched_task(&self, ct: usize) -> BTreeMap<SubgraphKey, usize> {
        let mut batch = BTreeMap::new();
        let mut size = 0;
        for &subgraph in &self.queues[ct] {
            for _ in self.ready_of(subgraph) {
                *batch.entry(subgraph).or_insert(0) += 1;
                size += 1;
                if size == self.sizes[ct].max {
                    return batch;
                }
            }
        }
        batch
    }

    /// Lines 12 to 23 against the tasks that were given.
    fn check(&mut self, tasks: &[Task], table: &Table, at_once: usize) {
        let (scheduled, turn_over) = self.schedule();
        if turn_over {
            self.had.clear();
        }
        self.had.extend(scheduled);
        let Some(ct) = scheduled else {
            assert!(tasks.is_empty(), "nothing is ready");
            return;
        };
        let mut num_tasks = 0;
        while num_tasks < at_once {
            let batch = self.form_batched_task(ct);
            let size: usize = batch.values().sum();
            if size > 0 && (size >= self.sizes[ct].min || num_tasks == 0) {
                let task = tasks.get(num_tasks).expect("a task more");
                assert_eq!(task.cell.index(), ct);
                let mut got = BTreeMap::new();
                for &row in &task.rows {
                    *got.entry(table.node_subgraph(row)).or_insert(0) += 1;
                    assert!(self.request(row.request).is_ready(row.node.index()));
                }
                assert_eq!(got, batch);
                for row in &task.rows {
                    let mut requests = self.requests.iter_mut();
                    let request = requests.find(|r| r.key == row.request).expect("known");
                    request.state[row.node.index()] = Node::Runs;
                }
                self.running[ct] += 1;
                num_tasks += 1;
            } else {
                break;
            }
        }
        assert_eq!(tasks.len(), num_tasks);
    }
}

#[test]
fn decides_as_the_paper() {
    let (mut partly, mut full, mut several) = (0, 0, 0);
    for seed in 0..250 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let kinds = rng.usize(1..=4);
        let sizes: Vec<BatchSizes> = (0..kinds)
            .map(|_| {
                let max = rng.usize(1..=6);
                BatchSizes {
                    min: rng.usize(1..=max),
                    max,
                }
            })
            .collect();
        let at_once = rng.usize(1..=5);
        let policy = Box::new(Cellular::new(&sizes, 1, Order::Arrival));
        let mut simulated = Simulated::new(policy, plain_cells(kinds), &sizes, 1, at_once);
        let mut paper = Paper {
            queues: vec![Vec::new(); kinds],
            running: vec![0; kinds],
            had: Vec::new(),
            sizes: sizes.clone(),
            requests: Vec::new(),
        };
        let worker = WorkerId(0);
        let mut to_come = rng.usize(1..30);
        while to_come > 0 || simulated.scheduler.counts().live() > 0 {
            for _ in 0..rng.usize(0..4).min(to_come) {
                to_come -= 1;
                let graph = random_graph(&mut rng, kinds, 12);
                let unfolded = graph.unfold(&simulated.cells).expect("valid");
                let nodes = graph.len();
                let takes = (0..nodes).map(|n| takes_of(&graph, n)).collect();
                let cells = (0..nodes)
                    .map(|n| graph.cell(NodeId::new(n)).index())
                    .collect();
                let subgraph = (0..nodes)
                    .map(|n| unfolded.subgraph(NodeId::new(n)))
                    .collect();
                let key = simulated.submit(graph, 0, None, false);
                let state = vec![Node::Waits; nodes];
                paper.requests.push(Request {
                    key,
                    takes,
                    cells,
                    subgraph,
                    state,
                });
                paper.pass_on(&simulated.scheduler.table);
            }
            if rng.u8(0..12) == 0 && !paper.requests.is_empty() {
                let key = paper.requests[rng.usize(0..paper.requests.len())].key;
                simulated.cancel(key);
                paper.forget(key);
            }
            if simulated.queues[0].is_empty() || rng.u8(0..5) == 0 {
                let tasks = simulated.poll(worker);
                paper.check(&tasks, &simulated.scheduler.table, at_once);
                several += usize::from(tasks.len() > 1);
                for task in &tasks {
                    match task.rows.len() == sizes[task.cell.index()].max {
                        true => full += 1,
                        false => partly += 1,
                    }
                }
            }
            if let Some(task) = simulated.queues[0].front().cloned() {
                paper.running[task.cell.index()] -= 1;
                for row in &task.rows {
                    let request = paper.requests.iter_mut().find(|r| r.key == row.request);
                    if let Some(request) = request {
                        request.state[row.node.index()] = Node::Done;
                    }
                }
                simulated.done(worker, false, |_, _| ());
                for row in &task.rows {
                    if !simulated.is_live(row.request) {
                        paper.forget(row.request);
                    }
                }
                paper.pass_on(&simulated.scheduler.table);
            }
        }
    }
    assert!(
        partly > 500 && full > 500 && several > 300,
        "{partly} {full} {several}"
    );
}
