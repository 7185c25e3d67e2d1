//! Chains on a device that keeps their states, and that runs what was started as late as it may.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gatestream::execute::{
    Backend, Cpu, PreparedModel, ResidentModel, ResidentNetwork, ResidentRoom, ResidentStep,
    ResultOf, ResultRow, RunError, SessionError, Steps,
};
use gatestream::kernels::{RowsMut, RowsRef};
use gatestream::model::{Gru, Lstm, Model};
use gatestream::plan::Plan;
use gatestream_serve::cell_graph::{BatchSizes, Cells, DynamicGraph, Growth, NodeId, NodeOutputs};
use gatestream_serve::engine::{EngineOptions, ModelOptions, Request, Ticket, Workers};
use gatestream_serve::networks::{Chain, ChainCell, Outputs, run_unbatched};
use gatestream_serve::policy::{Cellular, Order, PolicyKind};
use gatestream_serve::scheduler::{Demand, NewTask, Policy, RequestKey, Row, SubgraphKey, Table};
use gatestream_serve::{Engine, RequestError};

/// What the devices of a test did.
#[derive(Default)]
struct Counts {
    steps: AtomicUsize,
    /// States that came from the host's memory, and went there.
    loads: AtomicUsize,
    stores: AtomicUsize,
    most_in_flight: AtomicUsize,
    prepared: AtomicUsize,
    /// The number of the step, of all devices, that fails; 0: none.
    failing: AtomicUsize,
}

/// A device that computes as the CPU does.
#[derive(Default)]
struct Late {
    counts: Arc<Counts>,
}

enum Work {
    Load(usize, Vec<Vec<f32>>),
    Step {
        x: Vec<f32>,
        slots: Vec<usize>,
        results: Vec<ResultRow>,
    },
}

struct LateModel {
    model: Box<dyn PreparedModel>,
    counts: Arc<Counts>,
    room: ResidentRoom,
    sizes: Vec<usize>,
    /// By slot.
    states: Vec<Vec<Vec<f32>>>,
    work: VecDeque<Work>,
    /// Results of steps that have run, oldest first.
    done: VecDeque<Vec<f32>>,
    in_flight: usize,
    polls: usize,
}

impl Backend for Late {
    fn name(&self) -> &str {
        "late"
    }

    fn prepare(&self, _: &Model, _: &Plan) -> Result<Box<dyn PreparedModel>, SessionError> {
        Err(SessionError::Backend(
            "all states stay on the device".into(),
        ))
    }

    fn prepare_resident(
        &self,
        network: &ResidentNetwork<'_>,
        room: ResidentRoom,
    ) -> Result<Option<Box<dyn ResidentModel>>, SessionError> {
        let model = network.model;
        assert!(network.embedding.is_none());
        self.counts.prepared.fetch_add(1, Ordering::Relaxed);
        let plan = Plan::estimate(model, room.rows, 1, 1);
        let directions = model.layers().iter().map(|layer| &layer.directions()[0]);
        let sizes = directions.flat_map(|of| [of.output_size(), of.cell_state_size()]);
        let sizes: Vec<usize> = sizes.filter(|size| *size > 0).collect();
        let zeros: Vec<Vec<f32>> = sizes.iter().map(|size| vec![0.0; *size]).collect();
        Ok(Some(Box::new(LateModel {
            model: Cpu::new().prepare(model, &plan)?,
            counts: Arc::clone(&self.counts),
            room,
            sizes,
            states: vec![zeros; room.slots],
            work: VecDeque::new(),
            done: VecDeque::new(),
            in_flight: 0,
            polls: 0,
        })))
    }
}

