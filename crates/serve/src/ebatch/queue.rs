//! The sequences that wait, oldest first.

use std::collections::BTreeMap;

use super::{Segment, Sequence, Time};

/// A sequence whose steps are not all evaluated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub id: u64,
    model: usize,
    /// Index of the next step.
    first_step: usize,
    /// The steps that are left.
    pub steps: usize,
    /// Its place among all arrivals.
    arrival: u64,
    /// When it first could have been in a batch.
    offered: Option<Time>,
}

impl Pending {
    /// Its next steps.
    pub fn segment(&self, steps: usize) -> Segment {
        Segment {
            id: self.id,
            first_step: self.first_step,
            steps,
        }
    }

    /// After some of its steps. It waits anew for a fuller batch.
    pub fn after(self, steps: usize) -> Pending {
        Pending {
            first_step: self.first_step + steps,
            steps: self.steps - steps,
            offered: None,
            ..self
        }
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By arrival.
    pending: BTreeMap<u64, Pending>,
    arrivals: u64,
}

impl Queue {
    pub fn arrive(&mut self, sequence: Sequence) {
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.put_back(Pending {
            id: sequence.id,
            model: sequence.model,
            first_step: 0,
            steps: sequence.steps,
            arrival,
            offered: None,
        });
    }

    /// Puts a sequence to the place of its arrival.
    pub fn put_back(&mut self, pending: Pending) {
        self.pending.insert(pending.arrival, pending);
    }

    /// A batch could start now.
    pub fn offer(&mut self, now: Time) {
        for pending in self.pending.values_mut() {
            pending.offered.get_or_insert(now);
        }
    }

    /// The model of the oldest sequence that may start: there are as many of its model as lanes,
    /// or it has waited for long enough since it was offered.
    ///
    /// The oldest of all is among them at the latest when its wait is over, so no model can keep
    /// another waiting.
    pub fn ready(&self, now: Time, lanes: usize, wait: Time) -> Option<usize> {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for pending in self.pending.values() {
            *counts.entry(pending.model).or_default() += 1;
        }
        let is_ready = |pending: &&Pending| {
            let has_waited = pending
                .offered
                .is_some_and(|at| at.saturating_add(wait) <= now);
            has_waited || counts[&pending.model] >= lanes
        };
        let oldest = self.pending.values().find(is_ready);
        oldest.map(|pending| pending.model)
    }

    /// When the first of them has waited for long enough.
    pub fn deadline(&self, wait: Time) -> Option<Time> {
        let offered = self.pending.values().filter_map(|pending| pending.offered);
        offered.min().map(|at| at.saturating_add(wait))
    }

    /// Takes the oldest sequences of a model, until they have as many steps as the lanes may
    /// evaluate.
    ///
    /// Dividing all that wait would let a long queue of short sequences keep a long one waiting.
    pub fn take(&mut self, model: usize, lanes: usize, cap: Option<usize>) -> Vec<Pending> {
        let mut taken: Vec<Pending> = Vec::new();
        let (mut steps, mut longest) = (0usize, 0);
        let of_model = self
            .pending
            .values()
            .filter(|pending| pending.model == model);
        for pending in of_model {
            let each = pending.steps.min(cap.unwrap_or(usize::MAX));
            longest = longest.max(each);
            let room = cap.unwrap_or(longest).saturating_mul(lanes);
            if taken.len() >= lanes && steps.saturating_add(each) > room {
                break;
            }
            steps = steps.saturating_add(each);
            taken.push(*pending);
        }
        for pending in &taken {
            self.pending.remove(&pending.arrival);
        }
        taken
    }

    /// Takes the oldest sequence of a model.
    pub fn take_oldest(&mut self, model: usize) -> Option<Pending> {
        let mut of_model = self
            .pending
            .values()
            .filter(|pending| pending.model == model);
        let arrival = of_model.next()?.arrival;
        self.pending.remove(&arrival)
    }

    pub fn remove(&mut self, id: u64) -> bool {
        let found = self.pending.values().find(|pending| pending.id == id);
        let arrival = found.map(|pending| pending.arrival);
        arrival.is_some_and(|arrival| self.pending.remove(&arrival).is_some())
    }

    pub fn len(&self) -> usize {
        self.pending.len()
    }
}
