//! TreeLSTMs: cells, and the graphs of trees.
//!
//! The binary one has two cells. A leaf takes a word. An internal node *becomes* what its left child was:
//! that child's `h` and `c` are its states, overwritten in place, and the right child's are inputs. So of
//! two children that stood in a batch one's states need not move.
//!
//! The child-sum one has nodes of any number of children, and cells have a fixed number of ports. So a
//! node is a chain: a *child* cell adds one child to two sums, `Σ h_k` and `Σ f_k∘c_k`, which are its
//! states, and a *node* cell overwrites the sums with the node's own `h` and `c`. Order of the children
//! is order of the sums, so that the bits do not depend on who is ready first. The forget gate's input
//! part `V x` is computed anew for each child: a tree has one child fewer than nodes, so that computing it
//! once for each node would cost one product more, and one cell more to batch.

use std::sync::Arc;

use super::error::{expect, rows_of};
use super::{
    BinaryTree, BinaryTreeWeights, ChildSumWeights, Dependencies, NetworkError, Outputs, TreeChild,
};
use crate::cell_graph::{
    Batch, Cell, CellCost, CellError, CellId, Cells, Graph, NodeId, Ports, PreparedCell, RowLayout,
    Source, WorkerEnv,
};
use cellstream::execute::{TreeRows, TreeStep};
use cellstream::kernels::RowsRef;
use cellstream::model::{ModelError, TreeWeights};
use cellstream::plan::Plan;

/// One of the four cells: its ports, and where its weights are.
struct TreeCell<W> {
    name: &'static str,
    ports: Ports,
    owner: Arc<W>,
    weights: fn(&W) -> Result<TreeWeights<'_>, ModelError>,
}

impl<W: Send + Sync> Cell for TreeCell<W> {
    fn name(&self) -> &str {
        self.name
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn cost(&self) -> CellCost {
        CellCost {
            weight_bytes: (self.weights)(&self.owner).map_or(0, |weights| weights.bytes()),
            ..CellCost::default()
        }
    }

    fn layout(&self) -> RowLayout {
        RowLayout::Gathered
    }

    fn prepare(&self, env: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        let weights = (self.weights)(&self.owner).map_err(CellError::new)?;
        let plan = Plan::estimate_tree(&weights, env.rows, env.team.threads());
        let step = TreeStep::new(&weights, &plan, &env.team).map_err(CellError::new)?;
        let cell = weights.cell();
        Ok(Box::new(Prepared {
            step,
            reads_input: cell.reads_input(),
            reads_child: cell.reads_child(),
        }))
    }
}

/// Ports are `x`, where it is read, then `h` and `c` of a child, where they are read.
struct Prepared {
    step: TreeStep,
    reads_input: bool,
    reads_child: bool,
}

impl PreparedCell for Prepared {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        let first = usize::from(self.reads_input);
        let port = |is_read: bool, port: usize| match is_read {
            true => batch.input(port),
            false => RowsRef::EMPTY,
        };
        let (rows, x) = (batch.rows(), port(self.reads_input, 0));
        let child = [first, first + 1].map(|at| port(self.reads_child, at));
        let states = batch.written_rows();
        let ran = self.step.run(rows, TreeRows { x, child, states });
        ran.map_err(CellError::new)
    }
}

/// The cells of a binary TreeLSTM among an engine's: what unfolds binary trees.
///
/// ```
/// use cellstream_serve::cell_graph::Cells;
/// use cellstream_serve::networks::{
///     Outputs, BinaryTree, BinaryTreeLstm, BinaryTreeWeights, run_alone,
/// };
///
/// let mut cells = Cells::new();
/// let network = BinaryTreeLstm::add(&mut cells, BinaryTreeWeights::random(2, 8, 1)?)?;
/// let words = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]; // three of two features
/// let graph = network.unfold(&BinaryTree::complete(3)?, &words, Outputs::Last)?;
/// assert_eq!(run_alone(&cells, graph, None)?.len(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct BinaryTreeLstm {
    leaf: CellId,
    internal: CellId,
    input: usize,
}

impl BinaryTreeLstm {
    /// Adds a leaf cell (input `x` `[E]`; outputs `h`, `c` `[H]`) and, preferred, an internal cell
    /// (inputs `h_right`, `c_right`; states `h`, `c`, the left child's and then the node's) to an
    /// engine's.
    ///
    /// # Errors
    /// [`NetworkError::Weights`].
    pub fn add(
        cells: &mut Cells,
        weights: impl Into<Arc<BinaryTreeWeights>>,
    ) -> Result<BinaryTreeLstm, NetworkError> {
        let weights = weights.into();
        weights.check()?;
        let (input, hidden) = (weights.input(), weights.hidden());
        let leaf = TreeCell::<BinaryTreeWeights> {
            name: "tree leaf",
            ports: (Ports::new().input("x", input))
                .output("h", hidden)
                .output("c", hidden),
            owner: Arc::clone(&weights),
            weights: BinaryTreeWeights::leaf_weights,
        };
        let internal = TreeCell::<BinaryTreeWeights> {
            name: "tree node",
            ports: (Ports::new()
                .input("h_right", hidden)
                .input("c_right", hidden))
            .state("h", hidden)
            .state("c", hidden),
            owner: weights,
            weights: BinaryTreeWeights::node_weights,
        };
        Ok(BinaryTreeLstm {
            leaf: cells.add(leaf),
            internal: cells.add(internal),
            input,
        })
    }

