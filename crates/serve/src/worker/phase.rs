//! The part of its work that a worker is in, for other threads to read.

use std::sync::Arc;
// Not of the model checker: no protocol depends on it.
use std::sync::atomic::{AtomicU8, Ordering};

/// A part of the work between two looks at the scheduler.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Replies to requests, and changes of cells.
    Replies,
    /// A batch: copies and the cell.
    Cell,
    /// Users' functions that add nodes.
    Growth,
}

/// Written by one worker.
#[derive(Clone, Default)]
pub(crate) struct PhaseCell(Arc<AtomicU8>);

impl PhaseCell {
    pub fn set(&self, phase: Phase) {
        self.0.store(phase as u8, Ordering::Relaxed);
    }

    pub fn get(&self) -> Phase {
        match self.0.load(Ordering::Relaxed) {
            1 => Phase::Cell,
            2 => Phase::Growth,
            _ => Phase::Replies,
        }
    }
}
