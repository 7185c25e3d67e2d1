//! Statistics of models and workers, and the activity of workers. Gates hold the workers, not the
//! clock.

#[path = "common/gate.rs"]
mod gate;
#[path = "common/gated.rs"]
mod gated;
#[path = "common/simple_cells.rs"]
mod simple_cells;

use std::sync::Arc;
use std::time::Duration;

use gate::Gate;
use gated::{Scene, ended, scene};
use gatestream_serve::cell_graph::{DynamicGraph, Graph, Growth, NodeId, NodeOutputs};
use gatestream_serve::engine::{Activity, ModelOptions, Request, SubmitError, WorkerHealth};
use gatestream_serve::scheduler::{End, Limits, Reason, Usage};
use simple_cells::{cells_in, chain, outputs};

fn gated_cell() -> Activity {
    Activity::Cell {
        model: "model".into(),
        cell: "gated".into(),
    }
}

/// The health of the only worker of a scene.
fn health(scene: &Scene) -> WorkerHealth {
    let [worker] = &scene.engine.health().workers[..] else {
        panic!("one worker")
    };
    worker.clone()
}

fn stuck(scene: &Scene) -> Vec<usize> {
    scene.engine.health().stuck(Duration::ZERO).collect()
}

#[test]
fn a_worker_that_is_stuck_in_a_cell_is_told() {
    let scene = scene(1, 4, 1, Limits::default());
    let idle = health(&scene);
    assert_eq!((idle.activity, idle.last_batch), (Activity::Waiting, None));
    assert!(idle.is_alive && stuck(&scene).is_empty());

    let ticket = scene.submit(scene.gated(1.0));
    scene.gate.wait_for(1);
    let held = health(&scene);
    assert_eq!(held.activity, gated_cell());
    assert!(held.works_since.is_some() && held.is_alive);
    assert_eq!(held.last_batch, held.works_since, "of the same batch");
    assert_eq!(stuck(&scene), [0]);
    assert!(scene.engine.health().stuck(Duration::MAX).next().is_none());

    assert!(!scene.engine.health().draining);
    assert_eq!(scene.engine.drain_for(Duration::ZERO), 1);
    assert!(scene.engine.health().draining);
    scene.gate.let_all_go();
    assert_eq!(ended(ticket), Ok(vec![2.0]));
    // The worker sends the reply before it waits.
    while health(&scene).activity != Activity::Waiting {
        std::thread::yield_now();
    }
    let idle = health(&scene);
    assert!(idle.works_since.is_none() && idle.last_batch.is_some() && idle.is_alive);
    assert!(stuck(&scene).is_empty());
}

/// Passes the gate when its node has been computed.
struct Held(Arc<Gate>);

impl DynamicGraph for Held {
    fn grow(&mut self, _: NodeId, outputs: NodeOutputs<'_>, _: &mut Growth<'_>) {
        self.0.pass(outputs.port(0)).unwrap();
    }
}

#[test]
fn a_worker_that_is_stuck_in_the_growth_of_a_graph_is_told() {
    let scene = scene(1, 4, 1, Limits::default());
    let mut graph = Graph::new();
    let x = graph.give(&[1.0]);
    let node = graph.node(scene.gated, &[x]);
    graph.watch(node);
    graph.answer(node.output(0));
    let held = Arc::new(Gate::default());
    let ticket = scene.submit(Request::new(graph).grow(Held(Arc::clone(&held))));
    scene.gate.wait_for(1);
    assert_eq!(health(&scene).activity, gated_cell());
    scene.gate.let_all_go();
    held.wait_for(1);
    let growing = Activity::Growing {
        model: "model".into(),
        cell: "gated".into(),
    };
    assert_eq!(health(&scene).activity, growing);
    assert_eq!(stuck(&scene), [0]);
    held.let_all_go();
    assert_eq!(ended(ticket), Ok(vec![2.0]));
}

