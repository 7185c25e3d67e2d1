//! The one matrix product: rows of values times packed weights, added to pre-activations.
//!
//! ```text
//! for panel in panels                       weights of LANES units, all gates
//!   for row in rows
//!     z[row][panel] = start                 bias, zero, or what stands there
//!     for k in 0..depth
//!       z[row][panel] += a[row][k] * w[panel][k]        one fma per gate, in this order of k
//! ```
//!
//! The real loop takes a tile of `M` rows by `P` panels at a time, all in registers: one row alone
//! is a chain of dependent multiply-adds, and only many independent chains fill the pipelines.
//! The order of `k` within a chain never changes, so no tile shape changes a bit.

use super::pack::PackedMatrix;
use super::simd::Simd;

/// Where the chains of a product start.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// From a bias, packed `[panel][z_slots][lanes]`; all slots are written.
    Bias(&'a [f32]),
    /// From zero; only the product's own slots are written.
    Zero,
    /// From the pre-activations as they are.
    Continue,
}

/// Where the rows of the left operand start.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// Row `r` starts at `r * stride`.
    Strided(usize),
    /// Row `r` starts at `rows[r] * stride`.
    Listed {
        /// Where each row is kept.
        rows: &'a [usize],
        /// Elements from one to the next.
        stride: usize,
    },
}

impl Rows<'_> {
    #[inline(always)]
    fn start(&self, row: usize) -> usize {
        match self {
            Rows::Strided(stride) => row * stride,
            Rows::Listed { rows, stride } => rows[row] * stride,
        }
    }
}

/// The way through the panels, which are independent: it changes no bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// First to last, in tiles as wide as the registers allow: the longest runs through each panel.
    Wide,
    /// First to last, in tiles just wide enough to fill the pipelines. Alternating with
    /// [`Sweep::Back`], what a cache still holds of the sweep before is used first; the narrower the
    /// tiles the more, since within a tile each panel is read from its start.
    Forth,
    /// Last to first, in the tiles of [`Sweep::Forth`].
    Back,
}

/// Multiply-adds in flight that hide their latency: 4 cycles, two a cycle on most cores.
const CHAINS: usize = 8;

/// One product: `z[row][panel][slot] += Σ_k a[row][k] * weights[panel][k][gate]`.
#[derive(Debug)]
pub struct Product<'a> {
    /// The left operand.
    pub a: &'a [f32],
    /// Where its rows start.
    pub rows: Rows<'a>,
    /// Number of rows.
    pub row_count: usize,
    /// The right operand.
    pub weights: &'a PackedMatrix,
    /// Slot of `z` that each gate of the weights adds to; as many as the weights have gates.
    pub slots: &'a [usize],
    /// Where the chains start.
    pub start: Start<'a>,
    /// Pre-activations, `[row_count][panels][z_slots][lanes]`.
    pub z: &'a mut [f32],
    /// Slots per panel of `z`.
    pub z_slots: usize,
    /// The way through the panels.
    pub sweep: Sweep,
}

/// Rows of the tallest tile.
const MAX_ROWS: usize = 6;

/// Accumulators that a tile may keep: what is left of the registers after `N` weight vectors (or
/// one, streamed) and the broadcast values.
const fn accumulators(registers: usize) -> usize {
    match registers {
        32.. => 24,
        16.. => 12,
        _ => 4,
    }
}

/// Rows per tile for `rows` rows: as few tiles as fit, as even as possible, since the passes over
/// a panel cost the same however full they are.
fn tile_rows(rows: usize, limit: usize) -> usize {
    rows.div_ceil(rows.div_ceil(limit).max(1))
}

/// Runs a product. `N` is the number of gates of the weights.
#[inline(always)]
pub(super) fn product<S: Simd, const N: usize>(s: S, mut job: Product<'_>) {
    let weights = job.weights;
    assert_eq!((weights.lanes(), weights.gates()), (S::LANES, N));
    assert_eq!(job.slots.len(), N);
    let mut slots = [0; N];
    for (slot, &given) in slots.iter_mut().zip(job.slots) {
        assert!(given < job.z_slots);
        *slot = given;
    }
    let vector = job.z_slots * S::LANES;
    // The tiles below write through pointers: a count that wraps must not pass.
    let values = (job.row_count)
        .checked_mul(weights.panels())
        .and_then(|vectors| vectors.checked_mul(vector));
    assert!(values.is_some_and(|values| job.z.len() >= values));
    if let Start::Bias(bias) = job.start {
        assert!(bias.len() >= weights.panels() * vector);
    }
    let limit = (accumulators(S::REGISTERS) / N).min(MAX_ROWS);
    let height = tile_rows(job.row_count, limit);
    let mut left = weights.panels();
    while left > 0 {
        let width = tile_panels::<S, N>(height, left, job.sweep);
        let panel = match job.sweep {
            Sweep::Wide | Sweep::Forth => weights.panels() - left,
            Sweep::Back => left - width,
        };
        let mut row = 0;
        while row < job.row_count {
            let rows = height.min(job.row_count - row);
            // The last tile of a row count that does not divide is shorter; all shapes below are
            // bit-equal, so which one runs is a matter of speed only.
            macro_rules! shapes {
                ($(($m:literal, $p:literal))*) => {
                    match (rows, width) {
                        $(($m, $p) => {
                            if const { $m * $p * N <= accumulators(S::REGISTERS) } {
                                // SAFETY: slots and lengths have been checked above, and these are
                                // rows and panels of the job.
                                unsafe { tile::<S, $m, N, $p>(s, &mut job, &slots, row, panel) };
                            } else {
                                unreachable!("tile shapes are bounded above")
                            }
                        })*
                        _ => unreachable!("tile shapes are bounded above"),
                    }
                };
            }
            shapes! {
                (1, 1) (2, 1) (3, 1) (4, 1) (5, 1) (6, 1)
                (1, 2) (2, 2) (3, 2) (4, 2) (5, 2) (6, 2)
                (1, 4) (2, 4) (3, 4) (4, 4) (5, 4) (6, 4)
            }
            row += rows;
        }
        left -= width;
    }
}

