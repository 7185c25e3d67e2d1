//! Moves the unmasked steps of each sequence to its begin, and outputs back to their places.
//!
//! These operators are in no file; [`fusion`](crate::fusion) writes them.
//!
//! ```text
//! CompactSteps  x [steps, batch, features], mask [steps, batch, 1]
//!               -> x with the steps whose mask is true first, zeros behind; lengths [batch]
//! ExpandSteps   y [steps, batch, features], mask [steps, batch, 1], first [batch, features]
//!               -> at a step whose mask is true the next step of y; at others the output before,
//!               at first `first`. Without `first`: zero.
//! ```
//!
//! With the attribute `negated` other than 0 the mask is true where its value is false.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;

use super::Parsed;
use super::computed::{Computed, computed, wires_itself};
use crate::source::attributes::integer;

pub(crate) const COMPACT_STEPS: &str = "gatestream.CompactSteps";
pub(crate) const EXPAND_STEPS: &str = "gatestream.ExpandSteps";

pub(super) fn parse_compact(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    parse(node, Direction::Compact)
}

pub(super) fn parse_expand(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    parse(node, Direction::Expand)
}

fn parse(node: &NodeProto, direction: Direction) -> TractResult<Parsed> {
    let operator = MaskedSteps {
        direction,
        is_negated: integer(node, "negated", 0) != 0,
    };
    Ok((expand(operator), Vec::new()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Compact,
    Expand,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MaskedSteps {
    direction: Direction,
    is_negated: bool,
}

impl MaskedSteps {
    fn compact(&self, x: &[f32], mask: Mask<'_>, features: usize) -> TractResult<TVec<TValue>> {
        let mut y = vec![0.0; x.len()];
        let mut lengths = vec![0i32; mask.batch];
        for step in 0..mask.steps {
            for (sequence, length) in lengths.iter_mut().enumerate() {
                if mask.is_set(step, sequence) {
                    let to = (*length as usize * mask.batch + sequence) * features;
                    let from = (step * mask.batch + sequence) * features;
                    y[to..][..features].copy_from_slice(&x[from..][..features]);
                    *length += 1;
                }
            }
        }
        let y = Tensor::from_shape(&[mask.steps, mask.batch, features], &y)?;
        Ok(tvec!(y.into_tvalue(), tensor1(&lengths).into_tvalue()))
    }

    fn expand(
        &self,
        x: &[f32],
        mask: Mask<'_>,
        features: usize,
        first: Option<&[f32]>,
    ) -> TractResult<TVec<TValue>> {
        let mut y = vec![0.0; x.len()];
        let mut read = vec![0usize; mask.batch];
        for step in 0..mask.steps {
            for (sequence, read) in read.iter_mut().enumerate() {
                let to = (step * mask.batch + sequence) * features;
                let row = |step: usize| (step * mask.batch + sequence) * features;
                if mask.is_set(step, sequence) {
                    y[to..][..features].copy_from_slice(&x[row(*read)..][..features]);
                    *read += 1;
                } else if let Some(first) = first {
                    let held = match read.checked_sub(1) {
                        Some(last) => &x[row(last)..],
                        None => &first[sequence * features..],
                    };
                    y[to..][..features].copy_from_slice(&held[..features]);
                }
            }
        }
        let y = Tensor::from_shape(&[mask.steps, mask.batch, features], &y)?;
        Ok(tvec!(y.into_tvalue()))
    }
}

struct Mask<'a> {
    values: &'a [bool],
    steps: usize,
    batch: usize,
    is_negated: bool,
}

impl Mask<'_> {
    fn is_set(&self, step: usize, sequence: usize) -> bool {
        self.values[step * self.batch + sequence] != self.is_negated
    }
}

impl Expansion for MaskedSteps {
    wires_itself!();

    fn nboutputs(&self) -> TractResult<usize> {
        Ok(match self.direction {
            Direction::Compact => 2,
            Direction::Expand => 1,
        })
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        ensure!(
            matches!(inputs.len(), 2 | 3),
            "it has {} inputs; it must have 2 or 3",
            inputs.len()
        );
        check_output_arity(outputs, self.nboutputs()?)?;
        solver.equals(&inputs[0].rank, 3)?;
        solver.equals(&outputs[0].datum_type, f32::datum_type())?;
        solver.equals(&inputs[0].shape, &outputs[0].shape)?;
        if let [_, lengths] = outputs {
            solver.equals(&lengths.datum_type, i32::datum_type())?;
            solver.equals(&lengths.rank, 1)?;
            solver.equals(&lengths.shape[0], &inputs[0].shape[1])?;
        }
        Ok(())
    }
}

computed!(MaskedSteps);

impl Computed for MaskedSteps {
    const NAME: &'static str = "MaskedSteps";

    fn facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let x = inputs.first().context("its input is missing")?;
        ensure!(
            x.rank() == 3,
            "its input has {} axes; it must have three",
            x.rank()
        );
        let mut facts = tvec!(x.without_value());
        if self.direction == Direction::Compact {
            facts.push(i32::datum_type().fact([x.shape[1].clone()]));
        }
        Ok(facts)
    }

    fn compute(&self, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (x, mask) = (&inputs[0], &inputs[1]);
        let &[steps, batch, features] = x.shape() else {
            bail!(
                "its input has the shape {:?}; it must have three axes",
                x.shape()
            );
        };
        ensure!(
            mask.shape() == [steps, batch, 1],
            "its mask has the shape {:?}; it must have {:?}",
            mask.shape(),
            [steps, batch, 1]
        );
        let mask = mask.try_as_plain_ram()?;
        let mask = Mask {
            values: mask.as_slice::<bool>()?,
            steps,
            batch,
            is_negated: self.is_negated,
        };
        let x = x.try_as_plain_ram()?;
        let x = x.as_slice::<f32>()?;
        match self.direction {
            Direction::Compact => self.compact(x, mask, features),
            Direction::Expand => {
                let first = inputs.get(2);
                let first = first.map(|first| first.try_as_plain_ram()).transpose()?;
                let first = first
                    .as_ref()
                    .map(|first| first.as_slice::<f32>())
                    .transpose()?;
                let fits = first.is_none_or(|first| first.len() == batch * features);
                ensure!(
                    fits,
                    "its first output has not {batch} rows of {features} features"
                );
                self.expand(x, mask, features, first)
            }
        }
    }
}
