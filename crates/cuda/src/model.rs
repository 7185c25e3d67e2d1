//! A model on a device: the order of rows, copies, and the layers one after the other or as a
//! [wavefront](crate::wavefront).

use gatestream::execute::{PreparedModel, RunError, SessionError, Steps};
use gatestream::kernels::{RowsMut, RowsRef};
use gatestream::model::{Input, InputError, Layer, Model, Output, Precision, Signature};

use crate::arguments::Address;
use crate::driver::{Buffer, Driver, DriverError};
use crate::layer::{
    DeviceLayer, Extent, LayerRoom, Settings, StateKind, StateRows, allocate, upload,
};
use crate::stamps::Stamps;
use crate::wavefront::{self, Wavefront};
use crate::{LaunchPlan, PlanError, RecurrenceSize, WeightType};

/// Why a model could not be prepared for a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PrepareError {
    /// The model does not fit the kernels or the device.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The device failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl From<PrepareError> for SessionError {
    fn from(error: PrepareError) -> SessionError {
        SessionError::Backend(error.to_string())
    }
}

/// A model on a device.
pub(crate) struct DeviceModel<D: Driver> {
    driver: D,
    model: Model,
    settings: Settings,
    room: (usize, usize),
    layers: Vec<DeviceLayer<D>>,
    wavefront: Option<Wavefront<D>>,
    /// Steps of a launch: all, or those of a chunk of the wavefront.
    chunk: usize,
    /// `[chunks, batch]` 32-bit numbers: the steps of each chunk.
    lengths: D::Buffer,
    /// 32-bit numbers from 0: the rows of the states.
    rows: D::Buffer,
    /// The input of the first layer, then outputs of the layers in turn.
    values: Vec<D::Buffer>,
    stamps: Stamps,
    staging: Staging,
}

/// Memory of the host for copies, in the order of rows on the device: the longest sequence first.
#[derive(Default)]
struct Staging {
    /// The caller's row of each row.
    order: Vec<usize>,
    /// Lengths of these rows.
    lengths: Vec<usize>,
    bytes: Vec<u8>,
    /// States of each direction: `[batch, hidden]` hidden states, then cell states.
    states: Vec<Vec<f32>>,
}

/// The sizes of the states of each direction, in the order of the layers.
fn state_sizes(model: &Model) -> impl Iterator<Item = [usize; 2]> {
    let directions = model.layers().iter().flat_map(Layer::directions);
    directions.map(|of| [of.output_size(), of.cell_state_size()])
}

/// The type in which the first matrix of a model is stored.
pub(crate) fn weights_of(model: &Model) -> WeightType {
    match model.layers()[0].directions()[0]
        .weights()
        .recurrent
        .precision()
    {
        Precision::Bf16 => WeightType::Bf16,
        _ => WeightType::F32,
    }
}

impl<D: Driver> DeviceModel<D> {
    /// Copies the weights to the device, with room for `batch` sequences of `steps` steps.
    pub fn new(
        driver: D,
        model: &Model,
        settings: Settings,
        (batch, steps): (usize, usize),
    ) -> Result<DeviceModel<D>, SessionError> {
        let room = checked_room(model, batch, steps)?;
        Ok(DeviceModel::with_room(
            driver,
            model.clone(),
            settings,
            room,
        )?)
    }

