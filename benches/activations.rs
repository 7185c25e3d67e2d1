//! Sigmoid and tanh of this crate beside the continued fraction of DeepCPU, with 4 to 15 terms:
//! error against `f64` and time.
//!
//!     cargo bench --bench activations
//!
//! tanh x = x / (1 + x² / (3 + x² / (5 + …))), sigmoid x = 1/2 + 1/2 tanh(x/2). A fraction cut off
//! after some terms is the quotient of two polynomials in x², of half as many terms each, and is
//! computed so here: one division instead of one per term. Beyond 9.02 the argument is held.

use gatestream_kernels::simd::Simd;
use gatestream_kernels::{Activation, Isa, Visitor, activate_all, dispatch};
use std::hint::black_box;
use std::time::Instant;

/// Highest degree in x² that a numerator or denominator may have.
const DEGREE: usize = 8;

/// `tanh x = x n(x²) / d(x²)`, lowest power first.
#[derive(Clone, Copy)]
struct Fraction {
    terms: usize,
    numerator: [f32; DEGREE + 1],
    denominator: [f32; DEGREE + 1],
}

impl Fraction {
    fn new(terms: usize) -> Fraction {
        // From the innermost term outwards: value = upper / lower, then b + x² / value.
        let (mut upper, mut lower) = ([0.0f64; DEGREE + 1], [0.0f64; DEGREE + 1]);
        upper[0] = (2 * terms - 1) as f64;
        lower[0] = 1.0;
        for b in (1..2 * terms - 1).step_by(2).rev() {
            let mut next = upper.map(|c| c * b as f64);
            for power in 1..=DEGREE {
                next[power] += lower[power - 1];
            }
            (upper, lower) = (next, upper);
        }
        // Scaled so that the constant terms are 1: the products of odd numbers grow large.
        let scale = upper[0];
        Fraction {
            terms,
            numerator: lower.map(|c| (c / scale) as f32),
            denominator: upper.map(|c| (c / scale) as f32),
        }
    }

    #[inline(always)]
    fn tanh<S: Simd>(&self, s: S, x: S::F32) -> S::F32 {
        let x = s.max(s.splat(-9.02), s.min(s.splat(9.02), x));
        let w = s.mul(x, x);
        let numerator = polynomial(s, &self.numerator[..=(self.terms - 1) / 2], w);
        let denominator = polynomial(s, &self.denominator[..=self.terms / 2], w);
        s.div(s.mul(x, numerator), denominator)
    }

    #[inline(always)]
    fn sigmoid<S: Simd>(&self, s: S, x: S::F32) -> S::F32 {
        let half = s.splat(0.5);
        s.fma(half, self.tanh(s, s.mul(half, x)), half)
    }
}

/// `coefficients`, lowest power first, at `w`.
#[inline(always)]
fn polynomial<S: Simd>(s: S, coefficients: &[f32], w: S::F32) -> S::F32 {
    let mut sum = s.splat(0.0);
    for &c in coefficients.iter().rev() {
        sum = s.fma(sum, w, s.splat(c));
    }
    sum
}

struct Apply<'a, const TERMS: usize> {
    sigmoid: bool,
    values: &'a mut [f32],
}

impl<const TERMS: usize> Visitor for Apply<'_, TERMS> {
    type Out = ();
    fn visit<S: Simd>(self, s: S) {
        let fraction = Fraction::new(TERMS);
        // The number of terms is a constant to the compiler: the loops over them unroll.
        let fraction = Fraction {
            terms: TERMS,
            ..fraction
        };
        s.vectorize(
            #[inline(always)]
            || {
                for lanes in self.values.chunks_exact_mut(S::LANES) {
                    let x = s.load(lanes);
                    let y = if self.sigmoid {
                        fraction.sigmoid(s, x)
                    } else {
                        fraction.tanh(s, x)
                    };
                    s.store(y, lanes);
                }
            },
        );
    }
}

