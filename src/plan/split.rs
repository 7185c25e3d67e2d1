//! Dividing hidden units among workers.

use std::ops::Range;

/// Units come in groups of this many: one cache line of state, and a whole number of vectors on
/// every instruction set, so that a plan fits any of them and no two workers write one line.
pub const UNIT_GRANULE: usize = 16;

/// `0..units` in `parts` ranges whose sizes differ by at most one group; the last may be ragged,
/// and some are empty where there are fewer groups than parts.
pub fn split_units(units: usize, parts: usize) -> Vec<Range<usize>> {
    let groups = units.div_ceil(UNIT_GRANULE);
    let bound = |part: usize| (part * groups / parts * UNIT_GRANULE).min(units);
    (0..parts)
        .map(|part| bound(part)..bound(part + 1))
        .collect()
}

/// Whether `parts` follow each other from 0 to `size`, each starting on a group.
pub(super) fn covers(parts: &[Range<usize>], size: usize) -> bool {
    let mut next = 0;
    parts.iter().all(|part| {
        let fits = part.start == next
            && part.end >= part.start
            && (part.is_empty() || part.start.is_multiple_of(UNIT_GRANULE));
        next = part.end;
        fits
    }) && next == size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_split_covers_and_is_even() {
        for units in 0..200 {
            for parts in 1..9 {
                let split = split_units(units, parts);
                assert!(
                    split.len() == parts && covers(&split, units),
                    "{units} {parts}"
                );
                let sizes: Vec<_> = split.iter().map(|r| r.len().div_ceil(16)).collect();
                let (low, high) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
                assert!(high - low <= 1, "{units} in {parts}: {split:?}");
            }
        }
    }

    #[test]
    #[allow(clippy::reversed_empty_ranges, clippy::single_range_in_vec_init)]
    fn gaps_overlaps_and_odd_starts_do_not_cover() {
        assert!(covers(&[0..16, 16..20], 20));
        assert!(!covers(&[0..16, 32..40], 40));
        assert!(!covers(&[0..32, 16..40], 40));
        assert!(!covers(&[0..8, 8..40], 40));
        assert!(!covers(&[0..16], 40));
        assert!(!covers(&[0..64, 64..40], 40));
    }
}