impl LateModel {
    fn run_one(&mut self) -> Result<bool, RunError> {
        match self.work.pop_front() {
            None => return Ok(false),
            Some(Work::Load(slot, states)) => self.states[slot] = states,
            Some(Work::Step { x, slots, results }) => {
                let number = 1 + self.counts.steps.fetch_add(1, Ordering::Relaxed);
                if number == self.counts.failing.load(Ordering::Relaxed) {
                    return Err(RunError::Backend("the device has failed".into()));
                }
                let signature = self.model.signature();
                let rows = slots.len();
                let mut states: Vec<Vec<f32>> = (0..self.sizes.len())
                    .map(|state| {
                        let of = slots.iter().map(|slot| &self.states[*slot][state][..]);
                        of.collect::<Vec<_>>().concat()
                    })
                    .collect();
                let mut y = vec![0.0; rows * signature.output];
                let views = states.iter_mut().zip(&self.sizes);
                let mut views = views.map(|(rows, size)| RowsMut::contiguous(rows, *size));
                let steps = Steps::one(rows, RowsRef::contiguous(&x, signature.input));
                let y_rows = RowsMut::contiguous(&mut y, signature.output);
                self.model.step_rows(steps, &mut views, Some(y_rows))?;
                for (row, slot) in slots.iter().enumerate() {
                    for (state, size) in self.sizes.iter().enumerate() {
                        self.states[*slot][state]
                            .copy_from_slice(&states[state][row * size..][..*size]);
                    }
                }
                let values = results.iter().flat_map(|result| match result.of {
                    ResultOf::State(state) => {
                        &states[state][result.row * self.sizes[state]..][..self.sizes[state]]
                    }
                    ResultOf::Output => &y[result.row * signature.output..][..signature.output],
                });
                let values = values.copied().collect();
                self.done.push_back(values);
            }
        }
        Ok(true)
    }
}

impl ResidentModel for LateModel {
    fn load(&mut self, slot: usize, states: Option<&[&[f32]]>) -> Result<(), RunError> {
        assert!(slot < self.room.slots);
        let sizes = self.sizes.iter();
        let states = match states {
            None => sizes.map(|size| vec![0.0; *size]).collect(),
            Some(states) => {
                self.counts.loads.fetch_add(1, Ordering::Relaxed);
                assert!(states.iter().map(|state| state.len()).eq(sizes.copied()));
                states.iter().map(|state| state.to_vec()).collect()
            }
        };
        self.work.push_back(Work::Load(slot, states));
        Ok(())
    }

    fn store(&mut self, slot: usize, states: &mut [&mut [f32]]) -> Result<(), RunError> {
        self.counts.stores.fetch_add(1, Ordering::Relaxed);
        while self.run_one()? {}
        for (to, state) in states.iter_mut().zip(&self.states[slot]) {
            to.copy_from_slice(state);
        }
        Ok(())
    }

    fn start(&mut self, step: &ResidentStep<'_>) -> Result<(), RunError> {
        let width = self.model.signature().input;
        let rows = step.slots.len();
        let mut slots = step.slots.to_vec();
        slots.sort_unstable();
        slots.dedup();
        assert!(rows <= self.room.rows && slots.len() == rows);
        assert!(self.in_flight < self.room.in_flight);
        self.in_flight += 1;
        self.counts
            .most_in_flight
            .fetch_max(self.in_flight, Ordering::Relaxed);
        self.work.push_back(Work::Step {
            x: (0..rows)
                .flat_map(|row| step.x.row(row, width))
                .copied()
                .collect(),
            slots: step.slots.to_vec(),
            results: step.results.to_vec(),
        });
        Ok(())
    }

    fn is_finished(&mut self) -> Result<bool, RunError> {
        // The next task is started before this one is seen to be finished.
        self.polls += 1;
        if self.in_flight > 0 && self.done.is_empty() && self.polls.is_multiple_of(3) {
            self.run_one()?;
        }
        Ok(self.in_flight == 0 || !self.done.is_empty())
    }

