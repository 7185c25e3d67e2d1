//! What a run asks of its kernels: no arithmetic for sequences that have ended, cell states where
//! the caller keeps them, and no row quantised twice.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::counting::{Asked, Counting};
use super::team::Team;
use super::{PackedModel, Session, State, Steps};
use crate::model::{Gru, Input, Lstm, Merge, Model, Output, Precision, ResetForm, Rnn};
use crate::plan::Plan;
use crate::schedule::{DirectionSchedule, PanelOrder};
use gatestream_kernels::{RowsMut, RowsRef};

/// A session of two threads with kernels that keep what they are asked for.
fn counting(model: &Model, plan: &Plan, room: (usize, usize)) -> (Session, Arc<Asked>) {
    let mut team = Team::with_threads(2).unwrap();
    let mut packed = PackedModel::new(model, plan, &mut team).unwrap();
    let unshared = Arc::get_mut(&mut packed).unwrap();
    let (kernels, asked) = Counting::kernels(unshared.isa());
    unshared.kernels = kernels;
    let mut session = Session::with_team(packed, team).unwrap();
    session.reserve(room.0, room.1).unwrap();
    (session, asked)
}

/// Multiply-adds and gate units that a run of these lengths asks for.
fn work(model: &Model, lengths: &[usize], steps: usize) -> (usize, usize) {
    let batch = lengths.len();
    let plan = Plan::with_threads(model, batch, steps, 2);
    let (mut session, asked) = counting(model, &plan, (batch, steps));
    let values = vec![0.5; steps * batch * model.signature().input];
    let input = Input::new(&values, steps, batch).lengths(lengths);
    session.run(&input, &mut Output::default()).unwrap();
    (
        asked.multiply_adds.load(Ordering::Relaxed),
        asked.gate_units.load(Ordering::Relaxed),
    )
}

#[test]
fn ended_sequences_cost_no_arithmetic() {
    let (steps, lengths) = (9, [9, 0, 4, 1, 7, 4]);
    let gru = Gru::new(5, 32).bidirectional(Merge::Sum);
    let models = [
        Lstm::new(5, 32).layers(2).random(1),
        Lstm::new(5, 32).projection(16).random(1),
        Lstm::new(5, 32)
            .bidirectional(Merge::Concat)
            .layers(2)
            .random(1),
        gru.clone().random(1),
        gru.reset(ResetForm::Before).random(1),
        Rnn::new(5, 32).random(1),
    ];
    for model in models.map(Result::unwrap) {
        let one_step = work(&model, &[1], 1);
        assert!(one_step.0 > 0 && one_step.1 > 0);
        let total: usize = lengths.iter().sum();
        let expected = (total * one_step.0, total * one_step.1);
        assert_eq!(work(&model, &lengths, steps), expected);
    }
}

/// Copying them would give the same bits. Rows that do not end on a whole vector are copied: gates
/// store whole ones.
#[test]
fn cell_states_of_streams_are_computed_where_the_caller_keeps_them() {
    for (hidden, in_place) in [(16, true), (32, true), (20, false), (7, false)] {
        let model = Lstm::new(5, hidden).random(1).unwrap();
        let plan = Plan::with_threads(&model, 3, 2, 2);
        let (mut session, asked) = counting(&model, &plan, (3, 2));
        let mut states = [vec![0.1; 3 * hidden], vec![0.2; 3 * hidden]];
        let computed_there =
            |state: &[f32]| state.as_ptr().addr() == asked.cell_states.load(Ordering::Relaxed);
        let x = [0.5; 2 * 3 * 5];
        let rows = RowsRef::contiguous(&x, 5);
        let mut step = |steps: Steps<'_>, states: &mut [Vec<f32>; 2]| {
            let states = states.each_mut().map(|s| RowsMut::contiguous(s, hidden));
            session.step_rows(steps, states, None).unwrap();
        };
        step(Steps::one(3, rows), &mut states);
        assert_eq!(computed_there(&states[1]), in_place, "hidden {hidden}");
        step(Steps::several(&[1, 2, 2], rows), &mut states);
        assert_eq!(computed_there(&states[1]), in_place, "hidden {hidden}");
        let mut state = State::zero(model.signature(), 3);
        (session.step(&x[..3 * 5], &mut state, &mut vec![0.0; 3 * hidden])).unwrap();
        assert_eq!(computed_there(&state.c), in_place, "hidden {hidden}");
    }
}

/// Products of a single step that go to and fro take turns, a panel each: all panels take what was
/// quantised for the first.
#[test]
fn rows_are_quantised_once_a_product() {
    let (hidden, batch) = (100, 3);
    let model = Lstm::new(hidden, hidden).random(1).unwrap();
    let model = model.in_precision(Precision::Int8).unwrap();
    let x = vec![0.5; batch * hidden];
    let outcomes = [PanelOrder::Cyclic, PanelOrder::Serpentine].map(|order| {
        let mut plan = Plan::with_threads(&model, batch, 1, 2);
        let layer = &mut plan.entries[0].configuration.layers[0];
        layer.order = order;
        let direction = &model.layers()[0].directions()[0];
        layer.directions[0].schedule = DirectionSchedule::none_ahead(direction);
        let (mut session, asked) = counting(&model, &plan, (batch, 1));
        let mut states = [vec![0.1; batch * hidden], vec![0.2; batch * hidden]];
        for run in 1..4 {
            let steps = Steps::one(batch, RowsRef::contiguous(&x, hidden));
            let states = states.each_mut().map(|s| RowsMut::contiguous(s, hidden));
            session.step_rows(steps, states, None).unwrap();
            let each_of_two_workers = 2 * batch;
            let quantised = asked.prepared_rows.load(Ordering::Relaxed);
            assert_eq!(quantised, run * 2 * each_of_two_workers, "{order:?}");
        }
        states
    });
    assert_eq!(outcomes[0], outcomes[1]);
}
