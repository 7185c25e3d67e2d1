//! Messages of the protocol as requests and responses.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tonic::metadata::MetadataMap;

use crate::error::InferError;
use crate::wire::{
    Data, Datatype, InferRequest, InferResponse, InputOptions, OutputOptions, Parameter,
    RequestOptions, Tensor,
};
use gatestream_protocol::infer_parameter::ParameterChoice;
use gatestream_protocol::model_infer_response::InferOutputTensor;
use gatestream_protocol::{
    InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse,
};

/// Reads a request.
///
/// # Errors
/// The name of the input or parameter that is wrong.
pub fn request(message: ModelInferRequest) -> Result<InferRequest, InferError> {
    let mut raw = message.raw_input_contents.into_iter();
    let has_raw = raw.len() > 0;
    if has_raw && raw.len() != message.inputs.len() {
        return Err(InferError::invalid(format!(
            "raw_input_contents has {} elements for {} inputs",
            raw.len(),
            message.inputs.len()
        )));
    }
    let mut inputs = Vec::with_capacity(message.inputs.len());
    for input in message.inputs {
        InputOptions::read(parameters(input.parameters))?;
        let data = match (raw.next(), input.contents) {
            (Some(_), Some(_)) => {
                return Err(InferError::invalid(format!(
                    "input {:?} has contents and raw_input_contents",
                    input.name
                )));
            }
            (Some(raw), None) => Data::of_input(&input.name, &input.datatype, &raw)?,
            (None, contents) => {
                from_contents(&input.name, &input.datatype, contents.unwrap_or_default())?
            }
        };
        inputs.push(Tensor::input(&input.name, &input.shape, data)?);
    }
    let mut outputs = Vec::with_capacity(message.outputs.len());
    for output in message.outputs {
        OutputOptions::read(parameters(output.parameters))?;
        outputs.push(output.name);
    }
    Ok(InferRequest {
        id: message.id,
        inputs,
        outputs,
        options: RequestOptions::read(parameters(message.parameters))?,
    })
}

fn parameters(all: HashMap<String, InferParameter>) -> impl Iterator<Item = (String, Parameter)> {
    all.into_iter().map(|(name, value)| {
        let value = match value.parameter_choice {
            Some(ParameterChoice::BoolParam(value)) => Parameter::Bool(value),
            Some(ParameterChoice::Int64Param(value)) => Parameter::Signed(value),
            Some(ParameterChoice::Uint64Param(value)) => Parameter::Unsigned(value),
            Some(ParameterChoice::DoubleParam(value)) => Parameter::Float(value),
            Some(ParameterChoice::StringParam(value)) => Parameter::Text(value),
            None => Parameter::Other,
        };
        (name, value)
    })
}

/// The elements in the field of their type.
fn from_contents(
    name: &str,
    datatype: &str,
    contents: InferTensorContents,
) -> Result<Data, InferError> {
    fn narrow<T, U: TryFrom<T>>(name: &str, values: Vec<T>) -> Result<Vec<U>, InferError> {
        let narrow = |value| {
            U::try_from(value).map_err(|_| {
                InferError::invalid(format!(
                    "input {name:?} has an element outside of its datatype"
                ))
            })
        };
        values.into_iter().map(narrow).collect()
    }
    Ok(match Datatype::of_input(name, datatype)? {
        Datatype::F32 => Data::F32(contents.fp32_contents),
        Datatype::F64 => Data::F64(contents.fp64_contents),
        Datatype::I64 => Data::I64(contents.int64_contents),
        Datatype::I32 => Data::I32(contents.int_contents),
        Datatype::I16 => Data::I16(narrow(name, contents.int_contents)?),
        Datatype::I8 => Data::I8(narrow(name, contents.int_contents)?),
        Datatype::U64 => Data::U64(contents.uint64_contents),
        Datatype::U32 => Data::U32(contents.uint_contents),
        Datatype::U16 => Data::U16(narrow(name, contents.uint_contents)?),
        Datatype::U8 => Data::U8(narrow(name, contents.uint_contents)?),
        Datatype::Bool => Data::Bool(contents.bool_contents),
        Datatype::Bytes => Data::Bytes(
            contents
                .bytes_contents
                .into_iter()
                .map(Bytes::from)
                .collect(),
        ),
        Datatype::F16 => {
            return Err(InferError::invalid(format!(
                "input {name:?} has the datatype FP16, which needs raw_input_contents"
            )));
        }
    })
}

/// Writes a response.
pub fn response(of: InferResponse, tells_end: bool) -> ModelInferResponse {
    let mut message = ModelInferResponse {
        model_name: of.model,
        model_version: of.version,
        id: of.id,
        ..ModelInferResponse::default()
    };
    for output in of.outputs {
        message.outputs.push(InferOutputTensor {
            name: output.name,
            datatype: output.data.datatype().name().to_owned(),
            shape: output
                .shape
                .iter()
                .map(|&axis| axis.try_into().unwrap_or(i64::MAX))
                .collect(),
            ..InferOutputTensor::default()
        });
        message.raw_output_contents.push(output.data.to_raw());
    }
    if tells_end {
        let is_final = InferParameter {
            parameter_choice: Some(ParameterChoice::BoolParam(of.is_final)),
        };
        message
            .parameters
            .insert("triton_final_response".to_owned(), is_final);
    }
    message
}

/// The deadline of the header `grpc-timeout`: at most eight digits and a unit. One that the clock
/// cannot express is none.
///
/// # Errors
/// The header is no such time.
pub fn deadline(metadata: &MetadataMap, received: Instant) -> Result<Option<Instant>, InferError> {
    let Some(value) = metadata.get("grpc-timeout") else {
        return Ok(None);
    };
    let time = value.to_str().ok().and_then(timeout).ok_or_else(|| {
        InferError::invalid(
            "grpc-timeout must be at most eight digits and a unit: H, M, S, m, u, n",
        )
    })?;
    Ok(received.checked_add(time))
}

fn timeout(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = number.len() <= 8 && number.bytes().all(|digit| digit.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| is_number)?;
    Some(match unit {
        "H" => Duration::from_secs(number.checked_mul(3600)?),
        "M" => Duration::from_secs(number.checked_mul(60)?),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_a_unit() {
        assert_eq!(timeout("100m"), Some(Duration::from_millis(100)));
        assert_eq!(timeout("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(timeout("5n"), Some(Duration::from_nanos(5)));
        for wrong in ["", "m", "1", "1x", "-1S", "999999999S", "+1S", "1é"] {
            assert_eq!(timeout(wrong), None, "{wrong}");
        }
    }
}
