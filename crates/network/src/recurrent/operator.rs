//! The operator of a typed graph: it runs the session of its region.

use std::borrow::Cow;
use std::sync::Arc;

use gatestream::model::{Input, Output, RecurrentAxes, RecurrentOp};
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
        let directions = RecurrentOp::directions(&node.attributes);
        let axes = RecurrentAxes::of_x(x.shape(), node.is_batch_major, directions, &signature);
        let axes = axes.map_err(|why| refused(node, why))?;
        let RecurrentAxes { steps, batch, .. } = axes;
        let lengths = named("sequence_lens").map(|lengths| {
            let lengths = axes.lengths(&integers(lengths)?);
            lengths.map_err(|why| refused(node, why))
        });
        let lengths = lengths.transpose()?;
        let state = |name: &str| {
            let state = named(name).map(|state| floats(state)).transpose()?;
            let state = state.map(|state| {
                let initial = axes.initial_state(slice(&state)?).map(Cow::into_owned);
                initial.map_err(|why| refused(node, why))
            });
            state.transpose()
        };
        let (h0, c0) = (state("initial_h")?, state("initial_c")?);

        let mut y = vec![0.0; steps * batch * signature.output];
        let mut hn = vec![0.0; batch * signature.hidden_state];
        let mut cn = vec![0.0; batch * signature.cell_state];
        if batch > 0 && steps > 0 {
            let mut input = Input::new(slice(&x)?, steps, batch).layout(axes.layout());
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
            let values = if *name == "Y" {
                let mut values = vec![0.0; y.len()];
                axes.output_of_session(&y, &mut values);
                Tensor::from_shape(&axes.y_shape(), &values)?
            } else {
                let state = if *name == "Y_h" { &hn } else { &cn };
                let mut values = vec![0.0; state.len()];
                axes.state_of_session(state, &mut values);
                if !node.keeps_states {
                    axes.clear_states_of_empty(lengths.as_deref().unwrap_or_default(), &mut values);
                }
                Tensor::from_shape(&axes.state_shape(), &values)?
            };
            Ok(values.cast_to_dt(datum)?.into_owned().into_tvalue())
        });
        outputs.collect()
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
