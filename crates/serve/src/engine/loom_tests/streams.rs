//! Steps of streams beside their workers.

use super::*;

/// The answer of a step of a stream, which must be there.
fn answer(step: Step) -> Result<Vec<f32>, RequestError> {
    match pin!(step.into_future()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("a step has no answer"),
    }
}

/// The third step is of the second segment. The thread that ends the first segment begins it.
#[test]
fn a_stream_is_pushed_beside_its_worker_and_closed() {
    beside_workers(1, Some(4), |shared, _| {
        let mut stream = shared.stream();
        let steps = [(); 3].map(|()| stream.push(&[]).unwrap());
        stream.close();
        shared.wait_until_idle(None);
        let answers = steps.map(|step| answer(step).unwrap());
        assert_eq!(answers, [[1.0], [2.0], [3.0]]);
    });
}

/// Between two steps, the worker of the first one stores the state where the other worker finds it,
/// unless the second step arrives before.
#[test]
fn steps_of_a_stream_are_computed_by_either_of_two_workers() {
    beside_workers_of(1, 2, Some(2), |shared, _| {
        let mut stream = shared.stream();
        let steps = [(); 2].map(|()| stream.push(&[]).unwrap());
        stream.close();
        shared.wait_until_idle(None);
        let answers = steps.map(|step| answer(step).unwrap());
        assert_eq!(answers, [[1.0], [2.0]]);
    });
}

#[test]
fn a_stream_is_dropped_with_unanswered_steps() {
    beside_workers(1, Some(4), |shared, _| {
        let mut stream = shared.stream();
        let steps = [(); 3].map(|()| stream.push(&[]).unwrap());
        drop(stream);
        shared.wait_until_idle(None);
        let answers = steps.map(answer);
        let computed = answers.iter().take_while(|answers| answers.is_ok()).count();
        for (at, answers) in answers.into_iter().enumerate() {
            if at < computed {
                assert_eq!(answers, Ok(vec![at as f32 + 1.0]))
            } else {
                assert_eq!(answers, Err(RequestError::Cancelled))
            }
        }
    });
}

#[test]
fn a_stream_is_pushed_while_the_engine_stops() {
    beside_workers(1, Some(3), |shared, _| {
        let mut stream = shared.stream();
        let stopping = {
            let shared = shared.clone();
            thread::spawn(move || shared.stop())
        };
        let pushed = [(); 2].map(|()| stream.push(&[]));
        stopping.join().unwrap();
        shared.wait_until_idle(None);
        for (at, pushed) in pushed.into_iter().enumerate() {
            match pushed.map(answer) {
                Ok(Ok(count)) => assert_eq!(count, [at as f32 + 1.0]),
                Ok(Err(error)) => assert_eq!(error, RequestError::ShutDown),
                Err(StreamError::Ended(error)) => assert_eq!(error, RequestError::ShutDown),
                Err(StreamError::Submit(error)) => {
                    assert_eq!(error, SubmitError::Refused(Refused::ShuttingDown));
                }
                Err(other) => panic!("{other}"),
            }
        }
    });
}

/// A stream is found idle beside a step: the step is answered, or refused because the stream has
/// ended.
#[test]
fn a_stream_is_pushed_while_it_is_found_idle() {
    let ends = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let seen = Arc::clone(&ends);
    beside_workers(1, Some(3), move |shared, _| {
        let mut stream = shared.stream();
        let inner = stream.inner();
        let ending = thread::spawn(move || {
            let now = Instant::now() + Duration::from_secs(2);
            inner.end_if_idle(now, Duration::from_secs(1));
        });
        let pushed = stream.push(&[]);
        ending.join().unwrap();
        shared.wait_until_idle(None);
        seen[usize::from(pushed.is_ok())].fetch_add(1, Ordering::Relaxed);
        match pushed {
            Ok(step) => assert_eq!(answer(step), Ok(vec![1.0])),
            Err(error) => assert_eq!(error, StreamError::Ended(RequestError::Idle)),
        }
    });
    let ends = [&ends[0], &ends[1]].map(|count| count.load(Ordering::Relaxed));
    assert!(ends.iter().all(|&count| count > 0), "{ends:?}");
}
