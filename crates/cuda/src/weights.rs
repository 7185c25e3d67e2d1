//! The types of weights on a device, and their order in its memory.

use gatestream::kernels::Numbers;
use gatestream::model::Matrix;
use half::{bf16, f16};

use crate::plan::CHUNK;
use crate::{LaunchPlan, PlanError};

/// The type of weights in a device's memory. Products are of `f32` in all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WeightType {
    /// IEEE-754 binary32.
    #[default]
    F32,
    /// bfloat16, as in a model of [`Precision::Bf16`](gatestream::model::Precision::Bf16).
    Bf16,
    /// IEEE-754 binary16: f32 weights, rounded to nearest, ties to even.
    F16,
}

impl WeightType {
    /// Bytes of a weight.
    pub fn bytes(self) -> usize {
        match self {
            WeightType::F32 => 4,
            WeightType::Bf16 | WeightType::F16 => 2,
        }
    }

    /// The bits of a row of `matrix`, in this type.
    ///
    /// # Errors
    /// [`PlanError::Unsupported`] for weights in 8 bits; [`PlanError::TooLargeForF16`].
    fn row(self, layer: usize, matrix: &Matrix, row: usize) -> Result<Vec<u32>, PlanError> {
        if matches!(matrix.row_numbers(row), Numbers::Int8 { .. }) {
            return Err(PlanError::Unsupported {
                layer,
                what: "the precision int8",
            });
        }
        let values = matrix.row(row);
        let bits = values.iter().map(|&value| match self {
            WeightType::F32 => Ok(value.to_bits()),
            // Exact for a model in bf16.
            WeightType::Bf16 => Ok(bf16::from_f32(value).to_bits().into()),
            WeightType::F16 => match f16::from_f32(value) {
                half if half.is_finite() => Ok(half.to_bits().into()),
                _ => Err(PlanError::TooLargeForF16 {
                    layer,
                    value: value.to_string(),
                }),
            },
        });
        bits.collect()
    }

    /// Writes the bits of a weight to its bytes.
    fn write(self, bits: u32, to: &mut [u8]) {
        to[..self.bytes()].copy_from_slice(&bits.to_le_bytes()[..self.bytes()]);
    }
}

/// The rows of `matrix` `[rows, cols]`, one after the other.
///
/// # Errors
/// As those of [`pack_recurrent`].
#[cfg(feature = "cuda")]
pub(crate) fn pack_rows(
    layer: usize,
    matrix: &Matrix,
    weights: WeightType,
) -> Result<Vec<u8>, PlanError> {
    let mut bytes = vec![0; matrix.rows() * matrix.cols() * weights.bytes()];
    let row_bytes = (matrix.cols() * weights.bytes()).max(1);
    for (row, to) in bytes.chunks_mut(row_bytes).enumerate() {
        let bits = weights.row(layer, matrix, row)?;
        for (bits, to) in bits.into_iter().zip(to.chunks_mut(weights.bytes())) {
            weights.write(bits, to);
        }
    }
    Ok(bytes)
}

/// The recurrent weights `[gates * hidden, hidden]` in the order in which the warps of `plan` read
/// them: `[warp, chunk, unit, gate, lane, 4]`, with zeros past the last unit and the end of the
/// state.
///
/// # Errors
/// [`PlanError::Unsupported`] for weights in 8 bits; [`PlanError::TooLargeForF16`].
pub fn pack_recurrent(
    layer: usize,
    matrix: &Matrix,
    weights: WeightType,
    plan: &LaunchPlan,
) -> Result<Vec<u8>, PlanError> {
    let hidden = matrix.cols();
    let gates = matrix.rows() / hidden;
    let bytes = weights.bytes();
    let of_column = CHUNK * bytes;
    let of_chunk = plan.units * gates * of_column;
    let mut packed = vec![0; plan.padded_units() * gates * plan.chunks * of_column];
    for row in 0..matrix.rows() {
        let (gate, unit) = (row / hidden, row % hidden);
        let (warp, unit) = (unit / plan.units, unit % plan.units);
        let column = warp * plan.chunks * of_chunk + (unit * gates + gate) * of_column;
        for (k, bits) in weights.row(layer, matrix, row)?.into_iter().enumerate() {
            // Lanes and their four weights are neighbours.
            let at = column + k / CHUNK * of_chunk + k % CHUNK * bytes;
            weights.write(bits, &mut packed[at..]);
        }
    }
    Ok(packed)
}
