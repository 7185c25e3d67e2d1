//! Symbols of encoders and decoders on a device: the table of their features, and the projection
//! that chooses the next one.

use gatestream::execute::{EmbeddingTable, ResidentProjection};
use gatestream::model::Precision;

use crate::arguments::{Address, ChoiceArguments, LookupArguments, ProductArguments};
use crate::driver::{Buffer, Driver, DriverError, Grid, Synchronisation};
use crate::layer::{PRODUCT_SIDE, THREADS, allocate, upload};
use crate::model::{PrepareError, append_bytes};
use crate::weights::pack_rows;
use crate::{Kernel, PlanError, WeightType};

/// The most blocks of `embed.cu` and `argmax.cu`, which take several rows then.
const BLOCKS: usize = 1024;
/// The most blocks of a launch along y: blocks of symbols.
const MOST_BLOCKS: usize = 65_535;

/// A table of features on a device.
pub(crate) struct DeviceEmbedding<D: Driver> {
    lookup: D::Function,
    table: D::Buffer,
    symbols: usize,
    features: usize,
    /// Features of a step, `[batch, features]`.
    values: D::Buffer,
}

impl<D: Driver> DeviceEmbedding<D> {
    /// Copies the table, with room for `batch` symbols.
    pub fn new(
        driver: &D,
        table: EmbeddingTable<'_>,
        features: usize,
        batch: usize,
    ) -> Result<DeviceEmbedding<D>, DriverError> {
        let mut bytes = Vec::new();
        append_bytes(&mut bytes, table.values);
        Ok(DeviceEmbedding {
            lookup: driver.function(&Kernel::embed_rows())?,
            table: upload(driver, &bytes)?,
            symbols: table.symbols,
            features,
            values: allocate(driver, &[batch, features])?,
        })
    }

    /// Starts the lookup of `count` symbols, at these rows or one after the other. Returns the
    /// address of their features.
    pub fn start(
        &self,
        driver: &D,
        count: usize,
        symbols: Address,
        rows: Option<Address>,
    ) -> Result<Address, DriverError> {
        let arguments = LookupArguments {
            symbols,
            rows: rows.unwrap_or(0),
            table: self.table.address(),
            to: self.values.address(),
            count,
            features: self.features,
            known: self.symbols,
        };
        driver.launch(&self.lookup, &row_blocks(count), &arguments.bytes())?;
        Ok(self.values.address())
    }
}

/// A projection on a device, and the symbols that it chose.
pub(crate) struct DeviceProjection<D: Driver> {
    products: D::Function,
    choose: D::Function,
    weights: D::Buffer,
    bias: D::Buffer,
    symbols: usize,
    width: usize,
    /// `[batch, symbols]`.
    outputs: D::Buffer,
    /// The symbol of each row of states.
    pub chosen: D::Buffer,
}

impl<D: Driver> DeviceProjection<D> {
    /// Copies the weights, with room for `batch` rows and `state_rows` rows of states.
    pub fn new(
        driver: &D,
        of: ResidentProjection<'_>,
        batch: usize,
        state_rows: usize,
    ) -> Result<DeviceProjection<D>, PrepareError> {
        let (symbols, width) = (of.weights.rows(), of.weights.cols());
        let largest = MOST_BLOCKS * PRODUCT_SIDE;
        if symbols > largest {
            return Err(PlanError::ManySymbols { symbols, largest }.into());
        }
        let weights = match of.weights.precision() {
            Precision::Bf16 => WeightType::Bf16,
            _ => WeightType::F32,
        };
        let mut bias = Vec::new();
        append_bytes(&mut bias, of.bias);
        // The error of a weight names a layer; there is one only.
        let packed = pack_rows(0, of.weights, weights)?;
        Ok(DeviceProjection {
            products: driver.function(&Kernel::input_products(weights))?,
            choose: driver.function(&Kernel::choose_symbols())?,
            weights: upload(driver, &packed)?,
            bias: upload(driver, &bias)?,
            symbols,
            width,
            outputs: allocate(driver, &[batch, symbols])?,
            chosen: allocate(driver, &[state_rows])?,
        })
    }

    /// Starts the choice of a symbol for each of `count` rows of `y`, written at `rows`. `lengths`
    /// are ones.
    pub fn start(
        &self,
        driver: &D,
        count: usize,
        y: Address,
        rows: Address,
        lengths: Address,
    ) -> Result<(), DriverError> {
        let arguments = ProductArguments {
            input: y,
            weights: self.weights.address(),
            bias: self.bias.address(),
            lengths,
            output: self.outputs.address(),
            steps: 1,
            batch: count,
            features: self.width,
            columns: self.symbols,
        };
        let grid = Grid {
            blocks: [
                count.div_ceil(PRODUCT_SIDE),
                self.symbols.div_ceil(PRODUCT_SIDE),
            ],
            ..row_blocks(count)
        };
        driver.launch(&self.products, &grid, &arguments.bytes())?;
        let arguments = ChoiceArguments {
            outputs: self.outputs.address(),
            rows,
            symbols: self.chosen.address(),
            count,
            width: self.symbols,
        };
        driver.launch(&self.choose, &row_blocks(count), &arguments.bytes())
    }
}

/// A block for each row, up to a limit.
fn row_blocks(rows: usize) -> Grid {
    Grid {
        blocks: [rows.min(BLOCKS), 1],
        threads: THREADS,
        shared_bytes: 0,
        synchronisation: Synchronisation::None,
    }
}
