//! Models on the host as a device have the bits of the reference with the order of sums of a GPU.

use std::sync::Arc;

use gatestream::execute::{PreparedModel, RunError, Steps};
use gatestream::kernels::{RowsMut, RowsRef};
use gatestream::model::{
    Activation, Builder, Cell, Direction, Gru, Input, Layer, Layout, Lstm, Matrix, Merge, Model,
    Output, Peepholes, Precision, ResetForm, Rnn, Weights,
};
use gatestream::reference::{self, SumOrder};

use super::Host;
use crate::layer::Settings;
use crate::model::DeviceModel;
use crate::plan::{Exchange, RecurrenceSize};
use crate::tune::tune;
use crate::{Device, LaunchPlan, PlanError, TunedPlans, WeightType};

/// A device with few multiprocessors, so that a warp has several units, and no clusters.
pub(super) const SMALL: Device = Device {
    capability: (8, 0),
    multiprocessors: 4,
    shared_bytes: 48 << 10,
};

/// The same with clusters.
pub(super) const CLUSTERS: Device = Device {
    capability: (9, 0),
    ..SMALL
};

/// A row of lengths with an empty one and equal ones, not in order.
const RAGGED: [usize; 5] = [4, 0, 5, 1, 5];

/// One warp a block: fewer threads than a device would have.
fn one_warp(device: &Device, size: RecurrenceSize) -> Result<LaunchPlan, PlanError> {
    let mut plan = LaunchPlan::choose(device, size)?;
    plan.warps = 1;
    plan.blocks = size.hidden.div_ceil(plan.units);
    Ok(plan)
}

fn settings(weights: WeightType) -> Settings {
    Settings {
        weights,
        choose: Arc::new(LaunchPlan::choose),
        least_chunk: usize::MAX,
    }
}

pub(super) fn f32_weights() -> Settings {
    settings(WeightType::F32)
}

/// `None` without a C++ compiler.
fn prepared(
    device: Device,
    model: &Model,
    settings: Settings,
    room: (usize, usize),
) -> Option<DeviceModel<Host>> {
    let host = Host::with_limits_of(device)?;
    Some(DeviceModel::new(host, model, settings, room).unwrap())
}

pub(super) fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| rng.f32() * 2.0 - 1.0).collect()
}

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The bits of outputs and final states.
#[derive(PartialEq)]
pub(super) struct Ran([Vec<u32>; 3]);

/// Runs random sequences with initial states.
pub(super) fn ran(
    model: &Model,
    lengths: &[usize],
    seed: u64,
    run: impl FnOnce(&Input<'_>, &mut Output<'_>),
) -> Ran {
    let (batch, steps) = (lengths.len(), lengths.iter().copied().max().unwrap());
    let signature = model.signature();
    let x = random(batch * steps * signature.input, seed);
    let h0 = random(batch * signature.hidden_state, seed + 1);
    let c0 = random(batch * signature.cell_state, seed + 2);
    let mut y = vec![f32::NAN; batch * steps * signature.output];
    let mut hn = vec![f32::NAN; h0.len()];
    let mut cn = vec![f32::NAN; c0.len()];
    let input = Input::new(&x, steps, batch)
        .lengths(lengths)
        .h0(&h0)
        .c0(&c0);
    run(&input, &mut Output::new(&mut y).hn(&mut hn).cn(&mut cn));
    Ran([&y, &hn, &cn].map(|values| bits(values)))
}

fn check_with(
    device: Device,
    model: &Model,
    settings: Settings,
    lengths: &[usize],
    expected: &Model,
) {
    let room = (lengths.len(), lengths.iter().copied().max().unwrap());
    let Some(mut on_host) = prepared(device, model, settings, room) else {
        return;
    };
    // The second run meets the words of the first.
    for seed in [5, 50] {
        let found = ran(model, lengths, seed, |input, output| {
            on_host.run(input, output).unwrap()
        });
        let plans: Vec<_> = on_host.plans().collect();
        let cell = model.layers()[0].directions()[0].cell();
        let is_right = found == reference_of(expected, lengths, seed);
        assert!(is_right, "{cell:?} {lengths:?} {plans:?}");
    }
}

pub(super) fn reference_of(model: &Model, lengths: &[usize], seed: u64) -> Ran {
    ran(model, lengths, seed, |input, output| {
        reference::run_in(SumOrder::Lanes, model, input, output).unwrap();
    })
}

