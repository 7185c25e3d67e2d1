//! What the experiments share: fair timing, the opponents, and their records.
//!
//! Each experiment is a program in `src/bin`; `tuning/README.md` says what each asks and found.

pub mod gemm;
pub mod lstm_by_gemm;
pub mod nest;
pub mod plans;
pub mod record;
pub mod report;
pub mod rounds;
pub mod runner;
pub mod settings;
pub mod shapes;
pub mod sliced;
pub mod stamp;

/// What an experiment ends with.
pub type Outcome = Result<(), Box<dyn std::error::Error>>;
