//! What the whole team copies is what one thread copies, and what the graphs say, wherever inputs
//! are read.

use std::sync::Arc;

use slotmap::SlotMap;

use super::copies::ParallelCopy;
use super::*;
use crate::cell_graph::{
    Batch, Cell, DynamicGraph, Graph, NodeId, Port, Ports, PreparedCell, RowLayout, Source,
};
use crate::cell_graph::{CellError, Cells, WorkerEnv};
use crate::scheduler::{Row, WorkerId};
use gatestream::execute::team::{SharedTeam, Team};

/// So wide that six rows are the team's.
const WIDTH: usize = 3000;
const FEW: usize = 3;
const MOST_ROWS: usize = 16;
const CELL: CellId = CellId::new(0);

/// What a cell makes of `x` and its states, the second of which is of another width: its new states
/// and its output. Whole numbers below 4000, so that every order of adding gives the same.
fn mix(x: &[f32], sum: &mut [f32], few: &mut [f32], y: &mut [f32]) {
    for ((x, sum), y) in x.iter().zip(&mut *sum).zip(y) {
        *sum = (*sum + x) % 1000.0;
        *y = (*sum + 3.0 * x) % 1000.0;
    }
    for (few, sum) in few.iter_mut().zip(sum) {
        *few = (*few + *sum) % 1000.0;
    }
}

struct Mixer {
    ports: Ports,
    gathers: bool,
}

impl Cell for Mixer {
    fn name(&self) -> &str {
        "mixer"
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn layout(&self) -> RowLayout {
        if self.gathers {
            RowLayout::GatheredInputs
        } else {
            RowLayout::Contiguous
        }
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        struct Ready;
        impl PreparedCell for Ready {
            fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
                let (x, rows) = (batch.input(0), batch.rows());
                let [mut sum, mut few, mut y] = batch.written_rows();
                for row in 0..rows {
                    let (sum, few) = (sum.row(row, WIDTH), few.row(row, FEW));
                    mix(x.row(row, WIDTH), sum, few, y.row(row, WIDTH));
                }
                Ok(())
            }
        }
        Ok(Box::new(Ready))
    }
}

fn cells(gathers: bool) -> Cells {
    let ports = Ports::new().input("x", WIDTH);
    let ports = ports.state("sum", WIDTH).state("few", FEW);
    let mut cells = Cells::new();
    cells.add(Mixer {
        ports: ports.output("y", WIDTH),
        gathers,
    });
    cells
}

/// What a watched node gave goes to the answer, as it was seen and from where it is.
struct Answering;

impl DynamicGraph for Answering {
    fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
        let seen = more.give(outputs.port(2));
        more.answer(seen);
        more.answer(node.output(2));
    }
}

/// A random graph: nodes go on from both states of one before, from one state each of two, or
/// begin.
fn graph(rng: &mut fastrand::Rng) -> Graph {
    let mut graph = Graph::new();
    let count = rng.usize(1..6);
    for index in 0..count {
        let before = |rng: &mut fastrand::Rng, port: usize| match index {
            0 => Source::Zeros,
            _ => NodeId::new(rng.usize(..index)).output(port),
        };
        let x = match rng.u8(..4) {
            0 => Source::Zeros,
            1 => before(rng, 0),
            2 => before(rng, 2),
            _ => {
                let values: Vec<f32> = (0..WIDTH).map(|_| rng.u16(..1000).into()).collect();
                graph.give(&values)
            }
        };
        let states = match rng.u8(..4) {
            0 => [Source::Zeros, before(rng, 1)],
            1 => [before(rng, 0), before(rng, 1)],
            _ if index == 0 => [Source::Zeros; 2],
            _ => [0, 1].map(|port| NodeId::new(index - 1).output(port)),
        };
        graph.node(CELL, &[x, states[0], states[1]]);
    }
    graph.answer(NodeId::new(count - 1).output(0));
    graph.answer(NodeId::new(rng.usize(..count)).output(rng.usize(..3)));
    if rng.bool() {
        graph.watch(NodeId::new(rng.usize(..count)));
    }
    graph
}