/// The outputs of a sequence, and its states after each step, those of each layer one after the
/// other.
pub(super) fn reference_states(
    model: &Model,
    x: &[f32],
    initial: Option<&[f32]>,
    sizes: &[usize],
) -> (Vec<f32>, Vec<Vec<f32>>) {
    let signature = model.signature();
    let steps = x.len() / signature.input;
    let has_cell = signature.cell_state > 0;
    // Hidden and cell states take turns; the reference has them apart.
    let of = |index: usize| usize::from(has_cell && index % 2 == 1);
    let mut states: [Vec<f32>; 2] = [vec![], vec![]];
    let zeros = vec![0.0; sizes.iter().sum()];
    let mut rest = initial.unwrap_or(&zeros);
    for (index, size) in sizes.iter().enumerate() {
        states[of(index)].extend(rest.split_off(..*size).unwrap());
    }
    let (mut y, mut all) = (Vec::new(), Vec::new());
    for step in 0..steps {
        let x = &x[step * signature.input..][..signature.input];
        let [h0, c0] = states.clone();
        let [hn, cn] = &mut states;
        let mut values = vec![0.0; signature.output];
        let input = Input::new(x, 1, 1).h0(&h0).c0(&c0);
        let mut output = Output::new(&mut values).hn(hn).cn(cn);
        reference::run_in(SumOrder::Lanes, model, &input, &mut output).unwrap();
        y.extend(values);
        let mut rest = [&states[0][..], &states[1]];
        let after = sizes.iter().enumerate();
        let after = after.flat_map(|(index, size)| rest[of(index)].split_off(..*size).unwrap());
        all.push(after.copied().collect());
    }
    (y, all)
}

fn check(device: Device, model: &Model) {
    check_with(device, model, f32_weights(), &RAGGED, model);
}

/// All cells, of which each has other formulas.
pub(super) fn cells() -> Vec<Cell> {
    let gru = |reset| Cell::Gru {
        gate: Activation::Sigmoid,
        candidate: Activation::Tanh,
        reset,
    };
    vec![
        Cell::LSTM,
        Cell::Lstm {
            gate: Activation::HardSigmoid {
                alpha: 0.2,
                beta: 0.5,
            },
            candidate: Activation::Softsign,
            output: Activation::Elu { alpha: 1.0 },
            input_forget: true,
        },
        gru(ResetForm::After),
        gru(ResetForm::Before),
        Cell::LightGru {
            gate: Activation::Sigmoid,
            candidate: Activation::Relu,
        },
        Cell::RNN,
    ]
}

#[test]
fn every_cell_has_the_references_bits() {
    for cell in cells() {
        check(
            SMALL,
            &Builder::<Cell>::with_cell(cell, 3, 37).random(1).unwrap(),
        );
    }
}

#[test]
fn every_cell_has_them_in_a_cluster() {
    for cell in cells() {
        let model = Builder::<Cell>::with_cell(cell, 3, 37).random(2).unwrap();
        let size = |plan: &LaunchPlan| assert_eq!(plan.exchange, Exchange::Cluster);
        if let Some(on_host) = prepared(CLUSTERS, &model, f32_weights(), (5, 5)) {
            on_host.plans().for_each(size);
        }
        check(CLUSTERS, &model);
    }
}

#[test]
fn both_directions_and_layers_have_them() {
    for merge in [Merge::Concat, Merge::Sum] {
        for device in [SMALL, CLUSTERS] {
            let model = Lstm::new(5, 12)
                .layers(2)
                .bidirectional(merge)
                .random(3)
                .unwrap();
            check(device, &model);
            let model = Gru::new(5, 9).reset(ResetForm::Before).bidirectional(merge);
            check(device, &model.random(4).unwrap());
        }
    }
    let reversed = Rnn::new(2, 6).random(1).unwrap();
    let direction = reversed.layers()[0].directions()[0].clone().reversed();
    check(SMALL, &Model::new(vec![Layer::single(direction)]).unwrap());
}

#[test]
fn batches_have_them_for_every_tile() {
    let model = Lstm::new(2, 10).random(5).unwrap();
    for lengths in [
        &[3][..],
        &[2, 3],
        &[3; 3],
        &[1; 4],
        &[2; 7],
        &[1, 2, 3, 4, 3, 2, 1, 0, 2, 2, 1],
    ] {
        check_with(SMALL, &model, f32_weights(), lengths, &model);
        check_with(CLUSTERS, &model, f32_weights(), lengths, &model);
    }
}

