//! Shares of models that wait for the same workers, and how long a step of one waits for the
//! others.

use super::test_graphs::{plain_cells, plain_chain};
use super::*;

/// A model of one cell, and its users.
#[derive(Clone, Copy, Debug)]
struct Load {
    weight: u32,
    /// Units of time that a batch takes, at most.
    took: u64,
    /// Batches take between 1 and that, as those of whole sequences do.
    is_uneven: bool,
    /// Users who submit a step when they have their answer.
    users: usize,
    /// Submits a step each so many units, too.
    every: Option<u64>,
}

impl Load {
    fn saturated(weight: u32, took: u64) -> Load {
        Load {
            weight,
            took,
            is_uneven: false,
            users: 160,
            every: None,
        }
    }

    /// The time of a batch.
    fn time(&self, rng: &mut fastrand::Rng) -> u64 {
        if self.is_uneven {
            rng.u64(1..=self.took)
        } else {
            self.took
        }
    }
}

/// Models with their users, and workers in a time of whole units.
struct Served {
    scheduler: Scheduler,
    loads: Vec<Load>,
    keys: Vec<ModelKey>,
    step: RequestGraph,
    start: Instant,
    now: u64,
    /// By worker: its tasks with their times, and when the first is done.
    workers: Vec<(VecDeque<(Task, u64)>, u64)>,
    rng: fastrand::Rng,
    /// Time that each model was given, of tasks that are done.
    time: Vec<u64>,
    /// The model of each batch that a worker got.
    given: Vec<usize>,
    /// When each request of `every` that has not ended was submitted, by model.
    waiting: BTreeMap<RequestKey, u64>,
    /// The longest time from the submission of a request of `every` to its answer, by model.
    longest: Vec<u64>,
}

const ROWS: usize = 8;

impl Served {
    fn new(kind: impl Into<Kind>, loads: &[Load], workers: usize, tasks_at_once: usize) -> Served {
        let policy = Setting::new(kind, ROWS).build(workers);
        let mut scheduler = Scheduler::new(policy, workers, tasks_at_once, Limits::default());
        let sizes = BatchSizes { min: 1, max: ROWS };
        let keys = loads.iter().map(|load| {
            let share = ModelShare {
                weight: NonZeroU32::new(load.weight).unwrap(),
                ..ModelShare::default()
            };
            scheduler.add_model(&costs(&[sizes]), share).unwrap()
        });
        let keys: Vec<ModelKey> = keys.collect();
        let mut served = Served {
            scheduler,
            loads: loads
                .iter()
                .map(|load| Load {
                    every: None,
                    ..*load
                })
                .collect(),
            keys,
            step: plain_chain(&[1]).unfold(&plain_cells(1)).unwrap(),
            start: Instant::now(),
            now: 0,
            workers: vec![(VecDeque::new(), 0); workers],
            rng: fastrand::Rng::with_seed(1),
            time: vec![0; loads.len()],
            given: Vec::new(),
            waiting: BTreeMap::new(),
            longest: vec![0; loads.len()],
        };
        // One batch of each, so that their times are known.
        for model in 0..loads.len() {
            let key = served.submit(model);
            served.waiting.insert(key, 0);
            while served.waiting.contains_key(&key) {
                served.go_on();
            }
        }
        served.now = 0;
        served.time.fill(0);
        served.longest.fill(0);
        served.given.clear();
        served.loads = loads.to_vec();
        for (model, load) in loads.iter().enumerate() {
            for _ in 0..load.users {
                served.submit(model);
            }
        }
        served
    }

    fn submit(&mut self, model: usize) -> RequestKey {
        let requirements = Requirements {
            model: self.keys[model],
            ..Requirements::default()
        };
        let now = self.start + Duration::from_millis(self.now);
        let accepted = self.scheduler.handle_submit(now, &self.step, requirements);
        accepted.unwrap()
    }

    fn model_of(&self, model: ModelKey) -> usize {
        self.keys.iter().position(|&key| key == model).unwrap()
    }

    /// The next unit of time.
    fn go_on(&mut self) {
        let now = self.start + Duration::from_millis(self.now);
        for worker in 0..self.workers.len() {
            let (tasks, until) = &mut self.workers[worker];
            if *until == self.now
                && let Some((task, took)) = tasks.pop_front()
            {
                // A model has one cell.
                self.time[task.cell.index()] += took;
                let took = Some(Duration::from_millis(took));
                self.scheduler.handle_done(now, task, took);
                if let Some((_, took)) = tasks.front() {
                    *until += took;
                }
            }
        }
        while let Some(ended) = self.scheduler.poll_ended() {
            let model = self.model_of(ended.model);
            match self.waiting.remove(&ended.request) {
                Some(at) => self.longest[model] = self.longest[model].max(self.now - at),
                None => drop(self.submit(model)),
            }
        }
        for model in 0..self.loads.len() {
            if self.loads[model]
                .every
                .is_some_and(|every| (self.now + 1).is_multiple_of(every))
            {
                let key = self.submit(model);
                self.waiting.insert(key, self.now);
            }
        }
        for worker in 0..self.workers.len() {
            if self.workers[worker].0.is_empty() {
                let mut tasks = Vec::new();
                self.scheduler.poll_tasks(now, WorkerId(worker), &mut tasks);
                self.given
                    .extend(tasks.iter().map(|task| task.cell.index()));
                let (loads, rng) = (&self.loads, &mut self.rng);
                let time = |task: Task| {
                    let time = loads[task.cell.index()].time(rng);
                    (task, time)
                };
                let (queue, until) = &mut self.workers[worker];
                queue.extend(tasks.into_iter().map(time));
                if let Some((_, took)) = queue.front() {
                    *until = self.now + took;
                }
            }
        }
        self.now += 1;
    }

