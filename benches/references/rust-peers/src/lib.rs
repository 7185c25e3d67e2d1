//! What the Rust workers of `benches/references` share: requests come in on stdin and answers go
//! out on stdout, one JSON object a line, as `workers/protocol.py` says. Times are taken around the
//! call alone.

mod bare;

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bare::Companions;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Equal layers on top of each other.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Stack {
    /// Features of a step of the first layer.
    pub input: usize,
    /// Hidden units per direction.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Both directions in every layer, outputs concatenated.
    pub bidirectional: bool,
}

/// A network and the size of a request.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    /// `lstm` or `gru`.
    pub cell: String,
    /// Sequences.
    pub batch: usize,
    /// Steps of the longest sequence.
    pub steps: usize,
    /// Steps of each sequence; all of them where `None`.
    pub lengths: Option<Vec<usize>>,
    /// Features of an input step.
    pub input: usize,
    /// Values of an output step.
    pub output: usize,
    /// The layers, bottom first.
    pub stacks: Vec<Stack>,
}

/// What to load.
#[derive(Clone, Debug, Deserialize)]
pub struct Load {
    /// The network.
    pub row: Row,
    /// Where `model.safetensors`, `model.onnx`, `model.int8.onnx` and `input.f32` lie.
    pub folder: PathBuf,
    /// Threads to use.
    pub threads: usize,
    /// `f32`, `bf16` or `int8`; a library is only asked for what it has.
    pub precision: String,
    /// Ours only: a plan file; the estimate where `None`.
    pub plan: Option<PathBuf>,
}

impl Load {
    /// The input, `[steps, batch, features]`.
    pub fn values(&self) -> Result<Vec<f32>> {
        let path = self.folder.join("input.f32");
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let value = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        Ok(bytes.chunks_exact(4).map(value).collect())
    }
}

/// A whole ONNX file and its inputs.
#[derive(Clone, Debug, Deserialize)]
pub struct LoadFile {
    /// The ONNX file.
    pub model: PathBuf,
    /// Its inputs.
    pub inputs: Vec<InputFile>,
    /// Threads to use.
    pub threads: usize,
    /// Time to tune in, in seconds; 0: plans are estimated.
    #[serde(default)]
    pub tune_seconds: f64,
}

/// An input of a whole file.
#[derive(Clone, Debug, Deserialize)]
pub struct InputFile {
    /// The input's name in the graph.
    pub name: String,
    /// The type of its values, as NumPy names it.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Where its values lie, in C order.
    pub file: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
enum Request<L> {
    Load(L),
    Run {
        runs: usize,
        warm_runs: usize,
        warm_seconds: f64,
    },
    Output {
        path: PathBuf,
    },
    Bare {
        runs: usize,
        seconds: f64,
    },
}

/// A network ready to run on one input.
pub trait Network {
    /// What is timed.
    fn call(&mut self) -> Result<()>;
    /// The results of the last call, `[steps, batch, values]`; of a whole file see `output_bytes`.
    fn output(&mut self) -> Result<Vec<f32>>;
    /// The bytes of the results; of a whole file those of all outputs, one after the other.
    fn output_bytes(&mut self) -> Result<Vec<u8>> {
        Ok((self.output()?.iter())
            .flat_map(|v| v.to_le_bytes())
            .collect())
    }
    /// Further facts for the report.
    fn facts(&mut self) -> Result<Value> {
        Ok(json!({}))
    }
}

/// The version of a package that this program was built with, from the lock file.
fn version_of(package: &str) -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let after = lock.split_once(&format!("name = \"{package}\"\nversion = \""));
    let version = after.and_then(|(_, rest)| rest.split_once('"'));
    version.map_or("unknown", |(version, _)| version)
}

/// Answers requests until stdin ends. `package` is the library's name in the lock file, `L` is
/// [`Load`] or [`LoadFile`].
pub fn serve<L: DeserializeOwned>(
    package: &str,
    mut load: impl FnMut(&L) -> Result<Box<dyn Network>>,
) -> Result<()> {
    let mut answers = std::io::stdout();
    let mut answer = |message: Value| -> Result<()> {
        writeln!(answers, "{message}")?;
        Ok(answers.flush()?)
    };
    answer(json!({ "ok": { "version": version_of(package) } }))?;
    let companions = Companions::new();
    let mut loaded: Option<Box<dyn Network>> = None;
    for line in std::io::stdin().lock().lines() {
        let done = handle(
            serde_json::from_str(&line?)?,
            &mut loaded,
            &mut load,
            &companions,
        );
        answer(done.unwrap_or_else(|error| {
            let text = format!("{error:#}");
            let first: String = text
                .lines()
                .next()
                .unwrap_or_default()
                .chars()
                .take(200)
                .collect();
            json!({ "error": first })
        }))?;
    }
    Ok(())
}

fn handle<L>(
    request: Request<L>,
    loaded: &mut Option<Box<dyn Network>>,
    load: &mut impl FnMut(&L) -> Result<Box<dyn Network>>,
    companions: &Companions,
) -> Result<Value> {
    if let Request::Load(request) = &request {
        *loaded = None; // frees the last one first: two need not fit into memory
        let network = loaded.insert(load(request)?);
        network.call()?;
        return Ok(json!({ "ok": network.facts()? }));
    }
    let network = loaded.as_mut().context("nothing is loaded")?;
    match request {
        Request::Load(_) => Ok(json!({})),
        Request::Run {
            runs,
            warm_runs,
            warm_seconds,
        } => {
            // After a pause the caches hold another library's weights.
            let (begin, warm) = (Instant::now(), Duration::from_secs_f64(warm_seconds));
            let mut done = 0;
            while done < warm_runs || begin.elapsed() < warm {
                network.call()?;
                done += 1;
            }
            let mut times = Vec::with_capacity(runs);
            for _ in 0..runs {
                let start = Instant::now();
                network.call()?;
                times.push(start.elapsed().as_secs_f64());
            }
            Ok(json!({ "times": times }))
        }
        Request::Output { path } => {
            std::fs::write(path, network.output_bytes()?)?;
            Ok(json!({ "ok": {} }))
        }
        Request::Bare { runs, seconds } => Ok(json!({ "times": companions.times(runs, seconds) })),
    }
}
