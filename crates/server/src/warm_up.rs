//! Requests that a model must answer before it is ready.
//!
//! They are those of `[[warm_up]]` in its configuration. Without them one request is tried, with
//! the sizes of the file and ones for axes of any size. A graph may need other sizes there, so
//! that some more are tried. If it refuses all of them, and with different messages (numbers
//! apart), the sizes are not known: the log says so, and the model is served.

use std::time::{Duration, Instant};

use gatestream_serve::engine;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::error::{ErrorKind, InferError};
use crate::listener::Client;
use crate::networks::{Call, Network, Port};
use crate::repository::{ModelConfig, WarmUpConfig};
use crate::wire::{Data, Datatype, InferRequest, Tensor, elements};

/// Longest wait for requests whose sizes the configuration does not give.
pub const LONGEST: Duration = Duration::from_secs(60);

/// Longest wait for room in an engine that serves other models.
const BUSY: Duration = Duration::from_secs(10);

/// Most elements of an input with an axis of any size, for which sizes are tried.
const MAX_ELEMENTS: usize = 1 << 22;

/// Most elements of all inputs: a load must not take much more memory than the model.
const MAX_ALL_ELEMENTS: usize = 1 << 25;

/// Runs the requests.
///
/// # Errors
/// The model cannot answer one.
pub fn run(
    network: &mut Network,
    model: Option<&engine::Model>,
    config: &ModelConfig,
    name: &str,
    longest: Duration,
) -> Result<(), String> {
    // Its cells panic now and then.
    if cfg!(feature = "faults") {
        return Ok(());
    }
    let runtime = Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|why| why.to_string())?;
    let runner = Runner {
        runtime: &runtime,
        model,
        longest,
    };
    let ran = run_all(network, &runner, config, name);
    // Its drop would wait for the end of a graph that runs too long.
    runtime.shutdown_background();
    ran
}

fn run_all(
    network: &mut Network,
    runner: &Runner<'_>,
    config: &ModelConfig,
    name: &str,
) -> Result<(), String> {
    for (entry, number) in config.warm_up.iter().zip(1..) {
        let of_entry = |why: String| format!("entry {number} of [[warm_up]]: {why}");
        let request = configured(network, entry).map_err(of_entry)?;
        match runner.answer(network, &request, None) {
            Ok(outputs) => network.learn(&outputs),
            Err(Failure::NoAnswer(why)) => tracing::warn!(model = name, "{}", of_entry(why)),
            Err(Failure::Error(why)) => return Err(of_entry(why)),
        }
    }
    if config.warm_up.is_empty() {
        return try_sizes(network, runner, name);
    }
    Ok(())
}

/// Runs the first request that the network answers, of several sizes.
fn try_sizes(network: &mut Network, runner: &Runner<'_>, name: &str) -> Result<(), String> {
    if !network.has_all_ranks() {
        tracing::info!(
            model = name,
            "not run before it is ready: the file does not say the shapes of its inputs; give \
             them in [[warm_up]]"
        );
        return Ok(());
    }
    let is_open = { network.interface().needed() }.any(|port| port.shape.iter().any(|&n| n < 0));
    let is_integer = |port: &Port| !matches!(port.datatype, Datatype::F32 | Datatype::F64);
    let has_integers = network.interface().needed().any(is_integer);
    let end = Instant::now() + runner.longest;
    let mut errors: Vec<String> = Vec::new();
    for sizes in SIZES.iter().take(if is_open { SIZES.len() } else { 1 }) {
        // Lengths are 1 or more, indices may be 0 only.
        for integer in 0..=u8::from(has_integers) {
            let Some(request) = sizes.request(network, integer) else {
                continue;
            };
            match runner.answer(network, &request, Some(end)) {
                Ok(outputs) => {
                    network.learn(&outputs);
                    return Ok(());
                }
                Err(Failure::NoAnswer(why)) => {
                    tracing::warn!(model = name, "not run before it is ready: {why}");
                    return Ok(());
                }
                Err(Failure::Error(why)) => errors.push(why),
            }
        }
    }
    let Some(why) = errors.first() else {
        tracing::warn!(
            model = name,
            "not run before it is ready: its inputs are too large; give sizes in [[warm_up]]"
        );
        return Ok(());
    };
    let is_same = errors
        .iter()
        .all(|other| is_same_apart_from_numbers(why, other));
    if is_open && !is_same {
        tracing::warn!(
            model = name,
            "not run before it is ready: the sizes that it needs are not known; give them in \
             [[warm_up]]. With sizes of 1: {why}"
        );
        return Ok(());
    }
    Err(format!(
        "it cannot answer a request: {why}; if it needs other sizes or values than 0 and 1, give \
         them in [[warm_up]]"
    ))
}

