//! Bodies of requests while they are received: how long, and how many bytes.
//!
//! A body of HTTP, and that of a single call of gRPC, must have come after a time. The stream of a
//! `ModelStreamInfer` stays open, so that the time is that of each of its messages. The bytes of
//! all bodies that are being received have a limit, too: many slow clients cannot fill the memory.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame};
use tokio::time::Sleep;

use super::messages::Messages;
use crate::error::{ErrorKind, InferError};
use crate::refusal::status;

/// Limits of bodies.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Bytes of a body or a message, decompressed.
    pub bytes: usize,
    /// The time until it has come.
    pub time: Duration,
    /// Bytes of all bodies that are being received.
    pub all_bytes: usize,
}

/// The bodies that are being received.
#[derive(Debug)]
pub struct Bodies {
    pub limits: BodyLimits,
    bytes: AtomicUsize,
    slow: AtomicU64,
    overloaded: AtomicU64,
}

impl Bodies {
    pub fn new(limits: BodyLimits) -> Bodies {
        Bodies {
            limits: BodyLimits {
                // A body that is alone has room.
                all_bytes: limits.all_bytes.max(limits.bytes),
                ..limits
            },
            bytes: AtomicUsize::new(0),
            slow: AtomicU64::new(0),
            overloaded: AtomicU64::new(0),
        }
    }

    /// Bytes of the bodies that are being received.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bodies that did not come in time.
    pub fn slow(&self) -> u64 {
        self.slow.load(Ordering::Relaxed)
    }

    /// Bodies that were refused because of the bytes of all.
    pub fn overloaded(&self) -> u64 {
        self.overloaded.load(Ordering::Relaxed)
    }

    /// The whole body of a request over HTTP, of at most `most` bytes.
    ///
    /// # Errors
    /// It is larger, takes too long, is not what its encoding says, or the bytes of all bodies
    /// reach their limit.
    pub async fn whole(self: &Arc<Bodies>, body: Body, most: usize) -> Result<Bytes, InferError> {
        let mut received = Received::new(Arc::clone(self), body, Unit::Body(most));
        // One buffer: frames of a byte each would hold far more than the bytes that are counted.
        let mut whole = BytesMut::new();
        while let Some(frame) = received.frame().await {
            if let Some(data) = frame?.data_ref() {
                whole.extend_from_slice(data);
            }
        }
        Ok(whole.freeze())
    }

    /// The body of a call of gRPC, of one message or of a stream.
    pub fn messages(self: &Arc<Bodies>, body: Body, is_stream: bool) -> Body {
        let messages = Messages::new(self.limits.bytes);
        let unit = if is_stream {
            Unit::Stream(messages)
        } else {
            Unit::Message(messages)
        };
        let received = Received::new(Arc::clone(self), body, unit);
        Body::new(received.map_err(|error| status(&error)))
    }

    /// A body that is larger than this.
    pub fn too_large(most: usize) -> InferError {
        InferError::new(
            ErrorKind::TooLarge,
            format!("the body is larger than {most} bytes, the limit of the server (--body)"),
        )
    }
}

/// The part of a body that has a time and a number of bytes.
enum Unit {
    /// All of it, of at most so many bytes.
    Body(usize),
    /// All of it, one message.
    Message(Messages),
    /// Each message.
    Stream(Messages),
}

/// A body that is being received. Its bytes are counted until it, or its message, is complete.
struct Received {
    bodies: Arc<Bodies>,
    body: Body,
    unit: Unit,
    /// Bytes that are counted.
    held: usize,
    /// `None`: between two messages of a stream.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Received {
    fn new(bodies: Arc<Bodies>, body: Body, unit: Unit) -> Received {
        let timer = match unit {
            Unit::Stream(_) => None,
            _ => Some(timer(&bodies)),
        };
        Received {
            bodies,
            body,
            unit,
            held: 0,
            timer,
        }
    }

    /// Counts the bytes of a frame.
    fn take(&mut self, data: &[u8]) -> Result<(), InferError> {
        match &mut self.unit {
            Unit::Body(most) => {
                let held = self.held + data.len();
                if held > *most {
                    return Err(Bodies::too_large(*most));
                }
                self.hold(held)
            }
            Unit::Message(messages) => {
                messages.take(data)?;
                let held = self.held + data.len();
                self.hold(held)
            }
            Unit::Stream(messages) => {
                let ended = messages.take(data)?;
                let begun = messages.begun();
                match begun {
                    0 => self.timer = None,
                    _ if ended > 0 || self.timer.is_none() => {
                        self.timer = Some(timer(&self.bodies));
                    }
                    _ => {}
                }
                self.hold(begun)
            }
        }
    }

