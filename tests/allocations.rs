//! `Session::run` and `Session::step` allocate nothing, on any thread.

mod common;
#[path = "common/counting.rs"]
mod counting;

use common::{Batch, Random, Results, usual_cells};
use counting::calls;
use gatestream::execute::team::{SharedTeam, Team};
use gatestream::execute::{PackedModel, Session, State, Steps};
use gatestream::kernels::{RowsMut, RowsRef};
use gatestream::model::Model;
use gatestream::plan::Plan;

fn main() {
    let mut random = Random::new(1);
    let before = calls();
    drop(vec![0u8; 100]);
    assert_eq!(calls() - before, 2, "the counter counts");

    for (cell, options) in usual_cells() {
        for way in 0..4 {
            for threads in 1..=2 {
                for shared in [false, true] {
                    let lower = random.layer(cell, 9, 33, options, way);
                    let upper = random.layer(cell, lower.output_size(), 20, options, way);
                    let model = Model::new(vec![lower, upper]).unwrap();
                    let plan = Plan::with_threads(&model, 5, 7, threads);
                    let mut team = Team::with_threads(threads).unwrap();
                    let packed = PackedModel::new(&model, &plan, &mut team).unwrap();
                    let mut session = if shared {
                        Session::on_team(packed, SharedTeam::new(team)).unwrap()
                    } else {
                        Session::from_packed(packed).unwrap()
                    };
                    for round in 0..6 {
                        let (batch, steps) = (5 - round % 3, 7 - round);
                        let batch = Batch::ragged(&mut random, &model, batch, steps);
                        let mut results = Results::dirty(&model, &batch);
                        let before = calls();
                        session.run(&batch.input(), &mut results.output()).unwrap();
                        let made = calls() - before;
                        assert_eq!(
                            made, 0,
                            "{cell:?}, way {way}, {threads} threads, run {round}"
                        );
                    }
                    if way == 0 {
                        let mut state = State::zero(model.signature(), 3);
                        let x = random.values(3 * 9);
                        let mut y = vec![0.0; 3 * model.signature().output];
                        let before = calls();
                        session.step(&x, &mut state, &mut y).unwrap();
                        let made = calls() - before;
                        assert_eq!(made, 0, "{cell:?}, {threads} threads, step");
                        let sizes = model.layers().iter().map(|layer| &layer.directions()[0]);
                        let sizes = sizes.flat_map(|d| [d.output_size(), d.cell_state_size()]);
                        let sizes = sizes.filter(|&size| size > 0);
                        let mut states: Vec<_> = sizes.map(|size| vec![0.0; 3 * size]).collect();
                        let sizes = session.state_sizes().collect::<Vec<_>>();
                        let states = states.iter_mut().zip(&sizes);
                        let states = states.map(|(state, &size)| RowsMut::contiguous(state, size));
                        let y = RowsMut::contiguous(&mut y, model.signature().output);
                        let before = calls();
                        let steps = Steps::one(3, RowsRef::contiguous(&x, 9));
                        session.step_rows(steps, states, Some(y)).unwrap();
                        let made = calls() - before;
                        assert_eq!(made, 0, "{cell:?}, {threads} threads, step of rows");
                    }
                }
            }
        }
    }
}
