//! The fastest plan of a layer, by timing all that fit.

use std::time::{Duration, Instant};

use gatestream::model::{Layer, Model};

use crate::arguments::Address;
use crate::driver::{Buffer, Driver, DriverError};
use crate::layer::{DeviceLayer, Extent, LayerRoom, StateRows, allocate, upload};
use crate::model::PrepareError;
use crate::{LaunchPlan, RecurrenceSize, TunedPlans, WeightType};

/// Timed runs of a plan, after one that is not.
const RUNS: usize = 5;

/// Times all plans of each layer of `model`, for `batch` sequences of `steps` steps.
pub(crate) fn tune<D: Driver>(
    driver: &D,
    model: &Model,
    weights: WeightType,
    room: (usize, usize),
) -> Result<TunedPlans, PrepareError> {
    let mut tuned = TunedPlans::new(driver.device());
    for (index, layer) in model.layers().iter().enumerate() {
        let size = RecurrenceSize::of_layer(layer, room.0, weights);
        if tuned.get(size).is_none() {
            tuned.insert(size, fastest(driver, index, layer, size, room)?);
        }
    }
    Ok(tuned)
}

/// The plan with the shortest run.
fn fastest<D: Driver>(
    driver: &D,
    index: usize,
    layer: &Layer,
    size: RecurrenceSize,
    room: (usize, usize),
) -> Result<LaunchPlan, PrepareError> {
    let device = driver.device();
    let mut best = (LaunchPlan::choose(&device, size)?, Duration::MAX);
    for plan in LaunchPlan::candidates(&device, size) {
        let layer_room = LayerRoom {
            batch: room.0,
            steps: room.1,
            state_rows: 2 * room.0,
        };
        let mut on = DeviceLayer::new(driver, index, layer, size.weights, plan, layer_room)?;
        match time(driver, &mut on, layer, room) {
            Ok(time) if time < best.1 => best = (plan, time),
            Ok(_) | Err(DriverError::NotResident { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(best.0)
}

/// The shortest of some runs on zeros.
fn time<D: Driver>(
    driver: &D,
    layer: &mut DeviceLayer<D>,
    of: &Layer,
    (batch, steps): (usize, usize),
) -> Result<Duration, DriverError> {
    let input = allocate(driver, &[steps, batch, of.input_size()])?;
    let mut output = allocate(driver, &[steps, batch, of.output_size()])?;
    let mut lengths = allocate(driver, &[batch])?;
    driver.write(&mut lengths, 0, &(steps as u32).to_le_bytes().repeat(batch))?;
    let rows: Vec<u32> = (0..2 * batch as u32).collect();
    let rows = upload(
        driver,
        &rows
            .iter()
            .flat_map(|row| row.to_le_bytes())
            .collect::<Vec<_>>(),
    )?;
    let state_rows = StateRows {
        from: rows.address(),
        to: rows.address() + (4 * batch) as Address,
    };
    let mut best = Duration::MAX;
    for run in 0..=RUNS {
        let extent = Extent {
            batch,
            steps,
            lengths: lengths.address(),
            is_ragged: false,
            stamp: (1 + run * steps) as u32,
            state_rows,
        };
        let start = Instant::now();
        layer.start(driver, extent, input.address(), (&mut output, 0))?;
        // Waits for the run.
        driver.read(&output, 0, &mut [0; 4])?;
        if run > 0 {
            best = best.min(start.elapsed());
        }
    }
    Ok(best)
}
