//! FusedMatMul of `com.microsoft`: `alpha · op(A) · op(B)`.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::ops::logic::wire_with_rank_broadcast;
use tract_onnx::tract_hir::ops::matmul::{MatMulInference, compute_shapes};
use tract_onnx::tract_hir::tract_core::ops::math::mul;

use super::Parsed;
use crate::source::attributes::{float, integer};

pub(super) fn parse(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let is_set = |name: &str| integer(node, name, 0) != 0;
    let operator = FusedMatMul {
        alpha: float(node, "alpha", 1.0),
        transposes: [is_set("transA"), is_set("transB")],
        moves_batch: [is_set("transBatchA"), is_set("transBatchB")],
    };
    Ok((expand(operator), Vec::new()))
}

/// What is done to A and B before the product.
#[derive(Clone, Debug)]
struct FusedMatMul {
    alpha: f32,
    /// The last two axes change places; not those of a vector.
    transposes: [bool; 2],
    /// The first axis stands before those of the batch: it becomes the last but one.
    moves_batch: [bool; 2],
}

impl FusedMatMul {
    fn product(&self, ranks: [usize; 2]) -> MatMulInference {
        MatMulInference {
            a_trans: self.transposes[0] && ranks[0] > 1,
            b_trans: self.transposes[1] && ranks[1] > 1,
            c_trans: false,
        }
    }
}

impl Expansion for FusedMatMul {
    fn name(&self) -> StaticName {
        "FusedMatMul".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 2)?;
        check_output_arity(outputs, 1)?;
        solver.equals(&inputs[0].datum_type, &inputs[1].datum_type)?;
        solver.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        solver.given_2(&inputs[0].shape, &inputs[1].shape, move |solver, a, b| {
            let product = self.product([a.len(), b.len()]);
            let [a, b] =
                [(a, self.moves_batch[0]), (b, self.moves_batch[1])].map(|(mut of, moves)| {
                    if moves && of.len() > 2 {
                        let last = of.len() - 1;
                        of[..last].rotate_left(1);
                    }
                    of
                });
            let (.., shape) = compute_shapes(a, b, product.a_trans, product.b_trans, false)?;
            solver.equals(&outputs[0].shape, shape)
        })
    }

    fn wire(
        &self,
        prefix: &str,
        target: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let mut operands: TVec<OutletId> = inputs.into();
        let mut ranks = [0; 2];
        for (at, operand) in operands.iter_mut().enumerate() {
            let rank = target.outlet_fact(*operand)?.rank();
            ranks[at] = rank;
            if self.moves_batch[at] && rank > 2 {
                let name = format!("{prefix}.batch_first.{at}");
                *operand = target.wire_node(name, AxisOp::Move(0, rank - 2), &[*operand])?[0];
            }
        }
        let product = self.product(ranks);
        if self.alpha == 1.0 {
            return product.wire(prefix, target, &operands);
        }
        let product = product.wire(&format!("{prefix}.product"), target, &operands)?[0];
        let kind = target.outlet_fact(product)?.datum_type;
        let alpha = tensor0(self.alpha).cast_to_dt(kind)?.into_owned();
        let alpha = target.add_const(format!("{prefix}.alpha"), alpha)?;
        wire_with_rank_broadcast(prefix, target, mul(), &[product, alpha])
    }
}
