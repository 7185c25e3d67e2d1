//! The MM-DAG: one node per matrix product of a run, edges for what must be finished before.
//!
//! Everything between two products (adding, activations, the cell state, concatenating or summing
//! directions) is elementwise and belongs to the edge (deepcpu section 4: an RNN *is* its matrix
//! products). Nothing is stored per node: the place of a node in the order, and what it needs,
//! follow from its coordinates, so a graph takes the room of its layers however many steps it has.

mod counts;
mod dot;

use std::fmt;

use crate::model::{Cell, CellKind, Direction, Layer, Model, ResetForm};

pub use counts::GraphCounts;

/// Most nodes of a [`Graph`], because what is made of one (a phased schedule, a drawing) lists
/// them all. [`GraphCounts`] has no limit.
pub const MOST_NODES: u128 = 10_000_000;

/// One of the products of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Product {
    /// `W_gate · x`. Gates are counted in the order of the weights' blocks of rows.
    Input(u8),
    /// `U_gate · h`, or `U_gate · (r∘h)` for the candidate of a GRU that resets before.
    Recurrent(u8),
    /// `P · m`, the projection of an LSTM's new state.
    Projection,
}

impl Product {
    /// Whether an operand is made of the state of the step before, so that the product has to wait
    /// for the recurrence: all but input products.
    pub fn needs_state(self) -> bool {
        !matches!(self, Product::Input(_))
    }

    /// Its weights as a person would write them: `W_i`, `U_f`, `P`; an RNN's `W` and `U`.
    pub fn weights(self, kind: CellKind) -> String {
        let letters: &[u8] = match kind {
            CellKind::Rnn => b"",
            CellKind::Gru => b"rzn",
            CellKind::Lstm => b"ifgo",
        };
        let of = |matrix: &str, gate: u8| match letters.get(usize::from(gate)) {
            Some(&letter) => format!("{matrix}_{}", char::from(letter)),
            None => matrix.to_owned(),
        };
        match self {
            Product::Input(gate) => of("W", gate),
            Product::Recurrent(gate) => of("U", gate),
            Product::Projection => "P".to_owned(),
        }
    }
}

/// One matrix product of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// The layer, from 0.
    pub layer: usize,
    /// The direction of the layer, 0 or 1.
    pub direction: usize,
    /// How many steps the direction has walked before this one: `step`, or for a reverse direction
    /// `steps - 1 - step`.
    pub taken: usize,
    /// The step of the sequence that it belongs to, from 0.
    pub step: usize,
    /// Which of the step's products.
    pub product: Product,
}

/// Why there is no graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// More nodes than [`MOST_NODES`].
    #[error(
        "a graph of {nodes} products is more than the {MOST_NODES} that are drawn or scheduled one \
         by one; ask for fewer than {steps} steps"
    )]
    TooLarge {
        /// The nodes it would have.
        nodes: u128,
        /// The steps asked for.
        steps: usize,
    },
}

/// What the graph needs to know of a direction.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chain {
    kind: CellKind,
    resets_before: bool,
    projection: bool,
    reverse: bool,
}

impl Chain {
    fn of(direction: &Direction) -> Chain {
        let before = ResetForm::Before;
        Chain {
            kind: direction.cell().kind(),
            resets_before: matches!(direction.cell(), Cell::Gru { reset, .. } if *reset == before),
            projection: direction.weights().projection.is_some(),
            reverse: direction.is_reverse(),
        }
    }

    fn gates(&self) -> u8 {
        match self.kind {
            CellKind::Lstm => 4,
            CellKind::Gru => 3,
            CellKind::Rnn => 1,
        }
    }

    /// The products of a step: input, then recurrent, then the projection.
    fn products(&self) -> impl Iterator<Item = Product> + use<> {
        let gates = self.gates();
        let projection = self.projection.then_some(Product::Projection);
        (0..gates)
            .map(Product::Input)
            .chain((0..gates).map(Product::Recurrent))
            .chain(projection)
    }

    fn products_per_step(&self) -> usize {
        2 * usize::from(self.gates()) + usize::from(self.projection)
    }

    /// The products that a step's output is made of and that no other product of the step needs;
    /// who needs the output needs these, and through them all the rest.
    fn last(&self) -> impl Iterator<Item = Product> + use<> {
        let (projection, resets_before) = (self.projection, self.resets_before);
        self.products().filter(move |product| match product {
            Product::Projection => true,
            Product::Input(0) | Product::Recurrent(0) => !projection && !resets_before,
            _ => !projection,
        })
    }

    /// The products of the same step that `product` needs.
    fn within_step(&self, product: Product) -> impl Iterator<Item = Product> + use<> {
        let reset = self.resets_before && product == Product::Recurrent(2);
        let all = product == Product::Projection;
        self.products().filter(move |needed| match needed {
            Product::Projection => false,
            Product::Input(0) | Product::Recurrent(0) => all || reset,
            _ => all,
        })
    }
}

