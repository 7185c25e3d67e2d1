//! Several models of one scheduler: their cells, limits and ends.

use super::test_graphs::{plain_cells, plain_chain};
use super::*;

const SIZES: BatchSizes = BatchSizes { min: 1, max: 4 };

/// A scheduler without models.
fn empty(kind: impl Into<Kind>) -> Scheduler {
    let policy = Setting::new(kind, 2).build(1);
    Scheduler::new(policy, 1, 1, Limits::default())
}

fn add(scheduler: &mut Scheduler, cells: usize) -> Result<ModelKey, ModelError> {
    scheduler.add_model(&costs(&vec![SIZES; cells]), ModelShare::default())
}

/// A request of so many steps of the first cell of a model.
fn submit(
    scheduler: &mut Scheduler,
    steps: usize,
    requirements: Requirements,
) -> Result<RequestKey, Refused> {
    let unfolded = plain_chain(&[steps])
        .unfold(&plain_cells(1))
        .expect("a chain");
    scheduler.handle_submit(Instant::now(), &unfolded, requirements)
}

fn of_model(model: ModelKey) -> Requirements {
    Requirements {
        model,
        ..Requirements::default()
    }
}

/// Runs until nothing is left; the cells of the tasks.
fn run(scheduler: &mut Scheduler) -> Vec<usize> {
    let now = Instant::now();
    let (mut tasks, mut cells) = (Vec::new(), Vec::new());
    loop {
        scheduler.poll_tasks(now, WorkerId(0), &mut tasks);
        let Some(task) = tasks.pop() else {
            assert_eq!(scheduler.counts().live(), 0, "nothing is left");
            return cells;
        };
        cells.push(task.cell.index());
        scheduler.handle_done(now, task, None);
        scheduler.audit().expect("conserved");
    }
}

#[test]
fn models_come_and_go_under_every_policy() {
    for kind in policies() {
        let mut scheduler = empty(kind);
        let [first, second, third] = [2, 3, 1].map(|cells| add(&mut scheduler, cells).unwrap());
        assert_eq!(first, ModelKey::default());
        let ids = |scheduler: &Scheduler, model| scheduler.first_cell(model).map(CellId::index);
        let all = [first, second, third].map(|model| ids(&scheduler, model));
        assert_eq!(all, [Some(0), Some(2), Some(5)]);
        for model in [second, third, first] {
            submit(&mut scheduler, 2, of_model(model)).unwrap();
        }
        let mut ran = run(&mut scheduler);
        ran.sort_unstable();
        assert_eq!(ran, [0, 0, 2, 2, 5, 5], "{kind}");

        // Its ids and its index are used again, its key is not.
        scheduler.remove_model(second).unwrap();
        assert_eq!(ids(&scheduler, second), None);
        assert_eq!(scheduler.remove_model(second), Err(ModelError::NoModel));
        let refused = submit(&mut scheduler, 1, of_model(second));
        assert_eq!(refused, Err(Refused::NoModel));
        assert_eq!(
            scheduler.handle_open_stream(second, 1),
            Err(Refused::NoModel)
        );
        let large = add(&mut scheduler, 4).unwrap();
        let small = add(&mut scheduler, 2).unwrap();
        assert_eq!(
            [large, small].map(|model| ids(&scheduler, model)),
            [Some(6), Some(2)]
        );
        assert_eq!(large.index(), second.index());
        assert_ne!(large, second);
        for model in [small, large] {
            submit(&mut scheduler, 1, of_model(model)).unwrap();
        }
        let mut ran = run(&mut scheduler);
        ran.sort_unstable();
        assert_eq!(ran, [2, 6], "{kind}");
        for model in [first, third, large, small] {
            scheduler.remove_model(model).unwrap();
        }
        assert_eq!(scheduler.queued(), 0);
        assert_eq!(scheduler.usage(), Usage::default());
        assert_eq!(scheduler.counts().of(End::Completed), 5);
    }
}

