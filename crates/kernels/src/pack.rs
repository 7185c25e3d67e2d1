//! Weights in the order that the microkernel reads them.
//!
//! ```text
//! for panel in 0..panels          LANES hidden units each; the last is filled up with zeros
//!   for stripe in 0..stripes      one; of four gates, where the caller asks for it, two
//!     for k in 0..depth           input features, or values of the state
//!       for gate in stripe        all gates, or two of the four
//!         for lane in 0..LANES    one vector load
//! ```
//!
//! All gates of a unit stand in one panel, so that the owner of the unit has everything its
//! activation needs. One order serves every batch size: a tile takes one panel for many rows, or
//! several panels for few. Four gates make two stripes since a tile of one stripe is twice as tall:
//! where weights exceed the private caches, seven to fourteen rows read them in one pass, at the
//! pace of the arithmetic, where two passes over all four gates would wait for memory in the one
//! and leave it idle in the other. Weights of int8 are a quarter as long, and taller tiles gain
//! them nothing; fewer weights stay in caches, which read one stream sooner than two.
//!
//! Smaller numbers fill the same words: in a lane's four bytes stand two bf16 (of `k`, the even one
//! lower, and `k + 1`) or four int8 (of `k` to `k + 3`, in the order of memory), so that `k` goes
//! by two or by four; what is beyond the depth is zero.

use std::mem::discriminant;
use std::ops::Range;

use super::blocking::{Blocking, Stripes};
use super::prefetch::NextProduct;
use super::values::{Aligned, Values, zeroed};

/// The weights of some hidden units for one product, packed for one lane count.
#[derive(Debug)]
pub struct PackedMatrix {
    words: Words,
    lanes: usize,
    gates: usize,
    stripe_gates: usize,
    depth: usize,
    panels: usize,
}

/// Most rows that tall tiles take together.
pub(super) const LAID_OUT: usize = 16;

/// What the lanes hold.
#[derive(Debug)]
pub(super) enum Words {
    F32(Values),
    Bf16(Values<u32>),
    Int8(Int8Words),
}

/// Quantised weights: a value is `scale · q`, with one scale for each gate of a unit.
#[derive(Debug)]
pub(super) struct Int8Words {
    pub quads: Values<u32>,
    /// `[panel][gates][lanes]`, which is `[stripe][gates of it][lanes]`.
    pub scales: Values,
    /// The sum of the weights that a scale belongs to, `[panel][gates][lanes]`.
    pub sums: Values<i32>,
}

/// A row-major matrix `[gates * units, depth]` of which some gates and units are packed.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// All of it, row after row; packed as what it is.
    pub numbers: Numbers<'a>,
    /// Columns, the length of the chain.
    pub depth: usize,
    /// Rows per gate.
    pub units: usize,
}

/// The numbers that weights are kept as, row after row.
#[derive(Clone, Copy, Debug)]
pub enum Numbers<'a> {
    /// Binary32.
    F32(&'a [f32]),
    /// bfloat16: the upper half of a binary32, whose lower half is zero.
    Bf16(&'a [u16]),
    /// Whole numbers times the scale of their row.
    Int8 {
        /// From -127 to 127.
        whole: &'a [i8],
        /// One for each row.
        scales: &'a [f32],
    },
}

impl<'a> Numbers<'a> {
    /// Steps of a chain that one word of packed weights holds.
    pub fn per_word(&self) -> usize {
        match self {
            Numbers::F32(_) => 1,
            Numbers::Bf16(_) => 2,
            Numbers::Int8 { .. } => 4,
        }
    }

    /// Those of one row, of `depth` columns.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize, depth: usize) -> Numbers<'a> {
        let columns = row * depth..(row + 1) * depth;
        match self {
            Numbers::F32(values) => Numbers::F32(&values[columns]),
            Numbers::Bf16(halves) => Numbers::Bf16(&halves[columns]),
            Numbers::Int8 { whole, scales } => Numbers::Int8 {
                whole: &whole[columns],
                scales: &scales[row..=row],
            },
        }
    }
}

