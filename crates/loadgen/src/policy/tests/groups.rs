//! Graph batching against what is known of it in closed form.

use super::figure5::{self, LENGTHS, timeline};
use super::test_graphs::{complete_tree, plain_cells, plain_chain, plain_node};
use super::*;

const MAX: usize = 8;

fn sizes(kinds: usize) -> Vec<BatchSizes> {
    vec![BatchSizes { min: 1, max: MAX }; kinds]
}

/// A task: its cell, `(request, node)` of its rows, and padding.
type Ran = (usize, Vec<(usize, usize)>, usize);

#[derive(Debug, PartialEq)]
struct Outcome {
    tasks: Vec<Ran>,
    /// When each request ended, tasks taking one unit.
    ends: Vec<u64>,
}

/// Runs graphs that are all there at time 0, on one worker: the same whether it gets one task at a
/// time or several.
fn run(setting: Setting, kinds: usize, graphs: Vec<(Graph, u8)>) -> Outcome {
    let one = run_at_once(setting, kinds, graphs.clone(), 1);
    for tasks_at_once in [2, 5] {
        let several = run_at_once(setting, kinds, graphs.clone(), tasks_at_once);
        assert_eq!(one, several, "{tasks_at_once} tasks at once");
    }
    one
}

fn run_at_once(setting: Setting, kinds: usize, graphs: Vec<(Graph, u8)>, tasks: usize) -> Outcome {
    let policy = setting.build(1);
    let mut simulated = Simulated::new(policy, plain_cells(kinds), &sizes(kinds), 1, tasks);
    let graphs = graphs.into_iter();
    let keys: Vec<RequestKey> = graphs
        .map(|(graph, priority)| simulated.submit(graph, priority, None, false))
        .collect();
    simulated.run(1, |_, _| false);
    let number = |key| keys.iter().position(|&k| k == key).expect("submitted");
    let task = |given: &Given| {
        let rows = given.task.rows.iter();
        let rows = rows.map(|row| (number(row.request), row.node.index()));
        (given.task.cell.index(), rows.collect(), given.task.padding)
    };
    Outcome {
        tasks: simulated.given.iter().map(task).collect(),
        ends: keys
            .iter()
            .map(|key| simulated.known[key].end.expect("ended").0)
            .collect(),
    }
}

/// Requests `0..lengths.len()` in groups, each padded to `bound` of its members: tasks and ends.
fn padded(groups: &[Vec<usize>], lengths: &[usize], bound: impl Fn(&[usize]) -> usize) -> Outcome {
    let (mut tasks, mut ends) = (Vec::new(), vec![0; lengths.len()]);
    for group in groups {
        let steps = bound(group);
        for step in 0..steps {
            let rows = group.iter().filter(|&&n| lengths[n] > step);
            let rows: Vec<_> = rows.map(|&n| (n, step)).collect();
            let padding = group.len() - rows.len();
            tasks.push((0, rows, padding));
        }
        for &n in group {
            ends[n] = tasks.len() as u64;
        }
    }
    Outcome { tasks, ends }
}

fn longest(lengths: &[usize]) -> impl Fn(&[usize]) -> usize {
    |group| group.iter().map(|&n| lengths[n]).max().unwrap_or(0)
}

#[test]
fn padding_wastes_what_the_longest_has_more() {
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..100 {
        let lengths: Vec<usize> = (0..rng.usize(1..40)).map(|_| rng.usize(1..30)).collect();
        let batch = rng.usize(1..12);
        let setting = Setting::new(ComparedPolicy::Padding, batch);
        let got = run(
            setting,
            1,
            lengths.iter().map(|&n| (plain_chain(&[n]), 0)).collect(),
        );
        let all: Vec<usize> = (0..lengths.len()).collect();
        let groups: Vec<Vec<usize>> = all.chunks(batch.min(MAX)).map(<[_]>::to_vec).collect();
        let waste = groups.iter().map(|group| {
            let sum: usize = group.iter().map(|&n| lengths[n]).sum();
            group.len() * longest(&lengths)(group) - sum
        });
        let padding: usize = got.tasks.iter().map(|task| task.2).sum();
        assert_eq!(padding, waste.sum::<usize>());
        let expected = padded(&groups, &lengths, longest(&lengths));
        assert_eq!((got.tasks, got.ends), (expected.tasks, expected.ends));
    }
}

