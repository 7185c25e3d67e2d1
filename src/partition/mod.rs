//! Private-cache-aware partitioning (PCP, deepcpu section 5.2.3): which split of a matrix product
//! over cores moves the fewest bytes from the shared cache to the private ones.
//!
//! ```text
//! C[i, j] += Σ_k A[i, k] · B[k, j]             A the states, B the weights, C the pre-activations
//! ⟨X_i, X_j, X_k⟩, X_i · X_j · X_k = P         parts of rows, of hidden units, of the chain
//! one product                                  X_j·|A| + X_i·|B| + 2·X_k·|C|
//! steps of a sequence, blocks of B that fit    steps·(X_j·|A| + 2·X_k·|C|) + X_i·|B|
//! otherwise                                    steps·(X_j·|A| + X_i·|B| + 2·X_k·|C|)
//! ```
//!
//! The paper prints X_i or X_j in both places of the first line and X_i·|A| in the second; its own
//! proof gives the forms above: the cores of one row block differ in X_j, and each of them needs
//! all of the block's A. Two more things the formulas leave out, and [`Problem::movement`] has:
//!
//! ```text
//! for each core
//!   for each thing touched more than once  weights across steps, A across panels, C till the gates
//!     between = the distinct bytes touched since it was last touched
//!     moved += its bytes · P(between is more than the cache keeps)
//! ```
//!
//! That is the reuse distance of an LRU cache, worked out from the loop nest of the product rather
//! than replayed. *Cyclic* panels: between two uses of a panel lie all weights and everything else
//! of a step, so a block a little larger than the cache is read again whole. *Serpentine*: between
//! two uses lie only the panels between it and the turn, so what the cache has room for beside the
//! rest stays, in whole tiles of panels (within a tile the chain runs the same way at every step).
//! The edge is as soft as the placement of lines in sets makes it ([`Placement`]).
//!
//! What is counted besides the product's own A, B and C is nothing; what else a step touches only
//! takes room ([`Sequence`]). All of A counts as written by others, as in the paper, though each
//! core has written its own columns of it. Products that alternate with this one, such as those of
//! the input taken ahead, are not known here: they cost the weights that they push out.
//!
//! ```
//! use gatestream::partition::{Cache, Grain, Options, PanelOrder, Problem, Sequence, Shape};
//!
//! // The recurrent product of an LSTM of 512 units, one sequence of 100 steps of which 16 are
//! // taken ahead together, on cores with 1 MiB in 16 ways and pages of 4 KiB.
//! let problem = Problem {
//!     shape: Shape::f32(1, 512, 512, 4),
//!     grain: Grain::default(),
//!     sequence: Sequence { steps: 100, chunk_steps: 16, kept_bytes: 4, streamed_bytes: 4 },
//!     cache: Cache::new(1 << 20, 16, 4096),
//! };
//! for best in problem.best(8, Options { split_rows: false, split_depth: false }) {
//!     let (split, order) = (best.split, best.order);
//!     println!("{split:?} {order:?}: {} bytes per step, {} of the busiest core",
//!         best.all.per_step, best.busiest.per_step);
//! }
//! let four = problem.solve(4, Options::default())[0];
//! assert_eq!((four.split.units, four.order), (4, PanelOrder::Serpentine));
//! # Ok::<(), std::convert::Infallible>(())
//! ```

mod cache;
mod solve;
mod sweep;

pub use cache::{Cache, Placement};
pub use solve::{Candidate, Options};
pub use sweep::{Movement, PanelOrder, Sequence};

/// Bytes of a cache line.
const LINE: u64 = 64;

/// One product `C[i, j] += Σ_k A[i, k] · B[k, j]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of A and C: sequences that run together.
    pub rows: usize,
    /// Columns of A, rows of B: the length of the chain.
    pub depth: usize,
    /// Hidden units. C has `units * gates` columns, and a core that owns a unit owns all its gates.
    pub units: usize,
    /// Gates per unit that this product adds to.
    pub gates: usize,
    /// Bytes of one weight.
    pub weight_bytes: usize,
    /// Bytes of one value of A or C.
    pub value_bytes: usize,
}

impl Shape {
    /// A product in f32.
    pub fn f32(rows: usize, depth: usize, units: usize, gates: usize) -> Shape {
        Shape {
            rows,
            depth,
            units,
            gates,
            weight_bytes: 4,
            value_bytes: 4,
        }
    }

