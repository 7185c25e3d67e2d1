//! The matrix product of one worker, tile by tile: `cargo bench --bench products [-- --quick]`.
//!
//! `ROWSxDEPTHxUNITSxGATES` names a product of so many rows of values with the weights of so many
//! units. One element is one floating-point operation: criterion's Gelem/s are GFLOP/s. `wide` is
//! how rows are taken ahead, `serpentine` how steps are taken where the plan says so: forth, then
//! back.
//!
//! Each product is held against plain loops, bit for bit, before it is timed.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gatestream_kernels::{
    Aligned, Blocking, Isa, Kernels, NextProduct, Numbers, PackedMatrix, Product, RowsRef, Source,
    Start, Sweep, kernels, pack_vectors, zeroed,
};

/// Rows, depth, units, gates. One row is a step of one sequence; 10 and 20 a step of as many; 100
/// and more are taken ahead. Sizes beside each other show whether an odd one falls off a cliff.
const SHAPES: [(usize, usize, usize, usize); 24] = [
    (1, 64, 64, 4),
    (1, 256, 128, 4),
    (1, 256, 120, 4),
    (1, 1024, 512, 4),
    (1, 256, 128, 3),
    (1, 256, 128, 1),
    (2, 256, 128, 4),
    (4, 256, 128, 4),
    (5, 256, 128, 4),
    (7, 256, 128, 4),
    (8, 256, 128, 4),
    (10, 64, 32, 4),
    (10, 256, 128, 4),
    (10, 256, 128, 3),
    (10, 256, 128, 1),
    (10, 1024, 512, 3),
    (10, 1024, 512, 4),
    (20, 64, 32, 4),
    (20, 256, 128, 4),
    (20, 1024, 512, 4),
    (100, 64, 64, 4),
    (100, 1024, 64, 4),
    (100, 1024, 512, 3),
    (100, 1024, 512, 4),
];

struct Case {
    rows: usize,
    depth: usize,
    gates: usize,
    a: Vec<f32>,
    packed: PackedMatrix,
    slots: Vec<usize>,
    bias: Aligned,
}

impl Case {
    fn run(&self, kernels: &dyn Kernels, sweep: Sweep, z: &mut [f32]) {
        kernels.product(Product {
            rows: RowsRef::contiguous(&self.a, self.depth),
            order: None,
            row_count: self.rows,
            weights: &self.packed,
            slots: &self.slots,
            start: Start::Bias(&self.bias),
            z,
            z_slots: self.gates,
            sweep,
            blocking: Blocking::default(),
            next: NextProduct::NONE,
        });
    }
}

/// One chain of multiply-adds per output, from the bias, in the order of the depth.
fn plain(case: &Case, weights: &[f32], bias: &[f32], units: usize, row: usize, at: usize) -> f32 {
    let (gate, unit) = (at % case.gates, at / case.gates);
    let of_gate = gate * units + unit;
    let weights = &weights[of_gate * case.depth..][..case.depth];
    let values = &case.a[row * case.depth..][..case.depth];
    let terms = values.iter().zip(weights);
    terms.fold(bias[of_gate], |z, (a, w)| a.mul_add(*w, z))
}

fn check(case: &Case, weights: &[f32], bias: &[f32], units: usize, z: &[f32]) {
    let lanes = case.packed.lanes();
    let row_values = case.packed.panels() * case.gates * lanes;
    for row in 0..case.rows {
        for unit in 0..units {
            for gate in 0..case.gates {
                let expected = plain(case, weights, bias, units, row, unit * case.gates + gate);
                let vector = unit / lanes * case.gates + gate;
                let found = z[row * row_values + vector * lanes + unit % lanes];
                assert_eq!(
                    found.to_bits(),
                    expected.to_bits(),
                    "row {row}, unit {unit}, gate {gate}: {found:e} is not {expected:e}"
                );
            }
        }
    }
}

fn products(criterion: &mut Criterion) {
    let kernels = kernels(Isa::select().expect("an instruction set")).expect("an available one");
    let lanes = kernels.lanes();
    let mut group = criterion.benchmark_group(format!("product, {}", kernels.isa()));
    group.warm_up_time(Duration::from_millis(50));
    group.measurement_time(Duration::from_millis(300));
    group.sample_size(20);
    for (rows, depth, units, gates) in SHAPES {
        let mut random = fastrand::Rng::with_seed(1);
        let mut values =
            |count: usize| -> Vec<f32> { (0..count).map(|_| 2.0 * random.f32() - 1.0).collect() };
        let (weights, bias) = (values(gates * units * depth), values(gates * units));
        let source = Source {
            numbers: Numbers::F32(&weights),
            depth,
            units,
        };
        let all: Vec<usize> = (0..gates).collect();
        let biases: Vec<&[f32]> = bias.chunks(units).collect();
        let case = Case {
            rows,
            depth,
            gates,
            a: values(rows * depth),
            packed: PackedMatrix::new(lanes, source, &all, 0..units, Blocking::default()),
            bias: pack_vectors(lanes, &biases, 0..units),
            slots: all,
        };
        let mut z = zeroed(rows * case.packed.panels() * gates * lanes);
        for sweep in [Sweep::Wide, Sweep::Forth, Sweep::Back] {
            z.fill(f32::NAN);
            case.run(&*kernels, sweep, &mut z);
            check(&case, &weights, &bias, units, &z);
        }
        let name = format!("{rows}x{depth}x{units}x{gates}");
        group.throughput(Throughput::Elements(
            (2 * rows * depth * units * gates) as u64,
        ));
        group.bench_function(BenchmarkId::new("wide", &name), |b| {
            b.iter(|| case.run(&*kernels, Sweep::Wide, &mut z));
        });
        group.bench_function(BenchmarkId::new("serpentine", &name), |b| {
            let mut sweeps = [Sweep::Forth, Sweep::Back].into_iter().cycle();
            b.iter(|| case.run(&*kernels, sweeps.next().unwrap_or(Sweep::Forth), &mut z));
        });
    }
    group.finish();
}

criterion_group!(benches, products);
criterion_main!(benches);
