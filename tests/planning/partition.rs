//! The splits that partition finds, against plain enumeration.

use gatestream::partition::{
    Cache, Grain, Options, PanelOrder, Part, Placement, Problem, Sequence, Shape, Split,
};
use gatestream::plan::split_units;
use gatestream_kernels::{Blocking, Numbers, PackedMatrix, Source};
use std::collections::BTreeSet;

const ORDERS: [PanelOrder; 2] = [PanelOrder::Cyclic, PanelOrder::Serpentine];
const ALL: Options = Options {
    split_rows: true,
    split_depth: true,
};

fn problem(shape: Shape, steps: usize, private_bytes: usize) -> Problem {
    Problem {
        shape,
        grain: Grain::default(),
        sequence: Sequence::of_steps(steps),
        cache: Cache::fully_associative(private_bytes),
    }
}

/// All splits by trying every triple.
fn every_split(shape: Shape, ways: usize, options: Options) -> Vec<Split> {
    let groups = shape.units.div_ceil(16);
    let mut splits = Vec::new();
    for rows in 1..=shape.rows {
        for units in 1..=groups {
            for depth in 1..=shape.depth {
                let allowed =
                    (rows == 1 || options.split_rows) && (depth == 1 || options.split_depth);
                if allowed && rows * units * depth == ways {
                    splits.push(Split { rows, units, depth });
                }
            }
        }
    }
    splits
}

fn random_shape(random: &mut fastrand::Rng) -> Shape {
    Shape::f32(
        random.usize(1..20),
        random.usize(1..100),
        random.usize(1..300),
        random.usize(1..5),
    )
}

#[test]
fn every_factorization_that_leaves_no_part_empty() {
    let mut random = fastrand::Rng::with_seed(1);
    let key = |split: &Split| (split.rows, split.units, split.depth);
    for _ in 0..100 {
        let shape = random_shape(&mut random);
        let problem = problem(shape, 3, 1 << 20);
        for ways in 1..=24 {
            for (split_rows, split_depth) in
                [(true, true), (true, false), (false, true), (false, false)]
            {
                let options = Options {
                    split_rows,
                    split_depth,
                };
                let found = problem.splits(ways, options);
                let expected: BTreeSet<_> =
                    every_split(shape, ways, options).iter().map(key).collect();
                assert_eq!(found.len(), expected.len(), "{shape:?} {ways}");
                assert_eq!(found.iter().map(key).collect::<BTreeSet<_>>(), expected);
            }
        }
    }
}

#[test]
fn parts_are_even_cover_everything_and_are_those_of_a_plan() {
    let mut random = fastrand::Rng::with_seed(2);
    for _ in 0..200 {
        let shape = random_shape(&mut random);
        let problem = problem(shape, 3, 1 << 20);
        let ways = random.usize(1..30);
        for split in problem.splits(ways, ALL) {
            let parts = problem.parts(split);
            assert_eq!(parts.len(), ways);
            assert!(
                parts
                    .iter()
                    .all(|part| part.rows * part.units * part.depth > 0)
            );
            let work: usize = parts
                .iter()
                .map(|part| part.rows * part.units * part.depth)
                .sum();
            assert_eq!(work, shape.rows * shape.units * shape.depth);
            let mut units: Vec<_> = parts[..split.units].iter().map(|part| part.units).collect();
            let mut planned: Vec<_> = split_units(shape.units, split.units)
                .iter()
                .map(|r| r.len())
                .collect();
            units.sort();
            planned.sort();
            assert_eq!(units, planned);
        }
    }
}

/// What the parts have, as they are: A and B read once, C written and read.
fn of_parts(problem: &Problem, split: Split) -> u64 {
    let parts = problem.parts(split).into_iter();
    parts
        .map(|part| {
            let [a, b, c] = problem.part_bytes(part);
            a + b + 2 * c
        })
        .sum()
}

