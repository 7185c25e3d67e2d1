//! Feeds several streams step by step, as their samples arrive; the caller holds their states.
//!
//!     cargo run --release --example stream_step_by_step

use std::error::Error;

use gatestream::execute::State;
use gatestream::machine::Topology;
use gatestream::model::Lstm;
use gatestream::{Input, Output, Plan, Session};

const FEATURES: usize = 40;
const HIDDEN: usize = 96;
/// Steps that arrive at once, in turn.
const CHUNKS: [usize; 4] = [5, 1, 16, 3];

/// One of the streams: what has arrived, what has been answered, and the state in between.
struct Stream {
    samples: Vec<f32>,
    taken: usize,
    answers: Vec<f32>,
    state: State,
}

fn main() -> Result<(), Box<dyn Error>> {
    let model = Lstm::new(FEATURES, HIDDEN).layers(2).random(1)?;
    // One session serves all streams: a step of one stream at a time.
    let plan = Plan::estimate(&model, 1, 1, Topology::detect().team_size());
    let mut session = Session::new(&model, &plan)?;

    let mut streams: Vec<Stream> = [50, 70, 31]
        .into_iter()
        .enumerate()
        .map(|(number, steps)| Stream {
            samples: (0..steps * FEATURES)
                .map(|i| (i as f32 * 0.1 + number as f32).sin())
                .collect(),
            taken: 0,
            answers: Vec::new(),
            state: State::zero(model.signature(), 1),
        })
        .collect();

    // Chunks of the streams arrive interleaved until all have ended.
    let mut chunks = CHUNKS.into_iter().cycle();
    let mut y = vec![0.0; HIDDEN];
    while streams.iter().any(|s| s.taken < s.samples.len()) {
        for stream in &mut streams {
            let steps = chunks.next().unwrap_or(1);
            let arrived = (stream.taken + steps * FEATURES).min(stream.samples.len());
            for x in stream.samples[stream.taken..arrived].chunks_exact(FEATURES) {
                session.step(x, &mut stream.state, &mut y)?;
                stream.answers.extend_from_slice(&y);
            }
            stream.taken = arrived;
        }
    }

    // The same sequences, each run whole: the same bits.
    for (number, stream) in streams.iter().enumerate() {
        let steps = stream.samples.len() / FEATURES;
        let mut whole = vec![0.0; steps * HIDDEN];
        session.reserve(1, steps)?;
        session.run(
            &Input::new(&stream.samples, steps, 1),
            &mut Output::new(&mut whole),
        )?;
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        if bits(&stream.answers) != bits(&whole) {
            return Err(format!("stream {number} differs from its whole sequence").into());
        }
        println!("stream {number}: {steps} steps, equal to the whole sequence bit for bit");
    }
    Ok(())
}
