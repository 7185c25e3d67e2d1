//! Whether something is still in a private cache when it is needed again.

/// How the lines of arrays fall into the sets of a cache: how soft the edge of its capacity is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// One set: everything within the capacity stays, and one line more is too many.
    FullyAssociative,
    /// Lines that follow each other fall into sets that follow each other, as within large pages:
    /// each array fills all sets evenly, to within one line. A cyclic sweep over more than the
    /// cache holds loses first the sets that have one line too many, and all only at 1 + 1/ways
    /// times the capacity.
    Contiguous {
        /// Lines of a set.
        ways: usize,
    },
    /// Small pages at random: how many fall on the same sets varies, so some sets overflow long
    /// before the cache is full and some have room long after. For pages smaller than a way
    /// (capacity over ways); with larger ones lines are contiguous.
    Scattered {
        /// Lines of a set.
        ways: usize,
        /// Bytes of a page.
        page_bytes: usize,
    },
}

/// The private cache of one core; what it keeps is what was touched last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Capacity.
    pub bytes: usize,
    /// How lines fall into its sets.
    pub placement: Placement,
}

impl Cache {
    /// A cache with the hardest edge.
    pub fn fully_associative(bytes: usize) -> Cache {
        Cache {
            bytes,
            placement: Placement::FullyAssociative,
        }
    }

    /// A cache of sets, with memory in pages of `page_bytes`.
    pub fn new(bytes: usize, ways: usize, page_bytes: usize) -> Cache {
        let placement = if page_bytes < bytes / ways.max(1) {
            Placement::Scattered { ways, page_bytes }
        } else {
            Placement::Contiguous { ways }
        };
        Cache { bytes, placement }
    }

    /// The probability that a line is gone when, since it was last touched, `own` bytes of its own
    /// array (with the line itself) and these of others were touched.
    pub(super) fn miss(&self, own: f64, others: &[Touched]) -> f64 {
        let bytes = self.bytes as f64;
        let total = own + others.iter().map(|other| other.bytes).sum::<f64>();
        let kept = match self.placement {
            _ if self.bytes == 0 => 0.0,
            Placement::FullyAssociative => f64::from(u8::from(total <= bytes)),
            Placement::Contiguous { ways } => {
                even_survival(ways, bytes / ways.max(1) as f64, own, others)
            }
            Placement::Scattered { ways, page_bytes } => {
                let page = page_bytes.max(1) as f64;
                let same_sets = page * ways.max(1) as f64 / bytes;
                binomial_below(ways, (total / page - 1.0).max(0.0), same_sets)
            }
        };
        1.0 - kept
    }
}

/// Bytes of one array, in equal pieces at equal distances.
#[derive(Clone, Copy)]
pub(super) struct Touched {
    pub bytes: f64,
    pub pieces: usize,
    /// From the start of a piece to that of the next.
    pub stride: f64,
}

