//! The candidates besides the arrangements of [`crate::plan`]: one function per dimension.
//!
//! ```text
//! schedules   the phased schedules that survive the three rules
//! chunks      steps whose input products are taken together
//! shares      the part of their rows for workers that also run steps
//! orders      panels cyclic or serpentine
//! blockings   stripes, tall tiles and prefetching of slices that leave the private caches
//! ```
//!
//! deepcpu section 5.3 searches P arrangements × Q schedules; the other dimensions are tried on
//! what these two leave.

use std::collections::HashSet;

use crate::machine::CacheModel;
use crate::model::Model;
use crate::plan::{Configuration, OwnersShare, with_owners_share};
use crate::schedule::{PanelOrder, schedules};
use gatestream_kernels::{Blocking, Prefetch, Stripes, TALL_TILE_ROWS};

/// The configuration with each schedule that the three rules leave: the first of each direction's
/// own, then the second of each, and so on, so that equal cells keep equal schedules.
pub(super) fn with_schedules(model: &Model, base: &Configuration) -> Vec<Configuration> {
    let directions = || model.layers().iter().flat_map(|l| l.directions());
    let most = directions().map(|d| schedules(d).len()).max().unwrap_or(0);
    let mut found = vec![base.clone(); most];
    for (index, layer) in model.layers().iter().enumerate() {
        for (which, direction) in layer.directions().iter().enumerate() {
            for (candidate, schedule) in found.iter_mut().zip(schedules(direction)) {
                candidate.layers[index].directions[which].schedule = schedule;
            }
        }
    }
    // The schedule decides which weights a step reads.
    let found = found.into_iter();
    distinct(
        found
            .map(|c| c.with_blocking(model, CacheModel::here()))
            .collect(),
    )
}

/// The configuration with chunks of other lengths, where anything is taken ahead.
pub(super) fn with_chunks(base: &Configuration, steps: usize) -> Vec<Configuration> {
    let ahead = |c: &Configuration| {
        let mut directions = c.layers.iter().flat_map(|l| &l.directions);
        directions.any(|d| d.schedule.is_ahead())
    };
    let powers = (0..usize::BITS).map(|power| 1 << power);
    let lengths = powers
        .take_while(|&length| length < steps)
        .chain([steps.max(1)]);
    let all = lengths.map(|length| {
        let mut candidate = base.clone();
        candidate
            .layers
            .iter_mut()
            .for_each(|l| l.chunk_steps = length);
        candidate
    });
    distinct(
        [base.clone()]
            .into_iter()
            .chain(all.filter(ahead))
            .collect(),
    )
}

/// The configuration with other shares of the rows taken ahead for workers that also run steps.
pub(super) fn with_shares(base: &Configuration) -> Vec<Configuration> {
    let all = OwnersShare::all().map(|share| with_owners_share(base, share));
    distinct([base.clone()].into_iter().chain(all).collect())
}

/// Both orders of panels, everywhere.
pub(super) fn with_orders(base: &Configuration) -> Vec<Configuration> {
    let orders = [PanelOrder::Cyclic, PanelOrder::Serpentine].map(|order| {
        let mut candidate = base.clone();
        candidate.layers.iter_mut().for_each(|l| l.order = order);
        candidate
    });
    distinct([base.clone()].into_iter().chain(orders).collect())
}

/// The configuration with other blocking of the weights that leave the private caches: plain, for a
/// third level of low latency, and for one of high latency.
pub(super) fn with_blockings(base: &Configuration) -> Vec<Configuration> {
    let low = Blocking {
        prefetch: Prefetch::ManyPasses,
        ..Blocking::default()
    };
    let high = Blocking {
        stripes: Stripes::Two,
        tile_rows: *TALL_TILE_ROWS.end(),
        prefetch: Prefetch::AllPasses,
    };
    let all = [Blocking::default(), low, high].map(|blocking| {
        let mut candidate = base.clone();
        let layers = candidate.layers.iter_mut();
        for direction in layers.flat_map(|layer| &mut layer.directions) {
            if direction.blocking != Blocking::default() {
                direction.blocking = blocking;
            }
        }
        candidate
    });
    distinct([base.clone()].into_iter().chain(all).collect())
}

/// The configuration with one layer's order or chunk changed, for stacks whose layers differ.
pub(super) fn with_one_layer(base: &Configuration, steps: usize) -> Vec<Configuration> {
    let mut found = vec![base.clone()];
    for index in 0..base.layers.len() {
        let mut other = base.clone();
        let layer = &mut other.layers[index];
        layer.order = match layer.order {
            PanelOrder::Cyclic => PanelOrder::Serpentine,
            PanelOrder::Serpentine => PanelOrder::Cyclic,
        };
        found.push(other);
        if !base.layers[index]
            .directions
            .iter()
            .any(|d| d.schedule.is_ahead())
        {
            continue;
        }
        for chunk in [
            base.layers[index].chunk_steps / 2,
            base.layers[index].chunk_steps * 2,
        ] {
            let mut other = base.clone();
            other.layers[index].chunk_steps = chunk.clamp(1, steps.max(1));
            found.push(other);
        }
    }
    distinct(found)
}

/// Without repetitions, in order of first appearance.
pub(super) fn distinct(all: Vec<Configuration>) -> Vec<Configuration> {
    let mut seen = HashSet::new();
    all.into_iter().filter(|c| seen.insert(c.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Gru, Lstm, Merge};
    use crate::plan::arrangements;

    #[test]
    fn every_candidate_fits_its_model() {
        let models = [
            Lstm::new(5, 64).random(1).unwrap(),
            Lstm::new(5, 64).layers(3).random(1).unwrap(),
            Gru::new(5, 70).bidirectional(Merge::Sum).random(1).unwrap(),
        ];
        for model in &models {
            for base in arrangements(model, (2, 9), 2) {
                let all = with_schedules(model, &base).into_iter();
                let all = all.chain(with_chunks(&base, 9)).chain(with_orders(&base));
                for candidate in all.chain(with_one_layer(&base, 9)) {
                    candidate.check(model).unwrap();
                }
                let chunks = with_chunks(&base, 9);
                let lengths: Vec<_> = chunks.iter().map(|c| c.layers[0].chunk_steps).collect();
                assert!([1, 2, 4, 8, 9].iter().all(|l| lengths.contains(l)));
                assert_eq!(with_orders(&base).len(), 2);
            }
        }
    }

    #[test]
    fn only_weights_that_leave_the_private_caches_are_blocked_otherwise() {
        let model = Lstm::new(5, 64).layers(2).random(1).unwrap();
        let mut base = Configuration::with_threads(&model, 1, 9, 1);
        assert_eq!(with_blockings(&base), [base.clone()]);
        let large = CacheModel::here().blocking(usize::MAX);
        base.layers[1].directions[0].blocking = large;
        let all = with_blockings(&base);
        assert_eq!(all[0], base);
        assert!(all.len() > 2);
        for candidate in all {
            candidate.check(&model).unwrap();
            assert_eq!(candidate.layers[0], base.layers[0]);
        }
    }

    #[test]
    fn every_schedule_that_the_rules_leave_is_tried() {
        for (model, count) in [
            (Lstm::new(5, 16).random(1).unwrap(), 16),
            (Gru::new(5, 16).random(1).unwrap(), 8),
        ] {
            let base = Configuration::with_threads(&model, 1, 9, 1);
            assert_eq!(with_schedules(&model, &base).len(), count);
        }
    }
}
