//! Admission: the requirements of a request, and the limits of a scheduler.

use std::time::Instant;

/// The requirements of a request, apart from its graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requirements {
    /// Nodes of a higher priority go first if more nodes are ready than a batch has rows.
    pub priority: u8,
    /// The request ends when this time has passed.
    pub deadline: Option<Instant>,
    /// More nodes may be added; the request does not end before
    /// [`handle_close`](super::Scheduler::handle_close).
    pub open: bool,
    /// Its share of [`Limits::bytes`].
    pub bytes: usize,
    /// It continues an accepted request, so a draining scheduler accepts it.
    pub continues: bool,
}

/// What a scheduler holds at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that have not ended.
    pub requests: usize,
    /// Their nodes.
    pub nodes: usize,
    /// Nodes of one request, those that it grows by included. A request that grows without end
    /// leaves the rest of `nodes` to others.
    pub request_nodes: usize,
    /// Sum of their [`Requirements::bytes`].
    pub bytes: usize,
}

impl Default for Limits {
    /// 10,000 requests, a million nodes, of which a request has at most a quarter, 1 GiB.
    fn default() -> Limits {
        Limits {
            requests: 10_000,
            nodes: 1_000_000,
            request_nodes: 250_000,
            bytes: 1 << 30,
        }
    }
}

/// Why a request was not accepted. Nothing of it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// A limit would be exceeded.
    #[error(
        "overloaded: {have} {what} of {most} are taken and the request needs {needs}; {}raise the limit",
        if needs > most { "" } else { "try again later, or " }
    )]
    Overloaded {
        /// Requests, nodes or bytes.
        what: &'static str,
        /// How many are taken.
        have: usize,
        /// How many more are needed.
        needs: usize,
        /// The limit.
        most: usize,
    },
    /// One request would have more nodes than [`Limits::request_nodes`]. One that grows ends.
    #[error(
        "the request would have {nodes} nodes; the limit of one request is {most}; divide the \
         request, or raise `Limits::request_nodes`"
    )]
    RequestNodes {
        /// Nodes that the request would have.
        nodes: usize,
        /// The limit.
        most: usize,
    },
    /// The engine accepts no more requests.
    #[error("the engine is shutting down and accepts no more requests")]
    ShuttingDown,
}

/// How much of the limits is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub requests: usize,
    pub nodes: usize,
    pub bytes: usize,
}

impl Usage {
    pub fn add(&mut self, more: Usage) {
        self.requests += more.requests;
        self.nodes += more.nodes;
        self.bytes += more.bytes;
    }

    pub fn subtract(&mut self, less: Usage) {
        self.requests -= less.requests;
        self.nodes -= less.nodes;
        self.bytes -= less.bytes;
    }
}

/// Which requests are accepted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Admission {
    Nothing,
    /// Those that [continue](Requirements::continues) other requests.
    Continuing,
    All,
}
