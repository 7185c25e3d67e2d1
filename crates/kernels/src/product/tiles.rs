//! Which tiles a product is cut into: rows by stripes of panels, with an accumulator for each row,
//! stripe and gate.
//!
//! ```text
//! low tiles    as few as can be of at most 6 rows (8 of three gates), by as many stripes as the registers hold
//! tall tiles   7 to 14 rows (12 in bf16) by one stripe of two gates, of weights from afar
//! ```
//!
//! A tall tile has its rows laid out step by step ([`Lhs`](super::lhs::Lhs)): it takes one address
//! for all of them, where there are not registers for one each, and rows that lie some pages apart
//! do not push each other out of the first level.

#[cfg(test)]
use super::super::TALL_TILE_ROWS;
use super::super::pack::LAID_OUT;
use super::super::simd::Simd;
use super::element::Element;
use super::{Product, Sweep};

/// Multiply-adds in flight that hide their latency: 4 cycles, two a cycle on most cores.
const CHAINS: usize = 8;
/// Most rows of a low tile of other than three gates.
const LOW: usize = 6;

/// How the rows of a product are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowTiles {
    /// Rows of all.
    pub rows: usize,
    /// Rows of each but the last, which may have fewer.
    pub height: usize,
    /// Whether they are tall ones, of one stripe each.
    pub are_tall: bool,
}

impl RowTiles {
    /// Those of a product with `scratch` words of scratch.
    #[inline(always)]
    pub fn of<S: Simd, E: Element<S>>(job: &Product<'_>, scratch: usize) -> RowTiles {
        let (rows, weights) = (job.row_count, job.weights);
        let low = rows_of_low(
            const { accumulators(S::REGISTERS, E::PARTS) },
            weights.gates(),
        );
        let may_be_tall = weights.depth() > 0
            && weights.stripe_gates() == 2
            && scratch >= weights.scratch_words(rows);
        let tallest = const { tallest::<S, E>(2) }.min(job.blocking.tile_rows);
        RowTiles::cut(rows, low, if may_be_tall { tallest } else { 0 })
    }

    /// One tall tile or two, if each has enough rows for one and at most `tallest`; else low ones.
    /// As few as can be, since the passes over a panel cost the same however full they are, and as
    /// even.
    fn cut(rows: usize, low: usize, tallest: usize) -> RowTiles {
        let cut = |max: usize, are_tall: bool| RowTiles {
            rows,
            height: rows.div_ceil(rows.div_ceil(max).max(1)),
            are_tall,
        };
        if tallest > 0 && rows <= LAID_OUT {
            let tall = cut(tallest, true);
            if tall.last() > LOW {
                return tall;
            }
        }
        cut(low, false)
    }

    /// Rows of the last.
    fn last(self) -> usize {
        self.rows - self.count().saturating_sub(1) * self.height
    }

    /// How many there are.
    pub fn count(self) -> usize {
        self.rows.div_ceil(self.height.max(1))
    }
}

/// Accumulators of a low tile: what is left of the registers after the fewer of weight vectors and
/// broadcast values, kept, and one of the others, on its way; and, where weights are widened part
/// by part, what both parts need: compilers interleave them, and with more sums than this keep some
/// in memory. Two steps at a time (`tile.rs`) keep twice the vectors of weights, four to six, and
/// one broadcast value: with 24 sums that is what there is.
const fn accumulators(registers: usize, parts: usize) -> usize {
    match (registers, parts) {
        (32.., 1) => 24,
        (32.., _) => 20,
        (16.., 1) => 12,
        (16.., _) => 10,
        _ => 4,
    }
}

/// Rows of a low tile, of panels of so many gates, and with `room` for so many accumulators: for a
/// multiply-add least is loaded where there are about as many rows as vectors of weights.
const fn rows_of_low(room: usize, gates: usize) -> usize {
    let max = if gates == 3 { 8 } else { LOW };
    let rows = room / gates;
    match rows {
        0 => 1,
        rows if rows > max => max,
        rows => rows,
    }
}

