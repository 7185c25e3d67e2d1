//! The subcommand `serve`.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use gatestream::machine::Topology;
use gatestream_command::{Failure, seconds};
use gatestream_serve::engine::{EngineOptions, Workers};
use gatestream_serve::policy::PolicyKind;
use gatestream_serve::scheduler::Limits;

pub use crate::log::LogFormat;
#[cfg(feature = "otlp")]
use crate::otlp::Exporter;
use crate::{Server, ServerOptions, TlsFiles};

/// Serve models to other programs: Open Inference Protocol v2 over HTTP and gRPC
///
/// A repository is a folder with a folder for each model: NAME/VERSION/model.onnx,
/// model.safetensors or model.pt, and optionally NAME/config.toml.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The folder of models, or the file of one model
    #[arg(value_name = "REPOSITORY|MODEL")]
    pub repository: PathBuf,
    /// Recurrent stack of the file of one model: the prefix of weight_ih_l0, or of a list of
    /// modules
    #[arg(long, value_name = "PREFIX")]
    pub prefix: Option<String>,
    /// Address of HTTP
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8000")]
    pub http: SocketAddr,
    /// Address of gRPC
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8001")]
    pub grpc: SocketAddr,
    /// TLS certificate, and those that it depends on, in PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// Key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// File of bearer tokens: one in a line, and after a space the models it is for (default: all)
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
    /// Listen on addresses other than loopback without TLS or without tokens
    #[arg(long)]
    pub trust_network: bool,
    /// Allow clients to load and unload models of the repository
    #[arg(long)]
    pub model_control: bool,
    /// Do not be ready (503) while a model of the repository is missing because its load failed
    #[arg(long)]
    pub strict: bool,
    /// Batching policy of models whose config.toml names none
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub policy: PolicyKind,
    /// Cores of a worker: 1 for many small requests, more for few requests of large models
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub worker_cores: u32,
    /// Most accepted requests
    #[arg(long, value_name = "N", default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: u32,
    /// Most open sequences
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub sequences: u32,
    /// Most accepted requests of a client: of a token, or of an address without tokens
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub client_requests: Option<u32>,
    /// Most connections of each port
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub connections: u32,
    /// Most nodes (steps of cells) of all accepted requests
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes: u32,
    /// Most nodes of one request
    #[arg(long, value_name = "N", default_value_t = 250_000,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub request_nodes: u32,
    /// Most MiB of values of all accepted requests and open sequences
    #[arg(long, value_name = "MIB", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub bytes: u32,
    /// Largest body of a request, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub body: u32,
    /// Most MiB of all bodies that are being received
    #[arg(long, value_name = "MIB", default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub bodies: u32,
    /// Seconds in which a body, or a message of a stream that has begun, must come
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = seconds)]
    pub body_time: f64,
    /// Seconds after which an idle connection of HTTP/1 is closed (more than a proxy keeps it), and
    /// any one whose client reads nothing of an answer
    #[arg(long, value_name = "S", default_value_t = 75.0, value_parser = seconds)]
    pub keep_alive: f64,
    /// Most connections of each port that wait to be accepted
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub backlog: u32,
    /// Origin whose pages may send requests from a browser, as https://HOST, or * for all; may be
    /// given several times
    #[arg(long, value_name = "ORIGIN")]
    pub cors: Vec<String>,
    /// Seconds to wait after SIGTERM for accepted requests and open sequences
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = seconds)]
    pub grace: f64,
    /// Send a span of each request to this OpenTelemetry collector, over gRPC
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "http://HOST:PORT")]
    pub otlp: Option<String>,
    /// Format of the log on standard error; RUST_LOG chooses its parts (gatestream::access=info has
    /// a line for each request)
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log: LogFormat,
}

impl Arguments {
    fn options(&self) -> ServerOptions {
        let tls = self.certificate.clone().zip(self.key.clone());
        ServerOptions {
            prefix: self.prefix.clone(),
            http: self.http,
            grpc: self.grpc,
            tls: tls.map(|(certificate, key)| TlsFiles { certificate, key }),
            tokens: self.tokens.clone(),
            trusts_network: self.trust_network,
            model_control: self.model_control,
            strict: self.strict,
            reloads_on_hangup: true,
            engine: EngineOptions {
                policy: self.policy,
                workers: workers(self.worker_cores as usize),
                limits: Limits {
                    requests: self.requests as usize,
                    nodes: self.nodes as usize,
                    request_nodes: self.request_nodes as usize,
                    bytes: (self.bytes as usize) << 20,
                    streams: self.sequences as usize,
                    client_requests: self
                        .client_requests
                        .map_or(usize::MAX, |most| most as usize),
                },
                ..EngineOptions::default()
            },
            body_bytes: (self.body as usize) << 20,
            bodies_bytes: (self.bodies as usize) << 20,
            body_time: Duration::from_secs_f64(self.body_time),
            idle_time: Duration::from_secs_f64(self.keep_alive),
            connections: self.connections as usize,
            backlog: self.backlog,
            origins: self.cors.clone(),
            ..ServerOptions::default()
        }
    }
}

/// All cores, divided among workers of this number of cores.
fn workers(cores: usize) -> Workers {
    if cores == 1 {
        return Workers::OnePerCore;
    }
    let topology = Topology::detect();
    let all = topology.cpus_for_team(topology.team_size());
    // The last worker has the rest.
    Workers::Cores(all.chunks(cores).map(<[usize]>::to_vec).collect())
}

/// Serves until SIGTERM or Ctrl-C, then lets accepted requests end.
///
/// # Errors
/// No model can be served; an address or a file cannot be used.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    #[cfg(feature = "otlp")]
    let exporter = arguments.otlp.as_deref().map(Exporter::start).transpose()?;
    #[cfg(feature = "otlp")]
    crate::log::start(arguments.log, exporter.as_ref().map(Exporter::layer));
    #[cfg(not(feature = "otlp"))]
    crate::log::start(arguments.log, None::<tracing_subscriber::layer::Identity>);
    let server = Server::start(&arguments.repository, &arguments.options())?;
    let failures = server.failures();
    if server.models().is_empty() && !arguments.model_control {
        let why: Vec<String> = { failures.iter() }
            .map(|failure| format!("{}: {}", failure.name, failure.why))
            .collect();
        let path = arguments.repository.display();
        return Err(Failure::new(if why.is_empty() {
            format!("{path}: there is no model; a repository has folders NAME/VERSION")
        } else {
            why.join("; ")
        }));
    }
    let out = &mut std::io::stdout();
    for model in server.models() {
        writeln!(out, "model {} version {}", model.name, model.version)?;
    }
    for failure in failures {
        writeln!(out, "not served: {}: {}", failure.name, failure.why)?;
    }
    let scheme = if arguments.certificate.is_some() {
        "https"
    } else {
        "http"
    };
    writeln!(
        out,
        "{scheme}://{} (gRPC {})",
        server.http_address(),
        server.grpc_address()
    )?;
    out.flush()?;
    server.wait_for_signal();
    match server.stop(Duration::from_secs_f64(arguments.grace)) {
        0 => Ok(()),
        left => Err(Failure::new(format!(
            "{left} requests and sequences had not ended after {} s; give more with --grace",
            arguments.grace
        ))),
    }
}
