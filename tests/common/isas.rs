//! Which instruction sets a test runs on, and that none is left out unnoticed.

use std::io::Write;
use std::sync::OnceLock;

use gatestream::kernels::Isa;

/// A list of instruction sets, separated by commas, that tests must not skip.
pub const REQUIRE_VARIABLE: &str = "GATESTREAM_REQUIRE_ISA";

/// The instruction sets of this machine, best first. Says once of every other one that it is
/// skipped.
///
/// # Panics
/// When [`REQUIRE_VARIABLE`] names an instruction set that this machine lacks.
pub fn isas() -> &'static [Isa] {
    static HERE: OnceLock<Vec<Isa>> = OnceLock::new();
    HERE.get_or_init(|| {
        let required = std::env::var(REQUIRE_VARIABLE).unwrap_or_default();
        let here = Isa::available();
        let skipped = skipped(&required, &here).unwrap_or_else(|refusal| panic!("{refusal}"));
        let mut terminal = std::io::stderr();
        for isa in skipped {
            // Not `eprintln!`, which a test that passes keeps to itself.
            let _ = writeln!(terminal, "skipped: no {isa} here");
        }
        here
    })
}

/// The instruction sets that `here` lacks, or why that is a failure.
pub fn skipped(required: &str, here: &[Isa]) -> Result<Vec<Isa>, String> {
    for name in required.split(',').map(str::trim).filter(|n| !n.is_empty()) {
        let isa: Isa = (name.parse()).map_err(|_| {
            format!("{REQUIRE_VARIABLE} names {name:?}; use avx512, avx2, neon, portable")
        })?;
        if !here.contains(&isa) {
            return Err(format!(
                "{REQUIRE_VARIABLE} names {isa}, which this machine lacks"
            ));
        }
    }
    let lacking = Isa::ALL.into_iter().filter(|isa| !here.contains(isa));
    Ok(lacking.collect())
}
