//! `ModelStreamInfer`: requests of a stream, and their responses as they are computed.
//!
//! Requests run at the same time; those of one sequence keep their order, because each is polled
//! once, and then waits in the queue of its sequence's lock, before the next is read. An error of a
//! request is a message, and the stream goes on.
//!
//! A task that has used up its budget of Tokio gets `Pending` from a lock without a place in its
//! queue, and a later request would pass it. So requests run without a budget. They do not hold up
//! other tasks: each waits for the engine. Responses of a sequence are sent where its lock is
//! freed, without a wait, and so have its order, too.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, Stream, StreamExt};
use tokio::sync::{Notify, mpsc};
use tokio::task::unconstrained;
use tonic::{Status, Streaming};
use tracing::Instrument;

use super::request::DecodedRequest;
use super::{codes, convert};
use crate::error::InferError;
use crate::listener::Client;
use crate::service::{Service, Target};
use crate::wire::{InferRequest, InferResponse, Tensor};
use gatestream_protocol::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};

/// Requests of a stream without an answer, and responses that the client has not taken. With so
/// many, no further request is read.
const MOST: usize = 256;

type Message = Result<ModelStreamInferResponse, Status>;

/// The responses of a stream. Dropping it cancels the requests without an answer.
pub struct Responses {
    messages: mpsc::UnboundedReceiver<Message>,
    waiting: Arc<Waiting>,
}

/// Responses that the client has not taken.
#[derive(Default)]
struct Waiting {
    count: AtomicUsize,
    taken: Notify,
}

impl Stream for Responses {
    type Item = Message;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Message>> {
        let next = self.messages.poll_recv(context);
        if let Poll::Ready(Some(_)) = next {
            self.waiting.count.fetch_sub(1, Ordering::Relaxed);
            self.waiting.taken.notify_one();
        }
        next
    }
}

/// The sending end: without a limit, because responses that waited for room would pass each other.
#[derive(Clone)]
struct Sender {
    messages: mpsc::UnboundedSender<Message>,
    waiting: Arc<Waiting>,
}

impl Sender {
    fn send(&self, message: Message) {
        self.waiting.count.fetch_add(1, Ordering::Relaxed);
        // The client may have gone.
        let _ = self.messages.send(message);
    }

    fn response(&self, response: InferResponse) {
        self.send(Ok(ModelStreamInferResponse {
            error_message: String::new(),
            infer_response: Some(convert::response(response, true)),
        }));
    }

    fn error(&self, id: String, error: &InferError) {
        self.send(Ok(ModelStreamInferResponse {
            error_message: error.message.clone(),
            infer_response: Some(ModelInferResponse {
                id,
                ..ModelInferResponse::default()
            }),
        }));
    }
}

/// Answers the requests of a stream.
pub fn answers(
    service: Arc<Service>,
    client: Client,
    deadline: Option<Instant>,
    mut requests: Streaming<ModelInferRequest>,
) -> Responses {
    let (messages, receiver) = mpsc::unbounded_channel();
    let waiting = Arc::<Waiting>::default();
    let responses = Responses {
        messages: receiver,
        waiting: Arc::clone(&waiting),
    };
    let sender = Sender { messages, waiting };
    let answers = async move {
        let mut running: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>> =
            FuturesUnordered::new();
        let mut is_open = true;
        let mut unreadable = None;
        while is_open || !running.is_empty() {
            let waiting = sender.waiting.count.load(Ordering::Relaxed);
            let has_room = running.len() + waiting < MOST;
            tokio::select! {
                // Ends the task, and so cancels the requests, when the client has gone.
                () = sender.messages.closed() => return,
                Some(()) = running.next(), if !running.is_empty() => {}
                () = sender.waiting.taken.notified(), if !has_room => {}
                message = requests.next(), if is_open && has_room => {
                    let message = match message {
                        Some(Ok(message)) => message,
                        // What follows a message that cannot be read cannot be read either.
                        Some(Err(why)) => {
                            unreadable = Some(codes::of_stream(why));
                            is_open = false;
                            continue;
                        }
                        None => {
                            is_open = false;
                            continue;
                        }
                    };
                    let (service, client, sender) =
                        (Arc::clone(&service), client.clone(), sender.clone());
                    let mut answer: Pin<Box<dyn Future<Output = ()> + Send>> =
                        Box::pin(unconstrained(async move {
                            answer(&service, client, deadline, message, &sender).await;
                        }));
                    if (&mut answer).now_or_never().is_none() {
                        running.push(answer);
                    }
                }
            }
        }
        if let Some(status) = unreadable {
            sender.send(Err(status));
        }
    };
    // In the trace of the stream.
    tokio::spawn(answers.in_current_span());
    responses
}

/// Sends all responses of a request.
async fn answer(
    service: &Service,
    client: Client,
    deadline: Option<Instant>,
    message: ModelInferRequest,
    sender: &Sender,
) {
    let id = message.id.clone();
    let asked = match DecodedRequest::read(message, client, deadline) {
        Ok(asked) => asked,
        Err(error) => {
            service.metrics.refused(&error);
            return sender.error(id, &error);
        }
    };
    let (target, request) = (asked.target(), &asked.request);
    let model = service.model(&asked.model, &asked.version);
    let answered = match model {
        Ok(model) if model.network.interface().is_streaming => {
            let version = model.version.to_string();
            let part = |part: Tensor| InferResponse {
                id: id.clone(),
                model: model.name.clone(),
                version: version.clone(),
                outputs: Vec::from_iter(request.wants(&part.name).then_some(part)),
                is_final: false,
            };
            in_parts(service, &target, request, sender, part).await
        }
        // Also for a sequence of a replaced model, and for the error of an unknown one.
        _ => service.infer(&target, request, None).await.map(Some),
    };
    match answered {
        Ok(Some(response)) => sender.response(response),
        Ok(None) => {}
        Err(error) => sender.error(id, &error),
    }
}

/// Sends each part of an answer as it is computed. Returns the message that tells the end, if the
/// client asks for one.
async fn in_parts(
    service: &Service,
    target: &Target<'_>,
    request: &InferRequest,
    sender: &Sender,
    response: impl Fn(Tensor) -> InferResponse,
) -> Result<Option<InferResponse>, InferError> {
    let (part, mut parts) = mpsc::unbounded_channel();
    let infer = service.infer(target, request, Some(part));
    let mut infer = std::pin::pin!(infer);
    let ended = loop {
        tokio::select! {
            // Parts come before the end.
            biased;
            Some(part) = parts.recv() => sender.response(response(part)),
            ended = infer.as_mut() => break ended,
        }
    };
    // The last ones, if they came together with the end.
    while let Ok(part) = parts.try_recv() {
        sender.response(response(part));
    }
    let mut last = ended?;
    last.outputs.clear();
    Ok(request.options.wants_final.then_some(last))
}
