//! The waits of README.md keep every reader behind the writes it needs, and every writer behind the
//! reads it must follow.
//!
//! ```text
//! for any plan and number of steps
//!   write down what each worker reads, writes, counts and waits for, as the table and the waits of
//!     README.md say; only how far to wait is asked of `Meetings`
//!   let the workers go in a random order, each as far as its waits allow
//!   any two that touch one place, one of them writing, must be ordered by a wait between them
//! ```
//!
//! "Ordered" is asked of vector clocks, not of the order that was drawn: what a wait vouches for is
//! all that its counter's worker did up to that very count, and no more. So a count that is one too
//! low shows in whatever order the workers go, not only where somebody happens to be late.

use std::collections::BTreeMap;
use std::ops::Range;

use super::meetings::Meetings;
use super::meetings_cases::{Case, pick};
use super::team::Track;

/// Memory that is written more than once, as README.md's table lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Memory {
    /// One of a direction's two states.
    State(usize, usize, usize),
    /// Between the phases of a direction.
    Between(usize, usize),
    /// Pre-activations of a worker, for the first or second direction of whatever layer it is at.
    Z(usize, usize),
    /// Which of the buffers between layers.
    Layers(usize),
    /// A direction's output that is to be summed.
    Apart(usize, usize),
    /// The caller's output.
    Caller,
}

/// One row of it, and the columns of one owner or all.
#[derive(Clone, Copy, Debug)]
struct Spot {
    memory: Memory,
    /// Layers cut one buffer into rows of different sizes, so rows of two layers may overlap.
    layer: usize,
    row: usize,
    /// Direction and worker whose columns they are; `None`: all.
    columns: Option<(usize, usize)>,
}

impl Spot {
    fn overlaps(&self, other: &Spot) -> bool {
        let columns = match (self.columns, other.columns) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        self.layer != other.layer || (self.row == other.row && columns)
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// What is read must be what was written as this version.
    Read(Spot, usize),
    Write(Spot, usize),
    Advance(Track),
    Wait(usize, Track, u32),
}

/// Writes one worker's way through a run.
struct Writer<'a> {
    case: &'a Case,
    meetings: &'a Meetings,
    me: usize,
    layer: usize,
    buffers: usize,
    counted: BTreeMap<&'static str, u32>,
    met: u32,
    events: Vec<Event>,
}

