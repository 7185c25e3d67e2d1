//! Random graphs, arrivals, growths, ends and workers, under every policy.

use std::cmp::Reverse;

use super::test_graphs::{plain_cells, plain_node, random_graph};
use super::*;

/// What happens from outside.
#[derive(Clone, Copy, Debug)]
enum Event {
    Submit,
    Cancel,
    GrowOutside,
    Close,
    Drain,
    ShutDown,
}

/// How often things happen, in percent.
struct Odds {
    deadline: u32,
    open: u32,
    fails: u32,
    grows: u32,
    cancels: u32,
    priorities: u8,
}

const QUIET: Odds = Odds {
    deadline: 0,
    open: 0,
    fails: 0,
    grows: 0,
    cancels: 0,
    priorities: 1,
};
const WILD: Odds = Odds {
    deadline: 20,
    open: 20,
    fails: 3,
    grows: 15,
    cancels: 20,
    priorities: 3,
};

fn percent(rng: &mut fastrand::Rng, odds: u32) -> bool {
    rng.u32(0..100) < odds
}

/// Adds some nodes that take of the newest ones, and of older ones.
fn add_nodes(rng: &mut fastrand::Rng, graph: &mut Graph, kinds: usize) {
    for _ in 0..rng.usize(1..4) {
        let nodes = graph.len();
        let near = nodes.saturating_sub(rng.usize(1..4));
        let from: Vec<usize> = (0..rng.usize(0..3))
            .map(|_| {
                if rng.u8(0..4) == 0 {
                    rng.usize(0..nodes)
                } else {
                    rng.usize(near..nodes)
                }
            })
            .collect();
        plain_node(graph, rng.usize(0..kinds), &from);
    }
}

/// Ready nodes that `worker` may take, of each cell, in the order in which they should be:
/// priorities, highest first, and, if `shortest`, how many nodes their requests have left, fewest
/// first.
fn eligible(
    simulated: &Simulated,
    worker: WorkerId,
    shortest: bool,
) -> Vec<Vec<(Reverse<u8>, u32)>> {
    let table = &simulated.scheduler.table();
    let mut all = vec![Vec::new(); simulated.sizes.len()];
    for (&key, known) in simulated
        .known
        .iter()
        .filter(|(_, known)| known.end.is_none())
    {
        for subgraph in table.ready_subgraphs(key).filter(|_| table.is_live(key)) {
            if table.pinned(subgraph).is_none_or(|pinned| pinned == worker) {
                let left = if shortest {
                    table.view(subgraph).request_left
                } else {
                    0
                };
                let rank = (Reverse(known.priority), left);
                let ready = std::iter::repeat_n(rank, table.ready(subgraph));
                all[table.cell(subgraph).index()].extend(ready);
            }
        }
    }
    all.iter_mut().for_each(|ranks| ranks.sort_unstable());
    all
}

/// Whether a ready subgraph of each cell has waited long enough to go by turn.
fn patient(simulated: &Simulated) -> Vec<bool> {
    let table = &simulated.scheduler.table();
    let mut all = vec![false; simulated.sizes.len()];
    for key in simulated.known.keys().filter(|key| table.is_live(**key)) {
        for subgraph in table.ready_subgraphs(*key) {
            let view = table.view(subgraph);
            all[view.cell.index()] |= view.waited >= 8;
        }
    }
    all
}

/// How many nodes the request of each subgraph with ready ones has left.
fn left(simulated: &Simulated) -> BTreeMap<SubgraphKey, u32> {
    let table = &simulated.scheduler.table();
    let live = simulated.known.keys().filter(|key| table.is_live(**key));
    let subgraphs = live.flat_map(|key| table.ready_subgraphs(*key));
    subgraphs.map(|s| (s, table.view(s).request_left)).collect()
}

struct Scenario {
    rng: fastrand::Rng,
    odds: Odds,
    kinds: usize,
    simulated: Simulated,
    keys: Vec<RequestKey>,
    open: Vec<RequestKey>,
    /// When each worker's first task is done, and how long its tasks take at most.
    until: Vec<Option<u64>>,
    slowness: Vec<u64>,
    setting: Setting,
}

