//! Cells that panic now and then: for the soak test, which shows that a server survives them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gatestream_serve::cell_graph::{
    Batch, Cell, CellCost, CellError, Cells, Ports, PreparedCell, RowLayout, WorkerEnv,
};

/// One of this number of batches panics.
const BATCHES: u32 = 5_000;

/// The same cells, which panic now and then.
pub fn add_panics(cells: &Cells) -> Cells {
    let mut faulty = Cells::new();
    for (_, cell) in cells.iter() {
        faulty.add(Faulty(Arc::clone(cell)));
    }
    faulty
}

struct Faulty(Arc<dyn Cell>);

impl Cell for Faulty {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn ports(&self) -> &Ports {
        self.0.ports()
    }

    fn cost(&self) -> CellCost {
        self.0.cost()
    }

    fn supports_multiple_steps(&self) -> bool {
        self.0.supports_multiple_steps()
    }

    fn layout(&self) -> RowLayout {
        self.0.layout()
    }

    fn check_lengths(&self, inputs: &[usize], outputs: &[usize]) -> Result<(), CellError> {
        self.0.check_lengths(inputs, outputs)
    }

    fn prepare(&self, env: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        Ok(Box::new(PreparedFaulty(self.0.prepare(env)?)))
    }
}

struct PreparedFaulty(Box<dyn PreparedCell>);

impl PreparedCell for PreparedFaulty {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        static RUN: AtomicU32 = AtomicU32::new(0);
        assert!(
            RUN.fetch_add(1, Ordering::Relaxed) % BATCHES != BATCHES - 1,
            "a fault of the soak test"
        );
        self.0.run(batch)
    }
}