#[test]
fn the_formula_is_the_sum_where_everything_divides() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut compared = 0;
    for _ in 0..300 {
        let [rows, units, depth] = [1, 2, 3].map(|_| random.usize(1..7));
        let times = [0; 3].map(|_| random.usize(1..4));
        let shape = Shape::f32(
            rows * times[0],
            16 * depth * times[1],
            16 * units * times[2],
            random.usize(1..5),
        );
        let problem = problem(shape, 4, 1 << 40);
        let split = Split { rows, units, depth };
        assert!(problem.splits(split.ways(), ALL).contains(&split));
        assert_eq!(problem.once(split), of_parts(&problem, split));
        for order in ORDERS {
            // All fits: the weights are read once.
            let (all, _) = problem.movement(split, order);
            assert_eq!(all.first_step, problem.once(split));
            assert_eq!(all.total, problem.formula(split));
            compared += 1;
        }
    }
    assert_eq!(compared, 600);
}

/// X_j·|A| + X_i·|B| + 2·X_k·|C| in numbers worked out by hand.
#[test]
fn the_theorem_without_its_slips() {
    let problem = problem(Shape::f32(8, 64, 128, 4), 10, 1 << 15);
    let [a, b, c] = [8 * 64 * 4, 64 * 512 * 4, 8 * 512 * 4];
    let once = |rows, units, depth| problem.once(Split { rows, units, depth });
    assert_eq!(once(2, 1, 1), a + 2 * b + 2 * c);
    assert_eq!(once(1, 2, 1), 2 * a + b + 2 * c);
    assert_eq!(once(1, 1, 2), a + b + 4 * c);
    // Blocks of 32 KiB just fit; of 64 KiB they do not.
    let over = |rows, units, depth| problem.formula(Split { rows, units, depth });
    assert_eq!(over(1, 4, 1), 10 * (4 * a + 2 * c) + b);
    assert_eq!(over(1, 2, 2), 10 * (2 * a + 4 * c) + b);
    assert_eq!(over(2, 2, 1), 10 * (2 * a + 2 * b + 2 * c));
}

#[test]
fn padded_panels_are_as_large_as_packed_ones() {
    for (units, gates) in [(16, 4), (100, 3), (37, 1), (250, 4)] {
        let depth = 20;
        let values = vec![1.0; gates * units * depth];
        let source = Source {
            numbers: Numbers::F32(&values),
            depth,
            units,
        };
        let problem = problem(Shape::f32(3, depth, units, gates), 1, 1 << 20);
        let kinds: Vec<usize> = (0..gates).collect();
        for parts in 1..=3 {
            let split = Split {
                rows: 1,
                units: parts,
                depth: 1,
            };
            if !problem.splits(parts, ALL).contains(&split) {
                continue;
            }
            let ranges = split_units(units, parts).into_iter();
            let packed: usize = ranges
                .map(|r| PackedMatrix::new(16, source, &kinds, r, Blocking::default()).bytes())
                .sum();
            let sum = problem
                .parts(split)
                .into_iter()
                .map(|part| problem.part_bytes(part)[1])
                .sum::<u64>();
            assert_eq!(sum, packed as u64);
        }
    }
}

/// The least that any assignment of the cells (row, group, piece of the chain) to cores moves, each
/// core doing as much as the others: distinct cells of A, B and twice C, all counted.
fn least_of_all_assignments(cells: [usize; 3], bytes: [u64; 3], ways: usize) -> u64 {
    let [rows, groups, depth] = cells;
    let count = rows * groups * depth;
    assert!(count.is_multiple_of(ways) && count <= 12);
    let share = count / ways;
    let mut least = u64::MAX;
    for code in 0..ways.pow(count as u32) {
        let mut sizes = [0; 8];
        let (mut a, mut b, mut c) = ([0u64; 8], [0u64; 8], [0u64; 8]);
        let mut rest = code;
        for cell in 0..count {
            let core = rest % ways;
            rest /= ways;
            let (row, group, k) = (cell / (groups * depth), cell / depth % groups, cell % depth);
            sizes[core] += 1;
            a[core] |= 1 << (row * depth + k);
            b[core] |= 1 << (k * groups + group);
            c[core] |= 1 << (row * groups + group);
        }
        if sizes[..ways].iter().any(|size| *size != share) {
            continue;
        }
        let ones = |sets: [u64; 8]| {
            sets.iter()
                .map(|set| u64::from(set.count_ones()))
                .sum::<u64>()
        };
        least = least.min(ones(a) * bytes[0] + ones(b) * bytes[1] + 2 * ones(c) * bytes[2]);
    }
    least
}

