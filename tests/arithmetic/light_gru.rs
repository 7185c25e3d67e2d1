//! The light GRU against loops of its own in `f64`, written from the paper's formulas.

use std::collections::HashMap;

use gatestream::execute::{Session, State};
use gatestream::model::{
    BatchNorm, Cell, Layer, LightGru, LoadError, Matrix, Merge, Model, ModelError, Precision,
    SafetensorsOptions, Weights,
};
use gatestream::plan::Plan;
use gatestream::schedule::schedules;
use safetensors::{Dtype, tensor::TensorView};

use crate::common::{Batch, Options, Random, Results};

/// `h'` for each unit: `z = σ(W_z x + U_z h)`, `n = ReLU(W_n x + U_n h)`, `z h + (1 - z) n`.
fn step(of_x: &[f64], weights: &Weights, h: &[f64]) -> Vec<f64> {
    let hidden = h.len();
    let of_h = |row: usize| -> f64 {
        let weights = weights.recurrent.row(row);
        let terms = weights.iter().zip(h).map(|(w, h)| f64::from(*w) * h);
        terms.sum()
    };
    let unit = |j: usize| {
        let update = 1.0 / (1.0 + (-(of_x[j] + of_h(j))).exp());
        let candidate = (of_x[hidden + j] + of_h(hidden + j)).max(0.0);
        update * h[j] + (1.0 - update) * candidate
    };
    (0..hidden).map(unit).collect()
}

/// `W x` and the biases, by rows.
fn input_product(weights: &Weights, x: &[f64]) -> Vec<f64> {
    let row = |row: usize| {
        let of_row = weights.input.row(row);
        let terms = of_row.iter().zip(x).map(|(w, x)| f64::from(*w) * x);
        let biases = weights.input_bias[row] + weights.recurrent_bias[row];
        terms.sum::<f64>() + f64::from(biases)
    };
    (0..weights.input.rows()).map(row).collect()
}

fn run(model: &Model, plan: &Plan, batch: &Batch) -> Results {
    let mut found = Results::dirty(model, batch);
    let mut session = Session::new(model, plan).unwrap();
    session.run(&batch.input(), &mut found.output()).unwrap();
    found
}

#[test]
fn formulas_of_the_paper() {
    let mut random = Random::new(1);
    for (hidden, input) in [(1, 1), (17, 5), (40, 64)] {
        let model = LightGru::new(input, hidden).layers(2).random(3).unwrap();
        let batch = Batch::full(&mut random, &model, 1, 12);
        let found = run(&model, &Plan::with_threads(&model, 1, 12, 2), &batch);
        let wide = |values: &[f32]| values.iter().copied().map(f64::from).collect::<Vec<_>>();
        let mut xs: Vec<Vec<f64>> = batch.values.chunks(input).map(wide).collect();
        for layer in model.layers() {
            let weights = layer.directions()[0].weights();
            let mut h = vec![0.0; hidden];
            for x in &mut xs {
                h = step(&input_product(weights, x), weights, &h);
                x.clone_from(&h);
            }
        }
        let expected = xs.concat();
        assert_eq!(found.values.len(), expected.len());
        for (found, expected) in found.values.iter().zip(expected) {
            let error = (f64::from(*found) - expected).abs();
            assert!(error < 1e-5, "{found} for {expected}");
        }
    }
}

/// Each schedule, precision, direction and number of threads gives the bits of the reference.
#[test]
fn bits_of_all_plans() {
    let mut random = Random::new(2);
    for (number, precision) in Precision::ALL.into_iter().enumerate() {
        let direction = random.direction(Cell::LIGHT_GRU, 13, 40, Options::default());
        let all = schedules(&direction);
        let names: Vec<_> = all.iter().map(|schedule| schedule.to_string()).collect();
        assert_eq!(names, ["aa/11", "11/11", "a1/11", "1a/11"]);
        let below = Layer::single(direction);
        let above = random.layer(
            Cell::LIGHT_GRU,
            40,
            21,
            Options::default(),
            number as u8 + 1,
        );
        let model = Model::new(vec![below, above]).unwrap();
        let model = model.in_precision(precision).unwrap();
        let batch = Batch::ragged(&mut random, &model, 5, 9);
        let expected = Results::reference(&model, &batch);
        for schedule in all {
            let mut plan = random.plan(&model, batch.batch, batch.steps);
            for entry in &mut plan.entries {
                entry.configuration.layers[0].directions[0].schedule = schedule.clone();
            }
            let found = run(&model, &plan, &batch);
            found.assert_same(&expected, format_args!("{precision}, {plan:?}"));
        }
    }
}

