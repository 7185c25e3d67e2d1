//! Products of bf16 and int8 against plain loops over integers and halves, for every instruction
//! set, with and without the instructions that only some of its CPUs have.

use crate::common::Random;
use gatestream::model::Precision;
use gatestream_kernels::{
    Blocking, INT8_DEPTH, Isa, Kernels, Numbers, PackedMatrix, Prefetch, Product, RowsRef, Scratch,
    Source, Start, Stripes, Sweep, TALL_TILE_ROWS, kernels, plain_kernels,
};

/// All kernels of this machine, with their names.
fn all_kernels() -> Vec<(String, Box<dyn Kernels>)> {
    let both = |&isa: &Isa| {
        [
            (format!("{isa}"), kernels(isa).unwrap()),
            (format!("{isa}, plain"), plain_kernels(isa).unwrap()),
        ]
    };
    Isa::available().iter().flat_map(both).collect()
}

/// A product and what it should give.
struct Case {
    depth: usize,
    units: usize,
    gates: usize,
    rows: usize,
    /// `[rows, depth]`.
    a: Vec<f32>,
    /// `[gates * units, depth]`.
    weights: Vec<f32>,
    /// One for each row of the weights.
    scales: Vec<f32>,
    /// `[gates * units]`.
    bias: Vec<f32>,
    start: &'static str,
    sweep: Sweep,
}

impl Case {
    fn random(random: &mut Random) -> Case {
        let (gates, units) = (random.0.usize(1..=4), random.0.usize(1..70));
        let (rows, depth) = (random.0.usize(1..20), random.0.usize(0..70));
        let columns = gates * units;
        let scales: Vec<f32> = random.values(columns).iter().map(|s| s.abs()).collect();
        Case {
            a: random.values(rows * depth),
            weights: (0..columns * depth)
                .map(|at| scales[at / depth] * f32::from(random.0.i8(-127..=127)))
                .collect(),
            bias: random.values(columns),
            start: ["zero", "bias", "continue"][random.0.usize(..3)],
            sweep: [Sweep::Wide, Sweep::Forth, Sweep::Back][random.0.usize(..3)],
            depth,
            units,
            gates,
            rows,
            scales,
        }
    }

    fn packed(&self, precision: Precision, lanes: usize, blocking: Blocking) -> PackedMatrix {
        let (mut whole, mut halves) = (Vec::new(), Vec::new());
        for (at, value) in self.weights.iter().enumerate() {
            whole.push((value / self.scales[at / self.depth]).round() as i8);
            halves.push((value.to_bits() >> 16) as u16);
        }
        let numbers = match precision {
            Precision::F32 => Numbers::F32(&self.weights),
            Precision::Bf16 => Numbers::Bf16(&halves),
            Precision::Int8 => Numbers::Int8 {
                whole: &whole,
                scales: &self.scales,
            },
        };
        let source = Source {
            numbers,
            depth: self.depth,
            units: self.units,
        };
        let gates: Vec<usize> = (0..self.gates).collect();
        PackedMatrix::new(lanes, source, &gates, 0..self.units, blocking)
    }

    /// What the kernels give, `[rows, gates * units]`, with one slot more than gates that nobody
    /// but the bias may touch.
    fn run(&self, kernels: &dyn Kernels, precision: Precision) -> Vec<f32> {
        let lanes = kernels.lanes();
        // Any blocking gives the same bits.
        let blocking = Blocking {
            stripes: [Stripes::One, Stripes::Two][self.rows % 2],
            tile_rows: [0, *TALL_TILE_ROWS.end()][self.units % 2],
            prefetch: [Prefetch::Off, Prefetch::ManyPasses, Prefetch::AllPasses][self.depth % 3],
        };
        let weights = self.packed(precision, lanes, blocking);
        let (panels, z_slots) = (weights.panels(), self.gates + 1);
        let place = |row: usize, gate: usize, unit: usize| {
            ((row * panels + unit / lanes) * z_slots + gate) * lanes + unit % lanes
        };
        let mut bias = vec![7.0; panels * z_slots * lanes];
        let mut z = vec![9.0; self.rows * panels * z_slots * lanes];
        for gate in 0..self.gates {
            for unit in 0..self.units {
                let value = self.bias[gate * self.units + unit];
                bias[place(0, gate, unit)] = value;
                for row in 0..self.rows {
                    z[place(row, gate, unit)] = value;
                }
            }
        }
        // Longer than asked for, and full of what an earlier product may have left.
        let mut room = vec![0xdead_beef; weights.scratch_words(self.rows) + 3];
        kernels.product_in(
            Product {
                rows: RowsRef::contiguous(&self.a, self.depth),
                order: None,
                row_count: self.rows,
                weights: &weights,
                slots: &(0..self.gates).collect::<Vec<_>>(),
                start: match self.start {
                    "zero" => Start::Zero,
                    "bias" => Start::Bias(&bias),
                    _ => Start::Continue,
                },
                z: &mut z,
                z_slots,
                sweep: self.sweep,
                blocking,
                next: weights.as_next(0..weights.panels()),
            },
            Scratch::Empty(&mut room),
        );
        let untouched = if self.start == "bias" { 7.0 } else { 9.0 };
        let mut found = Vec::new();
        for row in 0..self.rows {
            for gate in 0..self.gates {
                found.extend((0..self.units).map(|unit| z[place(row, gate, unit)]));
            }
            assert_eq!(
                z[place(row, self.gates, 0)],
                untouched,
                "a slot of nobody's"
            );
        }
        found
    }

    fn start(&self, column: usize) -> f32 {
        match self.start {
            "zero" => 0.0,
            _ => self.bias[column],
        }
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.a[row * self.depth..(row + 1) * self.depth]
    }

