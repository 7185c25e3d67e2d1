//! Which tiles a product is cut into: rows by stripes of panels, with an accumulator for each row, stripe and gate.
//!
//! ```text
//! low tiles    as few as can be of at most 6 rows (8 of three gates), by as many stripes as the registers hold
//! tall tiles   7 to 14 rows by one stripe of two gates, of weights from afar
//! ```
//!
//! A tall tile has its rows laid out step by step ([`Left`](super::left::Left)): it takes one address for all of them, where there
//! are not registers for one each, and rows that lie some pages apart do not push each other out of the first level.

use super::super::pack::LAID_OUT;
use super::super::prefetch::fewest_passes_that_ask;
use super::super::simd::Simd;
use super::super::{Isa, Visitor, dispatch};
use super::element::{Element, F32};
use super::{Product, Sweep};

/// Multiply-adds in flight that hide their latency: 4 cycles, two a cycle on most cores.
const CHAINS: usize = 8;
/// Most rows of a low tile of other than three gates.
const LOW: usize = 6;
/// Rows of the tallest tile: with two vectors of weights and a broadcast value its sums take 31 registers.
const TALLEST: usize = 14;

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
    /// Those of a product with so many words of room.
    #[inline(always)]
    pub fn of<S: Simd, E: Element<S>>(job: &Product<'_>, room: usize) -> RowTiles {
        let (rows, weights) = (job.row_count, job.weights);
        let low = rows_of_low(
            const { accumulators(S::REGISTERS, E::PARTS) },
            weights.gates(),
        );
        // Whose caches keep up with two passes gain nothing by one, or are not known to.
        let may_be_tall = job.then.is_some()
            && fewest_passes_that_ask() == 2
            && weights.stripe_gates() == 2
            && room >= weights.room(rows);
        RowTiles::cut(rows, low, may_be_tall && const { has_tall::<S, E>(2) })
    }

    /// One tall tile or two where there `may` be such; else low ones. As few as can be, since the passes over a panel cost the same
    /// however full they are, and as even.
    fn cut(rows: usize, low: usize, may_be_tall: bool) -> RowTiles {
        let are_tall = may_be_tall && rows > LOW && rows <= LAID_OUT;
        let tiles = match are_tall {
            true => rows.div_ceil(TALLEST),
            false => rows.div_ceil(low),
        };
        RowTiles {
            rows,
            height: rows.div_ceil(tiles.max(1)),
            are_tall,
        }
    }

    /// How many there are.
    pub fn count(self) -> usize {
        self.rows.div_ceil(self.height.max(1))
    }
}

/// Accumulators of a low tile: what is left of the registers after the fewer of weight vectors and broadcast values, kept, and one
/// of the others, on its way; and, where weights are widened part by part, what both parts need: compilers interleave them, and
/// with more sums than this keep some in memory. Two steps at a time (`tile.rs`) keep twice the vectors of weights, four to six, and
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

/// Rows of a low tile, of panels of so many gates, and with `room` for so many accumulators: for a multiply-add least is loaded where
/// there are about as many rows as vectors of weights.
const fn rows_of_low(room: usize, gates: usize) -> usize {
    let most = if gates == 3 { 8 } else { LOW };
    let rows = room / gates;
    match rows {
        0 => 1,
        rows if rows > most => most,
        rows => rows,
    }
}

/// Whether there are tall tiles of stripes of so many gates: where that was measured.
const fn has_tall<S: Simd, E: Element<S>>(gates: usize) -> bool {
    cfg!(target_arch = "x86_64") && S::REGISTERS >= 32 && E::TALL && gates == 2
}

/// Whether a tile of so many rows by stripes of so many gates is a tall one.
pub(super) const fn is_tall<S: Simd, E: Element<S>>(rows: usize, gates: usize) -> bool {
    has_tall::<S, E>(gates) && rows > LOW && rows <= TALLEST
}

/// Rows of f32 or bf16 that products with panels of four gates take in one pass over weights from afar, where a few more take two,
/// and much longer. `None` where this CPU has no such tiles.
pub fn rows_of_a_pass(isa: Isa) -> Option<usize> {
    struct Asked;
    impl Visitor for Asked {
        type Out = bool;
        fn visit<S: Simd>(self, _: S) -> bool {
            has_tall::<S, F32<'_>>(2)
        }
    }
    let has_tall = dispatch(isa, Asked) == Ok(true) && fewest_passes_that_ask() == 2;
    has_tall.then_some(TALLEST)
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

/// Stripes of `N` gates per tile for tiles of `height` rows, of the `left` ones that are still to do, so many to a panel: those of
/// four panels at most.
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

    fn cut(rows: usize, low: usize, may_be_tall: bool) -> (usize, bool) {
        let tiles = RowTiles::cut(rows, low, may_be_tall);
        (tiles.height, tiles.are_tall)
    }

    #[test]
    fn few_rows_are_one_tall_tile_some_more_are_two_and_many_are_low_ones() {
        for (rows, expected) in [
            (0, (0, false)),
            (6, (6, false)),
            (7, (7, true)),
            (14, (14, true)),
            (15, (8, true)),
            (16, (8, true)),
            (17, (6, false)),
            (64, (6, false)),
        ] {
            assert_eq!(cut(rows, 6, true), expected, "{rows} rows");
        }
        // Where there are no tall ones; three gates have low ones of 8 rows.
        assert_eq!(cut(12, 6, false), (6, false));
        assert_eq!(cut(14, 6, false), (5, false));
        assert_eq!(cut(16, 8, false), (8, false));
    }

    #[test]
    fn tiles_are_as_few_and_as_even_as_can_be() {
        for (rows, low) in (1..40usize).flat_map(|rows| (1..=8).map(move |low| (rows, low))) {
            for may_be_tall in [false, true] {
                let tiles = RowTiles::cut(rows, low, may_be_tall);
                let most = if tiles.are_tall { TALLEST } else { low };
                assert!(tiles.height <= most && tiles.height >= 1);
                assert_eq!(tiles.count(), rows.div_ceil(most));
                let smaller = tiles.height - 1;
                assert!(smaller == 0 || rows.div_ceil(smaller) > tiles.count());
                // The last one, too: no tall tile has fewer rows.
                let last = rows - (tiles.count() - 1) * tiles.height;
                assert!(!tiles.are_tall || last > LOW, "{rows} rows");
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
