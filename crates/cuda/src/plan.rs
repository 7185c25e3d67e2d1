//! How the recurrence of a layer is laid out on a device: plain data, made without one.

use gatestream::model::{Cell, Layer, ResetForm};

use crate::{Device, PlanError, WeightType};

/// Threads of a warp.
pub const LANES: usize = 32;
/// Values of the state that a warp reads at once: four for each lane.
pub const CHUNK: usize = 4 * LANES;
/// Warps of a block. With 256 threads each has up to 255 registers.
const WARPS: usize = 8;
/// Registers of a thread that hold weights and sums; the others hold addresses and states. The
/// compiler reports spills if they are too few, and a test fails.
const REGISTERS: usize = 184;
/// The most units whose weights a warp reads.
const MOST_UNITS: usize = 8;
/// The most sums that a lane adds at once.
const MOST_SUMS: usize = 32;
/// The largest cluster that all devices with clusters have.
const CLUSTER: usize = 8;

/// The size of a recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecurrenceSize {
    /// Hidden size, which is also the size of the state.
    pub hidden: usize,
    /// Gates of a unit: 4 of an LSTM, 3 of a GRU, 2 of a light GRU, 1 of an RNN.
    pub gates: usize,
    /// Whether a reset gate acts on the state before the candidate's product.
    pub resets_before: bool,
    /// Directions that run at once, 1 or 2.
    pub directions: usize,
    /// Sequences.
    pub batch: usize,
    /// Type of the weights.
    pub weights: WeightType,
}

impl RecurrenceSize {
    /// That of a layer, for `batch` sequences.
    pub fn of_layer(layer: &Layer, batch: usize, weights: WeightType) -> RecurrenceSize {
        let first = &layer.directions()[0];
        let hidden = layer.hidden_size();
        let resets_before = matches!(
            first.cell(),
            Cell::Gru {
                reset: ResetForm::Before,
                ..
            }
        );
        RecurrenceSize {
            hidden,
            gates: first.weights().recurrent.rows() / hidden,
            resets_before,
            directions: layer.directions().len(),
            batch,
            weights,
        }
    }
}

/// Where states go from one block to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// Through words with stamps in global memory: any number of blocks.
    Stamped,
    /// Into the shared memory of all blocks of a cluster, at most eight.
    Cluster,
}

/// The launch of a recurrence. A plan changes the time, never the bits.
///
/// ```
/// use gatestream::model::Lstm;
/// use gatestream_cuda::{Device, LaunchPlan, RecurrenceSize, WeightType};
///
/// let model = Lstm::new(64, 1024).zeros()?;
/// let size = RecurrenceSize::of_layer(&model.layers()[0], 1, WeightType::F32);
/// let plan = LaunchPlan::choose(&Device::H100, size)?;
/// assert_eq!((plan.blocks, plan.streamed_chunks()), (128, 0)); // all weights stay on the chip
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchPlan {
    /// Blocks of one direction.
    pub blocks: usize,
    /// Directions, at once.
    pub directions: usize,
    /// Warps of a block.
    pub warps: usize,
    /// Units whose weights a warp reads.
    pub units: usize,
    /// Rows of the batch that a block computes at once.
    pub tile: usize,
    /// Chunks of 128 values of a state.
    pub chunks: usize,
    /// Chunks whose weights are in registers.
    pub register_chunks: usize,
    /// Chunks whose weights are in shared memory.
    pub shared_chunks: usize,
    /// How blocks exchange states.
    pub exchange: Exchange,
    /// Shared memory of a block, in bytes.
    pub shared_bytes: usize,
}

