//! Activations, products and cells against independent arithmetic.

#[path = "../common/mod.rs"]
mod common;

mod activations;
mod clip;
mod light_gru;
mod product_against_gemm;
mod rows;