#[test]
fn there_are_ids_for_65_536_cells() {
    let mut scheduler = empty(PolicyKind::Cellular);
    assert_eq!(add(&mut scheduler, 0), Err(ModelError::NoCell));
    let too_many = |cells| ModelError::TooManyCells { cells, max: 65_536 };
    assert_eq!(add(&mut scheduler, 65_537), Err(too_many(65_537)));
    let first = add(&mut scheduler, 65_535).unwrap();
    assert_eq!(add(&mut scheduler, 2), Err(too_many(2)));
    let second = add(&mut scheduler, 1).unwrap();
    submit(&mut scheduler, 1, of_model(second)).unwrap();
    assert_eq!(run(&mut scheduler), [65_535]);
    scheduler.remove_model(first).unwrap();
    let again = add(&mut scheduler, 65_535).unwrap();
    assert_eq!(scheduler.first_cell(again).map(CellId::index), Some(0));
}

#[test]
fn a_busy_model_is_not_removed() {
    for kind in policies() {
        let mut scheduler = empty(kind);
        let model = add(&mut scheduler, 1).unwrap();
        let busy = |requests, streams, tasks| ModelError::Busy {
            requests,
            streams,
            tasks,
        };
        let now = Instant::now();
        let key = submit(&mut scheduler, 1, of_model(model)).unwrap();
        assert_eq!(scheduler.remove_model(model), Err(busy(1, 0, 0)));
        let mut tasks = Vec::new();
        scheduler.poll_tasks(now, WorkerId(0), &mut tasks);
        // Its row is still computed.
        scheduler.handle_cancel(now, key);
        assert_eq!(scheduler.remove_model(model), Err(busy(0, 0, 1)));
        scheduler.handle_done(now, tasks.remove(0), None);
        let stream = scheduler.handle_open_stream(model, 10).unwrap();
        assert_eq!(scheduler.remove_model(model), Err(busy(0, 1, 0)));
        scheduler.handle_close_stream(stream);
        scheduler.remove_model(model).unwrap();
    }
}

#[test]
fn a_drained_model_refuses_and_ends_what_it_has() {
    let mut scheduler = empty(PolicyKind::Cellular);
    let [kept, drained] = [1, 1].map(|cells| add(&mut scheduler, cells).unwrap());
    submit(&mut scheduler, 3, of_model(drained)).unwrap();
    scheduler.handle_drain_model(drained);
    let refused = submit(&mut scheduler, 1, of_model(drained));
    assert_eq!(refused, Err(Refused::ModelDrains));
    assert_eq!(
        scheduler.handle_open_stream(drained, 1),
        Err(Refused::ModelDrains)
    );
    assert_eq!(scheduler.check_draining(drained), Err(Refused::ModelDrains));
    assert_eq!(scheduler.check_draining(kept), Ok(()));
    let continues = Requirements {
        continues: true,
        ..of_model(drained)
    };
    submit(&mut scheduler, 1, continues).unwrap();
    submit(&mut scheduler, 1, of_model(kept)).unwrap();
    run(&mut scheduler);
    let counts = scheduler.model_counts(drained).unwrap();
    assert_eq!(
        (counts.submitted, counts.refused(), counts.live()),
        (2, 2, 0)
    );
    let counts = scheduler.model_counts(kept).unwrap();
    assert_eq!((counts.submitted, counts.refused()), (1, 0));
    scheduler.remove_model(drained).unwrap();
    scheduler.handle_drain();
    let refused = submit(&mut scheduler, 1, of_model(kept));
    assert_eq!(refused, Err(Refused::ShuttingDown));
}

