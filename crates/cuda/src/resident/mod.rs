//! Single steps of layers, encoders and decoders whose states stay on the device (BatchMaker,
//! sections 4.2 and 5).
//!
//! ```text
//! start    host    writes inputs and row numbers to pinned memory of the step
//!          stream  copy; embedding; products and recurrence of each layer; projection and symbol;
//!                  gather the results to pinned memory; signal
//! finish   host    polls the signal; reads the results
//! ```
//!
//! The kernels find the states of a sequence by the number of their [row](slot_rows), so one that
//! joins or leaves moves no other one.
//!
//! **The host overwrites what the device reads**: each step in flight has pinned memory of its own,
//! which is used again only after its signal. Memory of the device is used again by the next step,
//! which the stream starts after this one.

mod slot_rows;

use std::collections::VecDeque;

use gatestream::execute::{
    ResidentModel, ResidentNetwork, ResidentRoom, ResidentStep, ResultOf, RunError, SessionError,
};
use gatestream::kernels::RowsRef;
use gatestream::model::{InputError, Layer};

use crate::arguments::{Address, GatherArguments, SignalArguments};
use crate::driver::{Buffer, Driver, DriverError, Grid, Pinned, Synchronisation};
use crate::layer::{
    DeviceLayer, Extent, LayerRoom, Settings, StateKind, StateRows, allocate, upload,
};
use crate::model::{PrepareError, append_bytes, checked_room, failed, read_values, widest};
use crate::stamps::Stamps;
use crate::symbols::{DeviceEmbedding, DeviceProjection};
use crate::{Kernel, RecurrenceSize};
use slot_rows::SlotRows;

/// The most blocks of `gather.cu`, which take several rows then.
const GATHER_BLOCKS: usize = 1024;
/// Threads of a block of `gather.cu`.
const GATHER_THREADS: usize = 128;
/// Polls before the core is offered to other threads.
const SPINS: u32 = 256;
/// Polls of the signal before the stream is asked for errors, which takes longer.
const POLLS: u32 = 1024;

/// See the [module](self).
pub(crate) struct ResidentStack<D: Driver> {
    driver: D,
    room: ResidentRoom,
    layers: Vec<DeviceLayer<D>>,
    states: Vec<ResidentState>,
    embedding: Option<DeviceEmbedding<D>>,
    projection: Option<DeviceProjection<D>>,
    /// Values of an input row that come from the host.
    input: usize,
    output: usize,
    gather: D::Function,
    signal: D::Function,
    lengths: D::Buffer,
    /// Inputs, then row numbers.
    step: D::Buffer,
    /// Outputs of the layers, which take turns.
    values: [D::Buffer; 2],
    rows: SlotRows,
    stamps: Stamps,
    free: Vec<StepMemory<D>>,
    started: VecDeque<Started<D>>,
    /// The number of the last step that is done.
    done: D::Pinned,
    /// The number of the last step that was started.
    count: u32,
    polls: u32,
    /// The device has failed.
    failure: Option<DriverError>,
    bytes: Vec<u8>,
}

/// A state of the stack.
#[derive(Clone, Copy)]
struct ResidentState {
    place: Place,
    size: usize,
}

/// Where a state is.
#[derive(Clone, Copy)]
enum Place {
    /// The symbol of a decoder.
    Symbol,
    Layer(usize, StateKind),
}

/// Memory of one step in flight.
struct StepMemory<D: Driver> {
    input: D::Pinned,
    results: D::Pinned,
}

/// A step that was started.
struct Started<D: Driver> {
    memory: StepMemory<D>,
    number: u32,
    /// Number of its results.
    values: usize,
}

impl<D: Driver> ResidentStack<D> {
    /// Copies the weights to the device.
    pub fn new(
        driver: D,
        network: &ResidentNetwork<'_>,
        settings: &Settings,
        room: ResidentRoom,
    ) -> Result<ResidentStack<D>, SessionError> {
        let model = network.model;
        check_network(network)?;
        if !model.is_forward() {
            return Err(SessionError::Backend(RunError::NotStreamable.to_string()));
        }
        let ResidentRoom {
            rows,
            slots,
            in_flight,
        } = room;
        let (batch, _) = checked_room(model, rows, 1)?;
        // Rows of states are counted as those of a batch are.
        let too_large = SessionError::TooLarge {
            batch: slots,
            steps: 1,
        };
        let state_rows = SlotRows::count(slots).ok_or(too_large)?;
        let (state_rows, _) = checked_room(model, state_rows, 1)?;
        let room = ResidentRoom {
            rows: batch,
            slots,
            in_flight: in_flight.max(1),
        };
        Ok(ResidentStack::with_rows(
            driver, network, settings, room, state_rows,
        )?)
    }

