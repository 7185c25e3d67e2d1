//! Turns of requests within a cell, so that no order of subgraphs lets a request wait without
//! bound.
//!
//! ```text
//! where more nodes of a cell are ready than a batch has rows:
//!   turn = an eighth of the rows of the batch; less than a row is kept for later batches
//!   batch = turn rows fewer, in the order of the policy
//!   go round the requests of the cell, until `turn` rows are taken or 4 turn requests have passed:
//!     of a request whose first ready subgraph has waited for PATIENCE tasks: one node of it
//!   fill the batch in the order of the policy
//! ```
//!
//! The first ready subgraph of a request is the one that got ready first, of those in the cell. If
//! the request has its turn then, and the subgraph is not pinned to another worker, its node runs
//! within `PATIENCE + ceil(R / turn)` batches of the cell, where `R` is the number of requests with
//! ready nodes in the cell, and a `turn` below a row counts as its fraction. Where no subgraph has
//! waited for PATIENCE tasks, the order of the policy decides alone.

use std::collections::VecDeque;

use slotmap::SecondaryMap;

use crate::cell_graph::CellId;
use crate::scheduler::{RequestKey, SubgraphKey, SubgraphView, Table, WorkerId};

/// A subgraph that has been ready during so many tasks goes first when its request has its turn.
pub(super) const PATIENCE: u64 = 8;
/// One of so many rows goes by turns.
pub(super) const SHARE: usize = 8;
/// For each row of the turn, so many requests are looked at.
const LOOKS: usize = 4;

/// The requests of one cell, in turn. See the [module](self).
pub(super) struct Turns {
    cell: CellId,
    /// Next first. Some may have ended.
    ring: VecDeque<RequestKey>,
    /// Those of `ring` that have not ended.
    members: SecondaryMap<RequestKey, ()>,
    /// Number of entries of `ring` that have ended.
    ended: usize,
    /// Rows that were left over from shares, times SHARE.
    credit: usize,
}

/// One turn: the rows that are left of it.
pub(super) struct Turn {
    rows: usize,
    looks: usize,
}

impl Turns {
    pub fn new(cell: CellId) -> Turns {
        Turns {
            cell,
            ring: VecDeque::new(),
            members: SecondaryMap::new(),
            ended: 0,
            credit: 0,
        }
    }

    /// A request has ready nodes in the cell.
    pub fn enter(&mut self, request: RequestKey) {
        if !self.members.contains_key(request) {
            self.members.insert(request, ());
            self.ring.push_back(request);
        }
    }

    /// A request ends.
    pub fn leave(&mut self, request: RequestKey) {
        if self.members.remove(request).is_some() {
            self.ended += 1;
            if self.ended > self.ring.len() / 2 + 32 {
                let members = &self.members;
                self.ring.retain(|&request| members.contains_key(request));
                self.ended = 0;
            }
        }
    }

    /// The turn in a batch of up to `max` rows.
    pub fn start(&mut self, max: usize) -> Turn {
        self.credit += max;
        let rows = self.credit / SHARE;
        self.credit %= SHARE;
        let looks = LOOKS * rows;
        Turn { rows, looks }
    }

    /// The next subgraph that has a row by its turn: one that `worker` may take, and has waited.
    pub fn next(
        &mut self,
        turn: &mut Turn,
        table: &Table,
        worker: WorkerId,
    ) -> Option<(SubgraphKey, SubgraphView)> {
        while turn.rows > 0 && turn.looks > 0 {
            let request = self.ring.pop_front()?;
            if !self.members.contains_key(request) {
                self.ended -= 1;
                continue;
            }
            let Some(subgraph) = table.ready_subgraphs_of(request, self.cell).next() else {
                self.members.remove(request);
                continue;
            };
            self.ring.push_back(request);
            turn.looks -= 1;
            let view = table.view(subgraph);
            if view.waited >= PATIENCE && view.pinned.is_none_or(|pinned| pinned == worker) {
                turn.rows -= 1;
                return Some((subgraph, view));
            }
        }
        None
    }
}

impl Turn {
    /// Rows that it has not taken.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_come_and_go_leave_nothing() {
        let mut keys = slotmap::SlotMap::<RequestKey, ()>::with_key();
        let mut turns = Turns::new(CellId(0));
        let stays = keys.insert(());
        for _ in 0..10_000 {
            let key = keys.insert(());
            turns.enter(stays);
            turns.enter(key);
            turns.leave(key);
            turns.leave(key);
            keys.remove(key);
            assert!(turns.ring.len() < 100 && turns.members.len() == 1);
        }
        assert_eq!(turns.ring.iter().filter(|&&key| key == stays).count(), 1);
    }
}
