//! Single outputs: the bits of a plain loop, listed in any order and often.

use gatestream_kernels::{Isa, kernels};

/// Of a number; one NaN is as good as another.
fn bits(value: f32) -> u32 {
    if value.is_nan() {
        f32::NAN.to_bits()
    } else {
        value.to_bits()
    }
}

#[test]
fn every_listed_row_is_the_chain_of_the_plain_loop() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut random =
        |count: usize| -> Vec<f32> { (0..count).map(|_| 2.0 * rng.f32() - 1.0).collect() };
    for depth in [0, 1, 2, 7, 16, 33, 130] {
        let rows = 20;
        let (x, mut weights, start) = (random(depth), random(rows * depth), random(40));
        // Rows without a finite sum, and of nothing but zeros of either sign.
        for (row, value) in [f32::NAN, f32::INFINITY, 0.0, -0.0].into_iter().enumerate() {
            weights[row * depth..][..depth].fill(value);
        }
        for count in [0, 1, 7, 8, 9, 16, 31] {
            let listed: Vec<usize> = (0..count).map(|i| (i * 7 + depth) % rows).collect();
            let plain: Vec<u32> = (listed.iter().zip(&start))
                .map(|(row, start)| {
                    let terms = x.iter().zip(&weights[row * depth..]);
                    let sum = terms.fold(*start, |z, (x, w)| x.mul_add(*w, z));
                    bits(sum)
                })
                .collect();
            for isa in Isa::available() {
                let mut z = start[..count].to_vec();
                kernels(isa).unwrap().chains(&x, &weights, &listed, &mut z);
                let bits: Vec<u32> = z.iter().copied().map(bits).collect();
                assert_eq!(bits, plain, "{isa}, {depth} deep, {count} rows");
            }
        }
    }
}

#[test]
#[should_panic(expected = "range end index")]
fn a_row_that_there_is_not_is_refused() {
    let all = kernels(Isa::select().unwrap()).unwrap();
    all.chains(&[1.0; 4], &[1.0; 8], &[2], &mut [0.0]);
}
