//! An LSTM layer on the crate's kernels, of which the mapping of slices to cores can be chosen.
//!
//! ```text
//! in one region, worker w of P:
//!   for chunk of steps
//!     z[w] <- bias + x·W[w]                all steps of the chunk at once
//!     for step
//!       s <- mapping(w, step)              Kept: w; Rotated: (w + step) mod P
//!       z[s] += h·U[s];  c, h, y of s <- gates
//!       all meet
//! ```
//!
//! `Rotated` is everything but weight-centric streamlining: fusion, hoisting, partition, packed
//! weights and kernels are those of the session, only a core finds another slice at each step.
//! `Kept` is there to show that nothing else differs.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use gatestream::Model;
use gatestream::execute::team::Team;
use gatestream::plan::{LayerPlan, split_units};
use gatestream::schedule::PanelOrder;
use gatestream_kernels::{
    Activation, Aligned, Blocking, Columns, GateJob, GateKernel, Isa, Kernels, LstmFunctions,
    NextProduct, PackedMatrix, Product, RowsRef, Shared, SharedRows, Source, Start, Sweep, kernels,
    pack_vectors, zeroed,
};

use crate::sliced::Mapping;

const GATES: [usize; 4] = [0, 1, 2, 3];

struct Slice {
    units: Range<usize>,
    w: PackedMatrix,
    u: PackedMatrix,
    bias: Aligned,
}

/// One LSTM layer, its team and its buffers.
pub struct Nest {
    team: Team,
    kernels: Box<dyn Kernels>,
    slices: Vec<Slice>,
    mapping: Mapping,
    input: usize,
    hidden: usize,
    batch: usize,
    chunk: usize,
    order: PanelOrder,
    x: Vec<f32>,
    /// `[steps, batch, hidden]`, after a run.
    pub y: Vec<f32>,
    /// Per slice, `[chunk * batch][panels][4][lanes]`.
    z: Vec<Aligned>,
    h: [Aligned; 2],
    c: Aligned,
}

impl Nest {
    /// For the first direction of the first layer of `model`, on `cores` cores, with the chunks and
    /// the order of panels of `plan`, and an input `[steps, batch, features]`.
    ///
    /// # Errors
    /// The team or the instruction set cannot be had.
    pub fn new(
        model: &Model,
        (cores, mapping, plan): (usize, Mapping, &LayerPlan),
        batch: usize,
        x: &[f32],
    ) -> Result<Nest, Box<dyn std::error::Error>> {
        let mut team = Team::with_threads(cores)?;
        team.pin_caller();
        let kernels = kernels(Isa::select()?)?;
        let lanes = kernels.lanes();
        let direction = &model.layers()[0].directions()[0];
        let (input, hidden) = (direction.input_size(), direction.hidden_size());
        let weights = direction.weights();
        let biases = weights.input_bias.iter().zip(&weights.recurrent_bias);
        let bias: Vec<f32> = biases.map(|(a, b)| a + b).collect();
        let bias: Vec<&[f32]> = bias.chunks_exact(hidden).collect();
        let units = split_units(hidden, cores);
        let packed: Vec<OnceLock<Slice>> = units.iter().map(|_| OnceLock::new()).collect();
        team.run(|worker| {
            let units = units[worker.index].clone();
            let pack = |numbers, depth| {
                let source = Source {
                    numbers,
                    depth,
                    units: hidden,
                };
                PackedMatrix::new(lanes, source, &GATES, units.clone(), Blocking::default())
            };
            packed[worker.index].get_or_init(|| Slice {
                w: pack(weights.input.numbers(), input),
                u: pack(weights.recurrent.numbers(), hidden),
                bias: pack_vectors(lanes, &bias, units.clone()),
                units: units.clone(),
            });
        })?;
        let slices: Vec<_> = packed
            .into_iter()
            .filter_map(OnceLock::into_inner)
            .collect();
        let steps = x.len() / input / batch;
        let chunk = plan.chunk_steps.clamp(1, steps);
        let row = |slice: &Slice| slice.u.panels() * 4 * lanes;
        let z = slices
            .iter()
            .map(|slice| zeroed(chunk * batch * row(slice)));
        Ok(Nest {
            z: z.collect(),
            team,
            kernels,
            slices,
            mapping,
            input,
            hidden,
            batch,
            chunk,
            order: plan.order,
            x: x.to_vec(),
            y: vec![0.0; steps * batch * hidden],
            h: [
                zeroed(batch * padded(hidden)),
                zeroed(batch * padded(hidden)),
            ],
            c: zeroed(batch * padded(hidden)),
        })
    }

    /// Runs all steps from zero states.
    ///
    /// # Errors
    /// A worker panicked.
    pub fn run(&mut self) -> Result<Duration, Box<dyn std::error::Error>> {
        let [h0, h1] = &mut self.h;
        let walk = Walk {
            kernels: &*self.kernels,
            slices: &self.slices,
            mapping: self.mapping,
            sizes: (self.input, self.hidden, self.batch),
            chunk: self.chunk,
            order: self.order,
            x: &self.x,
            y: Shared::new(&mut self.y),
            z: self.z.iter_mut().map(|z| Shared::new(z)).collect(),
            h: [Shared::new(h0), Shared::new(h1)],
            c: Shared::new(&mut self.c),
        };
        let start = Instant::now();
        self.team
            .run(|worker| walk.go(worker.index, || worker.barrier()))?;
        Ok(start.elapsed())
    }
}

/// The way through the panels at a step.
pub fn sweep(order: PanelOrder, step: usize) -> Sweep {
    match (order, step % 2) {
        (PanelOrder::Cyclic, _) => Sweep::Wide,
        (PanelOrder::Serpentine, 0) => Sweep::Forth,
        (PanelOrder::Serpentine, _) => Sweep::Back,
    }
}

