mod figures;
mod partition;
mod properties;

use super::{Batch, Cap, Decision, EBatch, EBatchOptions, Join, Segment, Sequence};

fn sequence(id: u64, steps: usize) -> Sequence {
    Sequence::new(id, 0, steps)
}

fn segment(id: u64, first_step: usize, steps: usize) -> Segment {
    Segment {
        id,
        first_step,
        steps,
    }
}

/// The only decision, a batch.
fn started(decisions: &[Decision]) -> Batch {
    match decisions {
        [Decision::Start(batch)] => batch.clone(),
        other => panic!("{other:?}"),
    }
}
