//! A server over a repository of a temporary folder, and its clients.
#![allow(dead_code, reason = "each test uses a part")]

use std::net::SocketAddr;
use std::path::Path;

use gatestream::model::{Gru, Input, Lstm, Merge, Model, Output};
use gatestream::reference;
use gatestream_protocol::grpc_inference_service_client::GrpcInferenceServiceClient;
use gatestream_protocol::infer_parameter::ParameterChoice;
use gatestream_protocol::model_infer_request::InferInputTensor;
use gatestream_protocol::{InferParameter, ModelInferRequest, ModelInferResponse};
use gatestream_server::{Server, ServerOptions};
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::transport::Channel;

pub const FEATURES: usize = 3;
pub const HIDDEN: usize = 5;

/// A server and its repository.
pub struct Running {
    pub server: Server,
    pub folder: TempDir,
    http: ureq::Agent,
}

/// A client of gRPC.
pub type GrpcClient = GrpcInferenceServiceClient<Channel>;

/// Runs a test with a client of gRPC.
pub fn with_grpc<F: Future<Output = ()>>(running: &Running, test: impl FnOnce(GrpcClient) -> F) {
    with_grpc_at(running.server.grpc_address(), test);
}

/// The same with the client of a server at this address.
pub fn with_grpc_at<F: Future<Output = ()>>(
    address: SocketAddr,
    test: impl FnOnce(GrpcClient) -> F,
) {
    with_channel(address, |channel| test(GrpcClient::new(channel)));
}

/// The same with a connection.
pub fn with_channel<F: Future<Output = ()>>(address: SocketAddr, test: impl FnOnce(Channel) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
        test(channel.connect().await.expect("connects")).await;
    });
}

/// A status and the JSON of a body.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub json: Value,
    pub headers: ureq::http::HeaderMap,
}

impl Answer {
    pub fn error(&self) -> &str {
        self.json["error"].as_str().unwrap_or_default()
    }
}

/// Loopback, ports of the system's choice.
pub fn options() -> ServerOptions {
    let any = "127.0.0.1:0".parse().expect("an address");
    ServerOptions {
        http: any,
        grpc: any,
        model_control: true,
        ..ServerOptions::default()
    }
}

/// Two layers.
pub fn lstm(seed: u64) -> Model {
    Lstm::new(FEATURES, HIDDEN)
        .layers(2)
        .random(seed)
        .expect("a model")
}

pub fn bidirectional() -> Model {
    let gru = Gru::new(FEATURES, HIDDEN).bidirectional(Merge::Concat);
    gru.random(7).expect("a model")
}

pub fn save(folder: &Path, name: &str, version: u64, model: &Model) {
    let folder = folder.join(name).join(version.to_string());
    std::fs::create_dir_all(&folder).expect("a folder");
    model
        .save_safetensors(folder.join("model.safetensors"))
        .expect("saved");
}

pub fn configure(folder: &Path, name: &str, config: &str) {
    std::fs::write(folder.join(name).join("config.toml"), config).expect("written");
}

/// The configuration of the repository's README.
pub const G2P: &str = include_str!("../../../../examples/models/config.toml");

/// The model `g2p` of `examples/models`, with names of symbols.
pub fn g2p(folder: &Path) {
    let versions = folder.join("g2p").join("1");
    std::fs::create_dir_all(&versions).expect("a folder");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models/g2p.safetensors");
    std::fs::copy(model, versions.join("model.safetensors")).expect("copied");
    configure(folder, "g2p", G2P);
}

impl Running {
    /// Serves the models `lstm` and `both`, and those that `more` adds.
    pub fn with(options: &ServerOptions, more: impl FnOnce(&Path)) -> Running {
        let folder = tempfile::tempdir().expect("a folder");
        save(folder.path(), "lstm", 1, &lstm(1));
        save(folder.path(), "both", 1, &bidirectional());
        more(folder.path());
        let server = Server::start(folder.path(), options).expect("starts");
        Running {
            server,
            folder,
            http: agent(),
        }
    }

    pub fn new() -> Running {
        Running::with(&options(), |_| {})
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.http_address())
    }

    pub fn get(&self, path: &str) -> Answer {
        answer(self.http.get(self.url(path)).call())
    }

    /// The body of an answer.
    pub fn text(&self, path: &str) -> String {
        let response = self.http.get(self.url(path)).call();
        let body = response.expect("an answer").body_mut().read_to_string();
        body.expect("text")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_bytes(path, &[], body.to_string().as_bytes())
    }

    pub fn post_bytes(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        answer(self.post_raw(path, headers, body))
    }

    pub fn post_raw(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let request = self.http.post(self.url(path));
        let request = headers
            .iter()
            .fold(request, |all, (name, value)| all.header(*name, *value));
        request.send(body)
    }

    pub fn infer(&self, model: &str, request: &Value) -> Answer {
        self.post(&format!("/v2/models/{model}/infer"), request)
    }
}

