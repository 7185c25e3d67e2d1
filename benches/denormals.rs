//! What a state that decays to nothing costs: `cargo bench --bench denormals`.
//!
//! With zero input and no bias, half of each state is left after every step: after 2000 steps it
//! would be far below the smallest normal number, and many CPUs compute on such numbers many times
//! more slowly. `reference::TINY_STATE` prevents that. The same weights with an input that keeps
//! the state normal must take the same time; the first line shows what this CPU charges otherwise.

use std::hint::black_box;
use std::time::Instant;

use gatestream::execute::Session;
use gatestream::model::{
    Activation, Cell, Direction, Input, Layer, Matrix, Model, Output, Weights,
};
use gatestream::plan::Plan;
use gatestream::reference;

const STEPS: usize = 2000;
const ROUNDS: usize = 61;
const INPUT: usize = 16;

/// One layer without bias, whose recurrent weights make each new state half of the old one (for
/// gated cells: leave its gates near one half).
fn model(cell: Cell, hidden: usize) -> Model {
    let mut random = fastrand::Rng::with_seed(1);
    let rows = cell.kind().gates() * hidden;
    let input = (0..rows * INPUT).map(|_| random.f32() - 0.5).collect();
    let recurrent = match cell {
        // Every unit becomes half of the mean of all.
        Cell::Rnn { .. } => vec![0.5 / hidden as f32; rows * hidden],
        _ => (0..rows * hidden)
            .map(|_| 0.1 * (random.f32() - 0.5) / hidden as f32)
            .collect(),
    };
    let weights = Weights {
        input: Matrix::new(rows, INPUT, input).expect("as many values as asked for"),
        recurrent: Matrix::new(rows, hidden, recurrent).expect("as many values as asked for"),
        input_bias: vec![0.0; rows],
        recurrent_bias: vec![0.0; rows],
        peepholes: None,
        projection: None,
    };
    let direction = Direction::new(cell, weights).expect("shapes that fit");
    Model::new(vec![Layer::single(direction)]).expect("one layer")
}

/// An input with the states it starts from, all ones.
struct Sequence {
    values: Vec<f32>,
    h0: Vec<f32>,
    c0: Vec<f32>,
}

impl Sequence {
    fn new(model: &Model, values: Vec<f32>) -> Sequence {
        let signature = model.signature();
        Sequence {
            values,
            h0: vec![1.0; signature.hidden_state],
            c0: vec![1.0; signature.cell_state],
        }
    }

    fn input(&self) -> Input<'_> {
        let input = Input::new(&self.values, STEPS, 1).h0(&self.h0);
        if self.c0.is_empty() {
            input
        } else {
            input.c0(&self.c0)
        }
    }

    /// Holds a session's answer against the reference's bits; the answer.
    fn check(&self, model: &Model, session: &mut Session) -> Vec<f32> {
        let mut expected = vec![0.0; STEPS * model.signature().output];
        let mut found = expected.clone();
        reference::run(model, &self.input(), &mut Output::new(&mut expected)).expect("fits");
        let mut output = Output::new(&mut found);
        session.run(&self.input(), &mut output).expect("fits");
        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&expected), "the reference's bits");
        assert!(found.iter().all(|v| !v.is_subnormal()), "no subnormal");
        found
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Medians of two times in milliseconds, and of their ratio within a round.
struct Times {
    first: f64,
    second: f64,
    ratio: f64,
}

/// Times two things in turn, so that whatever else the machine does falls on both; and in changing
/// order, so that nothing that comes and goes with the turns falls on one.
fn interleaved(mut first: impl FnMut(), mut second: impl FnMut()) -> Times {
    let time = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64() * 1e3
    };
    let mut random = fastrand::Rng::with_seed(3);
    let (mut firsts, mut seconds) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        if random.bool() {
            firsts.push(time(&mut first));
            seconds.push(time(&mut second));
        } else {
            seconds.push(time(&mut second));
            firsts.push(time(&mut first));
        }
    }
    let pairs = firsts.iter().zip(&seconds);
    Times {
        ratio: median(pairs.map(|(a, b)| a / b).collect()),
        first: median(firsts),
        second: median(seconds),
    }
}

/// Multiplies values in place, all as small as `start`: a vector loop, as the kernels' are.
fn products(start: f32) {
    let mut values = [start; 1024];
    for _ in 0..1000 {
        for value in &mut black_box(&mut values)[..] {
            *value *= 0.999;
        }
    }
    assert_eq!(values[0].is_subnormal(), start.is_subnormal());
}

fn main() {
    let Times { ratio, .. } = interleaved(|| products(1e-40), || products(1.0));
    println!("a plain loop over subnormal numbers: {ratio:.1} times the time");
    if ratio < 2.0 {
        println!("this CPU charges nothing for them, so the ratios below would be 1 anyhow");
    }
    let relu = Cell::Rnn {
        activation: Activation::Relu,
    };
    println!(
        "{:<10} {:>6} {:>12} {:>12} {:>6}",
        "cell", "hidden", "decaying ms", "normal ms", "ratio"
    );
    for hidden in [64, 256] {
        for (name, cell) in [
            ("lstm", Cell::LSTM),
            ("gru", Cell::GRU),
            ("rnn, relu", relu),
        ] {
            let model = model(cell, hidden);
            let mut session =
                Session::new(&model, &Plan::estimate(&model, 1, STEPS, 1)).expect("a session");
            session.pin_caller();
            let mut random = fastrand::Rng::with_seed(2);
            let decaying = Sequence::new(&model, vec![0.0; STEPS * INPUT]);
            let values = (0..STEPS * INPUT).map(|_| random.f32()).collect();
            let lively = Sequence::new(&model, values);
            let last = |answer: Vec<f32>| answer[(STEPS - 1) * hidden..].to_vec();
            let end = last(decaying.check(&model, &mut session));
            assert!(end.iter().all(|v| *v == 0.0), "{name}: all has decayed");
            let end = last(lively.check(&model, &mut session));
            assert!(
                end.iter().any(|v| v.is_normal()),
                "{name}: something is left"
            );

            let mut outputs = [vec![0.0; STEPS * hidden], vec![0.0; STEPS * hidden]];
            let [first, second] = &mut outputs;
            let session = std::cell::RefCell::new(session);
            let run = |sequence: &Sequence, values: &mut [f32]| {
                let mut session = session.borrow_mut();
                (session.run(&sequence.input(), &mut Output::new(values))).expect("fits");
            };
            let Times {
                first,
                second,
                ratio,
            } = interleaved(|| run(&decaying, first), || run(&lively, second));
            println!("{name:<10} {hidden:>6} {first:>12.3} {second:>12.3} {ratio:>6.2}");
        }
    }
}