#[test]
fn no_even_assignment_at_all_moves_less() {
    for (cells, ways) in [
        ([2, 2, 1], 2),
        ([2, 2, 1], 4),
        ([2, 2, 2], 2),
        ([2, 2, 2], 4),
        ([4, 2, 1], 2),
        ([2, 4, 1], 4),
        ([1, 4, 2], 2),
        ([3, 3, 1], 3),
        ([1, 6, 1], 3),
    ] {
        let [rows, groups, depth] = cells;
        // What a cell of A, of B and of C weighs against the others decides where to cut.
        for (chain, gates) in [(16, 1), (16, 4), (48, 3), (320, 1)] {
            let shape = Shape::f32(rows, depth * chain, groups * 16, gates);
            let bytes = [4 * chain, 4 * chain * 16 * gates, 64 * gates].map(|b| b as u64);
            let least = least_of_all_assignments(cells, bytes, ways);
            let problem = problem(shape, 1, 1 << 40);
            // A piece of the chain is `chain` long: cut no finer than the enumeration does.
            let candidates = problem.solve(ways, ALL).into_iter();
            let best = candidates
                .filter(|candidate| depth.is_multiple_of(candidate.split.depth))
                .find(|candidate| {
                    rows.is_multiple_of(candidate.split.rows)
                        && groups.is_multiple_of(candidate.split.units)
                });
            assert_eq!(
                best.unwrap().all.total,
                least,
                "{cells:?} {ways} {chain} {gates}"
            );
        }
    }
}

#[test]
fn candidates_in_order_of_cost() {
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..150 {
        let shape = random_shape(&mut random);
        let problem = problem(shape, random.usize(1..20), random.usize(1..400_000));
        let ways = random.usize(1..13);
        let candidates = problem.solve(ways, ALL);
        let mut expected = Vec::new();
        for split in every_split(shape, ways, ALL) {
            for order in ORDERS {
                // All parts one by one, where the solver counts equal ones once.
                let parts = problem.parts(split).into_iter();
                let totals: Vec<u64> = parts
                    .map(|part| problem.part_movement(part, order).total)
                    .collect();
                let most = totals.iter().copied().max().unwrap();
                expected.push((totals.iter().sum::<u64>(), most, usize::MAX - split.units));
            }
        }
        expected.sort();
        let found: Vec<_> = (candidates.iter())
            .map(|c| (c.all.total, c.busiest.total, usize::MAX - c.split.units))
            .collect();
        assert_eq!(found, expected);
    }
}

/// With room for everything the optimum is that of the closed form, found here by trying all.
#[test]
fn with_room_the_optimum_is_that_of_the_closed_form() {
    for (rows, depth, units, gates, steps) in [
        (16, 64, 256, 4, 1),
        (16, 64, 256, 4, 50),
        (1, 512, 512, 4, 100),
        (64, 16, 64, 1, 2),
    ] {
        let shape = Shape::f32(rows, depth, units, gates);
        let problem = problem(shape, steps, 1 << 40);
        let value = |x: usize| 4 * x as u64;
        let (a, b, c) = (
            value(rows * depth),
            value(depth * units * gates),
            value(rows * units * gates),
        );
        for ways in [1, 2, 4, 8, 16] {
            let closed = |s: &Split| {
                steps as u64 * (s.units as u64 * a + 2 * s.depth as u64 * c) + s.rows as u64 * b
            };
            let divides = |s: &Split| {
                rows.is_multiple_of(s.rows)
                    && (units / 16).is_multiple_of(s.units)
                    && depth.is_multiple_of(s.depth)
            };
            let all = every_split(shape, ways, ALL);
            let least = all.iter().filter(|s| divides(s)).map(closed).min().unwrap();
            let best = problem
                .solve(ways, ALL)
                .into_iter()
                .find(|c| divides(&c.split))
                .unwrap();
            assert_eq!(best.all.total, least);
        }
    }
}

