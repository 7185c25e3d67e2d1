//! The rows of one cell at one worker: the buffers whose first rows are the batch.
//!
//! ```text
//! place(task):
//!   rows with states in a slot within the batch stay there               nothing moves
//!   other states within the batch belong to absent requests              stored with them
//!   rows with states beyond the batch move to free slots                 compacted
//!   new rows, and rows from elsewhere, get the remaining free slots      appended
//!   inputs are recorded in place if their port allows it, else copied
//! extend_steps(task), while the next tasks are further steps of the same rows:
//!   inputs of those rows, behind those of the step before
//! run; then the results of each row go to their readers, and its states stay in the slot
//! ```
//!
//! An unchanged batch moves no state, a changed one only those of rows that join, leave or close a
//! gap.
//!
//! If the whole team [copies](super::copies), all rows are placed first and copied after that.

mod scatter;
mod sequences;

use super::WorkerTask;
use super::buffer_pool::BufferPool;
use super::copies::{AllBuffers, Buffers, ParallelCopy, Shares};
use super::task_row::TaskRow;
use super::values::{InputRow, Values};
use crate::cell_graph::{Batch, Cell, Port, Ports, RowLayout, WorkerEnv};
use crate::scheduler::{RequestKey, Row};
use gatestream::execute::team::SharedTeam;
use gatestream::kernels::{RowsMut, RowsRef, recycle_vec};

/// The node whose states are in a slot: `row.node`.
type Slot<R> = TaskRow<R>;

/// See the [module](self).
pub(super) struct BatchRows<R> {
    ports: Ports,
    inputs: Vec<Vec<f32>>,
    /// For each input, if the cell gathers inputs, by row: the rows of the present batch that are
    /// not in its buffer.
    input_rows: Vec<Vec<Option<InputRow>>>,
    states: Vec<Vec<f32>>,
    outputs: Vec<Vec<f32>>,
    /// For each state and then each output, if the cell gathers all ports, by row. `states` and
    /// `outputs` are empty then.
    written: Vec<Vec<Box<[f32]>>>,
    lists: Lists,
    /// By row.
    slots: Vec<Option<Slot<R>>>,
    /// Maximum steps of a batch.
    max_steps: usize,
    /// By row of the present batch; `None` is padding.
    places: Vec<Option<Placed>>,
    /// The slot of each row of the first task of the present batch, then of its second, and so on.
    rows: Vec<usize>,
    /// By task of the present batch: the index of its first row in `rows`.
    tasks: Vec<usize>,
    /// By row of the present batch: its steps. Padding has the steps of the longest row.
    pub lengths: Vec<usize>,
    /// Empty between tasks: rows without a slot, with the slot beyond the batch that has their
    /// states.
    unplaced: Vec<(usize, Option<usize>)>,
    /// By row of the present batch, after the team has scattered it: whether its states stay.
    scattered: Vec<Option<bool>>,
    /// Number of rows of states that were moved, loaded or stored.
    pub moved: u64,
}

/// Empty between batches: memory for the lists of a batch.
struct Lists {
    /// Rows of all gathered inputs, port by port.
    read: Vec<&'static [f32]>,
    /// Rows of all gathered states and outputs, port by port.
    written: Vec<&'static mut [f32]>,
    inputs: Vec<RowsRef<'static>>,
    outputs: Vec<RowsMut<'static>>,
}

/// Which of the first task's rows a row of the batch is.
#[derive(Clone, Copy)]
struct Placed {
    index: usize,
    /// Its states are not in a slot: they come from its request.
    comes: bool,
    /// Its values are copied when all rows are placed.
    is_deferred: bool,
}

