//! What ends is forgotten, wherever it stands.

use super::test_graphs::{plain_cells, plain_chain, plain_node};
use super::*;

const SIZES: [BatchSizes; 1] = [BatchSizes { min: 1, max: 4 }];

fn a_million_come_and_go(policy: Box<dyn Policy>) {
    let cells = plain_cells(1);
    let unfolded = plain_chain(&[2]).unfold(&cells).expect("a chain");
    let now = Instant::now();
    let mut scheduler = scheduler_of(policy, &SIZES, 1, 5, Limits::default());
    let submit = |scheduler: &mut Scheduler| {
        let deadline = Some(now + Duration::from_secs(1));
        let requirements = Requirements {
            deadline,
            ..Requirements::default()
        };
        scheduler
            .handle_submit(now, &unfolded, requirements)
            .expect("room")
    };
    // One that is running all the while, and some that wait.
    submit(&mut scheduler);
    let mut tasks = Vec::new();
    scheduler.poll_tasks(now, WorkerId(0), &mut tasks);
    assert!(!tasks.is_empty());
    for _ in 0..10 {
        submit(&mut scheduler);
    }
    let (mut queued, mut here) = (0, 0);
    for _ in 0..1_000_000 {
        let key = submit(&mut scheduler);
        scheduler.handle_cancel(now, key);
        assert_eq!(scheduler.poll_ended().map(|e| e.end), Some(End::Cancelled));
        queued = queued.max(scheduler.policy.queued());
        here = here.max(scheduler.table.keys().count());
    }
    assert!((10..100).contains(&queued), "{queued} entries");
    assert_eq!(here, 11, "requests in the table");
    assert_eq!(scheduler.deadlines.len(), 11);
    // Those that are left are found.
    while scheduler.counts().live() > 0 {
        for task in tasks.drain(..) {
            scheduler.handle_done(now, task, None);
        }
        scheduler.poll_tasks(now, WorkerId(0), &mut tasks);
        assert!(!tasks.is_empty() || scheduler.counts().live() == 0);
    }
    assert_eq!(scheduler.counts().of(End::Completed), 11);
    assert_eq!(scheduler.table.keys().count(), 0);
    assert_eq!(scheduler.policy.queued(), 0);
    assert!(scheduler.deadlines.is_empty() && scheduler.table.idle.is_empty());
    assert!(
        scheduler.spare.len() <= 6,
        "{} spare",
        scheduler.spare.len()
    );
}

#[test]
fn cellular_queues_do_not_grow_with_requests_that_come_and_go() {
    for order in [Order::Arrival, Order::FewestLeft] {
        a_million_come_and_go(Box::new(Cellular::new(1, order)));
    }
}

#[test]
fn cancelling_all_that_wait_purges_their_entries() {
    for order in [Order::Arrival, Order::FewestLeft] {
        cancelling_all_purges(order);
    }
}

fn cancelling_all_purges(order: Order) {
    let cells = plain_cells(1);
    let chains = (1..40).map(|nodes| plain_chain(&[nodes]).unfold(&cells).expect("a chain"));
    let chains: Vec<_> = chains.collect();
    let now = Instant::now();
    let mut rng = fastrand::Rng::with_seed(5);
    let policy = Box::new(Cellular::new(1, order));
    let mut scheduler = scheduler_of(policy, &SIZES, 1, 5, Limits::default());
    let mut keys: Vec<RequestKey> = (0..5000)
        .map(|at| {
            let priority = (at % 3) as u8;
            let requirements = Requirements {
                priority,
                ..Requirements::default()
            };
            let chain = &chains[at % chains.len()];
            scheduler
                .handle_submit(now, chain, requirements)
                .expect("room")
        })
        .collect();
    rng.shuffle(&mut keys);
    for (left, key) in (0..keys.len()).rev().zip(&keys) {
        scheduler.handle_cancel(now, *key);
        let queued = scheduler.policy.queued();
        assert!(
            queued <= 2 * left + 100,
            "{queued} entries for {left} requests"
        );
        assert_eq!(scheduler.table.keys().count(), left);
    }
}

