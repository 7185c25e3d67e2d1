//! The promise that no test leaves out an instruction set unnoticed.

mod common;

use std::process::{Command, Output};

use common::isas::{REQUIRE_VARIABLE, isas, skipped};
use gatestream::kernels::Isa;

const HERE: [Isa; 2] = [Isa::Avx2, Isa::Portable];

#[test]
fn what_is_lacking_is_skipped_unless_it_is_required() {
    let lacking = Ok(vec![Isa::Avx512, Isa::Neon]);
    assert_eq!(skipped("", &HERE), lacking);
    assert_eq!(skipped("avx2, portable", &HERE), lacking);
    let refusal = skipped("avx2,neon", &HERE).unwrap_err();
    assert_eq!(
        refusal,
        "GATESTREAM_REQUIRE_ISA names neon, which this machine lacks"
    );
    let unknown = skipped("axv2", &HERE).unwrap_err();
    assert!(unknown.contains("\"axv2\"; use avx512"), "{unknown}");
}

/// What the tests below run again, in a process of its own.
#[test]
fn a_test_over_all_instruction_sets() {
    assert_eq!(isas(), Isa::available());
}

fn again(required: &str) -> Output {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "a_test_over_all_instruction_sets"]);
    command
        .env(REQUIRE_VARIABLE, required)
        .output()
        .expect("this test's own program")
}

/// x86-64 has no Neon, and other machines no AVX2.
fn lacking() -> Isa {
    if Isa::Avx2.is_available() {
        Isa::Neon
    } else {
        Isa::Avx2
    }
}

#[test]
fn a_test_that_lacks_what_is_required_fails() {
    let out = again(&format!("portable,{}", lacking()));
    assert!(!out.status.success());
    let text = String::from_utf8_lossy(&out.stdout);
    let reason = format!("names {}, which this machine lacks", lacking());
    assert!(text.contains(&reason), "{text}");
}

#[test]
fn a_test_that_skips_passes_and_says_so_once() {
    let out = again("portable");
    assert!(out.status.success());
    let text = String::from_utf8_lossy(&out.stderr);
    let line = format!("skipped: no {} here", lacking());
    assert_eq!(text.matches(&line).count(), 1, "{text}");
}
