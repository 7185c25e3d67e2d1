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
//! The real loop takes a tile of `M` rows by `P` stripes of panels (`pack.rs`, `tiles.rs`) at a
//! time, all in registers: one row alone is a chain of dependent multiply-adds, and only many
//! independent chains fill the pipelines. The order of `k` within a chain never changes, so no tile
//! shape changes a bit. Where weights exceed the private caches, all tiles of rows that take a
//! panel ask for the next one meanwhile (`prefetch.rs`).
//!
//! Weights of int8 meet a left operand of int8: its rows are quantised first, each with a scale of
//! its own. Their sum is exact; it is rounded to f32, as is the product of the two scales, and then
//! added:
//!
//! ```text
//! z[row][panel] = fma(Σ_k qa[row][k] * qw[panel][k], scale[row] * scale[panel], start)
//! ```

mod element;
mod lhs;
mod place;
mod quantize;
mod tile;
mod tiles;

use self::element::{Element, Floats, Int8};
use self::lhs::Lhs;
use self::quantize::quantize;
pub(super) use self::quantize::row_norms;
pub use self::quantize::{RowNorms, TINY_ROW};
use self::tile::tile;
use self::tiles::{RowTiles, Tiles, tile_stripes};
use super::blocking::{Blocking, Prefetch};
use super::pack::{Int8Words, PackedMatrix, Words};
use super::prefetch::{NextProduct, PassPrefetch, lines_a_group, prefetch_second_level};
use super::rows::RowsRef;
use super::simd::{Dot, DotJob, Simd};
use std::ops::Range;

/// Where the chains of a product start.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// From a bias, packed `[panel][z_slots][lanes]`; all slots are written.
    Bias(&'a [f32]),
    /// From zero; only the product's own slots are written.
    Zero,
    /// Adds to the existing pre-activations (BLAS: beta = 1).
    Continue,
}

/// Memory for what a product makes of its left operand: [`PackedMatrix::scratch_words`] words. With
/// weights of int8 that is the operand, quantised. With others it is the operand laid out step by
/// step for tall tiles; with less memory the tiles are short.
#[derive(Debug)]
pub enum Scratch<'a> {
    /// To be packed first, from all rows of the left operand.
    Empty(&'a mut [u32]),
    /// Already packed by an earlier product with the same left operand, of other panels or of other
    /// weights [that pack it alike](PackedMatrix::packs_as). Both products have the same
    /// [`Blocking`], and scratch of the same size.
    Packed(&'a [u32]),
}

impl Scratch<'_> {
    /// For weights that are not of int8, where time does not matter.
    pub const NONE: Scratch<'static> = Scratch::Packed(&[]);

    fn len(&self) -> usize {
        match self {
            Scratch::Empty(words) => words.len(),
            Scratch::Packed(words) => words.len(),
        }
    }
}

/// The order of panels and the width of tiles. It never changes a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// First to last, in tiles as wide as the registers allow: the longest runs through each panel.
    Wide,
    /// First to last, in tiles just wide enough to fill the pipelines. Alternating with
    /// [`Sweep::Back`], what a cache still holds of the sweep before is used first; the narrower
    /// the tiles the more, since within a tile each panel is read from its start.
    Forth,
    /// Last to first, in the tiles of [`Sweep::Forth`].
    Back,
}

/// One product: `z[row][panel][slot] += Σ_k a[row][k] * weights[panel][k][gate]`.
#[derive(Debug)]
pub struct Product<'a> {
    /// The left operand, `a`.
    pub rows: RowsRef<'a>,
    /// Row `r` of the left operand is row `order[r]` of `rows`; `None` is row `r`.
    pub order: Option<&'a [usize]>,
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
    /// How the weights are read. Their stripes are as they were packed.
    pub blocking: Blocking,
    /// What is read next, prefetched during the last panels.
    pub next: NextProduct,
}

