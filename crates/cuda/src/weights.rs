//! The types of weights on a device, and their order in its memory.

use cellstream::kernels::Numbers;
use cellstream::model::Matrix;
use half::f16;

use crate::plan::{CHUNK, LANES};
use crate::{LaunchPlan, PlanError};

/// The type of weights in a device's memory. Products are of `f32` in all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// IEEE-754 binary32.
    #[default]
    F32,
    /// bfloat16, as in a model of [`Precision::Bf16`](cellstream::model::Precision::Bf16).
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

    /// The bytes of a row of `matrix`, in this type.
    ///
    /// # Errors
    /// [`PlanError::Unsupported`] for weights in 8 bits; [`PlanError::TooLargeForF16`].
    fn row(self, layer: usize, matrix: &Matrix, row: usize) -> Result<Vec<Stored>, PlanError> {
        let int8 = PlanError::Unsupported {
            layer,
            what: "the precision int8",
        };
        match (self, matrix.row_numbers(row)) {
            (_, Numbers::Int8 { .. }) => Err(int8),
            (WeightType::Bf16, Numbers::Bf16(halves)) => {
                Ok(halves.iter().map(|half| Stored::half(*half)).collect())
            }
            (WeightType::F16, _) => {
                let values = matrix.row(row);
                let halves = values.iter().map(|&value| {
                    let half = f16::from_f32(value);
                    if half.is_finite() {
                        return Ok(Stored::half(half.to_bits()));
                    }
                    Err(PlanError::TooLargeForF16 {
                        layer,
                        value: value.to_string(),
                    })
                });
                halves.collect()
            }
            (WeightType::Bf16, _) => {
                let values = matrix.row(row);
                let halves = values.iter().map(|v| half::bf16::from_f32(*v).to_bits());
                Ok(halves.map(Stored::half).collect())
            }
            (WeightType::F32, _) => {
                let values = matrix.row(row);
                Ok(values.iter().map(|v| Stored(v.to_bits(), 4)).collect())
            }
        }
    }
}

/// The bits of a weight, and how many bytes they take.
#[derive(Clone, Copy)]
struct Stored(u32, usize);

impl Stored {
    fn half(bits: u16) -> Stored {
        Stored(u32::from(bits), 2)
    }

    fn write(self, to: &mut [u8]) {
        to[..self.1].copy_from_slice(&self.0.to_le_bytes()[..self.1]);
    }
}

/// The rows of `matrix` `[rows, cols]`, one after the other.
///
/// # Errors
/// As those of [`pack_recurrent`].
pub fn pack_rows(layer: usize, matrix: &Matrix, weights: WeightType) -> Result<Vec<u8>, PlanError> {
    let mut bytes = vec![0; matrix.rows() * matrix.cols() * weights.bytes()];
    let row_bytes = (matrix.cols() * weights.bytes()).max(1);
    for (row, to) in bytes.chunks_mut(row_bytes).enumerate() {
        let stored = weights.row(layer, matrix, row)?;
        for (weight, to) in stored.into_iter().zip(to.chunks_mut(weights.bytes())) {
            weight.write(to);
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
        for (k, weight) in weights.row(layer, matrix, row)?.into_iter().enumerate() {
            let (lane, of_lane) = (k % CHUNK / 4, k % 4);
            debug_assert!(lane < LANES);
            let at = column + k / CHUNK * of_chunk + (lane * 4 + of_lane) * bytes;
            weight.write(&mut packed[at..]);
        }
    }
    Ok(packed)
}
