//! What one core moves over a sequence: reuse distances of the loop nest of the product.
//!
//! ```text
//! for step                                     A anew: others have written it
//!   for tile of panels                         in order, or there and back (serpentine)
//!     for tile of rows
//!       read C; for k: read A[rows][k], B[panels][k]; write C
//!   for row, panel                            the gates: read C, read and write the state, write y
//! ```
//!
//! Everything moved is a first touch, or a touch after more than the cache keeps:
//!
//! | touched | again | between |
//! |---|---|---|
//! | B, a tile of panels | by the next tile of rows | the tile, one tile of A |
//! | B | at the next step | the panels in between, A of both steps, C, the state |
//! | A | by the next tile of panels | A, one or two tiles of panels |
//! | C | by the gates | the panels that follow, A, the C of those panels |
//! | C | when its memory is used again | `chunk_steps` steps' C, and all of a step |

use super::cache::{Touched, whole};
use super::{Cache, Part, Problem, Split};

/// The order in which a core goes through its panels from step to step.
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "lowercase")
)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PanelOrder {
    /// First to last at every step.
    #[default]
    Cyclic,
    /// First to last at even steps, last to first at odd ones.
    Serpentine,
}

/// How a product is repeated, and what else each step touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Steps, each with the same weights.
    pub steps: usize,
    /// Steps whose pre-activations have memory of their own before it is used again: those whose
    /// input products are taken ahead together. 1 where every step uses the same memory; `steps` or
    /// more is the paper's case, in which C is read and written at every step.
    pub chunk_steps: usize,
    /// Bytes per row and unit of state that only its core reads and writes, at every step: an
    /// LSTM's cell state. They take room; they are not counted as moved.
    pub kept_bytes: usize,
    /// Bytes per row and unit that each step writes to, or reads from, new memory: the output.
    /// They take room; they are not counted as moved.
    pub streamed_bytes: usize,
}

impl Sequence {
    /// The paper's case: all pre-activations ahead, nothing else touched.
    pub fn of_steps(steps: usize) -> Sequence {
        Sequence {
            steps,
            chunk_steps: steps,
            kept_bytes: 0,
            streamed_bytes: 0,
        }
    }
}

/// Bytes moved between the shared cache and private ones, in both directions.
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Movement {
    /// At the first step, from cold caches.
    pub first_step: u64,
    /// At a later step, once the memory of the pre-activations has been used before.
    pub per_step: u64,
    /// Over the sequence.
    pub total: u64,
}

impl Movement {
    /// Adds so many times another's bytes; more than can be counted stays at the largest count.
    pub fn add(&mut self, other: Movement, times: usize) {
        let sum = |into: &mut u64, more: u64| {
            *into = into.saturating_add(more.saturating_mul(times as u64));
        };
        sum(&mut self.first_step, other.first_step);
        sum(&mut self.per_step, other.per_step);
        sum(&mut self.total, other.total);
    }
}

impl Problem {
    /// What a split moves: all cores together, and the core that moves the most.
    pub fn movement(&self, split: Split, order: PanelOrder) -> (Movement, Movement) {
        let kinds = self.part_kinds(split);
        let (mut all, mut busiest) = (Movement::default(), Movement::default());
        for &(rows, tall) in &kinds.rows {
            for &(units, wide) in &kinds.units {
                for &(depth, deep) in &kinds.depth {
                    let moved = self.part_movement(Part { rows, units, depth }, order);
                    all.add(moved, tall * wide * deep);
                    if moved.total > busiest.total {
                        busiest = moved;
                    }
                }
            }
        }
        (all, busiest)
    }

    /// What one core moves for its part.
    pub fn part_movement(&self, part: Part, order: PanelOrder) -> Movement {
        let Sequence {
            steps, chunk_steps, ..
        } = self.sequence;
        if [part.rows, part.units, part.depth, steps].contains(&0) {
            return Movement::default();
        }
        let sweep = Sweep::new(self, part);
        let a = sweep.a * sweep.a_readings();
        let first_b = sweep.first_b();
        let (b, cold_c, c) = sweep.mean_step(order, chunk_steps >= steps);
        let cold = chunk_steps.clamp(1, steps) as f64;
        let steps = steps as f64;
        let total = steps * a + first_b + (steps - 1.0) * b + cold * cold_c + (steps - cold) * c;
        // A float too large for u64 becomes the largest, which is what is meant.
        Movement {
            first_step: (a + first_b + cold_c).round() as u64,
            per_step: (a + b + c).round() as u64,
            total: total.round() as u64,
        }
    }

    /// The part of a core's weights, from 0 to 1, that its cache still holds when the next step
    /// comes to them; 1 where there are none.
    pub fn weights_kept(&self, part: Part, order: PanelOrder) -> f64 {
        let sweep = Sweep::new(self, part);
        if sweep.b == 0.0 || part.rows == 0 {
            return 1.0;
        }
        let (b, ..) = sweep.mean_step(order, false);
        // What the further tiles of rows of a step read again is the same at the first step.
        ((sweep.first_b() - b) / sweep.b).clamp(0.0, 1.0)
    }
}

