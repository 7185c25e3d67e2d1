//! The waits that a run really makes hold however late some of its workers are.
//!
//! `meetings_tests.rs` checks how far to wait, on waits that it writes down itself. This is about
//! the executor's own: some workers sleep before each kernel, so that whoever passes early reads
//! what they have not written yet, or overwrites what they have not read.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use super::meetings_cases::Case;
use super::team::Team;
use super::{PackedModel, Session};
use crate::model::{Input, Output};
use crate::reference;
use gatestream_kernels::{GateJob, GateKernel, Isa, Kernels, Product, RowNorms, Scratch};

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Threads of one team come one after the other, so they differ modulo a small number.
    static THREAD: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed));
}

/// Sleeps in the threads whose bit is set, then forwards the call.
struct Late {
    inner: Box<dyn Kernels>,
    late: Arc<AtomicUsize>,
}

impl Late {
    fn wait(&self) {
        let bit = THREAD.with(Cell::get) % 4;
        if self.late.load(Ordering::Relaxed) >> bit & 1 == 1 {
            sleep(Duration::from_micros(100));
        }
    }
}

impl Kernels for Late {
    fn isa(&self) -> Isa {
        self.inner.isa()
    }
    fn lanes(&self) -> usize {
        self.inner.lanes()
    }
    fn product_of(&self, job: Product<'_>, panels: Range<usize>, scratch: Scratch<'_>) {
        self.wait();
        self.inner.product_of(job, panels, scratch);
    }
    unsafe fn gates(&self, kernel: GateKernel, job: GateJob<'_>) {
        self.wait();
        // SAFETY: the caller's promise.
        unsafe { self.inner.gates(kernel, job) }
    }
    fn max(&self, values: &[f32]) -> f32 {
        self.inner.max(values)
    }
    fn chains(&self, x: &[f32], weights: &[f32], listed: &[usize], z: &mut [f32]) {
        self.inner.chains(x, weights, listed, z);
    }
    fn row_norms(&self, row: &[f32]) -> RowNorms {
        self.inner.row_norms(row)
    }
}

/// Compares bits with the reference, in runs in which one or more workers are late, on any threads.
fn check(case: &Case, random: &mut fastrand::Rng) {
    let plan = case.plan();
    let (steps, batch) = (case.steps, case.lengths.len());
    let mut team = Team::with_threads(plan.threads()).unwrap();
    let mut packed = PackedModel::new(&case.model, &plan, &mut team).unwrap();
    let late = Arc::new(AtomicUsize::new(0));
    let unshared = Arc::get_mut(&mut packed).unwrap();
    let inner = gatestream_kernels::kernels(unshared.isa()).unwrap();
    unshared.kernels = Box::new(Late {
        inner,
        late: Arc::clone(&late),
    });
    let out: Vec<usize> = (1..plan.threads()).filter(|_| random.bool()).collect();
    team.leave_out(out.iter().copied());
    let mut session = Session::with_team(packed, team).unwrap();
    let signature = case.model.signature();
    for _ in 0..3 {
        let values = (0..steps * batch * signature.input).map(|_| random.f32());
        let values: Vec<f32> = values.collect();
        let h0: Vec<f32> = (0..batch * signature.hidden_state)
            .map(|_| random.f32())
            .collect();
        let input = Input::new(&values, steps, batch)
            .lengths(&case.lengths)
            .h0(&h0);
        let [mut expected, mut found] =
            [0, 1].map(|_| vec![f32::NAN; steps * batch * signature.output]);
        reference::run(&case.model, &input, &mut Output::new(&mut expected)).unwrap();
        late.store(random.usize(1..15), Ordering::Relaxed);
        session.run(&input, &mut Output::new(&mut found)).unwrap();
        let same = expected
            .iter()
            .zip(&found)
            .all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{late:?} were late, {out:?} left out: {plan:?}");
    }
}

#[test]
fn late_workers_change_no_bit() {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..60 {
        let case = Case::random(&mut random);
        check(&case, &mut random);
    }
}
