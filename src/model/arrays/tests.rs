use super::*;
use crate::model::{Axis, Lstm, Merge, Model};

fn floats_of(shape: &[usize], value: impl Fn(&[usize]) -> f32) -> Array {
    let mut values = Vec::new();
    for flat in 0..shape.iter().product::<usize>() {
        let mut rest = flat;
        let mut index = vec![0; shape.len()];
        for (at, size) in index.iter_mut().zip(shape).rev() {
            *at = rest % size;
            rest /= size;
        }
        values.push(value(&index));
    }
    Array {
        shape: shape.to_vec(),
        elements: Elements::Floats(values),
    }
}

fn model() -> Model {
    let lstm = Lstm::new(3, 2).layers(2).bidirectional(Merge::Concat);
    lstm.random(1).unwrap()
}

#[test]
fn batch_first_input_becomes_time_major() {
    let map = ArrayMap::new(&model().batch_first());
    let x = floats_of(&[2, 5, 3], |i| (100 * i[0] + 10 * i[1] + i[2]) as f32);
    let h0 = floats_of(&[4, 2, 2], |i| (100 * i[0] + 10 * i[1] + i[2]) as f32);
    let input = map
        .input(&[("input".into(), x), ("h0".into(), h0)])
        .unwrap();
    assert_eq!((input.steps, input.batch), (5, 2));
    let at = |t: usize, b: usize, f: usize| input.values[(t * 2 + b) * 3 + f];
    assert_eq!(at(4, 1, 2), 142.0);
    assert_eq!(at(3, 0, 1), 31.0);
    assert_eq!(input.h0[(2 * 2 + 1) * 2 + 1], 211.0);
    assert_eq!(input.c0, [0.0; 16]);
}

#[test]
fn output_with_a_direction_axis() {
    let mut interface = model().interface().clone();
    let output = interface.outputs.iter_mut().find(|p| p.name == "output");
    output.unwrap().axes = [Axis::Time, Axis::Direction, Axis::Batch, Axis::Feature]
        .map(|a| vec![a])
        .to_vec();
    let model = Model::with_interface(model().layers().to_vec(), interface).unwrap();
    let map = ArrayMap::new(&model);
    let x = floats_of(&[3, 2, 3], |_| 0.0);
    let input = map.input(&[("input".into(), x)]).unwrap();
    let mut results = map.output_buffers(&input);
    results.values = (0..3 * 2 * 4).map(|v| v as f32).collect();
    let y = map.output("output", &input, &results).unwrap();
    assert_eq!(y.shape, [3, 2, 2, 2]);
    // Step 2, direction 1, sequence 0, feature 1.
    let Elements::Floats(values) = y.elements else {
        panic!("outputs are floats");
    };
    assert_eq!(values[((2 * 2 + 1) * 2) * 2 + 1], ((2 * 2) * 4 + 3) as f32);
}

#[test]
fn refusals_name_the_array() {
    let map = ArrayMap::new(&model());
    let x = || ("input".to_string(), floats_of(&[3, 2, 3], |_| 0.0));
    let message = |arrays: &[(String, Array)]| map.input(arrays).unwrap_err().to_string();
    assert_eq!(
        message(&[]),
        "\"input\" is missing; its axes are [steps, batch, features=3]"
    );
    assert_eq!(
        message(&[("x".into(), x().1)]),
        "\"x\" is not an input of this model; use one of input, lengths, h0, c0"
    );
    assert_eq!(
        message(&[x(), x()]),
        "\"input\" is given twice; give it once"
    );
    assert_eq!(
        message(&[("input".into(), floats_of(&[3, 2, 4], |_| 0.0))]),
        "\"input\" has shape [3, 2, 4]; its axes are [steps, batch, features=3]"
    );
    assert_eq!(
        message(&[x(), ("h0".into(), floats_of(&[4, 3, 2], |_| 0.0))]),
        "\"h0\" has shape [4, 3, 2]; its axes are [layers*directions=4, batch=2, features=2]"
    );
    let lengths = |values: Vec<i64>| Array {
        shape: vec![values.len()],
        elements: Elements::Integers(values),
    };
    assert_eq!(
        message(&[x(), ("lengths".into(), lengths(vec![1, -1]))]),
        "\"lengths\": sequence 1 has length -1; lengths must be 0 or more"
    );
    assert_eq!(
        message(&[x(), ("lengths".into(), floats_of(&[2], |_| 1.0))]),
        "\"lengths\" must hold integers"
    );
    assert!(
        map.check_output("out")
            .unwrap_err()
            .to_string()
            .contains("output, hn, cn")
    );
}

#[test]
fn refuses_shapes_that_do_not_match_the_elements() {
    let map = ArrayMap::new(&model());
    let x = |shape: &[usize], count: usize| Array {
        shape: shape.to_vec(),
        elements: Elements::Floats(vec![1.0; count]),
    };
    for (shape, count) in [
        (vec![3, 2, 3], 17),
        (vec![3, 2, 3], 19),
        (vec![0, 2, 3], 6),
        (vec![usize::MAX, usize::MAX, 3], 3),
        (vec![1 << 62, 4, 3], 0),
    ] {
        let given = [("input".to_string(), x(&shape, count))];
        let error = map.input(&given).unwrap_err();
        assert!(matches!(error, ArrayError::Elements { .. }), "{shape:?}");
        let text = error.to_string();
        assert!(text.contains(&format!("{count} elements")), "{text}");
    }
    let given = [
        ("input".to_string(), x(&[3, 2, 3], 18)),
        ("h0".to_string(), x(&[4, 2, 2], 15)),
    ];
    let error = map.input(&given).unwrap_err().to_string();
    assert!(error.starts_with("\"h0\" holds 15 elements"), "{error}");
}

#[test]
fn refuses_more_sequences_than_states_allow() {
    let map = ArrayMap::new(&model());
    let empty = |shape: [usize; 3]| Array {
        shape: shape.to_vec(),
        elements: Elements::Floats(vec![]),
    };
    // Eight values of state for each sequence.
    for batch in [MAX_STATES / 8 + 1, 1 << 40, usize::MAX] {
        let given = [("input".to_string(), empty([0, batch, 3]))];
        let error = map.input(&given).unwrap_err();
        let name = "input".to_string();
        assert_eq!(
            error,
            ArrayError::TooLarge {
                name,
                batch,
                state: 8
            }
        );
    }
    let given = [("input".to_string(), empty([usize::MAX, 0, 3]))];
    let input = map.input(&given).unwrap();
    assert_eq!((input.steps, input.batch), (usize::MAX, 0));
    assert!(input.values.is_empty() && input.h0.is_empty());
}

#[test]
fn output_without_a_batch_axis() {
    let mut interface = model().interface().clone();
    let output = interface.outputs.iter_mut().find(|p| p.name == "output");
    output.unwrap().axes.remove(1);
    let model = Model::with_interface(model().layers().to_vec(), interface).unwrap();
    let map = ArrayMap::new(&model);
    let of = |batch| {
        let x = floats_of(&[3, batch, 3], |_| 0.0);
        let input = map.input(&[("input".into(), x)]).unwrap();
        map.output("output", &input, &map.output_buffers(&input))
    };
    assert_eq!(of(1).unwrap().shape, [3, 4]);
    assert_eq!(
        of(2).unwrap_err().to_string(),
        "\"output\" has no axis for 2 sequences; give inputs of 1"
    );
}