/// Stripes of panels that are read together.
struct PanelTile {
    /// Bytes of its weights.
    weights: f64,
    /// Bytes of its pre-activations, of all rows.
    z: f64,
}

/// One core's part of a step, in bytes.
struct Sweep {
    cache: Cache,
    tiles: Vec<PanelTile>,
    rows: usize,
    /// Tiles of rows.
    row_tiles: usize,
    /// The part of the rows in the first of them, the tallest.
    first_tile: f64,
    /// A, and of it one tile of rows.
    a: f64,
    a_tile: f64,
    b: f64,
    c: f64,
    kept: f64,
    streamed: f64,
    chunk_steps: usize,
}

impl Sweep {
    fn new(problem: &Problem, part: Part) -> Sweep {
        let grain = problem.grain;
        let [a, b, c] = problem.part_bytes(part).map(|bytes| bytes as f64);
        let panels = part.units.div_ceil(grain.lanes.max(1));
        let (row_tiles, widest) = grain.tiles(part.rows, &problem.shape, b as u64);
        let stripes = panels * grain.stripes(&problem.shape, b as u64);
        let mut tiles = Vec::new();
        let mut left = stripes;
        while left > 0 {
            let mut width = widest;
            while width > left {
                width /= 2;
            }
            let share = width as f64 / stripes as f64;
            tiles.push(PanelTile {
                weights: b * share,
                z: c * share,
            });
            left -= width;
        }
        let first = part.rows.div_ceil(row_tiles) as f64 / part.rows as f64;
        let state = part.rows as f64 * (panels * grain.lanes.max(1)) as f64;
        Sweep {
            cache: problem.cache,
            tiles,
            rows: part.rows,
            row_tiles,
            a,
            a_tile: a * first,
            first_tile: first,
            b,
            c,
            kept: state * problem.sequence.kept_bytes as f64,
            streamed: state * problem.sequence.streamed_bytes as f64,
            chunk_steps: problem.sequence.chunk_steps.max(1),
        }
    }

    /// How often A is read in a step.
    fn a_readings(&self) -> f64 {
        let pairs = self.tiles.windows(2);
        1.0 + pairs
            .map(|pair| self.a_gone(&pair[0], &pair[1]))
            .sum::<f64>()
    }

    /// The part of A that is gone by the next tile of panels.
    fn a_gone(&self, now: &PanelTile, next: &PanelTile) -> f64 {
        let between = |of_now: f64, of_next: f64| {
            let others = [
                whole(of_now * now.weights + of_next * next.weights),
                self.by_rows(of_now * now.z + of_next * next.z),
            ];
            self.cache.miss(self.a, &others)
        };
        // How far along the chain the value stands: of the tile of rows that comes first, a part of
        // the next panels has been read; of the one that comes last, the rest of these.
        let along = [0.125, 0.375, 0.625, 0.875];
        let mean = |gone: &dyn Fn(f64) -> f64| along.iter().map(|k| gone(*k)).sum::<f64>() / 4.0;
        match self.row_tiles {
            1 => mean(&|k| between(1.0 - k, k)),
            tiles => {
                let ends = mean(&|k| between(1.0, k)) + mean(&|k| between(1.0 - k, 1.0));
                (ends + (tiles - 2) as f64 * between(1.0, 1.0)) / tiles as f64
            }
        }
    }

    /// Weights read at the first step.
    fn first_b(&self) -> f64 {
        let tiles = self.tiles.iter();
        tiles
            .map(|tile| tile.weights * (1.0 + self.rereadings(tile)))
            .sum()
    }

    /// How often a tile of panels is read again for the further tiles of rows of a step.
    fn rereadings(&self, tile: &PanelTile) -> f64 {
        // C of the tile of rows before is written, and that of the next read.
        let z = Touched {
            bytes: 2.0 * tile.z * self.first_tile,
            pieces: 2 * self.rows.div_ceil(self.row_tiles),
            stride: self.c / self.rows as f64,
        };
        let gone = self.cache.miss(tile.weights, &[whole(self.a_tile), z]);
        (self.row_tiles - 1) as f64 * gone
    }

    /// Pre-activations of some panels: a piece of every row.
    fn by_rows(&self, bytes: f64) -> Touched {
        Touched {
            bytes,
            pieces: self.rows,
            stride: self.c / self.rows as f64,
        }
    }

    /// As [`Sweep::later_step`], the mean over the steps of an order.
    fn mean_step(&self, order: PanelOrder, fresh: bool) -> (f64, f64, f64) {
        let forward: Vec<usize> = (0..self.tiles.len()).collect();
        match order {
            PanelOrder::Cyclic => self.later_step(&forward, &forward, fresh),
            // Both turns, since tiles at the end may be smaller.
            PanelOrder::Serpentine => {
                let back: Vec<usize> = forward.iter().rev().copied().collect();
                let there = self.later_step(&forward, &back, fresh);
                let again = self.later_step(&back, &forward, fresh);
                let mean = |x: f64, y: f64| (x + y) / 2.0;
                (
                    mean(there.0, again.0),
                    mean(there.1, again.1),
                    mean(there.2, again.2),
                )
            }
        }
    }

