//! Arguments that several subcommands share: which model, and how many threads.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;

use super::memory::afford_weights;
use gatestream::model::{
    Builder, Cell, FileKind, Merge, Model, NamedCell, SafetensorsOptions, TensorFile,
};
use gatestream_command::Failure;

/// A cell that a shape can name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CellName(&'static NamedCell);

impl CellName {
    fn cell(self) -> Cell {
        self.0.cell
    }

    /// The name of `cell`, if it has one.
    pub fn of(cell: Cell) -> Option<CellName> {
        let named = Cell::NAMED.iter().find(|named| named.cell == cell);
        named.map(CellName)
    }
}

impl ValueEnum for CellName {
    fn value_variants<'a>() -> &'a [CellName] {
        static ALL: LazyLock<Vec<CellName>> =
            LazyLock::new(|| Cell::NAMED.iter().map(CellName).collect());
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.argument).help(self.0.about))
    }
}

/// A model file, or a shape with random weights.
#[derive(Debug, clap::Args)]
pub struct ModelOrShape {
    /// Model file: .safetensors, .onnx, or a checkpoint of PyTorch (.pt)
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub shape: Shape,
    #[command(flatten)]
    pub file: FileOptions,
}

impl ModelOrShape {
    /// The model.
    pub fn model(&self) -> Result<Model, Failure> {
        self.open_or(|shape| shape.model())
    }

    /// A failure of the model, with its file's name if it has one.
    pub fn failed(&self, failure: Failure) -> Failure {
        match &self.model {
            Some(path) => failure.of(path),
            None => failure,
        }
    }

    /// The model, weights of a shape left zero: for questions about sizes.
    pub fn sizes(&self) -> Result<Model, Failure> {
        self.open_or(|shape| shape.made(Fill::Zeros))
    }

    fn open_or(
        &self,
        make: impl FnOnce(&Shape) -> Result<Model, Failure>,
    ) -> Result<Model, Failure> {
        let Some(path) = &self.model else {
            if self.file != FileOptions::default() {
                return Err(Failure::usage(
                    "--prefix, --batch-first and --clip-output apply to a model file; name one",
                ));
            }
            return make(&self.shape);
        };
        let shape = &self.shape;
        let sizes = [shape.input, shape.hidden, shape.layers];
        if sizes.iter().any(Option::is_some) || shape.bidirectional {
            return Err(Failure::usage(
                "--input, --hidden, --layers and --bidirectional describe a shape; a model file \
                 has its own",
            ));
        }
        let opened = open(path, &self.file, shape.cell);
        #[cfg(feature = "network")]
        return opened.map_err(|why| super::network::with_arrays(path, why));
        #[cfg(not(feature = "network"))]
        opened
    }
}

/// How a file is read.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub struct FileOptions {
    /// Recurrent stack of a file of tensors: the prefix of weight_ih_l0, or of a list of modules
    #[arg(long, value_name = "PREFIX")]
    pub prefix: Option<String>,
    /// The model's sequences are [batch, steps, features], as with PyTorch's batch_first
    #[arg(long)]
    pub batch_first: bool,
    /// The clip of an LSTM also bounds the input of its output activation, as in the text of ONNX
    /// (default: as in ONNX Runtime, it does not)
    #[arg(long)]
    pub clip_output: bool,
    /// Of a whole graph: also run operators that have not passed ONNX's own test cases. Their
    /// results may be wrong
    #[arg(long)]
    pub unchecked: bool,
}

/// Opens a model file. `cell` is the kind of cell, if the tensors do not determine it.
pub fn open(path: &Path, options: &FileOptions, cell: Option<CellName>) -> Result<Model, Failure> {
    let model = open_with(path, options, cell).map_err(|failure| failure.of(path))?;
    Ok(if options.clip_output {
        model.clipping_outputs()
    } else {
        model
    })
}