impl Writer<'_> {
    fn spot(&self, memory: Memory, row: usize, columns: Option<(usize, usize)>) -> Spot {
        Spot {
            memory,
            layer: self.layer,
            row,
            columns,
        }
    }

    fn read(&mut self, spot: Spot, version: usize) {
        self.events.push(Event::Read(spot, version));
    }

    fn write(&mut self, spot: Spot, version: usize) {
        self.events.push(Event::Write(spot, version));
    }

    fn advance(&mut self, track: Track) {
        let name = if track == Track::Steps {
            "steps"
        } else {
            "marks"
        };
        *self.counted.entry(name).or_default() += 1;
        self.events.push(Event::Advance(track));
    }

    /// Waits 1 to 3.
    fn meet(&mut self) {
        let peers = self.case.peers(self.layer, self.me);
        if peers.is_empty() {
            return;
        }
        self.advance(Track::Steps);
        self.met += 1;
        for peer in peers {
            let before = self
                .meetings
                .steps_before(self.layer, peer, self.case.steps);
            self.events
                .push(Event::Wait(peer, Track::Steps, before + self.met));
        }
    }

    fn wait_for_mark(&mut self, layer: usize, worker: usize, count: u32) {
        let before = self.meetings.marks_before(layer, worker, self.case.steps);
        self.events
            .push(Event::Wait(worker, Track::Marks, before + count));
    }

    fn state(&self, direction: usize, parity: usize, owner: usize) -> Spot {
        let memory = Memory::State(self.layer, direction, parity % 2);
        self.spot(memory, 0, Some((direction, owner)))
    }

    /// Wait 4, and then all columns of these steps.
    fn read_input(&mut self, steps: Range<usize>, rows: Range<usize>) {
        let Some(below) = self.layer.checked_sub(1) else {
            return;
        };
        for owner in self.case.owners(below) {
            let lower = self.meetings.layer(below);
            let count = lower.output(owner, steps.end, self.case.steps);
            self.wait_for_mark(below, owner, count);
        }
        for row in rows {
            let here = Spot {
                layer: below,
                ..self.spot(Memory::Layers(below % self.buffers), row, None)
            };
            if self.case.is_summed(below) {
                self.read(here, 0);
                continue;
            }
            for direction in self.case.directions(below) {
                for owner in self.case.state_owners(below, direction) {
                    let columns = Some((direction, owner));
                    self.read(Spot { columns, ..here }, 0);
                }
            }
        }
    }

    fn step_of(&self, direction: usize, taken: usize) -> usize {
        let direction = &self.case.model.layers()[self.layer].directions()[direction];
        if direction.is_reverse() {
            self.case.steps - 1 - taken
        } else {
            taken
        }
    }

    /// The steps that are taken ahead together with that of `taken`.
    fn chunk(&self, direction: usize, taken: usize) -> Range<usize> {
        let chunk = if self.case.is_ahead(self.layer, direction) {
            self.case.plan.layers[self.layer].chunk_steps
        } else {
            1
        };
        let from = taken / chunk * chunk;
        let to = (from + chunk).min(self.case.steps);
        let ends = [
            self.step_of(direction, from),
            self.step_of(direction, to - 1),
        ];
        ends[0].min(ends[1])..ends[0].max(ends[1]) + 1
    }

    /// Some rows of the chunk's pre-activations of `owner`.
    fn take_rows(&mut self, direction: usize, owner: usize, taken: usize, rows: Range<usize>) {
        let owns = self
            .case
            .unit_owners(self.layer, direction)
            .contains(&owner);
        if !owns || rows.is_empty() {
            return;
        }
        let steps = self.chunk(direction, taken);
        let first = self.case.rows(steps.clone()).start;
        self.read_input(steps, first + rows.start..first + rows.end);
        let before = self.other_place(direction, taken);
        for row in rows {
            let spot = self.spot(Memory::Z(owner, direction), before + row, None);
            self.write(spot, 3 * (first + row));
        }
    }

    /// Where rows are taken for others, odd chunks stand behind even ones.
    fn other_place(&self, direction: usize, taken: usize) -> usize {
        let takes_turns =
            self.case.takers(self.layer) > 0 && self.case.is_ahead(self.layer, direction);
        let chunk = taken / self.case.plan.layers[self.layer].chunk_steps;
        if takes_turns && chunk % 2 == 1 {
            1000
        } else {
            0
        }
    }

    fn take_ahead(&mut self, taken: usize) {
        let (layer, me) = (self.layer, self.me);
        let owners = self.case.owners(layer);
        let ahead: Vec<_> = (self.case.directions(layer))
            .filter(|&d| self.case.is_ahead(layer, d))
            .collect();
        let takers = self.case.takers(layer);
        if takers == 0 {
            for &direction in &ahead {
                let rows = self.case.rows(self.chunk(direction, taken)).len();
                self.take_rows(direction, me, taken, 0..rows);
            }
            return;
        }
        // Wait 6: the first two chunks before the first step, then each before the steps of the
        // last.
        let each = self.case.plan.layers[layer].chunk_steps;
        let chunk = taken / each;
        let mut next = vec![chunk + 1];
        if chunk == 0 {
            next.insert(0, 0);
        }
        for chunk in next
            .into_iter()
            .filter(|chunk| chunk * each < self.case.steps)
        {
            if me >= takers {
                break;
            }
            for &owner in &owners {
                let steps = self.case.steps;
                let done = chunk.max(1) - 1;
                let count = self.meetings.layer(layer).chunks_done(owner, done, steps);
                self.wait_for_mark(layer, owner, count);
            }
            for &direction in &ahead {
                let rows = self.case.rows(self.chunk(direction, chunk * each)).len();
                for &owner in &owners {
                    let share = self.case.share(layer, rows, me, chunk);
                    self.take_rows(direction, owner, chunk * each, share);
                }
            }
            self.advance(Track::Marks);
        }
        if owners.contains(&me) {
            for taker in 0..takers {
                let count = self.meetings.layer(layer).taken_ahead(taker, chunk);
                self.wait_for_mark(layer, taker, count);
            }
        }
    }

    /// The rows of one step.
    fn rows(&self, step: usize) -> Range<usize> {
        self.case.rows(step..step + 1)
    }

    /// Passes on own pre-activations, which are at `version` of three.
    fn z(&mut self, direction: usize, taken: usize, version: Option<usize>) {
        let first = self.case.rows(self.chunk(direction, taken)).start;
        let before = self.other_place(direction, taken);
        for row in self.rows(self.step_of(direction, taken)) {
            let spot = self.spot(Memory::Z(self.me, direction), before + row - first, None);
            if let Some(version) = version {
                self.read(spot, 3 * row + version);
            }
            self.write(spot, 3 * row + version.map_or(1, |v| v + 1));
        }
    }

    /// Own columns of the new state and of the output.
    fn write_state(&mut self, direction: usize, taken: usize) {
        let columns = Some((direction, self.me));
        let new = self.state(direction, taken + 1, self.me);
        self.write(new, taken + 1);
        let memory = if self.case.is_summed(self.layer) {
            Memory::Apart(self.layer, direction)
        } else if self.layer + 1 == self.case.plan.layers.len() {
            Memory::Caller
        } else {
            Memory::Layers(self.layer % self.buffers)
        };
        for row in self.rows(self.step_of(direction, taken)) {
            let spot = self.spot(memory, row, columns);
            self.write(spot, 0);
        }
    }

    fn read_old_state(&mut self, direction: usize, taken: usize) {
        for owner in self.case.state_owners(self.layer, direction) {
            let old = self.state(direction, taken, owner);
            self.read(old, taken);
        }
    }

    fn read_input_in_step(&mut self, direction: usize, taken: usize) {
        if !self.case.is_all_ahead(self.layer, direction) {
            let step = self.step_of(direction, taken);
            self.read_input(step..step + 1, self.rows(step));
        }
    }

    fn first_phase(&mut self, direction: usize, taken: usize, two_phase: bool) {
        if !self
            .case
            .unit_owners(self.layer, direction)
            .contains(&self.me)
        {
            return;
        }
        self.read_input_in_step(direction, taken);
        self.read_old_state(direction, taken);
        let ahead = self.case.is_ahead(self.layer, direction);
        self.z(direction, taken, ahead.then_some(0));
        if two_phase {
            let memory = Memory::Between(self.layer, direction);
            let spot = self.spot(memory, 0, Some((direction, self.me)));
            self.write(spot, taken);
        } else {
            self.write_state(direction, taken);
        }
    }

    fn second_phase(&mut self, direction: usize, taken: usize) {
        if !self
            .case
            .state_owners(self.layer, direction)
            .contains(&self.me)
        {
            return;
        }
        for owner in self.case.unit_owners(self.layer, direction) {
            let memory = Memory::Between(self.layer, direction);
            let spot = self.spot(memory, 0, Some((direction, owner)));
            self.read(spot, taken);
        }
        if !self.case.is_projected(self.layer) {
            // Any product but the candidate's may be left to the second phase.
            self.read_input_in_step(direction, taken);
            self.read_old_state(direction, taken);
            self.z(direction, taken, Some(1));
        }
        self.write_state(direction, taken);
    }

    /// Wait 5, and own rows of the sum.
    fn sum(&mut self) {
        let (layer, steps) = (self.layer, self.case.steps);
        let owners = self.case.owners(layer);
        for &owner in &owners {
            let count = self.meetings.layer(layer).own_output(owner, steps, steps);
            self.wait_for_mark(layer, owner, count);
        }
        let place = owners.iter().position(|&o| o == self.me).unwrap();
        let memory = if layer + 1 == self.case.plan.layers.len() {
            Memory::Caller
        } else {
            Memory::Layers(layer % self.buffers)
        };
        let dealt = (0..steps).flat_map(|s| self.rows(s).skip(place).step_by(owners.len()));
        for row in dealt.collect::<Vec<_>>() {
            for direction in self.case.directions(layer) {
                for owner in self.case.state_owners(layer, direction) {
                    let apart = Memory::Apart(layer, direction);
                    let spot = self.spot(apart, row, Some((direction, owner)));
                    self.read(spot, 0);
                }
            }
            let spot = self.spot(memory, row, None);
            self.write(spot, 0);
        }
        self.advance(Track::Marks);
    }

    fn layer(&mut self) {
        let (case, layer, me, steps) = (self.case, self.layer, self.me, self.case.steps);
        self.met = 0;
        let is_owner = case.owners(layer).contains(&me);
        let is_last = layer + 1 == case.plan.layers.len();
        let own = |direction| case.state_owners(layer, direction).contains(&me);
        let two_phase = case.model.layers()[layer].phases() == 2;
        let chunk = case.plan.layers[layer].chunk_steps;
        let takers = case.takers(layer);
        assert_eq!(
            self.meetings.layer(layer).takes_part(me),
            is_owner || me < takers
        );
        if is_owner {
            for direction in case.directions(layer).filter(|&d| own(d)) {
                for parity in 0..2 {
                    let spot = self.state(direction, parity, me);
                    self.write(spot, 0);
                }
            }
            self.meet();
        }
        for taken in 0..steps {
            if taken % chunk == 0 && (is_owner || me < takers) {
                self.take_ahead(taken);
            }
            if !is_owner {
                continue;
            }
            for direction in case.directions(layer) {
                self.first_phase(direction, taken, two_phase);
            }
            self.meet();
            if two_phase {
                for direction in case.directions(layer) {
                    self.second_phase(direction, taken);
                }
                self.meet();
            }
            let done = taken + 1;
            if takers > 0 && (done % chunk == 0 || done == steps) {
                self.advance(Track::Marks);
            }
            if case
                .marked_every(layer)
                .is_some_and(|every| done % every == 0)
                && done < steps
            {
                self.advance(Track::Marks);
            }
        }
        if !is_owner {
            return;
        }
        for direction in case.directions(layer).filter(|&d| own(d)) {
            let spot = self.state(direction, steps, me);
            self.read(spot, steps);
        }
        if !is_last || case.is_summed(layer) {
            self.advance(Track::Marks);
        }
        if case.is_summed(layer) {
            self.sum();
        }
    }
}

