//! Steps of streams.

use gatestream_kernels::RowsRef;

/// Some steps of some streams.
#[derive(Clone, Copy, Debug)]
pub struct Steps<'a> {
    batch: usize,
    lengths: Option<&'a [usize]>,
    x: RowsRef<'a>,
}

impl<'a> Steps<'a> {
    /// One step of each of `batch` streams; row `b` of `x` is the input of stream `b`.
    pub fn one(batch: usize, x: RowsRef<'a>) -> Steps<'a> {
        Steps {
            batch,
            lengths: None,
            x,
        }
    }

    /// `lengths[b]` steps of stream `b`; row `t * lengths.len() + b` of `x` is its input at step
    /// `t`, up to the most steps that any stream takes. Rows past a stream's last step are not
    /// read.
    pub fn several(lengths: &'a [usize], x: RowsRef<'a>) -> Steps<'a> {
        Steps {
            batch: lengths.len(),
            lengths: Some(lengths),
            x,
        }
    }

    /// Number of streams.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Steps of each stream; `None` for one of each.
    pub fn lengths(&self) -> Option<&'a [usize]> {
        self.lengths
    }

    /// The rows of the input.
    pub fn x(&self) -> RowsRef<'a> {
        self.x
    }

    /// Most steps of a stream.
    pub fn steps(&self) -> usize {
        (self.lengths).map_or(1, |lengths| lengths.iter().copied().max().unwrap_or(0))
    }
}
