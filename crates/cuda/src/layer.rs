//! One layer on a device: its weights, its kernel, and the launches of a run.

use std::sync::Arc;

use gatestream::model::{Cell, Direction, Layer, Matrix, Merge, ResetForm};

use crate::arguments::{
    Address, DirectionArguments, MergeArguments, ProductArguments, RecurrentArguments,
};
use crate::driver::{Buffer, Driver, DriverError, Grid, Synchronisation};
use crate::model::PrepareError;
use crate::plan::{Exchange, RecurrenceSize};
use crate::weights::pack_rows;
use crate::{Device, Kernel, LaunchPlan, PlanError, WeightType, pack_recurrent};

/// Outputs of a block of `input.cu`, along each axis.
pub(crate) const PRODUCT_SIDE: usize = 64;
/// The most blocks of `merge.cu`, which take several rows then.
const MERGE_BLOCKS: usize = 1024;
/// Threads of a block of these two kernels, and of those of symbols.
pub(crate) const THREADS: usize = 256;

/// What a caller chooses beside the model.
#[derive(Clone)]
pub(crate) struct Settings {
    /// Type of the weights on the device.
    pub weights: WeightType,
    /// The plan of a layer.
    pub choose: Choose,
    /// The fewest steps of a chunk of a wavefront.
    pub least_chunk: usize,
}

/// [`Settings::least_chunk`] of a GPU: the steps of a chunk should take several times as long as
/// its launches.
pub(crate) const LEAST_CHUNK: usize = 32;

/// The choice of a plan for a device and size.
pub(crate) type Choose =
    Arc<dyn Fn(&Device, RecurrenceSize) -> Result<LaunchPlan, PlanError> + Send + Sync>;

/// The room of a layer.
#[derive(Clone, Copy)]
pub(crate) struct LayerRoom {
    pub batch: usize,
    pub steps: usize,
    /// Rows of the states. A run names rows to read and other rows to write.
    pub state_rows: usize,
}

/// A layer on a device.
pub(crate) struct DeviceLayer<D: Driver> {
    plan: LaunchPlan,
    recurrent: D::Function,
    input_products: D::Function,
    add_directions: Option<D::Function>,
    directions: Vec<DeviceDirection<D>>,
    features: usize,
    hidden: usize,
    gates: usize,
    /// Outputs of both directions, before a merge that adds them.
    sum: Option<D::Buffer>,
}

/// A direction on a device.
struct DeviceDirection<D: Driver> {
    input_weights: D::Buffer,
    bias: D::Buffer,
    recurrent_weights: D::Buffer,
    candidate_bias: Option<D::Buffer>,
    peepholes: Option<D::Buffer>,
    products: D::Buffer,
    exchanged: D::Buffer,
    /// `[state_rows, hidden]`.
    hidden: D::Buffer,
    cell: Option<D::Buffer>,
    is_reverse: bool,
}

/// The rows and steps of a run.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub batch: usize,
    pub steps: usize,
    /// Lengths, descending, on the device.
    pub lengths: Address,
    /// Whether some sequences are shorter than `steps`.
    pub is_ragged: bool,
    /// Stamp of the first step.
    pub stamp: u32,
    pub state_rows: StateRows,
}

/// The rows of the states of each sequence: 32-bit numbers on the device.
#[derive(Clone, Copy)]
pub(crate) struct StateRows {
    /// Rows with the states before the run.
    pub from: Address,
    /// Rows for the states after it.
    pub to: Address,
}

/// A state of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateKind {
    Hidden,
    Cell,
}