#[test]
fn models_have_limits_and_statistics_of_their_own() {
    let scene = scene(1, 4, 1, Limits::default());
    let (cells, ids) = cells_in([1, 2, 0]);
    let options = ModelOptions {
        name: "second".into(),
        limits: Limits {
            requests: 3,
            streams: 1,
            ..Limits::NONE
        },
        ..ModelOptions::default()
    };
    let second = scene.engine.add_model(cells, &options).unwrap();
    let first = scene.submit(scene.gated(1.0));
    scene.gate.wait_for(1);
    let tickets = [0.5, 1.5, 2.5].map(|x| {
        let (request, expected) = chain(&ids, &[x]);
        (second.submit(request).unwrap(), expected)
    });
    let reasons = [(Reason::Requests, 2), (Reason::Streams, 1)];
    for _ in 0..2 {
        let Err(SubmitError::Refused(why)) = second.submit(chain(&ids, &[0.5]).0) else {
            panic!("over the limit")
        };
        assert_eq!(why.reason(), Reason::Requests);
    }
    let mut stream = second.stream(ids.chain, None).unwrap();
    assert!(second.stream(ids.chain, None).is_err());
    let step = stream.push(&[2.0]).unwrap();

    let held = second.stats().unwrap();
    assert_eq!((held.name.as_str(), held.draining), ("second", false));
    let Usage {
        requests,
        nodes,
        streams,
        segments,
        ..
    } = held.usage;
    assert_eq!((requests, nodes, streams, segments), (3, 3, 1, 1));
    // A row of each request, and of the stream.
    assert_eq!((held.ready, held.unanswered), (4, 4));
    for reason in Reason::ALL {
        let expected = reasons.iter().find(|(of, _)| *of == reason);
        let expected = expected.map_or(0, |of| of.1);
        assert_eq!(held.counts.refused_for(reason), expected, "{reason}");
    }
    let stats = scene.engine.stats();
    assert_eq!(stats.counts.refused(), 3);
    let names: Vec<&str> = stats.models.iter().map(|model| &*model.name).collect();
    assert_eq!(names, ["model", "second"]);
    assert_eq!(stats.models[0].counts.refused(), 0);
    assert_eq!((stats.models[0].ready, stats.models[0].unanswered), (0, 1));

    tickets[2].0.cancel();
    assert_eq!(
        second.stats().unwrap().ready,
        3,
        "cancelled rows are not ready"
    );
    assert_eq!(second.drain_for(Duration::ZERO), 3);
    assert!(second.stats().unwrap().draining);
    assert!(stream.push(&[2.0]).is_err());
    let draining = second.stats().unwrap().counts.refused_for(Reason::Draining);
    assert_eq!(draining, 1);
    assert!(!scene.engine.model().stats().unwrap().draining);
    scene.gate.let_all_go();
    assert_eq!(ended(first), Ok(vec![2.0]));
    assert_eq!(step.wait(), Ok(outputs(&[2.0])));
    for (ticket, expected) in tickets.into_iter().take(2) {
        assert_eq!(ended(ticket), Ok(expected));
    }
    assert_eq!(second.drain(), 0);
    let over = second.stats().unwrap();
    let ends = [End::Completed, End::Cancelled, End::Late].map(|end| over.counts.of(end));
    assert_eq!(ends, [3, 1, 0]);
    assert_eq!((over.ready, over.unanswered, over.usage.streams), (0, 0, 1));
    assert_eq!(over.times.queueing.len(), 3);
    assert_eq!(over.times.computing.len(), 3);
    assert_eq!(over.cells[ids.chain.index()].rows, 3);
    assert_eq!(over.cells.iter().map(|cell| cell.rows).sum::<u64>(), 3);
    second.remove();
    drop(stream);
    assert!(second.stats().is_none());
    assert!(second.submit(chain(&ids, &[0.5]).0).is_err());
    let stats = scene.engine.stats();
    assert_eq!(stats.counts.refused_for(Reason::NoModel), 1);
    assert_eq!(stats.models.len(), 1);
    assert_eq!(stats.times.queueing.len(), 4, "removed models included");
}

#[test]
fn workers_have_statistics() {
    let scene = scene(2, 4, 1, Limits::default());
    let tickets = [1.0, 2.0].map(|x| scene.submit(scene.gated(x)));
    // Both workers are held.
    scene.gate.wait_for(2);
    let stats = scene.engine.stats();
    assert_eq!(stats.workers.len(), 2);
    for (index, worker) in stats.workers.iter().enumerate() {
        assert_eq!((&worker.cores[..], worker.batches), (&[index][..], 0));
        assert!(worker.busy.is_zero(), "{worker:?}");
    }
    scene.gate.let_all_go();
    for (ticket, y) in tickets.into_iter().zip([2.0, 3.0]) {
        assert_eq!(ended(ticket), Ok(vec![y]));
    }
    scene.engine.drain();
    let stats = scene.engine.stats();
    let run: Duration = stats.models[0].cells.iter().map(|cell| cell.run).sum();
    let busy: Duration = stats.workers.iter().map(|worker| worker.busy).sum();
    assert!(busy >= run && !run.is_zero(), "{busy:?}, {run:?}");
    assert_eq!(
        stats
            .workers
            .iter()
            .map(|worker| worker.batches)
            .sum::<u64>(),
        2
    );
}
