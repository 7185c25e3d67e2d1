//! Cells prepared for the workers of an engine.

use std::sync::Arc;

use super::options::check_batch_steps;
use super::{EngineError, EngineOptions, Reply};
use crate::cell_graph::{BatchSizes, Cell, CellCost, Cells, WorkerEnv};
use crate::scheduler::{ModelError, Policy, Scheduler};
use crate::worker::Runner;
use gatestream::execute::team::{SharedTeam, catch_panic};

/// The cells of a model with their costs and largest batches, for which buffers are allocated.
pub(super) struct ModelSetup {
    pub cells: Cells,
    pub costs: Vec<CellCost>,
    /// Maximum number of steps of the batches of each cell.
    pub steps: Vec<usize>,
    pub limits: TaskLimits,
}

/// Limits of the tasks of a worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskLimits {
    /// Maximum number of steps.
    steps: usize,
    /// Maximum rows of all steps together.
    rows: usize,
    /// Maximum number of tasks at once.
    tasks: usize,
}

impl TaskLimits {
    /// Those of the policy, or of the options if it has none.
    ///
    /// # Errors
    /// Those of [`check_batch_steps`], because buffers are allocated for so many steps.
    pub fn new(policy: &dyn Policy, options: &EngineOptions) -> Result<TaskLimits, EngineError> {
        const ROWS: usize = Scheduler::STEP_ROWS;
        let tasks = options.tasks_at_once;
        if let Some(steps) = policy.max_steps() {
            check_batch_steps(steps)?;
            return Ok(TaskLimits {
                steps,
                rows: usize::MAX,
                tasks,
            });
        }
        Ok(TaskLimits {
            steps: options.steps_at_once.min(ROWS),
            rows: ROWS,
            tasks,
        })
    }
}

impl ModelSetup {
    /// With batches of these sizes, or of those of the cells if there are none.
    pub fn new(
        cells: Cells,
        sizes: &[BatchSizes],
        limits: TaskLimits,
    ) -> Result<ModelSetup, EngineError> {
        let costs = costs(&cells, sizes)?;
        let steps = |(_, cell): (_, &Arc<dyn Cell>)| {
            let ports = cell.ports();
            let has_steps = !ports.states().is_empty() && !ports.has_sequences();
            if cell.supports_multiple_steps() && has_steps {
                limits.steps
            } else {
                1
            }
        };
        Ok(ModelSetup {
            steps: cells.iter().map(steps).collect(),
            costs,
            cells,
            limits,
        })
    }

    /// Prepares the cells for a worker with this team.
    pub fn on(&self, worker: usize, team: &SharedTeam) -> Result<Vec<Runner<Reply>>, EngineError> {
        let cells = self.cells.iter().zip(self.costs.iter().zip(&self.steps));
        let runners = cells.map(|((_, cell), (cost, &steps))| {
            let env = WorkerEnv {
                team: team.clone(),
                rows: cost.rows.max,
                steps,
                step_rows: self.limits.rows,
                worker,
                tasks_at_once: self.limits.tasks,
            };
            Runner::new(Arc::clone(cell), env).map_err(|why| EngineError::Cell {
                worker,
                cell: cell.name().into(),
                why,
            })
        });
        runners.collect()
    }
}

/// Prepares cells for each worker, on a thread for each: they are packed where the team of a worker
/// runs, and a batch of the worker waits for its team at most while one cell is packed.
pub(super) fn prepare_all(
    prepared: &ModelSetup,
    teams: &[SharedTeam],
) -> Result<Vec<Vec<Runner<Reply>>>, EngineError> {
    std::thread::scope(|scope| {
        let threads = teams.iter().enumerate().map(|(worker, team)| {
            let prepare = move || {
                let caught = catch_panic(|| prepared.on(worker, team));
                caught.unwrap_or(Err(EngineError::Panicked { worker }))
            };
            let thread = std::thread::Builder::new().name(format!("gatestream-prepare-{worker}"));
            let started = thread.spawn_scoped(scope, prepare);
            started.map_err(|why| EngineError::Spawn { worker, why })
        });
        // All start before one is waited for.
        let threads: Vec<_> = threads.collect();
        let prepared = threads.into_iter().enumerate().map(|(worker, thread)| {
            let joined = thread?.join();
            joined.unwrap_or(Err(EngineError::Panicked { worker }))
        });
        prepared.collect()
    })
}

/// The costs of all cells, with these batch sizes if there are any.
fn costs(cells: &Cells, sizes: &[BatchSizes]) -> Result<Vec<CellCost>, EngineError> {
    if cells.is_empty() {
        return Err(EngineError::NoCell);
    }
    // Before anything is packed; the scheduler counts the cells of the other models.
    ModelError::check_cells(cells.len())?;
    let mut costs: Vec<CellCost> = cells.iter().map(|(_, cell)| cell.cost()).collect();
    if !sizes.is_empty() {
        if sizes.len() != cells.len() {
            return Err(EngineError::SizesCount {
                expected: cells.len(),
                found: sizes.len(),
            });
        }
        for (cost, &sizes) in costs.iter_mut().zip(sizes) {
            cost.rows = sizes;
        }
    }
    for (cost, (_, cell)) in costs.iter().zip(cells.iter()) {
        let BatchSizes { min, max } = cost.rows;
        if min == 0 || min > max {
            return Err(EngineError::Sizes {
                cell: cell.name().into(),
                min,
                max,
            });
        }
        if max > EngineOptions::MAX_ROWS {
            return Err(EngineError::TooManyRows {
                cell: cell.name().into(),
                rows: max,
                max: EngineOptions::MAX_ROWS,
            });
        }
    }
    Ok(costs)
}
