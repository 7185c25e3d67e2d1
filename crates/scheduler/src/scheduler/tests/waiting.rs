//! How long a ready node waits at most, whatever else there is to do.

use super::test_graphs::{complete_tree, plain_cells, plain_chain, random_graph};
use super::*;

const ORDERS: [Order; 2] = [Order::Arrival, Order::FewestLeft];

impl Simulated {
    /// Adds a model of cells with batches of these sizes.
    fn add_model(&mut self, sizes: &[BatchSizes], weight: u32) -> ModelKey {
        let share = ModelShare {
            weight: NonZeroU32::new(weight).expect("at least 1"),
            ..ModelShare::default()
        };
        self.sizes.extend(sizes);
        let added = self.scheduler.add_model(&costs(sizes), share);
        added.expect("a model")
    }
}

/// Forty users of one cell, each of whom comes back when answered: always a full batch.
#[test]
fn a_cell_with_full_batches_leaves_turns_to_another() {
    const USERS: usize = 40;
    for (full, other, tasks_at_once) in [(1, 0, 1), (0, 1, 1), (1, 0, 5), (0, 1, 5)] {
        for order in ORDERS {
            let sizes = [BatchSizes { min: 1, max: 32 }; 2];
            let policy = Box::new(Cellular::new(1, order));
            let mut simulated = Simulated::new(policy, plain_cells(2), &sizes, 1, tasks_at_once);
            let step = |cell: usize| plain_chain(if cell == 0 { &[1] } else { &[0, 1] });
            let mut users = Vec::new();
            let mut key = None;
            let mut ran = 0;
            simulated.run(1, |simulated, now| {
                users.retain(|&user| simulated.is_live(user));
                while users.len() < USERS {
                    users.push(simulated.submit(step(full), 255, None, false));
                }
                if now == 20 {
                    ran = simulated.given.len();
                    key = Some(simulated.submit(step(other), 0, None, false));
                }
                assert!(now < 200, "{full} stops {other}, {order:?}");
                let goes_on = key.is_none_or(|key| simulated.is_live(key));
                if !goes_on {
                    users.drain(..).for_each(|user| simulated.cancel(user));
                }
                goes_on
            });
            let waited = simulated.given[ran..].iter();
            let waited = waited.take_while(|given| given.task.cell.index() == full);
            assert!(waited.count() <= 4, "{full} stops {other}, {order:?}");
        }
    }
}

/// What turns promise: a row of the first ready subgraph of a request within so many batches of its
/// cell, where `requests` have ready nodes in it.
fn bound(requests: usize, max: usize) -> usize {
    8 + (8 * requests).div_ceil(max)
}

#[test]
fn a_small_tree_passes_the_leaves_of_a_large_one() {
    for order in ORDERS {
        let sizes = [BatchSizes { min: 1, max: 32 }; 2];
        let policy = Box::new(Cellular::new(1, order));
        let mut simulated = Simulated::new(policy, plain_cells(2), &sizes, 1, 1);
        // The larger one goes first in either order: of the fewest left, by its priority.
        let large = simulated.submit(complete_tree(5000), 1, None, false);
        let small = simulated.submit(complete_tree(16), 0, None, false);
        let worker = WorkerId(0);
        while simulated.is_live(small) {
            simulated.poll(worker);
            simulated.done(worker, false, |_, _| ());
        }
        assert!(simulated.is_live(large));
        let batches = simulated.given.len();
        assert!(batches <= 40, "{batches} batches, {order:?}");
    }
}

/// Forty users of the highest priority, each of whom comes back when answered.
#[test]
fn a_flood_of_the_highest_priority_leaves_turns_to_the_lowest() {
    const USERS: usize = 40;
    for (order, max) in ORDERS
        .into_iter()
        .flat_map(|order| [(order, 1), (order, 6), (order, 32)])
    {
        let sizes = [BatchSizes { min: 1, max }];
        let policy = Box::new(Cellular::new(1, order));
        let mut simulated = Simulated::new(policy, plain_cells(1), &sizes, 1, 1);
        let mut users = Vec::new();
        let low = simulated.submit(plain_chain(&[20]), 0, None, false);
        let (worker, mut waited) = (WorkerId(0), 0);
        while simulated.is_live(low) {
            users.retain(|&user| simulated.is_live(user));
            while users.len() < USERS {
                users.push(simulated.submit(plain_chain(&[1]), 255, None, false));
            }
            let tasks = simulated.poll(worker);
            let runs = tasks[0].rows.iter().any(|row| row.request == low);
            waited = if runs { 0 } else { waited + 1 };
            assert!(waited < bound(USERS + 1, max), "{order:?}, {max} rows");
            simulated.done(worker, false, |_, _| ());
        }
    }
}

