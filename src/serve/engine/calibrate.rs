//! How long each cell takes for batches of each size: measured once, before serving.

use std::time::{Duration, Instant};

use super::EngineError;
use crate::execute::team::{SharedTeam, Team};
use crate::serve::cell_graph::{Batch, CellError, Cells, Place, Port};

/// What one cell's batches took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// The cell's name.
    pub cell: String,
    /// Rows, and the median time of a batch of so many.
    pub times: Vec<(usize, Duration)>,
}

/// Each size is run for so long.
const EACH: Duration = Duration::from_millis(60);

/// Runs every cell on these cores, with batches of each of `rows`, on zeros; for 60 ms each, while nothing else should
/// run. The calling thread takes part, on the first core, and stays pinned to it.
/// [`BatchSizes::measured`](crate::serve::policy::BatchSizes::measured) chooses from the times.
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
        let mut times = Vec::with_capacity(rows.len());
        for &rows in rows {
            let mut took = Vec::new();
            let begin = Instant::now();
            // The first ones bring the weights into the caches.
            while took.len() < 7 || begin.elapsed() < EACH {
                let begin = Instant::now();
                let mut batch = Batch::new(ports, rows, &inputs, &mut states, &mut outputs);
                prepared.run(&mut batch).map_err(failed)?;
                took.push(begin.elapsed());
            }
            took.sort_unstable();
            times.push((rows, took[took.len() / 2]));
        }
        Ok(Calibration {
            cell: cell.name().into(),
            times,
        })
    });
    calibrations.collect()
}