    /// Sums of whole numbers, in 64 bits.
    fn int8(&self) -> Vec<f32> {
        let mut expected = Vec::new();
        for row in 0..self.rows {
            let values = self.row(row);
            let most = values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            let inverse = if most == 0.0 { 0.0 } else { 127.0 / most };
            for column in 0..self.gates * self.units {
                let (mut sum, scale) = (0i64, self.scales[column]);
                for (k, value) in values.iter().enumerate() {
                    let weight = self.weights[column * self.depth + k] / scale;
                    let q = (value * inverse).round_ties_even() as i64;
                    sum += q * weight.round() as i64;
                }
                let scale = most / 127.0 * scale;
                expected.push((sum as f32).mul_add(scale, self.start(column)));
            }
        }
        expected
    }

    /// The chain over the weights' upper halves.
    fn bf16(&self) -> Vec<f32> {
        let mut expected = Vec::new();
        for row in 0..self.rows {
            for column in 0..self.gates * self.units {
                let weights = &self.weights[column * self.depth..][..self.depth];
                let terms = self.row(row).iter().zip(weights);
                expected.push(terms.fold(self.start(column), |z, (a, w)| {
                    a.mul_add(f32::from_bits(w.to_bits() & 0xffff_0000), z)
                }));
            }
        }
        expected
    }
}

#[track_caller]
fn assert_bits(found: &[f32], expected: &[f32], what: &str) {
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(
            found.to_bits(),
            expected.to_bits(),
            "{what}, {at}: {found} {expected}"
        );
    }
    assert_eq!(found.len(), expected.len(), "{what}");
}

pub fn random_products_of_both_precisions(rounds: usize) {
    let mut random = Random::new(3);
    for round in 0..rounds {
        let case = Case::random(&mut random);
        for (name, kernels) in all_kernels() {
            let found = case.run(&*kernels, Precision::Int8);
            assert_bits(&found, &case.int8(), &format!("int8, {name}, {round}"));
            let found = case.run(&*kernels, Precision::Bf16);
            assert_bits(&found, &case.bf16(), &format!("bf16, {name}, {round}"));
        }
    }
}

/// The greatest magnitudes at the greatest depth, of both signs: no sum wraps, no pair saturates.
pub fn no_sum_of_int8_overflows() {
    for depth in [1, 2, 3, 4, 5, 1000, INT8_DEPTH] {
        for (a, w) in [(1.0, 127.0), (-1.0, 127.0), (1.0, -127.0), (-1.0, -127.0)] {
            let case = Case {
                depth,
                units: 2,
                gates: 1,
                rows: 2,
                a: vec![a; 2 * depth],
                weights: vec![w; 2 * depth],
                scales: vec![1.0; 2],
                bias: vec![0.0; 2],
                start: "zero",
                sweep: Sweep::Wide,
            };
            let sum = 127.0 * 127.0 * depth as f64 * f64::from(a.signum() * w.signum());
            assert!(sum.abs() <= f64::from(i32::MAX));
            let expected = (sum as f32) * (1.0 / 127.0);
            for (name, kernels) in all_kernels() {
                let found = case.run(&*kernels, Precision::Int8);
                assert_bits(&found, &[expected; 4], &format!("{name}, {depth}, {a} {w}"));
            }
        }
    }
}

pub fn rows_that_have_no_scale() {
    let case = |values: [f32; 5]| Case {
        depth: 5,
        units: 3,
        gates: 2,
        rows: 1,
        a: values.to_vec(),
        weights: (0..30).map(|w| (w - 15) as f32).collect(),
        scales: vec![1.0; 6],
        bias: vec![0.5; 6],
        start: "bias",
        sweep: Sweep::Wide,
    };
    for (name, kernels) in all_kernels() {
        let run = |values| {
            let case = case(values);
            case.run(&*kernels, Precision::Int8)
        };
        for (tiny, is_zero) in [(0.0, true), (-0.0, true), (1e-31, true), (1e-30, false)] {
            let found = run([tiny, 0.0, 0.0, 0.0, 0.0]);
            // 1e-30 times 15 is lost in 0.5, but not the chain's sign of life: it does not become
            // NaN.
            assert_bits(&found, &[0.5; 6], &format!("{name}, {tiny}"));
            let alone = Case {
                bias: vec![0.0; 6],
                ..case([tiny, 0.0, 0.0, 0.0, 0.0])
            };
            let found = alone.run(&*kernels, Precision::Int8);
            assert_eq!(
                found.iter().all(|z| *z == 0.0),
                is_zero,
                "{name}, {tiny}: {found:?}"
            );
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let found = run([1.0, bad, 0.0, 0.0, 2.0]);
            assert!(found.iter().all(|z| z.is_nan()), "{name}, {bad}: {found:?}");
        }
        let found = run([1e37, -1e37, 0.0, 0.0, 0.0]);
        assert!(found.iter().all(|z| z.is_finite()), "{name}: {found:?}");
    }
}

pub fn smaller_numbers_take_less_memory() {
    let mut random = Random::new(5);
    let mut case = Case::random(&mut random);
    (case.depth, case.units, case.gates) = (64, 32, 4);
    case.weights = random.values(4 * 32 * 64);
    case.scales = vec![0.01; 4 * 32];
    let f32_bytes = case.packed(Precision::F32, 16, Blocking::default()).bytes();
    assert_eq!(f32_bytes, 4 * 4 * 32 * 64);
    assert_eq!(
        2 * case
            .packed(Precision::Bf16, 16, Blocking::default())
            .bytes(),
        f32_bytes
    );
    let bytes = case
        .packed(Precision::Int8, 16, Blocking::default())
        .bytes();
    // A scale and a sum of 4 bytes for each gate of a unit.
    assert_eq!(bytes, f32_bytes / 4 + 8 * 4 * 32);
}
