//! What all cells around a recurrent model share: its states as ports, and a session for a worker.

use std::sync::Arc;

use super::NetworkError;
use crate::execute::{PackedModel, Session};
use crate::model::{Direction, Model};
use crate::plan::Plan;
use crate::serve::cell_graph::{CellError, Place, Ports};
use crate::serve::policy::BatchSizes;
use crate::serve::scheduler::Scheduler;

/// A forward model that is run a step at a time.
pub(super) struct Recurrent {
    model: Arc<Model>,
    /// Measured, or none.
    plan: Option<Plan>,
}

impl Recurrent {
    pub fn new(model: Arc<Model>) -> Result<Recurrent, NetworkError> {
        let is_reverse = |layer: &crate::model::Layer| {
            layer.directions().len() > 1 || layer.directions().iter().any(Direction::is_reverse)
        };
        match model.layers().iter().position(is_reverse) {
            Some(layer) => Err(NetworkError::Reverse { layer }),
            None => Ok(Recurrent { model, plan: None }),
        }
    }

    pub fn with_plan(&mut self, plan: Plan) -> Result<(), NetworkError> {
        plan.check(&self.model)?;
        self.plan = Some(plan);
        Ok(())
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The rows that the plan says to serve by, where it was measured for single steps.
    pub fn rows(&self) -> Option<usize> {
        let sizes = BatchSizes::of_plan(self.plan.as_ref()?)?;
        Some(sizes.max)
    }

    /// Adds a state for each layer's hidden state and, of an LSTM, its cell state.
    pub fn add_states(&self, mut ports: Ports) -> Ports {
        for (index, layer) in self.model.layers().iter().enumerate() {
            ports = ports.state(format!("h{index}"), layer.output_size());
            let cell = layer.directions()[0].cell_state_size();
            if cell > 0 {
                ports = ports.state(format!("c{index}"), cell);
            }
        }
        ports
    }

    /// Sizes of the states, in the order of the ports.
    pub fn states(&self) -> Vec<usize> {
        let ports = self.add_states(Ports::new());
        ports.states().iter().map(|port| port.width()).collect()
    }

    /// Which of the states is the last layer's hidden state.
    pub fn top(&self) -> usize {
        let last = &self.model.layers()[self.model.layers().len() - 1];
        let has_cell = last.directions()[0].cell_state_size() > 0;
        self.states().len() - 1 - usize::from(has_cell)
    }

    /// Packs the weights at a place, for every size of batch there.
    pub fn session(&self, place: &Place) -> Result<Session, CellError> {
        let plan = self.plan_at(place);
        let packed = (place.team).turn(|team| PackedModel::new(&self.model, &plan, team));
        let packed = packed.map_err(CellError::new)?;
        let mut session = Session::on_team(packed, place.team.clone()).map_err(CellError::new)?;
        session
            .reserve(place.rows, place.steps)
            .map_err(CellError::new)?;
        Ok(session)
    }

    /// The plan that was given, or estimates for 1, 2, 4 … rows. Estimates are for the most steps, and serve fewer, too:
    /// plans for one step and for several may cut the weights differently, and both copies would take turns in the
    /// caches. Only beside a plan that was measured for single steps alone stand estimates for several.
    fn plan_at(&self, place: &Place) -> Plan {
        let estimate = |most: usize| {
            let powers = (0..usize::BITS).map(|power| 1 << power);
            let sizes = powers.take_while(move |&rows| rows < most).chain([most]);
            sizes.flat_map(|rows| {
                Plan::estimate(&self.model, rows, place.steps, place.team.threads()).entries
            })
        };
        let entries = match &self.plan {
            None => estimate(place.rows.max(1)).collect(),
            Some(plan) if place.steps > 1 && plan.steps() == 1 => {
                let most = (Scheduler::STEP_ROWS / 2).min(place.rows.max(1));
                estimate(most).chain(plan.entries.clone()).collect()
            }
            Some(plan) => plan.entries.clone(),
        };
        Plan { entries }
    }
}
