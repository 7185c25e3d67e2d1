//! A thread's way through a run, for the workers that it stands for: the body of the parallel
//! region.
//!
//! ```text
//! for layer in layers
//!   own columns of the states <- initial states; meet   but cell states computed in place
//!   for step in steps
//!     for direction in directions                 forward at `step`, reverse at `last - step`
//!       every chunk of steps: take products ahead   needs no state, only the layer below; where
//!                                                   rows are dealt out, of the next chunk
//!       first phase: own units of the new state      reads all of the old state
//!     meet
//!     second phase, where there is one; meet
//!   final states <- own columns of the states
//!   directions to be summed: wait for the owners, sum
//! ```
//!
//! Waits are as short as possible: a worker meets those that it shares a direction with, and
//! waits for the layer below only up to the steps that it is about to read. Where a layer and the
//! one above belong to different workers, that makes them run at the same time, a chunk of steps
//! apart.
//!
//! A thread that runs the whole group computes one direction to its end, then the other.
//! Usually a thread stands for one worker. One that stands for several takes them through each line
//! above together, so that it never waits for a worker of its own.
//!
//! README.md beside this file says which memory a worker may access between two meetings; how far
//! to wait is counted in `meetings.rs`.

use std::cell::Cell;
use std::ops::Range;

use super::active::step_rows;
use super::buffers::DirectionBuffers;
use super::meetings::LayerMeetings;
use super::packed::{PackedDirection, PackedLayer};
use super::phases::{Phases, Step};
use super::products::{InputRows, Products, sweep};
use super::run::{Members, Run, Sum};
use super::team::Track;
use super::trace::{Activity, Probe};
use crate::plan::InputProjectionBy;
use gatestream_kernels::{Columns, RowsRef, SharedRows};

/// The input of a layer.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// The caller's sequences.
    Caller,
    /// The output of the layer below, rows of all running steps.
    Below(SharedRows<'a>),
}

/// Computes these workers' parts of everything, and tells `probe` of each boundary between
/// activities.
///
/// # Safety
/// Every thread that stands for workers of the group calls this once, with equal runs; no other
/// thread touches the buffers, nor the group's sequences in the output slices, meanwhile.
pub(super) unsafe fn work<P: Probe>(run: &Run<'_>, members: Members<'_>, probe: P) {
    probe.begin();
    members.own().for_each(|me| run.clear_past_ends(me));
    let mut source = Source::Caller;
    let layers = &run.configuration.layers;
    probe.of_layer(layers.len() - 1).lap(Activity::States);
    for (index, layer) in layers.iter().enumerate() {
        let to_caller = index + 1 == layers.len();
        let between = &run.buffers.between_layers;
        let between = (!to_caller).then(|| {
            let memory = between[index % between.len()].share();
            SharedRows::contiguous(memory, layer.features)
        });
        let walk = LayerWalk {
            run,
            members,
            index,
            layer,
            meetings: run.configuration.meetings.layer(index),
            states: &run.buffers.states[index],
            source,
            target: if to_caller { run.values } else { between },
            to_caller,
            probe: probe.of_layer(index),
            met: Cell::new(0),
            readable: Cell::new(0),
        };
        if members.own().any(|me| walk.meetings.takes_part(me)) {
            // SAFETY: the caller's promise; layers are kept apart by their waits.
            unsafe { walk.go() };
        }
        if let Some(between) = between {
            source = Source::Below(between);
        }
    }
}

/// One layer of a run, as one thread goes through it.
struct LayerWalk<'a, 'w, P> {
    run: &'w Run<'a>,
    members: Members<'w>,
    index: usize,
    layer: &'a PackedLayer,
    meetings: &'a LayerMeetings,
    states: &'a [DirectionBuffers],
    source: Source<'a>,
    target: Option<SharedRows<'a>>,
    to_caller: bool,
    probe: P,
    /// Meetings so far.
    met: Cell<u32>,
    /// Steps of the layer below that are known to be complete.
    readable: Cell<usize>,
}

