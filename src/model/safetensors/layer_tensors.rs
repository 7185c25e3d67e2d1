//! The tensors of a layer, by their names.

use std::fmt;

/// The tensors of one direction of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TensorKind {
    InputWeight,
    RecurrentWeight,
    InputBias,
    RecurrentBias,
    Projection,
    Peephole,
    NormWeight,
    NormBias,
    NormMean,
    NormVariance,
}

impl TensorKind {
    pub const ALL: [(TensorKind, &str); 10] = [
        (TensorKind::InputWeight, "weight_ih"),
        (TensorKind::RecurrentWeight, "weight_hh"),
        (TensorKind::InputBias, "bias_ih"),
        (TensorKind::RecurrentBias, "bias_hh"),
        (TensorKind::Projection, "weight_hr"),
        (TensorKind::Peephole, "peephole"),
        (TensorKind::NormWeight, "norm_weight"),
        (TensorKind::NormBias, "norm_bias"),
        (TensorKind::NormMean, "norm_mean"),
        (TensorKind::NormVariance, "norm_var"),
    ];

    /// Batch normalisation: all of them or none.
    pub const NORM: [TensorKind; 4] = [
        TensorKind::NormWeight,
        TensorKind::NormBias,
        TensorKind::NormMean,
        TensorKind::NormVariance,
    ];

    /// Those that may have a scale.
    const MATRICES: [TensorKind; 3] = [
        TensorKind::InputWeight,
        TensorKind::RecurrentWeight,
        TensorKind::Projection,
    ];
}

impl fmt::Display for TensorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TensorKind::ALL[*self as usize].1)
    }
}

/// One direction of one layer, in the order of PyTorch's state arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DirectionId {
    pub layer: usize,
    pub reverse: bool,
}

/// A tensor name such as `encoder.rnn.weight_ih_l0_reverse`, split up.
pub(super) struct TensorName<'n> {
    pub prefix: &'n str,
    pub kind: TensorKind,
    pub direction: DirectionId,
}

impl<'n> TensorName<'n> {
    /// `None` for names of other tensors. The scale of a matrix counts as the matrix.
    pub fn parse(name: &'n str) -> Option<TensorName<'n>> {
        match name.strip_suffix("_scale") {
            Some(matrix) => {
                TensorName::without_scale(matrix).filter(|n| TensorKind::MATRICES.contains(&n.kind))
            }
            None => TensorName::without_scale(name),
        }
    }

    fn without_scale(name: &'n str) -> Option<TensorName<'n>> {
        let (name, reverse) = match name.strip_suffix("_reverse") {
            Some(forward) => (forward, true),
            None => (name, false),
        };
        let (name, number) = name.rsplit_once("_l")?;
        let layer: usize = number.parse().ok()?;
        // PyTorch writes neither `+1` nor `01`; accepting them would give layer 1 twice.
        if layer.to_string() != number {
            return None;
        }
        TensorKind::ALL.iter().find_map(|&(kind, text)| {
            let prefix = name.strip_suffix(text)?;
            let direction = DirectionId { layer, reverse };
            Some(TensorName {
                prefix,
                kind,
                direction,
            })
        })
    }
}