    fn finish(&mut self, results: &mut Vec<f32>) -> Result<(), RunError> {
        while !self.is_finished()? {}
        results.clear();
        if let Some(values) = self.done.pop_front() {
            results.extend(values);
            self.in_flight -= 1;
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

const FEATURES: usize = 3;

fn models() -> [Arc<Model>; 2] {
    [
        Arc::new(Lstm::new(FEATURES, 8).layers(2).random(1).unwrap()),
        Arc::new(Gru::new(FEATURES, 5).random(2).unwrap()),
    ]
}

/// Takes the rows that have been ready for longest, so that the states of all requests are on the
/// device, more than there are slots. A batch that is not full has a row of padding.
struct RoundRobin {
    /// Maximum rows of a batch.
    rows: usize,
    /// One for each ready node.
    ready: VecDeque<SubgraphKey>,
}

impl RoundRobin {
    fn build(rows: usize) -> Box<dyn Policy> {
        let ready = VecDeque::new();
        Box::new(RoundRobin { rows, ready })
    }
}

impl Policy for RoundRobin {
    fn queued(&self) -> usize {
        self.ready.len()
    }

    fn ready(&mut self, _: &Table, subgraph: SubgraphKey, count: usize) {
        self.ready.extend(std::iter::repeat_n(subgraph, count));
    }

    fn next_task(
        &mut self,
        table: &mut Table,
        demand: Demand<'_>,
        rows: &mut Vec<Row>,
    ) -> Option<NewTask> {
        let Demand::Any { worker, .. } = demand else {
            return None;
        };
        self.ready.retain(|&subgraph| {
            let is_here = table.pinned(subgraph).is_none_or(|pinned| pinned == worker);
            let is_taken = is_here && rows.len() < self.rows;
            if is_taken {
                table.take(subgraph, 1, rows);
            }
            !is_taken
        });
        let cell = table.node_cell(*rows.first()?);
        let padding = usize::from(rows.len() < self.rows);
        Some(NewTask { cell, padding })
    }

    fn ended(&mut self, _: &Table, request: RequestKey) {
        self.ready.retain(|ready| ready.request != request);
    }
}

/// A chain on late devices, and the same on the CPU as the oracle.
struct Served {
    engine: Engine,
    chain: Chain,
    counts: Vec<Arc<Counts>>,
    oracle: (Cells, Chain),
}

impl Served {
    fn new(model: &Arc<Model>, devices: usize, options: &EngineOptions) -> Served {
        let build = |workers| options.policy.build(workers, options.batch_steps);
        Served::with_policy(model, devices, options, build)
    }

    /// Under a policy that `build` makes for the number of workers.
    fn with_policy(
        model: &Arc<Model>,
        devices: usize,
        options: &EngineOptions,
        build: impl FnOnce(usize) -> Box<dyn Policy>,
    ) -> Served {
        let devices: Vec<Late> = (0..devices).map(|_| Late::default()).collect();
        let counts = devices
            .iter()
            .map(|device| Arc::clone(&device.counts))
            .collect();
        let backends = devices
            .into_iter()
            .map(|one| Arc::new(one) as Arc<dyn Backend>);
        let mut cells = Cells::new();
        let cell = ChainCell::new(Arc::clone(model)).unwrap();
        let chain = Chain::add(&mut cells, cell.with_backends(backends));
        let mut on_cpu = Cells::new();
        let cell = ChainCell::new(Arc::clone(model)).unwrap();
        let oracle = Chain::add(&mut on_cpu, cell);
        let engine = Engine::with_policy(cells, options, build);
        Served {
            engine: engine.unwrap(),
            chain,
            counts,
            oracle: (on_cpu, oracle),
        }
    }

    fn submit(&self, x: &[f32], initial: Option<&[&[f32]]>, outputs: Outputs) -> Ticket {
        let graph = self.chain.unfold(x, initial, outputs).unwrap();
        self.engine.submit(Request::new(graph)).unwrap()
    }

    fn expected(&self, x: &[f32], initial: Option<&[&[f32]]>, outputs: Outputs) -> Vec<u32> {
        let (cells, chain) = &self.oracle;
        let graph = chain.unfold(x, initial, outputs).unwrap();
        bits(&run_unbatched(cells, graph, None).unwrap())
    }

    fn total(&self, of: impl Fn(&Counts) -> &AtomicUsize) -> usize {
        let counts = self.counts.iter();
        counts
            .map(|counts| of(counts).load(Ordering::Relaxed))
            .sum()
    }
}

fn options(workers: usize, tasks_at_once: usize, rows: usize) -> EngineOptions {
    EngineOptions {
        workers: Workers::Cores(vec![vec![0]; workers]),
        tasks_at_once,
        sizes: vec![BatchSizes { min: 1, max: rows }],
        ..EngineOptions::default()
    }
}

fn requests(rng: &mut fastrand::Rng, count: usize) -> Vec<Vec<f32>> {
    let lengths: Vec<usize> = (0..count).map(|_| rng.usize(1..12)).collect();
    lengths
        .iter()
        .map(|steps| random(rng, steps * FEATURES))
        .collect()
}

#[test]
fn states_stay_on_the_device_while_steps_are_in_flight() {
    let mut rng = fastrand::Rng::with_seed(1);
    for model in models() {
        for tasks_at_once in [1, 5] {
            let served = Served::new(&model, 1, &options(1, tasks_at_once, 4));
            // As many as there are slots.
            let requests = requests(&mut rng, 16);
            let kinds = [Outputs::Last, Outputs::Each];
            let all = requests
                .iter()
                .zip(kinds.iter().cycle())
                .map(|(x, outputs)| Request::new(served.chain.unfold(x, None, *outputs).unwrap()));
            let tickets = served.engine.submit_all(all).unwrap();
            for ((x, outputs), ticket) in requests.iter().zip(kinds.iter().cycle()).zip(tickets) {
                let expected = served.expected(x, None, *outputs);
                assert_eq!(bits(&ticket.wait().unwrap().values), expected);
            }
            // States are zeros first, then the device's.
            assert_eq!(served.total(|counts| &counts.loads), 0);
            assert_eq!(served.total(|counts| &counts.stores), 0);
            let steps: usize = requests.iter().map(|x| x.len() / FEATURES).sum();
            let batches = served.total(|counts| &counts.steps);
            assert!(batches < steps, "{batches} batches of {steps} steps");
            let in_flight = served.total(|counts| &counts.most_in_flight);
            assert!((2..=tasks_at_once + 1).contains(&in_flight), "{in_flight}");
        }
    }
}

/// Requests with initial states are answered as on the CPU. Returns how many states were stored.
fn stores_of_requests_with_initial_states(
    rng: &mut fastrand::Rng,
    model: &Model,
    served: &Served,
    policy: &str,
) -> usize {
    let sizes: Vec<usize> = served_states(model);
    let initial: Vec<Vec<f32>> = sizes.iter().map(|size| random(rng, *size)).collect();
    let initial: Vec<&[f32]> = initial.iter().map(|state| &state[..]).collect();
    let requests = requests(rng, 60);
    let all = requests.iter().map(|x| {
        let graph = served.chain.unfold(x, Some(&initial), Outputs::Each);
        Request::new(graph.unwrap())
    });
    let tickets = served.engine.submit_all(all).unwrap();
    for (x, ticket) in requests.iter().zip(tickets) {
        let expected = served.expected(x, Some(&initial), Outputs::Each);
        assert_eq!(bits(&ticket.wait().unwrap().values), expected, "{policy}");
    }
    // Initial states come from the host.
    assert!(served.total(|counts| &counts.loads) >= requests.len());
    assert_eq!(served.total(|counts| &counts.prepared), 2);
    assert_eq!(served.engine.drain_for(Duration::from_secs(10)), 0);
    served.total(|counts| &counts.stores)
}

#[test]
fn states_are_stored_where_slots_or_devices_are_few() {
    let mut rng = fastrand::Rng::with_seed(2);
    for model in models() {
        for devices in [1, 2] {
            for policy in PolicyKind::ALL {
                let options = EngineOptions {
                    policy,
                    ..options(2, 2, 2)
                };
                let served = Served::new(&model, devices, &options);
                let name = policy.name();
                stores_of_requests_with_initial_states(&mut rng, &model, &served, name);
            }
            let in_turn = |_| RoundRobin::build(2);
            let served = Served::with_policy(&model, devices, &options(2, 2, 2), in_turn);
            let stores =
                stores_of_requests_with_initial_states(&mut rng, &model, &served, "in turn");
            assert!(
                stores > 0,
                "states of more requests are left than there are slots"
            );
        }
    }
}

fn served_states(model: &Model) -> Vec<usize> {
    let directions = model.layers().iter().map(|layer| &layer.directions()[0]);
    let sizes = directions.flat_map(|of| [of.output_size(), of.cell_state_size()]);
    sizes.filter(|size| *size > 0).collect()
}

#[test]
fn cancelled_requests_leave_their_slots() {
    let mut rng = fastrand::Rng::with_seed(3);
    let [model, _] = models();
    let served = Served::new(&model, 1, &options(1, 3, 2));
    for round in 0..20 {
        let long: Vec<_> = (0..20)
            .map(|_| served.submit(&random(&mut rng, 200 * FEATURES), None, Outputs::Last))
            .collect();
        let x = random(&mut rng, 5 * FEATURES);
        let short = served.submit(&x, None, Outputs::Each);
        drop(long);
        let values = short.wait().unwrap().values;
        assert_eq!(
            bits(&values),
            served.expected(&x, None, Outputs::Each),
            "{round}"
        );
    }
}

#[test]
fn streams_have_the_bits_of_whole_sequences() {
    let mut rng = fastrand::Rng::with_seed(4);
    for model in models() {
        let served = Served::new(&model, 1, &options(1, 2, 4));
        let sequences: Vec<Vec<f32>> = (0..6).map(|_| random(&mut rng, 9 * FEATURES)).collect();
        let expected: Vec<Vec<u32>> = (sequences.iter())
            .map(|x| served.expected(x, None, Outputs::Each))
            .collect();
        let mut streams: Vec<_> = (0..sequences.len())
            .map(|_| served.engine.stream(served.chain.cell(), None).unwrap())
            .collect();
        let mut tickets: Vec<Vec<_>> = sequences.iter().map(|_| Vec::new()).collect();
        for step in 0..9 {
            for ((x, stream), tickets) in sequences.iter().zip(&mut streams).zip(&mut tickets) {
                let x = &x[step * FEATURES..][..FEATURES];
                tickets.push(stream.push(x).unwrap());
            }
        }
        for (tickets, expected) in tickets.into_iter().zip(&expected) {
            let answers = tickets.into_iter().map(|ticket| ticket.wait().unwrap());
            let output = model.signature().output;
            let found: Vec<u32> = answers
                .flat_map(|all| bits(&all[all.len() - output..]))
                .collect();
            assert_eq!(&found, expected);
        }
    }
}

#[test]
fn a_failed_device_ends_its_requests_once_and_is_prepared_again() {
    let mut rng = fastrand::Rng::with_seed(5);
    let [model, _] = models();
    // In turn, states are left of requests that are in no task.
    let policies: [fn(usize) -> Box<dyn Policy>; 2] = [
        |workers| Box::new(Cellular::new(workers, Order::Arrival)),
        |_| RoundRobin::build(3),
    ];
    for (failing, build) in [1, 2, 7, 20]
        .into_iter()
        .flat_map(|at| policies.map(|build| (at, build)))
    {
        let served = Served::with_policy(&model, 1, &options(1, 1, 3), build);
        served.counts[0].failing.store(failing, Ordering::Relaxed);
        let requests = requests(&mut rng, 30);
        let all = (requests.iter())
            .map(|x| Request::new(served.chain.unfold(x, None, Outputs::Last).unwrap()));
        let tickets = served.engine.submit_all(all).unwrap();
        let mut failed = 0;
        for (x, ticket) in requests.iter().zip(tickets) {
            match ticket.wait() {
                Ok(response) => {
                    let expected = served.expected(x, None, Outputs::Last);
                    assert_eq!(bits(&response.values), expected);
                }
                Err(RequestError::Cell { cell, why }) => {
                    assert_eq!((&cell[..], &why.to_string()[..]), ("chain", FAILED));
                    failed += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        // Those with states on the device; later ones run on the device prepared again.
        assert!(
            (1..requests.len()).contains(&failed),
            "{failed} at step {failing}"
        );
        assert_eq!(served.total(|counts| &counts.prepared), 2);
    }
}

const FAILED: &str = "the device has failed";

/// The requests of a model end while its steps are in flight: it is removed after these.
#[test]
fn a_model_is_removed_after_its_steps_in_flight() {
    let mut rng = fastrand::Rng::with_seed(6);
    let [model, _] = models();
    let served = Served::new(&model, 1, &options(1, 5, 4));
    for _ in 0..20 {
        let late = Late::default();
        let steps = Arc::clone(&late.counts);
        let mut cells = Cells::new();
        let cell = ChainCell::new(Arc::clone(&model)).unwrap();
        let chain = Chain::add(&mut cells, cell.with_backend(Arc::new(late)));
        let other = served
            .engine
            .add_model(cells, &ModelOptions::default())
            .unwrap();
        let long = random(&mut rng, 500 * FEATURES);
        let requests =
            (0..6).map(|_| Request::new(chain.unfold(&long, None, Outputs::Last).unwrap()));
        let tickets = other.submit_all(requests).unwrap();
        while steps.steps.load(Ordering::Relaxed) < 20 {
            std::thread::yield_now();
        }
        drop(tickets);
        other.remove();
        assert!(other.stats().is_none());
        assert_eq!(served.engine.stats().models.len(), 1);
        // The model on the device is gone; the cell is still `other`'s.
        assert_eq!(Arc::strong_count(&steps), 2);
    }
    let x = random(&mut rng, 7 * FEATURES);
    let values = served
        .submit(&x, None, Outputs::Last)
        .wait()
        .unwrap()
        .values;
    assert_eq!(bits(&values), served.expected(&x, None, Outputs::Last));
}

/// Answers states and the output of a node after it was computed, without a look at them.
struct Answers {
    ports: usize,
}

impl DynamicGraph for Answers {
    fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
        assert_eq!(outputs.ports(), self.ports);
        (0..self.ports).for_each(|port| more.answer(node.output(port)));
    }

    fn reads(&self, _: usize) -> bool {
        false
    }
}

#[test]
fn readers_that_are_added_later_get_states_from_the_device() {
    let mut rng = fastrand::Rng::with_seed(7);
    for model in models() {
        let served = Served::new(&model, 1, &options(1, 2, 4));
        let ports = 1 + served_states(&model).len();
        let requests = requests(&mut rng, 8);
        let graph = |chain: &Chain, x: &[f32]| {
            let mut graph = chain.unfold(x, None, Outputs::Last).unwrap();
            graph.watch(NodeId::new(x.len() / FEATURES - 1));
            graph
        };
        let all = requests
            .iter()
            .map(|x| Request::new(graph(&served.chain, x)).grow(Answers { ports }));
        let tickets = served.engine.submit_all(all).unwrap();
        let (cells, chain) = &served.oracle;
        for (x, ticket) in requests.iter().zip(tickets) {
            let answers = Some(Box::new(Answers { ports }) as Box<dyn DynamicGraph>);
            let expected = run_unbatched(cells, graph(chain, x), answers).unwrap();
            assert_eq!(bits(&ticket.wait().unwrap().values), bits(&expected));
        }
        // A step of a request is stored once, if it is watched.
        assert_eq!(served.total(|counts| &counts.stores), requests.len());
    }
}
