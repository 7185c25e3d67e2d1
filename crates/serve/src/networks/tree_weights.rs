//! The weights of TreeLSTMs (Tai et al. 2015, arXiv 1503.00075).

use super::NetworkError;
use gatestream::model::{Matrix, ModelError, TreeWeights};

/// Weights of a binary N-ary TreeLSTM with words at the leaves (section 3.2 of the paper, with
/// N = 2). Each gate has `H` rows, one gate after the other.
///
/// ```text
/// leaf       i = σ(W_i x + b_i)   o = σ(W_o x + b_o)   u = tanh(W_u x + b_u)
///            c = i∘u              h = o∘tanh(c)
/// internal   i   = σ(L_i h_l + R_i h_r + b_i)          o   = σ(L_o h_l + R_o h_r + b_o)
///            f_l = σ(L_fl h_l + R_fl h_r + b_fl)       f_r = σ(L_fr h_l + R_fr h_r + b_fr)
///            u   = tanh(L_u h_l + R_u h_r + b_u)
///            c = i∘u + f_l∘c_l + f_r∘c_r               h = o∘tanh(c)
/// ```
///
/// The paper has one bias for both forget gates, and the same biases at leaves and internal nodes:
/// repeat them. Each pre-activation is one chain of fused multiply-adds in this order, starting
/// from the bias; then `c = fma(f_r, c_r, fma(f_l, c_l, i·u))`, and states below
/// [`gatestream::reference::TINY_STATE`] become zero.
#[derive(Clone, Debug, PartialEq)]
pub struct BinaryTreeWeights {
    /// `W`: `[3H, E]`, input, output, update.
    pub leaf: Matrix,
    /// `b` of leaves: `[3H]`.
    pub leaf_bias: Vec<f32>,
    /// `L`: `[5H, H]`, input, output, update, forget left, forget right.
    pub left: Matrix,
    /// `R`: `[5H, H]`, likewise.
    pub right: Matrix,
    /// `b` of internal nodes: `[5H]`, likewise.
    pub bias: Vec<f32>,
}

/// Weights of a child-sum TreeLSTM, with a word at each node and any number of children (section
/// 3.1 of the paper).
///
/// ```text
/// s = Σ_k h_k
/// i = σ(W_i x + U_i s + b_i)   o = σ(W_o x + U_o s + b_o)   u = tanh(W_u x + U_u s + b_u)
/// f_k = σ(V x + F h_k + b_f)                                for each child k
/// c = i∘u + Σ_k f_k∘c_k        h = o∘tanh(c)
/// ```
///
/// Sums go over the children in order, from zero: `s = s + h_k`, `t = fma(f_k, c_k, t)`, and last
/// `c = fma(i, u, t)`. Otherwise as [`BinaryTreeWeights`].
#[derive(Clone, Debug, PartialEq)]
pub struct ChildSumWeights {
    /// `W`: `[3H, E]`, input, output, update.
    pub input: Matrix,
    /// `U`: `[3H, H]`, likewise.
    pub sum: Matrix,
    /// `b`: `[3H]`, likewise.
    pub bias: Vec<f32>,
    /// `V`: `[H, E]`.
    pub forget_input: Matrix,
    /// `F`: `[H, H]`.
    pub forget_state: Matrix,
    /// `b_f`: `[H]`.
    pub forget_bias: Vec<f32>,
}

/// Random values from `-1/√H` to `1/√H`: for each `(gates, cols)`, those of `gates * hidden` rows.
/// The memory of all is allocated first.
fn random_values<const N: usize>(
    hidden: usize,
    seed: u64,
    shapes: [(usize, usize); N],
) -> Result<[Vec<f32>; N], NetworkError> {
    let count = |(gates, cols): (usize, usize)| gates.checked_mul(hidden)?.checked_mul(cols);
    let mut all = [const { Vec::new() }; N];
    for (values, shape) in all.iter_mut().zip(shapes) {
        let expected = count(shape).unwrap_or(usize::MAX);
        if values.try_reserve_exact(expected).is_err() {
            return Err(NetworkError::Weights {
                name: "random weights",
                expected,
                cols: shape.1,
                found: 0,
            });
        }
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    let bound = 1.0 / (hidden.max(1) as f32).sqrt();
    for (values, shape) in all.iter_mut().zip(shapes) {
        let count = count(shape).unwrap_or_default();
        values.extend((0..count).map(|_| bound * (2.0 * rng.f32() - 1.0)));
    }
    Ok(all)
}

fn matrix(rows: usize, cols: usize, values: Vec<f32>) -> Result<Matrix, NetworkError> {
    let found = values.len();
    Matrix::new(rows, cols, values).map_err(|_| NetworkError::Weights {
        name: "random weights",
        expected: rows.saturating_mul(cols),
        cols,
        found,
    })
}

impl BinaryTreeWeights {
    /// Weights from `-1/√H` to `1/√H`, the same for the same seed, for words of `input` features.
    ///
    /// # Errors
    /// Sizes that multiply to more than memory has.
    pub fn random(input: usize, hidden: usize, seed: u64) -> Result<Self, NetworkError> {
        let shapes = [(3, input), (3, 1), (5, hidden), (5, hidden), (5, 1)];
        let [leaf, leaf_bias, left, right, bias] = random_values(hidden, seed, shapes)?;
        Ok(BinaryTreeWeights {
            leaf: matrix(3 * hidden, input, leaf)?,
            leaf_bias,
            left: matrix(5 * hidden, hidden, left)?,
            right: matrix(5 * hidden, hidden, right)?,
            bias,
        })
    }

    /// Features of a word.
    pub fn input(&self) -> usize {
        self.leaf.cols()
    }

    /// Size of the states.
    pub fn hidden(&self) -> usize {
        self.left.cols()
    }

    /// The weights of the leaf cell, to tune it.
    ///
    /// # Errors
    /// [`ModelError`] for weights of wrong shapes.
    pub fn leaf_weights(&self) -> Result<TreeWeights<'_>, ModelError> {
        TreeWeights::leaf(&self.leaf, &self.leaf_bias)
    }

    /// The weights of the node cell, to tune it.
    ///
    /// # Errors
    /// [`ModelError`] for weights of wrong shapes.
    pub fn node_weights(&self) -> Result<TreeWeights<'_>, ModelError> {
        TreeWeights::binary(&self.left, &self.right, &self.bias)
    }

    /// Checks that all shapes belong to one network.
    pub(super) fn check(&self) -> Result<(), NetworkError> {
        let (input, hidden) = (self.input(), self.hidden());
        check_size("left", hidden)?;
        check_matrix("left", &self.left, (5, hidden), hidden)?;
        check_matrix("leaf", &self.leaf, (3, hidden), input)?;
        check_matrix("right", &self.right, (5, hidden), hidden)?;
        check_bias("leaf_bias", &self.leaf_bias, 3 * hidden)?;
        check_bias("bias", &self.bias, 5 * hidden)
    }
}

