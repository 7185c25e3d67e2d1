//! The steps of a batch under `ebatch`, for a worker whose batches take `FETCH` and `STEP` for each
//! step.

use super::turns::{going_on, stateful};
use super::*;
use crate::policy::EBatching;

const FETCH: u64 = 50;
const STEP: u64 = 10;
const MAX_STEPS: usize = 32;

struct Served {
    scheduler: Scheduler,
    now: Instant,
    tasks: Vec<Task>,
}

impl Served {
    fn new(steps: BatchSteps, max_rows: usize, costs: Option<CellCost>) -> Served {
        let policy = Box::new(EBatching::new(1, steps));
        let sizes = BatchSizes {
            min: 1,
            max: max_rows,
        };
        let mut cost = costs.unwrap_or_default();
        cost.rows = sizes;
        let mut scheduler = Scheduler::new(policy, 1, 1, Limits::default());
        let model = scheduler.add_model(&[cost], ModelShare::default()).unwrap();
        scheduler.set_steps_at_once(model, &[MAX_STEPS]);
        Served {
            scheduler,
            now: Instant::now(),
            tasks: Vec::new(),
        }
    }

    fn submit(&mut self, length: usize, allowed: Option<u64>) {
        let unfolded = going_on(length).unfold(&stateful()).unwrap();
        let requirements = Requirements {
            deadline: allowed.map(|allowed| self.now + Duration::from_nanos(allowed)),
            ..Requirements::default()
        };
        let submitted = self
            .scheduler
            .handle_submit(self.now, &unfolded, requirements);
        submitted.unwrap();
    }

    /// Runs the next batch; returns the rows of each of its steps.
    fn batch(&mut self) -> Vec<usize> {
        self.scheduler
            .poll_tasks(self.now, WorkerId(0), &mut self.tasks);
        let rows: Vec<usize> = self.tasks.iter().map(|task| task.rows.len()).collect();
        let continues: Vec<bool> = self.tasks.iter().map(|task| task.continues).collect();
        assert!(
            continues
                .iter()
                .enumerate()
                .all(|(at, &one)| one == (at > 0))
        );
        assert!(rows.is_sorted_by(|a, b| a >= b), "rows only leave");
        let took = Duration::from_nanos(FETCH + STEP * rows.len() as u64);
        self.now += took;
        let mut left = took;
        for (at, task) in self.tasks.drain(..).enumerate() {
            let part = left / (rows.len() - at) as u32;
            left -= part;
            self.scheduler.handle_done(self.now, task, Some(part));
        }
        rows
    }
}

fn balanced(left: f64) -> usize {
    (2.0 * left * FETCH as f64 / STEP as f64).sqrt().ceil() as usize
}

#[test]
fn a_fixed_number_of_steps_is_taken_whatever_the_rows() {
    let mut served = Served::new(BatchSteps::Fixed(5), 40, None);
    (0..30).for_each(|_| served.submit(12, None));
    served.submit(7, None);
    assert_eq!(served.batch(), [31; 5]);
    assert_eq!(served.batch(), [31, 31, 30, 30, 30]);
    assert_eq!(served.batch(), [30; 2]);
}

#[test]
fn times_are_measured_and_decide_then() {
    let mut served = Served::new(BatchSteps::ByLoad(MAX_STEPS), 8, None);
    (0..4).for_each(|_| served.submit(90, None));
    assert_eq!(served.batch(), [4], "its time is unknown");
    assert_eq!(served.batch(), [4; 4]);
    let mut left: usize = 90 - 5;
    while left > 0 {
        let steps = served.batch().len();
        assert_eq!(steps, balanced(left as f64).min(left));
        left -= steps;
    }
    // Another number of rows has times of its own.
    served.submit(90, None);
    assert_eq!(served.batch(), [1]);
}

/// A batch that begins with 9 rows and ends with 3 is one of 9 rows.
#[test]
fn rows_that_end_do_not_change_whose_times_are_measured() {
    let mut served = Served::new(BatchSteps::ByLoad(MAX_STEPS), 16, None);
    for _ in 0..3 {
        (0..6).for_each(|_| served.submit(2, None));
        (0..3).for_each(|_| served.submit(60, None));
        served.batch();
        while served.scheduler.queued() > 0 {
            served.batch();
        }
    }
    (0..9).for_each(|_| served.submit(60, None));
    assert_eq!(served.batch().len(), balanced(60.0));
}

#[test]
fn a_cost_sheet_tells_the_times_before() {
    let batch = |steps: u64| BatchTime {
        rows: 4,
        steps: steps as usize,
        time: Duration::from_nanos(FETCH + STEP * steps),
    };
    let cost = CellCost {
        times: vec![batch(8), batch(1)],
        ..CellCost::default()
    };
    let of = |count: usize, deadline: Option<u64>| {
        let mut served = Served::new(BatchSteps::ByLoad(MAX_STEPS), 4, Some(cost.clone()));
        (0..4).for_each(|_| served.submit(30, deadline));
        (4..count).for_each(|_| served.submit(30, None));
        served.batch().len()
    };
    assert_eq!(of(4, None), balanced(30.0));
    // Three for each row.
    assert_eq!(of(12, None), (1.5 * 300f64.sqrt()).ceil() as usize);
    // In one batch they end in time, and not in two.
    assert_eq!(of(4, Some(FETCH + 30 * STEP)), 30);
    // They are late with any number.
    assert_eq!(of(4, Some(FETCH)), balanced(30.0));
}

#[test]
fn one_step_is_timed_again_now_and_then() {
    let mut served = Served::new(BatchSteps::ByLoad(MAX_STEPS), 8, None);
    let mut singles = 0;
    for _ in 0..200 {
        (0..4).for_each(|_| served.submit(9, None));
        while served.scheduler.queued() > 0 {
            singles += usize::from(served.batch().len() == 1);
        }
    }
    assert!((2..40).contains(&singles), "{singles}");
}