#[test]
fn padding_runs_the_longest_encoder_and_then_the_longest_decoder() {
    let mut rng = fastrand::Rng::with_seed(8);
    for _ in 0..50 {
        let pairs: Vec<[usize; 2]> = (0..6).map(|_| [rng.usize(1..9), rng.usize(1..9)]).collect();
        let setting = Setting::new(ComparedPolicy::Padding, 6);
        let got = run(
            setting,
            2,
            pairs.iter().map(|pair| (plain_chain(pair), 0)).collect(),
        );
        let longest = |cell: usize| pairs.iter().map(|pair| pair[cell]).max().expect("six");
        let steps = [longest(0), longest(1)];
        assert_eq!(got.tasks.len(), steps[0] + steps[1]);
        for (index, (cell, rows, padding)) in got.tasks.iter().enumerate() {
            let (expected, step) = match index.checked_sub(steps[0]) {
                None => (0, index),
                Some(step) => (1, step),
            };
            let members = (0..6).filter(|&n| pairs[n][expected] > step);
            let expected_rows: Vec<_> = members
                .map(|n| (n, step + expected * pairs[n][0]))
                .collect();
            let mut rows = rows.clone();
            rows.sort_unstable();
            assert_eq!((*cell, &rows), (expected, &expected_rows));
            assert_eq!(*padding, 6 - rows.len());
        }
        assert!(got.ends.iter().all(|&end| end == got.tasks.len() as u64));
    }
}

/// Buckets take turns; each gives its oldest.
fn bucketed(lengths: &[usize], batch: usize, width: usize) -> Vec<Vec<usize>> {
    let last = lengths.iter().max().expect("some");
    let mut buckets: Vec<Vec<usize>> = (0..*last)
        .map(|i| {
            let inside = |&n: &usize| lengths[n] > i * width && lengths[n] <= (i + 1) * width;
            (0..lengths.len()).filter(inside).collect()
        })
        .collect();
    let mut groups = Vec::new();
    while buckets.iter().any(|bucket| !bucket.is_empty()) {
        for bucket in buckets.iter_mut().filter(|bucket| !bucket.is_empty()) {
            let rest = bucket.split_off(batch.min(bucket.len()));
            groups.push(std::mem::replace(bucket, rest));
        }
    }
    groups
}

#[test]
fn buckets_of_similar_lengths_take_turns() {
    let mut rng = fastrand::Rng::with_seed(9);
    for _ in 0..100 {
        let lengths: Vec<usize> = (0..rng.usize(1..60)).map(|_| rng.usize(1..50)).collect();
        let (batch, width) = (rng.usize(1..=MAX), rng.usize(1..=12));
        let groups = bucketed(&lengths, batch, width);
        let graphs = || lengths.iter().map(|&n| (plain_chain(&[n]), 0)).collect();
        let got = run(Setting::bucketing(batch, width), 1, graphs());
        let expected = padded(&groups, &lengths, longest(&lengths));
        assert_eq!((got.tasks, got.ends), (expected.tasks, expected.ends));
    }
}

/// A binary tree whose shape is random; its nodes' heights.
fn random_tree(rng: &mut fastrand::Rng, leaves: usize) -> (Graph, Vec<usize>) {
    let (mut graph, mut heights) = (Graph::new(), Vec::new());
    let mut roots: Vec<usize> = Vec::new();
    for _ in 0..leaves {
        roots.push(plain_node(&mut graph, 0, &[]).index());
        heights.push(0);
    }
    while roots.len() > 1 {
        let left = roots.swap_remove(rng.usize(0..roots.len()));
        let right = roots.swap_remove(rng.usize(0..roots.len()));
        roots.push(plain_node(&mut graph, 1, &[left, right]).index());
        heights.push(1 + heights[left].max(heights[right]));
    }
    (graph, heights)
}