fn open_with(path: &Path, options: &FileOptions, cell: Option<CellName>) -> Result<Model, Failure> {
    if FileKind::of(path)? == FileKind::Onnx {
        if options.prefix.is_some() || options.batch_first || cell.is_some() {
            return Err(Failure::usage(
                "--prefix, --batch-first and --cell are for files of tensors; an ONNX file \
                 contains this information",
            ));
        }
        return Ok(Model::open(path)?);
    }
    let mut chosen = SafetensorsOptions::new();
    if let Some(prefix) = &options.prefix {
        chosen = chosen.prefix(prefix);
    }
    if let Some(cell) = cell {
        chosen = chosen.cell(cell.cell());
    }
    // An option instead of an exchange of axes afterwards: the file may say the same itself.
    if options.batch_first {
        chosen = chosen.batch_first(true);
    }
    let file = TensorFile::read(path)?;
    let tensors = file.tensors()?;
    if let Some(name) = tensors.rounded().next() {
        eprintln!(
            "gatestream: {}: float64 is rounded to float32 ({name:?})",
            path.display()
        );
    }
    Ok(Model::from_tensors(&tensors, &chosen)?)
}

/// A model without a file: its shape, with random weights.
#[derive(Clone, Debug, clap::Args)]
pub struct Shape {
    /// Kind of cell
    #[arg(long, value_name = "CELL")]
    pub cell: Option<CellName>,
    /// Features of an input step
    #[arg(long, value_name = "E", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub input: Option<u32>,
    /// Hidden units per layer and direction
    #[arg(long, value_name = "H", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    pub hidden: Option<u32>,
    /// Layers (default: 1)
    #[arg(long, value_name = "L", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub layers: Option<u32>,
    /// Run both directions in every layer, outputs concatenated
    #[arg(long)]
    pub bidirectional: bool,
}

/// The weights of a shape.
#[derive(Clone, Copy, Debug)]
enum Fill {
    Random,
    Zeros,
}

impl Shape {
    /// The model, or an error that names the missing arguments.
    pub fn model(&self) -> Result<Model, Failure> {
        self.made(Fill::Random)
    }

    fn made(&self, fill: Fill) -> Result<Model, Failure> {
        let (Some(cell), Some(input), Some(hidden)) = (self.cell, self.input, self.hidden) else {
            let all = [
                ("--cell", self.cell.is_none()),
                ("--input", self.input.is_none()),
                ("--hidden", self.hidden.is_none()),
            ];
            let missing = all.iter().filter(|(_, missing)| *missing);
            let missing: Vec<_> = missing.map(|(name, _)| *name).collect();
            return Err(Failure::usage(match missing.len() {
                3 => "name a model file, or a shape: --cell, --input and --hidden".into(),
                _ => format!("the shape lacks {}", missing.join(" and ")),
            }));
        };
        let (input, hidden) = (input as usize, hidden as usize);
        let layers = self.layers.unwrap_or(1) as usize;
        afford_weights(self.values(cell.cell().kind().gates()))?;
        let stack = Builder::with_cell(cell.cell(), input, hidden).layers(layers);
        let stack = if self.bidirectional {
            stack.bidirectional(Merge::Concat)
        } else {
            stack
        };
        Ok(match fill {
            Fill::Random => stack.random(1)?,
            Fill::Zeros => stack.zeros()?,
        })
    }

    /// Values of all weights and biases, if they can be counted.
    fn values(&self, gates: usize) -> Option<u64> {
        let (input, hidden) = (u64::from(self.input?), u64::from(self.hidden?));
        let directions = if self.bidirectional { 2 } else { 1 };
        let layer = |input: u64| {
            let row = input.checked_add(hidden)?.checked_add(2)?;
            row.checked_mul(hidden)?
                .checked_mul(gates as u64 * directions)
        };
        let above = u64::from(self.layers.unwrap_or(1)).saturating_sub(1);
        layer(input)?.checked_add(layer(hidden * directions)?.checked_mul(above)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shapes_weights_are_counted_before_they_are_made() {
        for (cell, layers, bidirectional) in [
            (Cell::LSTM, 1, false),
            (Cell::GRU, 3, true),
            (Cell::RNN, 2, false),
        ] {
            let cell = CellName::of(cell).unwrap();
            let shape = Shape {
                cell: Some(cell),
                input: Some(5),
                hidden: Some(3),
                layers: Some(layers),
                bidirectional,
            };
            let bytes = shape.model().unwrap().weight_bytes();
            let values = shape.values(cell.cell().kind().gates());
            assert_eq!(values, Some(bytes as u64 / 4), "{cell:?}");
        }
    }
}
