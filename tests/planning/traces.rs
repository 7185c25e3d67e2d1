//! What a traced run tells about itself, held against what the model and the plan say it does.

use std::time::Duration;

use crate::common::{Batch, Random, Results, usual_cells};
use gatestream::execute::{Activity, Session, Trace};
use gatestream::model::{Input, Layer, Merge, Model, Output};
use gatestream::plan::{InputProjectionBy, LayerPlan, Plan};

/// Boundaries lie one after the other between the run's begin and its end, so nothing is counted
/// twice and nothing is left out.
fn times_add_up(trace: &Trace) {
    for worker in &trace.workers {
        let times = Activity::ALL
            .into_iter()
            .map(|activity| worker.spent(activity).time);
        assert_eq!(worker.started + times.sum::<Duration>(), worker.ended);
        assert!(worker.ended <= trace.wall);
        for activity in Activity::ALL {
            let layers = worker.layers.iter().map(|layer| layer.spent(activity).time);
            assert_eq!(layers.sum::<Duration>(), worker.spent(activity).time);
            let spent = worker.spent(activity);
            assert!(spent.calls > 0 || spent.time.is_zero(), "{activity:?}");
        }
    }
}

#[test]
fn a_traced_run_gives_the_bits_of_the_reference() {
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let model = random.stack(40);
        let (batch, steps) = (random.0.usize(0..7), random.0.usize(0..9));
        let batch = Batch::ragged(&mut random, &model, batch, steps);
        let plan = random.plan(&model, batch.batch, batch.steps);
        let expected = Results::reference(&model, &batch);
        let mut session = Session::new(&model, &plan).unwrap();
        let threads: Vec<_> = (plan.entries.iter())
            .map(|e| e.configuration.threads)
            .collect();
        for round in ["traced", "plain", "traced again"] {
            let mut found = Results::dirty(&model, &batch);
            if round == "plain" {
                session.run(&batch.input(), &mut found.output()).unwrap();
            } else {
                let trace = session.run_traced(&batch.input(), &mut found.output());
                let trace = trace.unwrap();
                assert!(threads.contains(&trace.workers.len()));
                times_add_up(&trace);
            }
            found.assert_same(&expected, format_args!("seed {seed}, {round}, {plan:?}"));
        }
    }
}

#[test]
fn an_input_that_does_not_fit_is_refused_as_ever() {
    let mut random = Random::new(1);
    let (cell, options) = random.cell();
    let model = Model::new(vec![random.layer(cell, 3, 8, options, 0)]).unwrap();
    let mut session = Session::new(&model, &Plan::with_threads(&model, 1, 2, 1)).unwrap();
    let too_long = [0.0; 3 * 3];
    let input = Input::new(&too_long, 3, 1);
    let traced = session.run_traced(&input, &mut Output::default());
    let plain = session.run(&input, &mut Output::default());
    assert_eq!(traced.unwrap_err(), plain.unwrap_err());
}

/// Calls per activity in one layer of a run over `steps` steps: from the plan, as the schedule of a
/// step has it. `None` where others than the plan decide.
fn calls(
    layer: &Layer,
    plan: &LayerPlan,
    worker: usize,
    steps: u64,
    activity: Activity,
) -> Option<u64> {
    let directions = || layer.directions().iter().zip(&plan.directions);
    let owns = |plan: &&gatestream::plan::DirectionPlan| !plan.partition.units[worker].is_empty();
    let first = directions().filter(|(_, plan)| owns(plan)).count() as u64;
    let second = directions().filter(|(direction, plan)| {
        let rows = match direction.weights().projection {
            Some(_) => &plan.partition.projected[worker],
            None => &plan.partition.units[worker],
        };
        direction.step().phases() == 2 && !rows.is_empty()
    });
    let chunks = steps.div_ceil(plan.chunk_steps as u64);
    let ahead = directions().filter(|(_, plan)| owns(plan) && plan.schedule.is_ahead());
    let phases = layer.phases() as u64;
    let is_summed = directions().len() == 2 && layer.merge() == Merge::Sum;
    let is_owner = plan.is_owner(worker);
    let meets = plan.directions.iter().any(|d| d.partition.is_shared());
    Some(match activity {
        Activity::Ahead => chunks * ahead.count() as u64,
        Activity::Products | Activity::Gates => steps * first,
        Activity::SecondProducts | Activity::SecondGates => steps * second.count() as u64,
        Activity::Meeting => u64::from(meets && is_owner) * (1 + steps * phases),
        Activity::Summing => u64::from(is_summed && is_owner),
        // Loaded, and stored.
        Activity::States => 2 * u64::from(is_owner),
        Activity::Waiting => return None,
    })
}

#[test]
fn calls_are_those_of_the_schedule() {
    let (input, hidden, batch, steps) = (9, 40, 3, 11);
    let mut seen = [0; Activity::COUNT];
    for (seed, (cell, options)) in usual_cells().into_iter().enumerate() {
        // Forward, reverse, concatenated, summed.
        for way in 0..4 {
            let mut random = Random::new(seed as u64);
            let lower = random.layer(cell, input, hidden, options, way);
            let upper = random.layer(cell, lower.output_size(), hidden, options, 0);
            let model = Model::new(vec![lower, upper]).unwrap();
            let batch = Batch::full(&mut random, &model, batch, steps);
            for threads in 1..=2 {
                let mut plan = Plan::with_threads(&model, batch.batch, steps, threads);
                for layer in &mut plan.entries[0].configuration.layers {
                    (layer.chunk_steps, layer.ahead) = (4, InputProjectionBy::Owners);
                }
                let mut session = Session::new(&model, &plan).unwrap();
                let mut results = Results::dirty(&model, &batch);
                let trace = session.run_traced(&batch.input(), &mut results.output());
                let trace = trace.unwrap();
                times_add_up(&trace);
                let configuration = &plan.entries[0].configuration;
                assert_eq!(configuration.row_groups, 1);
                assert_eq!(trace.workers.len(), configuration.threads);
                for (index, worker) in trace.workers.iter().enumerate() {
                    let layers = model.layers().iter().zip(&configuration.layers);
                    for (at, (layer, plan)) in layers.enumerate() {
                        for activity in Activity::ALL {
                            let found = worker.layers[at].spent(activity).calls;
                            seen[activity as usize] += found;
                            if let Some(mut expected) =
                                calls(layer, plan, index, steps as u64, activity)
                            {
                                // Output past the ends is zeroed as the last layer's.
                                expected += u64::from(activity == Activity::States && at == 1);
                                let what = format!("{activity:?}, {cell:?}, {threads} threads");
                                assert_eq!(found, expected, "{what}, way {way}, layer {at}");
                            }
                        }
                    }
                    let waits = worker.layers[1].spent(Activity::Waiting).calls > 0;
                    assert_eq!(waits, configuration.layers[1].is_owner(index));
                }
            }
        }
    }
    assert!(seen.iter().all(|&calls| calls > 0), "{seen:?}");
}
