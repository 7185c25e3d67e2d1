//! Servers of the Open Inference Protocol v2 as targets, over HTTP or gRPC.
//!
//! One thread sends and receives, so that the generator leaves the cores to a server beside it.

mod element;
mod grpc;
mod http;
mod inputs;
mod request;
mod streams;
mod tls;

use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::candidate::{Candidate, Launch};
use crate::drive::WallClock;
use crate::record::{ErrorKind, Outcome};
use crate::target::{About, Completion, Target};
use crate::workload::RequestSpec;
use gatestream_command::Failure;
use gatestream_protocol::ModelInferRequest;
use inputs::Filling;
pub use inputs::{AxisOption, InputOptions, ValueOption};
use request::{Encoder, TensorPort};
use streams::Streams;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    transport: Transport,
    /// Whether it speaks TLS.
    is_secure: bool,
    /// Host and port.
    authority: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Http,
    Grpc,
}

impl ServerAddress {
    /// Whether it speaks gRPC.
    pub fn is_grpc(&self) -> bool {
        self.transport == Transport::Grpc
    }

    /// Whether it speaks TLS.
    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// The address for libraries of HTTP.
    fn uri(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}", self.authority)
    }
}

/// The forms of an address.
const FORMS: &str = "expected http://HOST:PORT or grpc://HOST:PORT, with TLS https:// or grpcs://";

impl FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerAddress, String> {
        let (scheme, authority) = text.split_once("://").unwrap_or(("", ""));
        let (transport, is_secure) = match scheme {
            "http" => (Transport::Http, false),
            "https" => (Transport::Http, true),
            "grpc" => (Transport::Grpc, false),
            "grpcs" => (Transport::Grpc, true),
            _ => return Err(FORMS.into()),
        };
        let authority = authority.trim_end_matches('/');
        if authority.is_empty() || authority.contains('/') {
            return Err(FORMS.into());
        }
        Ok(ServerAddress {
            transport,
            is_secure,
            authority: authority.to_owned(),
        })
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.transport {
            Transport::Http => "http",
            Transport::Grpc => "grpc",
        };
        let s = if self.is_secure { "s" } else { "" };
        write!(f, "{scheme}{s}://{}", self.authority)
    }
}

/// The error of a token with line breaks or other letters that a header cannot have.
const BAD_TOKEN: &str = "--token: the file is no token; expected one line of ASCII letters";

/// A model of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct WireModel {
    /// The server.
    pub server: ServerAddress,
    /// The model.
    pub name: String,
    /// The token of the header `Authorization`, if the server needs one.
    pub token: Option<String>,
    /// The certificates that sign those of servers, as PEM; `None`: those of the system.
    pub authorities: Option<Vec<u8>>,
    /// How requests are made of its inputs.
    pub contents: Contents,
    /// Requests take turns of so many sequences whose states the server holds; `None`: each request
    /// is whole.
    pub sequences: Option<u64>,
    /// Requests are messages of streams of gRPC, one for each sequence.
    pub is_streaming: bool,
}

/// How requests are made of the inputs of a model.
#[derive(Clone, Debug, PartialEq)]
pub enum Contents {
    /// Of the first input, of trees also of the second.
    Network {
        /// Symbols of random sources of an encoder.
        symbols: usize,
    },
    /// Of all inputs, whatever the model computes.
    Any(InputOptions),
}

impl Contents {
    fn maker(&self, inputs: Vec<TensorPort>) -> Result<Maker, String> {
        Ok(match self {
            Contents::Network { symbols } => Maker::Network(Encoder::new(inputs, *symbols)?),
            Contents::Any(options) => Maker::Any(Filling::new(&inputs, options)?),
        })
    }
}

/// Makes the tensors of requests.
enum Maker {
    Network(Encoder),
    Any(Filling),
}

impl Launch for WireModel {
    type Target = WireTarget;
    type Clock = WallClock;

    fn has_policies(&self) -> bool {
        false
    }

    fn launch(&self, _: &Candidate) -> Result<(WireTarget, WallClock), Failure> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("load-wire")
            .enable_all()
            .build()?;
        let connected = runtime.block_on(self.connect());
        let (client, inputs) = connected.map_err(|why| self.failed(&why))?;
        let maker = self.contents.maker(inputs);
        Ok((
            WireTarget {
                runtime,
                client,
                maker: maker.map_err(|why| self.failed(&why))?,
                turns: self.sequences.map(Turns::new),
                prepared: AtomicU64::new(0),
                about: About::new(self.server.to_string()),
            },
            WallClock::new(),
        ))
    }
}

