//! The row operations of every instruction set against the plain loops, bit by bit, and the loops
//! against `f64`.

use gatestream::reference;
use gatestream_kernels::{Activation, Combine, Isa, RowKernels, row_kernels};

/// Around the widths of vectors, of blocks of them, and of the partial sums.
const LENGTHS: [usize; 14] = [0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 50, 64, 129, 200];

fn sets() -> Vec<Box<dyn RowKernels>> {
    let isas = Isa::available();
    isas.iter().map(|&isa| row_kernels(isa).unwrap()).collect()
}

fn random(rng: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| 8.0 * rng.f32() - 4.0).collect()
}

/// Random values, or some that are no numbers, infinite, or equal.
fn rows(rng: &mut fastrand::Rng, length: usize) -> Vec<Vec<f32>> {
    let mut all = vec![
        random(rng, length),
        vec![0.25; length],
        vec![f32::NEG_INFINITY; length],
        (0..length).map(|k| -(k as f32) * 1.7).collect(),
        (0..length).map(|k| [0.0, -0.0][k % 2]).collect(),
    ];
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
        let mut row = random(rng, length);
        if length > 0 {
            row[rng.usize(..length)] = special;
        }
        all.push(row);
    }
    all
}

#[track_caller]
fn assert_same(found: &[f32], expected: &[f32], case: &dyn std::fmt::Display) {
    assert_eq!(found.len(), expected.len(), "{case}");
    for (at, (f, e)) in found.iter().zip(expected).enumerate() {
        let same = f.to_bits() == e.to_bits() || (f.is_nan() && e.is_nan());
        assert!(same, "{case}, {at}: {f} instead of {e}");
    }
}

#[test]
fn exponential_sums_and_softmax() {
    let mut rng = fastrand::Rng::with_seed(1);
    for length in LENGTHS {
        for values in rows(&mut rng, length) {
            let softmax = reference::softmax(&values);
            let (greatest, sum) = reference::exp_sum(&values);
            for set in sets() {
                let case = format!("{} of {length}", set.isa());
                let mut found = values.clone();
                set.softmax(&mut found);
                assert_same(&found, &softmax, &case);
                let found = set.exp_sum(&values);
                assert_same(&[found.greatest, found.sum], &[greatest, sum], &case);
            }
        }
    }
}

#[test]
fn softmax_is_that_of_f64_within_rounding() {
    let mut rng = fastrand::Rng::with_seed(2);
    for length in LENGTHS {
        let values = random(&mut rng, length);
        let greatest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exp = |v: &f32| (f64::from(*v) - f64::from(greatest)).exp();
        let sum: f64 = values.iter().map(exp).sum();
        for (value, found) in values.iter().zip(reference::softmax(&values)) {
            let expected = exp(value) / sum;
            let error = (f64::from(found) - expected).abs() / expected;
            assert!(error < 1e-6, "{value} of {length}: {found}, {expected}");
        }
    }
    // So small that only a subnormal number is left, and smaller.
    let small = reference::softmax(&[0.0, -90.0, -103.0, -110.0]);
    assert!((small[1] - (-90.0f32).exp()).abs() < 1e-45, "{small:?}");
    assert!(small[2] > 0.0 && small[3] == 0.0, "{small:?}");
}

#[test]
fn dot_products() {
    let mut rng = fastrand::Rng::with_seed(3);
    for depth in LENGTHS {
        for count in [0, 1, 2, 4, 7, 8, 9, 21] {
            let (x, rows) = (random(&mut rng, depth), random(&mut rng, count * depth));
            let row = |i: usize| &rows[i * depth..(i + 1) * depth];
            let expected: Vec<f32> = (0..count).map(|i| reference::dot(&x, row(i))).collect();
            for set in sets() {
                let mut y = vec![f32::NAN; count];
                set.dots(&x, &rows, &mut y);
                assert_same(&y, &expected, &format!("{}, {count}x{depth}", set.isa()));
            }
            for (i, found) in expected.iter().enumerate() {
                let terms = x.iter().zip(row(i));
                let exact: f64 = terms.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                assert!((f64::from(*found) - exact).abs() < 1e-3, "{found}, {exact}");
            }
        }
    }
}

#[test]
fn weighted_sums() {
    let mut rng = fastrand::Rng::with_seed(4);
    for width in LENGTHS.into_iter().chain([256, 300]) {
        for count in [0, 1, 2, 15] {
            let (weights, rows) = (random(&mut rng, count), random(&mut rng, count * width));
            let expected = match count {
                0 => vec![0.0; width],
                _ => reference::weighted_sum(&weights, &rows),
            };
            for set in sets() {
                let mut y = vec![f32::NAN; width];
                set.weighted_sum(&weights, &rows, &mut y);
                assert_same(&y, &expected, &format!("{}, {count}x{width}", set.isa()));
            }
        }
    }
}

#[test]
fn operations_value_by_value() {
    let mut rng = fastrand::Rng::with_seed(5);
    for length in LENGTHS {
        for a in rows(&mut rng, length) {
            for b in rows(&mut rng, length) {
                for set in sets() {
                    let pairs = || a.iter().zip(&b);
                    for (combine, expected) in [
                        (
                            Combine::Multiply,
                            pairs().map(|(a, b)| a * b).collect::<Vec<_>>(),
                        ),
                        (Combine::Add, pairs().map(|(a, b)| a + b).collect()),
                        (
                            Combine::Max,
                            pairs().map(|(a, b)| reference::greater(*a, *b)).collect(),
                        ),
                    ] {
                        let mut found = a.clone();
                        set.combine(combine, &mut found, &b);
                        assert_same(&found, &expected, &format!("{} {combine:?}", set.isa()));
                    }
                    let gate = random(&mut rng, length);
                    let mut found = a.clone();
                    set.highway(&gate, &b, &mut found);
                    let expected = reference::highway(&gate, &b, &a);
                    assert_same(&found, &expected, &format!("{} highway", set.isa()));
                }
            }
            for activation in [
                Activation::Tanh,
                Activation::Relu,
                Activation::Elu { alpha: 0.5 },
            ] {
                let expected: Vec<f32> = (a.iter())
                    .map(|&x| reference::activate(activation, x))
                    .collect();
                for set in sets() {
                    let mut found = a.clone();
                    set.activate(activation, &mut found);
                    assert_same(&found, &expected, &format!("{} {activation:?}", set.isa()));
                }
            }
        }
    }
}
