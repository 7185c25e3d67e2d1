//! The worker of rten, from ONNX; in int8 from the file that ONNX Runtime's quantizer made, with a
//! scale for each gate of each unit. `RTEN_NUM_THREADS` says how many threads.

use anyhow::{Context, Result};
use gatestream_references::{Load, Network, serve};
use rten::{Model, NodeId, Value, ValueOrView};
use rten_tensor::prelude::*;
use rten_tensor::{NdTensor, Tensor};

struct Rten {
    model: Model,
    input: (NodeId, NdTensor<f32, 3>),
    lengths: Option<(NodeId, Tensor<i32>)>,
    output: NodeId,
    result: Option<Value>,
}

fn load(request: &Load) -> Result<Box<dyn Network>> {
    let row = &request.row;
    let file = match request.precision.as_str() {
        "int8" => "model.int8.onnx",
        _ => "model.onnx",
    };
    let model = Model::load_file(request.folder.join(file))?;
    let node = |name: &str| model.node_id(name);
    let input = NdTensor::from_data([row.steps, row.batch, row.input], request.values()?);
    let lengths = match &row.lengths {
        Some(lengths) => {
            let values: Vec<i32> = lengths.iter().map(|&l| l as i32).collect();
            Some((node("lengths")?, Tensor::from_data(&[row.batch], values)))
        }
        None => None,
    };
    Ok(Box::new(Rten {
        input: (node("input")?, input),
        lengths,
        output: node("output")?,
        result: None,
        model,
    }))
}

impl Network for Rten {
    fn call(&mut self) -> Result<()> {
        let mut inputs: Vec<(NodeId, ValueOrView)> =
            vec![(self.input.0, self.input.1.view().into())];
        if let Some((node, lengths)) = &self.lengths {
            inputs.push((*node, lengths.view().into()));
        }
        self.result = self.model.run(inputs, &[self.output], None)?.pop();
        Ok(())
    }

    fn output(&mut self) -> Result<Vec<f32>> {
        let result = self.result.take().context("not run yet")?;
        let tensor: Tensor<f32> = result.try_into()?;
        Ok(tensor.to_vec())
    }
}

fn main() -> Result<()> {
    serve("rten", load)
}
