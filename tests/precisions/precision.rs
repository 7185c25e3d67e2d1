//! Models in lower precision: what weights become, what is refused, what stays.

use crate::common::Random;
use gatestream::model::{Gru, Lstm, Matrix, Model, ModelError, Precision};

fn matrix(rows: usize, cols: usize, values: &[f32]) -> Matrix {
    Matrix::new(rows, cols, values.to_vec()).unwrap()
}

/// The `half` crate rounds independently.
#[test]
fn bf16_is_the_nearest_with_ties_to_even() {
    let mut random = Random::new(1);
    let mut values: Vec<f32> = (0..20_000)
        .map(|_| f32::from_bits(random.0.u32(..)))
        .collect();
    let ties = [
        0x3f80_8000,
        0x3f81_8000,
        0x3f80_8001,
        0x3f80_7fff,
        0x7f7f_ffff,
        1,
        0x8000_0000,
    ];
    values.extend(ties.map(f32::from_bits));
    values.extend([
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::from_bits(0x7f80_0001),
    ]);
    let found = matrix(1, values.len(), &values)
        .in_precision(Precision::Bf16)
        .unwrap();
    for (value, found) in values.iter().zip(found.data().iter()) {
        let expected = half::bf16::from_f32(*value).to_f32();
        let same = expected.to_bits() == found.to_bits() || expected.is_nan() && found.is_nan();
        assert!(same, "{value:e}: {found:e}, not {expected:e}");
    }
}

#[test]
fn int8_is_the_nearest_multiple_of_the_scale() {
    let mut random = Random::new(2);
    let (rows, cols) = (50, 33);
    let mut values = random.values(rows * cols);
    for (at, value) in values.iter_mut().enumerate() {
        // Rows of very different magnitude; one of zeros, one too small for a scale.
        *value *= [1.0, 1e-20, 3e30, 0.0, 1e-35][at / cols % 5];
    }
    let before = matrix(rows, cols, &values);
    let after = before.in_precision(Precision::Int8).unwrap();
    assert_eq!(after.scales().len(), rows);
    for row in 0..rows {
        let most = before
            .row(row)
            .iter()
            .fold(0.0f32, |most, v| most.max(v.abs()));
        let scale = after.scales()[row];
        if row % 5 > 2 {
            assert_eq!(scale, 0.0);
            assert!(
                after.row(row).iter().all(|v| *v == 0.0)
                    && after.int8_row(row).iter().all(|q| *q == 0)
            );
            continue;
        }
        assert_eq!(scale, most / 127.0);
        let whole = after.int8_row(row);
        assert!(whole.iter().any(|q| q.abs() == 127) && !whole.contains(&-128));
        for ((before, after), q) in before.row(row).iter().zip(after.row(row).iter()).zip(whole) {
            assert_eq!(*after, scale * f32::from(*q));
            let error = (f64::from(*before) - f64::from(scale) * f64::from(*q)).abs();
            assert!(error <= 0.5001 * f64::from(scale), "{before} {after}");
        }
    }
    // Converting again changes nothing, and neither does making the same matrix from its parts.
    assert_eq!(after.in_precision(Precision::Int8).unwrap(), after);
    let whole: Vec<i8> = (0..rows)
        .flat_map(|row| after.int8_row(row).to_vec())
        .collect();
    let scales = after.scales().to_vec();
    assert_eq!(
        Matrix::from_int8(rows, cols, &whole, scales).unwrap(),
        after
    );
}

/// Whatever the scale, also where its products with them are inexact or subnormal.
#[test]
fn whole_numbers_are_kept_under_every_scale() {
    let mut random = Random::new(3);
    let all: Vec<i8> = (-127..=127).collect();
    for _ in 0..20_000 {
        let scale = f32::from_bits(random.0.u32(..0x7f80_0000));
        if !(scale * 127.0).is_finite() || scale == 0.0 {
            continue;
        }
        let matrix = Matrix::from_int8(1, all.len(), &all, vec![scale]).unwrap();
        assert_eq!(matrix.int8_row(0), all, "{scale:e}");
        let values = all.iter().map(|&q| scale * f32::from(q));
        assert_eq!(matrix.row(0)[..], values.collect::<Vec<_>>(), "{scale:e}");
    }
}

/// A row without a scale is one of zeros, whatever was written for it.
#[test]
fn rows_without_a_scale_are_zero() {
    let matrix = Matrix::from_int8(2, 2, &[1, -2, 3, 4], vec![0.0, 0.5]).unwrap();
    assert_eq!(matrix.data()[..], [0.0, 0.0, 1.5, 2.0]);
    assert_eq!(matrix.int8_row(0), [0, 0]);
    let zeros = Matrix::from_int8(2, 2, &[0, 0, 3, 4], vec![0.0, 0.5]).unwrap();
    assert_eq!(matrix, zeros);
}