/// Sizes of axes that the file leaves open.
struct Sizes {
    /// Of the first open axis of an input, usually that of the batch.
    first: usize,
    others: usize,
}

/// From the smallest one on.
const SIZES: [Sizes; 4] = [
    Sizes::new(1, 1),
    Sizes::new(16, 16),
    Sizes::new(1, 16),
    Sizes::new(1, 512),
];

impl Sizes {
    const fn new(first: usize, others: usize) -> Sizes {
        Sizes { first, others }
    }

    /// A request with inputs of these sizes; `None`: it would be too large.
    fn request(&self, network: &Network, integer: u8) -> Option<InferRequest> {
        let mut all: usize = 0;
        let input = |port: &Port| {
            let mut open = 0;
            let axis = |&size: &i64| {
                usize::try_from(size).unwrap_or_else(|_| {
                    open += 1;
                    if open == 1 { self.first } else { self.others }
                })
            };
            let shape: Vec<usize> = port.shape.iter().map(axis).collect();
            let count = elements(&shape).filter(|&count| open == 0 || count <= MAX_ELEMENTS)?;
            // Before memory for it.
            all = count
                .checked_add(all)
                .filter(|&all| all <= MAX_ALL_ELEMENTS)?;
            let data = network.usual_elements(&port.name, count);
            let data = match data {
                Some(data) => data,
                None => Data::from_json(port.datatype, &format!("[{integer}]"))
                    .ok()?
                    .repeated(count),
            };
            Some(Tensor {
                name: port.name.clone(),
                shape,
                data,
            })
        };
        let inputs: Option<Vec<Tensor>> = network.interface().needed().map(input).collect();
        Some(InferRequest {
            inputs: inputs?,
            ..InferRequest::default()
        })
    }
}

/// The request of an entry.
fn configured(network: &Network, entry: &WarmUpConfig) -> Result<InferRequest, String> {
    let interface = network.interface();
    let is_input = |name: &&String| interface.inputs.iter().any(|port| port.name == **name);
    let named = entry.shapes.keys().chain(entry.values.keys());
    if let Some(name) = { named }.find(|name| !is_input(name)) {
        return Err(format!("the model has no input {name:?}"));
    }
    let is_given = |port: &&Port| {
        let (name, shapes, values) = (&port.name, &entry.shapes, &entry.values);
        !port.is_optional || shapes.contains_key(name) || values.contains_key(name)
    };
    let ports = interface.inputs.iter().filter(is_given);
    let inputs = ports.map(|port| {
        input(network, entry, port).map_err(|why| format!("input {:?}: {why}", port.name))
    });
    Ok(InferRequest {
        inputs: inputs.collect::<Result<_, String>>()?,
        ..InferRequest::default()
    })
}

fn input(network: &Network, entry: &WarmUpConfig, port: &Port) -> Result<Tensor, String> {
    let shape = match entry.shapes.get(&port.name) {
        Some(shape) => shape.clone(),
        None => { port.shape.iter().map(|&size| usize::try_from(size)) }
            .collect::<Result<_, _>>()
            .map_err(|_| format!("its shape is {:?}: give all sizes in `shapes`", port.shape))?,
    };
    let count = elements(&shape).ok_or("it has too many elements")?;
    let data = match entry.values.get(&port.name) {
        Some(value) => values(port.datatype, value, count)?,
        None => match network.usual_elements(&port.name, count) {
            Some(data) => data,
            None => values(port.datatype, &Value::from(0), count)?,
        },
    };
    Ok(Tensor {
        name: port.name.clone(),
        shape,
        data,
    })
}