impl Scenario {
    fn event(&mut self, event: Event) {
        let rng = &mut self.rng;
        match event {
            Event::Submit if !self.simulated.scheduler.is_draining() => {
                let graph = random_graph(rng, self.kinds, 14);
                let now = self.simulated.now;
                let deadline = percent(rng, self.odds.deadline).then(|| now + rng.u64(0..60));
                let open = percent(rng, self.odds.open);
                let priority = rng.u8(0..self.odds.priorities);
                let key = self.simulated.submit(graph, priority, deadline, open);
                self.keys.push(key);
                if open {
                    self.open.push(key);
                }
            }
            Event::Cancel if !self.keys.is_empty() => {
                let key = self.keys[rng.usize(0..self.keys.len())];
                self.simulated.cancel(key);
            }
            Event::GrowOutside if !self.open.is_empty() => {
                let key = self.open[rng.usize(0..self.open.len())];
                if self.simulated.is_live(key) {
                    let kinds = self.kinds;
                    self.simulated
                        .grow(key, |graph| add_nodes(rng, graph, kinds));
                }
            }
            Event::Close if !self.open.is_empty() => {
                let key = self.open.swap_remove(rng.usize(0..self.open.len()));
                self.simulated.close(key);
            }
            Event::Drain => self.simulated.scheduler.handle_drain(),
            Event::ShutDown => {
                let now = self.simulated.instant();
                self.simulated.scheduler.handle_shutdown(now);
                self.simulated.check();
            }
            _ => {}
        }
    }

    fn worker(&mut self, index: usize) {
        let worker = WorkerId(index);
        if self.until[index] == Some(self.simulated.now) {
            let fails = percent(&mut self.rng, self.odds.fails);
            // Of some tasks nobody knows how long they took.
            let took = self.rng.bool().then(|| {
                let most = 1 << self.rng.u32(0..30);
                Duration::from_micros(self.rng.u64(0..most))
            });
            let (rng, grows, kinds) = (&mut self.rng, self.odds.grows, self.kinds);
            self.simulated
                .done_after(worker, took, fails, |simulated, row| {
                    if percent(rng, grows) && simulated.known[&row.request].graph.len() < 40 {
                        simulated.grow(row.request, |graph| add_nodes(rng, graph, kinds));
                    }
                });
            self.until[index] = None;
        }
        // Mostly when it has nothing to do, sometimes before.
        let queued = self.simulated.queues[index].len();
        if queued == 0 || queued < 4 && self.rng.u8(0..10) == 0 {
            let now = self.simulated.instant();
            self.simulated.scheduler.handle_timeout(now);
            self.simulated.check();
            let shortest = self.setting.takes_shortest();
            let before = eligible(&self.simulated, worker, shortest);
            let left = left(&self.simulated);
            let patient = patient(&self.simulated);
            let tasks = self.simulated.poll(worker);
            if !self.setting.forms_groups() {
                // The first is of those that should be first, and as full as can be.
                let first = tasks.first();
                assert_eq!(
                    first.is_some(),
                    before.iter().any(|ready| !ready.is_empty())
                );
                if let Some(task) = first {
                    let rank = |row: &Row| {
                        let subgraph = self.simulated.scheduler.table().node_subgraph(*row);
                        let left = if shortest { left[&subgraph] } else { 0 };
                        let priority = self.simulated.known[&row.request].priority;
                        (Reverse(priority), left)
                    };
                    let mut got: Vec<_> = task.rows.iter().map(rank).collect();
                    got.sort_unstable();
                    let ready = &before[task.cell.index()];
                    let max = self.simulated.sizes[task.cell.index()].max;
                    assert_eq!(got.len(), ready.len().min(max));
                    // One row of a batch of up to eight may go by turn.
                    let by_turn = usize::from(patient[task.cell.index()] && ready.len() > max);
                    let first = &ready[..got.len() - by_turn];
                    let in_order = got.iter().filter({
                        let mut first = first.iter().peekable();
                        move |rank| first.next_if_eq(rank).is_some()
                    });
                    assert_eq!(in_order.count(), first.len());
                }
            }
        }
        if self.until[index].is_none() && !self.simulated.queues[index].is_empty() {
            self.until[index] = Some(self.simulated.now + self.rng.u64(1..=self.slowness[index]));
        }
    }

