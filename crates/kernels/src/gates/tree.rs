//! TreeLSTM: pre-activations and the children's states to a node's states (Tai et al. 2015,
//! arXiv 1503.00075, equations 2 to 14).
//!
//! Unlike a sequence's, these states are the caller's own rows, contiguous or gathered, which are
//! not padded to whole vectors: the last vector of a row may be a part of one. And what is written
//! may be what was read, so that each vector is loaded before any is stored in its place.

use super::{Functions, Usual, flush, store_part};
use crate::simd::Simd;
use crate::{Columns, ReadColumns};

/// A node of one worker's hidden units:
///
/// ```text
/// c = σ(i)·tanh(u)                      where there is no sum
/// c = fma(σ(i), tanh(u), sum)           where there is one
/// for each child k: c = fma(σ(f_k), c_k, c)
/// h = σ(o)·tanh(c)                      both flushed to zero where tiny
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TreeNode<'a> {
    /// `[rows][panels][3 + children][lanes]`: input, output, update, a forget gate for each child.
    pub z: &'a [f32],
    /// Nodes.
    pub rows: usize,
    /// Hidden units of this worker.
    pub units: usize,
    /// What the children's cell states have been summed up to, read.
    pub sum: Option<Columns<'a>>,
    /// Cell state of the first child that has a forget gate here, read.
    pub left: Option<Columns<'a>>,
    /// Cell state of the second.
    pub right: Option<ReadColumns<'a>>,
    /// New cell state, written; may be the sum or the first child's.
    pub c: Columns<'a>,
    /// New hidden state, written.
    pub h: Columns<'a>,
}

/// A child of child-sum nodes, of one worker's hidden units:
///
/// ```text
/// sum_h = sum_h + h          sum_fc = fma(σ(f), c, sum_fc)
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TreeChild<'a> {
    /// `[rows][panels][1][lanes]`: the forget gate.
    pub z: &'a [f32],
    /// Children.
    pub rows: usize,
    /// Hidden units of this worker.
    pub units: usize,
    /// The child's hidden state.
    pub h: ReadColumns<'a>,
    /// The child's cell state.
    pub c: ReadColumns<'a>,
    /// Sum of hidden states, read and written.
    pub sum_h: Columns<'a>,
    /// Sum of cell states, each times its forget gate, read and written.
    pub sum_fc: Columns<'a>,
}

/// Runs the job.
///
/// # Safety
/// For the units of this job: nobody else touches `c` and `h`, nobody writes `sum` and `left`.
#[inline(always)]
pub(crate) unsafe fn tree_node<S: Simd>(s: S, job: TreeNode<'_>) {
    let children = [job.left.is_some(), job.right.is_some()];
    let slots = 3 + children.iter().filter(|&&child| child).count();
    let panels = job.units.div_ceil(S::LANES);
    for row in 0..job.rows {
        for panel in 0..panels {
            let z = &job.z[(row * panels + panel) * slots * S::LANES..][..slots * S::LANES];
            let gate = |slot: usize| s.load(&z[slot * S::LANES..]);
            let part = Part::of::<S>(row, panel, job.units);
            let (i, u) = (Usual.gate(s, gate(0)), Usual.candidate(s, gate(2)));
            let mut c = match &job.sum {
                None => s.mul(i, u),
                // SAFETY: these are this job's units.
                Some(sum) => s.fma(i, u, unsafe { part.load(s, sum) }),
            };
            if let Some(left) = &job.left {
                // SAFETY: as above.
                let of_child = unsafe { part.load(s, left) };
                c = s.fma(Usual.gate(s, gate(3)), of_child, c);
            }
            if let Some(right) = &job.right {
                let of_child = part.read(s, right);
                c = s.fma(Usual.gate(s, gate(slots - 1)), of_child, c);
            }
            let c = flush(s, c);
            let h = flush(s, s.mul(Usual.gate(s, gate(1)), Usual.output(s, c)));
            // SAFETY: as above.
            unsafe {
                part.store(s, c, &job.c);
                part.store(s, h, &job.h);
            }
        }
    }
}

/// Runs the job.
///
/// # Safety
/// For the units of this job: nobody else touches the sums.
#[inline(always)]
pub(crate) unsafe fn tree_child<S: Simd>(s: S, job: TreeChild<'_>) {
    let panels = job.units.div_ceil(S::LANES);
    for row in 0..job.rows {
        for panel in 0..panels {
            let f = s.load(&job.z[(row * panels + panel) * S::LANES..]);
            let part = Part::of::<S>(row, panel, job.units);
            // SAFETY: these are this job's units.
            unsafe {
                let sum = s.add(part.load(s, &job.sum_h), part.read(s, &job.h));
                part.store(s, sum, &job.sum_h);
                let (c, sum) = (part.read(s, &job.c), part.load(s, &job.sum_fc));
                part.store(s, s.fma(Usual.gate(s, f), c, sum), &job.sum_fc);
            }
        }
    }
}

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
    /// Nobody writes these values meanwhile.
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
    /// Nobody else touches these values meanwhile.
    #[inline(always)]
    unsafe fn store<S: Simd>(self, s: S, v: S::F32, to: &Columns<'_>) {
        // SAFETY: the caller's promise; the slice is dropped at the end of this call.
        let values = unsafe { to.write(self.row, self.first..self.first + self.len) };
        store_part(s, v, values);
    }
}
