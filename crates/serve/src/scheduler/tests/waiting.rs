//! How long a ready node waits at most, whatever else there is to do.

use super::*;
use crate::cell_graph::test_graphs::{plain_cells, plain_chain};
use crate::policy::{Cellular, Order};

const ORDERS: [Order; 2] = [Order::Arrival, Order::FewestLeft];

/// Forty users of one cell, each of whom comes back when answered: always a full batch.
#[test]
fn a_cell_with_full_batches_leaves_turns_to_another() {
    const USERS: usize = 40;
    for (full, other, tasks_at_once) in [(1, 0, 1), (0, 1, 1), (1, 0, 5), (0, 1, 5)] {
        for order in ORDERS {
            let sizes = [BatchSizes { min: 1, max: 32 }; 2];
            let policy = Box::new(Cellular::new(&costs(&sizes), 1, order));
            let mut simulated = Simulated::new(policy, plain_cells(2), &sizes, 1, tasks_at_once);
            let step = |cell: usize| plain_chain(if cell == 0 { &[1] } else { &[0, 1] });
            let mut users = Vec::new();
            let mut key = None;
            let mut ran = 0;
            simulated.run(1, |simulated, now| {
                users.retain(|&user| simulated.is_live(user));
                while users.len() < USERS {
                    users.push(simulated.submit(step(full), 255, None, false));
                }
                if now == 20 {
                    ran = simulated.given.len();
                    key = Some(simulated.submit(step(other), 0, None, false));
                }
                assert!(now < 200, "{full} stops {other}, {order:?}");
                let goes_on = key.is_none_or(|key| simulated.is_live(key));
                if !goes_on {
                    users.drain(..).for_each(|user| simulated.cancel(user));
                }
                goes_on
            });
            let waited = simulated.given[ran..].iter();
            let waited = waited.take_while(|given| given.task.cell.index() == full);
            assert!(waited.count() <= 4, "{full} stops {other}, {order:?}");
        }
    }
}
