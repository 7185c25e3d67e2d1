//! Starts the server and stops it.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::HeaderValue;
use gatestream_serve::engine::EngineOptions;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::http::HttpOptions;
use crate::listener::{
    Bodies, BodyLimits, ConnectionLimits, ConnectionTimes, Tls, Tokens, listen, serve,
};
use crate::models::{LoadedModel, Models};
use crate::repository::Repository;
use crate::service::Service;
use crate::{grpc, http};

pub use crate::listener::TlsFiles;

/// Options of a server. Take those that are not set from the default: later versions may add some.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Of the file of one model: the beginning of the names of its tensors.
    pub prefix: Option<String>,
    /// The address of HTTP.
    pub http: SocketAddr,
    /// The address of gRPC.
    pub grpc: SocketAddr,
    /// Certificate and key of both ports.
    pub tls: Option<TlsFiles>,
    /// A file of bearer tokens, one in a line, each for all models or, after a space, for those of
    /// a list with commas.
    pub tokens: Option<PathBuf>,
    /// Allows addresses other than loopback without TLS or without tokens: behind a proxy that has
    /// both, or in a closed network.
    pub trusts_network: bool,
    /// Allows clients to load and unload models of the repository.
    pub model_control: bool,
    /// The server is not ready while a model of the repository is missing because its load failed.
    pub strict: bool,
    /// On Unix, the signal SIGHUP does what [`Server::reload`] does. Otherwise it ends the process.
    pub reloads_on_hangup: bool,
    /// The engine of each policy, its limits included.
    pub engine: EngineOptions,
    /// Largest body of a request, or message of a stream, decompressed, in bytes.
    pub body_bytes: usize,
    /// Most bytes of all bodies that are being received, at least `body_bytes`. Further bodies are
    /// refused.
    pub bodies_bytes: usize,
    /// Longest time until a body, or a message of a stream that has begun, has come.
    pub body_time: Duration,
    /// Longest time for a handshake and for the headers of a request that has begun.
    pub header_time: Duration,
    /// Time after which an idle connection of HTTP/1 is closed, and any one whose client reads
    /// nothing of an answer. A proxy must close its own before.
    pub idle_time: Duration,
    /// Open connections of each port.
    pub connections: usize,
    /// Connections of each port that wait to be accepted. The system may allow fewer.
    pub backlog: u32,
    /// Requests of one HTTP/2 connection at a time.
    pub streams: u32,
    /// Origins (`https://HOST`) whose pages may send requests from a browser; `*`: all.
    pub origins: Vec<String>,
    /// Threads that read and write; the workers of the engine have others.
    pub io_threads: usize,
}

impl Default for ServerOptions {
    /// Loopback, ports 8000 and 8001, no TLS and no tokens, bodies of 64 MiB, 256 MiB of bodies
    /// together, 60 s for a body, 75 s for an idle connection.
    fn default() -> ServerOptions {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        ServerOptions {
            prefix: None,
            http: SocketAddr::new(loopback, 8000),
            grpc: SocketAddr::new(loopback, 8001),
            tls: None,
            tokens: None,
            trusts_network: false,
            model_control: false,
            strict: false,
            reloads_on_hangup: false,
            engine: EngineOptions::default(),
            body_bytes: 64 << 20,
            bodies_bytes: 256 << 20,
            body_time: Duration::from_secs(60),
            header_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(75),
            connections: 4096,
            backlog: 4096,
            streams: 1024,
            origins: Vec::new(),
            io_threads: 2,
        }
    }
}

/// Why a server was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The repository cannot be read.
    #[error("{0}")]
    Repository(String),
    /// The address can be reached from other machines.
    #[error(
        "{address} can be reached from other machines; give a certificate and tokens, or say that \
         the network is trusted"
    )]
    Open {
        /// The address.
        address: SocketAddr,
    },
    /// A file of TLS or tokens cannot be used.
    #[error("{0}")]
    File(String),
    /// No browser sends this origin.
    #[error(
        "origin {origin:?} is not as browsers send it: https://HOST, http://HOST:PORT, in lower \
         case and without the usual port; or *"
    )]
    Origin {
        /// The origin.
        origin: String,
    },
    /// A port cannot be used.
    #[error("{address}: {why}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        why: std::io::Error,
    },
    /// The threads cannot be started.
    #[error("the threads of the server cannot be started: {0}")]
    Threads(std::io::Error),
}

/// A model or a version of it that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// The name.
    pub name: String,
    /// The version.
    pub version: u64,
}

/// A model of the repository that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFailure {
    /// The name.
    pub name: String,
    /// Why it was not loaded.
    pub why: String,
}

/// A server that runs. Dropping it breaks its connections off; [`Server::stop`] lets requests end.
pub struct Server {
    /// Taken by the drop.
    runtime: Option<Runtime>,
    service: Arc<Service>,
    credentials: Arc<Credentials>,
    stopping: watch::Sender<bool>,
    ports: Vec<JoinHandle<()>>,
    http: SocketAddr,
    grpc: SocketAddr,
}

