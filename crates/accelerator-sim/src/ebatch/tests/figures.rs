//! The examples of the paper, step by step. Where a figure has lengths that its text does not tell,
//! they are chosen here so that the text holds.

use super::*;

/// Figure 12 and its text: 4 lanes, a cap of 3, a wait of 2 time steps, one layer.
#[test]
fn figure_12() {
    let mut runtime = EBatch::new(EBatchOptions {
        lanes: 4,
        cap: Cap::Steps(3),
        wait: 2,
    });
    let first: Vec<Sequence> = (1..=4).map(|id| sequence(id, id as usize)).collect();
    let batch = started(&runtime.arrive(0, &first).unwrap());
    let alone = |id, steps| vec![segment(id, 0, steps)];
    // Of request 4 only 3 steps.
    let expected = [alone(1, 1), alone(2, 2), alone(3, 3), alone(4, 3)];
    assert_eq!(batch.lanes, expected);

    // After the first time step, lane 0 is idle; request 5 has arrived.
    runtime.advance(1);
    let joined = runtime.arrive(1, &[sequence(5, 3)]).unwrap();
    let expected = Join {
        lane: 0,
        segment: segment(5, 0, 2),
    };
    assert_eq!(joined, [Decision::Join(expected)]);
    // Request 6 arrives while no lane is idle, and gets lane 1 when that is.
    assert_eq!(runtime.arrive(1, &[sequence(6, 2)]).unwrap(), []);
    runtime.advance(2);
    assert_eq!(runtime.lane_idle(1), Some(segment(6, 0, 1)));
    assert_eq!(runtime.lane_idle(2), None);
    runtime.advance(3);
    runtime.lock();

    // Requests 1 to 3 are complete; 4, 5 and 6 are fewer than the lanes, so the runtime waits.
    let finished = runtime.finish(3);
    assert_eq!(sorted(finished.completed), [1, 2, 3]);
    assert_eq!(finished.next, None);
    assert_eq!(runtime.deadline(), Some(5));
    assert_eq!(runtime.wait_over(4), None);

    // With requests 7 and 8 there are five, more than lanes: 4 and 6 share one.
    let batch = started(
        &runtime
            .arrive(4, &[sequence(7, 2), sequence(8, 3)])
            .unwrap(),
    );
    let expected = [
        vec![segment(8, 0, 3)],
        vec![segment(7, 0, 2)],
        vec![segment(4, 3, 1), segment(6, 1, 1)],
        vec![segment(5, 2, 1)],
    ];
    assert_eq!(batch.lanes, expected);
    let finished = runtime.finish(7);
    assert_eq!(sorted(finished.completed), [4, 5, 6, 7, 8]);
    assert_eq!((runtime.waiting(), runtime.deadline()), (0, None));
}

/// Figure 13 and its text: as Figure 12 with two layers. Nothing joins after the first one.
#[test]
fn figure_13() {
    let mut runtime = EBatch::new(EBatchOptions {
        lanes: 4,
        cap: Cap::Steps(3),
        wait: 2,
    });
    let first: Vec<Sequence> = (1..=4).map(|id| sequence(id, id as usize)).collect();
    started(&runtime.arrive(0, &first).unwrap());
    runtime.advance(1);
    let joined = runtime.arrive(1, &[sequence(5, 4)]).unwrap();
    let expected = Join {
        lane: 0,
        segment: segment(5, 0, 2),
    };
    assert_eq!(joined, [Decision::Join(expected)]);
    // Three steps of the first layer, then the second one.
    runtime.advance(3);
    assert_eq!(runtime.steps(), 3);
    runtime.lock();
    assert_eq!(
        runtime
            .arrive(3, &[sequence(6, 2), sequence(7, 2)])
            .unwrap(),
        []
    );
    // Lane 1 becomes idle in the second layer: requests 6 and 7 still wait.
    assert_eq!(runtime.lane_idle(1), None);
    let finished = runtime.finish(6);
    assert_eq!(sorted(finished.completed), [1, 2, 3]);
    let expected = [
        vec![segment(4, 3, 1)],
        vec![segment(5, 2, 2)],
        vec![segment(6, 0, 2)],
        vec![segment(7, 0, 2)],
    ];
    assert_eq!(finished.next.unwrap().lanes, expected);
}

/// The text of section 5.2: requests of 4, 5, 6, 8 and 7 steps on two lanes, without a cap.
#[test]
fn text_of_section_5_2() {
    let mut runtime = EBatch::new(EBatchOptions {
        lanes: 2,
        cap: Cap::Longest,
        wait: 0,
    });
    let sequences = [(1, 4), (2, 5), (3, 6), (4, 8), (5, 7)];
    let sequences = sequences.map(|(id, steps)| sequence(id, steps));
    let batch = started(&runtime.arrive(0, &sequences[..1]).unwrap());
    assert_eq!(batch.lanes, [vec![segment(1, 0, 4)], vec![]]);
    runtime.lock();
    assert_eq!(runtime.arrive(1, &sequences[1..]).unwrap(), []);
    // Without a cap a batch has as many steps as lanes times its longest sequence: 2 · 8.
    let batch = runtime.finish(4).next.unwrap();
    let ids: Vec<Vec<u64>> = (batch.lanes.iter())
        .map(|lane| lane.iter().map(|segment| segment.id).collect())
        .collect();
    assert_eq!(ids, [vec![2], vec![3]]);
}

fn sorted(mut ids: Vec<u64>) -> Vec<u64> {
    ids.sort_unstable();
    ids
}