impl WireModel {
    /// The inputs of requests of any model; `None` for a network.
    ///
    /// # Errors
    /// The server does not answer or does not have the model; options do not fit its inputs.
    pub fn inputs(&self) -> Result<Option<String>, Failure> {
        let Contents::Any(options) = &self.contents else {
            return Ok(None);
        };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let connected = runtime.block_on(self.connect());
        let (_, inputs) = connected.map_err(|why| self.failed(&why))?;
        let filling = Filling::new(&inputs, options).map_err(|why| self.failed(&why))?;
        Ok(Some(filling.to_string()))
    }

    fn failed(&self, why: &str) -> Failure {
        Failure::new(format!("{}: {why}", self.server))
    }

    async fn connect(&self) -> Result<(Client, Vec<TensorPort>), String> {
        match self.server.transport {
            Transport::Http => {
                let client = http::Client::new(self)?;
                let inputs = client.inputs().await?;
                Ok((Client::Http(client), inputs))
            }
            Transport::Grpc => {
                let client = grpc::Client::connect(self).await?;
                let inputs = client.inputs().await?;
                if !self.is_streaming {
                    return Ok((Client::Grpc(client), inputs));
                }
                let streams = Streams::open(&client, self.sequences.unwrap_or(1));
                Ok((Client::Streams(client, streams), inputs))
            }
        }
    }
}

enum Client {
    Http(http::Client),
    Grpc(grpc::Client),
    Streams(grpc::Client, Streams),
}

/// A connection to a server under load.
pub struct WireTarget {
    runtime: Runtime,
    client: Client,
    maker: Maker,
    turns: Option<Turns>,
    /// Requests of streams so far, which are their ids.
    prepared: AtomicU64,
    about: About,
}

/// Sequences that take turns.
struct Turns {
    count: u64,
    /// Of the first one: other runs have other ids.
    first: u64,
    next: AtomicU64,
}

/// The part of a sequence that a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    id: u64,
    start: bool,
}

impl Turns {
    fn new(count: u64) -> Turns {
        Turns {
            count: count.max(1),
            first: fastrand::u64(1..1 << 40),
            next: AtomicU64::new(0),
        }
    }

    fn next(&self) -> Part {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        Part {
            id: self.first + turn % self.count,
            start: turn < self.count,
        }
    }
}

/// A request, as it is sent.
pub enum Sent {
    /// The body.
    Http(http::Body),
    /// The message.
    Grpc(Box<ModelInferRequest>),
    /// The stream and the message.
    Message(u64, Box<ModelInferRequest>),
}

impl Target for WireTarget {
    type Prepared = Sent;

    fn about(&self) -> About {
        self.about.clone()
    }

    fn prepare(&self, request: &RequestSpec) -> Sent {
        let tensors = match &self.maker {
            Maker::Network(encoder) => encoder.tensors(request),
            Maker::Any(filling) => filling.tensors(request),
        };
        let part = self.turns.as_ref().map(Turns::next);
        match &self.client {
            Client::Http(_) => Sent::Http(http::body(&tensors, part)),
            Client::Grpc(client) => Sent::Grpc(Box::new(client.message(tensors, part))),
            Client::Streams(client, _) => {
                let mut message = client.message(tensors, part);
                let number = self.prepared.fetch_add(1, Ordering::Relaxed);
                message.id = number.to_string();
                let stream = part.map_or(0, |part| part.id);
                Sent::Message(stream, Box::new(message))
            }
        }
    }

    fn submit(&self, request: Sent, time_left: Option<Duration>, completion: Completion) {
        match (&self.client, request) {
            (Client::Http(client), Sent::Http(body)) => {
                let client = client.clone();
                self.spawn(
                    async move { client.infer(body, time_left).await },
                    completion,
                );
            }
            (Client::Grpc(client), Sent::Grpc(message)) => {
                let client = client.clone();
                self.spawn(
                    async move { client.infer(*message, time_left).await },
                    completion,
                );
            }
            (Client::Streams(_, streams), Sent::Message(stream, message)) => {
                streams.send(stream, *message, time_left, completion);
            }
            // `prepare` makes those of the client.
            _ => completion.report(ErrorKind::Failed.into()),
        }
    }
}

impl WireTarget {
    fn spawn(&self, infer: impl Future<Output = Outcome> + Send + 'static, completion: Completion) {
        self.runtime
            .spawn(async move { completion.report(infer.await) });
    }
}
