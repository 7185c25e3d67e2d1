//! Files made by `tests/fixtures/onnx_quantised/make.py`, with DynamicQuantizeLSTM nodes: the
//! numbers of every matrix against the file's tensors, sessions against the reference, bit for bit,
//! and answers against ONNX Runtime's.
//!
//! Both quantise what the weights are multiplied with, but not alike, so neither answer is the
//! other's. Each must lie where exact weights and values moved by such a rounding can lead
//! (`enclosure`): what decides is not how far apart they are, but whether rounding explains it.

use std::path::PathBuf;

use gatestream::execute::Session;
use gatestream::model::{
    Array, ArrayMap, Elements, Matrix, MatrixKind, Model, OwnedInput, OwnedOutput, Precision,
    Requantised,
};
use gatestream::plan::Plan;
use gatestream::reference;
use safetensors::{Dtype, SafeTensors};

use crate::enclosure::{Range, Ranges, Rounding, Rows, enclose};

const ZERO: Option<Requantised> = Some(Requantised::ZeroPoint);
const LOWEST: Option<Requantised> = Some(Requantised::Lowest);

/// Each fixture, and what must become of W and R of each direction of each layer.
const CASES: [(&str, &[Option<Requantised>]); 11] = [
    ("forward", &[None; 2]),
    ("states", &[None; 4]),
    ("stack", &[None; 8]),
    ("peephole_tensor", &[None; 4]),
    ("peephole_channel", &[None; 4]),
    ("unsigned", &[ZERO; 4]),
    ("unsigned_middle", &[None; 4]),
    ("unsigned_lowest", &[None, LOWEST]),
    ("signed_lowest", &[LOWEST, None]),
    ("signed_offset", &[ZERO; 2]),
    ("mixed", &[None, None, ZERO, ZERO]),
];

fn path(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/onnx_quantised");
    folder.join(name)
}

/// A fixture: the model, and the tensors beside it.
struct Case {
    name: &'static str,
    model: Model,
    tensors: Vec<u8>,
}

/// A fixture's matrix of one direction, as its tensors say it: rows in ONNX's order.
struct Stored {
    /// `[rows][columns]`, whole numbers less the zero point.
    distances: Vec<Vec<i32>>,
    scales: Vec<f32>,
}

impl Stored {
    fn values(&self) -> Vec<Vec<f32>> {
        let rows = self.distances.iter().zip(&self.scales);
        rows.map(|(row, scale)| row.iter().map(|d| *d as f32 * scale).collect())
            .collect()
    }
}

/// ONNX's rows (input, output, forget, cell) in PyTorch's order (input, forget, cell, output).
fn reordered<T: Clone>(rows: &[T]) -> Vec<T> {
    let block = |at: usize| &rows[at * rows.len() / 4..(at + 1) * rows.len() / 4];
    [block(0), block(2), block(3), block(1)].concat()
}

impl Case {
    fn open(name: &'static str) -> Case {
        let model = Model::open(path(&format!("{name}.onnx")));
        Case {
            name,
            model: model.unwrap_or_else(|e| panic!("{name}: {e}")),
            tensors: std::fs::read(path(&format!("{name}.safetensors"))).unwrap(),
        }
    }

    fn array(&self, name: &str) -> Option<Array> {
        let tensors = SafeTensors::deserialize(&self.tensors).unwrap();
        let tensor = tensors.tensor(name).ok()?;
        let data = tensor.data();
        let words = || data.as_chunks::<4>().0.iter();
        Some(Array {
            shape: tensor.shape().to_vec(),
            elements: match tensor.dtype() {
                Dtype::F32 => Elements::Floats(words().map(|b| f32::from_le_bytes(*b)).collect()),
                Dtype::I32 => {
                    Elements::Integers(words().map(|b| i32::from_le_bytes(*b).into()).collect())
                }
                Dtype::I8 => {
                    Elements::Integers(data.iter().map(|b| b.cast_signed().into()).collect())
                }
                Dtype::U8 => Elements::Integers(data.iter().map(|b| (*b).into()).collect()),
                other => panic!("{name}: {other:?}"),
            },
        })
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        match self.array(name).unwrap_or_else(|| panic!("no {name}")) {
            Array {
                elements: Elements::Floats(values),
                ..
            } => values,
            _ => panic!("{name} holds integers"),
        }
    }

    fn integers(&self, name: &str) -> (Vec<usize>, Vec<i64>) {
        match self.array(name).unwrap_or_else(|| panic!("no {name}")) {
            Array {
                elements: Elements::Integers(values),
                shape,
            } => (shape, values),
            _ => panic!("{name} holds floats"),
        }
    }

    /// The name of W or R of a layer, and what its scale's and zero point's names begin with.
    fn names(&self, layer: usize, letter: &str) -> (String, String) {
        let bases = [format!("{letter}{layer}"), letter.to_string()];
        let names = |base: &String| [format!("{base}_quantized"), base.clone()];
        let found = bases.iter().find_map(|base| {
            let name = names(base).into_iter().find(|n| self.array(n).is_some())?;
            Some((name, base.clone()))
        });
        found.unwrap_or_else(|| panic!("{}: no {letter} of layer {layer}", self.name))
    }

