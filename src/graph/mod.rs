//! The MM-DAG: one node per matrix product of a run, edges for what must be finished before.
//!
//! Everything between two products (adding, activations, the cell state, concatenating or summing
//! directions) is elementwise and belongs to the edge (deepcpu section 4: an RNN *is* its matrix
//! products). Nothing is stored per node: the place of a node in the order, and what it needs,
//! follow from its coordinates, so a graph takes the room of its layers however many steps it has.

mod counts;
mod dot;

use crate::model::{CellKind, CellStep, Direction, Layer, Model};

pub use crate::model::{Operand, OperandSource, Product};
pub use counts::GraphCounts;

/// Most nodes of a [`Graph`], because what is made of one (a phased schedule, a drawing) lists
/// them all. [`GraphCounts`] has no limit.
pub const MAX_NODES: u128 = 10_000_000;

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
#[non_exhaustive]
pub enum GraphError {
    /// More nodes than [`MAX_NODES`].
    #[error(
        "a graph of {nodes} products is more than the {MAX_NODES} that are drawn or scheduled one \
         by one; ask for fewer than {steps} steps"
    )]
    TooLarge {
        /// The nodes it would have.
        nodes: u128,
        /// The steps asked for.
        steps: usize,
    },
}

/// The graph of one step of a direction, derived from its cell's description.
///
/// ```
/// use gatestream::graph::{Product, StepGraph};
/// use gatestream::model::{Gru, ResetForm};
///
/// let model = Gru::new(8, 16).reset(ResetForm::Before).random(1)?;
/// let step = StepGraph::of(&model.layers()[0].directions()[0]);
/// // The candidate's product with the reset state needs both products of the reset gate.
/// let needed: Vec<_> = step.needed_by(Product::Recurrent(2)).collect();
/// assert_eq!(needed, [Product::Input(0), Product::Recurrent(0)]);
/// assert_eq!(step.phases(), 2);
/// # Ok::<(), gatestream::model::ModelError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepGraph {
    cell: &'static CellStep,
}

impl StepGraph {
    /// The graph of a step of `direction`.
    pub fn of(direction: &Direction) -> StepGraph {
        StepGraph {
            cell: direction.step(),
        }
    }

    /// Number of gates.
    pub fn gates(&self) -> usize {
        self.cell.gates.len()
    }

    /// The products: input, then recurrent, then the projection.
    pub fn products(&self) -> impl Iterator<Item = Product> + use<> {
        self.cell.products.iter().map(|each| each.product)
    }

    /// The products of the same step that `product` needs.
    pub fn needed_by(&self, product: Product) -> impl Iterator<Item = Product> + use<> {
        self.cell.needed_by(product)
    }

    /// The products of the same step that need `product`.
    pub fn users_of(&self, product: Product) -> impl Iterator<Item = Product> + use<> {
        let step = *self;
        let is_user = move |user: &Product| step.needed_by(*user).any(|each| each == product);
        self.products().filter(is_user)
    }

    /// The products that no other product of the step needs: a reader of the step's output needs
    /// these, and through them all the rest.
    pub fn last(&self) -> impl Iterator<Item = Product> + use<> {
        let step = *self;
        self.products()
            .filter(move |product| step.users_of(*product).next().is_none())
    }

    /// Whether `product` needs the state of the step before, and no other product of its own step
    /// has waited for it.
    fn waits_for_state(&self, product: Product) -> bool {
        product.needs_state() && !self.needed_by(product).any(Product::needs_state)
    }

    /// The first phase in which `product` can be executed, counted from 0: the longest chain of
    /// products that leads to it.
    pub fn earliest_phase(&self, product: Product) -> usize {
        self.cell.earliest_phase(product)
    }

    /// The phases of a step: products on its longest chain.
    pub fn phases(&self) -> usize {
        self.cell.phases()
    }

    fn operand(&self, product: Product) -> Operand {
        let found = self.cell.find(product);
        found.map_or(Operand::INPUT, |found| found.operand)
    }
}

/// What the graph needs to know of a direction.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chain {
    kind: CellKind,
    step: StepGraph,
    reverse: bool,
}

