//! Kernels for tests that see what is asked of kernels: what costs time and changes no bit.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gatestream_kernels::{GateJob, GateKernel, Isa, Kernels, Product, RowNorms, Scratch, kernels};

/// What was asked for.
#[derive(Default)]
pub(crate) struct Asked {
    pub multiply_adds: AtomicUsize,
    pub gate_units: AtomicUsize,
    /// Rows that products may quantise or lay out first.
    pub prepared_rows: AtomicUsize,
    /// Outputs that are computed by themselves.
    pub chains: AtomicUsize,
    /// Address of the buffer in which cell states were last computed.
    pub cell_states: AtomicUsize,
}

/// Counts the calls, and forwards them.
pub(crate) struct Counting {
    inner: Box<dyn Kernels>,
    asked: Arc<Asked>,
}

impl Counting {
    /// Those of an instruction set, and what they will have been asked for.
    pub fn kernels(isa: Isa) -> (Box<dyn Kernels>, Arc<Asked>) {
        let asked = Arc::<Asked>::default();
        let counting = Counting {
            inner: kernels(isa).unwrap(),
            asked: Arc::clone(&asked),
        };
        (Box::new(counting), asked)
    }

    fn count_gates(&self, rows: usize, units: usize) {
        (self.asked.gate_units).fetch_add(rows * units, Ordering::Relaxed);
    }
}

impl Kernels for Counting {
    fn isa(&self) -> Isa {
        self.inner.isa()
    }
    fn lanes(&self) -> usize {
        self.inner.lanes()
    }
    fn product_of(&self, job: Product<'_>, panels: Range<usize>, scratch: Scratch<'_>) {
        let weights = panels.len() * self.lanes() * job.weights.gates();
        let work = job.row_count * weights * job.weights.depth();
        (self.asked.multiply_adds).fetch_add(work, Ordering::Relaxed);
        if matches!(scratch, Scratch::Empty(_)) && job.weights.scratch_words(1) > 0 {
            (self.asked.prepared_rows).fetch_add(job.row_count, Ordering::Relaxed);
        }
        self.inner.product_of(job, panels, scratch);
    }
    unsafe fn gates(&self, kernel: GateKernel, job: GateJob<'_>) {
        if !matches!(kernel, GateKernel::GruReset(_)) {
            self.count_gates(job.rows, job.units);
        }
        if matches!(kernel, GateKernel::Lstm(_)) {
            // SAFETY: no element is read.
            let start = unsafe { job.c.rows.read(0, 0..0) };
            (self.asked.cell_states).store(start.as_ptr().addr(), Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.gates(kernel, job) }
    }
    fn max(&self, values: &[f32]) -> f32 {
        self.inner.max(values)
    }
    fn chains(&self, x: &[f32], weights: &[f32], listed: &[usize], z: &mut [f32]) {
        (self.asked.chains).fetch_add(listed.len(), Ordering::Relaxed);
        self.inner.chains(x, weights, listed, z);
    }
    fn row_norms(&self, row: &[f32]) -> RowNorms {
        self.inner.row_norms(row)
    }
}
