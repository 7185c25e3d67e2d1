//! The layers around a recurrent core against PyTorch's answers
//! (`tests/fixtures/layers/make.py`), and bit by bit against plain loops, on every instruction set
//! and on one and two threads.

#[path = "common/isas.rs"]
mod isas;

use gatestream::execute::team::{SharedTeam, Team};
use gatestream::kernels::{Activation, Isa};
use gatestream::layers::{
    Attention, AttentionFlow, AttentionSum, CosineSimilarity, Highway, HighwayWeights, LayerError,
    MaxOverTime, Mlp, Score, Sequences, Softmax,
};
use gatestream::model::{Matrix, Precision};
use gatestream::reference;
use safetensors::SafeTensors;

/// What two float32 runs of the same formulas may differ by.
const TOLERANCE: f32 = 2e-5;

const BATCH: usize = 3;
const STEPS: usize = 13;
const QUERIES: usize = 5;
const FEATURES: usize = 22;
const QUERY_FEATURES: usize = 19;

struct Fixture(SafeTensors<'static>);

impl Fixture {
    fn open() -> Fixture {
        let bytes = include_bytes!("fixtures/layers/layers.safetensors");
        Fixture(SafeTensors::deserialize(bytes).unwrap())
    }

    fn values(&self, name: &str) -> Vec<f32> {
        let bytes = self.0.tensor(name).unwrap().data();
        let floats = bytes.chunks(4).map(|b| b.try_into().unwrap());
        floats.map(f32::from_le_bytes).collect()
    }

    fn whole(&self, name: &str) -> Vec<usize> {
        let bytes = self.0.tensor(name).unwrap().data();
        let numbers = bytes.chunks(8).map(|b| b.try_into().unwrap());
        numbers.map(|b| i64::from_le_bytes(b) as usize).collect()
    }

    fn matrix(&self, name: &str) -> Matrix {
        let shape = self.0.tensor(name).unwrap().shape().to_vec();
        Matrix::new(shape[0], shape[1], self.values(name)).unwrap()
    }
}

/// Every instruction set of this machine, with teams of one and two threads.
fn each_way(run: impl Fn(&SharedTeam, Isa)) {
    for threads in [1, 2] {
        let team = SharedTeam::new(Team::with_threads(threads).unwrap());
        for &isa in isas::isas() {
            run(&team, isa);
        }
    }
}

#[track_caller]
fn assert_bits(found: &[f32], expected: &[f32], case: &str) {
    let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(found), bits(expected), "{case}");
}

#[track_caller]
fn assert_near(found: &[f32], expected: &[f32], case: &str) {
    assert_eq!(found.len(), expected.len(), "{case}");
    for (at, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() < TOLERANCE, "{case}, {at}: {f}, not {e}");
    }
}

#[test]
fn perceptron() {
    let fixture = Fixture::open();
    let x = fixture.values("all.memory");
    let weights = [0, 1].map(|layer| fixture.matrix(&format!("mlp.weight_{layer}")));
    let bias = [0, 1].map(|layer| fixture.values(&format!("mlp.bias_{layer}")));
    let activations = [Some(Activation::Tanh), Some(Activation::Relu)];
    let plain = |weights: &[Matrix; 2], x: &[f32]| {
        let mut y = x.to_vec();
        for layer in 0..2 {
            y = reference::dense_activated(&weights[layer], &bias[layer], activations[layer], &y);
        }
        y
    };
    for precision in Precision::ALL {
        let weights = weights
            .each_ref()
            .map(|w| w.in_precision(precision).unwrap());
        let rows = x.chunks(FEATURES);
        let expected: Vec<f32> = rows.flat_map(|x| plain(&weights, x)).collect();
        if precision == Precision::F32 {
            assert_near(&expected, &fixture.values("mlp.y"), "mlp");
        }
        each_way(|team, isa| {
            let mut mlp = Mlp::new(isa).unwrap();
            for layer in 0..2 {
                mlp.push(team, &weights[layer], &bias[layer], activations[layer])
                    .unwrap();
            }
            for rows in [39, 1, 2, 0] {
                let mut y = vec![f32::NAN; rows * mlp.outputs()];
                mlp.run(team, &x[..rows * FEATURES], &mut y).unwrap();
                let expected = &expected[..y.len()];
                assert_bits(&y, expected, &format!("{precision} {isa}, {rows} rows"));
            }
        });
    }
}

