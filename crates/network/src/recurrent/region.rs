//! Regions: the models of recurrent nodes with their sessions, which share one team.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gatestream::execute::{PackedModel, Session};
use gatestream::model::{Input, Model, OpWeights, Output, Precision, RecurrentOp, Signature};
use gatestream::plan::{Plan, Stamp};
use tract_onnx::prelude::{DatumType, Tensor};

use super::node::RecurrentNode;
use crate::NetworkPlan;
use crate::profile::{RegionRun, record};
use crate::threads::Threads;

/// How the models of regions differ from their nodes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RegionOptions {
    /// `None`: that of the file.
    pub precision: Option<Precision>,
    /// See [`Model::clipping_outputs`].
    pub clips_outputs: bool,
}

/// The regions of a network, and its threads.
pub(crate) struct Regions {
    pub threads: Arc<Threads>,
    options: RegionOptions,
    /// By the name of the node; several where a node has had several weights.
    regions: Mutex<HashMap<String, Vec<Arc<Region>>>>,
    /// Of regions that it does not have, plans are estimated.
    plan: Mutex<Option<NetworkPlan>>,
}

impl fmt::Debug for Regions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Regions").finish_non_exhaustive()
    }
}

/// Most weights of one node that are kept: those that a run gives may change with each.
const KEPT: usize = 4;

impl Regions {
    pub fn new(threads: Arc<Threads>, options: RegionOptions) -> Arc<Regions> {
        Arc::new(Regions {
            threads,
            options,
            regions: Mutex::default(),
            plan: Mutex::default(),
        })
    }

    /// Has all sessions made anew, by these plans.
    ///
    /// A run takes the lock of its session first, then that of the plans. Here the lock of the
    /// plans is released before those of the sessions are taken, so neither waits for the other. A
    /// session that a run makes in between has the new plans already, and is made once more.
    pub fn use_plan(&self, plan: Option<NetworkPlan>) {
        *lock(&self.plan) = plan;
        for region in lock(&self.regions).values().flatten() {
            *lock(&region.session) = None;
        }
    }

    /// The plans in use.
    pub fn plan(&self) -> NetworkPlan {
        lock(&self.plan).clone().unwrap_or_default()
    }

    /// The region of a node that was made last.
    pub fn of_node(&self, node: &str) -> Option<Arc<Region>> {
        lock(&self.regions).get(node)?.last().map(Arc::clone)
    }

