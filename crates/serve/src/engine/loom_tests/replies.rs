//! Callbacks and tickets are answered.

use super::*;

/// The wait for the end of all requests includes the second one: the first is not answered before
/// its callback returns.
#[test]
fn a_callback_submits_another_request() {
    beside_workers(1, Some(4), |shared, replies| {
        let (again, second) = (shared.clone(), to(replies));
        let first = callback(replies);
        let done = move |answer| {
            first(answer);
            again.accept(chain(10.0, 1), second).unwrap();
        };
        let first = shared.accept(chain(1.0, 1), Reply::Call(Box::new(done)));
        shared.cancel(first.unwrap());
        shared.wait_until_idle(None);
        let all = sorted(replies);
        assert!(all == ["Err(Cancelled)", "Ok([11.0])"] || all == ["Ok([11.0])", "Ok([2.0])"]);
    });
}

#[test]
fn a_callback_panics_and_the_others_are_called() {
    beside_workers(1, Some(4), |shared, replies| {
        let called = callback(replies);
        let done = move |answer| {
            called(answer);
            // As a panic, without a line on standard error for each order.
            std::panic::resume_unwind(Box::new("callback"));
        };
        let first = shared.accept(chain(1.0, 1), Reply::Call(Box::new(done)));
        submit(shared, 10.0, 1, replies);
        shared.cancel(first.unwrap());
        shared.wait_until_idle(None);
        let all = sorted(replies);
        assert!(all == ["Err(Cancelled)", "Ok([11.0])"] || all == ["Ok([11.0])", "Ok([2.0])"]);
    });
}

#[test]
fn a_ticket_is_dropped_while_its_answer_is_on_its_way() {
    // In some orders the drop comes first, in others it is too late.
    let ends = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let seen = Arc::clone(&ends);
    beside_workers(1, Some(4), move |shared, replies| {
        let (sender, receiver) = answer_slot();
        let key = shared.accept(chain(1.0, 2), Reply::Ticket(sender)).unwrap();
        submit(shared, 10.0, 1, replies);
        let id = RequestId::new(shared, key);
        drop(Ticket::new(receiver, id, Arc::downgrade(&shared.shared)));
        shared.wait_until_idle(None);
        assert_eq!(sorted(replies), ["Ok([11.0])"]);
        let counts = shared.lock().scheduler.counts();
        let (completed, cancelled) = (counts.of(End::Completed), counts.of(End::Cancelled));
        assert_eq!(completed + cancelled, 2);
        seen[cancelled as usize].fetch_add(1, Ordering::Relaxed);
    });
    let ends = [&ends[0], &ends[1]].map(|count| count.load(Ordering::Relaxed));
    assert!(ends.iter().all(|&count| count > 0), "{ends:?}");
}

/// As [`beside_workers`] with one worker, and a reply thread.
fn beside_replies(
    preemptions: Option<usize>,
    model: impl Fn(&Scene, &Replies) + Sync + Send + 'static,
) {
    beside_workers(1, preemptions, move |shared, replies| {
        shared.begin_replies();
        let own = shared.clone();
        let thread = thread::spawn(move || own.deliver());
        model(shared, replies);
        shared.end_replies();
        thread.join().unwrap();
    });
}

/// The drain ends after both callbacks, whose batches may be handed over at the same time.
#[test]
fn callbacks_of_the_reply_thread_are_called_before_a_drain_ends() {
    beside_replies(Some(3), |shared, replies| {
        let first = submit(shared, 1.0, 1, replies);
        submit(shared, 10.0, 1, replies);
        shared.cancel(first);
        assert_eq!(shared.wait_until_idle(None), 0);
        let all = sorted(replies);
        assert!(all == ["Err(Cancelled)", "Ok([11.0])"] || all == ["Ok([11.0])", "Ok([2.0])"]);
    });
}

/// A callback that has no thread left runs where its request ended.
#[test]
fn the_reply_thread_ends_beside_a_callback() {
    beside_replies(Some(3), |shared, replies| {
        submit(shared, 1.0, 1, replies);
        let ending = {
            let shared = shared.clone();
            thread::spawn(move || shared.end_replies())
        };
        shared.wait_until_idle(None);
        assert_eq!(sorted(replies), ["Ok([2.0])"]);
        ending.join().unwrap();
    });
}

/// A thread waits for the answer before it is there, or after.
#[test]
fn a_thread_waits_for_an_answer_that_is_sent_or_lost() {
    loom::model(|| {
        for is_sent in [true, false] {
            let (sender, receiver) = answer_slot::<u8>();
            let sending = thread::spawn(move || {
                if is_sent {
                    assert!(sender.send(Ok(7)).is_none())
                } else {
                    drop(sender)
                }
            });
            if is_sent {
                assert_eq!(receiver.wait(), Ok(7))
            } else {
                assert_eq!(receiver.wait(), Err(RequestError::ShutDown))
            }
            sending.join().unwrap();
        }
    });
}