/// Random arrivals, priorities, batches, workers, and models with weights: the batches of a cell
/// that pass a request whose first ready subgraph they could take, against the bound, and the
/// batches of a worker that pass a model. The former must come near, or little was tested.
#[test]
fn no_request_is_passed_over_without_bound() {
    let (mut longest, mut models_passed) = (0, 0);
    for seed in 0..120 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (kinds, workers) = (rng.usize(1..=3), rng.usize(1..=4));
        let models = if seed % 2 == 0 { 1 } else { rng.usize(2..=3) };
        let sizes: Vec<_> = (0..kinds * models)
            .map(|_| BatchSizes {
                min: 1,
                max: rng.usize(1..=20),
            })
            .collect();
        let order = ORDERS[rng.usize(0..2)];
        let policy = Box::new(Cellular::new(workers, order));
        let at_once = rng.usize(1..=2);
        let cells = plain_cells(kinds);
        let mut simulated = Simulated::new(policy, cells, &sizes[..kinds], workers, at_once);
        let mut weights = vec![1];
        let mut keys = vec![ModelKey::default()];
        for sizes in sizes.chunks(kinds).skip(1) {
            weights.push(rng.u32(1..=4));
            keys.push(simulated.add_model(sizes, *weights.last().unwrap()));
        }
        // By worker and model: the batches of others while it had rows.
        let mut skips = vec![vec![0; models]; workers];
        let mut to_come = 150;
        // By subgraph: the batches that passed it, the most requests beside it.
        let mut passed: BTreeMap<SubgraphKey, (usize, usize)> = BTreeMap::new();
        while to_come > 0 || simulated.scheduler.counts().live() > 0 {
            for _ in 0..rng.usize(0..5).min(to_come) {
                to_come -= 1;
                let graph = match rng.u8(0..3) {
                    0 => random_graph(&mut rng, kinds, 14),
                    1 => plain_chain(&vec![rng.usize(1..9); kinds]),
                    _ => complete_tree(if kinds > 1 { rng.usize(1..80) } else { 1 }),
                };
                let priority = rng.u8(..);
                let model = keys[rng.usize(0..models)];
                simulated.submit_to(model, graph, priority, None, false);
            }
            let worker = WorkerId(rng.usize(0..workers));
            if simulated.queues[worker.0].is_empty() {
                let table = &simulated.scheduler.table;
                let live = simulated.known.keys().filter(|key| table.is_live(**key));
                let cells = live.flat_map(|&key| table.cells(key).map(move |cell| (key, cell)));
                let heads = cells.filter_map(|(key, cell)| {
                    let head = table.ready_subgraphs_of(key, cell).next()?;
                    Some((head, table.view(head)))
                });
                let heads: Vec<_> = heads.collect();
                let has_rows = |model: usize| {
                    let may_take = |view: &SubgraphView| {
                        view.cell.index() / kinds == model
                            && view.pinned.is_none_or(|pinned| pinned == worker)
                    };
                    heads.iter().any(|(_, view)| may_take(view))
                };
                let have_rows: Vec<bool> = (0..models).map(has_rows).collect();
                let tasks = simulated.poll(worker);
                if let Some(first) = tasks.first() {
                    let skips = &mut skips[worker.0];
                    for (model, skips) in skips.iter_mut().enumerate() {
                        let is_passed = model != first.cell.index() / kinds && have_rows[model];
                        *skips = if is_passed { *skips + tasks.len() } else { 0 };
                        let others = weights.iter().sum::<u32>() - weights[model];
                        let most =
                            32 * others.div_ceil(weights[model]).max(1) as usize + models - 1;
                        assert!(*skips <= most, "seed {seed}: {skips}");
                        models_passed = models_passed.max(*skips);
                    }
                }
                passed.retain(|key, _| heads.iter().any(|(head, _)| head == key));
                for task in &tasks {
                    let of_cell = || heads.iter().filter(|(_, view)| view.cell == task.cell);
                    let beside = of_cell().count();
                    for (head, view) in of_cell() {
                        let table = &simulated.scheduler.table;
                        let mut rows = task.rows.iter().map(|row| table.node_subgraph(*row));
                        if rows.any(|subgraph| subgraph == *head)
                            || view.pinned.is_some_and(|pinned| pinned != worker)
                        {
                            passed.remove(head);
                            continue;
                        }
                        let (batches, most) = passed.entry(*head).or_default();
                        (*batches, *most) = (*batches + 1, beside.max(*most));
                        // Requests that get ready in this round are beside it, too.
                        let bound = bound(*most + 1, sizes[task.cell.index()].max);
                        assert!(
                            *batches <= bound + at_once,
                            "seed {seed}: {batches}, {bound}"
                        );
                        longest = longest.max(*batches);
                    }
                }
            } else {
                // Batches of some cells are much longer.
                let cell = simulated.queues[worker.0][0].cell.index();
                let took = Duration::from_micros(1 << (4 * (cell % 4)));
                simulated.done_after(worker, Some(took), false, |_, _| ());
            }
            if rng.bool() {
                simulated.evict();
            }
        }
    }
    assert!(longest > 30, "{longest} batches are too few to say much");
    assert!(
        models_passed > 20,
        "{models_passed} batches are too few to say much"
    );
}
