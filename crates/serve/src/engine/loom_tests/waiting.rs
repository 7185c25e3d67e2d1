//! Submissions wait for room.

use super::*;

/// As [`beside_workers`] with one worker, and room for one request.
fn beside_a_worker_with_room_for_one(model: impl Fn(&Scene, &Replies) + Sync + Send + 'static) {
    let limits = Limits {
        requests: 1,
        ..Limits::default()
    };
    beside_workers_within(limits, 1, 1, Some(3), model);
}

/// There is room for one request, and the worker makes it: each of the submissions that wait gets
/// it, also if another one is withdrawn.
#[test]
fn submissions_wait_for_room_beside_the_worker_that_makes_it() {
    beside_a_worker_with_room_for_one(|shared, replies| {
        submit(shared, 1.0, 1, replies);
        let other = {
            let scene = shared.clone();
            thread::spawn(move || {
                let waits = Submission::new(Arc::clone(&scene.shared), &scene.model, chain(2.0, 1));
                waits.unwrap().wait(None).unwrap().wait().unwrap().values
            })
        };
        let waits = Submission::new(Arc::clone(&shared.shared), &shared.model, chain(3.0, 1));
        let mut withdrawn = Submitting(waits);
        let polled = pin!(&mut withdrawn).poll(&mut Context::from_waker(Waker::noop()));
        drop(polled);
        drop(withdrawn);
        assert_eq!(other.join().unwrap(), [3.0]);
        shared.wait_until_idle(None);
        assert_eq!(sorted(replies), ["Ok([2.0])"]);
    });
}

#[test]
fn a_submission_that_waits_ends_with_the_engine() {
    beside_a_worker_with_room_for_one(|shared, replies| {
        submit(shared, 1.0, 1, replies);
        let stopping = {
            let shared = shared.clone();
            thread::spawn(move || shared.stop())
        };
        let waits = Submission::new(Arc::clone(&shared.shared), &shared.model, chain(2.0, 1));
        match waits.unwrap().wait(None) {
            Ok(ticket) => assert!(matches!(ticket.wait(), Ok(_) | Err(RequestError::ShutDown))),
            Err(error) => assert_eq!(error, Refused::ShuttingDown.into()),
        }
        stopping.join().unwrap();
        shared.wait_until_idle(None);
    });
}
