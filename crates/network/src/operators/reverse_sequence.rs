//! ReverseSequence: reverses the first steps of each sequence, as many as its length.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;

use super::Parsed;
use super::computed::{Computed, computed, wires_itself};
use super::indices::integers;
use crate::source::attributes::integer;

pub(super) fn parse(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let operator = ReverseSequence {
        time_axis: integer(node, "time_axis", 0) as usize,
        batch_axis: integer(node, "batch_axis", 1) as usize,
    };
    ensure!(
        operator.time_axis + operator.batch_axis == 1,
        "time_axis and batch_axis must be 0 and 1"
    );
    Ok((expand(operator), Vec::new()))
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ReverseSequence {
    time_axis: usize,
    batch_axis: usize,
}

impl Expansion for ReverseSequence {
    wires_itself!();

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 2)?;
        check_output_arity(outputs, 1)?;
        solver.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        solver.equals(&inputs[0].shape, &outputs[0].shape)
    }
}

computed!(ReverseSequence);

impl Computed for ReverseSequence {
    const NAME: &'static str = "ReverseSequence";

    fn facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec!(inputs[0].without_value()))
    }

    fn compute(&self, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (x, lengths) = args_2!(inputs);
        ensure!(
            x.rank() >= 2,
            "its input has {} axes; it must have two or more",
            x.rank()
        );
        ensure!(
            x.datum_type().is_copy(),
            "its input is of the type {:?}",
            x.datum_type()
        );
        let lengths = integers(&lengths)?;
        let (steps, batch) = (x.shape()[self.time_axis], x.shape()[self.batch_axis]);
        ensure!(
            lengths.len() == batch,
            "{} lengths for {batch} sequences",
            lengths.len()
        );
        let mut y = x.clone().into_tensor();
        let rows = steps * batch;
        if let Some(size) = x.as_bytes().len().checked_div(rows) {
            let row = |step: usize, sequence: usize| match self.time_axis {
                0 => step * batch + sequence,
                _ => sequence * steps + step,
            };
            for (sequence, &length) in lengths.iter().enumerate() {
                let length = usize::try_from(length)
                    .ok()
                    .filter(|length| *length <= steps);
                let length =
                    length.with_context(|| format!("a length is not from 0 to {steps}"))?;
                for step in 0..length {
                    let from = row(length - 1 - step, sequence) * size;
                    let to = row(step, sequence) * size;
                    let bytes = &x.as_bytes()[from..][..size];
                    y.as_bytes_mut()[to..][..size].copy_from_slice(bytes);
                }
            }
        }
        Ok(tvec!(y.into_tvalue()))
    }
}
