//! `ModelStreamInfer`: requests of a stream, and their responses as they are computed.
//!
//! Requests run at the same time; those of one sequence keep their order, because each is polled
//! once before the next is read. An error of a request is a message, and the stream goes on.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::asked::Asked;
use super::convert;
use crate::doors::Client;
use crate::error::InferError;
use crate::service::{Service, Target};
use crate::wire::{InferRequest, InferResponse, Tensor};
use cellstream_protocol::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};

/// The responses of a stream. Dropping it cancels the requests without an answer.
pub type Responses = ReceiverStream<Result<ModelStreamInferResponse, Status>>;

/// Requests of a stream without an answer. Then no further ones are read.
const UNANSWERED: usize = 256;

/// Responses that the client has not taken. Then requests wait.
const WAITING: usize = 64;

type Sender = mpsc::Sender<Result<ModelStreamInferResponse, Status>>;

/// Answers the requests of a stream.
pub fn answers(
    service: Arc<Service>,
    client: Client,
    deadline: Option<Instant>,
    mut requests: Streaming<ModelInferRequest>,
) -> Responses {
    let (sender, receiver) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let mut running: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>> =
            FuturesUnordered::new();
        let mut is_open = true;
        while is_open || !running.is_empty() {
            tokio::select! {
                // Ends the task, and so cancels the requests, when the client has gone.
                () = sender.closed() => return,
                Some(()) = running.next(), if !running.is_empty() => {}
                message = requests.next(), if is_open && running.len() < UNANSWERED => {
                    let Some(Ok(message)) = message else {
                        // The client has ended its part of the stream, or broken it off.
                        is_open = false;
                        continue;
                    };
                    let (service, client, sender) =
                        (Arc::clone(&service), client.clone(), sender.clone());
                    let mut answer: Pin<Box<dyn Future<Output = ()> + Send>> =
                        Box::pin(async move {
                            answer(&service, client, deadline, message, &sender).await;
                        });
                    if (&mut answer).now_or_never().is_none() {
                        running.push(answer);
                    }
                }
            }
        }
    });
    ReceiverStream::new(receiver)
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
    let asked = match Asked::read(message, client, deadline) {
        Ok(asked) => asked,
        Err(error) => return send_error(sender, &id, &error).await,
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
        Ok(Some(response)) => send(sender, response).await,
        Ok(None) => {}
        Err(error) => send_error(sender, &id, &error).await,
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
            Some(part) = parts.recv() => send(sender, response(part)).await,
            ended = infer.as_mut() => break ended,
        }
    };
    // The last ones, if they came together with the end.
    while let Ok(part) = parts.try_recv() {
        send(sender, response(part)).await;
    }
    let mut last = ended?;
    last.outputs.clear();
    Ok(request.options.wants_final.then_some(last))
}

async fn send(sender: &Sender, response: InferResponse) {
    let message = ModelStreamInferResponse {
        error_message: String::new(),
        infer_response: Some(convert::response(response, true)),
    };
    // The client may have gone.
    let _ = sender.send(Ok(message)).await;
}

async fn send_error(sender: &Sender, id: &str, error: &InferError) {
    let message = ModelStreamInferResponse {
        error_message: error.message.clone(),
        infer_response: Some(ModelInferResponse {
            id: id.to_owned(),
            ..ModelInferResponse::default()
        }),
    };
    let _ = sender.send(Ok(message)).await;
}