#[test]
fn merging_runs_level_by_level_without_padding() {
    let mut rng = fastrand::Rng::with_seed(10);
    for _ in 0..100 {
        let count = rng.usize(1..20);
        let trees: Vec<_> = (0..count)
            .map(|_| {
                let leaves = rng.usize(1..14);
                random_tree(&mut rng, leaves)
            })
            .collect();
        let batch = rng.usize(1..20);
        let setting = Setting::new(ComparedPolicy::Merge, batch);
        let got = run(
            setting,
            2,
            trees.iter().map(|(graph, _)| (graph.clone(), 0)).collect(),
        );
        let mut tasks = got.tasks.iter();
        for (group, members) in trees.chunks(batch).enumerate() {
            let highest = members
                .iter()
                .flat_map(|tree| &tree.1)
                .max()
                .expect("a leaf");
            for level in 0..=*highest {
                let mut expected = BTreeSet::new();
                for (index, (_, heights)) in members.iter().enumerate() {
                    let nodes = (0..heights.len()).filter(|&node| heights[node] == level);
                    expected.extend(nodes.map(|node| (group * batch + index, node)));
                }
                // As few tasks as can be, all but the last of them full.
                let mut rows = BTreeSet::new();
                while rows.len() < expected.len() {
                    let full = MAX.min(expected.len() - rows.len());
                    let (cell, task, padding) = tasks.next().expect("a task more");
                    assert_eq!((*cell, task.len(), *padding), (level.min(1), full, 0));
                    rows.extend(task.iter().copied());
                }
                assert_eq!(rows, expected);
            }
            let done = (got.tasks.len() - tasks.len()) as u64;
            let ends = &got.ends[group * batch..][..members.len()];
            assert!(ends.iter().all(|&end| end == done), "returned together");
        }
        assert_eq!(tasks.len(), 0);
    }
}

#[test]
fn ideal_runs_node_after_node_of_identical_trees() {
    let graphs = (0..2 * MAX).map(|_| (complete_tree(16), 0)).collect();
    let got = run(Setting::new(ComparedPolicy::Ideal, 64), 2, graphs);
    assert_eq!(got.tasks.len(), 2 * 31);
    for (group, tasks) in got.tasks.chunks(31).enumerate() {
        let mut nodes = BTreeSet::new();
        for (_, rows, padding) in tasks {
            let node = rows[0].1;
            let members = group * MAX..(group + 1) * MAX;
            assert_eq!(*rows, members.map(|n| (n, node)).collect::<Vec<_>>());
            assert_eq!(*padding, 0);
            nodes.insert(node);
        }
        assert_eq!(nodes.len(), 31);
    }
}

#[test]
fn ideal_makes_groups_of_one_graph_each() {
    // By length; requests are not reordered.
    let lengths = [3, 3, 5, 5, 5, 3, 4, 4];
    let got = run(
        Setting::new(ComparedPolicy::Ideal, 2),
        1,
        lengths.iter().map(|&n| (plain_chain(&[n]), 0)).collect(),
    );
    let groups = [vec![0, 1], vec![2, 3], vec![4], vec![5], vec![6, 7]];
    let expected = padded(&groups, &lengths, longest(&lengths));
    assert_eq!((got.tasks, got.ends), (expected.tasks, expected.ends));
    // As many nodes of the same cells, but other edges.
    let mut rng = fastrand::Rng::with_seed(11);
    let shapes: Vec<Graph> = (0..3).map(|_| random_tree(&mut rng, 6).0).collect();
    let graphs: Vec<_> = (0..40)
        .map(|_| (shapes[rng.usize(0..3)].clone(), 0))
        .collect();
    let differ = graphs.windows(2).filter(|two| two[0] != two[1]).count();
    assert!((5..35).contains(&differ), "{differ}");
    let got = run(Setting::new(ComparedPolicy::Ideal, 4), 2, graphs.clone());
    let shared = got.tasks.iter().filter(|task| task.1.len() > 1).count();
    assert!(shared > 0, "some are identical");
    for (_, rows, padding) in got.tasks {
        assert!(rows.iter().all(|row| row.1 == rows[0].1), "{rows:?}");
        assert!(rows.iter().all(|row| graphs[row.0] == graphs[rows[0].0]));
        assert_eq!(padding, 0);
    }
}

#[test]
fn requests_of_higher_priority_are_in_an_earlier_group() {
    let priorities = [0, 2, 1, 2, 0, 2, 1, 2];
    for setting in [
        Setting::new(ComparedPolicy::Padding, 4),
        Setting::bucketing(4, 10),
        Setting::new(ComparedPolicy::Merge, 4),
        Setting::new(ComparedPolicy::Ideal, 4),
    ] {
        let graphs = priorities.iter().map(|&p| (plain_chain(&[3]), p)).collect();
        let got = run(setting, 1, graphs);
        assert_eq!(got.ends, [6, 3, 6, 3, 6, 3, 6, 3], "{setting:?}");
    }
}

/// A scheduler with one worker that runs one task at a time.
fn one_at_a_time(setting: Setting) -> Simulated {
    let policy = setting.build(1);
    Simulated::new(policy, plain_cells(1), &sizes(1), 1, 1)
}

const WORKER: WorkerId = WorkerId(0);

