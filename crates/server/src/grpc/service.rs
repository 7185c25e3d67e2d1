//! The methods of the service.

use std::sync::Arc;
use std::time::Instant;

use tonic::{Request, Response, Status, Streaming};

use super::request::DecodedRequest;
use super::stream::{Responses, answers};
use super::{convert, documents};
use crate::error::{ErrorKind, InferError};
use crate::listener::Client;
use crate::refusal::status;
use crate::service::{EXTENSIONS, NAME, Service};
use gatestream_protocol::grpc_inference_service_server::GrpcInferenceService;
use gatestream_protocol::repository_index_response::ModelIndex;
use gatestream_protocol::*;

/// See the [module](self).
pub struct Methods {
    pub service: Arc<Service>,
    pub may_load: bool,
}

/// The client that the middleware has found.
pub fn client<T>(request: &Request<T>) -> Result<Client, Status> {
    let client = request.extensions().get::<Client>().cloned();
    let none = || InferError::new(ErrorKind::Internal, "the request has no client");
    client.ok_or_else(|| status(&none()))
}

type Answer<T> = Result<Response<T>, Status>;

fn answered<T>(answer: Result<T, InferError>) -> Answer<T> {
    answer.map(Response::new).map_err(|error| status(&error))
}

#[tonic::async_trait]
impl GrpcInferenceService for Methods {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Answer<ServerLiveResponse> {
        let live = self.service.has_live_workers();
        answered(Ok(ServerLiveResponse { live }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Answer<ServerReadyResponse> {
        let ready = self.service.is_ready();
        answered(Ok(ServerReadyResponse { ready }))
    }

    async fn model_ready(&self, asked: Request<ModelReadyRequest>) -> Answer<ModelReadyResponse> {
        let client = client(&asked)?;
        let ModelReadyRequest { name, version } = asked.into_inner();
        let is_loaded = client.may_use(&name) && self.service.model(&name, &version).is_ok();
        let ready = is_loaded && self.service.is_ready();
        answered(Ok(ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Answer<ServerMetadataResponse> {
        answered(Ok(ServerMetadataResponse {
            name: NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            extensions: EXTENSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn model_metadata(
        &self,
        asked: Request<ModelMetadataRequest>,
    ) -> Answer<ModelMetadataResponse> {
        let client = client(&asked)?;
        let ModelMetadataRequest { name, version } = asked.into_inner();
        let metadata = || {
            client.check(&name)?;
            let model = self.service.model(&name, &version)?;
            Ok(documents::metadata(
                &model,
                &self.service.models.versions(&name),
            ))
        };
        answered(metadata())
    }

    async fn model_infer(&self, asked: Request<ModelInferRequest>) -> Answer<ModelInferResponse> {
        let client = client(&asked)?;
        let deadline = convert::deadline(asked.metadata(), Instant::now());
        let infer = async {
            let asked = deadline
                .and_then(|deadline| DecodedRequest::read(asked.into_inner(), client, deadline));
            let asked = asked.inspect_err(|error| self.service.metrics.refused(error))?;
            let target = asked.target();
            let response = self.service.infer(&target, &asked.request, None).await?;
            Ok(convert::response(response, false))
        };
        answered(infer.await)
    }

    type ModelStreamInferStream = Responses;

    async fn model_stream_infer(
        &self,
        asked: Request<Streaming<ModelInferRequest>>,
    ) -> Answer<Responses> {
        let client = client(&asked)?;
        let deadline = convert::deadline(asked.metadata(), Instant::now());
        let deadline = deadline.inspect_err(|error| self.service.metrics.refused(error));
        let deadline = deadline.map_err(|error| status(&error))?;
        let service = Arc::clone(&self.service);
        Ok(Response::new(answers(
            service,
            client,
            deadline,
            asked.into_inner(),
        )))
    }

    async fn model_config(
        &self,
        asked: Request<ModelConfigRequest>,
    ) -> Answer<ModelConfigResponse> {
        let client = client(&asked)?;
        let ModelConfigRequest { name, version } = asked.into_inner();
        let config = || {
            client.check(&name)?;
            let model = self.service.model(&name, &version)?;
            let config = Some(documents::config(&model));
            Ok(ModelConfigResponse { config })
        };
        answered(config())
    }

    async fn model_statistics(
        &self,
        asked: Request<ModelStatisticsRequest>,
    ) -> Answer<ModelStatisticsResponse> {
        let client = client(&asked)?;
        let ModelStatisticsRequest { name, version } = asked.into_inner();
        let statistics = || {
            let mut models = if name.is_empty() {
                self.service.models.all()
            } else {
                client.check(&name)?;
                vec![self.service.model(&name, &version)?]
            };
            models.retain(|model| client.may_use(&model.name));
            let model_stats = models
                .iter()
                .map(|model| documents::statistics(model))
                .collect();
            Ok(ModelStatisticsResponse { model_stats })
        };
        answered(statistics())
    }

    async fn repository_index(
        &self,
        asked: Request<RepositoryIndexRequest>,
    ) -> Answer<RepositoryIndexResponse> {
        let client = client(&asked)?;
        let only_ready = asked.into_inner().ready;
        answered(self.service.models.index().map(|mut entries| {
            entries.retain(|entry| client.may_use(&entry.name) && (entry.is_ready || !only_ready));
            let models = entries.into_iter().map(|entry| ModelIndex {
                state: entry.state().to_owned(),
                name: entry.name,
                version: entry.version,
                reason: entry.reason,
            });
            RepositoryIndexResponse {
                models: models.collect(),
            }
        }))
    }

    async fn repository_model_load(
        &self,
        asked: Request<RepositoryModelLoadRequest>,
    ) -> Answer<RepositoryModelLoadResponse> {
        let client = client(&asked)?;
        let asked = asked.into_inner();
        if !asked.parameters.is_empty() {
            return answered(Err(InferError::new(
                ErrorKind::Unsupported,
                "a load has no parameters here: models and configurations are those of the \
                 repository",
            )));
        }
        let changed = self
            .service
            .change_models(self.may_load, &client, asked.model_name, true);
        answered(changed.await.map(|()| RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        asked: Request<RepositoryModelUnloadRequest>,
    ) -> Answer<RepositoryModelUnloadResponse> {
        let client = client(&asked)?;
        let name = asked.into_inner().model_name;
        let changed = self
            .service
            .change_models(self.may_load, &client, name, false);
        answered(changed.await.map(|()| RepositoryModelUnloadResponse {}))
    }
}
