//! The threads of a network.
//!
//! ```text
//! team   of all recurrent nodes; its threads spin for a moment after a node, then they sleep
//! pool   of tract, for large products and elementwise operators; its threads do not spin
//! ```
//!
//! Both have the same number of threads on the same cores. Nodes run one after the other, so one of
//! them works at a time.

use std::sync::OnceLock;

use gatestream::execute::team::{SharedTeam, Team, TeamError, silence_panics_of_this_thread};
use tract_linalg::multithread::{Executor, multithread_tract_scope};

/// See the [module](self). Both are started at their first use.
pub(crate) struct Threads {
    count: usize,
    team: OnceLock<SharedTeam>,
    pool: OnceLock<Executor>,
}

impl Threads {
    pub fn new(count: usize) -> Threads {
        Threads {
            count,
            team: OnceLock::new(),
            pool: OnceLock::new(),
        }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn team(&self) -> Result<&SharedTeam, TeamError> {
        if let Some(team) = self.team.get() {
            return Ok(team);
        }
        let team = SharedTeam::new(Team::with_threads(self.count)?);
        Ok(self.team.get_or_init(|| team))
    }

    /// Runs a graph, whose operators may use the pool.
    pub fn run<T>(&self, graph: impl FnOnce() -> T) -> T {
        if self.count < 2 {
            return graph();
        }
        let make = || {
            let executor = Executor::multithread_with_name(self.count, "gatestream-tract");
            // Their panics go on in the thread that waits for them.
            if let Executor::MultiThread(pool) = &executor {
                pool.broadcast(|_| silence_panics_of_this_thread());
            }
            executor
        };
        multithread_tract_scope(self.pool.get_or_init(make).clone(), graph)
    }
}
