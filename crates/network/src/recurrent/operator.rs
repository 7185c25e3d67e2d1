//! The operator of a typed graph: it runs the session of its region.

use std::borrow::Cow;
use std::sync::Arc;

use gatestream::model::{Input, Layout, Output, RecurrentOp};
use tract_onnx::tract_hir::internal::*;

use super::node::RecurrentNode;
use super::region::Region;
use crate::operators::integers;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Recurrent {
    node: RecurrentNode,
    /// `None`: its weights are inputs.
    region: Option<Arc<Region>>,
    sizes: [TDim; 2],
}

impl PartialEq for Recurrent {
    fn eq(&self, other: &Recurrent) -> bool {
        let same = |(one, other): (&Arc<Region>, &Arc<Region>)| Arc::ptr_eq(one, other);
        self.region
            .as_ref()
            .zip(other.region.as_ref())
            .is_some_and(same)
            && self.node.name == other.node.name
    }
}

impl Eq for Recurrent {}

fn refused(node: &RecurrentNode, why: impl std::fmt::Display) -> TractError {
    format_err!("recurrent node {:?} ({}): {why}", node.name, node.operator)
}

impl Recurrent {
    pub fn with_weights(node: &RecurrentNode, weights: Vec<Arc<Tensor>>) -> TractResult<Recurrent> {
        let region = node.regions.region(node, weights);
        Ok(Recurrent {
            region: Some(region.map_err(|why| refused(node, why))?),
            ..Recurrent::without_weights(node)
        })
    }

    pub fn without_weights(node: &RecurrentNode) -> Recurrent {
        Recurrent {
            node: node.clone(),
            region: None,
            sizes: [TDim::Val(0), TDim::Val(0)],
        }
    }

    /// Sets the number of directions and the hidden size.
    pub fn of_sizes(self, directions: TDim, hidden: TDim) -> Recurrent {
        Recurrent {
            sizes: [directions, hidden],
            ..self
        }
    }

    /// Whether an input of the node is an input of the operator.
    pub fn reads(&self, input: &str) -> bool {
        self.region.is_none() || !RecurrentOp::is_weight(input)
    }

    /// The inputs by name.
    fn named<'a>(&self, inputs: &'a [TValue]) -> impl Fn(&str) -> Option<&'a TValue> {
        let names = self
            .node
            .inputs
            .iter()
            .copied()
            .filter(|name| self.reads(name));
        let names: Vec<&str> = names.collect();
        move |name| {
            let at = names.iter().position(|found| *found == name)?;
            inputs.get(at)
        }
    }

    /// The region, made of the weights among the inputs if it has none.
    fn region(&self, inputs: &[TValue]) -> TractResult<Cow<'_, Arc<Region>>> {
        if let Some(region) = &self.region {
            return Ok(Cow::Borrowed(region));
        }
        let named = self.named(inputs);
        let names = self
            .node
            .inputs
            .iter()
            .filter(|name| RecurrentOp::is_weight(name));
        let weights = names.map(|name| {
            let value = named(name).with_context(|| format!("{name} is missing"))?;
            Ok(value.clone().into_arc_tensor())
        });
        let weights: TractResult<Vec<_>> = weights.collect();
        let region = self.node.regions.region(&self.node, weights?);
        Ok(Cow::Owned(region.map_err(|why| refused(&self.node, why))?))
    }

    fn run(&self, inputs: &[TValue]) -> TractResult<TVec<TValue>> {
        let node = &self.node;
        let named = self.named(inputs);
        let region = self.region(inputs)?;
        let signature = region.signature();
        let x = named("X").context("X is missing")?;
        let datum = x.datum_type();
        let x = floats(x)?;
        let &[first, second, features] = x.shape() else {
            bail!("X has the shape {:?}; it must have three axes", x.shape());
        };
        let (steps, batch) = if node.is_batch_major {
            (second, first)
        } else {
            (first, second)
        };
        if features != signature.input {
            return Err(refused(
                node,
                format!("X has {features} features; W has {}", signature.input),
            ));
        }
        let lengths = named("sequence_lens").map(|lengths| self.lengths(lengths, steps, batch));
        let lengths = lengths.transpose()?;
        let state = |name: &str| {
            named(name)
                .map(|state| self.initial(state, batch))
                .transpose()
        };
        let (h0, c0) = (state("initial_h")?, state("initial_c")?);
        let directions = self.directions();
        let hidden = signature.output / directions;

        let layout = if node.is_batch_major {
            Layout::BatchMajor
        } else {
            Layout::TimeMajor
        };
        let mut y = vec![0.0; steps * batch * signature.output];
        let mut hn = vec![0.0; batch * signature.hidden_state];
        let mut cn = vec![0.0; batch * signature.cell_state];
        if batch > 0 && steps > 0 {
            let values = slice(&x)?;
            let mut input = Input::new(values, steps, batch).layout(layout);
            input.lengths = lengths.as_deref();
            input.h0 = h0.as_deref();
            input.c0 = c0.as_deref();
            let mut output = Output::new(&mut y).hn(&mut hn);
            if signature.cell_state > 0 {
                output = output.cn(&mut cn);
            }
            let ran = region.run(&node.regions, &input, &mut output);
            ran.map_err(|why| refused(node, why))?;
        }
        let outputs = node.outputs.iter().map(|name| {
            let values = match *name {
                "Y" => self.output(&y, [steps, batch, directions, hidden])?,
                "Y_h" => self.last(&hn, [batch, directions, hidden])?,
                _ => self.last(&cn, [batch, directions, hidden])?,
            };
            Ok(values.cast_to_dt(datum)?.into_owned().into_tvalue())
        });
        outputs.collect()
    }

    fn directions(&self) -> usize {
        RecurrentOp::directions(&self.node.attributes)
    }

    fn lengths(&self, lengths: &Tensor, steps: usize, batch: usize) -> TractResult<Vec<usize>> {
        let lengths = integers(lengths)?.into_iter().map(|length| {
            let length = usize::try_from(length)
                .ok()
                .filter(|length| *length <= steps);
            length.ok_or_else(|| refused(&self.node, format!("a length is not from 0 to {steps}")))
        });
        let lengths: Vec<usize> = lengths.collect::<TractResult<_>>()?;
        if lengths.len() == batch {
            Ok(lengths)
        } else {
            Err(refused(
                &self.node,
                format!("there are {} lengths for {batch} sequences", lengths.len()),
            ))
        }
    }

    /// An initial state in the order of [`Input::h0`].
    fn initial(&self, state: &Tensor, batch: usize) -> TractResult<Vec<f32>> {
        let state = floats(state)?;
        let values = slice(&state)?;
        let &[first, second, size] = state.shape() else {
            bail!(
                "an initial state has the shape {:?}; it must have three axes",
                state.shape()
            );
        };
        let (directions, of_batch) = if self.node.is_batch_major {
            (second, first)
        } else {
            (first, second)
        };
        if of_batch != batch {
            return Err(refused(
                &self.node,
                format!("an initial state is of {of_batch} sequences, X of {batch}"),
            ));
        }
        Ok(if self.node.is_batch_major {
            swap_axes(values, [batch, directions, size])
        } else {
            values.to_vec()
        })
    }

    /// `Y` of the output of a session.
    fn output(
        &self,
        y: &[f32],
        [steps, batch, directions, hidden]: [usize; 4],
    ) -> TractResult<Tensor> {
        if self.node.is_batch_major {
            Tensor::from_shape(&[batch, steps, directions, hidden], y)
        } else {
            let shape = [steps, directions, batch, hidden];
            if directions == 1 {
                return Tensor::from_shape(&shape, y);
            }
            let step = batch * directions * hidden;
            let mut swapped = Vec::with_capacity(y.len());
            for step in y.chunks(step.max(1)) {
                add_swapped(&mut swapped, step, [batch, directions, hidden]);
            }
            Tensor::from_shape(&shape, &swapped)
        }
    }

    /// `Y_h` or `Y_c` of the final states of a session.
    fn last(&self, state: &[f32], [batch, directions, hidden]: [usize; 3]) -> TractResult<Tensor> {
        if self.node.is_batch_major {
            let swapped = swap_axes(state, [directions, batch, hidden]);
            Tensor::from_shape(&[batch, directions, hidden], &swapped)
        } else {
            Tensor::from_shape(&[directions, batch, hidden], state)
        }
    }
}