/// The matrix products of a model, or of one layer, over a number of steps, and their dependences.
///
/// The edges are the fewest with the same meaning (the transitive reduction): a product that needs
/// a state has an edge from each product that the state is made of, except from those that another
/// of them already needs. With `t` counted in the order in which a direction walks:
///
/// | product | has an edge from |
/// |---|---|
/// | `W·x(t)` of layer 0 | nothing |
/// | `W·x(t)` of a layer above | what the output of step `t` below is made of, all directions |
/// | `U·h(t-1)` | what `h(t-1)` is made of |
/// | `U_n·(r∘h(t-1))`, reset before | `W_r·x(t)` and `U_r·h(t-1)`, which has waited for `h(t-1)` |
/// | `P·m(t)` | all other products of `t` |
///
/// `h(t-1)` is made of all products of `t-1`: where there is a projection, only of that; in a GRU that resets before, of all but
/// `W_r` and `U_r`.
///
/// All sequences have the same length here: a padded step of a shorter one computes nothing, so it
/// takes no dependence away. An LSTM whose forget gate is coupled to its input gate keeps its
/// block of forget weights, and so its products.
///
/// ```
/// use cellstream::graph::Graph;
/// use cellstream::model::Lstm;
///
/// let graph = Graph::new(&Lstm::new(8, 16).random(1)?, 3)?;
/// assert_eq!(graph.counts().nodes, 24);
/// let last = graph.nodes().last().ok_or("no node")?;
/// assert_eq!(graph.label(&last), "U_o·h_1");
/// assert_eq!(graph.predecessors(&last).count(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    layers: Vec<Vec<Chain>>,
    steps: usize,
    counts: GraphCounts,
}

impl Graph {
    /// The graph of all layers of `model` over `steps` steps.
    ///
    /// # Errors
    /// [`GraphError::TooLarge`].
    pub fn new(model: &Model, steps: usize) -> Result<Graph, GraphError> {
        Graph::of_layers(model.layers(), steps)
    }

    /// The graph of one layer, whose input sequence is given; its nodes are of layer 0.
    ///
    /// # Errors
    /// [`GraphError::TooLarge`].
    pub fn of_layer(layer: &Layer, steps: usize) -> Result<Graph, GraphError> {
        Graph::of_layers(std::slice::from_ref(layer), steps)
    }

    fn of_layers(layers: &[Layer], steps: usize) -> Result<Graph, GraphError> {
        let layers = chains(layers);
        let counts = GraphCounts::of_chains(&layers, steps);
        if counts.nodes > MOST_NODES {
            let nodes = counts.nodes;
            return Err(GraphError::TooLarge { nodes, steps });
        }
        Ok(Graph {
            layers,
            steps,
            counts,
        })
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Number of directions of a layer; 0 for a layer that is not there.
    pub fn directions(&self, layer: usize) -> usize {
        self.layers.get(layer).map_or(0, Vec::len)
    }

    /// Number of gates of a direction: input products per step, and as many recurrent ones; 0 for
    /// a direction that is not there.
    pub fn gates(&self, layer: usize, direction: usize) -> usize {
        let chains = self.layers.get(layer);
        let chain = chains.and_then(|chains| chains.get(direction));
        chain.map_or(0, |chain| usize::from(chain.gates()))
    }

    /// Number of steps.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// How many nodes and edges there are.
    pub fn counts(&self) -> &GraphCounts {
        &self.counts
    }

    /// All nodes: layer after layer, direction after direction, each in the order it walks; in a
    /// step input products, recurrent products, projection.
    pub fn nodes(&self) -> impl Iterator<Item = Node> + '_ {
        let chains = self.layers.iter().enumerate().flat_map(|(layer, chains)| {
            let directions = chains.iter().enumerate();
            directions.map(move |(direction, chain)| (layer, direction, chain))
        });
        chains.flat_map(move |(layer, direction, chain)| {
            (0..self.steps)
                .flat_map(move |taken| self.step_nodes(layer, direction, taken, chain.products()))
        })
    }

    /// The node of `product`, in the step that the direction takes as its `taken`-th.
    pub fn node(
        &self,
        layer: usize,
        direction: usize,
        taken: usize,
        product: Product,
    ) -> Option<Node> {
        let chain = self.layers.get(layer)?.get(direction)?;
        let exists = taken < self.steps && chain.products().any(|each| each == product);
        exists.then(|| self.at(layer, direction, taken, product))
    }

    /// Whether `node` is one of this graph.
    pub fn contains(&self, node: &Node) -> bool {
        self.node(node.layer, node.direction, node.taken, node.product) == Some(*node)
    }

    /// The place of `node` in [`Graph::nodes`].
    pub fn index(&self, node: &Node) -> Option<usize> {
        if !self.contains(node) {
            return None;
        }
        let chains = self.layers.iter().flatten();
        let before: usize = self.layers[..node.layer].iter().map(Vec::len).sum();
        let products = chains
            .take(before + node.direction)
            .map(Chain::products_per_step)
            .sum::<usize>();
        let chain = &self.layers[node.layer][node.direction];
        let within = chain.products().position(|each| each == node.product)?;
        Some(products * self.steps + node.taken * chain.products_per_step() + within)
    }

