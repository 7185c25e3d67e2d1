//! Plans as data: what they promise holds for every size and device.

use gatestream::model::Matrix;
use gatestream_cuda::{
    Device, Exchange, LaunchPlan, PlanError, RecurrenceSize, TunedPlans, TunedPlansError,
    WeightType, pack_recurrent,
};

/// Sizes of all kinds, small and large, and not of whole chunks.
fn sizes() -> impl Iterator<Item = RecurrenceSize> {
    let hidden = [
        1, 31, 64, 128, 129, 256, 400, 512, 768, 1024, 1500, 2048, 4096,
    ];
    let cells = [(4, false), (3, false), (3, true), (2, false), (1, false)];
    hidden.into_iter().flat_map(move |hidden| {
        cells.into_iter().flat_map(move |(gates, resets_before)| {
            [1, 2].into_iter().flat_map(move |directions| {
                [1, 3, 16, 64, 512].into_iter().flat_map(move |batch| {
                    [WeightType::F32, WeightType::Bf16].map(|weights| RecurrenceSize {
                        hidden,
                        gates,
                        resets_before,
                        directions,
                        batch,
                        weights,
                    })
                })
            })
        })
    })
}

#[test]
fn every_plan_fits_its_device() {
    for device in Device::ALL {
        for size in sizes() {
            for plan in LaunchPlan::candidates(&device, size) {
                let what = format!("{size:?} {plan:?}");
                // Blocks that wait for each other are all resident: one a multiprocessor at most.
                let blocks = plan.blocks * plan.directions;
                assert!(blocks <= device.multiprocessors as usize, "{what}");
                assert!(plan.shared_bytes <= device.shared_bytes as usize, "{what}");
                // Every unit has a warp, and no block is idle.
                let of_block = plan.warps * plan.units;
                assert!(plan.padded_units() >= size.hidden, "{what}");
                assert!((plan.blocks - 1) * of_block < size.hidden, "{what}");
                // Each thread has a state at most; so says an assertion of the kernel.
                assert!(plan.tile * of_block <= plan.threads(), "{what}");
                // Weights and sums in registers, of 255.
                let columns = plan.units * size.gates;
                let held = plan.register_chunks * columns * size.weights.bytes();
                assert!(held + plan.tile * columns <= 200, "{what}");
                if plan.exchange == Exchange::Cluster {
                    assert!(device.has_clusters() && plan.blocks <= 8, "{what}");
                }
            }
        }
    }
}

#[test]
fn every_size_up_to_4096_has_a_plan() {
    for device in Device::ALL {
        for size in sizes().filter(|size| size.hidden * size.directions <= 4096) {
            LaunchPlan::choose(&device, size).unwrap_or_else(|error| panic!("{size:?}: {error}"));
        }
    }
}

#[test]
fn a_state_that_is_too_large_is_refused_with_the_largest() {
    let size = |hidden| RecurrenceSize {
        hidden,
        gates: 1,
        resets_before: false,
        directions: 1,
        batch: 1,
        weights: WeightType::F32,
    };
    let Err(PlanError::TooLarge { largest, .. }) = LaunchPlan::choose(&Device::H100, size(1 << 20))
    else {
        panic!("planned");
    };
    assert!(LaunchPlan::choose(&Device::H100, size(largest)).is_ok());
    assert!(LaunchPlan::choose(&Device::H100, size(largest + 1)).is_err());
}

/// The papers' sizes: an LSTM of 1024 units stays on the chip of each device with enough of it.
#[test]
fn weights_of_1024_units_are_resident() {
    for device in [Device::A100, Device::H100, Device::B200] {
        for batch in [1, 16, 64] {
            let plan = LaunchPlan::choose(
                &device,
                RecurrenceSize {
                    hidden: 1024,
                    gates: 4,
                    resets_before: false,
                    directions: 1,
                    batch,
                    weights: WeightType::F32,
                },
            );
            assert_eq!(plan.unwrap().streamed_chunks(), 0, "{device:?} {batch}");
        }
    }
}

#[test]
fn each_weight_is_packed_once_at_its_place() {
    for hidden in [5, 130, 300] {
        for gates in [1, 3, 4] {
            let size = RecurrenceSize {
                hidden,
                gates,
                resets_before: false,
                directions: 1,
                batch: 1,
                weights: WeightType::F32,
            };
            let count = gates * hidden * hidden;
            let values = (1..=count).map(|value| value as f32);
            let matrix = Matrix::new(gates * hidden, hidden, values.collect()).unwrap();
            for plan in LaunchPlan::candidates(&Device::H100, size) {
                let bytes = pack_recurrent(0, &matrix, WeightType::F32, &plan).unwrap();
                let packed: Vec<f32> = bytes
                    .chunks(4)
                    .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
                    .collect();
                let mut found = 0;
                // [warp, chunk, unit, gate, lane, 4]
                let mut at = packed.iter();
                for warp in 0..plan.blocks * plan.warps {
                    for chunk in 0..plan.chunks {
                        for unit in 0..plan.units {
                            for gate in 0..gates {
                                for of_chunk in 0..128 {
                                    let value = *at.next().unwrap();
                                    let (j, k) = (warp * plan.units + unit, chunk * 128 + of_chunk);
                                    if j < hidden && k < hidden {
                                        assert_eq!(value, matrix.row(gate * hidden + j)[k]);
                                        found += 1;
                                    } else {
                                        assert_eq!(value.to_bits(), 0);
                                    }
                                }
                            }
                        }
                    }
                }
                assert_eq!((found, at.next()), (count, None));
            }
        }
    }
}

#[test]
fn files_of_tuned_plans_come_back_or_are_refused_by_their_line() {
    let device = Device::H100;
    let mut tuned = TunedPlans::new(device);
    for size in sizes() {
        for plan in LaunchPlan::candidates(&device, size) {
            tuned.insert(size, plan);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plans");
    tuned.save(&path).unwrap();
    assert_eq!(TunedPlans::load(&path, &device).unwrap(), tuned);

    let other = TunedPlans::load(&path, &Device::A100);
    assert!(
        matches!(other, Err(TunedPlansError::Device { .. })),
        "{other:?}"
    );
    let missing = TunedPlans::load(folder.path().join("none"), &device);
    assert!(
        matches!(missing, Err(TunedPlansError::File { .. })),
        "{missing:?}"
    );
    let heading = TunedPlans::new(device).to_text();
    for line in [
        "",
        "hidden 8",
        "hidden 8 gates 4 resets after directions 1 batch 1 weights f32: stamped units 3 tile 1",
        "hidden 8 gates 4 resets after directions 1 batch 1 weights f32: stamped units 1 tile 2",
        "hidden 0 gates 4 resets after directions 1 batch 1 weights f32: stamped units 1 tile 1",
        "hidden 8 gates 9 resets after directions 1 batch 1 weights f32: stamped units 1 tile 1",
        "hidden 08 gates 4 resets after directions 1 batch 1 weights f32: stamped units 1 tile 1",
        "hidden 9999 gates 4 resets after directions 1 batch 1 weights f32: stamped units 1 tile 1",
    ] {
        let read = TunedPlans::from_text(&format!("{heading}{line}\n"), &device);
        assert!(
            matches!(read, Err(TunedPlansError::Line { line: 2, .. })),
            "{line} {read:?}"
        );
    }
}
