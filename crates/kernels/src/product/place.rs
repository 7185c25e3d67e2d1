//! Before and after the loop over the depth: pre-activations into sums, and sums into
//! pre-activations.
//!
//! Loops of few instructions are unrolled, and what they index lives in registers. So sums are
//! touched by none but such; else the loop over the depth would keep them in memory. And every
//! count is a plain value here: read through the job, it would be read anew after each store.

use super::super::simd::Simd;
use super::{Product, Start};

/// Where a tile stands.
#[derive(Clone, Copy)]
pub(super) struct Place<'a, const N: usize, const P: usize> {
    /// First row of the tile.
    pub row: usize,
    /// First stripe of the tile, counted through all panels.
    pub stripe: usize,
    pub start: Start<'a>,
    /// Where the vector of each gate of each stripe is, in `z` from the tile's first row and in a
    /// bias: in elements.
    at: [[usize; N]; P],
    /// Slots of all gates.
    slots: &'a [usize],
    z_slots: usize,
    /// Pre-activations of the tile's first row.
    z: *mut f32,
    /// Elements from one row to the next.
    stride: usize,
}

#[allow(clippy::needless_range_loop)] // indices name registers; iterators would hide which
impl<'a, const N: usize, const P: usize> Place<'a, N, P> {
    /// The tile that starts with `row` and `stripe`.
    ///
    /// # Safety
    /// They are the job's, whose `z` holds `z_slots` vectors for each of its panels and rows, and
    /// whose `slots` are below `z_slots`.
    #[inline(always)]
    pub unsafe fn new<S: Simd>(
        job: &mut Product<'a>,
        row: usize,
        stripe: usize,
    ) -> Place<'a, N, P> {
        let stride = job.weights.panels() * job.z_slots * S::LANES;
        // SAFETY: the caller's promise.
        let z = unsafe { job.z.as_mut_ptr().add(row * stride) };
        let stripes = job.weights.stripes();
        debug_assert!(stripes <= 2);
        let mut at = [[0; N]; P];
        for p in 0..P {
            // Not a division by a count that is not known.
            let (panel, of_panel) = match stripes {
                1 => (stripe + p, 0),
                _ => ((stripe + p) / 2, (stripe + p) % 2),
            };
            for n in 0..N {
                let slot = job.slots[of_panel * N + n];
                at[p][n] = (panel * job.z_slots + slot) * S::LANES;
            }
        }
        Place {
            row,
            stripe,
            start: job.start,
            at,
            slots: job.slots,
            z_slots: job.z_slots,
            z,
            stride,
        }
    }

    /// The first lane of gate `n` in row `m` and stripe `p` of the tile.
    ///
    /// # Safety
    /// The tile has that row and stripe.
    #[inline(always)]
    pub unsafe fn z(&self, m: usize, p: usize, n: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.z.add(m * self.stride + self.at[p][n]) }
    }

    /// Chains start from the pre-activations.
    ///
    /// # Safety
    /// As [`super::tile::tile`].
    #[inline(always)]
    pub unsafe fn begin_chains<S: Simd, const M: usize>(
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
                        for n in 0..N {
                            let start = s.load_ptr(bias.as_ptr().add(self.at[p][n]));
                            for m in 0..M {
                                sum[m][p][n] = start;
                            }
                        }
                    }
                    self.store_others::<S, M>(s, bias);
                }
                Start::Continue => {
                    for m in 0..M {
                        for p in 0..P {
                            for n in 0..N {
                                sum[m][p][n] = s.load_ptr(self.z(m, p, n));
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
    pub unsafe fn end_chains<S: Simd, const M: usize>(&self, s: S, sum: [[[S::F32; N]; P]; M]) {
        for m in 0..M {
            for p in 0..P {
                for n in 0..N {
                    // SAFETY: rows, stripes and slots are the job's.
                    unsafe { s.store_ptr(sum[m][p][n], self.z(m, p, n)) };
                }
            }
        }
    }

    /// Stores the starts of sums that are added to pre-activations when they are done.
    ///
    /// # Safety
    /// As [`super::tile::tile`].
    #[inline(always)]
    pub unsafe fn store_starts<S: Simd, const M: usize>(&self, s: S) {
        if let Start::Bias(bias) = self.start {
            for p in 0..P {
                for n in 0..N {
                    // SAFETY: all places are within `z` and the bias, by the caller's promise.
                    unsafe {
                        let start = s.load_ptr(bias.as_ptr().add(self.at[p][n]));
                        for m in 0..M {
                            s.store_ptr(start, self.z(m, p, n));
                        }
                    }
                }
            }
            // SAFETY: the caller's promise.
            unsafe { self.store_others::<S, M>(s, bias) };
        }
    }

    /// Stores what a bias has in slots that are not this product's: with the first stripe of each
    /// panel, so once.
    ///
    /// # Safety
    /// As [`super::tile::tile`].
    #[inline(always)]
    unsafe fn store_others<S: Simd, const M: usize>(&self, s: S, bias: &[f32]) {
        if self.z_slots == self.slots.len() {
            return;
        }
        let stripes = self.slots.len() / N;
        let first_of_panels = (self.stripe..self.stripe + P).filter(|s| s.is_multiple_of(stripes));
        for stripe in first_of_panels {
            for slot in (0..self.z_slots).filter(|slot| !self.slots.contains(slot)) {
                let at = (stripe / stripes * self.z_slots + slot) * S::LANES;
                // SAFETY: all places are within `z` and the bias, by the caller's promise.
                unsafe {
                    let start = s.load_ptr(bias.as_ptr().add(at));
                    for m in 0..M {
                        s.store_ptr(start, self.z.add(m * self.stride + at));
                    }
                }
            }
        }
    }
}
