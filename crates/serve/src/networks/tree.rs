//! TreeLSTMs: cells, and the graphs of trees.
//!
//! The binary one has two cells. A leaf reads a word. An internal node overwrites the states of its
//! left child, `h` and `c`, in place; those of the right child are inputs. So the states of only
//! one of two children in a batch are moved.
//!
//! The child-sum one has nodes of any number of children, while a cell has a fixed number of ports.
//! So a node is a chain: a *child* cell adds one child to two sums, `Σ h_k` and `Σ f_k∘c_k`, which
//! are its states, and a *node* cell overwrites the sums with `h` and `c` of the node. The sums
//! have the order of the children, so the bits do not depend on the order in which children are
//! computed. The input part `V x` of the forget gate is computed for each child: a tree has one
//! child fewer than nodes, so one product for each node would be one product more, and one more
//! cell to batch.

use std::sync::Arc;

use super::error::{expect, rows_of};
use super::{
    BinaryTree, BinaryTreeWeights, ChildSumWeights, Dependencies, NetworkError, Outputs, TreeChild,
};
use crate::cell_graph::{
    Batch, Cell, CellCost, CellError, CellId, Cells, Graph, NodeId, Ports, PreparedCell, RowLayout,
    Source, WorkerEnv,
};
use gatestream::execute::{TreeRows, TreeStep};
use gatestream::kernels::RowsRef;
use gatestream::model::{ModelError, TreeWeights};
use gatestream::plan::Plan;

/// One of the four cells.
struct TreeCell<W> {
    name: &'static str,
    ports: Ports,
    owner: Arc<W>,
    weights: fn(&W) -> Result<TreeWeights<'_>, ModelError>,
    /// Estimated for each worker if there is none.
    plan: Option<Plan>,
}

impl<W> TreeCell<W> {
    /// Checks the plan.
    fn checked(self) -> Result<TreeCell<W>, NetworkError> {
        if let Some(plan) = &self.plan {
            plan.check_tree(&(self.weights)(&self.owner)?)?;
        }
        Ok(self)
    }
}

impl<W: Send + Sync> Cell for TreeCell<W> {
    fn name(&self) -> &str {
        self.name
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn cost(&self) -> CellCost {
        let mut cost = self
            .plan
            .as_ref()
            .map(CellCost::of_plan)
            .unwrap_or_default();
        cost.weight_bytes = (self.weights)(&self.owner).map_or(0, |weights| weights.bytes());
        cost
    }

    fn layout(&self) -> RowLayout {
        RowLayout::Gathered
    }

    fn prepare(&self, env: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        let weights = (self.weights)(&self.owner).map_err(CellError::new)?;
        let estimate = || Plan::estimate_tree(&weights, env.rows, env.team.threads());
        let plan = self.plan.clone().unwrap_or_else(estimate);
        let mut step = TreeStep::new(&weights, &plan, &env.team).map_err(CellError::new)?;
        step.reserve(env.rows).map_err(CellError::new)?;
        let cell = weights.cell();
        Ok(Box::new(Prepared {
            step,
            reads_input: cell.reads_input(),
            reads_child: cell.reads_child(),
        }))
    }
}

/// The input ports are `x`, if it is read, then `h` and `c` of a child, if they are read.
struct Prepared {
    step: TreeStep,
    reads_input: bool,
    reads_child: bool,
}

impl PreparedCell for Prepared {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        let first = usize::from(self.reads_input);
        let port = |is_read: bool, port: usize| {
            if is_read {
                batch.input(port)
            } else {
                RowsRef::EMPTY
            }
        };
        let (rows, x) = (batch.rows(), port(self.reads_input, 0));
        let child = [first, first + 1].map(|at| port(self.reads_child, at));
        let states = batch.written_rows();
        let ran = self.step.run(rows, TreeRows { x, child, states });
        ran.map_err(CellError::new)
    }
}

/// The cells of a binary TreeLSTM in [`Cells`]; unfolds binary trees.
///
/// ```
/// use gatestream_serve::cell_graph::Cells;
/// use gatestream_serve::networks::{
///     Outputs, BinaryTree, BinaryTreeLstm, BinaryTreeWeights, run_unbatched,
/// };
///
/// let mut cells = Cells::new();
/// let network = BinaryTreeLstm::add(&mut cells, BinaryTreeWeights::random(2, 8, 1)?)?;
/// let words = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]; // three words of two features
/// let graph = network.unfold(&BinaryTree::complete(3)?, &words, Outputs::Last)?;
/// assert_eq!(run_unbatched(&cells, graph, None)?.len(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct BinaryTreeLstm {
    leaf: CellId,
    internal: CellId,
    input: usize,
}

