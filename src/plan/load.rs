//! A plan from a file where there is one that fits, else the estimate.

use std::ops::Deref;
use std::path::Path;

use super::{Plan, PlanFileError};
use crate::machine::Topology;
use crate::model::Model;
use gatestream_kernels::IsaError;

/// Sequences and steps that [`Plan::estimate_usual`] estimates for.
const SIZES: ([usize; 3], [usize; 3]) = ([1, 4, 16], [1, 10, 100]);

/// Most entries of [`Plan::grown`]: each may cut the weights in its own way.
const MAX_ENTRIES: usize = 16;

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
    /// be the file absent, damaged or for something else, [`Plan::estimate_usual`] for all of this
    /// machine's cores; a session makes room for more with
    /// [`Session::reserve`](crate::Session::reserve). Which it is, and why, is
    /// [`Loaded::fallback`]; nothing is printed.
    ///
    /// ```
    /// use gatestream::model::Lstm;
    /// use gatestream::{Plan, Session};
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
    /// [`IsaError`] if `GATESTREAM_ISA` names an instruction set that is unknown or absent: no plan
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
        Ok(Loaded {
            plan: Plan::estimate_usual(model, Topology::detect().team_size()),
            fallback: Some(why),
        })
    }

    /// The estimate on up to `cores` cores for requests of usual sizes: 1, 4 and 16 sequences of
    /// 1, 10 and 100 steps. For sessions whose requests are not known beforehand.
    ///
    /// ```
    /// use gatestream::Plan;
    /// use gatestream::model::Gru;
    ///
    /// let plan = Plan::estimate_usual(&Gru::new(8, 16).random(1)?, 2);
    /// assert_eq!((plan.batch(), plan.steps()), (16, 100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn estimate_usual(model: &Model, cores: usize) -> Plan {
        let (batches, steps) = SIZES;
        let sizes = batches.into_iter().flat_map(|b| steps.map(|s| (b, s)));
        let entries = sizes.flat_map(|(b, s)| Plan::estimate(model, b, s, cores).entries);
        Plan {
            entries: entries.collect(),
        }
    }

    /// The plan to go on with for requests of this size, where `earlier` plans for others:
    /// `earlier` with the estimate for this size added. `None`: `earlier` will do. It has an entry
    /// whose sequences and steps differ by a factor of less than two each, or 16 entries, of which
    /// the nearest is used.
    ///
    /// ```
    /// use gatestream::Plan;
    /// use gatestream::model::Gru;
    ///
    /// let model = Gru::new(8, 16).random(1)?;
    /// let plan = Plan::grown(None, &model, 1, 100, 2).expect("the first");
    /// assert!(Plan::grown(Some(&plan), &model, 1, 120, 2).is_none());
    /// let plan = Plan::grown(Some(&plan), &model, 32, 120, 2).expect("another size");
    /// assert_eq!(plan.entries.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn grown(
        earlier: Option<&Plan>,
        model: &Model,
        batch: usize,
        steps: usize,
        cores: usize,
    ) -> Option<Plan> {
        let (batch, steps) = (batch.max(1), steps.max(1));
        if earlier.is_some_and(|plan| plan.will_do(batch, steps)) {
            return None;
        }
        let mut plan = Plan::estimate(model, batch, steps, cores);
        let entries = earlier.map_or(&[][..], |plan| &plan.entries);
        plan.entries.splice(0..0, entries.iter().cloned());
        Some(plan)
    }

    /// Whether [`grown`](Self::grown) goes on with this plan for requests of this size.
    pub fn will_do(&self, batch: usize, steps: usize) -> bool {
        let (batch, steps) = (batch.max(1), steps.max(1));
        let is_near = |one: usize, other: usize| one < 2 * other && other < 2 * one;
        let mut entries = self.entries.iter();
        self.entries.len() >= MAX_ENTRIES
            || entries.any(|entry| is_near(entry.batch, batch) && is_near(entry.steps, steps))
    }
}
