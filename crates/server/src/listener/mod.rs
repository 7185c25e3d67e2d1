//! Addresses, TLS, authentication, limits of connections and bodies, access log.

mod accept;
mod access_log;
mod bodies;
mod clock;
mod messages;
mod span;
mod tls;
mod tokens;

pub use accept::{ConnectionLimits, Peer, listen, serve};
pub use access_log::log_access;
pub use bodies::{Bodies, BodyLimits};
pub use clock::ConnectionTimes;
pub use span::{SPANS, open_span};
pub use tls::{Tls, TlsFiles};
pub use tokens::{Authentication, Client, Tenant, Tokens, authenticate};
