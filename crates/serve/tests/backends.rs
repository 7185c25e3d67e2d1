//! Networks run on any backend, to the same bits: here the reference's plain loops are one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gatestream::execute::{Backend, Cpu, PreparedModel, RunError, SessionError, Steps};
use gatestream::kernels::{RowsMut, RowsRef};
use gatestream::layers::Embedding;
use gatestream::model::{Gru, Input, InputError, Layout, Lstm, Matrix, Model, Output, Signature};
use gatestream::plan::Plan;
use gatestream::reference;
use gatestream_serve::Engine;
use gatestream_serve::cell_graph::Cells;
use gatestream_serve::engine::{EngineOptions, Request};
use gatestream_serve::networks::{
    Chain, ChainCell, DecoderCell, EncoderCell, Outputs, Seq2Seq, Until, run_unbatched,
};

/// The plain loops as a device, which counts the steps of streams.
#[derive(Default)]
struct Loops {
    steps: Arc<AtomicUsize>,
}

struct PreparedLoops {
    model: Model,
    steps: Arc<AtomicUsize>,
}

impl Backend for Loops {
    fn name(&self) -> &str {
        "loops"
    }

    fn prepare(&self, model: &Model, _: &Plan) -> Result<Box<dyn PreparedModel>, SessionError> {
        if model.layers().len() > 2 {
            return Err(SessionError::Backend(
                "the loops run two layers at most".into(),
            ));
        }
        Ok(Box::new(PreparedLoops {
            model: model.clone(),
            steps: Arc::clone(&self.steps),
        }))
    }
}

impl PreparedModel for PreparedLoops {
    fn signature(&self) -> Signature {
        self.model.signature()
    }

    fn reserve(&mut self, _: usize, _: usize) -> Result<(), SessionError> {
        Ok(())
    }

    fn run(&mut self, input: &Input<'_>, output: &mut Output<'_>) -> Result<(), RunError> {
        Ok(reference::run(&self.model, input, output)?)
    }

    fn step_rows<'s>(
        &mut self,
        steps: Steps<'_>,
        states: &mut dyn Iterator<Item = RowsMut<'s>>,
        mut y: Option<RowsMut<'_>>,
    ) -> Result<(), RunError> {
        let signature = self.model.signature();
        let mut states: Vec<RowsMut<'_>> = states.collect();
        for stream in 0..steps.batch() {
            let length = steps.lengths().map_or(1, |lengths| lengths[stream]);
            self.steps.fetch_add(length, Ordering::Relaxed);
            let row = |step: usize| {
                steps
                    .x()
                    .row(step * steps.batch() + stream, signature.input)
            };
            let x: Vec<f32> = (0..length).flat_map(row).copied().collect();
            let (mut h, mut c) = (Vec::new(), Vec::new());
            let mut rows = states.iter_mut();
            // States are hidden, then cell states of each layer.
            let mut places = Vec::new();
            for layer in self.model.layers() {
                let direction = &layer.directions()[0];
                let sizes = [direction.output_size(), direction.cell_state_size()];
                for (of, size) in [&mut h, &mut c].into_iter().zip(sizes) {
                    if size > 0 {
                        let row = rows.next().ok_or(RunError::Input(InputError::TooLarge))?;
                        let row = row.row(stream, size);
                        of.extend_from_slice(row);
                        places.push(row);
                    }
                }
            }
            let mut values = vec![0.0; length * signature.output];
            let (mut hn, mut cn) = (h.clone(), c.clone());
            let mut output = Output::new(&mut values).hn(&mut hn);
            let mut input = Input::new(&x, length, 1).layout(Layout::TimeMajor).h0(&h);
            if !c.is_empty() {
                input = input.c0(&c);
                output = output.cn(&mut cn);
            }
            reference::run(&self.model, &input, &mut output)?;
            let (mut h, mut c) = (&hn[..], &cn[..]);
            let has_cell = !c.is_empty();
            for (index, place) in places.into_iter().enumerate() {
                let from = if has_cell && index % 2 == 1 {
                    &mut c
                } else {
                    &mut h
                };
                let (state, others) = from.split_at(place.len());
                place.copy_from_slice(state);
                *from = others;
            }
            let Some(y) = &mut y else { continue };
            for (step, value) in values.chunks(signature.output).enumerate() {
                let row = step * steps.batch() + stream;
                y.row(row, signature.output).copy_from_slice(value);
            }
        }
        Ok(())
    }
}

fn random(rng: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| 4.0 * rng.f32() - 2.0).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn models() -> [Model; 2] {
    [
        Lstm::new(3, 20).layers(2).random(1).unwrap(),
        Gru::new(3, 17).layers(2).random(2).unwrap(),
    ]
}

