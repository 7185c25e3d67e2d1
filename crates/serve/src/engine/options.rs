//! How an engine is set up.

use crate::cell_graph::BatchSizes;
use crate::policy::{Groups, PolicyKind};
use crate::scheduler::Limits;
use cellstream::execute::team::{Cores, TeamError, check_threads};
use cellstream::machine::Topology;

/// How an engine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Which ready nodes form a batch.
    pub policy: PolicyKind,
    /// Groups of requests, for policies that form such.
    pub groups: Groups,
    /// How cores are divided among workers.
    pub workers: Workers,
    /// Rows of each cell's batches, in the order of the cells. Empty: those of
    /// [`Cell::cost`](crate::cell_graph::Cell::cost).
    pub sizes: Vec<BatchSizes>,
    /// Most tasks that a worker gets at once (BatchMaker's MaxTasksToSubmit), further steps of
    /// their rows not counted.
    pub tasks_at_once: usize,
    /// Most steps that chains take in one batch, of cells that [take
    /// steps](crate::cell_graph::Cell::takes_steps): those read their weights less often then, and
    /// small batches take much less time. All steps together have at most
    /// [`Scheduler::STEP_ROWS`](crate::scheduler::Scheduler::STEP_ROWS) rows, so that they take no
    /// longer than one step of so many: four steps of up to 4 rows, three of 5, two of up to 8, one
    /// of more. Requests join and are answered, and deadlines are looked at, before such a batch or
    /// after it, not between its steps (with 1: at every cell); who cancels is told at once, and
    /// the rows are free after the batch. Decoders, trees and streams take a step at a time.
    pub steps_at_once: usize,
    /// What is accepted at once.
    pub limits: Limits,
}

impl EngineOptions {
    /// Maximum number of rows of a batch that is supported: buffers are allocated for all of them.
    pub const MAX_ROWS: usize = 1 << 16;
}

impl Default for EngineOptions {
    /// Cellular batching, one worker over all cores, one task at once: a decision costs
    /// microseconds here, a cell tens to hundreds, and the fewer are decided ahead, the sooner a
    /// new request joins. Up to four steps of few rows at once: they take as little as half the
    /// time (LSTM 1024, one row), which is worth more than joining between them. Eight were better
    /// by another 8 to 22 % (p90) in f32 while few requests came, and worse by as much in int8.
    fn default() -> EngineOptions {
        EngineOptions {
            policy: PolicyKind::Cellular,
            groups: Groups::default(),
            workers: Workers::default(),
            sizes: Vec::new(),
            tasks_at_once: 1,
            steps_at_once: 4,
            limits: Limits::default(),
        }
    }
}

/// How cores are divided among workers. Each worker has a thread on each of its cores, and the
/// weights of all cells packed for them.
///
/// Cores that no other team of the process has are taken first: two engines over half of the cores
/// each share none. Processes do not see each other's: give them sets of CPUs of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// One worker, over all cores: the default.
    #[default]
    OneOverAll,
    /// One worker over so many cores, or over all where there are fewer (a plan for more is refused
    /// then).
    OneOver(usize),
    /// A worker for each core.
    OnePerCore,
    /// These: the operating system's numbers of each worker's cores. Workers may share cores, and
    /// then wait for each other; a thread for a core that there is not runs wherever the system
    /// puts it.
    Cores(Vec<Vec<usize>>),
}

impl Workers {
    /// The cores of each worker, in a process that has no other teams.
    ///
    /// # Errors
    /// A team of that many threads cannot be.
    pub fn cores(&self) -> Result<Vec<Vec<usize>>, TeamError> {
        let topology = Topology::detect();
        let all = || topology.cpus_for_team(topology.team_size());
        Ok(match self {
            Workers::OneOverAll => vec![all()],
            Workers::OneOver(threads) => {
                let threads = (*threads).min(topology.team_size());
                check_threads(threads)?;
                vec![topology.cpus_for_team(threads)]
            }
            Workers::OnePerCore => all().into_iter().map(|core| vec![core]).collect(),
            Workers::Cores(cores) => cores.clone(),
        })
    }

    /// Takes the cores of each worker.
    pub(super) fn take(&self) -> Result<Vec<Cores>, TeamError> {
        let cores = self.cores()?;
        let take = |cores: &Vec<usize>| match self {
            Workers::Cores(_) => Ok(Cores::named(cores)),
            _ => Cores::free(cores.len()),
        };
        cores.iter().map(take).collect()
    }
}
