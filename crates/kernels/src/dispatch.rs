//! From an instruction set chosen at run time to code compiled for it.

use super::simd::Simd;
use super::{Isa, IsaError};

/// Generic code to be run for one instruction set.
///
/// `visit` is ordinary code: wrap its hot loop in [`Simd::vectorize`], passing a closure marked
/// `#[inline(always)]` that calls only `#[inline(always)]` functions.
pub trait Visitor {
    /// What the visit returns.
    type Out;
    /// Runs with the token of the chosen instruction set.
    fn visit<S: Simd>(self, s: S) -> Self::Out;
}

/// Runs `visitor` with the token of `isa`, or says that this CPU lacks it.
///
/// # Errors
/// [`IsaError::Unavailable`] if this CPU (or this architecture) has no `isa`.
pub fn dispatch<V: Visitor>(isa: Isa, visitor: V) -> Result<V::Out, IsaError> {
    let unavailable = || IsaError::Unavailable {
        asked: isa,
        available: Isa::available(),
    };
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => {
            let token = super::avx512::Avx512::new().ok_or_else(unavailable)?;
            Ok(visitor.visit(token))
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => {
            let token = super::avx2::Avx2::new().ok_or_else(unavailable)?;
            Ok(visitor.visit(token))
        }
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => {
            let token = super::neon::Neon::new().ok_or_else(unavailable)?;
            Ok(visitor.visit(token))
        }
        Isa::Portable => {
            let token = super::portable::Portable::new().ok_or_else(unavailable)?;
            Ok(visitor.visit(token))
        }
        #[allow(unreachable_patterns)]
        // which instruction sets are left depends on the architecture
        _ => Err(unavailable()),
    }
}
