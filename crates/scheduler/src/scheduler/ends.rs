//! How requests end, how long they took, and how many did.

use std::time::Duration;

use super::{ModelKey, Reason, RequestKey};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// All of its nodes are done.
    Completed,
    /// The user cancelled it.
    Cancelled,
    /// Its deadline passed.
    Late,
    /// A cell, or what grows its graph, failed.
    Failed,
    /// The engine was shut down.
    ShutDown,
}

impl End {
    /// All ways to end.
    pub const ALL: [End; 5] = [
        End::Completed,
        End::Cancelled,
        End::Late,
        End::Failed,
        End::ShutDown,
    ];
}

/// How long a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// From its submission until its first cell went to a worker (or its end, if none did).
    pub queueing: Duration,
    /// From then until its end.
    pub computing: Duration,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which.
    pub request: RequestKey,
    /// Its model.
    pub model: ModelKey,
    /// How.
    pub end: End,
    /// How long it took.
    pub timing: Timing,
}

/// Requests by how they ended, and those that have not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accepted.
    pub submitted: u64,
    /// Not accepted, in the order of [`Reason::ALL`]; steps of streams included.
    pub refused: [u64; Reason::ALL.len()],
    /// Ended, in the order of [`End::ALL`].
    pub ended: [u64; 5],
}

impl Counts {
    /// Those that ended so.
    pub fn of(&self, end: End) -> u64 {
        self.ended[end as usize]
    }

    /// Those that were refused.
    pub fn refused(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// Those that were refused for this reason.
    pub fn refused_for(&self, reason: Reason) -> u64 {
        self.refused[reason as usize]
    }

    /// Those that have not ended.
    pub fn live(&self) -> u64 {
        self.submitted - self.ended.iter().sum::<u64>()
    }
}
