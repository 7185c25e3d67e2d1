//! The layers of a stack at once: each on a stream and multiprocessors of its own, a chunk of steps
//! behind the layer below it.
//!
//! ```text
//! layer 0   chunk 0   chunk 1   chunk 2
//! layer 1             chunk 0   chunk 1   chunk 2
//! layer 2                       chunk 0   chunk 1   chunk 2
//! ```
//!
//! A chunk waits for the one before it in its stream, and by an event for the same chunk of the
//! layer below.
//!
//! **Two layers wait for each other's multiprocessors**: the blocks of a launch wait for each other
//! and for no other launch, and all of them are resident or none. So each launch that has begun
//! ends. The plans of all layers together have no more blocks than the device has multiprocessors;
//! otherwise layers would only take turns.

use gatestream::model::{Layer, Model};

use crate::driver::{Driver, DriverError};
use crate::layer::Settings;
use crate::{Device, LaunchPlan, RecurrenceSize, WeightType};

/// Chunks for each layer: more of them keep more layers at work, fewer have fewer launches.
const CHUNKS_PER_LAYER: usize = 4;

/// The plans of a wavefront, and the steps of its chunks.
pub(crate) struct WavefrontPlans {
    pub plans: Vec<LaunchPlan>,
    pub chunk: usize,
}

/// Plans for a model with room for `batch` sequences of `steps` steps. `None` if it has one layer
/// or a reverse direction, sequences are too short, or the weights of all layers do not fit on the
/// device at once.
pub(crate) fn plans(
    device: &Device,
    model: &Model,
    settings: &Settings,
    (batch, steps): (usize, usize),
) -> Option<WavefrontPlans> {
    let layers = model.layers();
    let chunk = steps
        .div_ceil(CHUNKS_PER_LAYER * layers.len())
        .max(settings.least_chunk);
    if layers.len() < 2 || !model.is_forward() || chunk >= steps {
        return None;
    }
    let part = Device {
        multiprocessors: device.multiprocessors / layers.len() as u32,
        ..*device
    };
    let layers = layers.iter();
    let plans = layers.map(|layer| on_chip(&part, layer, batch, settings.weights));
    Some(WavefrontPlans {
        plans: plans.collect::<Option<_>>()?,
        chunk,
    })
}

/// The plan of a layer on a part of the device, if its weights fit there.
fn on_chip(part: &Device, layer: &Layer, batch: usize, weights: WeightType) -> Option<LaunchPlan> {
    let size = RecurrenceSize::of_layer(layer, batch, weights);
    let plan = LaunchPlan::choose(part, size).ok()?;
    (plan.streamed_chunks() == 0).then_some(plan)
}

/// The streams of a wavefront.
pub(crate) struct Wavefront<D: Driver> {
    streams: Vec<D>,
    /// After the present chunk of the layer below.
    below: Option<D::Event>,
}

impl<D: Driver> Wavefront<D> {
    /// A stream for each layer.
    pub fn new(driver: &D, layers: usize) -> Result<Wavefront<D>, DriverError> {
        let streams = (0..layers).map(|_| driver.stream());
        Ok(Wavefront {
            streams: streams.collect::<Result<_, _>>()?,
            below: None,
        })
    }

    /// All layers run after what `driver` has started.
    pub fn begin(&mut self, driver: &D) -> Result<(), DriverError> {
        let begin = driver.record()?;
        let mut streams = self.streams.iter();
        streams.try_for_each(|stream| stream.follow(&begin))
    }

    /// Starts the next chunk of a layer. Layers come in their order, chunk after chunk.
    pub fn run(
        &mut self,
        layer: usize,
        start: impl FnOnce(&D) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let stream = &self.streams[layer];
        if let (Some(below), true) = (&self.below, layer > 0) {
            stream.follow(below)?;
        }
        start(stream)?;
        self.below = Some(stream.record()?);
        Ok(())
    }

    /// What `driver` starts from now on runs after all layers.
    pub fn end(&mut self, driver: &D) -> Result<(), DriverError> {
        for stream in &self.streams {
            driver.follow(&stream.record()?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gatestream::model::Lstm;

    use super::*;
    use crate::layer::LEAST_CHUNK;

    #[test]
    fn all_layers_are_resident_at_once() {
        let settings = Settings {
            weights: WeightType::F32,
            choose: Arc::new(LaunchPlan::choose),
            least_chunk: LEAST_CHUNK,
        };
        for device in Device::ALL {
            let mut found = 0;
            for (hidden, layers) in [(64, 2), (256, 2), (256, 8), (512, 2), (512, 4), (1024, 2)] {
                let model = Lstm::new(8, hidden).layers(layers).zeros().unwrap();
                let plans = plans(&device, &model, &settings, (1, 1000));
                let Some(WavefrontPlans { plans, chunk }) = plans else {
                    continue;
                };
                found += 1;
                let blocks: usize = plans.iter().map(|plan| plan.blocks).sum();
                assert!(
                    blocks <= device.multiprocessors as usize,
                    "{hidden} {blocks}"
                );
                assert!(plans.iter().all(|plan| plan.streamed_chunks() == 0));
                assert!((LEAST_CHUNK..1000).contains(&chunk));
            }
            assert!(found >= 2, "{device:?}");
        }
    }
}
