//! The memory of idle streams: a service keeps many of them open, and few have steps to compute.

#[path = "../../../tests/common/counting.rs"]
mod counting;

use std::time::{Duration, Instant};

use counting::bytes;
use gatestream::model::Lstm;
use gatestream_serve::Engine;
use gatestream_serve::cell_graph::Cells;
use gatestream_serve::engine::{EngineOptions, Stream};
use gatestream_serve::networks::{Chain, ChainCell};
use gatestream_serve::scheduler::Limits;

const STREAMS: usize = 10_000;
const FEATURES: usize = 32;
const HIDDEN: usize = 64;

fn main() {
    let before = bytes();
    let kept = vec![0u8; 1000];
    assert_eq!(bytes() - before, 1000, "the counter counts");
    drop(kept);
    assert_eq!(bytes(), before, "the counter counts");

    let mut cells = Cells::new();
    let model = Lstm::new(FEATURES, HIDDEN).random(1).unwrap();
    let chain = Chain::add(&mut cells, ChainCell::new(model).unwrap());
    let options = EngineOptions {
        limits: Limits::NONE,
        ..EngineOptions::default()
    };
    let engine = Engine::start(cells, &options).unwrap();
    let open = || engine.stream(chain.cell(), None).unwrap();
    let push = |stream: &mut Stream, steps: usize| {
        let steps = (0..steps).map(|_| stream.push(&[0.5; FEATURES]).unwrap());
        steps.last().unwrap().wait().unwrap();
    };
    // The buffers of the engine get their sizes.
    let mut first = open();
    push(&mut first, 1);
    push(&mut first, Stream::AHEAD);

    let mut streams = Vec::with_capacity(STREAMS);
    let before = bytes();
    streams.extend((0..STREAMS).map(|_| open()));
    let opened = (bytes() - before).div_ceil(STREAMS);
    assert!(opened <= 257, "{opened} bytes for an opened stream");

    // The first step, and as many steps at once as possible.
    for steps in [1, Stream::AHEAD] {
        streams.iter_mut().for_each(|stream| push(stream, steps));
        // A request is freed after its last answer.
        let end = Instant::now() + Duration::from_secs(60);
        let idle = || (bytes() - before).div_ceil(STREAMS);
        while idle() > 1024 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(idle() <= 1024, "{} bytes after {steps} steps", idle());
    }
}
