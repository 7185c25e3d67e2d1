//! What is accepted: what requests ask for, and the limits of what is here at once.

use std::time::Instant;

/// What a request asks for, apart from its graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// The greater, the sooner: where ready nodes are more than a batch, those of requests of higher
    /// priority go first.
    pub priority: u8,
    /// When the answer is of no use any more.
    pub deadline: Option<Instant>,
    /// More nodes may come from outside; it does not end before [`handle_close`](super::Scheduler::handle_close).
    pub open: bool,
    /// What it takes of [`Limits::bytes`].
    pub bytes: usize,
    /// It goes on with what was accepted before: a scheduler that drains accepts it, too.
    pub continues: bool,
}

/// What a scheduler accepts at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that have not ended.
    pub requests: usize,
    /// Their nodes.
    pub nodes: usize,
    /// Their bytes, as [`Ask::bytes`] says.
    pub bytes: usize,
}

impl Default for Limits {
    /// 10,000 requests, a million nodes, 1 GiB.
    fn default() -> Limits {
        Limits {
            requests: 10_000,
            nodes: 1_000_000,
            bytes: 1 << 30,
        }
    }
}

/// Why a request was not accepted. Nothing has been kept of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// There is no room for it.
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
    /// The engine accepts no more requests.
    #[error("the engine is shutting down and accepts no more requests")]
    ShuttingDown,
}

/// How many there are of what is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    pub requests: usize,
    pub nodes: usize,
    pub bytes: usize,
}

impl Taken {
    pub fn add(&mut self, more: Taken) {
        self.requests += more.requests;
        self.nodes += more.nodes;
        self.bytes += more.bytes;
    }

    pub fn subtract(&mut self, less: Taken) {
        self.requests -= less.requests;
        self.nodes -= less.nodes;
        self.bytes -= less.bytes;
    }
}

/// What is accepted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Intake {
    Nothing,
    /// What [continues](Ask::continues) other requests.
    Continuing,
    All,
}
