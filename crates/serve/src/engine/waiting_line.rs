//! The line of the submissions that wait for room: a queue for each limit that was exceeded.
//!
//! No operation of a submission takes longer because more wait, up to the logarithm of their
//! number.

use std::collections::BTreeSet;
use std::task::Waker;

use rustc_hash::FxHashMap;

use super::answer::{AnswerReceiver, AnswerSender, answer_slot};
use crate::scheduler::{ClientId, LimitOf, ModelKey, Refused, Requirements};

/// A place in the line.
pub(super) struct Place {
    pub number: u64,
    pub message: AnswerReceiver<()>,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct WaitingLine {
    /// By number: the order of arrival.
    entries: FxHashMap<u64, Entry>,
    /// The numbers of the submissions that wait for each limit; none is empty.
    queues: FxHashMap<Scope, BTreeSet<u64>>,
    /// The last number that was given.
    last: u64,
    /// The next messages are to all.
    must_all_retry: bool,
}

/// The requests that a limit counts. A submission waits behind those that wait for a limit which
/// counts it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Scope {
    Engine,
    Model(ModelKey),
    Client(ClientId),
}

struct Entry {
    model: ModelKey,
    client: Option<ClientId>,
    scope: Scope,
    /// `None` once the message was sent.
    message: Option<AnswerSender<()>>,
}

impl WaitingLine {
    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of submissions that wait for a limit of these requirements, if one of them is before
    /// the submission of this number, or before a new one.
    pub fn before(&self, number: Option<u64>, of: &Requirements) -> Option<usize> {
        self.last_before(number, of.model, of.client)?;
        let queues = scopes(of.model, of.client).filter_map(|scope| self.queues.get(&scope));
        let all: usize = queues.map(BTreeSet::len).sum();
        Some(all - usize::from(number.is_some()))
    }

    /// The last one before this number that waits for a limit of these requirements.
    fn last_before(
        &self,
        number: Option<u64>,
        model: ModelKey,
        client: Option<ClientId>,
    ) -> Option<u64> {
        let queues = scopes(model, client).filter_map(|scope| self.queues.get(&scope));
        let last = |queue: &BTreeSet<u64>| match number {
            None => queue.last().copied(),
            Some(number) => queue.range(..number).next_back().copied(),
        };
        queues.filter_map(last).max()
    }

    /// Enters the line, or stays at its place there.
    pub fn enter(&mut self, number: Option<u64>, of: &Requirements, refused: Refused) -> Place {
        let scope = match (refused, of.client) {
            (
                Refused::Overloaded {
                    of: LimitOf::Client,
                    ..
                },
                Some(client),
            ) => Scope::Client(client),
            (
                Refused::Overloaded {
                    of: LimitOf::Model, ..
                },
                _,
            ) => Scope::Model(of.model),
            (Refused::Overloaded { .. }, _) => Scope::Engine,
            _ => {
                // It waits for the same limit as the last one before.
                let last = self.last_before(number, of.model, of.client);
                let entry = last.and_then(|last| self.entries.get(&last));
                entry.map_or(Scope::Engine, |entry| entry.scope)
            }
        };
        // It is not waiting for a message now.
        drop(self.leave(number));
        let number = number.unwrap_or_else(|| {
            self.last += 1;
            self.last
        });
        let (sender, message) = answer_slot();
        let entry = Entry {
            model: of.model,
            client: of.client,
            scope,
            message: Some(sender),
        };
        self.entries.insert(number, entry);
        self.queues.entry(scope).or_default().insert(number);
        Place { number, message }
    }

    /// Leaves the line. Returns the sender of the message that was not sent: dropping it wakes a
    /// task that waits for it.
    #[must_use = "to be dropped without the lock if a task may wait"]
    pub fn leave(&mut self, number: Option<u64>) -> Option<AnswerSender<()>> {
        let number = number?;
        let Entry { scope, message, .. } = self.entries.remove(&number)?;
        if let Some(queue) = self.queues.get_mut(&scope) {
            queue.remove(&number);
            if queue.is_empty() {
                self.queues.remove(&scope);
            }
        }
        message
    }

    /// The next messages are to all: a model or the engine accepts no more requests.
    pub fn retry_all(&mut self) {
        self.must_all_retry = true;
    }

    /// Number of submissions of a model.
    pub fn of_model(&self, model: ModelKey) -> usize {
        let of_model = self.entries.values().filter(|entry| entry.model == model);
        of_model.count()
    }

    /// Sends messages to those that wait behind no other. Returns the wakers of tasks.
    #[must_use = "tasks wait"]
    pub fn wake(&mut self) -> Vec<Waker> {
        let send = |entry: &mut Entry| entry.message.take()?.send(Ok(()));
        if std::mem::take(&mut self.must_all_retry) {
            return self.entries.values_mut().filter_map(send).collect();
        }
        // Behind no other: the first of its own queue, too.
        let firsts = self.queues.values().filter_map(BTreeSet::first);
        let is_first = |&number: &u64| {
            let entry = self.entries.get(&number)?;
            let before = self.last_before(Some(number), entry.model, entry.client);
            before.is_none().then_some(number)
        };
        let firsts: Vec<u64> = firsts.filter_map(is_first).collect();
        let mut wakers = Vec::new();
        for number in firsts {
            wakers.extend(self.entries.get_mut(&number).and_then(send));
        }
        wakers
    }
}

