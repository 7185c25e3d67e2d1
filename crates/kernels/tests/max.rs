//! The greatest of many numbers.

use gatestream_kernels::{Isa, kernels};

#[test]
fn maximum_and_nan_by_instruction_set() {
    let mut rng = fastrand::Rng::with_seed(1);
    for isa in Isa::available() {
        let kernels = kernels(isa).unwrap();
        assert_eq!(kernels.max(&[]), f32::NEG_INFINITY);
        for len in 1..70 {
            let mut values: Vec<f32> = (0..len).map(|_| 2.0 * rng.f32() - 3.0).collect();
            let at = rng.usize(..len);
            let most = values.iter().copied().fold(values[0], f32::max);
            assert_eq!(kernels.max(&values), most, "{isa}, {len}");
            values[at] = f32::INFINITY;
            assert_eq!(kernels.max(&values), f32::INFINITY, "{isa}, {len}");
            values[at] = f32::NAN;
            assert!(kernels.max(&values).is_nan(), "{isa}, {len}");
        }
    }
}
