//! The protocol over HTTP, with the bytes of tensors after the JSON.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use super::request::{Tensor, TensorPort};
use super::{BAD_TOKEN, Part, WireModel, tls};
use crate::record::{ErrorKind, Outcome};

/// The header with the length of the JSON.
const JSON_LENGTH: &str = "inference-header-content-length";

/// A client with connections that it keeps.
#[derive(Clone)]
pub struct Client {
    http: HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// `http://HOST/v2/models/NAME`.
    model: String,
    authorization: Option<HeaderValue>,
}

/// The body of a request.
#[derive(Clone, Debug)]
pub struct Body {
    bytes: Bytes,
    json_length: usize,
}

/// The body with these inputs, for all outputs as bytes.
pub fn body(tensors: &[Tensor], part: Option<Part>) -> Body {
    let input = |tensor: &Tensor| {
        json!({
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
            "parameters": { "binary_data_size": tensor.raw.len() },
        })
    };
    let inputs: Vec<Value> = tensors.iter().map(input).collect();
    let mut json = json!({ "parameters": { "binary_data_output": true }, "inputs": inputs });
    if let Some(Part { id, start }) = part {
        json["parameters"]["sequence_id"] = id.into();
        json["parameters"]["sequence_start"] = start.into();
    }
    let json = json.to_string();
    let raw: usize = tensors.iter().map(|tensor| tensor.raw.len()).sum();
    let mut bytes = BytesMut::with_capacity(json.len() + raw);
    bytes.put_slice(json.as_bytes());
    tensors
        .iter()
        .for_each(|tensor| bytes.put_slice(&tensor.raw));
    Body {
        bytes: bytes.freeze(),
        json_length: json.len(),
    }
}

impl Client {
    /// Does not connect yet.
    ///
    /// # Errors
    /// The certificates or the token cannot be used.
    pub fn new(of: &WireModel) -> Result<Client, String> {
        let bearer = |token: &String| HeaderValue::from_str(&format!("Bearer {token}"));
        let authorization = of.token.as_ref().map(bearer);
        Ok(Client {
            http: HttpClient::builder(TokioExecutor::new()).build(tls::connector(of)?),
            model: format!("{}/v2/models/{}", of.server.uri(), of.name),
            authorization: authorization.transpose().map_err(|_| BAD_TOKEN)?,
        })
    }

    /// The inputs of the model.
    ///
    /// # Errors
    /// The server does not answer, or does not have the model.
    pub async fn inputs(&self) -> Result<Vec<TensorPort>, String> {
        let request = self.request(Method::GET, &self.model);
        let request = request.body(Full::default()).map_err(tls::reason)?;
        let (status, body) = self.answer(request).await?;
        if status != StatusCode::OK {
            return Err(message(status, &body));
        }
        let json: Value = serde_json::from_slice(&body).unwrap_or_default();
        let port = |input: &Value| {
            let text = |name: &str| Some(input[name].as_str()?.to_owned());
            let axes = input["shape"].as_array()?.iter().map(Value::as_i64);
            Some(TensorPort {
                name: text("name")?,
                datatype: text("datatype")?,
                shape: axes.collect::<Option<_>>()?,
            })
        };
        let inputs = json["inputs"]
            .as_array()
            .map(|all| all.iter().map(port).collect());
        inputs
            .flatten()
            .ok_or_else(|| "the metadata of the model has no inputs".into())
    }

    /// Sends a request and waits for its response.
    pub async fn infer(&self, body: Body, time_left: Option<Duration>) -> Outcome {
        let body = match time_left {
            // The timeout is a part of the JSON.
            Some(left) => with_timeout(&body, left),
            None => body,
        };
        let request = self
            .request(Method::POST, &format!("{}/infer", self.model))
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(JSON_LENGTH, body.json_length)
            .body(Full::new(body.bytes));
        let answered = match request {
            Ok(request) => self.answer(request).await,
            Err(why) => Err(tls::reason(why)),
        };
        let (status, body) = match answered {
            Ok(answered) => answered,
            Err(why) => return Outcome::Failed(ErrorKind::Failed, why),
        };
        let kind = match status {
            StatusCode::OK => return Outcome::Answered(None),
            StatusCode::TOO_MANY_REQUESTS => ErrorKind::Overloaded,
            StatusCode::GATEWAY_TIMEOUT => ErrorKind::Deadline,
            _ => ErrorKind::Failed,
        };
        Outcome::Failed(kind, message(status, &body))
    }

    /// The status and the body of a response.
    async fn answer(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), String> {
        let response = self.http.request(request).await.map_err(tls::reason)?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(tls::reason)?;
        Ok((status, body.to_bytes()))
    }

    fn request(&self, method: Method, uri: &str) -> hyper::http::request::Builder {
        let request = Request::builder().method(method).uri(uri);
        match &self.authorization {
            Some(value) => request.header(AUTHORIZATION, value.clone()),
            None => request,
        }
    }
}

/// The status and the message of a refusal, which may be no JSON.
fn message(status: StatusCode, body: &[u8]) -> String {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = String::from_utf8_lossy(body);
    let error = json["error"].as_str().unwrap_or(&text);
    format!("status {}: {error}", status.as_u16())
}

/// The same body with a timeout.
fn with_timeout(body: &Body, timeout: Duration) -> Body {
    let (json, raw) = body.bytes.split_at(body.json_length);
    let mut json: Value = serde_json::from_slice(json).unwrap_or_default();
    let microseconds = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
    json["parameters"]["timeout"] = microseconds.max(1).into();
    let json = json.to_string();
    Body {
        bytes: [json.as_bytes(), raw].concat().into(),
        json_length: json.len(),
    }
}
