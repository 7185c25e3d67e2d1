//! Before and after the loop over the depth: pre-activations into sums, and sums into pre-activations.
//!
//! Loops of few instructions are unrolled, and what they index lives in registers. So sums are touched
//! by none but such; else the loop over the depth would keep them in memory. And every count is a plain
//! value here: read through the job, it would be read anew after each store.

use super::super::simd::Simd;
use super::{Product, Start};

/// Where a tile stands.
#[derive(Clone, Copy)]
pub(super) struct Place<'a, const N: usize> {
    /// First row of the tile.
    pub row: usize,
    /// First panel of the tile.
    pub panel: usize,
    pub start: Start<'a>,
    /// The slot of each gate.
    slots: [usize; N],
    z_slots: usize,
    /// Pre-activations of the tile's first row and panel.
    z: *mut f32,
    /// Elements from one row to the next.
    stride: usize,
}

#[allow(clippy::needless_range_loop)] // indices name registers; iterators would hide which
impl<'a, const N: usize> Place<'a, N> {
    /// The tile that starts with `row` and `panel`.
    ///
    /// # Safety
    /// They are the job's, whose `z` holds `z_slots` vectors for each of its panels and rows.
    #[inline(always)]
    pub unsafe fn new<S: Simd>(
        job: &mut Product<'a>,
        slots: &[usize; N],
        row: usize,
        panel: usize,
    ) -> Place<'a, N> {
        let stride = job.weights.panels() * job.z_slots * S::LANES;
        // SAFETY: the caller's promise.
        let z = unsafe {
            let start = row * stride + panel * job.z_slots * S::LANES;
            job.z.as_mut_ptr().add(start)
        };
        Place {
            row,
            panel,
            start: job.start,
            slots: *slots,
            z_slots: job.z_slots,
            z,
            stride,
        }
    }

    /// The first lane of gate `n` in row `m` and panel `p` of the tile.
    ///
    /// # Safety
    /// The tile has that row and panel.
    #[inline(always)]
    pub unsafe fn z<S: Simd>(&self, m: usize, p: usize, n: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.slot::<S>(m, p, self.slots[n]) }
    }

    /// The first lane of a slot in row `m` and panel `p` of the tile.
    ///
    /// # Safety
    /// The tile has that row and panel, and the slot is below `z_slots`.
    #[inline(always)]
    unsafe fn slot<S: Simd>(&self, m: usize, p: usize, slot: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe {
            self.z
                .add(m * self.stride + (p * self.z_slots + slot) * S::LANES)
        }
    }

    /// The bias of panel `p` of the tile.
    #[inline(always)]
    fn bias<S: Simd>(&self, bias: &[f32], p: usize) -> *const f32 {
        bias[(self.panel + p) * self.z_slots * S::LANES..].as_ptr()
    }

    /// Chains start from the pre-activations.
    ///
    /// # Safety
    /// As [`super::tile::tile`].
    #[inline(always)]
    pub unsafe fn begin_chains<S: Simd, const M: usize, const P: usize>(
        &self,
        s: S,
        sum: &mut [[[S::F32; N]; P]; M],
    ) {
        // SAFETY: all places are within `z` and the bias, by the caller's promise.
        unsafe {
            match self.start {
                Start::Zero => {}
                Start::Bias(bias) => {
                    for p in 0..P {
                        let bias = self.bias::<S>(bias, p);
                        for n in 0..N {
                            let start = s.load_ptr(bias.add(self.slots[n] * S::LANES));
                            for m in 0..M {
                                sum[m][p][n] = start;
                            }
                        }
                        if self.z_slots != N {
                            // Slots that are not this product's.
                            self.store_bias::<S, M>(s, bias, p);
                        }
                    }
                }
                Start::Continue => {
                    for m in 0..M {
                        for p in 0..P {
                            for n in 0..N {
                                sum[m][p][n] = s.load_ptr(self.z::<S>(m, p, n));
                            }
                        }
                    }
                }
            }
        }
    }

    /// Chains have become pre-activations.
    ///
    /// # Safety
    /// As [`super::tile::tile`].
    #[inline(always)]
    pub unsafe fn end_chains<S: Simd, const M: usize, const P: usize>(
        &self,
        s: S,
        sum: [[[S::F32; N]; P]; M],
    ) {
        for m in 0..M {
            for p in 0..P {
                for n in 0..N {
                    // SAFETY: rows, panels and slots are the job's.
                    unsafe { s.store_ptr(sum[m][p][n], self.z::<S>(m, p, n)) };
                }
            }
        }
    }

    /// Stores the starts of sums that are added to pre-activations when they are done.
    ///
    /// # Safety
    /// As [`super::tile::tile`].
    #[inline(always)]
    pub unsafe fn store_starts<S: Simd, const M: usize, const P: usize>(&self, s: S) {
        if let Start::Bias(bias) = self.start {
            for p in 0..P {
                // SAFETY: the caller's promise.
                unsafe { self.store_bias::<S, M>(s, self.bias::<S>(bias, p), p) };
            }
        }
    }

    /// Stores all slots of a bias in panel `p` of the tile.
    ///
    /// # Safety
    /// As [`super::tile::tile`]; `bias` is that of the panel.
    #[inline(always)]
    unsafe fn store_bias<S: Simd, const M: usize>(&self, s: S, bias: *const f32, p: usize) {
        for slot in 0..self.z_slots {
            // SAFETY: all places are within `z` and the bias, by the caller's promise.
            unsafe {
                let start = s.load_ptr(bias.add(slot * S::LANES));
                for m in 0..M {
                    s.store_ptr(start, self.slot::<S>(m, p, slot));
                }
            }
        }
    }
}