/// NaN stays NaN, and no other value's bits change on the way through a matrix of bf16.
#[test]
fn every_bf16_is_kept() {
    let all = (0..=u16::MAX).map(half::bf16::from_bits);
    let values: Vec<f32> = all.map(half::bf16::to_f32).collect();
    let found = matrix(256, 256, &values)
        .in_precision(Precision::Bf16)
        .unwrap();
    for (value, found) in values.iter().zip(found.data().iter()) {
        assert!(value.to_bits() == found.to_bits() || value.is_nan() && found.is_nan());
    }
    // As of f32, NaN makes a matrix differ from itself, and zeros are equal.
    assert!(found != found.clone());
    let zeros = |zero| matrix(1, 1, &[zero]).in_precision(Precision::Bf16).unwrap();
    assert_eq!(zeros(0.0), zeros(-0.0));
}

/// The model that is given away, and the one that is only looked at, become the same.
#[test]
fn both_ways_of_converting_agree() {
    let model = Lstm::new(5, 6).projection(4).layers(2).random(1).unwrap();
    for from in Precision::ALL {
        let model = model.in_precision(from).unwrap();
        for to in Precision::ALL {
            let given = model.clone().into_precision(to).unwrap();
            assert_eq!(given, model.in_precision(to).unwrap(), "{from} to {to}");
            assert_eq!(given.precision(), Some(to));
        }
    }
    let mixed = [Precision::Bf16, Precision::Int8];
    let given = model.clone().into_precisions(&mixed).unwrap();
    assert_eq!(given, model.in_precisions(&mixed).unwrap());
    let refused = model.into_precisions(&[Precision::Int8]);
    assert!(matches!(refused, Err(ModelError::Shape { .. })));
}

#[test]
fn what_int8_cannot_hold_is_refused() {
    // Of the greatest float the scale times 127 is infinite.
    for value in [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN,
    ] {
        let refused = matrix(2, 2, &[1.0, 2.0, value, 0.0]).in_precision(Precision::Int8);
        assert!(
            matches!(refused, Err(ModelError::NotQuantisable { .. })),
            "{refused:?}"
        );
    }
    let deep = gatestream_kernels::INT8_DEPTH + 1;
    let too_deep = ModelError::TooDeepForInt8 {
        cols: deep,
        max: deep - 1,
    };
    let zeros = vec![0.0; deep];
    assert_eq!(
        matrix(1, deep, &zeros).in_precision(Precision::Int8),
        Err(too_deep.clone())
    );
    assert_eq!(
        Matrix::from_int8(1, deep, &vec![0; deep], vec![1.0]),
        Err(too_deep)
    );
    for (values, scales) in [
        (&[1i8, -128][..], vec![1.0]),
        (&[1, 2], vec![f32::NAN]),
        (&[1, 2], vec![-1.0]),
        (&[1, 2], vec![f32::MAX]),
    ] {
        let refused = Matrix::from_int8(1, 2, values, scales.clone());
        assert!(
            matches!(refused, Err(ModelError::NotQuantisable { .. })),
            "{scales:?}"
        );
    }
    for (values, scales) in [(&[1i8, 2][..], vec![1.0, 1.0]), (&[1, 2, 3], vec![1.0])] {
        let refused = Matrix::from_int8(1, 2, values, scales);
        assert!(
            matches!(refused, Err(ModelError::Shape { .. })),
            "{refused:?}"
        );
    }
    let model = Lstm::new(3, 4).layers(2).random(1).unwrap();
    let refused = model.in_precisions(&[Precision::Int8]);
    assert!(matches!(refused, Err(ModelError::Shape { .. })));
}

#[test]
fn a_model_has_one_precision_or_one_for_each_layer() {
    let model = Gru::new(16, 256).layers(2).random(1).unwrap();
    assert_eq!(model.precision(), Some(Precision::F32));
    let whole = model.in_precision(Precision::Int8).unwrap();
    assert_eq!(whole.precision(), Some(Precision::Int8));
    assert!(whole.weight_bytes() * 100 < model.weight_bytes() * 27);
    let mixed = model
        .in_precisions(&[Precision::Bf16, Precision::Int8])
        .unwrap();
    assert_eq!(mixed.precision(), None);
    let of_layer = |model: &Model, layer: usize| {
        let direction = &model.layers()[layer].directions()[0];
        direction.weights().precisions()
    };
    assert_eq!(
        of_layer(&mixed, 0),
        [Some(Precision::Bf16), Some(Precision::Bf16), None]
    );
    assert_eq!(
        of_layer(&mixed, 1),
        [Some(Precision::Int8), Some(Precision::Int8), None]
    );
    // Biases are what they were.
    let bias = |model: &Model| {
        model.layers()[1].directions()[0]
            .weights()
            .input_bias
            .clone()
    };
    assert_eq!(bias(&model), bias(&whole));
}