    fn with_rows(
        driver: D,
        network: &ResidentNetwork<'_>,
        settings: &Settings,
        room: ResidentRoom,
        state_rows: usize,
    ) -> Result<ResidentStack<D>, PrepareError> {
        let (model, batch) = (network.model, room.rows);
        let layer_room = LayerRoom {
            batch,
            steps: 1,
            state_rows,
        };
        let layers = model.layers().iter().enumerate().map(|(index, layer)| {
            let size = RecurrenceSize::of_layer(layer, batch, settings.weights);
            let plan = (settings.choose)(&driver.device(), size)?;
            DeviceLayer::new(&driver, index, layer, settings.weights, plan, layer_room)
        });
        let layers = layers.collect::<Result<Vec<_>, PrepareError>>()?;
        let states = model.layers().iter().enumerate().flat_map(|(layer, of)| {
            let direction = &of.directions()[0];
            let state = |kind, size| ResidentState {
                place: Place::Layer(layer, kind),
                size,
            };
            [
                state(StateKind::Hidden, direction.output_size()),
                state(StateKind::Cell, direction.cell_state_size()),
            ]
        });
        let symbol = ResidentState {
            place: Place::Symbol,
            size: 1,
        };
        let symbol = network.projection.is_some().then_some(symbol);
        let states = symbol.into_iter().chain(states);
        let states: Vec<_> = states.filter(|state| state.size > 0).collect();
        let signature = model.signature();
        let input = match (network.embedding, network.projection) {
            (None, _) => signature.input,
            (Some(_), None) => 1,
            (Some(_), Some(_)) => 0,
        };
        let embedding = network
            .embedding
            .map(|table| DeviceEmbedding::new(&driver, table, signature.input, batch));
        let projection = network
            .projection
            .map(|of| DeviceProjection::new(&driver, of, batch, state_rows));
        // Numbers of the rows before and after, and of the results.
        let numbers = batch * (2 + states.len() + 1);
        let step = batch * input + numbers;
        let results =
            batch * (states.iter().map(|state| state.size).sum::<usize>() + signature.output);
        let memory = |_| {
            Ok(StepMemory {
                input: driver.pinned(4 * step)?,
                results: driver.pinned(4 * results)?,
            })
        };
        let free = (0..room.in_flight)
            .map(memory)
            .collect::<Result<_, DriverError>>()?;
        let values = || allocate(&driver, &[batch, widest(model)]);
        Ok(ResidentStack {
            gather: driver.function(&Kernel::gather_rows())?,
            signal: driver.function(&Kernel::signal_done())?,
            lengths: upload(&driver, &1u32.to_le_bytes().repeat(batch))?,
            step: allocate(&driver, &[step])?,
            values: [values()?, values()?],
            done: driver.pinned(4)?,
            free,
            driver,
            layers,
            states,
            embedding: embedding.transpose()?,
            projection: projection.transpose()?,
            input,
            output: signature.output,
            rows: SlotRows::new(room.slots),
            room,
            stamps: Stamps::default(),
            started: VecDeque::new(),
            count: 0,
            polls: 0,
            failure: None,
            bytes: Vec::new(),
        })
    }