impl LaunchPlan {
    /// The plan for `size` on `device`: a cluster whose weights all stay on the chip, if there is
    /// one; else blocks with as few units a warp as possible whose weights do; else the plan that
    /// reads the fewest weights each step. Of several, the one with the largest tile.
    ///
    /// # Errors
    /// [`PlanError::TooLarge`].
    pub fn choose(device: &Device, size: RecurrenceSize) -> Result<LaunchPlan, PlanError> {
        let all = LaunchPlan::candidates(device, size);
        let is_resident = |plan: &&LaunchPlan| plan.streamed_chunks() == 0;
        // All blocks together read what does not stay on the chip, once for each tile.
        let reads = |plan: &&LaunchPlan| {
            let tiles = size.batch.div_ceil(plan.tile);
            plan.streamed_chunks() * plan.padded_units() * tiles
        };
        let stamped = || all.iter().filter(|plan| plan.exchange == Exchange::Stamped);
        let chosen = all
            .iter()
            .find(is_resident)
            .or_else(|| stamped().min_by_key(reads));
        chosen.copied().ok_or(PlanError::TooLarge {
            hidden: size.hidden,
            directions: size.directions,
            multiprocessors: device.multiprocessors,
            largest: MOST_UNITS * WARPS * (device.multiprocessors as usize / size.directions),
        })
    }

    /// All plans that fit, for a tuner to time: clusters first, then the fewest units a warp, then
    /// the largest tile.
    pub fn candidates(device: &Device, size: RecurrenceSize) -> Vec<LaunchPlan> {
        let mut found = Vec::new();
        for exchange in [Exchange::Cluster, Exchange::Stamped] {
            for units in [1, 2, 4, MOST_UNITS] {
                for tile in [8, 4, 2, 1] {
                    found.extend(LaunchPlan::with(device, size, exchange, units, tile));
                }
            }
        }
        found
    }

    /// The plan with this many units a warp and rows a tile, if it fits.
    fn with(
        device: &Device,
        size: RecurrenceSize,
        exchange: Exchange,
        units: usize,
        tile: usize,
    ) -> Option<LaunchPlan> {
        let blocks = size.hidden.div_ceil(WARPS * units);
        let most_blocks = match exchange {
            Exchange::Cluster if device.has_clusters() => CLUSTER,
            Exchange::Cluster => return None,
            // A block for each multiprocessor: then all are resident.
            Exchange::Stamped => device.multiprocessors as usize / size.directions,
        };
        let columns = units * size.gates;
        let sums = tile * columns;
        // A thread has the state of one row and unit at most. Rows beyond the batch are no use.
        let fits = blocks <= most_blocks && sums <= MOST_SUMS && tile * units <= LANES;
        if !fits || tile > size.batch.next_power_of_two() {
            return None;
        }
        let chunks = size.hidden.div_ceil(CHUNK);
        // Registers of a lane that hold a chunk.
        let of_chunk = columns * size.weights.bytes();
        let register_chunks = match REGISTERS - sums {
            left if left >= chunks * of_chunk => chunks,
            // One more chunk is on its way from elsewhere.
            left => (left / of_chunk).saturating_sub(1),
        };
        let state_rows = match (exchange, size.resets_before) {
            (Exchange::Stamped, _) => 2 * tile,
            (Exchange::Cluster, resets_before) => {
                (2 + usize::from(resets_before)) * size.batch.next_multiple_of(tile)
            }
        };
        let states = state_rows * chunks * CHUNK * size_of::<f32>();
        let totals = tile * WARPS * columns * size_of::<f32>();
        let chunk_bytes = WARPS * columns * CHUNK * size.weights.bytes();
        let room = (device.shared_bytes as usize).checked_sub(states + totals)?;
        let shared_chunks = (room / chunk_bytes).min(chunks - register_chunks);
        Some(LaunchPlan {
            blocks,
            directions: size.directions,
            warps: WARPS,
            units,
            tile,
            chunks,
            register_chunks,
            shared_chunks,
            exchange,
            shared_bytes: states + totals + shared_chunks * chunk_bytes,
        })
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        self.warps * LANES
    }

    /// Chunks whose weights are read from global memory (mostly the second-level cache) each step.
    pub fn streamed_chunks(&self) -> usize {
        self.chunks - self.register_chunks - self.shared_chunks
    }

    /// Units of all blocks of one direction, of which the last may be padding.
    pub fn padded_units(&self) -> usize {
        self.blocks * self.warps * self.units
    }
}