fn fraction<const TERMS: usize>(isa: Isa, sigmoid: bool, values: &mut [f32]) {
    dispatch(isa, Apply::<TERMS> { sigmoid, values }).expect("an available instruction set");
}

/// Units in the last place of the exact value.
fn units(y: f32, truth: f64) -> f64 {
    let rounded = truth as f32;
    let unit = f64::from(rounded.abs().next_up()) - f64::from(rounded.abs());
    (f64::from(y) - truth).abs() / unit
}

/// The worst error in units in the last place and as a difference, over every 997th float.
fn worst(sigmoid: bool, run: &dyn Fn(&mut [f32])) -> (f64, f64) {
    let inputs: Vec<f32> = (0..=u32::MAX / 997)
        .map(|i| f32::from_bits(i * 997))
        .filter(|x| !x.is_nan())
        .collect();
    let mut outputs = inputs.clone();
    outputs.resize(inputs.len().next_multiple_of(16), 0.0);
    run(&mut outputs);
    let mut worst = (0.0f64, 0.0f64);
    for (&x, &y) in inputs.iter().zip(&outputs) {
        let x = f64::from(x);
        let truth = if sigmoid {
            1.0 / (1.0 + (-x).exp())
        } else {
            x.tanh()
        };
        worst.0 = worst.0.max(units(y, truth));
        worst.1 = worst.1.max((f64::from(y) - truth).abs());
    }
    worst
}

/// Nanoseconds per 16 elements that lie in the first-level cache: the best of many passes.
fn nanoseconds(run: &dyn Fn(&mut [f32])) -> f64 {
    let inputs: Vec<f32> = (0..2048).map(|i| (i as f32 - 1024.0) / 128.0).collect();
    let mut best = f64::INFINITY;
    for _ in 0..2000 {
        let mut values = inputs.clone();
        let start = Instant::now();
        for _ in 0..20 {
            run(black_box(&mut values));
        }
        best = best.min(start.elapsed().as_nanos() as f64);
    }
    best / 20.0 / (inputs.len() / 16) as f64
}

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        return; // a test run only asks whether this compiles
    }
    for isa in Isa::available() {
        if isa == Isa::Portable {
            continue; // without fused multiply-adds in hardware this times library calls
        }
        println!("\n| {isa} | worst error, ULP | worst difference | ns per 16 |");
        println!("|---|---|---|---|");
        for (name, sigmoid) in [("sigmoid", true), ("tanh", false)] {
            let activation = if sigmoid {
                Activation::Sigmoid
            } else {
                Activation::Tanh
            };
            let row = |label: &str, run: &dyn Fn(&mut [f32])| {
                let (ulp, difference) = worst(sigmoid, run);
                let time = nanoseconds(run);
                let ulp = if ulp < 1e6 {
                    format!("{ulp:.2}")
                } else {
                    format!("{ulp:.0e}")
                };
                println!("| {name}, {label} | {ulp} | {difference:.1e} | {time:.2} |");
            };
            row("this crate", &|values| {
                activate_all(isa, activation, values).expect("an available instruction set");
            });
            row("fraction, 4 terms", &|values| {
                fraction::<4>(isa, sigmoid, values)
            });
            row("fraction, 5 terms", &|values| {
                fraction::<5>(isa, sigmoid, values)
            });
            row("fraction, 6 terms", &|values| {
                fraction::<6>(isa, sigmoid, values)
            });
            row("fraction, 7 terms", &|values| {
                fraction::<7>(isa, sigmoid, values)
            });
            row("fraction, 8 terms", &|values| {
                fraction::<8>(isa, sigmoid, values)
            });
            row("fraction, 9 terms", &|values| {
                fraction::<9>(isa, sigmoid, values)
            });
            row("fraction, 11 terms", &|values| {
                fraction::<11>(isa, sigmoid, values)
            });
            row("fraction, 13 terms", &|values| {
                fraction::<13>(isa, sigmoid, values)
            });
            row("fraction, 15 terms", &|values| {
                fraction::<15>(isa, sigmoid, values)
            });
        }
    }
}
