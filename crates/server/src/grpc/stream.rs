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

use super::convert;
use crate::doors::Client;
use crate::error::InferError;
use crate::service::{Service, Target};
use crate::wire::{InferRequest, InferResponse};
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
    mut message: ModelInferRequest,
    sender: &Sender,
) {
    let received = Instant::now();
    let id = message.id.clone();
    let model = std::mem::take(&mut message.model_name);
    let version = std::mem::take(&mut message.model_version);
    let request = client
        .check(&model)
        .and_then(|()| convert::request(message));
    let request = match request {
        Ok(request) => request,
        Err(error) => return send_error(sender, &id, &error).await,
    };
    let target = Target {
        model: &model,
        version: &version,
        client,
        received,
        reading: received.elapsed(),
        deadline,
    };
    let is_streaming = service
        .model(&model, &version)
        .is_ok_and(|model| model.network.interface().is_streaming);
    match is_streaming {
        false => match service.infer(&target, &request, None).await {
            Ok(response) => send(sender, response).await,
            Err(error) => send_error(sender, &id, &error).await,
        },
        true => answer_in_parts(service, &target, &request, sender).await,
    }
}

/// Sends each part of an answer as it is computed, and the end after them.
async fn answer_in_parts(
    service: &Service,
    target: &Target<'_>,
    request: &InferRequest,
    sender: &Sender,
) {
    let (part, mut parts) = mpsc::unbounded_channel();
    let infer = service.infer(target, request, Some(part));
    let mut infer = std::pin::pin!(infer);
    let ended = loop {
        tokio::select! {
            // Parts come before the end.
            biased;
            Some(part) = parts.recv() => {
                let outputs = if request.wants(&part.name) { vec![part] } else { Vec::new() };
                let response = InferResponse {
                    id: request.id.clone(),
                    model: target.model.to_owned(),
                    version: target.version.to_owned(),
                    outputs,
                    is_final: false,
                };
                send(sender, response).await;
            }
            ended = infer.as_mut() => break ended,
        }
    };
    // The last ones, if they came together with the end.
    while let Ok(part) = parts.try_recv() {
        let response = InferResponse {
            id: request.id.clone(),
            model: target.model.to_owned(),
            version: target.version.to_owned(),
            outputs: vec![part],
            is_final: false,
        };
        send(sender, response).await;
    }
    match ended {
        Ok(mut response) => {
            // All of it has been sent. The last message tells the end only.
            response.outputs.clear();
            if request.options.wants_final {
                send(sender, response).await;
            }
        }
        Err(error) => send_error(sender, &request.id, &error).await,
    }
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