    fn hold(&mut self, held: usize) -> Result<(), InferError> {
        let all = &self.bodies.bytes;
        let before = all.fetch_sub(self.held, Ordering::Relaxed) - self.held;
        self.held = 0;
        let most = self.bodies.limits.all_bytes;
        let added = all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bytes| {
            Some(bytes + held).filter(|&bytes| bytes <= most)
        });
        if added.is_ok() {
            self.held = held;
            return Ok(());
        }
        self.bodies.overloaded.fetch_add(1, Ordering::Relaxed);
        Err(InferError {
            retry_after: Some(Duration::from_secs(1)),
            ..InferError::new(
                ErrorKind::Overloaded,
                format!(
                    "overloaded: {before} bytes of {most} are being received in other bodies; try \
                     again later, or raise --bodies"
                ),
            )
        })
    }
}

fn timer(bodies: &Bodies) -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep(bodies.limits.time))
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = InferError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, InferError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let data = frame.data_ref().map_or(&[] as &[u8], |data| &data[..]);
                let taken = this.take(data);
                Poll::Ready(Some(taken.map(|()| frame)))
            }
            Poll::Ready(Some(Err(why))) => {
                let error = InferError::invalid(format!("the body cannot be read: {why}"));
                Poll::Ready(Some(Err(error)))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let timer = this.timer.as_mut();
                if !timer.is_some_and(|timer| timer.as_mut().poll(context).is_ready()) {
                    return Poll::Pending;
                }
                this.bodies.slow.fetch_add(1, Ordering::Relaxed);
                let seconds = this.bodies.limits.time.as_secs_f64();
                let error = InferError::new(
                    ErrorKind::Slow,
                    format!("the body took longer than {seconds} s, the limit (--body-time)"),
                );
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.bodies.bytes.fetch_sub(self.held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use tokio::runtime::Builder;

    fn bodies(time: Duration) -> Arc<Bodies> {
        Arc::new(Bodies::new(BodyLimits {
            bytes: 100,
            time,
            all_bytes: 150,
        }))
    }

    /// A body of these parts, which has no end if it `stays`.
    fn body(parts: &[&[u8]], stays: bool) -> Body {
        let parts: Vec<Result<Bytes, std::io::Error>> = parts
            .iter()
            .map(|part| Ok(Bytes::copy_from_slice(part)))
            .collect();
        let parts = futures_util::stream::iter(parts);
        if !stays {
            return Body::from_stream(parts);
        }
        use futures_util::StreamExt;
        Body::from_stream(parts.chain(futures_util::stream::pending()))
    }

    fn block_on<F: Future>(of: F) -> F::Output {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(of)
    }

    #[test]
    fn a_body_without_an_end_is_given_up() {
        let bodies = bodies(Duration::from_millis(5));
        block_on(async {
            let error = bodies
                .whole(body(&[b"ab"], true), 100)
                .await
                .expect_err("slow");
            assert_eq!(
                (error.kind, bodies.slow(), bodies.bytes()),
                (ErrorKind::Slow, 1, 0)
            );
            let whole = bodies.whole(body(&[b"ab", b"c"], false), 100).await;
            assert_eq!(whole.as_deref(), Ok(&b"abc"[..]));
            let large = bodies.whole(body(&[b"ab", b"c"], false), 2).await;
            assert_eq!(large.expect_err("large").kind, ErrorKind::TooLarge);
        });
    }

    #[test]
    fn a_stream_may_rest_between_messages_only() {
        let bodies = bodies(Duration::from_millis(5));
        let stream = |parts: &[&[u8]]| bodies.messages(body(parts, true), true);
        block_on(async {
            // Whole messages, then nothing: it waits.
            let mut rests = stream(&[&[0, 0, 0, 0, 1, 7], &[0, 0, 0, 0, 0]]);
            for _ in 0..2 {
                rests.frame().await.expect("a frame").expect("a message");
            }
            assert_eq!(bodies.bytes(), 0);
            let waits = tokio::time::timeout(Duration::from_millis(50), rests.frame());
            assert!(waits.await.is_err());
            // A part of one.
            let mut half = stream(&[&[0, 0, 0, 0, 9, 7]]);
            half.frame().await.expect("a frame").expect("a part");
            assert_eq!(bodies.bytes(), 6);
            let error = half.frame().await.expect("an end").expect_err("slow");
            assert!(error.to_string().contains("--body-time"), "{error}");
        });
    }

    #[test]
    fn all_bodies_together_have_a_limit() {
        let bodies = bodies(Duration::from_secs(60));
        let message = [&[0, 0, 0, 0, 90][..], &[0; 80]].concat();
        block_on(async {
            let mut first = bodies.messages(body(&[&message], true), false);
            first.frame().await.expect("a frame").expect("room");
            assert_eq!(bodies.bytes(), 85);
            let second = bodies.whole(body(&[&message], false), 100).await;
            let error = second.expect_err("no room");
            assert_eq!(error.kind, ErrorKind::Overloaded);
            assert!(error.retry_after.is_some());
            drop(first);
            assert!(bodies.whole(body(&[&message], false), 100).await.is_ok());
            assert_eq!((bodies.bytes(), bodies.overloaded()), (0, 1));
        });
    }
}