#[test]
fn what_is_refused_leaves_nothing() {
    let cells = plain_cells(1);
    let unfolded = plain_chain(&[2]).unfold(&cells).expect("a chain");
    let now = Instant::now();
    let limits = Limits {
        requests: 3,
        nodes: 5,
        bytes: 100,
        ..Limits::default()
    };
    let policy = Box::new(Cellular::new(1, Order::Arrival));
    let mut scheduler = scheduler_of(policy, &SIZES, 1, 5, limits);
    let requirements = Requirements {
        bytes: 40,
        ..Requirements::default()
    };
    let first = scheduler
        .handle_submit(now, &unfolded, requirements)
        .expect("room");
    let more = Requirements {
        bytes: 61,
        ..requirements
    };
    assert_eq!(
        scheduler
            .handle_submit(now, &unfolded, more)
            .expect_err("bytes")
            .to_string(),
        "overloaded: 40 bytes of 100 are taken and the request needs 61; try again later, or \
         raise the limit"
    );
    let never = Requirements {
        bytes: 101,
        ..requirements
    };
    let never = scheduler.handle_submit(now, &unfolded, never);
    assert_eq!(
        never
            .expect_err("more bytes than there ever are")
            .to_string(),
        "overloaded: 40 bytes of 100 are taken and the request needs 101; raise the limit"
    );
    scheduler
        .handle_submit(now, &unfolded, requirements)
        .expect("room");
    assert_eq!(
        scheduler
            .handle_submit(now, &unfolded, Requirements::default())
            .expect_err("nodes"),
        Refused::Overloaded {
            of: LimitOf::Engine,
            what: Reason::Nodes,
            have: 4,
            needs: 2,
            most: 5
        }
    );
    // Growing is limited too; a request that ended makes room.
    let mut graph = plain_chain(&[2]);
    let before = graph.mark();
    plain_node(&mut graph, 0, &[1]);
    plain_node(&mut graph, 0, &[2]);
    let growth = graph.unfold_from(&cells, before).expect("a chain");
    assert_eq!(
        scheduler.handle_grow(first, growth.clone()),
        Err(Refused::Overloaded {
            of: LimitOf::Engine,
            what: Reason::Nodes,
            have: 4,
            needs: 2,
            most: 5
        })
    );
    scheduler.audit().expect("nothing kept of it");
    scheduler.handle_cancel(now, first);
    assert_eq!(
        scheduler.handle_grow(first, growth.clone()),
        Ok(()),
        "of no one"
    );
    scheduler
        .handle_submit(now, &unfolded, requirements)
        .expect("room again");
    scheduler.handle_drain();
    assert_eq!(
        scheduler.handle_submit(now, &unfolded, requirements),
        Err(Refused::ShuttingDown)
    );
    assert_eq!(scheduler.counts().refused(), 4);
    scheduler.handle_shutdown(now);
    assert_eq!(scheduler.counts().of(End::ShutDown), 2);
    scheduler.audit().expect("nothing left");
    assert_eq!(scheduler.usage(), Usage::default());
}

#[test]
fn a_request_that_grows_without_end_leaves_room_to_others() {
    let cells = plain_cells(1);
    let now = Instant::now();
    let limits = Limits {
        nodes: 12,
        request_nodes: 8,
        ..Limits::default()
    };
    let too_many = |nodes| Refused::RequestNodes { nodes, most: 8 };
    let policy = Box::new(Cellular::new(1, Order::Arrival));
    let mut scheduler = scheduler_of(policy, &SIZES, 1, 5, limits);
    let submit = |scheduler: &mut Scheduler, nodes: usize| {
        let unfolded = plain_chain(&[nodes]).unfold(&cells).expect("a chain");
        scheduler.handle_submit(now, &unfolded, Requirements::default())
    };
    let offered = scheduler.handle_offer(9, &Requirements::default());
    assert_eq!(offered, Err(too_many(9)));
    assert_eq!(submit(&mut scheduler, 9), Err(too_many(9)));
    let mut graph = plain_chain(&[5]);
    let unfolded = graph.unfold(&cells).expect("a chain");
    let key = scheduler.handle_submit(now, &unfolded, Requirements::default());
    let key = key.expect("room");
    let mut grown = |of: &[usize]| {
        let before = graph.mark();
        for &from in of {
            plain_node(&mut graph, 0, &[from]);
        }
        graph.unfold_from(&cells, before).expect("a chain")
    };
    // A growth that waits for an earlier one counts, too.
    let (first, second) = (grown(&[4]), grown(&[5, 6]));
    assert_eq!(scheduler.handle_grow(key, second), Ok(()));
    assert_eq!(scheduler.handle_grow(key, first), Ok(()));
    assert_eq!(scheduler.table().nodes(key), 8);
    assert_eq!(scheduler.handle_grow(key, grown(&[7])), Err(too_many(9)));
    scheduler.audit().expect("nothing kept of it");
    submit(&mut scheduler, 4).expect("the rest of the nodes");
    scheduler.handle_failed(now, key);
    submit(&mut scheduler, 8).expect("room again");
    scheduler.audit().expect("conserved");
}

#[test]
fn a_large_record_is_handed_out_when_no_row_of_it_is_in_flight() {
    let cells = plain_cells(1);
    let now = Instant::now();
    let policy = Box::new(Cellular::new(1, Order::Arrival));
    let mut scheduler = scheduler_of(policy, &SIZES, 1, 1, Limits::default());
    for (nodes, spent) in [(1000, 1), (10, 0)] {
        let unfolded = plain_chain(&[nodes]).unfold(&cells).expect("a chain");
        let key = scheduler.handle_submit(now, &unfolded, Requirements::default());
        let mut tasks = Vec::new();
        scheduler.poll_tasks(now, WorkerId(0), &mut tasks);
        scheduler.handle_cancel(now, key.expect("room"));
        assert!(scheduler.take_spent().is_empty(), "a row is in flight");
        scheduler.handle_done(now, tasks.remove(0), None);
        assert_eq!(scheduler.take_spent().len(), spent, "of {nodes} nodes");
        assert!(scheduler.take_spent().is_empty(), "once");
    }
}
