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
    Batch, Cell, CellCost, CellError, CellId, Cells, Graph, NodeId, Place, Ports, PreparedCell,
    RowLayout, Source,
};
use cellstream::execute::TreeStep;
use cellstream::kernels::Isa;
use cellstream::model::Matrix;

/// One of the four cells: how many gates, of what, and which step.
struct TreeCell<W> {
    name: &'static str,
    ports: Ports,
    weights: Arc<W>,
    gates: usize,
    /// Weights of each operand, and the bias.
    parts: fn(&W) -> (Vec<&Matrix>, &[f32]),
    run: fn(&mut TreeStep, &mut Batch<'_>) -> Result<(), CellError>,
}

impl<W: Send + Sync> Cell for TreeCell<W> {
    fn name(&self) -> &str {
        self.name
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn cost(&self) -> CellCost {
        let (operands, _) = (self.parts)(&self.weights);
        CellCost {
            weight_bytes: operands.iter().map(|weights| weights.bytes()).sum(),
            ..CellCost::default()
        }
    }

    fn layout(&self) -> RowLayout {
        RowLayout::Gathered
    }

    fn prepare(&self, place: &Place) -> Result<Box<dyn PreparedCell>, CellError> {
        let isa = Isa::select().map_err(CellError::new)?;
        let (operands, bias) = (self.parts)(&self.weights);
        let step = TreeStep::new(&place.team, isa, place.rows, self.gates, &operands, bias);
        Ok(Box::new(Prepared {
            step: step.map_err(CellError::new)?,
            run: self.run,
        }))
    }
}

struct Prepared {
    step: TreeStep,
    run: fn(&mut TreeStep, &mut Batch<'_>) -> Result<(), CellError>,
}

impl PreparedCell for Prepared {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        (self.run)(&mut self.step, batch)
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
            weights: Arc::clone(&weights),
            gates: 3,
            parts: |w| (vec![&w.leaf], &w.leaf_bias),
            run: |step, batch| {
                let rows = batch.rows();
                let x = batch.input(0);
                let states = batch.written_rows();
                step.leaf(rows, x, states).map_err(CellError::new)
            },
        };
        let internal = TreeCell::<BinaryTreeWeights> {
            name: "tree node",
            ports: (Ports::new()
                .input("h_right", hidden)
                .input("c_right", hidden))
            .state("h", hidden)
            .state("c", hidden),
            weights,
            gates: 5,
            parts: |w| (vec![&w.left, &w.right], &w.bias),
            run: |step, batch| {
                let rows = batch.rows();
                let right = [0, 1].map(|port| batch.input(port));
                let left = batch.written_rows();
                step.binary(rows, right, left).map_err(CellError::new)
            },
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
            weights: Arc::clone(&weights),
            gates: 1,
            parts: |w| (vec![&w.forget_input, &w.forget_state], &w.forget_bias),
            run: |step, batch| {
                let rows = batch.rows();
                let inputs = [0, 1, 2].map(|port| batch.input(port));
                let sums = batch.written_rows();
                step.child(rows, inputs, sums).map_err(CellError::new)
            },
        };
        let node = TreeCell::<ChildSumWeights> {
            name: "tree node",
            ports: (Ports::new().input("x", input))
                .state("h", hidden)
                .state("c", hidden),
            weights,
            gates: 3,
            parts: |w| (vec![&w.input, &w.sum], &w.bias),
            run: |step, batch| {
                let rows = batch.rows();
                let x = batch.input(0);
                let sums = batch.written_rows();
                step.summed(rows, x, sums).map_err(CellError::new)
            },
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
