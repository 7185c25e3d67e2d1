//! A product with its weights cut into slices of columns, one per worker, with the crate's kernels.

use std::ops::Range;
use std::sync::OnceLock;

use gatestream::execute::team::Team;
use gatestream::plan::split_units;
use gatestream_kernels::{
    Aligned, Blocking, Isa, Kernels, NextProduct, Numbers, PackedMatrix, Product, RowsRef, Shared,
    Source, Start, Sweep, kernels, zeroed,
};

/// Who computes which slice at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Always the same: its weights stay in that core's caches (weight-centric streamlining).
    Kept,
    /// The next slice at each step: the same work, but the weights move.
    Rotated,
}

impl Mapping {
    /// The slice of a worker, of this number of slices.
    pub fn slice(self, worker: usize, step: usize, slices: usize) -> usize {
        match self {
            Mapping::Kept => worker,
            Mapping::Rotated => (worker + step) % slices,
        }
    }
}

/// A matrix `[depth, 4 units]` of random weights in slices, and room for its product with some
/// rows.
pub struct Sliced {
    kernels: Box<dyn Kernels>,
    rows: usize,
    depth: usize,
    units: Vec<Range<usize>>,
    weights: Vec<PackedMatrix>,
    /// Per slice `[rows][panels][4][lanes]`.
    z: Vec<Aligned>,
}

impl Sliced {
    /// Packed by the workers of `team`, each its slice; `owners` assigns them.
    ///
    /// # Errors
    /// The instruction set that is asked for is not there, or a worker panicked.
    pub fn new(
        (rows, depth, units): (usize, usize, usize),
        owners: Range<usize>,
        team: &mut Team,
    ) -> Result<Sliced, Box<dyn std::error::Error>> {
        let kernels = kernels(Isa::select()?)?;
        let lanes = kernels.lanes();
        let values = crate::shapes::numbers(4 * units * depth);
        let source = Source {
            numbers: Numbers::F32(&values),
            depth,
            units,
        };
        let split = split_units(units, owners.len());
        let packed: Vec<OnceLock<PackedMatrix>> = split.iter().map(|_| OnceLock::new()).collect();
        team.run(|worker| {
            let Some(slice) = worker.index.checked_sub(owners.start) else {
                return;
            };
            if let (Some(packed), Some(units)) = (packed.get(slice), split.get(slice)) {
                let pack = || {
                    PackedMatrix::new(
                        lanes,
                        source,
                        &[0, 1, 2, 3],
                        units.clone(),
                        Blocking::default(),
                    )
                };
                packed.get_or_init(pack);
            }
        })?;
        let weights: Vec<_> = packed
            .into_iter()
            .filter_map(OnceLock::into_inner)
            .collect();
        let z = weights
            .iter()
            .map(|w| zeroed(rows * w.panels() * 4 * lanes));
        Ok(Sliced {
            z: z.collect(),
            kernels,
            rows,
            depth,
            units: split,
            weights,
        })
    }

    /// Slices.
    pub fn slices(&self) -> usize {
        self.units.len()
    }

    /// Floating-point operations of one product.
    pub fn flops(&self) -> f64 {
        let units: usize = self.units.iter().map(Range::len).sum();
        2.0 * (self.rows * self.depth * 4 * units) as f64
    }

    /// For the workers of a region.
    pub fn share(&mut self) -> SharedSliced<'_> {
        SharedSliced {
            kernels: &*self.kernels,
            rows: self.rows,
            depth: self.depth,
            weights: &self.weights,
            z: self.z.iter_mut().map(|z| Shared::new(z)).collect(),
        }
    }
}

/// [`Sliced`] as the workers of a region see it.
pub struct SharedSliced<'a> {
    kernels: &'a dyn Kernels,
    rows: usize,
    depth: usize,
    weights: &'a [PackedMatrix],
    z: Vec<Shared<'a>>,
}

impl SharedSliced<'_> {
    /// Computes one slice of the product with `a`, `[rows, depth]`.
    ///
    /// # Safety
    /// Nobody else computes this slice at the same time.
    pub unsafe fn multiply(&self, slice: usize, a: &[f32]) {
        let z = self.z[slice];
        self.kernels.product(Product {
            rows: RowsRef::contiguous(a, self.depth),
            order: None,
            row_count: self.rows,
            weights: &self.weights[slice],
            slots: &[0, 1, 2, 3],
            start: Start::Zero,
            // SAFETY: the caller's promise.
            z: unsafe { z.write(0..z.len()) },
            z_slots: 4,
            sweep: Sweep::Wide,
            blocking: Blocking::default(),
            next: NextProduct::NONE,
        });
    }
}
