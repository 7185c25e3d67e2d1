//! A model on a device: the order of rows, copies, and the layers one after the other.

use cellstream::execute::{PreparedModel, RunError, SessionError, Steps};
use cellstream::kernels::{RowsMut, RowsRef};
use cellstream::model::{Input, InputError, Layer, Model, Output, Precision, Signature};

use crate::driver::{Buffer, Driver, DriverError};
use crate::layer::{DeviceLayer, Extent, LayerRoom, Settings, allocate};
use crate::stamps::Stamps;
use crate::{PlanError, WeightType};

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
    lengths: D::Buffer,
    /// The input of a layer and its output, which change places.
    values: [D::Buffer; 2],
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
        let (layers, lengths, values) = buffers(&driver, model, &settings, room)?;
        Ok(DeviceModel {
            driver,
            model: model.clone(),
            settings,
            room,
            layers,
            lengths,
            values,
            stamps: Stamps::default(),
            staging: Staging::default(),
        })
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
    /// there afterwards; the outputs are in the first buffer.
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
                match step < *length {
                    true => append_bytes(&mut staging.bytes, x.row(row_of(step, *row), features)),
                    false => staging.bytes.resize(staging.bytes.len() + 4 * features, 0),
                }
            }
        }
        self.driver.write(&mut self.values[0], 0, &staging.bytes)?;
        staging.bytes.clear();
        let lengths = staging.lengths.iter();
        staging
            .bytes
            .extend(lengths.flat_map(|length| (*length as u32).to_le_bytes()));
        self.driver.write(&mut self.lengths, 0, &staging.bytes)?;
        let mut states = staging.states.chunks(2);
        for layer in &mut self.layers {
            for index in 0..layer.plan().directions {
                let Some([h, c]) = states.next() else { break };
                staging.bytes.clear();
                append_bytes(&mut staging.bytes, h);
                append_bytes(&mut staging.bytes, c);
                let (h, c) = staging.bytes.split_at(4 * h.len());
                layer.set_states(&self.driver, index, h, c)?;
            }
        }

        let stamp = self.stamps.take(steps, &self.driver, &mut self.layers)?;
        let staging = &mut self.staging;
        let extent = Extent {
            batch,
            steps,
            lengths: self.lengths.address(),
            is_ragged: staging.lengths.iter().any(|length| *length < steps),
            stamp,
            state_rows: None,
        };
        for layer in &mut self.layers {
            let [input, output] = &mut self.values;
            layer.start(&self.driver, extent, input.address(), output)?;
            self.values.swap(0, 1);
        }

        let mut states = staging.states.chunks_mut(2);
        for layer in &self.layers {
            for index in 0..layer.plan().directions {
                let Some([h, c]) = states.next() else { break };
                staging.bytes.resize(4 * (h.len() + c.len()), 0);
                let (h_bytes, c_bytes) = staging.bytes.split_at_mut(4 * h.len());
                layer.states(&self.driver, index, h_bytes, c_bytes)?;
                read_values(h_bytes, h);
                read_values(c_bytes, c);
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
            self.driver.read(&self.values[0], 0, &mut staging.bytes)?;
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
            let made = buffers(&self.driver, &self.model, &self.settings, room)?;
            (self.layers, self.lengths, self.values) = made;
            self.room = room;
            self.stamps = Stamps::default();
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
        let directions = || self.model.layers().iter().flat_map(Layer::directions);
        if directions().any(|of| of.is_reverse()) {
            return Err(RunError::NotStreamable);
        }
        let batch = steps.batch();
        self.check_room(batch, steps.steps())?;
        let rows = steps.steps() * batch;
        let fit = |fits, name, expected, found| match fits {
            true => Ok(()),
            false => Err(InputError::Values {
                name,
                expected,
                found,
            }),
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

/// Layers, lengths and values on a device.
type Buffers<D> = (
    Vec<DeviceLayer<D>>,
    <D as Driver>::Buffer,
    [<D as Driver>::Buffer; 2],
);

fn buffers<D: Driver>(
    driver: &D,
    model: &Model,
    settings: &Settings,
    (batch, steps): (usize, usize),
) -> Result<Buffers<D>, PrepareError> {
    let layers = model.layers().iter().enumerate();
    let room = LayerRoom::of_batch((batch, steps));
    let layers =
        layers.map(|(index, layer)| DeviceLayer::new(driver, index, layer, settings, room));
    let layers = layers.collect::<Result<_, _>>()?;
    let values = || allocate(driver, &[steps, batch, widest(model)]);
    Ok((layers, allocate(driver, &[batch])?, [values()?, values()?]))
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
