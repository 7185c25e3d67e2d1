//! TreeLSTM cells (Tai et al. 2015, arXiv 1503.00075): leaves, nodes of two children, and nodes of
//! any number of children, which are added to sums one by one.

use super::step::{CellStep, Operand, OperandSource, input, recurrent};
use super::{Product, StepProduct};
use crate::model::step_weights::StepWeights;
use crate::model::{Matrix, ModelError, weights};
use gatestream_kernels::GateKernel;

/// A cell of a TreeLSTM. Its states `h` and `c` are overwritten in place.
///
/// Gates are `i`, `o`, `f = σ(…)` and `u = tanh(…)`; each pre-activation is one chain of fused
/// multiply-adds in the order written, from the bias. New states below
/// [`TINY_STATE`](crate::reference::TINY_STATE) become zero; sums do not.
///
/// ```text
/// Leaf    gates(W x + b)          c = i·u                     h = o∘tanh(c)     sections 3.1, 3.2
/// Binary  gates(L h + R h_r + b)  c = fma(f_r, c_r, fma(f_l, c, i·u))
///                                 h = o∘tanh(c)               h, c: left child's   equations 9-14
/// Child   f = σ(V x + F h_k + b)  h = h + h_k    c = fma(f, c_k, c)   h, c: sums   equations 2, 4
/// Node    gates(W x + U h + b)    c = fma(i, u, c)            h = o∘tanh(c)
///                                 h, c: sums                  equations 3, 5-8
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TreeCell {
    /// A leaf. Reads `x`.
    Leaf,
    /// A node of two children. The states are the left child's; reads those of the right child.
    Binary,
    /// A child of a node. The states are the sums of its node; reads `x` of the node, and the
    /// child's states.
    Child,
    /// A node after its children. The states are the sums; reads `x`.
    Node,
}

/// `h_k`, the hidden state of a child that is read.
const CHILD: Operand = Operand {
    source: OperandSource::Child,
    symbol: "h_k",
};

const LEAF: CellStep = CellStep {
    gates: &["i", "o", "u"],
    products: &[input(0, 0), input(1, 1), input(2, 2)],
    has_cell_state: true,
    activations: 4,
};

/// The left child first, then the right one: the states, then what is read.
const BINARY: CellStep = CellStep {
    gates: &["i", "o", "u", "fl", "fr"],
    products: &[
        recurrent(0, Operand::STATE, 0),
        recurrent(1, Operand::STATE, 1),
        recurrent(2, Operand::STATE, 2),
        recurrent(3, Operand::STATE, 3),
        recurrent(4, Operand::STATE, 4),
        right(0),
        right(1),
        right(2),
        right(3),
        right(4),
    ],
    activations: 6,
    ..LEAF
};

/// `R_gate · h_r`.
const fn right(gate: u8) -> StepProduct {
    StepProduct {
        product: Product::Input(gate),
        operand: CHILD,
        slot: gate as usize,
    }
}

const ADD_CHILD: CellStep = CellStep {
    gates: &["f"],
    products: &[input(0, 0), recurrent(0, CHILD, 0)],
    activations: 1,
    ..LEAF
};

const NODE: CellStep = CellStep {
    products: &[
        input(0, 0),
        input(1, 1),
        input(2, 2),
        recurrent(0, Operand::STATE, 0),
        recurrent(1, Operand::STATE, 1),
        recurrent(2, Operand::STATE, 2),
    ],
    ..LEAF
};

impl TreeCell {
    /// What a step computes: one phase, with no product that could be hoisted.
    pub fn step(self) -> &'static CellStep {
        match self {
            TreeCell::Leaf => &LEAF,
            TreeCell::Binary => &BINARY,
            TreeCell::Child => &ADD_CHILD,
            TreeCell::Node => &NODE,
        }
    }

    /// Whether it reads `x`.
    pub fn reads_input(self) -> bool {
        self.reads(OperandSource::Input)
    }

    /// Whether it reads `h` and `c` of a child besides its states.
    pub fn reads_child(self) -> bool {
        self.reads(OperandSource::Child)
    }

    /// Whether a product takes the states, so that all products come before any state is written.
    pub(crate) fn multiplies_state(self) -> bool {
        self.reads(OperandSource::State)
    }

    fn reads(self, source: OperandSource) -> bool {
        let mut products = self.step().products.iter();
        products.any(|product| product.operand.source == source)
    }

    /// Its elementwise part.
    pub(crate) fn gate_kernel(self) -> GateKernel {
        match self {
            TreeCell::Leaf => GateKernel::TreeLeaf,
            TreeCell::Binary => GateKernel::TreeBinary,
            TreeCell::Child => GateKernel::TreeChild,
            TreeCell::Node => GateKernel::TreeNode,
        }
    }
}

