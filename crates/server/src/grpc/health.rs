//! `grpc.health.v1`: the probe of Kubernetes and of clients that balance load.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::error::InferError;
use crate::listener::Client;
use crate::refusal::status;
use crate::service::Service;

/// The name of the service whose health is that of the server.
const INFERENCE: &str = "inference.GRPCInferenceService";

/// Between two looks of a client that watches.
const LOOK: Duration = Duration::from_millis(500);

/// See the [module](self).
pub struct Probe {
    pub service: Arc<Service>,
}

/// The health of a name: none and that of the service mean the server, others are models.
fn health(service: &Service, client: Option<&Client>, name: &str) -> Option<ServingStatus> {
    if !["", INFERENCE].contains(&name) {
        let may_know = client.is_some_and(|client| client.may_use(name));
        service.model(name, "").ok().filter(|_| may_know)?;
    }
    Some(if service.is_ready() {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    })
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

/// A watch of a name.
struct Watch {
    service: Arc<Service>,
    client: Option<Client>,
    name: String,
    last: Option<ServingStatus>,
}

impl Watch {
    /// The next change; `None`: the server is being stopped, which the last one has told.
    async fn next(mut self) -> Option<(Result<HealthCheckResponse, Status>, Watch)> {
        loop {
            let is_stopping = self.service.is_draining();
            let now = health(&self.service, self.client.as_ref(), &self.name);
            let now = now.unwrap_or(ServingStatus::ServiceUnknown);
            if self.last != Some(now) {
                self.last = Some(now);
                return Some((Ok(response(now)), self));
            }
            if is_stopping {
                return None;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[tonic::async_trait]
impl Health for Probe {
    async fn check(
        &self,
        asked: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let client = asked.extensions().get::<Client>().cloned();
        let name = asked.into_inner().service;
        let found = health(&self.service, client.as_ref(), &name);
        let none = || InferError::not_found(format!("there is no service or model {name:?}"));
        let found = found.ok_or_else(|| status(&none()))?;
        Ok(Response::new(response(found)))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        asked: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watch = Watch {
            service: Arc::clone(&self.service),
            client: asked.extensions().get::<Client>().cloned(),
            name: asked.into_inner().service,
            last: None,
        };
        Ok(Response::new(Box::pin(unfold(watch, Watch::next))))
    }
}
