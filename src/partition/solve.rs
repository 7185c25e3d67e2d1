//! The best splits, by the bytes that they move.

use std::cmp::Reverse;

use super::{Movement, PanelOrder, Problem, Split};

/// Which dimensions may be cut besides the hidden units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// X_i > 1: several cores hold the same weights, for different sequences.
    pub split_rows: bool,
    /// X_k > 1: cores hold parts of a chain, whose sums must be added. It changes the rounding, so
    /// no plan can hold such a split and nothing executes one: this is for asking what it would
    /// move.
    pub split_depth: bool,
}

impl Default for Options {
    /// Rows may be split, depth not.
    fn default() -> Options {
        Options {
            split_rows: true,
            split_depth: false,
        }
    }
}

/// A way to run a product, and what it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// How it is split.
    pub split: Split,
    /// How each core goes through its panels.
    pub order: PanelOrder,
    /// Bytes of all cores together.
    pub all: Movement,
    /// Bytes of the core that moves the most over the sequence.
    pub busiest: Movement,
}

impl Problem {
    /// Every split over exactly `ways` cores in both orders, best first: fewest bytes over the
    /// sequence; then fewest of the busiest core; then more parts of the units; then cyclic, since
    /// nothing is gained by turning. Empty where `ways` cores cannot all have a part.
    pub fn solve(&self, ways: usize, options: Options) -> Vec<Candidate> {
        let splits = self.splits(ways, options).into_iter();
        let mut candidates: Vec<_> = splits
            .flat_map(|split| {
                [PanelOrder::Cyclic, PanelOrder::Serpentine]
                    .map(|order| self.candidate(split, order))
            })
            .collect();
        candidates.sort_by_key(|candidate| {
            (
                candidate.all.total,
                candidate.busiest.total,
                Reverse(candidate.split.units),
                candidate.split.rows,
                candidate.order,
            )
        });
        candidates
    }

    /// The best of [`Problem::solve`] for each number of cores from 1 to `cores` that can all have
    /// a part, in that order.
    pub fn best(&self, cores: usize, options: Options) -> Vec<Candidate> {
        (1..=cores)
            .filter_map(|ways| self.solve(ways, options).into_iter().next())
            .collect()
    }

    /// What one split moves in one order.
    pub fn candidate(&self, split: Split, order: PanelOrder) -> Candidate {
        let (all, busiest) = self.movement(split, order);
        Candidate {
            split,
            order,
            all,
            busiest,
        }
    }
}
