//! TreeLSTM: pre-activations and the children's states to a node's states (Tai et al. 2015,
//! arXiv 1503.00075, equations 2 to 14).
//!
//! Unlike a sequence's, these states are the caller's own rows, contiguous or gathered, which are
//! not padded to whole vectors: the last vector of a row may be a part of one. And what is written
//! may be what was read, so that each vector is loaded before any is stored in its place.

use super::{Functions, GateJob, Standard, flush, store_part};
use crate::simd::Simd;
use crate::{Columns, ReadColumns};

/// What a node's cell state is made of besides `σ(i)·tanh(u)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Children {
    /// Nothing: a leaf.
    None,
    /// The old cell state, the sum over the children.
    Sum,
    /// The old cell state, that of the left child, and the cell state of a right child, each times
    /// its forget gate.
    Two,
}

/// States of nodes. Slots: input, output, update, a forget gate for each of two children.
///
/// ```text
/// c = σ(i)·tanh(u)                      of no children, or two
/// c = fma(σ(i), tanh(u), sum)           of a sum
/// for each of two children k: c = fma(σ(f_k), c_k, c)
/// h = σ(o)·tanh(c)                      both flushed to zero where tiny
/// ```
///
/// # Safety
/// For the units of this job: no other thread accesses `c` and `h`.
///
/// # Panics
/// If the job has no rows of a right child.
#[inline(always)]
pub(super) unsafe fn tree_node<S: Simd>(s: S, children: Children, job: GateJob<'_>) {
    let slots = if children == Children::Two { 5 } else { 3 };
    let panels = job.units.div_ceil(S::LANES);
    for row in 0..job.rows {
        for panel in 0..panels {
            let z = &job.z[(row * panels + panel) * slots * S::LANES..][..slots * S::LANES];
            let gate = |slot: usize| s.load(&z[slot * S::LANES..]);
            let part = Part::of::<S>(row, panel, job.units);
            let (i, u) = (Standard.gate(s, gate(0)), Standard.candidate(s, gate(2)));
            // SAFETY: these are this job's units.
            let old = || unsafe { part.load(s, &job.c) };
            let c = match children {
                Children::None => s.mul(i, u),
                Children::Sum => s.fma(i, u, old()),
                Children::Two => {
                    let c = s.fma(Standard.gate(s, gate(3)), old(), s.mul(i, u));
                    let right = part.read(s, &job.child.expect(NO_CHILD)[1]);
                    s.fma(Standard.gate(s, gate(4)), right, c)
                }
            };
            let c = flush(s, c);
            let h = flush(s, s.mul(Standard.gate(s, gate(1)), Standard.output(s, c)));
            // SAFETY: as above.
            unsafe {
                part.store(s, c, &job.c);
                part.store(s, h, &job.h);
            }
        }
    }
}

/// Adds a child to the sums of its node. Slot: forget.
///
/// ```text
/// h = h + child_h          c = fma(σ(f), child_c, c)
/// ```
///
/// # Safety
/// For the units of this job: no other thread accesses `c` and `h`.
///
/// # Panics
/// If the job has no rows of a child.
#[inline(always)]
pub(super) unsafe fn tree_child<S: Simd>(s: S, job: GateJob<'_>) {
    let [child_h, child_c] = job.child.expect(NO_CHILD);
    let panels = job.units.div_ceil(S::LANES);
    for row in 0..job.rows {
        for panel in 0..panels {
            let f = s.load(&job.z[(row * panels + panel) * S::LANES..]);
            let part = Part::of::<S>(row, panel, job.units);
            // SAFETY: these are this job's units.
            unsafe {
                let sum = s.add(part.load(s, &job.h), part.read(s, &child_h));
                part.store(s, sum, &job.h);
                let (c, sum) = (part.read(s, &child_c), part.load(s, &job.c));
                part.store(s, s.fma(Standard.gate(s, f), c, sum), &job.c);
            }
        }
    }
}

const NO_CHILD: &str = "the job has rows of a child";

/// One vector of a row, or the part of it that the row has.
#[derive(Clone, Copy)]
struct Part {
    row: usize,
    first: usize,
    len: usize,
}

impl Part {
    #[inline(always)]
    fn of<S: Simd>(row: usize, panel: usize, units: usize) -> Part {
        let first = panel * S::LANES;
        let len = S::LANES.min(units - first);
        Part { row, first, len }
    }

    /// # Safety
    /// No other thread writes these values meanwhile.
    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, from: &Columns<'_>) -> S::F32 {
        // SAFETY: the caller's promise; the slice is dropped at the end of this call.
        let values = unsafe { from.read(self.row, self.first..self.first + self.len) };
        Self::of_values(s, values)
    }

    #[inline(always)]
    fn read<S: Simd>(self, s: S, from: &ReadColumns<'_>) -> S::F32 {
        let start = from.first + self.first;
        Self::of_values(s, &from.rows.row(self.row, start + self.len)[start..])
    }

    /// Lanes that the row does not have are zero.
    #[inline(always)]
    fn of_values<S: Simd>(s: S, values: &[f32]) -> S::F32 {
        if values.len() == S::LANES {
            return s.load(values);
        }
        let mut lanes = [0.0; 16];
        lanes[..values.len()].copy_from_slice(values);
        s.load(&lanes)
    }

    /// # Safety
    /// No other thread accesses these values meanwhile.
    #[inline(always)]
    unsafe fn store<S: Simd>(self, s: S, v: S::F32, to: &Columns<'_>) {
        // SAFETY: the caller's promise; the slice is dropped at the end of this call.
        let values = unsafe { to.write(self.row, self.first..self.first + self.len) };
        store_part(s, v, values);
    }
}