impl<'a, P: Probe> LayerWalk<'a, '_, P> {
    /// # Safety
    /// As [`work`].
    unsafe fn go(&self) {
        let directions = &self.layer.directions;
        let steps = self.steps();
        let has_owner = self.owners().next().is_some();
        if has_owner {
            for me in self.owners() {
                for (direction, states) in directions.iter().zip(self.states) {
                    // SAFETY: own columns only.
                    unsafe { self.run.load_states(me, direction, states) };
                }
            }
            self.probe.lap(Activity::States);
            self.meet();
        }
        if has_owner && self.takes_directions_in_turn() {
            // SAFETY: as below; this thread alone reads and writes everything.
            unsafe { self.take_steps(0..1, false) };
            // SAFETY: as above.
            unsafe { self.take_steps(1..2, true) };
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.take_steps(0..directions.len(), true) };
        }
        if !has_owner {
            return;
        }
        for me in self.owners() {
            for (direction, states) in directions.iter().zip(self.states) {
                // SAFETY: own columns only.
                unsafe { self.run.store_states(me, direction, states) };
            }
        }
        self.probe.lap(Activity::States);
        self.mark_end();
        if self.layer.is_summed() {
            for &owner in &self.meetings.owners {
                let count = self.meetings.own_output(owner, steps, steps);
                self.wait_for_mark(self.index, owner, count);
            }
            self.probe.lap(Activity::Waiting);
            for me in self.owners() {
                // SAFETY: all owners have written their outputs.
                unsafe { self.sum_directions(me) };
            }
            self.mark();
        }
    }

    /// Whether all steps of one direction come before those of the other: the weights of one may
    /// stay in a cache that is too small for both. Only where this thread does everything of the
    /// group, so that nobody waits for its steps. A plan says it of groups of one worker
    /// (`LayerPlan::takes_directions_in_turn`); here a thread may also stand for several.
    fn takes_directions_in_turn(&self) -> bool {
        self.layer.directions.len() == 2
            && self.layer.ahead == InputProjectionBy::Owners
            && self.members.own().count() == self.members.size
    }

    /// All steps of these directions. Meets the others and marks progress only if `is_counted`.
    ///
    /// # Safety
    /// As [`work`]; what is not counted is not waited for.
    unsafe fn take_steps(&self, directions: Range<usize>, is_counted: bool) {
        let (steps, has_second) = (self.steps(), self.meetings.phases > 1);
        let has_owner = self.owners().next().is_some();
        for taken in 0..steps {
            if taken.is_multiple_of(self.layer.chunk_steps) {
                // SAFETY: waits for those who may still read what it writes.
                unsafe { self.take_ahead(taken, directions.clone()) };
            }
            if !has_owner {
                continue;
            }
            for me in self.owners() {
                for index in directions.clone() {
                    // SAFETY: all have met since the last phase that wrote what this one reads.
                    unsafe { self.first_phase(me, index, taken) };
                }
            }
            if is_counted {
                self.meet();
            }
            if has_second {
                for me in self.owners() {
                    for index in directions.clone() {
                        // SAFETY: all have met since the first phase.
                        unsafe { self.second_phase(me, index, taken) };
                    }
                }
                if is_counted {
                    self.meet();
                }
            }
            if is_counted {
                self.mark_progress(taken + 1);
            }
        }
    }

    /// The workers of this thread that own units of the layer.
    #[inline]
    fn owners(&self) -> impl Iterator<Item = usize> {
        self.members
            .own()
            .filter(|me| self.meetings.owners.contains(me))
    }

    /// # Safety
    /// All owners have written their outputs.
    unsafe fn sum_directions(&self, me: usize) {
        let Some(target) = self.target else { return };
        let owners = &self.meetings.owners;
        let mine = owners.iter().position(|&o| o == me);
        let sum = Sum {
            features: self.layer.features,
            directions: [0, 1].map(|i| {
                SharedRows::contiguous(self.states[i].unsummed.share(), self.layer.features)
            }),
            target,
            to_caller: self.to_caller,
            share: (mine.unwrap_or(0), owners.len()),
        };
        // SAFETY: the caller's promise; each owner has rows of its own.
        unsafe { self.run.sum_directions(sum) };
        self.probe.lap(Activity::Summing);
    }

    fn steps(&self) -> usize {
        self.run.active.steps()
    }

    /// Waits for those that its workers share a direction with.
    fn meet(&self) {
        let peers = |me: usize| &self.meetings.peers[me];
        for me in self.owners().filter(|&me| !peers(me).is_empty()) {
            self.members.advance(me, Track::Steps);
        }
        self.met.set(self.met.get().wrapping_add(1));
        let meetings = &self.run.configuration.meetings;
        let mut has_waited = false;
        for me in self.owners() {
            for &peer in peers(me) {
                let before = meetings.steps_before(self.index, peer, self.steps());
                let count = before.wrapping_add(self.met.get());
                self.members.wait_for(peer, Track::Steps, count);
                has_waited = true;
            }
        }
        if has_waited {
            self.probe.lap(Activity::Meeting);
        }
    }

    /// A mark of each of its owners.
    fn mark(&self) {
        self.owners()
            .for_each(|me| self.members.advance(me, Track::Marks));
    }

    fn wait_for_mark(&self, layer: usize, owner: usize, count: u32) {
        let meetings = &self.run.configuration.meetings;
        let before = meetings.marks_before(layer, owner, self.steps());
        let count = before.wrapping_add(count);
        self.members.wait_for(owner, Track::Marks, count);
    }

    /// Tells the layer above and those who take rows ahead that `done` steps are complete.
    fn mark_progress(&self, done: usize) {
        if self.meetings.ahead > 0
            && (done.is_multiple_of(self.layer.chunk_steps) || done == self.steps())
        {
            self.mark();
        }
        if let Some(every) = self.meetings.mark_every
            && done.is_multiple_of(every)
            && done < self.steps()
        {
            self.mark();
        }
    }

    /// Tells the others that all own output is written.
    fn mark_end(&self) {
        if !self.to_caller || self.layer.is_summed() {
            self.mark();
        }
    }

    /// Waits until the layer below has written its first `steps` steps.
    fn wait_for_input(&self, steps: usize) {
        if self.index == 0 || steps <= self.readable.get() {
            return;
        }
        let below = self.index - 1;
        let meetings = self.run.configuration.meetings.layer(below);
        for &owner in &meetings.owners {
            let count = meetings.output(owner, steps, self.steps());
            self.wait_for_mark(below, owner, count);
        }
        self.probe.lap(Activity::Waiting);
        self.readable.set(match meetings.mark_every {
            Some(_) => steps,
            None => self.steps(),
        });
    }

    fn phases(&self, me: usize, index: usize, owner: usize) -> Phases<'a, P> {
        let direction = &self.layer.directions[index];
        let products = Products {
            kernels: self.run.kernels,
            part: &direction.parts[owner],
            slots: direction.step.slots(),
            blocking: direction.blocking,
            scratch: self.run.buffers.scratch[me].share(),
        };
        Phases {
            direction,
            products,
            buffers: &self.states[index],
            c: self.run.cell_states(direction, &self.states[index]),
            projected: self.run.buffers.projected[owner].share(),
            probe: self.probe,
        }
    }

    /// The step of the sequence that a direction takes after `taken` others.
    fn step_of(&self, direction: &PackedDirection, taken: usize) -> usize {
        if direction.reverse {
            self.steps() - 1 - taken
        } else {
            taken
        }
    }

    /// This worker's pre-activations of the running rows of `taken`, whose chunk has been taken.
    ///
    /// # Safety
    /// The result is dropped before the next call for this direction, and no other thread writes
    /// it.
    unsafe fn z(
        &self,
        me: usize,
        (index, taken): (usize, usize),
        phases: &Phases<'a, P>,
    ) -> &'a mut [f32] {
        let direction = &self.layer.directions[index];
        let step = self.step_of(direction, taken);
        let first = self.chunk(direction, taken).start;
        let rows =
            self.rows_before_chunk(direction, taken) + self.run.active.span(first..step).len();
        let count = self.run.active.rows(step);
        let z = self.run.buffers.z[me][index].share();
        // SAFETY: these rows are this worker's own while it takes steps (who takes rows for it
        // meanwhile writes those of the other chunk's place); the caller keeps two borrows apart.
        unsafe { z.write(rows * phases.products.z_row()..(rows + count) * phases.products.z_row()) }
    }

    /// The steps whose pre-activations are taken together with those of `taken`.
    fn chunk(&self, direction: &PackedDirection, taken: usize) -> Range<usize> {
        let (steps, chunk) = (self.steps(), self.layer.chunk(direction));
        let from = taken - taken % chunk;
        let to = (from + chunk).min(steps);
        if direction.reverse {
            steps - to..steps - from
        } else {
            from..to
        }
    }

    /// Takes its workers' shares of what is computed ahead for the chunk that begins with `taken`,
    /// of these directions; of all, where rows are taken for others.
    ///
    /// # Safety
    /// As [`work`].
    unsafe fn take_ahead(&self, taken: usize, directions: Range<usize>) {
        if self.layer.ahead == InputProjectionBy::Owners {
            for me in self.owners() {
                for index in directions.clone() {
                    let direction = &self.layer.directions[index];
                    if !direction.is_ahead {
                        continue;
                    }
                    let rows = self.run.active.span(self.chunk(direction, taken));
                    // SAFETY: the buffer is this worker's own.
                    unsafe { self.take_rows(me, (index, me), taken, 0..rows.len()) };
                }
            }
            return;
        }
        let (count, chunk_steps) = (self.meetings.ahead, self.layer.chunk_steps);
        let chunk = taken / chunk_steps;
        for me in self.members.own().filter(|&me| me < count) {
            if chunk == 0 {
                // SAFETY: passed on.
                unsafe { self.take_share(me, 0) };
            }
            if taken + chunk_steps < self.steps() {
                // SAFETY: passed on.
                unsafe { self.take_share(me, chunk + 1) };
            }
        }
        if count > 0 && self.owners().next().is_some() {
            for worker in 0..count {
                let taken = self.meetings.taken_ahead(worker, chunk);
                self.wait_for_mark(self.index, worker, taken);
            }
            self.probe.lap(Activity::Waiting);
        }
    }

    /// Takes a worker's rows of a chunk, for all owners. Pre-activations of two chunks stand side
    /// by side, so that those of the chunk before may still be in use.
    ///
    /// # Safety
    /// As [`work`].
    unsafe fn take_share(&self, me: usize, chunk: usize) {
        let owners = &self.meetings.owners;
        for &owner in owners {
            let done = (self.meetings).chunks_done(owner, chunk.saturating_sub(1), self.steps());
            self.wait_for_mark(self.index, owner, done);
        }
        self.probe.lap(Activity::Waiting);
        let taken = chunk * self.layer.chunk_steps;
        let directions = self.layer.directions.iter().enumerate();
        for (index, direction) in directions.filter(|(_, d)| d.is_ahead) {
            let rows = self.run.active.span(self.chunk(direction, taken)).len();
            let is_owner = |worker| owners.contains(&worker);
            let share = self.layer.ahead.share(rows, me, chunk == 0, is_owner);
            for &owner in owners {
                // SAFETY: the owners are done with the chunk that stood here before, and these rows
                // are no other worker's.
                unsafe { self.take_rows(me, (index, owner), taken, share.clone()) };
            }
        }
        self.members.advance(me, Track::Marks);
    }

    /// Rows of pre-activations that stand in the buffer before those of the chunk of `taken`: where
    /// rows are taken for others, chunks take turns between two places.
    fn rows_before_chunk(&self, direction: &PackedDirection, taken: usize) -> usize {
        if !self.layer.keeps_two_chunks(direction) {
            return 0;
        }
        let chunk = self.layer.chunk_steps;
        taken / chunk % 2 * chunk.min(self.steps()) * self.run.active.batch()
    }

    /// Some rows of the products that are taken ahead for `owner`, of the chunk of `taken`.
    ///
    /// # Safety
    /// No other thread accesses these rows of the owner's pre-activations.
    unsafe fn take_rows(
        &self,
        me: usize,
        (index, owner): (usize, usize),
        taken: usize,
        rows: Range<usize>,
    ) {
        let phases = self.phases(me, index, owner);
        if phases.products.part.units.is_empty() || rows.is_empty() {
            return;
        }
        let direction = &self.layer.directions[index];
        let steps = self.chunk(direction, taken);
        self.wait_for_input(steps.end);
        let first = self.run.active.span(0..steps.start).len();
        // SAFETY: the layer below has been written, by the wait above.
        let input = unsafe { self.input(direction, first + rows.start..first + rows.end) };
        let z = self.run.buffers.z[owner][index].share();
        let before = self.rows_before_chunk(direction, taken);
        let places = (before + rows.start) * phases.products.z_row()
            ..(before + rows.end) * phases.products.z_row();
        // SAFETY: the caller's promise.
        let z = unsafe { z.write(places) };
        phases.take_ahead(input, z);
    }

    /// Rows of the layer's input, counted over all steps.
    ///
    /// # Safety
    /// The layer below has written them.
    unsafe fn input(&self, direction: &PackedDirection, span: Range<usize>) -> InputRows<'a> {
        let features = direction.input;
        let count = span.len();
        match self.source {
            Source::Caller => InputRows {
                rows: self.run.input,
                order: Some(&self.run.active.input_rows()[span]),
                count,
            },
            Source::Below(below) => {
                // SAFETY: the caller's promise.
                let values = unsafe { below.read(span.start, 0..count * features) };
                InputRows::new(RowsRef::contiguous(values, features), count)
            }
        }
    }

    /// # Safety
    /// As [`Phases::first`].
    unsafe fn first_phase(&self, me: usize, index: usize, taken: usize) {
        let phases = self.phases(me, index, me);
        if phases.products.part.units.is_empty() {
            return;
        }
        // SAFETY: the caller's promise; the slice is dropped with this call.
        unsafe {
            let step = self.step(index, taken);
            phases.first(step, self.z(me, (index, taken), &phases));
        }
    }

    /// # Safety
    /// As [`Phases::second`].
    unsafe fn second_phase(&self, me: usize, index: usize, taken: usize) {
        let phases = self.phases(me, index, me);
        // SAFETY: the caller's promise; the slice is dropped with this call.
        unsafe {
            if phases.products.part.projection.is_some() {
                if !phases.products.part.projected.is_empty() {
                    phases.project(self.step(index, taken));
                }
            } else if phases.direction.gate_kernels.len() > 1
                && !phases.products.part.units.is_empty()
            {
                let step = self.step(index, taken);
                phases.second(step, self.z(me, (index, taken), &phases));
            }
        }
    }

    /// What the phases need to know of a step. Waits for its input, where that has not been taken.
    ///
    /// # Safety
    /// As [`work`].
    unsafe fn step(&self, index: usize, taken: usize) -> Step<'a> {
        let direction = &self.layer.directions[index];
        let step = self.step_of(direction, taken);
        let active = self.run.active;
        let span = active.span(step..step + 1);
        let row = span.start;
        let y = self.target.map(|target| {
            let first = index * direction.state;
            if self.layer.is_summed() {
                let memory = self.states[index].unsummed.share();
                Columns::new(
                    SharedRows::contiguous(memory, direction.state).every(row, 1),
                    0,
                )
            } else if self.to_caller {
                let (row, apart) = step_rows(self.run.layout, step, self.run.steps, self.run.batch);
                Columns {
                    order: Some(active.order()),
                    ..Columns::new(target.every(row, apart), first)
                }
            } else {
                Columns::new(target.every(row, 1), first)
            }
        });
        let in_step = !direction.is_all_ahead;
        if in_step {
            self.wait_for_input(step + 1);
        }
        let input = if in_step {
            // SAFETY: the layer below has been written, by the wait above.
            unsafe { self.input(direction, span.clone()) }
        } else {
            InputRows::new(RowsRef::EMPTY, 0)
        };
        Step {
            taken,
            rows: span.len(),
            input,
            sweep: sweep(self.layer.order, self.run.is_odd ^ (taken % 2 == 1)),
            y,
        }
    }
}