impl Chain {
    fn of(direction: &Direction) -> Chain {
        Chain {
            kind: direction.cell().kind(),
            step: StepGraph::of(direction),
            reverse: direction.is_reverse(),
        }
    }

    fn products(&self) -> impl Iterator<Item = Product> + use<> {
        self.step.products()
    }

    fn products_per_step(&self) -> usize {
        self.products().count()
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
/// `h(t-1)` is made of all products of `t-1`: where there is a projection, only of that; in a GRU
/// that resets before, of all but `W_r` and `U_r`.
///
/// All sequences have the same length here: a padded step of a shorter one computes nothing, so it
/// takes no dependence away. An LSTM whose forget gate is coupled to its input gate keeps its
/// block of forget weights, and so its products.
///
/// ```
/// use gatestream::graph::Graph;
/// use gatestream::model::Lstm;
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
        if counts.nodes > MAX_NODES {
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
        chain.map_or(0, |chain| chain.step.gates())
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
        let within = chain.map(|chain| chain.step.needed_by(node.product));
        let within = self.step_nodes(
            node.layer,
            node.direction,
            node.taken,
            within.into_iter().flatten(),
        );
        let before =
            chain.filter(|chain| node.taken > 0 && chain.step.waits_for_state(node.product));
        let before = before.map(|chain| chain.step.last()).into_iter().flatten();
        let earlier = node.taken.saturating_sub(1);
        let before = self.step_nodes(node.layer, node.direction, earlier, before);
        // The output of the layer below.
        let input = chain.is_some() && !node.product.needs_state() && node.layer > 0;
        let below = input.then(|| node.layer - 1);
        let below = below.into_iter().flat_map(move |layer| {
            let chains = self.layers[layer].iter().enumerate();
            chains.flat_map(move |(direction, chain)| {
                let taken = self.turned(chain, node.step);
                self.step_nodes(layer, direction, taken, chain.step.last())
            })
        });
        within.chain(before).chain(below)
    }

    /// The operand that `node` multiplies its weights with.
    pub fn operand(&self, node: &Node) -> Operand {
        let chains = self.layers.get(node.layer);
        let chain = chains.and_then(|chains| chains.get(node.direction));
        chain.map_or(Operand::INPUT, |chain| chain.step.operand(node.product))
    }

    /// `node` as a person would write it: `W_i·x_3`, `U_f·h_2`, `U_n·(r_3∘h_2)`, `P·m_3`. Steps
    /// are those of the sequence; the state before a direction's first step is `h_init`. A node of
    /// another graph is `?`.
    pub fn label(&self, node: &Node) -> String {
        if !self.contains(node) {
            return "?".to_owned();
        }
        let chain = self.chain(node);
        let weights = chain.step.cell.weights_name(node.product);
        let step = node.step;
        let state = match node.taken.checked_sub(1) {
            None => "h_init".to_owned(),
            Some(before) => format!("h_{}", self.turned(chain, before)),
        };
        let operand = self.operand(node);
        match operand.source {
            OperandSource::Input => format!("{weights}·x_{step}"),
            OperandSource::State => format!("{weights}·{state}"),
            OperandSource::Child => format!("{weights}·{}", operand.symbol),
            OperandSource::Gates(_) => match operand.symbol.split_once('∘') {
                Some((gate, _)) => format!("{weights}·({gate}_{step}∘{state})"),
                None => format!("{weights}·{}_{step}", operand.symbol),
            },
        }
    }

    /// The direction of a node that is known to be of this graph.
    fn chain(&self, node: &Node) -> &Chain {
        &self.layers[node.layer][node.direction]
    }

    /// From steps of the sequence to steps taken, or back.
    fn turned(&self, chain: &Chain, step: usize) -> usize {
        if chain.reverse {
            self.steps - 1 - step
        } else {
            step
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

fn chains(layers: &[Layer]) -> Vec<Vec<Chain>> {
    let of_layer = |layer: &Layer| layer.directions().iter().map(Chain::of).collect();
    layers.iter().map(of_layer).collect()
}
