//! The options of an engine: refusals, and the sizes of batches.

#[path = "common/simple_cells.rs"]
mod simple_cells;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gatestream_serve::cell_graph::{
    Batch, BatchSizes, Cell, CellCost, CellError, Cells, Ports, PreparedCell, WorkerEnv,
};
use gatestream_serve::engine::{Engine, EngineError, EngineOptions, ModelOptions, Workers};
use gatestream_serve::policy::BatchSteps;
use gatestream_serve::scheduler::ModelError;
use simple_cells::cells;

/// A cell that computes nothing, with the maximum number of rows of its batches.
struct Measured {
    ports: Ports,
    rows: Option<usize>,
    prepared_for: Arc<AtomicU64>,
}

struct Idle;

impl PreparedCell for Idle {
    fn run(&mut self, _: &mut Batch<'_>) -> Result<(), CellError> {
        Ok(())
    }
}

impl Cell for Measured {
    fn name(&self) -> &str {
        "measured"
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn cost(&self) -> CellCost {
        let mut cost = CellCost::default();
        cost.rows.max = self.rows.unwrap_or(cost.rows.max);
        cost
    }

    fn prepare(&self, env: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        self.prepared_for.store(env.rows as u64, Ordering::Relaxed);
        Ok(Box::new(Idle))
    }
}

#[test]
fn options_out_of_range_are_refused() {
    let start = |options: &EngineOptions| Engine::start(cells().0, options).err().unwrap();
    assert!(matches!(
        Engine::start(Cells::new(), &EngineOptions::default()),
        Err(EngineError::NoCell)
    ));
    let none = EngineOptions {
        workers: Workers::Cores(vec![]),
        ..EngineOptions::default()
    };
    assert!(matches!(start(&none), EngineError::NoWorker));
    let no_tasks = EngineOptions {
        tasks_at_once: 0,
        ..EngineOptions::default()
    };
    assert!(matches!(start(&no_tasks), EngineError::NoTasks));
    let no_steps = EngineOptions {
        steps_at_once: 0,
        ..EngineOptions::default()
    };
    assert!(matches!(start(&no_steps), EngineError::NoSteps));
    for (batch_steps, line) in [
        (BatchSteps::Fixed(0), "a batch has at least 1 step"),
        (BatchSteps::ByLoad(1025), "is 1025; at most 1024 are"),
    ] {
        let refused = start(&EngineOptions {
            batch_steps,
            ..EngineOptions::default()
        });
        assert!(refused.to_string().contains(line), "{refused}");
    }
    let sizes = EngineOptions {
        sizes: vec![BatchSizes { min: 2, max: 1 }; 3],
        ..EngineOptions::default()
    };
    assert!(matches!(
        start(&sizes),
        EngineError::Sizes { min: 2, max: 1, .. }
    ));
    let count = EngineOptions {
        sizes: vec![BatchSizes { min: 1, max: 1 }],
        ..EngineOptions::default()
    };
    assert!(matches!(
        start(&count),
        EngineError::SizesCount {
            expected: 3,
            found: 1
        }
    ));
    // Before buffers are allocated.
    let rows = EngineOptions {
        sizes: vec![
            BatchSizes {
                min: 1,
                max: usize::MAX
            };
            3
        ],
        ..EngineOptions::default()
    };
    assert!(matches!(
        start(&rows),
        EngineError::TooManyRows {
            rows: usize::MAX,
            ..
        }
    ));
    let mut cells = Cells::new();
    cells.add(Measured {
        ports: Ports::new().state("s", 1),
        rows: Some(usize::MAX),
        prepared_for: Arc::default(),
    });
    let measured = Engine::start(cells, &EngineOptions::default());
    assert!(matches!(
        measured.err(),
        Some(EngineError::TooManyRows { .. })
    ));
    // Refused before a cell is prepared, at the start and while the engine runs.
    let prepared_for = Arc::new(AtomicU64::new(0));
    let many = || {
        let mut cells = Cells::new();
        for _ in 0..65_537 {
            cells.add(Measured {
                ports: Ports::new().state("s", 1),
                rows: None,
                prepared_for: Arc::clone(&prepared_for),
            });
        }
        cells
    };
    let is_refused = |why: EngineError| {
        let cells = 65_537;
        let max = 65_536;
        assert!(
            matches!(why, EngineError::Model(why) if why == ModelError::TooManyCells { cells, max })
        );
        assert_eq!(prepared_for.load(Ordering::Relaxed), 0);
    };
    is_refused(
        Engine::start(many(), &EngineOptions::default())
            .err()
            .unwrap(),
    );
    let engine = Engine::start(self::cells().0, &EngineOptions::default()).unwrap();
    is_refused(
        engine
            .add_model(many(), &ModelOptions::default())
            .err()
            .unwrap(),
    );
    let no_thread = EngineOptions {
        workers: Workers::OneOver(0),
        ..EngineOptions::default()
    };
    assert!(matches!(
        start(&no_thread),
        EngineError::Team { worker: 0, .. }
    ));
    // Of more cores than there are, all.
    let all = Workers::OneOverAll.cores().unwrap();
    assert_eq!(Workers::OneOver(usize::MAX).cores().unwrap(), all);
}

#[test]
fn batches_have_the_rows_of_the_options_else_of_the_cell() {
    let prepared = |rows, sizes: Vec<BatchSizes>| {
        let prepared_for = Arc::new(AtomicU64::new(0));
        let mut cells = Cells::new();
        cells.add(Measured {
            ports: Ports::new().state("s", 1),
            rows,
            prepared_for: Arc::clone(&prepared_for),
        });
        let options = EngineOptions {
            sizes,
            ..EngineOptions::default()
        };
        drop(Engine::start(cells, &options).unwrap());
        prepared_for.load(Ordering::Relaxed) as usize
    };
    assert_eq!(prepared(None, vec![]), BatchSizes::default().max);
    assert_eq!(prepared(Some(5), vec![]), 5);
    assert_eq!(prepared(Some(5), vec![BatchSizes { min: 1, max: 7 }]), 7);
}