#[test]
fn highway_layers() {
    let fixture = Fixture::open();
    let x = fixture.values("all.memory");
    let part = |name: &str, layer: usize| format!("highway.{name}_{layer}");
    let layers: Vec<_> = (0..2)
        .map(|layer| {
            let matrix = |name| fixture.matrix(&part(name, layer));
            let values = |name| fixture.values(&part(name, layer));
            let matrices = (matrix("transform"), matrix("gate"));
            (matrices, (values("transform_bias"), values("gate_bias")))
        })
        .collect();
    let mut expected = Vec::new();
    for x in x.chunks(FEATURES) {
        let mut x = x.to_vec();
        for ((transform, gate), (transform_bias, gate_bias)) in &layers {
            let dense = reference::dense_activated;
            let t = dense(gate, gate_bias, Some(Activation::Sigmoid), &x);
            let h = dense(transform, transform_bias, Some(Activation::Relu), &x);
            x = reference::highway(&t, &h, &x);
        }
        expected.extend(x);
    }
    assert_near(&expected, &fixture.values("highway.y"), "highway");
    let weights: Vec<_> = (layers.iter())
        .map(
            |((transform, gate), (transform_bias, gate_bias))| HighwayWeights {
                transform,
                transform_bias,
                gate,
                gate_bias,
                activation: Activation::Relu,
            },
        )
        .collect();
    each_way(|team, isa| {
        let mut highway = Highway::new(team, &weights, isa).unwrap();
        for rows in [39, 1, 0] {
            let mut y = x[..rows * FEATURES].to_vec();
            highway.run(team, &mut y).unwrap();
            assert_bits(&y, &expected[..y.len()], &format!("{isa}, {rows} rows"));
        }
    });
}

#[test]
fn maxima_softmax_and_cosine() {
    let fixture = Fixture::open();
    let x = fixture.values("all.memory");
    let lengths = fixture.whole("lengths");
    let sequences = Sequences::new(&x, BATCH, STEPS, FEATURES).lengths(&lengths);
    each_way(|team, isa| {
        let mut y = vec![f32::NAN; BATCH * FEATURES];
        let pooling = MaxOverTime::new(isa).unwrap();
        pooling.run(team, &sequences, &mut y).unwrap();
        assert_bits(&y, &fixture.values("max_over_time.y"), &format!("{isa}"));

        let mut rows = x.clone();
        let softmax = Softmax::new(isa).unwrap();
        softmax.run(team, &mut rows, FEATURES).unwrap();
        let expected: Vec<f32> = x.chunks(FEATURES).flat_map(reference::softmax).collect();
        assert_bits(&rows, &expected, &format!("{isa}"));
        assert_near(&rows, &fixture.values("softmax.y"), "softmax");

        let cosine = CosineSimilarity::new(1e-8, isa).unwrap();
        let mut y = vec![f32::NAN; STEPS];
        let (first, rows) = (&x[..FEATURES], &x[..STEPS * FEATURES]);
        cosine.run(first, rows, &mut y).unwrap();
        let rows = rows.chunks(FEATURES);
        let plain: Vec<f32> = rows
            .map(|row| reference::cosine_similarity(first, row, 1e-8))
            .collect();
        assert_bits(&y, &plain, &format!("{isa}"));
        assert_near(&y, &fixture.values("cosine.y"), "cosine");
        // Rows shorter than eps, which a division by their lengths would make NaN.
        cosine.run(&[0.0], &[0.0, 1.0], &mut y[..2]).unwrap();
        assert_eq!(y[..2], [0.0, 0.0]);
    });
}

/// Scores by plain loops, of one query and all steps of one sequence.
type PlainScores<'a> = dyn Fn(&[f32], &[f32]) -> Vec<f32> + 'a;

/// Contexts and weights by plain loops.
fn plain_attention(
    memory: &Sequences<'_>,
    queries: &Sequences<'_>,
    scores: &PlainScores<'_>,
) -> [Vec<f32>; 2] {
    let (mut contexts, mut all_weights) = (Vec::new(), Vec::new());
    for sequence in 0..memory.batch {
        for query in 0..queries.steps {
            if query >= queries.length(sequence) {
                contexts.extend(vec![0.0; memory.features]);
                all_weights.extend(vec![0.0; memory.steps]);
                continue;
            }
            let at = (sequence * queries.steps + query) * queries.features;
            let query = &queries.values[at..at + queries.features];
            let rows = memory.sequence(sequence);
            let mut weights = reference::softmax(&scores(query, rows));
            contexts.extend(reference::weighted_sum(&weights, rows));
            weights.resize(memory.steps, 0.0);
            all_weights.extend(weights);
        }
    }
    [contexts, all_weights]
}

