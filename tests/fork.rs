//! A child made by `fork` has none of its parent's threads: what the parent made is refused there,
//! what the child makes works, and the parent goes on.
#![cfg(unix)]

#[path = "common/fork.rs"]
mod fork;

use std::sync::mpsc;

use fork::returns_in_child;
use gatestream::execute::team::{HostThreads, SharedTeam, Team, TeamPanicked};
use gatestream::execute::{PackedModel, RunError, Session};
use gatestream::model::{Input, Lstm, Model, Output};
use gatestream::plan::Plan;
use gatestream::reference;

const STEPS: usize = 3;

fn model() -> Model {
    Lstm::new(3, 20).random(1).unwrap()
}

fn run(session: &mut Session) -> Result<Vec<f32>, RunError> {
    let input = [0.5; STEPS * 3];
    let mut found = vec![0.0; STEPS * 20];
    let mut output = Output::new(&mut found);
    session.run(&Input::new(&input, STEPS, 1), &mut output)?;
    Ok(found)
}

#[test]
fn a_child_is_refused_what_the_parent_made() {
    let mut expected = vec![0.0; STEPS * 20];
    let input = [0.5; STEPS * 3];
    let input = Input::new(&input, STEPS, 1);
    reference::run(&model(), &input, &mut Output::new(&mut expected)).unwrap();
    for threads in [1, 2] {
        let plan = Plan::with_threads(&model(), 1, STEPS, threads);
        let mut session = Some(Session::new(&model(), &plan).unwrap());
        assert_eq!(run(session.as_mut().unwrap()), Ok(expected.clone()));
        assert!(returns_in_child(|| {
            let mut made_by_parent = session.take().unwrap();
            let refused = Err(RunError::Team(TeamPanicked::Forked));
            assert_eq!(run(&mut made_by_parent), refused);
            drop(made_by_parent);
            let mut own = Session::new(&model(), &plan).unwrap();
            assert_eq!(run(&mut own), Ok(expected.clone()));
            // A child of the child.
            assert!(returns_in_child(|| assert_eq!(run(&mut own), refused)));
        }));
        assert_eq!(run(session.as_mut().unwrap()), Ok(expected.clone()));
    }
}

/// At the fork another thread is in the midst of a region: the child's copies of its locks stay
/// locked.
#[test]
fn a_child_does_not_wait_for_a_turn_that_nobody_ends() {
    let mut team = Team::with_threads(2).unwrap();
    let plan = Plan::with_threads(&model(), 1, STEPS, 2);
    let packed = PackedModel::new(&model(), &plan, &mut team).unwrap();
    let team = SharedTeam::new(team);
    let mut session = Some(Session::on_team(packed, team.clone()).unwrap());
    let (began, begin) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let holder = team.clone();
        scope.spawn(move || {
            let turn = holder.turn(|_| {
                began.send(()).unwrap();
                wait.recv().unwrap();
            });
            assert_eq!(turn, Ok(()));
        });
        begin.recv().unwrap();
        let child = returns_in_child(|| {
            let mut made_by_parent = session.take().unwrap();
            let refused = Err(RunError::Team(TeamPanicked::Forked));
            assert_eq!(run(&mut made_by_parent), refused);
            assert_eq!(team.callers(), 0);
        });
        go_on.send(()).unwrap();
        assert!(child);
    });
    assert!(run(session.as_mut().unwrap()).is_ok());
}

/// The threads of a host, which a child does not have.
struct OfTheParent;

impl HostThreads for OfTheParent {
    fn call(&self, count: usize, task: &(dyn Fn() + Sync)) {
        std::thread::scope(|scope| {
            for _ in 1..count {
                scope.spawn(task);
            }
            task();
        });
    }
}

#[test]
fn a_child_goes_on_with_a_team_that_has_no_threads() {
    let plan = Plan::with_threads(&model(), 1, STEPS, 2);
    let mut team = Team::for_host(2).unwrap();
    let packed = PackedModel::new(&model(), &plan, &mut team).unwrap();
    let mut session = Session::with_team(packed, team).unwrap();
    let input = [0.5; STEPS * 3];
    let mut expected = vec![0.0; STEPS * 20];
    let input = Input::new(&input, STEPS, 1);
    reference::run(&model(), &input, &mut Output::new(&mut expected)).unwrap();
    let mut found = vec![0.0; STEPS * 20];
    let ran = session.run_on_host(&input, &mut Output::new(&mut found), &OfTheParent);
    assert_eq!((ran, &found), (Ok(()), &expected));
    assert!(returns_in_child(|| {
        assert_eq!(run(&mut session), Ok(expected.clone()));
        // A child of the child.
        assert!(returns_in_child(|| assert_eq!(
            run(&mut session),
            Ok(expected.clone())
        )));
    }));
    assert_eq!(run(&mut session), Ok(expected));
}
