//! A plan without measuring.
//!
//! Every arrangement of the model over the cores, with cyclic and serpentine panels, gets a time
//! ([`super::cost`]). The least wins; of those within a hundredth of it, the one with the fewest
//! cores.

use super::chunks::chunk_steps;
use super::cost::Costs;
use super::rates::Rates;
use super::{
    Configuration, DirectionPlan, InputProjectionBy, LayerPlan, MAX_THREADS, Partition, Plan,
    PlanError, arrangements, split_units,
};
use crate::machine::CacheModel;
use crate::model::{Layer, Model};
use crate::schedule::{DirectionSchedule, PanelOrder};
use gatestream_kernels::Blocking;

impl Plan {
    /// The plan that should be fastest on up to `cores` cores for `batch` sequences of `steps`
    /// steps, judged by arithmetic and by bytes against this machine's caches. `cores` 0 counts
    /// as 1. This machine's cores are [`crate::machine::Topology::team_size`].
    pub fn estimate(model: &Model, batch: usize, steps: usize, cores: usize) -> Plan {
        let configuration = estimate(model, (batch, steps), cores, Rates::here());
        Plan::of(configuration, batch, steps)
    }

    /// The plan that splits every layer over exactly `threads` workers (from 1 to
    /// [`MAX_THREADS`]). Two directions get half of
    /// the workers each, where the number is even: they need not meet at every step then.
    pub fn with_threads(model: &Model, batch: usize, steps: usize, threads: usize) -> Plan {
        let configuration = Configuration::with_threads(model, batch, steps, threads);
        Plan::of(configuration, batch, steps)
    }
}

impl Configuration {
    /// Seconds that the estimate expects of a run of `batch` sequences of `steps` steps, with this
    /// machine's caches and the rates of a server core of 2024: good for comparing plans, within a
    /// factor of two or so as a time.
    ///
    /// # Errors
    /// What [`Configuration::check`] refuses.
    pub fn expected(&self, model: &Model, batch: usize, steps: usize) -> Result<f64, PlanError> {
        self.check(model)?;
        let mut costs = Costs::here((batch, steps));
        Ok(costs.as_is(model, self))
    }

    /// As [`Plan::with_threads`].
    pub fn with_threads(
        model: &Model,
        batch: usize,
        steps: usize,
        threads: usize,
    ) -> Configuration {
        let threads = threads.clamp(1, MAX_THREADS);
        let layers = model.layers().iter();
        let configuration = Configuration {
            threads,
            row_groups: 1,
            layers: layers
                .map(|layer| plan_layer(layer, batch, steps, threads))
                .collect(),
        };
        configuration.with_blocking(model, CacheModel::here())
    }
}

fn plan_layer(layer: &Layer, batch: usize, steps: usize, threads: usize) -> LayerPlan {
    let apart = layer.directions().len() == 2 && threads.is_multiple_of(2);
    let directions = (layer.directions().iter().enumerate()).map(|(index, direction)| {
        let place = |size: usize| {
            if apart {
                let half = split_units(size, threads / 2);
                let none = |at: usize| vec![at..at; threads / 2];
                match index {
                    0 => [half, none(size)].concat(),
                    _ => [none(0), half].concat(),
                }
            } else {
                split_units(size, threads)
            }
        };
        let projected = match direction.weights().projection {
            Some(_) => direction.output_size(),
            None => 0,
        };
        DirectionPlan {
            schedule: DirectionSchedule::all_ahead(direction),
            partition: Partition {
                units: place(direction.hidden_size()),
                projected: place(projected),
            },
            blocking: Blocking::default(),
        }
    });
    let mut plan = LayerPlan {
        chunk_steps: 1,
        ahead: InputProjectionBy::Owners,
        order: PanelOrder::Cyclic,
        directions: directions.collect(),
    };
    plan.chunk_steps = chunk_steps(layer, &plan, batch, steps);
    plan
}

/// The least estimated time over all arrangements, in both orders of panels.
fn estimate(model: &Model, size: (usize, usize), cores: usize, rates: &Rates) -> Configuration {
    let cores = cores.clamp(1, MAX_THREADS);
    let mut costs = Costs::new(rates, size);
    let ways = arrangements(model, size, cores).into_iter();
    match least(ways.map(|way| costs.ordered(model, way))) {
        Some(configuration) => configuration.with_blocking(model, CacheModel::here()),
        None => Configuration::with_threads(model, size.0, size.1, 1),
    }
}

/// The configuration of the least time. They are in ascending order of cores: more cores need a
/// gain.
pub(super) fn least(timed: impl Iterator<Item = (f64, Configuration)>) -> Option<Configuration> {
    let best = timed.reduce(|best, other| if other.0 < 0.99 * best.0 { other } else { best });
    best.map(|(_, configuration)| configuration)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Lstm, Merge};

    fn of(model: &Model, size: (usize, usize), cores: usize, l2: usize) -> Configuration {
        estimate(model, size, cores, &Rates::of([48 << 10, l2]))
    }

    #[test]
    fn a_model_that_one_core_keeps_wakes_no_other() {
        let model = Lstm::new(8, 16).random(1).unwrap();
        assert_eq!(of(&model, (1, 100), 8, 1 << 20).threads, 1);
        let model = Lstm::new(64, 512).random(1).unwrap();
        let plan = of(&model, (1, 100), 2, 2 << 20);
        assert_eq!((plan.threads, plan.row_groups), (2, 1));
        assert!(plan.layers[0].directions[0].partition.is_shared());
    }

    #[test]
    fn small_weights_and_many_sequences_make_groups_that_never_meet() {
        let model = Lstm::new(64, 64).random(1).unwrap();
        let plan = of(&model, (20, 100), 2, 1 << 20);
        assert_eq!((plan.threads, plan.row_groups), (2, 2));
    }

    #[test]
    fn more_weights_than_a_cache_keeps_are_swept_to_and_fro() {
        let model = Lstm::new(64, 768).random(1).unwrap();
        let plan = of(&model, (1, 100), 2, 2 << 20);
        assert_eq!(plan.layers[0].order, PanelOrder::Serpentine);
    }

    /// 1 MiB of each matrix.
    #[test]
    fn a_single_step_takes_both_products_together_where_a_cache_does_not_keep_them() {
        let model = Lstm::new(256, 256).random(1).unwrap();
        let together = |steps: usize, l2: usize| {
            let plan = of(&model, (1, steps), 1, l2);
            let layer = &plan.layers[0];
            let ahead = layer.directions[0].schedule.is_ahead();
            (layer.order == PanelOrder::Serpentine, ahead)
        };
        assert_eq!(together(1, 1 << 20), (true, false));
        assert!(together(1, 2 << 20).1 && together(10, 1 << 20).1);
    }

    #[test]
    fn a_large_input_on_few_units_is_taken_by_all() {
        let model = Lstm::new(4096, 32).random(1).unwrap();
        let plan = of(&model, (1, 100), 2, 1 << 20);
        assert_eq!(plan.threads, 2);
        assert_ne!(plan.layers[0].ahead, InputProjectionBy::Owners);
    }

    #[test]
    fn every_estimate_fits_its_model() {
        let stack = Lstm::new(5, 40).layers(3).bidirectional(Merge::Sum);
        let model = stack.random(1).unwrap();
        for cores in [0, 1, 2, 5, 16] {
            for size in [(0, 0), (1, 1), (3, 50), (1 << 40, 1 << 40)] {
                let plan = of(&model, size, cores, 1 << 20);
                plan.check(&model).unwrap();
                assert!(plan.threads <= cores.max(1));
            }
        }
    }
}