#[test]
fn attention_with_each_score() {
    let fixture = Fixture::open();
    let (memory, lengths) = (fixture.values("all.memory"), fixture.whole("lengths"));
    let memory = Sequences::new(&memory, BATCH, STEPS, FEATURES).lengths(&lengths);
    let (same, other) = (fixture.values("dot.queries"), fixture.values("all.queries"));
    let same = Sequences::new(&same, BATCH, QUERIES, FEATURES);
    let other = Sequences::new(&other, BATCH, QUERIES, QUERY_FEATURES);
    let bilinear = fixture.matrix("bilinear.weight");
    let (query, keys) = (
        fixture.matrix("additive.query"),
        fixture.matrix("additive.memory"),
    );
    let (bias, score) = (
        fixture.values("additive.bias"),
        fixture.values("additive.score"),
    );
    let scale = (FEATURES as f32).sqrt().recip();
    let dots = |query: &[f32], rows: &[f32]| -> Vec<f32> {
        let rows = rows.chunks(FEATURES);
        rows.map(|row| reference::dot(query, row)).collect()
    };
    let none = |count| vec![0.0; count];
    let cases: [(&str, Score<'_>, Sequences<'_>, &PlainScores<'_>); 4] = [
        (
            "dot",
            Score::Dot {
                features: FEATURES,
                scale: 1.0,
            },
            same,
            &dots,
        ),
        (
            "scaled",
            Score::Dot {
                features: FEATURES,
                scale,
            },
            same,
            &|query, rows| {
                let dots = dots(query, rows);
                dots.iter().map(|dot| scale.mul_add(*dot, 0.0)).collect()
            },
        ),
        (
            "bilinear",
            Score::Bilinear { weights: &bilinear },
            other,
            &|query, rows| dots(&reference::dense(&bilinear, &none(FEATURES), query), rows),
        ),
        (
            "additive",
            Score::Additive {
                query: &query,
                memory: &keys,
                bias: &bias,
                score: &score,
            },
            other,
            &|of_query, rows| {
                let of_query = reference::dense(&query, &bias, of_query);
                let key = |row| reference::dense(&keys, &none(bias.len()), row);
                let rows = rows.chunks(FEATURES).map(key);
                rows.map(|row| reference::additive_score(&of_query, &row, &score))
                    .collect()
            },
        ),
    ];
    for (case, score, queries, plain) in cases {
        let [context, weights] = plain_attention(&memory, &queries, plain);
        assert_near(&context, &fixture.values(&format!("{case}.context")), case);
        if case != "scaled" {
            assert_near(&weights, &fixture.values(&format!("{case}.weights")), case);
        }
        let few = queries.lengths(&[2, 5, 1]);
        let [few_contexts, few_weights] = plain_attention(&memory, &few, plain);
        each_way(|team, isa| {
            let mut attention = Attention::new(team, score, isa).unwrap();
            attention.set_memory(team, &memory).unwrap();
            let mut found = vec![f32::NAN; BATCH * QUERIES * FEATURES];
            attention.run(team, &queries, &mut found).unwrap();
            assert_bits(&found, &context, &format!("{case} {isa}"));
            assert_bits(attention.weights(), &weights, &format!("{case} {isa}"));
            attention.run(team, &few, &mut found).unwrap();
            assert_bits(&found, &few_contexts, &format!("{case} {isa}, few"));
            assert_bits(attention.weights(), &few_weights, &format!("{case} {isa}"));
            // One sequence alone gives what it gave among others.
            let alone = Sequences::new(memory.sequence(2), 1, lengths[2], FEATURES);
            attention.set_memory(team, &alone).unwrap();
            let size = QUERIES * queries.features;
            let query = &queries.values[2 * size..];
            let query = Sequences::new(query, 1, QUERIES, queries.features);
            let found = &mut found[..QUERIES * FEATURES];
            attention.run(team, &query, found).unwrap();
            let among = &context[2 * QUERIES * FEATURES..];
            assert_bits(found, among, &format!("{case} {isa}, alone"));
        });
    }
}

#[test]
fn attention_sums() {
    let fixture = Fixture::open();
    let (memory, lengths) = (fixture.values("all.memory"), fixture.whole("lengths"));
    let document = Sequences::new(&memory, BATCH, STEPS, FEATURES).lengths(&lengths);
    let query = fixture.values("sum.query");
    let (tokens, candidates) = (fixture.whole("sum.tokens"), fixture.whole("sum.candidates"));
    let mut expected = Vec::new();
    for sequence in 0..BATCH {
        let query = &query[sequence * FEATURES..(sequence + 1) * FEATURES];
        let rows = document.sequence(sequence).chunks(FEATURES);
        let scores: Vec<f32> = rows.map(|row| reference::dot(query, row)).collect();
        let weights = reference::softmax(&scores);
        for candidate in &candidates[sequence * 4..(sequence + 1) * 4] {
            let mut sum = 0.0;
            for (step, weight) in weights.iter().enumerate() {
                if tokens[sequence * STEPS + step] == *candidate {
                    sum += weight;
                }
            }
            expected.push(sum);
        }
    }
    assert_near(&expected, &fixture.values("sum.y"), "sum");
    each_way(|team, isa| {
        let mut sum = AttentionSum::new(isa).unwrap();
        for _ in 0..2 {
            let mut y = vec![f32::NAN; BATCH * 4];
            sum.run(team, &query, &document, &tokens, &candidates, &mut y)
                .unwrap();
            assert_bits(&y, &expected, &format!("{isa}"));
        }
    });
}

#[test]
fn attention_flow() {
    let fixture = Fixture::open();
    let (memory, lengths) = (fixture.values("all.memory"), fixture.whole("lengths"));
    let context = Sequences::new(&memory, BATCH, STEPS, FEATURES).lengths(&lengths);
    let (question, lengths) = (
        fixture.values("flow.question"),
        fixture.whole("flow.lengths"),
    );
    let question = Sequences::new(&question, BATCH, QUERIES, FEATURES).lengths(&lengths);
    let weights = fixture.values("flow.weight");
    let (of_context, of_question) = (&weights[..FEATURES], &weights[FEATURES..2 * FEATURES]);
    let of_product = &weights[2 * FEATURES..];
    let multiply =
        |a: &[f32], b: &[f32]| -> Vec<f32> { a.iter().zip(b).map(|(a, b)| a * b).collect() };
    let mut expected = Vec::new();
    for sequence in 0..BATCH {
        let h: Vec<&[f32]> = context.sequence(sequence).chunks(FEATURES).collect();
        let u: Vec<&[f32]> = question.sequence(sequence).chunks(FEATURES).collect();
        let (mut greatest, mut attended) = (Vec::new(), Vec::new());
        for h in &h {
            let score = |u: &&[f32]| {
                let product = reference::dot(&multiply(of_product, h), u);
                product + reference::dot(of_question, u) + reference::dot(of_context, h)
            };
            let scores: Vec<f32> = u.iter().map(score).collect();
            greatest.push(scores.iter().copied().reduce(reference::greater).unwrap());
            let weights = reference::softmax(&scores);
            attended.push(reference::weighted_sum(&weights, &u.concat()));
        }
        let pooled = reference::weighted_sum(&reference::softmax(&greatest), &h.concat());
        for (h, attended) in h.iter().zip(&attended) {
            let products = [multiply(h, attended), multiply(h, &pooled)];
            expected.extend([h, &attended[..], &products[0], &products[1]].concat());
        }
        expected.resize((sequence + 1) * STEPS * 4 * FEATURES, 0.0);
    }
    assert_near(&expected, &fixture.values("flow.g"), "flow");
    each_way(|team, isa| {
        let mut flow = AttentionFlow::new(&weights, isa).unwrap();
        for _ in 0..2 {
            let mut g = vec![f32::NAN; BATCH * STEPS * 4 * FEATURES];
            flow.run(team, &context, &question, &mut g).unwrap();
            assert_bits(&g, &expected, &format!("{isa}"));
        }
    });
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let team = SharedTeam::new(Team::with_threads(1).unwrap());
    let isa = Isa::select().unwrap();
    let values = [0.0; 2 * 4 * 3];
    let good = Sequences::new(&values, 2, 4, 3);
    let score = Score::Dot {
        features: 3,
        scale: 1.0,
    };
    let mut attention = Attention::new(&team, score, isa).unwrap();
    let mut context = [7.0; 2 * 4 * 3];
    // No memory yet.
    assert!(attention.run(&team, &good, &mut context).is_err());
    attention.set_memory(&team, &good).unwrap();
    for bad in [
        good.lengths(&[4, 0]),
        good.lengths(&[5, 1]),
        good.lengths(&[4]),
        Sequences::new(&values, 2, 3, 4),
        Sequences::new(&values[1..], 2, 4, 3),
    ] {
        assert!(attention.set_memory(&team, &bad).is_err());
        assert!(attention.run(&team, &bad, &mut context).is_err());
        let mut g = [7.0; 4 * 2 * 4 * 3];
        let mut flow = AttentionFlow::new(&[1.0; 9], isa).unwrap();
        assert!(flow.run(&team, &bad, &good, &mut g).is_err());
        assert!(flow.run(&team, &good, &bad, &mut g).is_err());
        assert_eq!(g, [7.0; 4 * 2 * 4 * 3]);
    }
    assert!(attention.run(&team, &good, &mut context[1..]).is_err());
    assert_eq!(context, [7.0; 2 * 4 * 3]);
    attention.run(&team, &good, &mut context).unwrap();

    let pooling = MaxOverTime::new(isa).unwrap();
    let refused = pooling.run(&team, &good.lengths(&[4, 0]), &mut [0.0; 6]);
    let expected = LayerError::Length {
        sequence: 1,
        length: 0,
        steps: 4,
    };
    assert_eq!(refused.as_ref(), Err(&expected));
    let message = refused.unwrap_err().to_string();
    assert_eq!(message, "sequence 1 has 0 steps; 1 to 4 are supported");

    let matrix = |rows, cols| Matrix::new(rows, cols, vec![0.0; rows * cols]).unwrap();
    let mut mlp = Mlp::new(isa).unwrap();
    mlp.push(&team, &matrix(2, 3), &[0.0; 2], None).unwrap();
    assert!(mlp.push(&team, &matrix(2, 3), &[0.0; 2], None).is_err());
    assert!(mlp.run(&team, &[0.0; 5], &mut [0.0; 4]).is_err());
    assert!(AttentionFlow::new(&[0.0; 4], isa).is_err());
    let square = matrix(3, 3);
    let weights = HighwayWeights {
        transform: &square,
        transform_bias: &[0.0; 3],
        gate: &matrix(3, 2),
        gate_bias: &[0.0; 3],
        activation: Activation::Relu,
    };
    assert!(Highway::new(&team, &[weights], isa).is_err());
    let additive = Score::Additive {
        query: &matrix(4, 3),
        memory: &matrix(5, 3),
        bias: &[0.0; 4],
        score: &[0.0; 4],
    };
    assert!(Attention::new(&team, additive, isa).is_err());
}

/// Work large enough to be dealt over a team gives the bits that the caller alone gives.
#[test]
fn a_team_gives_the_same_bits() {
    let (batch, steps, features) = (2, 61, 70);
    let mut rng = fastrand::Rng::with_seed(9);
    let mut random = |count: usize| -> Vec<f32> { (0..count).map(|_| rng.f32() - 0.5).collect() };
    let values = random(batch * steps * features);
    let lengths = [steps, 20];
    let x = Sequences::new(&values, batch, steps, features).lengths(&lengths);
    let (square, bias) = (random(features * features), random(features));
    let square = Matrix::new(features, features, square).unwrap();
    let flow_weights = random(3 * features);
    let isa = Isa::select().unwrap();
    let all = |threads: usize| -> Vec<f32> {
        let team = SharedTeam::new(Team::with_threads(threads).unwrap());
        let score = Score::Additive {
            query: &square,
            memory: &square,
            bias: &bias,
            score: &bias,
        };
        let mut attention = Attention::new(&team, score, isa).unwrap();
        attention.set_memory(&team, &x).unwrap();
        let mut contexts = vec![0.0; values.len()];
        attention.run(&team, &x, &mut contexts).unwrap();
        let mut g = vec![0.0; 4 * values.len()];
        let mut flow = AttentionFlow::new(&flow_weights, isa).unwrap();
        flow.run(&team, &x, &x, &mut g).unwrap();
        let mut rows = values.clone();
        Softmax::new(isa)
            .unwrap()
            .run(&team, &mut rows, features)
            .unwrap();
        [contexts, g, rows].concat()
    };
    assert_bits(&all(2), &all(1), "two threads");
    assert_bits(&all(3), &all(1), "three threads");
}