/// The answer, node after node.
fn expected(graph: &Graph) -> Vec<f32> {
    let mut outputs: Vec<[Vec<f32>; 3]> = Vec::new();
    let value = |source: Source, width: usize, outputs: &[[Vec<f32>; 3]]| match source {
        Source::Zeros => vec![0.0; width],
        Source::Given { first, width } => graph.given()[first..first + width].to_vec(),
        Source::Node { node, port } => outputs[node.index()][port].clone(),
    };
    for node in (0..graph.len()).map(NodeId::new) {
        let &[x, sum, few] = graph.sources(node) else {
            panic!("three sources");
        };
        let x = value(x, WIDTH, &outputs);
        let (mut sum, mut few) = (value(sum, WIDTH, &outputs), value(few, FEW, &outputs));
        let mut y = vec![0.0; WIDTH];
        mix(&x, &mut sum, &mut few, &mut y);
        outputs.push([sum, few, y]);
    }
    let answers = graph.answers().iter();
    let mut answer: Vec<f32> = answers.flat_map(|&s| value(s, WIDTH, &outputs)).collect();
    for node in graph.watched() {
        answer.extend([&outputs[node.index()][2][..]; 2].concat());
    }
    answer
}

/// Batches of nodes that wait for nothing, each with padding, and the request that ends before it
/// runs, if one does.
type Plan = Vec<(Vec<(usize, NodeId)>, usize, Option<usize>)>;

fn plan(graphs: &[Graph], rng: &mut fastrand::Rng) -> Plan {
    let mut todo: Vec<(usize, NodeId)> = (graphs.iter().enumerate())
        .flat_map(|(request, graph)| (0..graph.len()).map(move |n| (request, NodeId::new(n))))
        .collect();
    let mut plan = Plan::new();
    while !todo.is_empty() {
        let waits = |&(request, node): &(usize, NodeId)| {
            let mut sources = graphs[request].sources(node).iter();
            sources.any(|source| match *source {
                Source::Node { node, .. } => todo.contains(&(request, node)),
                _ => false,
            })
        };
        let mut ready: Vec<_> = todo.iter().copied().filter(|row| !waits(row)).collect();
        rng.shuffle(&mut ready);
        ready.truncate(rng.usize(1..=MOST_ROWS));
        let padding = rng.usize(..=(MOST_ROWS - ready.len()).min(3));
        let ends = (rng.u8(..8) == 0).then(|| ready[0].0);
        todo.retain(|row| !ready.contains(row) && Some(row.0) != ends);
        plan.push((ready, padding, ends));
    }
    plan
}

struct Run {
    worker: Worker<()>,
    handed_on_by_all: bool,
    requests: Vec<(RequestKey, Arc<RequestValues<()>>)>,
}

impl Run {
    fn new(graphs: &[Graph], (members, gathers): (usize, bool)) -> Run {
        let model = ModelCells::alone(cells(gathers));
        let team = SharedTeam::new(Team::with_threads(members).unwrap());
        let env = WorkerEnv::one_step(team, MOST_ROWS);
        let mut keys = SlotMap::with_key();
        let requests = graphs.iter().map(|graph| {
            let unfolded = graph.unfold(&model.cells).unwrap();
            let values = Values::new(
                graph.clone(),
                &unfolded,
                // Of those that do not grow only states are copied by all, where inputs are
                // gathered.
                (!graph.watched().is_empty()).then(|| Box::new(Answering) as Box<dyn DynamicGraph>),
                &model.cells,
                (),
            );
            (
                keys.insert(()),
                Arc::new(RequestValues::new(&model, values)),
            )
        });
        Run {
            requests: requests.collect(),
            worker: Worker::of(&model, [env]),
            handed_on_by_all: false,
        }
    }

    fn run(&mut self, rows: &[(usize, NodeId)], padding: usize) -> Outcome {
        let work: Vec<_> = (rows.iter())
            .map(|&(request, node)| {
                let (request, values) = &self.requests[request];
                TaskRow {
                    row: Row {
                        request: *request,
                        node,
                    },
                    values: Arc::clone(values),
                }
            })
            .collect();
        let task = Task {
            worker: WorkerId(0),
            cell: CELL,
            rows: work.iter().map(|work| work.row).collect(),
            padding,
            continues: false,
        };
        let outcome = self.worker.run(&mut [WorkerTask::new(task, work)]);
        let rows = &self.worker.runner(CELL).unwrap().rows;
        self.handed_on_by_all |= rows.scattered(0).is_some();
        assert!(rows.holds_no_inputs());
        outcome
    }
}

