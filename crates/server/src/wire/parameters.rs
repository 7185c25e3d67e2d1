//! Parameters of a request: its sequence, priority and timeout.

use std::fmt;
use std::time::Duration;

use crate::error::{ErrorKind, InferError};

/// A value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameter {
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    /// None of these: a list, an object, or nothing. No parameter has such a value.
    Other,
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

/// Options of an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputOptions {
    /// Bytes of the input after the JSON.
    pub binary_size: Option<u64>,
}

impl InputOptions {
    /// Reads the parameters of an input. Unknown ones are ignored, as the protocol asks.
    ///
    /// # Errors
    /// A known parameter with a value of another type; shared memory.
    pub fn read(
        parameters: impl IntoIterator<Item = (String, Parameter)>,
    ) -> Result<InputOptions, InferError> {
        let mut options = InputOptions::default();
        for (name, value) in parameters {
            refuse_shared_memory(&name)?;
            if name == "binary_data_size" {
                options.binary_size = Some(unsigned(&name, &value)?);
            }
        }
        Ok(options)
    }
}

/// Options of an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputOptions {
    /// Whether it is sent as bytes after the JSON; `None`: as [`RequestOptions::binary_outputs`].
    pub binary: Option<bool>,
}

impl OutputOptions {
    /// Reads the parameters of an output. Unknown ones are ignored, as the protocol asks.
    ///
    /// # Errors
    /// A known parameter with a value of another type; shared memory; classification.
    pub fn read(
        parameters: impl IntoIterator<Item = (String, Parameter)>,
    ) -> Result<OutputOptions, InferError> {
        let mut options = OutputOptions::default();
        for (name, value) in parameters {
            refuse_shared_memory(&name)?;
            match name.as_str() {
                "binary_data" => options.binary = Some(boolean(&name, &value)?),
                "classification" if unsigned(&name, &value)? > 0 => {
                    return Err(InferError::new(
                        ErrorKind::Unsupported,
                        "outputs have no parameter \"classification\" here; take the largest \
                         elements of the output",
                    ));
                }
                _ => {}
            }
        }
        Ok(options)
    }
}

fn refuse_shared_memory(name: &str) -> Result<(), InferError> {
    if !name.starts_with("shared_memory_") {
        return Ok(());
    }
    Err(InferError::new(
        ErrorKind::Unsupported,
        "the server has no shared memory; send the tensor's bytes",
    ))
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

    fn read<const N: usize>(
        parameters: [(&str, Parameter); N],
    ) -> Result<RequestOptions, InferError> {
        RequestOptions::read(parameters.map(|(name, value)| (name.to_owned(), value)))
    }

    fn text(text: &str) -> Parameter {
        Parameter::Text(text.into())
    }

    #[test]
    fn sequences_are_named_by_numbers_and_strings() {
        let id = |value| {
            let options = read([("sequence_id", value)]).expect("valid");
            options.sequence.map(|sequence| sequence.id.to_string())
        };
        assert_eq!(id(Parameter::Unsigned(7)).as_deref(), Some("7"));
        assert_eq!(id(text("7")).as_deref(), Some("\"7\""));
        assert_eq!(id(Parameter::Signed(0)), None);
        assert_eq!(id(text("")), None);
        for wrong in [
            Parameter::Signed(-1),
            Parameter::Float(1.5),
            Parameter::Bool(true),
            Parameter::Other,
        ] {
            assert!(read([("sequence_id", wrong.clone())]).is_err(), "{wrong:?}");
        }
        assert!(read([("sequence_start", Parameter::Bool(true))]).is_err());
    }

    #[test]
    fn known_parameters_have_their_types_and_unknown_ones_any() {
        for known in [
            "sequence_id",
            "sequence_start",
            "sequence_end",
            "priority",
            "timeout",
            "triton_enable_empty_final_response",
            "binary_data_output",
        ] {
            for wrong in [Parameter::Other, Parameter::Float(1.0)] {
                let error = read([(known, wrong)]).expect_err(known);
                assert!(error.message.contains(known), "{error}");
            }
        }
        assert!(read([("other", Parameter::Other)]).is_ok());
        let input = |name: &str, value| InputOptions::read([(name.to_owned(), value)]);
        let output = |name: &str, value| OutputOptions::read([(name.to_owned(), value)]);
        assert!(input("binary_data_size", text("4")).is_err());
        assert!(input("other", Parameter::Other).is_ok());
        assert!(output("binary_data", text("true")).is_err());
        assert!(output("classification", Parameter::Other).is_err());
        assert!(output("classification", Parameter::Unsigned(0)).is_ok());
        assert!(output("shared_memory_region", text("r")).is_err());
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
        let of = |time| {
            let options = read([("timeout", Parameter::Unsigned(time))]);
            options.expect("valid").timeout
        };
        assert_eq!(of(0), None);
        assert_eq!(of(1500), Some(Duration::from_micros(1500)));
    }
}
