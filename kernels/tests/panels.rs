//! Products of some panels.

use std::ops::Range;

use cellstream_kernels::{
    Isa, Numbers, PackedMatrix, Product, Rows, Source, Start, Sweep, Upcoming, kernels,
};

/// Every range of panels is that of the whole product, to the bit, and leaves the others alone.
#[test]
fn some_panels_are_those_of_all() {
    let (depth, units, rows) = (9, 83, 2);
    let number = |at: usize| (at * 37 % 101) as f32 / 101.0 - 0.5;
    let weights: Vec<f32> = (0..4 * units * depth).map(number).collect();
    let a: Vec<f32> = (0..rows * depth).map(|at| number(at + 5)).collect();
    for isa in Isa::available() {
        let kernels = kernels(isa).unwrap();
        let source = Source {
            numbers: Numbers::F32(&weights),
            depth,
            units,
        };
        let packed = PackedMatrix::new(kernels.lanes(), source, &[0, 1, 2, 3], 0..units);
        let panels = packed.panels();
        let row = panels * 4 * kernels.lanes();
        let run = |of: Range<usize>, sweep: Sweep| {
            let mut z = vec![7.0; rows * row];
            let job = Product {
                a: &a,
                rows: Rows::Strided(depth),
                row_count: rows,
                weights: &packed,
                slots: &[0, 1, 2, 3],
                start: Start::Zero,
                z: &mut z,
                z_slots: 4,
                sweep,
                then: Some(Upcoming::NOTHING),
            };
            kernels.product_of(job, of, &mut []);
            z
        };
        let all = run(0..panels, Sweep::Wide);
        assert!(all.iter().all(|z| *z != 7.0));
        for (first, end) in (0..panels).flat_map(|f| (f..=panels).map(move |e| (f, e))) {
            for sweep in [Sweep::Wide, Sweep::Forth, Sweep::Back] {
                let some = run(first..end, sweep);
                for (at, (some, all)) in some.iter().zip(&all).enumerate() {
                    let panel = at % row / (4 * kernels.lanes());
                    let expected = if (first..end).contains(&panel) {
                        *all
                    } else {
                        7.0
                    };
                    assert_eq!(some.to_bits(), expected.to_bits(), "{isa} {first}..{end}");
                }
            }
        }
    }
}
