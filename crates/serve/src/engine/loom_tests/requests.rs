//! Requests are submitted, cancelled, late and answered.

use super::*;

#[test]
fn a_request_wakes_the_worker_and_is_answered_once() {
    beside_workers(1, None, |shared, replies| {
        submit(shared, 1.0, 2, replies);
        shared.wait_until_idle(None);
        assert_eq!(sorted(replies), ["Ok([3.0])"]);
    });
}

#[test]
fn one_of_two_is_cancelled_and_both_end_once() {
    beside_workers(1, Some(3), |shared, replies| {
        let first = submit(shared, 1.0, 2, replies);
        submit(shared, 10.0, 1, replies);
        shared.cancel(first);
        shared.wait_until_idle(None);
        let all = sorted(replies);
        assert!(all == ["Err(Cancelled)", "Ok([11.0])"] || all == ["Ok([11.0])", "Ok([3.0])"]);
    });
}

/// The model has no clock: the deadline has passed before a thread reads the time.
#[test]
fn one_of_two_is_late_and_both_end_once() {
    beside_workers(1, Some(3), |shared, replies| {
        let late = chain(1.0, 2).deadline(Instant::now());
        shared.accept(late, to(replies)).unwrap();
        submit(shared, 10.0, 1, replies);
        shared.wait_until_idle(None);
        assert_eq!(sorted(replies), ["Err(Late)", "Ok([11.0])"]);
    });
}

#[test]
fn a_failure_and_a_stop_end_each_request_once() {
    beside_workers(1, Some(4), |shared, replies| {
        submit(shared, 99.0, 1, replies);
        submit(shared, 1.0, 1, replies);
        shared.stop();
        shared.wait_until_idle(None);
        assert_eq!(replies.lock().unwrap().len(), 2);
    });
}

#[test]
fn two_workers_share_two_requests() {
    beside_workers(2, Some(2), |shared, replies| {
        submit(shared, 1.0, 2, replies);
        submit(shared, 10.0, 1, replies);
        shared.wait_until_idle(None);
        assert_eq!(sorted(replies), ["Ok([11.0])", "Ok([3.0])"]);
    });
}

/// Requests that were accepted before are answered when the drain ends; later ones are refused.
#[test]
fn a_request_comes_while_the_engine_drains() {
    let ends = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let seen = Arc::clone(&ends);
    beside_workers(1, Some(3), move |shared, replies| {
        submit(shared, 1.0, 1, replies);
        let draining = {
            let (shared, replies) = (shared.clone(), Arc::clone(replies));
            thread::spawn(move || {
                shared.with(|state, _| state.scheduler.handle_drain());
                shared.wait_until_idle(None);
                replies.lock().unwrap().len()
            })
        };
        let second = shared.accept(chain(10.0, 1), to(replies));
        let answered = draining.join().unwrap();
        let is_accepted = second.is_ok();
        if let Err(error) = second {
            assert_eq!(error, SubmitError::Refused(Refused::ShuttingDown));
        }
        assert_eq!(answered, 1 + usize::from(is_accepted));
        seen[usize::from(is_accepted)].fetch_add(1, Ordering::Relaxed);
    });
    let ends = [&ends[0], &ends[1]].map(|count| count.load(Ordering::Relaxed));
    assert!(ends.iter().all(|&count| count > 0), "{ends:?}");
}
