//! The limits of what runs or waits beside the engines: graphs, and requests that wait for another
//! one of their sequence.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gatestream_serve::scheduler::{ClientId, LimitOf, Limits, Reason, Refused};

/// Counts accepted requests and refuses those beyond its limits.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    /// Whose limits they are.
    of: LimitOf,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    requests: usize,
    nodes: usize,
    bytes: usize,
    of_clients: HashMap<ClientId, usize>,
    /// Bytes of requests that have ended since [`Admission::take_ended`].
    ended: usize,
}

/// The share of a request in the limits.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    pub client: ClientId,
    pub nodes: usize,
    pub bytes: usize,
}

/// What a request has taken of limits. Its drop gives it back.
#[derive(Debug)]
pub struct Share {
    admission: Arc<Admission>,
    needs: Needs,
}

impl Admission {
    pub fn new(limits: Limits, of: LimitOf) -> Arc<Admission> {
        Arc::new(Admission {
            limits,
            of,
            taken: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether requests of at least so many bytes have ended. These count once.
    pub fn take_ended(&self, least: usize) -> bool {
        let mut taken = self.lock();
        let is_reached = taken.ended >= least;
        if is_reached {
            taken.ended = 0;
        }
        is_reached
    }

    /// Accepts a request.
    ///
    /// # Errors
    /// The first limit that it would exceed.
    pub fn admit(self: &Arc<Admission>, needs: Needs) -> Result<Share, Refused> {
        let Limits {
            requests,
            nodes,
            request_nodes,
            bytes,
            client_requests,
            ..
        } = self.limits;
        if needs.nodes > request_nodes {
            return Err(Refused::RequestNodes {
                nodes: needs.nodes,
                most: request_nodes,
            });
        }
        let mut taken = self.lock();
        let of_client = taken.of_clients.get(&needs.client).copied().unwrap_or(0);
        for (of, what, have, needs, most) in [
            (self.of, Reason::Requests, taken.requests, 1, requests),
            (
                LimitOf::Client,
                Reason::Requests,
                of_client,
                1,
                client_requests,
            ),
            (self.of, Reason::Nodes, taken.nodes, needs.nodes, nodes),
            (self.of, Reason::Bytes, taken.bytes, needs.bytes, bytes),
        ] {
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
        taken.requests += 1;
        taken.nodes += needs.nodes;
        taken.bytes += needs.bytes;
        *taken.of_clients.entry(needs.client).or_default() += 1;
        drop(taken);
        Ok(Share {
            admission: Arc::clone(self),
            needs,
        })
    }
}

/// The limits of a model and those of the server.
#[derive(Clone, Debug)]
pub struct Admissions {
    of_model: Arc<Admission>,
    of_all: Arc<Admission>,
}

/// An accepted request.
#[derive(Debug)]
pub struct Admitted {
    _of_model: Share,
    _of_all: Share,
}

impl Admissions {
    /// `of_model`: the limits of the model alone.
    pub fn new(of_model: Limits, of_all: &Arc<Admission>) -> Admissions {
        Admissions {
            of_model: Admission::new(of_model, LimitOf::Model),
            of_all: Arc::clone(of_all),
        }
    }

    /// Accepts a request.
    ///
    /// # Errors
    /// As [`Admission::admit`].
    pub fn admit(&self, needs: Needs) -> Result<Admitted, Refused> {
        Ok(Admitted {
            _of_model: self.of_model.admit(needs)?,
            _of_all: self.of_all.admit(needs)?,
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Needs {
            client,
            nodes,
            bytes,
        } = self.needs;
        let mut taken = self.admission.lock();
        taken.requests -= 1;
        taken.nodes -= nodes;
        taken.bytes -= bytes;
        taken.ended = taken.ended.saturating_add(bytes);
        if let Some(of_client) = taken.of_clients.get_mut(&client) {
            *of_client -= 1;
            if *of_client == 0 {
                taken.of_clients.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: Needs = Needs {
        client: ClientId(1),
        nodes: 3,
        bytes: 100,
    };

    fn of(limit: fn(&mut Limits)) -> Arc<Admission> {
        let mut limits = Limits::NONE;
        limit(&mut limits);
        Admission::new(limits, LimitOf::Model)
    }

    #[test]
    fn each_limit_is_kept_and_given_back() {
        let other = Needs {
            client: ClientId(2),
            ..NEEDS
        };
        for (admission, what) in [
            (of(|limits| limits.requests = 1), Reason::Requests),
            (of(|limits| limits.nodes = 5), Reason::Nodes),
            (of(|limits| limits.bytes = 199), Reason::Bytes),
        ] {
            let first = admission.admit(NEEDS).expect("room");
            let refused = admission.admit(other).expect_err("no room");
            assert_eq!(refused.reason(), what);
            assert!(refused.may_pass(), "{refused}");
            drop(first);
            assert!(admission.admit(other).is_ok(), "{what}");
        }
        let admission = of(|limits| limits.client_requests = 1);
        let first = admission.admit(NEEDS).expect("room");
        let refused = admission.admit(NEEDS).expect_err("no room");
        assert_eq!(refused.reason(), Reason::ClientRequests);
        assert!(admission.admit(other).is_ok());
        drop(first);
        assert!(admission.admit(NEEDS).is_ok());
    }

    #[test]
    fn bytes_of_ended_requests_count_once() {
        let admission = of(|_| ());
        let first = admission.admit(NEEDS).expect("room");
        assert!(!admission.take_ended(100));
        drop(first);
        assert!(!admission.take_ended(101));
        assert!(admission.take_ended(100));
        assert!(!admission.take_ended(100));
    }

    #[test]
    fn requests_that_never_fit_are_told_so() {
        for admission in [
            of(|limits| limits.request_nodes = 2),
            of(|limits| limits.nodes = 2),
            of(|limits| limits.bytes = 99),
        ] {
            let refused = admission.admit(NEEDS);
            assert!(!refused.expect_err("too large").may_pass());
        }
    }
}
