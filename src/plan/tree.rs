//! Plans of a tree's cell: one layer of one direction, a step of one phase, with nothing hoisted.

use super::arrange::degrees;
use super::cost::Costs;
use super::estimate::least;
use super::{
    Configuration, DirectionPlan, InputProjectionBy, LayerPlan, MAX_THREADS, Partition, Plan,
    PlanError, UNIT_GRANULE, split_units,
};
use crate::machine::CacheModel;
use crate::model::{CellStep, Product, TreeWeights};
use crate::schedule::{DirectionSchedule, PanelOrder, PhasePlacement};
use gatestream_kernels::Blocking;

impl Plan {
    /// The plan that should be fastest for batches of up to `rows` nodes on up to `cores` cores, as
    /// [`Plan::estimate`] is for sequences. Its batch is the number of nodes; it has one step.
    ///
    /// ```
    /// use gatestream::model::{Matrix, TreeWeights};
    /// use gatestream::plan::Plan;
    ///
    /// let (weights, bias) = (Matrix::new(3 * 32, 8, vec![0.1; 3 * 32 * 8])?, vec![0.0; 3 * 32]);
    /// let leaf = TreeWeights::leaf(&weights, &bias)?;
    /// let plan = Plan::estimate_tree(&leaf, 16, 2);
    /// plan.check_tree(&leaf)?;
    /// assert_eq!((plan.batch(), plan.steps()), (16, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn estimate_tree(weights: &TreeWeights<'_>, rows: usize, cores: usize) -> Plan {
        let mut costs = Costs::here((rows, 1));
        let ways = tree_arrangements(weights, cores).into_iter();
        let best = least(ways.map(|way| (costs.of_tree(weights, &way), way)));
        Plan::of(
            best.unwrap_or_else(|| Configuration::of_tree(weights, 1)),
            rows,
            1,
        )
    }

    /// Checks that every entry is one of a tree's cell, as [`Plan::check`] does for a model.
    ///
    /// # Errors
    /// What does not fit.
    pub fn check_tree(&self, weights: &TreeWeights<'_>) -> Result<(), PlanError> {
        self.check_sizes()?;
        let mut entries = self.entries.iter();
        entries.try_for_each(|entry| entry.configuration.check_tree(weights))
    }
}

impl Configuration {
    /// Units dealt out evenly to `threads` workers.
    pub(crate) fn of_tree(weights: &TreeWeights<'_>, threads: usize) -> Configuration {
        let threads = threads.clamp(1, MAX_THREADS);
        let direction = DirectionPlan {
            schedule: schedule(weights.cell().step()),
            partition: Partition {
                units: split_units(weights.hidden_size(), threads),
                projected: vec![0..0; threads],
            },
            blocking: Blocking::default(),
        };
        let layer = LayerPlan {
            chunk_steps: 1,
            ahead: InputProjectionBy::Owners,
            order: PanelOrder::Cyclic,
            directions: vec![direction],
        };
        let mut configuration = Configuration {
            threads,
            row_groups: 1,
            layers: vec![layer],
        };
        let plan = &mut configuration.layers[0].directions[0];
        plan.set_blocking(&weights.step_weights(), CacheModel::here());
        configuration
    }

    fn check_tree(&self, weights: &TreeWeights<'_>) -> Result<(), PlanError> {
        self.check_threads()?;
        let [layer] = &self.layers[..] else {
            return Err(PlanError::NotOfTree);
        };
        let [direction] = &layer.directions[..] else {
            return Err(PlanError::NotOfTree);
        };
        let is_step = direction.schedule == schedule(weights.cell().step());
        if !is_step || self.row_groups != 1 || layer.ahead != InputProjectionBy::Owners {
            return Err(PlanError::NotOfTree);
        }
        direction.check_parts(0, self.threads, &weights.step_weights())
    }
}

/// All products in the one phase of the step.
fn schedule(step: &CellStep) -> DirectionSchedule {
    let count = |is_one: fn(&Product) -> bool| {
        let products = step.products.iter().map(|each| each.product);
        vec![PhasePlacement::Phase(0); products.filter(is_one).count()]
    };
    DirectionSchedule {
        input: count(|product| matches!(product, Product::Input(_))),
        recurrent: count(|product| matches!(product, Product::Recurrent(_))),
    }
}

/// Every way to deal the units out to 1 to `cores` cores, in ascending order of cores.
pub(crate) fn tree_arrangements(weights: &TreeWeights<'_>, cores: usize) -> Vec<Configuration> {
    let most = cores.clamp(1, weights.hidden_size().div_ceil(UNIT_GRANULE));
    let ways = degrees(most).map(|threads| Configuration::of_tree(weights, threads));
    ways.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Matrix;

    #[test]
    fn plans_of_trees_fit_their_cells_and_no_others() {
        let [small, large] = [20, 64].map(|hidden| {
            let matrix = Matrix::new(5 * hidden, hidden, vec![0.1; 5 * hidden * hidden]).unwrap();
            (matrix, vec![0.0; 5 * hidden])
        });
        let of = |(matrix, bias)| TreeWeights::binary(matrix, matrix, bias).unwrap();
        let (small, large) = (of((&small.0, &small.1)), of((&large.0, &large.1)));
        for cores in [0, 1, 3, 9] {
            for weights in [small, large] {
                Plan::estimate_tree(&weights, 8, cores)
                    .check_tree(&weights)
                    .unwrap();
                let ways = tree_arrangements(&weights, cores);
                assert!(ways.iter().all(|way| way.check_tree(&weights).is_ok()));
                let groups = weights.hidden_size().div_ceil(16);
                assert_eq!(ways.len(), cores.clamp(1, groups));
            }
        }
        let plan = Plan::estimate_tree(&small, 8, 2);
        let refused = plan.check_tree(&large).unwrap_err();
        assert!(
            matches!(refused, PlanError::Partition { size: 64, .. }),
            "{refused}"
        );
        type Change = fn(&mut Configuration);
        let changes: [Change; 4] = [
            |c| c.layers.clear(),
            |c| c.layers[0].directions.clear(),
            |c| c.layers[0].directions[0].schedule.input[1] = PhasePlacement::Ahead,
            |c| (c.threads, c.row_groups) = (2, 2),
        ];
        for change in changes {
            let mut other = plan.clone();
            change(&mut other.entries[0].configuration);
            assert_eq!(other.check_tree(&small), Err(PlanError::NotOfTree));
        }
        let none = Plan { entries: vec![] };
        assert_eq!(none.check_tree(&small), Err(PlanError::Empty));
    }
}