    fn run(&mut self, requests: usize) {
        let mut events: BTreeSet<(u64, usize)> = BTreeSet::new();
        let mut kinds_of = Vec::new();
        let within = self.rng.u64(1..200);
        let mut add = |rng: &mut fastrand::Rng, event, count: usize| {
            for _ in 0..count {
                events.insert((rng.u64(0..within), kinds_of.len()));
                kinds_of.push(event);
            }
        };
        let rng = &mut self.rng;
        add(rng, Event::Submit, requests);
        add(
            rng,
            Event::Cancel,
            requests * self.odds.cancels as usize / 100,
        );
        add(
            rng,
            Event::GrowOutside,
            requests * self.odds.open as usize / 50,
        );
        add(rng, Event::Close, requests * self.odds.open as usize / 100);
        if self.odds.cancels > 0 && rng.u8(0..5) == 0 {
            let last = *rng.choice(&[Event::Drain, Event::ShutDown]).expect("two");
            add(rng, last, 1);
        }
        let mut quiet = 0;
        loop {
            while let Some(&(time, index)) = events.first()
                && time <= self.simulated.now
            {
                events.pop_first();
                self.event(kinds_of[index]);
            }
            if events.is_empty() {
                while !self.open.is_empty() {
                    self.event(Event::Close);
                }
            }
            for index in 0..self.until.len() {
                self.worker(index);
            }
            if self.rng.bool() {
                self.simulated.evict();
            }
            if events.is_empty() && self.simulated.scheduler.counts().live() == 0 {
                break;
            }
            // With nothing to come and nothing running, something must start.
            let idle = events.is_empty() && self.until.iter().all(Option::is_none);
            quiet = if idle { quiet + 1 } else { 0 };
            assert!(
                quiet < 50,
                "{} starve",
                self.simulated.scheduler.counts().live()
            );
            self.simulated.now += 1;
        }
        // Rows of requests that ended may still run.
        for index in 0..self.until.len() {
            while !self.simulated.queues[index].is_empty() {
                self.simulated.done(WorkerId(index), false, |_, _| ());
            }
        }
        let scheduler = &self.simulated.scheduler;
        assert_eq!(scheduler.usage(), Usage::default());
        assert_eq!(scheduler.table().records(), 0, "all forgotten");
        // Where all entries are of ended requests, up to 64 are not worth purging.
        let queued = scheduler.queued();
        assert!(queued <= 64 * self.kinds, "{queued} entries");
        assert_eq!(scheduler.poll_timeout(), None);
    }
}

fn runs(setting: Setting, odds: Odds, seed: u64) -> Scenario {
    let mut rng = fastrand::Rng::with_seed(seed);
    let kinds = rng.usize(1..=4);
    let workers = rng.usize(1..=3);
    let sizes = random_sizes(&mut rng, kinds, 8);
    let policy = setting.build(workers);
    let at_once = rng.usize(1..=6);
    let slowness = (0..workers).map(|_| rng.u64(1..=9)).collect();
    let requests = rng.usize(1..60);
    let mut scenario = Scenario {
        rng,
        odds,
        kinds,
        simulated: Simulated::new(policy, plain_cells(kinds), &sizes, workers, at_once),
        keys: Vec::new(),
        open: Vec::new(),
        until: vec![None; workers],
        slowness,
        setting,
    };
    scenario.run(requests);
    scenario
}

pub(super) fn all_hold(setting: Setting) {
    for seed in 0..150 {
        let quiet = runs(setting, QUIET, seed);
        let counts = quiet.simulated.scheduler.counts();
        assert_eq!(counts.of(End::Completed), counts.submitted, "all complete");
    }
    let mut ended = [0; 5];
    for seed in 0..300 {
        let counts = runs(setting, WILD, 1000 + seed)
            .simulated
            .scheduler
            .counts();
        ended = std::array::from_fn(|at| ended[at] + counts.ended[at]);
    }
    assert!(
        ended.iter().all(|&count| count > 50),
        "{ended:?} are too few to say much"
    );
}

#[test]
fn every_kind() {
    for kind in policies() {
        all_hold(Setting::new(kind, 3));
    }
}
