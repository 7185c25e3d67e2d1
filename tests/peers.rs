//! The reference against PyTorch and ONNX Runtime, on answers kept in `tests/fixtures/peers` (its
//! README says what they hold and how they were made), and both against a float64 run of the same
//! formulas. Sessions of one and of two threads must give the reference's bits.
//!
//! `cargo test --test peers -- --nocapture` prints whose rounding error is the larger.

use std::path::Path;

use gatestream::execute::Session;
use gatestream::model::{
    Activation, Cell, Direction, Input, Layer, Layout, Matrix, Merge, Model, Output, Peepholes,
    ResetForm, Weights,
};
use gatestream::plan::Plan;
use gatestream::reference;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// What two float32 runs of the same formulas may differ by: 2e-6 for one step of one layer, rising
/// in a straight line to 1e-5 at 100, for values up to 1, and in proportion to larger ones.
fn tolerance(case: &Case) -> f64 {
    let depth = (case.number("steps") * case.number("layers")).min(100) as f64;
    let magnitude = case.meta["magnitude"].as_f64().unwrap().max(1.0);
    (2e-6 + 8e-6 * (depth - 1.0) / 99.0) * magnitude
}

#[test]
fn lstm_answers_as_pytorch() {
    compare("torch_lstm", 26);
}

#[test]
fn gru_answers_as_pytorch() {
    compare("torch_gru", 21);
}

#[test]
fn rnn_answers_as_pytorch() {
    compare("torch_rnn", 24);
}

#[test]
fn lstm_answers_as_onnx_runtime() {
    compare("onnx_lstm", 53);
}

#[test]
fn gru_answers_as_onnx_runtime() {
    compare("onnx_gru", 63);
}

#[test]
fn rnn_answers_as_onnx_runtime() {
    compare("onnx_rnn", 40);
}

/// Largest differences over the arrays of one case.
#[derive(Clone, Copy, Default)]
struct Errors {
    ours_to_peer: f64,
    ours_to_f64: f64,
    peer_to_f64: f64,
}

impl Errors {
    fn max(self, other: Errors) -> Errors {
        Errors {
            ours_to_peer: self.ours_to_peer.max(other.ours_to_peer),
            ours_to_f64: self.ours_to_f64.max(other.ours_to_f64),
            peer_to_f64: self.peer_to_f64.max(other.peer_to_f64),
        }
    }
}

