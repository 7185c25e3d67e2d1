//! Activations: every instruction set against the scalar reference bit by bit, and the reference
//! against `f64`.

use gatestream::reference::activate;
use gatestream_kernels::{Activation, Isa, activate_all};

fn all_activations() -> Vec<Activation> {
    use Activation::*;
    let mut all = vec![Sigmoid, Tanh, Relu, Softsign, Softplus];
    for (alpha, beta) in [
        (0.2, 0.5),
        (-1.7, 3.0),
        (1.0, 1.0),
        (0.0, -0.0),
        (1e30, 1e-30),
    ] {
        all.extend([
            Affine { alpha, beta },
            LeakyRelu { alpha },
            ThresholdedRelu { alpha },
            ScaledTanh { alpha, beta },
            HardSigmoid { alpha, beta },
            Elu { alpha },
        ]);
    }
    all
}

/// Around every power of two, every seam, and the kinds of numbers that go wrong.
fn specials() -> Vec<f32> {
    let seams = [
        0.0,
        0.625,
        9.02,
        9.011,
        17.4,
        40.0,
        87.336,
        88.72,
        103.28,
        103.97,
        104.0,
        f32::MAX,
        f32::MIN_POSITIVE,
        f32::INFINITY,
    ];
    let powers = (0..255u32).map(|exponent| f32::from_bits(exponent << 23));
    // e^x and e^2x change n where x is an odd multiple of a half or quarter of ln 2.
    let steps = (0..310).map(|n| n as f32 * std::f32::consts::LN_2 / 4.0);
    let mut all = Vec::new();
    for x in seams.into_iter().chain(powers).chain(steps) {
        for offset in -2i32..=2 {
            let bits = x.to_bits().wrapping_add_signed(offset) & (i32::MAX as u32);
            all.extend([f32::from_bits(bits), -f32::from_bits(bits)]);
        }
    }
    for payload in [
        0x7f80_0001,
        0x7fc0_0000,
        0x7fff_ffff,
        0x7fc0_01ff,
        0x7f80_007f,
    ] {
        all.extend([f32::from_bits(payload), -f32::from_bits(payload)]);
    }
    all
}

/// One float of every 4099, over all bit patterns.
fn sample() -> impl Iterator<Item = f32> {
    (0..=u32::MAX / 4099).map(|i| f32::from_bits(i * 4099))
}

fn assert_same_bits(isa: Isa, activation: Activation, inputs: &[f32]) {
    let mut outputs = inputs.to_vec();
    activate_all(isa, activation, &mut outputs).unwrap();
    for (&x, &y) in inputs.iter().zip(&outputs) {
        let expected = activate(activation, x);
        assert!(
            y.to_bits() == expected.to_bits() || (y.is_nan() && expected.is_nan()),
            "{isa} {activation:?} of {x:e} ({:#010x}): {y:e}, reference {expected:e}",
            x.to_bits()
        );
    }
}

#[test]
fn vectors_equal_the_reference() {
    let mut inputs = specials();
    for isa in Isa::available() {
        for activation in all_activations() {
            assert_same_bits(isa, activation, &inputs);
        }
    }
    inputs = sample().collect();
    for isa in Isa::available() {
        for activation in &all_activations()[..11] {
            assert_same_bits(isa, *activation, &inputs);
        }
    }
}

#[test]
fn a_tail_shorter_than_a_vector_is_treated_alike() {
    for isa in Isa::available() {
        for length in 0..40 {
            let inputs: Vec<f32> = (0..length).map(|i| i as f32 * 0.3 - 5.0).collect();
            assert_same_bits(isa, Activation::Tanh, &inputs);
        }
    }
}

#[test]
fn nan_in_gives_nan_out() {
    for activation in all_activations() {
        for nan in specials().into_iter().filter(|x| x.is_nan()) {
            assert!(activate(activation, nan).is_nan(), "{activation:?}");
        }
    }
}

/// How many floats lie between `y` and the correctly rounded `truth`.
fn distance(y: f32, truth: f64) -> u32 {
    let ordered = |x: f32| {
        let bits = x.to_bits().cast_signed();
        if bits < 0 { i32::MIN - bits } else { bits }
    };
    ordered(y).abs_diff(ordered(truth as f32))
}

fn assert_within(limit: u32, activation: Activation, truth: impl Fn(f64) -> f64) {
    for x in sample().chain(specials()).filter(|x| !x.is_nan()) {
        let (y, truth) = (activate(activation, x), truth(f64::from(x)));
        let off = distance(y, truth);
        assert!(
            off <= limit,
            "{activation:?} of {x:e}: {y:e}, not {truth:e}, {off} units away"
        );
    }
}

#[test]
fn transcendental_functions_are_close_to_f64() {
    assert_within(2, Activation::Sigmoid, |x| 1.0 / (1.0 + (-x).exp()));
    assert_within(2, Activation::Tanh, f64::tanh);
    assert_within(4, Activation::Softplus, |x| {
        x.max(0.0) + (-x.abs()).exp().ln_1p()
    });
    let elu = |x: f64| if x >= 0.0 { x } else { x.exp_m1() };
    assert_within(4, Activation::Elu { alpha: 1.0 }, elu);
    let scaled = Activation::ScaledTanh {
        alpha: 1.7159,
        beta: 2.0,
    };
    assert_within(4, scaled, |x| f64::from(1.7159f32) * (2.0 * x).tanh());
}

/// The definitions of ONNX, where they are exact or a single rounding away.
#[test]
fn piecewise_functions_follow_their_definitions() {
    use Activation::*;
    let (alpha, beta) = (0.2f32, 0.5f32);
    let line = |x: f64| f64::from(alpha) * x + f64::from(beta);
    assert_within(0, Relu, |x| x.max(0.0));
    assert_within(0, LeakyRelu { alpha }, |x| {
        if x >= 0.0 { x } else { f64::from(alpha) * x }
    });
    assert_within(0, ThresholdedRelu { alpha }, |x| {
        if x >= f64::from(alpha) { x } else { 0.0 }
    });
    assert_within(1, Affine { alpha, beta }, line);
    assert_within(1, HardSigmoid { alpha, beta }, |x| line(x).clamp(0.0, 1.0));
    let softsign = |x: f64| {
        if x.is_infinite() {
            x.signum()
        } else {
            x / (1.0 + x.abs())
        }
    };
    assert_within(2, Softsign, softsign);
}

#[test]
fn limits_are_exact() {
    use Activation::*;
    for (activation, x, y) in [
        (Sigmoid, f32::INFINITY, 1.0f32),
        (Sigmoid, 17.4, 1.0),
        (Sigmoid, 0.0, 0.5),
        (Sigmoid, -103.0, 1e-45),
        (Sigmoid, -104.0, 0.0),
        (Sigmoid, f32::NEG_INFINITY, 0.0),
        (Tanh, f32::INFINITY, 1.0),
        (Tanh, -9.02, -1.0),
        (Tanh, -0.0, -0.0),
        (Tanh, 1e-45, 1e-45),
        (Softplus, 100.0, 100.0),
        (Softplus, f32::MAX, f32::MAX),
        (Softplus, f32::NEG_INFINITY, 0.0),
        (Softplus, f32::INFINITY, f32::INFINITY),
        (Elu { alpha: 1.0 }, f32::NEG_INFINITY, -1.0),
        (Softsign, f32::INFINITY, 1.0),
        (Softsign, f32::NEG_INFINITY, -1.0),
    ] {
        let result = activate(activation, x);
        assert_eq!(
            result.to_bits(),
            y.to_bits(),
            "{activation:?} of {x:e}: {result:e}"
        );
    }
}