/// What the files of TLS and tokens say.
struct Credentials {
    tokens: Arc<Tokens>,
    http_tls: Option<Arc<Tls>>,
    grpc_tls: Option<Arc<Tls>>,
}

impl Credentials {
    fn read(options: &ServerOptions) -> Result<Credentials, String> {
        let tokens = match &options.tokens {
            Some(path) => Tokens::read(path)?,
            None => Tokens::none(),
        };
        let tls = |protocols| {
            let files = options.tls.as_ref();
            let read = files.map(|files| Tls::read(files, protocols).map(Arc::new));
            read.transpose()
        };
        Ok(Credentials {
            tokens: Arc::new(tokens),
            http_tls: tls(&["h2", "http/1.1"])?,
            grpc_tls: tls(&["h2"])?,
        })
    }

    /// Reads all files again. Those that are wrong change nothing, and their errors are returned.
    fn reload(&self) -> Vec<String> {
        let tls = [&self.http_tls, &self.grpc_tls].into_iter().flatten();
        let mut errors: Vec<String> = tls.filter_map(|tls| tls.reload().err()).collect();
        // Both ports have the same files.
        errors.dedup();
        errors.extend(self.tokens.reload().err());
        for why in &errors {
            tracing::error!("the old file stays in use: {why}");
        }
        if errors.is_empty() {
            tracing::info!("certificate, key and tokens are read again");
        }
        errors
    }
}

/// Between two looks at idle sequences.
const TIDY: Duration = Duration::from_millis(500);

impl Server {
    /// Opens the ports, loads all models of the repository (a folder, or the file of one model),
    /// and serves them. A model that cannot be loaded is in the index with the reason.
    ///
    /// ```no_run
    /// use gatestream_server::{Server, ServerOptions};
    ///
    /// let server = Server::start("models", &ServerOptions::default())?;
    /// println!("http://{}", server.http_address());
    /// server.wait_for_signal();
    /// server.stop(std::time::Duration::from_secs(30));
    /// # Ok::<(), gatestream_server::ServerError>(())
    /// ```
    ///
    /// # Errors
    /// [`ServerError`]; nothing runs then.
    pub fn start(
        repository: impl AsRef<Path>,
        options: &ServerOptions,
    ) -> Result<Server, ServerError> {
        let repository = Repository::open(repository.as_ref());
        let repository = repository.and_then(|repository| match &options.prefix {
            Some(prefix) => repository.with_prefix(prefix),
            None => Ok(repository),
        });
        let repository = repository.map_err(|why| ServerError::Repository(why.to_string()))?;
        for address in [options.http, options.grpc] {
            let is_closed = options.tls.is_some() && options.tokens.is_some();
            if !address.ip().is_loopback() && !is_closed && !options.trusts_network {
                return Err(ServerError::Open { address });
            }
        }
        let origins = { options.origins.iter() }.map(|text| {
            origin(text).ok_or_else(|| ServerError::Origin {
                origin: text.clone(),
            })
        });
        let origins = origins.collect::<Result<Vec<_>, _>>()?;
        let credentials = Arc::new(Credentials::read(options).map_err(ServerError::File)?);
        let runtime = Builder::new_multi_thread()
            .worker_threads(options.io_threads.max(1))
            .thread_name("gatestream-io")
            .enable_all()
            .build()
            .map_err(ServerError::Threads)?;
        #[cfg(unix)]
        if options.reloads_on_hangup {
            let _entered = runtime.enter();
            // Before the models are loaded, which may take long.
            let hangups = hangups().map_err(ServerError::Threads)?;
            runtime.spawn(reload_at(hangups, Arc::clone(&credentials)));
        }
        let bind = |address: SocketAddr| {
            let bound = runtime.block_on(async {
                let listener = listen(address, options.backlog)?;
                let address = listener.local_addr()?;
                Ok((listener, address))
            });
            bound.map_err(|why| ServerError::Bind { address, why })
        };
        let (http_listener, http) = bind(options.http)?;
        let (grpc_listener, grpc) = bind(options.grpc)?;
        let models = Arc::new(Models::new(repository, options.engine.clone()));
        models
            .announce_all()
            .map_err(|why| ServerError::Repository(why.to_string()))?;
        let service = Arc::new(Service::new(
            Arc::clone(&models),
            Bodies::new(BodyLimits {
                bytes: options.body_bytes,
                time: options.body_time,
                all_bytes: options.bodies_bytes,
            }),
            options.strict,
        ));
        let http_router = http::router(
            Arc::clone(&service),
            Arc::clone(&credentials.tokens),
            HttpOptions {
                may_load: options.model_control,
                origins,
            },
        );
        let grpc_router = grpc::router(
            Arc::clone(&service),
            Arc::clone(&credentials.tokens),
            options.model_control,
        );
        let limits = ConnectionLimits {
            connections: options.connections,
            streams: options.streams,
            times: ConnectionTimes {
                head: options.header_time,
                idle: options.idle_time,
            },
        };
        let (stopping, stops) = watch::channel(false);
        // Probes are answered while models are loaded.
        let ports = vec![
            runtime.spawn(serve(
                http_listener,
                credentials.http_tls.clone(),
                http_router,
                limits,
                stops.clone(),
            )),
            runtime.spawn(serve(
                grpc_listener,
                credentials.grpc_tls.clone(),
                grpc_router,
                limits,
                stops,
            )),
        ];
        let server = Server {
            runtime: Some(runtime),
            service,
            credentials,
            stopping,
            ports,
            http,
            grpc,
        };
        models
            .load_all()
            .map_err(|why| ServerError::Repository(why.to_string()))?;
        server.service.loaded();
        if let Some(runtime) = &server.runtime {
            runtime.spawn(tidy(models));
        }
        Ok(server)
    }