    /// The same with weights of this many bytes, states and pre-activations as they are.
    pub fn with_weights_of(self, weight_bytes: usize) -> Shape {
        Shape {
            weight_bytes,
            ..self
        }
    }

    /// Bytes of A.
    pub fn a_bytes(&self) -> u64 {
        [self.rows, self.depth, self.value_bytes].product_u64()
    }

    /// Bytes of B.
    pub fn b_bytes(&self) -> u64 {
        [self.depth, self.units, self.gates, self.weight_bytes].product_u64()
    }

    /// Bytes of C.
    pub fn c_bytes(&self) -> u64 {
        [self.rows, self.units, self.gates, self.value_bytes].product_u64()
    }
}

/// Products of sizes, without overflow: a hostile size gives the largest count, never a small one.
trait ProductU64 {
    fn product_u64(self) -> u64;
}

impl<const N: usize> ProductU64 for [usize; N] {
    fn product_u64(self) -> u64 {
        self.into_iter()
            .fold(1u64, |product, size| product.saturating_mul(size as u64))
    }
}

/// How finely a product is cut, and how a core goes through its part.
///
/// A core computes tiles of rows by stripes of panels, with an accumulator for each row, stripe and
/// gate of the tile. A stripe has all gates of its panel, or two of four gates where the weights
/// exceed [`Grain::one_stripe_bytes`], except in int8. The rows of a tile come first
/// ([`Grain::row_tiles`]). Then follow the stripes of 4, 2 or 1 panels, or one of a panel's two, as
/// `panels`, the accumulators and the rest of the panels allow. All weights of a tile of stripes
/// are read once per tile of rows.
///
/// This models [`gatestream_kernels::Product`] for the steps of a sequence with 32 registers. It
/// leaves out that tiles in bf16 are smaller (20 accumulators, 12 rows).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grain {
    /// Units are dealt to cores in groups of this many.
    pub units: usize,
    /// Units of a panel; a core's last panel is filled up with zeros.
    pub lanes: usize,
    /// Vectors that a low tile may sum into.
    pub accumulators: usize,
    /// Max rows of a tall tile.
    pub rows: usize,
    /// Panels of a tile, at most; a power of two.
    pub panels: usize,
    /// Bytes of one core's weights above which panels of four gates have two stripes and tiles are
    /// tall: `u64::MAX` or 0 for the product of a plan, whose
    /// [`Blocking`](gatestream_kernels::Blocking) says which.
    pub one_stripe_bytes: u64,
}

/// Chains of multiply-adds that a serpentine sweep keeps in flight.
const CHAINS: usize = 8;
/// Rows of the tallest of two tiles that take a stripe each.
const HALF: usize = 8;

impl Grain {
    /// Gates of a stripe of a panel, one at least, where a core has `weights` bytes of weights.
    fn gates_of_stripe(&self, shape: &Shape, weights: u64) -> usize {
        match (shape.gates, shape.weight_bytes) {
            (4, 2..) if weights > self.one_stripe_bytes => 2,
            (gates, _) => gates.max(1),
        }
    }

    /// Stripes of a panel.
    fn stripes(&self, shape: &Shape, weights: u64) -> usize {
        (shape.gates / self.gates_of_stripe(shape, weights)).max(1)
    }

    /// The same, for one core's product that is swept in `order`. Serpentine tiles have no more
    /// panels than fill the pipelines with 8 chains of multiply-adds, since each panel of a tile is
    /// read from its start ([`gatestream_kernels::Sweep`]).
    ///
    /// ```
    /// use gatestream::partition::{Grain, PanelOrder, Shape};
    ///
    /// let panels = |order, rows, gates| {
    ///     Grain::default().swept(order, &Shape::f32(rows, 64, 64, gates)).panels
    /// };
    /// assert_eq!(panels(PanelOrder::Cyclic, 1, 4), 4);
    /// assert_eq!(panels(PanelOrder::Serpentine, 1, 4), 2); // 1 row · 4 gates · 2 panels
    /// assert_eq!(panels(PanelOrder::Serpentine, 2, 4), 1);
    /// assert_eq!(panels(PanelOrder::Serpentine, 1, 1), 4);
    /// ```
    #[must_use]
    pub fn swept(self, order: PanelOrder, shape: &Shape) -> Grain {
        let (tiles, stripes) = self.tiles(shape.rows, shape, shape.b_bytes());
        let mut panels = (stripes / self.stripes(shape, shape.b_bytes())).max(1);
        let chains = (shape.rows.div_ceil(tiles)).saturating_mul(shape.gates);
        while order == PanelOrder::Serpentine
            && panels > 1
            && chains.saturating_mul(panels / 2) >= CHAINS
        {
            panels /= 2;
        }
        Grain { panels, ..self }
    }

