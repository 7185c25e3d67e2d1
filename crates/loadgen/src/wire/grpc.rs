//! The protocol over gRPC.

use std::time::Duration;

use gatestream_protocol::grpc_inference_service_client::GrpcInferenceServiceClient;
use gatestream_protocol::infer_parameter::ParameterChoice;
use gatestream_protocol::model_infer_request::InferInputTensor;
use gatestream_protocol::{
    InferParameter, ModelInferRequest, ModelMetadataRequest, ModelStreamInferResponse,
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use super::request::{Tensor, TensorPort};
use super::{BAD_TOKEN, Part, WireModel, tls};
use crate::record::{ErrorKind, Outcome};

/// A client on one connection.
#[derive(Clone)]
pub struct Client {
    client: GrpcInferenceServiceClient<Channel>,
    model: String,
    authorization: Option<MetadataValue<Ascii>>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn connect(of: &WireModel) -> Result<Client, String> {
        let mut channel = Channel::from_shared(of.server.uri()).map_err(tls::reason)?;
        if of.server.is_secure {
            channel = channel.tls_config(tls::of_grpc(of)?).map_err(tls::reason)?;
        }
        let channel = channel.connect().await.map_err(tls::reason)?;
        let client = GrpcInferenceServiceClient::new(channel);
        let authorization = of
            .token
            .as_ref()
            .map(|token| format!("Bearer {token}").parse());
        Ok(Client {
            client: client.max_decoding_message_size(usize::MAX),
            model: of.name.clone(),
            authorization: authorization.transpose().map_err(|_| BAD_TOKEN)?,
        })
    }

    /// The inputs of the model.
    ///
    /// # Errors
    /// The server does not have the model.
    pub async fn inputs(&self) -> Result<Vec<TensorPort>, String> {
        let asked = self.request(ModelMetadataRequest {
            name: self.model.clone(),
            version: String::new(),
        });
        let metadata = self.client.clone().model_metadata(asked).await;
        let metadata = metadata.map_err(|status| status_line(&status))?;
        let inputs = metadata.into_inner().inputs.into_iter();
        Ok(inputs
            .map(|input| TensorPort {
                name: input.name,
                datatype: input.datatype,
                shape: input.shape,
            })
            .collect())
    }

    /// The message with these inputs.
    pub fn message(&self, tensors: Vec<Tensor>, part: Option<Part>) -> ModelInferRequest {
        let mut message = ModelInferRequest {
            model_name: self.model.clone(),
            ..ModelInferRequest::default()
        };
        if let Some(Part { id, start }) = part {
            let mut add = |name: &str, choice| {
                let parameter_choice = Some(choice);
                message
                    .parameters
                    .insert(name.into(), InferParameter { parameter_choice });
            };
            add("sequence_id", ParameterChoice::Uint64Param(id));
            add("sequence_start", ParameterChoice::BoolParam(start));
        }
        for tensor in tensors {
            message.inputs.push(InferInputTensor {
                name: tensor.name,
                datatype: tensor.datatype.to_owned(),
                shape: tensor.shape,
                ..InferInputTensor::default()
            });
            message.raw_input_contents.push(tensor.raw);
        }
        message
    }

    /// Sends a request and waits for its response.
    pub async fn infer(&self, message: ModelInferRequest, time_left: Option<Duration>) -> Outcome {
        let mut request = self.request(message);
        if let Some(left) = time_left {
            request.set_timeout(left);
        }
        match self.client.clone().model_infer(request).await {
            Ok(_) => Outcome::Answered(None),
            Err(status) => {
                let kind = match status.code() {
                    Code::ResourceExhausted => ErrorKind::Overloaded,
                    // The own clock of the client is told as a cancellation.
                    Code::DeadlineExceeded | Code::Cancelled => ErrorKind::Deadline,
                    _ => ErrorKind::Failed,
                };
                Outcome::Failed(kind, status_line(&status))
            }
        }
    }

    /// Opens a stream of requests.
    ///
    /// # Errors
    /// The server refuses it.
    pub async fn stream(
        &self,
        messages: UnboundedReceiverStream<ModelInferRequest>,
    ) -> Result<Streaming<ModelStreamInferResponse>, Status> {
        let request = self.request(messages);
        let responses = self.client.clone().model_stream_infer(request).await?;
        Ok(responses.into_inner())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(value) = &self.authorization {
            request
                .metadata_mut()
                .insert("authorization", value.clone());
        }
        request
    }
}

/// The code and the message of a status.
pub fn status_line(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}
