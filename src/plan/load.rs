//! A plan from a file where there is one that fits, else the estimate.

use std::ops::Deref;
use std::path::Path;

use super::{Plan, PlanFileError};
use crate::machine::Topology;
use crate::model::Model;
use cellstream_kernels::IsaError;

/// Sequences and steps that [`Plan::load_or_estimate`] estimates for.
const SIZES: ([usize; 3], [usize; 3]) = ([1, 4, 16], [1, 10, 100]);

/// A plan, and why it is an estimate if it is one. It can be used wherever a `&Plan` is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The plan.
    pub plan: Plan,
    /// Why the file was not used; `None` where the plan is the file's.
    pub fallback: Option<PlanFileError>,
}

impl Deref for Loaded {
    type Target = Plan;
    fn deref(&self) -> &Plan {
        &self.plan
    }
}

impl Plan {
    /// The plan in the file if it was made for this machine and a model of this shape. Otherwise,
    /// be the file absent, damaged or for something else, the estimate for all of this machine's
    /// cores, 1, 4 and 16 sequences, and 1, 10 and 100 steps; a session makes room for more with
    /// [`Session::reserve`](crate::Session::reserve). Which it is, and why, is
    /// [`Loaded::fallback`]; nothing is printed.
    ///
    /// ```
    /// use cellstream::model::Lstm;
    /// use cellstream::{Plan, Session};
    ///
    /// let model = Lstm::new(8, 16).random(1)?;
    /// let plan = Plan::load_or_estimate("no such folder/speech.plan", &model)?;
    /// if let Some(why) = &plan.fallback {
    ///     eprintln!("estimating: {why}");
    /// }
    /// let session = Session::new(&model, &plan)?;
    /// # assert!(plan.fallback.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`IsaError`] if `CELLSTREAM_ISA` names an instruction set that is unknown or absent: no plan
    /// could be run.
    pub fn load_or_estimate(path: impl AsRef<Path>, model: &Model) -> Result<Loaded, IsaError> {
        let why = match Plan::load(path, model) {
            Ok(plan) => {
                return Ok(Loaded {
                    plan,
                    fallback: None,
                });
            }
            Err(PlanFileError::Isa(error)) => return Err(error),
            Err(why) => why,
        };
        let cores = Topology::detect().team_size();
        let (batches, steps) = SIZES;
        let sizes = batches.into_iter().flat_map(|b| steps.map(|s| (b, s)));
        let entries = sizes.flat_map(|(b, s)| Plan::estimate(model, b, s, cores).entries);
        Ok(Loaded {
            plan: Plan {
                entries: entries.collect(),
            },
            fallback: Some(why),
        })
    }
}
