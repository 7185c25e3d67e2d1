//! The part that all cells with a recurrent model share: its states as ports, and the prepared
//! model of a worker.

use std::sync::Arc;

use super::NetworkError;
use crate::cell_graph::{CellCost, CellError, Ports, WorkerEnv};
use gatestream::execute::{
    Backend, Cpu, EmbeddingTable, PreparedModel, ResidentModel, ResidentNetwork,
    ResidentProjection, ResidentRoom,
};
use gatestream::layers::Embedding;
use gatestream::machine::{Level, Topology};
use gatestream::model::Model;
use gatestream::plan::Plan;

/// A model: a forward one that runs one or a few steps at a time, or any that runs whole sequences.
pub(super) struct Recurrent {
    model: Arc<Model>,
    /// Estimated for each worker if there is none.
    plan: Option<Plan>,
    /// One for each worker, in turn; the worker's cores if there is none.
    backends: Vec<Arc<dyn Backend>>,
}

impl Recurrent {
    pub fn new(model: Arc<Model>) -> Result<Recurrent, NetworkError> {
        let mut layers = model.layers().iter();
        match layers.position(|layer| !layer.is_forward()) {
            Some(layer) => Err(NetworkError::Reverse { layer }),
            None => Ok(Recurrent::whole(model)),
        }
    }

