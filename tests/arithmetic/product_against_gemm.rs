//! The tiled product against an independent matrix multiplication.

use approx::assert_abs_diff_eq;
use gatestream_kernels::{
    Blocking, Isa, NextProduct, Numbers, PackedMatrix, Product, RowsRef, Source, Start, Sweep,
    kernels,
};

#[test]
fn every_tile_shape_multiplies() {
    let mut random = fastrand::Rng::with_seed(1);
    for isa in Isa::available() {
        let kernels = kernels(isa).unwrap();
        let lanes = kernels.lanes();
        for gates in 1..=4 {
            for panels in 1..=5 {
                for rows in (1..=14).chain([20, 33]) {
                    let depth = random.usize(0..40);
                    let units = panels * lanes - random.usize(0..lanes);
                    let mut values = |n: usize| -> Vec<f32> {
                        (0..n).map(|_| 2.0 * random.f32() - 1.0).collect()
                    };
                    let a = values(rows * depth);
                    let weights = values(gates * units * depth);
                    let all: Vec<usize> = (0..gates).collect();
                    let source = Source {
                        numbers: Numbers::F32(&weights),
                        depth,
                        units,
                    };
                    let packed =
                        PackedMatrix::new(lanes, source, &all, 0..units, Blocking::default());
                    let mut z = values(rows * panels * gates * lanes);
                    let before = z.clone();
                    kernels.product(Product {
                        rows: RowsRef::contiguous(&a, depth),
                        order: None,
                        row_count: rows,
                        weights: &packed,
                        slots: &all,
                        start: Start::Continue,
                        z: &mut z,
                        z_slots: gates,
                        sweep: Sweep::Wide,
                        blocking: Blocking::default(),
                        next: NextProduct::NONE,
                    });

                    // [rows, depth] times the transposed [gates * units, depth].
                    let columns = gates * units;
                    let mut expected = vec![0.0; rows * columns];
                    // SAFETY: the strides describe the three matrices above, whole and in bounds.
                    unsafe {
                        matrixmultiply::sgemm(
                            rows,
                            depth,
                            columns,
                            1.0,
                            a.as_ptr(),
                            depth as isize,
                            1,
                            weights.as_ptr(),
                            1,
                            depth as isize,
                            0.0,
                            expected.as_mut_ptr(),
                            columns as isize,
                            1,
                        );
                    }
                    for row in 0..rows {
                        for gate in 0..gates {
                            for unit in 0..units {
                                let panel = row * panels + unit / lanes;
                                let at = (panel * gates + gate) * lanes + unit % lanes;
                                let product = expected[row * columns + gate * units + unit];
                                assert_abs_diff_eq!(z[at] - before[at], product, epsilon = 1e-5);
                            }
                        }
                    }
                }
            }
        }
    }
}