impl BinaryTreeLstm {
    /// Adds a leaf cell (input `x` `[E]`; outputs `h`, `c` `[H]`) and, with preference over it, an
    /// internal cell (inputs `h_right`, `c_right`; states `h`, `c`: first those of the left child,
    /// then those of the node).
    ///
    /// # Errors
    /// [`NetworkError::Weights`].
    pub fn add(
        cells: &mut Cells,
        weights: impl Into<Arc<BinaryTreeWeights>>,
    ) -> Result<BinaryTreeLstm, NetworkError> {
        BinaryTreeLstm::add_with_plans(cells, weights, None, None)
    }

    /// As [`BinaryTreeLstm::add`], with plans of the two cells, such as
    /// [`tune_tree`](gatestream::tune::tune_tree) returns; estimated without. Batches have the rows
    /// that a measured plan recommends. A worker with fewer threads than a plan refuses it.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use std::time::Duration;
    ///
    /// use gatestream::tune::{Options, tune_tree};
    /// use gatestream_serve::cell_graph::Cells;
    /// use gatestream_serve::networks::{BinaryTreeLstm, BinaryTreeWeights};
    ///
    /// let weights = BinaryTreeWeights::random(2, 8, 1)?;
    /// let options = Options::new(vec![(1, 1), (8, 1)], 1, Duration::from_millis(20));
    /// let node = tune_tree(&weights.node_weights()?, &options, |_| ControlFlow::Continue(()))?;
    /// BinaryTreeLstm::add_with_plans(&mut Cells::new(), weights, None, Some(node.plan))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`BinaryTreeLstm::add`]; [`NetworkError::Plan`] for a plan of another cell.
    pub fn add_with_plans(
        cells: &mut Cells,
        weights: impl Into<Arc<BinaryTreeWeights>>,
        leaf: Option<Plan>,
        internal: Option<Plan>,
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
            plan: leaf,
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
            plan: internal,
        };
        let (leaf, internal) = (leaf.checked()?, internal.checked()?);
        Ok(BinaryTreeLstm {
            leaf: cells.add(leaf),
            internal: cells.add(internal),
            input,
        })
    }

    /// The cell of the leaves.
    pub fn leaf(&self) -> CellId {
        self.leaf
    }

    /// The cell of the internal nodes.
    pub fn internal(&self) -> CellId {
        self.internal
    }

    /// The graph of a tree with words `xs` `[leaves, E]`. The response is `h` of the root, or of
    /// all leaves and then of all nodes.
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
        // `h` is the first result of both cells.
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

/// The cells of a child-sum TreeLSTM in [`Cells`]; unfolds dependency trees.
///
/// ```
/// use gatestream_serve::cell_graph::Cells;
/// use gatestream_serve::networks::{
///     Outputs, ChildSumTreeLstm, ChildSumWeights, Dependencies, run_unbatched,
/// };
///
/// let mut cells = Cells::new();
/// let network = ChildSumTreeLstm::add(&mut cells, ChildSumWeights::random(2, 8, 1)?)?;
/// let words = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]; // three words of two features
/// let graph = network.unfold(&"[2,0,2]".parse()?, &words, Outputs::Each)?;
/// assert_eq!(run_unbatched(&cells, graph, None)?.len(), 3 * 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChildSumTreeLstm {
    child: CellId,
    node: CellId,
    input: usize,
}

impl ChildSumTreeLstm {
    /// Adds a child cell (inputs `x` `[E]` of the node, `h` and `c` `[H]` of the child; states
    /// `sum_h`, `sum_fc`) and, with preference over it, a node cell (input `x`; states `h`, `c`:
    /// first the sums, then those of the node).
    ///
    /// # Errors
    /// [`NetworkError::Weights`].
    pub fn add(
        cells: &mut Cells,
        weights: impl Into<Arc<ChildSumWeights>>,
    ) -> Result<ChildSumTreeLstm, NetworkError> {
        ChildSumTreeLstm::add_with_plans(cells, weights, None, None)
    }

    /// As [`ChildSumTreeLstm::add`], with plans of the two cells: see
    /// [`BinaryTreeLstm::add_with_plans`].
    ///
    /// # Errors
    /// As [`ChildSumTreeLstm::add`]; [`NetworkError::Plan`] for a plan of another cell.
    pub fn add_with_plans(
        cells: &mut Cells,
        weights: impl Into<Arc<ChildSumWeights>>,
        child: Option<Plan>,
        node: Option<Plan>,
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
            plan: child,
        };
        let node = TreeCell::<ChildSumWeights> {
            name: "tree node",
            ports: (Ports::new().input("x", input))
                .state("h", hidden)
                .state("c", hidden),
            owner: weights,
            weights: ChildSumWeights::node_weights,
            plan: node,
        };
        let (child, node) = (child.checked()?, node.checked()?);
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

    /// The cell of the nodes.
    pub fn node(&self) -> CellId {
        self.node
    }

    /// The graph of a sentence with words `xs` `[words, E]`. The response is `h` of the root, or of
    /// all words in order.
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
