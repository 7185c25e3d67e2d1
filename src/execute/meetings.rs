//! Synchronisation counts: the progress that each worker waits for.
//!
//! Each worker counts its own progress on two tracks (`team/progress.rs`): `Steps`, once per phase
//! of every step of a layer that it shares with others, and `Marks`, at the few places where a
//! worker outside of that circle may wait for it. How often a worker has counted by a given point
//! of the run follows from the plan and the number of steps alone, so each worker can compute the
//! counts. README.md beside this file says which race each wait prevents.

use crate::model::{Layer, Merge, Model};
use crate::plan::{Configuration, InputProjectionBy, LayerPlan};

/// The meetings of a group of workers.
pub(super) struct Meetings {
    layers: Vec<LayerMeetings>,
    /// For each layer, and the end, and each worker: the `Steps` it has counted before, at the
    /// starts of layers and per step. Summed up here, because they are needed at every phase.
    before: Vec<Vec<(u32, u32)>>,
}

/// The meetings of one layer.
pub(super) struct LayerMeetings {
    /// For each worker, those that it meets after each phase: they own parts of the same direction,
    /// or share one with such an owner. Empty where it shares nothing.
    pub peers: Vec<Vec<usize>>,
    /// Workers that own a part of the layer.
    pub owners: Vec<usize>,
    /// Phases of a step.
    pub phases: usize,
    chunk_steps: usize,
    /// The number of workers that take some rows ahead for all owners; 0 where owners do.
    pub ahead: usize,
    /// The layer's output is marked each time this number of steps is complete; `None`: at its end.
    pub mark_every: Option<usize>,
    /// The output of the last layer is not marked.
    is_last: bool,
    is_summed: bool,
}

impl Meetings {
    pub fn new(model: &Model, plan: &Configuration) -> Meetings {
        let layers = model.layers().iter().zip(&plan.layers).enumerate();
        let layers = layers.map(|(index, (layer, layer_plan))| {
            LayerMeetings::new(layer, layer_plan, plan.layers.get(index + 1))
        });
        let layers: Vec<LayerMeetings> = layers.collect();
        let workers = layers.first().map_or(0, |layer| layer.peers.len());
        let mut before = vec![vec![(0, 0); workers]];
        for (index, layer) in layers.iter().enumerate() {
            let counted = before[index].iter().zip(&layer.peers);
            let counted = counted.map(|(&(starts, per_step), peers)| {
                if peers.is_empty() {
                    (starts, per_step)
                } else {
                    (starts + 1, per_step + layer.phases as u32)
                }
            });
            before.push(counted.collect());
        }
        Meetings { layers, before }
    }

    pub fn layer(&self, layer: usize) -> &LayerMeetings {
        &self.layers[layer]
    }

    /// Some layer is read while it is still being written, so that no two may share a buffer.
    pub fn is_pipelined(&self) -> bool {
        self.layers.iter().any(|layer| layer.mark_every.is_some())
    }

    /// `Steps` that a worker has counted before `layer`, in a run of so many steps: one for each
    /// layer in which it has peers, when the states are loaded, and one after each phase.
    pub fn steps_before(&self, layer: usize, worker: usize, steps: usize) -> u32 {
        let (starts, per_step) = self.before[layer][worker];
        per_step.wrapping_mul(steps as u32).wrapping_add(starts)
    }

    /// `Marks` that a worker has counted before `layer`.
    pub fn marks_before(&self, layer: usize, worker: usize, steps: usize) -> u32 {
        let layers = self.layers[..layer].iter();
        layers.fold(0, |sum, layer| sum.wrapping_add(layer.marks(worker, steps)))
    }
}

impl LayerMeetings {
    fn new(layer: &Layer, plan: &LayerPlan, next: Option<&LayerPlan>) -> LayerMeetings {
        let workers = plan.directions[0].partition.units.len();
        let owners: Vec<usize> = (0..workers).filter(|&w| plan.is_owner(w)).collect();
        let is_ahead = plan.directions.iter().any(|d| d.schedule.is_ahead());
        let ahead = match plan.ahead {
            InputProjectionBy::Rows { workers, .. } if is_ahead => workers,
            _ => 0,
        };
        LayerMeetings {
            peers: peers(plan, workers),
            mark_every: mark_every(layer, plan, next, ahead),
            owners,
            phases: layer.phases(),
            chunk_steps: plan.chunk_steps,
            ahead,
            is_last: next.is_none(),
            is_summed: layer.directions().len() == 2 && layer.merge() == Merge::Sum,
        }
    }

    fn is_owner(&self, worker: usize) -> bool {
        self.owners.binary_search(&worker).is_ok()
    }

    /// Whether the worker has anything to do in this layer.
    pub fn takes_part(&self, worker: usize) -> bool {
        self.is_owner(worker) || worker < self.ahead
    }