/// `[a, b, c]` as `[b, a, c]`.
fn swap_axes(values: &[f32], sizes: [usize; 3]) -> Vec<f32> {
    let mut swapped = Vec::with_capacity(values.len());
    add_swapped(&mut swapped, values, sizes);
    swapped
}

/// Adds `[a, b, c]` as `[b, a, c]`. Row by row: iterators over single elements are much slower.
fn add_swapped(to: &mut Vec<f32>, values: &[f32], [a, b, c]: [usize; 3]) {
    for second in 0..b {
        for first in 0..a {
            to.extend_from_slice(&values[(first * b + second) * c..][..c]);
        }
    }
}

fn floats(tensor: &Tensor) -> TractResult<Cow<'_, Tensor>> {
    tensor.cast_to::<f32>()
}

fn slice(tensor: &Tensor) -> TractResult<&[f32]> {
    tensor.try_as_plain_ram()?.as_slice::<f32>()
}

impl Op for Recurrent {
    fn name(&self) -> StaticName {
        "Recurrent".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![self.node.operator.clone()])
    }

    op_as_typed_op!();
}

impl EvalOp for Recurrent {
    not_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        self.run(&inputs)
    }
}

impl TypedOp for Recurrent {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let x = inputs.first().context("X is missing")?;
        ensure!(x.rank() == 3, "X has {} axes; it must have three", x.rank());
        let (first, second) = (x.shape[0].clone(), x.shape[1].clone());
        let [directions, hidden] = self.sizes.clone();
        let facts = self.node.outputs.iter().map(|name| {
            let shape: TVec<TDim> = match (*name, self.node.is_batch_major) {
                ("Y", false) => tvec!(
                    first.clone(),
                    directions.clone(),
                    second.clone(),
                    hidden.clone()
                ),
                ("Y", true) => tvec!(
                    first.clone(),
                    second.clone(),
                    directions.clone(),
                    hidden.clone()
                ),
                (_, false) => tvec!(directions.clone(), second.clone(), hidden.clone()),
                (_, true) => tvec!(first.clone(), directions.clone(), hidden.clone()),
            };
            x.datum_type.fact(&*shape)
        });
        Ok(facts.collect())
    }

    as_op!();
}
