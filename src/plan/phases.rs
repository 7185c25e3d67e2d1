//! The phases of a configuration: which products are fused, and on how many cores.

use super::{Configuration, InputProjectionBy, LayerPlan, PlanError};
use crate::graph::{Graph, Operand, Product};
use crate::model::{Layer, Model};
use crate::schedule::PhasedSchedule;

/// Products of one layer that run at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPhase {
    /// Taken ahead of the steps, once per chunk; else at every step.
    pub is_ahead: bool,
    /// The products, those with one operand made one.
    pub products: Vec<PlannedProduct>,
}

/// Several products with one operand, executed as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedProduct {
    /// What is multiplied.
    pub operand: Operand,
    /// The weights side by side: direction and product.
    pub blocks: Vec<(usize, Product)>,
    /// Rows of the operand: sequences, times the steps of a chunk where taken ahead.
    pub rows: usize,
    /// Columns of the operand.
    pub depth: usize,
    /// Columns of all weights together.
    pub columns: usize,
    /// Cores that it is split over.
    pub cores: usize,
}

impl Configuration {
    /// The phases of each layer for `batch` sequences of `steps` steps: that which is taken ahead,
    /// if anything is, then those of a step.
    ///
    /// ```
    /// use gatestream::Plan;
    /// use gatestream::model::Lstm;
    ///
    /// let model = Lstm::new(64, 256).random(1)?;
    /// let plan = Plan::with_threads(&model, 1, 10, 2);
    /// let phases = &plan.entries[0].configuration.phases(&model, 1, 10)?[0];
    /// let [ahead, step] = &phases[..] else { panic!("two phases") };
    /// let size = |p: &gatestream::plan::PlannedProduct| (p.rows, p.depth, p.columns, p.cores);
    /// assert_eq!(size(&ahead.products[0]), (10, 64, 1024, 2));
    /// assert_eq!(size(&step.products[0]), (1, 256, 1024, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What [`Configuration::check`] refuses.
    pub fn phases(
        &self,
        model: &Model,
        batch: usize,
        steps: usize,
    ) -> Result<Vec<Vec<PlannedPhase>>, PlanError> {
        self.check(model)?;
        let layers = self.layers.iter().zip(model.layers());
        Ok(layers
            .map(|(plan, layer)| self.of_layer(plan, layer, batch, steps))
            .collect())
    }

    fn of_layer(
        &self,
        plan: &LayerPlan,
        layer: &Layer,
        batch: usize,
        steps: usize,
    ) -> Vec<PlannedPhase> {
        let schedules: Vec<_> = plan.directions.iter().map(|d| d.schedule.clone()).collect();
        // One step shows them all; it has few nodes, and the schedules have been checked.
        let Ok(graph) = Graph::of_layer(layer, 1) else {
            return Vec::new();
        };
        let Ok(phased) = PhasedSchedule::of(&graph, &[schedules]) else {
            return Vec::new();
        };
        let groups = self.row_groups.min(batch.max(1));
        let phases = phased.phases().iter().map(|phase| {
            let is_ahead = !phase.is_time_dependent();
            let products = phase.fused(&graph).into_iter().map(|fused| {
                let cores = match plan.ahead {
                    InputProjectionBy::Rows { workers, .. } if is_ahead => workers,
                    _ => owners(plan, &fused.blocks, self.group_size()),
                };
                let of = |&(direction, product): &(usize, Product)| {
                    let direction = &layer.directions()[direction];
                    match product {
                        Product::Input(_) => (direction.input_size(), direction.hidden_size()),
                        Product::Recurrent(_) => (direction.output_size(), direction.hidden_size()),
                        Product::Projection => (direction.hidden_size(), direction.output_size()),
                    }
                };
                let chunk = if is_ahead {
                    plan.chunk_steps.min(steps)
                } else {
                    1
                };
                PlannedProduct {
                    operand: fused.operand,
                    rows: batch.saturating_mul(chunk),
                    depth: fused.blocks.first().map_or(0, |block| of(block).0),
                    columns: fused.blocks.iter().map(|block| of(block).1).sum(),
                    cores: cores * groups,
                    blocks: fused.blocks,
                }
            });
            PlannedPhase {
                is_ahead,
                products: products.collect(),
            }
        });
        phases.collect()
    }
}

/// Workers of a group that own a part of any of the blocks.
fn owners(plan: &LayerPlan, blocks: &[(usize, Product)], workers: usize) -> usize {
    let owns = |worker: usize| {
        blocks.iter().any(|&(direction, product)| {
            let partition = &plan.directions[direction].partition;
            let parts = match product {
                Product::Projection => &partition.projected,
                _ => &partition.units,
            };
            !parts[worker].is_empty()
        })
    };
    (0..workers).filter(|&worker| owns(worker)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Gru, Lstm, Merge, ResetForm};

    /// Weights, operand, size and cores of each product, phase by phase.
    fn words(model: &Model, plan: &Configuration) -> Vec<Vec<String>> {
        let step = model.layers()[0].directions()[0].step();
        let product = |p: &PlannedProduct| {
            let name = |(d, b): &(usize, Product)| format!("{d}{}", step.weights_name(*b));
            let weights: Vec<_> = p.blocks.iter().map(name).collect();
            format!(
                "{} · {}: {}x{}x{} on {}",
                weights.join(" "),
                p.operand,
                p.rows,
                p.depth,
                p.columns,
                p.cores
            )
        };
        let phases = plan.phases(model, 3, 10).unwrap().remove(0);
        { phases.iter() }
            .map(|phase| phase.products.iter().map(product).collect())
            .collect()
    }

    #[test]
    fn a_gru_that_resets_before_has_two_phases_and_what_is_ahead_its_own_cores() {
        let model = Gru::new(5, 32).reset(ResetForm::Before).random(1).unwrap();
        let mut plan = Configuration::with_threads(&model, 3, 10, 2);
        plan.layers[0].chunk_steps = 4;
        plan.layers[0].ahead = InputProjectionBy::even_rows(1);
        assert_eq!(
            words(&model, &plan),
            [
                ["0W_r 0W_z 0W_n · x: 12x5x96 on 1"],
                ["0U_r 0U_z · h: 3x32x64 on 2"],
                ["0U_n · r∘h: 3x32x32 on 2"],
            ]
        );
    }

    #[test]
    fn directions_share_their_input_and_nothing_else() {
        let model = Lstm::new(5, 16).bidirectional(Merge::Sum).projection(7);
        let model = model.random(1).unwrap();
        let mut plan = Configuration::with_threads(&model, 3, 10, 2);
        plan.layers[0].chunk_steps = 100;
        let phases = words(&model, &plan);
        let all = |d: u8, m: &str| {
            ["i", "f", "g", "o"]
                .map(|g| format!("{d}{m}_{g}"))
                .join(" ")
        };
        let ahead = format!("{} {} · x: 30x5x128 on 2", all(0, "W"), all(1, "W"));
        assert_eq!(phases[0], [ahead]);
        let steps = [0, 1].map(|d| format!("{} · h: 3x7x64 on 1", all(d, "U")));
        assert_eq!(phases[1], steps);
        assert_eq!(phases[2], ["0P · m: 3x16x7 on 1", "1P · m: 3x16x7 on 1"]);
    }
}