    /// The region of a node with these weights, one for each of [`RecurrentNode::inputs`] that is
    /// part of the weights.
    pub(super) fn region(
        &self,
        node: &RecurrentNode,
        weights: Vec<Arc<Tensor>>,
    ) -> Result<Arc<Region>, String> {
        let mut regions = lock(&self.regions);
        let of_node = regions.entry(node.name.clone()).or_default();
        if let Some(found) = of_node.iter().find(|region| region.weights == weights) {
            return Ok(Arc::clone(found));
        }
        let region = Arc::new(Region::new(node, weights, self.options)?);
        if of_node.len() >= KEPT {
            of_node.remove(0);
        }
        of_node.push(Arc::clone(&region));
        Ok(region)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A recurrent node with its weights.
pub(crate) struct Region {
    node: String,
    operator: String,
    model: Model,
    weights: Vec<Arc<Tensor>>,
    /// Made at the first run, and kept for later ones.
    session: Mutex<Option<KeptSession>>,
}

struct KeptSession {
    session: Session,
    /// Its plan is of a file: it is for all sizes.
    is_tuned: bool,
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").finish_non_exhaustive()
    }
}

impl Region {
    fn new(
        node: &RecurrentNode,
        weights: Vec<Arc<Tensor>>,
        options: RegionOptions,
    ) -> Result<Region, String> {
        let mut model = model_of(node, &weights)?;
        if options.clips_outputs {
            model = model.clipping_outputs();
        }
        if let Some(precision) = options.precision {
            let converted = model.into_precision(precision);
            model = converted.map_err(|why| why.to_string())?;
        }
        Ok(Region {
            node: node.name.clone(),
            operator: node.operator.clone(),
            model,
            weights,
            session: Mutex::new(None),
        })
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    pub fn signature(&self) -> Signature {
        self.model.signature()
    }

    /// Runs the session, which is made or enlarged for this input.
    pub fn run(
        &self,
        regions: &Regions,
        input: &Input<'_>,
        output: &mut Output<'_>,
    ) -> Result<(), String> {
        let mut kept = lock(&self.session);
        let (batch, steps) = (input.batch, input.steps);
        if let Some(made) = self.session(kept.as_ref(), regions, batch, steps)? {
            *kept = Some(made);
        }
        let KeptSession { session, .. } = kept.as_mut().ok_or("there is no session")?;
        session
            .reserve(batch, steps)
            .map_err(|why| why.to_string())?;
        let start = Instant::now();
        session.run(input, output).map_err(|why| why.to_string())?;
        let time = start.elapsed();
        record(|| RegionRun {
            node: self.node.clone(),
            operator: self.operator.clone(),
            input: self.signature().input,
            output: self.signature().output,
            batch,
            steps,
            plan: {
                let plan = session.packed().plan();
                plan.entries[plan.nearest(batch, steps)]
                    .configuration
                    .to_string()
            },
            time,
        });
        Ok(())
    }

    /// The plan of the file, if it has one for this node.
    fn tuned(&self, regions: &Regions) -> Result<Option<Plan>, String> {
        let plan = lock(&regions.plan);
        let Some(text) = plan.as_ref().and_then(|plan| plan.region(&self.node)) else {
            return Ok(None);
        };
        let stamp = Stamp::detect().map_err(|why| why.to_string())?;
        let plan = Plan::from_text(text.as_bytes(), &self.model, &stamp);
        plan.map(Some).map_err(|why| format!("its plan: {why}"))
    }

    /// The session that takes the place of an earlier one for these sizes; `None`: that one is for
    /// them, too.
    fn session(
        &self,
        earlier: Option<&KeptSession>,
        regions: &Regions,
        batch: usize,
        steps: usize,
    ) -> Result<Option<KeptSession>, String> {
        if earlier.is_some_and(|earlier| earlier.is_tuned) {
            return Ok(None);
        }
        let team = regions.threads.team().map_err(|why| why.to_string())?;
        let tuned = match earlier {
            None => self.tuned(regions)?,
            Some(_) => None,
        };
        let is_tuned = tuned.is_some();
        let estimated = || {
            let plan = earlier.map(|earlier| earlier.session.packed().plan());
            // On as many threads as pay: few for small cells.
            Plan::grown(plan, &self.model, batch, steps, team.threads())
        };
        let Some(plan) = tuned.or_else(estimated) else {
            return Ok(None);
        };
        let packed = team.turn(|team| PackedModel::new(&self.model, &plan, team));
        let packed = packed.map_err(|why| why.to_string())?;
        let packed = packed.map_err(|why| why.to_string())?;
        let session = Session::on_team(packed, team.clone()).map_err(|why| why.to_string())?;
        Ok(Some(KeptSession { session, is_tuned }))
    }
}

/// The model of the node with these weights.
fn model_of(node: &RecurrentNode, weights: &[Arc<Tensor>]) -> Result<Model, String> {
    let is_weight = |name: &&&'static str| RecurrentOp::is_weight(name);
    let names = node.inputs.iter().filter(is_weight);
    let values = names.zip(weights).map(|(&input, value)| {
        let (element_type, value) = match value.datum_type().unquantized() {
            DatumType::I8 => (3, value.cast_to::<i8>()),
            DatumType::U8 => (2, value.cast_to::<u8>()),
            _ => (1, value.cast_to::<f32>()),
        };
        let value = value.map_err(|why| format!("{input}: {why:#}"))?;
        Ok((input, element_type, value))
    });
    let values = values.collect::<Result<Vec<_>, String>>()?;
    let weights: Vec<OpWeights<'_>> = values
        .iter()
        .map(|(input, element_type, value)| OpWeights {
            input,
            shape: value.shape(),
            element_type: *element_type,
            bytes: value.as_bytes(),
        })
        .collect();
    let run_inputs = node.inputs.iter().filter(|name| !is_weight(name));
    let op = RecurrentOp {
        name: &node.name,
        operator: &node.operator,
        attributes: &node.attributes,
        run_inputs: &run_inputs.copied().collect::<Vec<_>>(),
        weights: &weights,
    };
    Model::from_recurrent(&op).map_err(|why| why.to_string())
}