/// The longest product of int8 whose sum, at most `127² · depth`, 32 bits hold.
pub const INT8_DEPTH: usize = (i32::MAX / (127 * 127)) as usize;

impl PackedMatrix {
    /// Packs `gates` (indices of blocks of rows) of the hidden units in `units`.
    ///
    /// # Panics
    /// If the source does not hold those gates and units, or `lanes` is 0; for int8 also if the
    /// depth is beyond [`INT8_DEPTH`].
    pub fn new(
        lanes: usize,
        source: Source<'_>,
        gates: &[usize],
        units: Range<usize>,
        blocking: Blocking,
    ) -> PackedMatrix {
        let (panels, depth) = (units.len().div_ceil(lanes), source.depth);
        let groups = depth.div_ceil(source.numbers.per_word());
        let words = panels * groups * gates.len() * lanes;
        let stripe_gates = match (gates.len(), source.numbers, blocking.stripes) {
            (4, Numbers::F32(_) | Numbers::Bf16(_), Stripes::Two) => 2,
            (gates, ..) => gates,
        };
        let vector = stripe_gates * lanes;
        // The row of the source, the word of its first group, and its place among the gates'
        // vectors.
        let rows = gates.iter().enumerate().flat_map(|(slot, gate)| {
            let units = units.clone().enumerate();
            let stripes = gates.len() / stripe_gates;
            units.map(move |(at, unit)| {
                let stripe = at / lanes * stripes + slot / stripe_gates;
                let lane = slot % stripe_gates * lanes + at % lanes;
                let row = gate * source.units + unit;
                (row, stripe * groups * vector + lane, stripe * vector + lane)
            })
        });
        let of = |row: usize| row * depth..(row + 1) * depth;
        let words = match source.numbers {
            Numbers::F32(values) => {
                let mut words = Values::zeroed(words);
                for (row, first, _) in rows {
                    for (k, value) in values[of(row)].iter().enumerate() {
                        words[first + k * vector] = *value;
                    }
                }
                Words::F32(words)
            }
            Numbers::Bf16(halves) => {
                let mut words = Values::<u32>::zeroed(words);
                for (row, first, _) in rows {
                    for (k, half) in halves[of(row)].iter().enumerate() {
                        words[first + k / 2 * vector] |= u32::from(*half) << (16 * (k % 2));
                    }
                }
                Words::Bf16(words)
            }
            Numbers::Int8 { whole, scales } => {
                assert!(depth <= INT8_DEPTH, "a sum could overflow");
                let mut packed = Int8Words {
                    quads: Values::zeroed(words),
                    scales: Values::zeroed(panels * gates.len() * lanes),
                    sums: Values::zeroed(panels * gates.len() * lanes),
                };
                for (row, first, place) in rows {
                    for (group, quad) in whole[of(row)].chunks(4).enumerate() {
                        let mut bytes = [0; 4];
                        for (byte, q) in bytes.iter_mut().zip(quad) {
                            *byte = *q as u8;
                            packed.sums[place] += i32::from(*q);
                        }
                        packed.quads[first + group * vector] = u32::from_ne_bytes(bytes);
                    }
                    packed.scales[place] = scales[row];
                }
                Words::Int8(packed)
            }
        };
        PackedMatrix {
            words,
            lanes,
            gates: gates.len(),
            stripe_gates,
            depth,
            panels,
        }
    }

    /// Weights of zero for one gate of some units, in binary32, to be set by
    /// [`PackedMatrix::set_columns`].
    ///
    /// # Panics
    /// If `lanes` is 0.
    pub fn zeroed(lanes: usize, units: usize, depth: usize) -> PackedMatrix {
        let panels = units.div_ceil(lanes);
        PackedMatrix {
            words: Words::F32(Values::zeroed(panels * depth * lanes)),
            lanes,
            gates: 1,
            stripe_gates: 1,
            depth,
            panels,
        }
    }