    /// Any model, for whole sequences.
    pub fn whole(model: Arc<Model>) -> Recurrent {
        Recurrent {
            model,
            plan: None,
            backends: Vec::new(),
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

    /// The costs of its steps, by the plan if there is one.
    pub fn cost(&self) -> CellCost {
        let mut cost = self
            .plan
            .as_ref()
            .map(CellCost::of_plan)
            .unwrap_or_default();
        cost.weight_bytes = self.model.weight_bytes();
        cost
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

    /// Index of the state that is the hidden state of the last layer.
    pub fn top(&self) -> usize {
        let last = &self.model.layers()[self.model.layers().len() - 1];
        let has_cell = last.directions()[0].cell_state_size() > 0;
        self.states().len() - 1 - usize::from(has_cell)
    }

    pub fn with_backends(&mut self, backends: Vec<Arc<dyn Backend>>) {
        self.backends = backends;
    }

    /// The backend of a worker; `None` for its cores.
    fn backend(&self, env: &WorkerEnv) -> Option<&Arc<dyn Backend>> {
        let number = env.worker.checked_rem(self.backends.len())?;
        self.backends.get(number)
    }

    /// Prepares single steps on the worker's device, if it keeps states: the model between these.
    pub fn prepare_resident(
        &self,
        env: &WorkerEnv,
        room: ResidentRoom,
        embedding: Option<&Embedding>,
        projection: Option<ResidentProjection<'_>>,
    ) -> Result<Option<Box<dyn ResidentModel>>, CellError> {
        let Some(backend) = self.backend(env) else {
            return Ok(None);
        };
        let network = ResidentNetwork {
            model: &self.model,
            embedding: embedding.map(|table| EmbeddingTable {
                symbols: table.symbols(),
                values: table.table(),
            }),
            projection,
        };
        let prepared = backend.prepare_resident(&network, room);
        prepared.map_err(CellError::new)
    }

    /// Prepares the model for a worker, for all its batch sizes.
    pub fn prepare(&self, env: &WorkerEnv) -> Result<Box<dyn PreparedModel>, CellError> {
        self.prepare_with(&self.plan_at(env), env, env.steps)
    }

    /// Prepares the model for batches of up to `steps` steps with the user's plan, or with
    /// estimates for that many steps.
    pub fn prepare_whole(
        &self,
        env: &WorkerEnv,
        steps: usize,
    ) -> Result<Box<dyn PreparedModel>, CellError> {
        let threads = env.team.threads();
        let estimate = |rows| Plan::estimate(&self.model, rows, steps, threads).entries;
        let plan = self.plan.clone().unwrap_or_else(|| Plan {
            entries: powers_up_to(env.rows.max(1)).flat_map(estimate).collect(),
        });
        self.prepare_with(&plan, env, steps)
    }

    fn prepare_with(
        &self,
        plan: &Plan,
        env: &WorkerEnv,
        steps: usize,
    ) -> Result<Box<dyn PreparedModel>, CellError> {
        let prepared = match self.backend(env) {
            Some(backend) => backend.prepare(&self.model, plan),
            None => Cpu::on_team(env.team.clone()).prepare(&self.model, plan),
        };
        let mut prepared = prepared.map_err(CellError::new)?;
        let reserved = prepared.reserve(env.rows, steps);
        reserved.map_err(CellError::new)?;
        Ok(prepared)
    }

    /// The user's plan, or [estimates](estimated_sizes). A plan of single steps alone is extended
    /// by estimates for several steps.
    fn plan_at(&self, env: &WorkerEnv) -> Plan {
        let (max_rows, threads) = (env.rows.max(1), env.team.threads());
        let estimates = |sizes: Vec<(usize, usize)>| {
            let sizes = sizes.into_iter();
            sizes
                .flat_map(|(rows, steps)| Plan::estimate(&self.model, rows, steps, threads).entries)
        };
        let sizes = |singles_too| estimated_sizes(max_rows, env.steps, env.step_rows, singles_too);
        let entries = match &self.plan {
            None => {
                let singles_too =
                    env.steps > 1 && two_copies_stay(&self.model, threads, &Topology::detect());
                estimates(sizes(singles_too)).collect()
            }
            Some(plan) if plan.steps() == 1 => {
                let mut several = sizes(false);
                several.retain(|&(_, steps)| steps > 1);
                let given = plan.entries.iter().cloned();
                given.chain(estimates(several)).collect()
            }
            Some(plan) => plan.entries.clone(),
        };
        Plan { entries }
    }
}

/// Sizes `(rows, steps)` to estimate for: 1, 2, 4 … rows up to `max_rows`, each with 2, 4 … steps
/// up to the steps that this number of rows runs at once, with at most `step_rows` rows together.
/// Entries for single steps: always for rows that run only single steps, for the others with
/// `singles_too`.
///
/// Several steps hoist the input projection, single steps do not. Large models are then packed
/// twice; if the caches do not hold both copies, the entries for several steps also serve single
/// steps.
fn estimated_sizes(
    max_rows: usize,
    steps: usize,
    step_rows: usize,
    singles_too: bool,
) -> Vec<(usize, usize)> {
    let sizes = powers_up_to(max_rows).flat_map(|rows| {
        let most_steps = (step_rows / rows).min(steps).max(1);
        let steps = powers_up_to(most_steps);
        let steps = steps.filter(move |&steps| steps > 1 || most_steps == 1 || singles_too);
        steps.map(move |steps| (rows, steps))
    });
    sizes.collect()
}

/// Whether the caches hold two copies of the weights, divided among `threads` cores.
fn two_copies_stay(model: &Model, threads: usize, topology: &Topology) -> bool {
    let bytes = (2 * model.weight_bytes()).div_ceil(threads.max(1));
    let core = topology.cores.first();
    core.is_some_and(|core| topology.level_holding(core, bytes) < Level::Memory)
}

/// 1, 2, 4 … and, last, `max`.
fn powers_up_to(max: usize) -> impl Iterator<Item = usize> {
    let powers = (0..usize::BITS).map(|power| 1 << power);
    powers.take_while(move |&size| size < max).chain([max])
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scheduler::Scheduler;
    use gatestream::execute::team::{SharedTeam, Team};
    use gatestream::model::Lstm;

    fn few_rows(max_rows: usize, steps: usize, singles_too: bool) -> Vec<(usize, usize)> {
        estimated_sizes(max_rows, steps, Scheduler::STEP_ROWS, singles_too)
    }

    fn sizes(plan: Option<Plan>, rows: usize, steps: usize) -> Vec<(usize, usize)> {
        let mut recurrent = Recurrent::new(Arc::new(Lstm::new(2, 3).random(1).unwrap())).unwrap();
        if let Some(plan) = plan {
            recurrent.with_plan(plan).unwrap();
        }
        let team = SharedTeam::new(Team::with_threads(1).unwrap());
        let plan = recurrent.plan_at(&WorkerEnv {
            steps,
            step_rows: Scheduler::STEP_ROWS,
            ..WorkerEnv::one_step(team, rows)
        });
        plan.check(recurrent.model()).unwrap();
        let entries = plan.entries.iter();
        entries.map(|entry| (entry.batch, entry.steps)).collect()
    }

    #[test]
    fn sizes_that_rows_run_at_once_are_estimated() {
        let several = [(1, 2), (1, 4), (2, 2), (2, 4), (4, 2), (4, 4), (8, 2)];
        let one = [(16, 1), (24, 1)];
        assert_eq!(few_rows(24, 4, false), [&several[..], &one].concat());
        let mut all = [(1, 1), (2, 1), (4, 1), (8, 1)].to_vec();
        all.extend(several.iter().chain(&one));
        all.sort_unstable();
        assert_eq!(few_rows(24, 4, true), all);
        let three = [
            (1, 2),
            (1, 3),
            (2, 2),
            (2, 3),
            (4, 2),
            (4, 3),
            (5, 2),
            (5, 3),
        ];
        assert_eq!(few_rows(5, 3, false), three);
        // As many steps of as many rows as a batch has under `ebatch`.
        let many = [
            (1, 2),
            (1, 4),
            (2, 2),
            (2, 4),
            (4, 2),
            (4, 4),
            (5, 2),
            (5, 4),
        ];
        assert_eq!(estimated_sizes(5, 4, 20, false), many);
        for singles_too in [false, true] {
            assert_eq!(few_rows(3, 1, singles_too), [(1, 1), (2, 1), (3, 1)]);
        }
    }

    /// A batch of several steps never uses an estimate for single steps, and a single step uses one
    /// for several only without estimates for single steps.
    #[test]
    fn batches_run_by_estimates_of_their_kind() {
        let model = Lstm::new(2, 3).random(1).unwrap();
        for (steps, singles_too) in (1..=16).flat_map(|steps| [(steps, false), (steps, true)]) {
            let sizes = few_rows(32, steps, singles_too).into_iter();
            let entries =
                sizes.flat_map(|(rows, steps)| Plan::with_threads(&model, rows, steps, 1).entries);
            let plan = Plan {
                entries: entries.collect(),
            };
            // Nine rows are nearer to eight than to sixteen, the next with an estimate for one
            // step.
            for rows in (1..=32).filter(|&rows| singles_too || rows != 9) {
                let most_steps = (Scheduler::STEP_ROWS / rows).min(steps).max(1);
                for run in 1..=most_steps {
                    let of = &plan.entries[plan.nearest(rows, run)];
                    let is_one = run == 1 && (singles_too || most_steps == 1);
                    assert_eq!(of.steps == 1, is_one, "{rows} rows, {run} of {steps} steps");
                }
            }
        }
    }

    #[test]
    fn copies_stay_where_each_core_has_room_for_its_part_of_both() {
        let model = Lstm::new(100, 100).random(1).unwrap();
        let both = 2 * model.weight_bytes();
        let mut topology = Topology::count_only(&[0, 1], "a test".into());
        topology.caches.retain(|cache| cache.level == 1);
        for (bytes, stay) in [(both, true), (both / 2, true), (both / 2 - 1, false)] {
            for cache in &mut topology.caches {
                cache.bytes = bytes;
            }
            assert_eq!(
                two_copies_stay(&model, 2, &topology),
                stay,
                "{bytes} a core"
            );
        }
        topology.caches.clear();
        assert!(!two_copies_stay(&model, 2, &topology));
    }

    #[test]
    fn sizes_without_a_plan_are_estimated() {
        assert_eq!(sizes(None, 1, 1), [(1, 1)]);
        let either = [false, true].map(|singles_too| few_rows(5, 4, singles_too));
        assert!(either.contains(&sizes(None, 5, 4)), "as caches are here");
        let model = Lstm::new(2, 3).random(1).unwrap();
        let given = |steps| Some(Plan::with_threads(&model, 20, steps, 1));
        assert_eq!(sizes(given(1), 32, 1), [(20, 1)]);
        assert_eq!(sizes(given(4), 32, 4), [(20, 4)]);
        let several = [(1, 2), (1, 3), (2, 2), (2, 3), (4, 2), (4, 3), (8, 2)];
        assert_eq!(sizes(given(1), 32, 3), [&[(20, 1)][..], &several].concat());
        let few_rows = [(20, 1), (1, 2), (2, 2)];
        assert_eq!(sizes(given(1), 2, 2), few_rows);
    }
}