/// A client of HTTP that answers errors, too.
pub fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder();
    config.http_status_as_error(false).build().into()
}

pub fn answer(response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Answer {
    let mut response = response.expect("an answer");
    let text = response.body_mut().read_to_string().expect("text");
    Answer {
        status: response.status().as_u16(),
        json: serde_json::from_str(&text).unwrap_or(Value::Null),
        headers: response.headers().clone(),
    }
}

/// Random steps of sequences.
pub fn steps(rng: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    (0..count * FEATURES).map(|_| rng.f32() - 0.5).collect()
}

/// A request with one sequence of the model `lstm` or `both`.
pub fn request(xs: &[f32]) -> Value {
    let shape = [1, xs.len() / FEATURES, FEATURES];
    json!({ "inputs": [{ "name": "input", "shape": shape, "datatype": "FP32", "data": xs }] })
}

/// The same as a part of a sequence.
pub fn part(xs: &[f32], id: &Value, start: bool, end: bool) -> Value {
    let mut request = request(xs);
    request["parameters"] =
        json!({ "sequence_id": id, "sequence_start": start, "sequence_end": end });
    request
}

pub fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter {
        parameter_choice: Some(choice),
    }
}

/// The request of one sequence over gRPC.
pub fn message(xs: &[f32], parameters: &[(&str, ParameterChoice)]) -> ModelInferRequest {
    let raw: Vec<u8> = xs.iter().flat_map(|x| x.to_le_bytes()).collect();
    let parameters =
        { parameters.iter() }.map(|(name, choice)| ((*name).to_owned(), parameter(choice.clone())));
    ModelInferRequest {
        model_name: "lstm".into(),
        inputs: vec![InferInputTensor {
            name: "input".into(),
            datatype: "FP32".into(),
            shape: vec![1, (xs.len() / FEATURES) as i64, FEATURES as i64],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![raw.into()],
        parameters: parameters.collect(),
        ..ModelInferRequest::default()
    }
}

/// The same as a part of a sequence.
pub fn message_part(xs: &[f32], id: ParameterChoice, start: bool, end: bool) -> ModelInferRequest {
    let [start, end] = [start, end].map(ParameterChoice::BoolParam);
    let parameters = [
        ("sequence_id", id),
        ("sequence_start", start),
        ("sequence_end", end),
    ];
    message(xs, &parameters)
}

/// The elements of an output over gRPC.
pub fn floats(response: &ModelInferResponse, name: &str) -> Vec<f32> {
    let mut outputs = response.outputs.iter();
    let at = outputs.position(|output| output.name == name);
    let raw = response.raw_output_contents[at.expect("an output")].chunks_exact(4);
    raw.map(|raw| f32::from_le_bytes(raw.try_into().expect("4 bytes")))
        .collect()
}

/// The elements of an output.
pub fn output(answer: &Answer, name: &str) -> Vec<f32> {
    let outputs = answer.json["outputs"].as_array();
    let outputs = outputs.unwrap_or_else(|| panic!("{answer:?}"));
    let output = outputs.iter().find(|output| output["name"] == name);
    let output = output.unwrap_or_else(|| panic!("{name} in {answer:?}"));
    let data = output["data"].as_array().expect("a list");
    data.iter()
        .map(|value| value.as_f64().expect("a number") as f32)
        .collect()
}

/// Outputs and final states of one sequence, by the plain loops of the reference.
pub struct Expected {
    pub y: Vec<f32>,
    pub hn: Vec<f32>,
    pub cn: Vec<f32>,
}

pub fn expected(model: &Model, xs: &[f32]) -> Expected {
    let (of, steps) = (model.signature(), xs.len() / FEATURES);
    let mut y = vec![0.0; steps * of.output];
    let (mut hn, mut cn) = (vec![0.0; of.hidden_state], vec![0.0; of.cell_state]);
    let mut output = Output::new(&mut y).hn(&mut hn).cn(&mut cn);
    reference::run(model, &Input::new(xs, steps, 1), &mut output).expect("fits");
    Expected { y, hn, cn }
}
