//! Products of some panels.

use std::ops::Range;

use gatestream_kernels::{
    Blocking, Isa, NextProduct, Numbers, PackedMatrix, Prefetch, Product, RowsRef, Scratch, Source,
    Start, Stripes, Sweep, kernels,
};

const DEPTH: usize = 9;
/// Several tiles with every instruction set, which prefetch the panels that follow.
const ROWS: usize = 8;
const GATES: [usize; 4] = [0, 1, 2, 3];
const BLOCKING: Blocking = Blocking {
    stripes: Stripes::One,
    tile_rows: 0,
    prefetch: Prefetch::AllPasses,
};

/// Pre-activations of some panels of a product; all others are left at 7.
fn some_of(
    (isa, packed): (Isa, &PackedMatrix),
    a: &[f32],
    (of, sweep): (Range<usize>, Sweep),
    room: Scratch<'_>,
) -> Vec<f32> {
    let mut z = vec![7.0; ROWS * packed.panels() * GATES.len() * packed.lanes()];
    let job = Product {
        rows: RowsRef::contiguous(a, DEPTH),
        order: None,
        row_count: ROWS,
        weights: packed,
        slots: &GATES,
        start: Start::Zero,
        z: &mut z,
        z_slots: GATES.len(),
        sweep,
        blocking: BLOCKING,
        next: NextProduct::NONE,
    };
    kernels(isa).unwrap().product_of(job, of, room);
    z
}

/// Every range of panels is that of the whole product, to the bit, and leaves the others alone.
/// What the whole one has quantised is all that those after it take of the left operand.
#[test]
fn some_panels_are_those_of_all() {
    let units = 83;
    let number = |at: usize| (at * 37 % 101) as f32 / 101.0 - 0.5;
    let weights: Vec<f32> = (0..4 * units * DEPTH).map(number).collect();
    let whole: Vec<i8> = weights.iter().map(|w| (w * 200.0) as i8).collect();
    let scales: Vec<f32> = (0..4 * units).map(|at| 0.01 + number(at).abs()).collect();
    let int8 = Numbers::Int8 {
        whole: &whole,
        scales: &scales,
    };
    let a: Vec<f32> = (0..ROWS * DEPTH).map(|at| number(at + 5)).collect();
    let nothing = vec![0.0; a.len()];
    for isa in Isa::available() {
        for (numbers, later) in [(Numbers::F32(&weights), &a), (int8, &nothing)] {
            let lanes = kernels(isa).unwrap().lanes();
            let source = Source {
                numbers,
                depth: DEPTH,
                units,
            };
            let packed = PackedMatrix::new(lanes, source, &GATES, 0..units, BLOCKING);
            let panels = packed.panels();
            let mut room = vec![0; packed.scratch_words(ROWS)];
            let run = |a: &[f32], of, room: Scratch<'_>| some_of((isa, &packed), a, of, room);
            let all = run(&a, (0..panels, Sweep::Wide), Scratch::Empty(&mut room));
            assert!(all.iter().all(|z| *z != 7.0));
            for (first, end) in (0..panels).flat_map(|f| (f..=panels).map(move |e| (f, e))) {
                for sweep in [Sweep::Wide, Sweep::Forth, Sweep::Back] {
                    let some = run(later, (first..end, sweep), Scratch::Packed(&room));
                    for (at, (some, all)) in some.iter().zip(&all).enumerate() {
                        let panel = at / (GATES.len() * lanes) % panels;
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
}