    /// The given time of a model, divided by its weight.
    fn share(&self, model: usize) -> f64 {
        self.time[model] as f64 / f64::from(self.loads[model].weight)
    }

    /// A batch of a model, divided by its weight.
    fn batch(&self, model: usize) -> f64 {
        self.loads[model].took as f64 / f64::from(self.loads[model].weight)
    }
}

#[test]
fn saturated_models_get_time_by_weight_within_a_batch_of_each() {
    for kind in policies() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let models = rng.usize(2..=3);
            let loads: Vec<Load> = (0..models)
                .map(|_| Load {
                    is_uneven: rng.bool(),
                    ..Load::saturated(rng.u32(1..=5), rng.u64(1..=16))
                })
                .collect();
            let workers = rng.usize(1..=4);
            let mut served = Served::new(kind, &loads, workers, rng.usize(1..=2));
            for _ in 0..3000 {
                served.go_on();
                for (one, other) in (0..models).flat_map(|a| (0..a).map(move |b| (a, b))) {
                    let difference = (served.share(one) - served.share(other)).abs();
                    // At each worker a batch of either may be in flight.
                    let most = workers as f64 * (served.batch(one) + served.batch(other));
                    assert!(
                        difference <= most + 1e-6,
                        "{kind}, {seed}, {loads:?}, {workers}: {difference}"
                    );
                }
            }
            let all: u64 = served.time.iter().sum();
            assert!(all >= (3000 - 16) * workers as u64, "no worker is idle");
        }
    }
}

/// A step of one model, beside forty users of another, who come back when answered.
#[test]
fn a_step_of_a_model_passes_the_flood_of_another() {
    for kind in [PolicyKind::Cellular, PolicyKind::Shortest] {
        for (took, flood_took) in [(1, 1), (1, 7), (7, 7), (7, 1)] {
            let flood = Load {
                users: 40,
                ..Load::saturated(1, flood_took)
            };
            let step = Load {
                users: 0,
                every: Some(97),
                ..Load::saturated(1, took)
            };
            for (loads, one) in [([flood, step], 1), ([step, flood], 0)] {
                let mut served = Served::new(kind, &loads, 1, 1);
                (0..5000).for_each(|_| served.go_on());
                // After the batch in flight, and at most one more.
                let longest = served.longest[one];
                assert!(
                    longest <= 2 * flood_took + took,
                    "{kind}, {loads:?}: {longest}"
                );
                let waits = longest > took || flood_took == 1;
                assert!(waits, "for a batch in flight");
                // The loss of the flood is the time of the others.
                let other = 5000_u64.div_ceil(97) * took;
                assert!(served.time[1 - one] + other >= 5000 - flood_took - took);
            }
        }
    }
}

/// Times alone would let a model with long batches wait for a thousand short ones.
#[test]
fn a_model_with_long_batches_waits_for_a_bounded_number_of_short_ones() {
    for kind in policies() {
        for (weights, most) in [([1, 1], 33), ([1, 3], 97), ([5, 1], 33)] {
            let long = Load::saturated(weights[0], 1000);
            let short = Load::saturated(weights[1], 1);
            let mut served = Served::new(kind, &[long, short], 1, 1);
            (0..30_000).for_each(|_| served.go_on());
            let long: Vec<usize> = (served.given.iter().enumerate())
                .filter(|&(_, &model)| model == 0)
                .map(|(at, _)| at)
                .collect();
            let gaps = long.windows(2).map(|pair| pair[1] - pair[0]);
            assert_eq!(gaps.max(), Some(most), "{kind}, {weights:?}");
        }
    }
}

#[test]
fn a_model_saves_no_time_while_it_has_nothing_to_do() {
    for kind in policies() {
        let idle = Load {
            users: 0,
            ..Load::saturated(1, 1)
        };
        let mut served = Served::new(kind, &[Load::saturated(1, 1), idle], 1, 1);
        (0..1000).for_each(|_| served.go_on());
        for _ in 0..160 {
            served.submit(1);
        }
        let before = served.time[0];
        (0..100).for_each(|_| served.go_on());
        assert!(
            served.time[0] - before >= 48,
            "{kind}: {}",
            served.time[0] - before
        );
    }
}
