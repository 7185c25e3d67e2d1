//! Admission: the requirements of a request, the limits, and the refusals.

use std::fmt;
use std::time::Instant;

use super::keys::{ClientId, ModelKey};

/// The requirements of a request, apart from its graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requirements {
    /// The model whose cells its graph calls; by default the first model.
    pub model: ModelKey,
    /// The client that it counts for ([`Limits::client_requests`]).
    pub client: Option<ClientId>,
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
    /// The model whose cell it calls.
    pub model: ModelKey,
    /// The position of its segments in the order of releases.
    pub position: u64,
    /// Its share of [`Limits::bytes`].
    pub bytes: usize,
}

/// What a scheduler, or a model of it, holds at most.
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
    /// Requests of one [client](Requirements::client) that have not ended.
    pub client_requests: usize,
}

impl Limits {
    /// No limits: the default of a model, for which those of the engine count, too.
    pub const NONE: Limits = Limits {
        requests: usize::MAX,
        nodes: usize::MAX,
        request_nodes: usize::MAX,
        bytes: usize::MAX,
        streams: usize::MAX,
        client_requests: usize::MAX,
    };
}

impl Default for Limits {
    /// 10,000 requests, a million nodes, of which a request has at most a quarter, 1 GiB, 4096
    /// streams; no limit of a client.
    fn default() -> Limits {
        Limits {
            requests: 10_000,
            nodes: 1_000_000,
            request_nodes: 250_000,
            bytes: 1 << 30,
            streams: 4096,
            client_requests: usize::MAX,
        }
    }
}

/// Why a request was not accepted. Nothing of it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// A limit would be exceeded.
    #[error(
        "overloaded: {have} {what} of {most} are taken{of} and the request needs {needs}; \
         {}raise the limit",
        if needs > most { "" } else { "try again later, or " }
    )]
    Overloaded {
        /// Whose limit it is.
        of: LimitOf,
        /// Requests, nodes, bytes, streams, steps or replies.
        what: Reason,
        /// How many are taken.
        have: usize,
        /// How many more are needed.
        needs: usize,
        /// The limit.
        most: usize,
    },
    /// Requests that wait for room are accepted before.
    #[error(
        "overloaded: requests that wait for room are accepted before ({waiting} wait); try again \
         later, or wait for room, too"
    )]
    Queued {
        /// Number of requests that wait for a limit of this one.
        waiting: usize,
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
    /// The model accepts no more requests.
    #[error("the model is being drained and accepts no more requests")]
    ModelDrains,
    /// The model was removed, or belongs to another engine.
    #[error("the engine does not have the model; it was removed, or belongs to another engine")]
    NoModel,
}

/// The first of several requests that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedAt {
    /// Its index.
    pub index: usize,
    /// Why.
    pub refused: Refused,
}

impl Refused {
    /// Whether the same request may be accepted later.
    pub fn may_pass(&self) -> bool {
        match *self {
            Refused::Overloaded { needs, most, .. } => needs <= most,
            Refused::Queued { .. } => true,
            _ => false,
        }
    }

    /// The reason without its numbers.
    pub fn reason(&self) -> Reason {
        match *self {
            Refused::Overloaded {
                of: LimitOf::Client,
                ..
            } => Reason::ClientRequests,
            Refused::Overloaded { what, .. } => what,
            Refused::Queued { .. } => Reason::Queued,
            Refused::RequestNodes { .. } => Reason::RequestNodes,
            Refused::ShuttingDown | Refused::ModelDrains => Reason::Draining,
            Refused::NoModel => Reason::NoModel,
        }
    }

    /// The text for users of an interface in which an option sets the limit, as by
    /// [`Refused::reason`] and [`Refused::limit_of`].
    pub fn message(&self, option: Option<&str>) -> String {
        let Some(option) = option else {
            return self.to_string();
        };
        match *self {
            Refused::Overloaded {
                of,
                what,
                have,
                needs,
                most,
            } => {
                let advice = if self.may_pass() {
                    "try again later, or "
                } else {
                    "divide the request, or "
                };
                format!(
                    "overloaded: {have} {what} of {most} are taken{of} and the request needs \
                     {needs}; {advice}raise {option}"
                )
            }
            Refused::RequestNodes { nodes, most } => format!(
                "the request would have {nodes} nodes; the limit of one request is {most}; divide \
                 the request, or raise {option}"
            ),
            _ => self.to_string(),
        }
    }

    /// Whose limit would be exceeded; `None`: no limit, or that of any request.
    pub fn limit_of(&self) -> Option<LimitOf> {
        match *self {
            Refused::Overloaded { of, .. } => Some(of),
            _ => None,
        }
    }
}

/// Why requests, streams and steps are refused: the first limit that would be exceeded, or the
/// state of the engine or model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// [`Limits::requests`].
    Requests,
    /// [`Limits::client_requests`].
    ClientRequests,
    /// Requests that wait for room are accepted before.
    Queued,
    /// [`Limits::nodes`].
    Nodes,
    /// [`Limits::request_nodes`].
    RequestNodes,
    /// [`Limits::bytes`].
    Bytes,
    /// [`Limits::streams`].
    Streams,
    /// Too many steps of a stream are unanswered.
    Steps,
    /// Too many replies wait for the reply thread.
    Replies,
    /// The engine or the model drains, or the engine stops.
    Draining,
    /// The model was removed.
    NoModel,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 11] = [
        Reason::Requests,
        Reason::ClientRequests,
        Reason::Queued,
        Reason::Nodes,
        Reason::RequestNodes,
        Reason::Bytes,
        Reason::Streams,
        Reason::Steps,
        Reason::Replies,
        Reason::Draining,
        Reason::NoModel,
    ];
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Requests => "requests",
            Reason::ClientRequests => "requests of a client",
            Reason::Queued => "waiting requests",
            Reason::Nodes => "nodes",
            Reason::RequestNodes => "nodes of a request",
            Reason::Bytes => "bytes",
            Reason::Streams => "streams",
            Reason::Steps => "steps of a stream",
            Reason::Replies => "undelivered replies",
            Reason::Draining => "draining",
            Reason::NoModel => "no model",
        })
    }
}

/// Whose limit would be exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitOf {
    /// The limit of all models together.
    Engine,
    /// That of the model.
    Model,
    /// That of the client.
    Client,
}

impl fmt::Display for LimitOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LimitOf::Engine => "",
            LimitOf::Model => " by the model",
            LimitOf::Client => " by the client",
        })
    }
}