/// All elements, or one that they all have.
fn values(datatype: Datatype, value: &Value, count: usize) -> Result<Data, String> {
    let read =
        |json: &Value| Data::from_json(datatype, &json.to_string()).map_err(|why| why.to_string());
    if !value.is_array() {
        return Ok(read(&Value::from(vec![value.clone()]))?.repeated(count));
    }
    let data = read(value)?;
    if data.len() != count {
        let found = data.len();
        return Err(format!(
            "its shape has {count} elements, `values` has {found}"
        ));
    }
    Ok(data)
}

enum Failure {
    /// It is not known whether the model can answer.
    NoAnswer(String),
    /// The model cannot answer.
    Error(String),
}

struct Runner<'a> {
    runtime: &'a Runtime,
    model: Option<&'a engine::Model>,
    /// For all requests of one model whose sizes the configuration does not give.
    longest: Duration,
}

impl Runner<'_> {
    /// Runs a request; waits at most until `end`.
    fn answer(
        &self,
        network: &Network,
        request: &InferRequest,
        end: Option<Instant>,
    ) -> Result<Vec<Tensor>, Failure> {
        let call = Call::of_client(&Client::server());
        let begun = Instant::now();
        loop {
            let answer = network.run(self.model, request, &call);
            let answered = self.runtime.block_on(async {
                match end {
                    Some(end) => tokio::time::timeout_at(end.into(), answer).await,
                    None => Ok(answer.await),
                }
            });
            match answered {
                Ok(Ok(answer)) => return Ok(answer.outputs),
                Ok(Err(error)) if is_busy(&error) && begun.elapsed() < BUSY => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Ok(Err(error)) if is_busy(&error) => {
                    return Err(Failure::NoAnswer(error.message));
                }
                Ok(Err(error)) => return Err(Failure::Error(error.message)),
                Err(_) => {
                    let why = format!("no request was answered within {:?}", self.longest);
                    return Err(Failure::NoAnswer(why));
                }
            }
        }
    }
}

/// Other models of the engine have taken its room.
fn is_busy(error: &InferError) -> bool {
    error.kind == ErrorKind::Overloaded
}

fn is_same_apart_from_numbers(a: &str, b: &str) -> bool {
    let words = |text: &str| text.replace(|letter: char| letter.is_ascii_digit(), "");
    words(a) == words(b)
}

#[cfg(test)]
#[path = "../tests/common/onnx.rs"]
mod onnx;

#[cfg(test)]
mod tests {
    use super::*;

    use gatestream_serve::scheduler::Limits;

    use crate::networks::GraphHost;

    #[test]
    fn a_graph_that_runs_too_long_is_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = onnx::slow_file(20_000_000, Some(&["1", "1", "1"]));
        onnx::save(folder.path(), "slow", &file, "");
        let config = ModelConfig::default();
        let host = GraphHost::new(Limits {
            requests: 1,
            ..Limits::default()
        });
        let file = folder.path().join("slow/1/model.onnx");
        let loaded = Network::load(&file, &config, "slow", &host).expect("loaded");
        let mut network = loaded.network;
        let bound = Duration::from_secs(1);
        run(&mut network, None, &config, "slow", bound).expect("served untested");
        // It still runs, and so there is no room for another.
        let runtime = Builder::new_current_thread().enable_time().build();
        let request = SIZES[0].request(&network, 0).expect("small");
        let call = Call::of_client(&Client::server());
        let refused = { runtime.expect("a runtime") }.block_on(network.run(None, &request, &call));
        assert_eq!(refused.expect_err("refused").kind, ErrorKind::Overloaded);
    }
}
