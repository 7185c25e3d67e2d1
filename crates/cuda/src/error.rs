//! Why a model does not run on a GPU.

/// What a [`LaunchPlan`](crate::LaunchPlan) or the packing of weights refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A kind of model that the kernels do not compute.
    #[error("layer {layer}: {what} is not supported on a GPU; run it on the CPU")]
    Unsupported {
        /// Index of the layer.
        layer: usize,
        /// The property.
        what: &'static str,
    },
    /// More units than the largest plan has.
    #[error(
        "{hidden} hidden units in {directions} directions do not fit on {multiprocessors} \
         multiprocessors, which hold {largest} at most; run it on the CPU"
    )]
    TooLarge {
        /// Hidden size.
        hidden: usize,
        /// Directions that run at once.
        directions: usize,
        /// Multiprocessors of the device.
        multiprocessors: u32,
        /// Largest hidden size.
        largest: usize,
    },
    /// More symbols than a launch has blocks for.
    #[error("{symbols} symbols are too many for a GPU, {largest} at most; run it on the CPU")]
    ManySymbols {
        /// Symbols of the projection.
        symbols: usize,
        /// Largest number.
        largest: usize,
    },
    /// A weight has no binary16 of finite value.
    #[error("layer {layer}: the weight {value} is too large for f16; use bf16 or f32")]
    TooLargeForF16 {
        /// Index of the layer.
        layer: usize,
        /// The weight.
        value: String,
    },
}
