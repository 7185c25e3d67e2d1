//! Sigmoid and tanh over every `f32` there is, on the best instruction set of this CPU: at most 2
//! units in the last place from the correctly rounded value, never decreasing, odd (tanh), exact at
//! the ends, NaN for NaN. The other instruction sets equal the same reference in `arithmetic`.

use gatestream_kernels::{Activation, Isa, activate_all};
use std::sync::atomic::{AtomicU32, Ordering};

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = f32::INFINITY.to_bits();
const CHUNK: u32 = 1 << 15;

/// Calls `check(bits, outputs)` for every chunk of consecutive non-negative bit patterns, with the
/// outputs for those patterns with `sign` set. Each chunk begins with the last of the one before.
fn for_all(sign: u32, activation: Activation, check: impl Fn(u32, &[f32]) + Sync) {
    let isa = Isa::select().unwrap();
    let next = AtomicU32::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut values = Vec::new();
                loop {
                    let first = next.fetch_add(1, Ordering::Relaxed) * CHUNK;
                    if first >= SIGN {
                        return;
                    }
                    let first = first.saturating_sub(1);
                    let last = (first + CHUNK).min(SIGN - 1);
                    values.clear();
                    values.extend((first..=last).map(|bits| f32::from_bits(bits | sign)));
                    activate_all(isa, activation, &mut values).unwrap();
                    check(first, &values);
                }
            });
        }
    });
}

/// Whether NaN comes of NaN; true also where there is none.
fn nan_stays_nan(first: u32, outputs: &[f32]) -> bool {
    let nans = outputs.len() - finite_or_infinite(first, outputs);
    outputs[outputs.len() - nans..].iter().all(|y| y.is_nan())
}

/// How many of a chunk's inputs are not NaN.
fn finite_or_infinite(first: u32, outputs: &[f32]) -> usize {
    outputs
        .len()
        .min((INFINITY + 1).saturating_sub(first) as usize)
}

/// How many floats lie between `y` and `truth` rounded, both non-negative.
fn distance(y: f32, truth: f64) -> u32 {
    assert!(y >= 0.0);
    y.to_bits().abs_diff((truth as f32).to_bits())
}

/// The inputs of one chunk that lie in `low..=high`, with their outputs.
fn inputs_within(
    first: u32,
    outputs: &[f32],
    low: f32,
    high: f32,
) -> impl Iterator<Item = (f32, f32)> {
    let from = low
        .to_bits()
        .saturating_sub(first)
        .min(outputs.len() as u32);
    let to = (high.to_bits() + 1)
        .saturating_sub(first)
        .clamp(from, outputs.len() as u32);
    outputs[from as usize..to as usize]
        .iter()
        .zip(first + from..)
        .map(|(&y, bits)| (f32::from_bits(bits), y))
}

#[test]
fn tanh_over_all_floats() {
    // Below this, tanh x lies between x (1 - 2^-25) and x, so x stands in for the oracle.
    const NEARLY_LINEAR: f32 = 1.0 / 4096.0;
    let worst = AtomicU32::new(0);
    let isa = Isa::select().unwrap();
    for_all(0, Activation::Tanh, |first, outputs| {
        let numbers = finite_or_infinite(first, outputs);
        assert!(nan_stays_nan(first, outputs));
        assert!(
            outputs[..numbers].is_sorted(),
            "decreases near {first:#010x}"
        );
        let mut mirrored: Vec<f32> = (first..)
            .map(|bits| f32::from_bits(bits | SIGN))
            .take(outputs.len())
            .collect();
        activate_all(isa, Activation::Tanh, &mut mirrored).unwrap();
        let odd = |(a, b): (&f32, &f32)| a.to_bits() ^ SIGN == b.to_bits();
        assert!(
            outputs[..numbers].iter().zip(&mirrored[..numbers]).all(odd),
            "not odd near {first:#010x}"
        );
        assert!(nan_stays_nan(first, &mirrored));
        let mut off = 0;
        for (x, y) in inputs_within(first, outputs, 0.0, NEARLY_LINEAR.next_down()) {
            off = off.max(distance(y, f64::from(x)));
        }
        for (x, y) in inputs_within(first, outputs, NEARLY_LINEAR, 9.02) {
            off = off.max(distance(y, f64::from(x).tanh()));
        }
        for (_, y) in inputs_within(first, outputs, 9.02, f32::INFINITY) {
            off = off.max(distance(y, 1.0) * 3); // saturation is exact, or it is an error
        }
        worst.fetch_max(off, Ordering::Relaxed);
    });
    let worst = worst.into_inner();
    println!("tanh on {isa}: at most {worst} from the correctly rounded value");
    assert!(worst <= 2);
}

#[test]
fn sigmoid_over_all_floats() {
    // Below this magnitude the value is a half, rounded; ours lies between those at zero and here,
    // since it never decreases.
    const HALF: f32 = 1.0 / (1u32 << 27) as f32;
    let worst = AtomicU32::new(0);
    let isa = Isa::select().unwrap();
    for sign in [0, SIGN] {
        for_all(sign, Activation::Sigmoid, |first, outputs| {
            let numbers = &outputs[..finite_or_infinite(first, outputs)];
            assert!(nan_stays_nan(first, outputs));
            let monotonic = match sign {
                0 => numbers.is_sorted(),
                _ => numbers.is_sorted_by(|a, b| a >= b),
            };
            assert!(monotonic, "decreases near {:#010x}", first | sign);
            let direction = if sign == 0 { 1.0 } else { -1.0 };
            let (saturated, limit) = if sign == 0 { (17.4, 1.0) } else { (104.0, 0.0) };
            let mut off = 0;
            for (_, y) in inputs_within(first, outputs, 0.0, 0.0) {
                off = off.max(distance(y, 0.5) * 3);
            }
            for (x, y) in inputs_within(first, outputs, HALF, saturated) {
                let truth = 1.0 / (1.0 + (-direction * f64::from(x)).exp());
                off = off.max(distance(y, truth));
            }
            for (_, y) in inputs_within(first, outputs, saturated, f32::INFINITY) {
                off = off.max(distance(y, limit) * 3); // saturation is exact, or it is an error
            }
            worst.fetch_max(off, Ordering::Relaxed);
        });
    }
    let worst = worst.into_inner();
    println!("sigmoid on {isa}: at most {worst} from the correctly rounded value");
    assert!(worst <= 2);
}
