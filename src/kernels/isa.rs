//! Which instruction set to use: found at run time, or forced by `CELLSTREAM_ISA`.

use std::fmt;
use std::str::FromStr;

/// The instruction sets that kernels exist for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// AVX-512 (F, VL, BW, DQ): 16 lanes.
    Avx512,
    /// AVX2 with FMA: 8 lanes.
    Avx2,
    /// AArch64 Advanced SIMD: 4 lanes.
    Neon,
    /// Plain Rust; a fused multiply-add may be a library call.
    Portable,
}

/// The environment variable that forces an instruction set.
pub const ISA_VARIABLE: &str = "CELLSTREAM_ISA";

/// Why an instruction set was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The name is none of those known.
    #[error("{ISA_VARIABLE}={0:?} is not an instruction set; use avx512, avx2, neon or portable")]
    Unknown(String),
    /// The name is known, but this CPU lacks it.
    #[error("this CPU has no {asked}; it has {}", names(available))]
    Unavailable {
        /// What was asked for.
        asked: Isa,
        /// What could be asked for instead.
        available: Vec<Isa>,
    },
}

fn names(all: &[Isa]) -> String {
    let names: Vec<_> = all.iter().map(Isa::to_string).collect();
    names.join(", ")
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2",
            Isa::Neon => "neon",
            Isa::Portable => "portable",
        })
    }
}

impl FromStr for Isa {
    type Err = IsaError;
    fn from_str(name: &str) -> Result<Isa, IsaError> {
        [Isa::Avx512, Isa::Avx2, Isa::Neon, Isa::Portable]
            .into_iter()
            .find(|isa| isa.to_string() == name)
            .ok_or_else(|| IsaError::Unknown(name.to_string()))
    }
}
