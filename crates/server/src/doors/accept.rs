//! Accepts connections, and ends those that send nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tower::Service;

/// The address of a client.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Open connections of a port. A further one is closed at once.
    pub connections: usize,
    /// Requests of one HTTP/2 connection at a time.
    pub streams: u32,
    /// The time for a TLS handshake, for the first request, and for the headers of each.
    pub header_time: Duration,
}

/// Between two tests of an idle HTTP/2 connection, and for the answer of one.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(20);

/// Serves a port until `stopping` is true. Then open connections answer their requests and end.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    limits: ConnectionLimits,
    mut stopping: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(limits.connections));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        let Ok((stream, address)) = accepted else {
            // Too many open files, or the client has gone.
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            tracing::warn!(%address, "too many connections; closed");
            continue;
        };
        let connection = Connection {
            router: router.clone(),
            peer: Peer(address),
            limits,
            stopping: stopping.clone(),
        };
        let tls = tls.clone();
        tokio::spawn(async move {
            connection.run(stream, tls).await;
            drop(place);
        });
    }
    // All places are free when the last connection has ended.
    let all = u32::try_from(limits.connections).unwrap_or(u32::MAX);
    let _ = places.acquire_many(all).await;
}

struct Connection {
    router: Router,
    peer: Peer,
    limits: ConnectionLimits,
    stopping: watch::Receiver<bool>,
}

impl Connection {
    async fn run(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        // A small answer must not wait for more.
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls else {
            return self.answer(stream).await;
        };
        match tokio::time::timeout(self.limits.header_time, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.answer(stream).await,
            Ok(Err(why)) => tracing::debug!(address = %self.peer.0, "TLS: {why}"),
            Err(_) => tracing::debug!(address = %self.peer.0, "TLS: the handshake took too long"),
        }
    }

    async fn answer(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Connection {
            router,
            peer,
            limits,
            mut stopping,
        } = self;
        let has_request = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&has_request);
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            seen.store(true, Ordering::Relaxed);
            request.extensions_mut().insert(peer);
            // A router is always ready.
            router.clone().call(request)
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        (builder.http1())
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_time);
        (builder.http2())
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams)
            // Many users may share a connection. Requests that some of them cancel before a busy
            // server sees them must not end it: by default 20 do.
            .max_pending_accept_reset_streams(limits.streams as usize)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let first = tokio::time::sleep(limits.header_time);
        let mut first = std::pin::pin!(first);
        let mut waits = true;
        let mut stops = true;
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(why) = ended {
                        tracing::debug!(address = %peer.0, "connection: {why}");
                    }
                    return;
                }
                () = first.as_mut(), if waits => {
                    // Its protocol is not known before its first bytes, so hyper waits for ever.
                    if !has_request.load(Ordering::Relaxed) {
                        return;
                    }
                    waits = false;
                }
                _ = stopping.wait_for(|stopping| *stopping), if stops => {
                    connection.as_mut().graceful_shutdown();
                    stops = false;
                }
            }
        }
    }
}
