//! Converts ONNX's order of gates to this crate's order.

/// The recurrent operators of ONNX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperatorKind {
    Lstm,
    Gru,
    Rnn,
}

impl OperatorKind {
    /// Blocks of rows in a weight matrix.
    pub fn gates(self) -> usize {
        gate_order(self).len()
    }
}

/// The indices of ONNX's row blocks (LSTM i, o, f, c; GRU z, r, h) in this crate's order (LSTM i,
/// f, c, o; GRU r, z, h).
fn gate_order(kind: OperatorKind) -> &'static [usize] {
    match kind {
        OperatorKind::Lstm => &[0, 2, 3, 1],
        OperatorKind::Gru => &[1, 0, 2],
        OperatorKind::Rnn => &[0],
    }
}

/// The indices of ONNX's columns of an LSTM's four gates in this crate's order.
pub(super) fn gate_columns(columns: usize) -> impl Iterator<Item = usize> {
    let hidden = columns / 4;
    let gates = gate_order(OperatorKind::Lstm).iter();
    gates.flat_map(move |gate| gate * hidden..(gate + 1) * hidden)
}

/// Copies ONNX's row blocks in this crate's order.
pub(super) fn reordered(values: &[f32], kind: OperatorKind, cols: usize) -> Vec<f32> {
    let block = values.len() / kind.gates();
    debug_assert!(block.is_multiple_of(cols));
    gate_order(kind)
        .iter()
        .flat_map(|gate| &values[gate * block..(gate + 1) * block])
        .copied()
        .collect()
}
