//! Steps that are taken together, and the bytes that they and the weights take in caches.

use crate::model::{Direction, Layer, Matrix, Weights};

use super::{DirectionPlan, LayerPlan};

/// Bytes of hoisted pre-activations per worker: a part of the second-level cache.
const CHUNK_BYTES: usize = 256 << 10;
/// Likewise where they had better be in the shared cache than the input weights be read often.
const LONG_CHUNK_BYTES: usize = 8 << 20;
/// Steps taken together at the least, where there are as many: rows of a tall tile.
const CHUNK_ROWS: usize = 12;

/// As many steps as their pre-activations leave room for in the second-level cache; or more, if
/// writing and reading them in the shared cache moves less than reading the input weights once for
/// each short chunk.
pub(super) fn chunk_steps(layer: &Layer, plan: &LayerPlan, batch: usize, steps: usize) -> usize {
    let units = plan.directions.iter().flat_map(|d| &d.partition.units);
    let widest = units.map(|r| r.len()).max().unwrap_or(0);
    let row_bytes = widest.max(1) * 4 * layer.kind().gates();
    let within = |bytes: usize| {
        let rows = (bytes / row_bytes).max(CHUNK_ROWS);
        (rows / batch.max(1)).clamp(1, steps.max(1))
    };
    let [short, long] = [CHUNK_BYTES, LONG_CHUNK_BYTES].map(within);
    let inputs = layer.directions().iter().map(|d| &d.weights().input);
    let bytes = inputs.map(|matrix| matrix.precision().bytes()).max();
    let weights = widest.max(1) * layer.kind().gates() * layer.input_size() * bytes.unwrap_or(0);
    let per_step = |chunk: usize| weights as f64 / chunk as f64;
    let results = 2.0 * row_bytes as f64 * batch as f64;
    if per_step(long) + results < per_step(short) {
        long
    } else {
        short
    }
}

/// Bytes of the weights that a worker reads at each step of the layer.
pub(super) fn step_bytes(layer: &Layer, plan: &LayerPlan, worker: usize) -> usize {
    let parts = layer.directions().iter().zip(&plan.directions);
    parts
        .map(|(direction, plan)| direction_bytes(direction, plan, worker))
        .sum()
}

/// The part of one direction in [`step_bytes`].
pub(super) fn direction_bytes(direction: &Direction, plan: &DirectionPlan, worker: usize) -> usize {
    let units = plan.partition.units[worker].len();
    let projected = plan.partition.projected[worker].len();
    let gates = direction.cell().kind().gates();
    let weights = direction.weights();
    let projection = weights.projection.as_ref();
    units * gates * weights.recurrent.row_bytes()
        + projection.map_or(0, |matrix| projected * matrix.row_bytes())
}

/// Bytes of the recurrent weights of the largest slice.
pub(super) fn slice_bytes(layer: &Layer, plan: &LayerPlan) -> usize {
    slice_bytes_of(layer, plan, |weights| &weights.recurrent)
}

/// Bytes of a matrix, of the largest slice of units.
pub(super) fn slice_bytes_of(
    layer: &Layer,
    plan: &LayerPlan,
    of: fn(&Weights) -> &Matrix,
) -> usize {
    let slices = layer.directions().iter().zip(&plan.directions);
    let slices = slices.map(|(direction, plan)| {
        let units = plan.partition.units.iter().map(|r| r.len()).max();
        units.unwrap_or(0) * of(direction.weights()).row_bytes() * layer.kind().gates()
    });
    slices.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Lstm, Precision};
    use crate::plan::Configuration;

    /// Chunks fit a cache and their sequence, and are no shorter for heavier input weights, which
    /// are read once for each chunk.
    #[test]
    fn chunks_fit_and_are_no_shorter_for_more_bytes_of_weights() {
        for (input, batch, steps) in [(256, 1, 10_000), (256, 1, 40), (16, 7, 500), (512, 64, 9)] {
            let model = Lstm::new(input, 256).random(1).unwrap();
            let [f32, bf16, int8] = Precision::ALL.map(|precision| {
                let model = model.in_precision(precision).unwrap();
                let way = Configuration::with_threads(&model, batch, steps, 1);
                way.layers[0].chunk_steps
            });
            assert!(f32 >= bf16 && bf16 >= int8, "{f32} {bf16} {int8}");
            let bytes = |chunk: usize| chunk * batch * 4 * 4 * 256;
            assert!((1..=steps).contains(&f32) && bytes(f32) <= LONG_CHUNK_BYTES);
            assert!(int8 == steps || bytes(int8 + 1) > CHUNK_BYTES);
        }
    }
}