impl ChildSumWeights {
    /// As [`BinaryTreeWeights::random`].
    ///
    /// # Errors
    /// As [`BinaryTreeWeights::random`].
    pub fn random(input: usize, hidden: usize, seed: u64) -> Result<Self, NetworkError> {
        let shapes = [
            (3, input),
            (3, hidden),
            (3, 1),
            (1, input),
            (1, hidden),
            (1, 1),
        ];
        let [
            of_input,
            of_sum,
            bias,
            forget_input,
            forget_state,
            forget_bias,
        ] = random_values(hidden, seed, shapes)?;
        Ok(ChildSumWeights {
            input: matrix(3 * hidden, input, of_input)?,
            sum: matrix(3 * hidden, hidden, of_sum)?,
            bias,
            forget_input: matrix(hidden, input, forget_input)?,
            forget_state: matrix(hidden, hidden, forget_state)?,
            forget_bias,
        })
    }

    /// Features of a word.
    pub fn input(&self) -> usize {
        self.input.cols()
    }

    /// Size of the states.
    pub fn hidden(&self) -> usize {
        self.sum.cols()
    }

    /// The weights of the cell that adds a child, to tune it.
    ///
    /// # Errors
    /// [`ModelError`] for weights of wrong shapes.
    pub fn child_weights(&self) -> Result<TreeWeights<'_>, ModelError> {
        TreeWeights::child(&self.forget_input, &self.forget_state, &self.forget_bias)
    }

    /// The weights of the node cell, to tune it.
    ///
    /// # Errors
    /// [`ModelError`] for weights of wrong shapes.
    pub fn node_weights(&self) -> Result<TreeWeights<'_>, ModelError> {
        TreeWeights::node(&self.input, &self.sum, &self.bias)
    }

    /// Checks that all shapes belong to one network.
    pub(super) fn check(&self) -> Result<(), NetworkError> {
        let (input, hidden) = (self.input(), self.hidden());
        check_size("sum", hidden)?;
        check_matrix("sum", &self.sum, (3, hidden), hidden)?;
        check_matrix("input", &self.input, (3, hidden), input)?;
        check_matrix("forget_input", &self.forget_input, (1, hidden), input)?;
        check_matrix("forget_state", &self.forget_state, (1, hidden), hidden)?;
        check_bias("bias", &self.bias, 3 * hidden)?;
        check_bias("forget_bias", &self.forget_bias, hidden)
    }
}

fn check_size(name: &'static str, hidden: usize) -> Result<(), NetworkError> {
    match hidden {
        0 => Err(NetworkError::Weights {
            name,
            expected: 1,
            cols: 1,
            found: 0,
        }),
        _ => Ok(()),
    }
}

fn check_matrix(
    name: &'static str,
    matrix: &Matrix,
    (gates, hidden): (usize, usize),
    cols: usize,
) -> Result<(), NetworkError> {
    // The matrix that determines the hidden size may have no row, and so any number of columns.
    let rows = gates.checked_mul(hidden);
    if (Some(matrix.rows()), matrix.cols()) == (rows, cols) {
        Ok(())
    } else {
        Err(NetworkError::Weights {
            name,
            expected: rows.unwrap_or(usize::MAX).saturating_mul(cols),
            cols,
            found: matrix.rows() * matrix.cols(),
        })
    }
}

fn check_bias(name: &'static str, bias: &[f32], expected: usize) -> Result<(), NetworkError> {
    if bias.len() == expected {
        Ok(())
    } else {
        Err(NetworkError::Weights {
            name,
            expected,
            cols: 1,
            found: bias.len(),
        })
    }
}
