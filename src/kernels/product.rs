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
    assert!(job.slots.iter().all(|&slot| slot < job.z_slots));
    let vector = job.z_slots * S::LANES;
    assert!(job.z.len() >= job.row_count * weights.panels() * vector);
    if let Start::Bias(bias) = job.start {
        assert!(bias.len() >= weights.panels() * vector);
    }
    let limit = (accumulators(S::REGISTERS) / N).min(MAX_ROWS);
    let height = tile_rows(job.row_count, limit);
    let mut left = weights.panels();
    while left > 0 {
        let fills = |p: usize| match job.sweep {
            Sweep::Wide => false,
            Sweep::Forth | Sweep::Back => height * p * N >= CHAINS,
        };
        let fits =
            |p: usize| p <= left && height * p * N <= accumulators(S::REGISTERS) && !fills(p / 2);
        let width = [4, 2].into_iter().find(|&p| fits(p)).unwrap_or(1);
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
                                tile::<S, $m, N, $p>(s, &mut job, row, panel);
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

/// The microkernel: `M` rows by `P` panels, `M * P * N` accumulators.
#[allow(clippy::needless_range_loop)] // indices name registers; iterators would hide which
#[inline(always)]
fn tile<S: Simd, const M: usize, const N: usize, const P: usize>(
    s: S,
    job: &mut Product<'_>,
    row: usize,
    panel: usize,
) {
    let depth = job.weights.depth();
    let panels = job.weights.panels();
    let rows: [&[f32]; M] = std::array::from_fn(|m| &job.a[job.rows.start(row + m)..][..depth]);
    let weights: [&[f32]; P] = std::array::from_fn(|p| job.weights.panel(panel + p));
    let slot = |panel: usize, slot: usize| (panel * job.z_slots + slot) * S::LANES;
    let at = |m: usize, p: usize, n: usize| {
        (row + m) * panels * job.z_slots * S::LANES + slot(panel + p, job.slots[n])
    };
    let mut sum: [[[S::F32; N]; P]; M] = std::array::from_fn(|m| {
        std::array::from_fn(|p| {
            std::array::from_fn(|n| match job.start {
                Start::Bias(bias) => s.load(&bias[slot(panel + p, job.slots[n])..]),
                Start::Zero => s.splat(0.0),
                Start::Continue => s.load(&job.z[at(m, p, n)..]),
            })
        })
    });
    let a: [*const f32; M] = rows.map(<[f32]>::as_ptr);
    let w: [*const f32; P] = weights.map(<[f32]>::as_ptr);
    for k in 0..depth {
        // SAFETY: each row slice holds `depth` values, and k < depth.
        let x: [S::F32; M] = std::array::from_fn(|m| s.splat(unsafe { *a[m].add(k) }));
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
            if let Start::Bias(bias) = job.start {
                let from = slot(panel + p, 0);
                let to = (row + m) * panels * job.z_slots * S::LANES + from;
                let len = job.z_slots * S::LANES;
                if job.z_slots != N {
                    job.z[to..to + len].copy_from_slice(&bias[from..from + len]);
                }
            }
            for n in 0..N {
                s.store(sum[m][p][n], &mut job.z[at(m, p, n)..]);
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