#[test]
fn what_the_team_copies_is_what_one_copies_and_what_the_graphs_say() {
    let settings = [(1, false), (3, false), (1, true), (3, true)];
    let (mut by_all, mut handed_on_by_all) = ([false; 4], [false; 4]);
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let graphs: Vec<_> = (0..rng.usize(1..40)).map(|_| graph(&mut rng)).collect();
        let plan = plan(&graphs, &mut rng);
        let [one, others @ ..] = [0, 1, 2, 3].map(|setting| {
            let mut run = Run::new(&graphs, settings[setting]);
            let mut ended = vec![false; graphs.len()];
            for (rows, padding, ends) in &plan {
                if let &Some(request) = ends {
                    ended[request] = true;
                    run.requests[request].1.set_ended();
                }
                let outcome = run.run(rows, *padding);
                assert!(outcome.failed.is_empty() && outcome.grown.is_empty());
            }
            for ((graph, (_, values)), ended) in graphs.iter().zip(&run.requests).zip(ended) {
                if !ended {
                    assert_eq!(values.lock().take_answer(), expected(graph), "seed {seed}");
                }
            }
            // What the second member has let go of.
            by_all[setting] |= run.worker.pools.get(1).is_some_and(|pool| !pool.is_empty());
            handed_on_by_all[setting] |= run.handed_on_by_all;
            let kept = run
                .requests
                .iter()
                .map(|(_, values)| values.lock().retained());
            (run.worker.moved(CELL), kept.collect::<Vec<_>>())
        });
        for other in others {
            assert_eq!(one, other, "seed {seed}: moved, kept");
        }
    }
    // Where inputs are gathered, members are given what was kept.
    assert_eq!(by_all, [false, true, false, true]);
    assert_eq!(handed_on_by_all, [false, true, false, true]);
}

#[test]
fn rows_that_lack_something_are_named() {
    // Second nodes before the first; of every other request it takes nothing of that.
    let graphs = (0..8).map(|request| {
        let mut graph = Graph::new();
        let first = graph.node(CELL, &[Source::Zeros; 3]);
        let x = [first.output(2), Source::Zeros][request % 2];
        let second = graph.node(CELL, &[x, Source::Zeros, Source::Zeros]);
        graph.answer(second.output(0));
        graph
    });
    let graphs: Vec<_> = graphs.collect();
    let rows: Vec<_> = (0..8).map(|request| (request, NodeId::new(1))).collect();
    for setting in [(1, false), (3, false), (1, true), (3, true)] {
        let mut run = Run::new(&graphs, setting);
        let failed = run.run(&rows, 0).failed;
        let lost =
            [0, 2, 4, 6].map(|request| (run.requests[request].0, RequestError::Lost { node: 1 }));
        assert_eq!(failed, lost, "members, gathers: {setting:?}");
    }
}

#[test]
fn batches_that_are_no_work_for_all_are_copied_by_those_they_are_work_for() {
    let team = SharedTeam::new(Team::with_threads(4).unwrap());
    // 12 kB a row, of which three are more than a member's worth.
    let cells = cells(false);
    let inputs = cells.get(CELL).unwrap().ports().inputs();
    let shares = |rows: usize| ParallelCopy::of(&team, inputs, rows).map(|c| c.share(rows));
    let expected = [None, None, None, None, None, None, Some(3), Some(4)];
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(shares), expected);
    assert_eq!([9, 12, 100].map(shares), [Some(3), Some(3), Some(25)]);
    let wide = [Port::new("x", 1 << 20)];
    assert!(ParallelCopy::of(&team, &wide, 1).is_none());
    assert_eq!(
        ParallelCopy::of(&team, &wide, 2).map(|c| c.share(2)),
        Some(1)
    );
}
