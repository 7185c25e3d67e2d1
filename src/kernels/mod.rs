//! The arithmetic: one algorithm over a small vector trait ([`simd::Simd`]), and one thin file per
//! instruction set. Kernels know slices and shapes, never models or plans.

mod activation;
mod isa;
pub mod simd;

pub use activation::Activation;
pub use isa::{ISA_VARIABLE, Isa, IsaError};
