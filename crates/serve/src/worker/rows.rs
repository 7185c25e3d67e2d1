//! The rows of one cell at one worker: the buffers whose first rows are the batch.
//!
//! ```text
//! place(task):
//!   rows whose states rest at a place within the batch stay there             nothing moves
//!   other states within the batch are of nobody in it: kept with their requests  somebody's turn is later
//!   rows whose states rest beyond the batch move to free places               compacted
//!   rows that begin here, or come from elsewhere, get the free places left    appended
//!   inputs: noted where they lie, if their port allows that; else copied
//! go on (task), as often as the next tasks are further steps of the same rows:
//!   inputs of those rows, behind those of the step before
//! run; then every row's values go to those that take them, and its states rest where they are
//! ```
//!
//! An unchanged batch moves no state, a changed one only those of rows that come, go or close a gap.
//!
//! Where the whole team [copies](super::copies), it is decided first who is where; what it copies is copied after.

mod hand_on;

use std::sync::Arc;

use super::Todo;
use super::copies::{AllBuffers, Buffers, Copiers, Shares};
use super::spare::Spare;
use super::values::{Lent, RequestValues, Values};
use crate::cell_graph::{Batch, Cell, Place, Port, Ports};
use crate::scheduler::{RequestKey, Row};
use cellstream::execute::RowLists;
use cellstream::execute::team::SharedTeam;
use cellstream::reused::reused;

/// A row of a task, with its request's values.
pub(crate) struct Work<R> {
    pub row: Row,
    pub values: Arc<RequestValues<R>>,
}

/// Whose states rest in a row: those that `row.node` gave.
type Seat<R> = Work<R>;

/// See the [module](self).
pub(super) struct Rows<R> {
    ports: Ports,
    inputs: Vec<Vec<f32>>,
    /// Of each input of a cell that reads them apart, by row: those of the present batch that lie apart. The others are in its
    /// buffer.
    lent: Vec<Vec<Option<Lent>>>,
    /// Of each input of such a cell, empty between batches: room for where its rows are.
    apart: Vec<Vec<&'static [f32]>>,
    states: Vec<Vec<f32>>,
    outputs: Vec<Vec<f32>>,
    /// Of each state and then of each output of a cell that writes them apart, by row. `states` and `outputs` are empty then.
    written: Vec<Vec<Box<[f32]>>>,
    /// Of the same, empty between batches: room for where its rows are.
    lists: RowLists<'static>,
    /// By row.
    seats: Vec<Option<Seat<R>>>,
    /// Most steps of a batch.
    most_steps: usize,
    /// By row of the present batch; `None` is padding.
    places: Vec<Option<Placed>>,
    /// Where each row of the present batch's first task is, then of its second, and so on.
    rows: Vec<usize>,
    /// By task of the present batch: where its rows begin among `rows`.
    tasks: Vec<usize>,
    /// By row of the present batch: its steps. Those of padding are as many as any row has.
    pub lengths: Vec<usize>,
    /// Empty between tasks: rows that need a place, and those beyond the batch where their states rest.
    unplaced: Vec<(usize, Option<usize>)>,
    /// By row of the present batch, once the team has handed on: whether the states rest, if it was handed on.
    handed: Vec<Option<bool>>,
    /// Rows of states that were moved, loaded or kept so far.
    pub moved: u64,
}

/// Which of the first task's rows a row of the batch is.
#[derive(Clone, Copy)]
struct Placed {
    index: usize,
    /// Its states do not rest in this cell's rows: they come from its request.
    comes: bool,
    /// Who copies what it takes does so when all rows are placed.
    is_put_off: bool,
}

