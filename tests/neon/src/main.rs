//! Every kernel of this CPU against the reference, bit by bit, on one thread and without the test
//! harness: threads hang under the emulator that runs this for AArch64. The last line is a checksum
//! of the reference's own bits, which must not depend on the architecture either.
//!
//! Arguments: the names of the instruction sets that must be there, whatever else is.

#[path = "../../common/mod.rs"]
mod common;
#[allow(dead_code)] // memory is measured where the other tests are
#[path = "../../common/reduced.rs"]
mod reduced;

use common::{ACTIVATIONS, Batch, Options, Random, Results, usual_cells};
use gatestream::execute::team::Team;
use gatestream::execute::{PackedModel, Session};
use gatestream::model::{Cell, CellKind, Layer, Model, ResetForm};
use gatestream::plan::Plan;
use gatestream::reference;
use gatestream_kernels::{Activation, Isa, activate_all};

/// FNV-1a over the bits of every number, all NaNs being one.
struct Checksum(u64);

impl Checksum {
    fn add(&mut self, values: &[f32]) {
        for value in values {
            let bits = if value.is_nan() { f32::NAN } else { *value }.to_bits();
            self.0 = (self.0 ^ u64::from(bits)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn activations(isas: &[Isa], checksum: &mut Checksum) {
    // All bit patterns in long strides, and the neighbours of every power of two.
    let strided = (0..=u32::MAX / 40_009).map(|i| i * 40_009);
    let edges = (0..512u32)
        .flat_map(|i| (0..5).map(move |near| (i << 23).wrapping_add(near).wrapping_sub(2)));
    let inputs: Vec<f32> = strided.chain(edges).map(f32::from_bits).collect();
    for activation in ACTIVATIONS {
        let expected: Vec<f32> = inputs
            .iter()
            .map(|&x| reference::activate(activation, x))
            .collect();
        checksum.add(&expected);
        for &isa in isas {
            // Slices of every length about two vectors, so that each length of a rest is met; then
            // what is left at once.
            let mut found = inputs.clone();
            let mut left = found.as_mut_slice();
            for len in 1..=35 {
                let (slice, after) = left.split_at_mut(len);
                activate_all(isa, activation, slice).unwrap();
                left = after;
            }
            activate_all(isa, activation, left).unwrap();
            for ((x, y), z) in inputs.iter().zip(&found).zip(&expected) {
                assert!(
                    same(*y, *z),
                    "{isa} {activation:?} of {x:e} is {y:e}, the reference says {z:e}"
                );
            }
        }
    }
}

fn check(model: &Model, batch: &Batch, isas: &[Isa], checksum: &mut Checksum) {
    check_in_chunks(model, batch, None, isas, checksum);
}

/// `chunk_steps`: how many steps' input products are taken together, where it is not the
/// estimate's.
fn check_in_chunks(
    model: &Model,
    batch: &Batch,
    chunk_steps: Option<usize>,
    isas: &[Isa],
    checksum: &mut Checksum,
) {
    let expected = Results::reference(model, batch);
    for values in [&expected.values, &expected.hn, &expected.cn] {
        checksum.add(values);
    }
    for &isa in isas {
        let mut plan = Plan::with_threads(model, batch.batch, batch.steps, 1);
        for layer in &mut plan.entries[0].configuration.layers {
            layer.chunk_steps = chunk_steps.unwrap_or(layer.chunk_steps);
        }
        let mut team = Team::with_threads(1).unwrap();
        let packed = PackedModel::for_isa(model, &plan, &mut team, isa).unwrap();
        let mut session = Session::from_packed(packed).unwrap();
        for round in 0..2 {
            let mut found = Results::dirty(model, batch);
            session.run(&batch.input(), &mut found.output()).unwrap();
            found.assert_same(&expected, format_args!("{isa}, round {round}, {model:?}"));
        }
    }
}

/// Each activation in each place of each cell, with and without clip, over numbers that are large,
/// infinite or none; some of the LSTMs with peepholes or a projection. Returns the number of
/// models.
fn activations_in_cells(isas: &[Isa], checksum: &mut Checksum) -> usize {
    let mut random = Random::new(2);
    let mut cases = 0;
    for (activation, place) in ACTIVATIONS
        .into_iter()
        .flat_map(|a| [(a, 0), (a, 1), (a, 2)])
    {
        let mut places = [Activation::Sigmoid, Activation::Tanh, Activation::Tanh];
        places[place] = activation;
        let [gate, candidate, output] = places;
        let gru = |reset| Cell::Gru {
            gate,
            candidate,
            reset,
        };
        let lstm = |input_forget| Cell::Lstm {
            gate,
            candidate,
            output,
            input_forget,
        };
        let cells = [
            lstm(false),
            lstm(true),
            gru(ResetForm::Before),
            gru(ResetForm::After),
            Cell::Rnn { activation },
        ];
        for (cell, clip) in cells.into_iter().flat_map(|c| [(c, false), (c, true)]) {
            let is_lstm = cell.kind() == CellKind::Lstm;
            let options = Options {
                projection: is_lstm && random.0.bool(),
                peepholes: is_lstm && random.0.bool(),
                clip,
            };
            let layer = Layer::single(random.direction(cell, 6, 13, options));
            let model = Model::new(vec![layer]).unwrap();
            let mut batch = Batch::full(&mut random, &model, 4, 4);
            // In the first step, each in a sequence of its own; the fourth stays as it is.
            (batch.values[0], batch.values[7]) = (1e4, f32::INFINITY);
            batch.values[14] = f32::NAN;
            check(&model, &batch, isas, checksum);
            cases += 1;
        }
    }
    cases
}

fn main() {
    let isas = Isa::available();
    for required in std::env::args().skip(1) {
        let required: Isa = required.parse().unwrap();
        assert!(isas.contains(&required), "this CPU has no {required}");
    }
    let mut checksum = Checksum(0xcbf2_9ce4_8422_2325);
    let mut cases = 0;
    activations(&isas, &mut checksum);
    cases += activations_in_cells(&isas, &mut checksum);

    let mut random = Random::new(1);
    let sizes = (1..=70).chain([100, 127, 128, 129, 255, 256, 257, 511, 513, 1000, 1024]);
    for size in sizes {
        for (cell, options) in usual_cells() {
            let other = random.0.usize(1..=20);
            for (input, hidden) in [(size, other), (other, size)] {
                let layer = Layer::single(random.direction(cell, input, hidden, options));
                let model = Model::new(vec![layer]).unwrap();
                let batch = Batch::ragged(&mut random, &model, 1 + size % 7, 3);
                check(&model, &batch, &isas, &mut checksum);
                cases += 1;
            }
        }
    }
    for batch in 1..=33 {
        for ((cell, options), way) in usual_cells()
            .into_iter()
            .flat_map(|usual| (0..4).map(move |way| (usual, way)))
        {
            let layer = random.layer(cell, 9, 17, options, way);
            let model = Model::new(vec![layer]).unwrap();
            let batch = Batch::ragged(&mut random, &model, batch, 3);
            check(&model, &batch, &isas, &mut checksum);
            cases += 1;
        }
    }
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let model = random.stack(30);
        let (batch, steps) = (random.0.usize(0..7), random.0.usize(0..9));
        let batch = Batch::ragged(&mut random, &model, batch, steps);
        let chunk_steps = random.0.usize(1..=steps.max(1));
        check_in_chunks(&model, &batch, Some(chunk_steps), &isas, &mut checksum);
        cases += 1;
        if seed % 3 > 0 {
            continue;
        }
        let model = random.in_some_precision(model);
        check_in_chunks(&model, &batch, Some(chunk_steps), &isas, &mut checksum);
        cases += 1;
    }
    reduced::random_products_of_both_precisions(100);
    reduced::no_sum_of_int8_overflows();
    reduced::rows_that_have_no_scale();
    let names: Vec<_> = isas.iter().map(Isa::to_string).collect();
    println!(
        "{cases} models and {} activations: {} equal the reference",
        ACTIVATIONS.len(),
        names.join(", ")
    );
    println!("checksum of the reference: {:016x}", checksum.0);
}
