//! Products of bf16 and int8 against plain loops over integers and halves, for every instruction
//! set, with and without the instructions that only some of its CPUs have.

#[test]
fn random_products_of_both_precisions() {
    crate::reduced::random_products_of_both_precisions(400);
}

#[test]
fn no_sum_of_int8_overflows() {
    crate::reduced::no_sum_of_int8_overflows();
}

#[test]
fn rows_that_have_no_scale() {
    crate::reduced::rows_that_have_no_scale();
}

#[test]
fn smaller_numbers_take_less_memory() {
    crate::reduced::smaller_numbers_take_less_memory();
}
