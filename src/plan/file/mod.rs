//! The plan file: a plan as text to read, compare and edit, with the model and the machine that it
//! is for.
//!
//! ```text
//! gatestream plan 2
//!
//! model 7284fe4e981ce764
//! precision f32
//! layers 2
//! layer 0: forward lstm input 64 hidden 256 + reverse lstm input 64 hidden 256, concatenated
//! layer 1: forward gru input 512 hidden 48 reset after
//!
//! kernels 1
//! cpu AMD EPYC
//! isa avx512
//! cores 2
//! smt 1
//! numa_nodes 1
//! private_caches 48 KiB, 1 MiB
//! shared_cache 32 MiB
//!
//! # Between evening and night
//! batch 1 steps 100
//!   threads 2 row_groups 1
//!   cost_ns 430211 spread_ns 2210
//!   runner_up cost_ns 441020 spread_ns 1800: o in its step, cyclic
//!   layer 0 chunk 25 ahead owners order serpentine
//!     direction 0 aaaa/1111 stripes 2 tile_rows 14 prefetch all units 0..256 256..256
//!     direction 1 aaaa/1111 stripes 1 tile_rows 0 prefetch many units 0..0 0..256
//!   layer 1 chunk 100 ahead rows 2 owners_share 4/8 order cyclic
//!     direction 0 aaa/111 stripes 1 tile_rows 0 prefetch off units 0..16 16..48
//!
//! checksum 83dc234710b6cf06
//! ```
//!
//! The first line is always the format's, with no byte order mark before it. After it, spaces at
//! the start of a line, empty lines and lines that start with `#` mean nothing. The sum is over all
//! other lines; `checksum none` is for files that are edited by hand. Their measured times are
//! ignored: they are of the plan before the edit. Whatever a file holds, a plan that comes from it
//! has passed [`Plan::check`].

mod lines;
mod parse;
mod write;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::stamp::{self, Stamp, identity};
use super::{Plan, PlanError};
use crate::atomic_file;
use crate::model::Model;
use crate::schedule::PanelOrder;
use gatestream_kernels::{IsaError, Prefetch, Stripes};
use parse::Checksum;

/// The version of the format that is written, and the only one that is read.
const FORMAT: u64 = 2;