    /// Sets one column of the matrix and those after it: `columns` has all units' values of the
    /// first, then those of the next. From one to the next are `stride` values, of which the first
    /// are set.
    ///
    /// # Panics
    /// If this was not made by [`PackedMatrix::zeroed`], or has fewer columns or units.
    pub fn set_columns(&mut self, first: usize, columns: &[f32], stride: usize, units: usize) {
        let Words::F32(words) = &mut self.words else {
            panic!("the weights are of another precision");
        };
        assert_eq!(self.gates, 1, "the weights have several gates");
        let end = first + columns.len().div_ceil(stride.max(1));
        assert!(end <= self.depth, "the weights have {} columns", self.depth);
        let room = self.panels * self.lanes;
        assert!(units <= room, "the weights have room for {room} units");
        let panel = self.depth * self.lanes;
        for (column, values) in (first..self.depth).zip(columns.chunks(stride)) {
            for (lanes, to) in values[..units]
                .chunks(self.lanes)
                .zip(words.chunks_mut(panel))
            {
                to[column * self.lanes..][..lanes.len()].copy_from_slice(lanes);
            }
        }
    }

    /// Lanes per vector that this was packed for.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Gates per unit.
    pub fn gates(&self) -> usize {
        self.gates
    }

    /// Length of the chain.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Number of panels.
    pub fn panels(&self) -> usize {
        self.panels
    }

    /// What the lanes hold.
    pub(super) fn words(&self) -> &Words {
        &self.words
    }

    /// Gates of a stripe.
    pub(super) fn stripe_gates(&self) -> usize {
        self.stripe_gates
    }

    /// Stripes of a panel: parts of its gates, of as many gates each.
    pub(super) fn stripes(&self) -> usize {
        if self.gates == self.stripe_gates {
            1
        } else {
            2
        }
    }

    /// The weights of some panels, to be prefetched.
    ///
    /// # Panics
    /// If a panel does not exist.
    pub fn as_next(&self, panels: Range<usize>) -> NextProduct {
        self.stripes_as_next(panels.start * self.stripes()..panels.end * self.stripes())
    }

    /// Some stripes, counted through all panels.
    ///
    /// # Panics
    /// If a stripe does not exist.
    pub(super) fn stripes_as_next(&self, stripes: Range<usize>) -> NextProduct {
        let steps = match self.words {
            Words::F32(_) => 1,
            Words::Bf16(_) => 2,
            Words::Int8(_) => 4,
        };
        let size = self.depth.div_ceil(steps) * self.stripe_gates * self.lanes;
        let words = stripes.start * size..stripes.end * size;
        match &self.words {
            Words::F32(all) => NextProduct::of(&all[words]),
            Words::Bf16(all) => NextProduct::of(&all[words]),
            Words::Int8(all) => NextProduct::of(&all.quads[words]),
        }
    }

    /// The weights at the start of some panels, to be prefetched before a product: four vectors for
    /// each step, at least one panel. The product prefetches the rest itself.
    ///
    /// # Panics
    /// If a panel does not exist.
    pub fn first_tile(&self, of: Range<usize>) -> NextProduct {
        let width = (4 / self.gates).max(1);
        self.as_next(of.start..of.end.min(of.start + width))
    }

    /// Words of scratch in which [`super::Kernels::product_in`] has `rows` rows of the left
    /// operand quantised, or laid out for tall tiles; 0 where it has neither, `usize::MAX` where
    /// they cannot be counted.
    pub fn scratch_words(&self, rows: usize) -> usize {
        match self.words {
            Words::Int8(_) => rows.saturating_mul(self.depth.div_ceil(4) + 1),
            _ if self.stripe_gates == 2 => rows.min(LAID_OUT).saturating_mul(self.depth),
            _ => 0,
        }
    }

