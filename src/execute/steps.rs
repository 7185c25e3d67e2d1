//! Steps of streams, and the states that their caller keeps between steps.

use crate::model::Signature;
use cellstream_kernels::RowsRef;

/// The states of a batch of streams, held by the caller between steps.
///
/// Blocks of `[batch, size]` per layer, as [`Input::h0`](crate::Input::h0) and
/// [`Input::c0`](crate::Input::c0).
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    batch: usize,
    /// Hidden state.
    pub h: Vec<f32>,
    /// Cell state; empty for models with no LSTM layer.
    pub c: Vec<f32>,
}

impl State {
    /// Zero states for `batch` streams.
    pub fn zero(signature: Signature, batch: usize) -> State {
        State {
            batch,
            h: vec![0.0; batch * signature.hidden_state],
            c: vec![0.0; batch * signature.cell_state],
        }
    }

    /// Number of streams.
    pub fn batch(&self) -> usize {
        self.batch
    }
}

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
