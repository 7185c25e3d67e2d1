//! One core's part of an LSTM run, on one thread, for a cache simulator to look at (see `fig4b`).
//!
//! The parts of the other cores are left out: their results are zeros here, which changes no
//! address that this core reads or writes. Slices that another core would own are computed here
//! where the mapping brings them to this core.

use clap::{Parser, ValueEnum};
use gatestream::plan::split_units;
use gatestream::schedule::PanelOrder;
use gatestream_experiments::Outcome;
use gatestream_experiments::nest::sweep;
use gatestream_experiments::shapes::numbers;
use gatestream_kernels::{
    Activation, Columns, GateJob, GateKernel, LstmFunctions, Shared, SharedRows,
};
use gatestream_kernels::{
    Blocking, Isa, NextProduct, Numbers, PackedMatrix, Product, RowsRef, Source, Start, Sweep,
    kernels, zeroed,
};

/// Whose loops
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Eight products per step by a general GEMM, this core's columns of each
    Gemm,
    /// The crate's kernels, the slices changing cores at each step
    Moving,
    /// The crate's kernels, the slices staying
    Kept,
}

/// One core's part of an LSTM run
#[derive(Parser)]
struct Arguments {
    mode: Mode,
    #[arg(long)]
    batch: usize,
    /// Input and hidden size
    #[arg(long)]
    dimension: usize,
    #[arg(long)]
    steps: usize,
    #[arg(long)]
    cores: usize,
    /// Steps whose input products are taken together
    #[arg(long)]
    chunk: usize,
    /// Panels backwards at every other step
    #[arg(long)]
    serpentine: bool,
    /// Runs of the whole sequence
    #[arg(long)]
    runs: usize,
}

fn main() -> Outcome {
    let arguments = Arguments::parse();
    match arguments.mode {
        Mode::Gemm => by_gemm(&arguments),
        Mode::Moving | Mode::Kept => by_slices(&arguments),
    }
}

/// The slice of this core, the first, at a step.
fn slice(arguments: &Arguments, step: usize) -> usize {
    match arguments.mode {
        Mode::Gemm | Mode::Kept => 0,
        Mode::Moving => step % arguments.cores,
    }
}

fn by_gemm(arguments: &Arguments) -> Outcome {
    let (batch, dimension) = (arguments.batch, arguments.dimension);
    let weights: Vec<Vec<f32>> = (0..8).map(|_| numbers(dimension * dimension)).collect();
    let x = numbers(arguments.steps * batch * dimension);
    let h = numbers(batch * dimension);
    let mut z = vec![0.0; 4 * batch * dimension];
    let slices = split_units(dimension, arguments.cores);
    for _ in 0..arguments.runs {
        for (step, x) in x.chunks_exact(batch * dimension).enumerate() {
            let columns = &slices[slice(arguments, step)];
            for (product, weights) in weights.iter().enumerate() {
                let a = if product % 2 == 0 { x } else { &h };
                let z = &mut z[product / 2 * batch * dimension..][..batch * dimension];
                let stride = dimension as isize;
                // SAFETY: the strides describe columns of matrices of these sizes.
                unsafe {
                    matrixmultiply::sgemm(
                        batch,
                        dimension,
                        columns.len(),
                        1.0,
                        a.as_ptr(),
                        stride,
                        1,
                        weights.as_ptr().add(columns.start),
                        stride,
                        1,
                        0.5,
                        z.as_mut_ptr().add(columns.start),
                        stride,
                        1,
                    );
                }
            }
        }
    }
    Ok(())
}

fn by_slices(arguments: &Arguments) -> Outcome {
    let (batch, hidden, steps) = (arguments.batch, arguments.dimension, arguments.steps);
    let chunk = arguments.chunk.clamp(1, steps);
    let kernels = kernels(Isa::select()?)?;
    let lanes = kernels.lanes();
    let gates = [0, 1, 2, 3];
    let order = if arguments.serpentine {
        PanelOrder::Serpentine
    } else {
        PanelOrder::Cyclic
    };
    let values = numbers(4 * hidden * hidden);
    let source = Source {
        numbers: Numbers::F32(&values),
        depth: hidden,
        units: hidden,
    };
    let slices = split_units(hidden, arguments.cores);
    let pack = || -> Vec<PackedMatrix> {
        let each = slices.iter().cloned();
        each.map(|units| PackedMatrix::new(lanes, source, &gates, units, Blocking::default()))
            .collect()
    };
    let (w, u) = (pack(), pack());
    let bias = zeroed(u[0].panels() * 4 * lanes);
    let x = numbers(steps * batch * hidden);
    let mut z = zeroed(chunk * batch * u[0].panels() * 4 * lanes);
    let row = u[0].panels() * 4 * lanes;
    let (mut h, mut c) = (
        [zeroed(batch * hidden), zeroed(batch * hidden)],
        zeroed(batch * hidden),
    );
    let mut y = vec![0.0; steps * batch * hidden];
    let (y, c) = (Shared::new(&mut y), Shared::new(&mut c));
    let [first, second] = &mut h;
    let h = [Shared::new(first), Shared::new(second)];
    for _ in 0..arguments.runs {
        for first in (0..steps).step_by(chunk) {
            let count = chunk.min(steps - first);
            kernels.product(Product {
                rows: RowsRef::contiguous(&x[first * batch * hidden..], hidden),
                order: None,
                row_count: count * batch,
                weights: &w[0],
                slots: &gates,
                start: Start::Bias(&bias),
                z: &mut z[..count * batch * row],
                z_slots: 4,
                sweep: Sweep::Wide,
                blocking: Blocking::default(),
                next: NextProduct::NONE,
            });
            for step in first..first + count {
                let slice = slice(arguments, step);
                let z = &mut z[(step - first) * batch * row..][..batch * row];
                let columns = |memory, first| {
                    let rows = SharedRows::contiguous(memory, hidden);
                    Columns::new(rows, first + slices[slice].start)
                };
                // SAFETY: there is one thread, and the buffers of two steps are two.
                unsafe {
                    kernels.product(Product {
                        rows: RowsRef::contiguous(h[step % 2].read(0..batch * hidden), hidden),
                        order: None,
                        row_count: batch,
                        weights: &u[slice],
                        slots: &gates,
                        start: Start::Continue,
                        z,
                        z_slots: 4,
                        sweep: sweep(order, step),
                        blocking: Blocking::default(),
                        next: NextProduct::NONE,
                    });
                    kernels.gates(
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
                            units: slices[slice].len(),
                            peepholes: None,
                            before: columns(h[step % 2], 0),
                            c: columns(c, 0),
                            h: columns(h[(step + 1) % 2], 0),
                            y: Some(columns(y, step * batch * hidden)),
                            child: None,
                        },
                    );
                }
            }
        }
    }
    Ok(())
}
