//! The slots of a device: the node whose states each of them has.

use std::sync::Arc;

use super::super::task_row::TaskRow;
use super::super::values::Values;
use crate::scheduler::{RequestKey, Row};

/// See the [module](self).
pub(super) struct Slots<R> {
    slots: Vec<Option<Slot<R>>>,
    free: Vec<usize>,
}

/// The node whose states are in a slot.
struct Slot<R> {
    of: TaskRow<R>,
    /// The number of the last task that used it.
    used: u64,
}

impl<R> Slots<R> {
    /// `count` free slots.
    pub fn new(count: usize) -> Slots<R> {
        Slots {
            slots: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
        }
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slot with the states of a row, if they are here. The slot that its request has may be of
    /// another worker or outdated, so the owner of the slot is checked.
    pub fn find(&self, row: Row, values: &Values<R>) -> Option<usize> {
        let slot = values.slot(row.node)?;
        let here = self.slots.get(slot)?.as_ref();
        here.is_some_and(|here| here.of.row == row).then_some(slot)
    }

    /// Takes a free slot for task `number`, also that of an ended request. A request may end while
    /// its task is placed: a slot of this task stays, so that no two of its rows have one.
    pub fn take_free(&mut self, number: u64) -> Option<usize> {
        if self.free.is_empty() {
            self.forget_ended(|used| used < number);
        }
        self.free.pop()
    }

    /// The slot that was not used for longest: not one of this task, as there are more.
    pub fn oldest(&self) -> Option<usize> {
        let used = self.slots.iter().enumerate();
        let used = used.filter_map(|(index, slot)| Some((slot.as_ref()?.used, index)));
        used.min().map(|(_, index)| index)
    }

    /// Records that task `number` writes the states of a row there.
    pub fn set(&mut self, slot: usize, row: &TaskRow<R>, number: u64) {
        self.slots[slot] = Some(Slot {
            of: TaskRow {
                row: row.row,
                values: Arc::clone(&row.values),
            },
            used: number,
        });
    }

    /// Frees a slot. Returns the row whose states it has.
    pub fn release(&mut self, slot: usize) -> Option<TaskRow<R>> {
        let released = self.slots[slot].take()?;
        self.free.push(slot);
        Some(released.of)
    }

    /// The slots with states of a request.
    pub fn of_request(&self, request: RequestKey) -> Vec<usize> {
        let slots = self.slots.iter().enumerate();
        let is_of = |slot: &Slot<R>| slot.of.row.request == request;
        let of = slots.filter(|(_, slot)| slot.as_ref().is_some_and(is_of));
        of.map(|(index, _)| index).collect()
    }

    /// Frees all slots. Returns the requests that have not ended.
    pub fn clear(&mut self) -> Vec<RequestKey> {
        self.free = (0..self.slots.len()).rev().collect();
        let taken = self.slots.iter_mut().filter_map(Option::take);
        let live = taken.filter(|slot| !slot.of.values.has_ended());
        live.map(|slot| slot.of.row.request).collect()
    }

    /// Whether a slot has states of an ended request.
    pub fn holds_ended(&self) -> bool {
        let mut slots = self.slots.iter().flatten();
        slots.any(|slot| slot.of.values.has_ended())
    }

    /// Frees the slots of ended requests, of which the last task `may_free` them.
    pub fn forget_ended(&mut self, may_free: impl Fn(u64) -> bool) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let is_over = |slot: &mut Slot<R>| slot.of.values.has_ended() && may_free(slot.used);
            if slot.take_if(is_over).is_some() {
                self.free.push(index);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::cell_graph::{CellId, Cells, NodeId};
    use crate::networks::{Chain, ChainCell, Outputs};
    use crate::scheduler::ModelKey;
    use crate::worker::{ModelCells, RequestValues};
    use gatestream::model::Gru;

    #[test]
    fn a_request_that_ends_while_its_task_is_placed_keeps_its_slot() {
        let mut cells = Cells::new();
        let cell = ChainCell::new(Gru::new(1, 1).random(1).unwrap()).unwrap();
        let chain = Chain::add(&mut cells, cell);
        let graph = chain.unfold(&[0.0], None, Outputs::Last).unwrap();
        let unfolded = graph.unfold(&cells).unwrap();
        let values = Values::new(graph, &unfolded, None, &cells, ());
        let model = Arc::new(ModelCells {
            key: ModelKey::default(),
            first: CellId::new(0),
            cells,
        });
        let row = TaskRow {
            row: Row {
                request: RequestKey::default(),
                node: NodeId::new(0),
            },
            values: Arc::new(RequestValues::new(&model, values)),
        };
        let mut slots = Slots::new(1);
        let slot = slots.take_free(5).unwrap();
        slots.set(slot, &row, 5);
        row.values.set_ended();
        assert_eq!(slots.take_free(5), None);
        assert_eq!(slots.take_free(6), Some(slot));
    }
}
