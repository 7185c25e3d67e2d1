//! Which sequences are still running at each step.
//!
//! Sequences are kept longest first, so those that run at step `t` are always a prefix, forward as
//! in reverse, and no arithmetic is spent on the others. Rows of all steps stand one after the
//! other: row `r` of step `t` is row `offsets[t] + r` of the whole.

use std::ops::Range;

use crate::model::{Input, Layout};

/// The running sequences of one run.
#[derive(Debug, Default)]
pub(super) struct Active {
    /// Indices of the sequences, longest first.
    order: Vec<usize>,
    /// Their lengths, in that order.
    lengths: Vec<usize>,
    /// `offsets[t]` rows stand before step `t`; one more entry for the end.
    offsets: Vec<usize>,
    /// For each row, where the input keeps it, in units of its features.
    input_rows: Vec<usize>,
}

impl Active {
    /// With room for a group's part, so that [`Active::set`] allocates nothing up to these sizes;
    /// `None` where there is no memory for that.
    pub fn with_room(batch: usize, group_batch: usize, steps: usize) -> Option<Active> {
        let mut active = Active::default();
        active.order.try_reserve_exact(batch).ok()?;
        active.lengths.try_reserve_exact(group_batch).ok()?;
        active
            .offsets
            .try_reserve_exact(steps.checked_add(1)?)
            .ok()?;
        active
            .input_rows
            .try_reserve_exact(group_batch.checked_mul(steps)?)
            .ok()?;
        Some(active)
    }

    /// Takes the lengths of `input`, which has been checked and is kept in `layout`: of those
    /// sequences that fall to group `group` of `groups`, dealt out by length, so that all groups
    /// have about as much to do.
    pub fn set(&mut self, input: &Input<'_>, layout: Layout, (group, groups): (usize, usize)) {
        self.order.clear();
        self.order.extend(0..input.batch);
        // Indices break ties, so the order is one and the same however the sort works.
        self.order
            .sort_unstable_by_key(|&b| (std::cmp::Reverse(input.length(b)), b));
        let mut place = 0;
        self.order.retain(|_| {
            place += 1;
            (place - 1) % groups == group
        });
        self.lengths.clear();
        self.lengths
            .extend(self.order.iter().map(|&b| input.length(b)));
        self.offsets.clear();
        self.offsets.push(0);
        self.input_rows.clear();
        let mut rows = self.order.len();
        for step in 0..self.lengths.first().copied().unwrap_or(0) {
            while self.lengths[rows - 1] <= step {
                rows -= 1;
            }
            let kept = self.order[..rows]
                .iter()
                .map(|&b| layout.row(step, input.steps, b, input.batch));
            self.input_rows.extend(kept);
            self.offsets.push(self.input_rows.len());
        }
    }

    /// Number of sequences.
    pub fn batch(&self) -> usize {
        self.order.len()
    }

    /// Steps of the longest sequence.
    pub fn steps(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Sequences that run at `step`.
    pub fn rows(&self, step: usize) -> usize {
        self.offsets[step + 1] - self.offsets[step]
    }

    /// Rows of `steps` among the rows of all steps.
    pub fn span(&self, steps: Range<usize>) -> Range<usize> {
        self.offsets[steps.start]..self.offsets[steps.end]
    }

    /// For each row of all steps, where the input keeps it.
    pub fn input_rows(&self) -> &[usize] {
        &self.input_rows
    }

    /// Index of the sequence at each row, longest first.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Steps of the sequence at `row`.
    pub fn length(&self, row: usize) -> usize {
        self.lengths[row]
    }
}

/// Where a sequence array of `layout` keeps the rows of one step: `(first, stride)`, so that
/// sequence `b` stands at `first + b * stride`, in units of its features.
pub(super) fn step_rows(layout: Layout, step: usize, steps: usize, batch: usize) -> (usize, usize) {
    match layout {
        Layout::TimeMajor => (step * batch, 1),
        Layout::BatchMajor => (step, steps),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_the_sequences_that_still_run() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut active = Active::default();
        for _ in 0..500 {
            let (batch, steps) = (random.usize(0..9), random.usize(0..7));
            let lengths: Vec<_> = (0..batch).map(|_| random.usize(0..=steps)).collect();
            for layout in [Layout::TimeMajor, Layout::BatchMajor] {
                let input = Input::new(&[], steps, batch).lengths(&lengths);
                active.set(&input, layout, (0, 1));
                let longest = lengths.iter().max().copied().unwrap_or(0);
                assert_eq!(active.steps(), longest);
                assert_eq!(active.span(0..longest).len(), lengths.iter().sum::<usize>());
                for step in 0..longest {
                    let rows = active.span(step..step + 1);
                    assert_eq!(rows.len(), active.rows(step));
                    let mut expected: Vec<_> = (0..batch).filter(|&b| lengths[b] > step).collect();
                    expected.sort_by_key(|&b| std::cmp::Reverse(lengths[b]));
                    assert_eq!(&active.order()[..rows.len()], expected);
                    let (first, stride) = step_rows(layout, step, steps, batch);
                    let kept: Vec<_> = expected.iter().map(|b| first + b * stride).collect();
                    assert_eq!(&active.input_rows()[rows], kept);
                }
            }
        }
    }

    #[test]
    fn groups_share_out_every_sequence_and_the_work() {
        let mut random = fastrand::Rng::with_seed(4);
        let mut active = Active::default();
        for _ in 0..200 {
            let (batch, steps, groups) =
                (random.usize(0..9), random.usize(1..7), random.usize(1..5));
            let lengths: Vec<_> = (0..batch).map(|_| random.usize(0..=steps)).collect();
            let input = Input::new(&[], steps, batch).lengths(&lengths);
            let (mut all, mut work) = (Vec::new(), Vec::new());
            for group in 0..groups {
                active.set(&input, Layout::TimeMajor, (group, groups));
                all.extend_from_slice(active.order());
                work.push(active.span(0..active.steps()).len());
                assert_eq!(active.batch(), active.order().len());
            }
            all.sort_unstable();
            assert!(all.into_iter().eq(0..batch));
            // Dealt by length, no group has more than one longest sequence above another.
            assert!(work.iter().max().unwrap() - work.iter().min().unwrap() <= steps);
        }
    }
}