impl<R: Send> BatchRows<R> {
    /// Capacity for `env.rows` rows.
    pub fn new(cell: &dyn Cell, env: &WorkerEnv) -> BatchRows<R> {
        let ports = cell.ports();
        let buffers = |ports: &[Port], rows: usize| {
            let buffer = |p: &Port| vec![0.0; rows * p.fixed_width()];
            ports.iter().map(buffer).collect()
        };
        let max_steps = env.steps;
        let layout = if ports.has_sequences() {
            RowLayout::Gathered
        } else {
            cell.layout()
        };
        let all = max_steps * env.rows;
        let gathers_all = layout == RowLayout::Gathered && max_steps == 1;
        // Rows of states, of outputs, and of both if they are gathered.
        let (of_states, of_outputs, of_written) = if gathers_all {
            (0, 0, env.rows)
        } else {
            (env.rows, all, 0)
        };
        let boxes = |port: &Port| -> Vec<Box<[f32]>> {
            let row = || vec![0.0; port.fixed_width()].into();
            (0..of_written).map(|_| row()).collect()
        };
        let written: Vec<_> = if gathers_all {
            ports.writes().map(boxes).collect()
        } else {
            Vec::new()
        };
        let gathered = if layout.gathers_inputs() {
            ports.inputs().len()
        } else {
            0
        };
        let none = || (0..all).map(|_| None).collect();
        BatchRows {
            inputs: buffers(ports.inputs(), all),
            input_rows: (0..gathered).map(|_| none()).collect(),
            states: buffers(ports.states(), of_states),
            outputs: buffers(ports.outputs(), of_outputs),
            lists: Lists {
                read: Vec::with_capacity(gathered * all),
                written: Vec::with_capacity(written.len() * of_written),
                inputs: Vec::with_capacity(ports.inputs().len()),
                outputs: Vec::with_capacity(ports.writes().len()),
            },
            written,
            ports: ports.clone(),
            max_steps,
            rows: Vec::with_capacity(env.rows),
            tasks: Vec::with_capacity(max_steps),
            lengths: Vec::with_capacity(env.rows),
            slots: (0..env.rows).map(|_| None).collect(),
            places: Vec::with_capacity(env.rows),
            unplaced: Vec::with_capacity(env.rows),
            scattered: Vec::with_capacity(env.rows),
            moved: 0,
        }
    }

