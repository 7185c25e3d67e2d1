//! Tensors and requests, independent of the protocol that carries them.

mod flat;
mod parameters;
mod tensor;

pub use flat::{FloatJson, flat};
pub use parameters::{
    InputOptions, OutputOptions, Parameter, RequestOptions, SequenceId, SequenceStep,
};
pub use tensor::{Data, Datatype, Tensor, elements};

/// A request for inference.
#[derive(Debug, Default)]
pub struct InferRequest {
    /// Given by the client, and returned with the answer.
    pub id: String,
    pub inputs: Vec<Tensor>,
    /// The names of the outputs that the client asks for; empty: all.
    pub outputs: Vec<String>,
    pub options: RequestOptions,
}

/// The answer to a request.
#[derive(Debug)]
pub struct InferResponse {
    pub id: String,
    pub model: String,
    pub version: String,
    pub outputs: Vec<Tensor>,
    /// Whether no other response of the same request follows.
    pub is_final: bool,
}

impl InferRequest {
    /// Whether the client asks for this output.
    pub fn wants(&self, output: &str) -> bool {
        self.outputs.is_empty() || self.outputs.iter().any(|wanted| wanted == output)
    }

    /// Bytes of all inputs.
    pub fn bytes(&self) -> usize {
        self.inputs.iter().map(|input| input.data.bytes()).sum()
    }
}
