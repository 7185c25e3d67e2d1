//! Serving: requests of many users, batched cell by cell.
//!
//! Programs call the [`engine`]. A request is a graph of cells ([`cell_graph`]); [`networks`] has
//! the cells of common networks. The design of the workers is described below; graphs of cells, the
//! [`scheduler`] and the [`policy`] are those of [`gatestream_scheduler`].
//!
//! ```
//! use gatestream::model::Lstm;
//! use gatestream_serve::Engine;
//! use gatestream_serve::cell_graph::Cells;
//! use gatestream_serve::engine::{EngineOptions, Request};
//! use gatestream_serve::networks::{Outputs, Chain, ChainCell};
//!
//! # let model = Lstm::new(8, 16).layers(2).random(1)?;
//! # let words = vec![0.25; 3 * 8];
//! let mut cells = Cells::new();
//! let chain = Chain::add(&mut cells, ChainCell::new(model)?); // any forward model or stack
//! let engine = Engine::start(cells, &EngineOptions::default())?; // a pinned worker on each core
//! // `words`: [steps, features], one after the other; the response: the last output.
//! let ticket = engine.submit(Request::new(chain.unfold(&words, None, Outputs::Last)?))?;
//! let answer = ticket.wait()?.values; // or ticket.await
//! assert_eq!(answer.len(), 16);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
#![doc = include_str!("../README.md")]

pub mod engine;
mod error;
pub mod networks;
mod sync;
mod worker;

pub use engine::Engine;
pub use error::RequestError;
#[doc(no_inline)]
pub use gatestream_scheduler::{cell_graph, policy, scheduler};

/// The Rust examples of the repository's README, which use the library and this crate.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
