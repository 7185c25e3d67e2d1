//! Every way to distribute a model over the cores.
//!
//! ```text
//! P cores = groups of sequences (X_i) × workers of a group
//! workers of a group: slices of units (X_j), directions apart, or layers one after the other in a
//!                     wavefront; the steps on fewer of them than the products taken ahead
//! ```

use std::collections::HashSet;
use std::ops::Range;

use super::{Configuration, InputProjectionBy, OwnersShare, Partition, UNIT_GRANULE, split_units};
use crate::machine::CacheModel;
use crate::model::{Layer, Model};
use crate::partition::{Cache, Grain, Options, Problem, Sequence, Shape};

/// Every way to lay the model out over 1 to `cores` cores, for `batch` sequences of `steps` steps,
/// in ascending order of cores. Products are taken ahead, in the chunks that the estimate would
/// take.
pub(crate) fn arrangements(
    model: &Model,
    (batch, steps): (usize, usize),
    cores: usize,
) -> Vec<Configuration> {
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    let product = widest(model, batch);
    for threads in degrees(cores.max(1)) {
        // The partition's factorizations; and one group of all workers even where they are more
        // than the units can be dealt to: directions, layers and products ahead may still need
        // them.
        let splits = product.splits(threads, Options::default()).into_iter();
        let mut groups: Vec<usize> = splits.map(|split| split.rows).chain([1]).collect();
        groups.sort_unstable();
        groups.dedup();
        for row_groups in groups {
            let rows = batch.div_ceil(row_groups);
            for group in of_group(model, (rows, steps), threads / row_groups) {
                let way = Configuration {
                    threads,
                    row_groups,
                    ..group
                };
                let way = way.with_blocking(model, CacheModel::here());
                if seen.insert(way.clone()) {
                    found.push(way);
                }
            }
        }
    }
    found
}

/// The recurrent product of the layer with the most units, which decides how finely work can be
/// cut.
fn widest(model: &Model, batch: usize) -> Problem {
    let layers = model.layers().iter();
    let layer = layers.max_by_key(|layer| layer.hidden_size());
    let shape = layer.map_or(Shape::f32(batch, 0, 0, 1), |layer| {
        let depth = layer.directions()[0].output_size();
        Shape::f32(batch, depth, layer.hidden_size(), layer.kind().gates())
    });
    Problem {
        shape,
        grain: Grain::default(),
        sequence: Sequence::of_steps(1),
        cache: Cache::fully_associative(0),
    }
}

/// Degrees of parallelism up to `most`: every one up to 16, multiples of 8 up to 128, powers of
/// two, and `most` itself.
pub(super) fn degrees(most: usize) -> impl DoubleEndedIterator<Item = usize> {
    let wanted = move |degree: usize| {
        degree <= 16
            || degree == most
            || degree.is_power_of_two()
            || degree <= 128 && degree.is_multiple_of(8)
    };
    (1..=most.min(4096)).filter(move |&degree| wanted(degree))
}

/// The ways of one group of `workers` workers.
fn of_group(model: &Model, size: (usize, usize), workers: usize) -> Vec<Configuration> {
    let mut ways = Vec::new();
    let whole = |owners: Range<usize>| (0..model.layers().len()).map(move |_| owners.clone());
    let groups = |layer: &Layer| {
        let units = layer.hidden_size().div_ceil(UNIT_GRANULE);
        layer.directions().len() * units
    };
    let useful = model.layers().iter().map(groups).max().unwrap_or(1);
    // Steps on all workers first, then on fewer than the products ahead of them, where there are
    // any such products.
    let has_input = model.layers().iter().any(|l| l.input_size() > 0);
    for owners in degrees(workers.min(useful)).rev() {
        let mut way = placed(model, size, workers, whole(0..owners), false);
        if owners < workers {
            if !has_input {
                continue;
            }
            // While the owners run steps the others compute the next chunk. The estimate and the
            // tuner refine the owners' share.
            for layer in &mut way.layers {
                layer.ahead = InputProjectionBy::even_rows(workers);
                layer.chunk_steps = layer
                    .chunk_steps
                    .min(size.1.div_ceil(RELAYED_CHUNKS).max(1));
            }
            ways.push(with_owners_share(&way, OwnersShare::HALF));
        }
        ways.push(way);
    }
    if workers > useful {
        return ways;
    }
    let two = model.layers().iter().any(|l| l.directions().len() == 2);
    if two && workers > 1 {
        ways.push(placed(model, size, workers, whole(0..workers), true));
    }
    // Layers dealt out to so many groups of workers, which follow each other through the steps.
    let layers = model.layers().len();
    let stages = (2..=workers.min(layers)).filter(|stages| workers.is_multiple_of(*stages));
    for stages in stages {
        let each = workers / stages;
        let owners = (0..layers).map(|layer| {
            let stage = layer * stages / layers;
            stage * each..(stage + 1) * each
        });
        ways.push(placed(model, size, workers, owners, false));
    }
    ways
}