/// Most rows of a tall tile of stripes of so many gates; 0 where there is none: where that was not
/// measured. Two vectors of weights and a broadcast value stand beside the sums, 31 registers in
/// all; widening takes some more (bf16, 14 rows in one tile: twice the time of two tiles).
const fn tallest<S: Simd, E: Element<S>>(gates: usize) -> usize {
    let is_measured = cfg!(target_arch = "x86_64") && S::REGISTERS >= 32;
    match E::PARTS {
        1 if is_measured && E::TALL && gates == 2 => 14,
        _ if is_measured && E::TALL && gates == 2 => 12,
        _ => 0,
    }
}

/// Whether a tile of so many rows by stripes of so many gates is a tall one.
pub(super) const fn is_tall<S: Simd, E: Element<S>>(rows: usize, gates: usize) -> bool {
    rows > LOW && rows <= tallest::<S, E>(gates)
}

/// Which tiles there are.
pub(super) struct Tiles;

impl Tiles {
    /// Whether there are some of so many rows by stripes of so many gates.
    pub const fn has<S: Simd, E: Element<S>>(rows: usize, stripes: usize, gates: usize) -> bool {
        let is_low = (rows <= LOW || gates == 3 && rows <= 8)
            && rows * stripes * gates <= accumulators(S::REGISTERS, E::PARTS)
            && (stripes <= 4 || gates == 2);
        is_low || stripes == 1 && is_tall::<S, E>(rows, gates)
    }
}

/// Stripes of `N` gates per tile for tiles of `height` rows, of the `left` ones that are still to
/// do, so many to a panel: those of four panels at most.
#[inline(always)]
pub(super) fn tile_stripes<S: Simd, E: Element<S>, const N: usize>(
    height: usize,
    (left, to_a_panel): (usize, usize),
    sweep: Sweep,
) -> usize {
    let room = const { accumulators(S::REGISTERS, E::PARTS) };
    let mut width = 4 * to_a_panel;
    while width > 1 {
        let fits = width <= left && height * width * N <= room;
        let wider_than_needed = match sweep {
            Sweep::Wide => false,
            Sweep::Forth | Sweep::Back => width > to_a_panel && height * (width / 2) * N >= CHAINS,
        };
        if fits && !wider_than_needed {
            break;
        }
        width /= 2;
    }
    width
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tiles are as few and as even as their height allows. Tall ones are those that the caller
    /// allows, of the rows that kernels have such tiles for, and fewer than the low ones would be.
    #[test]
    fn tiles_are_as_few_and_as_even_as_can_be() {
        for (rows, low) in (0..40usize).flat_map(|rows| (1..=8).map(move |low| (rows, low))) {
            for max_tall in 0..=*TALL_TILE_ROWS.end() {
                let tiles = RowTiles::cut(rows, low, max_tall);
                let max = if tiles.are_tall { max_tall } else { low };
                assert!(tiles.height <= max);
                assert_eq!(tiles.count(), rows.div_ceil(max));
                assert!(tiles.height < 2 || rows.div_ceil(tiles.height - 1) > tiles.count());
                if tiles.are_tall {
                    for height in [tiles.height, tiles.last()] {
                        assert!(TALL_TILE_ROWS.contains(&height), "{rows} rows");
                    }
                    assert!(rows <= LAID_OUT && tiles.count() <= rows.div_ceil(low));
                }
            }
            if TALL_TILE_ROWS.contains(&rows) {
                assert!(RowTiles::cut(rows, low, rows).are_tall, "{rows} rows");
            }
        }
    }

    #[test]
    fn low_tiles_fit_into_the_accumulators() {
        for room in [24, 20, 12, 10, 4] {
            for gates in 1..=4 {
                let rows = rows_of_low(room, gates);
                assert!(rows >= 1 && (rows == 1 || rows * gates <= room));
            }
        }
    }
}
