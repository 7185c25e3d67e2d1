//! A message of a request, read.

use std::time::{Duration, Instant};

use gatestream_protocol::ModelInferRequest;

use super::convert;
use crate::error::InferError;
use crate::listener::Client;
use crate::service::Target;
use crate::wire::InferRequest;

/// A request, and the model that it is for.
pub struct DecodedRequest {
    pub model: String,
    pub version: String,
    pub request: InferRequest,
    client: Client,
    received: Instant,
    reading: Duration,
    deadline: Option<Instant>,
}

impl DecodedRequest {
    /// Reads a message.
    ///
    /// # Errors
    /// The client may not use the model; what is wrong with the message.
    pub fn read(
        mut message: ModelInferRequest,
        client: Client,
        deadline: Option<Instant>,
    ) -> Result<DecodedRequest, InferError> {
        let received = Instant::now();
        let model = std::mem::take(&mut message.model_name);
        let version = std::mem::take(&mut message.model_version);
        client.check(&model)?;
        Ok(DecodedRequest {
            request: convert::request(message)?,
            model,
            version,
            client,
            received,
            reading: received.elapsed(),
            deadline,
        })
    }

    pub fn target(&self) -> Target<'_> {
        Target {
            model: &self.model,
            version: &self.version,
            client: self.client.clone(),
            received: self.received,
            reading: self.reading,
            deadline: self.deadline,
        }
    }
}
