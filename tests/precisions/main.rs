//! bf16 and int8: the products, the weights, the files, and the choice of precisions.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/reduced.rs"]
mod reduced;

mod auto_precision;
mod precision;
#[cfg(feature = "safetensors")]
mod quantize;
mod reduced_products;