impl Touched {
    /// How the bytes fall on the sets of a cache: so many lines on each; and, by this chance, so
    /// many more; and, where these are, one more by that chance.
    fn spread(&self, way: f64) -> (f64, f64, usize, f64) {
        let pieces = self.pieces.max(1);
        let piece = self.bytes / pieces as f64;
        // Pieces whose distance shares a divisor with a way fall on the same sets again and again.
        let raster = gcd(self.stride as u64, way as u64).max(1) as f64;
        if pieces == 1 || piece > raster {
            let x = self.bytes / way;
            return (x.floor(), x - x.floor(), 1, 0.0);
        }
        let places = ((way / raster) as usize).clamp(1, pieces);
        let deep = pieces as f64 / places as f64;
        let chance = (piece * places as f64 / way).min(1.0);
        (0.0, chance, deep as usize, deep - deep.floor())
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Bytes of an array in one piece.
pub(super) fn whole(bytes: f64) -> Touched {
    Touched {
        bytes,
        pieces: 1,
        stride: 0.0,
    }
}

/// P(N < `limit`), where N of `n` others (a fraction counts as that) meet with this chance each:
/// pages that fall on the same sets.
fn binomial_below(limit: usize, n: f64, chance: f64) -> f64 {
    if chance >= 1.0 {
        return f64::from(u8::from(n < limit as f64));
    }
    let mut term = (1.0 - chance).powf(n);
    let mut sum = 0.0;
    for k in 0..limit {
        sum += term;
        term *= (n - k as f64).max(0.0) / (k + 1) as f64 * chance / (1.0 - chance);
    }
    sum.min(1.0)
}

/// The probability that a set has room: an array of `x` ways puts ⌊x⌋ or ⌈x⌉ lines on each set, and
/// where the arrays start is independent.
fn even_survival(ways: usize, way: f64, own: f64, others: &[Touched]) -> f64 {
    let x = own / way;
    let floor = x.floor();
    // A line is more likely to be among the sets that have more of its array.
    let (mut lines, more) = if floor < 1.0 {
        (1.0, 0.0)
    } else {
        (floor, (x - floor) * (floor + 1.0) / x)
    };
    // chance[n]: n lines more on this set. More than `ways` never fit.
    let mut chance = vec![0.0; ways + 1];
    chance[0] = 1.0;
    let mut add = |p: f64, deep: usize, deeper: f64| {
        for n in (0..chance.len()).rev() {
            let below = |lines: usize| n.checked_sub(lines).map_or(0.0, |at| chance[at]);
            let on = below(deep) * (1.0 - deeper) + below(deep.saturating_add(1)) * deeper;
            chance[n] = chance[n] * (1.0 - p) + on * p;
        }
    };
    add(more, 1, 0.0);
    for other in others {
        let (each, chance, deep, deeper) = other.spread(way);
        lines += each;
        add(chance, deep, deeper);
    }
    let room = ways as f64 - lines;
    let fits = chance.iter().enumerate().filter(|(n, _)| *n as f64 <= room);
    fits.map(|(_, p)| p).sum::<f64>().min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cyclic_sweep_falls_off_within_one_way() {
        let cache = Cache {
            bytes: 1 << 20,
            placement: Placement::Contiguous { ways: 16 },
        };
        let share = |of: f64| cache.miss(of * 1048576.0, &[]);
        assert_eq!(share(1.0), 0.0);
        assert_eq!(share(17.0 / 16.0), 1.0);
        // Half of the sets have 17 lines, and those lines are gone: 17 of 33.
        assert!((share(33.0 / 32.0) - 17.0 / 33.0).abs() < 1e-12);
    }

    #[test]
    fn scattered_pages_at_the_capacity() {
        let cache = Cache::new(2 << 20, 16, 4096);
        let share = |of: f64| cache.miss(of * 2097152.0, &[]);
        assert!(share(0.4) < 0.001 && share(0.75) > 0.05);
        assert!((0.3..0.6).contains(&share(1.0)) && share(1.2) < 0.9 && share(2.5) > 0.999);
    }

    #[test]
    fn arrays_that_start_anywhere_overlap_on_some_sets() {
        let cache = Cache {
            bytes: 1000,
            placement: Placement::Contiguous { ways: 2 },
        };
        // 1 line of its own, and two arrays that have one on half of the sets each.
        assert!((cache.miss(250.0, &[whole(250.0), whole(250.0)]) - 0.25).abs() < 1e-12);
    }

    #[test]
    fn rows_a_way_apart_fall_on_the_same_sets() {
        let cache = Cache {
            bytes: 4096,
            placement: Placement::Contiguous { ways: 4 },
        };
        let rows = |stride: f64| Touched {
            bytes: 512.0,
            pieces: 4,
            stride,
        };
        // 1 line of its own, and 4 rows of an eighth of a way: all on one eighth of the sets, or
        // each on its own.
        assert!((cache.miss(64.0, &[rows(1024.0)]) - 0.125).abs() < 1e-12);
        assert_eq!(cache.miss(64.0, &[rows(128.0)]), 0.0);
    }
}