/// The scopes of the limits that count a request.
fn scopes(model: ModelKey, client: Option<ClientId>) -> impl Iterator<Item = Scope> {
    let common = [Scope::Engine, Scope::Model(model)];
    common.into_iter().chain(client.map(Scope::Client))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::cell_graph::{BatchSizes, CellCost};
    use crate::policy::{Cellular, Order};
    use crate::scheduler::{Limits, ModelShare, Reason, Scheduler};

    /// A submission of the oracle.
    #[derive(Clone, Copy)]
    struct Waits {
        number: u64,
        of: Requirements,
        scope: Scope,
    }

    fn counts(scope: Scope, of: &Requirements) -> bool {
        match scope {
            Scope::Engine => true,
            Scope::Model(model) => of.model == model,
            Scope::Client(client) => of.client == Some(client),
        }
    }

    fn random_requirements(random: &mut fastrand::Rng, models: &[ModelKey]) -> Requirements {
        Requirements {
            model: models[random.usize(..models.len())],
            client: random.bool().then(|| ClientId(random.u64(0..3))),
            ..Requirements::default()
        }
    }

    /// A refusal because of a limit that counts these requirements.
    fn refusal(random: &mut fastrand::Rng, of: &Requirements) -> (Refused, Scope) {
        let (limit, scope) = match (random.u8(0..3), of.client) {
            (0, Some(client)) => (LimitOf::Client, Scope::Client(client)),
            (1, _) => (LimitOf::Model, Scope::Model(of.model)),
            _ => (LimitOf::Engine, Scope::Engine),
        };
        let refused = Refused::Overloaded {
            of: limit,
            what: Reason::Requests,
            have: 1,
            needs: 1,
            most: 1,
        };
        (refused, scope)
    }

    fn is_sent(message: &AnswerReceiver<()>) -> bool {
        message.wait_until(Some(Instant::now())).is_some()
    }

    /// A list in the order of arrival, which is searched from its begin.
    #[test]
    fn the_line_is_a_list_in_the_order_of_arrival() {
        let mut random = fastrand::Rng::with_seed(3);
        let policy = Box::new(Cellular::new(1, Order::Arrival));
        let mut scheduler = Scheduler::new(policy, 1, 1, Limits::NONE);
        let cost = CellCost::from(BatchSizes { min: 1, max: 1 });
        let mut model = || scheduler.add_model(std::slice::from_ref(&cost), ModelShare::default());
        let models = [model().unwrap(), model().unwrap()];
        let (mut line, mut list) = (WaitingLine::default(), Vec::<Waits>::new());
        let mut messages = FxHashMap::default();
        for _ in 0..20_000 {
            let of = random_requirements(&mut random, &models);
            let expected = list.iter().filter(|one| counts(one.scope, &of)).count();
            let before = line.before(None, &of);
            assert_eq!(before, (expected > 0).then_some(expected));
            match random.u8(0..4) {
                // Enters.
                0 if list.len() < 12 => {
                    let (refused, scope) = match list.iter().rfind(|one| counts(one.scope, &of)) {
                        Some(last) => (Refused::Queued { waiting: expected }, last.scope),
                        None => refusal(&mut random, &of),
                    };
                    let Place { number, message } = line.enter(None, &of, refused);
                    assert!(list.iter().all(|one| one.number < number));
                    list.push(Waits { number, of, scope });
                    messages.insert(number, message);
                }
                // Is refused again, because of any limit.
                1 if !list.is_empty() => {
                    let at = random.usize(..list.len());
                    let one = &mut list[at];
                    let (refused, scope) = refusal(&mut random, &one.of);
                    one.scope = scope;
                    let place = line.enter(Some(one.number), &one.of, refused);
                    assert_eq!(place.number, one.number);
                    messages.insert(one.number, place.message);
                }
                2 if !list.is_empty() => {
                    let one = list.remove(random.usize(..list.len()));
                    let unsent = line.leave(Some(one.number));
                    let message = messages.remove(&one.number);
                    assert_eq!(unsent.is_some(), message.is_some());
                }
                _ => {
                    let must_all_retry = random.u8(0..8) == 0;
                    if must_all_retry {
                        line.retry_all();
                    }
                    assert!(line.wake().is_empty(), "no task waits");
                    for (at, one) in list.iter().enumerate() {
                        let is_first = !list[..at].iter().any(|b| counts(b.scope, &one.of));
                        let before = line.before(Some(one.number), &one.of);
                        assert_eq!(before.is_none(), is_first);
                        if is_first || must_all_retry {
                            let message = messages.get(&one.number);
                            assert!(message.is_none_or(is_sent));
                            messages.remove(&one.number);
                        } else if let Some(message) = messages.get(&one.number) {
                            assert!(!is_sent(message), "others are before it");
                        }
                    }
                }
            }
            assert_eq!(line.is_empty(), list.is_empty());
            for model in models {
                let of_model = list.iter().filter(|one| one.of.model == model).count();
                assert_eq!(line.of_model(model), of_model);
            }
        }
    }
}