    fn stored(&self, layer: usize, letter: &str, direction: usize) -> Stored {
        let (name, base) = self.names(layer, letter);
        let (shape, numbers) = self.integers(&name);
        let scales = self.floats(&format!("{base}_scale"));
        let (_, zeros) = self.integers(&format!("{base}_zero_point"));
        let [directions, depth, rows] = shape[..] else {
            panic!("{name}: {shape:?}");
        };
        let at = |row: usize, all: usize| match all / directions {
            1 => direction,
            _ => direction * rows + row,
        };
        let distance = |row: usize, k: usize| {
            let q = numbers[(direction * depth + k) * rows + row];
            (q - zeros[at(row, zeros.len())]) as i32
        };
        let row = |row: usize| (0..depth).map(|k| distance(row, k)).collect();
        Stored {
            distances: (0..rows).map(row).collect(),
            scales: (0..rows).map(|row| scales[at(row, scales.len())]).collect(),
        }
    }

    fn input(&self) -> OwnedInput {
        let ports = &self.model.interface().inputs;
        let arrays = ports.iter().map(|port| port.name.clone());
        let arrays = arrays.map(|name| (name.clone(), self.array(&name).unwrap()));
        let arrays: Vec<_> = arrays.collect();
        ArrayMap::new(&self.model).input(&arrays).unwrap()
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// A matrix that has these whole numbers and scales, and the values they stand for.
fn assert_holds(matrix: &Matrix, whole: &[Vec<i32>], scales: &[f32], what: &str) {
    assert_eq!(matrix.precision(), Precision::Int8, "{what}");
    assert_eq!(matrix.rows(), whole.len(), "{what}");
    assert_eq!(bits(matrix.scales()), bits(scales), "{what}");
    for (row, expected) in whole.iter().enumerate() {
        let found: Vec<i32> = matrix.int8_row(row).iter().map(|q| i32::from(*q)).collect();
        assert_eq!(found, *expected, "{what}: row {row}");
        let values: Vec<f32> = expected.iter().map(|q| scales[row] * *q as f32).collect();
        assert_eq!(bits(&matrix.row(row)), bits(&values), "{what}: row {row}");
    }
}

#[test]
fn kept_and_requantised_weights() {
    for (name, expected) in CASES {
        let case = Case::open(name);
        assert_eq!(case.model.precision(), Some(Precision::Int8), "{name}");
        let mut report = case.model.quantised().iter();
        let mut fates = expected.iter();
        for (index, layer) in case.model.layers().iter().enumerate() {
            for (at, direction) in layer.directions().iter().enumerate() {
                let weights = direction.weights();
                for (letter, kind, matrix) in [
                    ("W", MatrixKind::Input, &weights.input),
                    ("R", MatrixKind::Recurrent, &weights.recurrent),
                ] {
                    let what = format!("{name}: {letter}, layer {index}, direction {at}");
                    let said = report.next().unwrap_or_else(|| panic!("{what}"));
                    let fate = *fates.next().unwrap_or_else(|| panic!("{what}"));
                    assert_eq!((said.layer, said.matrix), (index, kind), "{what}");
                    assert_eq!(said.reverse, direction.is_reverse(), "{what}");
                    assert_eq!(said.tensor, case.names(index, letter).0, "{what}");
                    assert_eq!(said.requantised, fate, "{what}");

                    let stored = case.stored(index, letter, at);
                    if fate.is_none() {
                        let scales = reordered(&stored.scales);
                        assert_holds(matrix, &reordered(&stored.distances), &scales, &what);
                        continue;
                    }
                    let (mut whole, mut scales) = (Vec::new(), Vec::new());
                    for row in reordered(&stored.values()) {
                        let most = row.iter().fold(0.0f32, |most, v| most.max(v.abs()));
                        let scale = most / 127.0;
                        let round = |v: &f32| (v / scale).round_ties_even() as i32;
                        whole.push(row.iter().map(round).collect());
                        scales.push(scale);
                    }
                    assert_holds(matrix, &whole, &scales, &what);
                }
            }
        }
        assert!(report.next().is_none() && fates.next().is_none(), "{name}");
    }
}

#[test]
fn sessions_give_the_references_bits() {
    for (name, _) in CASES {
        let case = Case::open(name);
        let map = ArrayMap::new(&case.model);
        let input = case.input();
        let mut expected = map.output_buffers(&input);
        reference::run(&case.model, &input.borrow(), &mut expected.borrow()).unwrap();
        for threads in [1, 2] {
            let plan = Plan::with_threads(&case.model, input.batch, input.steps, threads);
            let mut session = Session::new(&case.model, &plan).unwrap();
            let mut found = map.output_buffers(&input);
            for values in [&mut found.values, &mut found.hn, &mut found.cn] {
                values.fill(f32::NAN);
            }
            session.run(&input.borrow(), &mut found.borrow()).unwrap();
            for (found, expected) in [
                (&found.values, &expected.values),
                (&found.hn, &expected.hn),
                (&found.cn, &expected.cn),
            ] {
                assert_eq!(bits(found), bits(expected), "{name}: {threads} threads");
            }
        }
    }
}

/// What ONNX Runtime's products and activations add to exact arithmetic.
const ARITHMETIC: f64 = 1e-5;

/// How far the answers that a case's graph outputs hold lie outside of `ranges`, and the widest
/// range.
fn outside(case: &Case, input: &OwnedInput, ranges: &Ranges, answers: &Answers) -> (f64, f64) {
    let map = ArrayMap::new(&case.model);
    let ends = |end: fn(&Range) -> f64| {
        let list = |ranges: &[Range]| ranges.iter().map(|r| end(r) as f32).collect();
        OwnedOutput {
            values: list(&ranges.values),
            hn: list(&ranges.hn),
            cn: list(&ranges.cn),
        }
    };
    let (low, high) = (ends(|r| r.low), ends(|r| r.high));
    let (mut most, mut width) = (0.0f64, 0.0f64);
    for port in &case.model.interface().outputs {
        let of = |results: &OwnedOutput| match map.output(&port.name, input, results).unwrap() {
            Array {
                elements: Elements::Floats(values),
                ..
            } => values,
            _ => panic!("{} holds integers", port.name),
        };
        let found = match answers {
            Answers::Ours(results) => of(results),
            Answers::OnnxRuntime => case.floats(&port.name),
        };
        let (low, high) = (of(&low), of(&high));
        assert_eq!(found.len(), low.len(), "{}: {}", case.name, port.name);
        for ((found, low), high) in found.iter().zip(low).zip(high) {
            assert!(found.is_finite());
            most = most.max(f64::from(low - found).max(f64::from(found - high)));
            width = width.max(f64::from(high - low));
        }
    }
    (most, width)
}

enum Answers {
    Ours(OwnedOutput),
    OnnxRuntime,
}

#[test]
fn outputs_within_rounding_of_onnx_runtime() {
    for (name, _) in CASES {
        let case = Case::open(name);
        let input = case.input();
        let mut results = ArrayMap::new(&case.model).output_buffers(&input);
        reference::run(&case.model, &input.borrow(), &mut results.borrow()).unwrap();
        let widen = |row: &[f32]| row.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
        let model = |_, direction: &gatestream::model::Direction| {
            let weights = direction.weights();
            [&weights.input, &weights.recurrent]
                .map(|m| -> Rows { (0..m.rows()).map(|row| widen(&m.row(row))).collect() })
        };
        let ours = enclose(&case.model, &input, Rounding::ByRow, model);
        let (most, width) = outside(&case, &input, &ours, &Answers::Ours(results));
        assert!(most < ARITHMETIC, "{name}: outside by {most}");
        assert!(width < 0.1, "{name}: {width} would explain anything");

        let from_file = |order: [usize; 4]| {
            let case = &case;
            move |layer: usize, direction: &gatestream::model::Direction| {
                let all = case.model.layers()[layer].directions();
                let at = usize::from(all.len() == 2 && direction.is_reverse());
                ["W", "R"].map(|letter| -> Rows {
                    let rows = reordered(&case.stored(layer, letter, at).values());
                    let block = rows.len() / 4;
                    let rows = order.iter().flat_map(|g| &rows[g * block..(g + 1) * block]);
                    rows.map(|row| widen(row)).collect()
                })
            }
        };
        let theirs = enclose(
            &case.model,
            &input,
            Rounding::Together,
            from_file([0, 1, 2, 3]),
        );
        let (most, width) = outside(&case, &input, &theirs, &Answers::OnnxRuntime);
        assert!(most < ARITHMETIC, "{name}: ONNX Runtime outside by {most}");
        assert!(width < 0.1, "{name}: {width} would explain anything");
        // That this says something: with any two gates exchanged it does not hold.
        for order in [[1, 0, 2, 3], [3, 1, 2, 0], [0, 3, 2, 1], [0, 2, 1, 3]] {
            let wrong = enclose(&case.model, &input, Rounding::Together, from_file(order));
            let (most, _) = outside(&case, &input, &wrong, &Answers::OnnxRuntime);
            assert!(
                most > 100.0 * ARITHMETIC,
                "{name}: {order:?} explains it too"
            );
        }
    }
}

#[test]
fn what_becomes_another_precision_is_no_longer_reported() {
    let model = Case::open("stack").model;
    let whole = model.in_precision(Precision::Int8).unwrap();
    assert_eq!(whole, model);
    assert_eq!(whole.quantised(), model.quantised());
    let half = [Precision::Int8, Precision::Bf16];
    let half = model.in_precisions(&half).unwrap();
    assert_eq!(half.quantised(), &model.quantised()[..4]);
    let floats = model.in_precision(Precision::F32).unwrap();
    assert!(floats.quantised().is_empty());
}