    /// Runs `work`, unless the device has failed; remembers its failure.
    fn on_device<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, DriverError>,
    ) -> Result<T, RunError> {
        if let Some(failure) = &self.failure {
            return Err(failed(failure.clone()));
        }
        work(self).map_err(|error| {
            self.failure = Some(error.clone());
            failed(error)
        })
    }

    fn check_slot(&self, slot: usize) -> Result<(), RunError> {
        let slots = self.room.slots;
        if slot < slots {
            Ok(())
        } else {
            Err(RunError::Slot { slot, slots })
        }
    }

    fn check_states(&self, found: impl Iterator<Item = usize> + Clone) -> Result<(), RunError> {
        let sizes = || self.states.iter().map(|state| state.size);
        if found.clone().eq(sizes()) {
            Ok(())
        } else {
            Err(mismatch("states", sizes().sum(), found.sum()))
        }
    }

    fn check_step(&self, step: &ResidentStep<'_>) -> Result<(), RunError> {
        let ResidentStep { x, slots, results } = *step;
        let batch = slots.len();
        if batch > self.room.rows {
            return Err(RunError::Capacity {
                batch,
                steps: 1,
                room_batch: self.room.rows,
                room_steps: 1,
            });
        }
        if self.input > 0 && !x.fits(batch, self.input) {
            return Err(mismatch("input", batch * self.input, x.values()));
        }
        let most = batch * (self.states.len() + 1);
        let exists = |of| match of {
            ResultOf::State(state) => state < self.states.len(),
            ResultOf::Output => true,
        };
        if results.len() > most
            || results
                .iter()
                .any(|one| one.row >= batch || !exists(one.of))
        {
            return Err(mismatch("results", most, results.len()));
        }
        slots.iter().try_for_each(|slot| self.check_slot(*slot))
    }

    /// The address of a row number after the inputs of a step.
    fn number_address(&self, batch: usize, index: usize) -> Address {
        self.step.address() + (4 * (batch * self.input + index)) as Address
    }

    fn start_checked(
        &mut self,
        step: &ResidentStep<'_>,
        memory: &mut StepMemory<D>,
    ) -> Result<usize, DriverError> {
        let ResidentStep { x, slots, results } = *step;
        let batch = slots.len();
        let bytes = &mut self.bytes;
        bytes.clear();
        if self.input > 0 {
            append_rows(bytes, x, batch, self.input);
        }
        append_numbers(bytes, self.rows.before());
        append_numbers(bytes, self.rows.after());
        for one in results {
            let row = match one.of {
                ResultOf::State(_) => self.rows.after()[one.row],
                ResultOf::Output => one.row as u32,
            };
            append_numbers(bytes, &[row]);
        }
        memory.input.write(0, bytes);
        self.driver
            .start_write(&mut self.step, &memory.input, bytes.len())?;

        let extent = Extent {
            batch,
            steps: 1,
            lengths: self.lengths.address(),
            is_ragged: false,
            stamp: self.stamps.take(1, &self.driver, &mut self.layers)?,
            state_rows: StateRows {
                from: self.number_address(batch, 0),
                to: self.number_address(batch, batch),
            },
        };
        let StateRows {
            from: from_rows,
            to: to_rows,
        } = extent.state_rows;
        let mut input = self.step.address();
        if let Some(embedding) = &self.embedding {
            input = match &self.projection {
                Some(of) => {
                    let symbols = of.chosen.address();
                    embedding.start(&self.driver, batch, symbols, Some(from_rows))?
                }
                None => embedding.start(&self.driver, batch, input, None)?,
            };
        }
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let output = &mut self.values[index % 2];
            layer.start(&self.driver, extent, input, (output, 0))?;
            input = output.address();
        }

        let y = input;
        if let Some(projection) = &self.projection {
            projection.start(&self.driver, batch, y, to_rows, self.lengths.address())?;
        }

        // Neighbours of one kind are gathered together.
        let (mut first, mut values) = (0, 0);
        for run in results.chunk_by(|one, next| one.of == next.of) {
            let (from, width) = match run[0].of {
                ResultOf::Output => (y, self.output),
                ResultOf::State(index) => {
                    let ResidentState { place, size } = self.states[index];
                    let rows = rows_of(&mut self.layers, &mut self.projection, place);
                    (rows.map_or(0, |rows| rows.address()), size)
                }
            };
            let count = run.len();
            let arguments = GatherArguments {
                from,
                rows: self.number_address(batch, 2 * batch + first),
                to: memory.results.address() + (4 * values) as Address,
                count,
                width,
            };
            let grid = Grid {
                blocks: [count.min(GATHER_BLOCKS), 1],
                threads: GATHER_THREADS,
                shared_bytes: 0,
                synchronisation: Synchronisation::None,
            };
            self.driver
                .launch(&self.gather, &grid, &arguments.bytes())?;
            first += count;
            values += count * width;
        }
        let arguments = SignalArguments {
            word: self.done.address(),
            value: self.count,
        };
        let grid = Grid {
            blocks: [1, 1],
            threads: 32,
            shared_bytes: 0,
            synchronisation: Synchronisation::None,
        };
        self.driver
            .launch(&self.signal, &grid, &arguments.bytes())?;
        Ok(values)
    }

    /// Whether a step is done: its number is not after the last one that is.
    fn is_done(&mut self, number: u32) -> Result<bool, DriverError> {
        // Numbers start again after the largest; few steps are in flight.
        let is_done = self.done.word().wrapping_sub(number) < u32::MAX / 2;
        self.polls = self.polls.wrapping_add(1);
        if !is_done && self.polls.is_multiple_of(POLLS) {
            self.driver.check()?;
        }
        Ok(is_done)
    }
}

/// The rows of a state.
fn rows_of<'a, D: Driver>(
    layers: &'a mut [DeviceLayer<D>],
    projection: &'a mut Option<DeviceProjection<D>>,
    place: Place,
) -> Option<&'a mut D::Buffer> {
    match place {
        Place::Symbol => projection.as_mut().map(|of| &mut of.chosen),
        Place::Layer(layer, kind) => layers[layer].state_rows(0, kind),
    }
}