/// The states of 300 units are three chunks: in registers, in shared memory, or neither.
#[test]
fn weights_have_them_wherever_they_are() {
    let device = Device {
        multiprocessors: 20,
        shared_bytes: 1 << 20,
        ..SMALL
    };
    let model = Rnn::new(3, 300).random(6).unwrap();
    let lstm = Lstm::new(3, 130).random(6).unwrap();
    for (register_chunks, shared_chunks) in [(3, 0), (0, 3), (0, 0), (1, 1), (2, 0)] {
        let choose = move |device: &Device, size: RecurrenceSize| {
            let mut plan = LaunchPlan::choose(device, size)?;
            assert_eq!(plan.chunks, 3);
            let chunk = plan.warps * plan.units * size.gates * 128 * 4;
            plan.shared_bytes += shared_chunks * chunk - plan.shared_chunks * chunk;
            (plan.register_chunks, plan.shared_chunks) = (register_chunks, shared_chunks);
            Ok(plan)
        };
        let settings = Settings {
            choose: Arc::new(choose),
            ..f32_weights()
        };
        check_with(device, &model, settings, &[2, 3], &model);
    }
    check_with(device, &lstm, f32_weights(), &[2, 3], &lstm);
}

#[test]
fn weights_in_16_bits_have_the_bits_of_their_values() {
    let model = Lstm::new(3, 20).random(7).unwrap();
    let bf16 = model.in_precision(Precision::Bf16).unwrap();
    check_with(SMALL, &bf16, settings(WeightType::Bf16), &RAGGED, &bf16);
    // f32 weights are rounded as those of a bf16 model.
    check_with(SMALL, &model, settings(WeightType::Bf16), &RAGGED, &bf16);

    // All kinds of binary16: large, small, subnormal, zeros.
    let mut values = random(4 * 20 * 20, 8);
    let special = [0.0, -0.0, 65504.0, -6e-8, 5.96e-8, 6.1e-5, 3e-5, 1e-9, -1.0];
    values[..special.len()].copy_from_slice(&special);
    let rounded: Vec<f32> = values
        .iter()
        .map(|v| half::f16::from_f32(*v).to_f32())
        .collect();
    let with = |recurrent: Vec<f32>| {
        let weights = model.layers()[0].directions()[0].weights();
        let input: Vec<f32> = (0..80)
            .flat_map(|row| weights.input.row(row).into_owned())
            .collect();
        let rounded = input.iter().map(|v| half::f16::from_f32(*v).to_f32());
        let weights = Weights {
            input: Matrix::new(80, 3, rounded.collect()).unwrap(),
            recurrent: Matrix::new(80, 20, recurrent).unwrap(),
            ..weights.clone()
        };
        let direction = Direction::new(Cell::LSTM, weights).unwrap();
        Model::new(vec![Layer::single(direction)]).unwrap()
    };
    let f16 = settings(WeightType::F16);
    check_with(SMALL, &with(values), f16, &RAGGED, &with(rounded));
}

#[test]
fn peepholes_and_clips_have_them() {
    let model = Lstm::new(3, 20).random(9).unwrap();
    let weights = model.layers()[0].directions()[0].weights().clone();
    let peephole = |seed| random(20, seed);
    let weights = Weights {
        peepholes: Some(Peepholes {
            input: peephole(1),
            forget: peephole(2),
            output: peephole(3),
        }),
        ..weights
    };
    let direction = Direction::new(Cell::LSTM, weights).unwrap();
    let clipped = direction.clone().with_clip(0.3).unwrap();
    for direction in [direction, clipped.clone(), clipped.clipping_output()] {
        check(SMALL, &Model::new(vec![Layer::single(direction)]).unwrap());
    }
}

