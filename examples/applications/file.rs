use std::error::Error;

use gatestream::model::{Matrix, Model, SafetensorsOptions, Tensors};
use safetensors::{Dtype, SafeTensors};

/// A file that `tuning/applications/modules.py` wrote.
pub struct File<'a> {
    weights: Tensors<'a>,
    all: SafeTensors<'a>,
}

impl<'a> File<'a> {
    pub fn read(bytes: &'a [u8]) -> Result<File<'a>, Box<dyn Error>> {
        Ok(File {
            weights: Tensors::from_bytes(bytes)?,
            all: SafeTensors::deserialize(bytes)?,
        })
    }

    pub fn has(&self, name: &str) -> bool {
        self.weights.shape(name).is_some()
    }

    pub fn matrix(&self, name: &str) -> Result<Matrix, Box<dyn Error>> {
        Ok(self.weights.matrix(name)?)
    }

    pub fn vector(&self, name: &str) -> Result<Vec<f32>, Box<dyn Error>> {
        Ok(self.weights.vector(name)?)
    }

    /// The recurrent stack with this name.
    pub fn stack(&self, name: &str) -> Result<Model, Box<dyn Error>> {
        let options = SafetensorsOptions::new().prefix(format!("{name}."));
        Ok(Model::from_tensors(&self.weights, &options)?)
    }

    /// Symbols of an input, and the number of them in a row.
    pub fn symbols(&self, name: &str) -> Result<(Vec<usize>, usize), Box<dyn Error>> {
        let tensor = self.all.tensor(&format!("in:{name}"))?;
        let (Dtype::I64, &[_, steps]) = (tensor.dtype(), tensor.shape()) else {
            return Err(format!("in:{name}: expected a matrix of int64").into());
        };
        let numbers = tensor.data().as_chunks::<8>().0;
        let symbols = numbers
            .iter()
            .map(|&bytes| Ok(usize::try_from(i64::from_le_bytes(bytes))?));
        Ok((symbols.collect::<Result<_, Box<dyn Error>>>()?, steps))
    }

    /// PyTorch's answer.
    pub fn answer(&self, name: &str) -> Result<Vec<f32>, Box<dyn Error>> {
        self.values(&format!("out:{name}"))
    }

    /// The values of a tensor of any shape.
    pub fn values(&self, name: &str) -> Result<Vec<f32>, Box<dyn Error>> {
        let tensor = self.all.tensor(name)?;
        if tensor.dtype() != Dtype::F32 {
            return Err(format!("{name}: expected float32").into());
        }
        let values = tensor.data().as_chunks::<4>().0;
        Ok(values
            .iter()
            .map(|&bytes| f32::from_le_bytes(bytes))
            .collect())
    }
}
