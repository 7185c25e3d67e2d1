//! Any plan that is legal.

use std::ops::Range;

use gatestream::kernels::{Blocking, Prefetch, Stripes, TALL_TILE_ROWS};
use gatestream::model::{Direction, Layer, Model};
use gatestream::plan::{
    Configuration, DirectionPlan, Entry, InputProjectionBy, LayerPlan, OwnersShare, Partition,
    Plan, UNIT_GRANULE,
};
use gatestream::schedule::{DirectionSchedule, PanelOrder, PhasePlacement};

use super::Random;

impl Random {
    /// A plan of up to three entries, with room for `batch` sequences of `steps` steps or more.
    pub fn plan(&mut self, model: &Model, batch: usize, steps: usize) -> Plan {
        let room = (batch + self.0.usize(0..3), steps + self.0.usize(0..4));
        let mut plan = Plan::of(self.configuration(model, steps), room.0, room.1);
        for smaller in 1..self.0.usize(1..=3) {
            let (batch, steps) = (room.0 / (1 + smaller), room.1 / (1 + smaller));
            if plan
                .entries
                .iter()
                .all(|e| (e.batch, e.steps) != (batch, steps))
            {
                plan.entries.push(Entry {
                    batch,
                    steps,
                    configuration: self.configuration(model, steps),
                    measured: None,
                });
            }
        }
        plan
    }

    /// One configuration for up to 6 threads.
    pub fn configuration(&mut self, model: &Model, steps: usize) -> Configuration {
        let row_groups = self.0.usize(1..=3);
        let workers = self.0.usize(1..=if row_groups == 1 { 4 } else { 2 });
        let layers = model.layers().iter();
        Configuration {
            threads: row_groups * workers,
            row_groups,
            layers: layers
                .map(|layer| self.layer_plan(layer, workers, steps))
                .collect(),
        }
    }

    fn layer_plan(&mut self, layer: &Layer, workers: usize, steps: usize) -> LayerPlan {
        // Often all of a layer is one worker's, so that stacks become wavefronts.
        let alone = self.0.bool().then(|| self.0.usize(0..workers));
        let directions = layer.directions().iter();
        LayerPlan {
            chunk_steps: self.0.usize(1..=steps.max(1)),
            ahead: match self.0.u8(0..3) {
                0 => InputProjectionBy::Rows {
                    workers: self.0.usize(1..=workers),
                    owners_share: OwnersShare::of_eighths(self.0.u8(0..=8)).unwrap(),
                },
                _ => InputProjectionBy::Owners,
            },
            order: if self.0.bool() {
                PanelOrder::Cyclic
            } else {
                PanelOrder::Serpentine
            },
            directions: directions
                .map(|direction| DirectionPlan {
                    schedule: self.schedule(direction),
                    partition: self.partition(direction, workers, alone),
                    blocking: self.blocking(),
                })
                .collect(),
        }
    }

    /// Any blocking, those that suit no machine as well.
    pub fn blocking(&mut self) -> Blocking {
        Blocking {
            stripes: if self.0.bool() {
                Stripes::One
            } else {
                Stripes::Two
            },
            tile_rows: if self.0.bool() {
                0
            } else {
                self.0.usize(TALL_TILE_ROWS)
            },
            prefetch: match self.0.u8(0..3) {
                0 => Prefetch::Off,
                1 => Prefetch::ManyPasses,
                _ => Prefetch::AllPasses,
            },
        }
    }

    /// Any schedule that the cell allows, found by trial.
    pub fn schedule(&mut self, direction: &Direction) -> DirectionSchedule {
        loop {
            let mut schedule = DirectionSchedule::all_ahead(direction);
            for place in schedule.input.iter_mut().chain(&mut schedule.recurrent) {
                *place = match self.0.u8(0..4) {
                    0 => PhasePlacement::Phase(0),
                    1 => PhasePlacement::Phase(1),
                    _ => *place,
                };
            }
            if schedule.check(direction).is_ok() {
                return schedule;
            }
        }
    }

    fn partition(
        &mut self,
        direction: &Direction,
        workers: usize,
        alone: Option<usize>,
    ) -> Partition {
        let projected = match direction.weights().projection {
            Some(_) => direction.output_size(),
            None => 0,
        };
        let mut cut = |size| match alone {
            None => self.cut(size, workers),
            Some(owner) => (0..workers)
                .map(|worker| match worker.cmp(&owner) {
                    std::cmp::Ordering::Less => 0..0,
                    std::cmp::Ordering::Equal => 0..size,
                    std::cmp::Ordering::Greater => size..size,
                })
                .collect(),
        };
        Partition {
            units: cut(direction.hidden_size()),
            projected: cut(projected),
        }
    }

    /// `0..units` cut at random groups, so that some workers may own all and some nothing.
    fn cut(&mut self, units: usize, parts: usize) -> Vec<Range<usize>> {
        let groups = units.div_ceil(UNIT_GRANULE);
        let mut bounds: Vec<usize> = (1..parts)
            .map(|_| (UNIT_GRANULE * self.0.usize(0..=groups)).min(units))
            .collect();
        bounds.extend([0, units]);
        bounds.sort_unstable();
        bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }
}