/// Panels per tile for tiles of `height` rows, of the `left` ones that are still to do.
#[inline(always)]
fn tile_panels<S: Simd, const N: usize>(height: usize, left: usize, sweep: Sweep) -> usize {
    let mut width = 4;
    while width > 1 {
        let fits = width <= left && height * width * N <= accumulators(S::REGISTERS);
        let wider_than_needed = match sweep {
            Sweep::Wide => false,
            Sweep::Forth | Sweep::Back => height * (width / 2) * N >= CHAINS,
        };
        if fits && !wider_than_needed {
            break;
        }
        width /= 2;
    }
    width
}

/// The microkernel: `M` rows by `P` panels, `M * P * N` accumulators.
///
/// Plain loops over arrays, and no closure handed to the standard library: its functions are compiled
/// without the instruction set, so that vectors would travel through memory, by calls.
///
/// # Safety
/// `z`, and the bias if there is one, hold `z_slots` vectors for each panel of the weights, `z` for
/// each of `row_count` rows; `slots` are below `z_slots`; the rows and panels are the job's.
#[allow(clippy::needless_range_loop)] // indices name registers; iterators would hide which
#[inline(always)]
unsafe fn tile<S: Simd, const M: usize, const N: usize, const P: usize>(
    s: S,
    job: &mut Product<'_>,
    slots: &[usize; N],
    row: usize,
    panel: usize,
) {
    let (depth, panels, z_slots) = (job.weights.depth(), job.weights.panels(), job.z_slots);
    debug_assert!(row + M <= job.row_count && panel + P <= panels);
    let mut a = [std::ptr::null::<f32>(); M];
    for m in 0..M {
        a[m] = job.a[job.rows.start(row + m)..][..depth].as_ptr();
    }
    let mut w = [std::ptr::null::<f32>(); P];
    for p in 0..P {
        w[p] = job.weights.panel(panel + p).as_ptr();
    }
    let z = job.z.as_mut_ptr();
    let row_vectors = panels * z_slots;
    let at = |m: usize, p: usize, slot: usize| {
        ((row + m) * row_vectors + (panel + p) * z_slots + slot) * S::LANES
    };
    let mut sum = [[[s.splat(0.0); N]; P]; M];
    // SAFETY: all places are within `z` and the bias, by the caller's promise.
    unsafe {
        match job.start {
            Start::Zero => {}
            Start::Bias(bias) => {
                for p in 0..P {
                    let bias = bias.as_ptr().add((panel + p) * z_slots * S::LANES);
                    for n in 0..N {
                        let start = s.load_ptr(bias.add(slots[n] * S::LANES));
                        for m in 0..M {
                            sum[m][p][n] = start;
                        }
                    }
                    if z_slots != N {
                        // Slots that are not this product's.
                        for slot in 0..z_slots {
                            let start = s.load_ptr(bias.add(slot * S::LANES));
                            for m in 0..M {
                                s.store_ptr(start, z.add(at(m, p, slot)));
                            }
                        }
                    }
                }
            }
            Start::Continue => {
                for m in 0..M {
                    for p in 0..P {
                        for n in 0..N {
                            sum[m][p][n] = s.load_ptr(z.add(at(m, p, slots[n])));
                        }
                    }
                }
            }
        }
    }
    for k in 0..depth {
        let mut x = [s.splat(0.0); M];
        for m in 0..M {
            // SAFETY: each row slice holds `depth` values, and k < depth.
            x[m] = s.splat(unsafe { *a[m].add(k) });
        }
        for p in 0..P {
            for n in 0..N {
                // SAFETY: a panel holds `depth * N` vectors, and k * N + n is one of them.
                let w = unsafe { s.load_ptr(w[p].add((k * N + n) * S::LANES)) };
                for m in 0..M {
                    sum[m][p][n] = s.fma(x[m], w, sum[m][p][n]);
                }
            }
        }
    }
    for m in 0..M {
        for p in 0..P {
            for n in 0..N {
                // SAFETY: as above.
                unsafe { s.store_ptr(sum[m][p][n], z.add(at(m, p, slots[n]))) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_as_few_and_as_even_as_can_be() {
        for limit in 1..=6 {
            for rows in 1..40usize {
                let height = tile_rows(rows, limit);
                assert!(height <= limit && height >= 1);
                assert_eq!(rows.div_ceil(height), rows.div_ceil(limit));
                let smaller = height - 1;
                assert!(smaller == 0 || rows.div_ceil(smaller) > rows.div_ceil(limit));
            }
        }
    }
}