/// Refuses parts that do not fit together.
fn check_network(network: &ResidentNetwork<'_>) -> Result<(), SessionError> {
    let signature = network.model.signature();
    let fits_table = network.embedding.is_none_or(|table| {
        table.symbols.checked_mul(signature.input) == Some(table.values.len()) && table.symbols > 0
    });
    let fits_projection = network.projection.is_none_or(|of| {
        network.embedding.is_some()
            && of.weights.cols() == signature.output
            && of.bias.len() == of.weights.rows()
            && !of.bias.is_empty()
    });
    if fits_table && fits_projection {
        Ok(())
    } else {
        Err(SessionError::Backend(
            "the embedding or the projection does not fit the model".into(),
        ))
    }
}

fn append_rows(bytes: &mut Vec<u8>, x: RowsRef<'_>, rows: usize, width: usize) {
    (0..rows).for_each(|row| append_bytes(bytes, x.row(row, width)));
}

fn append_numbers(bytes: &mut Vec<u8>, numbers: &[u32]) {
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
}

fn mismatch(name: &'static str, expected: usize, found: usize) -> RunError {
    RunError::Input(InputError::Values {
        name,
        expected,
        found,
    })
}

impl<D: Driver> ResidentModel for ResidentStack<D> {
    fn load(&mut self, slot: usize, states: Option<&[&[f32]]>) -> Result<(), RunError> {
        self.check_slot(slot)?;
        let Some(given) = states else {
            self.rows.set_zeros(slot);
            return Ok(());
        };
        self.check_states(given.iter().map(|state| state.len()))?;
        self.on_device(|this| {
            // The stream runs this after all steps before, which may use either row.
            let row = this.rows.set_first(slot);
            for (state, given) in this.states.iter().zip(given) {
                this.bytes.clear();
                append_bytes(&mut this.bytes, given);
                let offset = row as usize * 4 * state.size;
                let rows = rows_of(&mut this.layers, &mut this.projection, state.place);
                if let Some(rows) = rows {
                    this.driver.write(rows, offset, &this.bytes)?;
                }
            }
            Ok(())
        })
    }

    fn store(&mut self, slot: usize, states: &mut [&mut [f32]]) -> Result<(), RunError> {
        self.check_slot(slot)?;
        self.check_states(states.iter().map(|state| state.len()))?;
        self.on_device(|this| {
            let row = this.rows.current(slot) as usize;
            for (state, to) in this.states.iter().zip(states) {
                let bytes = 4 * state.size;
                this.bytes.clear();
                this.bytes.resize(bytes, 0);
                let rows = rows_of(&mut this.layers, &mut this.projection, state.place);
                if let Some(rows) = rows {
                    this.driver.read(rows, row * bytes, &mut this.bytes)?;
                }
                read_values(&this.bytes, to);
            }
            Ok(())
        })
    }

    fn start(&mut self, step: &ResidentStep<'_>) -> Result<(), RunError> {
        self.check_step(step)?;
        self.on_device(|_| Ok(()))?;
        let Some(mut memory) = self.free.pop() else {
            let in_flight = self.started.len();
            return Err(RunError::InFlight { in_flight });
        };
        if let Err(slot) = self.rows.advance(step.slots) {
            self.free.push(memory);
            let slots = self.room.slots;
            return Err(RunError::Slot { slot, slots });
        }
        let number = self.count.wrapping_add(1);
        self.count = number;
        let started = self.on_device(|this| this.start_checked(step, &mut memory));
        // After an error the stream may still use its memory, which is freed with all other.
        let (values, result) = match started {
            Ok(values) => (values, Ok(())),
            Err(error) => (0, Err(error)),
        };
        self.started.push_back(Started {
            memory,
            number,
            values,
        });
        result
    }

    fn is_finished(&mut self) -> Result<bool, RunError> {
        let Some(number) = self.started.front().map(|oldest| oldest.number) else {
            return Ok(true);
        };
        self.on_device(|this| this.is_done(number))
    }

    fn finish(&mut self, results: &mut Vec<f32>) -> Result<(), RunError> {
        results.clear();
        let mut polls = 0u32;
        while !self.is_finished()? {
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(SPINS) {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
        }
        let Some(Started { memory, values, .. }) = self.started.pop_front() else {
            return Ok(());
        };
        self.bytes.clear();
        self.bytes.resize(4 * values, 0);
        memory.results.read(0, &mut self.bytes);
        results.resize(values, 0.0);
        read_values(&self.bytes, results);
        self.free.push(memory);
        Ok(())
    }
}

impl<D: Driver> Drop for ResidentStack<D> {
    /// The stream uses pinned memory until its last step is done.
    fn drop(&mut self) {
        // After an error the stream does nothing more.
        let _ = self.driver.wait();
    }
}