/// All that a worker does, in order. Checks what it is said to have counted before each layer.
fn events(case: &Case, meetings: &Meetings, me: usize) -> Vec<Event> {
    let layers = case.plan.layers.len();
    let upper = layers - 1;
    let is_pipelined = (0..layers).any(|l| case.marked_every(l).is_some());
    assert_eq!(meetings.is_pipelined(), is_pipelined);
    let mut writer = Writer {
        case,
        meetings,
        me,
        layer: 0,
        buffers: if is_pipelined { upper } else { upper.min(2) },
        counted: BTreeMap::from([("steps", 0), ("marks", 0)]),
        met: 0,
        events: Vec::new(),
    };
    for layer in 0..=layers {
        let said = BTreeMap::from([
            ("steps", meetings.steps_before(layer, me, case.steps)),
            ("marks", meetings.marks_before(layer, me, case.steps)),
        ]);
        assert_eq!(writer.counted, said, "worker {me} before layer {layer}");
        if layer < layers {
            writer.layer = layer;
            writer.layer();
        }
    }
    writer.events
}

/// What was touched: where, by whom, in which of its events; the version if it was written.
struct Touch {
    spot: Spot,
    worker: usize,
    event: usize,
    version: Option<usize>,
}

/// Runs the workers in a random order. Panics where two touches of one place are not ordered, a
/// read finds another version than it needs, or nobody can go on.
fn run(case: &Case, random: &mut fastrand::Rng) {
    let meetings = Meetings::new(&case.model, &case.plan);
    let workers = case.workers();
    let events: Vec<_> = (0..workers).map(|w| events(case, &meetings, w)).collect();
    let what = || format!("{:?}, lengths {:?}", case.plan, case.lengths);
    let mut at = vec![0; workers];
    // How many events of each worker are known to have happened: to each worker, and to whoever
    // sees a worker's count.
    let mut known = vec![vec![0; workers]; workers];
    let mut counts = vec![[Vec::<Vec<usize>>::new(), Vec::new()]; workers];
    let mut touches: BTreeMap<Memory, Vec<Touch>> = BTreeMap::new();
    loop {
        let can = |&me: &usize| match events[me].get(at[me]) {
            None => false,
            Some(&Event::Wait(whom, track, count)) => {
                counts[whom][track as usize].len() >= count as usize
            }
            Some(_) => true,
        };
        let ready: Vec<_> = (0..workers).filter(can).collect();
        if ready.is_empty() {
            break;
        }
        let me = pick(random, &ready);
        let event = events[me][at[me]];
        known[me][me] = at[me] + 1;
        match event {
            Event::Advance(track) => {
                let seen = known[me].clone();
                counts[me][track as usize].push(seen);
            }
            Event::Wait(_, _, 0) => (),
            Event::Wait(whom, track, count) => {
                let seen = &counts[whom][track as usize][count as usize - 1];
                let mine = known[me].iter_mut().zip(seen);
                mine.for_each(|(mine, &seen)| *mine = seen.max(*mine));
            }
            Event::Read(spot, version) | Event::Write(spot, version) => {
                let is_write = matches!(event, Event::Write(..));
                let before = touches.entry(spot.memory).or_default();
                let overlapping = || before.iter().rev().filter(|t| t.spot.overlaps(&spot));
                for other in overlapping().filter(|t| is_write || t.version.is_some()) {
                    assert!(
                        known[me][other.worker] > other.event,
                        "worker {me}'s {event:?} may come before worker {}'s touch of {:?}: {}",
                        other.worker,
                        other.spot,
                        what()
                    );
                }
                if !is_write {
                    let last = overlapping().find(|t| t.version.is_some());
                    let found = last.map(|t| (t.spot.layer, t.version.unwrap()));
                    assert_eq!(
                        found,
                        Some((spot.layer, version)),
                        "worker {me} reads {spot:?}: {}",
                        what()
                    );
                }
                before.push(Touch {
                    spot,
                    worker: me,
                    event: at[me],
                    version: is_write.then_some(version),
                });
            }
        }
        at[me] += 1;
    }
    for me in 0..workers {
        let next = events[me].get(at[me]);
        assert!(
            next.is_none(),
            "worker {me} is stuck at {next:?}: {}",
            what()
        );
    }
}

#[test]
fn waits_order_every_two_touches_of_one_place() {
    let mut random = fastrand::Rng::with_seed(9);
    for _ in 0..1500 {
        run(&Case::random(&mut random), &mut random);
    }
}
