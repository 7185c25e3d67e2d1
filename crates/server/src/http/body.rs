//! The body of a request: JSON, then the bytes of tensors.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::InferError;
use crate::networks::{Interface, Port};
use crate::wire::{
    Data, Datatype, InferRequest, InferResponse, InputOptions, OutputOptions, Parameter,
    RequestOptions, Tensor,
};

/// The header with the length of the JSON; the bytes of tensors follow it.
pub const JSON_LENGTH: &str = "inference-header-content-length";

/// As some clients write fields that they do not use, `null` is the same as no field.
type Parameters = BTreeMap<String, Value>;

#[derive(Deserialize)]
struct RequestJson<'a> {
    id: Option<String>,
    parameters: Option<Parameters>,
    #[serde(borrow)]
    inputs: Vec<InputJson<'a>>,
    outputs: Option<Vec<OutputJson>>,
}

#[derive(Deserialize)]
struct InputJson<'a> {
    name: String,
    shape: Vec<i64>,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    parameters: Option<Parameters>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct OutputJson {
    name: String,
    parameters: Option<Parameters>,
}

/// A request, and its outputs that are wanted as bytes.
pub struct Read {
    pub request: InferRequest,
    /// `None`: as [`RequestOptions::binary_outputs`].
    binary: BTreeMap<String, bool>,
}

/// Reads a body whose JSON has this length; `None`: all of it is JSON.
///
/// # Errors
/// The place of what is wrong.
pub fn read(body: &Bytes, json_length: Option<usize>) -> Result<Read, InferError> {
    let (json, mut raw) = match json_length {
        None => (&body[..], &[][..]),
        Some(length) => body.split_at_checked(length).ok_or_else(|| {
            InferError::invalid(format!(
                "{JSON_LENGTH} is {length}, but the body has {} bytes",
                body.len()
            ))
        })?,
    };
    let json: RequestJson<'_> = serde_json::from_slice(json).map_err(|why| {
        InferError::invalid(format!("the request is no JSON of the protocol: {why}"))
    })?;
    let mut inputs = Vec::with_capacity(json.inputs.len());
    for input in json.inputs {
        inputs.push(read_input(input, &mut raw)?);
    }
    if !raw.is_empty() {
        return Err(InferError::invalid(format!(
            "{} bytes follow those of all inputs",
            raw.len()
        )));
    }
    let mut outputs = Vec::new();
    let mut binary = BTreeMap::new();
    for output in json.outputs.into_iter().flatten() {
        let options = OutputOptions::read(parameters(output.parameters))?;
        if let Some(is_binary) = options.binary {
            binary.insert(output.name.clone(), is_binary);
        }
        outputs.push(output.name);
    }
    Ok(Read {
        request: InferRequest {
            id: json.id.unwrap_or_default(),
            inputs,
            outputs,
            options: RequestOptions::read(parameters(json.parameters))?,
        },
        binary,
    })
}

fn parameters(all: Option<Parameters>) -> impl Iterator<Item = (String, Parameter)> {
    let read = |(name, value)| (name, parameter(value));
    all.into_iter().flatten().map(read)
}

fn parameter(value: Value) -> Parameter {
    match value {
        Value::Bool(value) => Parameter::Bool(value),
        Value::String(text) => Parameter::Text(text),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(value), ..) => Parameter::Unsigned(value),
            (_, Some(value), _) => Parameter::Signed(value),
            (.., Some(value)) => Parameter::Float(value),
            (None, None, None) => Parameter::Other,
        },
        Value::Null | Value::Array(_) | Value::Object(_) => Parameter::Other,
    }
}

fn read_input(input: InputJson<'_>, raw: &mut &[u8]) -> Result<Tensor, InferError> {
    let InputJson {
        name,
        shape,
        datatype,
        parameters: given,
        data,
    } = input;
    let options = InputOptions::read(parameters(given))?;
    let data = match (options.binary_size, data) {
        (Some(_), Some(_)) => {
            return Err(InferError::invalid(format!(
                "input {name:?} has data and binary_data_size"
            )));
        }
        (None, None) => {
            return Err(InferError::invalid(format!("input {name:?} has no data")));
        }
        (Some(size), None) => {
            let size = usize::try_from(size).ok();
            let taken = size.and_then(|size| raw.split_at_checked(size));
            let (taken, rest) = taken.ok_or_else(|| {
                InferError::invalid(format!(
                    "input {name:?} has fewer bytes than binary_data_size"
                ))
            })?;
            *raw = rest;
            Data::of_input(&name, &datatype, taken)?
        }
        (None, Some(json)) => {
            let known = Datatype::of_input(&name, &datatype)?;
            let read = Data::from_json(known, json.get());
            read.map_err(|why| InferError::invalid(format!("data of input {name:?}: {why}")))?
        }
    };
    Tensor::input(&name, &shape, data)
}

