//! Which tiles a product is cut into: rows by stripes of panels, with an accumulator for each row,
//! stripe and gate.
//!
//! ```text
//! short tiles  at most 6 rows (3 or 8 with three gates), by as many stripes as the registers hold
//! tall tiles   7 to 14 rows (12 in bf16), by one stripe of two gates
//! ```
//!
//! The rows of a tall tile are laid out step by step ([`Lhs`](super::lhs::Lhs)): they have one
//! address instead of one each, for which there are too few registers, and rows some pages apart do
//! not evict each other from the first level.

#[cfg(test)]
use super::super::TALL_TILE_ROWS;
use super::super::pack::LAID_OUT;
use super::super::simd::Simd;
use super::element::Element;
use super::{Product, Sweep};

/// Multiply-adds in flight that hide their latency: 4 cycles, two a cycle on most cores.
const CHAINS: usize = 8;
/// Max rows of a short tile, except with three gates.
const SHORT_TILE_ROWS: usize = 6;

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
        let short = short_tile_rows(
            const { accumulators(S::REGISTERS, E::PARTS) },
            weights.gates(),
        );
        let may_be_tall = weights.depth() > 0
            && weights.stripe_gates() == 2
            && scratch >= weights.scratch_words(rows);
        let tallest = const { max_tile_rows::<S, E>(2) }.min(job.blocking.tile_rows);
        RowTiles::cut(rows, short, if may_be_tall { tallest } else { 0 })
    }

    /// One tall tile or two, if each has enough rows for one and at most `tallest`; else short
    /// ones. As few as possible, since a pass over a panel costs the same with any number of rows,
    /// and as even as possible.
    fn cut(rows: usize, short: usize, tallest: usize) -> RowTiles {
        let cut = |max: usize, are_tall: bool| RowTiles {
            rows,
            height: rows.div_ceil(rows.div_ceil(max).max(1)),
            are_tall,
        };
        if tallest > 0 && rows <= LAID_OUT {
            let tall = cut(tallest, true);
            if tall.last() > SHORT_TILE_ROWS {
                return tall;
            }
        }
        cut(short, false)
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

/// Accumulators of a short tile: the registers that remain beside the fewer of weight vectors and
/// broadcast values, and one of the others. Widening weights part by part needs more of them:
/// compilers interleave the parts, and spill sums beyond this number. Two steps at a time
/// (`tile.rs`) keep twice the vectors of weights, four to six, and one broadcast value beside 24
/// sums.
const fn accumulators(registers: usize, parts: usize) -> usize {
    match (registers, parts) {
        (32.., 1) => 24,
        (32.., _) => 20,
        (16.., 1) => 12,
        (16.., _) => 10,
        _ => 4,
    }
}

/// Rows of a short tile of panels of `gates` gates, with `room` accumulators. Loads per
/// multiply-add are fewest with about as many rows as vectors of weights. Four rows of three gates
/// would use all of 16 registers; compilers then spill a sum in every step, so there are three.
const fn short_tile_rows(room: usize, gates: usize) -> usize {
    let max = match (gates, room) {
        (3, ..16) => 3,
        (3, _) => 8,
        _ => SHORT_TILE_ROWS,
    };
    let rows = room / gates;
    match rows {
        0 => 1,
        rows if rows > max => max,
        rows => rows,
    }
}

/// Max rows of a tall tile of stripes of `gates` gates; 0 where they are not known to be faster.
/// With two vectors of weights and a broadcast value beside the sums, 14 rows need 31 registers;
/// widening bf16 needs some more.
const fn max_tile_rows<S: Simd, E: Element<S>>(gates: usize) -> usize {
    let is_measured = cfg!(target_arch = "x86_64") && S::REGISTERS >= 32;
    match E::PARTS {
        1 if is_measured && E::USES_TALL_TILES && gates == 2 => 14,
        _ if is_measured && E::USES_TALL_TILES && gates == 2 => 12,
        _ => 0,
    }
}

/// Whether a tile of `rows` rows by stripes of `gates` gates is tall.
pub(super) const fn is_tall<S: Simd, E: Element<S>>(rows: usize, gates: usize) -> bool {
    rows > SHORT_TILE_ROWS && rows <= max_tile_rows::<S, E>(gates)
}

/// Which tiles there are.
pub(super) struct Tiles;

impl Tiles {
    /// Whether tiles of these rows, stripes and gates exist.
    pub const fn has<S: Simd, E: Element<S>>(rows: usize, stripes: usize, gates: usize) -> bool {
        let room = accumulators(S::REGISTERS, E::PARTS);
        let is_short = rows <= short_tile_rows(room, gates)
            && rows * stripes * gates <= room
            && (stripes <= 4 || gates == 2);
        is_short || stripes == 1 && is_tall::<S, E>(rows, gates)
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
    /// allows, of the rows that kernels have such tiles for, and fewer than the short ones would
    /// be.
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
    fn short_tiles_fit_into_the_accumulators() {
        for room in [24, 20, 12, 10, 4] {
            for gates in 1..=4 {
                let rows = short_tile_rows(room, gates);
                assert!(rows >= 1 && (rows == 1 || rows * gates <= room));
            }
        }
    }
}
