//! Batches of sequences, as layers take them.

use super::LayerError;
use super::error::expect;

/// A batch of sequences, contiguous one after the other, as a session writes it with
/// [`Layout::BatchMajor`](crate::model::Layout::BatchMajor).
///
/// ```
/// use gatestream::layers::Sequences;
///
/// let values = [0.0; 2 * 5 * 3];
/// let sequences = Sequences::new(&values, 2, 5, 3).lengths(&[5, 2]);
/// assert_eq!(sequences.length(1), 2);
/// assert_eq!(sequences.sequence(1).len(), 2 * 3);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Sequences<'a> {
    /// `[batch, steps, features]`.
    pub values: &'a [f32],
    /// Number of sequences.
    pub batch: usize,
    /// Steps of the longest sequence.
    pub steps: usize,
    /// Features of each step.
    pub features: usize,
    /// Steps of each sequence, `[batch]`, 1 to `steps`; `None` if all have `steps`. Rows past the
    /// end of a sequence are not read.
    pub lengths: Option<&'a [usize]>,
}

impl<'a> Sequences<'a> {
    /// Sequences of equal length.
    pub fn new(values: &'a [f32], batch: usize, steps: usize, features: usize) -> Self {
        Sequences {
            values,
            batch,
            steps,
            features,
            lengths: None,
        }
    }

    /// Sets the steps of each sequence, `[batch]`.
    #[must_use]
    pub fn lengths(mut self, lengths: &'a [usize]) -> Self {
        self.lengths = Some(lengths);
        self
    }

    /// Steps of one sequence.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn length(&self, sequence: usize) -> usize {
        self.lengths.map_or(self.steps, |lengths| lengths[sequence])
    }

    /// The steps of one sequence, `[length, features]`.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn sequence(&self, sequence: usize) -> &'a [f32] {
        let size = self.steps * self.features;
        &self.values[sequence * size..][..self.length(sequence) * self.features]
    }

    /// Refuses slices that do not fit the sizes, and sequences without steps.
    pub(super) fn check(&self, name: &'static str, features: usize) -> Result<(), LayerError> {
        let Sequences { batch, steps, .. } = *self;
        expect("features", self.features, features)?;
        expect(name, self.values.len(), batch * steps * features)?;
        expect("lengths", self.lengths.map_or(batch, <[_]>::len), batch)?;
        for sequence in 0..batch {
            let length = self.length(sequence);
            if length == 0 || length > steps {
                return Err(LayerError::Length {
                    sequence,
                    length,
                    steps,
                });
            }
        }
        Ok(())
    }
}
