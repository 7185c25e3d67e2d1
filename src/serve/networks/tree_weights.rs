//! The weights of TreeLSTMs (Tai et al. 2015, arXiv 1503.00075).

use super::NetworkError;
use crate::model::Matrix;

/// Weights of a binary N-ary TreeLSTM whose words stand at the leaves (the paper's section 3.2, with
/// N = 2). Gates are rows one after the other, `H` each.
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
/// The paper has one bias for both forget gates, and the same biases at leaves as at internal nodes:
/// repeat them for that. Each pre-activation is one chain of fused multiply-adds in the order written,
/// from the bias, as everywhere in this crate; then `c = fma(f_r, c_r, fma(f_l, c_l, i·u))`, and states
/// below [`crate::reference::TINY_STATE`] become zero.
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

/// Weights of a child-sum TreeLSTM, which has a word at every node, and any number of children (the
/// paper's section 3.1).
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

/// Values for weights that were not trained.
struct Random {
    rng: fastrand::Rng,
    bound: f32,
}

impl Random {
    fn new(hidden: usize, seed: u64) -> Random {
        Random {
            rng: fastrand::Rng::with_seed(seed),
            bound: 1.0 / (hidden.max(1) as f32).sqrt(),
        }
    }

    fn vector(&mut self, len: usize) -> Vec<f32> {
        let bound = self.bound;
        let values = (0..len).map(|_| bound * (2.0 * self.rng.f32() - 1.0));
        values.collect()
    }

    fn matrix(&mut self, rows: usize, cols: usize) -> Result<Matrix, NetworkError> {
        let (name, expected, found) = ("random weights", rows.saturating_mul(cols), 0);
        let values = self.vector(expected);
        Matrix::new(rows, cols, values).map_err(|_| NetworkError::Weights {
            name,
            expected,
            cols,
            found,
        })
    }
}

impl BinaryTreeWeights {
    /// Weights from `-1/√H` to `1/√H`, the same for the same seed, for words of `input` features.
    ///
    /// # Errors
    /// Sizes that multiply to more than memory has.
    pub fn random(input: usize, hidden: usize, seed: u64) -> Result<Self, NetworkError> {
        let mut random = Random::new(hidden, seed);
        Ok(BinaryTreeWeights {
            leaf: random.matrix(3 * hidden, input)?,
            leaf_bias: random.vector(3 * hidden),
            left: random.matrix(5 * hidden, hidden)?,
            right: random.matrix(5 * hidden, hidden)?,
            bias: random.vector(5 * hidden),
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

    /// Whether all shapes are those of one network.
    pub(super) fn check(&self) -> Result<(), NetworkError> {
        let (input, hidden) = (self.input(), self.hidden());
        check_size("left", hidden)?;
        check_matrix("leaf", &self.leaf, 3 * hidden, input)?;
        check_matrix("left", &self.left, 5 * hidden, hidden)?;
        check_matrix("right", &self.right, 5 * hidden, hidden)?;
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
        let mut random = Random::new(hidden, seed);
        Ok(ChildSumWeights {
            input: random.matrix(3 * hidden, input)?,
            sum: random.matrix(3 * hidden, hidden)?,
            bias: random.vector(3 * hidden),
            forget_input: random.matrix(hidden, input)?,
            forget_state: random.matrix(hidden, hidden)?,
            forget_bias: random.vector(hidden),
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

    /// Whether all shapes are those of one network.
    pub(super) fn check(&self) -> Result<(), NetworkError> {
        let (input, hidden) = (self.input(), self.hidden());
        check_size("sum", hidden)?;
        check_matrix("input", &self.input, 3 * hidden, input)?;
        check_matrix("sum", &self.sum, 3 * hidden, hidden)?;
        check_matrix("forget_input", &self.forget_input, hidden, input)?;
        check_matrix("forget_state", &self.forget_state, hidden, hidden)?;
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
    rows: usize,
    cols: usize,
) -> Result<(), NetworkError> {
    match (matrix.rows(), matrix.cols()) == (rows, cols) {
        true => Ok(()),
        false => Err(NetworkError::Weights {
            name,
            expected: rows * cols,
            cols,
            found: matrix.rows() * matrix.cols(),
        }),
    }
}

fn check_bias(name: &'static str, bias: &[f32], expected: usize) -> Result<(), NetworkError> {
    match bias.len() == expected {
        true => Ok(()),
        false => Err(NetworkError::Weights {
            name,
            expected,
            cols: 1,
            found: bias.len(),
        }),
    }
}
