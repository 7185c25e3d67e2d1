//! How long each cell takes for batches of each size: measured once, before serving.

use std::time::{Duration, Instant};

use super::EngineError;
use crate::cell_graph::{Batch, CellError, Cells, Place, Port};
use cellstream::execute::team::{SharedTeam, Team};

/// What one cell's batches took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// The cell's name.
    pub cell: String,
    /// Rows, and the median time of a batch of so many.
    pub times: Vec<(usize, Duration)>,
}

/// All sizes take so many turns, so that a slow moment of the machine does not fall to one of them.
const TURNS: usize = 3;
/// In each, every size is run for so long, and so often at least: the first bring the weights into the caches.
const TURN: Duration = Duration::from_millis(20);
const LEAST: usize = 3;

/// Runs every cell on these cores, with batches of each of `rows`, on zeros; for 60 ms each, in three turns, while nothing
/// else should run. The calling thread takes part, on the first core, and stays pinned to it.
/// [`BatchSizes::measured`](crate::policy::BatchSizes::measured) chooses from the times.
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
    let place = Place {
        team: SharedTeam::new(team),
        rows: rows.iter().copied().max().unwrap_or(1),
        steps: 1,
    };
    let calibrations = cells.iter().map(|(_, cell)| {
        let failed = |why: CellError| EngineError::Cell {
            worker,
            cell: cell.name().into(),
            why,
        };
        let mut prepared = cell.prepare(&place).map_err(failed)?;
        let zeros = |ports: &[Port]| -> Vec<Vec<f32>> {
            let buffers = ports
                .iter()
                .map(|port| vec![0.0; place.rows * port.width()]);
            buffers.collect()
        };
        let ports = cell.ports();
        let (inputs, mut states, mut outputs) = (
            zeros(ports.inputs()),
            zeros(ports.states()),
            zeros(ports.outputs()),
        );
        let mut took = vec![Vec::new(); rows.len()];
        for turn in 1..=TURNS {
            for (&rows, took) in rows.iter().zip(&mut took) {
                let begin = Instant::now();
                while took.len() < turn * LEAST || begin.elapsed() < TURN {
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
        Ok(Calibration {
            cell: cell.name().into(),
            times: rows
                .iter()
                .copied()
                .zip(took.into_iter().map(median))
                .collect(),
        })
    });
    calibrations.collect()
}