#[test]
fn a_larger_cache_never_moves_more() {
    let mut random = fastrand::Rng::with_seed(6);
    for round in 0..300 {
        let shape = random_shape(&mut random);
        let sequence = Sequence {
            steps: random.usize(1..20),
            chunk_steps: random.usize(1..8),
            kept_bytes: random.usize(0..9),
            streamed_bytes: random.usize(0..9),
        };
        let grain = Grain {
            panels: 1 << random.usize(0..3),
            ..Grain::default()
        };
        let part = Part {
            rows: shape.rows,
            units: shape.units,
            depth: shape.depth,
        };
        let exact = |bytes: usize, order| {
            let cache = Cache::fully_associative(bytes);
            let problem = Problem {
                shape,
                grain,
                sequence,
                cache,
            };
            problem.part_movement(part, order)
        };
        for order in ORDERS {
            let mut last = exact(0, order);
            for step in 0..60 {
                let now = exact(step * 8192, order);
                assert!(
                    now.total <= last.total && now.per_step <= last.per_step,
                    "{round} {step}"
                );
                last = now;
            }
        }
    }
}

#[test]
fn the_best_for_each_number_of_cores() {
    // An LSTM of 512 units at batch 1: halves of 2 MiB fit, the whole does not.
    let problem = problem(Shape::f32(1, 512, 512, 4), 100, 2200 << 10);
    let best = problem.best(4, Options::default());
    assert_eq!(best.len(), 4);
    for (at, candidate) in best.iter().enumerate() {
        assert_eq!(
            candidate.split,
            Split {
                rows: 1,
                units: at + 1,
                depth: 1
            }
        );
    }
    assert_eq!(best[0].order, PanelOrder::Serpentine);
    assert!(best[0].all.per_step > 2 << 20);
    assert_eq!(best[1].order, PanelOrder::Cyclic);
    assert_eq!(best[1].all.per_step, 2 * 512 * 4 + 2 * 2048 * 4);
    // 3 groups of units can be dealt to 3 cores, and one row not at all.
    let small = Problem {
        shape: Shape::f32(1, 48, 48, 1),
        ..problem
    };
    assert_eq!(small.best(10, Options::default()).len(), 3);
}

#[test]
fn hostile_sizes_are_counted_not_overflowed() {
    let most = usize::MAX;
    let shape = Shape::f32(1 << 40, 1 << 40, 64, most);
    let problem = problem(shape, most, 1 << 20);
    let split = Split {
        rows: 1,
        units: 2,
        depth: 1,
    };
    assert_eq!(problem.once(split), u64::MAX);
    assert_eq!(problem.formula(split), u64::MAX);
    assert_eq!(
        problem.movement(split, PanelOrder::Cyclic).0.total,
        u64::MAX
    );
    let nothing = Problem {
        shape: Shape::f32(0, 0, 0, 0),
        ..problem
    };
    assert!(nothing.solve(1, ALL).is_empty() && nothing.solve(0, ALL).is_empty());
    let placement = Placement::Contiguous { ways: 0 };
    let broken = Problem {
        cache: Cache {
            bytes: 0,
            placement,
        },
        ..problem
    };
    assert_eq!(
        broken.movement(split, PanelOrder::Serpentine).0.total,
        u64::MAX
    );
}