/// A cell of a TreeLSTM with its weights, borrowed, whose shapes fit.
///
/// `H` is the hidden size, `E` the number of features of `x`. The rows of all gates stand one
/// block after the other.
#[derive(Clone, Copy, Debug)]
pub struct TreeWeights<'a> {
    cell: TreeCell,
    weights: StepWeights<'a>,
}

impl<'a> TreeWeights<'a> {
    /// A [`TreeCell::Leaf`]: `input` `[3H, E]`, `bias` `[3H]`: input, output, update.
    ///
    /// # Errors
    /// [`ModelError::Shape`], as of all constructors here.
    pub fn leaf(input: &'a Matrix, bias: &'a [f32]) -> Result<TreeWeights<'a>, ModelError> {
        TreeWeights::new(TreeCell::Leaf, input, None, bias)
    }

    /// A [`TreeCell::Binary`]: `left` and `right` `[5H, H]`, `bias` `[5H]`: input, output, update,
    /// forget left, forget right.
    ///
    /// # Errors
    /// [`ModelError::Shape`].
    pub fn binary(
        left: &'a Matrix,
        right: &'a Matrix,
        bias: &'a [f32],
    ) -> Result<TreeWeights<'a>, ModelError> {
        TreeWeights::new(TreeCell::Binary, right, Some(left), bias)
    }

    /// A [`TreeCell::Child`]: `input` `[H, E]`, `state` `[H, H]`, `bias` `[H]`: forget.
    ///
    /// # Errors
    /// [`ModelError::Shape`].
    pub fn child(
        input: &'a Matrix,
        state: &'a Matrix,
        bias: &'a [f32],
    ) -> Result<TreeWeights<'a>, ModelError> {
        TreeWeights::new(TreeCell::Child, input, Some(state), bias)
    }

    /// A [`TreeCell::Node`]: `input` `[3H, E]`, `sum` `[3H, H]`, `bias` `[3H]`: input, output,
    /// update.
    ///
    /// # Errors
    /// [`ModelError::Shape`].
    pub fn node(
        input: &'a Matrix,
        sum: &'a Matrix,
        bias: &'a [f32],
    ) -> Result<TreeWeights<'a>, ModelError> {
        TreeWeights::new(TreeCell::Node, input, Some(sum), bias)
    }

    fn new(
        cell: TreeCell,
        input: &'a Matrix,
        recurrent: Option<&'a Matrix>,
        bias: &'a [f32],
    ) -> Result<TreeWeights<'a>, ModelError> {
        let step = cell.step();
        let hidden = weights::hidden_size(input, step.gates.len(), "a tree's cell")?;
        let rows = input.rows();
        weights::expect_len("bias", bias, rows)?;
        if let Some(recurrent) = recurrent {
            weights::expect_matrix("recurrent weights", recurrent, rows, hidden)?;
        }
        if !cell.reads_input() {
            weights::expect_matrix("right weights", input, rows, hidden)?;
        }
        Ok(TreeWeights {
            cell,
            weights: StepWeights {
                step,
                hidden,
                input,
                recurrent,
                input_bias: bias,
                recurrent_bias: &[],
                peepholes: None,
                projection: None,
            },
        })
    }

    /// The cell.
    pub fn cell(&self) -> TreeCell {
        self.cell
    }

    /// `E`, features of `x`; 0 where the cell reads none.
    pub fn input_size(&self) -> usize {
        if self.cell.reads_input() {
            self.weights.input.cols()
        } else {
            0
        }
    }

    /// `H`, the size of the states.
    pub fn hidden_size(&self) -> usize {
        self.weights.hidden
    }

    /// Bytes of the weights, without the bias.
    pub fn bytes(&self) -> usize {
        self.weights.input.bytes() + self.weights.recurrent.map_or(0, Matrix::bytes)
    }

    /// The weights, as those of a step.
    pub(crate) fn step_weights(&self) -> StepWeights<'a> {
        self.weights
    }
}
