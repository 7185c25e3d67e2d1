//! How large a graph is, by formula, so that it can be said of any number of steps.

use crate::model::Model;

use super::{Chain, chains};

/// How large a graph is.
///
/// Per direction with `G` gates, over `T` steps; `last` is the number of products that a step's
/// output is directly made of (1 with a projection, 4 in a GRU that resets before, else `2 G`):
///
/// ```text
/// nodes  2 G T, + T with a projection
/// edges  from the step before   (T - 1) · (products with h: G, or 2 in a GRU that resets before) · last
///        within a step          T · (2 G with a projection; 2 in a GRU that resets before)
///        from the layer below   T · G · (the sum of `last` over the directions below)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphCounts {
    /// All nodes.
    pub nodes: u128,
    /// Products with the layer's input.
    pub input: u128,
    /// Products with the state.
    pub recurrent: u128,
    /// Projections.
    pub projections: u128,
    /// All edges.
    pub edges: u128,
    /// Nodes on a longest path: products that must wait for one another, whatever the number of
    /// cores.
    pub critical_path: u128,
}

impl GraphCounts {
    /// The size of the graph of `model` over `steps` steps, without making it.
    ///
    /// ```
    /// use cellstream::graph::GraphCounts;
    /// use cellstream::model::Lstm;
    ///
    /// let counts = GraphCounts::of(&Lstm::new(8, 16).layers(2).random(1)?, 1_000_000);
    /// assert_eq!((counts.nodes, counts.critical_path), (16_000_000, 1_000_001));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(model: &Model, steps: usize) -> GraphCounts {
        GraphCounts::of_chains(&chains(model.layers()), steps)
    }

    pub(super) fn of_chains(layers: &[Vec<Chain>], steps: usize) -> GraphCounts {
        let (mut input, mut recurrent, mut projections, mut edges) = (0, 0, 0, 0);
        let steps = steps as u128;
        let mut below = 0;
        for layer in layers {
            for chain in layer {
                let gates = u128::from(chain.gates());
                input += gates * steps;
                recurrent += gates * steps;
                projections += u128::from(chain.projection) * steps;
                let (with_state, within) = match (chain.projection, chain.resets_before) {
                    (true, _) => (gates, 2 * gates),
                    (_, true) => (gates - 1, 2),
                    _ => (gates, 0),
                };
                edges += steps.saturating_sub(1) * with_state * last(chain) + steps * within;
                edges += steps * gates * below;
            }
            below = layer.iter().map(last).sum();
        }
        GraphCounts {
            nodes: input + recurrent + projections,
            input,
            recurrent,
            projections,
            edges,
            critical_path: critical_path(layers, steps),
        }
    }
}

fn last(chain: &Chain) -> u128 {
    chain.last().count() as u128
}

/// A longest path walks along one direction of each layer, and climbs to the next where it stands.
/// In a layer it meets `c` products at the step where it enters and `c` at each step it walks on
/// (`c` is 2 where a step has two phases, else 1). Where to climb is a linear programme whose
/// corners are the ends of the sequence, so two positions are enough to remember.
fn critical_path(layers: &[Vec<Chain>], steps: u128) -> u128 {
    if steps == 0 {
        return 0;
    }
    let phases = |chain: &Chain| 1 + u128::from(chain.projection || chain.resets_before);
    let (mut at_start, mut at_end) = (0, 0);
    for layer in layers {
        let (mut start, mut end) = (0, 0);
        for chain in layer {
            let (enter, walk) = (phases(chain), phases(chain) * steps);
            start = start.max(at_start + enter);
            end = end.max(at_end + enter);
            match chain.reverse {
                false => end = end.max(at_start + walk),
                true => start = start.max(at_end + walk),
            }
        }
        (at_start, at_end) = (start, end);
    }
    at_start.max(at_end)
}
