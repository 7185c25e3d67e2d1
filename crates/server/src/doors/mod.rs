//! Who may connect, and how much: addresses, TLS, tokens, connections.

mod accept;
mod tls;
mod tokens;

pub use accept::{ConnectionLimits, Peer, serve};
pub use tls::{TlsFiles, acceptor};
pub use tokens::{Client, Tokens, authenticate};
