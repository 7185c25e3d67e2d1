//! E-BATCH: batches of lanes, layer by layer, so that the weights of a layer are read once for
//! many steps (Silfa, Arnau and González, E-BATCH, ACM TACO 2022, section 5).
//!
//! A state machine without clock, threads and values: events go in, decisions come out. On CPUs the
//! policy [`EBatching`](gatestream_scheduler::policy::EBatching) has no lanes: a CPU computes any
//! number of rows; it has the rule for the steps of a batch that [`Cap::ByLoad`] has.
//!
//! ```text
//! queue -- start --> first layer -- lock --> other layers -- finish --> completed, or queue again
//!                        ^ join an idle lane
//! ```
//!
//! - **Lanes.** A batch has a number of lanes. A lane evaluates the sequences that it got one after
//!   the other; all lanes evaluate their steps side by side.
//! - **Cap.** A lane evaluates at most N steps of a layer before the next layer. The steps that are
//!   left follow in a later batch.
//! - **Start.** The oldest sequences are divided among the lanes by [`partition`]. If there are
//!   fewer than lanes, a batch waits for more, at most for the time T.
//! - **Join.** While the first layer is evaluated, an idle lane gets the oldest sequence of the
//!   queue. Then the batch is locked.
//! - **Models.** All sequences of a batch are of one model.
//!
//! ```
//! use gatestream_accelerator_sim::ebatch::{Cap, Decision, EBatch, EBatchOptions, Sequence};
//!
//! let mut runtime = EBatch::new(EBatchOptions { lanes: 2, cap: Cap::Steps(3), wait: 10 });
//! let decisions = runtime.arrive(0, &[Sequence::new(1, 0, 2)])?;
//! assert!(decisions.is_empty()); // it waits for a second one
//! let decisions = runtime.arrive(4, &[Sequence::new(2, 0, 5)])?;
//! assert!(matches!(decisions[..], [Decision::Start(_)]));
//! // … both layers of the model are evaluated …
//! let finished = runtime.finish(20);
//! assert_eq!(finished.completed, [1]); // two steps of sequence 2 are left
//! # Ok::<(), gatestream_accelerator_sim::ebatch::EBatchError>(())
//! ```

mod cap;
mod partition;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

pub use cap::Cap;
use gatestream_scheduler::policy::ebatch::Rest;
pub use gatestream_scheduler::policy::ebatch::{LayerTimes, Time};
pub use partition::partition;
use queue::{Pending, Queue};

/// Options of [`EBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EBatchOptions {
    /// Lanes of a batch (B); at least 1.
    pub lanes: usize,
    /// Most steps of a lane in a batch (N).
    pub cap: Cap,
    /// Longest wait for a fuller batch (T).
    pub wait: Time,
}

/// A sequence to be evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// The caller's name for it.
    pub id: u64,
    /// Its model.
    pub model: usize,
    /// Its steps; at least 1.
    pub steps: usize,
    /// When it should be complete; only [`Cap::ByLoad`] heeds it.
    pub deadline: Option<Time>,
}

impl Sequence {
    /// A sequence without a deadline.
    pub fn new(id: u64, model: usize, steps: usize) -> Sequence {
        Sequence {
            id,
            model,
            steps,
            deadline: None,
        }
    }
}

/// Steps of a sequence that a lane evaluates in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The sequence.
    pub id: u64,
    /// Index of the first of these steps in the sequence.
    pub first_step: usize,
    /// Number of steps.
    pub steps: usize,
}

/// A batch that starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The model of its sequences.
    pub model: usize,
    /// The segments of each lane, in the order of their evaluation.
    pub lanes: Vec<Vec<Segment>>,
}

/// A segment that joins a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// The idle lane that evaluates it, from now on.
    pub lane: usize,
    /// The segment.
    pub segment: Segment,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A batch starts.
    Start(Batch),
    /// A segment joins the batch whose first layer is being evaluated.
    Join(Join),
}

