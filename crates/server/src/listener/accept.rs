//! Accepts connections, and ends those that send nothing.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Version;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tower::Service;

use super::Tls;
use super::clock::{Answering, Clock, Clocked, ConnectionTimes, Deadline};

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
    /// The head time is also that for a TLS handshake.
    pub times: ConnectionTimes,
}

/// Between two tests of an idle HTTP/2 connection, and for the answer of one.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(20);

/// Serves a port until `stopping` is true. Then open connections answer their requests and end.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
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
        let tls = tls.as_ref().map(|tls| tls.acceptor());
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
        match tokio::time::timeout(self.limits.times.head, tls.accept(stream)).await {
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
        let clock = Clock::new(limits.times);
        let requests = clock.clone();
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            let answering = requests.request(request.version() == Version::HTTP_2);
            request.extensions_mut().insert(peer);
            // A router is always ready.
            let answer = router.clone().call(request);
            async move {
                let answer = answer.await?;
                Ok::<_, Infallible>(answer.map(|body| UntilSent {
                    body,
                    _answering: answering,
                }))
            }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // The clock has this time, because hyper's counts while nothing of a request has come.
        builder.http1().header_read_timeout(None::<Duration>);
        (builder.http2())
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams)
            // Many users may share a connection. Requests that some of them cancel before a busy
            // server sees them must not end it: by default 20 do.
            .max_pending_accept_reset_streams(limits.streams as usize)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG);
        let stream = Clocked {
            stream,
            clock: clock.clone(),
        };
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let mut timer = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        let mut stops = true;
        loop {
            let next = poll_fn(|context| {
                if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                    return Poll::Ready(Next::Ended(ended));
                }
                // The poll may have read or answered.
                let Some(deadline) = clock.deadline() else {
                    return Poll::Pending;
                };
                if timer.deadline().into_std() != deadline.at {
                    timer.as_mut().reset(deadline.at.into());
                }
                let late = timer.as_mut().poll(context);
                late.map(|()| Next::Late(deadline))
            });
            tokio::select! {
                next = next => match next {
                    Next::Ended(Ok(())) => return,
                    Next::Ended(Err(why)) => {
                        tracing::debug!(address = %peer.0, "connection: {why}");
                        return;
                    }
                    // A request that comes just now is still answered.
                    Next::Late(deadline) if deadline.is_idle && stops => {
                        connection.as_mut().graceful_shutdown();
                        stops = false;
                    }
                    Next::Late(_) => return,
                },
                _ = stopping.wait_for(|stopping| *stopping), if stops => {
                    connection.as_mut().graceful_shutdown();
                    stops = false;
                }
            }
        }
    }
}

/// The next event of a connection.
enum Next<E> {
    Ended(E),
    Late(Deadline),
}

/// A body of an answer. Its drop tells that it has been sent, or given up.
struct UntilSent {
    body: Body,
    _answering: Answering,
}

impl HttpBody for UntilSent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Listens at an address. So many connections may wait to be accepted.
///
/// # Errors
/// Those of the operating system.
pub fn listen(address: SocketAddr, waiting: u32) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // A server that was just stopped had the port.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(waiting)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody accepts them.
    #[test]
    fn a_burst_of_connections_finds_room() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        let _guard = runtime.enter();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = listen(any, 1024).expect("a port");
        let address = listener.local_addr().expect("an address");
        let wait = Duration::from_secs(20);
        let connected = (0..500).map(|_| std::net::TcpStream::connect_timeout(&address, wait));
        let connected: Result<Vec<_>, _> = connected.collect();
        assert_eq!(connected.expect("all have room").len(), 500);
    }
}
