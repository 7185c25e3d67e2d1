//! Parameters of a request: its sequence, priority and timeout.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use crate::error::InferError;

/// A value of a parameter.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Parameter {
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
}

/// Names a sequence. A number and its digits are two names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SequenceId {
    Number(u64),
    Text(String),
}

/// Longest name of a sequence, in bytes.
const LONGEST_ID: usize = 256;

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SequenceId::Number(number) => write!(f, "{number}"),
            SequenceId::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// Steps of a sequence whose states the server holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceStep {
    pub id: SequenceId,
    /// Whether they are the first.
    pub start: bool,
    /// Whether they are the last.
    pub end: bool,
}

/// Options of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestOptions {
    pub sequence: Option<SequenceStep>,
    /// 1 is the highest; 0 is that of requests that do not say.
    pub priority: u64,
    pub timeout: Option<Duration>,
    /// Whether the client wants a last response without outputs after those of a request that has
    /// several.
    pub wants_final: bool,
    /// Whether outputs are sent as bytes after the JSON unless they say otherwise.
    pub binary_outputs: bool,
}

impl RequestOptions {
    /// Reads the parameters of a request. Unknown ones are ignored, as the protocol asks.
    ///
    /// # Errors
    /// A known parameter with a value of another type.
    pub fn read(
        parameters: impl IntoIterator<Item = (String, Parameter)>,
    ) -> Result<RequestOptions, InferError> {
        let mut options = RequestOptions::default();
        let (mut id, mut start, mut end) = (None, false, false);
        for (name, value) in parameters {
            match name.as_str() {
                "sequence_id" => id = sequence_id(value)?,
                "sequence_start" => start = boolean(&name, &value)?,
                "sequence_end" => end = boolean(&name, &value)?,
                "priority" => options.priority = unsigned(&name, &value)?,
                "timeout" => options.timeout = timeout(unsigned(&name, &value)?),
                "triton_enable_empty_final_response" => {
                    options.wants_final = boolean(&name, &value)?;
                }
                "binary_data_output" => options.binary_outputs = boolean(&name, &value)?,
                _ => {}
            }
        }
        options.sequence = id.map(|id| SequenceStep { id, start, end });
        if options.sequence.is_none() && (start || end) {
            return Err(InferError::invalid(
                "sequence_start and sequence_end need a sequence_id other than 0",
            ));
        }
        Ok(options)
    }

    /// The priority of the engine: greater is sooner, 128 is the usual one.
    pub fn engine_priority(&self) -> u8 {
        match self.priority {
            0 => 128,
            priority => u8::try_from(256u64.saturating_sub(priority)).unwrap_or(0),
        }
    }
}

/// 0 microseconds: none.
fn timeout(microseconds: u64) -> Option<Duration> {
    (microseconds > 0).then(|| Duration::from_micros(microseconds))
}

fn boolean(name: &str, value: &Parameter) -> Result<bool, InferError> {
    match value {
        Parameter::Bool(value) => Ok(*value),
        _ => Err(InferError::invalid(format!(
            "parameter {name:?} must be true or false"
        ))),
    }
}

fn unsigned(name: &str, value: &Parameter) -> Result<u64, InferError> {
    match value {
        Parameter::Unsigned(value) => Ok(*value),
        Parameter::Signed(value) if *value >= 0 => Ok(value.unsigned_abs()),
        _ => Err(InferError::invalid(format!(
            "parameter {name:?} must be an integer of 0 or more"
        ))),
    }
}

/// `None` for 0 and the empty string: the request is not part of a sequence.
fn sequence_id(value: Parameter) -> Result<Option<SequenceId>, InferError> {
    match value {
        Parameter::Unsigned(0) | Parameter::Signed(0) => Ok(None),
        Parameter::Unsigned(number) => Ok(Some(SequenceId::Number(number))),
        Parameter::Signed(number) if number > 0 => {
            Ok(Some(SequenceId::Number(number.unsigned_abs())))
        }
        Parameter::Text(text) if text.is_empty() => Ok(None),
        Parameter::Text(text) if text.len() <= LONGEST_ID => Ok(Some(SequenceId::Text(text))),
        _ => Err(InferError::invalid(format!(
            "sequence_id must be an integer of 0 or more, or a string of at most {LONGEST_ID} bytes"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<RequestOptions, InferError> {
        let parameters: std::collections::BTreeMap<String, Parameter> =
            serde_json::from_str(json).expect("parameters");
        RequestOptions::read(parameters)
    }

    #[test]
    fn sequences_are_named_by_numbers_and_strings() {
        let id = |json: &str| {
            read(json)
                .expect("valid")
                .sequence
                .map(|s| s.id.to_string())
        };
        assert_eq!(id(r#"{"sequence_id": 7}"#).as_deref(), Some("7"));
        assert_eq!(id(r#"{"sequence_id": "7"}"#).as_deref(), Some("\"7\""));
        assert_eq!(
            id(r#"{"sequence_id": 0, "other": [1]}"#.replace("[1]", "1").as_str()),
            None
        );
        assert_eq!(id(r#"{"sequence_id": ""}"#), None);
        for wrong in ["-1", "1.5", "true"] {
            assert!(
                read(&format!(r#"{{"sequence_id": {wrong}}}"#)).is_err(),
                "{wrong}"
            );
        }
        assert!(read(r#"{"sequence_start": true}"#).is_err());
    }

    #[test]
    fn priorities_are_in_order_around_the_usual_one() {
        let of = |priority| {
            RequestOptions {
                priority,
                ..Default::default()
            }
            .engine_priority()
        };
        assert!(of(1) > of(2) && of(2) > of(0) && of(0) > of(200) && of(200) > of(256));
        assert_eq!((of(256), of(u64::MAX)), (0, 0));
    }

    #[test]
    fn a_timeout_of_zero_is_none() {
        assert_eq!(read(r#"{"timeout": 0}"#).expect("valid").timeout, None);
        let timeout = read(r#"{"timeout": 1500}"#).expect("valid").timeout;
        assert_eq!(timeout, Some(Duration::from_micros(1500)));
    }
}