/// With an input and states of zero, the bias is the argument of the activation.
#[test]
fn activations_have_them_for_all_kinds_of_arguments() {
    let mut values = random(400, 10);
    for (index, value) in values.iter_mut().enumerate() {
        *value *= [1e-30, 1e-3, 1.0, 10.0, 120.0][index % 5];
    }
    values.extend([
        0.0,
        0.625,
        -0.625,
        9.02,
        104.0,
        -104.0,
        1e30,
        -1e30,
        f32::MAX,
        f32::MIN,
    ]);
    values.extend([
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MIN_POSITIVE,
        1e-44,
        88.7,
        -87.4,
    ]);
    let device = Device {
        multiprocessors: 8,
        ..SMALL
    };
    let (alpha, beta) = (0.3, 0.7);
    for activation in [
        Activation::Sigmoid,
        Activation::Tanh,
        Activation::Relu,
        Activation::Affine { alpha, beta },
        Activation::LeakyRelu { alpha },
        Activation::ThresholdedRelu { alpha },
        Activation::ScaledTanh { alpha, beta },
        Activation::HardSigmoid { alpha, beta },
        Activation::Elu { alpha },
        Activation::Softsign,
        Activation::Softplus,
    ] {
        let model = Rnn::new(1, values.len()).activation(activation);
        let model = model.build(|slot| Weights {
            input: Matrix::new(slot.hidden, 1, vec![0.0; slot.hidden]).unwrap(),
            recurrent: Matrix::new(slot.hidden, slot.hidden, vec![0.0; slot.hidden.pow(2)])
                .unwrap(),
            input_bias: values.clone(),
            recurrent_bias: vec![0.0; slot.hidden],
            peepholes: None,
            projection: None,
        });
        check_with(
            device,
            &model.as_ref().unwrap().clone(),
            f32_weights(),
            &[1],
            &model.unwrap(),
        );
    }
}

#[test]
fn steps_have_the_bits_of_a_whole_run() {
    let model = Lstm::new(3, 8).layers(2).random(11).unwrap();
    let Some(mut on_host) = prepared(SMALL, &model, f32_weights(), (2, 4)) else {
        return;
    };
    let x = random(4 * 2 * 3, 1);
    let mut whole = [0.0; 4 * 2 * 8];
    on_host
        .run(
            &Input::new(&x, 4, 2).layout(Layout::TimeMajor),
            &mut Output::new(&mut whole),
        )
        .unwrap();
    let mut states = [[0.0; 2 * 8]; 4];
    let mut stepped = [0.0; 4 * 2 * 8];
    // A step of the first stream, three of the second, then the others.
    let order = [1, 0];
    for (first, lengths) in [([0, 0], [1, 3]), ([1, 3], [3, 1])] {
        // Streams are given in another order than they have in the batch.
        let mut rows = vec![0.0; 3 * 2 * 3];
        for (at, stream) in order.iter().enumerate() {
            for step in 0..lengths[*stream] {
                let from = ((first[*stream] + step) * 2 + stream) * 3;
                rows[(step * 2 + at) * 3..][..3].copy_from_slice(&x[from..from + 3]);
            }
        }
        let lengths = order.map(|stream| lengths[stream]);
        let mut y = vec![f32::NAN; 3 * 2 * 8];
        let steps = Steps::several(&lengths, RowsRef::contiguous(&rows, 3));
        let mut blocks = states.iter_mut().map(|state| RowsMut::contiguous(state, 8));
        on_host
            .step_rows(steps, &mut blocks, Some(RowsMut::contiguous(&mut y, 8)))
            .unwrap();
        for (at, stream) in order.iter().enumerate() {
            for step in 0..3 {
                let from = &y[(step * 2 + at) * 8..][..8];
                if step < lengths[at] {
                    stepped[((first[*stream] + step) * 2 + stream) * 8..][..8]
                        .copy_from_slice(from);
                } else {
                    assert_eq!(from, [0.0; 8]);
                }
            }
        }
    }
    assert_eq!(bits(&stepped), bits(&whole));
}

/// Runs of two steps leave the words of both in place. A run that starts at 1 again would take them
/// for new ones if they were not cleared.
#[test]
fn stamps_start_again_when_they_are_used_up() {
    let model = Gru::new(2, 9).random(12).unwrap();
    let Some(mut on_host) = prepared(SMALL, &model, f32_weights(), (2, 2)) else {
        return;
    };
    for (stamp, seed) in [(1, 5), (u32::MAX, 50), (u32::MAX - 1, 7), (u32::MAX - 2, 9)] {
        on_host.set_stamp(stamp);
        let found = ran(&model, &[2, 2], seed, |input, output| {
            on_host.run(input, output).unwrap()
        });
        assert!(found == reference_of(&model, &[2, 2], seed), "{stamp}");
    }
}

