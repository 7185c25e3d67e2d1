//! ```text
//! v = [forward; reverse] final states of a GRU over the embedded text
//! similarity of a query and a document = cosine of their v
//! ```

use std::error::Error;

use gatestream::kernels::Isa;
use gatestream::layers::CosineSimilarity;

use super::embedded::Embedder;
use super::encoder::{Encoder, Planned, Planning, on_one_team};
use super::{File, LayerTimes};

/// PyTorch's least length of a vector.
const EPS: f32 = 1e-8;

/// Ranks documents for a query. All texts are one batch of the encoder.
pub struct TextSimilarity {
    embedder: Embedder,
    encoder: Encoder,
    cosine: CosineSimilarity,
    similarity: Vec<f32>,
    pub times: LayerTimes,
}

impl TextSimilarity {
    /// `size`: the number of texts, and their steps. It decides the plan; other sizes run too.
    pub fn load(
        file: &File<'_>,
        size: (usize, usize),
        planning: Planning,
    ) -> Result<TextSimilarity, Box<dyn Error>> {
        let planned = Planned::new(file.stack("encoder")?, size, planning)?;
        let (_, [encoder]) = on_one_team(planning.cores, [planned])?;
        Ok(TextSimilarity {
            embedder: Embedder::new(file.matrix("embedding.weight")?),
            encoder,
            cosine: CosineSimilarity::new(EPS, Isa::select()?)?,
            similarity: Vec::new(),
            times: LayerTimes::new(),
        })
    }

    /// The similarity of the query and each document.
    pub fn rank(
        &mut self,
        query: &[usize],
        documents: &[&[usize]],
    ) -> Result<&[f32], Box<dyn Error>> {
        self.times.start();
        let texts: Vec<&[usize]> = [query]
            .into_iter()
            .chain(documents.iter().copied())
            .collect();
        let x = self.embedder.run(&texts)?;
        self.times.end("embedding");
        let encoded = self.encoder.final_states(&x)?;
        self.times.end("GRU");
        let (query, of_documents) = encoded.split_at(encoded.len() / texts.len());
        self.similarity.resize(documents.len(), 0.0);
        self.cosine.run(query, of_documents, &mut self.similarity)?;
        self.times.end("cosine similarity");
        Ok(&self.similarity)
    }

    /// The answer of the last run.
    pub fn similarity(&self) -> &[f32] {
        &self.similarity
    }
}