    /// The number of tiles of `rows` rows of a product of this shape, of which one core has
    /// `weights` bytes. A tile has up to 6 rows, or 8 with three gates (3 with fewer than
    /// 16 accumulators), and all are as even as possible. Above [`Grain::one_stripe_bytes`], with
    /// two or four gates and except in int8, there is one tile of up to [`Grain::rows`] rows by one
    /// stripe, or two of up to 8 rows.
    pub fn row_tiles(&self, rows: usize, shape: &Shape, weights: u64) -> usize {
        let most = match (shape.gates, self.accumulators) {
            (3, ..16) => 3,
            (3, _) => 8,
            _ => 6,
        };
        let many = (self.accumulators / shape.gates.max(1))
            .min(self.rows)
            .clamp(1, most);
        let tallest = match shape.weight_bytes {
            1 => many,
            _ if weights <= self.one_stripe_bytes || self.gates_of_stripe(shape, weights) != 2 => {
                many
            }
            _ => self.rows.max(1),
        };
        match rows {
            rows if rows <= tallest => 1,
            rows if rows <= 2 * HALF.min(tallest) && HALF > many => 2,
            rows => rows.div_ceil(many),
        }
    }

    /// As [`Grain::row_tiles`], and the stripes that each tile may have.
    fn tiles(&self, rows: usize, shape: &Shape, weights: u64) -> (usize, usize) {
        let tiles = self.row_tiles(rows, shape, weights);
        let sums = (rows.div_ceil(tiles)).saturating_mul(self.gates_of_stripe(shape, weights));
        let mut stripes = self.panels.max(1) * self.stripes(shape, weights);
        while stripes > 1 && sums.saturating_mul(stripes) > self.accumulators {
            stripes /= 2;
        }
        (tiles, stripes)
    }
}

impl Default for Grain {
    /// For 32 vector registers of 16 lanes: groups and panels of 16 units, low tiles of up to 4
    /// panels in 24 accumulators, tall tiles of up to 14 rows. The stripes are those of plans for
    /// private caches of 2 MiB.
    fn default() -> Grain {
        Grain {
            units: 16,
            lanes: 16,
            accumulators: 24,
            rows: 14,
            panels: 4,
            one_stripe_bytes: 1 << 20,
        }
    }
}

/// ⟨X_i, X_j, X_k⟩: how many parts each dimension of a product is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    /// X_i, parts of the rows.
    pub rows: usize,
    /// X_j, parts of the hidden units.
    pub units: usize,
    /// X_k, parts of the chain. More than one changes the rounding.
    pub depth: usize,
}

impl Split {
    /// P, the cores that take part.
    pub fn ways(&self) -> usize {
        self.rows * self.units * self.depth
    }
}

/// The part of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// Rows of A and C.
    pub rows: usize,
    /// Hidden units.
    pub units: usize,
    /// Length of the chain.
    pub depth: usize,
}

/// A product, how it is cut, how often it is repeated, and the private cache of each core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// The product of one step.
    pub shape: Shape,
    /// How finely it is cut.
    pub grain: Grain,
    /// How it is repeated.
    pub sequence: Sequence,
    /// Each core's private cache.
    pub cache: Cache,
}

impl Problem {
    /// Every factorization X_i · X_j · X_k = `ways` that leaves no part empty: X_i up to the rows,
    /// X_j up to the groups of units, X_k up to the depth; larger X_j first.
    pub fn splits(&self, ways: usize, options: Options) -> Vec<Split> {
        let groups = self.shape.units.div_ceil(self.grain.units.max(1));
        let rows = if options.split_rows {
            self.shape.rows
        } else {
            1
        };
        let depth = if options.split_depth {
            self.shape.depth
        } else {
            1
        };
        let mut splits = Vec::new();
        for units in divisors(ways) {
            for row_parts in divisors(ways / units) {
                let split = Split {
                    rows: row_parts,
                    units,
                    depth: ways / units / row_parts,
                };
                let fits = units <= groups && row_parts <= rows && split.depth <= depth;
                // Nothing to compute leaves every part empty.
                if fits && row_parts <= self.shape.rows && split.depth <= self.shape.depth {
                    splits.push(split);
                }
            }
        }
        splits.sort_by_key(|split| (std::cmp::Reverse(split.units), split.rows));
        splits
    }