#[test]
fn single_steps() {
    let mut random = Random::new(3);
    let model = LightGru::new(7, 33).layers(2).clip(0.7).random(5).unwrap();
    let batch = Batch::full(&mut random, &model, 3, 8);
    let expected = Results::reference(&model, &batch);
    let mut session = Session::new(&model, &Plan::with_threads(&model, 3, 1, 2)).unwrap();
    let mut state = State::zero(model.signature(), 3);
    let mut values = vec![0.0; expected.values.len()];
    for (x, y) in batch.values.chunks(3 * 7).zip(values.chunks_mut(3 * 33)) {
        session.step(x, &mut state, y).unwrap();
    }
    assert_eq!((values, state.h), (expected.values, expected.hn));
}

#[test]
fn saved_files() {
    let plain = LightGru::new(3, 4).layers(2).random(1).unwrap();
    let bidirectional = LightGru::new(3, 4).bidirectional(Merge::Sum).clip(2.0);
    for (name, model) in [
        ("plain", plain),
        ("other", bidirectional.random(2).unwrap()),
    ] {
        let path = std::env::temp_dir().join(format!("light_gru_{name}_{}", std::process::id()));
        model.save_safetensors(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let loaded = Model::from_safetensors(&bytes, &SafetensorsOptions::new()).unwrap();
        assert_eq!(loaded, model);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(
            text.contains(r#""gatestream.cell":"light_gru""#),
            name == "plain"
        );
        let other = SafetensorsOptions::new().cell(Cell::GRU);
        assert!(Model::from_safetensors(&bytes, &other).is_err());
    }
}

/// Normalising the products with the input gives what the folded weights give.
#[test]
fn folded_normalisation() {
    let (input, hidden) = (9, 20);
    let mut random = Random::new(4);
    let mut vector = |low: f32| -> Vec<f32> {
        let values = random.values(2 * hidden).into_iter();
        values.map(|value| low + 1.0 + value).collect()
    };
    let norm = BatchNorm {
        mean: vector(-1.0),
        variance: vector(0.1),
        gamma: vector(-1.0),
        beta: vector(-1.0),
        eps: 0.01,
    };
    let trained = LightGru::new(input, hidden).random(6).unwrap();
    let weights = trained.layers()[0].directions()[0].weights();
    let folded = norm.fold(weights).unwrap();
    let model = LightGru::new(input, hidden).build(|_| folded.clone());
    let model = model.unwrap();
    let batch = Batch::full(&mut Random::new(5), &model, 1, 10);
    let found = run(&model, &Plan::with_threads(&model, 1, 10, 1), &batch);

    let mut no_recurrent_bias = weights.clone();
    no_recurrent_bias.recurrent_bias.fill(0.0);
    let mut h = vec![0.0; hidden];
    for (x, y) in batch.values.chunks(input).zip(found.values.chunks(hidden)) {
        let x: Vec<f64> = x.iter().copied().map(f64::from).collect();
        let products = input_product(&no_recurrent_bias, &x);
        let normalised = products.iter().enumerate().map(|(row, product)| {
            let of = |values: &[f32]| f64::from(values[row]);
            let deviation = (of(&norm.variance) + f64::from(norm.eps)).sqrt();
            let normalised = of(&norm.gamma) * (product - of(&norm.mean)) / deviation;
            normalised + of(&norm.beta) + of(&weights.recurrent_bias)
        });
        h = step(&normalised.collect::<Vec<_>>(), weights, &h);
        for (found, expected) in y.iter().zip(&h) {
            let error = (f64::from(*found) - expected).abs();
            assert!(
                error < 1e-4 * expected.abs().max(1.0),
                "{found} for {expected}"
            );
        }
    }
}

#[test]
fn refused_normalisation() {
    let model = LightGru::new(2, 3).random(1).unwrap();
    let weights = model.layers()[0].directions()[0].weights();
    let norm = |rows: usize| BatchNorm {
        mean: vec![0.0; 6],
        variance: vec![1.0; rows],
        gamma: vec![1.0; 6],
        beta: vec![0.0; 6],
        eps: 0.0,
    };
    assert_eq!(norm(6).fold(weights).unwrap(), *weights);
    for variance in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let mut refused = norm(6);
        refused.variance[4] = variance;
        let refused = refused.fold(weights);
        assert!(matches!(refused, Err(ModelError::Variance { .. })));
    }
    let refused = norm(5).fold(weights);
    assert!(matches!(
        refused,
        Err(ModelError::Shape {
            tensor: "batch normalisation variance",
            ..
        })
    ));
    let half = Matrix::new(6, 2, vec![0.5; 12]).unwrap();
    let weights = Weights {
        input: half.in_precision(Precision::Bf16).unwrap(),
        ..weights.clone()
    };
    assert_eq!(norm(6).fold(&weights).unwrap().input, weights.input);
}

/// The names of the vectors of batch normalisation in files.
const NORM: [&str; 4] = ["norm_weight", "norm_bias", "norm_mean", "norm_var"];

/// A file with a light GRU of `hidden` units over `input` features in which normalisation is apart.
struct NormalisedFile {
    tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
    metadata: HashMap<String, String>,
}

impl NormalisedFile {
    fn new(input: usize, hidden: usize, directions: &[&str]) -> NormalisedFile {
        let (rows, mut random) = (2 * hidden, Random::new(8));
        let mut tensors = Vec::new();
        for suffix in directions {
            let mut push = |name: &str, shape: Vec<usize>, low: f32| {
                let values = random.values(shape.iter().product()).into_iter();
                let values = values.map(|value| value + low).collect();
                tensors.push((format!("{name}_{suffix}"), shape, values));
            };
            push("weight_ih", vec![rows, input], 0.0);
            push("weight_hh", vec![rows, hidden], 0.0);
            for name in ["bias_ih", "bias_hh", "norm_bias", "norm_mean"] {
                push(name, vec![rows], 0.0);
            }
            push("norm_weight", vec![rows], 0.5);
            push("norm_var", vec![rows], 1.5);
        }
        let metadata = [
            ("gatestream.cell", "light_gru"),
            ("gatestream.norm_eps", "0.25"),
        ];
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let metadata = HashMap::from(metadata);
        NormalisedFile { tensors, metadata }
    }

    fn tensor(&self, name: &str) -> &[f32] {
        let mut tensors = self.tensors.iter();
        &tensors.find(|(found, ..)| found == name).unwrap().2
    }

    fn load(&self) -> Result<Model, LoadError> {
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let data: Vec<Vec<u8>> = self
            .tensors
            .iter()
            .map(|(.., values)| bytes(values))
            .collect();
        let views = self
            .tensors
            .iter()
            .zip(&data)
            .map(|((name, shape, _), data)| {
                let view = TensorView::new(Dtype::F32, shape.clone(), data).unwrap();
                (name, view)
            });
        let file = safetensors::serialize(views, Some(self.metadata.clone())).unwrap();
        Model::from_safetensors(&file, &SafetensorsOptions::new())
    }

    /// The message that refuses the file after `change`.
    fn refusal(mut self, change: impl Fn(&mut Self)) -> String {
        change(&mut self);
        self.load().unwrap_err().to_string()
    }
}

/// `γ (W x + b_W - mean) / √(var + eps) + β + b_U` before the gates, in plain `f64` loops.
#[test]
fn normalised_files() {
    let (input, hidden, eps) = (6, 11, 0.25);
    let file = NormalisedFile::new(input, hidden, &["l0", "l0_reverse"]);
    let model = file.load().unwrap();
    let steps = 7;
    let batch = Batch::full(&mut Random::new(9), &model, 1, steps);
    let found = run(&model, &Plan::with_threads(&model, 1, steps, 2), &batch);
    for (number, suffix) in ["l0", "l0_reverse"].into_iter().enumerate() {
        let value = |name: &str, at: usize| f64::from(file.tensor(&format!("{name}_{suffix}"))[at]);
        let mut h = vec![0.0; hidden];
        for taken in 0..steps {
            let step = if number == 0 {
                taken
            } else {
                steps - 1 - taken
            };
            let mut z = vec![0.0; 2 * hidden];
            for (row, z) in z.iter_mut().enumerate() {
                let mut product = value("bias_ih", row);
                for k in 0..input {
                    product += value("weight_ih", row * input + k)
                        * f64::from(batch.values[step * input + k]);
                }
                let deviation = (value("norm_var", row) + eps).sqrt();
                *z = value("norm_weight", row) * (product - value("norm_mean", row)) / deviation;
                *z += value("norm_bias", row) + value("bias_hh", row);
                for (k, h) in h.iter().enumerate() {
                    *z += value("weight_hh", row * hidden + k) * h;
                }
            }
            for (j, h) in h.iter_mut().enumerate() {
                let update = 1.0 / (1.0 + (-z[j]).exp());
                *h = update * *h + (1.0 - update) * z[hidden + j].max(0.0);
                let found = f64::from(found.values[(step * 2 + number) * hidden + j]);
                assert!(
                    (found - *h).abs() < 1e-4 * h.abs().max(1.0),
                    "{found} for {h}"
                );
            }
        }
    }
    // Without the entry, eps is PyTorch's default.
    let mut default = NormalisedFile::new(input, hidden, &["l0"]);
    default.metadata.remove("gatestream.norm_eps");
    let mut stated = NormalisedFile::new(input, hidden, &["l0"]);
    stated
        .metadata
        .insert("gatestream.norm_eps".into(), "0.00001".into());
    assert_eq!(default.load().unwrap(), stated.load().unwrap());
}

#[test]
fn refused_normalised_files() {
    let file = || NormalisedFile::new(3, 4, &["l0"]);
    for name in NORM {
        let name = format!("{name}_l0");
        let missing = file().refusal(|file| file.tensors.retain(|(found, ..)| *found != name));
        assert!(
            missing.contains(&name) && missing.contains("is not in the file"),
            "{missing}"
        );
        for shape in [vec![7], vec![8, 1]] {
            let shaped = file().refusal(|file| {
                let found = file.tensors.iter_mut().find(|(found, ..)| *found == name);
                let (_, at, values) = found.unwrap();
                at.clone_from(&shape);
                values.truncate(shape.iter().product());
            });
            assert!(
                shaped.contains(&name) && shaped.contains("has shape"),
                "{shaped}"
            );
        }
    }
    let unnamed = file().refusal(|file| {
        file.metadata.remove("gatestream.cell");
    });
    for hint in ["2 (light_gru)", "4 (lstm)", "gatestream.cell"] {
        assert!(unnamed.contains(hint), "{unnamed}");
    }
    for value in [-0.25, f32::NAN, f32::INFINITY] {
        let variance = file().refusal(|file| file.tensors.last_mut().unwrap().2[5] = value);
        assert!(variance.contains("norm_var_l0"), "{variance}");
    }
    for eps in ["-1", "inf", "NaN", "small"] {
        let refused = file().refusal(|file| {
            file.metadata
                .insert("gatestream.norm_eps".into(), eps.into());
        });
        assert!(
            refused.contains("gatestream.norm_eps") && refused.contains(eps),
            "{refused}"
        );
    }
    let unused = file().refusal(|file| file.tensors.retain(|(name, ..)| !name.contains("norm")));
    assert!(unused.contains("gatestream.norm_eps"), "{unused}");
}
