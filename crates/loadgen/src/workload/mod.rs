//! Requests and their arrival times.

mod arrivals;
mod lengths;
mod lengths_option;
mod network;
mod trees;

use std::sync::Arc;

use fastrand::Rng;

pub use arrivals::{Arrivals, DueTimes, TraceError};
pub use lengths::Lengths;
pub use lengths_option::{LengthsError, LengthsOption};
pub use network::Network;
pub use trees::{Tree, TreesError, TreesOption};

/// The shape of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestShape {
    /// A chain.
    Chain {
        /// Number of steps, at least 1.
        steps: usize,
    },
    /// Words to read and words to write. The decoder stops at the length of the known translation,
    /// as in the paper; policies do not see that length.
    Pair {
        /// Steps of the encoder, at least 1.
        source: usize,
        /// Steps of the decoder, at least 1.
        target: usize,
    },
    /// A tree with a cell for each node.
    Tree(Tree),
}

/// One request, before its values are made.
#[derive(Clone, Debug)]
pub struct RequestSpec {
    /// Number and order of its cells.
    pub shape: RequestShape,
    /// Determines its values: they are the same for all targets.
    pub seed: u64,
}

/// The distribution of requests. Draws are independent.
#[derive(Clone, Debug)]
pub enum Workload {
    /// Chains.
    Chains(Lengths),
    /// Pairs of lengths.
    Pairs(Lengths),
    /// Trees, all with the same probability.
    Trees(Arc<[Tree]>),
}

impl Workload {
    /// Draws a request.
    pub fn draw(&self, random: &mut Rng) -> RequestSpec {
        let shape = match self {
            Workload::Chains(lengths) => RequestShape::Chain {
                steps: lengths.draw(random),
            },
            Workload::Pairs(lengths) => {
                let (source, target) = lengths.draw_pair(random);
                RequestShape::Pair { source, target }
            }
            Workload::Trees(trees) => {
                RequestShape::Tree(trees[random.usize(..trees.len())].clone())
            }
        };
        let seed = random.u64(..);
        RequestSpec { shape, seed }
    }

    /// Number of rows of input values in the largest request; 0 for pairs, which have words.
    pub fn max_rows(&self) -> usize {
        match self {
            Workload::Chains(lengths) => lengths.longest(),
            Workload::Pairs(_) => 0,
            Workload::Trees(trees) => trees.iter().map(Tree::rows).max().unwrap_or(0),
        }
    }

    /// Whether all requests have the same shape, as the ideal policy needs.
    pub fn is_identical(&self) -> bool {
        match self {
            Workload::Chains(lengths) | Workload::Pairs(lengths) => lengths.is_fixed(),
            Workload::Trees(trees) => trees.len() == 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(leaves: usize) -> Tree {
        Tree::complete(leaves, Network::Treelstm).unwrap()
    }

    #[test]
    fn max_rows_are_those_of_the_largest() {
        let rows = Lengths::Rows([(3, 9), (7, 2)].into());
        assert_eq!(Workload::Chains(rows.clone()).max_rows(), 7);
        assert_eq!(Workload::Pairs(rows).max_rows(), 0);
        assert_eq!(Workload::Chains(Lengths::Fixed(24)).max_rows(), 24);
        let paper = Lengths::paper(50).unwrap();
        assert_eq!(Workload::Chains(paper).max_rows(), 50);
        assert_eq!(Workload::Trees([8, 2].map(complete).into()).max_rows(), 8);
    }

    #[test]
    fn the_same_seed_draws_the_same_requests() {
        let workload = Workload::Trees([2, 4, 8].map(complete).into());
        let draw = |seed| {
            let mut random = Rng::with_seed(seed);
            let one = |_| workload.draw(&mut random);
            let all: Vec<_> = (0..50).map(one).map(|r| (r.shape, r.seed)).collect();
            all
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
        let sizes = draw(5).into_iter().map(|(shape, _)| match shape {
            RequestShape::Tree(tree) => tree.rows(),
            other => panic!("{other:?} is no tree"),
        });
        let sizes: std::collections::BTreeSet<_> = sizes.collect();
        assert_eq!(sizes.into_iter().collect::<Vec<_>>(), [2, 4, 8]);
    }

    #[test]
    fn one_length_or_one_tree_is_identical() {
        assert!(Workload::Chains(Lengths::Fixed(24)).is_identical());
        assert!(!Workload::Chains(Lengths::paper(330).unwrap()).is_identical());
        let tree = complete(16);
        assert!(Workload::Trees([tree.clone()].into()).is_identical());
        assert!(!Workload::Trees([tree.clone(), tree].into()).is_identical());
    }
}
