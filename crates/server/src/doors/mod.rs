//! Who may connect, and how much: addresses, TLS, tokens, connections.

mod accept;
mod access_log;
mod tls;
mod tokens;

pub use accept::{ConnectionLimits, Peer, serve};
pub use access_log::log_access;
pub use tls::{TlsFiles, acceptor};
pub use tokens::{Client, Tokens, authenticate};
