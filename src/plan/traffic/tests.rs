use super::*;
use crate::machine::CacheKind;
use crate::model::{Gru, Lstm, Merge, Rnn};
use crate::schedule::DirectionSchedule;

/// Cores with private caches of these sizes, and no shared one.
fn cores(count: usize, l1: usize, l2: usize) -> Topology {
    let cpus: Vec<usize> = (0..count).collect();
    let mut topology = Topology::count_only(&cpus, "test".into());
    for cache in &mut topology.caches {
        cache.bytes = if cache.kind == CacheKind::Data {
            l1
        } else {
            l2
        };
    }
    topology
}

fn of(model: &Model, plan: &Configuration, size: (usize, usize), l2: usize) -> LayerTraffic {
    let topology = cores(plan.threads, 48 << 10, l2);
    plan.traffic(model, size.0, size.1, &topology)
        .unwrap()
        .remove(0)
}

fn near(found: u64, expected: u64) {
    let (found, expected) = (found as f64, expected as f64);
    assert!(
        (found - expected).abs() <= 0.01 * expected,
        "{found} is not {expected}"
    );
}

#[test]
fn an_lstm_on_two_cores_by_hand() {
    let model = Lstm::new(64, 256).random(1).unwrap();
    let mut plan = Configuration::with_threads(&model, 1, 100, 2);
    plan.layers[0].chunk_steps = 50;
    let traffic = of(&model, &plan, (1, 100), 4 << 20);
    assert_eq!(traffic.cores.len(), 2);
    for (index, core) in traffic.cores.iter().enumerate() {
        assert_eq!(core.units[0], 128 * index..128 * (index + 1));
        assert_eq!((core.sequences, core.home), (1, Level::L2));
        assert_eq!(core.step_weights, 512 << 10);
        assert_eq!(core.ahead_weights, 128 << 10);
        assert_eq!(core.ahead_results, 50 * 2048);
        let [l1, l2] = core.caches[..] else {
            panic!("{:?}", core.caches)
        };
        assert_eq!(
            (l1.level, l1.bytes, l2.level, l2.bytes),
            (1, 48 << 10, 2, 4 << 20)
        );
        // All of h, all own weights; own pre-activations in and out.
        near(l2.steps.first_step, 1024 + (512 << 10) + 2 * 2048);
        // What fits stays: only the state is new at each step.
        assert!(l2.kept > 0.999 && l2.steps.per_step < 1200, "{l2:?}");
        // Of L1, ten times too small for a cyclic sweep, nothing is kept.
        assert!(l1.kept < 0.001, "{l1:?}");
        near(l1.steps.per_step, 525_000 + 2 * 2048);
        // x of 50 steps, W, and 50 results in and out.
        near(l2.ahead, 50 * 256 + (128 << 10) + 2 * 50 * 2048);
        assert_eq!(l2.steps.total, l2.steps.first_step + 99 * l2.steps.per_step);
    }
    let (one, two) = (traffic.cores[0].caches[1], traffic.cores[1].caches[1]);
    assert_eq!(
        traffic.steps().per_step,
        one.steps.per_step + two.steps.per_step
    );
    assert_eq!(traffic.ahead(), one.ahead + two.ahead);
    let with_input = 2 * 256 + 64 * 1024 * 4 + 2 * 4096;
    let with_state = 2 * 1024 + 256 * 1024 * 4 + 2 * 4096;
    assert_eq!(traffic.forgetful, with_input + with_state);
}

/// The same product asked of the cost model directly, all cores at once.
#[test]
fn even_parts_are_those_of_the_split() {
    let model = Lstm::new(64, 512).random(1).unwrap();
    for (order, panels) in [(PanelOrder::Cyclic, 4), (PanelOrder::Serpentine, 2)] {
        let mut plan = Configuration::with_threads(&model, 1, 300, 4);
        (plan.layers[0].chunk_steps, plan.layers[0].order) = (30, order);
        let traffic = of(&model, &plan, (1, 300), 1 << 20);
        let problem = Problem {
            shape: Shape::f32(1, 512, 512, 4),
            grain: Grain {
                panels,
                ..Grain::default()
            },
            sequence: Sequence {
                steps: 300,
                chunk_steps: 30,
                kept_bytes: 4,
                streamed_bytes: 4,
            },
            cache: Cache::new(1 << 20, 16, 4096),
        };
        let split = Split {
            rows: 1,
            units: 4,
            depth: 1,
        };
        let (all, _) = problem.movement(split, order);
        let found = traffic.steps();
        assert_eq!(
            (found.first_step, found.per_step),
            (all.first_step, all.per_step)
        );
        // Some stays and some does not, or nothing would be told apart.
        let kept = traffic.cores[0].caches[1].kept;
        assert!((0.1..0.9).contains(&kept), "{kept}");
    }
}