/// The end of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// Sequences whose last step was evaluated.
    pub completed: Vec<u64>,
    /// The batch that starts next.
    pub next: Option<Batch>,
}

/// A refused event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EBatchError {
    /// A sequence without steps.
    #[error("sequence {0} has no steps; it has nothing to be evaluated")]
    NoSteps(u64),
    /// A sequence whose id another one has.
    #[error("sequence {0} has arrived already; give each sequence an id of its own")]
    Duplicate(u64),
}

/// See the [module](self).
#[derive(Debug)]
pub struct EBatch {
    options: EBatchOptions,
    queue: Queue,
    running: Option<Running>,
    /// All sequences that have not completed.
    known: HashSet<u64>,
}

/// A batch that is being evaluated.
#[derive(Debug)]
struct Running {
    model: usize,
    /// Most steps of a lane.
    cap: usize,
    /// Steps that the first layer has evaluated.
    step: usize,
    /// Whether the first layer is being evaluated.
    is_open: bool,
    lanes: Vec<Lane>,
}

#[derive(Debug, Default)]
struct Lane {
    /// The sequences with the number of their steps in this batch.
    segments: Vec<(Pending, usize)>,
    /// The step of the batch after its last one.
    end: usize,
}

impl EBatch {
    /// A state machine with an empty queue.
    ///
    /// # Panics
    /// If the options have no lane, or a cap of no step.
    pub fn new(options: EBatchOptions) -> EBatch {
        assert!(options.lanes > 0, "there is no lane");
        assert!(options.cap != Cap::Steps(0), "the cap has no step");
        EBatch {
            options,
            queue: Queue::default(),
            running: None,
            known: HashSet::new(),
        }
    }

    /// Sequences arrive, at the same time.
    ///
    /// # Errors
    /// [`EBatchError`]; then nothing has changed.
    pub fn arrive(
        &mut self,
        now: Time,
        sequences: &[Sequence],
    ) -> Result<Vec<Decision>, EBatchError> {
        let mut new = HashSet::new();
        for sequence in sequences {
            if sequence.steps == 0 {
                return Err(EBatchError::NoSteps(sequence.id));
            }
            if self.known.contains(&sequence.id) || !new.insert(sequence.id) {
                return Err(EBatchError::Duplicate(sequence.id));
            }
        }
        self.known.extend(new);
        sequences
            .iter()
            .for_each(|sequence| self.queue.arrive(*sequence));
        if self.running.is_none() {
            return Ok(self.start(now).map(Decision::Start).into_iter().collect());
        }
        let lanes = 0..self.options.lanes;
        let joins = lanes.filter_map(|lane| {
            Some(Join {
                lane,
                segment: self.lane_idle(lane)?,
            })
        });
        Ok(joins.map(Decision::Join).collect())
    }

    /// The first layer of the batch has evaluated this many steps of its lanes.
    ///
    /// # Panics
    /// If no first layer is being evaluated.
    pub fn advance(&mut self, step: usize) {
        let running = self.running.as_mut().filter(|running| running.is_open);
        let running = running.expect("a first layer is being evaluated");
        running.step = running.step.max(step);
    }

    /// The first layer is done: nothing joins the batch any more.
    pub fn lock(&mut self) {
        if let Some(running) = &mut self.running {
            running.is_open = false;
        }
    }

    /// All layers of the batch are done.
    ///
    /// # Panics
    /// If there is no batch.
    pub fn finish(&mut self, now: Time) -> Finished {
        let running = self.running.take().expect("a batch is being evaluated");
        let mut completed = Vec::new();
        for (pending, steps) in running.lanes.into_iter().flat_map(|lane| lane.segments) {
            let pending = pending.after(steps);
            match pending.steps {
                0 => {
                    self.known.remove(&pending.id);
                    completed.push(pending.id);
                }
                _ => self.queue.put_back(pending),
            }
        }
        Finished {
            completed,
            next: self.start(now),
        }
    }

