//! The arithmetic: one algorithm over a small vector trait ([`simd::Simd`]), and one thin file per
//! instruction set. Kernels know slices and shapes, never models or plans.

mod activation;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dispatch;
mod isa;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
pub mod simd;

pub use activation::Activation;
#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use dispatch::{Visitor, dispatch};
pub use isa::{ISA_VARIABLE, Isa, IsaError};
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use portable::Portable;
