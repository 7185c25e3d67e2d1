//! How much arithmetic a run asks of its kernels: none for sequences that have ended.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::team::Team;
use super::{PackedModel, Session};
use crate::kernels::{
    GruCandidate, GruGates, GruReset, Isa, Kernels, LstmGates, PlainState, Product, TreeChild,
    TreeNode,
};
use crate::model::{Gru, Input, Lstm, Merge, Model, Output, ResetForm, Rnn};
use crate::plan::Plan;

/// Counts multiply-adds and gate rows, and hands every call on.
struct Counting {
    inner: Box<dyn Kernels>,
    multiply_adds: Arc<AtomicUsize>,
    gate_units: Arc<AtomicUsize>,
}

impl Counting {
    fn gates(&self, rows: usize, units: usize) {
        self.gate_units.fetch_add(rows * units, Ordering::Relaxed);
    }
}

impl Kernels for Counting {
    fn isa(&self) -> Isa {
        self.inner.isa()
    }
    fn lanes(&self) -> usize {
        self.inner.lanes()
    }
    fn product_of(&self, job: Product<'_>, panels: Range<usize>, room: &mut [u32]) {
        let weights = panels.len() * self.lanes() * job.weights.gates();
        let work = job.row_count * weights * job.weights.depth();
        self.multiply_adds.fetch_add(work, Ordering::Relaxed);
        self.inner.product_of(job, panels, room);
    }
    unsafe fn lstm_gates(&self, job: LstmGates<'_>) {
        self.gates(job.rows, job.units);
        // SAFETY: the caller's promise.
        unsafe { self.inner.lstm_gates(job) }
    }
    unsafe fn gru_gates(&self, job: GruGates<'_>) {
        self.gates(job.rows, job.units);
        // SAFETY: the caller's promise.
        unsafe { self.inner.gru_gates(job) }
    }
    unsafe fn gru_reset(&self, job: GruReset<'_>) {
        // SAFETY: the caller's promise.
        unsafe { self.inner.gru_reset(job) }
    }
    unsafe fn gru_candidate(&self, job: GruCandidate<'_>) {
        self.gates(job.rows, job.units);
        // SAFETY: the caller's promise.
        unsafe { self.inner.gru_candidate(job) }
    }
    unsafe fn plain_state(&self, job: PlainState<'_>) {
        self.gates(job.rows, job.units);
        // SAFETY: the caller's promise.
        unsafe { self.inner.plain_state(job) }
    }
    unsafe fn tree_node(&self, job: TreeNode<'_>) {
        self.gates(job.rows, job.units);
        // SAFETY: the caller's promise.
        unsafe { self.inner.tree_node(job) }
    }
    unsafe fn tree_child(&self, job: TreeChild<'_>) {
        self.gates(job.rows, job.units);
        // SAFETY: the caller's promise.
        unsafe { self.inner.tree_child(job) }
    }
    fn greatest(&self, values: &[f32]) -> f32 {
        self.inner.greatest(values)
    }
}

/// Multiply-adds and gate units that a run of these lengths asks for.
fn work(model: &Model, lengths: &[usize], steps: usize) -> (usize, usize) {
    let batch = lengths.len();
    let plan = Plan::with_threads(model, batch, steps, 2);
    let mut team = Team::with_threads(2).unwrap();
    let mut packed = PackedModel::new(model, &plan, &mut team).unwrap();
    let (multiply_adds, gate_units) = (Arc::default(), Arc::default());
    let unshared = Arc::get_mut(&mut packed).unwrap();
    let inner = crate::kernels::kernels(unshared.isa()).unwrap();
    unshared.kernels = Box::new(Counting {
        inner,
        multiply_adds: Arc::clone(&multiply_adds),
        gate_units: Arc::clone(&gate_units),
    });
    let mut session = Session::with_team(packed, team).unwrap();
    let values = vec![0.5; steps * batch * model.signature().input];
    let input = Input::new(&values, steps, batch).lengths(lengths);
    session.run(&input, &mut Output::default()).unwrap();
    (
        multiply_adds.load(Ordering::Relaxed),
        gate_units.load(Ordering::Relaxed),
    )
}

#[test]
fn ended_sequences_cost_no_arithmetic() {
    let (steps, lengths) = (9, [9, 0, 4, 1, 7, 4]);
    let gru = Gru::new(5, 32).bidirectional(Merge::Sum);
    let models = [
        Lstm::new(5, 32).layers(2).random(1),
        Lstm::new(5, 32).projection(16).random(1),
        Lstm::new(5, 32)
            .bidirectional(Merge::Concat)
            .layers(2)
            .random(1),
        gru.clone().random(1),
        gru.reset(ResetForm::Before).random(1),
        Rnn::new(5, 32).random(1),
    ];
    for model in models.map(Result::unwrap) {
        let one_step = work(&model, &[1], 1);
        assert!(one_step.0 > 0 && one_step.1 > 0);
        let total: usize = lengths.iter().sum();
        let expected = (total * one_step.0, total * one_step.1);
        assert_eq!(work(&model, &lengths, steps), expected);
    }
}