    /// `Marks` counted in this layer.
    fn marks(&self, worker: usize, steps: usize) -> u32 {
        let chunks = steps.div_ceil(self.chunk_steps) as u32;
        let ahead = chunks.wrapping_mul(self.marks_per_chunk(worker));
        let end = if self.is_owner(worker) && (self.is_summed || !self.is_last) {
            self.output_marks(steps, steps) + u32::from(self.is_summed)
        } else {
            0
        };
        ahead.wrapping_add(end)
    }

    /// Marks per chunk: when rows have been taken ahead, and when the owner is done with them.
    fn marks_per_chunk(&self, worker: usize) -> u32 {
        match self.ahead {
            0 => 0,
            ahead => u32::from(worker < ahead) + u32::from(self.is_owner(worker)),
        }
    }

    /// Marks of output when `done` of `steps` steps are complete.
    fn output_marks(&self, done: usize, steps: usize) -> u32 {
        match self.mark_every {
            // The last mark may come early: it is due when all steps are done.
            Some(every) if done < steps => done.div_ceil(every) as u32,
            Some(every) => steps.div_ceil(every).max(1) as u32,
            None => 1,
        }
    }

    /// Marks of this layer that a worker has counted when its rows of chunk `chunk` are taken. One
    /// that also owns units takes the rows of a chunk before it runs the steps of the chunk before:
    /// it marks taken 0, taken 1, done 0, taken 2, done 1, ….
    pub fn taken_ahead(&self, worker: usize, chunk: usize) -> u32 {
        match (chunk, self.is_owner(worker)) {
            (0, _) => 1,
            (chunk, true) => (chunk as u32).wrapping_mul(2),
            (chunk, false) => (chunk as u32).wrapping_add(1),
        }
    }

    /// Marks of this layer that an owner has counted when it is done with `chunks` of the chunks of
    /// so many steps: one that takes rows has taken the next chunk as well, while there is one.
    pub fn chunks_done(&self, worker: usize, chunks: usize, steps: usize) -> u32 {
        let own = (chunks as u32).wrapping_mul(self.marks_per_chunk(worker));
        let is_between = chunks > 0 && chunks < steps.div_ceil(self.chunk_steps);
        let is_taker = worker < self.ahead;
        own.wrapping_add(u32::from(is_between && is_taker))
    }

    /// Marks of this layer that an owner has counted when the first `done` steps of its own output
    /// are complete.
    pub fn own_output(&self, worker: usize, done: usize, steps: usize) -> u32 {
        let chunks = steps.div_ceil(self.chunk_steps);
        self.chunks_done(worker, chunks, steps)
            .wrapping_add(self.output_marks(done, steps))
    }

    /// Marks of this layer that an owner has counted when the layer above may read the first `done`
    /// steps.
    pub fn output(&self, worker: usize, done: usize, steps: usize) -> u32 {
        self.own_output(worker, done, steps) + u32::from(self.is_summed)
    }
}

/// How often the output is marked: as often as the layer above can make use of it, where that is
/// run by other workers. A reverse direction above or below needs the whole sequence first.
fn mark_every(
    layer: &Layer,
    plan: &LayerPlan,
    next: Option<&LayerPlan>,
    ahead: usize,
) -> Option<usize> {
    let next = next?;
    let [direction] = layer.directions() else {
        return None;
    };
    let workers = next.directions[0].partition.units.len();
    let reader = |worker: usize| match next.ahead {
        InputProjectionBy::Rows { workers, .. } => worker < workers || next.is_owner(worker),
        InputProjectionBy::Owners => next.is_owner(worker),
    };
    let elsewhere = (0..workers).any(|worker| reader(worker) && !plan.is_owner(worker));
    if direction.is_reverse() || ahead > 0 || !elsewhere {
        return None;
    }
    if next.directions.iter().all(|d| d.schedule.is_all_ahead()) {
        Some(next.chunk_steps)
    } else {
        Some(1)
    }
}

/// For each worker, the others that it is connected to by directions they both own parts of.
fn peers(plan: &LayerPlan, workers: usize) -> Vec<Vec<usize>> {
    let mut circle: Vec<usize> = (0..workers).collect();
    for direction in &plan.directions {
        let owners: Vec<usize> = direction.partition.owners().collect();
        for pair in owners.windows(2) {
            let (from, to) = (circle[pair[0]], circle[pair[1]]);
            circle
                .iter_mut()
                .filter(|c| **c == from)
                .for_each(|c| *c = to);
        }
    }
    let others = |worker: usize| {
        let workers = 0..workers;
        { workers }
            .filter(|&other| other != worker && circle[other] == circle[worker])
            .collect()
    };
    (0..workers).map(others).collect()
}