fn step(simulated: &mut Simulated) -> Task {
    let tasks = simulated.poll(WORKER);
    simulated.done(WORKER, false, |_, _| ());
    tasks.into_iter().next().expect("a task")
}

#[test]
fn a_member_that_ends_otherwise_is_padded_and_the_others_go_on() {
    let mut simulated = one_at_a_time(Setting::new(ComparedPolicy::Padding, 4));
    let keys: Vec<_> = [2, 3, 6, 4]
        .map(|n| simulated.submit(plain_chain(&[n]), 0, (n == 4).then_some(2), false))
        .into();
    let next = simulated.submit(plain_chain(&[1]), 0, None, false);
    assert_eq!(step(&mut simulated).padding, 0);
    // The longest goes: the group ends with the next longest.
    simulated.cancel(keys[2]);
    let second = step(&mut simulated);
    assert_eq!((second.rows.len(), second.padding), (3, 1));
    simulated.now = 2;
    let third = step(&mut simulated);
    assert_eq!(simulated.known[&keys[3]].end, Some((2, End::Late)));
    let rows: Vec<_> = third.rows.iter().map(|row| row.request).collect();
    assert_eq!((rows, third.padding), (vec![keys[1]], 3));
    let completed = Some((2, End::Completed));
    assert_eq!(
        [0, 1].map(|n| simulated.known[&keys[n]].end),
        [completed; 2]
    );
    assert_eq!(step(&mut simulated).rows[0].request, next, "the next group");
}

#[test]
fn a_member_that_is_done_waits_and_may_be_cancelled_or_late() {
    let mut simulated = one_at_a_time(Setting::new(ComparedPolicy::Merge, 4));
    let [one, two, three, four] = [1, 1, 1, 3].map(|n| {
        let deadline = (n == 1).then_some(5);
        simulated.submit(plain_chain(&[n]), 0, deadline, false)
    });
    step(&mut simulated);
    assert!(simulated.is_live(one), "held");
    simulated.cancel(two);
    simulated.now = 5;
    step(&mut simulated);
    assert_eq!(simulated.known[&one].end, Some((5, End::Late)));
    assert_eq!(simulated.known[&two].end, Some((0, End::Cancelled)));
    assert_eq!(simulated.known[&three].end, Some((5, End::Late)));
    assert!(simulated.is_live(four));
    step(&mut simulated);
    assert_eq!(simulated.known[&four].end, Some((5, End::Completed)));
}

#[test]
fn those_held_are_returned_when_the_last_that_runs_is_cancelled() {
    for setting in [
        Setting::new(ComparedPolicy::Padding, 4),
        Setting::new(ComparedPolicy::Merge, 4),
    ] {
        let mut simulated = one_at_a_time(setting);
        let [one, two] = [1, 3].map(|n| simulated.submit(plain_chain(&[n]), 0, None, false));
        step(&mut simulated);
        assert!(simulated.is_live(one), "held");
        simulated.cancel(two);
        assert_eq!(simulated.known[&one].end, Some((0, End::Completed)));
    }
}

#[test]
fn a_worker_that_is_idle_does_not_wait_for_a_group_to_fill() {
    let mut simulated = one_at_a_time(Setting::new(ComparedPolicy::Padding, 4));
    simulated.submit(plain_chain(&[2]), 0, None, false);
    assert_eq!(step(&mut simulated).rows.len(), 1);
    // Nobody joins what runs.
    simulated.submit(plain_chain(&[2]), 0, None, false);
    simulated.submit(plain_chain(&[2]), 0, None, false);
    assert_eq!(step(&mut simulated).rows.len(), 1);
    assert_eq!(step(&mut simulated).rows.len(), 2);
}

#[test]
fn a_group_does_not_wait_for_the_next_input_of_a_stream() {
    for setting in [
        Setting::new(ComparedPolicy::Padding, 4),
        Setting::new(ComparedPolicy::Merge, 4),
    ] {
        let mut simulated = one_at_a_time(setting);
        let stream = simulated.submit(plain_chain(&[1]), 0, None, true);
        let other = simulated.submit(plain_chain(&[2]), 0, None, false);
        assert_eq!(step(&mut simulated).rows.len(), 2);
        // In time for the same group.
        simulated.grow(stream, |graph| {
            plain_node(graph, 0, &[0]);
        });
        assert_eq!(step(&mut simulated).rows.len(), 2);
        assert!(!simulated.is_live(other), "returned without the stream");
        let next = simulated.submit(plain_chain(&[1]), 0, None, false);
        assert_eq!(step(&mut simulated).rows[0].request, next);
        simulated.grow(stream, |graph| {
            plain_node(graph, 0, &[1]);
        });
        assert_eq!(step(&mut simulated).rows[0].request, stream);
        simulated.close(stream);
        assert_eq!(simulated.known[&stream].end, Some((0, End::Completed)));
        assert_eq!(simulated.scheduler.queued(), 0);
    }
}