/// Min chunks of a sequence whose input products are computed by workers that do not run its steps:
/// all workers wait for the first chunk.
const RELAYED_CHUNKS: usize = 8;

/// The same with another share of the rows that are taken ahead for workers that also run steps.
pub(crate) fn with_owners_share(way: &Configuration, owners_share: OwnersShare) -> Configuration {
    let mut other = way.clone();
    for layer in &mut other.layers {
        let InputProjectionBy::Rows { workers, .. } = layer.ahead else {
            continue;
        };
        let owners = (0..workers).filter(|&w| layer.is_owner(w)).count();
        if owners > 0 && owners < workers {
            layer.ahead = InputProjectionBy::Rows {
                workers,
                owners_share,
            };
        }
    }
    other
}

/// Each layer owned by a range of workers, its directions together or half of the workers each.
fn placed(
    model: &Model,
    (batch, steps): (usize, usize),
    workers: usize,
    owners: impl Iterator<Item = Range<usize>>,
    apart: bool,
) -> Configuration {
    let mut configuration = Configuration::with_threads(model, batch, steps, workers);
    let layers = configuration.layers.iter_mut().zip(model.layers());
    for ((plan, layer), owners) in layers.zip(owners) {
        let both = layer.directions().len() == 2 && apart;
        let middle = owners.start + owners.len().div_ceil(2);
        for (index, direction) in layer.directions().iter().enumerate() {
            let owners = match (both, index) {
                (false, _) => owners.clone(),
                (true, 0) => owners.start..middle,
                (true, _) => middle..owners.end,
            };
            let projected = direction.weights().projection.as_ref();
            let projected = projected.map_or(0, |_| direction.output_size());
            plan.directions[index].partition = Partition {
                units: place(direction.hidden_size(), &owners, workers),
                projected: place(projected, &owners, workers),
            };
        }
    }
    configuration
}

/// `0..size` dealt out evenly to `owners` among `workers`.
fn place(size: usize, owners: &Range<usize>, workers: usize) -> Vec<Range<usize>> {
    let parts = split_units(size, owners.len().max(1));
    let before = (0..owners.start).map(|_| 0..0);
    let after = (owners.end..workers).map(|_| size..size);
    before.chain(parts).chain(after).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Gru, Lstm, Merge};

    #[test]
    fn every_way_fits_its_model_and_all_degrees_are_there() {
        let models = [
            Lstm::new(5, 64).random(1).unwrap(),
            Lstm::new(5, 64).layers(3).random(1).unwrap(),
            Gru::new(5, 70).bidirectional(Merge::Sum).random(1).unwrap(),
        ];
        for model in &models {
            for (batch, cores) in [(1, 1), (1, 4), (6, 4)] {
                let all = arrangements(model, (batch, 9), cores);
                for way in &all {
                    way.check(model).unwrap();
                    assert!(way.threads <= cores);
                    assert!(way.row_groups == 1 || way.row_groups <= batch);
                }
                let degrees: HashSet<_> = all.iter().map(|c| c.threads).collect();
                assert_eq!(degrees, (1..=cores).collect());
                assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
            }
        }
    }

    #[test]
    fn stacks_may_run_as_wavefronts_and_directions_apart() {
        let stack = Lstm::new(5, 64).layers(2).random(1).unwrap();
        let found = arrangements(&stack, (1, 9), 2);
        let wavefront = |c: &&Configuration| c.threads == 2 && !c.layers[0].is_owner(1);
        let mut wavefronts = found.iter().filter(wavefront);
        assert!(wavefronts.any(|c| !c.layers[1].is_owner(0)));
        let both = Lstm::new(5, 64).bidirectional(Merge::Concat);
        let both = both.random(1).unwrap();
        let apart = |c: &Configuration| {
            let mut directions = c.layers[0].directions.iter();
            c.threads == 2 && directions.all(|d| !d.partition.is_shared())
        };
        assert!(arrangements(&both, (1, 9), 2).iter().any(apart));
    }
}
