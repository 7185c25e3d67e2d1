//! The bytes that partition predicts, against a simulated LRU cache that replays the loop nest of
//! the product and of the gates after it.

use gatestream::partition::{
    Cache, Grain, PanelOrder, Part, Placement, Problem, Sequence, Shape, Split,
};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

const LINE: u64 = 64;

/// Which array a line belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    A,
    B,
    C,
    State,
}

/// A cache of sets, each the lines it holds by when they were last touched.
struct Lru {
    sets: Vec<BTreeMap<u64, (u64, Of, bool)>>,
    /// When each held line was last touched.
    touched: HashMap<u64, u64>,
    clock: u64,
    ways: usize,
    page_bytes: Option<u64>,
    seed: u64,
    fetched: [u64; 4],
    written_back: [u64; 4],
}

impl Lru {
    fn new(cache: Cache, seed: u64) -> Lru {
        let lines = cache.bytes / LINE as usize;
        let (ways, page_bytes) = match cache.placement {
            Placement::FullyAssociative => (lines, None),
            Placement::Contiguous { ways } => (ways, None),
            Placement::Scattered { ways, page_bytes } => (ways, Some(page_bytes as u64)),
        };
        Lru {
            sets: vec![BTreeMap::new(); lines / ways],
            touched: HashMap::new(),
            clock: 0,
            ways,
            page_bytes,
            seed,
            fetched: [0; 4],
            written_back: [0; 4],
        }
    }

    fn set(&self, line: u64) -> usize {
        let sets = self.sets.len() as u64;
        let index = match self.page_bytes {
            None => line,
            // A page stands at a random place.
            Some(page) => {
                let lines = page / LINE;
                let seed = self.seed ^ (line / lines).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                fastrand::Rng::with_seed(seed).u64(0..1 << 40) * lines + line % lines
            }
        };
        (index % sets) as usize
    }

    fn touch(&mut self, addresses: Range<u64>, of: Of, write: bool) {
        for line in addresses.start / LINE..addresses.end.div_ceil(LINE) {
            let set = self.set(line);
            let set = &mut self.sets[set];
            self.clock += 1;
            let mut entry = (line, of, false);
            match self.touched.insert(line, self.clock) {
                Some(when) => entry = set.remove(&when).unwrap(),
                None => {
                    self.fetched[of as usize] += LINE;
                    if set.len() == self.ways {
                        let (_, (line, of, dirty)) = set.pop_first().unwrap();
                        self.touched.remove(&line);
                        self.written_back[of as usize] += LINE * u64::from(dirty);
                    }
                }
            }
            entry.2 |= write;
            set.insert(self.clock, entry);
        }
    }

    /// Another core writes these.
    fn invalidate(&mut self, addresses: Range<u64>) {
        for line in addresses.start / LINE..addresses.end.div_ceil(LINE) {
            if let Some(when) = self.touched.remove(&line) {
                let set = self.set(line);
                self.sets[set].remove(&when);
            }
        }
    }

    fn flush(&mut self) {
        for (_, of, dirty) in self.sets.drain(..).flat_map(BTreeMap::into_values) {
            self.written_back[of as usize] += LINE * u64::from(dirty);
        }
    }

    /// Bytes moved for A, B and C.
    fn moved(&self) -> [u64; 3] {
        [0, 1, 2].map(|of| self.fetched[of] + self.written_back[of])
    }
}

/// Accumulators of the product's tiles with 32 registers.
const ACCUMULATORS: usize = 24;

/// Gates of a stripe of f32.
fn of_stripe(gates: usize, many: bool) -> usize {
    if many && gates == 4 { 2 } else { gates }
}

/// Rows of a tile of the product for so many rows, and its stripes at most: tiles of up to 6 rows,
/// or 8; where a core has many weights one of up to 14 rows or two of up to 8, of one stripe.
fn tile(rows: usize, gates: usize, many: bool) -> (usize, usize) {
    let height = match (rows, gates) {
        (..=14, 2 | 4) if many => rows,
        (15..=16, 2 | 4) if many => rows.div_ceil(2),
        (_, 3) => rows.div_ceil(rows.div_ceil(8)),
        _ => rows.div_ceil(rows.div_ceil(6)),
    };
    let width = [8, 4, 2, 1].into_iter().find(|w| {
        let vectors = *w * of_stripe(gates, many);
        vectors <= 4 * gates && height * vectors <= ACCUMULATORS
    });
    (height, width.unwrap_or(1))
}