#[test]
fn whole_sequences_and_steps_have_the_same_bits_on_every_backend() {
    let (steps, batch) = (5, 3);
    let mut rng = fastrand::Rng::with_seed(1);
    for model in models() {
        let signature = model.signature();
        let plan = Plan::estimate(&model, batch, steps, 2);
        let x = random(&mut rng, steps * batch * signature.input);
        let lengths = [5, 0, 3];
        let states: Vec<Vec<f32>> = (model.layers().iter())
            .flat_map(|layer| {
                let direction = &layer.directions()[0];
                [direction.output_size(), direction.cell_state_size()]
            })
            .filter(|&size| size > 0)
            .map(|size| random(&mut rng, batch * size))
            .collect();
        let backends: [&dyn Backend; 2] = [&Cpu::new(), &Loops::default()];
        let [cpu, loops] = backends.map(|backend| {
            let mut prepared = backend.prepare(&model, &plan).unwrap();
            prepared.reserve(batch, steps).unwrap();
            assert_eq!(prepared.signature(), signature);
            let mut all = vec![0.0; steps * batch * signature.output];
            let input = Input::new(&x, steps, batch).lengths(&lengths);
            prepared.run(&input, &mut Output::new(&mut all)).unwrap();
            let (mut states, mut y) = (states.clone(), vec![0.0; all.len()]);
            let rows = RowsRef::contiguous(&x, signature.input);
            let mut views = states.iter_mut().map(|state| {
                let width = state.len() / batch;
                RowsMut::contiguous(state, width)
            });
            let y_rows = RowsMut::contiguous(&mut y, signature.output);
            let steps = Steps::several(&lengths, rows);
            prepared.step_rows(steps, &mut views, Some(y_rows)).unwrap();
            drop(views);
            all.extend(states.concat());
            all.extend(y);
            bits(&all)
        });
        assert_eq!(cpu, loops);
    }
}

#[test]
fn a_network_is_served_on_another_backend() {
    let mut rng = fastrand::Rng::with_seed(2);
    for model in models() {
        let model = Arc::new(model);
        let loops = Loops::default();
        let counted = Arc::clone(&loops.steps);
        let cell = |backend: Option<Loops>| {
            let cell = ChainCell::new(Arc::clone(&model)).unwrap();
            match backend {
                Some(backend) => cell.with_backend(Arc::new(backend)),
                None => cell,
            }
        };
        let (mut cpu, mut other) = (Cells::new(), Cells::new());
        let chain = Chain::add(&mut cpu, cell(None));
        let chain_of_loops = Chain::add(&mut other, cell(Some(loops)));
        let requests: Vec<Vec<f32>> = (0..9)
            .map(|_| {
                let steps = rng.usize(1..8);
                random(&mut rng, steps * 3)
            })
            .collect();
        let engine = Engine::start(other, &EngineOptions::default()).unwrap();
        let tickets: Vec<_> = (requests.iter())
            .map(|xs| {
                let graph = chain_of_loops.unfold(xs, None, Outputs::Each).unwrap();
                engine.submit(Request::new(graph)).unwrap()
            })
            .collect();
        for (xs, ticket) in requests.iter().zip(tickets) {
            let graph = chain.unfold(xs, None, Outputs::Each).unwrap();
            let expected = run_unbatched(&cpu, graph, None).unwrap();
            assert_eq!(bits(&ticket.wait().unwrap().values), bits(&expected));
        }
        let steps: usize = requests.iter().map(|xs| xs.len() / 3).sum();
        assert_eq!(counted.load(Ordering::Relaxed), steps);
    }
}

#[test]
fn what_a_backend_cannot_run_is_its_own_error() {
    let model = Lstm::new(3, 4).layers(3).random(1).unwrap();
    let plan = Plan::estimate(&model, 1, 1, 1);
    let refused = Loops::default().prepare(&model, &plan).err().unwrap();
    assert_eq!(refused.to_string(), "the loops run two layers at most");
}

#[test]
fn encoder_and_decoder_are_served_on_another_backend() {
    let (symbols, hidden) = (9, 8);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut matrix =
        |rows: usize, cols: usize| Matrix::new(rows, cols, random(&mut rng, rows * cols)).unwrap();
    let table = Arc::new(Embedding::new(matrix(symbols, 3)));
    let weights = Arc::new(matrix(symbols, hidden));
    let model = Arc::new(Lstm::new(3, hidden).random(4).unwrap());
    let network = |backend: Option<Loops>| {
        let mut encoder = EncoderCell::new(table.clone(), model.clone()).unwrap();
        let bias = vec![0.0; symbols];
        let decoder = DecoderCell::new(table.clone(), model.clone(), weights.clone(), bias);
        let mut decoder = decoder.unwrap();
        if let Some(backend) = backend {
            let backend = Arc::new(backend);
            encoder = encoder.with_backend(backend.clone());
            decoder = decoder.with_backend(backend);
        }
        let mut cells = Cells::new();
        let network = Seq2Seq::add(&mut cells, encoder, decoder, 0).unwrap();
        (cells, network)
    };
    let loops = Loops::default();
    let counted = Arc::clone(&loops.steps);
    let answers = [None, Some(loops)].map(|backend| {
        let (cells, network) = network(backend);
        let (graph, decoding) = network.unfold(&[3, 1, 4, 1], Until::Steps(5)).unwrap();
        run_unbatched(&cells, graph, Some(Box::new(decoding))).unwrap()
    });
    assert_eq!(answers[0].len(), 5);
    assert_eq!(bits(&answers[0]), bits(&answers[1]));
    assert_eq!(counted.load(Ordering::Relaxed), 4 + 5);
}
