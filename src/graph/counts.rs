//! How large a graph is, by formula, so that it can be said of any number of steps.

use crate::model::Model;

use super::{Chain, Product, chains};

/// How large a graph is.
///
/// Per direction over `T` steps; `last` is the number of products that a step's output is directly
/// made of, `waiting` the number of products that wait for the state of the step before:
///
/// ```text
/// nodes  T · products of a step
/// edges  from the step before   (T - 1) · waiting · last
///        within a step          T · edges of the step's graph
///        from the layer below   T · input products · (the sum of `last` over the directions below)
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
    /// use gatestream::graph::GraphCounts;
    /// use gatestream::model::Lstm;
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
                let of_step = |counted: &dyn Fn(Product) -> bool| {
                    chain.products().filter(|each| counted(*each)).count() as u128
                };
                let inputs = of_step(&|product| matches!(product, Product::Input(_)));
                input += inputs * steps;
                recurrent += of_step(&|product| matches!(product, Product::Recurrent(_))) * steps;
                projections += of_step(&|product| product == Product::Projection) * steps;
                let waiting = of_step(&|product| chain.step.waits_for_state(product));
                let within = chain.products();
                let within = within.map(|product| chain.step.needed_by(product).count() as u128);
                edges += steps.saturating_sub(1) * waiting * last(chain);
                edges += steps * within.sum::<u128>();
                edges += steps * inputs * below;
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
    chain.step.last().count() as u128
}

/// A longest path walks along one direction of each layer, and climbs to the next where it stands.
/// In a layer it has `c` products at the step where it enters and `c` at each step it walks on
/// (`c` is 2 where a step has two phases, else 1). Where to climb is a linear programme whose
/// corners are the ends of the sequence, so two positions are enough to remember.
fn critical_path(layers: &[Vec<Chain>], steps: u128) -> u128 {
    if steps == 0 {
        return 0;
    }
    let phases = |chain: &Chain| chain.step.phases() as u128;
    let (mut at_start, mut at_end) = (0, 0);
    for layer in layers {
        let (mut start, mut end) = (0, 0);
        for chain in layer {
            let (enter, walk) = (phases(chain), phases(chain) * steps);
            start = start.max(at_start + enter);
            end = end.max(at_end + enter);
            if chain.reverse {
                start = start.max(at_end + walk);
            } else {
                end = end.max(at_start + walk);
            }
        }
        (at_start, at_end) = (start, end);
    }
    at_start.max(at_end)
}
