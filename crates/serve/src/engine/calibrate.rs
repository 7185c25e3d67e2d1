//! Measures the cost of the batches of each cell, before serving.

use std::time::{Duration, Instant};

use super::EngineError;
use crate::cell_graph::{
    Batch, BatchSizes, BatchTime, CellCost, CellError, Cells, Port, WorkerEnv,
};
use crate::worker::prepare;
use gatestream::execute::team::{SharedTeam, Team};

/// The measured cost of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// The cell's name.
    pub cell: String,
    /// Median times of batches of one step, and the [sizes](BatchSizes::measured) chosen from them.
    pub cost: CellCost,
}

/// All sizes are measured in several rounds, so that a slow moment of the machine affects all of
/// them.
const ROUNDS: usize = 3;
/// Minimum time and number of batches of a size in each round. The first batches bring the weights
/// into the caches.
const ROUND: Duration = Duration::from_millis(20);
const MIN_BATCHES: usize = 3;

/// Measures batches of each of `rows` rows, for every cell, on these cores and with inputs of
/// zeros, about 60 ms each; sequences have one element. The machine should be idle. The calling
/// thread takes part, on the first core, and stays pinned to it.
///
/// # Errors
/// [`EngineError::Team`], [`EngineError::Cell`].
pub fn calibrate(
    cells: &Cells,
    cores: &[usize],
    rows: &[usize],
) -> Result<Vec<Calibration>, EngineError> {
    let worker = 0;
    let team = Team::new(cores).map_err(|why| EngineError::Team { worker, why })?;
    team.pin_caller();
    let env = WorkerEnv::one_step(
        SharedTeam::new(team),
        rows.iter().copied().max().unwrap_or(1),
    );
    let calibrations = cells.iter().map(|(_, cell)| {
        let failed = |why: CellError| EngineError::Cell {
            worker,
            cell: cell.name().into(),
            why,
        };
        let mut prepared = prepare(&**cell, &env).map_err(failed)?;
        let zeros = |ports: &[Port]| -> Vec<Vec<f32>> {
            let buffers = ports.iter().map(|port| vec![0.0; env.rows * port.width()]);
            buffers.collect()
        };
        let ports = cell.ports();
        let (inputs, mut states, mut outputs) = (
            zeros(ports.inputs()),
            zeros(ports.states()),
            zeros(ports.outputs()),
        );
        let mut took = vec![Vec::new(); rows.len()];
        for round in 1..=ROUNDS {
            for (&rows, took) in rows.iter().zip(&mut took) {
                let begin = Instant::now();
                while took.len() < round * MIN_BATCHES || begin.elapsed() < ROUND {
                    let begin = Instant::now();
                    let mut batch = Batch::new(ports, rows, &inputs, &mut states, &mut outputs);
                    prepared.run(&mut batch).map_err(failed)?;
                    took.push(begin.elapsed());
                }
            }
        }
        let median = |mut took: Vec<Duration>| {
            took.sort_unstable();
            took[took.len() / 2]
        };
        let times: Vec<_> = { rows.iter().zip(took) }
            .map(|(&rows, took)| BatchTime {
                rows,
                steps: 1,
                time: median(took),
            })
            .collect();
        let mut cost = cell.cost();
        cost.rows = BatchSizes::measured(&times).unwrap_or(cost.rows);
        cost.times = times;
        Ok(Calibration {
            cell: cell.name().into(),
            cost,
        })
    });
    calibrations.collect()
}
