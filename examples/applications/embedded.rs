use std::error::Error;

use gatestream::layers::{Embedding, Sequences};
use gatestream::model::Matrix;

/// An embedding, and room for the features of texts of different lengths.
pub struct Embedder {
    table: Embedding,
    values: Vec<f32>,
    lengths: Vec<usize>,
}

impl Embedder {
    pub fn new(table: Matrix) -> Embedder {
        Embedder {
            table: Embedding::new(table),
            values: Vec::new(),
            lengths: Vec::new(),
        }
    }

    /// The features of each text.
    pub fn run(&mut self, texts: &[&[usize]]) -> Result<Sequences<'_>, Box<dyn Error>> {
        let features = self.table.features();
        self.lengths.clear();
        self.lengths.extend(texts.iter().map(|text| text.len()));
        let steps = self.lengths.iter().copied().max().unwrap_or(0);
        self.values.resize(texts.len() * steps * features, 0.0);
        for (text, values) in texts.iter().zip(self.values.chunks_mut(steps * features)) {
            self.table.run(text, &mut values[..text.len() * features])?;
        }
        let sequences = Sequences::new(&self.values, texts.len(), steps, features);
        Ok(if self.lengths.iter().all(|&length| length == steps) {
            sequences
        } else {
            sequences.lengths(&self.lengths)
        })
    }
}
