//! Models on a GPU have the bits of the reference with the order of sums of a GPU. Skipped without
//! one, unless it is required.
#![cfg(feature = "cuda")]

use std::sync::Arc;

use gatestream::execute::{Backend, PreparedModel};
use gatestream::model::{
    Activation, Builder, Cell, Gru, Input, Lstm, Merge, Model, Output, ResetForm, Rnn,
};
use gatestream::plan::Plan;
use gatestream::reference::{self, SumOrder};
use gatestream_cuda::{Cuda, DriverError};
use gatestream_serve::Engine;
use gatestream_serve::cell_graph::{BatchSizes, Cells};
use gatestream_serve::engine::{EngineOptions, Request, Workers};
use gatestream_serve::networks::{Chain, ChainCell, Outputs};

/// If set, the tests fail without a GPU.
const REQUIRED: &str = "GATESTREAM_REQUIRE_CUDA";

fn gpu() -> Option<Cuda> {
    match Cuda::open(0) {
        Ok(cuda) => Some(cuda),
        Err(error @ (DriverError::NoLibrary { .. } | DriverError::NoDevice { .. })) => {
            assert!(std::env::var_os(REQUIRED).is_none(), "{error}");
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| rng.f32() * 2.0 - 1.0).collect()
}

/// The bits of outputs and final states of ragged sequences.
fn bits(
    model: &Model,
    lengths: &[usize],
    run: impl FnOnce(&Input<'_>, &mut Output<'_>),
) -> Vec<u32> {
    let (batch, steps) = (lengths.len(), lengths.iter().copied().max().unwrap());
    let signature = model.signature();
    let x = random(batch * steps * signature.input, 1);
    let h0 = random(batch * signature.hidden_state, 2);
    let c0 = random(batch * signature.cell_state, 3);
    let mut y = vec![f32::NAN; batch * steps * signature.output];
    let (mut hn, mut cn) = (h0.clone(), c0.clone());
    let input = Input::new(&x, steps, batch)
        .lengths(lengths)
        .h0(&h0)
        .c0(&c0);
    run(&input, &mut Output::new(&mut y).hn(&mut hn).cn(&mut cn));
    [y, hn, cn]
        .concat()
        .iter()
        .map(|value| value.to_bits())
        .collect()
}

fn check(cuda: &Cuda, model: &Model, lengths: &[usize]) {
    let steps = lengths.iter().copied().max().unwrap();
    let plan = Plan::estimate(model, lengths.len(), steps, 1);
    let mut prepared: Box<dyn PreparedModel> = cuda.prepare(model, &plan).unwrap();
    let expected = bits(model, lengths, |input, output| {
        reference::run_in(SumOrder::Lanes, model, input, output).unwrap();
    });
    for _ in 0..3 {
        let found = bits(model, lengths, |input, output| {
            prepared.run(input, output).unwrap()
        });
        assert!(
            found == expected,
            "{:?} {lengths:?}",
            model.layers()[0].directions()[0].cell()
        );
    }
}

#[test]
fn every_cell_has_the_references_bits() {
    let Some(cuda) = gpu() else { return };
    let light = Cell::LightGru {
        gate: Activation::Sigmoid,
        candidate: Activation::Relu,
    };
    for hidden in [40, 300] {
        for model in [
            Lstm::new(20, hidden).random(1),
            Gru::new(20, hidden).random(2),
            Gru::new(20, hidden).reset(ResetForm::Before).random(3),
            Builder::<Cell>::with_cell(light, 20, hidden).random(4),
            Rnn::new(20, hidden).random(5),
        ] {
            check(&cuda, &model.unwrap(), &[9, 3, 0, 12, 12]);
        }
    }
}

#[test]
fn stacks_of_both_directions_have_them() {
    let Some(cuda) = gpu() else { return };
    for merge in [Merge::Concat, Merge::Sum] {
        let model = Lstm::new(20, 130).layers(2).bidirectional(merge).random(6);
        check(&cuda, &model.unwrap(), &[5, 17, 1]);
    }
}

#[test]
fn large_states_and_batches_have_them() {
    let Some(cuda) = gpu() else { return };
    check(&cuda, &Lstm::new(64, 1024).random(7).unwrap(), &[20]);
    check(&cuda, &Lstm::new(64, 2048).random(8).unwrap(), &[3; 4]);
    let lengths: Vec<usize> = (0..70).map(|row| 1 + row % 9).collect();
    check(&cuda, &Gru::new(64, 512).random(9).unwrap(), &lengths);
}

/// Layers that fit on the chip together, and sequences of several chunks.
#[test]
fn layers_at_once_have_them() {
    let Some(cuda) = gpu() else { return };
    let lengths = [300, 7, 64, 0, 33];
    check(
        &cuda,
        &Lstm::new(20, 128).layers(4).random(10).unwrap(),
        &lengths,
    );
    check(
        &cuda,
        &Gru::new(20, 200).layers(2).random(11).unwrap(),
        &lengths,
    );
}

/// Many requests with states on the device and several steps in flight.
#[test]
fn a_serving_engine_has_them() {
    let Some(cuda) = gpu() else { return };
    let model = Arc::new(Lstm::new(20, 130).layers(2).random(12).unwrap());
    let cell = ChainCell::new(Arc::clone(&model)).unwrap();
    let mut cells = Cells::new();
    let chain = Chain::add(&mut cells, cell.with_backend(Arc::new(cuda)));
    let options = EngineOptions {
        workers: Workers::OneOver(1),
        sizes: vec![BatchSizes { min: 1, max: 16 }],
        tasks_at_once: 5,
        ..EngineOptions::default()
    };
    let engine = Engine::start(cells, &options).unwrap();
    let inputs: Vec<Vec<f32>> = (0..200)
        .map(|index| random((1 + index % 30) * 20, index as u64))
        .collect();
    let requests = inputs.iter().map(|x| {
        let graph = chain.unfold(x, None, Outputs::Each).unwrap();
        Request::new(graph)
    });
    let tickets = engine.submit_all(requests).unwrap();
    for (x, ticket) in inputs.iter().zip(tickets) {
        let mut y = vec![0.0; x.len() / 20 * 130];
        let input = Input::new(x, x.len() / 20, 1);
        reference::run_in(SumOrder::Lanes, &model, &input, &mut Output::new(&mut y)).unwrap();
        let found = ticket.wait().unwrap().values;
        let same = found
            .iter()
            .zip(&y)
            .all(|(found, y)| found.to_bits() == y.to_bits());
        assert!(same && found.len() == y.len());
    }
}

/// Also where there is a GPU: the numbers of devices end somewhere.
#[test]
fn a_missing_device_is_a_typed_error() {
    match Cuda::open(1 << 20) {
        Err(DriverError::NoLibrary { library }) => assert_eq!(library, "libcuda"),
        Err(DriverError::NoDevice { ordinal, .. }) => assert_eq!(ordinal, 1 << 20),
        // A driver without any device.
        Err(DriverError::Call { .. }) => {}
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("there is a device {}", 1 << 20),
    }
}
