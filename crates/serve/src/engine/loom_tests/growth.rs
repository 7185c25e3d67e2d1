//! Requests grow, and answer in parts.

use super::*;

/// Counts from each of `starts`, a node at a time, two steps each. The answer is the counts at the
/// ends, sorted.
fn growing(starts: &[f32]) -> Request {
    struct CountOn {
        ends: Vec<f32>,
        reached: Vec<f32>,
    }
    impl DynamicGraph for CountOn {
        fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
            let count = outputs.port(0)[0];
            more.part(&[count]);
            if !self.ends.contains(&count) {
                let next = more.node(CellId::new(0), &[node.output(0)]);
                return more.watch(next);
            }
            self.reached.push(count);
            if self.reached.len() == self.ends.len() {
                self.reached.sort_by(f32::total_cmp);
                let reached = more.give(&self.reached);
                more.answer(reached);
            }
        }
    }
    let mut graph = Graph::new();
    for start in starts {
        let start = graph.give(&[*start]);
        let first = graph.node(CellId::new(0), &[start]);
        graph.watch(first);
    }
    Request::new(graph).grow(CountOn {
        ends: starts.iter().map(|start| start + 2.0).collect(),
        reached: Vec::new(),
    })
}

#[test]
fn a_request_grows_beside_its_cancellation_and_ends_once() {
    beside_workers(1, None, |shared, replies| {
        let growing = shared.accept(growing(&[1.0]), to(replies)).unwrap();
        shared.cancel(growing);
        shared.wait_until_idle(None);
        let all = sorted(replies);
        assert!(all == ["Err(Cancelled)"] || all == ["Ok([3.0])"], "{all:?}");
    });
}

/// The worker delivers parts while the end is added. Either thread delivers the end.
#[test]
fn parts_come_in_order_and_before_the_end() {
    let ends = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let seen = Arc::clone(&ends);
    beside_workers(1, Some(3), move |shared, replies| {
        let parts = Arc::clone(replies);
        let part = move |part: &[f32]| parts.lock().unwrap().push(Ok(part.to_vec()));
        let done = Arc::new(Mutex::new(None));
        let end = Arc::clone(&done);
        let end = move |answer: Result<Response, RequestError>| {
            *end.lock().unwrap() = Some(answer.map(|answer| answer.values));
        };
        let request = growing(&[1.0]).on_part(part);
        let key = shared.accept(request, Reply::Call(Box::new(end))).unwrap();
        shared.cancel(key);
        let (end, before) = loop {
            if let Some(end) = done.lock().unwrap().take() {
                break (end, replies.lock().unwrap().clone());
            }
            thread::yield_now();
        };
        shared.wait_until_idle(None);
        assert_eq!(*replies.lock().unwrap(), before, "no part after the end");
        let parts = [Ok(vec![2.0]), Ok(vec![3.0])];
        assert_eq!(before, parts[..before.len()]);
        match &end {
            Ok(answer) => assert_eq!((&answer[..], before.len()), (&[3.0][..], 2)),
            Err(error) => assert_eq!(*error, RequestError::Cancelled),
        }
        seen[usize::from(end.is_ok())].fetch_add(1, Ordering::Relaxed);
    });
    let ends = [&ends[0], &ends[1]].map(|count| count.load(Ordering::Relaxed));
    assert!(ends.iter().all(|&count| count > 0), "{ends:?}");
}

#[test]
fn a_request_grows_beside_the_end_of_all_and_ends_once() {
    beside_workers(1, None, |shared, replies| {
        shared.accept(growing(&[1.0]), to(replies)).unwrap();
        shared.stop();
        shared.wait_until_idle(None);
        let all = sorted(replies);
        assert!(all == ["Err(ShutDown)"] || all == ["Ok([3.0])"], "{all:?}");
    });
}

/// A batch has one row and a worker one task, so each worker takes one: the later growth may be
/// reported first.
#[test]
fn two_nodes_of_a_request_grow_on_two_workers() {
    beside_workers_of(1, 2, Some(3), |shared, replies| {
        shared.accept(growing(&[1.0, 10.0]), to(replies)).unwrap();
        shared.wait_until_idle(None);
        assert_eq!(sorted(replies), ["Ok([3.0, 12.0])"]);
    });
}
