//! Requests as messages of streams of gRPC: `ModelStreamInfer`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gatestream_protocol::infer_parameter::ParameterChoice;
use gatestream_protocol::{InferParameter, ModelInferRequest, ModelStreamInferResponse};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use super::grpc;
use crate::record::{ErrorKind, Outcome};
use crate::target::Completion;

/// The message of requests on a stream that is no more.
const ENDED: &str = "the stream has ended";

/// Open streams; a request goes to the one of its sequence.
pub struct Streams(Vec<Stream>);

struct Stream {
    messages: mpsc::UnboundedSender<ModelInferRequest>,
    unanswered: Arc<Unanswered>,
}

/// Requests without a response, by their ids; `None`: the stream has ended.
struct Unanswered(Mutex<Option<HashMap<String, Completion>>>);

impl Unanswered {
    fn lock(&self) -> MutexGuard<'_, Option<HashMap<String, Completion>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A response has come.
    fn answered(&self, message: &ModelStreamInferResponse) {
        let response = message.infer_response.as_ref();
        let is_final = response.and_then(|response| {
            match &response
                .parameters
                .get("triton_final_response")?
                .parameter_choice
            {
                Some(ParameterChoice::BoolParam(is_final)) => Some(*is_final),
                _ => None,
            }
        });
        if is_final == Some(false) {
            return;
        }
        let id = response.map_or("", |response| &response.id);
        let completion = self.lock().as_mut().and_then(|all| all.remove(id));
        if let Some(completion) = completion {
            let error = &message.error_message;
            completion.report(if error.is_empty() {
                Outcome::Answered(None)
            } else {
                Outcome::Failed(ErrorKind::Failed, error.clone())
            });
        }
    }

    /// The stream has ended, and why.
    fn ended(&self, why: &str) {
        let all = self.lock().take();
        for completion in all.into_iter().flat_map(HashMap::into_values) {
            completion.report(Outcome::Failed(ErrorKind::Failed, why.to_owned()));
        }
    }
}

impl Streams {
    /// Opens streams on the connection of `client`, whose tasks run on the current runtime.
    pub fn open(client: &grpc::Client, count: u64) -> Streams {
        let open = |_| {
            let (messages, receiver) = mpsc::unbounded_channel();
            let unanswered = Arc::new(Unanswered(Mutex::new(Some(HashMap::new()))));
            let (client, waiting) = (client.clone(), Arc::clone(&unanswered));
            tokio::spawn(async move {
                let stream = client.stream(UnboundedReceiverStream::new(receiver));
                let ended = match stream.await {
                    Ok(responses) => receive(responses, &waiting).await,
                    Err(status) => Err(status),
                };
                let why = ended.err().as_ref().map(grpc::status_line);
                waiting.ended(why.as_deref().unwrap_or(ENDED));
            });
            Stream {
                messages,
                unanswered,
            }
        };
        Streams((0..count).map(open).collect())
    }

    /// Sends a message on a stream.
    pub fn send(
        &self,
        stream: u64,
        mut message: ModelInferRequest,
        time_left: Option<Duration>,
        completion: Completion,
    ) {
        if let Some(left) = time_left {
            let micros = i64::try_from(left.as_micros()).unwrap_or(i64::MAX);
            let parameter_choice = Some(ParameterChoice::Int64Param(micros.max(1)));
            let timeout = InferParameter { parameter_choice };
            message.parameters.insert("timeout".into(), timeout);
        }
        let stream = &self.0[stream as usize % self.0.len()];
        match stream.unanswered.lock().as_mut() {
            Some(all) => drop(all.insert(message.id.clone(), completion)),
            None => {
                let why = ENDED.to_owned();
                return completion.report(Outcome::Failed(ErrorKind::Failed, why));
            }
        }
        // If the stream ends now, its end reports the request.
        let _ = stream.messages.send(message);
    }
}

async fn receive(
    mut responses: Streaming<ModelStreamInferResponse>,
    unanswered: &Unanswered,
) -> Result<(), Status> {
    while let Some(message) = responses.message().await? {
        unanswered.answered(&message);
    }
    Ok(())
}
