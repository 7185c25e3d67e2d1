//! Against plain loops in f32, and in f64 where it is bounds that are tested.

use std::sync::atomic::Ordering;

use super::bounds::{OfOutput, OfRow, bound};
use super::*;
use crate::execute::counting::{Asked, Counting};
use crate::execute::team::Team;
use crate::layers::{Argmax, argmax};
use crate::machine::CacheModel;
use crate::reference;
use gatestream_kernels::{INT8_DEPTH, Kernels};

fn team(threads: usize) -> SharedTeam {
    SharedTeam::new(Team::with_threads(threads).unwrap())
}

fn screened(weights: &Arc<Matrix>, bias: &[f32], team: &SharedTeam, rows: usize) -> Screened {
    let isa = Isa::select().unwrap();
    let screened = Screened::new(weights, bias, isa, team, rows).unwrap();
    screened.expect("finite weights")
}

/// Counts from now on what is asked of these kernels.
fn count(kernels: &mut Box<dyn Kernels>) -> Arc<Asked> {
    let (counting, asked) = Counting::kernels(kernels.isa());
    *kernels = counting;
    asked
}

/// The symbol of each row.
fn chosen(screened: &mut Screened, team: &SharedTeam, x: &[f32]) -> Vec<Option<usize>> {
    let mut symbols = vec![-1.0; x.len() / screened.inputs()];
    screened.argmax_on(team, x, &mut symbols).unwrap();
    symbols.iter().map(as_option).collect()
}

/// Of each row the symbol, as a plain loop over all outputs has it.
fn expected(weights: &Matrix, bias: &[f32], x: &[f32]) -> Vec<Option<usize>> {
    let rows = x.chunks(weights.cols());
    rows.map(|x| argmax(&reference::dense(weights, bias, x)))
        .collect()
}

fn as_option(symbol: &f32) -> Option<usize> {
    (!symbol.is_nan()).then_some(*symbol as usize)
}

/// How values are drawn: what bounds are wide or narrow for, and what has many equal outputs.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Uniform,
    Whole,
    /// Few are large, so that int8 leaves little of the others.
    Spread,
    Tiny,
    Huge,
    Zero,
    /// The same but for the last bits.
    Close,
}

impl Kind {
    const ALL: [Kind; 7] = [
        Kind::Uniform,
        Kind::Whole,
        Kind::Spread,
        Kind::Tiny,
        Kind::Huge,
        Kind::Zero,
        Kind::Close,
    ];

    fn draw(self, rng: &mut fastrand::Rng) -> f32 {
        let v = 2.0 * rng.f32() - 1.0;
        match self {
            Kind::Uniform => v,
            Kind::Whole => rng.i32(-1..=1) as f32,
            Kind::Spread => v.powi(21) * 100.0,
            Kind::Tiny => v * f32::MIN_POSITIVE * rng.f32(),
            Kind::Huge => v * 1e19,
            Kind::Zero => 0.0,
            Kind::Close => 0.5 + v * 1e-6,
        }
    }

    fn all(self, rng: &mut fastrand::Rng, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.draw(rng)).collect()
    }
}