#[test]
fn a_model_has_limits_of_its_own() {
    let mut scheduler = empty(PolicyKind::Cellular);
    let limits = Limits {
        requests: 2,
        nodes: 7,
        request_nodes: 5,
        bytes: 100,
        streams: 1,
        ..Limits::NONE
    };
    let share = ModelShare {
        limits,
        ..ModelShare::default()
    };
    let free = add(&mut scheduler, 1).unwrap();
    let model = scheduler.add_model(&costs(&[SIZES]), share).unwrap();
    let over = |what, have, needs, most| Refused::Overloaded {
        of: LimitOf::Model,
        what,
        have,
        needs,
        most,
    };
    let large = Requirements {
        bytes: 60,
        ..of_model(model)
    };
    let nodes = submit(&mut scheduler, 6, large);
    assert_eq!(nodes, Err(Refused::RequestNodes { nodes: 6, most: 5 }));
    let first = submit(&mut scheduler, 5, large).unwrap();
    let bytes = submit(&mut scheduler, 1, large).unwrap_err();
    assert_eq!(bytes, over(Reason::Bytes, 60, 60, 100));
    assert_eq!(
        bytes.to_string(),
        "overloaded: 60 bytes of 100 are taken by the model and the request needs 60; \
         try again later, or raise the limit"
    );
    let nodes = submit(&mut scheduler, 3, of_model(model));
    assert_eq!(nodes, Err(over(Reason::Nodes, 5, 3, 7)));
    submit(&mut scheduler, 1, of_model(model)).unwrap();
    let requests = submit(&mut scheduler, 1, of_model(model));
    assert_eq!(requests, Err(over(Reason::Requests, 2, 1, 2)));
    scheduler.handle_open_stream(model, 40).unwrap();
    let streams = scheduler.handle_open_stream(model, 0);
    assert_eq!(streams, Err(over(Reason::Streams, 1, 1, 1)));
    let usage = Usage {
        requests: 2,
        nodes: 6,
        bytes: 100,
        streams: 1,
        segments: 0,
    };
    assert_eq!(scheduler.model_usage(model), Some(usage));
    assert_eq!(scheduler.model_usage(free), Some(Usage::default()));
    // Others have what the engine has.
    submit(&mut scheduler, 20, of_model(free)).unwrap();
    scheduler.handle_cancel(Instant::now(), first);
    submit(&mut scheduler, 1, large).unwrap();
    for counts in [scheduler.counts(), scheduler.model_counts(model).unwrap()] {
        assert_eq!(counts.refused(), 5);
        for reason in Reason::ALL {
            let once = [
                Reason::RequestNodes,
                Reason::Bytes,
                Reason::Nodes,
                Reason::Requests,
                Reason::Streams,
            ];
            let expected = u64::from(once.contains(&reason));
            assert_eq!(counts.refused_for(reason), expected, "{reason}");
        }
    }
    scheduler.audit().unwrap();
}

#[test]
fn a_client_has_a_limit_in_the_engine_and_in_each_model() {
    let policy = Setting::new(PolicyKind::Cellular, 2).build(1);
    let limits = Limits {
        client_requests: 3,
        ..Limits::default()
    };
    let mut scheduler = Scheduler::new(policy, 1, 1, limits);
    let share = ModelShare {
        weight: NonZeroU32::MIN,
        limits: Limits {
            client_requests: 2,
            ..Limits::NONE
        },
    };
    let models = [(); 2].map(|()| scheduler.add_model(&costs(&[SIZES]), share).unwrap());
    let mut asks = |model: usize, client: Option<u64>| {
        let requirements = Requirements {
            client: client.map(ClientId),
            ..of_model(models[model])
        };
        submit(&mut scheduler, 1, requirements)
    };
    let over = |most| Refused::Overloaded {
        of: LimitOf::Client,
        what: Reason::Requests,
        have: most,
        needs: 1,
        most,
    };
    let first = asks(0, Some(7)).unwrap();
    asks(0, Some(7)).unwrap();
    assert_eq!(asks(0, Some(7)), Err(over(2)), "of the model");
    asks(1, Some(7)).unwrap();
    assert_eq!(asks(1, Some(7)), Err(over(3)), "of the engine");
    // Another client, and requests of none.
    asks(0, Some(8)).unwrap();
    for _ in 0..5 {
        asks(0, None).unwrap();
    }
    scheduler.handle_cancel(Instant::now(), first);
    scheduler.audit().unwrap();
    let again = Requirements {
        client: Some(ClientId(7)),
        ..of_model(models[0])
    };
    submit(&mut scheduler, 1, again).unwrap();
    assert_eq!(run(&mut scheduler).len(), 3);
    scheduler.audit().unwrap();
}
