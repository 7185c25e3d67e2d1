//! The operators as tract reads them: shapes and types first, then the operator of a typed graph.

use gatestream::model::RecurrentOp;
use tract_onnx::Onnx;
use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;

use super::node::RecurrentNode;
use super::operator::Recurrent;
use crate::operators::Parsed;

/// Puts the operators in the place of tract's own.
pub(crate) fn register(onnx: &mut Onnx) {
    for name in super::OPERATORS {
        onnx.op_register.insert(name, parse);
    }
}

fn parse(_: &ParsingContext<'_>, proto: &NodeProto) -> TractResult<Parsed> {
    let node = RecurrentNode::parse(proto)?;
    Ok((expand(RecurrentExpansion(node)), Vec::new()))
}

#[derive(Clone, Debug)]
struct RecurrentExpansion(RecurrentNode);

impl Expansion for RecurrentExpansion {
    fn name(&self) -> StaticName {
        "Recurrent".into()
    }

    fn validation(&self) -> Validation {
        Validation::Rounding
    }

    fn nboutputs(&self) -> TractResult<usize> {
        Ok(self.0.outputs.len())
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        let node = &self.0;
        check_input_arity(inputs, node.inputs.len())?;
        check_output_arity(outputs, node.outputs.len())?;
        let (Some(x), Some(r)) = (node.input("X"), node.input("R")) else {
            bail!("node {:?} has no X or no R", node.name);
        };
        let (x, r) = (&inputs[x], &inputs[r]);
        solver.equals(&x.rank, 3)?;
        solver.equals(&r.rank, 3)?;
        let (time, batch) = if node.is_batch_major { (1, 0) } else { (0, 1) };
        // Of DynamicQuantizeLSTM R is [directions, hidden, 4 hidden].
        let hidden = if node.is_quantised() { 1 } else { 2 };
        for (name, output) in node.outputs.iter().zip(outputs) {
            solver.equals(&output.datum_type, &x.datum_type)?;
            let axes = match (*name, node.is_batch_major) {
                ("Y", false) => vec![(x, time), (r, 0), (x, batch), (r, hidden)],
                ("Y", true) => vec![(x, batch), (x, time), (r, 0), (r, hidden)],
                (_, false) => vec![(r, 0), (x, batch), (r, hidden)],
                (_, true) => vec![(x, batch), (r, 0), (r, hidden)],
            };
            solver.equals(&output.rank, axes.len() as i64)?;
            for (axis, (of, from)) in axes.into_iter().enumerate() {
                solver.equals(&output.shape[axis], &of.shape[from])?;
            }
        }
        Ok(())
    }

    fn wire(
        &self,
        prefix: &str,
        target: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let node = &self.0;
        let named = || node.inputs.iter().copied().zip(inputs);
        let weights = named().filter(|(name, _)| RecurrentOp::is_weight(name));
        let weights = weights.map(|(_, outlet)| Ok(target.outlet_fact(*outlet)?.konst.clone()));
        let weights: TractResult<Option<Vec<_>>> = weights.collect();
        let operator = match weights? {
            Some(weights) => Recurrent::with_weights(node, weights)?,
            None => Recurrent::without_weights(node),
        };
        let given = named().filter(|(name, _)| operator.reads(name));
        let given: TVec<OutletId> = given.map(|(_, outlet)| *outlet).collect();
        let [directions, hidden] = {
            let r = target.outlet_fact(inputs[node.input("R").context("R")?])?;
            let hidden = if node.is_quantised() { 1 } else { 2 };
            [r.shape[0].clone(), r.shape[hidden].clone()]
        };
        target.wire_node(prefix, operator.of_sizes(directions, hidden), &given)
    }
}