#[test]
fn the_choice_is_that_of_all_outputs_in_f32() {
    let mut rng = fastrand::Rng::with_seed(5);
    let rows = 7;
    for threads in 1..4 {
        let team = team(threads);
        for isa in Isa::available() {
            for of_weights in Kind::ALL {
                for of_inputs in Kind::ALL {
                    let outputs = [1, 7, 255, 257, 700, 1100][rng.usize(..6)];
                    let inputs = [1, 3, 17, 130][rng.usize(..4)];
                    let weights = of_weights.all(&mut rng, outputs * inputs);
                    let weights = Arc::new(Matrix::new(outputs, inputs, weights).unwrap());
                    let of_bias = Kind::ALL[rng.usize(..7)];
                    let bias = of_bias.all(&mut rng, outputs);
                    let mut x = of_inputs.all(&mut rng, rows * inputs);
                    for row in 0..rows {
                        if rng.u8(..8) == 0 {
                            x[row * inputs] = [f32::NAN, f32::INFINITY, f32::MAX][rng.usize(..3)];
                        }
                    }
                    let made = Screened::new(&weights, &bias, isa, &team, rows).unwrap();
                    let mut screened = made.expect("finite weights");
                    assert_eq!(
                        chosen(&mut screened, &team, &x),
                        expected(&weights, &bias, &x),
                        "{isa}, {threads} threads, {outputs} outputs of {inputs}: \
                         weights {of_weights:?}, bias {of_bias:?}, inputs {of_inputs:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn norms_are_those_of_the_whole_numbers_of_the_reference() {
    let mut rng = fastrand::Rng::with_seed(9);
    for isa in Isa::available() {
        let kernels = gatestream_kernels::kernels(isa).unwrap();
        for kind in Kind::ALL {
            for len in [0, 1, 15, 16, 17, 64, 1000] {
                let x = kind.all(&mut rng, len);
                let magnitude = x.iter().fold(0.0f32, |most, v| most.max(v.abs()));
                let (whole, scale) = reference::quantize(&x);
                let kept = whole.iter().map(|q| f64::from(scale) * *q as f64);
                let lost = (x.iter().zip(kept.clone())).map(|(x, kept)| f64::from(*x) - kept);
                let norm =
                    |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
                let expected = [norm(&mut kept.clone()), norm(&mut lost.clone())].map(f64::sqrt);
                let norms = kernels.row_norms(&x);
                assert_eq!(norms.magnitude, magnitude);
                let norms = [norms.quantized, norms.error];
                for (norm, expected) in norms.into_iter().zip(expected) {
                    let apart = (norm - expected).abs();
                    assert!(
                        apart <= 1e-12 * expected.max(norms[0]),
                        "{isa}, {kind:?}, {len}: {norm}, not {expected}"
                    );
                }
            }
        }
    }
}

/// The bound holds for every output of every kind, and is no wider than it has to be: where nothing
/// but the rounding of whole numbers tells int8 from f32, an output exists that comes near a tenth
/// of it.
#[test]
fn int8_error_bounds() {
    let mut rng = fastrand::Rng::with_seed(6);
    let mut nearest = 0.0f32;
    for of_weights in Kind::ALL {
        for of_inputs in Kind::ALL {
            for inputs in [1, 2, 9, 64, 300, 20_000] {
                let outputs = 50;
                let weights = of_weights.all(&mut rng, outputs * inputs);
                let weights = Matrix::new(outputs, inputs, weights).unwrap();
                let whole = weights.in_precision(Precision::Int8).unwrap();
                let of_bias = Kind::ALL[rng.usize(..7)];
                let bias = of_bias.all(&mut rng, outputs);
                let each: Vec<OfOutput> = (0..outputs)
                    .map(|j| {
                        let q = whole.int8_row(j).to_vec();
                        OfOutput::new(&weights.row(j), &q, whole.scales()[j], bias[j])
                    })
                    .collect();
                let most = each.iter().copied().reduce(OfOutput::or).unwrap();
                let x = of_inputs.all(&mut rng, inputs);
                let isa = Isa::available()[rng.usize(..Isa::available().len())];
                let kernels = gatestream_kernels::kernels(isa).unwrap();
                let OfRow::Bounded(of_row) = OfRow::new(&x, most, &*kernels) else {
                    let both_are_huge = matches!((of_weights, of_inputs), (Kind::Huge, Kind::Huge));
                    assert!(both_are_huge, "{of_weights:?} {of_inputs:?}");
                    continue;
                };
                let fine = reference::dense(&weights, &bias, &x);
                let coarse = reference::dense(&whole, &bias, &x);
                for (j, (fine, coarse)) in fine.into_iter().zip(coarse).enumerate() {
                    let bound = bound(of_row, each[j]);
                    let apart = (f64::from(fine) - f64::from(coarse)).abs();
                    assert!(
                        apart <= f64::from(bound),
                        "{apart} is more than {bound}: weights {of_weights:?}, bias {of_bias:?}, \
                         inputs {of_inputs:?}"
                    );
                    if matches!((of_weights, of_inputs), (Kind::Uniform, Kind::Uniform)) {
                        nearest = nearest.max(apart as f32 / bound);
                    }
                }
            }
        }
    }
    assert!(nearest > 0.1 && nearest <= 1.0, "{nearest}");
}

/// What it is for: of many outputs few are computed, by all workers together.
#[test]
fn few_outputs_are_computed() {
    let mut rng = fastrand::Rng::with_seed(7);
    let (outputs, inputs, rows) = (6000, 256, 5);
    let weights = Kind::Uniform.all(&mut rng, outputs * inputs);
    let weights = Arc::new(Matrix::new(outputs, inputs, weights).unwrap());
    let bias = Kind::Uniform.all(&mut rng, outputs);
    let x = Kind::Uniform.all(&mut rng, rows * inputs);
    for threads in 1..3 {
        let team = team(threads);
        let mut screened = screened(&weights, &bias, &team, rows);
        let asked = count(&mut screened.coarse.kernels);
        assert_eq!(
            chosen(&mut screened, &team, &x),
            expected(&weights, &bias, &x)
        );
        let computed = asked.chains.load(Ordering::Relaxed);
        assert!(computed >= rows, "{computed}");
        assert!(computed <= rows * threads * 3 * CHUNK, "{computed}");
    }
}

/// One input that is much larger than the others leaves bounds so wide that more outputs are
/// possible than there is room for; yet those that come close to the greatest are few, and not many
/// more are computed.
#[test]
fn wide_bounds_cost_few_outputs_more() {
    let mut rng = fastrand::Rng::with_seed(11);
    let (outputs, inputs, rows) = (40_000, 256, 3);
    let weights = Kind::Uniform.all(&mut rng, outputs * inputs);
    let weights = Arc::new(Matrix::new(outputs, inputs, weights).unwrap());
    let bias = vec![0.0; outputs];
    let mut x = Kind::Uniform.all(&mut rng, rows * inputs);
    for x in x.chunks_mut(inputs) {
        x.iter_mut().for_each(|x| *x *= 0.05);
        x[7] = 1.0;
    }
    let team = team(1);
    let mut screened = screened(&weights, &bias, &team, rows);
    let asked = count(&mut screened.coarse.kernels);
    let whole = count(&mut screened.whole.kernels);
    assert_eq!(
        chosen(&mut screened, &team, &x),
        expected(&weights, &bias, &x)
    );
    let OfRow::Bounded(of_row) = screened.rows[0] else {
        panic!("bounded");
    };
    let fine = reference::dense(&weights, &bias, &x[..inputs]);
    let greatest = fine.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let bound = bound(of_row, screened.most);
    let possible = fine.iter().filter(|z| *z + 2.0 * bound >= greatest).count();
    assert!(possible > 2 * MAX_CANDIDATES, "{possible}");
    let computed = asked.chains.load(Ordering::Relaxed);
    assert!(
        (rows..rows * outputs / 20).contains(&computed),
        "{computed}"
    );
    assert_eq!(whole.multiply_adds.load(Ordering::Relaxed), 0);
}

/// More than are kept come close to the greatest, among them the greatest itself, wherever it is;
/// beside a row that one worker decides where the other gives up, and one whose greatest output is
/// in a block that a worker comes to after it gave up.
#[test]
fn where_too_many_come_close_all_are_computed() {
    let (outputs, inputs) = (2304, 8);
    let team = team(2);
    for place in [
        0, 1, 511, 512, 1023, 1024, 1151, 1152, 1279, 1280, 2302, 2303,
    ] {
        let mut bias = vec![0.25; outputs];
        bias[place] = 0.250_001;
        let mut values = vec![0.3; outputs * inputs];
        values[100 * inputs + 1] = 0.5;
        values[2300 * inputs + 2] = 0.5;
        let weights = Arc::new(Matrix::new(outputs, inputs, values).unwrap());
        let mut screened = screened(&weights, &bias, &team, 3);
        let asked = count(&mut screened.whole.kernels);
        let mut x = [0.7; 24];
        for row in 0..3 {
            x[8 * row + 1] = 0.0;
            x[8 * row + 2] = 0.0;
        }
        x[8 + 1] = 1e6;
        x[16 + 2] = 1e6;
        let expected = [place, 100, 2300].map(Some);
        assert_eq!(chosen(&mut screened, &team, &x), expected);
        let all = asked.multiply_adds.load(Ordering::Relaxed);
        assert_eq!(all, 2 * outputs * inputs, "of the first and the last row");
    }
}

/// As many as there is room for, but more than are worth computing by themselves.
#[test]
fn no_more_are_computed_by_themselves_than_it_is_worth() {
    let (outputs, inputs) = (MAX_CANDIDATES, 8);
    let team = team(1);
    let weights = Arc::new(Matrix::new(outputs, inputs, vec![0.3; outputs * inputs]).unwrap());
    let mut screened = screened(&weights, &vec![0.25; outputs], &team, 1);
    let asked = count(&mut screened.coarse.kernels);
    assert_eq!(chosen(&mut screened, &team, &[0.7; 8]), [Some(0)]);
    assert_eq!(asked.chains.load(Ordering::Relaxed), 2 * CHUNK);
}

/// Those that are no longer possible give way: all blocks together have more than there is room
/// for, each block's greater than those before by more than the bounds.
#[test]
fn outputs_that_were_overtaken_are_not_kept() {
    let (outputs, inputs, alike) = (256 * 100, 4, 200);
    let team = team(1);
    let bias = |j: usize| {
        if j % 256 < alike {
            (j / 256) as f32
        } else {
            -10.0
        }
    };
    let bias: Vec<f32> = (0..outputs).map(bias).collect();
    let weights = Arc::new(Matrix::new(outputs, inputs, vec![0.3; outputs * inputs]).unwrap());
    let mut screened = screened(&weights, &bias, &team, 1);
    assert_eq!(screened.coarse.block(), 256);
    let asked = count(&mut screened.coarse.kernels);
    assert_eq!(
        chosen(&mut screened, &team, &[0.7; 4]),
        [Some(outputs - 256)]
    );
    assert_eq!(asked.chains.load(Ordering::Relaxed), alike);
}

/// Where int8 is exact, what is left is what the chain in f32 rounds away: here most of a bias, so
/// that another output is greater than in exact arithmetic, or the same no longer.
#[test]
fn what_the_chain_itself_rounds_is_in_the_bound() {
    let team = team(1);
    let half = 65;
    let mut weights = vec![127.0; half];
    weights.extend(vec![-127.0; half]);
    weights.extend(vec![0.0; 2 * half]);
    let weights = Arc::new(Matrix::new(2, 2 * half, weights).unwrap());
    let x = vec![127.0; 2 * half];
    let rounded = reference::dense(&weights, &[0.1, 0.0], &x)[0];
    let bias = [0.1, (0.1 + rounded) / 2.0];
    let whole = weights.in_precision(Precision::Int8).unwrap();
    let fine = argmax(&reference::dense(&weights, &bias, &x));
    assert_ne!(fine, argmax(&reference::dense(&whole, &bias, &x)));
    let mut screened = screened(&weights, &bias, &team, 1);
    assert_eq!(chosen(&mut screened, &team, &x), [fine]);
}

/// More rows than are kept quantised, then fewer, then none: nothing of a call is left for the
/// next.
#[test]
fn calls_of_any_number_of_rows_follow_each_other() {
    let mut rng = fastrand::Rng::with_seed(10);
    let (outputs, inputs, most) = (520, 12, 300);
    let weights = Kind::Uniform.all(&mut rng, outputs * inputs);
    let weights = Arc::new(Matrix::new(outputs, inputs, weights).unwrap());
    let bias = Kind::Uniform.all(&mut rng, outputs);
    let team = team(2);
    let mut screened = screened(&weights, &bias, &team, most);
    for rows in [most, 3, 0, 129, 1, 7] {
        let mut x = Kind::Uniform.all(&mut rng, rows * inputs);
        // The same row is bounded in one call, unbounded or no number in another.
        if let Some(first) = x.first_mut() {
            *first = [f32::INFINITY, f32::NAN, 1.0][rng.usize(..3)];
        }
        assert_eq!(
            chosen(&mut screened, &team, &x),
            expected(&weights, &bias, &x),
            "{rows} rows"
        );
    }
}

/// In f32 and beyond a private cache it pays; in other precisions, for less, and where int8 cannot
/// be, all is computed.
#[test]
fn it_is_chosen_where_it_pays() {
    let team = team(1);
    let isa = Isa::select().unwrap();
    let caches = CacheModel::here();
    let (outputs, inputs) = (caches.private_bytes() / 4 / 64 + 1, 64);
    let make = |change: &dyn Fn(&mut Matrix, &mut Vec<f32>)| {
        let mut rng = fastrand::Rng::with_seed(8);
        let weights = Kind::Uniform.all(&mut rng, outputs * inputs);
        let mut weights = Matrix::new(outputs, inputs, weights).unwrap();
        let mut bias = vec![0.0; outputs];
        change(&mut weights, &mut bias);
        let x = Kind::Uniform.all(&mut rng, inputs);
        let expected = expected(&weights, &bias, &x);
        let weights = Arc::new(weights);
        let mut argmax = Argmax::new(&weights, &bias, isa, &team, 1).unwrap();
        let mut symbol = [-1.0];
        argmax.run(&x, &mut symbol).unwrap();
        assert_eq!(vec![as_option(&symbol[0])], expected);
        argmax.is_screened()
    };
    assert!(make(&|_, _| ()));
    assert!(!make(
        &|weights, _| *weights = weights.in_precision(Precision::Bf16).unwrap()
    ));
    assert!(!make(&|_, bias| bias[7] = f32::NEG_INFINITY));
    assert!(!make(&|_, bias| bias[7] = f32::MIN));
    assert!(!make(&|_, bias| bias[7] = f32::NAN));
    // Deeper than int8 has sums for.
    let deep = vec![0.5; 5 * (INT8_DEPTH + 1)];
    let deep = Arc::new(Matrix::new(5, INT8_DEPTH + 1, deep).unwrap());
    let none = Screened::new(&deep, &[0.0; 5], isa, &team, 1).unwrap();
    assert!(Screened::pays(&deep, 1, caches) && none.is_none());
    // Two workers have half of it each.
    let half = Matrix::new(outputs, inputs, vec![0.5; outputs * inputs]).unwrap();
    assert!(Screened::pays(&half, 1, caches) && !Screened::pays(&half, 2, caches));
    assert!(!make(&|weights, _| {
        let mut values = weights.data().to_vec();
        values[5] = f32::NAN;
        *weights = Matrix::new(outputs, inputs, values).unwrap();
    }));
    assert!(!make(&|weights, bias| {
        bias.truncate(100);
        *weights = Matrix::new(100, inputs, weights.data()[..100 * inputs].to_vec()).unwrap();
    }));
}

#[test]
fn what_does_not_fit_is_refused() {
    let team = team(2);
    let weights = Arc::new(Matrix::new(2, 3, vec![1.0; 6]).unwrap());
    let isa = Isa::select().unwrap();
    let values = |name, expected, found| LayerError::Values {
        name,
        expected,
        found,
    };
    let refused = Screened::new(&weights, &[0.0; 3], isa, &team, 1);
    assert_eq!(refused.err(), Some(values("bias", 2, 3)));
    let mut screened = screened(&weights, &[0.0; 2], &team, 1);
    let mut symbols = [7.0; 2];
    let error = screened.argmax_on(&team, &[0.0; 2], &mut symbols[..1]);
    assert_eq!(error, Err(values("x", 3, 2)));
    let error = screened.argmax_on(&team, &[0.0; 6], &mut symbols);
    assert_eq!(error, Err(values("rows with room", 2, 1)));
    let error = screened.argmax_on(&self::team(1), &[0.0; 3], &mut symbols[..1]);
    assert_eq!(error, Err(values("threads with room", 1, 2)));
    assert_eq!(symbols, [7.0; 2]);
}
