//! From pre-activations to states, per kind of cell: `cargo bench --bench gates [-- --quick]`.
//!
//! `ROWSxUNITS` names a number of sequences and of units; one element is one unit of one sequence.
//!
//! Each is held against plain loops over [`gatestream::reference::activate`], bit for bit, before
//! it is timed.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gatestream::model::Activation;
use gatestream::reference::activate;
use gatestream_kernels::{
    self, Aligned, Columns, GateJob, GateKernel, GruFunctions, Isa, Kernels, LstmFunctions,
    PlainFunctions, Shared, SharedRows, zeroed,
};

/// Rows and units: a core's share of a step at batch 1, 10 and 20.
const SHAPES: [(usize, usize); 8] = [
    (1, 32),
    (1, 64),
    (1, 128),
    (1, 512),
    (10, 32),
    (10, 128),
    (20, 128),
    (20, 512),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Gates {
    Lstm,
    GruAfter,
    GruReset,
    GruCandidate,
    Rnn,
}

impl Gates {
    const ALL: [(Gates, &'static str); 5] = [
        (Gates::Lstm, "lstm"),
        (Gates::GruAfter, "gru"),
        (Gates::GruReset, "gru reset first, first phase"),
        (Gates::GruCandidate, "gru reset first, second phase"),
        (Gates::Rnn, "rnn"),
    ];

    fn slots(self) -> usize {
        match self {
            Gates::Lstm | Gates::GruAfter => 4,
            Gates::GruReset | Gates::GruCandidate => 3,
            Gates::Rnn => 1,
        }
    }

    /// The new state, and the new cell state, of one unit: pre-activations `z`, old state `h`, old
    /// cell state `c`.
    fn plain(self, z: &[f32], h: f32, c: f32) -> (f32, f32) {
        let sigmoid = |x| activate(Activation::Sigmoid, x);
        let tanh = |x| activate(Activation::Tanh, x);
        let blend = |update: f32, n: f32| update.mul_add(h, (1.0 - update) * n);
        match self {
            Gates::Lstm => {
                let c = sigmoid(z[1]).mul_add(c, sigmoid(z[0]) * tanh(z[2]));
                (sigmoid(z[3]) * tanh(c), c)
            }
            Gates::GruAfter => {
                let n = tanh(sigmoid(z[0]).mul_add(z[3], z[2]));
                (blend(sigmoid(z[1]), n), c)
            }
            Gates::GruReset => (sigmoid(z[0]) * h, c),
            Gates::GruCandidate => (blend(sigmoid(z[1]), tanh(z[2])), c),
            Gates::Rnn => (tanh(z[0]), c),
        }
    }
}

/// Buffers of one call; units are whole vectors.
struct Case {
    gates: Gates,
    rows: usize,
    units: usize,
    z: Aligned,
    before: Aligned,
    c: Aligned,
    h: Aligned,
    y: Aligned,
}

impl Case {
    fn new(gates: Gates, rows: usize, units: usize) -> Case {
        let mut random = fastrand::Rng::with_seed(1);
        let mut values = |count: usize, scale: f32| {
            let mut values = zeroed(count);
            values.fill_with(|| scale * (2.0 * random.f32() - 1.0));
            values
        };
        Case {
            gates,
            rows,
            units,
            z: values(rows * units * gates.slots(), 3.0),
            before: values(rows * units, 1.0),
            c: values(rows * units, 1.0),
            h: zeroed(rows * units),
            y: zeroed(rows * units),
        }
    }

    fn run(&mut self, kernels: &dyn Kernels) {
        let (rows, units, z) = (self.rows, self.units, &*self.z);
        let columns = |memory| Columns::new(SharedRows::contiguous(memory, units), 0);
        let [before, c] = [&mut self.before, &mut self.c].map(|m| columns(Shared::new(m)));
        let [h, y] = [&mut self.h, &mut self.y].map(|m| columns(Shared::new(m)));
        let (gate, candidate) = (Activation::Sigmoid, Activation::Tanh);
        let gru = GruFunctions {
            gate,
            candidate,
            clip: None,
        };
        let kernel = match self.gates {
            Gates::Lstm => GateKernel::Lstm(LstmFunctions {
                gate,
                candidate,
                output: candidate,
                input_forget: false,
                clip: None,
                output_clip: None,
            }),
            Gates::GruAfter => GateKernel::Gru(gru),
            Gates::GruReset => GateKernel::GruReset(gru),
            Gates::GruCandidate => GateKernel::GruCandidate(gru),
            Gates::Rnn => GateKernel::Plain(PlainFunctions {
                activation: Some(candidate),
                clip: None,
            }),
        };
        let job = GateJob {
            z,
            rows,
            units,
            peepholes: None,
            before,
            c,
            h,
            y: Some(y),
            child: None,
        };
        // SAFETY: the buffers are this case's own, each handed out once.
        unsafe { kernels.gates(kernel, job) }
    }

    /// Runs once, on states as they were made.
    fn check(&mut self, kernels: &dyn Kernels) {
        let lanes = kernels.lanes();
        let slots = self.gates.slots();
        let c_before = self.c.clone();
        self.run(kernels);
        for row in 0..self.rows {
            for unit in 0..self.units {
                let at = row * self.units + unit;
                let vector = (row * self.units + unit / lanes * lanes) * slots;
                let z: Vec<f32> = (0..slots)
                    .map(|slot| self.z[vector + slot * lanes + unit % lanes])
                    .collect();
                let expected = self.gates.plain(&z, self.before[at], c_before[at]);
                let found = (self.h[at], self.c[at]);
                let bits = |(h, c): (f32, f32)| (h.to_bits(), c.to_bits());
                assert_eq!(bits(found), bits(expected), "row {row}, unit {unit}");
                let written = if self.gates == Gates::GruReset {
                    0.0
                } else {
                    found.0
                };
                assert_eq!(self.y[at].to_bits(), written.to_bits());
            }
        }
    }
}

fn gates(criterion: &mut Criterion) {
    let isa = Isa::select().expect("an instruction set");
    let kernels = gatestream_kernels::kernels(isa).expect("an available one");
    for (gates, name) in Gates::ALL {
        let mut group = criterion.benchmark_group(format!("gates, {isa}, {name}"));
        group.warm_up_time(Duration::from_millis(50));
        group.measurement_time(Duration::from_millis(200));
        group.sample_size(20);
        for (rows, units) in SHAPES {
            let mut case = Case::new(gates, rows, units);
            case.check(&*kernels);
            group.throughput(Throughput::Elements((rows * units) as u64));
            let id = BenchmarkId::from_parameter(format!("{rows}x{units}"));
            group.bench_function(id, |b| b.iter(|| case.run(&*kernels)));
        }
        group.finish();
    }
}

criterion_group!(benches, gates);
criterion_main!(benches);
