//! Models are added and removed.

use super::*;

/// A model is removed beside a submission: the request is answered, or refused and not kept. The
/// second model goes on.
#[test]
fn a_request_comes_while_its_model_is_removed() {
    let ends = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let seen = Arc::clone(&ends);
    beside_workers(1, Some(3), move |shared, replies| {
        let removing = {
            let scene = shared.clone();
            thread::spawn(move || scene.remove_model(scene.model.key))
        };
        let accepted = shared.accept(chain(1.0, 1), to(replies));
        removing.join().unwrap();
        // Its requests have been answered, and its cells are gone.
        if accepted.is_ok() {
            assert_eq!(sorted(replies), ["Ok([2.0])"])
        } else {
            assert!(sorted(replies).is_empty())
        }
        seen[usize::from(accepted.is_ok())].fetch_add(1, Ordering::Relaxed);
        let again = shared.accept(chain(1.0, 1), to(replies));
        assert_eq!(again, Err(SubmitError::Refused(Refused::NoModel)));
        assert!(shared.lock().models.is_empty());
    });
    let ends = [&ends[0], &ends[1]].map(|count| count.load(Ordering::Relaxed));
    assert!(ends.iter().all(|&count| count > 0), "{ends:?}");
}

/// A worker takes the cells before the first task of their model.
#[test]
fn a_model_is_added_beside_a_request_of_another() {
    beside_workers(1, Some(3), |shared, replies| {
        submit(shared, 1.0, 2, replies);
        let team = SharedTeam::new(Team::new(&[0]).unwrap());
        let new = counting(1, 1);
        let runners = vec![new.on(0, &team).unwrap()];
        let model = shared.add_model(&"new".into(), &new, ModelShare::default(), runners);
        let added = Scene {
            model: model.unwrap(),
            shared: Arc::clone(&shared.shared),
        };
        submit(&added, 10.0, 1, replies);
        shared.wait_until_idle(None);
        assert_eq!(sorted(replies), ["Ok([11.0])", "Ok([3.0])"]);
    });
}

/// Changes of models do not wait for workers that have stopped.
#[test]
fn models_are_added_and_removed_while_the_engine_stops() {
    beside_workers(1, Some(3), |shared, replies| {
        submit(shared, 1.0, 1, replies);
        let stopping = {
            let scene = shared.clone();
            thread::spawn(move || scene.stop())
        };
        let team = SharedTeam::new(Team::new(&[0]).unwrap());
        let new = counting(1, 1);
        let runners = vec![new.on(0, &team).unwrap()];
        let added = shared.add_model(&"new".into(), &new, ModelShare::default(), runners);
        match added {
            Ok(model) => shared.remove_model(model.key),
            Err(error) => assert!(matches!(error, EngineError::Stopped)),
        }
        shared.remove_model(shared.model.key);
        stopping.join().unwrap();
        shared.wait_until_idle(None);
        let all = sorted(replies);
        assert!(all == ["Err(ShutDown)"] || all == ["Ok([2.0])"], "{all:?}");
    });
}
