//! The activation functions that a gate may use, as data.

/// An elementwise activation with its parameters, as named by ONNX (operators LSTM, GRU, RNN, opset
/// 22).
///
/// `sigmoid` and `tanh` err by at most 2 units in the last place over all `f32`; see
/// `gatestream::reference::activate` for the exact sequence of operations of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `(1 - e^-2x) / (1 + e^-2x)`.
    Tanh,
    /// `max(0, x)`.
    Relu,
    /// `alpha * x + beta`.
    Affine {
        /// Slope.
        alpha: f32,
        /// Offset.
        beta: f32,
    },
    /// `x` where `x >= 0`, else `alpha * x`.
    LeakyRelu {
        /// Slope below zero.
        alpha: f32,
    },
    /// `x` where `x >= alpha`, else `0`.
    ThresholdedRelu {
        /// Threshold.
        alpha: f32,
    },
    /// `alpha * tanh(beta * x)`.
    ScaledTanh {
        /// Factor outside.
        alpha: f32,
        /// Factor inside.
        beta: f32,
    },
    /// `min(max(alpha * x + beta, 0), 1)`.
    HardSigmoid {
        /// Slope.
        alpha: f32,
        /// Offset.
        beta: f32,
    },
    /// `x` where `x >= 0`, else `alpha * (e^x - 1)`.
    Elu {
        /// Scale below zero.
        alpha: f32,
    },
    /// `x / (1 + |x|)`.
    Softsign,
    /// `ln(1 + e^x)`.
    Softplus,
}