fn padded(units: usize) -> usize {
    units.next_multiple_of(16)
}

/// A run as the workers see it.
struct Walk<'a> {
    kernels: &'a dyn Kernels,
    slices: &'a [Slice],
    mapping: Mapping,
    /// Input, hidden, batch.
    sizes: (usize, usize, usize),
    chunk: usize,
    order: PanelOrder,
    x: &'a [f32],
    y: Shared<'a>,
    z: Vec<Shared<'a>>,
    h: [Shared<'a>; 2],
    c: Shared<'a>,
}

impl Walk<'_> {
    fn go(&self, worker: usize, meet: impl Fn()) {
        let (input, hidden, batch) = self.sizes;
        let steps = self.x.len() / input / batch;
        for row in 0..batch {
            let units = &self.slices[worker].units;
            let at = row * padded(hidden);
            for buffer in [self.h[0], self.c] {
                // SAFETY: own columns, and everybody meets before others read them.
                unsafe { buffer.write(at + units.start..at + units.end) }.fill(0.0);
            }
        }
        meet();
        for first in (0..steps).step_by(self.chunk) {
            let chunk = self.chunk.min(steps - first);
            // SAFETY: in a chunk's beginning each worker has its own slice; all have met since the
            // last one used it.
            unsafe { self.take_ahead(worker, first, chunk) };
            if self.mapping == Mapping::Rotated {
                meet();
            }
            for step in first..first + chunk {
                let slice = self.mapping.slice(worker, step, self.slices.len());
                // SAFETY: at each step the mapping gives every worker another slice, and all meet
                // between steps.
                unsafe { self.step(slice, step, step - first) };
                meet();
            }
        }
    }

    fn z_row(&self, slice: usize) -> usize {
        self.slices[slice].u.panels() * 4 * self.kernels.lanes()
    }

    /// # Safety
    /// Nobody else touches the slice's pre-activations.
    unsafe fn take_ahead(&self, slice: usize, first: usize, chunk: usize) {
        let (input, _, batch) = self.sizes;
        let rows = chunk * batch;
        self.kernels.product(Product {
            rows: RowsRef::contiguous(&self.x[first * batch * input..], input),
            order: None,
            row_count: rows,
            weights: &self.slices[slice].w,
            slots: &GATES,
            start: Start::Bias(&self.slices[slice].bias),
            // SAFETY: the caller's promise.
            z: unsafe { self.z[slice].write(0..rows * self.z_row(slice)) },
            z_slots: 4,
            sweep: Sweep::Wide,
            blocking: Blocking::default(),
            next: NextProduct::NONE,
        });
    }

    /// # Safety
    /// No other worker computes this slice, and none writes the state before this step.
    unsafe fn step(&self, slice: usize, step: usize, in_chunk: usize) {
        let (_, hidden, batch) = self.sizes;
        let stride = padded(hidden);
        let Slice { units, u, .. } = &self.slices[slice];
        let size = batch * self.z_row(slice);
        let own =
            |memory, stride| Columns::new(SharedRows::contiguous(memory, stride), units.start);
        let y = Columns {
            first: step * batch * hidden + units.start,
            ..own(self.y, hidden)
        };
        // SAFETY: the caller's promise; the states before and after are two buffers in turn.
        unsafe {
            let z = self.z[slice].write(in_chunk * size..(in_chunk + 1) * size);
            let before = self.h[step % 2].read(0..batch * stride);
            self.kernels.product(Product {
                rows: RowsRef::contiguous(before, stride),
                order: None,
                row_count: batch,
                weights: u,
                slots: &GATES,
                start: Start::Continue,
                z,
                z_slots: 4,
                sweep: sweep(self.order, step),
                blocking: Blocking::default(),
                next: NextProduct::NONE,
            });
            self.kernels.gates(
                GateKernel::Lstm(LstmFunctions {
                    gate: Activation::Sigmoid,
                    candidate: Activation::Tanh,
                    output: Activation::Tanh,
                    input_forget: false,
                    clip: None,
                    output_clip: None,
                }),
                GateJob {
                    z,
                    rows: batch,
                    units: units.len(),
                    peepholes: None,
                    before: own(self.h[step % 2], stride),
                    c: own(self.c, stride),
                    h: own(self.h[(step + 1) % 2], stride),
                    y: Some(y),
                    child: None,
                },
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::Runner;
    use crate::shapes::Shape;
    use gatestream::Plan;

    #[test]
    fn both_mappings_give_the_bits_of_the_session() {
        let shape = Shape {
            input: 9,
            hidden: 40,
            batch: 3,
            steps: 11,
        };
        let model = shape.lstm().unwrap();
        let plan = Plan::with_threads(&model, 3, 11, 2);
        let session = Runner::new(&model, &plan).unwrap();
        for mapping in [Mapping::Kept, Mapping::Rotated] {
            for (chunk_steps, order) in [(4, PanelOrder::Cyclic), (11, PanelOrder::Serpentine)] {
                let layer = plan.entries[0].configuration.layers[0].clone();
                let layer = LayerPlan {
                    chunk_steps,
                    order,
                    ..layer
                };
                for cores in [1, 2, 3] {
                    let nest = Nest::new(&model, (cores, mapping, &layer), 3, session.x());
                    let mut nest = nest.unwrap();
                    for _ in 0..2 {
                        nest.y.fill(f32::NAN);
                        nest.run().unwrap();
                        assert_eq!(nest.y, session.y(), "{mapping:?} {cores}");
                    }
                }
            }
        }
    }
}
