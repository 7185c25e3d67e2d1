//! What an engine does with the graphs that it runs, beside what their owners may do.

use std::ops::Range;

use crate::cell_graph::{Graph, Growth, Mark};

/// A job that runs when nothing is locked: it calls users' code.
pub type Deferred = Box<dyn FnOnce() + Send>;

/// A graph that is being run.
pub trait EngineGraph {
    /// Takes the values that were added so far, to be read while the graph grows; once. Later
    /// values are counted from there.
    fn take_given(&mut self) -> Box<[f32]>;

    /// A range of the values of the request: the part in `taken`, which was taken, and the part
    /// that was added later.
    fn given_among<'a>(&'a self, taken: &'a [f32], of: Range<usize>) -> [&'a [f32]; 2];

    /// Removes all that was added since.
    fn back_to(&mut self, mark: Mark);
}

impl EngineGraph for Graph {
    fn take_given(&mut self) -> Box<[f32]> {
        Graph::take_given(self)
    }

    fn given_among<'a>(&'a self, taken: &'a [f32], of: Range<usize>) -> [&'a [f32]; 2] {
        Graph::given_among(self, taken, of)
    }

    fn back_to(&mut self, mark: Mark) {
        Graph::back_to(self, mark);
    }
}

/// The growth of a graph that is being run.
pub trait EngineGrowth {
    /// Runs `job` later, with nothing locked.
    fn defer(&mut self, job: impl FnOnce() + Send + 'static);

    /// The deferred jobs.
    fn take_deferred(&mut self) -> Vec<Deferred>;

    /// From now on collects parts.
    fn collect_parts(&mut self);

    /// The collected parts.
    fn take_parts(&mut self) -> Vec<Vec<f32>>;
}

impl EngineGrowth for Growth<'_> {
    fn defer(&mut self, job: impl FnOnce() + Send + 'static) {
        Growth::defer(self, job);
    }

    fn take_deferred(&mut self) -> Vec<Deferred> {
        Growth::take_deferred(self)
    }

    fn collect_parts(&mut self) {
        Growth::collect_parts(self);
    }

    fn take_parts(&mut self) -> Vec<Vec<f32>> {
        Growth::take_parts(self)
    }
}
