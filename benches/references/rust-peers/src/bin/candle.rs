//! The worker of candle, from safetensors. `RAYON_NUM_THREADS` says how many threads.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor, safetensors};
use candle_nn::VarBuilder;
use candle_nn::rnn::{GRU, GRUConfig, LSTM, LSTMConfig, RNN, gru, lstm};
use gatestream_references::{Load, Network, serve};

enum Cell {
    Lstm(LSTM),
    Gru(GRU),
}

impl Cell {
    /// `[batch, steps, features]` to `[batch, steps, hidden]`.
    fn seq(&self, input: &Tensor) -> candle_core::Result<Tensor> {
        let (batch, steps, _) = input.dims3()?;
        match self {
            Cell::Lstm(cell) => cell.states_to_tensor(&cell.seq(input)?),
            // It joins the states along the features, not along an axis of steps.
            Cell::Gru(cell) => {
                (cell.states_to_tensor(&cell.seq(input)?)?).reshape((batch, steps, ()))
            }
        }
    }
}

struct Candle {
    /// Per layer: forward and, where there is one, backward.
    layers: Vec<Vec<Cell>>,
    input: Tensor,
    result: Option<Tensor>,
}

fn load(request: &Load) -> Result<Box<dyn Network>> {
    let row = &request.row;
    ensure!(row.lengths.is_none(), "it has no lengths per sequence");
    let device = Device::Cpu;
    let tensors = safetensors::load(request.folder.join("model.safetensors"), &device)?;
    let mut layers = Vec::new();
    for (index, stack) in row.stacks.iter().enumerate() {
        let prefix = match row.stacks.len() {
            1 => String::new(),
            _ => format!("{index}."),
        };
        let ends: &[&str] = if stack.bidirectional {
            &["", "_reverse"]
        } else {
            &[""]
        };
        for layer in 0..stack.layers {
            let features = match layer {
                0 => stack.input,
                _ => stack.hidden * ends.len(),
            };
            let cell = |end: &&str| -> Result<Cell> {
                // Its layers know the names of a first layer only.
                let mut own = HashMap::new();
                for kind in ["weight_ih", "weight_hh", "bias_ih", "bias_hh"] {
                    let name = format!("{prefix}{kind}_l{layer}{end}");
                    let tensor = tensors.get(&name).with_context(|| name.clone())?;
                    own.insert(format!("{kind}_l0"), tensor.clone());
                }
                let own = VarBuilder::from_tensors(own, DType::F32, &device);
                Ok(match row.cell.as_str() {
                    "lstm" => Cell::Lstm(lstm(features, stack.hidden, LSTMConfig::default(), own)?),
                    _ => Cell::Gru(gru(features, stack.hidden, GRUConfig::default(), own)?),
                })
            };
            layers.push(ends.iter().map(cell).collect::<Result<_>>()?);
        }
    }
    let shape = (row.steps, row.batch, row.input);
    let input = Tensor::from_vec(request.values()?, shape, &device)?;
    Ok(Box::new(Candle {
        layers,
        input: input.transpose(0, 1)?.contiguous()?,
        result: None,
    }))
}

impl Network for Candle {
    fn call(&mut self) -> Result<()> {
        let mut value = self.input.clone();
        for directions in &self.layers {
            let forward = directions[0].seq(&value)?;
            value = match directions.get(1) {
                None => forward,
                Some(backward) => {
                    let turned = backward.seq(&value.flip(&[1])?.contiguous()?)?;
                    Tensor::cat(&[&forward, &turned.flip(&[1])?], 2)?
                }
            };
        }
        self.result = Some(value);
        Ok(())
    }

    fn output(&mut self) -> Result<Vec<f32>> {
        let result = self.result.as_ref().context("not run yet")?;
        Ok(result
            .transpose(0, 1)?
            .contiguous()?
            .flatten_all()?
            .to_vec1()?)
    }
}

fn main() -> Result<()> {
    serve("candle-nn", load)
}
