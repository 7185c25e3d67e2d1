//! Every way of running a model gives the bits of the reference.

mod common;

use common::isas::isas;
use common::{Batch, Options, Random, Results, usual_cells};
use gatestream::execute::team::Team;
use gatestream::execute::{PackedModel, Session, State, Steps};
use gatestream::kernels::{Isa, RowsMut, RowsRef};
use gatestream::model::{Cell, Input, Layer, Model, Output};
use gatestream::plan::{InputProjectionBy, OwnersShare, Plan};
use gatestream::schedule::{DirectionSchedule, PanelOrder, schedules};

fn session(model: &Model, plan: &Plan, isa: Isa) -> Session {
    let mut team = Team::with_threads(plan.threads()).unwrap();
    let packed = PackedModel::for_isa(model, plan, &mut team, isa).unwrap();
    Session::from_packed(packed).unwrap()
}

fn check(model: &Model, batch: &Batch, plan: &Plan, isa: Isa) {
    let expected = Results::reference(model, batch);
    let mut session = session(model, plan, isa);
    for round in ["clean", "dirty"] {
        let mut found = Results::dirty(model, batch);
        session.run(&batch.input(), &mut found.output()).unwrap();
        found.assert_same(&expected, format_args!("{isa}, {round} scratch, {plan:?}"));
        poison(&mut session, batch);
    }
}

/// Fills the session's scratch memory with NaN: whatever a later run reads before it has written it
/// then shows.
fn poison(session: &mut Session, batch: &Batch) {
    let signature = session.signature();
    let not_a_number = |values: usize| vec![f32::NAN; values];
    let values = not_a_number(batch.steps * batch.batch * signature.input);
    let h0 = not_a_number(batch.batch * signature.hidden_state);
    let c0 = not_a_number(batch.batch * signature.cell_state);
    let input = Input::new(&values, batch.steps, batch.batch);
    session
        .run(&input.h0(&h0).c0(&c0), &mut Output::default())
        .unwrap();
}

#[test]
fn random_models_batches_and_plans() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let model = random.stack(40);
        let (batch, steps) = (random.0.usize(0..7), random.0.usize(0..9));
        let batch = Batch::ragged(&mut random, &model, batch, steps);
        let plan = random.plan(&model, batch.batch, batch.steps);
        for &isa in isas() {
            check(&model, &batch, &plan, isa);
        }
    }
}

#[test]
fn random_models_in_lower_precisions() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let model = random.stack(40);
        let model = random.in_some_precision(model);
        let (batch, steps) = (random.0.usize(0..20), random.0.usize(0..9));
        let batch = Batch::ragged(&mut random, &model, batch, steps);
        let plan = random.plan(&model, batch.batch, batch.steps);
        for &isa in isas() {
            check(&model, &batch, &plan, isa);
        }
    }
}

/// Long enough for workers to drift apart, and stacks high enough for buffers to be used again:
/// either all layers have rows taken ahead by others, or each has one owner, so that they run as a
/// wavefront where directions allow it.
#[test]
fn many_steps_of_high_stacks() {
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let ways = if seed % 4 == 0 { 4 } else { 1 };
        let mut input = random.0.usize(1..=20);
        let layers = (0..random.0.usize(3..=5)).map(|_| {
            let (cell, options) = random.cell();
            let (hidden, way) = (random.0.usize(17..=64), random.0.u8(..ways));
            let layer = random.layer(cell, input, hidden, options, way);
            input = layer.output_size();
            layer
        });
        let model = Model::new(layers.collect()).unwrap();
        let (batch, steps) = (random.0.usize(1..4), random.0.usize(50..90));
        let batch = Batch::ragged(&mut random, &model, batch, steps);
        let mut plan = Plan::with_threads(&model, batch.batch, steps, 2 + seed as usize % 3);
        let entries = plan.entries.iter_mut();
        let layers = entries.flat_map(|e| {
            let (threads, groups) = (e.configuration.threads, e.configuration.row_groups);
            let layers = e.configuration.layers.iter_mut().enumerate();
            layers.map(move |(index, layer)| (index, layer, threads / groups))
        });
        for (index, layer, workers) in layers {
            layer.chunk_steps = random.0.usize(1..20);
            if seed % 2 == 0 {
                layer.ahead = InputProjectionBy::Rows {
                    workers: random.0.usize(1..=workers),
                    owners_share: OwnersShare::of_eighths(random.0.u8(0..=8)).unwrap(),
                };
                continue;
            }
            layer.ahead = InputProjectionBy::Owners;
            let owner = index % workers;
            for direction in &mut layer.directions {
                for parts in [
                    &mut direction.partition.units,
                    &mut direction.partition.projected,
                ] {
                    let size = parts.last().map_or(0, |last| last.end);
                    *parts = (0..workers)
                        .map(|w| size * usize::from(w > owner)..size * usize::from(w >= owner))
                        .collect();
                }
            }
        }
        for &isa in isas() {
            check(&model, &batch, &plan, isa);
        }
    }
}