    /// Bytes of B read at a step in order `next` that follows one in order `now`; and bytes of C
    /// moved at such a step: with its memory touched for the first time, and later.
    ///
    /// `next` is `now` or its reverse.
    fn later_step(&self, now: &[usize], next: &[usize], fresh: bool) -> (f64, f64, f64) {
        let turns = now.first() != next.first();
        let (mut b, mut cold_c, mut c) = (0.0, 0.0, 0.0);
        let (mut weights_before, mut z_before) = (0.0, 0.0);
        for (at, index) in now.iter().enumerate() {
            let tile = &self.tiles[*index];
            let weights_after = self.b - weights_before - tile.weights;
            let z_after = self.c - z_before - tile.z;
            let last = at + 1 == now.len();
            // What the next step has done by the time it comes to this tile.
            let (first_next, weights_next, z_next) = if turns {
                (last, weights_after, z_after)
            } else {
                (at == 0, weights_before, z_before)
            };
            let around = Around {
                last,
                first_next,
                weights_after: weights_after.max(0.0),
                z_before,
                z_after: z_after.max(0.0),
                weights_next: weights_next.max(0.0),
                z_next: z_next.max(0.0),
            };
            let own = if turns {
                tile.weights + around.weights_after
            } else {
                self.b
            };
            b += tile.weights * (self.b_gone(own, tile, &around) + self.rereadings(tile));
            let by_gates = self.c_gone_by_gates(tile, &around);
            let by_reuse = if fresh {
                1.0
            } else {
                self.c_gone_by_reuse(tile, &around)
            };
            // A fetch at either touch, and one write-back of what the product wrote.
            cold_c += tile.z * (2.0 + by_gates);
            c += tile.z * (by_gates + by_reuse + by_gates.max(by_reuse));
            weights_before += tile.weights;
            z_before += tile.z;
        }
        (b, cold_c, c)
    }

    /// The part of a tile's weights that is gone by the next step.
    fn b_gone(&self, own: f64, tile: &PanelTile, around: &Around) -> f64 {
        // A of the rest of this step and of the next so far. At either end of a sweep that is a
        // part of one tile of rows; the two parts of one value of k make one whole.
        let a_now = if around.last {
            self.a_tile / 2.0
        } else {
            self.a
        };
        let a_next = if around.first_next {
            self.a_tile / 2.0
        } else {
            self.a
        };
        // C of this step, and of the next so far where that is other memory: what follows it.
        let z_next = match self.chunk_steps {
            1 => 0.0,
            _ => around.z_next + tile.z * self.first_tile,
        };
        let others = [
            whole(a_now),
            whole(a_next),
            whole(self.c + z_next),
            whole(self.kept),
            whole(self.streamed),
        ];
        self.cache.miss(own, &others)
    }

    /// The part of a tile's pre-activations that is gone when the gates read it.
    fn c_gone_by_gates(&self, tile: &PanelTile, around: &Around) -> f64 {
        let several = self.row_tiles > 1;
        let own_weights = if several { tile.weights } else { 0.0 };
        let a = if several || !around.last { self.a } else { 0.0 };
        // The gates go row by row: on average half of the rows before this one.
        let own = around.z_after + tile.z + around.z_before / 2.0;
        let weights = own_weights + around.weights_after;
        let state = [self.kept / 2.0, self.streamed / 2.0];
        self.cache
            .miss(own, &[weights, a, state[0], state[1]].map(whole))
    }

    /// The part of a tile's pre-activations that is gone when a later step uses their memory.
    fn c_gone_by_reuse(&self, tile: &PanelTile, around: &Around) -> f64 {
        match self.chunk_steps {
            1 => {
                let several = self.row_tiles > 1;
                let own_weights = if several { tile.weights } else { 0.0 };
                let a = if several || !around.first_next {
                    self.a
                } else {
                    0.0
                };
                let own = around.z_next + tile.z + (self.c - around.z_next - tile.z) / 2.0;
                let weights = own_weights + around.weights_next;
                let state = [self.kept / 2.0, self.streamed / 2.0];
                self.cache
                    .miss(own, &[weights, a, state[0], state[1]].map(whole))
            }
            steps => {
                let steps = steps as f64;
                let others = [self.b, self.a, self.a, self.kept, steps * self.streamed];
                self.cache.miss(steps * self.c, &others.map(whole))
            }
        }
    }
}

/// Bytes that are swept around a tile of panels.
struct Around {
    /// It is the last of its step.
    last: bool,
    /// It is the first of the next step.
    first_next: bool,
    weights_after: f64,
    z_before: f64,
    z_after: f64,
    /// Before it at the next step.
    weights_next: f64,
    z_next: f64,
}