    /// The members that scatter these rows, if one is not enough. The results of a batch have about
    /// the size of its inputs. Rows that are passed on without a copy count, too.
    pub fn scatter_copy<'a>(&self, rows: usize, team: &'a SharedTeam) -> Option<ParallelCopy<'a>> {
        ParallelCopy::of(team, self.ports.inputs(), rows)
    }

    /// The members that copy the inputs of these rows, if one is not enough. A cell that gathers
    /// inputs copies only those that a growing request added later.
    fn gather_copy<'a>(
        &self,
        work: &[TaskRow<R>],
        team: &'a SharedTeam,
    ) -> Option<ParallelCopy<'a>> {
        let rows = if self.input_rows.is_empty() {
            work.len()
        } else {
            work.iter().filter(|work| work.values.grows()).count()
        };
        ParallelCopy::of(team, self.ports.inputs(), rows)
    }

    /// The members that copy the states of these rows, if one is not enough. Shares are equal parts
    /// of the whole batch, so some may have few of these rows.
    fn state_copy<'a>(&self, rows: usize, team: &'a SharedTeam) -> Option<ParallelCopy<'a>> {
        ParallelCopy::of(team, self.ports.states(), rows)
    }

    /// Widths of all rows but sequences.
    pub fn widths(&self) -> impl Iterator<Item = usize> {
        let ports = self.ports.inputs().iter().chain(self.ports.writes());
        ports.filter(|port| !port.is_sequence()).map(Port::width)
    }

    /// Maximum rows of a batch.
    pub fn max_rows(&self) -> usize {
        self.slots.len()
    }

    /// Maximum steps of a batch.
    pub fn max_steps(&self) -> usize {
        self.max_steps
    }

    /// Whether all rows of a task are the next steps of rows of the task before it, in their order,
    /// so that both can be computed in one batch. With padding, all rows must continue.
    pub fn joins(&self, before: &WorkerTask<R>, next: &WorkerTask<R>) -> bool {
        let padding = before.task.padding;
        let is_padded_alike =
            padding == next.task.padding && (padding == 0 || before.work.len() == next.work.len());
        if next.work.is_empty() || !is_padded_alike {
            return false;
        }
        let mut rows = before.work.iter();
        next.work.iter().all(|work| {
            let same = rows.find(|before| before.row.request == work.row.request);
            same.is_some_and(|before| {
                let values = work.values.lock();
                values.joins(before.row.node, work.row.node, self.states.len())
            })
        })
    }

    /// Assigns each row of the task a slot among the first `work.len() + padding`, with its states
    /// there, and records or copies its inputs. Large copies are done by the whole `team`, if it is
    /// given; each member has a pool. Returns the rows with missing values, which would be a bug of
    /// this crate: values that a node reads are stored with its request, unless it continues in
    /// place.
    pub fn place(
        &mut self,
        work: &[TaskRow<R>],
        padding: usize,
        team: Option<&SharedTeam>,
        pools: &mut [BufferPool],
    ) -> Vec<Row> {
        let gather_copy = team.and_then(|team| self.gather_copy(work, team));
        let batch = work.len() + padding;
        let pool = &mut pools[0];
        self.scattered.clear();
        self.lengths.clear();
        self.lengths.resize(batch, 1);
        self.places.clear();
        self.places.resize(batch, None);
        self.rows.clear();
        self.rows.resize(work.len(), 0);
        self.tasks.clear();
        self.tasks.push(0);
        let mut unplaced = std::mem::take(&mut self.unplaced);
        let mut missing = Vec::new();
        let state_count = self.states.len();
        for (index, work) in work.iter().enumerate() {
            let Row { request, node } = work.row;
            let mut values = work.values.lock();
            let before = values.predecessor(node);
            let slot = before.and_then(|node| self.slot(Row { request, node }, &values));
            let (Some(before), Some(slot)) = (before, slot) else {
                unplaced.push((index, None));
                continue;
            };
            values.continued_in_place(before, state_count, pool);
            self.slots[slot] = None;
            if slot < batch {
                let comes = false;
                self.places[slot] = Some(Placed {
                    index,
                    comes,
                    is_deferred: gather_copy.is_some(),
                });
                self.rows[index] = slot;
                if gather_copy.is_none() && !self.all().load(slot, work, comes, &mut values, pool) {
                    missing.push(work.row);
                }
            } else {
                unplaced.push((index, Some(slot)));
            }
        }
        for row in 0..batch {
            if self.places[row].is_none() && self.slots[row].is_some() {
                self.evict(row, pool);
            }
        }
        let copy =
            gather_copy.or_else(|| team.and_then(|team| self.state_copy(unplaced.len(), team)));
        let mut free = 0;
        for (index, slot) in unplaced.drain(..) {
            while self.places[free].is_some() {
                free += 1;
            }
            let comes = slot.is_none();
            self.places[free] = Some(Placed {
                index,
                comes,
                is_deferred: copy.is_some(),
            });
            self.rows[index] = free;
            self.moved += u64::from(state_count > 0);
            if let Some(slot) = slot {
                self.compact(slot, free);
            }
            if copy.is_none() {
                let work = &work[index];
                let mut values = work.values.lock();
                if !self.all().load(free, work, comes, &mut values, pool) {
                    missing.push(work.row);
                }
            }
        }
        self.unplaced = unplaced;
        if let Some(copy) = copy {
            self.load_all(work, copy, pools, &mut missing);
        }
        missing
    }

    /// Copies the values of deferred rows.
    fn load_all(
        &mut self,
        work: &[TaskRow<R>],
        copy: ParallelCopy<'_>,
        pools: &mut [BufferPool],
        missing: &mut Vec<Row>,
    ) {
        let each = copy.share(self.places.len());
        debug_assert!(self.places.len() <= each * pools.len(), "a pool each");
        let ports = &self.ports;
        let mut inputs = Shares::new(&mut self.inputs, ports.inputs(), (each, Port::width));
        let mut input_rows = Shares::new(&mut self.input_rows, ports.inputs(), (each, |_| 1));
        let mut states = Shares::new(&mut self.states, ports.states(), (each, Port::width));
        let mut written = Shares::new(&mut self.written, ports.states(), (each, |_| 1));
        let shares = self.places.chunks(each).zip(pools).map(|(places, pool)| {
            let missing: Vec<Row> = Vec::new();
            let buffers = (inputs.cut(), input_rows.cut(), states.cut(), written.cut());
            (places, buffers, pool, missing)
        });
        let loaded = copy.run(shares, |(places, buffers, pool, missing)| {
            let (inputs, input_rows, states, written) = buffers;
            let mut buffers = Buffers {
                ports,
                inputs,
                input_rows,
                states,
                written,
            };
            for (at, placed) in places.iter().enumerate() {
                let &Some(Placed {
                    index,
                    comes,
                    is_deferred: true,
                }) = placed
                else {
                    continue;
                };
                let work = &work[index];
                if !buffers.load(at, work, comes, &mut work.values.lock(), pool) {
                    missing.push(work.row);
                }
            }
        });
        missing.extend(loaded.flat_map(|(.., missing)| missing));
    }

    /// Adds a task whose rows [join](BatchRows::joins) those of `before`, the last one, and records
    /// or copies its inputs. Returns the rows with missing values, as [`BatchRows::place`].
    pub fn extend_steps(
        &mut self,
        before: &[TaskRow<R>],
        work: &[TaskRow<R>],
        pool: &mut BufferPool,
    ) -> Vec<Row> {
        let mut missing = Vec::new();
        let step = self.tasks.len();
        let begin = self.rows.len();
        let mut earlier = 0..before.len();
        for work in work {
            let same = earlier.find(|&at| before[at].row.request == work.row.request);
            let Some(at) = same else {
                unreachable!("its row continues");
            };
            let row = self.row(step - 1, at);
            let mut values = work.values.lock();
            values.joined(before[at].row.node);
            self.lengths[row] = step + 1;
            let at = self.at(row, step);
            if !self.all().load(at, work, false, &mut values, pool) {
                missing.push(work.row);
            }
            self.rows.push(row);
        }
        self.tasks.push(begin);
        for (length, place) in self.lengths.iter_mut().zip(&self.places) {
            if place.is_none() {
                *length = step + 1;
            }
        }
        missing
    }

    /// Moves states from a slot beyond the batch into it.
    fn compact(&mut self, from: usize, to: usize) {
        let count = self.states.len();
        if !self.written.is_empty() {
            let states = self.written[..count].iter_mut();
            states.for_each(|rows| rows.swap(from, to));
            return;
        }
        for (state, port) in self.states.iter_mut().zip(self.ports.states()) {
            let width = port.width();
            state.copy_within(from * width..(from + 1) * width, to * width);
        }
    }

    fn all(&mut self) -> AllBuffers<'_> {
        Buffers {
            ports: &self.ports,
            inputs: &mut self.inputs,
            input_rows: &mut self.input_rows,
            states: &mut self.states,
            written: &mut self.written,
        }
    }

    /// Stores the states of a slot with their request, unless it has ended.
    fn evict(&mut self, row: usize, pool: &mut BufferPool) {
        let Some(slot) = self.slots[row].take() else {
            return;
        };
        if slot.values.has_ended() {
            return;
        }
        self.moved += 1;
        let mut values = slot.values.lock();
        for (port, declared) in self.ports.states().iter().enumerate() {
            let width = declared.width();
            values.retain_state(slot.row.node, port, || match self.written.get_mut(port) {
                Some(rows) => std::mem::replace(&mut rows[row], pool.buffer(width)),
                None => pool.copy(row_of(&self.states[port], width, row)),
            });
        }
    }

    /// Stores all states of a request that are in slots here.
    pub fn evict_request(&mut self, request: RequestKey, pool: &mut BufferPool) {
        for row in 0..self.slots.len() {
            if self.slots[row]
                .as_ref()
                .is_some_and(|s| s.row.request == request)
            {
                self.evict(row, pool);
            }
        }
    }

    /// Whether a slot has states of an ended request.
    pub fn holds_ended(&self) -> bool {
        let mut slots = self.slots.iter().flatten();
        slots.any(|slot| slot.values.has_ended())
    }

    /// Frees the slots of ended requests.
    pub fn forget_ended(&mut self) {
        for slot in &mut self.slots {
            slot.take_if(|slot| slot.values.has_ended());
        }
    }

    /// Runs a function on the placed batch of `tasks`.
    pub fn with_batch<T>(
        &mut self,
        tasks: &[WorkerTask<R>],
        run: impl FnOnce(&mut Batch<'_>) -> T,
    ) -> T {
        let (ports, buffers) = (&self.ports, &self.inputs);
        let (places, begins, count) = (&self.rows, &self.tasks, self.places.len());
        let all = begins.len() * count;
        let at = |step: usize, index: usize| step * count + places[begins[step] + index];
        let lists = &mut self.lists;
        let mut read: Vec<&[f32]> = std::mem::take(&mut lists.read);
        for (port, input_rows) in self.input_rows.iter().enumerate() {
            let (buffer, width) = (&buffers[port], ports.inputs()[port].fixed_width());
            let first = read.len();
            read.extend((0..all).map(|at| row_of(buffer, width, at)));
            list_input_rows(tasks, at, input_rows, &mut read[first..]);
        }
        let mut inputs: Vec<RowsRef<'_>> = std::mem::take(&mut lists.inputs);
        if self.input_rows.is_empty() {
            let buffers = buffers.iter().zip(ports.inputs());
            inputs.extend(buffers.map(|(buffer, port)| port.rows(buffer, all)));
        } else {
            inputs.extend(read.chunks(all).map(RowsRef::gathered));
        }
        let mut boxes: Vec<&mut [f32]> = std::mem::take(&mut lists.written);
        for rows in &mut self.written {
            boxes.extend(rows[..count].iter_mut().map(|row| &mut **row));
        }
        let mut written: Vec<RowsMut<'_>> = std::mem::take(&mut lists.outputs);
        if boxes.is_empty() {
            let states = self.states.iter_mut().zip(ports.states());
            written.extend(states.map(|(buffer, port)| port.rows_mut(buffer, count)));
            let outputs = self.outputs.iter_mut().zip(ports.outputs());
            written.extend(outputs.map(|(buffer, port)| port.rows_mut(buffer, all)));
        } else {
            written.extend(boxes.chunks_mut(count).map(RowsMut::gathered));
        }
        let lengths = (begins.len() > 1).then_some(&self.lengths[..]);
        let mut batch = Batch::of_rows(ports, count, lengths, inputs, written);
        let ran = run(&mut batch);
        let (inputs, written) = batch.into_lists();
        lists.inputs = recycle_vec(inputs);
        lists.outputs = recycle_vec(written);
        lists.read = recycle_vec(read);
        lists.written = recycle_vec(boxes);
        ran
    }

    /// The index of a step of a row in buffers of all steps.
    fn at(&self, row: usize, step: usize) -> usize {
        step * self.places.len() + row
    }

    /// The slot of a row of a task of the batch.
    pub fn row(&self, task: usize, index: usize) -> usize {
        self.rows[self.tasks[task] + index]
    }

    /// The slot with the states of a row, if they are here. The slot of its request may be of
    /// another worker or outdated, so the owner of the slot is checked.
    fn slot(&self, row: Row, values: &Values<R>) -> Option<usize> {
        let slot = values.slot(row.node)?;
        let here = self.slots.get(slot)?.as_ref();
        here.is_some_and(|here| here.row == row).then_some(slot)
    }
}

/// Lists the rows of `tasks` that are not in the buffer; `at` is the index of a step of a row.
fn list_input_rows<'a, R>(
    tasks: &'a [WorkerTask<R>],
    at: impl Fn(usize, usize) -> usize,
    input_rows: &'a [Option<InputRow>],
    rows: &mut [&'a [f32]],
) {
    for (step, todo) in tasks.iter().enumerate() {
        for (index, work) in todo.work.iter().enumerate() {
            let at = at(step, index);
            match &input_rows[at] {
                &Some(InputRow::Given { first, width }) => {
                    rows[at] = &work.values.given()[first..][..width];
                }
                Some(InputRow::Retained(kept)) => rows[at] = kept,
                None => {}
            }
        }
    }
}

fn row_of(buffer: &[f32], width: usize, row: usize) -> &[f32] {
    &buffer[row * width..][..width]
}