    /// The part of every core, cores of one row block and depth next to each other. Units are dealt
    /// in whole groups whose counts differ by one at most; only the last may be ragged.
    pub fn parts(&self, split: Split) -> Vec<Part> {
        let kinds = self.part_kinds(split);
        let mut parts = Vec::with_capacity(split.ways());
        for &(depth, deep) in &kinds.depth {
            for &(rows, tall) in &kinds.rows {
                for _ in 0..deep * tall {
                    for &(units, wide) in &kinds.units {
                        let part = Part { rows, units, depth };
                        parts.extend(std::iter::repeat_n(part, wide));
                    }
                }
            }
        }
        parts
    }

    /// The sizes that occur in each dimension, with how often.
    fn part_kinds(&self, split: Split) -> Kinds {
        let grain = self.grain.units.max(1);
        let groups = self.shape.units.div_ceil(grain);
        let missing = groups * grain - self.shape.units;
        let mut units: Vec<_> = deal(groups, split.units)
            .into_iter()
            .map(|(groups, count)| (groups * grain, count))
            .collect();
        // The last group is the ragged one, and the last part holds the most groups.
        if missing > 0
            && let Some((size, count)) = units.pop()
        {
            units.extend((count > 1).then_some((size, count - 1)));
            units.push((size.saturating_sub(missing), 1));
        }
        Kinds {
            rows: deal(self.shape.rows, split.rows),
            units,
            depth: deal(self.shape.depth, split.depth),
        }
    }

    /// Bytes moved by one product from a cold start, X_j·|A| + X_i·|B| + 2·X_k·|C| (deepcpu theorem
    /// 5.2, its slips corrected); exact where everything divides.
    pub fn once(&self, split: Split) -> u64 {
        let times = |ways: usize, bytes: u64| bytes.saturating_mul(ways as u64);
        times(split.units, self.shape.a_bytes())
            .saturating_add(times(split.rows, self.shape.b_bytes()))
            .saturating_add(times(2 * split.depth, self.shape.c_bytes()))
    }

    /// Bytes of A, B and C that a part has: rows of A in whole cache lines, panels in whole lanes.
    pub fn part_bytes(&self, part: Part) -> [u64; 3] {
        let units = part.units.next_multiple_of(self.grain.lanes.max(1));
        let Shape {
            gates,
            weight_bytes,
            value_bytes,
            ..
        } = self.shape;
        let row = [part.depth, value_bytes].product_u64();
        let row = row.checked_next_multiple_of(LINE).unwrap_or(u64::MAX);
        [
            row.saturating_mul(part.rows as u64),
            [part.depth, units, gates, weight_bytes].product_u64(),
            [part.rows, units, gates, value_bytes].product_u64(),
        ]
    }

    /// The paper's piecewise form for a sequence (deepcpu section 5.2.3, its slips corrected): all
    /// of B once where a core's block, |B| / (X_j·X_k), fits the private cache, else at every step.
    pub fn formula(&self, split: Split) -> u64 {
        let steps = self.sequence.steps as u64;
        let weights = self.shape.b_bytes().saturating_mul(split.rows as u64);
        let rest = self.once(split).saturating_sub(weights);
        let blocks = (split.units * split.depth).max(1) as u64;
        let readings = if self.shape.b_bytes() / blocks <= self.cache.bytes as u64 {
            steps.min(1)
        } else {
            steps
        };
        let rest = steps.saturating_mul(rest);
        rest.saturating_add(readings.saturating_mul(weights))
    }
}

/// Sizes and how often each occurs, per dimension, in the order that they are dealt.
struct Kinds {
    rows: Vec<(usize, usize)>,
    units: Vec<(usize, usize)>,
    depth: Vec<(usize, usize)>,
}

/// `items` in `parts` as even as can be, the smaller parts first: each size and how often.
fn deal(items: usize, parts: usize) -> Vec<(usize, usize)> {
    let parts = parts.max(1);
    let (least, more) = (items / parts, items % parts);
    let kinds = [(least, parts - more), (least + 1, more)];
    kinds.into_iter().filter(|(_, count)| *count > 0).collect()
}

/// The divisors of `n`, ascending; none of 0.
fn divisors(n: usize) -> impl Iterator<Item = usize> {
    (1..=n).filter(move |d| n.is_multiple_of(*d))
}
