//! The worker of tract, from ONNX.

use anyhow::{Context, Result};
use gatestream_references::{Load, Network, serve};
use tract_onnx::prelude::*;

struct Tract {
    model: Arc<TypedRunnableModel>,
    inputs: TVec<TValue>,
    result: Option<TValue>,
}

fn load(request: &Load) -> Result<Box<dyn Network>> {
    // Its products are split over these; cells themselves run on one thread.
    multithread::set_default_executor(match request.threads {
        1 => multithread::Executor::SingleThread,
        threads => multithread::Executor::multithread(threads),
    });
    let row = &request.row;
    let model = tract_onnx::onnx().model_for_path(request.folder.join("model.onnx"))?;
    let model = model.into_optimized()?.into_runnable()?;
    let shape = [row.steps, row.batch, row.input];
    let input = Tensor::from_shape(&shape, &request.values()?)?;
    let mut inputs: TVec<TValue> = tvec!(input.into());
    if let Some(lengths) = &row.lengths {
        let lengths: Vec<i32> = lengths.iter().map(|&length| length as i32).collect();
        inputs.push(Tensor::from_shape(&[row.batch], &lengths)?.into());
    }
    Ok(Box::new(Tract {
        model,
        inputs,
        result: None,
    }))
}

impl Network for Tract {
    fn call(&mut self) -> Result<()> {
        // The clone is of a counted reference.
        self.result = self.model.run(self.inputs.clone())?.into_iter().next();
        Ok(())
    }

    fn output(&mut self) -> Result<Vec<f32>> {
        let result = self.result.as_ref().context("not run yet")?;
        Ok(result
            .to_plain_array_view::<f32>()?
            .iter()
            .copied()
            .collect())
    }
}

fn main() -> Result<()> {
    serve("tract-onnx", load)
}