impl<R: Send> Rows<R> {
    /// Room for `place.rows` rows.
    pub fn new(cell: &dyn Cell, place: &Place) -> Rows<R> {
        let ports = cell.ports();
        let buffers = |ports: &[Port], rows: usize| {
            let buffer = |p: &Port| vec![0.0; rows * p.width()];
            ports.iter().map(buffer).collect()
        };
        let most_steps = place.steps;
        let writes_apart = cell.writes_apart() && cell.reads_apart() && most_steps == 1;
        let all = most_steps * place.rows;
        // Rows of states, of outputs, and of both apart.
        let (of_states, of_outputs, of_written) = match writes_apart {
            true => (0, 0, place.rows),
            false => (place.rows, all, 0),
        };
        let boxes = |port: &Port| -> Vec<Box<[f32]>> {
            let row = || vec![0.0; port.width()].into();
            (0..of_written).map(|_| row()).collect()
        };
        let written: Vec<_> = match writes_apart {
            true => ports.gives().map(boxes).collect(),
            false => Vec::new(),
        };
        let lists = match cell.reads_apart() {
            true => 0..ports.inputs().len(),
            false => 0..0,
        };
        Rows {
            inputs: buffers(ports.inputs(), all),
            lent: (lists.clone())
                .map(|_| (0..all).map(|_| None).collect())
                .collect(),
            apart: lists.map(|_| Vec::with_capacity(all)).collect(),
            states: buffers(ports.states(), of_states),
            outputs: buffers(ports.outputs(), of_outputs),
            lists: RowLists::new(written.len(), of_written),
            written,
            ports: ports.clone(),
            most_steps,
            rows: Vec::with_capacity(place.rows),
            tasks: Vec::with_capacity(most_steps),
            lengths: Vec::with_capacity(place.rows),
            seats: (0..place.rows).map(|_| None).collect(),
            places: Vec::with_capacity(place.rows),
            unplaced: Vec::with_capacity(place.rows),
            handed: Vec::with_capacity(place.rows),
            moved: 0,
        }
    }