#[test]
fn a_stream_goes_on_where_its_states_are() {
    for setting in [
        Setting::new(ComparedPolicy::Padding, 4),
        Setting::new(ComparedPolicy::Merge, 4),
    ] {
        let policy = setting.build(2);
        let mut simulated = Simulated::new(policy, plain_cells(1), &sizes(1), 2, 1);
        let stream = simulated.submit(plain_chain(&[1]), 0, None, true);
        step(&mut simulated);
        simulated.grow(stream, |graph| {
            plain_node(graph, 0, &[0]);
        });
        let other = WorkerId(1);
        assert!(
            simulated.poll(other).is_empty(),
            "not before they are put away"
        );
        let behind = simulated.submit(plain_chain(&[1]), 0, None, false);
        let tasks = simulated.poll(other);
        let requests: Vec<_> = tasks[0].rows.iter().map(|row| row.request).collect();
        assert_eq!(requests, [behind], "others are not held up");
        assert_eq!(step(&mut simulated).rows[0].request, stream);
    }
}

#[test]
fn padding_runs_figure_5_of_batchmaker_as_the_paper_shows() {
    for tasks_at_once in [1, 5] {
        let policy = Setting::new(ComparedPolicy::Padding, 4).build(1);
        let (tasks, ends) = timeline(policy, 1, tasks_at_once);
        // Rows of requests that have no cell left are run as padding.
        let still_in = |first: usize, step: usize| -> Vec<usize> {
            let members = first..first + 4;
            members.filter(|n| LENGTHS[n - 1] > step).collect()
        };
        let groups = (0..5)
            .map(|step| (1, step))
            .chain((0..7).map(|step| (5, step)));
        let expected: Vec<figure5::Ran> = groups
            .enumerate()
            .map(|(start, (first, step))| {
                let requests = still_in(first, step);
                let padding = 4 - requests.len();
                (10 * start as u64, requests, padding)
            })
            .collect();
        assert_eq!(tasks, expected);
        assert_eq!(ends, [50, 50, 50, 50, 120, 120, 120, 120]);
    }
}

#[test]
fn queues_do_not_grow_with_requests_that_come_and_go() {
    let unfolded = plain_chain(&[2]).unfold(&plain_cells(1)).unwrap();
    let now = Instant::now();
    let policy = Setting::bucketing(4, 1).build(1);
    let mut scheduler = scheduler_of(policy, &sizes(1), 1, 5, Limits::default());
    let submit = |scheduler: &mut Scheduler| {
        let accepted = scheduler.handle_submit(now, &unfolded, Requirements::default());
        accepted.unwrap()
    };
    // One that is running all the while, and some that wait.
    submit(&mut scheduler);
    let mut tasks = Vec::new();
    scheduler.poll_tasks(now, WORKER, &mut tasks);
    for _ in 0..10 {
        submit(&mut scheduler);
    }
    for _ in 0..1_000_000 {
        let key = submit(&mut scheduler);
        scheduler.handle_cancel(now, key);
        assert_eq!(scheduler.poll_ended().map(|e| e.end), Some(End::Cancelled));
        let queued = scheduler.queued();
        assert!((10..100).contains(&queued), "{queued} entries");
    }
    while scheduler.counts().live() > 0 {
        for task in tasks.drain(..) {
            scheduler.handle_done(now, task, None);
        }
        scheduler.poll_tasks(now, WORKER, &mut tasks);
    }
    assert_eq!(scheduler.counts().of(End::Completed), 11);
    assert_eq!(scheduler.queued(), 0);
    assert_eq!(scheduler.usage(), Usage::default());
}

#[test]
fn random_arrivals_growths_and_ends_in_groups_of_other_sizes() {
    for setting in [
        Setting::new(ComparedPolicy::Padding, 5),
        Setting::bucketing(4, 3),
        Setting::new(ComparedPolicy::Merge, 6),
        Setting::new(ComparedPolicy::Ideal, 4),
    ] {
        properties::all_hold(setting);
    }
}