/// A body that is the only input of a model: one sequence, or one tensor with at most one axis of
/// any size.
///
/// # Errors
/// The model has other inputs, or the bytes do not fill the shape.
pub fn read_single(body: &Bytes, of: &Interface) -> Result<Read, InferError> {
    let mut needed = of.needed();
    let (Some(port), None) = (needed.next(), needed.next()) else {
        return Err(InferError::invalid(
            "the model has several inputs; name them in JSON",
        ));
    };
    let data = Data::of_input(&port.name, port.datatype.name(), body)?;
    let shape = filled(port, of.max_batch > 0, data.len())?;
    Ok(Read {
        request: InferRequest {
            inputs: vec![Tensor::input(&port.name, &shape, data)?],
            options: RequestOptions {
                binary_outputs: true,
                ..RequestOptions::default()
            },
            ..InferRequest::default()
        },
        binary: BTreeMap::new(),
    })
}

/// The shape of a port with so many elements.
fn filled(port: &Port, has_batch: bool, elements: usize) -> Result<Vec<i64>, InferError> {
    let mut shape = port.shape.clone();
    if has_batch && let Some(first) = shape.first_mut() {
        *first = 1;
    }
    let known: i64 = shape.iter().filter(|&&axis| axis > 0).product();
    let open = shape.iter().filter(|&&axis| axis < 0).count();
    let elements = i64::try_from(elements).unwrap_or(i64::MAX);
    if open > 1 || known == 0 || elements % known != 0 {
        return Err(InferError::invalid(format!(
            "{elements} elements are no tensor of the shape {:?}",
            port.shape
        )));
    }
    for axis in shape.iter_mut().filter(|axis| **axis < 0) {
        *axis = elements / known;
    }
    Ok(shape)
}

#[derive(Serialize)]
struct ResponseJson<'a> {
    model_name: &'a str,
    model_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    outputs: Vec<ResponseOutputJson<'a>>,
}

#[derive(Serialize)]
struct ResponseOutputJson<'a> {
    name: &'a str,
    datatype: &'static str,
    shape: &'a [usize],
    /// With bytes only: some clients refuse data beside parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinarySize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Data>,
}

#[derive(Serialize)]
struct BinarySize {
    binary_data_size: usize,
}

/// The body of a response, and the length of its JSON if bytes follow.
pub struct Written {
    pub body: Bytes,
    pub json_length: Option<usize>,
}

impl Read {
    /// Writes a response.
    ///
    /// # Errors
    /// None is known.
    pub fn write(&self, response: &InferResponse) -> Result<Written, serde_json::Error> {
        let is_binary = |name: &String| {
            let usual = self.request.options.binary_outputs;
            self.binary.get(name).copied().unwrap_or(usual)
        };
        let mut raw: Vec<Bytes> = Vec::new();
        let mut outputs = Vec::with_capacity(response.outputs.len());
        for output in &response.outputs {
            let binary = is_binary(&output.name).then(|| output.data.to_raw());
            outputs.push(ResponseOutputJson {
                name: &output.name,
                datatype: output.data.datatype().name(),
                shape: &output.shape,
                parameters: binary.as_ref().map(|raw| BinarySize {
                    binary_data_size: raw.len(),
                }),
                data: binary.is_none().then_some(&output.data),
            });
            raw.extend(binary);
        }
        let json = serde_json::to_vec(&ResponseJson {
            model_name: &response.model,
            model_version: &response.version,
            id: &response.id,
            outputs,
        })?;
        if raw.is_empty() {
            return Ok(Written {
                body: json.into(),
                json_length: None,
            });
        }
        let length = json.len();
        let mut body = BytesMut::from(Bytes::from(json));
        body.reserve(raw.iter().map(Bytes::len).sum());
        raw.iter().for_each(|raw| body.put_slice(raw));
        Ok(Written {
            body: body.freeze(),
            json_length: Some(length),
        })
    }
}
