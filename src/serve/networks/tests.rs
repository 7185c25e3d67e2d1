//! Networks against plain loops.
