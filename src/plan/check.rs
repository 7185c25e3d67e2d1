//! Whether a configuration fits a model.

use super::{
    Configuration, DirectionPlan, InputProjectionBy, LayerPlan, MAX_THREADS, UNIT_GRANULE, split,
};
use crate::model::{Layer, Model, StepWeights};
use crate::schedule::ScheduleError;
use gatestream_kernels::TALL_TILE_ROWS;

/// Why a plan does not fit a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Nothing is planned.
    #[error("the plan has no entries")]
    Empty,
    /// Two entries for one size.
    #[error("the plan has two entries for {batch} sequences of {steps} steps")]
    Repeated {
        /// Sequences.
        batch: usize,
        /// Steps.
        steps: usize,
    },
    /// No worker, or more than a team can have.
    #[error("a plan needs 1 to {MAX_THREADS} threads, this one has {threads}")]
    Threads {
        /// In the plan.
        threads: usize,
    },
    /// Groups of unequal size, or none.
    #[error("{threads} threads cannot form {row_groups} equal groups")]
    RowGroups {
        /// Workers.
        threads: usize,
        /// Groups.
        row_groups: usize,
    },
    /// Another number of layers or directions.
    #[error("the plan is for {planned} {what}, the model has {found}")]
    Count {
        /// Layers, or directions of a layer.
        what: &'static str,
        /// In the plan.
        planned: usize,
        /// In the model.
        found: usize,
    },
    /// A chunk of no steps.
    #[error("layer {layer}: a chunk needs at least one step")]
    EmptyChunk {
        /// Index of the layer.
        layer: usize,
    },
    /// Rows for no worker, or for more workers than a group has.
    #[error("layer {layer}: rows taken ahead need 1 to {workers} workers, the plan says {rows}")]
    Ahead {
        /// Index of the layer.
        layer: usize,
        /// Workers in the plan.
        rows: usize,
        /// Workers of a group.
        workers: usize,
    },
    /// Tall tiles of a height that kernels do not have.
    #[error(
        "layer {layer}: tiles have at most 0 (none are tall) or {} to {} rows, the plan says \
         {tile_rows}",
        TALL_TILE_ROWS.start(),
        TALL_TILE_ROWS.end()
    )]
    TileRows {
        /// Index of the layer.
        layer: usize,
        /// In the plan.
        tile_rows: usize,
    },
    /// Not the plan of a tree's cell.
    #[error(
        "a tree's cell runs in one phase of one layer, in one group of workers, with no product \
         ahead; the plan says otherwise"
    )]
    NotOfTree,
    /// A schedule that the cell does not allow.
    #[error("layer {layer}: {source}")]
    Schedule {
        /// Index of the layer.
        layer: usize,
        /// What is wrong.
        source: ScheduleError,
    },
    /// Parts that leave out, repeat or misplace units.
    #[error(
        "layer {layer}: the workers' {what} must be {workers} ranges that follow each other, start \
         at multiples of {UNIT_GRANULE} and cover 0..{size}"
    )]
    Partition {
        /// Index of the layer.
        layer: usize,
        /// Units or projection rows.
        what: &'static str,
        /// Workers of a group.
        workers: usize,
        /// What must be covered.
        size: usize,
    },
}

impl Configuration {
    /// Checks that the configuration covers every unit of `model` exactly once and schedules each
    /// product after what it needs.
    ///
    /// # Errors
    /// What does not fit.
    pub fn check(&self, model: &Model) -> Result<(), PlanError> {
        self.check_threads()?;
        expect_count("layers", self.layers.len(), model.layers().len())?;
        for (index, (plan, layer)) in self.layers.iter().zip(model.layers()).enumerate() {
            plan.check(index, self.group_size(), layer)?;
        }
        Ok(())
    }

    /// Checks that the workers form equal groups.
    pub(super) fn check_threads(&self) -> Result<(), PlanError> {
        let Configuration {
            threads,
            row_groups,
            ..
        } = *self;
        if threads == 0 || threads > MAX_THREADS {
            return Err(PlanError::Threads { threads });
        }
        if row_groups == 0 || !threads.is_multiple_of(row_groups) {
            return Err(PlanError::RowGroups {
                threads,
                row_groups,
            });
        }
        Ok(())
    }
}

impl LayerPlan {
    fn check(&self, index: usize, workers: usize, layer: &Layer) -> Result<(), PlanError> {
        if self.chunk_steps == 0 {
            return Err(PlanError::EmptyChunk { layer: index });
        }
        if let InputProjectionBy::Rows { workers: rows, .. } = self.ahead
            && !(1..=workers).contains(&rows)
        {
            return Err(PlanError::Ahead {
                layer: index,
                rows,
                workers,
            });
        }
        let directions = layer.directions();
        expect_count("directions", self.directions.len(), directions.len())?;
        for (plan, direction) in self.directions.iter().zip(directions) {
            let scheduled = plan.schedule.check(direction);
            scheduled.map_err(|source| PlanError::Schedule {
                layer: index,
                source,
            })?;
            plan.check_parts(index, workers, &direction.step_weights())?;
        }
        Ok(())
    }
}

impl DirectionPlan {
    /// Checks blocking and partition.
    pub(super) fn check_parts(
        &self,
        layer: usize,
        workers: usize,
        weights: &StepWeights<'_>,
    ) -> Result<(), PlanError> {
        let tile_rows = self.blocking.tile_rows;
        if tile_rows != 0 && !TALL_TILE_ROWS.contains(&tile_rows) {
            return Err(PlanError::TileRows { layer, tile_rows });
        }
        let parts = [
            ("units", &self.partition.units, weights.hidden),
            (
                "projection rows",
                &self.partition.projected,
                weights.projected(),
            ),
        ];
        for (what, parts, size) in parts {
            if parts.len() != workers || !split::covers(parts, size) {
                return Err(PlanError::Partition {
                    layer,
                    what,
                    workers,
                    size,
                });
            }
        }
        Ok(())
    }
}

fn expect_count(what: &'static str, planned: usize, found: usize) -> Result<(), PlanError> {
    if planned == found {
        return Ok(());
    }
    Err(PlanError::Count {
        what,
        planned,
        found,
    })
}
