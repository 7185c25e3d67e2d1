//! The worker of gatestream itself, through the API a user has: open, plan, session, run.

use anyhow::Result;
use gatestream::machine::{Ceilings, Machine, Rate, ReadRates, TeamCeilings};
use gatestream::model::Precision;
use gatestream::{Input, Model, Output, Plan, Session};
use gatestream_references::{Load, Network, serve};
use serde_json::{Value, json};

struct Ours {
    session: Session,
    values: Vec<f32>,
    results: Vec<f32>,
    lengths: Option<Vec<usize>>,
    steps: usize,
    batch: usize,
    facts: Value,
}

/// The best rates that were ever measured here: what a machine gave once it can give.
struct Best(Option<Ceilings>);

impl Best {
    /// Measures once more; a slow minute does not lower what was found.
    fn measure(&mut self, machine: &mut Machine) -> Result<Ceilings> {
        let now = machine.measure()?.clone();
        let best = match &self.0 {
            None => now,
            Some(before) => Ceilings {
                isa: now.isa,
                one: better(before.one, now.one),
                all: better(before.all, now.all),
            },
        };
        self.0 = Some(best.clone());
        Ok(best)
    }
}

fn better(a: TeamCeilings, b: TeamCeilings) -> TeamCeilings {
    let faster = |a: Rate, b: Rate| if a.value > b.value { a } else { b };
    let level = |a: Option<Rate>, b: Option<Rate>| a.zip(b).map(|(a, b)| faster(a, b));
    let (x, y) = (a.read_gbps, b.read_gbps);
    TeamCeilings {
        fma_f32_gflops: faster(a.fma_f32_gflops, b.fma_f32_gflops),
        dot_int8_gops: faster(a.dot_int8_gops, b.dot_int8_gops),
        read_gbps: ReadRates {
            l1: level(x.l1, y.l1),
            l2: level(x.l2, y.l2),
            l3: level(x.l3, y.l3),
            memory: faster(x.memory, y.memory),
        },
        ..b
    }
}

fn load(request: &Load, machine: &mut Machine, best: &mut Best) -> Result<Box<dyn Network>> {
    let ceilings = best.measure(machine)?;
    let row = &request.row;
    // Stacks that differ have no form in one state dict of PyTorch's; their ONNX graph is one file.
    let file = match row.stacks.len() {
        1 => "model.safetensors",
        _ => "model.onnx",
    };
    let precision: Precision = request.precision.parse()?;
    // Of the f32 file, as `--precision` does.
    let model = Model::open(request.folder.join(file))?.into_precision(precision)?;
    let plan = match &request.plan {
        Some(path) => Plan::load(path, &model)?,
        None => Plan::estimate(&model, row.batch, row.steps, request.threads),
    };
    let (entry, chosen) = (&plan.entries[0], &plan.entries[0].configuration);
    let bound = entry.bound(&model, &machine.topology, &ceilings)?;
    let facts = json!({
        "bound_ms": 1e3 * bound.seconds,
        "bound_by": format!("{:?}", bound.by).to_lowercase(),
        "weight_bytes": model.weight_bytes(),
        "threads": plan.threads(),
        "tuned": plan.is_tuned(),
        "ceilings": rates(&ceilings.all),
        "plan": chosen.to_string(),
    });
    let session = Session::new(&model, &plan)?;
    session.pin_caller();
    Ok(Box::new(Ours {
        session,
        values: request.values()?,
        results: vec![0.0; row.steps * row.batch * row.output],
        lengths: row.lengths.clone(),
        steps: row.steps,
        batch: row.batch,
        facts,
    }))
}

/// GFLOP/s and GB/s of all cores at once.
fn rates(team: &TeamCeilings) -> Value {
    let read = &team.read_gbps;
    json!({
        "threads": team.threads,
        "fma_f32_gflops": team.fma_f32_gflops.value,
        "dot_int8_gops": team.dot_int8_gops.value,
        "l1_gbps": read.l1.map(|rate| rate.value),
        "l2_gbps": read.l2.map(|rate| rate.value),
        "l3_gbps": read.l3.map(|rate| rate.value),
        "memory_gbps": read.memory.value,
    })
}

impl Network for Ours {
    fn call(&mut self) -> Result<()> {
        let mut input = Input::new(&self.values, self.steps, self.batch);
        if let Some(lengths) = &self.lengths {
            input = input.lengths(lengths);
        }
        self.session
            .run(&input, &mut Output::new(&mut self.results))?;
        Ok(())
    }

    fn output(&mut self) -> Result<Vec<f32>> {
        Ok(self.results.clone())
    }

    fn facts(&mut self) -> Result<Value> {
        Ok(self.facts.clone())
    }
}

fn main() -> Result<()> {
    // The bound's formula is `gatestream bench`'s. Measured a few times before the first row, and
    // again with each: the second core may be a moment's half.
    let (mut machine, mut best) = (Machine::detect()?, Best(None));
    for _ in 0..3 {
        best.measure(&mut machine)?;
    }
    serve("gatestream", |request| {
        load(request, &mut machine, &mut best)
    })
}