/// Not a sample of them: each schedule that the search can come to, of each kind of step.
#[test]
fn every_schedule_of_every_cell() {
    let mut random = Random::new(7);
    for (cell, options) in usual_cells() {
        let direction = random.direction(cell, 13, 40, options);
        let schedules = schedules(&direction);
        let model = Model::new(vec![Layer::single(direction)]).unwrap();
        let batch = Batch::ragged(&mut random, &model, 4, 9);
        for schedule in schedules {
            let mut plan = random.plan(&model, batch.batch, batch.steps);
            for entry in &mut plan.entries {
                entry.configuration.layers[0].directions[0].schedule = schedule.clone();
            }
            for &isa in isas() {
                check(&model, &batch, &plan, isa);
            }
        }
    }
}

/// A plan whose only sharing is between the owner of the units and the owner of the projection.
#[test]
fn units_and_projection_of_two_owners() {
    let mut random = Random::new(5);
    let options = Options {
        projection: true,
        ..Options::default()
    };
    let layer = Layer::single(random.direction(Cell::LSTM, 9, 40, options));
    let rows = layer.output_size();
    let model = Model::new(vec![layer]).unwrap();
    let mut plan = Plan::with_threads(&model, 3, 200, 2);
    let partition = &mut plan.entries[0].configuration.layers[0].directions[0].partition;
    partition.units = vec![0..40, 40..40];
    partition.projected = vec![0..0, 0..rows];
    let batch = Batch::full(&mut random, &model, 3, 200);
    for &isa in isas() {
        check(&model, &batch, &plan, isa);
    }
}

#[test]
fn hidden_and_input_sizes_around_every_tile() {
    let mut random = Random::new(1);
    let sizes = (1..=70).chain([100, 127, 128, 129]);
    for size in sizes {
        for (cell, options) in usual_cells() {
            let other = random.0.usize(1..=70);
            for (input, hidden) in [(size, other), (other, size)] {
                let layer = Layer::single(random.direction(cell, input, hidden, options));
                let model = Model::new(vec![layer]).unwrap();
                let batch = Batch::full(&mut random, &model, 1 + size % 3, 3);
                for &isa in isas() {
                    let plan = Plan::with_threads(&model, batch.batch, 3, 1 + size % 2);
                    check(&model, &batch, &plan, isa);
                }
            }
        }
    }
}

#[test]
fn large_sizes() {
    let mut random = Random::new(2);
    for size in [255, 256, 257, 511, 513, 1000, 1024] {
        for (cell, options) in usual_cells() {
            for (input, hidden) in [(size, 20), (20, size)] {
                let layer = Layer::single(random.direction(cell, input, hidden, options));
                let model = Model::new(vec![layer]).unwrap();
                let batch = Batch::full(&mut random, &model, 2, 2);
                for &isa in isas() {
                    check(&model, &batch, &Plan::with_threads(&model, 2, 2, 2), isa);
                }
            }
        }
    }
}

#[test]
fn every_batch_size() {
    let mut random = Random::new(3);
    for batch in 1..=33 {
        for (cell, options) in usual_cells() {
            let layer = random.layer(cell, 19, 37, options, (batch % 4) as u8);
            let model = Model::new(vec![layer]).unwrap();
            let batch = Batch::ragged(&mut random, &model, batch, 5);
            for &isa in isas() {
                for threads in 1..=4 {
                    let plan = Plan::with_threads(&model, batch.batch, 5, threads);
                    check(&model, &batch, &plan, isa);
                }
            }
        }
    }
}

#[test]
fn not_a_number_and_infinity_pass_through() {
    let mut random = Random::new(4);
    for (cell, options) in usual_cells() {
        let layer = Layer::single(random.direction(cell, 5, 21, options));
        let model = Model::new(vec![layer]).unwrap();
        let mut batch = Batch::full(&mut random, &model, 3, 6);
        batch.values[7] = f32::NAN;
        batch.values[33] = f32::INFINITY;
        batch.values[50] = f32::MAX;
        for &isa in isas() {
            check(&model, &batch, &Plan::with_threads(&model, 3, 6, 2), isa);
        }
    }
}

/// Nothing ahead, panels to and fro: a step begins where the run before has ended.
fn to_and_fro(model: &Model, plan: &mut Plan) {
    for entry in &mut plan.entries {
        let layers = entry.configuration.layers.iter_mut().zip(model.layers());
        for (plan, layer) in layers {
            plan.order = PanelOrder::Serpentine;
            for (plan, direction) in plan.directions.iter_mut().zip(layer.directions()) {
                plan.schedule = DirectionSchedule::none_ahead(direction);
            }
        }
    }
}