    /// The time has come that [`EBatch::deadline`] told. The batch that starts, if any.
    pub fn wait_over(&mut self, now: Time) -> Option<Batch> {
        match self.running {
            Some(_) => None,
            None => self.start(now),
        }
    }

    /// The time when a batch starts even if it is not full; `None` while one is evaluated, or if
    /// nothing waits.
    pub fn deadline(&self) -> Option<Time> {
        match self.running {
            Some(_) => None,
            None => self.queue.deadline(self.options.wait),
        }
    }

    /// Takes a waiting sequence out. Whether it was there: one in a batch stays until its end.
    pub fn cancel(&mut self, id: u64) -> bool {
        let was_there = self.queue.remove(id);
        if was_there {
            self.known.remove(&id);
        }
        was_there
    }

    /// Number of sequences in the queue.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// The steps of the first layer of the batch that is evaluated: those of its longest lane.
    pub fn steps(&self) -> usize {
        let lanes = self.running.iter().flat_map(|running| &running.lanes);
        lanes.map(|lane| lane.end).max().unwrap_or(0)
    }

    /// Starts a batch if there are enough sequences, or if they have waited for long enough.
    fn start(&mut self, now: Time) -> Option<Batch> {
        let EBatchOptions { lanes, cap, wait } = self.options;
        self.queue.offer(now);
        let model = self.queue.ready(now, lanes, wait)?;
        let (waiting, oldest) = (self.queue.of(model), self.queue.rests(model, lanes));
        let max_steps = cap.of_batch(now, lanes, waiting, oldest);
        let admitted = self.queue.take(model, lanes, max_steps);
        let cap = max_steps.unwrap_or(usize::MAX);
        let steps: Vec<usize> = admitted
            .iter()
            .map(|pending| pending.steps.min(cap))
            .collect();
        let mut admitted: Vec<Option<Pending>> = admitted.into_iter().map(Some).collect();
        let mut running = Running {
            model,
            cap: 0,
            step: 0,
            is_open: true,
            lanes: Vec::with_capacity(lanes),
        };
        for indices in partition(&steps, lanes) {
            let mut lane = Lane::default();
            for index in indices {
                let pending = admitted[index].take().expect("each index is in one lane");
                match pending.steps.min(cap - lane.end) {
                    // The lane is full before it.
                    0 => self.queue.put_back(pending),
                    steps => lane.add(pending, steps),
                }
            }
            running.lanes.push(lane);
        }
        let longest = running.lanes.iter().map(|lane| lane.end).max();
        running.cap = max_steps.or(longest).unwrap_or(0);
        let lanes = running.lanes.iter().map(|lane| {
            let segments = lane.segments.iter();
            segments
                .map(|(pending, steps)| pending.segment(*steps))
                .collect()
        });
        let batch = Batch {
            model,
            lanes: lanes.collect(),
        };
        self.running = Some(running);
        Some(batch)
    }

    /// A lane may have no steps left in the first layer. If so, it gets the oldest sequence of the
    /// batch's model.
    pub fn lane_idle(&mut self, lane: usize) -> Option<Segment> {
        let running = self.running.as_mut().filter(|running| running.is_open)?;
        let room = running.cap.saturating_sub(running.step);
        let lane = running.lanes.get_mut(lane)?;
        if room == 0 || lane.end > running.step {
            return None;
        }
        let pending = self.queue.take_oldest(running.model)?;
        // Steps without a sequence have passed.
        lane.end = running.step;
        let steps = pending.steps.min(room);
        let segment = pending.segment(steps);
        lane.add(pending, steps);
        Some(segment)
    }
}

impl Lane {
    fn add(&mut self, pending: Pending, steps: usize) {
        self.end += steps;
        self.segments.push((pending, steps));
    }
}
