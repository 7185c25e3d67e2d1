//! Stacks whose layers run at once: streams run as late as events allow.

use gatestream::execute::PreparedModel;
use gatestream::model::{Gru, Lstm, Merge, Model, ResetForm};

use super::Host;
use super::cases::{CLUSTERS, SMALL, f32_weights, ran, reference_of};
use crate::Device;
use crate::layer::Settings;
use crate::model::DeviceModel;

/// A device with room for three layers at once.
const DEVICE: Device = Device {
    multiprocessors: 12,
    ..SMALL
};

/// Chunks of a step or more.
fn short_chunks() -> Settings {
    Settings {
        least_chunk: 1,
        ..f32_weights()
    }
}

fn check(device: Device, model: &Model, lengths: &[usize]) {
    let Some(host) = Host::with_limits_of(device) else {
        return;
    };
    let room = (lengths.len(), 20);
    let mut on_host = DeviceModel::new(host, model, short_chunks(), room).unwrap();
    assert!(on_host.is_wavefront());
    // The second run meets the states and words of the first.
    for seed in [5, 50] {
        let found = ran(model, lengths, seed, |input, output| {
            on_host.run(input, output).unwrap()
        });
        assert!(found == reference_of(model, lengths, seed), "{lengths:?}");
    }
}

#[test]
fn layers_at_once_have_the_references_bits() {
    // Chunks have two or three steps: some sequences end in the first, some at its end.
    let lengths = [4, 0, 7, 2, 3, 20];
    for device in [
        DEVICE,
        Device {
            multiprocessors: 12,
            ..CLUSTERS
        },
    ] {
        let lstm = Lstm::new(3, 9).layers(3).random(1).unwrap();
        check(device, &lstm, &lengths);
        let gru = Gru::new(5, 12).layers(2).reset(ResetForm::Before);
        check(device, &gru.random(2).unwrap(), &lengths);
        check(device, &lstm, &[1]);
    }
}

#[test]
fn steps_go_on_from_a_wavefront() {
    let model = Lstm::new(3, 9).layers(2).random(3).unwrap();
    let Some(host) = Host::with_limits_of(DEVICE) else {
        return;
    };
    let mut on_host = DeviceModel::new(host, &model, short_chunks(), (2, 1)).unwrap();
    assert!(!on_host.is_wavefront());
    on_host.reserve(2, 20).unwrap();
    assert!(on_host.is_wavefront());
    for lengths in [[20, 3], [1, 0], [9, 9]] {
        let found = ran(&model, &lengths, 7, |input, output| {
            on_host.run(input, output).unwrap()
        });
        assert!(found == reference_of(&model, &lengths, 7), "{lengths:?}");
    }
}

#[test]
fn other_models_have_the_device_alone() {
    let is_wavefront = |model: &Model, settings: Settings, room| {
        let host = Host::with_limits_of(DEVICE)?;
        Some(
            DeviceModel::new(host, model, settings, room)
                .unwrap()
                .is_wavefront(),
        )
    };
    let one = Lstm::new(3, 9).random(1).unwrap();
    let both = Lstm::new(3, 9).layers(2).bidirectional(Merge::Concat);
    let both = both.random(1).unwrap();
    // As many units as twelve multiprocessors hold, in each of two layers.
    let large = Lstm::new(3, 260).layers(2).random(1).unwrap();
    for model in [&one, &both, &large] {
        assert_ne!(is_wavefront(model, short_chunks(), (2, 20)), Some(true));
    }
    let two = Lstm::new(3, 9).layers(2).random(1).unwrap();
    assert_ne!(is_wavefront(&two, short_chunks(), (2, 20)), Some(false));
    // Sequences of one chunk.
    let long_chunks = Settings {
        least_chunk: 20,
        ..f32_weights()
    };
    assert_ne!(is_wavefront(&two, long_chunks, (2, 20)), Some(true));
}