/// Runs every case of one file, prints the table, then fails on all that differ at once.
fn compare(file: &str, cases: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/peers")
        .join(file)
        .with_extension("safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let metas = &header.metadata().as_ref().unwrap()["cases"];
    let metas: serde_json::Map<String, Value> = serde_json::from_str(metas).unwrap();
    assert_eq!(metas.len(), cases, "{file}: number of cases");

    let mut wrong = Vec::new();
    let mut less_accurate = String::new();
    let mut table: Vec<(&str, usize, usize, Errors)> = ["one step", "a few steps", "100 steps"]
        .map(|depth| (depth, 0, 0, Errors::default()))
        .to_vec();
    for (name, meta) in &metas {
        let case = Case {
            name,
            meta,
            tensors: &tensors,
        };
        let (errors, complaints) = case.compare();
        let row = &mut table[match case.number("steps") {
            1 => 0,
            100 => 2,
            _ => 1,
        }];
        row.1 += 1;
        row.2 += usize::from(errors.peer_to_f64 > errors.ours_to_f64);
        row.3 = row.3.max(errors);
        if errors.peer_to_f64 > 2.0 * errors.ours_to_f64 {
            less_accurate += &format!(
                "{file}/{name}: ours {:.1e}, the peer {:.1e}\n",
                errors.ours_to_f64, errors.peer_to_f64
            );
        }
        wrong.extend(complaints);
    }
    let mut lines = String::new();
    for (depth, count, peer_worse, e) in table {
        lines += &format!(
            "| {file} | {depth} | {count} | {:.1e} | {:.1e} | {:.1e} | {peer_worse} |\n",
            e.ours_to_peer, e.ours_to_f64, e.peer_to_f64
        );
    }
    println!(
        "| file | depth | cases | ours to peer | ours to f64 | peer to f64 | peer less accurate \
         in |\n{lines}more than twice our error:\n{less_accurate}"
    );
    assert!(
        wrong.is_empty(),
        "{file}: {} complaints in {cases} cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// One case of a file: its description, and the arrays whose names start with its name.
struct Case<'a> {
    name: &'a str,
    meta: &'a Value,
    tensors: &'a SafeTensors<'a>,
}

/// An array of a fixture, widened.
struct Array {
    shape: Vec<usize>,
    values: Vec<f64>,
}

impl Array {
    fn f32(&self) -> Vec<f32> {
        self.values.iter().map(|&v| v as f32).collect()
    }

    /// The values with axes in the order `to`, given that they are in the order `from`.
    fn permuted(&self, from: &str, to: &str) -> Vec<f64> {
        let stride = |axis: usize| self.shape[axis + 1..].iter().product::<usize>();
        let axes: Vec<usize> = to.chars().map(|c| from.find(c).unwrap()).collect();
        let mut offsets = vec![0];
        for axis in axes {
            let along = |base: usize| (0..self.shape[axis]).map(move |i| base + i * stride(axis));
            offsets = offsets.into_iter().flat_map(along).collect();
        }
        offsets.into_iter().map(|o| self.values[o]).collect()
    }
}

impl Case<'_> {
    fn number(&self, key: &str) -> usize {
        self.meta[key].as_u64().unwrap() as usize
    }

    fn text(&self, key: &str) -> &str {
        self.meta[key].as_str().unwrap()
    }

    fn flag(&self, key: &str) -> bool {
        self.meta[key].as_bool().unwrap_or(false)
    }

    fn array(&self, key: &str) -> Option<Array> {
        let tensor = self.tensors.tensor(&format!("{}/{key}", self.name)).ok()?;
        let bytes = tensor.data();
        let values = match tensor.dtype() {
            Dtype::F32 => bytes
                .as_chunks()
                .0
                .iter()
                .map(|&b| f32::from_le_bytes(b).into())
                .collect(),
            Dtype::F64 => bytes
                .as_chunks()
                .0
                .iter()
                .map(|&b| f64::from_le_bytes(b))
                .collect(),
            Dtype::I64 => bytes
                .as_chunks()
                .0
                .iter()
                .map(|&b| i64::from_le_bytes(b) as f64)
                .collect(),
            other => panic!("{}/{key}: {other:?}", self.name),
        };
        Some(Array {
            shape: tensor.shape().to_vec(),
            values,
        })
    }

    /// A 2- or 1-dimensional array as a matrix, a vector being one row.
    fn matrix(&self, key: &str) -> Option<Matrix> {
        let array = self.array(key)?;
        let cols = *array.shape.last().unwrap();
        Some(Matrix::new(array.values.len() / cols, cols, array.f32()).unwrap())
    }

    /// The activations of one direction.
    fn activations(&self, direction: usize) -> Vec<Activation> {
        let list = self.meta["activations"][direction].as_array().unwrap();
        list.iter()
            .map(|entry| {
                let parameter = |at: usize| entry[at].as_f64().map(|v| v as f32).unwrap();
                let (alpha, beta) = (|| parameter(1), || parameter(2));
                match entry[0].as_str().unwrap() {
                    "Sigmoid" => Activation::Sigmoid,
                    "Tanh" => Activation::Tanh,
                    "Relu" => Activation::Relu,
                    "Affine" => Activation::Affine {
                        alpha: alpha(),
                        beta: beta(),
                    },
                    "LeakyRelu" => Activation::LeakyRelu { alpha: alpha() },
                    "ThresholdedRelu" => Activation::ThresholdedRelu { alpha: alpha() },
                    "ScaledTanh" => Activation::ScaledTanh {
                        alpha: alpha(),
                        beta: beta(),
                    },
                    "HardSigmoid" => Activation::HardSigmoid {
                        alpha: alpha(),
                        beta: beta(),
                    },
                    "Elu" => Activation::Elu { alpha: alpha() },
                    "Softsign" => Activation::Softsign,
                    "Softplus" => Activation::Softplus,
                    other => panic!("activation {other}"),
                }
            })
            .collect()
    }

    fn cell(&self, direction: usize) -> Cell {
        let activations = self.activations(direction);
        match (self.text("cell"), &activations[..]) {
            ("lstm", &[gate, candidate, output]) => Cell::Lstm {
                gate,
                candidate,
                output,
                input_forget: self.flag("input_forget"),
            },
            ("gru", &[gate, candidate]) => Cell::Gru {
                gate,
                candidate,
                reset: match self.text("reset") {
                    "before" => ResetForm::Before,
                    "after" => ResetForm::After,
                    other => panic!("reset {other}"),
                },
            },
            ("rnn", &[activation]) => Cell::Rnn { activation },
            other => panic!("{}: {other:?}", self.name),
        }
    }

    /// PyTorch's weights of one direction of one layer.
    fn torch_weights(&self, layer: usize, reverse: bool) -> Weights {
        let end = format!("_l{layer}{}", if reverse { "_reverse" } else { "" });
        let matrix = |kind: &str| self.matrix(&format!("{kind}{end}"));
        let input = matrix("weight_ih").unwrap();
        let bias =
            |kind| matrix(kind).map_or(vec![0.0; input.rows()], |m: Matrix| m.data().to_vec());
        Weights {
            recurrent: matrix("weight_hh").unwrap(),
            input_bias: bias("bias_ih"),
            recurrent_bias: bias("bias_hh"),
            peepholes: None,
            projection: matrix("weight_hr"),
            input,
        }
    }

    /// ONNX's weights of one direction, gates from ONNX's order to PyTorch's.
    fn onnx_weights(&self, direction: usize) -> Weights {
        let gates: &[usize] = match self.text("cell") {
            "lstm" => &[0, 2, 3, 1], // stored as input, output, forget, candidate
            "gru" => &[1, 0, 2],     // stored as update, reset, new
            _ => &[0],
        };
        let part = |key: &str| -> Option<(Vec<f32>, usize)> {
            let array = self.array(key)?;
            let size = array.values.len() / array.shape[0];
            let values = array.f32()[direction * size..][..size].to_vec();
            Some((values, *array.shape.last().unwrap()))
        };
        let reordered = |values: &[f32]| -> Vec<f32> {
            let gate = values.len() / gates.len();
            let rows = gates.iter().map(|g| &values[g * gate..][..gate]);
            rows.collect::<Vec<_>>().concat()
        };
        let matrix = |key| {
            let (values, cols) = part(key).unwrap();
            Matrix::new(values.len() / cols, cols, reordered(&values)).unwrap()
        };
        let input = matrix("W");
        let biases = part("B").map_or(vec![0.0; 2 * input.rows()], |(values, _)| values);
        let (input_bias, recurrent_bias) = biases.split_at(input.rows());
        Weights {
            recurrent: matrix("R"),
            input_bias: reordered(input_bias),
            recurrent_bias: reordered(recurrent_bias),
            peepholes: part("P").map(|(values, _)| {
                let [input, output, forget] =
                    [0, 1, 2].map(|n| values[n * values.len() / 3..][..values.len() / 3].to_vec());
                Peepholes {
                    input,
                    forget,
                    output,
                }
            }),
            projection: None,
            input,
        }
    }

    fn model(&self) -> Model {
        let from_torch = self.text("peer").starts_with("torch");
        let layers = (0..self.number("layers")).map(|layer| {
            let direction = |which: usize| {
                let weights = if from_torch {
                    self.torch_weights(layer, which == 1)
                } else {
                    self.onnx_weights(which)
                };
                let direction = Direction::new(self.cell(which), weights).unwrap();
                match self.meta["clip"].as_f64() {
                    Some(clip) => direction.with_clip(clip as f32).unwrap(),
                    None => direction,
                }
            };
            match self.text("direction") {
                "forward" => Layer::single(direction(0)),
                "reverse" => Layer::single(direction(0).reversed()),
                _ => Layer::bidirectional(direction(0), direction(1), Merge::Concat).unwrap(),
            }
        });
        Model::new(layers.collect()).unwrap()
    }

    /// Runs the reference and measures it and the peer; with a line for each thing that is wrong.
    fn compare(&self) -> (Errors, Vec<String>) {
        let model = self.model();
        let (steps, batch) = (self.number("steps"), self.number("batch"));
        let input = self.array("input").unwrap().f32();
        let states = self.text("state_axes");
        let canonical = |key: &str| self.array(key).map(|a| a.permuted(states, "DBF"));
        let initial = |key: &str| -> Option<Vec<f32>> {
            Some(canonical(key)?.iter().map(|&v| v as f32).collect())
        };
        let (h0, c0) = (initial("h0").unwrap(), initial("c0"));
        let lengths: Vec<usize> = self
            .array("lengths")
            .unwrap()
            .values
            .iter()
            .map(|&l| l as usize)
            .collect();
        let (layout, order) = match self.text("input_axes") {
            "BTF" => (Layout::BatchMajor, "BTDF"),
            _ => (Layout::TimeMajor, "TBDF"),
        };

        let sizes = model.signature();
        // Dirty, so that what is not written shows.
        let mut output = vec![f32::NAN; steps * batch * sizes.output];
        let mut hn = vec![f32::NAN; batch * sizes.hidden_state];
        let mut cn = vec![f32::NAN; batch * sizes.cell_state];
        let mut given = Input::new(&input, steps, batch).layout(layout);
        // What the peer was not given is left out here too.
        if self.flag("lengths_given") {
            given = given.lengths(&lengths);
        }
        if self.flag("states_given") {
            given = given.h0(&h0);
            if let Some(c0) = &c0 {
                given = given.c0(c0);
            }
        }
        let mut wanted = Output::new(&mut output).hn(&mut hn).cn(&mut cn);
        reference::run(&model, &given, &mut wanted).unwrap();

        let mut wrong = self.sessions_differ(&model, &given, [&output, &hn, &cn]);
        let tolerance = tolerance(self);
        let mut all = Errors::default();
        for (key, ours, axes, order) in [
            ("output", &output, self.text("output_axes"), order),
            ("hn", &hn, states, "DBF"),
            ("cn", &cn, states, "DBF"),
        ] {
            if key == "cn" && c0.is_none() {
                continue;
            }
            let read = |key: &str| self.output(key, axes, order);
            let (peer, exact) = (read(key), read(&format!("{key}_f64")));
            assert_eq!(
                (peer.len(), exact.len()),
                (ours.len(), ours.len()),
                "{}/{key}",
                self.name
            );
            let mut e = Errors::default();
            for (at, &mine) in ours.iter().enumerate() {
                let mine = f64::from(mine);
                // NaN must not pass: f64::max would drop it.
                let distance = |a: f64, b: f64| match (a - b).abs() {
                    d if d.is_nan() => f64::INFINITY,
                    d => d,
                };
                e.ours_to_f64 = e.ours_to_f64.max(distance(mine, exact[at]));
                if key != "output" && self.forgotten(at, ours.len(), &lengths) {
                    // The peer answers zero for the final state of an empty sequence; ours stays
                    // what it was given.
                    let initial = if key == "hn" {
                        &h0
                    } else {
                        c0.as_ref().unwrap()
                    };
                    if peer[at] != 0.0 || ours[at].to_bits() != initial[at].to_bits() {
                        wrong.push(format!(
                            "{}/{key}: final state of an empty sequence",
                            self.name
                        ));
                    }
                    continue;
                }
                e.ours_to_peer = e.ours_to_peer.max(distance(mine, peer[at]));
                e.peer_to_f64 = e.peer_to_f64.max(distance(peer[at], exact[at]));
            }
            let recorded = self.meta["peer_error"][key].as_f64().unwrap();
            if (e.peer_to_f64 - recorded).abs() > 0.01 * recorded {
                wrong.push(format!(
                    "{}/{key}: the file holds a peer error of {:.3e}, its description says \
                     {recorded:.3e}",
                    self.name, e.peer_to_f64
                ));
            }
            if e.ours_to_peer > tolerance || e.ours_to_f64 > tolerance {
                wrong.push(format!(
                    "{}/{key}: {:.2e} from {}, {:.2e} from f64 (the peer: {:.2e}), allowed \
                     {tolerance:.1e}",
                    self.name,
                    e.ours_to_peer,
                    self.text("peer"),
                    e.ours_to_f64,
                    e.peer_to_f64
                ));
            }
            all = all.max(e);
        }
        (all, wrong)
    }

    /// Runs sessions of one and two threads; with a line for each value whose bits are not
    /// `expected`.
    fn sessions_differ(
        &self,
        model: &Model,
        input: &Input<'_>,
        expected: [&Vec<f32>; 3],
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        for threads in [1, 2] {
            let plan = Plan::with_threads(model, input.batch, input.steps, threads);
            let mut session = Session::new(model, &plan).unwrap();
            // Dirty with another value than the reference's, so that what neither writes shows.
            let [mut values, mut hn, mut cn] = expected.map(|e| vec![f32::INFINITY; e.len()]);
            let mut output = Output::new(&mut values).hn(&mut hn).cn(&mut cn);
            session.run(input, &mut output).unwrap();
            for (found, expected, key) in [
                (values, expected[0], "output"),
                (hn, expected[1], "hn"),
                (cn, expected[2], "cn"),
            ] {
                let mut pairs = found.iter().zip(expected);
                if let Some(at) = pairs.position(|(a, b)| a.to_bits() != b.to_bits()) {
                    wrong.push(format!(
                        "{}/{key}[{at}]: {threads} threads give {:e}, the reference {:e}",
                        self.name, found[at], expected[at]
                    ));
                }
            }
        }
        wrong
    }

    /// An output array in the order of axes that the reference writes.
    fn output(&self, key: &str, axes: &str, order: &str) -> Vec<f64> {
        let mut array = self.array(key).unwrap();
        if axes == "TBDF" || axes == "BTDF" {
            // PyTorch folds directions and features into one axis, which changes no order.
            assert_eq!(axes, order);
            let features = array.shape.pop().unwrap();
            let directions = if array.shape.len() == 3 {
                array.shape.pop().unwrap()
            } else {
                1
            };
            array.shape.extend([directions, features]);
        }
        array.permuted(axes, order)
    }

    /// Whether a value of a state `[D, B, F]` belongs to an empty sequence whose peer forgot it.
    fn forgotten(&self, at: usize, count: usize, lengths: &[usize]) -> bool {
        let directions = if self.text("direction") == "bidirectional" {
            2
        } else {
            1
        };
        let features = count / (directions * lengths.len());
        self.flag("peer_forgets_empty_sequences") && lengths[at / features % lengths.len()] == 0
    }
}