    /// Who of the team hands on so many rows, if one is not enough: what comes out of a batch is about as much as goes in. Rows that
    /// are handed on as they are count as copied: to look at their records takes long, too.
    pub fn givers<'a>(&self, rows: usize, team: &'a SharedTeam) -> Option<Copiers<'a>> {
        Copiers::of(team, self.ports.inputs(), rows)
    }

    /// Who of the team copies the inputs of these rows, if one is not enough. Of a cell that reads them apart those are copied
    /// that a growing request was given later.
    fn gatherers<'a>(&self, work: &[Work<R>], team: &'a SharedTeam) -> Option<Copiers<'a>> {
        let rows = match self.lent.is_empty() {
            true => work.len(),
            false => work.iter().filter(|work| work.values.grows()).count(),
        };
        Copiers::of(team, self.ports.inputs(), rows)
    }

    /// Who of the team copies the states of so many rows, if one is not enough. Each has as many of all the batch's rows, so that
    /// some may have few of these; to share only where most rows are such took a third more time to gather those of trees.
    fn loaders<'a>(&self, rows: usize, team: &'a SharedTeam) -> Option<Copiers<'a>> {
        Copiers::of(team, self.ports.states(), rows)
    }

    /// Most rows of a batch.
    pub fn most_rows(&self) -> usize {
        self.seats.len()
    }

    /// Most steps of a batch.
    pub fn most_steps(&self) -> usize {
        self.most_steps
    }

    /// Whether all rows of a task are the next steps of rows of the task before it, in their order, so that both can be
    /// computed in one batch. Padding is not asked for row by row: with it, all of them must go on.
    pub fn joins(&self, before: (&[Work<R>], usize), next: (&[Work<R>], usize)) -> bool {
        let ((before, padding), (next, next_padding)) = (before, next);
        if next.is_empty() || padding != next_padding || padding > 0 && before.len() != next.len() {
            return false;
        }
        let mut rows = before.iter();
        next.iter().all(|work| {
            let same = rows.find(|before| before.row.request == work.row.request);
            same.is_some_and(|before| {
                let values = work.values.lock();
                values.joins(before.row.node, work.row.node, self.states.len())
            })
        })
    }

    /// Gives every row of the task a place among the first `work.len() + padding`, with its states there,
    /// and notes or copies its inputs: where there is much to copy by the whole `team`, if that may, whose members have a spare
    /// each. Returns the rows that lack something, which would be a mistake of ours: what a node takes is kept with its
    /// request, unless it goes on in place.
    pub fn place(
        &mut self,
        work: &[Work<R>],
        padding: usize,
        team: Option<&SharedTeam>,
        spares: &mut [Spare],
    ) -> Vec<Row> {
        let gatherers = team.and_then(|team| self.gatherers(work, team));
        let batch = work.len() + padding;
        let spare = &mut spares[0];
        self.handed.clear();
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
            let before = values.follows(node);
            let seat = before.and_then(|node| self.seat(Row { request, node }, &values));
            let (Some(before), Some(seat)) = (before, seat) else {
                unplaced.push((index, None));
                continue;
            };
            values.followed_in_place(before, state_count, spare);
            self.seats[seat] = None;
            if seat < batch {
                let comes = false;
                self.places[seat] = Some(Placed {
                    index,
                    comes,
                    is_put_off: gatherers.is_some(),
                });
                self.rows[index] = seat;
                if gatherers.is_none() && !self.all().load(seat, work, comes, &mut values, spare) {
                    missing.push(work.row);
                }
            } else {
                unplaced.push((index, Some(seat)));
            }
        }
        for row in 0..batch {
            if self.places[row].is_none() && self.seats[row].is_some() {
                self.evict(row, spare);
            }
        }
        let copiers =
            gatherers.or_else(|| team.and_then(|team| self.loaders(unplaced.len(), team)));
        let mut free = 0;
        for (index, seat) in unplaced.drain(..) {
            while self.places[free].is_some() {
                free += 1;
            }
            let comes = seat.is_none();
            self.places[free] = Some(Placed {
                index,
                comes,
                is_put_off: copiers.is_some(),
            });
            self.rows[index] = free;
            self.moved += u64::from(state_count > 0);
            if let Some(seat) = seat {
                self.compact(seat, free);
            }
            if copiers.is_none() {
                let work = &work[index];
                let mut values = work.values.lock();
                if !self.all().load(free, work, comes, &mut values, spare) {
                    missing.push(work.row);
                }
            }
        }
        self.unplaced = unplaced;
        if let Some(copiers) = copiers {
            self.load_all(work, copiers, spares, &mut missing);
        }
        missing
    }

    /// Copies what was put off while rows were placed.
    fn load_all(
        &mut self,
        work: &[Work<R>],
        copiers: Copiers<'_>,
        spares: &mut [Spare],
        missing: &mut Vec<Row>,
    ) {
        let each = copiers.share(self.places.len());
        debug_assert!(self.places.len() <= each * spares.len(), "a spare each");
        let ports = &self.ports;
        let mut inputs = Shares::new(&mut self.inputs, ports.inputs(), (each, Port::width));
        let mut lent = Shares::new(&mut self.lent, ports.inputs(), (each, |_| 1));
        let mut states = Shares::new(&mut self.states, ports.states(), (each, Port::width));
        let mut written = Shares::new(&mut self.written, ports.states(), (each, |_| 1));
        let shares = self.places.chunks(each).zip(spares).map(|(places, spare)| {
            let missing: Vec<Row> = Vec::new();
            let buffers = (inputs.cut(), lent.cut(), states.cut(), written.cut());
            (places, buffers, spare, missing)
        });
        let loaded = copiers.run(shares, |(places, buffers, spare, missing)| {
            let (inputs, lent, states, written) = buffers;
            let mut buffers = Buffers {
                ports,
                inputs,
                lent,
                states,
                written,
            };
            for (at, placed) in places.iter().enumerate() {
                let &Some(Placed {
                    index,
                    comes,
                    is_put_off: true,
                }) = placed
                else {
                    continue;
                };
                let work = &work[index];
                if !buffers.load(at, work, comes, &mut work.values.lock(), spare) {
                    missing.push(work.row);
                }
            }
        });
        missing.extend(loaded.flat_map(|(.., missing)| missing));
    }

    /// Adds a task whose rows [join](Rows::joins) those of `before`, the last one, and notes or copies its inputs. Returns the rows
    /// that lack something, as [`Rows::place`].
    pub fn go_on(&mut self, before: &[Work<R>], work: &[Work<R>], spare: &mut Spare) -> Vec<Row> {
        let mut missing = Vec::new();
        let step = self.tasks.len();
        let begin = self.rows.len();
        let mut earlier = 0..before.len();
        for work in work {
            let same = earlier.find(|&at| before[at].row.request == work.row.request);
            let Some(at) = same else {
                unreachable!("its row goes on");
            };
            let row = self.row(step - 1, at);
            let mut values = work.values.lock();
            values.joined(before[at].row.node);
            self.lengths[row] = step + 1;
            let at = self.at(row, step);
            if !self.all().load(at, work, false, &mut values, spare) {
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

    /// Moves states from a row beyond the batch into it.
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
            lent: &mut self.lent,
            states: &mut self.states,
            written: &mut self.written,
        }
    }

    /// Keeps the states of a seat with their request, if that still wants them.
    fn evict(&mut self, row: usize, spare: &mut Spare) {
        let Some(seat) = self.seats[row].take() else {
            return;
        };
        if seat.values.has_ended() {
            return;
        }
        self.moved += 1;
        let mut values = seat.values.lock();
        for (port, declared) in self.ports.states().iter().enumerate() {
            let width = declared.width();
            values.keep_state(seat.row.node, port, || match self.written.get_mut(port) {
                Some(rows) => std::mem::replace(&mut rows[row], spare.room(width)),
                None => spare.copy(row_of(&self.states[port], width, row)),
            });
        }
    }

    /// Keeps all states of a request's nodes that rest here.
    pub fn evict_request(&mut self, request: RequestKey, spare: &mut Spare) {
        for row in 0..self.seats.len() {
            if self.seats[row]
                .as_ref()
                .is_some_and(|s| s.row.request == request)
            {
                self.evict(row, spare);
            }
        }
    }

    /// Whether states of a request that has ended rest here.
    pub fn holds_ended(&self) -> bool {
        let mut seats = self.seats.iter().flatten();
        seats.any(|seat| seat.values.has_ended())
    }

    /// Lets go of requests that have ended.
    pub fn forget_ended(&mut self) {
        for seat in &mut self.seats {
            seat.take_if(|seat| seat.values.has_ended());
        }
    }

    /// Does something with the batch that was placed, of the rows of `tasks`.
    pub fn with_batch<T>(&mut self, tasks: &[Todo<R>], run: impl FnOnce(&mut Batch<'_>) -> T) -> T {
        let mut apart = std::mem::take(&mut self.apart);
        let (ports, inputs) = (&self.ports, &self.inputs);
        let (places, begins, count) = (&self.rows, &self.tasks, self.places.len());
        let at = |step: usize, index: usize| step * count + places[begins[step] + index];
        for (port, (rows, lent)) in apart.iter_mut().zip(&self.lent).enumerate() {
            let (buffer, width) = (&inputs[port], ports.inputs()[port].width());
            rows.extend((0..begins.len() * count).map(|at| row_of(buffer, width, at)));
            list_lent(tasks, at, (lent, width), rows);
        }
        let (states, outputs) = (&mut self.states, &mut self.outputs);
        let mut lists = std::mem::take(&mut self.lists);
        let lies_apart = !self.written.is_empty();
        for (port, rows) in self.written.iter_mut().enumerate() {
            lists.extend(port, rows[..count].iter_mut().map(|row| &mut **row));
        }
        let mut batch = match self.tasks.len() {
            1 if lies_apart => Batch::of_rows_apart(ports, count, &apart, lists.written()),
            1 => Batch::new(ports, count, inputs, states, outputs).with_rows_apart(&apart),
            _ => Batch::of_steps(ports, &self.lengths, inputs, states, outputs)
                .with_rows_apart(&apart),
        };
        let ran = run(&mut batch);
        self.lists = lists.cleared();
        self.apart = apart.into_iter().map(reused).collect();
        ran
    }

    /// Where a row's step is among those of all steps.
    fn at(&self, row: usize, step: usize) -> usize {
        step * self.places.len() + row
    }

    /// Where a row of one of the batch's tasks is.
    pub fn row(&self, task: usize, index: usize) -> usize {
        self.rows[self.tasks[task] + index]
    }

    /// Where the states that a row gave rest, if they do so here. What its request says may be of another worker, or of long
    /// ago; the seat says whose it is.
    fn seat(&self, row: Row, values: &Values<R>) -> Option<usize> {
        let seat = values.seat(row.node)?;
        let here = self.seats.get(seat)?.as_ref();
        here.is_some_and(|here| here.row == row).then_some(seat)
    }
}

/// Says of the rows of `tasks` that were lent where they are; `at` tells where a step of one of them is listed.
fn list_lent<'a, R>(
    tasks: &'a [Todo<R>],
    at: impl Fn(usize, usize) -> usize,
    (lent, width): (&'a [Option<Lent>], usize),
    rows: &mut [&'a [f32]],
) {
    for (step, todo) in tasks.iter().enumerate() {
        for (index, work) in todo.work.iter().enumerate() {
            let at = at(step, index);
            match &lent[at] {
                Some(Lent::Given { first }) => {
                    rows[at] = &work.values.given()[*first..][..width];
                }
                Some(Lent::Kept(kept)) => rows[at] = kept,
                None => {}
            }
        }
    }
}

fn row_of(buffer: &[f32], width: usize, row: usize) -> &[f32] {
    &buffer[row * width..][..width]
}