impl<D: Driver> DeviceLayer<D> {
    /// Packs the weights.
    pub fn new(
        driver: &D,
        index: usize,
        layer: &Layer,
        weights: WeightType,
        plan: LaunchPlan,
        room: LayerRoom,
    ) -> Result<DeviceLayer<D>, PrepareError> {
        let LayerRoom { batch, steps, .. } = room;
        let first = &layer.directions()[0];
        let size = RecurrenceSize::of_layer(layer, batch, weights);
        let RecurrenceSize { hidden, gates, .. } = size;
        let kernel = Kernel::recurrent(index, first, &plan, weights)?;
        for other in &layer.directions()[1..] {
            if Kernel::recurrent(index, other, &plan, weights)? != kernel {
                return Err(PrepareError::Plan(PlanError::Unsupported {
                    layer: index,
                    what: "a pair of directions with different activations",
                }));
            }
        }
        let directions = layer.directions().iter();
        let directions =
            directions.map(|of| DeviceDirection::new(driver, index, of, size, &plan, room));
        let adds = layer.merge() == Merge::Sum && layer.directions().len() == 2;
        Ok(DeviceLayer {
            plan,
            recurrent: driver.function(&kernel)?,
            input_products: driver.function(&Kernel::input_products(weights))?,
            add_directions: if adds {
                Some(driver.function(&Kernel::add_directions())?)
            } else {
                None
            },
            directions: directions.collect::<Result<_, _>>()?,
            features: layer.input_size(),
            hidden,
            gates,
            sum: if adds {
                Some(allocate(driver, &[steps, batch, 2 * hidden])?)
            } else {
                None
            },
        })
    }

    /// The layer's plan.
    pub fn plan(&self) -> &LaunchPlan {
        &self.plan
    }

    /// The rows of a state of direction `index`, `[state_rows, size]`.
    pub fn state_rows(&mut self, index: usize, kind: StateKind) -> Option<&mut D::Buffer> {
        let direction = self.directions.get_mut(index)?;
        match kind {
            StateKind::Hidden => Some(&mut direction.hidden),
            StateKind::Cell => direction.cell.as_mut(),
        }
    }

    /// Starts the layer: `input` is `[steps, batch, features]`; `[steps, batch, outputs]` are
    /// written to `output` from byte `offset` on.
    pub fn start(
        &mut self,
        driver: &D,
        extent: Extent,
        input: Address,
        (output, offset): (&mut D::Buffer, usize),
    ) -> Result<(), DriverError> {
        let Extent { batch, steps, .. } = extent;
        let rows = steps * batch;
        let columns = self.gates * self.hidden;
        for direction in &self.directions {
            let arguments = ProductArguments {
                input,
                weights: direction.input_weights.address(),
                bias: direction.bias.address(),
                lengths: extent.lengths,
                output: direction.products.address(),
                steps,
                batch,
                features: self.features,
                columns,
            };
            let grid = Grid {
                blocks: [rows.div_ceil(PRODUCT_SIDE), columns.div_ceil(PRODUCT_SIDE)],
                threads: THREADS,
                shared_bytes: 0,
                synchronisation: Synchronisation::None,
            };
            driver.launch(&self.input_products, &grid, &arguments.bytes())?;
        }
        let both = self.directions.len() * self.hidden;
        let (to, merged) = (offset, output.address() + offset as Address);
        let (target, offset) = match &mut self.sum {
            Some(sum) => (sum, 0),
            None => (output, to),
        };
        if extent.is_ragged {
            // Outputs past the end of a sequence are zero.
            driver.clear(target, offset, rows * both * size_of::<f32>())?;
        }
        let target = target.address() + offset as Address;
        let mut arguments = RecurrentArguments {
            lengths: extent.lengths,
            batch,
            hidden: self.hidden,
            output_stride: both,
            stamp: extent.stamp,
            from_rows: extent.state_rows.from,
            to_rows: extent.state_rows.to,
            ..RecurrentArguments::default()
        };
        for (index, direction) in self.directions.iter().enumerate() {
            let before = index * self.hidden * size_of::<f32>();
            arguments.directions[index] = direction.arguments(target + before as Address);
        }
        let grid = Grid {
            blocks: [self.plan.blocks, self.directions.len()],
            threads: self.plan.threads(),
            shared_bytes: self.plan.shared_bytes,
            synchronisation: match self.plan.exchange {
                Exchange::Cluster => Synchronisation::Cluster,
                Exchange::Stamped => Synchronisation::Cooperative,
            },
        };
        driver.launch(&self.recurrent, &grid, &arguments.bytes())?;
        let (Some(pairs), Some(add)) = (&self.sum, &self.add_directions) else {
            return Ok(());
        };
        let arguments = MergeArguments {
            from: pairs.address(),
            to: merged,
            rows,
            width: self.hidden,
        };
        let grid = Grid {
            blocks: [rows.min(MERGE_BLOCKS), 1],
            threads: THREADS,
            shared_bytes: 0,
            synchronisation: Synchronisation::None,
        };
        driver.launch(add, &grid, &arguments.bytes())
    }