    /// The address of HTTP; its port was chosen by the system if the option's is 0.
    pub fn http_address(&self) -> SocketAddr {
        self.http
    }

    /// The address of gRPC.
    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc
    }

    /// The models that are served.
    pub fn models(&self) -> Vec<ServedModel> {
        let models = self.service.models.all();
        let served = |model: &Arc<LoadedModel>| ServedModel {
            name: model.name.clone(),
            version: model.version,
        };
        models.iter().map(served).collect()
    }

    /// The models of the repository that are not served.
    pub fn failures(&self) -> Vec<ModelFailure> {
        let entries = self.service.models.index().unwrap_or_default();
        let failed = entries.into_iter().filter(|entry| !entry.is_ready);
        failed
            .map(|entry| ModelFailure {
                name: entry.name,
                why: entry.reason,
            })
            .collect()
    }

    /// Reads the files of the certificate, of its key and of the tokens again. Connections and
    /// sequences stay; new connections get the new certificate, and tokens that are gone are
    /// refused from the next request on. A file that is wrong changes nothing.
    ///
    /// # Errors
    /// [`ServerError::File`]: all files that are wrong. The log names them, too.
    pub fn reload(&self) -> Result<(), ServerError> {
        let errors = self.credentials.reload();
        if errors.is_empty() {
            return Ok(());
        }
        Err(ServerError::File(errors.join("; ")))
    }

    /// Waits for SIGTERM or Ctrl-C.
    pub fn wait_for_signal(&self) {
        if let Some(runtime) = &self.runtime {
            runtime.block_on(signal());
        }
    }

    /// Refuses new requests and sequences, waits until those that were accepted have ended, at most
    /// `grace`, and stops. A second signal ends the wait. Returns the number of requests and open
    /// sequences that were broken off.
    pub fn stop(mut self, grace: Duration) -> u64 {
        let service = Arc::clone(&self.service);
        let Some(runtime) = self.runtime.take() else {
            return 0;
        };
        service.drain();
        let end = Instant::now() + grace;
        let left = runtime.block_on(async {
            tokio::select! {
                () = service.idle(end) => {}
                () = signal() => {}
            }
            let left = service.unanswered() + service.models.open_sequences() as u64;
            self.stopping.send_replace(true);
            // Idle connections end at once, others with their last answer.
            let ended = async {
                for port in self.ports.drain(..) {
                    let _ = port.await;
                }
            };
            let rest = end.saturating_duration_since(Instant::now());
            let _ = tokio::time::timeout(rest.max(Duration::from_millis(200)), ended).await;
            left
        });
        runtime.shutdown_timeout(Duration::from_millis(200));
        left
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// An origin as browsers send it, or `*`. They send the scheme and the host in lower case, without
/// the port that the scheme has anyway.
fn origin(text: &str) -> Option<HeaderValue> {
    let is_origin = text.split_once("://").is_some_and(|(scheme, host)| {
        let usual_port = match scheme {
            "https" => ":443",
            "http" => ":80",
            _ => ":",
        };
        let is_of = |text: &str, others: &str| {
            let is_letter = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
            let is_known = |letter: char| is_letter(letter) || others.contains(letter);
            !text.is_empty() && text.chars().all(is_known)
        };
        // Brackets stand around an address of IPv6.
        is_of(scheme, "+-.") && is_of(host, "-._:[]") && !host.ends_with(usual_port)
    });
    HeaderValue::from_str(text)
        .ok()
        .filter(|_| is_origin || text == "*")
}

async fn tidy(models: Arc<Models>) {
    let mut ticks = tokio::time::interval(TIDY);
    loop {
        ticks.tick().await;
        let models = Arc::clone(&models);
        // Removing a model waits for its requests.
        let _ = tokio::task::spawn_blocking(move || models.tidy(Instant::now())).await;
    }
}

#[cfg(unix)]
fn hangups() -> std::io::Result<tokio::signal::unix::Signal> {
    tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())
}

#[cfg(unix)]
async fn reload_at(mut hangups: tokio::signal::unix::Signal, credentials: Arc<Credentials>) {
    while hangups.recv().await.is_some() {
        let credentials = Arc::clone(&credentials);
        // It reads files.
        let _ = tokio::task::spawn_blocking(move || credentials.reload()).await;
    }
}

/// SIGTERM or Ctrl-C.
async fn signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}