/// Runs a product. `N` is the number of gates of a stripe of the weights; `plain` keeps to
/// instructions that the whole instruction set has.
#[inline(always)]
pub(super) fn product<S: Simd, const N: usize>(
    s: S,
    job: &mut Product<'_>,
    of: Range<usize>,
    scratch: Scratch<'_>,
    plain: bool,
) {
    match job.weights.words() {
        Words::F32(words) => s.vectorize(
            #[inline(always)]
            || floats::<S, _, N>(s, Floats::<_, 1>(words), job, of, scratch),
        ),
        Words::Bf16(words) => s.vectorize(
            #[inline(always)]
            || floats::<S, _, N>(s, Floats::<_, 2>(words), job, of, scratch),
        ),
        Words::Int8(words) => {
            let job = Quantized::<'_, '_, N> {
                job,
                of,
                words,
                scratch,
            };
            s.with_dot(plain, job);
        }
    }
}

/// A product whose left operand is taken as it is, laid out step by step for tall tiles.
#[inline(always)]
fn floats<S: Simd, E: Element<S, Lhs = f32>, const N: usize>(
    s: S,
    element: E,
    job: &mut Product<'_>,
    of: Range<usize>,
    scratch: Scratch<'_>,
) {
    let tiles = RowTiles::of::<S, E>(job, scratch.len());
    let mut lhs = Lhs::of(job);
    if tiles.are_tall {
        lhs.by_steps = match scratch {
            Scratch::Packed(packed) => packed,
            Scratch::Empty(scratch) => {
                lhs.lay_out(tiles, scratch);
                scratch
            }
        };
    }
    panels::<S, E, N>(s, element, lhs, tiles, job, of);
}

/// A product whose left operand is to be quantised.
struct Quantized<'j, 'a, const N: usize> {
    job: &'j mut Product<'a>,
    of: Range<usize>,
    words: &'a Int8Words,
    scratch: Scratch<'j>,
}

impl<S: Simd, const N: usize> DotJob<S> for Quantized<'_, '_, N> {
    #[inline(always)]
    fn run<D: Dot<S>>(self, s: S, dot: D) {
        let Quantized {
            job,
            of,
            words,
            scratch,
        } = self;
        let (rows, depth) = (job.row_count, job.weights.depth());
        let groups = depth.div_ceil(4);
        assert!(scratch.len() >= job.weights.scratch_words(rows));
        let packed = match scratch {
            Scratch::Packed(packed) => packed,
            Scratch::Empty(scratch) => {
                let (quads, scales) = scratch.split_at_mut(rows * groups);
                let lhs = Lhs::of(job);
                for row in 0..rows {
                    // Gathered rows are as a rule in no cache of this core.
                    if job.rows.is_gathered() && row + 1 < rows {
                        prefetch_second_level(lhs.row(row + 1));
                    }
                    let scale = quantize(s, lhs.row(row), &mut quads[row * groups..][..groups]);
                    scales[row] = scale.to_bits();
                }
                scratch
            }
        };
        let (quads, scales) = packed.split_at(rows * groups);
        let int8 = Int8 {
            words,
            scales: &scales[..rows],
            dot,
        };
        let lhs = Lhs::new(RowsRef::contiguous(quads, groups), groups);
        let tiles = RowTiles::of::<S, Int8<'_, D>>(job, 0);
        panels::<S, _, N>(s, int8, lhs, tiles, job, of);
    }
}

