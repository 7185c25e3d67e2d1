//! The sequences that wait, by model, oldest first.
//!
//! The cost of each call depends on the number of models, not on that of the sequences that wait.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Rest, Segment, Sequence, Time};

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
    deadline: Option<Time>,
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
    models: BTreeMap<usize, OfModel>,
    /// By id: the model and the arrival.
    places: HashMap<u64, (usize, u64)>,
    /// Sequences that came since the last offer, some of which may have left again.
    new: Vec<u64>,
    arrivals: u64,
}

/// The sequences of a model.
#[derive(Debug, Default)]
struct OfModel {
    /// By arrival.
    pending: BTreeMap<u64, Pending>,
    /// The times of the offers with the arrivals.
    offers: BTreeSet<(Time, u64)>,
}

impl OfModel {
    fn remove(&mut self, arrival: u64) -> Option<Pending> {
        let pending = self.pending.remove(&arrival)?;
        if let Some(offered) = pending.offered {
            self.offers.remove(&(offered, arrival));
        }
        Some(pending)
    }

    fn oldest(&self) -> Option<u64> {
        self.pending.keys().next().copied()
    }

    /// When the first of them has waited for long enough.
    fn deadline(&self, wait: Time) -> Option<Time> {
        let (offered, _) = self.offers.first()?;
        Some(offered.saturating_add(wait))
    }
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
            deadline: sequence.deadline,
            offered: None,
        });
    }

    /// Puts a sequence to the place of its arrival.
    pub fn put_back(&mut self, pending: Pending) {
        let Pending {
            id, model, arrival, ..
        } = pending;
        let of_model = self.models.entry(model).or_default();
        of_model.pending.insert(arrival, pending);
        match pending.offered {
            Some(offered) => {
                of_model.offers.insert((offered, arrival));
            }
            None => self.new.push(id),
        }
        self.places.insert(id, (model, arrival));
    }

    /// A batch could start now.
    pub fn offer(&mut self, now: Time) {
        for id in self.new.drain(..) {
            let place = self.places.get(&id).copied();
            let of_model = place.and_then(|(model, arrival)| {
                let of_model = self.models.get_mut(&model)?;
                let pending = of_model.pending.get_mut(&arrival)?;
                let is_new = pending.offered.is_none();
                pending.offered.get_or_insert(now);
                is_new.then_some((of_model, arrival))
            });
            if let Some((of_model, arrival)) = of_model {
                of_model.offers.insert((now, arrival));
            }
        }
    }

    /// The model that may start, of several the one with the oldest sequence: as many sequences as
    /// lanes wait for it, or one has waited for long enough since it was offered.
    ///
    /// A model whose oldest sequence is the oldest of all starts at the latest when its wait is
    /// over, so no model can keep another waiting.
    pub fn ready(&self, now: Time, lanes: usize, wait: Time) -> Option<usize> {
        let ready = self.models.iter().filter(|(_, of_model)| {
            let has_waited = of_model.deadline(wait).is_some_and(|at| at <= now);
            has_waited || of_model.pending.len() >= lanes
        });
        let oldest = ready.filter_map(|(model, of_model)| Some((of_model.oldest()?, *model)));
        oldest.min().map(|(_, model)| model)
    }

    /// When the first of them has waited for long enough.
    pub fn deadline(&self, wait: Time) -> Option<Time> {
        let deadlines = self.models.values();
        deadlines
            .filter_map(|of_model| of_model.deadline(wait))
            .min()
    }

    /// Takes the oldest sequences of a model, until they have as many steps as the lanes may
    /// evaluate.
    ///
    /// The paper divides all that wait, the longest first: then long sequences that keep arriving
    /// would keep a short one waiting.
    pub fn take(&mut self, model: usize, lanes: usize, cap: Option<usize>) -> Vec<Pending> {
        let mut taken: Vec<Pending> = Vec::new();
        let (mut steps, mut longest) = (0usize, 0);
        while let Some(oldest) = self.oldest(model) {
            let each = oldest.steps.min(cap.unwrap_or(usize::MAX));
            longest = longest.max(each);
            let room = cap.unwrap_or(longest).saturating_mul(lanes);
            if taken.len() >= lanes && steps.saturating_add(each) > room {
                break;
            }
            steps = steps.saturating_add(each);
            taken.extend(self.take_oldest(model));
        }
        taken
    }

    fn oldest(&self, model: usize) -> Option<&Pending> {
        self.models.get(&model)?.pending.values().next()
    }

    /// Takes the oldest sequence of a model.
    pub fn take_oldest(&mut self, model: usize) -> Option<Pending> {
        let id = self.oldest(model)?.id;
        self.take_one(id)
    }

    fn take_one(&mut self, id: u64) -> Option<Pending> {
        let (model, arrival) = self.places.remove(&id)?;
        let of_model = self.models.get_mut(&model)?;
        let pending = of_model.remove(arrival);
        if of_model.pending.is_empty() {
            self.models.remove(&model);
        }
        pending
    }

    pub fn remove(&mut self, id: u64) -> bool {
        self.take_one(id).is_some()
    }

    /// The oldest sequences of a model.
    pub fn rests(&self, model: usize, count: usize) -> impl Iterator<Item = Rest> + Clone {
        let pending = self.models.get(&model).into_iter();
        let pending = pending.flat_map(|of_model| of_model.pending.values());
        pending.take(count).map(|pending| Rest {
            steps: pending.steps,
            deadline: pending.deadline,
        })
    }

    /// Number of sequences of a model.
    pub fn of(&self, model: usize) -> usize {
        self.models
            .get(&model)
            .map_or(0, |of_model| of_model.pending.len())
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }
}