    /// The nodes that must be finished before `node` begins and that no other of them needs; none
    /// for a node of another graph.
    pub fn predecessors(&self, node: &Node) -> impl Iterator<Item = Node> + '_ {
        let node = *node;
        let chain = self.contains(&node).then(|| self.chain(&node));
        let within = chain.map(|chain| chain.within_step(node.product));
        let within = self.step_nodes(
            node.layer,
            node.direction,
            node.taken,
            within.into_iter().flatten(),
        );
        // The state of the step before, unless a product of this step has waited for it already.
        let before = chain.filter(|chain| {
            let waits = chain.within_step(node.product).next().is_some();
            node.product.needs_state() && node.taken > 0 && !waits
        });
        let before = before.map(|chain| chain.last()).into_iter().flatten();
        let earlier = node.taken.saturating_sub(1);
        let before = self.step_nodes(node.layer, node.direction, earlier, before);
        // The output of the layer below.
        let input = chain.is_some() && !node.product.needs_state() && node.layer > 0;
        let below = input.then(|| node.layer - 1);
        let below = below.into_iter().flat_map(move |layer| {
            let chains = self.layers[layer].iter().enumerate();
            chains.flat_map(move |(direction, chain)| {
                let taken = self.turned(chain, node.step);
                self.step_nodes(layer, direction, taken, chain.last())
            })
        });
        within.chain(before).chain(below)
    }

    /// The operand that `node` multiplies its weights with.
    pub fn operand(&self, node: &Node) -> Operand {
        match node.product {
            Product::Input(_) => Operand::Input,
            Product::Projection => Operand::Unprojected,
            Product::Recurrent(2) if self.resets_before(node) => Operand::ResetState,
            Product::Recurrent(_) => Operand::State,
        }
    }

    /// `node` as a person would write it: `W_i·x_3`, `U_f·h_2`, `U_n·(r_3∘h_2)`, `P·m_3`. Steps
    /// are those of the sequence; the state before a direction's first step is `h_init`. A node of
    /// another graph is `?`.
    pub fn label(&self, node: &Node) -> String {
        if !self.contains(node) {
            return "?".to_owned();
        }
        let chain = self.chain(node);
        let weights = node.product.weights(chain.kind);
        let step = node.step;
        let state = match node.taken.checked_sub(1) {
            None => "h_init".to_owned(),
            Some(before) => format!("h_{}", self.turned(chain, before)),
        };
        match node.product {
            Product::Input(_) => format!("{weights}·x_{step}"),
            Product::Recurrent(_) if self.operand(node) == Operand::ResetState => {
                format!("{weights}·(r_{step}∘{state})")
            }
            Product::Recurrent(_) => format!("{weights}·{state}"),
            Product::Projection => format!("{weights}·m_{step}"),
        }
    }

    fn resets_before(&self, node: &Node) -> bool {
        let layer = self.layers.get(node.layer);
        let chain = layer.and_then(|chains| chains.get(node.direction));
        chain.is_some_and(|chain| chain.resets_before)
    }

    /// The direction of a node that is known to be of this graph.
    fn chain(&self, node: &Node) -> &Chain {
        &self.layers[node.layer][node.direction]
    }

    /// From steps of the sequence to steps taken, or back.
    fn turned(&self, chain: &Chain, step: usize) -> usize {
        match chain.reverse {
            true => self.steps - 1 - step,
            false => step,
        }
    }

    fn at(&self, layer: usize, direction: usize, taken: usize, product: Product) -> Node {
        Node {
            layer,
            direction,
            taken,
            step: self.turned(&self.layers[layer][direction], taken),
            product,
        }
    }

    fn step_nodes<'a>(
        &'a self,
        layer: usize,
        direction: usize,
        taken: usize,
        products: impl Iterator<Item = Product> + 'a,
    ) -> impl Iterator<Item = Node> + 'a {
        products.map(move |product| self.at(layer, direction, taken, product))
    }
}

/// The matrix that a product multiplies its weights with. Products with the same operand can be
/// one product (deepcpu section 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operand {
    /// `x`: the layer's input, the same for both directions.
    Input,
    /// `h`: the direction's state after the step before.
    State,
    /// `r∘h`, for the candidate of a GRU that resets before.
    ResetState,
    /// `m = o∘output(c)`, an LSTM's output before its projection.
    Unprojected,
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operand::Input => "x",
            Operand::State => "h",
            Operand::ResetState => "r∘h",
            Operand::Unprojected => "m",
        })
    }
}

fn chains(layers: &[Layer]) -> Vec<Vec<Chain>> {
    let of_layer = |layer: &Layer| layer.directions().iter().map(Chain::of).collect();
    layers.iter().map(of_layer).collect()
}
