//! An engine whose one cell is held up by the test: who runs when is said by a gate, not by the
//! clock.

#![allow(dead_code)] // each test target needs some of it

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use gatestream_serve::Engine;
use gatestream_serve::RequestError;
use gatestream_serve::cell_graph::BatchSizes;
use gatestream_serve::cell_graph::{Batch, CellError, CellId, Cells, Graph, Ports};
use gatestream_serve::engine::{EngineOptions, Request, Ticket, Workers};
use gatestream_serve::scheduler::{End, Limits};

use super::gate::{self, Gate, Gated, drained};
use super::simple_cells::{Ids, POISON, cells};

/// Adds one to its input, each batch behind the gate; panics at [`POISON`].
pub fn add_one(gate: &Gate, batch: &mut Batch<'_>) -> Result<(), CellError> {
    let ([x], [], [y]) = batch.split();
    gate.pass(x)?;
    if x.contains(&POISON) {
        std::panic::resume_unwind(Box::new("poisoned"));
    }
    for (x, y) in x.iter().zip(y) {
        *y = x + 1.0;
    }
    Ok(())
}

pub struct Scene {
    pub engine: Engine,
    pub cells: Cells,
    pub ids: Ids,
    pub gated: CellId,
    pub gate: Arc<Gate>,
    /// How often a worker has prepared the gated cell.
    pub prepared: Arc<AtomicUsize>,
}

/// An engine of so many workers, whose cells have batches of at most `rows` and the gated one of
/// `gated` rows.
pub fn scene(workers: usize, rows: usize, gated: usize, limits: Limits) -> Scene {
    let (mut cells, ids) = cells();
    let (gate, prepared) = (Arc::default(), Arc::default());
    let sizes = [rows, rows, rows, gated].map(|max| BatchSizes { min: 1, max });
    let gated = cells.add(Gated {
        ports: Ports::new().input("x", 1).output("y", 1),
        gate: Arc::clone(&gate),
        supports_multiple_steps: false,
        run: add_one,
        prepared: Arc::clone(&prepared),
    });
    let options = EngineOptions {
        workers: Workers::Cores((0..workers).map(|core| vec![core]).collect()),
        sizes: sizes.to_vec(),
        limits,
        ..EngineOptions::default()
    };
    Scene {
        engine: Engine::start(cells.clone(), &options).unwrap(),
        cells,
        ids,
        gated,
        gate,
        prepared,
    }
}

impl Scene {
    pub fn gated(&self, x: f32) -> Request {
        self.gated_steps(x, 1)
    }

    /// One after the other.
    pub fn gated_steps(&self, x: f32, steps: usize) -> Request {
        let mut graph = Graph::new();
        let mut x = graph.give(&[x]);
        for _ in 0..steps {
            x = graph.node(self.gated, &[x]).output(0);
        }
        graph.answer(x);
        Request::new(graph)
    }

    pub fn submit(&self, request: Request) -> Ticket {
        self.engine.submit(request).unwrap()
    }

    /// As [`drained`].
    pub fn drained(&self, ends: &[(End, u64)]) {
        drained(&self.engine, ends);
    }
}

impl Drop for Scene {
    /// Nobody is held while a test that failed ends its engine.
    fn drop(&mut self) {
        self.gate.let_all_go();
    }
}

pub fn ended(ticket: Ticket) -> Result<Vec<f32>, RequestError> {
    gate::ended(ticket).map(|answer| answer.values)
}