    /// The leaves' cell.
    pub fn leaf(&self) -> CellId {
        self.leaf
    }

    /// The internal nodes' cell.
    pub fn internal(&self) -> CellId {
        self.internal
    }

    /// The graph of a tree with words `xs` `[leaves, E]`. The answer is `h` of the root, or of all leaves
    /// and then of all nodes.
    ///
    /// # Errors
    /// [`NetworkError::Values`].
    pub fn unfold(
        &self,
        tree: &BinaryTree,
        xs: &[f32],
        outputs: Outputs,
    ) -> Result<Graph, NetworkError> {
        expect("xs", xs.len(), tree.leaves().saturating_mul(self.input))?;
        let mut graph = Graph::new();
        for leaf in 0..tree.leaves() {
            let x = graph.give(&xs[leaf * self.input..][..self.input]);
            graph.node(self.leaf, &[x]);
        }
        let node_of = |child: TreeChild| match child {
            TreeChild::Leaf(leaf) => NodeId::new(leaf),
            TreeChild::Node(node) => NodeId::new(tree.leaves() + node),
        };
        for &[left, right] in tree.nodes() {
            let (left, right) = (node_of(left), node_of(right));
            let sources = [
                right.output(0),
                right.output(1),
                left.output(0),
                left.output(1),
            ];
            graph.node(self.internal, &sources);
        }
        // Both cells give `h` first.
        let first = match outputs {
            Outputs::Last => graph.len() - 1,
            Outputs::Each => 0,
        };
        for node in first..graph.len() {
            graph.answer(NodeId::new(node).output(0));
        }
        Ok(graph)
    }
}

/// The cells of a child-sum TreeLSTM among an engine's: what unfolds dependency trees.
///
/// ```
/// use cellstream_serve::cell_graph::Cells;
/// use cellstream_serve::networks::{
///     Outputs, ChildSumTreeLstm, ChildSumWeights, Dependencies, run_alone,
/// };
///
/// let mut cells = Cells::new();
/// let network = ChildSumTreeLstm::add(&mut cells, ChildSumWeights::random(2, 8, 1)?)?;
/// let words = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]; // three of two features
/// let graph = network.unfold(&"[2,0,2]".parse()?, &words, Outputs::Each)?;
/// assert_eq!(run_alone(&cells, graph, None)?.len(), 3 * 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChildSumTreeLstm {
    child: CellId,
    node: CellId,
    input: usize,
}

impl ChildSumTreeLstm {
    /// Adds a child cell (inputs `x` `[E]` of the node, `h` and `c` `[H]` of the child; states `sum_h`,
    /// `sum_fc`) and, preferred, a node cell (input `x`; states `h`, `c`, the sums and then the node's)
    /// to an engine's.
    ///
    /// # Errors
    /// [`NetworkError::Weights`].
    pub fn add(
        cells: &mut Cells,
        weights: impl Into<Arc<ChildSumWeights>>,
    ) -> Result<ChildSumTreeLstm, NetworkError> {
        let weights = weights.into();
        weights.check()?;
        let (input, hidden) = (weights.input(), weights.hidden());
        let child = TreeCell::<ChildSumWeights> {
            name: "tree child",
            ports: (Ports::new().input("x", input))
                .input("h", hidden)
                .input("c", hidden)
                .state("sum_h", hidden)
                .state("sum_fc", hidden),
            owner: Arc::clone(&weights),
            weights: ChildSumWeights::child_weights,
        };
        let node = TreeCell::<ChildSumWeights> {
            name: "tree node",
            ports: (Ports::new().input("x", input))
                .state("h", hidden)
                .state("c", hidden),
            owner: weights,
            weights: ChildSumWeights::node_weights,
        };
        Ok(ChildSumTreeLstm {
            child: cells.add(child),
            node: cells.add(node),
            input,
        })
    }

    /// The cell that adds a child.
    pub fn child(&self) -> CellId {
        self.child
    }

    /// The nodes' cell.
    pub fn node(&self) -> CellId {
        self.node
    }

    /// The graph of a sentence with words `xs` `[words, E]`. The answer is `h` of the root, or of all
    /// words in order.
    ///
    /// # Errors
    /// [`NetworkError::Rows`], [`NetworkError::Values`].
    pub fn unfold(
        &self,
        tree: &Dependencies,
        xs: &[f32],
        outputs: Outputs,
    ) -> Result<Graph, NetworkError> {
        let words = rows_of("xs", "word", xs.len(), self.input)?;
        expect("xs", words, tree.len())?;
        let mut graph = Graph::new();
        let given: Vec<Source> = xs.chunks_exact(self.input).map(|x| graph.give(x)).collect();
        let mut nodes = vec![NodeId::new(0); words];
        for &word in tree.bottom_up() {
            let mut sums = [Source::Zeros; 2];
            for &child in tree.children(word) {
                let [h, c] = [0, 1].map(|state| nodes[child].output(state));
                let added = graph.node(self.child, &[given[word], h, c, sums[0], sums[1]]);
                sums = [0, 1].map(|state| added.output(state));
            }
            nodes[word] = graph.node(self.node, &[given[word], sums[0], sums[1]]);
        }
        match outputs {
            Outputs::Last => graph.answer(NodeId::new(graph.len() - 1).output(0)),
            Outputs::Each => nodes.iter().for_each(|node| graph.answer(node.output(0))),
        }
        Ok(graph)
    }
}
