//! The account of an engine or a model: its limits, what is used of them, and who is accepted.

use rustc_hash::FxHashMap;

use super::admission::{LimitOf, Limits, Reason, Refused};
use super::keys::ClientId;
use super::{Counts, End};

/// How much of the limits is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests that have not ended, segments of streams not counted.
    pub requests: usize,
    /// Their nodes.
    pub nodes: usize,
    /// Bytes of requests and streams.
    pub bytes: usize,
    /// Open streams.
    pub streams: usize,
    /// Segments of streams that have not ended.
    pub segments: usize,
}

impl Usage {
    /// The usage of a request.
    pub(super) fn of(is_segment: bool, nodes: usize, bytes: usize) -> Usage {
        if is_segment {
            Usage {
                segments: 1,
                ..Usage::default()
            }
        } else {
            Usage {
                requests: 1,
                nodes,
                bytes,
                ..Usage::default()
            }
        }
    }

    /// The usage of an open stream.
    pub(super) fn of_stream(bytes: usize) -> Usage {
        Usage {
            streams: 1,
            bytes,
            ..Usage::default()
        }
    }

    /// Number of requests and segments that have not ended.
    pub fn live(&self) -> u64 {
        (self.requests + self.segments) as u64
    }

    pub(super) fn add(&mut self, more: Usage) {
        self.requests += more.requests;
        self.nodes += more.nodes;
        self.bytes += more.bytes;
        self.streams += more.streams;
        self.segments += more.segments;
    }

    fn subtract(&mut self, less: Usage) {
        self.requests -= less.requests;
        self.nodes -= less.nodes;
        self.bytes -= less.bytes;
        self.streams -= less.streams;
        self.segments -= less.segments;
    }
}

/// The requests that are accepted together with another one, before it.
#[derive(Default)]
pub(super) struct Before {
    usage: Usage,
    clients: FxHashMap<ClientId, usize>,
}

impl Before {
    pub fn add(&mut self, usage: Usage, client: Option<ClientId>) {
        self.usage.add(usage);
        if let Some(client) = client {
            *self.clients.entry(client).or_default() += 1;
        }
    }
}

/// Which requests are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Admission {
    Nothing,
    /// Those that [continue](super::Requirements::continues) other requests.
    Continuing,
    All,
}

/// See the [module](self).
pub(super) struct Account {
    of: LimitOf,
    pub limits: Limits,
    pub usage: Usage,
    /// The part of the used bytes that streams have reserved.
    stream_bytes: usize,
    /// Requests of each client that have not ended; none is 0.
    clients: FxHashMap<ClientId, usize>,
    pub counts: Counts,
    /// Ready rows.
    pub ready: usize,
    pub admission: Admission,
}

impl Account {
    pub fn new(of: LimitOf, limits: Limits) -> Account {
        Account {
            of,
            limits,
            usage: Usage::default(),
            stream_bytes: 0,
            clients: FxHashMap::default(),
            counts: Counts::default(),
            ready: 0,
            admission: Admission::All,
        }
    }

