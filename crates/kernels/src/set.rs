//! The kernels of one instruction set behind one object, so that its choice is made once.

use super::chains::chains;
use super::gates::{self, GateJob, GateKernel};
use super::max::max;
use super::product::{Product, RowNorms, Scratch, product, row_norms};
use super::simd::Simd;
use super::{Isa, IsaError, Visitor, dispatch};
use std::ops::Range;

/// Every kernel of one instruction set.
///
/// All sets give the same bits. One call covers one phase of one worker, so the dynamic call is
/// made a few times per step, never per element.
pub trait Kernels: Send + Sync {
    /// Which instruction set.
    fn isa(&self) -> Isa;
    /// Lanes per vector, which packed weights must agree with.
    fn lanes(&self) -> usize;
    /// Runs a [`Product`].
    ///
    /// # Panics
    /// If its slices are shorter than its sizes say, its weights were packed for other lanes, or
    /// they are of int8, for which [`Kernels::product_in`] is there.
    fn product(&self, job: Product<'_>) {
        self.product_in(job, Scratch::NONE);
    }
    /// Runs a [`Product`], with [`super::PackedMatrix::scratch_words`] of scratch.
    ///
    /// # Panics
    /// As [`Kernels::product`], or if there is less scratch for weights of int8.
    fn product_in(&self, job: Product<'_>, scratch: Scratch<'_>) {
        let panels = 0..job.weights.panels();
        self.product_of(job, panels, scratch);
    }
    /// As [`Kernels::product_in`], of some of the panels: the others' pre-activations stay as they
    /// are. `z` and the bias are still those of all. Of several such products of the same rows the
    /// first packs the scratch for all.
    ///
    /// # Panics
    /// As [`Kernels::product_in`], or if the weights have no such panels.
    fn product_of(&self, job: Product<'_>, panels: Range<usize>, scratch: Scratch<'_>);
    /// New states from pre-activations, or what the next phase of the step needs.
    ///
    /// # Safety
    /// For the job's units: no thread writes `before`, no other thread accesses `c`, `h` and `y`.
    unsafe fn gates(&self, kernel: GateKernel, job: GateJob<'_>);
    /// The greatest of `values`; NaN where one of them is NaN, minus infinity where there is none.
    fn max(&self, values: &[f32]) -> f32;
    /// Adds `Σ_k x[k] · weights[row][k]` to `z` of each of the `listed` rows of `weights` `[rows,
    /// x.len()]`, one fused multiply-add after the other: what a [`Product`] gives that starts from
    /// `z`.
    ///
    /// # Panics
    /// If there is no such row, or `z` is of another length than `listed`.
    fn chains(&self, x: &[f32], weights: &[f32], listed: &[usize], z: &mut [f32]);
    /// What is known of a row of a left operand that is multiplied by weights of int8.
    fn row_norms(&self, row: &[f32]) -> RowNorms;
}

/// The kernels for `isa`.
///
/// # Errors
/// [`IsaError::Unavailable`] if this CPU lacks it.
pub fn kernels(isa: Isa) -> Result<Box<dyn Kernels>, IsaError> {
    dispatch(isa, Make { plain: false })
}

/// As [`kernels`], without instructions that only some CPUs of the instruction set have.
///
/// # Errors
/// As [`kernels`].
pub fn plain_kernels(isa: Isa) -> Result<Box<dyn Kernels>, IsaError> {
    dispatch(isa, Make { plain: true })
}

struct Make {
    plain: bool,
}

impl Visitor for Make {
    type Out = Box<dyn Kernels>;
    fn visit<S: Simd>(self, s: S) -> Box<dyn Kernels> {
        let plain = self.plain;
        Box::new(Set { s, plain })
    }
}

struct Set<S> {
    s: S,
    plain: bool,
}

impl<S: Simd> Kernels for Set<S> {
    fn isa(&self) -> Isa {
        S::ISA
    }

    fn lanes(&self) -> usize {
        S::LANES
    }

    fn product_of(&self, mut job: Product<'_>, of: Range<usize>, scratch: Scratch<'_>) {
        let (s, plain) = (self.s, self.plain);
        match job.weights.stripe_gates() {
            1 => product::<S, 1>(s, &mut job, of, scratch, plain),
            2 => product::<S, 2>(s, &mut job, of, scratch, plain),
            3 => product::<S, 3>(s, &mut job, of, scratch, plain),
            4 => product::<S, 4>(s, &mut job, of, scratch, plain),
            more => panic!("no cell has {more} gates"),
        }
    }

    unsafe fn gates(&self, kernel: GateKernel, job: GateJob<'_>) {
        // SAFETY: the caller's promise.
        unsafe { gates::run(self.s, kernel, job) }
    }

    fn max(&self, values: &[f32]) -> f32 {
        let s = self.s;
        s.vectorize(
            #[inline(always)]
            || max(s, values),
        )
    }

    fn chains(&self, x: &[f32], weights: &[f32], listed: &[usize], z: &mut [f32]) {
        let s = self.s;
        s.vectorize(
            #[inline(always)]
            || chains(s, x, weights, listed, z),
        )
    }

    fn row_norms(&self, row: &[f32]) -> RowNorms {
        let s = self.s;
        s.vectorize(
            #[inline(always)]
            || row_norms(s, row),
        )
    }
}
