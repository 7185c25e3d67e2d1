//! Products of bf16 and int8 against plain loops over integers and halves, for every instruction
//! set, with and without the instructions that only some of its CPUs have.

mod common;
#[path = "common/reduced.rs"]
mod reduced;

#[test]
fn random_products_of_both_precisions() {
    reduced::random_products_of_both_precisions(400);
}

#[test]
fn no_sum_of_int8_overflows() {
    reduced::no_sum_of_int8_overflows();
}

#[test]
fn rows_that_have_no_scale() {
    reduced::rows_that_have_no_scale();
}

#[test]
fn smaller_numbers_take_less_memory() {
    reduced::smaller_numbers_take_less_memory();
}