    /// Checks whether a request or a stream may be accepted after those of `before`.
    pub fn room_for(
        &self,
        before: &Before,
        needs: Usage,
        client: Option<ClientId>,
        continues: bool,
    ) -> Result<(), Refused> {
        let needed = if continues {
            Admission::Continuing
        } else {
            Admission::All
        };
        if self.admission < needed {
            return Err(match self.of {
                LimitOf::Model => Refused::ModelDrains,
                _ => Refused::ShuttingDown,
            });
        }
        self.room_in_request(needs.nodes)?;
        let (limits, mut taken) = (self.limits, self.usage);
        taken.add(before.usage);
        let of_client = client.filter(|_| needs.requests > 0);
        let client_requests = of_client.map_or(0, |client| {
            let of = |clients: &FxHashMap<ClientId, usize>| clients.get(&client).copied();
            of(&self.clients).unwrap_or(0) + of(&before.clients).unwrap_or(0)
        });
        let of_client = match client {
            Some(_) => needs.requests,
            None => 0,
        };
        let all = [
            (
                self.of,
                Reason::Requests,
                taken.requests,
                needs.requests,
                limits.requests,
            ),
            (
                self.of,
                Reason::Nodes,
                taken.nodes,
                needs.nodes,
                limits.nodes,
            ),
            (
                self.of,
                Reason::Bytes,
                taken.bytes,
                needs.bytes,
                limits.bytes,
            ),
            (
                self.of,
                Reason::Streams,
                taken.streams,
                needs.streams,
                limits.streams,
            ),
            (
                LimitOf::Client,
                Reason::Requests,
                client_requests,
                of_client,
                limits.client_requests,
            ),
        ];
        for (of, what, have, needs, most) in all {
            if needs > most.saturating_sub(have) {
                return Err(Refused::Overloaded {
                    of,
                    what,
                    have,
                    needs,
                    most,
                });
            }
        }
        Ok(())
    }

    /// Checks whether one request may have so many nodes.
    pub fn room_in_request(&self, nodes: usize) -> Result<(), Refused> {
        let most = self.limits.request_nodes;
        if nodes > most {
            return Err(Refused::RequestNodes { nodes, most });
        }
        Ok(())
    }

    /// Checks whether a request that would then have `all` nodes may grow by `needs`.
    pub fn room_for_nodes(&self, all: usize, needs: usize) -> Result<(), Refused> {
        self.room_in_request(all)?;
        let (have, most) = (self.usage.nodes, self.limits.nodes);
        if needs > most.saturating_sub(have) {
            Err(Refused::Overloaded {
                of: self.of,
                what: Reason::Nodes,
                have,
                needs,
                most,
            })
        } else {
            Ok(())
        }
    }

    pub fn submitted(&mut self, usage: Usage, client: Option<ClientId>) {
        self.usage.add(usage);
        self.counts.submitted += 1;
        if let Some(client) = client {
            *self.clients.entry(client).or_default() += 1;
        }
        self.conserved();
    }

    pub fn ended(&mut self, usage: Usage, client: Option<ClientId>, end: End) {
        self.usage.subtract(usage);
        self.counts.ended[end as usize] += 1;
        if let Some(client) = client
            && let Some(requests) = self.clients.get_mut(&client)
        {
            *requests -= 1;
            if *requests == 0 {
                self.clients.remove(&client);
            }
        }
        self.conserved();
    }

    pub fn opened_stream(&mut self, bytes: usize) {
        self.usage.add(Usage::of_stream(bytes));
        self.stream_bytes += bytes;
    }

    pub fn closed_stream(&mut self, bytes: usize) {
        self.usage.subtract(Usage::of_stream(bytes));
        self.stream_bytes -= bytes;
    }

    /// Checks that these requests, which have not ended, are those that are counted.
    pub fn audit(
        &self,
        here: impl Iterator<Item = (Usage, Option<ClientId>)>,
    ) -> Result<(), String> {
        let mut taken = Usage {
            streams: self.usage.streams,
            bytes: self.stream_bytes,
            ..Usage::default()
        };
        let mut clients: FxHashMap<ClientId, usize> = FxHashMap::default();
        for (usage, client) in here {
            taken.add(usage);
            if let Some(client) = client {
                *clients.entry(client).or_default() += 1;
            }
        }
        let live = self.counts.live();
        if taken != self.usage || live != taken.live() || clients != self.clients {
            let counted = self.usage;
            return Err(format!(
                "{live} requests have not ended, {taken:?} are here, {counted:?} counted"
            ));
        }
        Ok(())
    }

    /// The part of [`Account::audit`] that takes constant time.
    fn conserved(&self) {
        debug_assert_eq!(
            self.counts.live(),
            self.usage.live(),
            "requests that have not ended, and what they take"
        );
    }
}
