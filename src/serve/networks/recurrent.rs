//! What all cells around a recurrent model share: its states as ports, and a session for a worker.

use std::sync::Arc;

use super::NetworkError;
use crate::execute::{PackedModel, Session};
use crate::model::{Direction, Model};
use crate::plan::Plan;
use crate::serve::cell_graph::{CellError, Place, Ports};
use crate::serve::policy::BatchSizes;
use crate::serve::scheduler::Scheduler;

/// A forward model that is run a step, or a few, at a time.
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

    /// The plan that was given, or estimates for 1, 2, 4 … rows, each for the most steps that so many rows run at once. These
    /// serve fewer steps, too: estimates for one step may cut the weights differently, and both copies would take turns in the
    /// caches. Rows that never run several steps have those for one, and that copy beside the other: their step takes 11 to
    /// 17 % less (LSTM 512 and 1024, 12 to 32 rows; in int8 7 to 12 %), and who has so many rows seldom has few.
    /// A plan that was measured for single steps alone is left to them, and estimates for several stand beside it.
    fn plan_at(&self, place: &Place) -> Plan {
        let most = place.rows.max(1);
        let estimate = |rows: usize, steps: usize| {
            Plan::estimate(&self.model, rows, steps, place.team.threads()).entries
        };
        let entries = match &self.plan {
            None => {
                let steps = |rows: usize| (Scheduler::STEP_ROWS / rows).min(place.steps).max(1);
                let sizes = powers_up_to(most).map(|rows| (rows, steps(rows)));
                sizes
                    .flat_map(|(rows, steps)| estimate(rows, steps))
                    .collect()
            }
            Some(plan) if place.steps > 1 && plan.steps() == 1 => {
                let most = (Scheduler::STEP_ROWS / 2).min(most);
                let several = powers_up_to(place.steps).filter(|&steps| steps > 1);
                let sizes =
                    several.flat_map(|steps| powers_up_to(most).map(move |rows| (rows, steps)));
                let estimates = sizes.flat_map(|(rows, steps)| estimate(rows, steps));
                plan.entries.iter().cloned().chain(estimates).collect()
            }
            Some(plan) => plan.entries.clone(),
        };
        Plan { entries }
    }
}

/// 1, 2, 4 … and, last, `most` itself.
fn powers_up_to(most: usize) -> impl Iterator<Item = usize> {
    let powers = (0..usize::BITS).map(|power| 1 << power);
    powers.take_while(move |&size| size < most).chain([most])
}

/// A step of `rows` rows, or as many of each as `lengths` says.
pub(super) fn step(
    session: &mut Session,
    (rows, lengths): (usize, Option<&[usize]>),
    x: &[f32],
    states: &mut [Vec<f32>],
    y: Option<&mut [f32]>,
) -> Result<(), CellError> {
    let stepped = match lengths {
        None => session.step_layers(rows, x, states, y),
        Some(lengths) => session.steps_layers(lengths, x, states, y),
    };
    stepped.map_err(CellError::new)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::execute::team::{SharedTeam, Team};
    use crate::model::Lstm;

    fn sizes(plan: Option<Plan>, rows: usize, steps: usize) -> Vec<(usize, usize)> {
        let mut recurrent = Recurrent::new(Arc::new(Lstm::new(2, 3).random(1).unwrap())).unwrap();
        if let Some(plan) = plan {
            recurrent.with_plan(plan).unwrap();
        }
        let team = SharedTeam::new(Team::with_threads(1).unwrap());
        let plan = recurrent.plan_at(&Place { team, rows, steps });
        plan.check(recurrent.model()).unwrap();
        let entries = plan.entries.iter();
        entries.map(|entry| (entry.batch, entry.steps)).collect()
    }

    #[test]
    fn what_is_not_planned_for_is_estimated() {
        assert_eq!(sizes(None, 5, 4), [(1, 4), (2, 4), (4, 4), (5, 3)]);
        let many = [(1, 4), (2, 4), (4, 4), (8, 2), (16, 1), (24, 1)];
        assert_eq!(sizes(None, 24, 4), many);
        assert_eq!(sizes(None, 1, 1), [(1, 1)]);
        let model = Lstm::new(2, 3).random(1).unwrap();
        let given = |steps| Some(Plan::with_threads(&model, 20, steps, 1));
        assert_eq!(sizes(given(1), 32, 1), [(20, 1)]);
        assert_eq!(sizes(given(4), 32, 4), [(20, 4)]);
        let several = [
            (1, 2),
            (2, 2),
            (4, 2),
            (8, 2),
            (1, 3),
            (2, 3),
            (4, 3),
            (8, 3),
        ];
        assert_eq!(sizes(given(1), 32, 3), [&[(20, 1)][..], &several].concat());
        let few_rows = [(20, 1), (1, 2), (2, 2)];
        assert_eq!(sizes(given(1), 2, 2), few_rows);
    }
}
