//! Products in every blocking, against a plain loop.

use gatestream_kernels::{
    Blocking, Isa, NextProduct, Numbers, PackedMatrix, Prefetch, Product, RowsRef, Scratch, Source,
    Start, Stripes, Sweep, TALL_TILE_ROWS, kernels,
};

/// The slots of the four gates among five, of which one has no gate.
const SLOTS: [usize; 4] = [3, 0, 4, 1];
const Z_SLOTS: usize = 5;
/// More than one tile of the tallest, and than two of the next.
const MAX_ROWS: usize = 17;

/// `[row][gate][unit]`: the bias, and the products in the order of `k`, each rounded once.
fn plain(weights: &[f32], bias: &[f32], a: &[f32], (units, depth): (usize, usize)) -> Vec<f32> {
    let row = |a: &[f32]| -> Vec<f32> {
        let chain = |(of_gate, bias): (&[f32], &f32)| {
            (of_gate.iter().zip(a)).fold(*bias, |sum, (w, a)| a.mul_add(*w, sum))
        };
        weights.chunks(depth).zip(bias).map(chain).collect()
    };
    assert_eq!(bias.len(), 4 * units);
    a.chunks(depth).flat_map(row).collect()
}

/// A bf16 of a value: its upper half.
fn upper(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

/// A sweep, weights, blocking and the product after it, and whether there is scratch for tall
/// tiles.
type Way<'a> = (Sweep, &'a PackedMatrix, Blocking, NextProduct, bool);

/// Every way of the kernels, of weights packed in one stripe and in two.
fn ways<'a>(orders: &[Sweep], packed: &'a [PackedMatrix; 2]) -> Vec<Way<'a>> {
    let mut ways = Vec::new();
    let heights = [0].into_iter().chain(TALL_TILE_ROWS);
    for tile_rows in heights {
        for prefetch in [Prefetch::Off, Prefetch::ManyPasses, Prefetch::AllPasses] {
            for (stripes, packed) in [Stripes::One, Stripes::Two].into_iter().zip(packed) {
                let blocking = Blocking {
                    stripes,
                    tile_rows,
                    prefetch,
                };
                let first = packed.first_tile(0..packed.panels());
                for sweep in orders {
                    for (next, has_room) in [(first, true), (NextProduct::NONE, tile_rows % 2 == 0)]
                    {
                        ways.push((*sweep, packed, blocking, next, has_room));
                    }
                }
            }
        }
    }
    ways
}

/// Every instruction set, f32 and bf16, every number of rows, every blocking, every order, scratch
/// for tall tiles and none: the bits of the plain loop, and the bias in the slot that no gate has.
/// The depth is odd.
#[test]
fn stripes_and_tall_tiles_give_the_bits_of_a_plain_loop() {
    let depth = 101;
    let mut random = fastrand::Rng::with_seed(11);
    let mut numbers =
        |count: usize| -> Vec<f32> { (0..count).map(|_| random.f32() - 0.5).collect() };
    let a = numbers(MAX_ROWS * depth);
    for bytes in [4, 2] {
        let units = 56;
        let weights = numbers(4 * units * depth);
        let bias = numbers(4 * units);
        let halves: Vec<u16> = weights.iter().map(|w| upper(*w)).collect();
        let (numbers, weights) = match bytes {
            4 => (Numbers::F32(&weights), weights.clone()),
            _ => {
                let widened = halves.iter().map(|h| f32::from_bits(u32::from(*h) << 16));
                (Numbers::Bf16(&halves), widened.collect())
            }
        };
        let expected = plain(&weights, &bias, &a, (units, depth));
        for isa in Isa::available() {
            let lanes = kernels(isa).unwrap().lanes();
            let source = Source {
                numbers,
                depth,
                units,
            };
            let packed = [Stripes::One, Stripes::Two].map(|stripes| {
                let blocking = Blocking {
                    stripes,
                    ..Blocking::default()
                };
                PackedMatrix::new(lanes, source, &[0, 1, 2, 3], 0..units, blocking)
            });
            let panels = packed[0].panels();
            let mut biases = vec![9.0; panels * Z_SLOTS * lanes];
            for (gate, slot) in SLOTS.into_iter().enumerate() {
                for unit in 0..units {
                    let vector = unit / lanes * Z_SLOTS + slot;
                    biases[vector * lanes + unit % lanes] = bias[gate * units + unit];
                }
            }
            for rows in 1..=MAX_ROWS {
                // Few rows take several stripes at a time, which the orders differ by.
                let orders = [Sweep::Wide, Sweep::Forth, Sweep::Back];
                let orders = if rows <= 3 {
                    &orders[..]
                } else {
                    &orders[rows % 3..][..1]
                };
                for (sweep, packed, blocking, next, has_room) in ways(orders, &packed) {
                    let mut z = vec![7.0; rows * panels * Z_SLOTS * lanes];
                    // Gathered last row first, and read in the order that undoes it.
                    let gathered: Vec<&[f32]> = a.chunks(depth).rev().collect();
                    let order: Vec<usize> = (0..MAX_ROWS).rev().collect();
                    let job = Product {
                        rows: match rows % 2 {
                            0 => RowsRef::contiguous(&a, depth),
                            _ => RowsRef::gathered(&gathered),
                        },
                        order: (rows % 2 == 1).then_some(&order),
                        row_count: rows,
                        weights: packed,
                        slots: &SLOTS,
                        start: Start::Bias(&biases),
                        z: &mut z,
                        z_slots: Z_SLOTS,
                        sweep,
                        blocking,
                        next,
                    };
                    // The middle first, so that no range starts where all do.
                    let (third, kernels) = (panels / 3, kernels(isa).unwrap());
                    let mut room = vec![
                        0;
                        if has_room {
                            packed.scratch_words(rows)
                        } else {
                            0
                        }
                    ];
                    let ranges = [third..panels - 1, 0..third, panels - 1..panels];
                    for (call, of) in ranges.into_iter().enumerate() {
                        let again = Product {
                            z: &mut *job.z,
                            ..job
                        };
                        let room = match call {
                            0 => Scratch::Empty(&mut room),
                            _ => Scratch::Packed(&room),
                        };
                        kernels.product_of(again, of, room);
                    }
                    for row in 0..rows {
                        for unit in 0..units {
                            let at = (row * panels + unit / lanes) * Z_SLOTS * lanes + unit % lanes;
                            for (gate, slot) in SLOTS.into_iter().enumerate() {
                                let (z, plain) = (
                                    z[at + slot * lanes],
                                    expected[(row * 4 + gate) * units + unit],
                                );
                                assert_eq!(
                                    z.to_bits(),
                                    plain.to_bits(),
                                    "{isa} {bytes} bytes, {rows} rows {sweep:?} {blocking:?} \
                                     {has_room}: row {row}, gate {gate}, unit {unit}"
                                );
                            }
                            assert_eq!(z[at + 2 * lanes], 9.0);
                        }
                    }
                }
            }
        }
    }
}
