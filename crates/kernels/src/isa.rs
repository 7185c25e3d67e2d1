//! Which instruction set to use: found at run time, or forced by `GATESTREAM_ISA`.

use std::ffi::OsString;
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
pub const ISA_VARIABLE: &str = "GATESTREAM_ISA";

/// Why an instruction set was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
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
        Isa::ALL
            .into_iter()
            .find(|isa| isa.to_string() == name)
            .ok_or_else(|| IsaError::Unknown(name.to_string()))
    }
}

impl Isa {
    /// Every instruction set the crate knows, best first.
    pub const ALL: [Isa; 4] = [Isa::Avx512, Isa::Avx2, Isa::Neon, Isa::Portable];

    /// Whether this CPU has it.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => super::Avx512::new().is_some(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::Avx2::new().is_some(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => super::Neon::new().is_some(),
            Isa::Portable => true,
            #[allow(unreachable_patterns)] // which ones are left depends on the architecture
            _ => false,
        }
    }

    /// The instruction sets of this CPU, best first; [`Isa::Portable`] is always the last.
    pub fn available() -> Vec<Isa> {
        Isa::ALL
            .into_iter()
            .filter(|isa| isa.is_available())
            .collect()
    }

    /// The best instruction set of this CPU, or the one that [`ISA_VARIABLE`] names.
    ///
    /// # Errors
    /// [`IsaError`] if the variable is set to a name that is unknown, or to an instruction set that
    /// this CPU lacks. An empty variable is an unknown name.
    pub fn select() -> Result<Isa, IsaError> {
        choose(std::env::var_os(ISA_VARIABLE), &Isa::available())
    }
}

/// [`Isa::select`] without the machine. `available` is best first and not empty.
fn choose(asked: Option<OsString>, available: &[Isa]) -> Result<Isa, IsaError> {
    let Some(asked) = asked else {
        return Ok(available[0]);
    };
    let asked: Isa = asked.to_string_lossy().parse()?;
    if available.contains(&asked) {
        Ok(asked)
    } else {
        Err(IsaError::Unavailable {
            asked,
            available: available.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_chosen_unless_the_variable_names_another() {
        let here = [Isa::Avx2, Isa::Portable];
        assert_eq!(choose(None, &here), Ok(Isa::Avx2));
        assert_eq!(choose(Some("portable".into()), &here), Ok(Isa::Portable));
    }

    #[test]
    fn an_unknown_or_absent_one_is_refused_by_name() {
        let here = [Isa::Avx2, Isa::Portable];
        let unknown = choose(Some("sse9".into()), &here).unwrap_err().to_string();
        assert!(
            unknown.contains("sse9") && unknown.contains("portable"),
            "{unknown}"
        );
        assert!(choose(Some("".into()), &here).is_err());
        let absent = choose(Some("avx512".into()), &here).unwrap_err();
        assert_eq!(
            absent.to_string(),
            "this CPU has no avx512; it has avx2, portable"
        );
    }

    #[test]
    fn portable_is_everywhere_and_last() {
        assert_eq!(Isa::available().last(), Some(&Isa::Portable));
    }

    #[test]
    fn names_parse_back() {
        for isa in Isa::ALL {
            assert_eq!(isa.to_string().parse(), Ok(isa));
        }
    }
}