#[test]
fn one_warp_a_block_has_them() {
    let model = Gru::new(2, 9).reset(ResetForm::Before).random(13).unwrap();
    let settings = Settings {
        choose: Arc::new(one_warp),
        ..f32_weights()
    };
    let device = Device {
        multiprocessors: 9,
        ..SMALL
    };
    check_with(device, &model, settings, &[3, 2, 3], &model);
}

#[test]
fn refusals_are_typed_and_change_nothing() {
    let refused = |model: &Model, says: &str| {
        let Some(host) = Host::with_limits_of(SMALL) else {
            return;
        };
        let error = DeviceModel::new(host, model, f32_weights(), (1, 1))
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(says), "{error}");
    };
    refused(
        &Lstm::new(3, 8).projection(4).random(1).unwrap(),
        "projection",
    );
    refused(&Rnn::new(3, 2000).zeros().unwrap(), "fit on 4");
    let int8 = Lstm::new(3, 8)
        .random(1)
        .unwrap()
        .in_precision(Precision::Int8)
        .unwrap();
    refused(&int8, "layer 0: the precision int8");

    let model = Rnn::new(1, 4).random(1).unwrap();
    let Some(mut on_host) = prepared(SMALL, &model, f32_weights(), (1, 2)) else {
        return;
    };
    let mut y = [7.0; 12];
    let run = on_host.run(&Input::new(&[0.0; 3], 3, 1), &mut Output::new(&mut y));
    assert!(matches!(run, Err(RunError::Capacity { .. })), "{run:?}");
    assert_eq!(y, [7.0; 12]);
    on_host.reserve(1, 3).unwrap();
    on_host
        .run(&Input::new(&[0.0; 3], 3, 1), &mut Output::new(&mut y))
        .unwrap();
    let mut expected = [0.0; 12];
    let input = Input::new(&[0.0; 3], 3, 1);
    reference::run_in(
        SumOrder::Lanes,
        &model,
        &input,
        &mut Output::new(&mut expected),
    )
    .unwrap();
    assert_eq!(y, expected);
    assert!(on_host.reserve(usize::MAX / 2, 2).is_err());

    let x = [0.0; 2];
    let step = |on_host: &mut DeviceModel<Host>, states: &mut [Vec<f32>], y: &mut [f32]| {
        let mut states = states.iter_mut().map(|of| RowsMut::contiguous(of, 4));
        let steps = Steps::one(1, RowsRef::contiguous(&x, 1));
        let ran = on_host.step_rows(steps, &mut states, Some(RowsMut::contiguous(y, 4)));
        ran.err().map(|error| error.to_string())
    };
    let states = |count: usize, values| vec![vec![0.5; values]; count];
    for (states, y, says) in [
        (states(1, 3), 4, "states: expected 4 values, found 3"),
        (states(0, 4), 4, "states: expected 4 values, found 0"),
        (states(2, 4), 4, "states: expected 0 values, found 4"),
        (states(1, 4), 2, "output: expected 4 values, found 2"),
    ] {
        let mut kept = states.clone();
        let error = step(&mut on_host, &mut kept, &mut vec![0.0; y]);
        assert_eq!((error.as_deref(), &kept), (Some(says), &states));
    }
    assert_eq!(step(&mut on_host, &mut states(1, 4), &mut [0.0; 4]), None);
}

#[test]
fn tuning_chooses_a_plan_that_fits_and_keeps_the_bits() {
    let model = Gru::new(9, 9).layers(2).random(14).unwrap();
    let Some(host) = Host::with_limits_of(CLUSTERS) else {
        return;
    };
    let tuned = tune(&host, &model, WeightType::F32, (1, 2)).unwrap();
    // Both layers have one size.
    assert_eq!(tuned.to_text().lines().count(), 2, "{}", tuned.to_text());
    let read = TunedPlans::from_text(&tuned.to_text(), &CLUSTERS).unwrap();
    assert_eq!(read, tuned);
    let size = RecurrenceSize::of_layer(&model.layers()[0], 1, WeightType::F32);
    let chosen = tuned.get(size).unwrap();
    assert!(LaunchPlan::candidates(&CLUSTERS, size).contains(&chosen));
    let settings = Settings {
        choose: Arc::new(move |_, size| Ok(read.get(size).unwrap())),
        ..f32_weights()
    };
    check_with(CLUSTERS, &model, settings, &[2], &model);
}
