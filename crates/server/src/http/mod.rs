//! The protocol over HTTP.

mod body;
mod documents;
mod infer;
mod page;
mod routes;

pub use body::from_raw;
pub use documents::{config_type, dims, state as index_state};
pub use routes::{HttpOptions, last_refusal, log_access, router};
