//! The server without connections, for tests and fuzz targets.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, Response};
use gatestream_serve::engine::{EngineOptions, Workers};
use http_body_util::BodyExt;
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

use crate::http::HttpOptions;
use crate::listener::{Bodies, BodyLimits, Peer, Tokens};
use crate::models::Models;
use crate::repository::Repository;
use crate::service::Service;
use crate::{grpc, http};

/// The largest body.
const BODY: usize = 1 << 20;

/// A repository with the model `speech`, of two features.
#[cfg(test)]
pub fn repository() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("speech").join("1");
    std::fs::create_dir_all(&model).expect("made");
    let lstm = gatestream::model::Lstm::new(2, 3);
    let lstm = lstm.random(1).expect("a model");
    let saved = lstm.save_safetensors(model.join("model.safetensors"));
    saved.expect("saved");
    folder
}

/// Both protocols, over a repository.
pub struct InProcess {
    runtime: Runtime,
    http: Router,
    grpc: Router,
}

impl InProcess {
    /// Loads the models of a repository.
    ///
    /// # Panics
    /// If one cannot be loaded.
    pub fn new(repository: &Path) -> InProcess {
        let engine = EngineOptions {
            workers: Workers::OneOver(1),
            ..EngineOptions::default()
        };
        let repository = Repository::open(repository).expect("a repository");
        let models = Arc::new(Models::new(repository, engine));
        models.load_all().expect("models");
        assert!(
            models
                .index()
                .expect("an index")
                .iter()
                .all(|entry| entry.is_ready)
        );
        let service = Arc::new(Service::new(
            models,
            Bodies::new(BodyLimits {
                bytes: BODY,
                time: Duration::from_secs(10),
                all_bytes: BODY,
            }),
            false,
        ));
        service.loaded();
        let tokens = Arc::new(Tokens::none());
        let options = HttpOptions {
            may_load: false,
            origins: Vec::new(),
        };
        InProcess {
            // On the thread of the caller, so that its subscriber gets the spans of all tasks.
            runtime: Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime"),
            http: http::router(Arc::clone(&service), Arc::clone(&tokens), options),
            grpc: grpc::router(service, tokens, false),
        }
    }

    /// Sends a body to a model; the status of HTTP.
    pub fn infer(&self, model: &str, headers: &[(&'static str, &str)], body: &[u8]) -> u16 {
        let request = Request::post(format!("/v2/models/{model}/infer"));
        let (response, _) = self.send(&self.http, request, headers, body);
        response.status().as_u16()
    }

    /// Sends messages to a method of gRPC; the code and the message of its status.
    pub fn call(
        &self,
        method: &str,
        headers: &[(&'static str, &str)],
        messages: &[&[u8]],
    ) -> (i32, String) {
        let mut body = Vec::new();
        for message in messages {
            body.push(0);
            body.extend((message.len() as u32).to_be_bytes());
            body.extend_from_slice(message);
        }
        self.call_raw(method, headers, &body)
    }

    /// The same for a body with flags and lengths of its own.
    pub fn call_raw(
        &self,
        method: &str,
        headers: &[(&'static str, &str)],
        body: &[u8],
    ) -> (i32, String) {
        let path = format!("/inference.GRPCInferenceService/{method}");
        let request = Request::post(path).header("content-type", "application/grpc");
        let (response, trailers) = self.send(&self.grpc, request, headers, body);
        let maps = [response.headers(), &trailers];
        let text = |name: &str| {
            let value = maps.iter().find_map(|map| map.get(name));
            value
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
        };
        let code = text("grpc-status").parse().expect("a status of gRPC");
        (code, text("grpc-message").to_owned())
    }

    fn send(
        &self,
        router: &Router,
        mut request: axum::http::request::Builder,
        headers: &[(&'static str, &str)],
        body: &[u8],
    ) -> (Response<()>, HeaderMap) {
        for &(name, value) in headers {
            request = request.header(name, value);
        }
        let peer = Peer(SocketAddr::from(([127, 0, 0, 1], 1)));
        let request = request.extension(peer).body(Body::from(body.to_vec()));
        let request = request.expect("a request");
        self.runtime.block_on(async {
            let Ok(response) = router.clone().oneshot(request).await;
            let (head, body) = response.into_parts();
            let body = body.collect().await.expect("a whole body");
            let trailers = body.trailers().cloned().unwrap_or_default();
            (Response::from_parts(head, ()), trailers)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use fastrand::Rng;

    const INTERNAL: [i32; 2] = [2, 13];

    /// The seeds of the fuzz target `message`, and what becomes of them at random.
    #[test]
    fn spoilt_messages_are_mistakes_of_the_client() {
        let folder = repository();
        let server = InProcess::new(folder.path());
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/message");
        let seeds = std::fs::read_dir(corpus).expect("seeds");
        let mut seeds: Vec<Vec<u8>> = seeds
            .map(|seed| std::fs::read(seed.expect("a file").path()).expect("read"))
            .collect();
        seeds.sort();
        let mut rng = Rng::with_seed(1);
        let methods = ["ModelInfer", "ModelStreamInfer", "ModelMetadata"];
        for _ in 0..3_000 {
            let mut message = seeds[rng.usize(..seeds.len())].clone();
            for _ in 0..rng.usize(..4) {
                let at = rng.usize(..message.len().max(1)).min(message.len());
                match rng.u8(..4) {
                    0 => message.truncate(at),
                    1 => message.insert(at, rng.u8(..)),
                    2 if at < message.len() => message[at] = rng.u8(..),
                    _ => message.extend_from_within(at..),
                }
            }
            let method = methods[rng.usize(..methods.len())];
            let headers = [("grpc-encoding", "gzip")];
            let headers = &headers[..rng.usize(..2)];
            let (code, why) = if rng.bool() {
                server.call(method, headers, &[message.get(3..).unwrap_or_default()])
            } else {
                server.call_raw(method, headers, &message)
            };
            assert!(
                !INTERNAL.contains(&code),
                "{method} {message:?}: {code} {why}"
            );
        }
    }
}
