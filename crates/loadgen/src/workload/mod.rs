//! What is asked of a server: networks, requests, and where requests are drawn from.

pub mod arrivals;
pub mod lengths;
pub mod trees;

use std::sync::Arc;

use fastrand::Rng;

use crate::workload::lengths::Lengths;
use crate::workload::trees::Tree;

/// What the server computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// A chain of LSTM cells
    Lstm,
    /// A chain of GRU cells
    Gru,
    /// An LSTM encoder and an LSTM decoder that is fed its own words
    Seq2seq,
    /// A binary TreeLSTM with leaf and internal cells
    Treelstm,
    /// A child-sum TreeLSTM, any number of children
    TreeChildSum,
}

impl Network {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Network::Lstm => "lstm",
            Network::Gru => "gru",
            Network::Seq2seq => "seq2seq",
            Network::Treelstm => "treelstm",
            Network::TreeChildSum => "tree-child-sum",
        }
    }

    /// Its cells, in the order in which batch sizes are given.
    pub fn cells(self) -> &'static [&'static str] {
        match self {
            Network::Lstm | Network::Gru => &["chain"],
            Network::Seq2seq => &["encoder", "decoder"],
            Network::Treelstm => &["tree leaf", "tree node"],
            Network::TreeChildSum => &["tree child", "tree node"],
        }
    }

    /// Whether its requests are trees.
    pub fn is_tree(self) -> bool {
        matches!(self, Network::Treelstm | Network::TreeChildSum)
    }
}

/// What one request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A chain of so many steps.
    Chain {
        /// At least 1.
        steps: usize,
    },
    /// So many words read, then so many written: as the paper, the decoder stops at the length of the known
    /// translation, which no policy is told.
    Pair {
        /// Steps of the encoder, at least 1.
        source: usize,
        /// Steps of the decoder, at least 1.
        target: usize,
    },
    /// A tree, a cell for each node.
    Tree(Tree),
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// What it asks for.
    pub work: Work,
    /// For its values: the same request has the same values whatever the policy.
    pub seed: u64,
}

/// Where requests are drawn from, each anew and independent of those before.
#[derive(Clone, Debug)]
pub enum Workload {
    /// Chains.
    Chains(Lengths),
    /// Pairs of lengths.
    Pairs(Lengths),
    /// Trees, each as likely as the others.
    Trees(Arc<[Tree]>),
}

impl Workload {
    /// The next request.
    pub fn draw(&self, random: &mut Rng) -> Request {
        let work = match self {
            Workload::Chains(lengths) => Work::Chain {
                steps: lengths.draw(random),
            },
            Workload::Pairs(lengths) => {
                let (source, target) = lengths.draw_pair(random);
                Work::Pair { source, target }
            }
            Workload::Trees(trees) => Work::Tree(trees[random.usize(..trees.len())].clone()),
        };
        Request {
            work,
            seed: random.u64(..),
        }
    }

    /// Rows of input values that the largest request takes; pairs take words instead.
    pub fn most_rows(&self) -> usize {
        match self {
            Workload::Chains(lengths) => lengths.longest(),
            Workload::Pairs(_) => 0,
            Workload::Trees(trees) => trees.iter().map(Tree::rows).max().unwrap_or(0),
        }
    }

    /// Whether all requests ask for the same, so that a policy may be told beforehand.
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
    fn no_request_takes_more_rows_than_the_largest() {
        let rows = Lengths::Rows([(3, 9), (7, 2)].into());
        assert_eq!(Workload::Chains(rows.clone()).most_rows(), 7);
        assert_eq!(Workload::Pairs(rows).most_rows(), 0);
        assert_eq!(Workload::Chains(Lengths::Fixed(24)).most_rows(), 24);
        let paper = Lengths::paper(50).unwrap();
        assert_eq!(Workload::Chains(paper).most_rows(), 50);
        assert_eq!(Workload::Trees([8, 2].map(complete).into()).most_rows(), 8);
    }

    #[test]
    fn the_same_seed_draws_the_same_requests() {
        let workload = Workload::Trees([2, 4, 8].map(complete).into());
        let draw = |seed| {
            let mut random = Rng::with_seed(seed);
            let one = |_| workload.draw(&mut random);
            let all: Vec<_> = (0..50).map(one).map(|r| (r.work, r.seed)).collect();
            all
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
        let sizes = draw(5).into_iter().map(|(work, _)| match work {
            Work::Tree(tree) => tree.rows(),
            other => panic!("{other:?} is no tree"),
        });
        let sizes: std::collections::BTreeSet<_> = sizes.collect();
        assert_eq!(sizes.into_iter().collect::<Vec<_>>(), [2, 4, 8]);
    }

    #[test]
    fn identical_is_what_has_one_length_or_one_tree() {
        assert!(Workload::Chains(Lengths::Fixed(24)).is_identical());
        assert!(!Workload::Chains(Lengths::paper(330).unwrap()).is_identical());
        let tree = complete(16);
        assert!(Workload::Trees([tree.clone()].into()).is_identical());
        assert!(!Workload::Trees([tree.clone(), tree].into()).is_identical());
    }
}
