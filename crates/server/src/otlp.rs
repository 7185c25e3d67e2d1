//! Spans of requests for an OpenTelemetry collector: the span of `listener/span.rs`, and in it one
//! of each inference.

use axum::http::HeaderMap;
use gatestream_command::Failure;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::runtime::Runtime;
use tracing::{Span, Subscriber};
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt};
use tracing_subscriber::registry::LookupSpan;

/// Sends spans in batches. Dropping it sends the last ones.
pub struct Exporter {
    provider: SdkTracerProvider,
    /// Its connection.
    _runtime: Runtime,
}

impl Exporter {
    /// An exporter to the collector at `address`, as `http://localhost:4317`. A collector that is
    /// not there is tried again with each batch; spans of batches that were not sent are lost.
    ///
    /// # Errors
    /// It is no address of HTTP.
    pub fn start(address: &str) -> Result<Exporter, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("gatestream-otlp")
            .enable_all()
            .build()?;
        let entered = runtime.enter();
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(address);
        let exporter = exporter
            .build()
            .map_err(|why| Failure::usage(format!("--otlp {address}: {why}")))?;
        let resource = Resource::builder().with_service_name("gatestream");
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_batch_exporter(exporter)
            .build();
        drop(entered);
        Ok(Exporter {
            provider,
            _runtime: runtime,
        })
    }

    /// Exports the spans of a subscriber.
    pub fn layer<S>(&self) -> OpenTelemetryLayer<S, SdkTracer>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        OpenTelemetryLayer::new(self.provider.tracer("gatestream"))
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if let Err(why) = self.provider.shutdown() {
            tracing::warn!("the last spans were not sent: {why}");
        }
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}

/// Makes a span a child of that of the request's headers, if they name one.
pub fn continue_trace(span: &Span, headers: &HeaderMap) {
    let parent = TraceContextPropagator::new().extract(&Headers(headers));
    // Fails for a span that is not exported.
    let _ = span.set_parent(parent);
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::body::{Body, Bytes};
    use gatestream_protocol::ModelInferRequest;
    use gatestream_protocol::model_infer_request::InferInputTensor;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use hyper_util::server::conn::auto;
    use hyper_util::service::TowerToHyperService;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::in_process::{InProcess, repository};

    const TRACE: u128 = 0x0af7651916cd43dd8448eb211c80319c;
    const SPAN: u64 = 0xb7ad6b7169203331;

    /// A collector, which keeps what it gets; its address.
    async fn collector(got: Arc<Mutex<Vec<u8>>>) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("an address");
        let take = async move |body: Bytes| {
            got.lock().expect("no panic").extend_from_slice(&body);
            tonic::Status::ok("").into_http::<Body>()
        };
        let export = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
        let router = Router::new().route(export, axum::routing::post(take));
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let service = TowerToHyperService::new(router.clone());
                tokio::spawn(async move {
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let connection = TokioIo::new(connection);
                    let _ = builder.serve_connection(connection, service).await;
                });
            }
        });
        format!("http://{address}")
    }

    /// What the collector gets of what `client` does with a server of the model `speech`.
    fn exported(client: impl FnOnce(&InProcess, &[(&'static str, &str)])) -> Vec<u8> {
        let runtime = Runtime::new().expect("a runtime");
        let got = Arc::<Mutex<Vec<u8>>>::default();
        let address = runtime.block_on(collector(Arc::clone(&got)));
        let folder = repository();
        let server = InProcess::new(folder.path());
        let exporter = Exporter::start(&address).expect("an exporter");
        let subscriber = tracing_subscriber::registry().with(exporter.layer());
        let parent = format!("00-{TRACE:032x}-{SPAN:016x}-01");
        tracing::subscriber::with_default(subscriber, || {
            client(&server, &[("traceparent", &parent)]);
        });
        drop(exporter);
        let got = got.lock().expect("no panic");
        got.clone()
    }

    fn count(of: &[u8], bytes: &[u8]) -> usize {
        of.windows(bytes.len())
            .filter(|window| *window == bytes)
            .count()
    }

    /// Both spans are in the trace of the request: that of the request, whose parent is named by
    /// the header, and that of the inference.
    fn has_both_spans(got: &[u8]) {
        assert_eq!(count(got, &TRACE.to_be_bytes()), 2);
        assert_eq!(count(got, &SPAN.to_be_bytes()), 1);
        for text in ["request", "infer", "speech", "compute_microseconds"] {
            assert!(count(got, text.as_bytes()) > 0, "{text}");
        }
    }

    #[test]
    fn spans_continue_the_trace_of_their_request() {
        let got = exported(|server, headers| {
            let body =
                br#"{"inputs":[{"name":"input","datatype":"FP32","shape":[1,1,2],"data":[1,2]}]}"#;
            assert_eq!(server.infer("speech", headers, body), 200);
        });
        has_both_spans(&got);
        assert!(count(&got, b"http.response.status_code") > 0);
    }

    #[test]
    fn spans_of_a_stream_are_in_its_trace() {
        let got = exported(|server, headers| {
            let request = ModelInferRequest {
                model_name: "speech".into(),
                inputs: vec![InferInputTensor {
                    name: "input".into(),
                    datatype: "FP32".into(),
                    shape: vec![1, 1, 2],
                    ..InferInputTensor::default()
                }],
                raw_input_contents: vec![vec![0; 8].into()],
                ..ModelInferRequest::default()
            };
            let message = prost::Message::encode_to_vec(&request);
            assert_eq!(server.call("ModelStreamInfer", headers, &[&message]).0, 0);
        });
        has_both_spans(&got);
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        let refused = Exporter::start("no address").err().expect("an error");
        assert!(refused.to_string().contains("no address"), "{refused}");
    }
}