    fn with_room(
        driver: D,
        model: Model,
        settings: Settings,
        room: (usize, usize),
    ) -> Result<DeviceModel<D>, PrepareError> {
        let (batch, steps) = room;
        let found = wavefront::plans(&driver.device(), &model, &settings, room);
        let (plans, chunk) = match &found {
            Some(of) => (of.plans.clone(), of.chunk),
            None => (plans(&driver, &model, &settings, batch)?, steps),
        };
        let layer_room = LayerRoom {
            batch,
            steps: chunk,
            state_rows: 2 * batch,
        };
        let layers = model.layers().iter().zip(plans).enumerate();
        let layers = layers.map(|(index, (layer, plan))| {
            DeviceLayer::new(&driver, index, layer, settings.weights, plan, layer_room)
        });
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let wavefront = found.map(|_| Wavefront::new(&driver, layers.len()));
        // A layer of a wavefront reads what the one below wrote in an earlier chunk.
        let buffers = wavefront.as_ref().map_or(2, |_| layers.len() + 1);
        let values = || allocate(&driver, &[steps, batch, widest(&model)]);
        let rows: Vec<u8> = (0..2 * batch as u32).flat_map(u32::to_le_bytes).collect();
        Ok(DeviceModel {
            lengths: allocate(&driver, &[steps.div_ceil(chunk), batch])?,
            rows: upload(&driver, &rows)?,
            values: (0..buffers).map(|_| values()).collect::<Result<_, _>>()?,
            wavefront: wavefront.transpose()?,
            driver,
            model,
            settings,
            room,
            layers,
            chunk,
            stamps: Stamps::default(),
            staging: Staging::default(),
        })
    }

    /// Whether the layers run at once.
    #[cfg(test)]
    pub fn is_wavefront(&self) -> bool {
        self.wavefront.is_some()
    }

    /// Sets the stamp of the next step.
    #[cfg(test)]
    pub fn set_stamp(&mut self, stamp: u32) {
        self.stamps = Stamps::from(stamp);
    }

    /// The plan of each layer.
    #[cfg(test)]
    pub fn plans(&self) -> impl Iterator<Item = &crate::LaunchPlan> {
        self.layers.iter().map(DeviceLayer::plan)
    }

    /// Runs sequences whose lengths, order and initial states are in `staging`. Final states are
    /// there afterwards; the outputs are in the last layer's buffer.
    fn compute(
        &mut self,
        x: RowsRef<'_>,
        row_of: impl Fn(usize, usize) -> usize,
    ) -> Result<(), DriverError> {
        let staging = &mut self.staging;
        let (batch, steps) = (
            staging.lengths.len(),
            staging.lengths.first().copied().unwrap_or(0),
        );
        if steps == 0 {
            return Ok(());
        }
        staging.bytes.clear();
        let features = self.model.signature().input;
        for step in 0..steps {
            for (row, length) in staging.order.iter().zip(&staging.lengths) {
                if step < *length {
                    append_bytes(&mut staging.bytes, x.row(row_of(step, *row), features))
                } else {
                    staging.bytes.resize(staging.bytes.len() + 4 * features, 0)
                }
            }
        }
        self.driver.write(&mut self.values[0], 0, &staging.bytes)?;
        staging.bytes.clear();
        for chunk in 0..steps.div_ceil(self.chunk) {
            let of_chunk = |length: &usize| {
                let left = length.saturating_sub(chunk * self.chunk);
                (left.min(self.chunk) as u32).to_le_bytes()
            };
            let lengths = staging.lengths.iter();
            staging.bytes.extend(lengths.flat_map(of_chunk));
        }
        self.driver.write(&mut self.lengths, 0, &staging.bytes)?;
        self.write_states()?;
        let stamp = self.stamps.take(steps, &self.driver, &mut self.layers)?;
        self.start_layers(batch, steps, stamp)?;
        self.read_states(batch)
    }

    /// Starts all layers, chunk by chunk.
    fn start_layers(&mut self, batch: usize, steps: usize, stamp: u32) -> Result<(), DriverError> {
        let is_ragged = self.staging.lengths.iter().any(|length| *length < steps);
        let count = self.values.len();
        if let Some(wavefront) = &mut self.wavefront {
            wavefront.begin(&self.driver)?;
        }
        for (chunk, first) in (0..steps).step_by(self.chunk).enumerate() {
            // A chunk reads the rows that the one before it wrote, and writes the others.
            let half = |of: usize| self.rows.address() + (4 * batch * (of % 2)) as Address;
            let extent = Extent {
                batch,
                steps: self.chunk.min(steps - first),
                lengths: self.lengths.address() + (4 * chunk * batch) as Address,
                is_ragged,
                stamp: stamp + first as u32,
                state_rows: StateRows {
                    from: half(chunk),
                    to: half(chunk + 1),
                },
            };
            let layers = self.layers.iter_mut().zip(self.model.layers()).enumerate();
            for (index, (layer, of)) in layers {
                let before = (4 * first * batch * of.input_size()) as Address;
                let input = self.values[index % count].address() + before;
                let offset = 4 * first * batch * of.output_size();
                let output = (&mut self.values[(index + 1) % count], offset);
                match &mut self.wavefront {
                    None => layer.start(&self.driver, extent, input, output)?,
                    Some(wavefront) => {
                        wavefront
                            .run(index, |stream| layer.start(stream, extent, input, output))?;
                    }
                }
            }
        }
        match &mut self.wavefront {
            Some(wavefront) => wavefront.end(&self.driver),
            None => Ok(()),
        }
    }

