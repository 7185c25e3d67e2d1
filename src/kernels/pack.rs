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

use std::ops::Range;

use super::values::{Aligned, Values, zeroed};

/// The weights of some hidden units for one product, packed for one lane count.
#[derive(Debug)]
pub struct PackedMatrix {
    data: Values,
    lanes: usize,
    gates: usize,
    depth: usize,
    panels: usize,
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

impl PackedMatrix {
    /// Packs `gates` (indices of blocks of rows) of the hidden units in `units`.
    ///
    /// # Panics
    /// If the source does not hold those gates and units, or `lanes` is 0.
    pub fn new(
        lanes: usize,
        source: Source<'_>,
        gates: &[usize],
        units: Range<usize>,
    ) -> PackedMatrix {
        let panels = units.len().div_ceil(lanes);
        let depth = source.depth;
        let mut data = Values::zeroed(panels * depth * gates.len() * lanes);
        let vector = gates.len() * lanes;
        for (slot, gate) in gates.iter().enumerate() {
            for (at, unit) in units.clone().enumerate() {
                let row = &source.values[(gate * source.units + unit) * depth..][..depth];
                let first = at / lanes * depth * vector + slot * lanes + at % lanes;
                for (k, value) in row.iter().enumerate() {
                    data[first + k * vector] = *value;
                }
            }
        }
        PackedMatrix {
            data,
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

    /// One panel, `[depth][gates][lanes]`.
    pub fn panel(&self, panel: usize) -> &[f32] {
        let size = self.depth * self.gates * self.lanes;
        &self.data[panel * size..(panel + 1) * size]
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        4 * self.data.len()
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
                        assert_eq!(packed.panel(panel)[(k * 2 + slot) * lanes + lane], expected);
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