    /// Clears the words that blocks exchange.
    pub fn clear_stamps(&mut self, driver: &D) -> Result<(), DriverError> {
        for direction in &mut self.directions {
            let bytes = direction.exchanged.bytes();
            driver.clear(&mut direction.exchanged, 0, bytes)?;
        }
        Ok(())
    }
}

impl<D: Driver> DeviceDirection<D> {
    fn new(
        driver: &D,
        layer: usize,
        direction: &Direction,
        size: RecurrenceSize,
        plan: &LaunchPlan,
        room: LayerRoom,
    ) -> Result<DeviceDirection<D>, PrepareError> {
        let RecurrenceSize {
            hidden,
            batch,
            weights,
            ..
        } = size;
        let of = direction.weights();
        let rows = of.recurrent.rows();
        // Two biases that the formula adds are one, rounded once, as in the reference.
        let keeps_two = matches!(
            direction.cell(),
            Cell::Gru {
                reset: ResetForm::After,
                ..
            }
        );
        let candidate = 2 * hidden..3 * hidden;
        let bias = (0..rows).map(|row| {
            if keeps_two && candidate.contains(&row) {
                of.input_bias[row]
            } else {
                of.input_bias[row] + of.recurrent_bias[row]
            }
        });
        let bias: Vec<f32> = bias.collect();
        let peepholes = of
            .peepholes
            .as_ref()
            .map(|p| [&p.input[..], &p.forget, &p.output].concat());
        let floats = |values: &[f32]| {
            let bytes: Vec<u8> = values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            upload(driver, &bytes)
        };
        let matrix = |matrix: &Matrix| -> Result<D::Buffer, PrepareError> {
            Ok(upload(driver, &pack_rows(layer, matrix, weights)?)?)
        };
        let state = || allocate(driver, &[room.state_rows, hidden]);
        let words = match plan.exchange {
            Exchange::Stamped => 2 * (1 + usize::from(size.resets_before)),
            Exchange::Cluster => 0,
        };
        Ok(DeviceDirection {
            input_weights: matrix(&of.input)?,
            bias: floats(&bias)?,
            recurrent_weights: upload(
                driver,
                &pack_recurrent(layer, &of.recurrent, weights, plan)?,
            )?,
            candidate_bias: if keeps_two {
                Some(floats(&of.recurrent_bias[candidate])?)
            } else {
                None
            },
            peepholes: match &peepholes {
                Some(values) => Some(floats(values)?),
                None => None,
            },
            products: allocate(driver, &[room.steps, batch, rows])?,
            // A word has two values of four bytes.
            exchanged: allocate(driver, &[words, batch, hidden, 2])?,
            hidden: state()?,
            cell: match direction.cell_state_size() {
                0 => None,
                _ => Some(state()?),
            },
            is_reverse: direction.is_reverse(),
        })
    }

    fn arguments(&self, output: Address) -> DirectionArguments {
        let of = |buffer: &Option<D::Buffer>| buffer.as_ref().map_or(0, Buffer::address);
        DirectionArguments {
            input: self.products.address(),
            weights: self.recurrent_weights.address(),
            candidate_bias: of(&self.candidate_bias),
            peepholes: of(&self.peepholes),
            states: self.hidden.address(),
            cell: of(&self.cell),
            output,
            exchanged: self.exchanged.address(),
            is_reverse: self.is_reverse,
        }
    }
}

/// Memory for `sizes` values of four bytes.
pub(crate) fn allocate<D: Driver>(driver: &D, sizes: &[usize]) -> Result<D::Buffer, DriverError> {
    // The products were checked when room was asked for.
    let bytes = sizes.iter().product::<usize>() * size_of::<f32>();
    driver.allocate(bytes)
}

pub(crate) fn upload<D: Driver>(driver: &D, bytes: &[u8]) -> Result<D::Buffer, DriverError> {
    let mut buffer = driver.allocate(bytes.len())?;
    driver.write(&mut buffer, 0, bytes)?;
    Ok(buffer)
}