/// Runs the trace of one core: the loops of `kernels::product` with `Start::Continue`, then of the
/// gates. Returns what was moved for A, B and C.
fn replay(problem: &Problem, part: Part, order: PanelOrder, seed: u64) -> [u64; 3] {
    let mut cache = Lru::new(problem.cache, seed);
    let Sequence {
        steps,
        chunk_steps,
        kept_bytes,
        streamed_bytes,
    } = problem.sequence;
    let (gates, lanes) = (problem.shape.gates, problem.grain.lanes);
    let many = part.depth * part.units * gates * 4 > 1 << 20;
    let (height, widest) = tile(part.rows, gates, many);
    let panels = part.units.div_ceil(lanes);
    let stride = part.depth.next_multiple_of(16) as u64 * 4;
    let per_panel = gates / of_stripe(gates, many);
    let stripes = panels * per_panel;
    let vector = (of_stripe(gates, many) * lanes * 4) as u64;
    let z_row = stripes as u64 * vector;
    let stripe_bytes = part.depth as u64 * vector;
    // Arrays far apart, each from a random line on.
    let mut random = fastrand::Rng::with_seed(seed);
    let mut next = 0;
    let mut array = || {
        next += 1u64 << 32;
        next + LINE * random.u64(0..1 << 20)
    };
    let states = [array(), array()];
    let (b, z, kept, streamed) = (array(), array(), array(), array());
    let a_bytes = part.rows as u64 * stride;

    // Tiles of stripes in their order.
    let mut groups = Vec::new();
    let mut stripe = 0;
    while stripe < stripes {
        let left = stripes - stripe;
        let width = [8, 4, 2, 1]
            .into_iter()
            .find(|w| *w <= left.min(widest))
            .unwrap();
        groups.push((stripe, width));
        stripe += width;
    }
    for step in 0..steps {
        let a = states[step % 2];
        let z = z + (step % chunk_steps) as u64 * part.rows as u64 * z_row;
        let z_at = |row: usize, stripe: usize| z + row as u64 * z_row + stripe as u64 * vector;
        for &(stripe, width) in &groups {
            let mut row = 0;
            while row < part.rows {
                let rows = row..(row + height).min(part.rows);
                for m in rows.clone() {
                    let at = z_at(m, stripe);
                    cache.touch(at..at + width as u64 * vector, Of::C, false);
                }
                for k in 0..part.depth as u64 {
                    for m in rows.clone() {
                        let at = a + m as u64 * stride + k * 4;
                        cache.touch(at..at + 4, Of::A, false);
                    }
                    for p in stripe..stripe + width {
                        let at = b + p as u64 * stripe_bytes + k * vector;
                        cache.touch(at..at + vector, Of::B, false);
                    }
                }
                for m in rows.clone() {
                    let at = z_at(m, stripe);
                    cache.touch(at..at + width as u64 * vector, Of::C, true);
                }
                row = rows.end;
            }
        }
        let wide = |bytes: usize| (lanes * bytes) as u64;
        for row in 0..part.rows {
            for panel in 0..panels {
                let at = z_at(row, panel * per_panel);
                cache.touch(at..at + per_panel as u64 * vector, Of::C, false);
                let nth = (row * panels + panel) as u64;
                let at = kept + nth * wide(kept_bytes);
                cache.touch(at..at + wide(kept_bytes), Of::State, true);
                let at =
                    streamed + ((step * part.rows * panels) as u64 + nth) * wide(streamed_bytes);
                cache.touch(at..at + wide(streamed_bytes), Of::State, true);
            }
        }
        if order == PanelOrder::Serpentine {
            groups.reverse();
        }
        // The other cores have written the next state.
        let next = states[(step + 1) % 2];
        cache.invalidate(next..next + a_bytes);
    }
    cache.flush();
    cache.moved()
}

fn problem(shape: Shape, sequence: Sequence, cache: Cache) -> Problem {
    Problem {
        shape,
        grain: Grain::default(),
        sequence,
        cache,
    }
}