/// Hidden sizes of two layers: whole groups of units, whose cell states are computed where the
/// caller keeps them, and others.
fn streamed_sizes(seed: u64) -> [usize; 2] {
    [[18, 33], [32, 48], [16, 33], [18, 16]][seed as usize / 4 % 4]
}

#[test]
fn a_step_at_a_time_gives_the_whole_sequence() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let (cell, options) = random.cell();
        let [below, above] = streamed_sizes(seed);
        let lower = random.direction(cell, 7, below, options);
        let upper = random.direction(Cell::LSTM, lower.output_size(), above, Options::default());
        let model = Model::new(vec![Layer::single(lower), Layer::single(upper)]).unwrap();
        let batch = Batch::full(&mut random, &model, 3, 8);
        let expected = Results::reference(&model, &batch);
        for &isa in isas() {
            let threads = 1 + seed as usize % 4;
            let mut plan = Plan::with_threads(&model, 3, 1, threads);
            if seed % 2 == 1 {
                to_and_fro(&model, &mut plan);
            }
            let mut session = session(&model, &plan, isa);
            let mut state = State::zero(model.signature(), 3);
            let mut found = Results::dirty(&model, &batch);
            let inputs = batch.values.chunks(3 * 7);
            for (x, y) in inputs.zip(found.values.chunks_mut(3 * above)) {
                session.step(x, &mut state, y).unwrap();
            }
            (found.hn, found.cn) = (state.h, state.c);
            found.assert_same(&expected, format_args!("seed {seed}, {isa}"));
        }
    }
}

#[test]
fn several_steps_from_and_to_buffers_of_each_layer() {
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let (cell, options) = random.cell();
        let [below, above] = streamed_sizes(seed);
        let lower = random.direction(cell, 7, below, options);
        let upper = random.direction(Cell::LSTM, lower.output_size(), above, Options::default());
        // A cell state where the layer has one, between the hidden states.
        let sizes = [
            (lower.output_size(), lower.cell_state_size()),
            (above, above),
        ];
        let model = Model::new(vec![Layer::single(lower), Layer::single(upper)]).unwrap();
        let count = random.0.usize(1..6);
        let lengths: Vec<usize> = (0..count).map(|_| random.0.usize(0..6)).collect();
        let steps = lengths.iter().copied().max().unwrap();
        let mut batch = Batch::full(&mut random, &model, count, steps);
        batch.h0 = Some(random.values(count * model.signature().hidden_state));
        batch.c0 = Some(random.values(count * model.signature().cell_state));
        batch.lengths = Some(lengths.clone());
        let expected = Results::reference(&model, &batch);
        let (mut h, mut c) = (batch.h0.as_deref().unwrap(), batch.c0.as_deref().unwrap());
        let mut given = Vec::new();
        for (hidden, cell) in sizes {
            let (own, others) = h.split_at(count * hidden);
            given.push(own.to_vec());
            h = others;
            if cell > 0 {
                let (own, others) = c.split_at(count * cell);
                given.push(own.to_vec());
                c = others;
            }
        }
        for &isa in isas() {
            let threads = 1 + seed as usize % 4;
            let mut plan = Plan::with_threads(&model, count, steps.max(1), threads);
            if seed % 2 == 1 {
                to_and_fro(&model, &mut plan);
            }
            let mut session = session(&model, &plan, isa);
            let mut states = given.clone();
            // Of others, behind the batch.
            states.iter_mut().for_each(|state| state.extend([7.5; 50]));
            let mut found = Results::dirty(&model, &batch);
            let signature = model.signature();
            let y = RowsMut::contiguous(&mut found.values, signature.output);
            let x = RowsRef::contiguous(&batch.values, signature.input);
            let of_states: Vec<usize> = session.state_sizes().collect();
            let rows = states.iter_mut().zip(of_states);
            let steps = Steps::several(&lengths, x);
            match seed % 3 {
                0 => {
                    let lists = rows.map(|(state, size)| state.chunks_mut(size).take(count));
                    let mut lists: Vec<Vec<_>> = lists.map(Iterator::collect).collect();
                    let rows = lists.iter_mut().map(|list| RowsMut::gathered(list));
                    session.step_rows(steps, rows, Some(y))
                }
                _ => {
                    let rows = rows.map(|(state, size)| RowsMut::contiguous(state, size));
                    session.step_rows(steps, rows, Some(y))
                }
            }
            .unwrap();
            (found.hn, found.cn) = (Vec::new(), Vec::new());
            let mut states = states.into_iter().map(|mut state| {
                let others = state.split_off(state.len() - 50);
                assert_eq!(others, [7.5; 50], "seed {seed}, {isa}");
                state
            });
            for (_, cell) in sizes {
                found.hn.extend(states.next().unwrap());
                if cell > 0 {
                    found.cn.extend(states.next().unwrap());
                }
            }
            found.assert_same(&expected, format_args!("seed {seed}, {isa}, {lengths:?}"));
        }
    }
}
