//! A run of a network on made-up inputs, to learn whether it runs at all.

use half::f16;

use crate::{Caller, Data, ElementType, Network, Tensor};

/// Sizes for axes of any size, in this order, until one succeeds.
const SIZES: [usize; 4] = [4, 1, 16, 512];

/// Most elements of a made-up input.
const MAX_ELEMENTS: usize = 1 << 24;

/// A run of a network on inputs of ones.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Attempt {
    /// The shapes of the inputs, by name; empty if there was no run.
    pub shapes: Vec<(String, Vec<usize>)>,
    /// Why it failed.
    pub failure: Option<String>,
}

impl Network {
    /// Runs the network once on inputs of ones. An input has the shape given here, or that of the
    /// file; where the file allows any size of an axis, some are tried: 4, 1, 16, 512 for all such
    /// axes alike.
    ///
    /// ```no_run
    /// let network = gatestream_network::Network::open("model.onnx")?;
    /// let attempt = network.attempt(&[("x".into(), vec![1, 100, 40])]);
    /// if let Some(why) = attempt.failure {
    ///     println!("it does not run on {:?}: {why}", attempt.shapes);
    /// }
    /// # Ok::<(), gatestream_network::NetworkError>(())
    /// ```
    pub fn attempt(&self, shapes: &[(String, Vec<usize>)]) -> Attempt {
        let is_input = |name: &str| self.inputs().iter().any(|port| port.name == name);
        if let Some((unknown, _)) = shapes.iter().find(|(name, _)| !is_input(name)) {
            let names: Vec<&str> = self
                .inputs()
                .iter()
                .map(|port| port.name.as_str())
                .collect();
            return Attempt {
                shapes: Vec::new(),
                failure: Some(format!(
                    "it has no input {unknown:?}; use one of {}",
                    names.join(", ")
                )),
            };
        }
        let is_given = |name: &str| shapes.iter().any(|(given, _)| given == name);
        let has_open_axes = self.inputs().iter().any(|port| {
            let of_file = port.shape.iter().filter(|_| !is_given(&port.name));
            of_file.flatten().any(Option::is_none)
        });
        let tries = if has_open_axes { SIZES.len() } else { 1 };
        let mut first = None;
        for size in &SIZES[..tries] {
            let attempt = match self.inputs_of(shapes, *size) {
                Ok(inputs) => self.attempt_on(&inputs),
                Err(why) => Attempt {
                    shapes: Vec::new(),
                    failure: Some(why),
                },
            };
            if attempt.failure.is_none() {
                return attempt;
            }
            first.get_or_insert(attempt);
        }
        first.expect("there is a size")
    }

    fn attempt_on(&self, inputs: &[(String, Tensor)]) -> Attempt {
        let borrowed: Vec<(&str, &Tensor)> = inputs
            .iter()
            .map(|(name, tensor)| (name.as_str(), tensor))
            .collect();
        let shapes = inputs.iter();
        let ran = self.run_counted(&borrowed, Caller::default(), false);
        Attempt {
            shapes: shapes
                .map(|(name, tensor)| (name.clone(), tensor.shape().to_vec()))
                .collect(),
            failure: ran.err().map(|why| why.to_string()),
        }
    }

    fn inputs_of(
        &self,
        shapes: &[(String, Vec<usize>)],
        size: usize,
    ) -> Result<Vec<(String, Tensor)>, String> {
        let input = |port: &crate::NetworkPort| {
            let given = shapes.iter().find(|(name, _)| *name == port.name);
            let of_file = || {
                let axes = port.shape.as_ref()?.iter();
                Some(
                    axes.map(|axis| axis.unwrap_or(size))
                        .collect::<Vec<usize>>(),
                )
            };
            let shape = given.map(|(_, shape)| shape.clone()).or_else(of_file);
            let shape = shape.ok_or_else(|| {
                format!("the file does not tell the axes of input {:?}", port.name)
            })?;
            let kind = port
                .element_type
                .ok_or_else(|| format!("the type of input {:?} is not supported", port.name))?;
            let count = shape
                .iter()
                .try_fold(1usize, |all, &one| all.checked_mul(one));
            let count = count
                .filter(|&count| count <= MAX_ELEMENTS)
                .ok_or_else(|| {
                    format!(
                        "input {:?} would have more than {MAX_ELEMENTS} elements",
                        port.name
                    )
                })?;
            let tensor = Tensor::new(&shape, ones(kind, count)).map_err(|why| why.to_string())?;
            Ok((port.name.clone(), tensor))
        };
        self.inputs().iter().map(input).collect()
    }
}

fn ones(kind: ElementType, count: usize) -> Data {
    match kind {
        ElementType::F32 => vec![1f32; count].into(),
        ElementType::F64 => vec![1f64; count].into(),
        ElementType::F16 => vec![f16::ONE; count].into(),
        ElementType::I64 => vec![1i64; count].into(),
        ElementType::I32 => vec![1i32; count].into(),
        ElementType::I16 => vec![1i16; count].into(),
        ElementType::I8 => vec![1i8; count].into(),
        ElementType::U64 => vec![1u64; count].into(),
        ElementType::U32 => vec![1u32; count].into(),
        ElementType::U16 => vec![1u16; count].into(),
        ElementType::U8 => vec![1u8; count].into(),
        ElementType::Bool => vec![true; count].into(),
    }
}
