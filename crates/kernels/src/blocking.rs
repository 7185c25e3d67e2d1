//! How a product reads its weights. The caller decides, for its machine.

use std::ops::RangeInclusive;

/// Rows (MR) of a tall register tile, which spans one stripe of two gates. Other tiles are *short*:
/// at most 6 rows, or 8 with three gates (3 with 16 registers).
pub const TALL_TILE_ROWS: RangeInclusive<usize> = 7..=14;

/// The way from memory to registers. No choice changes a bit of a result.
///
/// The default suits weights that stay in a private cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Blocking {
    /// The layout that [`super::PackedMatrix::new`] gives panels of four gates.
    pub stripes: Stripes,
    /// Max rows of a tall tile, of [`TALL_TILE_ROWS`]; 0 for short tiles only. Fewer passes over
    /// the weights in exchange for more loads of the lhs. Used for stripes of two gates in f32 or
    /// bf16 by instruction sets with enough registers; a tile has at most 12 rows in bf16.
    pub tile_rows: usize,
    /// Which passes over a panel prefetch.
    pub prefetch: Prefetch,
}

/// Stripes of a panel of four gates in f32 or bf16. All other panels have one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Stripes {
    /// All four gates of a step side by side: one stream of reads.
    #[default]
    One,
    /// Two gates each: a tile of one stripe can be twice as tall.
    Two,
}

/// Which passes over a panel of weights prefetch. A pass is one tile of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Prefetch {
    /// None: the weights stay in a private cache.
    #[default]
    Off,
    /// Of three passes or more, each prefetches its share of the next panel.
    ManyPasses,
    /// Of two passes or more, each prefetches its share of the next panel. A single pass prefetches
    /// its own panel, a few KiB ahead of what it reads.
    AllPasses,
}
