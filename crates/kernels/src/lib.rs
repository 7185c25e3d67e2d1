//! The arithmetic of `gatestream`: one algorithm over a small vector trait ([`simd::Simd`]), and
//! one thin file per instruction set. Kernels depend on slices and shapes only.

mod activation;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod blocking;
mod chains;
mod dispatch;
mod gates;
mod isa;
mod math;
mod max;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod portable;
mod prefetch;
pub mod probe;
mod product;
mod rows;
mod rowwise;
mod set;
mod shared;
pub mod simd;
mod values;

pub use activation::Activation;
#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use blocking::{Blocking, Prefetch, Stripes, TALL_TILE_ROWS};
pub use dispatch::{Visitor, dispatch};
pub use gates::{
    GateJob, GateKernel, GruFunctions, LightGruFunctions, LstmFunctions, PlainFunctions,
};
pub use isa::{ISA_VARIABLE, Isa, IsaError};
pub use math::activate_all;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use pack::{INT8_DEPTH, Numbers, PackedMatrix, Source, pack_vectors};
pub use portable::Portable;
pub use prefetch::NextProduct;
pub use product::{Product, RowNorms, Scratch, Start, Sweep, TINY_ROW};
pub use rows::{Columns, ReadColumns, RowsMut, RowsRef, SharedRows, recycle_vec};
pub use rowwise::{Combine, ExpSum, PARTIAL_SUMS, RowKernels, row_kernels};
pub use set::{Kernels, kernels, plain_kernels};
pub use shared::Shared;
pub use values::{Aligned, Values, Word, try_zeroed, zeroed};
