//! Weights in the order that the microkernel reads them.
//!
//! ```text
//! for panel in 0..panels          LANES hidden units each; the last is filled up with zeros
//!   for k in 0..depth             input features, or values of the state
//!     for gate in 0..gates
//!       for lane in 0..LANES      one vector load
//! ```
//!
//! All gates of a unit stand in one panel, so that whoever owns the unit has everything its
//! activation needs. One order serves every batch size: a tile takes one panel for many rows, or
//! several panels for few.
//!
//! Smaller numbers fill the same words: in a lane's four bytes stand two bf16 (of `k`, the even one
//! lower, and `k + 1`) or four int8 (of `k` to `k + 3`, in the order of memory), so that `k` goes by
//! two or by four; what is beyond the depth is zero.

use std::ops::Range;

use super::values::{Aligned, Values, zeroed};

/// The weights of some hidden units for one product, packed for one lane count.
#[derive(Debug)]
pub struct PackedMatrix {
    words: Words,
    lanes: usize,
    gates: usize,
    depth: usize,
    panels: usize,
}

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
    /// `[panel][gates][lanes]`.
    pub scales: Values,
    /// The sum of the weights that a scale belongs to, `[panel][gates][lanes]`.
    pub sums: Values<i32>,
}

/// A row-major matrix `[gates * units, depth]` of which some gates and units are packed.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// All values, row after row.
    pub values: &'a [f32],
    /// Columns, the length of the chain.
    pub depth: usize,
    /// Rows per gate.
    pub units: usize,
}

/// The numbers that weights are kept as. They must be able to hold the values: what others become is
/// not defined.
#[derive(Clone, Copy, Debug)]
pub enum Numbers<'a> {
    /// Binary32.
    F32,
    /// The upper half of a binary32, whose lower half is zero.
    Bf16,
    /// Whole numbers from -127 to 127, times a scale for each row of the source.
    Int8(&'a [f32]),
}

impl Numbers<'_> {
    /// Steps of a chain that one word holds.
    pub fn per_word(&self) -> usize {
        match self {
            Numbers::F32 => 1,
            Numbers::Bf16 => 2,
            Numbers::Int8(_) => 4,
        }
    }
}

/// The longest product of int8 whose sum, at most `127² · depth`, 32 bits hold.
pub const INT8_DEPTH: usize = (i32::MAX / (127 * 127)) as usize;

impl PackedMatrix {
    /// Packs `gates` (indices of blocks of rows) of the hidden units in `units`, as binary32.
    ///
    /// # Panics
    /// If the source does not hold those gates and units, or `lanes` is 0.
    pub fn new(
        lanes: usize,
        source: Source<'_>,
        gates: &[usize],
        units: Range<usize>,
    ) -> PackedMatrix {
        PackedMatrix::of(Numbers::F32, lanes, source, gates, units)
    }

    /// As [`PackedMatrix::new`], kept as other numbers.
    ///
    /// # Panics
    /// As [`PackedMatrix::new`]; for int8 also if there are fewer scales than rows, or the depth is
    /// beyond [`INT8_DEPTH`].
    pub fn of(
        numbers: Numbers<'_>,
        lanes: usize,
        source: Source<'_>,
        gates: &[usize],
        units: Range<usize>,
    ) -> PackedMatrix {
        let (panels, depth) = (units.len().div_ceil(lanes), source.depth);
        let groups = depth.div_ceil(numbers.per_word());
        let vector = gates.len() * lanes;
        // The row of the source, the word of its first group, and its place among the gates' vectors.
        let rows = gates.iter().enumerate().flat_map(|(slot, gate)| {
            let units = units.clone().enumerate();
            units.map(move |(at, unit)| {
                let (panel, lane) = (at / lanes, slot * lanes + at % lanes);
                let row = gate * source.units + unit;
                (row, panel * groups * vector + lane, panel * vector + lane)
            })
        });
        let values = |row: usize| &source.values[row * depth..][..depth];
        let words = panels * groups * vector;
        let words = match numbers {
            Numbers::F32 => {
                let mut words = Values::zeroed(words);
                for (row, first, _) in rows {
                    for (k, value) in values(row).iter().enumerate() {
                        words[first + k * vector] = *value;
                    }
                }
                Words::F32(words)
            }
            Numbers::Bf16 => {
                let mut words = Values::<u32>::zeroed(words);
                for (row, first, _) in rows {
                    for (k, value) in values(row).iter().enumerate() {
                        let half = value.to_bits() >> 16;
                        words[first + k / 2 * vector] |= half << (16 * (k % 2));
                    }
                }
                Words::Bf16(words)
            }
            Numbers::Int8(scales) => {
                assert!(depth <= INT8_DEPTH, "a sum could overflow");
                let mut packed = Int8Words {
                    quads: Values::zeroed(words),
                    scales: Values::zeroed(panels * vector),
                    sums: Values::zeroed(panels * vector),
                };
                for (row, first, place) in rows {
                    let scale = scales[row];
                    for (k, value) in values(row).iter().enumerate() {
                        let q = whole(*value, scale);
                        let quad = &mut packed.quads[first + k / 4 * vector];
                        let mut bytes = quad.to_ne_bytes();
                        bytes[k % 4] = q as u8;
                        *quad = u32::from_ne_bytes(bytes);
                        packed.sums[place] += i32::from(q);
                    }
                    packed.scales[place] = scale;
                }
                Words::Int8(packed)
            }
        };
        PackedMatrix {
            words,
            lanes,
            gates: gates.len(),
            depth,
            panels,
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

    /// Words of room that [`super::Kernels::product_in`] needs to quantise so many rows of the left
    /// operand; 0 where it does not.
    pub fn room(&self, rows: usize) -> usize {
        match self.words {
            Words::Int8(_) => rows * (self.depth.div_ceil(4) + 1),
            _ => 0,
        }
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

/// How many scales a value is; 0 of a row of zeros, whose scale is 0.
fn whole(value: f32, scale: f32) -> i8 {
    (value / scale).round_ties_even().clamp(-127.0, 127.0) as i8
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

    #[test]
    fn each_weight_stands_where_the_layout_says() {
        let (units, depth, lanes) = (11, 3, 4);
        let values: Vec<f32> = (0..3 * units * depth).map(|v| v as f32 + 1.0).collect();
        let source = Source {
            values: &values,
            depth,
            units,
        };
        let packed = PackedMatrix::new(lanes, source, &[0, 2], 4..11);
        assert_eq!((packed.panels(), packed.bytes()), (2, 2 * 3 * 2 * 4 * 4));
        for panel in 0..2 {
            for k in 0..depth {
                for (slot, gate) in [0, 2].into_iter().enumerate() {
                    for lane in 0..lanes {
                        let unit = 4 + panel * lanes + lane;
                        let expected = match unit < 11 {
                            true => values[(gate * units + unit) * depth + k],
                            false => 0.0,
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
    fn bias_vectors_are_zero_filled() {
        let packed = pack_vectors(4, &[&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]], 1..3);
        assert_eq!(packed[..], [2.0, 3.0, 0.0, 0.0, 5.0, 6.0, 0.0, 0.0]);
    }
}