/// Why a plan file cannot be used, or was not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFileError {
    /// The file is not there, or the system refuses to read or write it.
    #[error("cannot {doing} the plan file: {why}")]
    Io {
        /// `read` or `write`.
        doing: &'static str,
        /// The kind of refusal; [`io::ErrorKind::NotFound`] for an absent file.
        kind: io::ErrorKind,
        /// The system's words.
        why: String,
    },
    /// A file that holds nothing, or only spaces.
    #[error("no plan file: the file is empty")]
    Empty,
    /// A plan of this library under its former name.
    #[error(
        "the plan file is of cellstream, the former name of gatestream: delete it and tune again"
    )]
    FormerName,
    /// Another kind of file.
    #[error("no plan file: it starts with \"{found}\", a plan with \"gatestream plan {FORMAT}\"")]
    NotAPlan {
        /// The first line.
        found: String,
    },
    /// Written by another version of this library.
    #[error(
        "the plan file has format {found}, and this version reads {FORMAT}: update, or tune again"
    )]
    Format {
        /// The file's.
        found: u64,
    },
    /// The format line stands behind comments or empty lines.
    #[error(
        "line 1 of the plan file must be the format line `gatestream plan {FORMAT}`, which stands \
         in line {line}: move what is above it below"
    )]
    Heading {
        /// Where it stands, counted from 1.
        line: usize,
    },
    /// A plan behind a byte order mark, which some editors write unasked.
    #[error(
        "the plan file starts with a byte order mark (BOM, bytes EF BB BF), and must start with \
         `gatestream plan {FORMAT}`: save it as UTF-8 without BOM"
    )]
    ByteOrderMark,
    /// The last lines are missing.
    #[error("the plan file ends after line {line}, where {expected} is expected")]
    Cut {
        /// The last line that means something, counted from 1.
        line: usize,
        /// What would be accepted next.
        expected: &'static str,
    },
    /// A line that is damaged or too much.
    #[error("line {line} of the plan file is corrupt: expected {expected}, found \"{found}\"")]
    Corrupt {
        /// Its number, counted from 1.
        line: usize,
        /// What would be accepted.
        expected: &'static str,
        /// How the line starts.
        found: String,
    },
    /// Every line is well formed, but not what was written.
    #[error(
        "the plan file has changed since it was written: line {line} says checksum {written}, its \
         content has {found}; tune again, or write `checksum none` after editing by hand"
    )]
    Checksum {
        /// The line of the sum.
        line: usize,
        /// The sum there.
        written: String,
        /// The sum of the content.
        found: String,
    },
    /// Made for a model of another shape or precision.
    #[error(
        "the plan is for another model: line {line} says \"{planned}\", this one is \"{here}\""
    )]
    Model {
        /// The first line that differs.
        line: usize,
        /// What it says.
        planned: String,
        /// What it would say for the model.
        here: String,
    },
    /// Made on another machine.
    #[error(
        "the plan is for another machine: {} is {} in the plan and {} here",
        stamp::in_words(field),
        shown(field, planned),
        shown(field, here)
    )]
    Machine {
        /// The first field of the stamp that differs.
        field: &'static str,
        /// In the plan.
        planned: String,
        /// Of this machine.
        here: String,
    },
    /// Measured with other kernels.
    #[error(
        "the plan is for version {planned} of the kernels, which is {} than version {here} here",
        if planned < here { "older" } else { "newer" }
    )]
    Kernels {
        /// The version in the plan.
        planned: u32,
        /// That of these kernels.
        here: u32,
    },
    /// More workers than may be used.
    #[error("the plan is for {planned} threads, and {most} may be used here")]
    Threads {
        /// In the plan.
        planned: usize,
        /// CPUs of the machine, or what the caller allows.
        most: usize,
    },
    /// More than a plan file holds.
    #[error("a plan file holds at most {most} {what}")]
    TooLarge {
        /// Of what there is too much.
        what: &'static str,
        /// How much there may be.
        most: u64,
    },
    /// A plan that does not fit the model.
    #[error(transparent)]
    Contents(#[from] PlanError),
    /// The instruction set that `GATESTREAM_ISA` names cannot be used.
    #[error(transparent)]
    Isa(#[from] IsaError),
}

impl Plan {
    /// Writes the plan to a file, whole or not at all: after an error, whatever stood there before
    /// still does, and nothing else is left behind. Entries are written in ascending order of their
    /// sizes, and equal plans give equal bytes.
    ///
    /// # Errors
    /// A plan that [`Plan::load`] would refuse; [`PlanFileError::Io`].
    pub fn save(&self, path: impl AsRef<Path>, model: &Model) -> Result<(), PlanFileError> {
        let text = self.to_text(model, &Stamp::detect()?)?;
        let written = atomic_file::write(path.as_ref(), |file| file.write_all(text.as_bytes()));
        written.map_err(|error| io_error("write", &error))
    }

    /// Reads a plan that was saved on this machine for a model of this shape: all of it, or none.
    ///
    /// # Errors
    /// Why it cannot be used. [`Plan::load_or_estimate`] goes on without it.
    pub fn load(path: impl AsRef<Path>, model: &Model) -> Result<Plan, PlanFileError> {
        let stamp = Stamp::detect()?;
        let text = read(path.as_ref()).map_err(|error| io_error("read", &error))?;
        Plan::from_text(&text, model, &stamp)
    }

    /// The text of a plan file for `model` and a machine.
    ///
    /// # Errors
    /// A plan that does not fit them, or is larger than a file may be.
    pub fn to_text(&self, model: &Model, stamp: &Stamp) -> Result<String, PlanFileError> {
        write::text(self, model, stamp)
    }

    /// Reads the text of a plan file. Any bytes at all are an error or a plan that [`Plan::check`]
    /// accepts, with no more threads than the machine has CPUs. A file that was edited by hand
    /// (`checksum none`) gives a plan without measured times: they were taken before the edit.
    ///
    /// # Errors
    /// Everything but [`PlanFileError::Io`] and [`PlanFileError::Isa`]. A damaged line comes first,
    /// then a wrong sum, the model, the machine, the kernels, and last what the plan holds.
    pub fn from_text(text: &[u8], model: &Model, stamp: &Stamp) -> Result<Plan, PlanFileError> {
        if text.len() as u64 > parse::MAX_BYTES {
            return Err(PlanFileError::TooLarge {
                what: "bytes",
                most: parse::MAX_BYTES,
            });
        }
        let mut parsed = parse::file(text, stamp)?;
        if parsed.checksum? == Checksum::Waived {
            // They were measured before the edit.
            let entries = &mut parsed.plan.entries;
            entries.iter_mut().for_each(|entry| entry.measured = None);
        }
        same_model(&parsed.model, model)?;
        for ((field, here), planned) in stamp.fields().into_iter().zip(&parsed.machine) {
            if here.trim() != *planned {
                let planned = lines::excerpt(planned);
                return Err(PlanFileError::Machine {
                    field,
                    planned,
                    here,
                });
            }
        }
        if parsed.kernels != stamp.kernels {
            return Err(PlanFileError::Kernels {
                planned: parsed.kernels,
                here: stamp.kernels,
            });
        }
        parsed.plan.check(model)?;
        let (planned, most) = (parsed.plan.threads(), stamp.most_threads());
        if planned > most {
            return Err(PlanFileError::Threads { planned, most });
        }
        Ok(parsed.plan)
    }
}

/// The first line is a sum of the others: it is named only where these do not say what differs.
fn same_model(lines: &[(usize, &str)], model: &Model) -> Result<(), PlanFileError> {
    let expected = identity(model);
    let mut pairs = lines.iter().zip(&expected);
    let hash = pairs.next();
    match pairs.chain(hash).find(|((_, line), here)| line != here) {
        None => Ok(()),
        Some(((line, planned), here)) => Err(PlanFileError::Model {
            line: *line,
            planned: lines::excerpt(planned),
            here: here.clone(),
        }),
    }
}

/// A value of the stamp within a sentence: names of processors are of several words.
fn shown(field: &str, value: &str) -> String {
    match (field, value) {
        (_, "") => "none".into(),
        ("cpu", name) => format!("\"{name}\""),
        _ => value.into(),
    }
}

fn order_name(order: PanelOrder) -> &'static str {
    match order {
        PanelOrder::Cyclic => "cyclic",
        PanelOrder::Serpentine => "serpentine",
    }
}

fn stripes_count(stripes: Stripes) -> usize {
    match stripes {
        Stripes::One => 1,
        Stripes::Two => 2,
    }
}

fn prefetch_name(prefetch: Prefetch) -> &'static str {
    match prefetch {
        Prefetch::Off => "off",
        Prefetch::ManyPasses => "many",
        Prefetch::AllPasses => "all",
    }
}

fn io_error(doing: &'static str, error: &io::Error) -> PlanFileError {
    PlanFileError::Io {
        doing,
        kind: error.kind(),
        why: error.to_string(),
    }
}

/// A file, as far as a plan can be long: one byte more shows that it is too long.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(parse::MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