    /// Writes the initial states of all directions.
    fn write_states(&mut self) -> Result<(), DriverError> {
        let mut states = self.staging.states.iter();
        let bytes = &mut self.staging.bytes;
        for layer in &mut self.layers {
            for index in 0..layer.plan().directions {
                for kind in [StateKind::Hidden, StateKind::Cell] {
                    let Some(state) = states.next() else { break };
                    bytes.clear();
                    append_bytes(bytes, state);
                    if let Some(rows) = layer.state_rows(index, kind) {
                        self.driver.write(rows, 0, bytes)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads the final states of all directions: of each sequence those that its last chunk wrote.
    fn read_states(&mut self, batch: usize) -> Result<(), DriverError> {
        let Staging {
            states,
            bytes,
            lengths,
            ..
        } = &mut self.staging;
        let mut states = states.iter_mut();
        for layer in &mut self.layers {
            for index in 0..layer.plan().directions {
                for kind in [StateKind::Hidden, StateKind::Cell] {
                    let Some(state) = states.next() else { break };
                    let Some(rows) = layer.state_rows(index, kind) else {
                        continue;
                    };
                    bytes.resize(2 * 4 * state.len(), 0);
                    self.driver.read(rows, 0, bytes)?;
                    let size = state.len() / batch;
                    for (row, length) in lengths.iter().enumerate() {
                        let from = row + batch * (length.div_ceil(self.chunk) % 2);
                        let values = &mut state[row * size..][..size];
                        read_values(&bytes[4 * from * size..][..4 * size], values);
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads the outputs: calls `row` with the step, the caller's row, and its values; zeros past
    /// the end of a sequence.
    fn outputs(
        &mut self,
        steps: usize,
        mut row: impl FnMut(usize, usize, &[u8]),
    ) -> Result<(), DriverError> {
        let staging = &mut self.staging;
        let computed = staging.lengths.first().copied().unwrap_or(0);
        let bytes = 4 * self.model.signature().output;
        let batch = staging.order.len();
        staging.bytes.resize(computed * batch * bytes, 0);
        if computed > 0 {
            let output = &self.values[self.layers.len() % self.values.len()];
            self.driver.read(output, 0, &mut staging.bytes)?;
        }
        for step in 0..computed {
            for (at, caller) in staging.order.iter().enumerate() {
                row(
                    step,
                    *caller,
                    &staging.bytes[(step * batch + at) * bytes..][..bytes],
                );
            }
        }
        staging.bytes.clear();
        staging.bytes.resize(bytes, 0);
        for step in computed..steps {
            for caller in &staging.order {
                row(step, *caller, &staging.bytes);
            }
        }
        Ok(())
    }

    fn check_room(&self, batch: usize, steps: usize) -> Result<(), RunError> {
        let (room_batch, room_steps) = self.room;
        if batch <= room_batch && steps <= room_steps {
            return Ok(());
        }
        Err(RunError::Capacity {
            batch,
            steps,
            room_batch,
            room_steps,
        })
    }

    /// Orders the rows by length.
    fn order(&mut self, batch: usize, length: impl Fn(usize) -> usize) {
        let staging = &mut self.staging;
        staging.order.clear();
        staging.order.extend(0..batch);
        staging
            .order
            .sort_by_key(|row| std::cmp::Reverse(length(*row)));
        staging.lengths.clear();
        staging
            .lengths
            .extend(staging.order.iter().map(|row| length(*row)));
        staging
            .states
            .resize(2 * state_sizes(&self.model).count(), Vec::new());
        staging.states.iter_mut().for_each(Vec::clear);
    }
}

impl<D: Driver> PreparedModel for DeviceModel<D> {
    fn signature(&self) -> Signature {
        self.model.signature()
    }

    fn reserve(&mut self, batch: usize, steps: usize) -> Result<(), SessionError> {
        let larger = (batch.max(self.room.0), steps.max(self.room.1));
        if larger != self.room {
            let room = checked_room(&self.model, larger.0, larger.1)?;
            let (model, settings) = (self.model.clone(), self.settings.clone());
            let driver = self.driver.stream().map_err(PrepareError::from)?;
            *self = DeviceModel::with_room(driver, model, settings, room)?;
        }
        Ok(())
    }

    fn run(&mut self, input: &Input<'_>, output: &mut Output<'_>) -> Result<(), RunError> {
        let signature = self.model.signature();
        input.check(&signature, output)?;
        let Input { batch, steps, .. } = *input;
        self.check_room(batch, steps)?;
        self.order(batch, |row| input.length(row));

        let (mut h_block, mut c_block) = (0, 0);
        for (states, [h, c]) in self
            .staging
            .states
            .chunks_mut(2)
            .zip(state_sizes(&self.model))
        {
            let given = [(input.h0, h, &mut h_block), (input.c0, c, &mut c_block)];
            for (states, (given, size, block)) in states.iter_mut().zip(given) {
                for row in &self.staging.order {
                    match given {
                        Some(given) => states.extend(&given[*block + row * size..][..size]),
                        None => states.resize(states.len() + size, 0.0),
                    }
                }
                *block += batch * size;
            }
        }
        let layout = input.layout_for(&signature);
        let row_of = |step, row| layout.row(step, steps, row, batch);
        let x = RowsRef::contiguous(input.values, signature.input);
        self.compute(x, row_of).map_err(failed)?;

        let (mut h_block, mut c_block) = (0, 0);
        for (states, [h, c]) in self.staging.states.chunks(2).zip(state_sizes(&self.model)) {
            let asked = [
                (output.hn.as_deref_mut(), h, &mut h_block),
                (output.cn.as_deref_mut(), c, &mut c_block),
            ];
            for (states, (asked, size, block)) in states.iter().zip(asked) {
                if let Some(to) = asked.filter(|_| size > 0) {
                    for (row, state) in self.staging.order.iter().zip(states.chunks(size)) {
                        to[*block + row * size..][..size].copy_from_slice(state);
                    }
                }
                *block += batch * size;
            }
        }
        let Some(values) = output.values.as_deref_mut() else {
            return Ok(());
        };
        let width = signature.output;
        let read = self.outputs(steps, |step, row, bytes| {
            read_values(bytes, &mut values[row_of(step, row) * width..][..width]);
        });
        read.map_err(failed)
    }

    fn step_rows<'s>(
        &mut self,
        steps: Steps<'_>,
        states: &mut dyn Iterator<Item = RowsMut<'s>>,
        mut y: Option<RowsMut<'_>>,
    ) -> Result<(), RunError> {
        let signature = self.model.signature();
        if !self.model.is_forward() {
            return Err(RunError::NotStreamable);
        }
        let batch = steps.batch();
        self.check_room(batch, steps.steps())?;
        let rows = steps.steps() * batch;
        let fit = |fits, name, expected, found| {
            if fits {
                Ok(())
            } else {
                Err(InputError::Values {
                    name,
                    expected,
                    found,
                })
            }
        };
        let (x, width) = (steps.x(), signature.input);
        fit(x.fits(rows, width), "input", rows * width, x.values())?;
        if let Some(y) = &y {
            let width = signature.output;
            fit(y.fits(rows, width), "output", rows * width, y.values())?;
        }
        let sizes: Vec<usize> = state_sizes(&self.model).flatten().collect();
        let with_values = || sizes.iter().copied().filter(|size| *size > 0);
        // One more than there are is refused.
        let mut kept: Vec<RowsMut<'_>> = states.take(with_values().count() + 1).collect();
        for (index, size) in with_values().enumerate() {
            let (fits, found) = kept
                .get(index)
                .map_or((false, 0), |rows| (rows.fits(batch, size), rows.values()));
            fit(fits, "states", batch * size, found)?;
        }
        if let Some(more) = kept.get(with_values().count()) {
            fit(false, "states", 0, more.values())?;
        }

        self.order(batch, |row| {
            steps.lengths().map_or(1, |lengths| lengths[row])
        });
        let staging = &mut self.staging;
        let mut next = kept.iter_mut();
        for (states, size) in staging.states.iter_mut().zip(&sizes) {
            if let Some(rows) = next_of(&mut next, *size) {
                staging
                    .order
                    .iter()
                    .for_each(|row| states.extend(&*rows.row(*row, *size)));
            }
        }
        self.compute(steps.x(), |step, row| step * batch + row)
            .map_err(failed)?;
        let mut next = kept.iter_mut();
        for (states, size) in self.staging.states.iter().zip(&sizes) {
            if let Some(rows) = next_of(&mut next, *size) {
                for (row, state) in self.staging.order.iter().zip(states.chunks(*size)) {
                    rows.row(*row, *size).copy_from_slice(state);
                }
            }
        }
        let Some(y) = &mut y else { return Ok(()) };
        let read = self.outputs(steps.steps(), |step, row, bytes| {
            read_values(bytes, y.row(step * batch + row, signature.output));
        });
        read.map_err(failed)
    }
}

/// The next rows, if the state has any values.
fn next_of<'a, 's>(
    rows: &mut impl Iterator<Item = &'a mut RowsMut<'s>>,
    size: usize,
) -> Option<&'a mut RowsMut<'s>> {
    match size {
        0 => None,
        _ => rows.next(),
    }
}

pub(crate) fn failed(error: DriverError) -> RunError {
    RunError::Backend(error.to_string())
}

/// The plan of each layer, when it has the device alone.
fn plans<D: Driver>(
    driver: &D,
    model: &Model,
    settings: &Settings,
    batch: usize,
) -> Result<Vec<LaunchPlan>, PlanError> {
    let layers = model.layers().iter();
    let plans = layers.map(|layer| {
        let size = RecurrenceSize::of_layer(layer, batch, settings.weights);
        (settings.choose)(&driver.device(), size)
    });
    plans.collect()
}

/// The most features of an input or output of a layer.
pub(crate) fn widest(model: &Model) -> usize {
    let layers = model.layers().iter();
    let sizes = layers.flat_map(|layer| [layer.input_size(), layer.output_size()]);
    sizes.max().unwrap_or(1)
}

/// The room asked for, if kernels can count it: rows and columns are 32-bit numbers.
pub(crate) fn checked_room(
    model: &Model,
    batch: usize,
    steps: usize,
) -> Result<(usize, usize), SessionError> {
    let (batch, steps) = (batch.max(1), steps.max(1));
    let too_large = || SessionError::TooLarge { batch, steps };
    let rows = batch.checked_mul(steps).ok_or_else(too_large)?;
    let gates = |layer: &Layer| layer.directions()[0].weights().recurrent.rows();
    let columns = model.layers().iter().map(gates).max().unwrap_or(0);
    let widest = columns.max(2 * widest(model)).max(1);
    let values = rows
        .checked_mul(widest)
        .and_then(|values| values.checked_mul(8));
    match values {
        Some(bytes) if bytes < isize::MAX as usize && rows < (1 << 30) && widest < (1 << 30) => {
            Ok((batch, steps))
        }
        _ => Err(too_large()),
    }
}

pub(crate) fn append_bytes(bytes: &mut Vec<u8>, values: &[f32]) {
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

pub(crate) fn read_values(bytes: &[u8], values: &mut [f32]) {
    for (bytes, value) in bytes.chunks_exact(4).zip(values) {
        *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
}
