//! What operators of this crate have in common, beside what they compute.

use tract_onnx::tract_hir::internal::*;

/// An operator of a typed graph whose outputs depend on its inputs alone. [`computed`] makes it one
/// of tract.
pub(crate) trait Computed {
    const NAME: &'static str;

    /// The types and shapes of its outputs.
    fn facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>>;

    fn compute(&self, inputs: TVec<TValue>) -> TractResult<TVec<TValue>>;
}

/// Makes a [`Computed`] an operator of tract.
macro_rules! computed {
    ($type:ty) => {
        impl Op for $type {
            fn name(&self) -> StaticName {
                <$type as Computed>::NAME.into()
            }

            op_as_typed_op!();
        }

        impl EvalOp for $type {
            op_out_of_plan!();

            fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
                self.compute(inputs)
            }
        }

        impl TypedOp for $type {
            fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
                self.facts(inputs)
            }

            as_op!();
        }
    };
}

/// The name and the wiring of an [`Expansion`] that is a [`Computed`] with the same inputs.
macro_rules! wires_itself {
    () => {
        fn name(&self) -> StaticName {
            <Self as Computed>::NAME.into()
        }

        fn wire(
            &self,
            prefix: &str,
            target: &mut TypedModel,
            inputs: &[OutletId],
        ) -> TractResult<TVec<OutletId>> {
            target.wire_node(prefix, self.clone(), inputs)
        }
    };
}

/// The name, the outputs and the rules of an [`Expansion`]: those of the one in this field.
macro_rules! passes_on_rules {
    ($field:tt) => {
        fn name(&self) -> StaticName {
            self.$field.name()
        }

        fn nboutputs(&self) -> TractResult<usize> {
            self.$field.as_ref().nboutputs()
        }

        fn rules<'r, 'p: 'r, 's: 'r>(
            &'s self,
            solver: &mut Solver<'r>,
            inputs: &'p [TensorProxy],
            outputs: &'p [TensorProxy],
        ) -> InferenceResult {
            self.$field.as_ref().rules(solver, inputs, outputs)
        }
    };
}

pub(crate) use {computed, passes_on_rules, wires_itself};
