//! A step of a tree's cell, one node.

use super::{activate, chain, flush};
use crate::model::{Activation, OperandSource, TreeCell, TreeWeights};

/// Computes one node as [`TreeCell`] says: `x` `[E]`, `h` and `c` `[H]` of the child that is read
/// (empty where the cell reads none), and the states `h` and `c` `[H]`, which are overwritten.
///
/// # Panics
/// If a slice is shorter than the cell's weights say.
pub fn tree_step(
    weights: &TreeWeights<'_>,
    x: &[f32],
    [child_h, child_c]: [&[f32]; 2],
    [h, c]: [&mut [f32]; 2],
) {
    let of = weights.step_weights();
    let before = h.to_vec();
    for j in 0..of.hidden {
        let gate = |gate: usize| {
            let row = gate * of.hidden + j;
            let products = of.step.products.iter();
            let products = products.filter(|product| product.product.gate() == Some(gate));
            products.fold(of.input_bias[row], |z, product| {
                let operand = match product.operand.source {
                    OperandSource::Input => x,
                    OperandSource::Child => child_h,
                    _ => &before,
                };
                match of.of(product.product).0 {
                    Some(matrix) => chain(z, matrix, row, &operand[..matrix.cols()]),
                    None => z,
                }
            })
        };
        let sigmoid = |index| activate(Activation::Sigmoid, gate(index));
        let tanh = |value| activate(Activation::Tanh, value);
        let update = || tanh(gate(2));
        let new = match weights.cell() {
            TreeCell::Child => {
                h[j] += child_h[j];
                c[j] = sigmoid(0).mul_add(child_c[j], c[j]);
                continue;
            }
            TreeCell::Leaf => sigmoid(0) * update(),
            TreeCell::Node => sigmoid(0).mul_add(update(), c[j]),
            TreeCell::Binary => {
                let left = sigmoid(3).mul_add(c[j], sigmoid(0) * update());
                sigmoid(4).mul_add(child_c[j], left)
            }
        };
        c[j] = flush(new);
        h[j] = flush(sigmoid(1) * tanh(c[j]));
    }
}
