//! The serving engine on the host as a device.

use std::sync::Arc;

use gatestream::execute::{
    Backend, PreparedModel, ResidentModel, ResidentNetwork, ResidentRoom, SessionError,
};
use gatestream::model::{Lstm, Model, Precision};
use gatestream::plan::Plan;
use gatestream_serve::Engine;
use gatestream_serve::cell_graph::{BatchSizes, Cells};
use gatestream_serve::engine::{EngineOptions, Request, Workers};
use gatestream_serve::networks::{
    Chain, ChainCell, DecoderCell, EncoderCell, Outputs, Seq2Seq, Until,
};

use super::Host;
use super::cases::{SMALL, bits, f32_weights, random, reference_states};
use super::resident_cases::{FEATURES, GO, Translation, sizes};
use crate::model::DeviceModel;
use crate::resident::ResidentStack;

/// The host as a backend, with states on the device or copied for each batch.
struct HostBackend {
    keeps_states: bool,
}

impl Backend for HostBackend {
    fn name(&self) -> &str {
        "host"
    }

    fn prepare(&self, model: &Model, plan: &Plan) -> Result<Box<dyn PreparedModel>, SessionError> {
        assert!(!self.keeps_states);
        let host = Host::with_limits_of(SMALL).expect("a compiler");
        let room = (plan.batch(), plan.steps());
        let model = DeviceModel::new(host, model, f32_weights(), room)?;
        Ok(Box::new(model))
    }

    fn prepare_resident(
        &self,
        network: &ResidentNetwork<'_>,
        room: ResidentRoom,
    ) -> Result<Option<Box<dyn ResidentModel>>, SessionError> {
        if !self.keeps_states {
            return Ok(None);
        }
        let host = Host::with_limits_of(SMALL).expect("a compiler");
        let stack = ResidentStack::new(host, network, &f32_weights(), room)?;
        Ok(Some(Box::new(stack)))
    }
}

fn host(keeps_states: bool) -> Arc<dyn Backend> {
    Arc::new(HostBackend { keeps_states })
}

/// Serves chains of these numbers of steps; their answers have the reference's bits.
fn check(
    backends: impl IntoIterator<Item = Arc<dyn Backend>>,
    options: &EngineOptions,
    lengths: impl IntoIterator<Item = usize>,
) {
    if Host::with_limits_of(SMALL).is_none() {
        return;
    }
    let model = Arc::new(Lstm::new(FEATURES, 8).random(15).unwrap());
    let cell = ChainCell::new(Arc::clone(&model)).unwrap();
    let mut cells = Cells::new();
    let chain = Chain::add(&mut cells, cell.with_backends(backends));
    let engine = Engine::start(cells, options).unwrap();
    let inputs = lengths.into_iter().enumerate();
    let inputs: Vec<Vec<f32>> = inputs
        .map(|(seed, steps)| random(steps * FEATURES, seed as u64))
        .collect();
    let requests = inputs.iter().map(|x| {
        let graph = chain.unfold(x, None, Outputs::Each).unwrap();
        Request::new(graph)
    });
    let tickets = engine.submit_all(requests).unwrap();
    for (x, ticket) in inputs.iter().zip(tickets) {
        let (y, _) = reference_states(&model, x, None, &sizes(&model));
        assert_eq!(bits(&ticket.wait().unwrap().values), bits(&y));
    }
}

#[test]
fn batches_with_copied_states_have_their_bits() {
    check([host(false)], &EngineOptions::default(), 1..4);
}

/// Two devices, more requests than slots, several tasks in flight.
#[test]
fn batches_with_states_on_two_devices_have_their_bits() {
    let options = EngineOptions {
        workers: Workers::Cores(vec![vec![0], vec![0]]),
        tasks_at_once: 3,
        sizes: vec![BatchSizes { min: 1, max: 2 }],
        ..EngineOptions::default()
    };
    let lengths = (0..12).map(|index| 1 + index % 4);
    check([host(true), host(true)], &options, lengths);
}

#[test]
fn encoders_and_decoders_run_on_the_device() {
    if Host::with_limits_of(SMALL).is_none() {
        return;
    }
    for precision in [Precision::F32, Precision::Bf16] {
        let of = Translation::new(precision);
        let encoder = EncoderCell::new(of.table.clone(), of.encoder.clone()).unwrap();
        let (table, weights) = (of.table.clone(), of.weights.clone());
        let decoder = DecoderCell::new(table, of.decoder.clone(), weights, of.bias.clone());
        let (encoder, decoder) = (
            encoder.with_backend(host(true)),
            decoder.unwrap().with_backend(host(true)),
        );
        let mut cells = Cells::new();
        let network = Seq2Seq::add(&mut cells, encoder, decoder, GO).unwrap();
        let options = EngineOptions {
            workers: Workers::Cores(vec![vec![0]]),
            sizes: vec![BatchSizes { min: 1, max: 2 }; 2],
            ..EngineOptions::default()
        };
        let engine = Engine::start(cells, &options).unwrap();
        let sources = [&[3, 599, 4][..], &[42], &[0, 300], &[5, 5, 5, 6]];
        let requests = sources.iter().enumerate().map(|(index, source)| {
            let (graph, feeding) = network.unfold(source, Until::Steps(2 + index)).unwrap();
            Request::new(graph).grow(feeding)
        });
        let tickets = engine.submit_all(requests).unwrap();
        for (index, (source, ticket)) in sources.iter().zip(tickets).enumerate() {
            let symbols = ticket.wait().unwrap().values;
            assert_eq!(symbols, of.expected(source, 2 + index), "{source:?}");
        }
    }
}