/// Every shape, a sequence with all pre-activations ahead and one without, and caches from a fifth
/// to one and a half of all that a step touches.
fn compare(placement: Placement, placements: u64) {
    let shapes = [
        (1, 128, 128, 4),
        (4, 128, 256, 3),
        (10, 128, 128, 4),
        (20, 64, 256, 1),
        (20, 256, 64, 4),
        // Striped, and one tile of all rows.
        (9, 512, 144, 4),
    ];
    let mut compared = 0;
    for (at, (rows, depth, units, gates)) in shapes.into_iter().enumerate() {
        let shape = Shape::f32(rows, depth, units, gates);
        let sequences = [(100, 0, 0), (100, 4, 4), (1, 4, 4), (3, 4, 0)];
        for (chunk_steps, kept_bytes, streamed_bytes) in [sequences[at % 2], sequences[2 + at % 2]]
        {
            let sequence = Sequence {
                steps: 5,
                chunk_steps,
                kept_bytes,
                streamed_bytes,
            };
            let state = ((kept_bytes + streamed_bytes) * rows * units) as u64;
            let step = shape.b_bytes() + 2 * shape.a_bytes() + 2 * shape.c_bytes() + state;
            for tenths in [2, 5, 8, 10, 11, 15] {
                let bytes = (step * tenths / 10) as usize / 8192 * 8192;
                let problem = problem(shape, sequence, Cache { bytes, placement });
                let part = Part { rows, units, depth };
                for order in [PanelOrder::Cyclic, PanelOrder::Serpentine] {
                    let predicted = problem.part_movement(part, order).total;
                    let runs: Vec<_> = (1..=placements)
                        .map(|seed| replay(&problem, part, order, seed))
                        .collect();
                    let moved = runs.iter().flatten().sum::<u64>() / placements;
                    let error = predicted as f64 / moved as f64 - 1.0;
                    assert!(
                        error.abs() <= 0.1,
                        "{order:?} {problem:?}: {predicted} predicted, {moved} moved, {:+.1} %",
                        100.0 * error
                    );
                    compared += 1;
                }
            }
        }
    }
    assert_eq!(compared, 6 * 2 * 6 * 2);
}

#[test]
fn within_a_tenth_of_a_fully_associative_cache() {
    compare(Placement::FullyAssociative, 1);
}

#[test]
fn within_a_tenth_of_a_cache_of_sets() {
    compare(Placement::Contiguous { ways: 8 }, 12);
}

#[test]
fn within_a_tenth_of_a_cache_of_sets_with_scattered_pages() {
    compare(
        Placement::Scattered {
            ways: 8,
            // A small part of a way, as 4 KiB are of 128 KiB.
            page_bytes: 256,
        },
        12,
    );
}

/// Ragged units, rows and depths that do not divide: all cores together, of which each replays its
/// own part.
#[test]
fn within_a_tenth_over_several_cores() {
    for (rows, units_ways, rows_ways) in [(1, 4, 1), (7, 3, 1), (7, 2, 3)] {
        let shape = Shape::f32(rows, 100, 150, 4);
        let split = Split {
            rows: rows_ways,
            units: units_ways,
            depth: 1,
        };
        let sequence = Sequence {
            steps: 6,
            chunk_steps: 6,
            kept_bytes: 4,
            streamed_bytes: 4,
        };
        for bytes in [24 << 10, 48 << 10, 64 << 10, 96 << 10, 256 << 10] {
            let problem = problem(shape, sequence, Cache::fully_associative(bytes));
            for order in [PanelOrder::Cyclic, PanelOrder::Serpentine] {
                let parts = problem.parts(split);
                assert_eq!(parts.len(), split.ways());
                let moved: Vec<u64> = parts
                    .iter()
                    .map(|part| replay(&problem, *part, order, 1).iter().sum())
                    .collect();
                let (all, busiest) = problem.movement(split, order);
                let pairs = [
                    (all.total, moved.iter().sum::<u64>()),
                    (busiest.total, *moved.iter().max().unwrap()),
                ];
                for (predicted, moved) in pairs {
                    let error = predicted as f64 / moved as f64 - 1.0;
                    assert!(
                        error.abs() <= 0.1,
                        "{split:?} {order:?} {bytes}: {predicted}, {moved} moved"
                    );
                }
            }
        }
    }
}

/// The claim that the orders differ by: a cyclic sweep over a little too much keeps nothing,
/// turning keeps what there is room for, in whole tiles of panels.
#[test]
fn turning_keeps_what_a_cyclic_sweep_loses() {
    let shape = Shape::f32(1, 256, 256, 4);
    let sequence = Sequence::of_steps(10);
    let part = Part {
        rows: 1,
        units: 256,
        depth: 256,
    };
    // 16 panels of 64 KiB in tiles of 4, and room for 13 panels beside the rest.
    let cache = Cache::fully_associative((13 << 16) + (16 << 10));
    let problem = problem(shape, sequence, cache);
    let weights = |order| replay(&problem, part, order, 1)[1];
    assert_eq!(weights(PanelOrder::Cyclic), 10 << 20);
    assert_eq!(weights(PanelOrder::Serpentine), (1 << 20) + 9 * (1 << 18));
    let rest = 10 * (1024 + 2 * 4096);
    let predicted = |order| problem.part_movement(part, order).total;
    assert_eq!(predicted(PanelOrder::Cyclic), (10 << 20) + rest);
    assert!(predicted(PanelOrder::Serpentine) - rest >= (1 << 20) + 9 * (1 << 18));
}
