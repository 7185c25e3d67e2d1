//! Who may connect, and how much: addresses, TLS, tokens, connections.

mod accept;
mod access_log;
mod span;
mod tls;
mod tokens;

pub use accept::{ConnectionLimits, Peer, serve};
pub use access_log::log_access;
pub use span::{SPANS, open_span};
pub use tls::{TlsFiles, acceptor};
pub use tokens::{Client, Tokens, authenticate};
