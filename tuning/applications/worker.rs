//! The worker of the applications on gatestream's layers, by the protocol of
//! `benches/references/workers/protocol.py`, with one more request: `{"do": "layers", "runs": N}`
//! is answered by `{"layers": [[name, [seconds, …]], …]}`.

#[allow(dead_code)] // an example compares the answers itself
#[path = "../../examples/applications/mod.rs"]
mod applications;

use std::error::Error;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use applications::{Case, File, Planning};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    answer(&json!({ "ok": { "version": "" } }))?;
    let mut loaded: Option<Case> = None;
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let reply = handle(&request, &mut loaded);
        answer(&reply.unwrap_or_else(|error| json!({ "error": error.to_string() })))?;
    }
    Ok(())
}

fn answer(reply: &Value) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{reply}")?;
    stdout.flush()
}

fn handle(request: &Value, loaded: &mut Option<Case>) -> Result<Value, Box<dyn Error>> {
    let text = |name: &str| request[name].as_str().ok_or(format!("no {name}"));
    let number = |name: &str| request[name].as_f64().ok_or(format!("no {name}"));
    if request["do"] == "load" {
        *loaded = None;
        let bytes = std::fs::read(text("model")?)?;
        let planning = Planning {
            cores: number("threads")? as usize,
            budget: request["tune_seconds"]
                .as_f64()
                .map(Duration::from_secs_f64),
        };
        let mut case = Case::open(&File::read(&bytes)?, planning)?;
        case.run()?;
        let output = |(name, values): &(&str, &[f32])| {
            let shape = [values.len()];
            json!({ "name": name, "type": "float32", "shape": shape })
        };
        let outputs: Vec<Value> = case.answers().iter().map(output).collect();
        *loaded = Some(case);
        return Ok(json!({ "ok": { "outputs": outputs } }));
    }
    let case = loaded.as_mut().ok_or("nothing is loaded")?;
    match text("do")? {
        "run" => {
            let (begin, mut warm) = (Instant::now(), 0.0);
            while warm < number("warm_runs")?
                || begin.elapsed().as_secs_f64() < number("warm_seconds")?
            {
                case.run()?;
                warm += 1.0;
            }
            let mut times = Vec::new();
            for _ in 0..number("runs")? as usize {
                let start = Instant::now();
                case.run()?;
                times.push(start.elapsed().as_secs_f64());
            }
            Ok(json!({ "times": times }))
        }
        "layers" => {
            let layers = case.time_layers(number("runs")? as usize)?;
            let layers = layers.iter().map(|layer| {
                let seconds: Vec<f64> = layer.times.iter().map(Duration::as_secs_f64).collect();
                json!([layer.name, seconds])
            });
            Ok(json!({ "layers": layers.collect::<Vec<_>>() }))
        }
        "output" => {
            let answers = case.answers();
            let values = answers.iter().flat_map(|(_, values)| values.iter());
            let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
            std::fs::write(text("path")?, bytes)?;
            Ok(json!({ "ok": {} }))
        }
        other => Err(format!("unknown request {other:?}").into()),
    }
}
