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
    /// It is a segment of the stream with this [position](StreamRoom::position), whose room has
    /// been reserved: it takes none of the limits and is ordered by the position. A stream has one
    /// segment at a time, which does not grow.
    pub stream: Option<u64>,
}

/// The room of an open stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRoom {
    /// The position of its segments in the order of releases.
    pub position: u64,
    /// Its share of [`Limits::bytes`].
    pub bytes: usize,
}

/// What a scheduler holds at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that have not ended, streams not counted.
    pub requests: usize,
    /// Their nodes.
    pub nodes: usize,
    /// Nodes of one request, those that it grows by included. A request that grows without end
    /// leaves the rest of `nodes` to others.
    pub request_nodes: usize,
    /// Sum of their [`Requirements::bytes`] and of [`StreamRoom::bytes`].
    pub bytes: usize,
    /// Open streams.
    pub streams: usize,
}

impl Default for Limits {
    /// 10,000 requests, a million nodes, of which a request has at most a quarter, 1 GiB, 4096
    /// streams.
    fn default() -> Limits {
        Limits {
            requests: 10_000,
            nodes: 1_000_000,
            request_nodes: 250_000,
            bytes: 1 << 30,
            streams: 4096,
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
        /// Requests, nodes, bytes or streams.
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
    /// Open streams.
    pub streams: usize,
    /// Segments of streams that have not ended.
    pub segments: usize,
}

impl Usage {
    /// The usage of a request.
    pub fn of(is_segment: bool, nodes: usize, bytes: usize) -> Usage {
        match is_segment {
            true => Usage {
                segments: 1,
                ..Usage::default()
            },
            false => Usage {
                requests: 1,
                nodes,
                bytes,
                ..Usage::default()
            },
        }
    }

    /// Number of requests and segments that have not ended.
    pub fn live(&self) -> u64 {
        (self.requests + self.segments) as u64
    }

    pub fn add(&mut self, more: Usage) {
        self.requests += more.requests;
        self.nodes += more.nodes;
        self.bytes += more.bytes;
        self.streams += more.streams;
        self.segments += more.segments;
    }

    pub fn subtract(&mut self, less: Usage) {
        self.requests -= less.requests;
        self.nodes -= less.nodes;
        self.bytes -= less.bytes;
        self.streams -= less.streams;
        self.segments -= less.segments;
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