/// Replays the pages of the weights that a core reads at each step in a cache of `room` pages that
/// drops what was read longest ago. The part that is found there at later steps.
fn replayed(blocks: &[usize], room: usize, serpentine: bool) -> f64 {
    let (mut cache, mut found, mut asked) = (Vec::new(), 0, 0);
    for step in 0..6 {
        for (block, &pages) in blocks.iter().enumerate() {
            let mut sweep: Vec<_> = (0..pages).map(|page| (block, page)).collect();
            if serpentine && step % 2 == 1 {
                sweep.reverse();
            }
            for page in sweep {
                let at = cache.iter().position(|kept| *kept == page);
                if step >= 2 {
                    asked += 1;
                    found += usize::from(at.is_some());
                }
                if let Some(at) = at.or((cache.len() == room).then_some(0)) {
                    cache.remove(at);
                }
                cache.push(page);
            }
        }
    }
    found as f64 / asked as f64
}

/// Two directions on one core push each other's weights out, unless it takes them in turn, as a
/// worker alone does.
#[test]
fn what_stays_of_two_directions_is_what_a_replay_finds() {
    // 256 units: 1 MiB of recurrent weights each.
    let model = Lstm::new(8, 256)
        .bidirectional(Merge::Sum)
        .random(1)
        .unwrap();
    let one = Lstm::new(8, 256).random(1).unwrap();
    for order in [PanelOrder::Cyclic, PanelOrder::Serpentine] {
        for mebibytes in [1, 4, 8] {
            for (model, threads, blocks) in [
                (&one, 1, &[256][..]),
                (&model, 1, &[256]),
                (&model, 2, &[256, 256]),
            ] {
                let mut plan = Configuration::with_threads(model, 1, 100, threads);
                for direction in &mut plan.layers[0].directions {
                    // The first worker has all of it.
                    direction.partition.units[0] = 0..256;
                    (direction.partition.units.iter_mut().skip(1)).for_each(|u| *u = 256..256);
                }
                (plan.layers[0].chunk_steps, plan.layers[0].order) = (10, order);
                // Away from the edge, which is as soft as pages fall on sets.
                let l2 = mebibytes * (768 << 10);
                let traffic = of(model, &plan, (1, 100), l2);
                let kept = traffic.cores[0].caches[1].kept;
                let expected = replayed(blocks, l2 / 4096, order == PanelOrder::Serpentine);
                let far = (kept - expected).abs();
                assert!(
                    far < 0.1,
                    "{order:?} {mebibytes} {blocks:?}: {kept}, not {expected}"
                );
            }
        }
    }
}

#[test]
fn groups_share_the_sequences_and_repeat_the_weights() {
    let model = Rnn::new(8, 32).random(1).unwrap();
    let one = Configuration::with_threads(&model, 5, 10, 1);
    let plan = Configuration {
        threads: 2,
        row_groups: 2,
        ..one
    };
    let traffic = of(&model, &plan, (5, 10), 1 << 20);
    let sequences: Vec<_> = traffic.cores.iter().map(|core| core.sequences).collect();
    assert_eq!(sequences, [3, 2]);
    for core in &traffic.cores {
        assert_eq!(core.units[0], 0..32);
        assert_eq!(
            (core.step_weights, core.ahead_weights),
            (32 * 32 * 4, 8 * 32 * 4)
        );
    }
}

#[test]
fn rows_taken_ahead_read_all_input_weights_on_few_cores() {
    let model = Gru::new(16, 64).random(1).unwrap();
    let mut plan = Configuration::with_threads(&model, 1, 12, 2);
    plan.layers[0].ahead = InputProjectionBy::even_rows(1);
    let traffic = of(&model, &plan, (1, 12), 1 << 20);
    let ahead: Vec<_> = traffic
        .cores
        .iter()
        .map(|core| core.ahead_weights)
        .collect();
    assert_eq!(ahead, [16 * 64 * 3 * 4, 0]);
    assert_eq!(traffic.cores[1].caches[1].ahead, 0);
    // Results stay with the owners, four parts of 12 steps of 32 units.
    assert!(
        traffic
            .cores
            .iter()
            .all(|core| core.ahead_results == 12 * 32 * 4 * 4)
    );
    // They come from another core's cache, at every step.
    let plan_of_owners = Configuration::with_threads(&model, 1, 12, 2);
    let own = of(&model, &plan_of_owners, (1, 12), 1 << 20);
    assert!(traffic.steps().per_step >= own.steps().per_step + 2 * 2 * 32 * 3 * 4);
}