    /// Whether scratch that a product with these weights has packed serves one of the same rows
    /// with `others`, where both exceed the private caches or neither does.
    pub fn packs_as(&self, others: &PackedMatrix) -> bool {
        // Tall tiles of f32 and of bf16 have other heights.
        self.depth == others.depth
            && discriminant(&self.words) == discriminant(&others.words)
            && (matches!(self.words, Words::Int8(_)) || self.stripe_gates == others.stripe_gates)
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        4 * match &self.words {
            Words::F32(words) => words.len(),
            Words::Bf16(words) => words.len(),
            Words::Int8(words) => words.quads.len() + words.scales.len() + words.sums.len(),
        }
    }
}

/// Packs one value per gate and unit (a bias) as `[panel][gates][lanes]`, zero-filled.
///
/// # Panics
/// If some gate has fewer values than `units` asks for, or `lanes` is 0.
pub fn pack_vectors(lanes: usize, gates: &[&[f32]], units: Range<usize>) -> Aligned {
    let panels = units.len().div_ceil(lanes);
    let mut packed = zeroed(panels * gates.len() * lanes);
    for (slot, values) in gates.iter().enumerate() {
        for (at, value) in values[units.clone()].iter().enumerate() {
            packed[(at / lanes * gates.len() + slot) * lanes + at % lanes] = *value;
        }
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Prefetch;

    #[test]
    fn each_weight_stands_where_the_layout_says() {
        let (units, depth, lanes) = (11, 3, 4);
        let values: Vec<f32> = (0..3 * units * depth).map(|v| v as f32 + 1.0).collect();
        let source = Source {
            numbers: Numbers::F32(&values),
            depth,
            units,
        };
        let packed = PackedMatrix::new(lanes, source, &[0, 2], 4..11, Blocking::default());
        assert_eq!((packed.panels(), packed.bytes()), (2, 2 * 3 * 2 * 4 * 4));
        for panel in 0..2 {
            for k in 0..depth {
                for (slot, gate) in [0, 2].into_iter().enumerate() {
                    for lane in 0..lanes {
                        let unit = 4 + panel * lanes + lane;
                        let expected = if unit < 11 {
                            values[(gate * units + unit) * depth + k]
                        } else {
                            0.0
                        };
                        let Words::F32(words) = packed.words() else {
                            panic!("packed as other numbers");
                        };
                        let vector = panel * depth * 2 + k * 2 + slot;
                        assert_eq!(words[vector * lanes + lane], expected);
                    }
                }
            }
        }
    }

    #[test]
    fn columns_stand_where_rows_do() {
        let (units, depth, lanes, stride) = (11, 7, 4, 13);
        let value = |unit: usize, k: usize| (unit * depth + k) as f32 + 1.0;
        let rows: Vec<f32> = (0..units * depth)
            .map(|at| value(at / depth, at % depth))
            .collect();
        let source = Source {
            numbers: Numbers::F32(&rows),
            depth,
            units,
        };
        let expected = PackedMatrix::new(lanes, source, &[0], 0..units, Blocking::default());
        let mut found = PackedMatrix::zeroed(lanes, units, depth);
        for first in (0..depth).step_by(3) {
            let mut columns = Vec::new();
            for k in first..depth.min(first + 3) {
                columns.extend((0..stride).map(|unit| value(unit, k)));
            }
            found.set_columns(first, &columns, stride, units);
        }
        let words = |packed: &PackedMatrix| match packed.words() {
            Words::F32(words) => words.to_vec(),
            _ => panic!("packed as other numbers"),
        };
        assert_eq!(words(&found), words(&expected));
        assert_eq!(found.bytes(), expected.bytes());
    }

    /// What the rows of a product were laid out as serves others only of the same numbers, depth
    /// and, but in int8, stripes.
    #[test]
    fn scratch_is_packed_for_weights_of_the_same_kind() {
        let (max, depth) = (4 * 16, 100);
        let (values, halves) = (vec![1.0; max * depth], vec![1; max * depth]);
        let (whole, scales) = (vec![1; max * depth], vec![1.0; max]);
        let pack = |numbers, depth, blocking| {
            let source = Source {
                numbers,
                depth,
                units: 16,
            };
            PackedMatrix::new(16, source, &[0, 1, 2, 3], 0..16, blocking)
        };
        let int8 = Numbers::Int8 {
            whole: &whole,
            scales: &scales,
        };
        let kinds = [Numbers::F32(&values), Numbers::Bf16(&halves), int8];
        for (at, one) in kinds.into_iter().enumerate() {
            let filled = pack(one, depth, STRIPED);
            for (other_at, other) in kinds.into_iter().enumerate() {
                let serves = filled.packs_as(&pack(other, depth, STRIPED));
                assert_eq!(serves, at == other_at, "{at} for {other_at}");
            }
            assert!(!filled.packs_as(&pack(one, depth - 4, STRIPED)));
            let serves = filled.packs_as(&pack(one, depth, Blocking::default()));
            assert_eq!(serves, matches!(one, Numbers::Int8 { .. }), "{at}");
        }
    }

    const STRIPED: Blocking = Blocking {
        stripes: Stripes::Two,
        tile_rows: 0,
        prefetch: Prefetch::Off,
    };

    /// Only panels of four gates in f32 or bf16 are striped, and each weight is at its place.
    #[test]
    fn panels_of_four_gates_are_striped() {
        let (depth, lanes, panels) = (101, 16, 3);
        for (gates, numbers, stripes) in [
            (4, "f32", 2),
            (4, "bf16", 2),
            (4, "int8", 1),
            (3, "f32", 1),
            (2, "bf16", 1),
            (1, "f32", 1),
        ] {
            let units = panels * lanes - 3;
            let count = gates * units * depth;
            let value = |at: usize| (at % 8191) as f32;
            let values: Vec<f32> = (0..count).map(value).collect();
            let (halves, whole, scales) =
                (vec![1; count], vec![1; count], vec![1.0; gates * units]);
            let source = Source {
                numbers: match numbers {
                    "f32" => Numbers::F32(&values),
                    "bf16" => Numbers::Bf16(&halves),
                    _ => Numbers::Int8 {
                        whole: &whole,
                        scales: &scales,
                    },
                },
                depth,
                units,
            };
            let all: Vec<usize> = (0..gates).collect();
            let plain = PackedMatrix::new(lanes, source, &all, 0..units, Blocking::default());
            assert_eq!(plain.stripes(), 1);
            let packed = PackedMatrix::new(lanes, source, &all, 0..units, STRIPED);
            assert_eq!((packed.panels(), packed.stripes()), (panels, stripes));
            let Words::F32(words) = packed.words() else {
                continue;
            };
            let of_stripe = gates / stripes;
            for (gate, unit, k) in [
                (0, 0, 0),
                (gates - 1, 17, 5),
                (gates - 1, units - 1, depth - 1),
            ] {
                let stripe = unit / lanes * stripes + gate / of_stripe;
                let vector = (stripe * depth + k) * of_stripe + gate % of_stripe;
                let expected = values[(gate * units + unit) * depth + k];
                assert_eq!(words[vector * lanes + unit % lanes], expected);
            }
        }
    }

    #[test]
    fn a_first_tile_has_four_vectors_or_a_panel() {
        let (units, depth, lanes) = (20, 3, 4);
        let values = vec![1.0; 5 * units * depth];
        let source = Source {
            numbers: Numbers::F32(&values),
            depth,
            units,
        };
        for (gates, panels) in [(1, 4), (2, 2), (3, 1), (4, 1), (5, 1)] {
            let all: Vec<usize> = (0..gates).collect();
            let packed = PackedMatrix::new(lanes, source, &all, 0..units, Blocking::default());
            for (of, max) in [(0..5, 5), (1..3, 2), (4..5, 1), (2..2, 0)] {
                let expected = packed.as_next(of.start..of.start + panels.min(max));
                assert_eq!(packed.first_tile(of), expected, "{gates} gates");
            }
        }
    }

    #[test]
    fn bias_vectors_are_zero_filled() {
        let packed = pack_vectors(4, &[&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]], 1..3);
        assert_eq!(packed[..], [2.0, 3.0, 0.0, 0.0, 5.0, 6.0, 0.0, 0.0]);
    }
}
