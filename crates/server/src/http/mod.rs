//! The protocol over HTTP.

mod body;
mod documents;
mod infer;
mod page;
mod path;
mod routes;

pub use routes::{HttpOptions, router};
