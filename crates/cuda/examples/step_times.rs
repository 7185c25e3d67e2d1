//! Times of runs on a GPU, or on the CPU's cores, as CSV: a line for each shape of standard input,
//! `cell,input,hidden,batch,steps`.
//!
//!     cargo run --release -p gatestream-cuda --features cuda --example step_times <shapes.csv
//!     cargo run --release -p gatestream-cuda --features cuda --example step_times cpu <shapes.csv
//!
//! A run on a GPU copies its input to the device and its output back.

use std::error::Error;
use std::io::BufRead;
use std::time::Instant;

use gatestream::execute::{Backend, Cpu};
use gatestream::machine::Topology;
use gatestream::model::{Gru, Input, Lstm, Output, Rnn};
use gatestream::plan::Plan;
use gatestream_cuda::Cuda;

const RUNS: usize = 30;

fn main() -> Result<(), Box<dyn Error>> {
    let cores = Topology::detect().team_size();
    let backend: Box<dyn Backend> = match std::env::args().nth(1).as_deref() {
        Some("cpu") => Box::new(Cpu::new()),
        Some(other) => return Err(format!("{other}: expected cpu or nothing").into()),
        None => Box::new(Cuda::open(0)?),
    };
    println!("cell,input,hidden,batch,steps,median_ms,least_ms,greatest_ms");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut fields = line.split(',');
        let cell = fields.next().unwrap_or_default();
        let sizes: Vec<usize> = fields.map(str::parse).collect::<Result<_, _>>()?;
        let [input, hidden, batch, steps] = sizes[..] else {
            return Err(format!("{line}: expected cell,input,hidden,batch,steps").into());
        };
        let model = match cell {
            "lstm" => Lstm::new(input, hidden).random(1)?,
            "gru" => Gru::new(input, hidden).random(1)?,
            "rnn" => Rnn::new(input, hidden).random(1)?,
            _ => return Err(format!("{cell}: expected lstm, gru or rnn").into()),
        };
        let plan = Plan::estimate(&model, batch, steps, cores);
        let mut prepared = backend.prepare(&model, &plan)?;
        let x = vec![0.5; steps * batch * input];
        let mut y = vec![0.0; steps * batch * hidden];
        let mut times = Vec::new();
        for _ in 0..RUNS + 3 {
            let start = Instant::now();
            prepared.run(&Input::new(&x, steps, batch), &mut Output::new(&mut y))?;
            times.push(1e3 * start.elapsed().as_secs_f64());
        }
        let mut times = times.split_off(3);
        times.sort_by(f64::total_cmp);
        let (least, median, greatest) = (times[0], times[RUNS / 2], times[RUNS - 1]);
        println!("{line},{median:.4},{least:.4},{greatest:.4}");
    }
    Ok(())
}
