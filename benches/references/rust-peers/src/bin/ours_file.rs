//! The worker of gatestream on a whole ONNX file, through the API a user has: open, tune, run.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gatestream_network::{Data, NamedTensor, NetworkOptions, NetworkTuning, Tensor};
use gatestream_references::{InputFile, LoadFile, Network, serve};
use serde_json::{Value, json};

struct Ours {
    network: gatestream_network::Network,
    inputs: Vec<NamedTensor>,
    results: Vec<NamedTensor>,
}

/// Types of elements: the name of NumPy, the variant, the type.
macro_rules! elements {
    ($of_type:ident) => {
        $of_type! {
            "float32", F32, f32;
            "float64", F64, f64;
            "int64", I64, i64;
            "int32", I32, i32;
            "int16", I16, i16;
            "int8", I8, i8;
            "uint64", U64, u64;
            "uint32", U32, u32;
            "uint16", U16, u16;
            "uint8", U8, u8;
        }
    };
}

fn read(input: &InputFile) -> Result<NamedTensor> {
    let bytes = std::fs::read(&input.file)?;
    macro_rules! data {
        ($($name:literal, $variant:ident, $type:ty;)*) => {
            match input.kind.as_str() {
                $($name => {
                    let values = bytes.chunks_exact(size_of::<$type>());
                    let value = |bytes: &[u8]| Ok(<$type>::from_le_bytes(bytes.try_into()?));
                    Data::from(values.map(value).collect::<Result<Vec<$type>>>()?)
                })*
                "bool" => Data::from(bytes.iter().map(|&byte| byte != 0).collect::<Vec<bool>>()),
                other => bail!("an input of {other}"),
            }
        };
    }
    Ok(NamedTensor {
        name: input.name.clone(),
        tensor: Tensor::new(&input.shape, elements!(data))?,
    })
}

fn bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    macro_rules! bytes {
        ($($name:literal, $variant:ident, $type:ty;)*) => {
            match tensor.data() {
                $(Data::$variant(values) => {
                    values.iter().flat_map(|value| value.to_le_bytes()).collect()
                })*
                Data::Bool(values) => values.iter().map(|&value| u8::from(value)).collect(),
                other => bail!("an output of {}", other.element_type()),
            }
        };
    }
    Ok(elements!(bytes))
}

impl Ours {
    fn inputs(&self) -> Vec<(&str, &Tensor)> {
        let inputs = self.inputs.iter();
        inputs
            .map(|input| (input.name.as_str(), &input.tensor))
            .collect()
    }

    fn tune(&self, budget: Duration) -> Result<()> {
        let options = NetworkTuning {
            budget,
            ..NetworkTuning::default()
        };
        let tuned = self
            .network
            .tune(&self.inputs(), options, |_| ControlFlow::Continue(()))?;
        Ok(self.network.use_plan(Some(tuned.plan))?)
    }
}

impl Network for Ours {
    fn call(&mut self) -> Result<()> {
        self.results = self.network.run(&self.inputs())?;
        Ok(())
    }

    fn output(&mut self) -> Result<Vec<f32>> {
        let first = self.results.first().context("no output")?;
        Ok(first.tensor.floats().context("no float32")?.to_vec())
    }

    fn output_bytes(&mut self) -> Result<Vec<u8>> {
        let all = self.results.iter().map(|result| bytes(&result.tensor));
        Ok(all.collect::<Result<Vec<_>>>()?.concat())
    }

    fn facts(&mut self) -> Result<Value> {
        let outputs = self.results.iter().map(|result| {
            let (name, tensor) = (&result.name, &result.tensor);
            let kind = tensor.data().element_type().name();
            json!({ "name": name, "type": kind, "shape": tensor.shape() })
        });
        Ok(json!({ "outputs": outputs.collect::<Vec<_>>() }))
    }
}

fn main() -> Result<()> {
    serve("gatestream-network", |request: &LoadFile| {
        let options = NetworkOptions {
            threads: Some(request.threads),
            ..NetworkOptions::default()
        };
        let network = gatestream_network::Network::open_with(&request.model, options)?;
        let inputs = request
            .inputs
            .iter()
            .map(read)
            .collect::<Result<Vec<_>>>()?;
        let mut ours = Ours {
            network,
            inputs,
            results: Vec::new(),
        };
        if request.tune_seconds > 0.0 {
            ours.tune(Duration::from_secs_f64(request.tune_seconds))?;
        }
        // The facts are of a run.
        ours.call()?;
        Ok(Box::new(ours))
    })
}