#[test]
fn products_within_the_step_and_projections_are_weights_of_the_step() {
    let bytes = |model: &Model, ahead: bool| {
        let mut plan = Configuration::with_threads(model, 1, 10, 1);
        let direction = &model.layers()[0].directions()[0];
        if !ahead {
            plan.layers[0].directions[0].schedule = DirectionSchedule::none_ahead(direction);
        }
        let core = of(model, &plan, (1, 10), 1 << 20).cores.remove(0);
        (core.step_weights, core.ahead_weights, core.ahead_results)
    };
    let gru = Gru::new(5, 32)
        .reset(crate::model::ResetForm::Before)
        .random(1)
        .unwrap();
    let (input, recurrent) = (5 * 32 * 3 * 4, 32 * 32 * 3 * 4);
    assert_eq!(bytes(&gru, true), (recurrent, input, 10 * 32 * 3 * 4));
    assert_eq!(bytes(&gru, false), (input + recurrent, 0, 0));
    // 20 units and 7 rows take 2 panels and 1.
    let lstm = Lstm::new(5, 20).projection(7).random(1).unwrap();
    let step = 7 * 32 * 4 * 4 + 20 * 16 * 4;
    assert_eq!(bytes(&lstm, true), (step, 5 * 32 * 4 * 4, 10 * 32 * 4 * 4));
}

#[test]
fn no_input_and_no_work_move_nothing() {
    let model = Lstm::new(0, 16).random(1).unwrap();
    let plan = Configuration::with_threads(&model, 1, 10, 2);
    let traffic = of(&model, &plan, (1, 10), 1 << 20);
    assert_eq!(traffic.ahead(), 0);
    assert!(traffic.cores.iter().all(|core| core.ahead_weights == 0));
    // One group of units: the other core has nothing, and all of it stays.
    let idle = traffic
        .cores
        .iter()
        .find(|core| core.units[0].is_empty())
        .unwrap();
    assert_eq!((idle.step_weights, idle.caches[1].kept), (0, 1.0));
    for size in [(0, 10), (1, 0)] {
        let traffic = of(&model, &plan, size, 1 << 20);
        assert_eq!(traffic.steps(), Movement::default(), "{size:?}");
    }
}

#[test]
fn layers_that_differ_are_told_apart() {
    let model = Lstm::new(8, 32).layers(3).random(1).unwrap();
    let plan = Configuration::with_threads(&model, 1, 10, 2);
    let layers = plan
        .traffic(&model, 1, 10, &cores(2, 48 << 10, 1 << 20))
        .unwrap();
    assert_eq!(layers[1], layers[2]);
    assert_eq!(layers[0].cores[0].ahead_weights, 8 * 16 * 4 * 4);
    assert_eq!(layers[1].cores[0].ahead_weights, 32 * 16 * 4 * 4);
    let other = Lstm::new(8, 32).random(1).unwrap();
    assert!(
        plan.traffic(&other, 1, 10, &cores(2, 48 << 10, 1 << 20))
            .is_err()
    );
}

#[test]
fn weights_have_the_bytes_of_their_precision_and_states_those_of_f32() {
    let model = Lstm::new(64, 256).random(1).unwrap();
    let mut plan = Configuration::with_threads(&model, 1, 100, 2);
    plan.layers[0].chunk_steps = 50;
    for (precision, bytes) in [(Precision::Bf16, 2), (Precision::Int8, 1)] {
        let model = model.in_precision(precision).unwrap();
        let traffic = of(&model, &plan, (1, 100), 4 << 20);
        for core in &traffic.cores {
            assert_eq!(core.step_weights, 256 * 128 * 4 * bytes);
            assert_eq!(core.ahead_weights, 64 * 128 * 4 * bytes);
            assert_eq!(core.ahead_results, 50 * 2048);
            let l2 = core.caches[1];
            near(l2.steps.first_step, 1024 + 256 * 128 * 4 * bytes + 2 * 2048);
            near(l2.ahead, 50 * 256 + 64 * 128 * 4 * bytes + 2 * 50 * 2048);
        }
        let with_input = 2 * 256 + 64 * 1024 * bytes + 2 * 4096;
        let with_state = 2 * 1024 + 256 * 1024 * bytes + 2 * 4096;
        assert_eq!(traffic.forgetful, with_input + with_state);
        // 512 KiB of f32 on each core do not stay in 384 KiB, and the home is beyond it.
        let small = of(&model, &plan, (1, 100), 384 << 10);
        let core = &small.cores[0];
        assert_eq!(core.home, Level::L2, "{precision}");
        assert!(
            core.caches[1].kept > 0.9,
            "{precision} {}",
            core.caches[1].kept
        );
    }
    let small = of(&model, &plan, (1, 100), 384 << 10);
    assert_eq!(small.cores[0].home, Level::Memory);
}

#[test]
fn each_layer_has_the_bytes_of_its_own_precision() {
    let model = Lstm::new(32, 32).layers(3).projection(32).random(1);
    let each = [Precision::F32, Precision::Int8, Precision::Bf16];
    let model = model.unwrap().in_precisions(&each).unwrap();
    let plan = Configuration::with_threads(&model, 1, 10, 1);
    let topology = cores(1, 48 << 10, 1 << 20);
    let layers = plan.traffic(&model, 1, 10, &topology).unwrap();
    for (layer, bytes) in layers.iter().zip([4, 1, 2]) {
        let core = &layer.cores[0];
        // U and the projection.
        assert_eq!(core.step_weights, (32 * 32 * 4 + 32 * 32) * bytes);
        assert_eq!(core.ahead_weights, 32 * 32 * 4 * bytes);
    }
}