/// The panels `of` a product, tile after tile.
#[inline(always)]
fn panels<S: Simd, E: Element<S>, const N: usize>(
    s: S,
    element: E,
    lhs: Lhs<'_, E::Lhs>,
    tiles: RowTiles,
    job: &mut Product<'_>,
    of: Range<usize>,
) {
    let weights = job.weights;
    assert!(of.start <= of.end && of.end <= weights.panels());
    let stripes = weights.stripes();
    assert_eq!((weights.lanes(), weights.gates()), (S::LANES, N * stripes));
    assert_eq!(job.slots.len(), weights.gates());
    assert!(job.slots.iter().all(|slot| *slot < job.z_slots));
    let vector = job.z_slots * S::LANES;
    // The tiles below write through pointers: a count that wraps must not pass.
    let values = (job.row_count)
        .checked_mul(weights.panels())
        .and_then(|vectors| vectors.checked_mul(vector));
    assert!(values.is_some_and(|values| job.z.len() >= values));
    if let Start::Bias(bias) = job.start {
        assert!(bias.len() >= weights.panels() * vector);
    }
    let height = tiles.height;
    let prefetches = Prefetches {
        prefetch: job.blocking.prefetch,
        tiles,
        groups: weights.depth() / E::STEPS,
        gates: N,
    };
    let of = of.start * stripes..of.end * stripes;
    let mut left = of.len();
    while left > 0 {
        let width = tile_stripes::<S, E, N>(height, (left, stripes), job.sweep);
        let stripe = match job.sweep {
            Sweep::Wide | Sweep::Forth => of.end - left,
            Sweep::Back => of.start + left - width,
        };
        let next = match job.sweep {
            _ if job.blocking.prefetch == Prefetch::Off => NextProduct::NONE,
            _ if left == width => job.next,
            Sweep::Wide | Sweep::Forth => {
                weights.stripes_as_next(stripe + width..of.end.min(stripe + 2 * width))
            }
            Sweep::Back => {
                weights.stripes_as_next(of.start.max(stripe.saturating_sub(width))..stripe)
            }
        };
        let mut row = 0;
        while row < job.row_count {
            let prefetch = prefetches.of_pass(next, row / height, width);
            let rows = height.min(job.row_count - row);
            // The last tile of a row count that does not divide is shorter; all shapes below are
            // bit-equal, so which one runs is a matter of speed only.
            macro_rules! shapes {
                ($(($m:literal, $p:literal))*) => {
                    match (rows, width) {
                        $(($m, $p) => {
                            if const { Tiles::has::<S, E>($m, $p, N) } {
                                // SAFETY: slots and lengths have been checked above, and these are
                                // rows and stripes of the job.
                                unsafe {
                                    tile::<S, E, $m, N, $p>(
                                        s, element, &lhs, job, (row, stripe), prefetch,
                                    );
                                }
                            } else {
                                unreachable!("tile shapes are bounded above")
                            }
                        })*
                        _ => unreachable!("tile shapes are bounded above"),
                    }
                };
            }
            shapes! {
                (1, 1) (2, 1) (3, 1) (4, 1) (5, 1) (6, 1) (7, 1) (8, 1) (9, 1) (10, 1) (11, 1)
                (12, 1) (13, 1) (14, 1)
                (1, 2) (2, 2) (3, 2) (4, 2) (5, 2) (6, 2)
                (1, 4) (2, 4) (3, 4) (4, 4) (5, 4) (6, 4)
                (1, 8)
            }
            row += rows;
        }
        left -= width;
    }
}

/// What the passes over a tile of stripes prefetch.
struct Prefetches {
    prefetch: Prefetch,
    tiles: RowTiles,
    /// Groups of weights that each pass reads.
    groups: usize,
    /// Gates of a stripe.
    gates: usize,
}

impl Prefetches {
    /// What pass `index` over `width` stripes prefetches, where `next` is read after the last pass.
    #[inline(always)]
    fn of_pass(&self, next: NextProduct, index: usize, width: usize) -> PassPrefetch {
        let count = self.tiles.count();
        let min_count = match self.prefetch {
            Prefetch::Off => return PassPrefetch::None,
            Prefetch::AllPasses if count == 1 => return PassPrefetch::Own,
            Prefetch::AllPasses => 2,
            Prefetch::ManyPasses => 3,
        };
        if count < min_count || next == NextProduct::NONE {
            return PassPrefetch::None;
        }
        // The last tile may have too few rows to prefetch.
        let sharing = match self.tiles.rows % self.tiles.height {
            1 | 2 => count - 1,
            _ => count,
        };
        let times = self.groups * lines_a_group(self.gates * width);
        PassPrefetch::Next(next.share(index, sharing, times))
    }
}
